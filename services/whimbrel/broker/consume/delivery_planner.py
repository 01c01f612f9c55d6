"""Chooses what a receive gets; changes nothing but the policy's notes.

A receive takes from all readable queues of its topic, beginning with another one each time (the queue that
the request names is ignored, as by RocketMQ's proxy: a client that polls one queue after the other would
otherwise miss messages until its rotation gets there); on a topic of priorities, always from the last queue
down, which holds the greatest ones. The policy of the subscription selects the offsets
(`policy.py`), one scan finds what stands there (`scan.py`), and the outcome goes into a plan (`plan.py`):

    policy: runs of offsets --> scan: what stands there --> plan: deliver | hand on | skip | postpone

The plan's changes are to be written down and applied before the messages are handed out, or the policy's
`rollback` called.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.consume.plan import CORRUPT_RETRY_MS, Delivered, DeliveryPlan, ReceiveRequest
from whimbrel.broker.consume.policy import DeliveryPolicy, QueueCursor, Run, SelectRuns, UnorderedPolicy
from whimbrel.broker.consume.receipts import receipt_prefix
from whimbrel.errors import IllegalOffset
from whimbrel.store.scan import Piece, RecordSource, Scan

__all__ = ["UNORDERED", "DeliveryPlanner", "PolicyFactory", "Subscription", "Uniform"]


class PolicyFactory(Protocol):
    """Makes policies."""

    def __call__(self, group: str, topic: str) -> DeliveryPolicy:
        """Return the policy of a group on a topic."""

    def basis(self, group: str) -> object:
        """Return what a group's policies depend on: they are made anew when it is another object."""


logger = logging.getLogger(__name__)


class Uniform:
    """Makes policies of one kind for all subscriptions."""

    def __init__(self, make: Callable[[], DeliveryPolicy]) -> None:
        self.make = make

    def __call__(self, group: str, topic: str) -> DeliveryPolicy:
        """Return a policy."""
        return self.make()

    def basis(self, group: str) -> object:
        """Return None for every group."""
        return None


UNORDERED = Uniform(UnorderedPolicy)


class Subscription:
    """A group on one topic: its policy, its queues, and with which of them the next receive begins."""

    __slots__ = (
        "basis",
        "broker_name",
        "group",
        "next_queue",
        "policy",
        "queues",
        "table",
        "topic",
        "used_at",
    )

    def __init__(
        self, table: LeaseTable, broker_name: str, group: str, topic: str, policy_of: PolicyFactory
    ) -> None:
        self.table, self.broker_name = table, broker_name
        self.group, self.topic = group, topic
        self.basis = policy_of.basis(group)
        self.policy = policy_of(group, topic)
        self.queues: dict[int, QueueCursor] = {}
        self.next_queue = 0
        self.used_at = 0  # by a plan

    def queue(self, queue_id: int) -> QueueCursor:
        """Return the cursor of a queue; there is one, used by one plan after the other."""
        found = self.queues.get(queue_id)
        if found is None:
            state = self.table.state(self.group, self.topic, queue_id)
            state.full_at = self.policy.full_at
            prefix = receipt_prefix(self.broker_name, self.group, self.topic, queue_id)
            found = self.queues[queue_id] = QueueCursor(state, prefix)
        return found


class DeliveryPlanner:
    """Plans receives over one table and one store."""

    def __init__(
        self,
        table: LeaseTable,
        store: RecordSource,
        broker_name: str,
        *,
        policy_of: PolicyFactory = UNORDERED,
    ) -> None:
        self.table, self.store, self.broker_name = table, store, broker_name
        self.policy_of = policy_of
        self.subscriptions: dict[tuple[str, str], Subscription] = {}

    def subscription(self, group: str, topic: str) -> Subscription:
        """Return the group's subscription to the topic."""
        found = self.subscriptions.get((group, topic))
        if found is None:
            found = Subscription(self.table, self.broker_name, group, topic, self.policy_of)
            self.subscriptions[group, topic] = found
        return found

    def forget(self, group: str | None, topic: str | None) -> None:
        """Drop the subscriptions of a deleted group or topic."""
        for key in [key for key in self.subscriptions if key[0] == group or key[1] == topic]:
            del self.subscriptions[key]

    def refresh(self) -> list[tuple[str, str]]:
        """Drop the subscriptions whose policies are to be made anew; return their groups and topics."""
        basis = self.policy_of.basis
        changed = [key for key, found in self.subscriptions.items() if found.basis is not basis(found.group)]
        for key in changed:
            del self.subscriptions[key]
        return changed

    def next_visible(self, group: str, topic: str) -> int | None:
        """Return when what the group holds is a reason to look again: 0 for now, None for never."""
        subscription = self.subscription(group, topic)
        policy, queue_range = subscription.policy, self.store.queue_range
        times = (
            policy.next_visible(queue.state, queue_range(topic, queue_id)[1])
            for queue_id, queue in subscription.queues.items()
        )
        return min((at for at in times if at is not None), default=None)

    def is_idle(self, group: str, topic: str, since: int) -> bool:
        """Tell whether no plan was made for a subscription since a time."""
        found = self.subscriptions.get((group, topic))
        return found is None or found.used_at < since

    def drop(self, group: str, topic: str) -> None:
        """Drop one subscription, whose states are to rest; a receive makes it anew."""
        self.subscriptions.pop((group, topic), None)

    def plan(self, request: ReceiveRequest, now: int) -> DeliveryPlan:
        """Choose at most `request.batch` messages."""
        key = request.group, request.topic
        subscription = self.subscriptions.get(key) or self.subscription(*key)
        policy = subscription.policy
        subscription.used_at = now
        scan = Scan(self.store, request.topic, request.filter, request.batch)
        plan = DeliveryPlan(self.table, request, now, scan)
        queues = self.begin_queues(subscription, plan)
        for select in policy.begin(request, now):
            for queue in queues:
                if scan.room <= 0 or scan.entries_left <= 0 or plan.hand_ons_full:
                    break
                fill(plan, policy, queue, select)
        plan.more = (scan.entries_left <= 0 or plan.hand_ons_full) and not plan.delivered
        policy.end(plan)
        return plan

    def rollback(self, plan: DeliveryPlan) -> None:
        """Undo the plan made last: its changes could not be written down."""
        self.subscription(plan.request.group, plan.request.topic).policy.rollback()

    def begin_queues(self, subscription: Subscription, plan: DeliveryPlan) -> list[QueueCursor]:
        """Return the queues that hold anything, in the order of this receive.

        A group that is behind what the log keeps moves on to its begin.
        """
        request, queue_range, cursors = plan.request, self.store.queue_range, subscription.queues
        topic, queue_ids = request.topic, request.queue_ids
        count = len(queue_ids)
        first = 0
        if not request.by_priority:
            subscription.next_queue = first = (subscription.next_queue + 1) % max(count, 1)
        queues = []
        for index in range(first, first + count):
            queue_id = queue_ids[index % count]
            low, high = queue_range(topic, queue_id)
            queue = cursors.get(queue_id) or subscription.queue(queue_id)
            state = queue.state
            if state.committed < low:
                if state.started:
                    logger.info("%s on %s/%d moves on to %d: what was before is no longer kept",
                             request.group, topic, queue_id, low)  # fmt: skip
                plan.change(state, 0, low, None)
            if low < high:
                queue.low, queue.high = low, high
                queues.append(queue)
        return queues


def fill(plan: DeliveryPlan, policy: DeliveryPolicy, queue: QueueCursor, select: SelectRuns) -> None:
    """Run one pass over one queue."""
    scan = plan.scan
    queue.position, queue.taken = queue.low, 0
    while runs := select(queue, scan):
        if not queue.position and not queue.state.started:
            plan.change(queue.state, 0, 0, None)  # the group has a position here from now on
        handed_on = len(plan.hand_ons)
        for index, run in enumerate(runs):
            walked = walk_run(plan, policy, queue, run)
            queue.position = scan.reached
            if not walked:
                policy.unused(queue, [(scan.reached, run[1], run[2]), *runs[index + 1 :]])
                if len(plan.hand_ons) == handed_on:
                    return
                break  # what was handed on has made room again
        if scan.room <= 0 or scan.entries_left <= 0 or plan.hand_ons_full:
            return


def walk_run(plan: DeliveryPlan, policy: DeliveryPolicy, queue: QueueCursor, run: Run) -> bool:
    """Plan the offsets of one run; return False when a budget or the policy ended it early."""
    start, stop, attempt = run
    state, scan = queue.state, plan.scan
    pieces = scan.walk(state.queue_id, start, stop)
    for piece in pieces:
        begin, offset, end, _, _, found = piece
        if begin < offset:
            plan.change(state, begin, offset, None)  # filtered out
        if isinstance(found, list):
            queue.taken += len(found)
            if policy.hand_on is None or attempt <= policy.delivers_up_to:
                if found:
                    deliver(plan, queue, attempt, piece)
                continue
            ended = deliver_or_hand_on(plan, policy, queue, attempt, piece)
            if ended < 0:
                continue
        elif isinstance(found, IllegalOffset):
            logger.warning("%s/%d offset %d is no longer in the log; %s goes past it",
                        state.topic, state.queue_id, offset, state.group)  # fmt: skip
            plan.change(state, offset, end, None)
            continue
        else:
            logger.error("%s/%d offset %d can't be delivered to %s: %s",
                      state.topic, state.queue_id, offset, state.group, found)  # fmt: skip
            plan.postpone(state, offset, max(attempt - 1, 1), CORRUPT_RETRY_MS)
            if not policy.stops_at_undone:
                continue
            queue.high = ended = end
        scan.end_walk(pieces, ended)
        return False
    return scan.reached >= stop


def deliver(plan: DeliveryPlan, queue: QueueCursor, attempt: int, piece: Piece) -> None:
    """Deliver the messages of a piece."""
    _, offset, end, units, index, messages = piece
    assert isinstance(messages, list)
    lease = plan.delivery_lease(attempt)
    plan.change(queue.state, offset, end, lease)
    before, after = f"{queue.prefix}{queue.state.epoch:x}:", f":{lease.serial:x}:{attempt:x}"
    for message in messages:
        physical_offset, size, _ = units[index]
        handle = f"{before}{offset:x}:{physical_offset:x}:{size:x}{after}"
        plan.delivered.append(Delivered(message, handle, attempt))
        offset, index = offset + 1, index + 1


def deliver_or_hand_on(
    plan: DeliveryPlan, policy: DeliveryPolicy, queue: QueueCursor, attempt: int, piece: Piece
) -> int:
    """Deliver the messages of a piece, or hand them on, as the policy decides for each.

    Returns:
        The offset at which to end the walk; -1 to go on.
    """
    _, offset, _, units, index, messages = piece
    assert isinstance(messages, list) and policy.hand_on is not None
    for message in messages:
        target = policy.hand_on(message, attempt)
        if target is None:
            deliver(plan, queue, attempt, (offset, offset, offset + 1, units, index, [message]))
        elif plan.hand_ons_full:
            return offset
        else:
            plan.add_hand_on(queue.state, offset, attempt, message, target)
            plan.scan.leave_out(message)
            if policy.stops_at_undone:
                queue.high = offset + 1
                return offset + 1
        offset, index = offset + 1, index + 1
    return -1
