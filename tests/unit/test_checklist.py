"""The pages of statements are what the tests say of themselves, and each statement has a test."""

import pytest

import remoting_checklist
from checklist import PAGE, STATEMENTS, numbers_in, page, shown


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Checklist 2.", {2}),
        ("Checklist 21 and 25: not before.", {21, 25}),
        ("Checklist 40, 41, 42 and 43.", {40, 41, 42, 43}),
        ("Checklist 54 to 58: three deliveries.", {54, 55, 56, 57, 58}),
        ("Checklist 20, 16 to 18, and 8: two at once, 5 times.", {8, 16, 17, 18, 20}),
        ("Checklist 59 and 10.3: it is waited for.", {59}),
        ("Checklist 14 and chapter 9, without a master.", {14}),
        ("It is made again, 3 times.", set()),
    ],
)
def test_numbers_of_a_docstring_are_read(text: str, numbers: set[int]) -> None:
    assert numbers_in(text) == numbers


def test_each_statement_has_a_test_and_each_number_a_statement() -> None:
    assert len(STATEMENTS) == 80
    assert sorted(shown()) == list(range(1, 81)), (
        "a statement has no test, or a test names one that is not there"
    )


def test_the_page_is_what_the_tests_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run make checklist"


def test_each_statement_on_remoting_has_a_test() -> None:
    assert len(remoting_checklist.STATEMENTS) == 60
    assert sorted(remoting_checklist.shown()) == list(range(1, 61))


def test_the_page_on_remoting_is_what_the_tests_say() -> None:
    assert remoting_checklist.PAGE.read_text(encoding="utf-8") == remoting_checklist.page(), (
        "run make checklist"
    )
