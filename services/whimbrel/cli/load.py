"""The loads of `whimbrel bench`: workers side by side, each with one request under way.

    send      SendMessage, one after the other; the compiled lane has a faster one (`send_bench.py`)
    receive   ReceiveMessage, then one AckMessage for what came
    e2e       a message is sent, and the worker waits until a consumer's handler has it: as many messages are
              under way as there are workers, so that a latency is not that of a backlog

Memory is bounded by workers, batches and body sizes: latencies are counters (`latencies.py`), and what was
measured so far is in the `Tally` at any time.
"""

import asyncio
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Any

from whimbrel.cli.latencies import Latencies
from whimbrel.client import Consumer, Message, Producer, ReceivedMessage
from whimbrel.errors import WhimbrelError

__all__ = ["HEADER_BYTES", "Plan", "Tally", "end_to_end", "receive_load", "send_load"]

HEADER = struct.Struct(">8sQ")  # of an e2e body: the run's mark and the message's number
HEADER_BYTES = HEADER.size
FAILURES_MAX = 20  # requests that may fail in a row, over all workers: more is no measurement
RECEIVED_MAX_S = 30.0  # how long a message may take to its consumer; then it is counted as lost
LOST = "NOT_RECEIVED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done.

    Attributes:
        topic: where to.
        count: messages in all; None for no bound.
        seconds: for how long; None for no bound.
        size: bytes of a body.
        concurrency: workers.
        batch: messages in one request.
        wait_s: of a receive: stop when no message came for so long.
    """

    topic: str
    count: int | None
    seconds: float | None
    size: int
    concurrency: int
    batch: int
    wait_s: float = 5.0


@dataclass(slots=True)
class Tally:
    """What was measured so far.

    Attributes:
        latencies: of requests, by name.
        messages: that are done.
        bytes: of their bodies.
        errors: messages that failed, by the error's reason.
        error: the last failure's text.
        others: messages that came and are not of this run.
        sides: what client and broker used, and which was the limit, for JSON; empty where it is not measured.
        began, ended: seconds of a monotonic clock.
    """

    latencies: dict[str, Latencies]
    messages: int = 0
    bytes: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    error: str = ""
    others: int = 0
    sides: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0
    reserved: int = 0
    failures: int = 0  # in a row

    def begin(self) -> None:
        """Start the clock."""
        self.began = time.monotonic()

    def reserve(self, plan: Plan) -> int:
        """Return how many messages the next request may have; 0 when the plan is done."""
        if plan.seconds is not None and time.monotonic() - self.began >= plan.seconds:
            return 0
        left = plan.batch if plan.count is None else min(plan.batch, plan.count - self.reserved)
        self.reserved += left
        return left

    def done(self, name: str, began_ns: int, messages: int, size: int) -> None:
        """Count a request that succeeded, and the messages that are done with it."""
        now = time.perf_counter_ns()
        self.latencies[name].add(now - began_ns)
        self.messages += messages
        self.bytes += size
        self.failures = 0
        self.ended = time.monotonic()

    def failed(self, error: WhimbrelError, messages: int) -> None:
        """Count a request that failed.

        Raises:
            WhimbrelError: the error, when there were too many in a row.
        """
        self.errors[error.reason] += messages
        self.error = str(error)
        self.failures += 1
        if self.failures >= FAILURES_MAX:
            raise error

    @property
    def seconds(self) -> float:
        """For how long it ran, up to the last message that is done."""
        return max(0.0, self.ended - self.began)

    def report(self, operation: str, plan: Plan) -> dict[str, Any]:
        """Return everything, for JSON."""
        rate = self.messages / self.seconds if self.seconds else 0.0
        return {
            "operation": operation,
            "topic": plan.topic,
            "size": plan.size,
            "concurrency": plan.concurrency,
            "batch": plan.batch,
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "messages_per_s": round(rate, 1),
            "mib_per_s": round(self.bytes / self.seconds / (1 << 20), 3) if self.seconds else 0.0,
            "latency_ms": {
                name: {"count": found.count} | found.summary_ms() for name, found in self.latencies.items()
            },
            "errors": dict(self.errors),
            "others": self.others,
        } | self.sides


async def send_load(producer: Producer, plan: Plan, tally: Tally) -> None:
    """Send until the plan is done."""
    message = Message(topic=plan.topic, body=b"x" * plan.size)

    async def work() -> None:
        while count := tally.reserve(plan):
            began_ns = time.perf_counter_ns()
            try:
                await producer.send_batch([message] * count)
            except WhimbrelError as error:
                tally.failed(error, count)
            else:
                tally.done("send", began_ns, count, count * plan.size)

    await side_by_side(work, plan, tally)


async def receive_load(consumer: Consumer, plan: Plan, tally: Tally) -> None:
    """Receive and acknowledge until the plan is done, or no more messages come."""
    came = time.monotonic()

    async def work() -> None:
        nonlocal came
        while count := tally.reserve(plan):
            began_ns = time.perf_counter_ns()
            messages: list[ReceivedMessage] = []
            try:
                messages = await consumer.receive(count, wait_s=min(1.0, plan.wait_s))
                if messages:
                    came = time.monotonic()
                    tally.done("receive", began_ns, 0, 0)
                    began_ns = time.perf_counter_ns()
                    results = await consumer.ack_all(messages)
                    good = [one for one, error in zip(messages, results, strict=True) if error is None]
                    tally.done("acknowledge", began_ns, len(good), sum(len(one.body) for one in good))
                    for error in results:
                        if error is not None:
                            tally.failed(error, 1)
            except WhimbrelError as error:
                tally.failed(error, len(messages) or 1)
            tally.reserved -= count - len(messages)
            if not messages and time.monotonic() - came >= plan.wait_s:
                return

    await side_by_side(work, plan, tally)


async def end_to_end(producer: Producer, consumer: Consumer, plan: Plan, tally: Tally) -> None:
    """Send messages and wait for each at a consumer, until the plan is done."""
    mark = token_bytes(8)
    waiting: dict[int, asyncio.Future[None]] = {}
    number = 0

    async def handle(message: ReceivedMessage) -> None:
        found = None
        if len(message.body) >= HEADER_BYTES:
            run, key = HEADER.unpack_from(message.body)
            found = waiting.pop(key, None) if run == mark else None
        if found is None:
            tally.others += 1
        elif not found.done():
            found.set_result(None)

    async def work() -> None:
        nonlocal number
        while tally.reserve(plan):
            number += 1
            key = number
            arrived = waiting[key] = asyncio.get_running_loop().create_future()
            body = HEADER.pack(mark, key).ljust(plan.size, b"x")
            began_ns = time.perf_counter_ns()
            try:
                await producer.send(Message(topic=plan.topic, body=body))
                tally.done("send", began_ns, 0, 0)
                async with asyncio.timeout(RECEIVED_MAX_S):
                    await arrived
            except WhimbrelError as error:
                tally.failed(error, 1)
            except TimeoutError:
                tally.errors[LOST] += 1
                tally.error = f"a message did not come within {RECEIVED_MAX_S:g} s"
            else:
                tally.done("end to end", began_ns, 1, plan.size)
            finally:
                waiting.pop(key, None)

    running = asyncio.create_task(consumer.run(handle))
    try:
        await side_by_side(work, plan, tally)
    finally:
        consumer.stop()
        await asyncio.gather(running, return_exceptions=True)


async def side_by_side(work: Any, plan: Plan, tally: Tally) -> None:
    """Run a worker as often as the plan says, and wait for all."""
    tally.begin()
    tasks = [asyncio.create_task(work()) for _ in range(plan.concurrency)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
