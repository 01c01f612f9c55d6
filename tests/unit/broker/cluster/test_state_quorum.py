"""Which answers leave when: copies are counted, and nothing waits for ever."""

from typing import Any

import pytest

from whimbrel.broker.cluster import state_quorum
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.deferred import Deferred
from whimbrel.errors import AlreadyExists, NotStored, Throttled


class Rig:
    def __init__(self, *, others: tuple[int, ...] = (2, 3), copies: int = 2) -> None:
        self.newest, self.own, self.now = 1, 1, 0.0
        self.quorum = StateQuorum(
            "acknowledgements",
            others=others,
            copies=copies,
            newest=lambda: self.newest,
            own=lambda: self.own,
            clock=lambda: self.now,
            timeout_s=3.0,
        )

    def change(self) -> int:
        self.newest += 1
        self.own = self.newest
        return self.newest

    def held(self, answer: Any = "done") -> Deferred[Any]:
        found = self.quorum.hold(answer)
        assert isinstance(found, Deferred)
        return found


def test_an_answer_leaves_when_a_majority_has_the_change() -> None:
    rig = Rig()
    number = rig.change()
    held = rig.held()
    rig.quorum.stored(2, number - 1)
    assert not held.done
    rig.quorum.stored(2, number)
    assert held.result == "done"
    assert rig.quorum.hold("more") == "more"  # nothing has changed since


def test_with_five_two_besides_the_leader_are_needed() -> None:
    rig = Rig(others=(2, 3, 4, 5), copies=3)
    held = rig.held()
    rig.quorum.stored(4, 1)
    assert not held.done
    rig.quorum.stored(5, 1)
    assert held.done


def test_our_own_copy_counts_once_it_is_on_the_disk() -> None:
    rig = Rig()
    rig.newest = 2
    held = rig.held()
    rig.quorum.stored(2, 2)
    assert not held.done
    rig.own = 2
    rig.quorum.advance()
    assert held.done


def test_a_state_that_is_not_on_our_disk_as_a_whole_answers_nothing() -> None:
    """What a full disk did not take has no number: others may have all numbers, and not that."""
    rig = Rig()
    rig.own = -1
    held = rig.held()
    rig.quorum.stored(2, 1)
    rig.quorum.stored(3, 1)
    assert not held.done


def test_reports_of_strangers_and_of_what_is_still_to_come_do_not_count() -> None:
    rig = Rig()
    held = rig.held()
    rig.quorum.stored(7, 1)
    rig.quorum.stored(2, 2)
    assert not held.done and rig.quorum.holders(1) == []


def test_one_member_is_one_copy_however_often_it_reports() -> None:
    rig = Rig(others=(2, 3, 4, 5), copies=3)
    held = rig.held()
    rig.quorum.stored(2, 1)
    rig.quorum.stored(2, 1)
    assert not held.done


def test_a_member_that_comes_back_counts_from_anew() -> None:
    """Its store may be another one."""
    rig = Rig()
    rig.quorum.stored(2, 1)
    number = rig.change()
    rig.quorum.left(2)
    held = rig.held()
    assert rig.quorum.holders(1) == []
    rig.quorum.stored(3, number)
    assert held.done


def test_what_is_done_already_waits_for_the_change_that_did_it() -> None:
    """Q3: an acknowledgement that is repeated changes nothing, and may be known here only."""
    rig = Rig()
    rig.quorum.stored(2, 1)
    number = rig.change()
    first, again = rig.held("first"), rig.held("again")
    assert not first.done and not again.done
    rig.quorum.stored(3, number)
    assert (first.result, again.result) == ("first", "again")


def test_what_is_there_already_is_told_once_a_majority_has_it() -> None:
    rig = Rig()
    held = rig.held(AlreadyExists("t exists already"))
    rig.quorum.stored(2, 1)
    assert isinstance(held.error, AlreadyExists)
    with pytest.raises(AlreadyExists):
        rig.quorum.hold(AlreadyExists("t exists already"))


def test_nothing_waits_for_ever() -> None:
    rig = Rig()
    held = rig.held()
    rig.now = 2.9
    rig.quorum.expire()
    assert not held.done
    rig.now = 3.0
    rig.quorum.expire()
    assert isinstance(held.error, NotStored)
    assert (held.error.code, held.error.effect, held.error.retry) == (50402, "unknown", True)
    rig.quorum.stored(2, 1)
    assert rig.quorum.expired == 1 and not rig.quorum.waiting


def test_a_leader_that_stops_says_that_nobody_knows() -> None:
    rig = Rig()
    held = rig.held()
    rig.quorum.close("another member leads")
    assert isinstance(held.error, NotStored) and "another member leads" in str(held.error)
    with pytest.raises(NotStored):
        rig.quorum.hold("late")


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_quorum, "WAITING_MAX", 2)
    rig = Rig()
    rig.held(), rig.held()
    with pytest.raises(Throttled):
        rig.quorum.hold("third")


def test_an_answer_that_comes_later_waits_from_then_on() -> None:
    rig = Rig()
    rig.quorum.stored(2, 1)
    made: Deferred[Any] = Deferred()
    held = rig.quorum.hold_later(made)
    number = rig.change()
    made.complete("done")
    assert not held.done
    rig.quorum.stored(2, number)
    assert held.result == "done"


def test_an_error_that_comes_later_does_not_wait() -> None:
    rig = Rig()
    made: Deferred[Any] = Deferred()
    held = rig.quorum.hold_later(made)
    made.fail(Throttled("too many"))
    assert isinstance(held.error, Throttled)


def test_who_leaves_takes_its_call_back() -> None:
    rig = Rig()
    made: Deferred[Any] = Deferred()
    held = rig.quorum.hold_later(made)
    held.cancel()
    assert made.cancelled
    other = rig.held()
    other.cancel()
    rig.quorum.stored(2, 1)
    assert not other.done


def test_what_the_lane_had_parked_waits_in_its_place() -> None:
    rig = Rig()
    order: list[str] = []
    for number, since, name in ((2, 0.0, "first"), (4, 1.0, "third"), (3, 0.5, "second")):
        rig.newest = rig.own = 4
        held = rig.quorum.wait(number, since, name)
        held.waker = lambda held=held: order.append(held.result)
    rig.quorum.stored(2, 3)
    assert order == ["first", "second"]
    rig.quorum.stored(2, 4)
    assert order == ["first", "second", "third"]
    assert rig.quorum.wait(4, 0.0, "late").result == "late"


def test_what_the_lane_had_parked_too_long_is_refused() -> None:
    rig = Rig()
    rig.newest, rig.now = 2, 3.5
    assert isinstance(rig.quorum.wait(2, 0.5, "done").error, NotStored)
    assert rig.quorum.expired == 1
    held = rig.quorum.wait(2, 1.0, "done")
    rig.now = 4.0
    rig.quorum.expire()
    assert isinstance(held.error, NotStored)
    rig.quorum.close("another member leads")
    assert isinstance(rig.quorum.wait(2, 3.9, "done").error, NotStored)
