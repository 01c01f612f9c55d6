"""One connection of the native transport, after protocol detection and TLS.

    bytes of a read ──► Connection (`http2/`) ──► events ──► server calls (`calls.py`) ──► frames ──► a write

How it fits into its server, what is bounded and why, is in `native.py`.

**What it holds** counts in the budget of the process (`held_bytes`). It is added up anew when `COUNT_BYTES`
have gone in and out since the last time, and at every check of its server, so that no call pays for it. When
all connections together hold too much, the one that holds most is ended.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.errors import Code, ProtocolError
from whimbrel.rpc.http2.grpc_format import CallMetadata, status_block
from whimbrel.rpc.http2.hpack import HpackError
from whimbrel.rpc.http2.stream import Data, Drained, Headers, Reset, Stream
from whimbrel.rpc.server.admission import Place
from whimbrel.rpc.server.budget import held_too_much
from whimbrel.rpc.server.call_kinds import KIND_FIELDS, CallKind, kind_of
from whimbrel.rpc.server.calls import (
    BidiServerCall,
    NonGrpcCall,
    PulledStreamCall,
    ServerCall,
    UnaryServerCall,
)
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    PulledStreamMethod,
    ServerStreamMethod,
    UnaryMethod,
)
from whimbrel.rpc.server.lane_calls import IDLE_READS_MAX, LaneCalls
from whimbrel.rpc.server.lanes import TakenRead
from whimbrel.rpc.server.limits import HeaderGuard
from whimbrel.rpc.server.protocol_detection import HANDSHAKE_S
from whimbrel.rpc.server.shared import COUNT_BYTES, WRITE_BYTES_HIGH, AnyConnection, Shared

__all__ = ["KEEPALIVE_S", "KEEPALIVE_TIMEOUT_S", "REQUEST_S", "NativeConnection"]

KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 60.0, 20.0
REQUEST_S = 60.0  # for all bytes of a request, 4 MiB of them over half a Mbit/s, 130 MiB over 20
STREAM_BYTES = 1024  # of an open stream with its call, without header fields
PING = b"whimbrel"
UNKNOWN_METHOD = status_block(12, "Method not found!", first=True)  # grpcio's words; none of our errors

logger = logging.getLogger(__name__)


class NativeConnection(AnyConnection):
    """One connection of a peer that speaks HTTP/2.

    Attributes:
        lane: the compiled lane's part, which takes plain calls first; None without one.
        received_at: when data came last, by the loop's clock.
        waiting_counted: what waited in its streams when its share in the process's budget was counted.
        pinged: a ping was sent, and nothing came since.
    """

    def __init__(self, server: Shared, connected_at: float, place: Place | None = None) -> None:
        super().__init__(server, connected_at, place)
        self.conn = Connection(server=True, limits=server.limits)
        self.lane: LaneCalls | None = None
        self.received_at, self.waiting_counted, self.pinged = connected_at, 0, False

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the settings, and count the connection in."""
        super().connection_made(transport)
        self.transport.write(self.conn.take())

    def data_received(self, data: bytes) -> None:
        """Handle the calls of a read, now or together with other connections' reads."""
        server = self.server
        self.received_at = server.loop.time()
        self.pinged = False
        self.uncounted += len(data)
        gathered, lane = server.gathered, self.lane
        if gathered is not None and lane is not None and lane.idle < IDLE_READS_MAX and lane.lane.active:
            if gathered.add(self, data, partial=bool(self.conn.buffer)):
                return
            data = gathered.withdraw(self) + data  # without a copy where none waits
        read_end, self.calls = server.read_end, 0
        if read_end is not None:
            read_end.reading = True
        self.receiving = True
        try:
            if lane is None:
                self.take(data, self.received_at)
            else:
                lane.receive(data, self.received_at)
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this connection alone
            self.fault(error)
        self.receiving = False
        self.flush()
        if read_end is not None:
            read_end.end(self.calls)

    def receive(self, data: bytes, path: str = "", taken: TakenRead | None = None) -> None:
        """Handle the calls of a read that has waited, and write their responses at once.

        Args:
            data: the read.
            path, taken: which calls a pass of the lane has taken of it already, and how.
        """
        self.receiving = True
        try:
            if self.lane is None:
                self.take(data, self.received_at)
            elif taken is None:
                self.lane.receive(data, self.received_at)
            else:
                self.lane.receive_rest(self.lane.go_on(data, path, taken, self.received_at), self.received_at)
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this connection alone
            self.fault(error)
        self.receiving = False
        self.flush()

    def fault(self, error: Exception) -> None:
        """End the connection for a fault of ours."""
        logger.error("%s: a call can't be answered", self.peer, exc_info=error)
        self.fail(ProtocolError(Code.INTERNAL_ERROR, "internal error; the server's log says more"))

    def set_lane(self) -> None:
        """Have the lane of the server's methods, if there is one, take plain calls from now on."""
        if self.lane is not None:
            self.lane.leave()
            self.lane = None
        server = self.server
        remembered = server.guard is None or isinstance(server.guard, HeaderGuard)
        if server.call_lane is not None and remembered and self.conn.error is None:
            self.lane = LaneCalls(self, server.call_lane)

    def take(self, data: bytes, now: float) -> None:
        """Handle the events in bytes of the peer."""
        events: Iterable[Any] = self.conn.receive(data, now)
        for event in events:
            kind = type(event)
            if kind is Data:
                stream = event.stream
                self.conn.consumed(stream, event.size)
                server_call = stream.app
                if server_call is not None:
                    if event.data:
                        server_call.data(event.data)
                    if event.ended:
                        server_call.half_closed()
                    elif not server_call.over:
                        self.reserve(server_call)
            elif kind is Headers:
                if event.trailers:
                    if event.stream.app is not None:
                        event.stream.app.half_closed()
                else:
                    self.begin_call(event)
            elif kind is Reset:
                self.abandon_call(event.stream)
            elif kind is Drained and event.stream.app is not None:
                event.stream.app.drained()

    def connection_lost(self, error: Exception | None) -> None:
        """Abandon all calls."""
        self.server.connections.pop(self, None)
        if self.server.gathered is not None:
            self.server.gathered.withdraw(self)
        self.abandon_calls()
        self.server.budget.count(self, 0)
        if self.place is not None:
            self.place.leave()
        self.server.notify_if_idle()

    def abandon_calls(self) -> None:
        """End all calls without a response, and drop what they have received and not sent."""
        if self.lane is not None:
            self.lane.abandon()
        for stream in list(self.conn.streams.values()):
            self.abandon_call(stream)
        self.conn.drop_streams()

    def resume_writing(self) -> None:
        """Read on, and let streams send what was queued."""
        self.paused = False
        self.transport.resume_reading()
        for stream in list(self.conn.streams.values()):
            if isinstance(stream.app, ServerCall) and not stream.waiting:
                stream.app.drained()

    # Events

    def reserve(self, server_call: ServerCall) -> None:
        """Count what a call has received and its handler does not have yet."""
        size = server_call.received_bytes()
        before, server_call.held = server_call.held, size
        if not self.budget.reserve(size, before=before):
            server_call.end(held_too_much())

    def abandon_call(self, stream: Stream) -> None:
        """End the call of a stream that is gone."""
        server_call = stream.app
        stream.app = None
        if isinstance(server_call, ServerCall) and not server_call.over:
            server_call.abandon()

    def begin_call(self, event: Headers) -> None:
        """Make the server call of a new stream."""
        stream, shape = event.stream, event.shape
        self.calls += 1
        kind: CallKind | None = None if shape is None else shape.memo
        if kind is not None and kind.methods is self.server.methods:
            metadata = CallMetadata(event.fields, kind.known, kind.varying)
        else:
            metadata = CallMetadata(event.fields)
            try:
                kind = kind_of(metadata, self.server.methods)
                if not kind.grpc:
                    metadata.check()
            except HpackError as error:
                self.fail(ProtocolError(Code.COMPRESSION_ERROR, str(error)))
                return
            if shape is not None and not shape.varying & KIND_FIELDS:
                kind.varying, kind.known = shape.varying, {}
                shape.memo = kind
        method = kind.method
        seconds = kind.seconds
        deadline = None if seconds is None else time.monotonic() + seconds
        call = Call(kind.path, self.peer, metadata, deadline)
        if type(method) is UnaryMethod or type(method) is ServerStreamMethod:
            once = stream.app = UnaryServerCall(self, stream, call, method)
            if self.server.guard is not None:
                if not once.authorize(self.server.guard):
                    return
                if self.lane is not None:
                    self.lane.approve(kind.path, metadata)
            if event.ended:
                once.half_closed()
            return
        if not kind.grpc:
            plain = stream.app = NonGrpcCall(self, stream, call, metadata.raw(b":method") or b"")
            if event.ended:
                plain.half_closed()
            return
        server_call: PulledStreamCall | BidiServerCall
        if method is None:
            self.conn.send_headers(stream, UNKNOWN_METHOD, end=True)
            return
        elif type(method) is PulledStreamMethod:
            server_call = PulledStreamCall(self, stream, call, method)
        else:
            assert type(method) is BidiMethod
            server_call = BidiServerCall(self, stream, call, method)
        stream.app = server_call
        if self.server.guard is not None and not server_call.authorize(self.server.guard):
            return
        if type(server_call) is BidiServerCall:
            server_call.open()
        if event.ended:
            server_call.half_closed()

    # Writing

    def waiting_bytes(self) -> int:
        """Return the bytes of responses that wait in streams for windows, and in the transport."""
        return self.conn.waiting_bytes + self.transport.get_write_buffer_size()

    def flush(self) -> None:
        """Write all frames that are ready; close the connection after an error."""
        self.flush_scheduled = False
        self.budget.flushed()
        if self.server.idle is not None:
            self.server.notify_if_idle()
        data = self.conn.take()
        if self.transport.is_closing():  # the peer left while responses waited for the next iteration
            return
        if data:
            self.transport.write(data)
            self.uncounted += len(data)
        if self.conn.error is not None:
            logger.info("%s: %s (%s)", self.peer, self.conn.error, self.conn.error.code.name)
            self.transport.close()
        elif self.uncounted + self.conn.waiting_bytes - self.waiting_counted > COUNT_BYTES:
            self.count_held()

    # What it holds

    def held_bytes(self) -> int:
        """Return about how many bytes this connection holds in memory for its peer."""
        size = self.budget.held + self.unread + len(self.conn.buffer)
        if self.lane is not None:
            size += self.lane.parked * STREAM_BYTES
        for stream in self.conn.streams.values():
            server_call = stream.app
            size += STREAM_BYTES
            if isinstance(server_call, ServerCall):
                size += server_call.field_bytes()
        return size

    def count_held(self) -> None:
        """Count what this connection holds in the budget of the process."""
        self.uncounted, self.waiting_counted = 0, self.conn.waiting_bytes
        largest = self.server.budget.count(self, self.held_bytes())
        if largest is not None:
            largest.end_for_memory()

    def end_for_memory(self) -> None:
        """End this connection, which holds more than any other when all together hold too much."""
        held, limit = self.held_bytes(), self.server.budget.limit
        logger.warning(
            "%s is cut off: all connections together hold more than %d bytes, and this one %d",
            self.peer,
            limit,
            held,
        )
        self.abandon_calls()
        self.server.budget.ended(self)
        text = f"all connections together hold more than {limit} bytes, and this one holds most of them"
        self.conn.fail(ProtocolError(Code.ENHANCE_YOUR_CALM, text))
        self.flush()
        if self.transport.get_write_buffer_size() > WRITE_BYTES_HIGH:
            self.transport.abort()  # it does not read, so it would keep them

    @property
    def open_calls(self) -> int:
        """How many calls have begun and are not over."""
        return len(self.conn.streams) + (0 if self.lane is None else self.lane.parked)

    def drain(self) -> None:
        """Take no calls any more; the server stops."""
        self.conn.drain()
        self.flush()

    def fail(self, error: ProtocolError) -> None:
        """End the connection for a protocol error of its peer."""
        self.conn.fail(error)
        self.schedule_flush()

    def check_timeouts(self, now: float) -> None:
        """Ping a silent peer; drop one that does not react, or did not finish HTTP/2's handshake."""
        if self.lane is not None:
            self.lane.check(now)
        if self.conn.streams:
            self.end_late_requests(now)
        if self.uncounted or self.waiting_counted or self.open_calls:
            self.count_held()
        quiet = now - self.received_at
        if not self.conn.settled:
            if now - self.connected_at > HANDSHAKE_S:
                self.transport.abort()
        elif self.pinged:
            if quiet > KEEPALIVE_S + KEEPALIVE_TIMEOUT_S:
                logger.info("%s does not answer pings", self.peer)
                self.transport.abort()
        elif quiet > KEEPALIVE_S:
            self.pinged = True
            self.conn.ping(PING)
            self.flush()

    def end_late_requests(self, now: float) -> None:
        """End the calls whose request is not whole in time; it counts from the first check that sees them."""
        late: list[ServerCall] = []
        for stream in self.conn.streams.values():
            server_call = stream.app
            if stream.remote_closed or not isinstance(server_call, ServerCall) or server_call.lasts:
                continue
            if not server_call.seen_at:
                server_call.seen_at = now
            elif now - server_call.seen_at > REQUEST_S:
                late.append(server_call)
        for server_call in late:
            server_call.request_missing(REQUEST_S)
