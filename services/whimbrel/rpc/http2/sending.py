"""The sending half of a connection: frames out, windows of both sides, ends of streams. Pure.

    send_headers, send_data, send_response ... ──► windows ──► frames ──► take() ──► bytes

Data that may not be sent yet waits in its stream, in order, trailers behind it, until windows grow. Received
data is given back by `consumed`, in steps of half a window.

    blocked   streams with data that waits
    ready     those of them that only the connection's window stops, in turn

A window of the connection that grows visits streams of `ready` alone, and each visit sends a byte at least.
So the work for a peer's WINDOW_UPDATE is bounded by what it lets out, however many streams are blocked.
"""

from collections import OrderedDict, deque

from whimbrel.rpc.http2.errors import Code, ProtocolError
from whimbrel.rpc.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    GOAWAY,
    HEAD,
    HEADER_TABLE_DEFAULT,
    HEADERS,
    PING,
    RST_STREAM,
    STREAM_ID_MAX,
    TWO_U32,
    U32,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    WINDOW_UPDATE,
)
from whimbrel.rpc.http2.stream import Drained, Event, Limits, Stream

__all__ = ["GONE_KEPT", "SendingHalf"]

GONE_KEPT = 256


class SendingHalf:
    """The base of `connection.Connection` with all that it sends.

    Attributes:
        streams: those that have not ended, by number.
        elsewhere: streams that count as open, and that somebody else has (`rpc/server/lane_calls.py`).
        error: why nothing is taken any more; None while all is well.
        draining: GOAWAY was sent: new streams are refused.
        gone_away: the peer's GOAWAY came.
        out: what is to be written.
        last_id: of the peer's streams.
        next_id: of this side's streams.
        peer_streams_max: how many streams this side may open at a time; for the caller to observe.
        peer_table: bytes of the peer's table for header fields; for the encoder to observe.
        blocked, ready: see the module.
        waiting_bytes: of data, over all blocked streams.
        gone: numbers of ended streams, in a ring; negative when reset by this side.
        owed: consumed bytes that were not given back to the peer yet.
        data_sent: since the peer's last ping.
    """

    def __init__(self, *, server: bool, limits: Limits) -> None:
        self.server, self.limits = server, limits
        self.streams: dict[int, Stream] = {}
        self.elsewhere = 0
        self.error: ProtocolError | None = None
        self.draining = self.gone_away = False
        self.out: list[bytes | memoryview] = []
        self.last_id, self.next_id = 0, 2 if server else 1
        self.gone = [0] * GONE_KEPT
        self.send_window = WINDOW_DEFAULT
        self.receive_window = limits.connection_window
        self.owed = 0
        self.data_sent = False
        self.peer_window = WINDOW_DEFAULT
        self.peer_frame = FRAME_BYTES_DEFAULT
        self.peer_streams_max = WINDOW_MAX
        self.peer_table = HEADER_TABLE_DEFAULT
        self.blocked: dict[int, Stream] = {}
        self.ready: OrderedDict[int, Stream] = OrderedDict()  # its first entry is found without a search
        self.waiting_bytes = 0

    def take(self) -> bytes:
        """Return what is to be written, and forget it."""
        if not self.out:
            return b""
        data = b"".join(self.out)  # a single piece is not copied
        self.out.clear()
        return data

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes | memoryview = b"") -> None:
        """Send a frame."""
        length = len(payload)
        self.out.append(HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id))
        if length:
            self.out.append(payload)

    def remember(self, stream_id: int, *, reset: bool) -> None:
        """Note how a stream ended."""
        self.gone[(stream_id >> 1) % GONE_KEPT] = -stream_id if reset else stream_id

    def ended_lately(self, stream_id: int) -> bool:
        """Return whether a stream has ended lately, other than by a reset of this side."""
        return self.gone[(stream_id >> 1) % GONE_KEPT] == stream_id

    def was_reset(self, stream_id: int) -> bool:
        """Return whether this side has reset a stream lately, so that late frames of it are legal."""
        return self.gone[(stream_id >> 1) % GONE_KEPT] == -stream_id

    def forget(self, stream: Stream, *, reset: bool) -> None:
        """Drop a stream, and give back what nobody will consume."""
        self.streams.pop(stream.id, None)
        if stream.waiting:
            self.unblocked(stream)
            self.waiting_bytes -= stream.waiting_bytes
        stream.local_closed = stream.remote_closed = True
        stream.waiting, stream.waiting_bytes = None, 0
        if stream.unread:
            self.give_back(stream.unread)
            stream.unread = 0
        self.remember(stream.id, reset=reset)

    def drop_streams(self) -> None:
        """Forget all streams and what waits in them: the connection has ended, or is about to be."""
        self.streams.clear()
        self.blocked.clear()
        self.ready.clear()
        self.waiting_bytes = 0

    def forget_read(self, stream: Stream) -> None:
        """Drop a stream whose sides have both ended; its unread data is consumed later."""
        self.streams.pop(stream.id, None)
        self.remember(stream.id, reset=False)

    def request(self) -> Stream:
        """Open a stream of a client; its headers are to be sent next.

        Raises:
            ProtocolError: the connection takes no more streams.
        """
        if self.error is not None or self.gone_away or self.next_id > STREAM_ID_MAX:
            raise ProtocolError(Code.REFUSED_STREAM, "the connection takes no more streams")
        stream = Stream(self.next_id, self.peer_window, self.limits.window)
        self.streams[self.next_id] = stream
        self.next_id += 2
        return stream

    def send_request(self, block: bytes, data: bytes) -> Stream:
        """Open a stream of a client with all of its request; what exceeds the windows waits.

        Raises:
            ProtocolError: the connection takes no more streams.
        """
        stream = self.request()
        size, limit = len(data), self.peer_frame
        if size <= limit and size <= self.send_window and size <= stream.send_window and len(block) <= limit:
            number = stream.id
            self.send_window -= size
            self.data_sent = True
            stream.send_window -= size
            stream.local_closed = True
            self.out += (
                HEAD.pack(len(block) >> 16, len(block) & 0xFFFF, HEADERS, END_HEADERS, number) + block,
                HEAD.pack(size >> 16, size & 0xFFFF, DATA, END_STREAM, number),
                data,
            )
        else:
            self.send_headers(stream, block)
            self.send_data(stream, data, end=True)
        return stream

    def send_headers(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """Send header fields; trailers (`end`) wait for the data before them."""
        if stream.local_closed or self.error is not None:
            return
        if stream.waiting:
            stream.waiting.append((block, True))
            stream.ends = end
            return
        self.write_block(stream, block, end=end)
        if end:
            self.ended(stream)

    def write_block(self, stream: Stream, block: bytes | memoryview, *, end: bool) -> None:
        """Write a header block, in several frames where the peer's are smaller."""
        flags = END_STREAM if end else 0
        limit = self.peer_frame
        if len(block) <= limit:
            self.frame(HEADERS, flags | END_HEADERS, stream.id, block)
            return
        self.frame(HEADERS, flags, stream.id, block[:limit])
        for at in range(limit, len(block), limit):
            last = at + limit >= len(block)
            self.frame(CONTINUATION, END_HEADERS if last else 0, stream.id, block[at : at + limit])

    def send_data(self, stream: Stream, data: bytes, *, end: bool = False) -> bool:
        """Send data, as far as the windows allow; return whether all of it was sent.

        The rest is sent when windows grow.
        """
        if stream.local_closed or self.error is not None:
            return True
        if not stream.waiting and len(data) <= min(self.peer_frame, stream.send_window, self.send_window):
            if data or end:
                stream.send_window -= len(data)
                self.send_window -= len(data)
                self.data_sent = True
                self.frame(DATA, END_STREAM if end else 0, stream.id, data)
            if end:
                self.ended(stream)
            return True
        if stream.waiting is None:
            stream.waiting = deque()
        stream.waiting.append((memoryview(data), False))  # so that the rest is never copied
        stream.waiting_bytes += len(data)
        self.waiting_bytes += len(data)
        stream.ends = end
        self.blocked[stream.id] = stream
        self.send_waiting(stream, None)
        return not stream.waiting

    def fits(self, stream: Stream, size: int) -> bool:
        """Return whether a response with so many bytes of data may be sent at once (`send_response`)."""
        return (
            size <= self.send_window
            and size <= stream.send_window
            and size <= self.peer_frame
            and not stream.waiting
            and not stream.local_closed
            and self.error is None
        )

    def send_response(self, stream: Stream, frames: bytes, size: int) -> None:
        """Send the ready-made frames of a response that `fits`; `size` is that of its data."""
        self.send_window -= size
        self.data_sent = True
        self.out.append(frames)
        self.ended(stream)

    def send_waiting(self, stream: Stream, events: list[Event] | None) -> None:
        """Send what waits in a stream, as far as the windows allow."""
        waiting = stream.waiting
        while waiting:
            data, is_block = waiting[0]
            last = stream.ends and len(waiting) == 1
            if is_block:
                waiting.popleft()
                self.write_block(stream, data, end=last)
                continue
            room = min(self.peer_frame, stream.send_window, self.send_window)
            if data and room <= 0:
                if stream.send_window > 0:
                    self.ready[stream.id] = stream
                else:
                    self.ready.pop(stream.id, None)
                return
            piece = data[:room] if len(data) > room else data
            stream.send_window -= len(piece)
            self.send_window -= len(piece)
            self.data_sent = True
            stream.waiting_bytes -= len(piece)
            self.waiting_bytes -= len(piece)
            whole = len(piece) == len(data)
            self.frame(DATA, END_STREAM if last and whole else 0, stream.id, piece)
            if whole:
                waiting.popleft()
            else:
                waiting[0] = (data[len(piece) :], False)
        self.unblocked(stream)
        if stream.ends:
            self.ended(stream)
        if events is not None:
            events.append(Drained(stream))

    def unblocked(self, stream: Stream) -> None:
        """Note that nothing of a stream waits any more."""
        self.blocked.pop(stream.id, None)
        self.ready.pop(stream.id, None)

    def send_ready(self, events: list[Event]) -> None:
        """Let ready streams go on, as far as the connection's window allows; a visited one goes last."""
        while self.ready and self.send_window > 0:
            _, stream = self.ready.popitem(last=False)
            self.send_waiting(stream, events)

    def find_ready(self) -> None:
        """Find anew which streams only the connection's window stops: all of their own have changed."""
        self.ready.clear()
        for stream in self.blocked.values():
            if stream.send_window > 0:
                self.ready[stream.id] = stream

    def ended(self, stream: Stream) -> None:
        """Note that this side has ended; a server resets a stream whose request it did not need."""
        stream.local_closed = True
        if stream.remote_closed:
            self.forget_read(stream)
        elif self.server:
            self.frame(RST_STREAM, 0, stream.id, U32.pack(Code.NO_ERROR))
            self.forget(stream, reset=True)

    def reset(self, stream: Stream, code: Code) -> None:
        """End a stream early."""
        if self.error is None and stream.id in self.streams:
            self.frame(RST_STREAM, 0, stream.id, U32.pack(code))
            self.forget(stream, reset=True)

    def consumed(self, stream: Stream, size: int) -> None:
        """Give back received data of a stream (`Data.size`)."""
        if not size or self.error is not None:
            return
        size = min(size, stream.unread)
        stream.unread -= size
        self.give_back(size)
        stream.owed += size
        if not stream.remote_closed and stream.owed >= self.limits.window // 2:
            self.frame(WINDOW_UPDATE, 0, stream.id, U32.pack(stream.owed))
            stream.receive_window += stream.owed
            stream.owed = 0

    def give_back(self, size: int) -> None:
        """Give back a part of the connection's window."""
        self.owed += size
        if self.owed >= self.limits.connection_window // 2:
            self.frame(WINDOW_UPDATE, 0, 0, U32.pack(self.owed))
            self.receive_window += self.owed
            self.owed = 0

    def ping(self, data: bytes) -> None:
        """Send a ping of 8 bytes."""
        self.frame(PING, 0, 0, data)

    def drain(self) -> None:
        """Take no new streams; open ones go on."""
        if not self.draining and self.error is None:
            self.draining = True
            self.frame(GOAWAY, 0, 0, TWO_U32.pack(self.last_id if self.server else 0, Code.NO_ERROR))
