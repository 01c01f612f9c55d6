"""A broker by Python and one by the lane, side by side, and the plain requests that both get."""

import asyncio
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from support.http2.in_memory import Sink
from support.lane.brokers import Side, answers, plain_message, same
from support.lane.logs import lane_or_skip
from support.store.stores import NOW
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.remoting import RemotingConnection
from whimbrel.store.options import StoreOptions

__all__ = ["SEED", "TEXTS", "SideBySide", "Two", "message", "play_all", "request", "run"]

SideT = TypeVar("SideT", bound=Side)
ConnectionT = TypeVar("ConnectionT", bound=NativeConnection | RemotingConnection)

ROUNDS = int(os.environ.get("WHIMBREL_LANE_ROUNDS", "1"))  # of `make fuzz-fast`
SEED = int(os.environ.get("WHIMBREL_LANE_SEED", "1"))

OPTIONS = StoreOptions(
    commitlog_file_size=1 << 22,
    consumequeue_file_size=2000,
    index_slots=200,
    index_entries=4000,
    flush_interval_ms=3_600_000,
    prefault_bytes=0,
    index_tags=True,
)
TEXTS = ("a", "order-17", "äöü 日本語", "\U0001f600", "x" * 60, " ", "a b", "")
SIZES = (1, 40, 1000, 4000, 20_000, 70_000)


def message(rng: random.Random, *, size: int | None = None, **fixed: Any) -> Any:
    """Return a plain message."""
    system: dict[str, Any] = {"message_id": f"{rng.getrandbits(64):016x}"}
    if rng.random() < 0.5:
        system["tag"] = rng.choice([text for text in TEXTS if text.strip()])
    if rng.random() < 0.5:
        system["keys"] = [
            rng.choice([text for text in TEXTS if " " not in text]) for _ in range(rng.randrange(4))
        ]
    if rng.random() < 0.8:
        system["born_timestamp"] = Timestamp(
            seconds=NOW // 1000 + rng.randrange(100), nanos=rng.randrange(10**9)
        )
    if rng.random() < 0.5:
        system["born_host"] = rng.choice(TEXTS)
    if rng.random() < 0.3:
        system["trace_context"] = f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-01"
    system["body_encoding"] = rng.choice([0, 1, 2])
    if rng.random() < 0.5:
        system["queue_id"], system["store_host"] = rng.randrange(8), "here"
    count = rng.choice([0, 0, 1, 2, 5, 30])
    properties = {f"p{rng.randrange(99)}": rng.choice(TEXTS) for _ in range(count)}
    return plain_message(
        fixed.pop("topic", rng.choice(["orders", "orders", "one", "many", "mixed"])),
        rng.randbytes(size or rng.choice(SIZES[:4])),
        **{"properties": properties, **system, **fixed},
    )


def request(rng: random.Random, count: int = 1, **fixed: Any) -> bytes:
    """Return a request of plain messages."""
    topic = fixed.pop("topic", rng.choice(["orders", "one", "many", "mixed"]))
    messages = [message(rng, topic=topic, **fixed) for _ in range(count)]
    return messaging.SendMessageRequest(messages=messages).SerializeToString(deterministic=True)


class SideBySide(Generic[SideT, ConnectionT]):
    """Two brokers, with one connection each, that get the same bytes."""

    def __init__(
        self, python: SideT, compiled: SideT, connect: Callable[[SideT], tuple[ConnectionT, Sink]]
    ) -> None:
        self.python, self.compiled, self.connect = python, compiled, connect
        self.sides = python, compiled
        self.connections = [connect(side) for side in self.sides]

    def connect_anew(self) -> None:
        """Go on with another connection; what waits on the one before is settled."""
        for connection, _ in self.connections:
            connection.connection_lost(None)
        self.connections = [self.connect(side) for side in self.sides]

    def feed(self, data: bytes) -> None:
        """Give both the same bytes."""
        for (connection, sink), side in zip(self.connections, self.sides, strict=True):
            if not sink.closing:
                connection.data_received(data)
            side.server.flush()

    def settle(self) -> None:
        """Let everything be on disk, and answered."""
        for side in self.sides:
            side.settle()

    def close(self) -> None:
        """Close everything."""
        for (connection, _), side in zip(self.connections, self.sides, strict=True):
            connection.connection_lost(None)
            side.close()


class Two(SideBySide[Side, NativeConnection]):
    """Both sides, and gRPC."""

    def __init__(self, root: Path, stub: socket.socket, **how: Any) -> None:
        self.lane = lane_or_skip()
        super().__init__(
            Side(root / "python", None, OPTIONS, **how).open(),
            Side(root / "lane", self.lane, OPTIONS, **how).open(),
            lambda side: side.connect(stub),
        )

    def check(self, reset: set[int] | frozenset[int] = frozenset(), *, garbled: bool = False) -> None:
        """Compare all that both have done."""
        assert self.lane.failures == 0, self.lane.why
        python, compiled = (answers(sink.sent, reset) for _, sink in self.connections)
        if self.connections[0][1].closing or garbled:
            # What came in the same read before the error is answered by the lane, and not by Python. What had
            # to wait for a window is not sent any more.
            compiled = {stream_id: compiled.get(stream_id, []) for stream_id in python}
            for stream_id in python.keys() - {0}:
                cut_short(python[stream_id], compiled[stream_id])
        same(python, compiled, "answers")
        assert self.connections[0][1].closing == self.connections[1][1].closing
        same(self.python.contents(), self.compiled.contents(), "store")
        same(last_arrivals(self.python), last_arrivals(self.compiled), "arrivals")


def last_arrivals(side: Side) -> dict[tuple[str, int], int]:
    """Return the last offset that was told of each queue: Python tells of all, the lane of the last."""
    return {(topic, queue_id): offset for topic, queue_id, offset, _ in side.arrived}


def cut_short(python: list[tuple[int, int, bytes]], compiled: list[tuple[int, int, bytes]]) -> None:
    """Leave out what of an answer had to wait for a window on one side when the connection ended."""
    for one, other in ((python, compiled), (compiled, python)):
        if len(one) == 2 and len(other) > 1 and other[1][2].startswith(one[1][2]):
            del one[1:], other[1:]


def run(work: Any) -> Any:
    """Run a test's body on a loop."""

    async def body() -> Any:
        return work()

    return asyncio.run(body())


def play_all(root: Path, part: int, calls_each: int, play: Callable[[Path, random.Random], int]) -> None:
    """Play generated work, each with a seed and a directory of its own, until there were enough calls.

    Args:
        root: for the directories.
        part: which part of the seeds.
        calls_each: in a round, at least.
        play: plays on a loop, and returns how many calls it has made.
    """
    calls = number = 0
    while calls < ROUNDS * calls_each:
        seed = SEED * 1_000_003 + part * 100_003 + number
        work = root / str(number)
        work.mkdir()
        try:
            calls += run(lambda: play(work, random.Random(seed)))  # noqa: B023 - it is run at once
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        shutil.rmtree(work)
        number += 1
