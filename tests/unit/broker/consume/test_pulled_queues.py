"""Queues that members pull, and receives that leave them out."""

from support.broker.consumption import Rig, offsets
from whimbrel.broker.consume.pulled_queues import PULLED_MS, QUEUES_MAX, PulledQueues


class Members:
    """Groups all of which share queues out."""

    def owns_positions(self, group: str) -> bool:
        """Return that this one does."""
        return True


def test_a_queue_counts_for_a_while_after_its_last_pull() -> None:
    pulled = PulledQueues()
    pulled.note("g", "T", 1, 0)
    pulled.note("g", "T", 2, 1000)
    assert pulled.recent("g", "T", PULLED_MS) == {1, 2}
    assert pulled.recent("g", "T", PULLED_MS + 1) == {2} and not pulled.recent("h", "T", 0)
    assert pulled.first_told("g", "T") and not pulled.first_told("g", "T")
    pulled.sweep(PULLED_MS + 1001)
    assert not pulled.pulled and not pulled.count and pulled.first_told("g", "T")


def test_what_is_remembered_is_bounded() -> None:
    pulled = PulledQueues()
    for number in range(QUEUES_MAX + 10):
        pulled.note(f"g{number % 7}", "T", number, 0)
    assert pulled.count == QUEUES_MAX == sum(map(len, pulled.pulled.values()))


def test_receives_leave_out_what_is_pulled_also_those_that_wait() -> None:
    rig = Rig()
    for queue_id in range(3):
        rig.store.put("t", queue_id)
    pulled = rig.takes.pulled = PulledQueues()
    rig.takes.members = Members()
    for queue_id in (0, 2):
        pulled.note("g", "t", queue_id, rig.clock.now)
    held_ms = 2 * PULLED_MS
    assert [each.message.queue_id for each in rig.take(queue_ids=range(3), invisible_ms=held_ms)] == [1]
    waiting = rig.park(queue_ids=range(3))
    pulled.note("g", "t", 1, rig.clock.now)
    rig.store.put("t", 1)
    rig.clock.advance()
    assert not waiting.done and not rig.take(queue_ids=range(3))
    rig.clock.advance(PULLED_MS + 1)
    assert len(offsets(rig.take(queue_ids=range(3)))) == 3  # one of each queue
