"""Sends messages: one, many, without waiting, in transactions; to the queues in turn, or as the caller
chooses.

A send takes these steps: the topic's route (from the cache), a broker, one SendMessage call, and after a
failure what `client.retry` decides. All attempts of a message carry one message id.

Which broker: messages of one message group always the same (`message_groups.py`), others in turn. Which queue
of the broker: the next one in turn, unless the caller gives a queue or a selector; for a message group or a
priority, the broker's choice. Each topic has a turn of its own, which starts anywhere: many short-lived
producers, as commands are, use all queues together. Where a broker has fewer queues than the route said, the
message is sent again and the choice left to the broker.
"""

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from whimbrel.client.ids import MessageIds
from whimbrel.client.message_groups import place_of
from whimbrel.client.options import ProducerOptions
from whimbrel.client.retry import decide
from whimbrel.client.routes import TOPICS_MAX
from whimbrel.client.session import BaseClient, Session
from whimbrel.client.spans import ClientSpans
from whimbrel.client.transactions import Checks, Transaction, TransactionCheck
from whimbrel.errors import (
    ClientError,
    MessageCorrupted,
    MessageEmpty,
    MessageTypeConflict,
    NotWritable,
    QueueNotFound,
    Throttled,
    WhimbrelError,
)
from whimbrel.model.message import Message, MessageType, SendReceipt
from whimbrel.model.route import Queue
from whimbrel.rpc.api import calls
from whimbrel.rpc.api.convert import ClientSettings

__all__ = ["Producer", "QueueSelector"]

# Chooses one of the writable queues for a message, or for a batch by its first message.
QueueSelector = Callable[[Message, Sequence[Queue]], Queue]

# An attempt's time where other members of a group can be asked, and a repeat does no harm: above the 3 s that
# a leader waits for a majority.
MEMBER_TIMEOUT_S = 4.0
LISTEN_S = 5.0  # between looks at the routes of topics with transactions; routes themselves are cached

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Messages of one topic that are sent together, and what all attempts have in common.

    Attributes:
        began_at: the born time of all messages; their delays count from it.
        transaction: whether the one message is a part of a transaction.
        recovery_s: of that, see `send_in_transaction`.
    """

    messages: Sequence[Message]
    queue: Queue | None
    selector: QueueSelector | None
    began_at: float
    transaction: bool = False
    recovery_s: float | None = None


class Producer(BaseClient):
    """An asyncio producer.

    async with Producer("127.0.0.1:8081") as producer:
        receipt = await producer.send(Message(topic="orders", body=b"hello"))

    Public methods: start, close, queues, send, send_batch, send_oneway, flush, send_in_transaction,
    transaction, recall.

    Attributes:
        options: as given.
        oneway_failed: one-way sends that have failed for good.
        session: connections and routes, for calls that have no method here.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        topics: Sequence[str] = (),
        check: TransactionCheck | None = None,
        options: ProducerOptions | None = None,
    ) -> None:
        """Prepare a producer; brokers are told of `topics` before the first send.

        Args:
            endpoint: HOST:PORT of a nameserver, or a list of them separated by `;`.
            topics: brokers are told of them before the first send. With a `check`, brokers may ask about
                their transactions from the start on.
            check: says what became of a transaction that was left open, whichever producer of the topic sent
                it; it is called again until it returns COMMIT or ROLLBACK. A plain function runs in a thread.
            options: other settings.

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
        self.checks: Checks | None = None
        self.listening: asyncio.Task[None] | None = None
        if check is not None:
            self.checks = Checks(self.session, check)
            self.session.on_asked = self.checks.asked

    async def start(self) -> None:
        """Make the producer usable; needs a running loop, and sends nothing yet unless it has a check."""
        await super().start()
        if self.checks is not None and self.listening is None:
            self.listening = asyncio.create_task(self.listen())

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
        request = Request(messages=messages, queue=queue, selector=selector, began_at=time.time())
        return (await self.send_request(request))[1]

    async def send_in_transaction(
        self, message: Message, *, recovery_s: float | None = None, queue: Queue | None = None
    ) -> Transaction:
        """Store one message that is delivered when its transaction, which is returned, is committed.

        Args:
            message: on a TRANSACTION topic; it may have a message group.
            recovery_s: how long the broker waits before it asks what became of it; None: its default.
            queue: where it goes to; None: in turn.

        Raises:
            ClientError: the producer has no `check`, and the broker could ask nobody.
            WhimbrelError: as `send`. A message that may be stored all the same is delivered only if the check
                says so.
        """
        if self.checks is None:
            raise ClientError("transactions need a producer with a check: pass check=... when you make it")
        if message.type not in (MessageType.NORMAL, MessageType.FIFO):
            raise MessageTypeConflict("a message of a transaction has neither a delivery time nor a priority")
        known = message.topic in self.topics
        request = Request(
            messages=[message],
            queue=queue,
            selector=None,
            began_at=time.time(),
            transaction=True,
            recovery_s=recovery_s,
        )
        target, receipts = await self.send_request(request)
        if not known:
            await self.session.announce()
        sent = dataclasses.replace(message, message_id=receipts[0].message_id)
        return Transaction(self.session, sent, receipts[0], self.session.endpoint(target))

    @asynccontextmanager
    async def transaction(
        self, message: Message, *, recovery_s: float | None = None
    ) -> AsyncIterator[Transaction]:
        """Send a message before the block, commit after it, and roll back when it raises.

        Raises:
            WhimbrelError: as `send_in_transaction`, and as `Transaction.commit`.
        """
        async with await self.send_in_transaction(message, recovery_s=recovery_s) as transaction:
            yield transaction

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Have a message that waits for its time never delivered; return its message id.

        Recalling it again is no error.

        Raises:
            BadRequest: the handle is malformed, of another topic, or the message is delivered already.
            WhimbrelError: nobody could be asked.
        """
        call = calls.recall_message(topic, recall_handle, self.options.namespace)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self.session.ask(call)
            except WhimbrelError as error:
                decision = decide(error, attempt, self.options.retry, repeatable=True)
                if not decision.again:
                    raise
                await asyncio.sleep(decision.pause_s)

    async def send_request(self, request: Request) -> tuple[Queue, list[SendReceipt]]:
        """Check and send; return the queue whose broker has taken it, and the receipts."""
        messages = request.messages
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
            return await self.send_until(topic, dataclasses.replace(request, messages=carried))

    async def send_until(self, topic: str, request: Request) -> tuple[Queue, list[SendReceipt]]:
        """Try until it is sent, or the policy gives up."""
        failed: set[str] = set()
        by_turn = True
        attempt = 0
        while True:
            attempt += 1
            target: Queue | None = None
            try:
                target, chosen = await self.target(request, failed, by_turn)
                return target, await self.send_to(target, chosen, request)
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
        """Wait for the one-way sends, then close; checks that run are given up."""
        await self.flush()
        if self.listening is not None:
            self.listening.cancel()
            await asyncio.gather(self.listening, return_exceptions=True)
            self.listening = None
        if self.checks is not None:
            await self.checks.close()
        await super().close()

    async def send_quietly(
        self, message: Message, queue: Queue | None, selector: QueueSelector | None
    ) -> None:
        try:
            await self.send(message, queue=queue, selector=selector)
        except WhimbrelError as error:
            self.oneway_failed += 1
            logger.warning("a one-way send to %s failed: %s", message.topic, error)

    async def listen(self) -> None:
        """Keep a Telemetry stream to each broker of the topics: brokers ask over it."""
        while True:
            for topic in list(self.topics):
                try:
                    for queue in (await self.session.route(topic)).writable():
                        self.session.endpoint(queue)
                except WhimbrelError as error:
                    logger.debug("can't listen to the brokers of %s: %s", topic, error)
            await asyncio.sleep(LISTEN_S)

    async def target(self, request: Request, failed: set[str], by_turn: bool) -> tuple[Queue, int | None]:
        """Return a queue of the broker to ask, and the queue id unless the broker chooses it.

        Args:
            request: what is sent, and what its caller wants.
            failed: names of brokers that are asked only if there are no others.
            by_turn: whether to choose in turn, where the caller does not.
        """
        message, queue, selector = request.messages[0], request.queue, request.selector
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
        if message.message_group is not None:
            masters = [item for item in queues if item.broker_id == 0] or list(queues)
            return masters[place_of(message.message_group, len(masters))], None
        by_turn = by_turn and message.priority is None
        brokers: dict[str, list[Queue]] = {}
        for item in queues:
            brokers.setdefault(item.broker_name, []).append(item)
        names = sorted(brokers)
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

    async def send_to(self, target: Queue, queue_id: int | None, request: Request) -> list[SendReceipt]:
        endpoint, timeout_s = self.session.endpoint(target), self.options.send_timeout_s
        if len(target.endpoints) > 1 and self.options.retry.duplicates:
            timeout_s = min(timeout_s, MEMBER_TIMEOUT_S)
        call = calls.send_messages(
            request.messages,
            broker_name=target.broker_name,
            queue_id=queue_id,
            now=request.began_at,
            host_name=self.session.host_name,
            namespace=self.options.namespace,
            transaction=request.transaction,
            recovery_s=request.recovery_s,
        )
        return await self.session.call(endpoint, call, timeout_s)
