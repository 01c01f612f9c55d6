"""Ordered delivery, queue by queue: a queue gives out nothing while anything that it gave out is under way.

    free  --receive-->  blocked      up to a batch is held
     ^                     |         all of it done or visible again: parked polls are served at once
     '---------------------'

A receive runs upward from the first offset that is not done. It takes what is held and visible (attempt + 1)
and then what is unread, skips what is done, and never passes an offset that stays undone: so what comes again
comes in its order, and what was acknowledged among it stays away. One answer's batch is the most that a queue
gives out at once. A record that does not decode, and a message that is being handed on to another topic, hold
up what stands behind them until they are done.

**Attempt ids.** A client that got no answer repeats its receive with the same attempt id, a text of its own
choice. The leases that the lost answer made, known by their serial (`leases.py`), do not block that one: it
gets their messages again, as the same attempt, under new handles. Leases that were changed since belong to no
attempt: their client has had the answer.

RocketMQ (ConsumerOrderInfoManager) blocks in the same way. It differs where a batch comes again: it repeats
acknowledged messages of it, and the earliest of their times ends its wait for polls.
"""

from collections.abc import Callable, Sequence

from whimbrel.broker.consume.lease_codec import Lease, Order
from whimbrel.broker.consume.plan import DeliveryPlan, ReceiveRequest
from whimbrel.broker.consume.policy import HandOnRule, QueueCursor, Run, SelectRuns
from whimbrel.broker.consume.queue_leases import QueueLeases
from whimbrel.store.scan import Scan

__all__ = ["OrderedPolicy", "add_run", "always"]


def always() -> bool:
    """Return True."""
    return True


class OrderedPolicy:
    """Delivers each queue in order.

    Attributes:
        hand_on, delivers_up_to: see `DeliveryPolicy`.
    """

    stops_at_undone = True
    full_at = 1  # whatever is done may end a block

    def __init__(
        self,
        *,
        hand_on: HandOnRule | None = None,
        delivers_up_to: int = 0,
        allowed: Callable[[], bool] = always,
    ) -> None:
        """Prepare.

        Args:
            hand_on, delivers_up_to: see `DeliveryPolicy`.
            allowed: whether this broker may deliver in order now. Two brokers of a group at a time could not.
        """
        self.hand_on, self.delivers_up_to = hand_on, delivers_up_to
        self.allowed = allowed
        self.now = 0
        self.attempt_id = ""

    def begin(self, request: ReceiveRequest, now: int) -> Sequence[SelectRuns]:
        """Start a plan; return its passes over the queues."""
        self.now, self.attempt_id = now, request.attempt_id
        return (self.upward,) if self.allowed() else ()

    def upward(self, queue: QueueCursor, scan: Scan) -> Sequence[Run]:
        """Select what comes next, from the first offset that is not done."""
        state = queue.state
        leases = state.leases
        if any(self.holds_back(state, lease) for lease in leases.values()):
            return ()
        runs: list[Run] = []
        offset, left = max(queue.position, state.committed), scan.fetch_count()
        while offset < queue.high and left > 0:
            end = state.done_until(offset)
            if end <= offset:
                lease = leases.get(offset)
                alone = lease is not None or offset < state.next
                end = offset + 1 if alone else min(offset + left, queue.high)
                add_run(runs, offset, end, self.attempt_of(state, lease))
                left -= end - offset
            offset = end
        return runs

    def holds_back(self, state: QueueLeases, lease: Lease) -> bool:
        """Tell whether what stands behind a held message waits for it."""
        return lease.visible_at > self.now and not self.repeats(state, lease)

    def repeats(self, state: QueueLeases, lease: Lease) -> bool:
        """Tell whether this receive repeats the one that made a lease."""
        return bool(self.attempt_id) and state.orders.get(lease.serial) == self.attempt_id

    def attempt_of(self, state: QueueLeases, lease: Lease | None) -> int:
        """Return as which attempt a message goes out now."""
        if lease is None:
            return 1
        return max(lease.attempt, 1) if self.repeats(state, lease) else lease.attempt + 1

    def unused(self, queue: QueueCursor, runs: Sequence[Run]) -> None:
        """Take back runs that were not walked: nothing was noted of them."""

    def end(self, plan: DeliveryPlan) -> None:
        """Note the attempt id of what is delivered."""
        if self.attempt_id and plan.delivered:
            order = Order(plan.serial, self.attempt_id)
            taken = {
                change[0]: None for change in plan.changes if change[3] and change[3].serial == plan.serial
            }
            plan.orders += [(state, order) for state in taken]

    def rollback(self) -> None:
        """Undo what the last plan did to the lease state: nothing."""

    def next_visible(self, state: QueueLeases, end: int) -> int | None:
        """Return when the last of what is held becomes visible: the block lasts as long."""
        if not self.allowed() or not any(offset < end for offset in state.leases):
            return None
        return max(lease.visible_at for lease in state.leases.values())


def add_run(runs: list[Run], start: int, end: int, attempt: int) -> None:
    """Add a run, joined to the last one where it continues that."""
    if runs and runs[-1][1] == start and runs[-1][2] == attempt:
        runs[-1] = (runs[-1][0], end, attempt)
    else:
        runs.append((start, end, attempt))
