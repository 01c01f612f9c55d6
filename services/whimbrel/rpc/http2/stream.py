"""Streams, the events of a connection, and the limits for a peer."""

from collections import deque
from dataclasses import dataclass

from whimbrel.rpc.http2.hpack import Field, Shape
from whimbrel.rpc.http2.lane_decoder import Known

__all__ = [
    "Data",
    "Drained",
    "Event",
    "GoAway",
    "Headers",
    "Limits",
    "Pong",
    "Reset",
    "ResponseBegun",
    "ResponseEnded",
    "Stream",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a peer may do.

    Attributes:
        streams: open at a time.
        window: bytes of a stream that may be received and not consumed.
        connection_window: the same, of all streams.
        frame: bytes of a frame.
        block: bytes of a header block, over all of its frames.
        header_list: bytes of its fields, decoded.
        resets, pings, settings, empty: in WINDOW_S seconds; empty are frames without effect, pings those
            with no data sent between them.
    """

    streams: int = 1024
    window: int = 1 << 20
    connection_window: int = 64 << 20
    frame: int = 1 << 20
    block: int = 32 << 10
    header_list: int = 16 << 10
    resets: int = 20_000
    pings: int = 20_000
    settings: int = 200
    empty: int = 2000


class Stream:
    """One stream.

    Attributes:
        app: for the user of the connection.
        waiting: what may not be sent yet: (bytes, False) of data, or (block, True) of trailers.
        waiting_bytes: of the data in it.
        ends: the last of it ends the stream.
        received: bytes of data.
        declared: by content-length, -1 for none.
        unread: bytes that were not consumed.
        owed: bytes that were consumed and not given back yet.

    Most streams carry one small request and one response: rarely used attributes have their defaults in the
    class, which saves setting them.
    """

    app: object = None
    local_closed: bool = False
    remote_closed: bool = False
    headers_received: bool = False
    ends: bool = False
    received: int = 0
    unread: int = 0
    owed: int = 0
    waiting_bytes: int = 0
    declared: int = -1
    waiting: "deque[tuple[bytes | memoryview, bool]] | None" = None

    def __init__(self, number: int, send_window: int, receive_window: int) -> None:
        self.id = number
        self.send_window, self.receive_window = send_window, receive_window


@dataclass(slots=True)
class Headers:
    """Header fields: the first of a stream, or with `trailers` the last; `shape`: of `HeaderDecoder`."""

    stream: Stream
    fields: list[Field]
    ended: bool
    trailers: bool
    shape: Shape | Known | None


@dataclass(slots=True)
class Data:
    """Data of a stream; `size` is what counts for the windows, and goes to `consumed`."""

    stream: Stream
    data: bytes
    size: int
    ended: bool


@dataclass(slots=True)
class Reset:
    """A stream has ended early, by the peer or by its fault."""

    stream: Stream
    code: int
    by_peer: bool


@dataclass(slots=True)
class GoAway:
    """The peer takes no new streams, and has seen none beyond `last_stream_id`."""

    last_stream_id: int
    code: int
    debug: bytes


@dataclass(slots=True)
class Drained:
    """A stream that had to wait for a window has sent everything."""

    stream: Stream


@dataclass(slots=True)
class Pong:
    """The reply to a ping."""

    data: bytes


@dataclass(slots=True)
class ResponseBegun:
    """A response has begun with the header fields that all of ours have."""

    stream: Stream


@dataclass(slots=True)
class ResponseEnded:
    """A response has ended with OK and no other trailers."""

    stream: Stream


Event = Headers | Data | Reset | GoAway | Drained | Pong | ResponseBegun | ResponseEnded
