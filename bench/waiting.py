"""What waits in a broker, delayed messages and open transactions, and what it costs others at its time.

    python bench/waiting.py [--pending 100000] [--due 2000] [--open 1000]

Two scenes with one broker each, without a slave. In the first, `pending` messages wait for tomorrow and
`due` others for one second of today: when has the last one been delivered? In the second, `open`
transactions have no decision when the broker asks about all of them in one round: how long does that take?
Meanwhile a process of its own sends one message after the other to a topic of its own: its slowest sends
are compared with those of the seconds before.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from run import cluster, log, memory

from support.cluster.processes import Cluster, environment
from whimbrel.client import Message, Producer, PullConsumer, Resolution

BATCH = 32
AT_ONCE = 32
FAR_S = 20 * 3600.0
LEAD_S = 8.0  # so long before their second the messages that are due are sent
PROBE_TOPIC, DUE_TOPIC, OPEN_TOPIC = "probe", "due", "open"
CHECK_INTERVAL_S = 15.0
GIVEN_UP_S = 120.0

Send = tuple[float, float]  # when it began, in seconds since the epoch, and how many seconds it took


class Probe:
    """A process that sends one message after the other until its input ends."""

    def __init__(self, endpoint: str) -> None:
        command = [sys.executable, __file__, "--probe", endpoint]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "sends\n"

    def ends(self) -> list[Send]:
        """Return its sends."""
        text, _ = self.child.communicate()
        return [tuple(each) for each in json.loads(text)]


async def probe(endpoint: str) -> None:
    """Be that process."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    sends: list[Send] = []
    async with Producer(endpoint) as producer:
        await producer.send(Message(topic=PROBE_TOPIC, body=b"first"))
        print("sends", flush=True)
        while not ended.done():
            began, clock = time.time(), time.perf_counter()
            await producer.send(Message(topic=PROBE_TOPIC, body=b"x" * 100))
            sends.append((began, time.perf_counter() - clock))
            await asyncio.sleep(0.001)
    print(json.dumps(sends))


def slowest(sends: list[Send], begin: float, end: float) -> dict[str, float]:
    """Describe the sends that overlap a time, in milliseconds."""
    took = sorted(1000 * cost for began, cost in sends if began + cost >= begin and began <= end)
    return {
        "sends": len(took),
        "median ms": round(statistics.median(took), 2),
        "slowest ms": round(took[-1], 2),
    }


@contextlib.contextmanager
def broker(work: Path, **settings: object) -> Iterator[Cluster]:
    with cluster(work, slaves=0, broker={"auto_create_topics": True, **settings}) as made:
        yield made


async def send_all(producer: Producer, messages: list[Message], size: int) -> None:
    """Send in requests of so many messages, some at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(first: int) -> None:
        async with turns:
            await producer.send_batch(messages[first : first + size])

    await asyncio.gather(*(one(first) for first in range(0, len(messages), size)))


async def delayed(work: Path, pending: int, due: int) -> dict[str, Any]:
    """Have messages wait, and some of them be due in one second."""
    with broker(work) as running:
        async with Producer(running.endpoint) as producer, PullConsumer(running.endpoint, "late") as reader:
            before = memory(running.master)
            far = time.time() + FAR_S
            log(f"sends {pending} messages for tomorrow")
            await send_all(
                producer,
                [
                    Message(topic=DUE_TOPIC, body=b"x" * 100, deliver_at=far + n % 3600)
                    for n in range(pending)
                ],
                BATCH,
            )
            waiting = memory(running.master)
            at = float(int(time.time() + LEAD_S))
            log(f"sends {due} messages for one second")
            await send_all(
                producer,
                [Message(topic=DUE_TOPIC, body=b"y" * 100, deliver_at=at + n / due) for n in range(due)],
                BATCH,
            )
            assert time.time() < at, "the messages were not sent in time: take fewer"
            watching = Probe(running.endpoint)
            queues = await reader.queues(DUE_TOPIC)
            while sum([await reader.offset(queue, "latest") for queue in queues]) < due:
                await asyncio.sleep(0.01)
                assert time.time() < at + GIVEN_UP_S, "not all were delivered"
            done = time.time()
            sends = watching.ends()
            return {
                "pending": pending,
                "due": due,
                "s from their second's begin to the last delivery": round(done - at, 2),
                "sends of others before": slowest(sends, 0, at),
                "sends of others meanwhile": slowest(sends, at, done),
                "memory MB": {"before": before, "pending": waiting},
            }


async def transactions(work: Path, count: int) -> dict[str, Any]:
    """Leave transactions open, and be asked about all of them in one round."""
    asked: list[float] = []
    enough = asyncio.Event()
    wanted = 1

    async def check(message: object) -> Resolution:
        asked.append(time.time())
        if len(asked) >= wanted:
            enough.set()
        return Resolution.UNKNOWN

    settings = {"transaction_timeout_ms": 1, "transaction_check_interval_ms": int(CHECK_INTERVAL_S * 1000)}
    with broker(work, **settings) as running:
        async with Producer(running.endpoint, topics=[OPEN_TOPIC], check=check) as producer:
            await producer.send(Message(topic=PROBE_TOPIC, body=b"first"))
            turns = asyncio.Semaphore(AT_ONCE)

            async def one(number: int) -> None:
                async with turns:
                    await producer.send_in_transaction(Message(topic=OPEN_TOPIC, body=b"%d" % number))

            await producer.send_in_transaction(Message(topic=OPEN_TOPIC, body=b"makes the topic"))
            await asyncio.wait_for(enough.wait(), GIVEN_UP_S)  # the next round is a whole interval away then
            enough.clear()
            asked.clear()
            wanted = count
            log(f"opens {count} transactions")
            await asyncio.gather(*(one(number) for number in range(count - 1)))
            assert not asked, "a round came before all were open: take fewer"
            watching = Probe(running.endpoint)
            opened = time.time()
            await asyncio.wait_for(enough.wait(), GIVEN_UP_S)
            sends = watching.ends()
            return {
                "open": count,
                "s of the round, at the producer": round(max(asked) - min(asked), 3),
                "sends of others before": slowest(sends, opened, min(asked) - 0.1),
                "sends of others meanwhile": slowest(sends, min(asked) - 0.1, max(asked)),
            }


async def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description="What waits in a broker")
    parser.add_argument("--pending", type=int, default=100_000)
    parser.add_argument("--due", type=int, default=2000)
    parser.add_argument("--open", type=int, default=1000)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "whimbrel-bench")
    parser.add_argument("--probe", metavar="ENDPOINT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        await probe(args.probe)
        return
    found = {
        "transactions": await transactions(args.work, args.open),
        "delayed": await delayed(args.work, args.pending, args.due),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
