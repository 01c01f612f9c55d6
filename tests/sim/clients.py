"""Clients of a simulated cluster, and the history of what they saw.

Each is the client library on a loop of its own. Calls are tried once, so that the history knows the outcome
of every try. What a call raises goes into the outcome of its send; other calls are made again after a while.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from histories import History, Place, Sent, outcome_of
from sim.network import SimNetwork
from sim.nodes import LoopNode
from sim.process import SimProcess
from whimbrel.client import Consumer, Message, Producer, PullConsumer
from whimbrel.client.options import ConsumerOptions, ProducerOptions
from whimbrel.client.retry import RetryPolicy
from whimbrel.errors import IllegalOffset, WhimbrelError
from whimbrel.model.message import ReceivedMessage

__all__ = ["BurstClient", "ConsumerClient", "ProducerClient", "ReaderClient", "place_of"]

ONCE = RetryPolicy(attempts_max=1)
CLIENT_S = 3.0  # of a call


def place_of(message: ReceivedMessage) -> Place:
    """Return where a message lies; two brokers may have the same queue of a topic."""
    return f"{message.queue.broker_name}/{message.topic}", message.queue_id, message.queue_offset


class ProducerClient(LoopNode):
    """Sends messages one after the other.

    Attributes:
        pause_s: shortest and longest time from an answer to the next send.
        until: the virtual time at which it ends.
        on_ack: called when a send was answered OK.
    """

    def __init__(
        self,
        process: SimProcess,
        network: SimNetwork,
        history: History,
        *,
        endpoint: str,
        topic: str,
        pause_s: tuple[float, float],
        until: float,
        on_ack: Callable[[Sent], None],
    ) -> None:
        super().__init__(process, network)
        self.history, self.endpoint, self.topic = history, endpoint, topic
        self.pause_s, self.until, self.on_ack = pause_s, until, on_ack
        self.number = 0
        self.rng = random.Random(process.rng.getrandbits(64))
        self.launch(self.main)

    async def main(self) -> None:
        """Send."""
        options = ProducerOptions(retry=ONCE, send_timeout_s=8.0, request_timeout_s=CLIENT_S, route_ttl_s=5.0)
        async with Producer(self.endpoint, options=options) as producer:
            await self.send_all(producer)

    async def send_all(self, producer: Producer) -> None:
        """Send until the time has come."""
        while self.process.scheduler.now < self.until:
            await self.send(producer)
            await asyncio.sleep(self.rng.uniform(*self.pause_s))

    async def send(self, producer: Producer) -> None:
        """Send one message, and note what came of it."""
        scheduler, name = self.process.scheduler, self.process.name
        body = b"%s-%d" % (name.encode(), self.number)
        self.number += 1
        size = self.rng.choice((0, 0, 0, 200, 3000))
        sent = self.history.send(body, name, self.topic, scheduler.now)
        message = Message(
            topic=self.topic,
            body=body,
            keys=(body.decode(),),
            properties={"pad": "x" * size} if size else {},
        )
        try:
            receipt = await producer.send(message)
        except WhimbrelError as error:
            sent.outcome = outcome_of(error)
        else:
            sent.outcome = "ok"
            if receipt.queue_id is not None:
                sent.place = (
                    f"{receipt.broker_name}/{receipt.topic}",
                    receipt.queue_id,
                    receipt.queue_offset,
                )
        sent.ended = scheduler.now
        if sent.outcome == "ok":
            self.on_ack(sent)


class BurstClient(ProducerClient):
    """Sends many messages at once, when it is asked to.

    Attributes:
        asked: how many messages the coming bursts have.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.asked: asyncio.Queue[int] = asyncio.Queue()

    async def send_all(self, producer: Producer) -> None:
        """Send bursts."""
        while True:
            count = await self.asked.get()
            await asyncio.gather(*(self.send(producer) for _ in range(count)))

    def burst(self, count: int) -> None:
        """Ask for a burst of so many messages."""
        with self.process.running():
            self.loop.call_soon(self.asked.put_nowait, count)


class ConsumerClient(LoopNode):
    """The only member of a group: receives, and acknowledges most of it."""

    def __init__(
        self,
        process: SimProcess,
        network: SimNetwork,
        history: History,
        *,
        endpoint: str,
        topic: str,
        group: str,
    ) -> None:
        super().__init__(process, network)
        self.history, self.endpoint, self.topic, self.group = history, endpoint, topic, group
        self.rng = random.Random(process.rng.getrandbits(64))
        self.launch(self.main)

    async def main(self) -> None:
        """Receive."""
        scheduler = self.process.scheduler
        options = ConsumerOptions(
            retry=ONCE, request_timeout_s=CLIENT_S, invisible_s=10.0, route_ttl_s=5.0, assignment_s=5.0
        )
        async with Consumer(self.endpoint, self.group, {self.topic: "*"}, options=options) as consumer:
            while True:
                try:
                    for message in await consumer.receive(wait_s=5.0):
                        place = place_of(message)
                        self.history.deliver(self.group, message.body, place, scheduler.now)
                        if self.rng.random() < 0.95:
                            await consumer.ack(message)
                            self.history.ack(self.group, place, scheduler.now)
                except WhimbrelError:
                    await asyncio.sleep(self.rng.uniform(0.1, 0.5))


class ReaderClient(LoopNode):
    """Reads every queue from its begin on; it is "reader" in the history.

    Attributes:
        next: by broker and queue id, the next offset to read.
    """

    def __init__(
        self, process: SimProcess, network: SimNetwork, history: History, *, endpoint: str, topic: str
    ) -> None:
        super().__init__(process, network)
        self.history, self.endpoint, self.topic = history, endpoint, topic
        self.rng = random.Random(process.rng.getrandbits(64))
        self.next: dict[tuple[str, int], int] = {}
        self.launch(self.main)

    async def main(self) -> None:
        """Read."""
        options = ConsumerOptions(retry=ONCE, request_timeout_s=CLIENT_S, route_ttl_s=5.0)
        async with PullConsumer(self.endpoint, "reader", options=options) as reader:
            while True:
                try:
                    for queue in await reader.queues(self.topic):
                        key = queue.broker_name, queue.queue_id
                        at = self.next.get(key, 0)
                        try:
                            result = await reader.pull(queue, at)
                        except IllegalOffset:
                            continue
                        for message in result.messages:
                            self.history.read("reader", place_of(message), message.body)
                            at = message.queue_offset + 1
                        self.next[key] = at
                except WhimbrelError:
                    pass
                await asyncio.sleep(self.rng.uniform(0.5, 2.0))
