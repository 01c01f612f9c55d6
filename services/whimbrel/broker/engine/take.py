"""A take: messages for a group, leased to a client, now or when there are some (RocketMQ: a pop).

    front ──► Take ──► checks of its rules ──► plan ──► leases written down ──► delivered, and rendered
               │                               ▲  │              '──► handed on to another topic
               │ not serving yet               │  │ nothing           (`hand_ons.py`)
               '──► waits, until `serve`       '──┴─► waits, in the line of its group

What a group gets is planned over all queues of the topic (`delivery_planner.py`), and over the topics that
RocketMQ left to be redelivered to the group. Nothing is handed out before its leases are written down.

**Waiting** (`waiting.py`): takes of a group are looked at one after the other, in their order, when a message
has come to a queue of the topic, when one is free again (settled, given back, reset, another filter), and
when one that is held becomes visible. A filter, or an attempt id, that found nothing is not tried again for
the next ones. A delivery whose caller has gone meanwhile is taken back, and does not count.

**Not serving**: a broker that has just begun to lead does not know yet what others have acknowledged. Takes
wait until it does, in their order, and for no longer than they were to wait.

**The majority.** Where the leader is elected, what an ordered group takes is told once a majority has its
leases: the next leader would give out what stands behind the messages that are under way, or those again to
somebody else. Of other groups a lease may be lost, and then its messages come again, which they may at any
time.

Only one of RocketMQ's protocols takes; what fronts may decide otherwise is in `TakeRules`.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.plan import Delivered, ReceiveRequest
from whimbrel.broker.consume.pulled_queues import NO_QUEUES, PulledQueues
from whimbrel.broker.consume.queue_leases import Change
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.broker.engine.consuming import Consume, ConsumeRules
from whimbrel.broker.engine.send import Majority
from whimbrel.broker.engine.waiting import EARLY_RECEIVES, Line, Waiting, Waits, When
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import StoreFull, WhimbrelError
from whimbrel.model.topic import TopicConfig

__all__ = ["Take", "TakeRules", "Takes"]

EARLY_LINE: Line = ("", "")

R = TypeVar("R")

logger = logging.getLogger(__name__)


class Sharers(Protocol):
    """Who shares queues out among themselves (the remoting protocol)."""

    def owns_positions(self, group: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRules(ConsumeRules):
    """How takes of a protocol are decided.

    Attributes:
        checks: in their order; the last one says what is to be taken (`Take.selection`).
        messages_max: of one answer.
    """

    checks: tuple[Callable[["Takes", "Take"], None], ...]
    messages_max: int


@dataclass(slots=True, eq=False)
class Take(Consume):
    """A take on its way: what the front says, and what the checks have found.

    Attributes:
        rules: of its protocol.
        messages: it wants no more.
        invisible_ms: how long they stay invisible; None: they are renewed while the client lives.
        client_id: of the client that takes.
        attempt_id: of ordered groups, the same for a take that is repeated; empty for none.
        wait_ms: how long it may wait; 0 for not at all.
        queues: of the topic, as it is, or as a send would make it.
        selection: what it takes of them.
    """

    rules: TakeRules
    messages: int
    invisible_ms: int | None
    client_id: str
    attempt_id: str = ""
    wait_ms: int = 0
    queues: TopicConfig | None = None
    selection: ReceiveRequest | None = None


class Takes:
    """Decides takes, on the loop's thread.

    Attributes:
        serves: takes are served; else they wait until they are.
    """

    def __init__(
        self,
        topics: TopicTable,
        creation: GroupCreation,
        consumption: GroupConsumption,
        waiting: Waiting,
        *,
        now_ms: Callable[[], int],
        serves: bool = True,
        members: Sharers | None = None,
        pulled: PulledQueues | None = None,
        greatest_first: bool = True,
        delivered: Callable[[str, str, int, int], None] | None = None,
        majority: Majority | None = None,
    ) -> None:
        """Take what is needed.

        Args:
            topics: the table. creation: has groups, and makes them. consumption: what groups hold.
            waiting: where takes wait. now_ms: the wall clock. serves: see above.
            members, pulled: who shares queues out, and which ones they pull; None where that does not matter.
            greatest_first: the greatest priority is the most urgent one (RocketMQ: `priorityOrderAsc`).
            delivered: told of topic, group, number and bytes of what goes to consumers; None: nobody counts.
            majority: that is to have what ordered groups take; None where roles are configured.
        """
        self.topics, self.creation, self.waiting = topics, creation, waiting
        self.consumption, self.lease_store = consumption, consumption.lease_store
        self.planner, self.hand_ons = consumption.planner, consumption.hand_ons
        self.retry_topics = consumption.retry_topics
        self.now, self.serves, self.members, self.pulled = now_ms, serves, members, pulled
        self.greatest_first, self.delivered, self.majority = greatest_first, delivered, majority

    def take(self, take: Take, render: Callable[[Take, Sequence[Delivered]], R]) -> R | Deferred[R]:
        """Take messages; return the answer, at once or when there are some, or the time is over.

        Args:
            take: what is wanted.
            render: makes the answer of what was delivered, perhaps of nothing.

        Raises:
            WhimbrelError: a rule is broken, the first one in the order of the rules; or the leases can't be
                written down, or too many wait.
        """
        reply = partial(self.reply, render)
        if not self.serves:
            return self.waiting.park(EARLY_RECEIVES, EARLY_LINE, take.wait_ms, take, reply, self)
        for check in take.rules.checks:
            check(self, take)
        delivered, more = self.taken(take, self.now())
        if delivered or take.wait_ms <= 0:
            return reply(take, delivered)
        line = take.topic, take.group
        waits = self.waiting.park(take.rules.kind, line, take.wait_ms, take, reply, self)
        self.expect(take, more)
        return waits

    def reply(
        self, render: Callable[[Take, Sequence[Delivered]], R], take: Take, delivered: Sequence[Delivered]
    ) -> R | Deferred[R]:
        """Return the answer that a front makes, once a majority has what it tells of."""
        if delivered and self.delivered is not None:
            size = sum(one.message.size for one in delivered)
            self.delivered(take.topic, take.group, len(delivered), size)
        answer: R | Deferred[R] = render(take, delivered)
        if take.config.fifo and self.majority is not None:
            answer = self.majority.hold(answer)
        return answer

    def expect(self, take: Take, more: bool) -> None:
        """Have a take that waits looked at when there may be something for it: at once if there is more."""
        if more:
            self.waiting.wake(take.topic)
        self.consumption.expect(take.group, take.topic)

    def serve(self) -> None:
        """Serve takes from now on, first those that wait for that; harmless where they are served."""
        self.serves = True
        for waits in self.waiting.of(EARLY_LINE):
            take: Take = waits.what
            take.wait_ms = self.waiting.left_ms(waits)
            try:
                for check in take.rules.checks:
                    check(self, take)
                delivered, more = self.taken(take, self.now())
                if not delivered and take.wait_ms > 0:
                    self.waiting.move(waits, take.rules.kind, (take.topic, take.group))
                    self.expect(take, more)
                    continue
            except WhimbrelError as error:
                self.waiting.refuse(waits, error)
                continue
            self.hand_out(waits, delivered)

    def look_again(self, found: Sequence[Waits], when: When) -> None:
        """Look at the takes of a group on a topic, in their order."""
        if when is not When.CHANGED:
            for waits in found:
                self.waiting.answer(waits, ())
        elif found[0].kind is not EARLY_RECEIVES:
            self.take_in_turn(found)

    def take_in_turn(self, found: Sequence[Waits]) -> None:
        """Take messages for those that wait; who gets none waits on."""
        now = self.now()
        fruitless: set[tuple[type, str, str]] = set()  # filters, and attempts, that found nothing
        for waits in found:
            take: Take = waits.what
            kind = type(take.wanted), take.wanted.expression, take.attempt_id
            if kind in fruitless:
                continue
            try:
                delivered, more = self.taken(take, now)
            except WhimbrelError as error:
                self.waiting.refuse(waits, error)
                continue
            if not delivered:
                fruitless.add(kind)
                if more:
                    self.waiting.wake(take.topic)
                continue
            self.hand_out(waits, delivered)
        self.consumption.expect(take.group, take.topic)

    def hand_out(self, waits: Waits, delivered: Sequence[Delivered]) -> None:
        """Answer one that has waited; what was taken for a caller that has gone is taken back."""
        if not self.waiting.answer(waits, delivered):
            self.take_back([one.handle for one in delivered])

    def taken(self, take: Take, now: int) -> tuple[list[Delivered], bool]:
        """Take messages of a topic, and of what is read beside it; also tell whether to try again at once.

        Each plan is written down before anything of it happens.
        """
        request = take.selection
        assert request is not None
        delivered: list[Delivered] = []
        if self.pulled is not None and self.pulled.count:
            left_out = self.left_out(self.pulled, request)
            if left_out:
                kept = tuple(queue_id for queue_id in request.queue_ids if queue_id not in left_out)
                if not kept:
                    return delivered, False
                request = replace(request, queue_ids=kept)
        more, one, beside = False, request, self.retry_topics.get((request.group, request.topic), ())
        for name, queues in ((request.topic, 0), *beside):
            if queues:
                room = request.batch - len(delivered)
                if room <= 0:
                    break
                one = replace(request, topic=name, queue_ids=range(queues), batch=room)
            plan = self.planner.plan(one, now)
            if plan.changes:
                try:
                    self.lease_store.commit(plan.changes, plan.orders)
                except StoreFull:
                    self.planner.rollback(plan)
                    raise
                if one.invisible_ms is None and plan.delivered:
                    self.consumption.upkeep.arm_renewals()
            for each in plan.hand_ons:
                self.hand_ons.begin(each)
            found = plan.delivered
            # What was handed on may have been all that kept others back.
            more = more or plan.more or (bool(plan.hand_ons) and not found)
            delivered += [as_of_topic(each, request.topic) for each in found] if queues else found
        return delivered, more and not delivered

    def left_out(self, pulled: PulledQueues, request: ReceiveRequest) -> frozenset[int]:
        """Return the queues that are left to members of the group that pull."""
        group, topic = request.group, request.topic
        if self.members is None or not self.members.owns_positions(group):
            return NO_QUEUES
        found = pulled.recent(group, topic, self.waiting.clock())
        if found and pulled.first_told(group, topic):
            logger.info(
                "group %s consumes %s by the remoting protocol as well: receives leave out the queues that it"
                " pulls (share_pulled_queues gives them all)",
                group,
                topic,
            )
        return found

    def take_back(self, handles: Sequence[str]) -> None:
        """Make messages visible again whose answer did not get out; that delivery does not count."""
        now, table = self.now(), self.lease_store.table
        changes: list[Change] = []
        for text in handles:
            handle = ReceiptHandle.decode(text)
            state = table.find(handle.group, handle.topic, handle.queue_id)
            lease = state.leases.get(handle.offset) if state is not None else None
            if state is None or lease is None or lease.serial != handle.serial or handle.epoch != state.epoch:
                continue
            visible = lease._replace(
                serial=table.next_serial(now),  # of no attempt: one that is repeated counts anew
                revision=0,
                visible_at=now,
                attempt=max(lease.attempt - 1, 0),
                auto_renew=False,
            )
            changes.append((state, handle.offset, handle.offset + 1, visible))
            self.waiting.wake(handle.topic)
        self.lease_store.commit_best_effort(changes)


def as_of_topic(delivered: Delivered, topic: str) -> Delivered:
    """Return a redelivery that RocketMQ appended to a retry topic as a message of the topic proper."""
    message = replace(delivered.message, topic=topic)
    return delivered._replace(message=message, attempt=delivered.attempt + message.reconsume_times)
