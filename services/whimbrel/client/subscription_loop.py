"""The subscription loop behind `Consumer.run`: a poll for each broker, handlers, and the end of each message.

Each assigned queue has one poll under way; leases are renewed by the broker while the client lives. A message
is

    received ──handler returns──► acknowledged
        └──────handler raises───► hidden for the next step of the backoff list, then delivered again

and an acknowledgement is repeated until the broker takes it or refuses the receipt. A handler never gets a
message that is corrupted: that counts as one that failed, so it becomes a dead letter in the end (RocketMQ's
SDKs: the same); in an ordered group at once.

In an ordered group the messages of one message group are handled one after the other, and a message that
fails is tried again here, so that nothing overtakes it:

    received ──handler returns──────────────────────► acknowledged, then the next of its message group
        ├──────handler raises, attempts are left────► wait for the next step of the backoff list, handle again
        └──────handler raises, for the last time────► forwarded to the group's dead letters, then the next

Attempts count on from the one that was delivered. A poll of an ordered group is repeated under the same
attempt id
until it brings messages: the broker then gives out again what an answer that was lost had held. The order of
a group stands in the broker's settings, so nothing is polled before they have come.
"""

import asyncio
import contextvars
import dataclasses
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from whimbrel.client.retry import RetryPolicy, backoff_s
from whimbrel.errors import ClusterUnreachable, InvalidReceiptHandle, WhimbrelError
from whimbrel.model.message import ReceivedMessage
from whimbrel.model.route import Queue

if TYPE_CHECKING:
    from whimbrel.client.consumer import Consumer

__all__ = ["Handler", "SubscriptionLoop", "handling"]

# What `Consumer.run` calls for each message; a plain function runs in a thread.
Handler = Callable[[ReceivedMessage], Awaitable[None] | None]

ACK_ATTEMPTS_MAX = 100  # with pauses of up to a second: more than a minute, longer than a broker's restart
ACK_BATCH_MAX = 128  # messages in one acknowledgement; SDKs send one, and some servers may expect few
# Deliveries of a message of an ordered group where the broker does not say: RocketMQ's default.
ATTEMPTS_MAX = 17
POLL_PAUSE = RetryPolicy(initial_s=0.1, max_s=2.0)  # between failed polls; a restart is noticed soon

# The consumers whose handlers we are in: such a one can't wait until all handlers have ended.
handling: contextvars.ContextVar[tuple["Consumer", ...]] = contextvars.ContextVar("handling", default=())

logger = logging.getLogger(__name__)


class Acknowledger:
    """Batches single acknowledgements: those that come while a call is under way go with the next one.

    A lone one leaves at once. What waits is bounded by the handlers that wait for it.
    """

    def __init__(self, consumer: "Consumer") -> None:
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

    def __init__(self, consumer: "Consumer", handler: Handler) -> None:
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
        session = self.consumer.session
        failures = 0
        attempt_id = str(uuid.uuid4())
        while True:
            await self.has_room.wait()
            queue: Queue | None = None
            try:
                queue = await self.current(key)
                if queue is None:
                    return
                await session.settings_of(session.endpoint(queue))
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
            failures = 0
            if messages:
                attempt_id = str(uuid.uuid4())
            for chain in self.chains(messages):
                self.begin(chain)
            if len(self.running) >= self.options.concurrency:
                self.has_room.clear()

    def chains(self, messages: Sequence[ReceivedMessage]) -> list[list[ReceivedMessage]]:
        """Return which messages are to be handled one after the other."""
        if not self.consumer.session.server.fifo:
            return [[message] for message in messages]
        chains: dict[str | None, list[ReceivedMessage]] = {}
        for message in messages:
            chains.setdefault(message.message_group, []).append(message)
        return list(chains.values())

    def begin(self, chain: Sequence[ReceivedMessage]) -> None:
        """Handle messages one after the other, as soon as there is a slot."""
        for message in chain:
            self.unhandled[message.receipt_handle] = message
        ordered = self.consumer.session.server.fifo
        task = asyncio.create_task(self.handle_in_order(chain) if ordered else self.handle(chain[0]))
        self.running.add(task)
        task.add_done_callback(self.finished)

    def finished(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if len(self.running) < self.options.concurrency:
            self.has_room.set()

    async def handle(self, message: ReceivedMessage) -> None:
        """Handle a message once, and settle it."""
        async with self.slots:
            if self.unhandled.pop(message.receipt_handle, None) is None:
                return  # it was given back
            if self.stopping.is_set():
                await self.give_back(message)
                return
            handled = await self.call_handler(message)
        if handled:
            await self.settle(message, self.acks.ack)
        else:
            await self.settle(message, self.hide)

    async def handle_in_order(self, chain: Sequence[ReceivedMessage]) -> None:
        """Handle messages until each is acknowledged or a dead letter; what is left is given back."""
        for message in chain:
            if message.receipt_handle in self.unhandled and not await self.handle_to_the_end(message):
                break
        for message in chain:
            if self.unhandled.pop(message.receipt_handle, None) is not None:
                await self.give_back(message)

    async def handle_to_the_end(self, message: ReceivedMessage) -> bool:
        """Handle a message as often as it takes; return whether those behind it may follow."""
        attempts_max = self.consumer.session.server.max_attempts or ATTEMPTS_MAX
        while True:
            async with self.slots:
                if self.stopping.is_set():
                    return False
                self.unhandled.pop(message.receipt_handle, None)
                handled = await self.call_handler(message)
            if handled:
                return await self.settle(message, self.acks.ack)
            if message.corrupted or message.delivery_attempt >= attempts_max:
                return await self.settle(message, self.consumer.dead_letter)
            self.unhandled[message.receipt_handle] = message  # for as long as nobody handles it
            try:
                await asyncio.wait_for(self.stopping.wait(), self.nack_s(message))
            except TimeoutError:
                message = dataclasses.replace(message, delivery_attempt=message.delivery_attempt + 1)
            else:
                return False

    async def call_handler(self, message: ReceivedMessage) -> bool:
        """Return whether the handler came to its end without an exception."""
        if message.corrupted:
            logger.warning("message %s is not handled: %s", message.message_id, message.corrupted)
            return False
        if self.consumer not in handling.get():
            handling.set((*handling.get(), self.consumer))
        try:
            with self.consumer.spans.processing(message):
                if self.plain:
                    outcome = await asyncio.to_thread(self.handler, message)
                else:
                    outcome = self.handler(message)
                if inspect.isawaitable(outcome):
                    await outcome
        except Exception as error:  # noqa: BLE001 - on any exception the message is handled again
            logger.warning("the handler failed on message %s: %r", message.message_id, error)
            return False
        return True

    async def give_back(self, message: ReceivedMessage) -> None:
        """Let others have a message that was not handled."""
        try:
            await self.consumer.change_invisible(message, 0)
        except WhimbrelError as error:
            logger.debug("could not give back message %s: %s", message.message_id, error)

    async def hide(self, message: ReceivedMessage) -> None:
        """Have a message that failed delivered again after a pause."""
        await self.consumer.change_invisible(message, self.nack_s(message))

    def nack_s(self, message: ReceivedMessage) -> float:
        """Return the pause after this attempt has failed."""
        steps = self.consumer.session.server.backoff_s or self.options.nack_s
        return steps[min(max(message.delivery_attempt, 1), len(steps)) - 1]

    async def settle(
        self, message: ReceivedMessage, call: Callable[[ReceivedMessage], Awaitable[None]]
    ) -> bool:
        """Make the call that ends a delivery until the broker has done it; return False if it refuses."""
        for attempt in range(1, ACK_ATTEMPTS_MAX + 1):
            try:
                await call(message)
            except InvalidReceiptHandle as error:
                logger.warning("message %s will be delivered again: %s", message.message_id, error)
                return False
            except WhimbrelError as error:
                logger.debug("could not settle message %s: %s", message.message_id, error)
                await asyncio.sleep(backoff_s(attempt, self.options.retry))
            else:
                return True
        logger.warning("gave up settling message %s: it will be delivered again", message.message_id)
        return False
