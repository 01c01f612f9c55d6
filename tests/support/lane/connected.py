"""A broker with the compiled lane, and a connection to it, for tests of single steps."""

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from support.lane.brokers import Client, Side, answers, plain_message
from support.lane.logs import lane_or_skip
from whimbrel.broker.lane.calls import BrokerLane
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.frames import DATA, RST_STREAM
from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.limits import Guard
from whimbrel.store.options import StoreOptions

__all__ = ["OPTIONS", "Caller", "Rig", "run"]

OPTIONS = StoreOptions(commitlog_file_size=1 << 20, flush_interval_ms=3_600_000, prefault_bytes=0)


class Caller:
    """A client that a broker has met, and its connection."""

    def __init__(self, side: Side, stub: socket.socket) -> None:
        self.connection, self.sink = side.connect(stub)
        self.client = Client(random.Random(1), "go")
        self.feed(self.client.begin())
        for _ in range(2):  # Python makes the first log file, and meets the client
            self.feed(self.send())
        side.settle()
        self.sink.written.clear()
        assert self.connection.lane is not None
        self.lane = self.connection.lane

    def send(self, body: bytes = b"body", **how: Any) -> bytes:
        """Return the bytes of a send."""
        request = messaging.SendMessageRequest(messages=[plain_message("one", body)])
        return self.client.call(request.SerializeToString(), **how)

    def feed(self, data: bytes) -> None:
        self.connection.data_received(data)

    def codes(self) -> dict[int, int]:
        """Return the codes of the answers so far, by stream; 0 for one that was reset."""
        found: dict[int, int] = {}
        for stream_id, frames in answers(self.sink.sent, frozenset()).items():
            for kind, _, payload in frames:
                if kind == DATA:
                    found[stream_id] = messaging.SendMessageResponse.FromString(payload[5:]).status.code
                elif kind == RST_STREAM:
                    found[stream_id] = 0
        return found


class Rig(Caller):
    """A broker with the lane, whose sends wait until `side.settle`, and a connection to it."""

    def __init__(
        self,
        root: Path,
        stub: socket.socket,
        *,
        waits: bool = True,
        limits: Limits | None = None,
        guard: Guard | None = None,
    ) -> None:
        limits = limits or Limits()
        side = Side(root / "lane", lane_or_skip(), OPTIONS, waits=waits, limits=limits, guard=guard)
        self.side = side.open()
        super().__init__(self.side, stub)

    @property
    def by_lane(self) -> BrokerLane:
        """The lane's part of the broker."""
        assert self.side.by_lane is not None
        return self.side.by_lane

    def close(self) -> None:
        self.connection.connection_lost(None)
        self.side.close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]
