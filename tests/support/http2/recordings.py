"""What real clients sent (unit/rpc/http2/recordings), and the native transport without a socket to feed."""

import asyncio
import functools
import socket
from pathlib import Path
from typing import Any

from support.http2 import echoing
from whimbrel.rpc.http2.frames import HEAD, HEAD_BYTES, PREFACE
from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.handlers import BidiMethod, ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.native import NativeServer

__all__ = ["NAMES", "Sink", "connected", "echo_server", "frames_of", "recording"]

FOLDER = Path(__file__).resolve().parents[2] / "unit" / "rpc" / "http2" / "recordings"
NAMES = tuple(path.stem for path in sorted(FOLDER.glob("*.bin")))
SDK_ONCE = (
    "QueryRoute",
    "Heartbeat",
    "SendMessage",
    "AckMessage",
    "ChangeInvisibleDuration",
    "NotifyClientTermination",
)


@functools.cache
def recording(name: str) -> bytes:
    """Return a client's bytes."""
    return (FOLDER / f"{name}.bin").read_bytes()


def frames_of(data: bytes) -> list[bytes]:
    """Return whole frames, with their heads; a preface before them is left out."""
    at, found = len(PREFACE) if data.startswith(PREFACE) else 0, []
    while at < len(data):
        high, low, *_ = HEAD.unpack_from(data, at)
        end = at + HEAD_BYTES + (high << 16 | low)
        found.append(data[at:end])
        at = end
    return found


class Sink(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, socket_stub: socket.socket) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "socket": socket_stub})
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        """Keep it."""
        assert not self.closing, "written after the end"
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        """Return nothing: the peer reads everything."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have none."""

    def is_closing(self) -> bool:
        """Tell whether it was closed."""
        return self.closing

    def close(self) -> None:
        """Take nothing more."""
        self.closing = True

    abort = close


def echo_server(limits: Limits) -> NativeServer:
    """Return a server that gives back what it gets, by the methods of tests/echo and by those of the SDKs."""
    sdk = [UnaryMethod(name, echoing.Raw, echoing.echo) for name in SDK_ONCE]
    methods: list[Any] = [
        *sdk,
        ServerStreamMethod("ReceiveMessage", echoing.Raw, echoing.listed),
        BidiMethod("Telemetry", echoing.Raw, echoing.Both),
    ]
    services = [
        echoing.EchoServer().service(),
        Service("apache.rocketmq.v2.MessagingService", tuple(methods)),
    ]
    return NativeServer(services, limits=limits)


def connected(server: NativeServer, socket_stub: socket.socket) -> tuple[NativeConnection, Sink]:
    """Return a connection that was just made."""
    connection, sink = NativeConnection(server, server.loop.time()), Sink(socket_stub)
    connection.connection_made(sink)
    return connection, sink
