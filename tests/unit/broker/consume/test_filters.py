"""Tag filters."""

import pytest

from whimbrel.broker.consume.filters import ALL, FILTER_CHARS_MAX, compile_filter
from whimbrel.errors import IllegalFilter
from whimbrel.store.codec import tags_code


@pytest.mark.parametrize("expression", ["*", "", " * "])
def test_star_and_nothing_admit_everything(expression: str) -> None:
    one = compile_filter("tag", expression)
    assert one is ALL
    assert one.admits_all
    assert one.admits({}, None) and one.admits({}, "a")
    assert one.admits_code(tags_code("a")) and one.admits_code(0)


def test_tags_are_trimmed_and_compared_exactly() -> None:
    one = compile_filter("tag", " a ||b|| ")
    assert one.tags == frozenset({"a", "b"})
    assert one.admits({}, "a") and one.admits({}, "b")
    assert not one.admits({}, "A") and not one.admits({}, None) and not one.admits({}, "")
    assert not one.admits_all


def test_hash_decides_by_its_low_32_bits() -> None:
    tag = "a-tag-with-a-negative-hash"
    assert tags_code(tag) < 0
    one = compile_filter("tag", tag)
    assert one.admits_code(tags_code(tag))
    assert one.admits_code(tags_code(tag) & 0xFFFFFFFF)
    assert not one.admits_code(tags_code("other"))


def test_tags_of_equal_hash_differ_in_their_text() -> None:
    one = compile_filter("tag", "Aa")
    assert one.admits_code(tags_code("BB"))
    assert not one.admits({}, "BB")


@pytest.mark.parametrize(
    "expression", ["||", " || || ", "a|b", "a || b\n|| c|d", "a" * (FILTER_CHARS_MAX + 1)]
)
def test_expression_without_a_possible_tag_is_refused(expression: str) -> None:
    with pytest.raises(IllegalFilter):
        compile_filter("tag", expression)


def test_sql_reads_every_record_and_is_compiled_once() -> None:
    one = compile_filter("sql", "a > 1")
    assert one is compile_filter("sql", "a > 1")
    assert not one.admits_all and one.admits_code(0) and one.expression == "a > 1"
    assert one.admits({"a": "2"}, None) and not one.admits({"a": "1"}, None)
