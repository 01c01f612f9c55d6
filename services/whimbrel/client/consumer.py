"""Consumes as a member of a group: receive, acknowledge, extend the invisible time; and a loop for all.

QueryAssignment tells which queues to poll: for most groups one entry a broker, which stands for all of its
queues. `receive` with a single entry waits there for the whole time; with several it polls them in turn,
first without waiting, then with short waits, because a poll that is cancelled may have received messages
already.

For ordered groups brokers assign queue by queue, and one poll of a queue is answered from all of the
broker's: one entry a broker is kept here, too.

`run` is the subscription loop (`subscription_loop.py`). It ends by `stop`, by `close`, or when its task is
cancelled, and each time in the same way: no more messages are polled, handlers that run may finish
(`options.close_grace_s`) and have their messages acknowledged, and messages without a handler yet are given
back, so that others get them at once. Then the connections may go.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence

from whimbrel.client.options import ConsumerOptions
from whimbrel.client.retry import decide
from whimbrel.client.session import BaseClient, Session
from whimbrel.client.spans import ClientSpans
from whimbrel.client.subscription_loop import Handler, SubscriptionLoop, handling
from whimbrel.errors import (
    BadRequest,
    ClientError,
    TopicNotFound,
    Unavailable,
    WhimbrelError,
)
from whimbrel.model.message import Filter, ReceivedMessage
from whimbrel.model.route import Endpoint, Queue
from whimbrel.model.unasked import Unasked, left_out
from whimbrel.rpc.api import calls
from whimbrel.rpc.api.calls import Outbound
from whimbrel.rpc.api.convert import ClientSettings

__all__ = ["Consumer", "Handler", "poll_times"]

SLICE_S = 1.0  # how long `receive` waits at one of several brokers before it asks the next
POLL_MARGIN_S = 3.0  # a poll's deadline lies this far behind its waiting time, as the official SDKs have it
# A broker that hangs is noticed when a poll's deadline passes. Where other members can be asked that is so
# after 4.5 s: about as long as a send waits (`producer.py` MEMBER_TIMEOUT_S), and an election takes.
MEMBER_POLL_S = 2.5
MEMBER_MARGIN_S = 2.0

logger = logging.getLogger(__name__)


def poll_times(queue: Queue, wait_s: float) -> tuple[float, float]:
    """Return how long a poll of a queue waits at the broker, and its deadline, in seconds."""
    if len(queue.endpoints) > 1:
        wait_s = min(wait_s, MEMBER_POLL_S)
        return wait_s, wait_s + MEMBER_MARGIN_S
    return wait_s, wait_s + POLL_MARGIN_S


class Consumer(BaseClient):
    """An asyncio consumer of one group.

    async with Consumer("127.0.0.1:8081", "billing", {"orders": "*"}) as consumer:
        for message in await consumer.receive():
            await consumer.ack(message)

    Public methods: start, close, assignments, receive, unasked, ack, ack_all, change_invisible, dead_letter,
    run, stop.

    Attributes:
        group: the consumer group.
        subscriptions: filters by topic.
        options: as given.
        session: connections and routes, for calls that have no method here.
        spans: what the consumer traces.
        unanswered: brokers that `receive` could not ask when it did last, by name, with the error.
    """

    def __init__(
        self,
        endpoint: str,
        group: str,
        subscriptions: Mapping[str, Filter] | Sequence[str],
        *,
        options: ConsumerOptions | None = None,
    ) -> None:
        """Prepare a consumer.

        Args:
            endpoint: HOST:PORT of a nameserver, or a list of them separated by `;`.
            group: the consumer group.
            subscriptions: topics, with a filter each (`*`, tags separated by `||`, or a `SqlFilter`); all
                members of a group must have the same.
            options: other settings.

        Raises:
            IllegalAccessPoint: `endpoint` is malformed.
            BadRequest: there is no subscription.
        """
        self.options = options or ConsumerOptions()
        super().__init__(endpoint, self.options)
        self.group = group
        self.subscriptions: dict[str, Filter] = (
            dict(subscriptions)
            if isinstance(subscriptions, Mapping)
            else dict.fromkeys([subscriptions] if isinstance(subscriptions, str) else subscriptions, "*")
        )
        if not self.subscriptions:
            raise BadRequest("a consumer needs at least one topic")
        self.spans = ClientSpans(self.options, group=group)
        self.type = "simple"
        self.turn = 0
        self.assigned: dict[str, tuple[float, tuple[Queue, ...]]] = {}
        self.unanswered: dict[str, WhimbrelError] = {}  # by broker, why its last poll failed
        self.loops: set[SubscriptionLoop] = set()
        self.closed = False

    def settings(self, session: Session) -> ClientSettings:
        return self.common_settings(
            self.type, group=self.group, subscriptions=tuple(self.subscriptions.items())
        )

    async def assignments(self) -> list[Queue]:
        """Return the queues to poll, of all topics: one of each broker, which stands for all of its own.

        Raises:
            WhimbrelError: no nameserver responds for some topic, and none ever did.
        """
        queues: list[Queue] = []
        for topic in self.subscriptions:
            brokers: dict[str, Queue] = {}
            for queue in await self.assignment(topic):
                brokers.setdefault(queue.broker_name, queue)
            queues += brokers.values()
        return queues

    async def receive(
        self, count: int = 32, *, wait_s: float | None = None, invisible_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Receive up to `count` messages; return as soon as there are some, or none after the waiting time.

        Each must be acknowledged within the invisible time, or is delivered again.

        Raises:
            WhimbrelError: no broker could be asked.
        """
        wait = self.options.long_polling_s if wait_s is None else wait_s
        invisible = self.options.invisible_s if invisible_s is None else invisible_s
        end = time.monotonic() + wait
        slice_s = 0.0
        attempt = 0
        while True:
            queues = await self.assignments()
            if len(queues) == 1:
                slice_s = wait
            failure: WhimbrelError | None = None
            responded = False
            for _ in queues:
                self.turn += 1
                queue = queues[self.turn % len(queues)]
                left = max(0.0, end - time.monotonic())
                try:
                    messages = await self.poll(
                        queue, min(count, self.options.batch_max), min(slice_s, left), invisible
                    )
                except WhimbrelError as error:
                    failure = error
                    self.unanswered[queue.broker_name] = error
                    self.report_failure(queue)
                    continue
                self.unanswered.pop(queue.broker_name, None)
                if messages:
                    return messages
                responded = True
            if failure is not None and not responded:  # one broker of several may be down for long
                attempt += 1
                decision = decide(failure, attempt, self.options.retry, repeatable=True)
                if not decision.again:
                    raise failure
                await asyncio.sleep(decision.pause_s)
            elif time.monotonic() >= end or not queues:
                return []
            slice_s = SLICE_S

    async def unasked(self) -> list[Unasked]:
        """Return the brokers that `receive` could not ask when it did last, and the groups that are away.

        Raises:
            WhimbrelError: no nameserver could be asked.
        """
        failed = [Unasked(name, str(error)) for name, error in sorted(self.unanswered.items())]
        away = left_out(await self.session.cluster())
        return [*failed, *(one for one in away if one.broker_name not in self.unanswered)]

    async def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message; the group does not get it again.

        Raises:
            InvalidReceiptHandle: the lease has ended, and the message was or will be delivered again.
            WhimbrelError: the broker could not be asked.
        """
        with self.spans.settling([message]):
            call = calls.ack_messages([message], self.group, self.namespace)
            results = await self.ask_broker(message, call)
            if results[0] is not None:
                raise results[0]

    async def ack_all(self, messages: Sequence[ReceivedMessage]) -> list[WhimbrelError | None]:
        """Acknowledge with one call a broker and topic; return None or the error for each, in order."""
        batches: dict[tuple[str, str], list[int]] = {}
        for index, message in enumerate(messages):
            batches.setdefault((message.queue.broker_name, message.topic), []).append(index)
        outcome: list[WhimbrelError | None] = [None] * len(messages)
        for indexes in batches.values():
            batch = [messages[index] for index in indexes]
            try:
                with self.spans.settling(batch):
                    results = await self.ask_broker(
                        batch[0], calls.ack_messages(batch, self.group, self.namespace)
                    )
            except WhimbrelError as error:
                results = [error] * len(batch)
            for index, result in zip(indexes, results, strict=True):
                outcome[index] = result
        return outcome

    async def change_invisible(self, message: ReceivedMessage, invisible_s: float) -> ReceivedMessage:
        """Have a message delivered again after `invisible_s`, 0 for at once.

        The returned message carries the new receipt handle; the old one is void.

        Raises:
            InvalidReceiptHandle: the lease has ended.
            WhimbrelError: the broker could not be asked.
        """
        call = calls.change_invisible(message, self.group, invisible_s, self.namespace)
        with self.spans.settling([message], acknowledge=False):
            handle = await self.ask_broker(message, call)
        return dataclasses.replace(message, receipt_handle=handle)

    async def dead_letter(self, message: ReceivedMessage) -> None:
        """Give a message up: it goes to the group's dead letters, and the group does not get it again.

        Raises:
            InvalidReceiptHandle: the receipt is malformed.
            WhimbrelError: the broker could not be asked.
        """
        attempts_max = self.session.server.max_attempts
        call = calls.forward_to_dead_letters(
            message, self.group, message.delivery_attempt, attempts_max, self.namespace
        )
        await self.ask_broker(message, call)

    async def run(self, handler: Handler) -> None:
        """Call the handler for each message: acknowledge on return, hide on an exception.

        In an ordered group (`fifo`) messages of one message group are handled one after the other, and one
        whose handler raises is handled again after a pause, before all others of its message group, until it
        becomes a dead letter.

        At most `options.concurrency` handlers run at a time. Returns after `stop` or `close`. Then, and when
        it is cancelled, no more messages are received, running handlers get `options.close_grace_s` to
        finish, and unfinished messages are delivered again.

        Raises:
            ClusterUnreachable: no nameserver has ever answered. Later failures are logged and sat out.
            ClientError: the consumer is not started.
        """
        if self.closed:  # by another thread or task, before this one came to run
            return
        if not self.session.started:
            raise ClientError("the consumer is not started: use it in a `with`, or call start()")
        self.type = "push"
        loop = SubscriptionLoop(self, handler)
        self.loops.add(loop)
        try:
            await loop.run()
        finally:
            self.loops.discard(loop)

    async def start(self) -> None:
        """Make the consumer usable; needs a running loop, and sends nothing yet."""
        self.closed = False
        await super().start()

    def stop(self) -> None:
        """Have every `run` that has begun end, without waiting for it; a handler may call this, too."""
        for loop in self.loops:
            loop.stop()

    async def close(self) -> None:
        """End every `run`, wait for that, then close the connections.

        Raises:
            ClientError: a handler of this consumer calls it, which would wait for itself; it can call `stop`.
        """
        if self in handling.get():
            raise ClientError(
                "a handler can't close its own consumer, which waits for it; call stop() instead"
            )
        self.closed = True
        self.stop()
        await asyncio.gather(*(loop.ended.wait() for loop in self.loops))
        await super().close()

    @property
    def namespace(self) -> str:
        return self.options.namespace

    async def assignment(self, topic: str) -> tuple[Queue, ...]:
        now = time.monotonic()
        known = self.assigned.get(topic)
        if known is not None and now < known[0]:
            return known[1]
        attempt = 0
        while True:
            attempt += 1
            try:
                await self.session.route(topic)  # fills the cache: streams are kept to brokers in it
                queues = await self.session.ask(
                    calls.query_assignment(topic, self.group, self.session.access, self.namespace)
                )
            except WhimbrelError as error:
                if known is not None and not isinstance(error, TopicNotFound):
                    logger.debug("kept the old assignment of %s: %s", topic, error)
                    self.assigned[topic] = (now + SLICE_S, known[1])
                    return known[1]
                decision = decide(error, attempt, self.options.retry, repeatable=True)
                if not decision.again:
                    raise
                await asyncio.sleep(decision.pause_s)
            else:
                self.assigned[topic] = (time.monotonic() + self.options.assignment_s, queues)
                return queues

    def report_failure(self, queue: Queue) -> None:
        """Note that a poll of the queue failed: its broker may be gone, and another in its place."""
        self.session.routes.report_error(queue.topic)
        known = self.assigned.get(queue.topic)
        if known is not None:
            self.assigned[queue.topic] = (0.0, known[1])

    async def poll(
        self, queue: Queue, count: int, wait_s: float, invisible_s: float | None, attempt_id: str = ""
    ) -> list[ReceivedMessage]:
        endpoint = self.session.endpoint(queue)
        wait_s, deadline_s = poll_times(queue, wait_s)
        call = calls.receive_messages(
            queue,
            self.group,
            expression=self.subscriptions.get(queue.topic, "*"),
            count=count,
            invisible_s=invisible_s,
            wait_s=wait_s,
            attempt_id=attempt_id,
            namespace=self.namespace,
        )
        began_ns = time.time_ns()
        messages = await self.session.call(endpoint, call, deadline_s)
        self.spans.received(queue.topic, messages, began_ns)
        return messages

    async def ask_broker(self, message: ReceivedMessage, call: Outbound[calls.T]) -> calls.T:
        """Ask the broker that delivered the message, or the one that took its place."""
        attempt = 0
        while True:
            attempt += 1
            endpoint = await self.endpoint_of(message)
            try:
                return await self.session.call(endpoint, call)
            except WhimbrelError as error:
                decision = decide(error, attempt, self.options.retry, repeatable=True)
                if not decision.again:
                    raise
                if isinstance(error, Unavailable):
                    self.report_failure(message.queue)
                await asyncio.sleep(decision.pause_s)

    async def endpoint_of(self, message: ReceivedMessage) -> Endpoint:
        """Return where the broker that delivered the message is now, or the one that took its place."""
        try:
            for queue in await self.assignment(message.queue.topic):
                if queue.broker_name == message.queue.broker_name:
                    return self.session.endpoint(queue)
        except WhimbrelError as error:
            logger.debug("asking the broker that delivered %s: %s", message.message_id, error)
        return self.session.endpoint(message.queue)
