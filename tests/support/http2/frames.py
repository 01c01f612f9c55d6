"""The bytes of HTTP/2 and gRPC by hand: frames, header blocks of calls, and what says how a call has ended.

    HELLO + call(1)                                     what a client begins with, and a whole call
    headers(1) + message(1, b"body", end=False)         its parts
    split(data), statuses(split(data))                  what came back: (kind, flags, stream, payload) each

Numbers stand here again, and not by import: they are what the code is compared with.
"""

from collections.abc import Iterable, Sequence

from whimbrel.rpc.http2.frames import HEAD, HEAD_BYTES, PREFACE
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.hpack import encode, value_of
from whimbrel.rpc.http2.stream import Headers

__all__ = [
    "HELLO",
    "Frame",
    "block",
    "call",
    "frame",
    "frames_of",
    "headers",
    "message",
    "request_fields",
    "setting",
    "split",
    "status_of",
    "statuses",
    "u32",
]

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
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


HELLO = PREFACE + frame(SETTINGS, 0, 0)


def request_fields(path: str, more: Iterable[tuple[bytes, bytes]] = ()) -> list[tuple[bytes, bytes]]:
    """Return the header fields of a call."""
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    ]


def block(path: str, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the header block of a call."""
    return encode(request_fields(path, more))


def headers(stream: int, path: str = "/t.T/U", more: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the begin of a call."""
    return frame(HEADERS, END_HEADERS, stream, block(path, more))


def message(stream: int, body: bytes = b"", *, end: bool = True) -> bytes:
    """Return a message of a call in one frame."""
    return frame(DATA, END_STREAM if end else 0, stream, prefixed(body))


def call(stream: int, path: str = "/t.T/U", body: bytes = b"") -> bytes:
    """Return a whole call."""
    return headers(stream, path) + message(stream, body)


def frames_of(data: bytes) -> list[bytes]:
    """Return whole frames, with their heads; a preface before them is left out."""
    at, found = len(PREFACE) if data.startswith(PREFACE) else 0, []
    while at < len(data):
        high, low, *_ = HEAD.unpack_from(data, at)
        end = at + HEAD_BYTES + (high << 16 | low)
        found.append(data[at:end])
        at = end
    return found


def split(data: bytes) -> list[Frame]:
    """Return what was sent as (kind, flags, stream, payload)."""
    found = []
    for each in frames_of(data):
        _, _, kind, flags, stream = HEAD.unpack_from(each)
        found.append((kind, flags, stream, each[HEAD_BYTES:]))
    return found


def statuses(frames: Iterable[Frame]) -> dict[int, int]:
    """Return the `grpc-status` of the calls that have ended, by stream; no other field is looked at."""
    found = {}
    for kind, _, stream, payload in frames:
        at = payload.find(b"grpc-status")
        if kind == HEADERS and at >= 0:
            length = payload[at + 11]
            found[stream] = int(payload[at + 12 : at + 12 + length])
    return found


def status_of(trailers: Headers) -> int | None:
    """Return the `grpc-status` of trailers that our own HTTP/2 has read; None: they have none."""
    return next((int(value_of(field)) for field in trailers.fields if field[0] == b"grpc-status"), None)
