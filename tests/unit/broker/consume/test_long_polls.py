"""Parked polls."""

from dataclasses import dataclass

import pytest

from whimbrel.broker.consume.long_polls import LongPolls, Room, poll_time_ms
from whimbrel.errors import Throttled


@dataclass(eq=False)
class Poll:
    topic: str = "t"
    wait_key: str = "g"
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


def test_wait_queue_keeps_the_order_of_arrival() -> None:
    parked: LongPolls[Poll] = LongPolls(Room(100))
    polls = [Poll(), Poll(), Poll(wait_key="other"), Poll()]
    for poll in polls:
        parked.park(poll)
    assert parked.waiting("t", "g") == [polls[0], polls[1], polls[3]]
    assert parked.keys("t") == ["g", "other"]
    assert parked.remove(polls[1])
    assert not parked.remove(polls[1])
    assert parked.waiting("t", "g") == [polls[0], polls[3]]
    assert len(parked) == 3


def test_empty_wait_queues_and_topics_are_dropped() -> None:
    parked: LongPolls[Poll] = LongPolls(Room(100))
    poll = Poll()
    parked.park(poll)
    assert parked.has_topic("t") and parked.has_key("t", "g")
    parked.remove(poll)
    assert not parked.has_topic("t") and not parked.has_key("t", "g")
    assert parked.topics() == [] and parked.keys("t") == [] and parked.next_deadline() is None


def test_polls_expire_in_the_order_of_their_deadlines() -> None:
    parked: LongPolls[Poll] = LongPolls(Room(100))
    polls = [Poll(deadline_ms=at) for at in (300, 100, 200)]
    for poll in polls:
        parked.park(poll)
    assert parked.next_deadline() == 100
    assert parked.expired(99) == []
    assert parked.expired(200) == [polls[1], polls[2]]
    assert parked.next_deadline() == 300


def test_removed_polls_do_not_expire_nor_pile_up() -> None:
    parked: LongPolls[Poll] = LongPolls(Room(100))
    for _ in range(1_000):
        poll = Poll()
        parked.park(poll)
        parked.remove(poll)
    assert parked.expired(1_000) == []
    assert len(parked) == 0


def test_number_is_bounded() -> None:
    parked: LongPolls[Poll] = LongPolls(Room(1))
    first = Poll()
    parked.park(first)
    with pytest.raises(Throttled):
        parked.park(Poll())
    parked.remove(first)
    parked.park(Poll())
