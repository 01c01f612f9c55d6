"""A peer that sends arbitrary bytes to the native server, over a transport in memory.

    peer = RawPeer(server)                      # as a connection to its port would be
    peer.send(HELLO + request(1))               # the server handles it at once
    peer.frames()                               # what it has written since: (kind, flags, stream, payload)

`stuck` is a socket whose other end reads nothing: written data stays in the transport, and the server's
`pause_writing` is called as asyncio and uvloop do.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from whimbrel.rpc.http2.frames import HEAD, PREFACE
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.hpack import encode
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.protocol_detection import ProtocolDetector

__all__ = ["HELLO", "RawPeer", "call", "frame", "headers", "message", "setting", "statuses", "u32"]

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 0x1, 0x4
Frame = tuple[int, int, int, bytes]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def u32(number: int) -> bytes:
    """Return four bytes."""
    return number.to_bytes(4, "big")


def setting(name: int, value: int) -> bytes:
    """Return a SETTINGS frame with one setting."""
    return frame(SETTINGS, 0, 0, name.to_bytes(2, "big") + u32(value))


def block(path: str, more: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the header block of a call."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())]
    return encode([*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more])


def headers(stream: int, path: str = "/t.T/U", more: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the begin of a call."""
    return frame(HEADERS, END_HEADERS, stream, block(path, more))


def message(stream: int, body: bytes = b"", *, end: bool = True) -> bytes:
    """Return a message of a call in one frame."""
    return frame(DATA, END_STREAM if end else 0, stream, prefixed(body))


def call(stream: int, path: str = "/t.T/U", body: bytes = b"") -> bytes:
    """Return a whole call."""
    return headers(stream, path) + message(stream, body)


HELLO = PREFACE + frame(SETTINGS, 0, 0)


def statuses(frames: list[Frame]) -> dict[int, int]:
    """Return the `grpc-status` of the calls that have ended, by stream; no other field is looked at."""
    found = {}
    for kind, _, stream, payload in frames:
        at = payload.find(b"grpc-status")
        if kind == HEADERS and at >= 0:
            length = payload[at + 11]
            found[stream] = int(payload[at + 12 : at + 12 + length])
    return found


class RawPeer(asyncio.Transport):
    """The transport of the server, and a test's handle on its other end.

    Attributes:
        stuck: nothing of what is written leaves.
        written: what has left, and no test has read.
        waiting: what has not left.
        paused: the server reads nothing.
        closed: it closes, or has closed, the connection; `aborted`: at once.
    """

    def __init__(self, server: NativeServer, *, host: str = "192.0.2.1") -> None:
        super().__init__({"peername": (host, 4711), "socket": self})
        self.stuck = self.paused = self.closed = self.aborted = False
        self.written, self.waiting = bytearray(), bytearray()
        self.high = 64 << 10
        self.writing_paused = False
        self.protocol: Any = ProtocolDetector(server)
        self.protocol.connection_made(self)

    # What a test does

    def send(self, data: bytes, pieces: int = 0) -> None:
        """Send bytes, in pieces of that size when it is given; what is not read is lost."""
        for at in range(0, len(data), pieces or len(data)):
            if not self.paused and not self.closed:
                self.protocol.data_received(data[at : at + (pieces or len(data))])

    def frames(self) -> list[Frame]:
        """Return the frames that have left, and forget them."""
        found: list[Frame] = []
        at = 0
        while at < len(self.written):
            high, low, kind, flags, stream = HEAD.unpack_from(self.written, at)
            end = at + HEAD.size + (high << 16 | low)
            found.append((kind, flags, stream, bytes(self.written[at + HEAD.size : end])))
            at = end
        self.written.clear()
        return found

    def goaway(self) -> tuple[int, str] | None:
        """Return the code and the text of the GOAWAY that has left."""
        for kind, _, _, payload in self.frames():
            if kind == GOAWAY:
                return int.from_bytes(payload[4:8], "big"), payload[8:].decode()
        return None

    def loosen(self) -> None:
        """Read everything."""
        self.stuck = False
        self.written += self.waiting
        self.waiting.clear()
        if self.writing_paused:
            self.writing_paused = False
            self.protocol.resume_writing()

    def leave(self) -> None:
        """Disconnect without a close."""
        self.closed = True
        self.protocol.connection_lost(None)

    # What the server does

    def setsockopt(self, *words: int) -> None:
        """It has no socket."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand over."""
        self.protocol = cast(Any, protocol)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take what the server writes."""
        (self.waiting if self.stuck else self.written).extend(data)
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

    def is_closing(self) -> bool:
        """Return whether it closes."""
        return self.closed

    def close(self) -> None:
        """Close it."""
        self.closed = True

    def abort(self) -> None:
        """Close it at once."""
        self.closed = self.aborted = True
