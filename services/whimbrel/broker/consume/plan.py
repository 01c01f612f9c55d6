"""What a receive asks for, and the plan that answers it: deliveries, hand-ons, and the changes they take.

Each offset that a plan covers has one of these outcomes:

    delivered     held under a lease of the request's invisible time
    skipped       done: filtered out, or no longer in the log
    postponed     held for a while, uncounted: its record does not decode
    handed on     held for a while, uncounted; done as soon as its copy in another topic is durable

The changes are to be written down and applied before anything of the plan happens.
"""

from dataclasses import dataclass
from typing import NamedTuple

from whimbrel.broker.consume.lease_codec import Lease
from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.consume.queue_leases import HAND_ON_LEASE_MS, RENEW_MS, Change, OrderChange, QueueLeases
from whimbrel.store.codec import StoredMessage
from whimbrel.store.scan import ANSWER_BYTES_MAX, Filter, Scan

__all__ = [
    "CORRUPT_RETRY_MS",
    "HAND_ONS_MAX",
    "Delivered",
    "DeliveryPlan",
    "HandOn",
    "PendingHandOn",
    "ReceiveRequest",
]

# When a record that does not decode is tried again. It stays undone, so that it does not count as delivered.
CORRUPT_RETRY_MS = 60_000
# Messages that one plan hands on, apart from its answer; their bytes are bounded as the answer's are. The
# rest follows with the next plan.
HAND_ONS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveRequest:
    """What a receive asks for.

    Attributes:
        queue_ids: the topic's readable queues on this broker. invisible_ms: how long the messages stay
        invisible; None: the server renews them while the client lives. attempt_id: of ordered groups, the
        same for a receive that the client repeats because it got no answer; empty for none. by_priority: of
        unordered groups, begin with the first of the queues each time, and take redeliveries last.
    """

    group: str
    topic: str
    queue_ids: range | tuple[int, ...]
    filter: Filter
    batch: int
    invisible_ms: int | None
    client_id: str
    attempt_id: str = ""
    by_priority: bool = False


class Delivered(NamedTuple):
    """One message on its way to a consumer."""

    message: StoredMessage
    handle: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOn:
    """Where a message goes instead of being delivered, and what changes on the way.

    Attributes:
        topic: the target. added: properties set, in place of those of the same names. removed: names of
        properties left out. reconsume_times: None to keep the message's.
    """

    topic: str
    added: tuple[tuple[str, str], ...] = ()
    removed: frozenset[str] = frozenset()
    reconsume_times: int | None = None


class PendingHandOn(NamedTuple):
    """A message that is handed on; its offset is done once the copy is durable, if `lease` still holds it.

    The lease's `taken_at` is that of the delivery before: a copy that is older than this is of another time.
    """

    state: QueueLeases
    epoch: int
    offset: int
    lease: Lease
    message: StoredMessage
    target: HandOn


class DeliveryPlan:
    """The answer to one receive in the making.

    Attributes:
        scan: over the store, with the budgets of the answer. more: the scan ended early without a message, so
        that another one may find some. hand_ons_full: no more messages may be handed on by this plan. orders:
        the attempt ids of its leases, where they count.
    """

    __slots__ = (
        "changes", "delivered", "hand_on_bytes", "hand_ons", "hand_ons_full", "leases", "more", "now",
        "orders", "postponed", "request", "scan", "serial", "table",
    )  # fmt: skip

    def __init__(self, table: LeaseTable, request: ReceiveRequest, now: int, scan: Scan) -> None:
        """Begin an empty plan."""
        self.table, self.request, self.now, self.scan = table, request, now, scan
        self.delivered: list[Delivered] = []
        self.changes: list[Change] = []
        self.orders: list[OrderChange] = []
        self.hand_ons: list[PendingHandOn] = []
        self.hand_on_bytes = 0
        self.hand_ons_full = False
        self.more = False
        self.serial = self.postponed = 0  # of what is delivered, and of what is not
        self.leases: dict[int, Lease] = {}  # by attempt: the messages of one answer share theirs

    def change(self, state: QueueLeases, start: int, end: int, lease: Lease | None) -> None:
        """Add a change, joined to the last one where that is the same."""
        changes = self.changes
        if changes:
            last, first, stop, held = changes[-1]
            if last is state and stop == start and held is lease:
                changes[-1] = (state, first, end, lease)
                return
        changes.append((state, start, end, lease))

    def delivery_lease(self, attempt: int) -> Lease:
        """Return the lease of what is delivered as this attempt."""
        lease = self.leases.get(attempt)
        if lease is None:
            invisible_ms = self.request.invisible_ms
            auto_renew = invisible_ms is None
            visible_at = self.now + (RENEW_MS if invisible_ms is None else invisible_ms)
            client_id = self.request.client_id if auto_renew else ""
            if not self.serial:
                self.serial = self.table.next_serial(self.now)
            lease = Lease(self.serial, 0, visible_at, self.now, attempt, auto_renew, client_id)
            self.leases[attempt] = lease
        return lease

    def postpone(
        self, state: QueueLeases, offset: int, attempt: int, wait_ms: int, *, keeps_time: bool = False
    ) -> Lease:
        """Hold an offset for a while without counting an attempt; return the lease.

        With `keeps_time` it says that the message was taken when it was delivered last. Its serial is not
        that of the deliveries: a receive that is repeated with the same attempt id must not take it.
        """
        if not self.postponed:
            self.postponed = self.table.next_serial(self.now)
        held = state.leases.get(offset) if keeps_time else None
        taken_at = self.now if held is None else held.taken_at
        lease = Lease(self.postponed, 0, self.now + wait_ms, taken_at, attempt, False, "")
        self.change(state, offset, offset + 1, lease)
        return lease

    def add_hand_on(
        self, state: QueueLeases, offset: int, attempt: int, message: StoredMessage, target: HandOn
    ) -> None:
        """Have a message handed on that would be delivered as this attempt."""
        lease = self.postpone(state, offset, attempt - 1, HAND_ON_LEASE_MS, keeps_time=True)
        self.hand_ons.append(PendingHandOn(state, state.epoch, offset, lease, message, target))
        self.hand_on_bytes += message.size
        self.hand_ons_full = len(self.hand_ons) >= HAND_ONS_MAX or self.hand_on_bytes >= ANSWER_BYTES_MAX
