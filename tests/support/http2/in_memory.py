"""Transports in memory: what our side writes is kept, and what it reads a test gives it.

    connection, sink = connected(server, stub)      a connection of the native transport, and what it writes
    connection.data_received(HELLO + call(1))
    split(sink.sent)

    peer = RawPeer(server)                          a peer of the server's port, which may read nothing
    peer.send(HELLO + call(1))
    peer.frames()                                   what the server has written since

The other end of a `stuck` peer reads nothing: written data stays in the transport, and the server's
`pause_writing` is called as asyncio and uvloop do.
"""

import asyncio
import socket
from typing import Any, cast

from support.http2.frames import GOAWAY, Frame, split
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.protocol_detection import ProtocolDetector

__all__ = ["RawPeer", "Sink", "connected"]


class Sink(asyncio.Transport):
    """A transport whose other end reads everything.

    Attributes:
        written: what was written, and no test has taken.
        closing: it closes, or has closed; `aborted`: at once.
    """

    def __init__(self, socket_stub: socket.socket | None = None, *, host: str = "127.0.0.1") -> None:
        super().__init__({"peername": (host, 4711), "socket": socket_stub or self})
        self.written: list[bytes] = []
        self.closing = self.aborted = False

    @property
    def sent(self) -> bytes:
        """Return what was written as one."""
        return b"".join(self.written)

    def take(self) -> bytes:
        """Return what was written, and forget it."""
        sent = self.sent
        self.written.clear()
        return sent

    def setsockopt(self, *words: int) -> None:
        """Stand for a socket, whose options are set."""

    def write(self, data: Any) -> None:
        """Keep it."""
        assert not self.closing, "written after the end"
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        """Return nothing."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have none."""

    def is_closing(self) -> bool:
        """Tell whether it was closed."""
        return self.closing

    def close(self) -> None:
        """Take nothing more."""
        self.closing = True

    def abort(self) -> None:
        """Take nothing more."""
        self.closing = self.aborted = True


def connected(server: NativeServer, socket_stub: socket.socket) -> tuple[NativeConnection, Sink]:
    """Return a connection that was just made."""
    connection, sink = NativeConnection(server, server.loop.time()), Sink(socket_stub)
    connection.connection_made(sink)
    return connection, sink


class RawPeer(Sink):
    """The transport of a connection to the port of a server, and a test's handle on its other end.

    Attributes:
        stuck: nothing of what is written leaves.
        written: what has left.
        waiting: what has not left.
        paused: the server reads nothing.
    """

    def __init__(self, server: NativeServer, *, host: str = "192.0.2.1") -> None:
        super().__init__(host=host)
        self.stuck = self.paused = False
        self.waiting = bytearray()
        self.high = 64 << 10
        self.writing_paused = False
        self.protocol: Any = ProtocolDetector(server)
        self.protocol.connection_made(self)

    # What a test does

    def send(self, data: bytes, pieces: int = 0) -> None:
        """Send bytes, in pieces of that size when it is given; what is not read is lost."""
        for at in range(0, len(data), pieces or len(data)):
            if not self.paused and not self.closing:
                self.protocol.data_received(data[at : at + (pieces or len(data))])

    def frames(self) -> list[Frame]:
        """Return the frames that have left, and forget them."""
        return split(self.take())

    def goaway(self) -> tuple[int, str] | None:
        """Return the code and the text of the GOAWAY that has left."""
        for kind, _, _, payload in self.frames():
            if kind == GOAWAY:
                return int.from_bytes(payload[4:8], "big"), payload[8:].decode()
        return None

    def loosen(self) -> None:
        """Read everything."""
        self.stuck = False
        if self.waiting:
            self.written.append(bytes(self.waiting))
            self.waiting.clear()
        if self.writing_paused:
            self.writing_paused = False
            self.protocol.resume_writing()

    def leave(self) -> None:
        """Disconnect without a close."""
        self.closing = True
        self.protocol.connection_lost(None)

    # What the server does

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand over."""
        self.protocol = cast(Any, protocol)

    def write(self, data: Any) -> None:
        """Take what the server writes."""
        if not self.stuck:
            super().write(data)
            return
        self.waiting += data
        if len(self.waiting) > self.high and not self.writing_paused:
            self.writing_paused = True
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when `pause_writing` is called."""
        self.high = high or self.high

    def get_write_buffer_size(self) -> int:
        """Return what has not left."""
        return len(self.waiting)

    def pause_reading(self) -> None:
        """Read nothing."""
        self.paused = True

    def resume_reading(self) -> None:
        """Read again."""
        self.paused = False
