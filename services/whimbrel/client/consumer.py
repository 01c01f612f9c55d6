"""Consumes as a member of a group: receive, acknowledge, extend the invisible time; and a loop for all.

QueryAssignment tells which queues to poll: for most groups one entry a broker, which stands for all of its
queues. `receive` with a single entry waits there for the whole time; with several it polls them in turn,
first without waiting, then with short waits, because a poll that is cancelled may have received messages
already.

`run` is the subscription loop. Each assigned queue has one poll under way; leases are renewed by the broker
while the client lives. A message is

    received ──handler returns──► acknowledged
        └──────handler raises───► hidden for the next step of the backoff list, then delivered again

and an acknowledgement is repeated until the broker takes it or refuses the receipt.

It ends by `stop`, by `close`, or when its task is cancelled, and each time in the same way: no more messages
are polled, handlers that run may finish (`options.close_grace_s`) and have their messages acknowledged, and
messages without a handler yet are given back, so that others get them at once. Then the connections may go.
"""

import asyncio
import contextvars
import dataclasses
import inspect
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence

from whimbrel.client.options import ConsumerOptions
from whimbrel.client.retry import RetryPolicy, backoff_s, decide
from whimbrel.client.session import BaseClient, Session
from whimbrel.client.spans import ClientSpans
from whimbrel.errors import (
    BadRequest,
    ClientError,
    ClusterUnreachable,
    InvalidReceiptHandle,
    TopicNotFound,
    Unavailable,
    WhimbrelError,
)
from whimbrel.model.message import ReceivedMessage
from whimbrel.model.route import Endpoint, Queue
from whimbrel.rpc.api import calls
from whimbrel.rpc.api.calls import Outbound
from whimbrel.rpc.api.convert import ClientSettings

__all__ = ["Consumer", "Handler"]

# What `Consumer.run` calls for each message; a plain function runs in a thread.
Handler = Callable[[ReceivedMessage], Awaitable[None] | None]

SLICE_S = 1.0  # how long `receive` waits at one of several brokers before it asks the next
POLL_MARGIN_S = 3.0  # a poll's deadline lies this far behind its waiting time, as the official SDKs have it
ACK_ATTEMPTS_MAX = 100  # with pauses of up to a second: more than a minute, longer than a broker's restart
ACK_BATCH_MAX = 128  # messages in one acknowledgement; SDKs send one, and some servers may expect few
POLL_PAUSE = RetryPolicy(initial_s=0.1, max_s=2.0)  # between failed polls; a restart is noticed soon

# The consumers whose handlers we are in: such a one can't wait until all handlers have ended.
handling: contextvars.ContextVar[tuple["Consumer", ...]] = contextvars.ContextVar("handling", default=())

logger = logging.getLogger(__name__)


class Consumer(BaseClient):
    """An asyncio consumer of one group.

    async with Consumer("127.0.0.1:8081", "billing", {"orders": "*"}) as consumer:
        for message in await consumer.receive():
            await consumer.ack(message)

    Public methods: start, close, assignments, receive, ack, ack_all, change_invisible, run, stop.

    Attributes:
        group: the consumer group.
        subscriptions: tag expressions by topic.
        options: as given.
        session: connections and routes, for calls that have no method here.
        spans: what the consumer traces.
    """

    def __init__(
        self,
        endpoint: str,
        group: str,
        subscriptions: Mapping[str, str] | Sequence[str],
        *,
        options: ConsumerOptions | None = None,
    ) -> None:
        """Prepare a consumer.

        Args:
            endpoint: HOST:PORT of a nameserver, or a list of them separated by `;`.
            group: the consumer group.
            subscriptions: topics, with a tag expression each (`*`, or tags separated by `||`); all members of
                a group must have the same.
            options: other settings.

        Raises:
            IllegalAccessPoint: `endpoint` is malformed.
            BadRequest: there is no subscription.
        """
        self.options = options or ConsumerOptions()
        super().__init__(endpoint, self.options)
        self.group = group
        self.subscriptions = (
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
        self.loops: set[SubscriptionLoop] = set()
        self.closed = False

    def settings(self, session: Session) -> ClientSettings:
        return self.common_settings(
            self.type, group=self.group, subscriptions=tuple(self.subscriptions.items())
        )

    async def assignments(self) -> list[Queue]:
        """Return the queues to poll, of all topics.

        Raises:
            WhimbrelError: no nameserver responds for some topic, and none ever did.
        """
        queues: list[Queue] = []
        for topic in self.subscriptions:
            queues += await self.assignment(topic)
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
                    self.report_failure(queue)
                    continue
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

    async def run(self, handler: Handler) -> None:
        """Call the handler for each message: acknowledge on return, hide on an exception.

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
        endpoint = queue.endpoints[0]
        self.session.use(endpoint)
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
        messages = await self.session.call(endpoint, call, wait_s + POLL_MARGIN_S)
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
                    return queue.endpoints[0]
        except WhimbrelError as error:
            logger.debug("asking the broker that delivered %s: %s", message.message_id, error)
        return message.queue.endpoints[0]


class Acknowledger:
    """Batches single acknowledgements: those that come while a call is under way go with the next one.

    A lone one leaves at once. What waits is bounded by the handlers that wait for it.
    """

    def __init__(self, consumer: Consumer) -> None:
        """Start with nothing waiting."""
        self.consumer = consumer
        self.waiting: dict[tuple[str, str], list[tuple[ReceivedMessage, asyncio.Future[None]]]] = {}
        self.calls: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message; errors as `Consumer.ack`."""
        key = message.queue.broker_name, message.topic
        done = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(key, []).append((message, done))
        if key not in self.calls:
            self.calls[key] = asyncio.create_task(self.send(key))
        await done

    async def send(self, key: tuple[str, str]) -> None:
        try:
            while waiting := self.waiting.pop(key, None):
                batch, rest = waiting[:ACK_BATCH_MAX], waiting[ACK_BATCH_MAX:]
                if rest:
                    self.waiting[key] = rest
                outcome = await self.consumer.ack_all([message for message, _ in batch])
                for (_, done), error in zip(batch, outcome, strict=True):
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
        finally:
            del self.calls[key]

    async def close(self) -> None:
        """Cancel the calls under way."""
        calls_now = list(self.calls.values())
        for call in calls_now:
            call.cancel()
        await asyncio.gather(*calls_now, return_exceptions=True)


class SubscriptionLoop:
    """One `Consumer.run`: a poll for each queue, and a bounded number of handlers."""

    def __init__(self, consumer: Consumer, handler: Handler) -> None:
        """Prepare; `run` does the work."""
        self.consumer = consumer
        self.options = consumer.options
        self.handler = handler
        self.plain = not (
            inspect.iscoroutinefunction(handler)
            or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
        )
        self.acks = Acknowledger(consumer)
        self.slots = asyncio.Semaphore(self.options.concurrency)
        self.has_room = asyncio.Event()  # set while fewer handlers run than may
        self.has_room.set()
        self.polls: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self.running: set[asyncio.Task[None]] = set()
        self.unhandled: dict[str, ReceivedMessage] = {}  # by receipt handle; they wait for a slot
        self.stopping, self.ended = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        """Have `run` end soon; what is given back from now on is not polled again."""
        self.stopping.set()
        for poll in self.polls.values():
            poll.cancel()

    async def run(self) -> None:
        """Follow the assignments until told to stop, or cancelled."""
        following = asyncio.create_task(self.follow())
        stopped = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((following, stopped), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()  # raises
        finally:
            self.stop()
            for task in (following, stopped):
                task.cancel()
            try:
                await asyncio.gather(following, stopped, return_exceptions=True)
                await self.end()
            finally:
                self.ended.set()

    async def follow(self) -> None:
        """Poll what is assigned, for ever.

        Raises:
            ClusterUnreachable: no nameserver has ever answered.
        """
        while True:
            try:
                self.update_polls(await self.consumer.assignments())
            except ClusterUnreachable:
                raise
            except WhimbrelError as error:
                logger.warning("can't learn which queues to poll: %s", error)
            await asyncio.sleep(self.options.assignment_s)

    async def end(self) -> None:
        """Stop to poll, let handlers finish, and give back what has none."""
        try:
            await asyncio.gather(*self.polls.values(), return_exceptions=True)
            unhandled, self.unhandled = list(self.unhandled.values()), {}
            self.running.update(asyncio.create_task(self.give_back(message)) for message in unhandled)
            if self.running:
                await asyncio.wait(self.running, timeout=self.options.close_grace_s)
        finally:
            for task in self.running:
                task.cancel()
            await asyncio.gather(*self.running, return_exceptions=True)
            await self.acks.close()

    def update_polls(self, queues: Sequence[Queue]) -> None:
        wanted = {(queue.topic, queue.broker_name, queue.queue_id): queue for queue in queues}
        for key in [key for key, poll in self.polls.items() if key not in wanted or poll.done()]:
            self.polls.pop(key).cancel()
        for key in wanted:
            if key not in self.polls and not self.stopping.is_set():
                self.polls[key] = asyncio.create_task(self.poll(key))

    async def current(self, key: tuple[str, str, int]) -> Queue | None:
        topic, broker_name, queue_id = key
        for queue in await self.consumer.assignment(topic):
            if (queue.broker_name, queue.queue_id) == (broker_name, queue_id):
                return queue
        return None

    async def poll(self, key: tuple[str, str, int]) -> None:
        """Poll one queue for as long as it is assigned.

        Polls share the room for messages without reserving it, so that an idle queue takes none from a busy
        one; when several polls fill it at once, at most a batch of each waits for a handler.
        """
        failures = 0
        attempt_id = str(uuid.uuid4())
        while True:
            await self.has_room.wait()
            queue: Queue | None = None
            try:
                queue = await self.current(key)
                if queue is None:
                    return
                room = max(1, self.options.concurrency - len(self.running))
                messages = await self.consumer.poll(
                    queue, min(room, self.options.batch_max), self.options.long_polling_s, None, attempt_id
                )
            except WhimbrelError as error:
                failures += 1
                level = logging.WARNING if failures == 1 else logging.DEBUG
                logger.log(level, "polling %s of %s failed: %s", key[0], key[1], error)
                if queue is not None:
                    self.consumer.report_failure(queue)
                await asyncio.sleep(backoff_s(failures, POLL_PAUSE))
                continue
            attempt_id, failures = str(uuid.uuid4()), 0
            for message in messages:
                self.begin(message)
            if len(self.running) >= self.options.concurrency:
                self.has_room.clear()

    def begin(self, message: ReceivedMessage) -> None:
        """Handle a message as soon as there is a slot."""
        task = asyncio.create_task(self.handle(message))
        self.running.add(task)
        task.add_done_callback(self.finished)

    def finished(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if len(self.running) < self.options.concurrency:
            self.has_room.set()

    async def handle(self, message: ReceivedMessage) -> None:
        self.unhandled[message.receipt_handle] = message
        async with self.slots:
            if self.unhandled.pop(message.receipt_handle, None) is None:
                return  # it was given back
            if self.stopping.is_set():
                await self.give_back(message)
                return
            handling.set((*handling.get(), self.consumer))
            try:
                with self.consumer.spans.processing(message):
                    if self.plain:
                        outcome = await asyncio.to_thread(self.handler, message)
                    else:
                        outcome = self.handler(message)
                    if inspect.isawaitable(outcome):
                        await outcome
            except Exception as error:  # noqa: BLE001 - on any exception the message is delivered again
                logger.warning("the handler failed on message %s: %r", message.message_id, error)
                hide_s: float | None = self.nack(message)
            else:
                hide_s = None
        await self.settle(message, hide_s)

    async def give_back(self, message: ReceivedMessage) -> None:
        """Let others have a message that was not handled."""
        try:
            await self.consumer.change_invisible(message, 0)
        except WhimbrelError as error:
            logger.debug("could not give back message %s: %s", message.message_id, error)

    def nack(self, message: ReceivedMessage) -> float:
        steps = self.consumer.session.server.backoff_s or self.options.nack_s
        return steps[min(max(message.delivery_attempt, 1), len(steps)) - 1]

    async def settle(self, message: ReceivedMessage, hide_s: float | None) -> None:
        """Acknowledge or hide the message; retry until the broker has done it or refuses."""
        for attempt in range(1, ACK_ATTEMPTS_MAX + 1):
            try:
                if hide_s is None:
                    await self.acks.ack(message)
                else:
                    await self.consumer.change_invisible(message, hide_s)
            except InvalidReceiptHandle as error:
                logger.warning("message %s will be delivered again: %s", message.message_id, error)
                return
            except WhimbrelError as error:
                logger.debug("could not settle message %s: %s", message.message_id, error)
                await asyncio.sleep(backoff_s(attempt, self.options.retry))
            else:
                return
        logger.warning("gave up settling message %s: it will be delivered again", message.message_id)
