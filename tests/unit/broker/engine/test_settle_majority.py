"""What settles wait for where the leader is elected: a majority that has the leases."""

from collections.abc import Callable
from typing import Any

import pytest

from support.broker.consumption import Rig as Consumption
from whimbrel.broker.cluster import state_quorum
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.broker.engine.settle import Changed, Settles
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    IllegalGroup,
    IllegalInvisibleTime,
    IllegalTopic,
    InvalidReceiptHandle,
    NoReplica,
    NotReady,
    NotStored,
    StoreFull,
    Throttled,
)

Ask = Callable[..., Any]


class Rig:
    """A leader of three, whose group has been given three messages; nobody else knows of that yet."""

    def __init__(self) -> None:
        self.copies: list[Callable[[Any], None]] = []
        self.consumption = Consumption(
            hand_on=lambda message, target, since, done: self.copies.append(done),
            exists=lambda group, topic, queue_id: (group, topic, queue_id) == ("g", "t", 0),
        )
        for _ in range(3):
            self.consumption.store.put("t", 0)
        self.handles = [one.handle for one in self.consumption.take()]
        self.journal, self.why = self.consumption.journal, ""
        self.quorum = StateQuorum(
            "acknowledgements", others=(2, 3), copies=2, newest=lambda: self.journal.appended,
            own=lambda: self.journal.appended, clock=lambda: 0.0, timeout_s=3.0,
        )  # fmt: skip
        self.settles = Settles(
            self.consumption.consumption, lambda group: None,
            majority=self.quorum, not_serving=lambda: self.why,
        )  # fmt: skip

    def others_know(self) -> None:
        self.quorum.stored(2, self.journal.appended)

    def acknowledge(self, *handles: str, group: str = "g", topic: str = "t") -> Any:
        return self.settles.acknowledge(group, topic, handles)

    def change(self, handle: str, ms: int = 20_000, group: str = "g", topic: str = "t") -> Any:
        return self.settles.change(group, topic, handle, ms, suspend=False)

    def forward(self, handle: str, group: str = "g", topic: str = "t") -> Deferred[None]:
        return self.settles.forward(group, topic, handle)

    def all(self) -> tuple[Ask, Ask, Ask]:
        return self.acknowledge, self.change, self.forward


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_consumers_settle_waits_for_leases(rig: Rig) -> None:
    first, second, third = rig.handles
    held = [rig.acknowledge(first), rig.change(second), rig.forward(third)]
    rig.copies[0](None)
    assert not any(one.done for one in held)
    rig.others_know()
    acknowledged, changed, forwarded = held
    assert acknowledged.result == [None]
    assert changed.result.error is None and changed.result.handle not in rig.handles
    assert (forwarded.done, forwarded.result, forwarded.error) == (True, None, None)


def test_a_forward_waits_for_its_copy_and_then_for_leases(rig: Rig) -> None:
    held = rig.forward(rig.handles[0])
    rig.others_know()
    assert not held.done
    rig.copies[0](None)
    assert not held.done, "that it is done, nobody else knows"
    rig.others_know()
    assert held.done and held.error is None


def test_what_changes_nothing_waits_as_well(rig: Rig) -> None:
    """What is done already may be done here only."""
    rig.acknowledge(rig.handles[0])
    held = [rig.acknowledge(rig.handles[0]), rig.acknowledge("x", "y"), rig.change(rig.handles[0])]
    held += [rig.change("x"), rig.change("x", group="no group"), rig.change(rig.handles[1], -1)]
    held += [rig.forward(rig.handles[0])]
    assert not any(one.done for one in held)
    rig.others_know()
    assert held[0].result == [None]
    assert all(isinstance(error, InvalidReceiptHandle) for error in held[1].result)
    errors = [one.result.error for one in held[2:6]]
    assert list(map(type, errors)) == [
        InvalidReceiptHandle, InvalidReceiptHandle, IllegalGroup, IllegalInvisibleTime
    ]  # fmt: skip
    assert [one.result.handle for one in held[2:6]] == [rig.handles[0], "x", "x", rig.handles[1]]
    assert held[6].done and held[6].error is None


def test_answers_leave_at_once_while_a_majority_has_all(rig: Rig) -> None:
    rig.others_know()
    assert rig.acknowledge("x")[0] is not None
    changed = rig.change("x")
    assert isinstance(changed, Changed) and changed.handle == "x"


def test_refusals_wait_for_nobody(rig: Rig) -> None:
    with pytest.raises(BadRequest, match="acknowledges nothing"):
        rig.acknowledge()
    with pytest.raises(IllegalTopic):
        rig.acknowledge(topic="no topic", group="no group")
    with pytest.raises(IllegalGroup):
        rig.acknowledge(group="no group")
    with pytest.raises(IllegalTopic):
        rig.forward("x", topic="no topic")
    with pytest.raises(InvalidReceiptHandle):
        rig.forward("x")
    rig.journal.full = True
    with pytest.raises(StoreFull):
        rig.acknowledge(rig.handles[0])
    with pytest.raises(StoreFull):
        rig.forward(rig.handles[0])
    held = rig.change(rig.handles[0])  # clients overwrite their handle with that of the answer
    rig.others_know()
    assert isinstance(held.result.error, StoreFull) and held.result.handle == rig.handles[0]


def test_a_copy_that_fails_is_told_at_once(rig: Rig) -> None:
    held = rig.forward(rig.handles[0])
    rig.copies[0](NoReplica("none is near"))
    assert isinstance(held.error, NoReplica)


def test_nothing_is_settled_before_the_leader_serves(rig: Rig) -> None:
    """A consumer's handle may be of a delivery that is still to be taken over; nothing is checked before."""
    rig.why = "too few members"
    written = len(rig.journal.chunks)
    for ask in rig.all():
        for topic in ("t", "no topic"):
            with pytest.raises(NotReady, match="too few members"):
                ask(rig.handles[0], topic=topic)
    assert len(rig.journal.chunks) == written


def test_who_waits_for_a_majority_that_does_not_come_is_told_that_nobody_knows(rig: Rig) -> None:
    """A change as well, without a handle: it may have another one by now."""
    held = [ask(handle) for ask, handle in zip(rig.all(), rig.handles, strict=True)]
    rig.copies[0](None)
    rig.quorum.close("the leader stops")
    assert [type(one.error) for one in held] == [NotStored] * 3
    for ask in rig.all()[:2]:
        with pytest.raises(NotStored):
            ask(rig.handles[0])
    assert isinstance(rig.forward(rig.handles[0]).error, NotStored)


def test_no_more_wait_than_may(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_quorum, "WAITING_MAX", 0)
    for ask, handle in zip(rig.all()[:2], rig.handles, strict=False):
        with pytest.raises(Throttled):
            ask(handle)
    held = rig.forward(rig.handles[2])
    rig.copies[0](None)
    assert isinstance(held.error, Throttled)


def test_who_leaves_a_forward_stops_nothing(rig: Rig) -> None:
    held = rig.forward(rig.handles[0])
    held.cancel()
    rig.copies[0](None)
    assert rig.consumption.consumption.positions.get_offset("g", "t", 0) == 1
