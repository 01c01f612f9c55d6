"""Warnings that come once in a while, with a count."""

from whimbrel.broker.consume.rare_warning import RareWarning


def test_a_line_is_due_once_in_a_while_and_counts_what_came_since() -> None:
    warning = RareWarning(1000)
    told = [warning.due(count, now) for count, now in ((2, 5000), (3, 5001), (4, 5999), (1, 6000), (1, 6001))]
    assert told == [2, 0, 0, 8, 0]


def test_a_clock_that_was_set_back_does_not_silence_it() -> None:
    warning = RareWarning(1000)
    assert [warning.due(1, now) for now in (5000, 4999, 5000)] == [1, 1, 0]
