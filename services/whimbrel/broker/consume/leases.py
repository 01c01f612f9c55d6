"""What each consumer group holds, has finished and has not read yet: a pure state machine that merges.

One `QueueLeases` stands for one (group, topic, queue). Every offset of the queue is in one of these states:

                 receive                   acknowledge, filter, commit
    unread ---------------> held (lease) ------------------------------> done
      |                      |  ^   visible time comes: received again, attempt + 1, a new serial
      |                      '--'   change, renew, release: another visible time
      '---------------------------------------------------------------> done   (filtered out, committed past)

`committed` is the offset below which all are done; `done` ranges lie above it, so that a message which
is never acknowledged does not make the state grow with each one acknowledged behind it. `next` is the
end of what was ever held or done. A maximum of attempts is the policy's business (`dead_letters.py`).

**Merging.** The state is a join-semilattice, and `LeaseTable.join` of entries is its only operation:
repeated and reordered entries do no harm, and two brokers that exchange all entries hold the same state.

    epoch   the greater wins, and everything of a smaller one is forgotten (reset, cut log, deleted group)
    done    union
    leases  for each offset the greatest (serial, revision, visible time, ...); none where the offset is done
    orders  union; those of serials that hold nothing any more are dropped in time

A *serial* is new for every delivery and for every change of the invisible time, and grows everywhere: epoch
milliseconds in the upper 44 bits, then a counter of 14 bits, then 6 bits for the broker that made it, so
that no two deliveries share one even when a journal was lost. It is what a receipt handle is checked
against. A *revision* orders the changes that leave the handle valid (renewals, releases).

An *order* says under which attempt id the leases of a serial were taken (ordered groups only): a client that
did not get the answer asks again with the same id, and gets the same messages again. One that is lost, or
comes where nothing is known of its queue's epoch, costs such a client the wait for the visible time.

Below `next`, an offset neither done nor held is a *gap*: its entries have not arrived, or were lost with a
journal's tail. It counts as unread, so that losing entries delivers twice rather than never. Snapshots list
a queue's entries by ascending offset, hence one that is cut short leaves no gaps.

States that nobody uses are kept as bare positions (`resting.py`), and are made again when asked for.

The bytes of entries are in `lease_codec.py`. Times are epoch milliseconds and handed in. Writing entries
down before an answer leaves is the task of `lease_store.py`.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from math import inf
from typing import TypeAlias

from whimbrel.broker.consume.lease_codec import (
    LEASE_COUNT_MAX,
    EntryEncoder,
    Lease,
    LeaseEntry,
    Order,
    decode_entries,
)
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.broker.consume.resting import Position, RestingPositions
from whimbrel.errors import InvalidReceiptHandle

__all__ = [
    "INFLIGHT_MAX",
    "RELEASE_MS",
    "RENEW_MS",
    "RENEW_TOTAL_MS",
    "Change",
    "Judge",
    "LeaseTable",
    "OrderChange",
    "QueueLeases",
    "Standing",
    "WaitAfter",
    "serial_ms",
]

# Held messages of one group and queue, so that a consumer which never acknowledges can't fill the memory
# (about 100 bytes each). RocketMQ: `popInflightMessageThreshold`, 10,000.
INFLIGHT_MAX = 10_000
# Leases that the server renews last this long each time ...
RENEW_MS = 60_000
# ... are renewed when this is left of them (RocketMQ: the same) ...
RENEW_AHEAD_MS = 10_000
# ... and not any more this long after the delivery (RocketMQ: the same).
RENEW_TOTAL_MS = 3 * 3600 * 1000
# How often a lease about to end is checked again while its client is away; it may be reconnecting.
RENEW_RETRY_MS = 1_000
# When the messages of a client that has gone become visible; RocketMQ: the same.
RELEASE_MS = 1_000

HEAP_SLACK = 64
# Orders of a queue without a lease of theirs that are kept: entries may come in any order.
ORDERS_SLACK = 64
# Orders of a queue at most, the newest: twice as many as an ordered group may hold there.
ORDERS_MAX = 2048

# By group and attempt: how long a message that failed waits until it comes again, in ms.
WaitAfter: TypeAlias = Callable[[str, int], int]


def serial_ms(serial: int) -> int:
    """Return when a delivery of this serial was made, in epoch milliseconds."""
    return serial >> 20


class Standing(Enum):
    """What a receipt handle that is not refused stands for."""

    HELD = "held"  # the delivery is current
    FINISHED = "finished"  # its message is done
    UNKNOWN = "unknown"  # a delivery that this broker does not know


class QueueLeases:
    """The state of one (group, topic, queue). Only `LeaseTable` changes it.

    `full_at` is not part of what is merged: when as many are held and one is done, polls may find something.
    """

    __slots__ = (
        "committed",
        "encoder",
        "ends",
        "epoch",
        "expiry",
        "full_at",
        "gaps",
        "group",
        "leases",
        "next",
        "orders",
        "queue_id",
        "ready",
        "ready_set",
        "renew_at",
        "renewals",
        "started",
        "starts",
        "topic",
    )  # fmt: skip

    def __init__(self, group: str, topic: str, queue_id: int) -> None:
        self.group, self.topic, self.queue_id = group, topic, queue_id
        self.encoder = EntryEncoder(group, topic, queue_id)
        self.full_at = INFLIGHT_MAX
        self.reset(0)

    def reset(self, epoch: int) -> None:
        """Forget everything and start an epoch."""
        self.epoch = epoch
        self.started = False  # whether the group has a position here
        self.committed = 0
        self.next = 0
        self.leases: dict[int, Lease] = {}
        self.orders: dict[int, str] = {}  # attempt ids by serial
        self.renew_at: float = inf  # when the table checks the renewals next
        self.starts: list[int] = []  # done ranges above `committed`: sorted, apart from each other
        self.ends: list[int] = []
        self.expiry: list[
            tuple[int, int, int, Lease]
        ] = []  # (visible_at, start, end, lease); may be outdated
        self.renewals: list[tuple[int, int, int, Lease]] = []  # (due, start, end, lease); may be outdated
        self.ready: list[int] = []  # heap of held offsets whose time had come; may be outdated
        self.ready_set: set[int] = set()  # what is in `ready`
        self.gaps: list[tuple[int, int]] | None = []  # None: to be computed

    # What is there

    def is_done(self, offset: int) -> bool:
        """Return whether the offset is done."""
        if offset < self.committed:
            return True
        at = bisect_right(self.starts, offset) - 1
        return at >= 0 and offset < self.ends[at]

    def done_until(self, offset: int) -> int:
        """Return the end of the done range around an offset; at most the offset if it is not done."""
        if offset < self.committed:
            return self.committed
        at = bisect_right(self.starts, offset) - 1
        return self.ends[at] if at >= 0 else offset

    def done_above(self) -> list[tuple[int, int]]:
        """Return the done ranges above `committed`."""
        return list(zip(self.starts, self.ends, strict=True))

    def lease_runs(self) -> list[tuple[int, int, Lease]]:
        """Return what is held, as ranges under one lease each, by ascending offset."""
        runs: list[tuple[int, int, Lease]] = []
        for offset in sorted(self.leases):
            lease = self.leases[offset]
            if (
                runs
                and runs[-1][1] == offset
                and runs[-1][2] == lease
                and offset - runs[-1][0] < LEASE_COUNT_MAX
            ):
                runs[-1] = (runs[-1][0], offset + 1, lease)
            else:
                runs.append((offset, offset + 1, lease))
        return runs

    def unfinished(self, end: int) -> int:
        """Return how many offsets below `end` are not done."""
        done = sum(min(stop, end) - start for start, stop in self.done_above() if start < end)
        return max(end - self.committed, 0) - done

    def next_unread(self, position: int, limit: int, end: int) -> tuple[int, int]:
        """Return the first range of at most `limit` unread offsets in [position, end), or an empty one."""
        if self.gaps is None:
            self.gaps = self.find_gaps()
        for start, stop in self.gaps:
            start, stop = max(start, position), min(stop, end)
            if start < stop:
                return start, min(stop, start + limit)
        start = max(self.next, position)
        return start, max(start, min(start + limit, end))

    def pop_ready(self, now: int, limit: int, end: int) -> list[int]:
        """Take out held offsets below `end` that are visible again, lowest first.

        The caller must hold or finish them, or call `return_ready`.
        """
        expiry, leases, ready = self.expiry, self.leases, self.ready
        while expiry and expiry[0][0] <= now:
            _, start, stop, lease = heapq.heappop(expiry)
            for offset in range(max(start, self.committed), stop):
                if leases.get(offset) == lease and offset not in self.ready_set:
                    heapq.heappush(ready, offset)
                    self.ready_set.add(offset)
        taken: list[int] = []
        while ready and ready[0] < end and len(taken) < limit:
            offset = heapq.heappop(ready)
            self.ready_set.discard(offset)
            held = leases.get(offset)
            if held is not None and held.visible_at <= now:
                taken.append(offset)
        return taken

    def return_ready(self, offsets: list[int]) -> None:
        """Undo `pop_ready` for these offsets."""
        for offset in offsets:
            if offset not in self.ready_set:
                heapq.heappush(self.ready, offset)
                self.ready_set.add(offset)

    def next_visible(self, end: int) -> int | None:
        """Return when a held offset becomes visible, 0 for now; None when nothing is held."""
        if self.ready and self.ready[0] < end:
            return 0
        expiry = self.expiry
        while expiry and not self.still_held(*expiry[0][1:]):
            heapq.heappop(expiry)
        return expiry[0][0] if expiry else None

    def standing(self, handle: ReceiptHandle, now: int) -> Standing:
        """Return what a handle stands for; raises InvalidReceiptHandle when it no longer counts.

        An expired lease that the server renews still counts until its message is delivered again.
        """
        if handle.epoch != self.epoch:
            raise InvalidReceiptHandle("the group's position was reset after this delivery")
        lease = self.leases.get(handle.offset)
        if lease is None:
            return Standing.FINISHED if self.is_done(handle.offset) else Standing.UNKNOWN
        if handle.serial < lease.serial:
            raise InvalidReceiptHandle(
                "the message was delivered again, or its invisible time changed, since"
            )
        if handle.serial > lease.serial:
            return Standing.UNKNOWN
        if lease.visible_at <= now and not lease.auto_renew:
            raise InvalidReceiptHandle("the invisible time of this delivery is over")
        return Standing.HELD

    @property
    def at_rest(self) -> bool:
        """Whether the state says no more than its position: nothing is held, or open below `next`."""
        return not self.leases and not self.starts and self.committed == self.next

    # Changes; all of them joins

    def finish(self, start: int, end: int) -> bool:
        """Mark [start, end) done; return False when nothing changed."""
        changed = not self.started
        self.started = True
        if end <= self.committed:
            return changed
        self.drop_leases(start, end)
        if start > self.committed:
            if not self.add_done(start, end):
                return changed
        else:
            self.advance(end)
        if end > self.next:
            if start > self.next:
                self.gaps = None
            self.next = end
        if self.gaps:
            self.gaps = None
        return True

    def hold(self, start: int, end: int, lease: Lease) -> bool:
        """Put [start, end) under a lease where no greater one is known; return False when nothing changed."""
        leases = self.leases
        if start == self.next and self.started:
            leases.update(dict.fromkeys(range(start, end), lease))
        elif not self.hold_each(start, end, lease):
            return False
        self.started = True
        if end > self.next:
            if start > self.next:
                self.gaps = None
            self.next = end
        if self.gaps:
            self.gaps = None
        heapq.heappush(self.expiry, (lease.visible_at, start, end, lease))
        if lease.auto_renew:
            heapq.heappush(self.renewals, (lease.visible_at - RENEW_AHEAD_MS, start, end, lease))
        if (
            len(self.expiry) > 2 * len(leases) + HEAP_SLACK
            or len(self.renewals) > 2 * len(leases) + HEAP_SLACK
        ):
            self.compact()
        return True

    def note_order(self, order: Order) -> bool:
        """Remember the attempt id of a serial; return False when nothing changed."""
        orders = self.orders
        # The same serial under two ids is no broker's work; whatever comes first, the greater one stays.
        if orders.get(order.serial, "") >= order.attempt_id:
            return False
        orders[order.serial] = order.attempt_id
        if len(orders) > min(ORDERS_SLACK + 2 * len(self.leases), ORDERS_MAX):
            self.drop_orders()
        return True

    def held_orders(self) -> list[Order]:
        """Return the orders of what is held."""
        if not self.orders:
            return []
        held = {lease.serial for lease in self.leases.values()}
        return [Order(*item) for item in self.orders.items() if item[0] in held]

    def renewals_due(self, now: int, alive: Callable[[str, str], bool], wait_ms: WaitAfter) -> "list[Change]":
        """Return the renewals to make now: those of clients that are `alive(group, client_id)`.

        A lease that was renewed for `RENEW_TOTAL_MS` has failed, and comes again after the group's wait.
        """
        changes: list[Change] = []
        again = []
        while self.renewals and self.renewals[0][0] <= now:
            _, start, stop, lease = heapq.heappop(self.renewals)
            runs = list(self.runs_of(start, stop, lease))
            if not runs:
                continue
            if lease.taken_at + RENEW_TOTAL_MS <= now:
                ended = lease._replace(
                    revision=lease.revision + 1,
                    visible_at=now + wait_ms(self.group, lease.attempt),
                    auto_renew=False,
                )
                changes += [(self, first, end, ended) for first, end in runs]
            elif alive(self.group, lease.client_id):
                renewed = lease._replace(revision=lease.revision + 1, visible_at=now + RENEW_MS)
                changes += [(self, first, end, renewed) for first, end in runs]
            elif lease.visible_at > now:
                again.append((now + RENEW_RETRY_MS, start, stop, lease))
        for item in again:
            heapq.heappush(self.renewals, item)
        return changes

    def next_renewal(self) -> float:
        """Return when `renewals_due` has something to do."""
        return self.renewals[0][0] if self.renewals else inf

    # Entries

    def entry(self, start: int, end: int, lease: Lease | None) -> bytes:
        """Return the entry for a range that is done (no lease) or held."""
        if lease is None:
            return self.encoder.done(self.epoch, start, end)
        return self.encoder.lease(self.epoch, start, end, lease)

    def entries(self, epoch: int | None = None, end: int | None = None) -> list[bytes]:
        """Return the whole state as entries by ascending offset.

        Args:
            epoch: for another epoch than the state's, when given.
            end: leave out what lies at or above.
        """
        epoch = self.epoch if epoch is None else epoch
        end = self.next if end is None else end
        encoder = self.encoder
        if not self.started:
            return [encoder.epoch(epoch)] if epoch else []
        pieces: list[tuple[int, int, Lease | None]] = [
            (start, stop, None) for start, stop in self.done_above()
        ]
        pieces += self.lease_runs()
        pieces.sort(key=lambda piece: piece[0])
        out = [encoder.done(epoch, 0, min(self.committed, end))]
        for start, stop, lease in pieces:
            stop = min(stop, end)
            if start < stop:
                out.append(
                    encoder.lease(epoch, start, stop, lease) if lease else encoder.done(epoch, start, stop)
                )
        out += [encoder.order(epoch, order) for order in self.held_orders()]
        return out

    # Inside

    def advance(self, end: int) -> None:
        starts, ends = self.starts, self.ends
        count = 0
        while count < len(starts) and starts[count] <= end:
            end = max(end, ends[count])
            count += 1
        if count:
            del starts[:count], ends[:count]
        self.committed = end

    def add_done(self, start: int, end: int) -> bool:
        starts, ends = self.starts, self.ends
        low, high = bisect_left(ends, start), bisect_right(starts, end)  # ranges that overlap or touch
        if low < high:
            if starts[low] <= start and end <= ends[low]:
                return False
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        starts[low:high], ends[low:high] = [start], [end]
        return True

    def drop_leases(self, start: int, end: int) -> None:
        leases = self.leases
        if end - start == 1:
            leases.pop(start, None)
        elif leases:
            span = range(start, end)
            for offset in [o for o in leases if o in span] if len(span) > len(leases) else span:
                leases.pop(offset, None)

    def drop_orders(self) -> None:
        held = {lease.serial for lease in self.leases.values()}
        newest = sorted(self.orders)
        kept = [serial for serial in newest[:-ORDERS_SLACK] if serial in held] + newest[-ORDERS_SLACK:]
        self.orders = {serial: self.orders[serial] for serial in kept[-ORDERS_MAX:]}

    def hold_each(self, start: int, end: int, lease: Lease) -> bool:
        leases, changed = self.leases, False
        for offset in range(max(start, self.committed), end):
            held = leases.get(offset)
            if (held is None and not self.is_done(offset)) or (held is not None and lease > held):
                leases[offset] = lease
                changed = True
        return changed

    def find_gaps(self) -> list[tuple[int, int]]:
        gaps, position = [], self.committed
        taken = self.done_above() + [(start, stop) for start, stop, _ in self.lease_runs()]
        for start, stop in sorted(taken):
            if start > position:
                gaps.append((position, start))
            position = max(position, stop)
        if position < self.next:
            gaps.append((position, self.next))
        return gaps

    def runs_of(self, start: int, stop: int, lease: Lease) -> Iterator[tuple[int, int]]:
        first = -1
        for offset in range(start, stop):
            if self.leases.get(offset) == lease:
                first = offset if first < 0 else first
            elif first >= 0:
                yield first, offset
                first = -1
        if first >= 0:
            yield first, stop

    def still_held(self, start: int, stop: int, lease: Lease) -> bool:
        return any(self.leases.get(offset) == lease for offset in range(max(start, self.committed), stop))

    def compact(self) -> None:
        runs = self.lease_runs()
        self.expiry = [(lease.visible_at, start, stop, lease) for start, stop, lease in runs]
        self.renewals = [
            (lease.visible_at - RENEW_AHEAD_MS, start, stop, lease)
            for start, stop, lease in runs
            if lease.auto_renew
        ]
        heapq.heapify(self.expiry)
        heapq.heapify(self.renewals)
        self.ready, self.ready_set = [], set()  # all held offsets are in `expiry` now


# A range done (no lease) or held, in the state's own epoch.
Change: TypeAlias = tuple[QueueLeases, int, int, Lease | None]
# Under which attempt id the leases of a serial are taken.
OrderChange: TypeAlias = tuple[QueueLeases, Order]
# Takes an entry and how many offsets of its queue are held; returns it, or None when it does not count.
Judge: TypeAlias = Callable[[LeaseEntry, int], LeaseEntry | None]


class LeaseTable:
    """All states of one broker."""

    def __init__(self, *, origin: int) -> None:
        """Start empty; `origin`, the broker id modulo 64, keeps serials apart from those of other brokers."""
        self.origin = origin & 0x3F
        self.serial = 0
        self.by_queue: dict[tuple[str, str, int], QueueLeases] = {}  # those at work
        self.resting = RestingPositions()
        self.clients: dict[str, set[QueueLeases]] = {}  # where a client may hold renewed leases
        self.renewals: list[
            tuple[float, int, QueueLeases]
        ] = []  # valid where the state's `renew_at` is the time
        self.renewal_count = 0  # orders renewals of equal time

    def state(self, group: str, topic: str, queue_id: int) -> QueueLeases:
        """Return the state, new when there is none."""
        state = self.find(group, topic, queue_id)
        if state is None:
            state = self.by_queue[group, topic, queue_id] = QueueLeases(group, topic, queue_id)
        return state

    def find(self, group: str, topic: str, queue_id: int) -> QueueLeases | None:
        """Return the state, if there is one."""
        key = (group, topic, queue_id)
        state = self.by_queue.get(key)
        if state is None and (group, topic) in self.resting.by_pair:
            self.wake(group, topic)
            state = self.by_queue.get(key)
        return state

    def states(self, *, group: str | None = None, topic: str | None = None) -> list[QueueLeases]:
        """Return all states, or those of a group or of a topic; they no longer rest."""
        for pair in list(self.resting.by_pair):
            if pair[0] == (group or pair[0]) and pair[1] == (topic or pair[1]):
                self.wake(*pair)
        return [
            state
            for state in self.by_queue.values()
            if (group is None or state.group == group) and (topic is None or state.topic == topic)
        ]

    def positions(self) -> Iterator[tuple[str, str, Position]]:
        """Yield group, topic and position of all states, whether they rest or not.

        They may change meanwhile. On another thread, a position may be left out that just stops resting.
        """
        states, resting = list(self.by_queue.values()), self.resting.all()
        for state in states:
            committed = state.committed if state.started else -1
            yield state.group, state.topic, (state.queue_id, state.epoch, committed)
        yield from resting

    def position(self, group: str, topic: str, queue_id: int) -> Position | None:
        """Return one position, whether its state rests or not; None when there is no state."""
        state = self.by_queue.get((group, topic, queue_id))
        if state is None:
            return self.resting.position(group, topic, queue_id)
        return queue_id, state.epoch, state.committed if state.started else -1

    def rest(self, states: Sequence[QueueLeases]) -> None:
        """Let states of one group and topic rest, all of them `at_rest`; nobody may use the objects after."""
        group, topic = states[0].group, states[0].topic
        for state in states:
            del self.by_queue[group, topic, state.queue_id]
        self.resting.put(
            group, topic, [(one.queue_id, one.epoch, one.committed if one.started else -1) for one in states]
        )

    def wake(self, group: str, topic: str) -> None:
        for queue_id, epoch, committed in self.resting.take(group, topic):
            state = self.by_queue[group, topic, queue_id] = QueueLeases(group, topic, queue_id)
            state.reset(epoch)
            if committed >= 0:
                state.finish(0, committed)

    def next_serial(self, now: int) -> int:
        """Return a serial greater than all seen."""
        serial = now << 20 | self.origin
        if serial <= self.serial:
            serial = ((self.serial >> 6) + 1) << 6 | self.origin
        self.serial = serial
        return serial

    @staticmethod
    def encode(changes: list[Change], orders: Sequence[OrderChange] = ()) -> bytes:
        """Return the changes as entries."""
        entries = [state.entry(start, end, lease) for state, start, end, lease in changes]
        if orders:
            entries += [state.encoder.order(state.epoch, order) for state, order in orders]
        return b"".join(entries)

    def apply(self, changes: list[Change], orders: Sequence[OrderChange] = ()) -> None:
        """Make the changes."""
        for state, start, end, lease in changes:
            if lease is None:
                state.finish(start, end)
            elif state.hold(start, end, lease):
                self.track_client(state, lease)
        for state, order in orders:
            state.note_order(order)

    def join(
        self,
        data: bytes,
        judge: Judge | None = None,
        *,
        end_of: Callable[[str, int], int] | None = None,
        refused: list[LeaseEntry] | None = None,
    ) -> bytes:
        """Merge entries; return those that changed something.

        Args:
            data: the entries.
            judge: decides which of them count, where they come from another process or from the disk.
            end_of: returns the end of a queue by topic and queue id; an entry beyond it is not merged, but
                added to `refused`. None where the log may lag behind the entries.
            refused: see `end_of`.

        Raises:
            CorruptRecord: they don't decode; nothing has changed.
        """
        changed = []
        for decoded in list(decode_entries(data)):
            if self.is_known_at_rest(decoded):
                continue
            new = self.position(decoded.group, decoded.topic, decoded.queue_id) is None
            found = None if new else self.find(decoded.group, decoded.topic, decoded.queue_id)
            if found is not None and decoded.epoch < found.epoch:
                continue
            held = len(found.leases) if found is not None else 0
            entry = decoded if judge is None else judge(decoded, held)
            if entry is None:
                continue
            if end_of is not None and entry.end > end_of(entry.topic, entry.queue_id):
                if refused is not None:
                    refused.append(entry)
                continue
            if entry.order is not None:
                # Where nothing is known of the epoch nothing is held in it.
                if found is not None and entry.epoch == found.epoch and found.note_order(entry.order):
                    changed.append(entry.raw)
                continue
            if new and entry.lease is None and not entry.start:
                if self.resting.add(entry.group, entry.topic, (entry.queue_id, entry.epoch, entry.end)):
                    changed.append(entry.raw)
                continue
            state = found or self.state(entry.group, entry.topic, entry.queue_id)
            grown = entry.epoch > state.epoch
            if grown:
                state.reset(entry.epoch)
            if entry.lease is not None:
                self.serial = max(self.serial, entry.lease.serial)
                if state.hold(entry.start, entry.end, entry.lease):
                    self.track_client(state, entry.lease)
                    grown = True
            elif entry.end >= 0:
                grown = state.finish(entry.start, entry.end) or grown
            if grown:
                changed.append(entry.raw)
        return b"".join(changed)

    def is_known_at_rest(self, entry: LeaseEntry) -> bool:
        """Tell whether an entry says nothing new of a state that rests, and may go on to."""
        if entry.lease is not None:
            return False
        known = self.resting.position(entry.group, entry.topic, entry.queue_id)
        if known is None or entry.epoch > known[1]:
            return False
        return entry.epoch < known[1] or (entry.start >= 0 and entry.end <= known[2])

    def snapshot(self) -> Iterator[bytes]:
        """Yield the full state, one entry after the other; it may change meanwhile."""
        states, resting = list(self.by_queue.values()), self.resting.all()
        for state in states:
            yield from state.entries()
        for group, topic, (queue_id, epoch, committed) in resting:
            encoder = EntryEncoder(group, topic, queue_id)
            yield encoder.done(epoch, 0, committed) if committed >= 0 else encoder.epoch(epoch)

    def orders(self) -> Iterator[bytes]:
        """Yield the orders of what is held, as entries."""
        for state in self.by_queue.values():
            for order in state.held_orders():
                yield state.encoder.order(state.epoch, order)

    def released(self, client_id: str, group: str | None, now: int) -> list[Change]:
        """Return the changes that make what a client holds visible soon (of one group, or of all).

        Only of leases that the server renews; the others keep the time that the client requested.
        """
        changes: list[Change] = []
        for state in self.clients.get(client_id, set()):
            if group is not None and state.group != group:
                continue
            for start, stop, lease in state.lease_runs():
                if lease.client_id == client_id and lease.auto_renew:
                    visible_at = min(lease.visible_at, now + RELEASE_MS)
                    gone = lease._replace(
                        revision=lease.revision + 1, visible_at=visible_at, auto_renew=False
                    )
                    changes.append((state, start, stop, gone))
        return changes

    def renewals_due(self, now: int, alive: Callable[[str, str], bool], wait_ms: WaitAfter) -> list[Change]:
        """Return the renewals to make now; to be called again at `next_renewal`."""
        changes: list[Change] = []
        while self.renewals and self.renewals[0][0] <= now:
            at, _, state = heapq.heappop(self.renewals)
            if state.renew_at == at:
                changes += state.renewals_due(now, alive, wait_ms)
                state.renew_at = inf
                self.schedule_renewals(state)
        return changes

    def next_renewal(self) -> float:
        """Return when `renewals_due` should be called."""
        return self.renewals[0][0] if self.renewals else inf

    def forget_idle_clients(self) -> None:
        """Drop what is kept for clients that hold nothing any more."""
        self.clients.clear()
        for state in self.by_queue.values():
            for lease in set(state.leases.values()):
                self.track_client(state, lease)

    def track_client(self, state: QueueLeases, lease: Lease) -> None:
        if lease.auto_renew:
            holders = self.clients.get(lease.client_id)
            if holders is None:
                holders = self.clients[lease.client_id] = set()
            holders.add(state)
            self.schedule_renewals(state)

    def schedule_renewals(self, state: QueueLeases) -> None:
        at = state.next_renewal()
        if at < state.renew_at:
            state.renew_at = at
            self.renewal_count += 1
            heapq.heappush(self.renewals, (at, self.renewal_count, state))
