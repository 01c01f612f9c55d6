"""Clients that note in a history what they sent and saw (`histories.py`).

What one call leaves in a history is a function here (`send`, `receive`) or a small class (`Reading`), over
the client library and any clock: the clients of the simulation are made of them (`sim/clients.py`), and so is
`Load`, the clients of tests with real processes. `sdk_notes.py` does the same for the official SDK.

    with Load(cluster.endpoint, "orders", producers=2) as load:
        load.wait_for(50, "the first messages")      # acknowledged
        ...                                          # whatever is to go wrong
        load.stop_sending()
        load.settle()                                # group and reader have everything, or time is over
    assert load.check(read_all(cluster.endpoint, "orders")) == []

Calls are tried once, so that the outcome of every try is known.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Set
from typing import Self

from support.history.histories import Finding, History, Outcome, Place, Sent, outcome_of
from support.waiting import until
from whimbrel.client import Consumer, Message, Producer, PullConsumer, sync
from whimbrel.client.options import ConsumerOptions, ProducerOptions
from whimbrel.client.retry import RetryPolicy
from whimbrel.errors import IllegalOffset, WhimbrelError
from whimbrel.model.message import ReceivedMessage
from whimbrel.model.route import Queue

__all__ = [
    "ACK_WINDOW_S",
    "ONCE",
    "READER",
    "SETTLE_S",
    "Load",
    "Reading",
    "place_of",
    "read_all",
    "receive",
    "send",
]

ONCE = RetryPolicy(attempts_max=1)
ACK_WINDOW_S = 12.0  # what is acknowledged is flushed within 0.5 s; a delivery may be on its way for longer
READER = "reader"
PAUSE_S = 0.05  # after a failed call, and between the rounds of a reader
SETTLE_S = 60.0  # leases that a kill left behind are over after 10 s


def place_of(message: ReceivedMessage) -> Place:
    """Return where a message lies; two brokers may have the same queue of a topic."""
    return f"{message.queue.broker_name}/{message.topic}", message.queue_id, message.queue_offset


async def send(
    producer: Producer,
    message: Message,
    history: History,
    name: str,
    clock: Callable[[], float],
    errors: list[WhimbrelError] | None = None,
) -> Sent:
    """Send a message, whose body is its id, and note what came of it; errors are handed on in a list."""
    sent = history.send(message.body, name, message.topic, clock())
    try:
        receipt = await producer.send(message)
    except WhimbrelError as error:
        sent.outcome = outcome_of(error)
        if errors is not None:
            errors.append(error)
    else:
        sent.outcome = "ok"
        if receipt.queue_id is not None:
            sent.place = f"{receipt.broker_name}/{receipt.topic}", receipt.queue_id, receipt.queue_offset
    sent.ended = clock()
    return sent


async def receive(
    consumer: Consumer,
    history: History,
    group: str,
    clock: Callable[[], float],
    *,
    wait_s: float,
    acks: Callable[[], bool] = lambda: True,
) -> None:
    """Receive once, note what came, and acknowledge that of it for which `acks` says so.

    Raises:
        WhimbrelError: a call failed.
    """
    for message in await consumer.receive(wait_s=wait_s):
        place = place_of(message)
        history.deliver(group, message.body, place, clock())
        if acks():
            await consumer.ack(message)
            history.ack(group, place, clock())


class Reading:
    """Reads every queue of a topic from its begin on, and notes that as a reader of that name.

    Attributes:
        next: by broker and queue id, the next offset to read.
        on_jump: called with topic, queue id and offset when a queue begins further on than where it reads.
    """

    def __init__(
        self,
        reader: PullConsumer,
        history: History,
        name: str,
        topic: str,
        *,
        on_jump: Callable[[str, int, int], None] = lambda topic, queue_id, offset: None,
    ) -> None:
        self.reader, self.history, self.name, self.topic = reader, history, name, topic
        self.on_jump = on_jump
        self.next: dict[tuple[str, int], int] = {}

    async def go_on(self) -> None:
        """Read once from each queue.

        Raises:
            WhimbrelError: a call failed.
        """
        for queue in await self.reader.queues(self.topic):
            key = queue.broker_name, queue.queue_id
            at = self.next.get(key, 0)
            try:
                result = await self.reader.pull(queue, at)
            except IllegalOffset:  # messages have expired; or it is a slave's, that has not got so far
                self.next[key] = await self.pass_over(queue, at)
                continue
            for message in result.messages:
                self.history.read(self.name, place_of(message), message.body)
                at = message.queue_offset + 1
            self.next[key] = at

    async def pass_over(self, queue: Queue, at: int) -> int:
        """Return where a queue goes on of which messages have expired."""
        begin = await self.reader.offset(queue, "earliest")
        if begin <= at:
            return at
        self.history.jump(self.name, f"{queue.broker_name}/{self.topic}", queue.queue_id, range(at, begin))
        self.on_jump(self.topic, queue.queue_id, begin)
        return begin


def read_all(endpoint: str, topic: str) -> list[tuple[Place, bytes]]:
    """Return places and contents of all that a topic's queues hold now."""
    found = []
    with sync.PullConsumer(endpoint, "audit") as reader:
        for queue in reader.queues(topic):
            at = reader.offset(queue, "earliest")
            while messages := reader.pull(queue, at).messages:
                found += [(place_of(message), message.body) for message in messages]
                at = messages[-1].queue_offset + 1
    return found


class Load:
    """Producers, the only member of a group and a reader, on a thread of their own.

    Tests look at the history while it is written: its lists only grow, and `sends` is still from
    `stop_sending` on.

    Args:
        pad_bytes: of a property that makes each message larger.
        pause_s: from each answer to the producer's next send, a random time between half and double of it.

    Attributes:
        group: its name.
        acknowledged: sends that were answered OK so far.
        errors: what sends raised.
    """

    def __init__(
        self,
        endpoint: str,
        topic: str,
        *,
        producers: int = 2,
        pad_bytes: int = 0,
        pause_s: float = 0.0,
    ) -> None:
        self.endpoint, self.topic, self.group = endpoint, topic, f"{topic}-group"
        self.producers, self.pad, self.pause_s = producers, "x" * pad_bytes, pause_s
        self.history = History(ack_window_s=ACK_WINDOW_S)
        self.clock = time.monotonic
        self.acknowledged = 0
        self.errors: list[WhimbrelError] = []
        self.sending, self.running = True, True
        self.sent = threading.Event()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # On the thread

    def run(self) -> None:
        """Run all clients to their end."""
        try:
            asyncio.run(self.main())
        except BaseException as error:  # noqa: BLE001  the test's thread raises it
            self.failure = error
        finally:
            self.sent.set()

    async def main(self) -> None:
        """Send until `stop_sending`, consume and read until `end`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.consume())
            tasks.create_task(self.read())
            async with asyncio.TaskGroup() as producers:
                for number in range(self.producers):
                    producers.create_task(self.produce(f"p{number}"))
            self.sent.set()

    async def produce(self, name: str) -> None:
        """Send one message after the other."""
        number = 0
        async with Producer(self.endpoint, options=ProducerOptions(retry=ONCE, route_ttl_s=1.0)) as producer:
            while self.sending:
                body = f"{name}-{number}"
                number += 1
                message = Message(
                    topic=self.topic,
                    body=body.encode(),
                    keys=(body,),
                    properties={"pad": self.pad} if self.pad else {},
                )
                sent = await send(producer, message, self.history, name, self.clock, self.errors)
                self.acknowledged += sent.outcome == "ok"
                pause = self.pause_s * random.uniform(0.5, 2.0)
                await asyncio.sleep(pause if sent.outcome == "ok" else max(pause, PAUSE_S))

    async def consume(self) -> None:
        """Receive and acknowledge."""
        options = ConsumerOptions(retry=ONCE, invisible_s=10.0, route_ttl_s=1.0, assignment_s=1.0)
        async with Consumer(self.endpoint, self.group, {self.topic: "*"}, options=options) as consumer:
            while self.running:
                try:
                    await receive(consumer, self.history, self.group, self.clock, wait_s=1.0)
                except WhimbrelError:
                    await asyncio.sleep(PAUSE_S)

    async def read(self) -> None:
        """Read all queues."""
        options = ConsumerOptions(retry=ONCE, route_ttl_s=1.0)
        async with PullConsumer(self.endpoint, READER, options=options) as reader:
            reading = Reading(reader, self.history, READER, self.topic)
            while self.running:
                with contextlib.suppress(WhimbrelError):
                    await reading.go_on()
                await asyncio.sleep(PAUSE_S)

    # On the test's thread

    def wait_for(self, more: int, what: str, timeout: float = 60.0) -> None:
        """Wait until so many more messages are acknowledged."""
        wanted = self.acknowledged + more
        until(
            lambda: self.acknowledged >= wanted or self.failure, timeout=timeout, what=lambda: self.told(what)
        )
        assert self.failure is None, self.failure

    def told(self, what: str) -> str:
        """Return that with what sends met."""
        return f"{what} ({self.acknowledged} acknowledged, {self.kinds()}, last {self.errors[-1:]})"

    def kinds(self) -> dict[str, int]:
        """Return how many errors of each kind sends have met."""
        return dict(Counter(type(error).__name__ for error in list(self.errors)))

    def outcomes(self) -> Counter[Outcome]:
        """Return how many sends had which outcome; after `stop_sending`."""
        return Counter(sent.outcome for sent in self.history.sends.values())

    def stop_sending(self) -> None:
        """Let producers end; a send that is under way ends by its timeout."""
        self.sending = False
        assert self.sent.wait(30), "producers end"

    def missing(self, others: Set[bytes] = frozenset()) -> set[bytes]:
        """Return what was acknowledged, here or to others, and group or reader have not had."""
        delivered = {delivery.id for delivery in list(self.history.deliveries)}
        read = {message for _, _, message in list(self.history.reads)}
        return ({sent.id for sent in self.history.acknowledged} | others) - (delivered & read)

    def settle(self, others: Set[bytes] = frozenset(), timeout: float = SETTLE_S) -> None:
        """Wait until group and reader have everything, and end; what they lack then, a check says.

        Args:
            others: what other clients had acknowledged.
        """
        give_up = self.clock() + timeout
        until(
            lambda: not self.missing(others) or self.clock() > give_up or self.failure,
            timeout=timeout + 10,
            what="the end of consumers",
            every_s=0.1,
        )
        self.end()

    def end(self) -> None:
        """End all clients.

        Raises:
            AssertionError: one of them ended by itself.
        """
        self.sending = self.running = False
        self.thread.join(30)
        assert not self.thread.is_alive(), "clients end"
        assert self.failure is None, repr(self.failure)

    def check(self, complete: list[tuple[Place, bytes]]) -> list[Finding]:
        """Return what must not have happened; after `settle`."""
        return self.history.check(complete=complete, groups=[self.group, READER])
