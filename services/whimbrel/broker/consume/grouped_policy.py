"""Ordered delivery, message group by message group: one that is slow does not stop its neighbours in a queue.

Each message group is what a queue is in `ordered_policy.py`: free, or blocked while anything of it is under
way. A receive runs upward from the first offset that is not done, past what belongs to blocked groups; for
each group it never passes a message that stays undone. A message without a group has no order to keep: it
stands for a group of its own, and waits for nobody.

Which group an offset belongs to is only in its record, so records are read before they are chosen, each once:
what was learned is kept for a *window* of offsets, and read again after a restart.

    committed                          + AHEAD_MAX
       |  done | X held | Y | X | done | Y | ...
       '----------------- window ------------'

The window ends at a record that does not decode, which may be of any group, and `AHEAD_MAX` offsets behind
the first one that is not done: a group that stands still with so many messages behind it stops the queue in
the end. At most `HELD_MAX` messages of a queue are held. RocketMQ blocks by queues only.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b

from whimbrel.broker.consume.ordered_policy import OrderedPolicy, add_run, always
from whimbrel.broker.consume.plan import DeliveryPlan, ReceiveRequest
from whimbrel.broker.consume.policy import HandOnRule, QueueCursor, Run, SelectRuns
from whimbrel.broker.consume.queue_leases import QueueLeases
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.properties import SHARDING_KEY
from whimbrel.store.codec import decode_record
from whimbrel.store.scan import SCAN_MAX, Scan

__all__ = ["AHEAD_MAX", "HELD_MAX", "GroupedPolicy"]

# How far behind the first undone offset of a queue messages of other groups go out. What is read of one
# offset takes about 150 bytes of memory.
AHEAD_MAX = SCAN_MAX
# Messages of a queue that are held at a time; `ORDERS_MAX` of `queue_leases.py` has room for them.
HELD_MAX = 1024
# Records that are read at a time to learn their groups.
READ_AT_ONCE = 32
# Offsets that are done before what was learned of them is dropped.
DROPPED_AT_ONCE = 256

UNREADABLE = b""


class Window:
    """What is known of the offsets of one queue, in one epoch of its state.

    Attributes:
        groups: for each offset what stands for its message group: 8 bytes of a hash.
    """

    __slots__ = ("begin", "epoch", "groups")

    def __init__(self, epoch: int, begin: int) -> None:
        self.epoch, self.begin = epoch, begin
        self.groups: dict[int, bytes] = {}

    def forget_below(self, begin: int) -> None:
        """Drop what is known of offsets that are done."""
        if begin - self.begin >= DROPPED_AT_ONCE:
            self.begin = begin
            self.groups = {offset: group for offset, group in self.groups.items() if offset >= begin}


class Ascent:
    """How far a plan has come in one queue.

    Attributes:
        closed: groups of which nothing more goes out in this plan. held: messages, with those of the plan.
        ended: nothing more goes out at all.
    """

    __slots__ = ("closed", "ended", "held")

    def __init__(self, held: int) -> None:
        self.closed: set[bytes] = set()
        self.held = held
        self.ended = False


class GroupedPolicy(OrderedPolicy):
    """Delivers each message group in order."""

    def __init__(
        self,
        *,
        hand_on: HandOnRule | None = None,
        delivers_up_to: int = 0,
        allowed: Callable[[], bool] = always,
    ) -> None:
        """Prepare; arguments as of `OrderedPolicy`."""
        super().__init__(hand_on=hand_on, delivers_up_to=delivers_up_to, allowed=allowed)
        self.windows: dict[int, Window] = {}  # by queue
        self.ascents: dict[int, Ascent] = {}

    def begin(self, request: ReceiveRequest, now: int) -> Sequence[SelectRuns]:
        """Start a plan; return its passes over the queues."""
        self.ascents.clear()
        return super().begin(request, now)

    def upward(self, queue: QueueCursor, scan: Scan) -> Sequence[Run]:
        """Select what comes next of all groups that are not blocked."""
        state = queue.state
        leases, closed = state.leases, self.ascent(queue, scan).closed
        ascent = self.ascents[state.queue_id]
        runs: list[Run] = []
        first = max(queue.low, state.committed)
        offset, left = max(queue.position, first), scan.fetch_count()
        high = min(queue.high, first + AHEAD_MAX)
        while offset < high and left > 0 and not ascent.ended:
            done = state.done_until(offset)
            if done > offset:
                offset = done
                continue
            group, lease = self.group_of(queue, scan, offset), leases.get(offset)
            if group is UNREADABLE:
                ascent.ended = True
            if group not in closed and (lease is None or not self.holds_back(state, lease)):
                if lease is None and ascent.held >= HELD_MAX:
                    closed.add(group)
                else:
                    add_run(runs, offset, offset + 1, self.attempt_of(state, lease))
                    ascent.held += lease is None
                    left -= 1
            offset += 1
            if scan.entries_left <= 0:
                break  # too much was read at once; the rest with the next plan
        return runs

    def end(self, plan: DeliveryPlan) -> None:
        """Note the attempt id of what is delivered.

        A message that is handed on ends the plan in its queue, and then only its own group waits for it.
        """
        super().end(plan)
        plan.more = plan.more or (bool(plan.hand_ons) and not plan.delivered)

    def next_visible(self, state: QueueLeases, end: int) -> int | None:
        """Return when the first of the blocked groups is free again."""
        if not self.allowed():
            return None
        window = self.windows.get(state.queue_id)
        known = window.groups if window is not None and window.epoch == state.epoch else {}
        latest: dict[bytes, int] = {}
        for offset, lease in state.leases.items():
            if offset < end:
                group = known.get(offset) or alone(offset)
                latest[group] = max(latest.get(group, 0), lease.visible_at)
        return min(latest.values(), default=None)

    def ascent(self, queue: QueueCursor, scan: Scan) -> Ascent:
        """Return how far this plan has come in a queue; at its begin the blocked groups are closed."""
        state = queue.state
        found = self.ascents.get(state.queue_id)
        if found is None:
            found = self.ascents[state.queue_id] = Ascent(len(state.leases))
            self.window(state).forget_below(state.committed)
            for offset, lease in state.leases.items():
                if self.holds_back(state, lease) and queue.low <= offset < queue.high:
                    group = self.group_of(queue, scan, offset)
                    if group is not UNREADABLE:
                        found.closed.add(group)
        return found

    def window(self, state: QueueLeases) -> Window:
        """Return what is known of a queue's offsets."""
        window = self.windows.get(state.queue_id)
        if window is None or window.epoch != state.epoch:
            window = self.windows[state.queue_id] = Window(state.epoch, state.committed)
        return window

    def group_of(self, queue: QueueCursor, scan: Scan, offset: int) -> bytes:
        """Return what stands for the message group of an offset; UNREADABLE where nobody knows."""
        groups = self.window(queue.state).groups
        found = groups.get(offset)
        if found is None:
            self.read_groups(queue, scan, offset, groups)
            found = groups.get(offset, UNREADABLE)
        return found

    def read_groups(self, queue: QueueCursor, scan: Scan, offset: int, groups: dict[int, bytes]) -> None:
        count = min(READ_AT_ONCE, queue.high - offset)
        units = scan.store.queue_units(scan.topic, queue.state.queue_id, offset, count)
        scan.entries_left -= len(units)
        for at, (physical_offset, size, _) in enumerate(units, offset):
            if at in groups:
                break
            try:
                message = decode_record(scan.store.read(physical_offset, size))
            except IllegalOffset:
                groups[at] = alone(at)  # no longer in the log: it will be done
            except CorruptRecord:
                continue
            else:
                name = message.properties.get(SHARDING_KEY)
                groups[at] = blake2b(name.encode(), digest_size=8).digest() if name else alone(at)


def alone(offset: int) -> bytes:
    """Return what stands for the group of a message without one; no hash is as short."""
    return offset.to_bytes(7, "big")
