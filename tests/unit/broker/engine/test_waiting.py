"""What waits: order, grain, bounds, and when it is looked at again."""

from collections.abc import Sequence
from typing import Any

import pytest

from whimbrel.broker.engine.waiting import (
    DEADLINES_FEW,
    EARLY_RECEIVES,
    HELD_PULLS,
    POLLS,
    Kind,
    Line,
    Waiting,
    Waits,
    When,
)
from whimbrel.deferred import Deferred
from whimbrel.errors import CorruptRecord, NotReady, Throttled

QUEUE: Line = ("t", 0)


class Place:
    """A `Waiting` whose clock tests move; what is looked at for the last time is answered."""

    def __init__(self) -> None:
        self.now = 0
        self.soon: list[Any] = []
        self.later: list[tuple[float, Any]] = []
        self.looked: list[tuple[list[Waits], When]] = []
        self.waiting = Waiting(
            clock=lambda: self.now,
            soon=self.soon.append,
            later=lambda seconds, callback: self.later.append((seconds, callback)),
        )

    def look_again(self, found: Sequence[Waits], when: When) -> None:
        self.looked.append((list(found), when))
        if when is not When.CHANGED:
            for waits in found:
                self.waiting.answer(waits, "nothing")

    def park(
        self, wait_ms: int = 1_000, kind: Kind = POLLS, line: Line = QUEUE, reader: object = None
    ) -> Waits:
        return self.waiting.park(kind, line, wait_ms, "what", lambda what, found: found, self, reader)

    def turn(self) -> list[list[Waits]]:
        """Do what was put off to the loop's next iteration; return what was looked at."""
        before = len(self.looked)
        while self.soon:
            self.soon.pop(0)()
        return [found for found, _ in self.looked[before:]]

    def at(self, now: int) -> list[tuple[list[Waits], When]]:
        """Do what is due at a time; return what was looked at."""
        self.now, before = now, len(self.looked)
        self.waiting.expire()
        return self.looked[before:]


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_deadline_has_the_grain_of_its_kind(place: Place) -> None:
    place.now = 1
    exact, coarse = place.park(1_500), place.park(1_500, HELD_PULLS)
    assert [seconds for seconds, _ in place.later] == [1.5]
    place.now = 1_501
    place.later.pop()[1]()
    assert place.looked == [([exact], When.OVER)]
    [(seconds, callback)] = place.later
    assert seconds == 0.499
    place.now = 2_000
    callback()
    assert place.looked[1:] == [([coarse], When.OVER)] and not place.waiting.lines


def test_one_timer_counts_the_earliest(place: Place) -> None:
    for wait_ms in (2_000, 1_000, 3_000):
        place.park(wait_ms)
    assert [seconds for seconds, _ in place.later] == [2.0, 1.0]
    place.now = 2_000
    place.later[0][1]()  # another one was armed since
    assert not place.looked
    place.later[1][1]()
    assert len(place.looked) == 2


def test_arrivals_of_an_iteration_are_one_look_for_each_queue(place: Place) -> None:
    first, other = place.park(), place.park(line=("t", 1))
    for queue_id in (0, 0, 7):
        place.waiting.arrived("t", queue_id)
    assert len(place.soon) == 1
    assert place.turn() == [[first]]
    place.waiting.arrived("t", 1)
    other.cancel()
    assert place.turn() == []


def test_those_of_a_line_are_looked_at_together_in_their_order(place: Place) -> None:
    group: Line = ("t", "g")
    polls = [place.park(line=group) for _ in range(3)]
    place.park(line=("t", "other"))
    place.park(line=("u", "g"))
    polls[1].cancel()
    assert place.waiting.of(group) == (polls[0], polls[2])
    place.waiting.arrived("t", 5)
    assert [len(found) for found in place.turn()] == [2, 1]
    assert place.looked[0][0] == [polls[0], polls[2]]
    assert place.waiting.has("t", "g") and not place.waiting.has("t", "x") and not place.waiting.has("x", "g")


def test_what_is_free_again_is_for_groups_and_not_for_those_who_read_a_queue(place: Place) -> None:
    place.park()
    group = place.park(line=("t", "g"))
    place.waiting.wake("t")
    place.waiting.wake("nobody waits for it")
    assert place.turn() == [[group]]
    other = place.park(line=("u", "g"))
    place.waiting.wake_all()
    assert place.turn() == [[group], [other]]


def test_a_line_is_looked_at_when_something_becomes_visible(place: Place) -> None:
    line: Line = ("t", "g")
    waits = place.park(10_000, line=line)
    place.waiting.visit(line, 500)
    place.waiting.visit(line, 700)  # it is to be looked at before
    assert place.at(499) == [] and place.at(500) == [([waits], When.CHANGED)]
    assert place.at(700) == []
    place.waiting.visit(line, 800)
    place.waiting.visit(line, 300)
    assert place.at(1_000) == [([waits], When.CHANGED)] and place.at(1_500) == []


def test_a_line_that_nobody_stands_in_any_more_is_not_looked_at(place: Place) -> None:
    line: Line = ("t", "g")
    waits = place.park(10_000, line=line)
    place.waiting.visit(line, 500)
    waits.cancel()
    assert not place.waiting.lines and not place.waiting.groups and not place.waiting.by_time
    place.park(10_000, line=line)
    assert place.at(500) == []


def test_deadlines_of_what_was_answered_long_ago_are_not_kept(place: Place) -> None:
    for number in range(1_000):
        place.park(20_000 + number).cancel()
    assert len(place.waiting.times) <= DEADLINES_FEW + 1 and not place.waiting.by_time
    assert place.at(60_000) == [] and place.waiting.parked == 0


def test_deadlines_are_kept_in_their_order(place: Place) -> None:
    polls = [place.park(at) for at in (300, 100, 200)]
    assert place.at(99) == []
    assert [found for found, _ in place.at(200)] == [[polls[1]], [polls[2]]]
    assert [found for found, _ in place.at(300)] == [[polls[0]]]


@pytest.mark.parametrize("kind", [POLLS, EARLY_RECEIVES])
def test_how_many_wait_is_bounded_by_kind(place: Place, kind: Kind) -> None:
    place.waiting.rooms[kind].most = 1
    first = place.park(kind=kind)
    with pytest.raises(Throttled, match=kind.refusal.format(count=1, own=0)):
        place.park(kind=kind)
    place.park(kind=HELD_PULLS)
    first.cancel()
    first.cancel()
    place.park(kind=kind)


def test_the_bound_of_one_reader_is_its_own(place: Place) -> None:
    reader = object()
    held = [place.park(kind=HELD_PULLS, reader=reader) for _ in range(HELD_PULLS.each)]
    with pytest.raises(Throttled, match="2000 pulls are held here, 2000 of this connection"):
        place.park(kind=HELD_PULLS, reader=reader)
    place.park(kind=HELD_PULLS, reader=object())
    for waits in held:
        waits.cancel()
    assert len(place.waiting.by_reader) == 1 and place.waiting.rooms[HELD_PULLS].taken == 1


def test_the_end_of_the_role_answers_each_as_its_kind_says(place: Place) -> None:
    polls = [place.park(), place.park(line=("t", "g")), place.park(kind=EARLY_RECEIVES, line=("", ""))]
    held = place.park(kind=HELD_PULLS)
    place.waiting.close("another member leads")
    assert [poll.result for poll in polls] == ["nothing"] * 3
    assert isinstance(held.error, NotReady) and str(held.error) == "another member leads"
    assert not place.waiting.lines and not place.waiting.by_time
    assert all(when is When.ENDED for _, when in place.looked)
    place.now = 5_000
    place.later[-1][1]()
    assert len(place.looked) == 3


def test_an_answer_that_cannot_be_made_is_an_error(place: Place) -> None:
    def surrogates(what: object, found: object) -> None:
        raise ValueError("surrogates")

    def refused(what: object, found: object) -> None:
        raise NotReady("no")

    for render, error in ((surrogates, CorruptRecord), (refused, NotReady)):
        waits: Deferred[Any] = place.waiting.park(POLLS, QUEUE, 100, "what", render, place)
        place.at(place.now + 100)
        assert isinstance(waits.error, error)


def test_whose_caller_has_gone_is_not_answered(place: Place) -> None:
    waits = place.park()
    waits.done = True
    assert not place.waiting.answer(waits, "found")
    assert not place.waiting.lines
