"""Acknowledgements by the compiled lane: what it asks of the leases, and what it settles.

    request ──► whimbrel_lane ──► `holds`, for each handle      nothing changes
    read    ──► whimbrel_lane ──► `settle`: written down together, then the answers leave, or wait

A handle is the lane's if it is that of a delivery that this broker knows and that is current. All others (of
a message that is done, of another broker's delivery, expired, wrong) are Python's (`handles.py`), and with
them all calls of their group of frames.
"""

from collections.abc import Sequence

from whimbrel.broker.consume.queue_leases import QueueLeases
from whimbrel.broker.engine.settle import Settles

__all__ = ["LaneAcks"]


class LaneAcks:
    """What a pass needs; on the loop's thread. `begin` comes first in each pass."""

    def __init__(self, settles: Settles) -> None:
        self.settles = settles
        self.now = 0
        self.states: list[QueueLeases] = []
        self.numbers: dict[QueueLeases, int] = {}

    def begin(self) -> None:
        """Forget what the pass before has asked about."""
        self.now = self.settles.now()
        self.states.clear()
        self.numbers.clear()

    def holds(
        self, group: str, topic: str, queue_id: int, epoch: int, offset: int, serial: int
    ) -> int | None:
        """Return the number of the state by which a delivery is current; None where it is Python's."""
        state = self.settles.table.by_queue.get((group, topic, queue_id))
        if state is None or state.epoch != epoch:
            return None
        lease = state.leases.get(offset)
        if lease is None or lease.serial != serial or (lease.visible_at <= self.now and not lease.auto_renew):
            return None
        number = self.numbers.get(state)
        if number is None:
            number = self.numbers[state] = len(self.states)
            self.states.append(state)
        return number

    def settle(self, settled: Sequence[tuple[int, list[tuple[int, int]]]]) -> bool:
        """Mark offsets done, by the number of their state; return False when they can't be written down."""
        return self.settles.settle_packed(
            [(self.states[number], start, end, None) for number, ranges in settled for start, end in ranges]
        )
