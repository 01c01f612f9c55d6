"""Locks of queues: whose they are, and for how long. "6.1/34" is a statement of the checklist."""

import pytest

from whimbrel.broker.tables import queue_locks
from whimbrel.broker.tables.queue_locks import LOCK_S, QueueLocks
from whimbrel.errors import Throttled


@pytest.fixture
def locks() -> QueueLocks:
    return QueueLocks()


def test_6_1_34_a_second_client_waits_for_the_first_to_unlock(locks: QueueLocks) -> None:
    assert locks.lock("G", "a", ["q0", "q1"], 0) == ["q0", "q1"]
    assert locks.lock("G", "b", ["q0", "q1", "q2"], 1) == ["q2"]
    locks.unlock("G", "a", ["q1"])
    assert locks.lock("G", "b", ["q0", "q1", "q2"], 2) == ["q1", "q2"], "all held of those asked"


def test_6_1_34_or_for_60_seconds(locks: QueueLocks) -> None:
    locks.lock("G", "a", ["q"], 0)
    assert locks.lock("G", "b", ["q"], LOCK_S - 0.1) == []
    assert locks.lock("G", "b", ["q"], LOCK_S) == ["q"]


def test_a_lock_again_refreshes(locks: QueueLocks) -> None:
    locks.lock("G", "a", ["q"], 0)
    locks.lock("G", "x", ["other"], 10)
    assert locks.lock("G", "a", ["q"], 50) == ["q"]
    assert locks.lock("G", "b", ["q"], 100) == []
    assert len(locks) == 1, "the other one's time was over"
    assert locks.lock("G", "b", ["q"], 50 + LOCK_S) == ["q"]


def test_only_the_owner_unlocks(locks: QueueLocks) -> None:
    locks.lock("G", "a", ["q"], 0)
    locks.unlock("G", "b", ["q", "unknown"])
    assert locks.lock("G", "b", ["q"], 1) == []


def test_groups_lock_for_themselves(locks: QueueLocks) -> None:
    assert locks.lock("G", "a", ["q"], 0) == locks.lock("H", "b", ["q"], 0) == ["q"]


def test_a_queue_that_is_asked_for_twice_is_one(locks: QueueLocks) -> None:
    assert locks.lock("G", "a", ["q", "q"], 0) == ["q"] and len(locks) == 1


def test_locks_are_bounded_and_those_that_are_held_are_refreshed_all_the_same(
    locks: QueueLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "LOCKS_MAX", 2)
    locks.lock("G", "a", ["q0", "q1"], 0)
    with pytest.raises(Throttled, match="2 queues are locked"):
        locks.lock("G", "a", ["q0", "q2"], 1)
    assert locks.lock("G", "a", ["q0", "q1"], 2) == ["q0", "q1"]
    assert locks.lock("G", "b", ["q2"], 2 + LOCK_S) == ["q2"], "there is room when their time is over"
