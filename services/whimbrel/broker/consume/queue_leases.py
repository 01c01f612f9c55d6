"""What one consumer group holds, has finished and has not read yet of one queue: a pure state machine.

One `QueueLeases` stands for one (group, topic, queue). Every offset of the queue is in one of these states:

                 receive                   acknowledge, filter, commit
    unread ---------------> held (lease) ------------------------------> done
      |                      |  ^   visible time comes: received again, attempt + 1, a new serial
      |                      '--'   change, renew, release: another visible time
      '---------------------------------------------------------------> done   (filtered out, committed past)

`committed` is the offset below which all are done; `done` ranges lie above it, so that a message which
is never acknowledged does not make the state grow with each one acknowledged behind it. `next` is the
end of what was ever held or done. A maximum of attempts is the policy's business (`dead_letters.py`).

Below `next`, an offset neither done nor held is a *gap*: its entries have not arrived, or were lost with a
journal's tail. It counts as unread, so that losing entries delivers twice rather than never. Snapshots list
a queue's entries by ascending offset, hence one that is cut short leaves no gaps.

How states of several brokers merge is told in `leases.py`. Times are epoch milliseconds and handed in.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator
from enum import Enum
from math import inf
from typing import TypeAlias

from whimbrel.broker.consume.lease_codec import LEASE_COUNT_MAX, EntryEncoder, Lease, Order
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.errors import InvalidReceiptHandle

__all__ = [
    "HAND_ON_LEASE_MS",
    "INFLIGHT_MAX",
    "RENEW_MS",
    "RENEW_TOTAL_MS",
    "Change",
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

# How long a message is held that is handed on to another topic (`hand_ons.py`). This is longer than the wait
# for flush and replicas (`Durability`), so that the message is not delivered while its copy may still become
# durable. When the append was refused, it is tried again after this time.
HAND_ON_LEASE_MS = 10_000

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
            if held is None:
                continue
            if held.visible_at <= now:
                taken.append(offset)
            else:  # held anew, or the clock was set back since
                heapq.heappush(expiry, (held.visible_at, offset, offset + 1, held))
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

    def renewals_due(
        self,
        now: int,
        alive: Callable[[str, str], bool],
        wait_ms: WaitAfter,
        unsure: Container[int] = (),
    ) -> "list[Change]":
        """Return the renewals to make now: those of clients that are `alive(group, client_id)`.

        A lease that was renewed for `RENEW_TOTAL_MS` has failed, and comes again after the group's wait. One
        whose serial is `unsure` may not have reached its client, and is not renewed.
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
            elif lease.serial in unsure:
                continue
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
