"""Chooses what a receive gets, without changing anything.

A receive takes from all readable queues of its topic, beginning with another one each time (the queue that
the request names is ignored, as by RocketMQ's proxy: a client that polls one queue after the other would
otherwise miss messages until its rotation gets there). What was delivered before and is visible again comes
first, unless the last answer held nothing else: then new messages come first, since a few that always fail
would keep all others back.

    queue entry --tags code--> record --tag text--> delivered, held
         '------------ no match ----'-------------> done

The plan's changes are to be written down and applied before the messages are handed out, or `undo` called.
"""

import logging
from dataclasses import dataclass, field
from typing import Protocol

from whimbrel.broker.consume.filters import TagFilter
from whimbrel.broker.consume.lease_codec import Lease
from whimbrel.broker.consume.leases import INFLIGHT_MAX, RENEW_MS, Change, LeaseTable, QueueLeases
from whimbrel.broker.consume.receipts import receipt_prefix
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.limits import RECEIVE_BATCH_MAX
from whimbrel.store.codec import StoredMessage, decode_record

__all__ = [
    "ANSWER_BYTES_MAX",
    "SCAN_MAX",
    "Delivered",
    "DeliveryPlanner",
    "Line",
    "Plan",
    "ReceiveRequest",
    "RecordSource",
]

# Bytes of records in one answer, apart from its first message: 32 messages of 4 MiB would take 128 MiB of
# memory.
ANSWER_BYTES_MAX = 4 << 20
# Queue entries looked at for one answer, so that a filter which matches little can't hold the loop for
# longer than about 10 ms; what is left is looked at in a later turn.
SCAN_MAX = 2048
# When a record that does not decode is tried again. It stays undone, so nobody can say it was delivered.
CORRUPT_RETRY_MS = 60_000

logger = logging.getLogger(__name__)


class RecordSource(Protocol):
    """What is read of the store; `MessageStore` does."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def queue_units(
        self, topic: str, queue_id: int, offset: int, count: int
    ) -> list[tuple[int, int, int]]: ...
    def read(self, physical_offset: int, size: int) -> bytes: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveRequest:
    """What a receive asks for.

    Attributes:
        queue_ids: the topic's readable queues on this broker. invisible_ms: how long the messages stay
        invisible; None: the server renews them while the client lives.
    """

    group: str
    topic: str
    queue_ids: range | tuple[int, ...]
    filter: TagFilter
    batch: int
    invisible_ms: int | None
    client_id: str


@dataclass(slots=True)
class Delivered:
    """One message on its way to a consumer."""

    message: StoredMessage
    attempt: int
    handle: str


class Line:
    """A group's states on one topic, found once, and where the next receive begins."""

    __slots__ = ("broker_name", "group", "new_first", "queues", "table", "topic", "turn")

    def __init__(self, table: LeaseTable, broker_name: str, group: str, topic: str) -> None:
        self.table, self.broker_name = table, broker_name
        self.group, self.topic = group, topic
        self.queues: dict[int, tuple[QueueLeases, str]] = {}  # state, and how its receipt handles begin
        self.turn = 0
        self.new_first = False

    def queue(self, queue_id: int) -> tuple[QueueLeases, str]:
        """Return the state of a queue, and how its receipt handles begin."""
        found = self.queues.get(queue_id)
        if found is None:
            state = self.table.state(self.group, self.topic, queue_id)
            found = (state, receipt_prefix(self.broker_name, self.group, self.topic, queue_id))
            self.queues[queue_id] = found
        return found


@dataclass(slots=True)
class Plan:
    """What a receive would get, and the changes that it takes."""

    room: int
    scan: int = SCAN_MAX
    size: int = 0
    delivered: list[Delivered] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    popped: list[tuple[QueueLeases, list[int]]] = field(default_factory=list)

    @property
    def more(self) -> bool:
        """Whether the search ended early, so that another turn may find something."""
        return self.scan <= 0 and not self.delivered

    def undo(self) -> None:
        """Forget the plan: its changes could not be written down."""
        for state, offsets in self.popped:
            state.put_back(offsets)

    def fits(self, size: int) -> bool:
        """Tell whether a record of this size may join the answer."""
        return self.room > 0 and (not self.delivered or self.size + size <= ANSWER_BYTES_MAX)

    def change(self, state: QueueLeases, start: int, end: int, lease: Lease | None) -> None:
        """Add a change, joined to the last one where that is the same."""
        if self.changes:
            last, first, stop, held = self.changes[-1]
            if last is state and stop == start and held is lease:
                self.changes[-1] = (state, first, end, lease)
                return
        self.changes.append((state, start, end, lease))


class DeliveryPlanner:
    """Plans receives over one table and one store."""

    def __init__(self, table: LeaseTable, store: RecordSource, broker_name: str) -> None:
        self.table, self.store, self.broker_name = table, store, broker_name
        self.lines: dict[tuple[str, str], Line] = {}

    def line(self, group: str, topic: str) -> Line:
        """Return the group's line on the topic."""
        line = self.lines.get((group, topic))
        if line is None:
            line = self.lines[group, topic] = Line(self.table, self.broker_name, group, topic)
        return line

    def forget(self, group: str | None, topic: str | None) -> None:
        """Drop the lines of a deleted group or topic."""
        for key in [key for key in self.lines if key[0] == group or key[1] == topic]:
            del self.lines[key]

    def plan(self, wish: ReceiveRequest, now: int) -> Plan:
        """Choose at most `wish.batch` messages."""
        line = self.line(wish.group, wish.topic)
        plan = Plan(min(wish.batch, RECEIVE_BATCH_MAX))
        turn = Selection(self.table, self.store, wish, now, plan)
        count = len(wish.queue_ids)
        line.turn = first = (line.turn + 1) % max(count, 1)
        queues = []
        for index in range(first, first + count):
            queue_id = wish.queue_ids[index % count]
            low, high = self.store.queue_range(wish.topic, queue_id)
            state, prefix = line.queue(queue_id)
            if state.committed < low:
                if state.started:
                    logger.info("%s on %s/%d moves on to %d: what was before is no longer kept",
                             wish.group, wish.topic, queue_id, low)  # fmt: skip
                plan.change(state, 0, low, None)
            queues.append((state, prefix, low, high))
        passes = (turn.fresh, turn.again) if line.new_first else (turn.again, turn.fresh)
        for take in passes:
            for state, prefix, low, high in queues:
                if low < high and plan.room > 0:
                    take(state, prefix, low, high)
        line.new_first = bool(plan.delivered) and all(one.attempt > 1 for one in plan.delivered)
        return plan


class Selection:
    """One receive in the making."""

    __slots__ = ("leases", "now", "plan", "serial", "store", "table", "wish")

    def __init__(
        self, table: LeaseTable, store: RecordSource, wish: ReceiveRequest, now: int, plan: Plan
    ) -> None:
        self.table, self.store, self.wish, self.now, self.plan = table, store, wish, now, plan
        self.serial = 0
        self.leases: dict[int, Lease] = {}  # by attempt: the messages of one answer share theirs

    def again(self, state: QueueLeases, prefix: str, low: int, high: int) -> None:
        """Take what was delivered before and is visible again."""
        plan, wish = self.plan, self.wish
        while plan.room > 0 and plan.scan > 0:
            offsets = state.pop_ready(self.now, plan.room, high)
            if not offsets:
                return
            plan.popped.append((state, offsets))
            for index, offset in enumerate(offsets):
                if offset < low:
                    continue  # done by the change that moves the group on
                units = self.store.queue_units(wish.topic, state.queue_id, offset, 1)
                if not units or not plan.fits(units[0][1]):
                    state.put_back(offsets[index:])
                    return
                plan.scan -= 1
                self.offer(state, prefix, offset, units[0], state.leases[offset].attempt + 1)

    def fresh(self, state: QueueLeases, prefix: str, low: int, high: int) -> None:
        """Take what was never delivered."""
        plan, wish = self.plan, self.wish
        position = low
        held = len(state.leases)
        while plan.room > 0 and plan.scan > 0 and held < INFLIGHT_MAX:
            limit = min(plan.room, INFLIGHT_MAX - held) if wish.filter.tags is None else min(plan.scan, 256)
            start, stop = state.fresh(position, limit, high)
            if start >= stop:
                return
            units = self.store.queue_units(wish.topic, state.queue_id, start, stop - start)
            if not units:
                return
            if not state.started and not low:
                plan.change(state, 0, 0, None)  # the group has a position here from now on
            before = plan.room
            for position, unit in enumerate(units, start):
                if not plan.fits(unit[1]):
                    return
                self.offer(state, prefix, position, unit, 1)
            position += 1
            plan.scan -= len(units)
            held += before - plan.room

    def offer(
        self, state: QueueLeases, prefix: str, offset: int, unit: tuple[int, int, int], attempt: int
    ) -> None:
        plan, wish = self.plan, self.wish
        physical_offset, size, code = unit
        if not wish.filter.admits_code(code):
            plan.change(state, offset, offset + 1, None)
            return
        try:
            message = decode_record(self.store.read(physical_offset, size))
        except IllegalOffset:
            logger.warning("%s/%d offset %d is no longer in the log; %s goes past it",
                        wish.topic, state.queue_id, offset, wish.group)  # fmt: skip
            plan.change(state, offset, offset + 1, None)
            return
        except CorruptRecord as error:
            logger.error("%s/%d offset %d can't be delivered to %s: %s",
                      wish.topic, state.queue_id, offset, wish.group, error)  # fmt: skip
            visible_at = self.now + CORRUPT_RETRY_MS
            later = Lease(self.new_serial(), 0, visible_at, self.now, max(attempt - 1, 1), False, "")
            plan.change(state, offset, offset + 1, later)
            return
        if wish.filter.tags is not None and not wish.filter.admits(message.properties.get("TAGS")):
            plan.change(state, offset, offset + 1, None)
            return
        lease = self.leases.get(attempt) or self.new_lease(attempt)
        plan.change(state, offset, offset + 1, lease)
        handle = (
            f"{prefix}{state.epoch:x}:{offset:x}:{physical_offset:x}:{size:x}:{lease.serial:x}:{attempt:x}"
        )
        plan.delivered.append(Delivered(message, attempt, handle))
        plan.room -= 1
        plan.size += size

    def new_lease(self, attempt: int) -> Lease:
        invisible_ms = self.wish.invisible_ms
        auto_renew = invisible_ms is None
        visible_at = self.now + (RENEW_MS if invisible_ms is None else invisible_ms)
        client_id = self.wish.client_id if auto_renew else ""
        lease = Lease(self.new_serial(), 0, visible_at, self.now, attempt, auto_renew, client_id)
        self.leases[attempt] = lease
        return lease

    def new_serial(self) -> int:
        if not self.serial:
            self.serial = self.table.next_serial(self.now)
        return self.serial
