"""SQL filters against RocketMQ's recorded answers, and what is ours alone: bounds, and what differs."""

import pytest

from support.broker.sql_cases import RESULTS, agrees, ours, recorded
from whimbrel.broker.consume.sql_filter import SQL_CHARS_MAX, SqlFilter, compile_sql
from whimbrel.broker.consume.sql_grammar import NESTING_MAX
from whimbrel.errors import IllegalFilter


def result(text: str, **properties: str) -> str:
    return ours((text, properties))


def test_results_are_those_of_rocketmq() -> None:
    """Checklist 65: each line of the table, and what was generated, against the real class's answers."""
    cases = recorded()
    assert len(cases) > 500 and {answer for _, _, answer in cases} == set(RESULTS)
    differ = [case for case in cases if not agrees(case[:2], case[2])]
    assert differ == []


@pytest.mark.parametrize("text", ["true", "TRUE", "false", "5", ""])
def test_a_truth_is_compared_with_a_text_on_either_side(text: str) -> None:
    """RocketMQ: an error where the text stands on the right."""
    for shape in ("{} = {}", "{} <> {}"):
        for truth in ("TRUE", "FALSE", "(a = 5)"):
            left, right = (shape.format(*sides) for sides in ((truth, "b"), ("b", truth)))
            assert result(left, a="5", b=text) == result(right, a="5", b=text), left


def test_text_is_a_number_of_the_literals_type() -> None:
    """Checklist 66."""
    assert result("n > 1", n="1.5") == "EVAL"
    assert result("n > 1.0", n="1.5") == "TRUE"


def test_only_a_missing_left_side_leaves_an_inequality_open() -> None:
    """Checklist 67."""
    assert result("5 <> missing") == "TRUE"
    assert result("missing <> 5") == "NULL"


def test_not_binds_tightest() -> None:
    """Checklist 68."""
    assert result("NOT a = 5", a="7") == "FALSE"
    assert result("NOT (a = 5)", a="7") == "TRUE"


def test_missing_property_contains_nothing_and_does_not_contain_nothing() -> None:
    """Checklist 69."""
    assert result("missing NOT CONTAINS 'x'") == "FALSE"
    assert result("b NOT CONTAINS 'x'", b="abc") == "TRUE"


def test_error_left_of_or_is_no_match_and_right_of_true_does_not_matter() -> None:
    """Checklist 70."""
    properties = {"a": "5", "b": "abc"}
    assert not compile_sql("b > 3 OR a = 5").admits(properties, None)
    assert compile_sql("a = 5 OR b > 3").admits(properties, None)


@pytest.mark.parametrize("text", ["TRUE", "FALSE", "NULL", "a", "a > 'x' OR TRUE"])
def test_only_true_matches(text: str) -> None:
    try:
        matches = compile_sql(text).admits({"a": "true"}, None)
    except IllegalFilter:
        matches = False
    assert matches is (text == "TRUE")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a >", "the SQL filter has the end at character 4, where a property, a value or '(' should be"),
        ("a = NULL", "NULL is compared: write IS NULL, in the SQL filter before character 9"),
        ("a > 'x'", "an order is asked of something else than numbers and properties"),
        ("a BETWEEN 9 AND 1", "the lower bound of BETWEEN is above the upper one"),
        ("a IN (1)", "the SQL filter has '1' at character 7, where a string should be"),
        ("a LIKE 'x'", "the SQL filter has 'LIKE' at character 3, where AND, OR or the end should be"),
        ("", "the SQL filter has the end at character 1, where a property, a value or '(' should be"),
        ("a = 5 junk", "the SQL filter has 'junk' at character 7, where AND, OR or the end should be"),
        ("a = 'x", """the SQL filter can't be read from character 5 on: "'x\""""),
        ("a = 9223372036854775808", "an integer is above 9223372036854775807"),
        ("a", ""),
    ],
)
def test_what_is_no_expression_is_told_with_its_place(text: str, message: str) -> None:
    """Checklist 71; and text behind an expression, which RocketMQ ignores."""
    if not message:
        assert SqlFilter(text).expression == text
        return
    with pytest.raises(IllegalFilter) as caught:
        SqlFilter(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("zero", ["0.0", "0.", ".0", "0e5"])
def test_double_may_be_zero(zero: str) -> None:
    """RocketMQ takes it for one that is too small; what a comparison gives is Java's order of doubles."""
    assert result(f"a = {zero}", a="0") == "TRUE"
    assert result(f"a < {zero}", a="-0") == "TRUE"
    assert result(f"a = -{zero}", a="-0.0") == "TRUE"
    assert result(f"a > {zero}", a="NaN") == "TRUE"
    assert result(f"a >= {zero}", a="x") == "EVAL"
    assert result(f"0 = {zero}") == "TRUE" and result(f"-1 < {zero}") == "TRUE"


def test_stored_properties_have_names() -> None:
    """Checklist 73."""
    text = "UNIQ_KEY = '01' AND TAGS IN ('x', 'y') AND KEYS CONTAINS 'k2'"
    assert result(text, UNIQ_KEY="01", TAGS="x", KEYS="k1 k2") == "TRUE"
    assert result(text, UNIQ_KEY="02", TAGS="x", KEYS="k1 k2") == "FALSE"


@pytest.mark.parametrize(
    "text",
    [
        "a = '" + "x" * 100_000 + "'",
        "a = 5 OR " * 12_000 + "TRUE",
        "(" * 1000 + "a" + ")" * 1000,
        "(" * 1000,
        "NOT " * 1000 + "a",
        "-" * 1000 + "a = 5",
        "- " * 1000 + "a = 5",
        "a" + " = b" * 1000,
        "a" + " IS NULL" * 1000,
        "a" + " CONTAINS 'x'" * 1000,
        "(" * 60 + "a" + " = b" * 60 + ")" * 60 + " = b" * 60,
        "/*" + "*x" * 8000,
        "--" * 8000,
        "a > " + "9" * 16_000,
    ],
)
def test_long_and_deep_texts_are_refused(text: str) -> None:
    """Checklist 74."""
    with pytest.raises(IllegalFilter):
        SqlFilter(text)


def test_what_is_just_within_bounds_is_evaluated() -> None:
    deep = "(" * (NESTING_MAX - 1) + "a = 5" + ")" * (NESTING_MAX - 1)
    assert result(deep, a="5") == "TRUE"
    assert result("NOT " * (NESTING_MAX - 2) + "TRUE") == "TRUE"
    wide = " OR ".join(["a = 5"] * 1800)
    assert result(wide, a="7") == "FALSE" and len(wide) < SQL_CHARS_MAX
    values = "a IN (" + ",".join(f"'{number}'" for number in range(2000)) + ")"
    assert result(values, a="1999") == "TRUE" and result(values, a="2000") == "FALSE"


def test_filter_with_many_terms_weighs_more() -> None:
    assert SqlFilter(" OR ".join(["a = 5"] * 1000)).weight > 10 * SqlFilter("a = 5").weight
