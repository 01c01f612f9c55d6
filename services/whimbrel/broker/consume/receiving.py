"""Receives: messages taken under leases, now or when there are some.

    plan --> write down the leases --> deliver, or park the poll until there is something
                '--> hand on (`hand_ons.py`): messages that go to another topic instead

Between the writing and the answer a delivery may fail: its caller has gone. It is taken back then, and does
not count.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from whimbrel.broker.consume.delivery_planner import DeliveryPlanner
from whimbrel.broker.consume.hand_ons import HandOns
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.plan import Delivered, ReceiveRequest
from whimbrel.broker.consume.queue_leases import Change
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.broker.consume.wakeups import ReceivePoll, RetryTopics, Wakeups, answer, unchanged
from whimbrel.deferred import Deferred
from whimbrel.errors import StoreFull, WhimbrelError

__all__ = ["NO_QUEUES", "Receiving"]

NO_QUEUES: frozenset[int] = frozenset()

R = TypeVar("R")


class Receiving:
    """Takes messages for consumers; parks the polls of those that wait."""

    def __init__(
        self,
        lease_store: LeaseStore,
        planner: DeliveryPlanner,
        hand_ons: HandOns,
        wakeups: Wakeups,
        retry_topics: RetryTopics,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """Take the lease state with its journal, and what chooses, hands on and waits.

        Args:
            lease_store, planner, hand_ons, wakeups: see the modules. retry_topics: what a group reads beside
            a topic. now_ms: the clock.
        """
        self.lease_store, self.table = lease_store, lease_store.table
        self.planner, self.hand_ons, self.wakeups = planner, hand_ons, wakeups
        self.retry_topics = retry_topics
        self.now = now_ms
        # Returns the queues of a topic that a group's receives leave out (`pulled_queues.py`).
        self.left_out: Callable[[str, str], frozenset[int]] = lambda group, topic: NO_QUEUES

    @overload
    def receive(
        self, request: ReceiveRequest, *, poll_ms: int
    ) -> list[Delivered] | Deferred[list[Delivered]]: ...

    @overload
    def receive(
        self,
        request: ReceiveRequest,
        *,
        poll_ms: int,
        reply: Callable[[list[Delivered]], R],
        deferred: Deferred[R] | None = None,
    ) -> R | Deferred[R]: ...

    def receive(
        self,
        request: ReceiveRequest,
        *,
        poll_ms: int,
        reply: Callable[[list[Delivered]], Any] = unchanged,
        deferred: Deferred[Any] | None = None,
    ) -> Any:
        """Receive messages, or wait for some; the answer is empty when none came within `poll_ms`.

        Args:
            request: what to receive; its invisible time was checked (`check_invisible_ms`).
            poll_ms: how long to wait.
            reply: makes the answer of what was delivered, now or later. A ValueError, from text in a record
                of other writers that protobuf does not take, fails a parked poll with CorruptRecord.
            deferred: completed with the answer, should the poll be parked; a new one otherwise.

        Returns:
            The answer, or the deferred of the parked poll.

        Raises:
            StoreFull: the leases can't be written down.
            Throttled: too many polls are parked.
        """
        now = self.now()
        delivered, more = self.take(request, now)
        if delivered or poll_ms <= 0:
            return reply(delivered)
        poll = ReceivePoll(request, now + poll_ms, reply, Deferred() if deferred is None else deferred)
        self.wakeups.park(poll)
        if more:
            self.wakeups.wake(request.topic)
        self.wakeups.schedule_wakeup(request.group, request.topic, now)
        self.wakeups.arm_timer()
        return poll.deferred

    def release_undelivered(self, handles: Sequence[str]) -> None:
        """Make messages visible again whose answer did not get out; that delivery does not count."""
        now = self.now()
        changes: list[Change] = []
        for text in handles:
            handle = ReceiptHandle.decode(text)
            state = self.table.find(handle.group, handle.topic, handle.queue_id)
            lease = state.leases.get(handle.offset) if state is not None else None
            if state is None or lease is None or lease.serial != handle.serial or handle.epoch != state.epoch:
                continue
            visible = lease._replace(
                serial=self.table.next_serial(now),  # of no attempt: one that is repeated counts anew
                revision=0,
                visible_at=now,
                attempt=max(lease.attempt - 1, 0),
                auto_renew=False,
            )
            changes.append((state, handle.offset, handle.offset + 1, visible))
            self.wakeups.wake(handle.topic)
        self.lease_store.commit_best_effort(changes)

    def take(self, request: ReceiveRequest, now: int) -> tuple[list[Delivered], bool]:
        """Take messages of a topic, and of what is read beside it; also tell whether to try again at once."""
        left_out = self.left_out(request.group, request.topic)
        if left_out:
            kept = tuple(queue_id for queue_id in request.queue_ids if queue_id not in left_out)
            if not kept:
                return [], False
            request = replace(request, queue_ids=kept)
        delivered, more = self.take_from(request, now)
        if self.retry_topics:
            for name, queues in self.retry_topics.get((request.group, request.topic), ()):
                room = request.batch - len(delivered)
                if room <= 0:
                    break
                one = replace(request, topic=name, queue_ids=range(queues), batch=room)
                again, more_again = self.take_from(one, now)
                delivered += [as_of_topic(one, request.topic) for one in again]
                more = more or more_again
        return delivered, more and not delivered

    def take_from(self, request: ReceiveRequest, now: int) -> tuple[list[Delivered], bool]:
        plan = self.planner.plan(request, now)
        if plan.changes:
            try:
                self.lease_store.commit(plan.changes, plan.orders)
            except StoreFull:
                self.planner.rollback(plan)
                raise
            if request.invisible_ms is None and plan.delivered:
                self.wakeups.arm_timer()
        for one in plan.hand_ons:
            self.hand_ons.begin(one)
        # What was handed on may have been all that kept others back.
        return plan.delivered, plan.more or (bool(plan.hand_ons) and not plan.delivered)

    def serve(self, topic: str, group: str, now: int) -> None:
        """Serve the parked polls of one group on a topic, first come first."""
        polls = self.wakeups.polls
        fruitless: set[tuple[type, str, str]] = set()  # filters, and attempts, that found nothing
        for poll in polls.waiting(topic, group):
            wanted = poll.request.filter
            kind = (type(wanted), wanted.expression, poll.request.attempt_id)
            if kind in fruitless:
                continue
            try:
                delivered, more = self.take(poll.request, now)
            except WhimbrelError as error:
                polls.remove(poll)
                poll.deferred.fail(error)
                continue
            if delivered:
                polls.remove(poll)
                if not answer(poll, delivered):
                    self.release_undelivered([one.handle for one in delivered])
                continue
            fruitless.add(kind)
            if more:
                self.wakeups.wake(topic)
        if polls.has_key(topic, group):
            self.wakeups.schedule_wakeup(group, topic, now)


def as_of_topic(delivered: Delivered, topic: str) -> Delivered:
    """Return a redelivery that RocketMQ appended to a retry topic as a message of the topic proper."""
    message = replace(delivered.message, topic=topic)
    return replace(delivered, message=message, attempt=delivered.attempt + message.reconsume_times)
