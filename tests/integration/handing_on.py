"""A group whose messages go to its dead-letter topic, over a real store and a real lease journal.

As a program it reads a line of JSON for each run (`store`, `start_ms`, `seed`, `kill_at`), does the run in a
forked child, and writes a line: whether the child was killed, and how many steps it took when it was not. A
step is a line of the code under test; the child kills itself before the one that `kill_at` counts.
"""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from support.broker.consumption import FakeClock, take_of, takes_over
from support.store.stores import make_draft
from whimbrel.broker.consume.dead_letters import attempts_max, dead_letter_rule
from whimbrel.broker.consume.delivery_planner import Uniform
from whimbrel.broker.consume.filters import ALL
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.broker.consume.plan import HandOn, ReceiveRequest
from whimbrel.broker.consume.policy import UnorderedPolicy
from whimbrel.broker.engine.settle import Changed, Settles
from whimbrel.broker.produce.appender import Appender, Durability
from whimbrel.broker.produce.dead_letters import DeadLetters
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import WhimbrelError
from whimbrel.model.dead_letter import cause_of
from whimbrel.model.topic import GroupConfig
from whimbrel.store.codec import StoredMessage, decode_record, pack_host
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

__all__ = ["MESSAGES", "QUEUES", "HandingOn", "fails"]

TOPIC, DEAD_LETTERS, GROUP = "orders", "%DLQ%g", "g"
QUEUES, MESSAGES = 2, 10  # and messages in each of the queues
CONFIG = GroupConfig(name=GROUP, retry_max=1)  # two deliveries
OPTIONS = StoreOptions(
    commitlog_file_size=256 << 10,
    consumequeue_file_size=2000,
    flush="sync",
    prefault_bytes=0,
    index_slots=500,
    index_entries=2000,
)
# What stands between a plan and a message that is done.
TRACED = tuple(
    f"/whimbrel/{part}.py"
    for part in (
        "broker/consume/delivery_planner",
        "broker/consume/hand_ons",
        "broker/consume/handles",
        "broker/consume/receiving",
        "broker/consume/lease_journal",
        "broker/consume/lease_store",
        "broker/engine/settle",
        "broker/produce/appender",
        "broker/produce/dead_letters",
        "broker/produce/internal_append",
        "store/commitlog",
        "store/master_store",
    )
)


def fails(offset: int) -> bool:
    """Return whether the consumer fails with the message; it acknowledges the others."""
    return offset % 3 != 0


class HandingOn:
    """The store with all that stands between a receive and a dead letter, and a clock that a run moves."""

    def __init__(self, root: Path, start_ms: int) -> None:
        """Open the store; on a running loop."""
        root.mkdir(parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        self.now = start_ms
        self.store = MasterStore.open(root, OPTIONS, clock=self.now_ms)
        # No bound on the time that a disk takes: an append that is reported late would be made again.
        durability = Durability(sync_flush=True, flush_timeout_s=3600.0)
        self.appender = Appender(self.store, self.store.page, durability, loop, ring=lambda: None)
        self.appender.refusal = ""
        self.loop = loop
        self.store.on_flushed = self.flushed
        topics = TopicTable(
            root / "config", cluster="c", broker_name="b", auto_create=False, clock=self.now_ms
        )
        self.internal = InternalAppender(topics, self.appender, store_host=lambda: pack_host("127.0.0.1", 1))
        self.letters = DeadLetters(self.internal, self.store)
        waiting = FakeClock().waiting()  # nobody waits
        self.consumption = GroupConsumption(
            self.store,
            LeaseJournal(root, file_bytes=64 << 10, flush_interval_s=0.001),
            waiting,
            broker_name="b",
            broker_id=0,
            now_ms=self.now_ms,
            schedule=lambda at_ms, callback: None,
            client_alive=lambda group, client_id: True,
            hand_on=self.hand_on,
            policy_of=Uniform(
                lambda: UnorderedPolicy(dead_letter_rule(CONFIG), delivers_up_to=attempts_max(CONFIG))
            ),
        )
        self.consumption.open()
        self.takes = takes_over(self.consumption, waiting, self.now_ms)
        self.settles = Settles(self.consumption, {GROUP: CONFIG}.get)
        self.reported = asyncio.Event()

    def now_ms(self) -> int:
        return self.now

    def flushed(self, _: int) -> None:
        self.loop.call_soon_threadsafe(self.appender.complete_waiting)

    def hand_on(
        self, message: StoredMessage, target: HandOn, since: int, done: Callable[[WhimbrelError | None], None]
    ) -> None:
        def report(error: WhimbrelError | None) -> None:
            done(error)
            self.reported.set()

        self.letters.hand_on(message, target, since, report)

    def fill(self) -> None:
        """Store the messages."""
        for number in range(QUEUES * MESSAGES):
            self.store.append([make_draft(number, topic=TOPIC, queue_id=number % QUEUES)])

    async def run(self, seed: int) -> None:
        """Consume until every message is done."""
        dice = random.Random(seed)
        while any(queue.lag for queue in self.consumption.positions.progress(GROUP)) or not self.begun:
            request = ReceiveRequest(
                group=GROUP, topic=TOPIC, queue_ids=range(QUEUES), filter=ALL, batch=dice.randrange(1, 6),
                invisible_ms=10_000, client_id="c",
            )  # fmt: skip
            delivered = self.takes.take(take_of(request), lambda take, found: list(found))
            assert isinstance(delivered, list)
            for one in delivered:
                if fails(one.message.queue_offset):
                    changed = self.settles.change(GROUP, TOPIC, one.handle, 0, suspend=False)
                    assert isinstance(changed, Changed) and changed.error is None
                else:
                    assert self.settles.acknowledge(GROUP, TOPIC, [one.handle]) == [None]
            if delivered and dice.random() < 0.5:
                await asyncio.sleep(0)
            elif not delivered and self.internal.in_flight:
                self.reported.clear()
                await self.reported.wait()
            elif not delivered:
                self.now += 10_000

    @property
    def begun(self) -> bool:
        return len(self.consumption.positions.progress(GROUP)) == QUEUES

    def undone(self) -> set[str]:
        """Return the messages that the group has not finished."""
        table = self.consumption.table
        return {
            f"{queue_id}:{offset}"
            for queue_id in range(QUEUES)
            for offset in range(MESSAGES)
            if not table.state(GROUP, TOPIC, queue_id).is_done(offset)
        }

    def copies(self) -> Counter[str]:
        """Return how often each message stands in the dead-letter topic."""
        places = {
            one.offset_message_id: f"{one.queue_id}:{one.queue_offset}"
            for queue_id in range(QUEUES)
            for one in self.messages(TOPIC, queue_id)
        }
        return Counter(places[cause_of(one.properties)] for one in self.messages(DEAD_LETTERS, 0))

    def messages(self, topic: str, queue_id: int) -> list[StoredMessage]:
        """Return what stands in a queue."""
        low, high = self.store.queue_range(topic, queue_id)
        units = self.store.queue_units(topic, queue_id, low, high - low)
        assert len(units) == high - low
        return [decode_record(self.store.read(*unit[:2])) for unit in units]

    def close(self) -> None:
        """Close everything."""
        self.appender.close("the test is over")
        self.consumption.close()
        self.store.close()


class Steps:
    """Counts the lines of the code under test, and kills the process before one of them."""

    def __init__(self, kill_at: int) -> None:
        self.count, self.kill_at = 0, kill_at

    def called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self.line if frame.f_code.co_filename.endswith(TRACED) else None

    def line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line


async def one_run(store: str, start_ms: int, seed: int, kill_at: int) -> int:
    """Run once; return the number of steps."""
    handing_on, steps = HandingOn(Path(store), start_ms), Steps(kill_at)
    sys.settrace(steps.called)
    await handing_on.run(seed)
    sys.settrace(None)
    handing_on.close()
    return steps.count


def main() -> None:
    """Do the runs that are asked for, each in a child."""
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, str(asyncio.run(one_run(**json.loads(line)))).encode())
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        steps = os.read(reading, 100)
        os.close(reading)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not killed and status:
            raise SystemExit(f"a run failed: {status}")
        print(json.dumps({"killed": killed, "steps": int(steps or 0)}), flush=True)


if __name__ == "__main__":
    main()
