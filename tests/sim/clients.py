"""Clients of a simulated cluster, and the history of what they saw.

Each is the client library on a loop of its own; `noting.py` has what they note. Calls are tried once, so that
the history knows the outcome of every try. What a call raises goes into the outcome of its send; other calls
are made again after a while.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

from sim.network import SimNetwork
from sim.nodes import LoopNode
from sim.process import SimProcess
from support.history import noting
from support.history.histories import History, Sent
from whimbrel.client import Consumer, Message, Producer, PullConsumer
from whimbrel.client.options import ConsumerOptions, ProducerOptions
from whimbrel.errors import WhimbrelError

__all__ = ["BurstClient", "ConsumerClient", "ProducerClient", "ReaderClient"]

CLIENT_S = 3.0  # of a call


class ProducerClient(LoopNode):
    """Sends messages one after the other.

    Attributes:
        pause_s: shortest and longest time from an answer to the next send.
        aim: sends to be acknowledged by `until`; the pauses follow from what is left of both.
        rest_s: from when to when it sends nothing.
        pads: bytes by which messages are longer, one of them each.
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
        aim: int = 0,
        until: float,
        on_ack: Callable[[Sent], None],
        rest_s: tuple[float, float] = (0.0, 0.0),
        pads: tuple[int, ...] = (0, 0, 200, 3000, 6000),
    ) -> None:
        super().__init__(process, network)
        self.history, self.endpoint, self.topic = history, endpoint, topic
        self.pause_s, self.aim, self.until, self.on_ack = pause_s, aim, until, on_ack
        self.number = 0
        self.rest_s, self.pads = rest_s, pads
        self.rng = random.Random(process.rng.getrandbits(64))
        self.launch(self.main)

    async def main(self) -> None:
        """Send."""
        options = ProducerOptions(
            retry=noting.ONCE, send_timeout_s=8.0, request_timeout_s=CLIENT_S, route_ttl_s=5.0
        )
        async with Producer(self.endpoint, options=options) as producer:
            await self.send_all(producer)

    async def send_all(self, producer: Producer) -> None:
        """Send until the time has come."""
        scheduler = self.process.scheduler
        while scheduler.now < self.until:
            if self.rest_s[0] <= scheduler.now < self.rest_s[1]:
                await asyncio.sleep(self.rest_s[1] - scheduler.now)
            await self.send(producer)
            await asyncio.sleep(self.pause())

    def pause(self) -> float:
        """Draw the time to the next send, from what is left for each: outages are made up for."""
        even = (self.until - self.process.scheduler.now) / max(self.aim, 1)
        low, high = self.pause_s
        return min(max(self.rng.uniform(0.0, 2.0) * even, low), high)

    async def send(self, producer: Producer) -> None:
        """Send one message, and note what came of it."""
        scheduler, name = self.process.scheduler, self.process.name
        body = b"%s-%d" % (name.encode(), self.number)
        self.number += 1
        size = self.rng.choice(self.pads)
        message = Message(
            topic=self.topic,
            body=body,
            keys=(body.decode(),),
            properties={"pad": "x" * size} if size else {},
        )
        sent = await noting.send(producer, message, self.history, name, lambda: scheduler.now)
        if sent.outcome == "ok":
            self.aim -= 1
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
            retry=noting.ONCE, request_timeout_s=CLIENT_S, invisible_s=10.0, route_ttl_s=5.0, assignment_s=5.0
        )
        async with Consumer(self.endpoint, self.group, {self.topic: "*"}, options=options) as consumer:
            while True:
                try:
                    await noting.receive(
                        consumer,
                        self.history,
                        self.group,
                        lambda: scheduler.now,
                        wait_s=5.0,
                        acks=lambda: self.rng.random() < 0.95,
                    )
                except WhimbrelError:
                    await asyncio.sleep(self.rng.uniform(0.1, 0.5))


class ReaderClient(LoopNode):
    """Reads every queue from its begin on; it is "reader" in the history.

    Attributes:
        on_jump: called with topic, queue id and offset when a queue begins further on than where it reads.
    """

    def __init__(
        self, process: SimProcess, network: SimNetwork, history: History, *, endpoint: str, topic: str
    ) -> None:
        super().__init__(process, network)
        self.history, self.endpoint, self.topic = history, endpoint, topic
        self.rng = random.Random(process.rng.getrandbits(64))
        self.on_jump: Callable[[str, int, int], None] = lambda topic, queue_id, offset: None
        self.launch(self.main)

    async def main(self) -> None:
        """Read."""
        options = ConsumerOptions(retry=noting.ONCE, request_timeout_s=CLIENT_S, route_ttl_s=5.0)
        async with PullConsumer(self.endpoint, "reader", options=options) as reader:
            reading = noting.Reading(
                reader, self.history, "reader", self.topic, on_jump=lambda *queue: self.on_jump(*queue)
            )
            while True:
                with contextlib.suppress(WhimbrelError):
                    await reading.go_on()
                await asyncio.sleep(self.rng.uniform(1.0, 4.0))
