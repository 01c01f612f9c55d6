"""One connection of HTTP/2, of either side (RFC 9113): bytes in, events out, bytes out. Pure.

    receive(bytes) ──► frames ──► rules of the connection and of a stream ──► events     Headers, Data, Reset
    send_headers, send_data, reset ... ──► windows ──► frames ──► take() ──► bytes

    a stream          HEADERS ──► open ──(END_STREAM)──► half closed ──(END_STREAM)──► gone
                        any of them ──(RST_STREAM, an error of the stream)──► gone

A fault of the peer ends one stream (RST_STREAM, and a `Reset` event) or the connection (GOAWAY; `error` says
why, and nothing is taken any more). No exception leaves `receive`.

**Flow control.** Data that may not be sent yet waits in its stream, in order, trailers behind it. It is sent
when windows grow, and `Drained` tells when a stream that had to wait has nothing left. Received data is given
back by `consumed`, in steps of half a window. A user who does not consume stops the peer.

**Bounds** (`Limits`): streams at a time, a header block's and list's bytes, a frame's bytes, resets, pings,
settings and empty frames in `WINDOW_S` seconds of the caller's clock. Of ended streams `GONE_KEPT` are
remembered, so that late frames to those that were reset here are ignored in silence.

**Work per frame** does not grow with the number of open streams, with one exception: an initial window that
SETTINGS change is applied to all of them, once a frame, and `Limits.settings` bounds these frames. One has at
most `ENTRIES_MAX` entries. Window updates that come while data waits, let none of it out, and follow one
another without data in between are counted like empty frames. An honest peer sends as many as it has streams.

**Pings** are counted where no data has gone out since the one before. Clients of gRPC measure a connection by
them, Java's with one for each answer, so a fast one sends thousands a second.
"""

from collections.abc import Callable

from whimbrel.rpc.http2.errors import Code, ProtocolError, StreamError
from whimbrel.rpc.http2.fields import check_fields, check_length, stays_valid
from whimbrel.rpc.http2.frames import (
    ACK,
    CONTINUATION,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    FRAME_BYTES_LIMIT,
    FRAME_MAX,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW,
    LIST_MAX,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_ID_MAX,
    STREAMS_MAX,
    TWO_U32,
    U32,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    WINDOW_UPDATE,
)
from whimbrel.rpc.http2.hpack import HeaderDecoder, HpackError, ListTooLarge
from whimbrel.rpc.http2.lane_decoder import LaneHeaderDecoder
from whimbrel.rpc.http2.sending import SendingHalf
from whimbrel.rpc.http2.stream import (
    Data,
    Event,
    GoAway,
    Headers,
    Limits,
    Pong,
    Reset,
    Stream,
)

__all__ = ["Connection"]

WINDOW_S = 10.0
DEBUG_BYTES_MAX = 256
ENTRIES_MAX = 32  # of a SETTINGS frame; RFC 9113 knows six settings, and gRPC's libraries add one or two


class Connection(SendingHalf):
    """One connection; see the module.

    Attributes:
        settled: the peer's first SETTINGS came.
        restricted: not every frame may come now: before SETTINGS, or within a header block.
        block: pieces of an incomplete header block.
        stalled: window updates in a row that let nothing out.
        stalled_at: the connection's window after the last one of them.
    """

    def __init__(self, *, server: bool, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        super().__init__(server=server, limits=limits)
        self.buffer = bytearray()
        self.needed = 0
        self.preface = PREFACE if server else b""
        self.settled = False  # the peer's first SETTINGS came
        self.restricted = True  # see `check_expected`
        self.decoder: HeaderDecoder | LaneHeaderDecoder = HeaderDecoder(list_bytes_max=limits.header_list)
        self.block: list[bytes] | None = None
        self.block_bytes = self.block_flags = self.block_stream = 0
        self.counted_since = 0.0
        self.resets = self.pings = self.settings_seen = self.empty = 0
        self.stalled, self.stalled_at = 0, -1
        self.handlers: tuple[Callable[[int, int, bytes, list[Event]], None], ...] = (
            self.on_data, self.on_headers, self.on_priority, self.on_reset, self.on_settings, self.on_push,
            self.on_ping, self.on_goaway, self.on_window_update, self.on_continuation,
        )  # fmt: skip
        self.open()

    # What is sent first

    def open(self) -> None:
        """Send the preface of a client, the settings, and the connection's window."""
        limits = self.limits
        settings = [
            (STREAMS_MAX, limits.streams),
            (INITIAL_WINDOW, limits.window),
            (FRAME_MAX, limits.frame),
            (LIST_MAX, limits.header_list),
        ]
        if not self.server:
            self.out.append(PREFACE)
            settings[0] = (ENABLE_PUSH, 0)
        self.frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in settings))
        if limits.connection_window > WINDOW_DEFAULT:
            self.frame(WINDOW_UPDATE, 0, 0, U32.pack(limits.connection_window - WINDOW_DEFAULT))

    # Receiving

    def receive(self, data: bytes, now: float = 0.0) -> list[Event]:
        """Take bytes of the peer; return the events in them.

        Args:
            data: any piece of what the peer sent.
            now: seconds of a clock that does not go back; floods are counted by it.
        """
        events: list[Event] = []
        if self.error is not None:
            return events
        if now - self.counted_since >= WINDOW_S:
            self.counted_since = now
            self.resets = self.pings = self.settings_seen = self.empty = self.stalled = 0
        buffer = self.buffer
        if buffer:
            buffer += data
            if len(buffer) < self.needed:
                return events
            data = bytes(buffer)
            buffer.clear()
        try:
            at = self.parse(data, events)
        except ProtocolError as error:
            self.fail(error)
            return events
        if at < len(data):
            self.buffer += memoryview(data)[at:]
        return events

    def parse(self, data: bytes, events: list[Event]) -> int:
        """Handle the frames that are whole; return where they end."""
        at, size = 0, len(data)
        if self.preface:
            begin = data[: len(self.preface)]
            if not self.preface.startswith(begin):
                raise ProtocolError(Code.PROTOCOL_ERROR, f"this is no HTTP/2: it begins with {begin!r}")
            if len(begin) < len(self.preface):
                self.needed = len(self.preface)
                return 0
            at, self.preface = len(begin), b""
        unpack, limit = HEAD.unpack_from, self.limits.frame
        handlers, known = self.handlers, len(self.handlers)
        last = size - HEAD_BYTES
        while at <= last:
            high, low, kind, flags, stream_id = unpack(data, at)
            length = high << 16 | low
            if length > limit:
                what = f"a frame of {length} bytes, and {limit} are allowed"
                if not self.settled:
                    what = f"this is no HTTP/2: it begins with {data[at : at + HEAD_BYTES]!r}"
                raise ProtocolError(Code.FRAME_SIZE_ERROR, what)
            inner = at + HEAD_BYTES
            end = inner + length
            if end > size:
                self.needed = end - at
                return at
            at = end
            if self.restricted:
                self.check_expected(kind, stream_id & STREAM_ID_MAX)
            if kind >= known:
                self.count_empty()
                continue
            try:
                handlers[kind](flags, stream_id & STREAM_ID_MAX, data[inner:end], events)
            except StreamError as error:
                self.fail_stream(stream_id & STREAM_ID_MAX, error, events)
        self.needed = HEAD_BYTES
        return at

    def check_expected(self, kind: int, stream_id: int) -> None:
        """Refuse a frame where only another kind may come: SETTINGS first, CONTINUATION within a block."""
        if not self.settled and kind != SETTINGS:
            raise ProtocolError(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self.block is not None and (kind != CONTINUATION or stream_id != self.block_stream):
            raise ProtocolError(Code.PROTOCOL_ERROR, "another frame comes within a header block")

    def fail(self, error: ProtocolError) -> None:
        """End the connection with GOAWAY."""
        self.error = error
        debug = str(error).encode()[:DEBUG_BYTES_MAX]
        self.frame(GOAWAY, 0, 0, TWO_U32.pack(self.last_id if self.server else 0, error.code) + debug)
        self.buffer.clear()
        self.block = None

    def fail_stream(self, stream_id: int, error: StreamError, events: list[Event]) -> None:
        """End a stream with RST_STREAM, also one that is unknown."""
        stream = self.streams.get(stream_id)
        self.count_reset()
        self.frame(RST_STREAM, 0, stream_id, U32.pack(error.code))
        if stream is None:
            self.remember(stream_id, reset=True)
            return
        self.forget(stream, reset=True)
        events.append(Reset(stream, error.code, by_peer=False))

    def count_reset(self) -> None:
        """Count a stream that ends early, by either side: a rapid reset uses both."""
        self.resets += 1
        if self.resets > self.limits.resets:
            raise ProtocolError(
                Code.ENHANCE_YOUR_CALM, f"more than {self.limits.resets} resets in {WINDOW_S} s"
            )

    def count_empty(self) -> None:
        """Count a frame without effect."""
        self.empty += 1
        if self.empty > self.limits.empty:
            raise ProtocolError(
                Code.ENHANCE_YOUR_CALM, f"more than {self.limits.empty} empty frames in {WINDOW_S} s"
            )

    # Frames of streams

    def on_data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Handle DATA."""
        size = len(payload)
        if not stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "DATA of no stream")
        if flags & PADDED:
            payload = unpadded(payload)
        self.receive_window -= size
        if self.receive_window < 0:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "more data than the connection's window")
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_closed:
            self.give_back(size)
            if stream is None:
                self.check_gone(stream_id, "DATA")
                if self.was_reset(stream_id):
                    return  # it crossed our reset
            raise StreamError(Code.STREAM_CLOSED, "DATA of a stream that has ended")
        stream.receive_window -= size
        ended = bool(flags & END_STREAM)
        if stream.receive_window < 0:
            self.give_back(size)
            raise StreamError(Code.FLOW_CONTROL_ERROR, "more data than the stream's window")
        if not stream.headers_received:
            self.give_back(size)
            raise StreamError(Code.PROTOCOL_ERROR, "DATA before HEADERS")
        if not payload and not ended:
            self.count_empty()
        stream.received += len(payload)
        stream.unread += size
        if ended:
            if stream.declared >= 0:
                check_length(stream)
            stream.remote_closed = True
        events.append(Data(stream, payload, size, ended))
        if ended and stream.local_closed:
            self.forget_read(stream)

    def check_gone(self, stream_id: int, what: str) -> None:
        """Refuse a frame of a stream that was never opened."""
        mine = stream_id % 2 == (0 if self.server else 1)
        if stream_id >= self.next_id if mine else stream_id > self.last_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"{what} of a stream that nobody has opened")

    def on_headers(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Handle HEADERS: the first piece of a header block, or all of it."""
        if not stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "HEADERS of no stream")
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & PRIORITIZED:
            if len(payload) < 5:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "HEADERS too short for a priority")
            if U32.unpack_from(payload)[0] & STREAM_ID_MAX == stream_id:
                raise ProtocolError(Code.PROTOCOL_ERROR, "a stream that depends on itself")
            payload = payload[5:]
        if flags & END_HEADERS:
            self.whole_block(flags, stream_id, payload, events)
            return
        if len(payload) > self.limits.block:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"a header block over {self.limits.block} bytes")
        self.block, self.block_bytes = [payload], len(payload)
        self.restricted = True
        self.block_flags, self.block_stream = flags, stream_id

    def on_continuation(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Handle CONTINUATION: a further piece of a header block."""
        if self.block is None:
            raise ProtocolError(Code.PROTOCOL_ERROR, "CONTINUATION of no header block")
        if not payload and not flags & END_HEADERS:
            self.count_empty()
        self.block.append(payload)
        self.block_bytes += len(payload)
        if self.block_bytes > self.limits.block or len(self.block) > self.limits.empty:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"a header block over {self.limits.block} bytes")
        if flags & END_HEADERS:
            block, self.block = b"".join(self.block), None
            self.restricted = False
            self.whole_block(self.block_flags, stream_id, block, events)

    def whole_block(self, flags: int, stream_id: int, block: bytes, events: list[Event]) -> None:
        """Handle a whole header block. It is always decoded: later blocks build on its table."""
        if len(block) > self.limits.block:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"a header block over {self.limits.block} bytes")
        try:
            fields = self.decoder.decode(block)
        except ListTooLarge as error:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, str(error)) from error
        except HpackError as error:
            raise ProtocolError(Code.COMPRESSION_ERROR, str(error)) from error
        ended = bool(flags & END_STREAM)
        stream = self.streams.get(stream_id)
        if stream is None:
            stream = self.opened_by_peer(stream_id)
            if stream is None:
                return
        elif stream.remote_closed:
            raise StreamError(Code.STREAM_CLOSED, "HEADERS of a stream that has ended")
        # A server may send informational headers (1xx) before the final ones.
        trailers = stream.headers_received and (self.server or fields[:1] == [] or fields[0][0] != b":status")
        if trailers and not ended:
            raise StreamError(Code.PROTOCOL_ERROR, "HEADERS within a stream that do not end it")
        shape = self.decoder.shape
        if shape is None or shape.checked is not trailers:
            check_fields(fields, stream, request=self.server, trailers=trailers)
            if shape is not None and stays_valid(fields, shape.varying):
                shape.checked = trailers
        stream.headers_received = True
        if ended:
            if stream.declared >= 0:
                check_length(stream)
            stream.remote_closed = True
        events.append(Headers(stream, fields, ended, trailers, shape))
        if ended and stream.local_closed:
            self.forget_read(stream)

    def opened_by_peer(self, stream_id: int) -> Stream | None:
        """Open a stream of the peer's; None when its frames are to be ignored.

        Raises:
            ProtocolError, StreamError: the peer may not open it.
        """
        if not self.server or stream_id % 2 == 0:
            self.check_gone(stream_id, "HEADERS")
            if self.was_reset(stream_id):
                return None
            raise ProtocolError(Code.PROTOCOL_ERROR, "HEADERS that open a stream which the peer may not open")
        if stream_id <= self.last_id:
            if self.was_reset(stream_id):
                return None  # it crossed our reset
            code = Code.STREAM_CLOSED if self.ended_lately(stream_id) else Code.PROTOCOL_ERROR
            raise ProtocolError(code, "HEADERS of a stream that has ended, or whose number was passed over")
        self.last_id = stream_id
        if self.draining:
            raise StreamError(Code.REFUSED_STREAM, "this side is going away")
        if len(self.streams) + self.elsewhere >= self.limits.streams:
            raise StreamError(Code.REFUSED_STREAM, f"more than {self.limits.streams} streams at a time")
        stream = self.streams[stream_id] = Stream(stream_id, self.peer_window, self.limits.window)
        return stream

    def on_priority(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Check the form of PRIORITY, which has no meaning here."""
        if not stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "PRIORITY of no stream")
        if len(payload) != 5:
            raise StreamError(Code.FRAME_SIZE_ERROR, "PRIORITY has 5 bytes")
        if U32.unpack_from(payload)[0] & STREAM_ID_MAX == stream_id:
            raise StreamError(Code.PROTOCOL_ERROR, "a stream that depends on itself")
        self.count_empty()

    def on_reset(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Handle RST_STREAM."""
        if not stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "RST_STREAM of no stream")
        if len(payload) != 4:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        self.check_gone(stream_id, "RST_STREAM")
        self.count_reset()
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.forget(stream, reset=False)
            events.append(Reset(stream, U32.unpack(payload)[0], by_peer=True))

    def on_push(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Refuse PUSH_PROMISE: clients send none, and our settings forbid it to servers."""
        raise ProtocolError(Code.PROTOCOL_ERROR, "PUSH_PROMISE is not taken")

    # Frames of the connection

    def on_settings(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Apply and acknowledge SETTINGS."""
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & ACK:
            if payload:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS is empty")
            self.count_empty()
            return
        if len(payload) % SETTING.size:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "SETTINGS of 6 bytes each")
        self.settings_seen += 1
        if self.settings_seen > self.limits.settings:
            raise ProtocolError(
                Code.ENHANCE_YOUR_CALM, f"more than {self.limits.settings} SETTINGS in {WINDOW_S} s"
            )
        if len(payload) > ENTRIES_MAX * SETTING.size:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"SETTINGS with more than {ENTRIES_MAX} entries")
        self.settled = True
        self.restricted = False
        window = self.peer_window
        for name, value in SETTING.iter_unpack(payload):
            self.apply_setting(name, value)
        if self.peer_window != window:
            self.shift_windows(self.peer_window - window)
        # Before data that a larger window allows: the peer counts by the old one until it sees this.
        self.frame(SETTINGS, ACK, 0)
        if self.peer_window > window:
            self.send_ready(events)

    def apply_setting(self, name: int, value: int) -> None:
        """Apply one setting of the peer; unknown ones have no meaning."""
        if name == ENABLE_PUSH:
            if value > 1 or (value and not self.server):
                raise ProtocolError(Code.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
        elif name == STREAMS_MAX:
            self.peer_streams_max = value
        elif name == HEADER_TABLE_SIZE:
            self.peer_table = value
        elif name == FRAME_MAX:
            if not FRAME_BYTES_DEFAULT <= value <= FRAME_BYTES_LIMIT:
                raise ProtocolError(Code.PROTOCOL_ERROR, f"frames of {value} bytes")
            self.peer_frame = value
        elif name == INITIAL_WINDOW:
            if value > WINDOW_MAX:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
            self.peer_window = value

    def shift_windows(self, change: int) -> None:
        """Change the windows of all streams with the initial one."""
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > WINDOW_MAX:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "a stream's window grows too large")
        if self.blocked:
            self.find_ready()

    def let_out(self, stream: Stream | None, before: int, events: list[Event]) -> None:
        """Send what a larger window of a blocked stream, or of the connection, lets out.

        Args:
            stream: None for the connection.
            before: the connection's window before.
        """
        waiting = self.waiting_bytes
        if stream is None:
            self.send_ready(events)
        else:
            self.send_waiting(stream, events)
        if self.waiting_bytes == waiting and before == self.stalled_at:
            self.stalled += 1
            if self.stalled > self.limits.empty:
                raise ProtocolError(
                    Code.ENHANCE_YOUR_CALM,
                    f"more than {self.limits.empty} window updates in a row that let nothing out",
                )
        else:
            self.stalled = 0
        self.stalled_at = self.send_window

    def on_ping(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Handle PING."""
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "PING has 8 bytes")
        if flags & ACK:
            self.count_empty()
            events.append(Pong(payload))
            return
        if not self.data_sent:
            self.pings += 1
            if self.pings > self.limits.pings:
                raise ProtocolError(
                    Code.ENHANCE_YOUR_CALM,
                    f"more than {self.limits.pings} pings in {WINDOW_S} s and no data between them",
                )
        self.data_sent = False
        self.frame(PING, ACK, 0, payload)

    def on_goaway(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Handle GOAWAY."""
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < TWO_U32.size:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "GOAWAY has 8 bytes or more")
        last, code = TWO_U32.unpack_from(payload)
        self.gone_away = True
        self.count_empty()
        events.append(GoAway(last & STREAM_ID_MAX, code, payload[TWO_U32.size :][:DEBUG_BYTES_MAX]))

    def on_window_update(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Handle WINDOW_UPDATE."""
        if len(payload) != 4:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        size = int.from_bytes(payload, "big") & WINDOW_MAX
        before = self.send_window
        if not stream_id:
            self.send_window += size
            if not size:
                raise ProtocolError(Code.PROTOCOL_ERROR, "a window that grows by nothing")
            if self.send_window > WINDOW_MAX:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "the connection's window grows too large")
            if self.blocked:
                self.let_out(None, before, events)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self.check_gone(stream_id, "WINDOW_UPDATE")
            return
        stream.send_window += size
        if not size:
            raise StreamError(Code.PROTOCOL_ERROR, "a window that grows by nothing")
        if stream.send_window > WINDOW_MAX:
            raise StreamError(Code.FLOW_CONTROL_ERROR, "a stream's window grows too large")
        if stream.waiting:
            self.let_out(stream, before, events)


def unpadded(payload: bytes) -> bytes:
    """Return a payload without its padding."""
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(Code.PROTOCOL_ERROR, "more padding than the frame has bytes")
    return payload[1 : len(payload) - payload[0]]
