"""What takes wait for where the leader is elected: a majority that has what an ordered group takes."""

from typing import Any

import pytest

from support.broker.consumption import Rig as Consumption
from support.broker.consumption import delivered, offsets, take_of
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.deferred import Deferred
from whimbrel.errors import NotStored
from whimbrel.model.topic import GroupConfig


class Rig(Consumption):
    """A leader of three; nobody else has any leases yet."""

    def __init__(self) -> None:
        super().__init__()
        leases = self.consumption.lease_store
        self.quorum = self.takes.majority = StateQuorum(
            "leases", others=(2, 3), copies=2, newest=lambda: leases.number, own=lambda: leases.number,
            clock=lambda: self.clock.now / 1000, timeout_s=3.0,
        )  # fmt: skip

    def taken_by(self, *, fifo: bool, wait_ms: int = 0) -> Any:
        take = take_of(self.request(), wait_ms)
        take.config = GroupConfig(name="g", fifo=fifo)
        return self.takes.take(take, delivered)

    def others_have(self) -> None:
        self.quorum.stored(2, self.consumption.lease_store.number)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_only_what_ordered_groups_take_waits(rig: Rig) -> None:
    rig.store.put("t", 0)
    assert offsets(rig.taken_by(fifo=False)) == [0]
    rig.store.put("t", 0)
    held = rig.taken_by(fifo=True)
    assert isinstance(held, Deferred) and not held.done
    rig.others_have()
    assert offsets(held.result) == [1]
    assert rig.taken_by(fifo=True) == []  # they have all


def test_what_comes_while_it_waits_waits_for_them_as_well(rig: Rig) -> None:
    rig.others_have()
    poll = rig.taken_by(fifo=True, wait_ms=15_000)
    rig.store.put("t", 0)
    rig.clock.advance()
    assert not poll.done and not rig.parked and rig.quorum.waiting_count == 1
    rig.others_have()
    assert offsets(poll.result) == [0]


def test_who_hears_of_no_majority_does_not_know_what_is_taken(rig: Rig) -> None:
    rig.store.put("t", 0)
    held = rig.taken_by(fifo=True)
    rig.clock.advance(3_000)
    rig.quorum.expire()
    assert isinstance(held.error, NotStored)


def test_the_end_of_the_role_ends_both_kinds_of_waiting(rig: Rig) -> None:
    poll = rig.taken_by(fifo=True, wait_ms=15_000)
    rig.store.put("t", 0)
    held = rig.taken_by(fifo=True)
    rig.quorum.close("another member leads")
    rig.waiting.close("another member leads")
    assert isinstance(poll.error, NotStored) and isinstance(held.error, NotStored)


def test_whoever_leaves_waits_for_nobody(rig: Rig) -> None:
    rig.others_have()
    poll = rig.taken_by(fifo=True, wait_ms=15_000)
    poll.cancel()
    rig.store.put("t", 0)
    rig.clock.advance()
    assert not rig.parked and not rig.quorum.waiting_count
