"""Sends messages: one, many, without waiting; to the queues in turn, or to those that the caller chooses.

A send takes these steps: the topic's route (from the cache), a broker, one SendMessage call, and after a
failure what `client.retry` decides. All attempts of a message carry one message id.

Which broker: messages of one message group always the same (by a hash of the group over the brokers' names),
others in turn. Which queue of the broker: the next one in turn, unless the caller gives a queue or a
selector; for a message group, the broker's choice. Each topic has a turn of its own, which starts anywhere:
many short-lived producers, as commands are, use all queues together. Where a broker has fewer queues than the
route said, the message is sent again and the choice left to the broker.
"""

import asyncio
import dataclasses
import logging
import random
import time
import zlib
from collections.abc import Callable, Sequence

from whimbrel.client.ids import MessageIds
from whimbrel.client.options import ProducerOptions
from whimbrel.client.retry import decide
from whimbrel.client.routes import TOPICS_MAX
from whimbrel.client.session import BaseClient, Session
from whimbrel.client.spans import ClientSpans
from whimbrel.errors import (
    MessageCorrupted,
    MessageEmpty,
    NotWritable,
    QueueNotFound,
    Throttled,
    WhimbrelError,
)
from whimbrel.model.message import Message, SendReceipt
from whimbrel.model.route import Queue
from whimbrel.rpc.api import calls
from whimbrel.rpc.api.convert import ClientSettings

__all__ = ["Producer", "QueueSelector"]

# Chooses one of the writable queues for a message, or for a batch by its first message.
QueueSelector = Callable[[Message, Sequence[Queue]], Queue]

logger = logging.getLogger(__name__)


class Producer(BaseClient):
    """An asyncio producer.

    async with Producer("127.0.0.1:8081") as producer:
        receipt = await producer.send(Message(topic="orders", body=b"hello"))

    Public methods: start, close, queues, send, send_batch, send_oneway, flush.

    Attributes:
        options: as given.
        oneway_failed: one-way sends that have failed for good.
        session: connections and routes, for calls that have no method here.
    """

    def __init__(
        self, endpoint: str, *, topics: Sequence[str] = (), options: ProducerOptions | None = None
    ) -> None:
        """Prepare a producer; brokers are told of `topics` before the first send.

        Raises:
            IllegalAccessPoint: `endpoint` is not HOST:PORT, or a list of them separated by `;`.
        """
        self.options = options or ProducerOptions()
        super().__init__(endpoint, self.options)
        self.oneway_failed = 0
        self.topics = dict.fromkeys(topics)
        self.ids = MessageIds()
        self.spans = ClientSpans(self.options)
        self.turns: dict[str, int] = {}  # by topic, how many choices were made
        self.oneway: set[asyncio.Task[None]] = set()

    def settings(self, session: Session) -> ClientSettings:
        return self.common_settings("producer", topics=tuple(self.topics))

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of a topic that may be written.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return (await self.session.route(topic)).writable()

    async def send(
        self, message: Message, *, queue: Queue | None = None, selector: QueueSelector | None = None
    ) -> SendReceipt:
        """Send one message and wait until it is as safe as the broker's settings make it.

        Raises:
            FlushTimeout, ReplicaTimeout: it is stored, but not confirmed; sending it again makes a duplicate.
            WhimbrelError: any other failure; its `effect` says whether the message may be stored.
        """
        return (await self.send_batch([message], queue=queue, selector=selector))[0]

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic in one request; they are stored together, in one queue, or not at all.

        Raises:
            WhimbrelError: as `send`, for the batch as a whole.
        """
        if not messages:
            raise MessageCorrupted("a batch needs at least one message")
        topic = messages[0].topic
        if any(message.topic != topic for message in messages):
            raise MessageCorrupted("a batch holds messages of one topic only; send those of others apart")
        if not all(message.body for message in messages):
            raise MessageEmpty("a message body is empty; brokers take 1 byte to 4 MiB")
        batch = [
            message if message.message_id else dataclasses.replace(message, message_id=self.ids.next())
            for message in messages
        ]
        self.topics.setdefault(topic)
        with self.spans.sending(batch) as carried:
            return await self.send_until(topic, carried, queue, selector)

    async def send_until(
        self,
        topic: str,
        batch: Sequence[Message],
        queue: Queue | None,
        selector: QueueSelector | None,
    ) -> list[SendReceipt]:
        """Try until it is sent, or the policy gives up."""
        failed: set[str] = set()
        by_turn = True
        attempt = 0
        while True:
            attempt += 1
            target: Queue | None = None
            try:
                target, chosen = await self.target(batch[0], queue, selector, failed, by_turn)
                return await self.send_to(target, chosen, batch)
            except WhimbrelError as error:
                decision = decide(error, attempt, self.options.retry, repeatable=target is None)
                if not decision.again:
                    raise
                logger.debug("send to %s failed (try %d): %s", topic, attempt, error)
                if decision.fresh_route:
                    self.session.routes.report_error(topic)
                by_turn = by_turn and not isinstance(error, QueueNotFound)
                if decision.elsewhere and target is not None:
                    failed.add(target.broker_name)
                await asyncio.sleep(decision.pause_s)

    def send_oneway(
        self, message: Message, *, queue: Queue | None = None, selector: QueueSelector | None = None
    ) -> None:
        """Send one message in the background; `flush` waits, failures only count in `oneway_failed`.

        Raises:
            Throttled: `oneway_max` sends are under way already.
        """
        if len(self.oneway) >= self.options.oneway_max:
            raise Throttled(f"{len(self.oneway)} one-way sends are under way already; await flush() first")
        task = asyncio.create_task(self.send_quietly(message, queue, selector))
        self.oneway.add(task)
        task.add_done_callback(self.oneway.discard)

    async def flush(self) -> None:
        """Wait until no one-way send is under way."""
        while self.oneway:
            await asyncio.wait(self.oneway)

    async def close(self) -> None:
        """Wait for the one-way sends, then close."""
        await self.flush()
        await super().close()

    async def send_quietly(
        self, message: Message, queue: Queue | None, selector: QueueSelector | None
    ) -> None:
        try:
            await self.send(message, queue=queue, selector=selector)
        except WhimbrelError as error:
            self.oneway_failed += 1
            logger.warning("a one-way send to %s failed: %s", message.topic, error)

    async def target(
        self,
        message: Message,
        queue: Queue | None,
        selector: QueueSelector | None,
        failed: set[str],
        by_turn: bool,
    ) -> tuple[Queue, int | None]:
        """Return a queue of the broker to ask, and the queue id unless the broker chooses it.

        Args:
            message: the first one of the request.
            queue: what the caller wants.
            selector: or what chooses for the caller.
            failed: names of brokers that are asked only if there are no others.
            by_turn: whether to choose in turn, where the caller does not.
        """
        route = await self.session.route(message.topic)
        queues = route.writable()
        if queue is not None:
            for current in queues:
                if (current.broker_name, current.queue_id) == (queue.broker_name, queue.queue_id):
                    return current, current.queue_id
            raise NotWritable(f"queue {queue.queue_id} of {queue.broker_name} takes no messages at present")
        if not queues:
            raise NotWritable(f"topic {message.topic} has no queue that may be written at present")
        if selector is not None:
            selected = selector(message, queues)
            return selected, selected.queue_id
        brokers: dict[str, list[Queue]] = {}
        for item in queues:
            brokers.setdefault(item.broker_name, []).append(item)
        names = sorted(brokers)
        if message.message_group is not None:
            return brokers[names[zlib.crc32(message.message_group.encode()) % len(names)]][0], None
        names = [name for name in names if name not in failed] or names
        lap, place = divmod(self.next_turn(message.topic, len(queues)), len(names))
        held = brokers[names[place]]
        chosen = held[lap % len(held)]
        return chosen, chosen.queue_id if by_turn else None

    def next_turn(self, topic: str, queues: int) -> int:
        """Return a number for the next choice of a topic, which has so many queues."""
        turn = self.turns.get(topic)
        if turn is None:
            if len(self.turns) >= TOPICS_MAX:
                self.turns.clear()
            turn = random.randrange(queues)
        self.turns[topic] = turn + 1
        return turn

    async def send_to(
        self, target: Queue, queue_id: int | None, batch: Sequence[Message]
    ) -> list[SendReceipt]:
        endpoint = target.endpoints[0]
        self.session.use(endpoint)
        call = calls.send_messages(
            batch,
            broker_name=target.broker_name,
            queue_id=queue_id,
            now=time.time(),
            host_name=self.session.host_name,
            namespace=self.options.namespace,
        )
        return await self.session.call(endpoint, call, self.options.send_timeout_s)
