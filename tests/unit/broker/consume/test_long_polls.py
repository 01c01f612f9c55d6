"""Parked polls."""

from dataclasses import dataclass

import pytest

from whimbrel.broker.consume.long_polls import LongPolls, poll_time_ms
from whimbrel.errors import Throttled


@dataclass(eq=False)
class Poll:
    topic: str = "t"
    line: str = "g"
    deadline_ms: int = 100


@pytest.mark.parametrize(
    ("requested", "remaining", "expected"),
    [
        (5_000, 8_000, 5_000),
        (1_000, 4_000, 1_000),
        (30_000, 33_000, 20_000),
        (5_000, 5_000, 4_500),  # Rust: its deadline is its polling time
        (None, 9_000, 7_500),  # Go: names no polling time
        (None, None, 20_000),
        (7_000, None, 7_000),
        (5_000, 300, 0),
        (-1, 8_000, 0),
        (None, 1_000, 0),
        (None, 60_000, 20_000),
    ],
)
def test_poll_time_ends_before_the_deadline(
    requested: int | None, remaining: int | None, expected: int
) -> None:
    assert poll_time_ms(requested, remaining) == expected


def test_line_keeps_the_order_of_arrival() -> None:
    holds: LongPolls[Poll] = LongPolls()
    polls = [Poll(), Poll(), Poll(line="other"), Poll()]
    for poll in polls:
        holds.park(poll)
    assert holds.line("t", "g") == [polls[0], polls[1], polls[3]]
    assert holds.lines("t") == ["g", "other"]
    assert holds.leave(polls[1])
    assert not holds.leave(polls[1])
    assert holds.line("t", "g") == [polls[0], polls[3]]
    assert len(holds) == 3


def test_empty_lines_and_topics_are_dropped() -> None:
    holds: LongPolls[Poll] = LongPolls()
    poll = Poll()
    holds.park(poll)
    assert holds.waits("t") and holds.parked("t", "g")
    holds.leave(poll)
    assert not holds.waits("t") and not holds.parked("t", "g")
    assert holds.topics() == [] and holds.lines("t") == [] and holds.next_deadline() is None


def test_polls_expire_in_the_order_of_their_deadlines() -> None:
    holds: LongPolls[Poll] = LongPolls()
    polls = [Poll(deadline_ms=at) for at in (300, 100, 200)]
    for poll in polls:
        holds.park(poll)
    assert holds.next_deadline() == 100
    assert holds.expired(99) == []
    assert holds.expired(200) == [polls[1], polls[2]]
    assert holds.next_deadline() == 300


def test_polls_that_left_do_not_expire_nor_pile_up() -> None:
    holds: LongPolls[Poll] = LongPolls()
    for _ in range(1_000):
        poll = Poll()
        holds.park(poll)
        holds.leave(poll)
    assert holds.expired(1_000) == []
    assert len(holds) == 0


def test_number_is_bounded() -> None:
    holds: LongPolls[Poll] = LongPolls(polls_max=1)
    first = Poll()
    holds.park(first)
    with pytest.raises(Throttled):
        holds.park(Poll())
    holds.leave(first)
    holds.park(Poll())
