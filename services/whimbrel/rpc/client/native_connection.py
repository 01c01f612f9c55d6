"""One connection of a `NativeChannel`: connects the transport, the HTTP/2 state machine, and the calls.

It decides nothing about other connections: its channel is told when it takes no more calls (`retired`), and
when it is gone (`lost`).
"""

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Any, cast

import grpc

from whimbrel.rpc.client.native_calls import FIRST_FIELDS, ClientCall
from whimbrel.rpc.http2.client import ClientConnection
from whimbrel.rpc.http2.encoder import HeaderEncoder
from whimbrel.rpc.http2.errors import Code, ProtocolError
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.hpack import HpackError
from whimbrel.rpc.http2.stream import (
    Data,
    Drained,
    Event,
    GoAway,
    Headers,
    Pong,
    Reset,
    ResponseBegun,
    ResponseEnded,
)

if TYPE_CHECKING:
    from whimbrel.rpc.client.native_channel import NativeChannel

__all__ = ["ChannelConnection", "reason_of"]

Status = grpc.StatusCode

WRITE_BYTES_HIGH = 256 << 10  # in a transport; from there on no call is begun
# Parts that are written at once, three a call. All calls of an iteration could share one write, but then the
# server is idle while they are made: writes of 16 calls are up to 1.7 times as fast, for the same CPU time.
WRITE_PARTS = 48
FEW_PINGS = 2  # factor of the interval when a peer finds pings too frequent
PING = b"whimbrel"

logger = logging.getLogger(__name__)


class ChannelConnection(asyncio.Protocol):
    """One connection of a channel.

    Attributes:
        ready: completed when the peer's settings have come; an error when they never will.
        gone: completed when the transport has closed.
        paused: the transport holds as much as it should.
        retiring: takes no new calls, and closes with its last one.
        stream_end_awaited: `on_stream_end` is to be called: for parked calls, or while it is retiring.
        received_at: when data came last, by the loop's clock.
        why: the reason of its end, in words.
    """

    def __init__(self, channel: "NativeChannel") -> None:
        self.channel = channel
        self.conn = ClientConnection(server=False, limits=channel.limits)
        self.encoder = HeaderEncoder()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.ready: asyncio.Future[None] = channel.loop.create_future()
        self.gone: asyncio.Future[None] = channel.loop.create_future()
        self.paused = self.receiving = self.flush_scheduled = self.retiring = self.stream_end_awaited = (
            self.pinged
        ) = False
        self.received_at = 0.0
        self.keepalive_timer: asyncio.TimerHandle | None = None
        self.table = self.conn.peer_table
        self.why = ""

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and the settings."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        self.transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        self.transport.write(self.conn.take())

    def data_received(self, data: bytes) -> None:
        """Handle the events of a read, and write what follows from them at once."""
        self.received_at = now = self.channel.loop.time()
        self.pinged = False
        self.receiving = True
        events = self.conn.receive(data, now)
        try:
            for event in events:
                self.handle(event)
        except HpackError as error:
            self.fail_calls(events, ProtocolError(Code.COMPRESSION_ERROR, str(error)))
        except Exception:
            logger.exception("%s: an answer can't be taken", self.channel.target)
            self.fail_calls(events, ProtocolError(Code.INTERNAL_ERROR, "internal error"))
        finally:
            self.receiving = False
        if self.conn.settled and not self.ready.done():
            self.ready.set_result(None)
        if self.stream_end_awaited:
            self.on_stream_end()
        self.flush()

    def fail_calls(self, events: list[Event], error: ProtocolError) -> None:
        """End the connection and the calls of these events, some of which it does not hold any more."""
        self.conn.fail(error)
        for event in events:
            call = None if isinstance(event, GoAway | Pong) else event.stream.app
            if isinstance(call, ClientCall):
                call.end(Status.UNAVAILABLE, f"the connection to {self.channel.target} is lost: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """End all calls."""
        if self.keepalive_timer is not None:
            self.keepalive_timer.cancel()
        why = self.why or (reason_of(error) if error is not None else "the server closed it")
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))
            self.ready.exception()  # an attempt that was given up does not retrieve it
        if not self.gone.done():
            self.gone.set_result(None)
        text = f"the connection to {self.channel.target} is lost: {why}"
        for stream in list(self.conn.streams.values()):
            if isinstance(stream.app, ClientCall):
                stream.app.end(Status.UNAVAILABLE, text)
        self.channel.lost(self)

    def pause_writing(self) -> None:
        """Begin no new calls."""
        self.paused = True

    def resume_writing(self) -> None:
        """Let streams write again, and begin parked calls."""
        self.paused = False
        for stream in list(self.conn.streams.values()):
            if isinstance(stream.app, ClientCall) and not stream.waiting:
                stream.app.drained()
        self.on_stream_end()

    # Events

    def handle(self, event: Any) -> None:
        """Handle an event of the HTTP/2 connection."""
        kind = type(event)
        if kind is Data:
            call = event.stream.app
            if call is not None:
                call.data(event.data, event.size, ended=event.ended)
            else:
                self.conn.consumed(event.stream, event.size)
        elif kind is ResponseBegun:
            call = event.stream.app
            if call is not None:
                call.begun(FIRST_FIELDS)
        elif kind is ResponseEnded:
            call = event.stream.app
            if call is not None:
                call.end(Status.OK, "")
        elif kind is Headers:
            call = event.stream.app
            if call is not None:
                call.headers(event.fields, ended=event.ended)
        elif kind is Reset:
            call = event.stream.app
            if call is not None:
                call.reset(event.code)
        elif kind is Drained:
            if event.stream.app is not None:
                event.stream.app.drained()
        elif kind is GoAway:
            self.on_goaway(event)

    def on_goaway(self, event: GoAway) -> None:
        """Take no new calls; calls that the peer has not seen are begun elsewhere."""
        debug = event.debug.decode("utf-8", "replace")
        if event.code == Code.ENHANCE_YOUR_CALM and "ping" in debug:
            self.channel.keepalive_s *= FEW_PINGS
        self.why = f"the server goes away ({debug or event.code})"
        self.retire()
        for stream in [s for s in self.conn.streams.values() if s.id > event.last_stream_id]:
            call = stream.app
            if isinstance(call, ClientCall) and not call.retry():
                call.end(Status.UNAVAILABLE, f"{self.channel.target}: {self.why}")

    # Calls

    def has_room(self) -> bool:
        """Return whether a call can begin."""
        conn = self.conn
        return (
            len(conn.streams) < conn.peer_streams_max
            and not self.paused
            and not self.retiring
            and conn.error is None
            and not self.transport.is_closing()  # the peer is gone, and `connection_lost` is still to come
        )

    def open(self, call: ClientCall) -> None:
        """Begin a call."""
        conn, channel = self.conn, self.channel
        if conn.peer_table != self.table:
            self.table = conn.peer_table
            self.encoder.restart(self.table)
        try:
            fields = channel.fields_of(call)
            block = self.encoder.request(call.method.path, channel.head, fields)
        except ValueError as error:
            call.end(Status.INTERNAL, str(error))
            return
        request = call.request
        if request is None:
            stream = conn.request()
            conn.send_headers(stream, block)
        else:
            stream = conn.send_request(block, prefixed(request))
        stream.app = call
        call.connection, call.stream = self, stream
        if not self.flush_scheduled and not self.receiving:
            self.flush_scheduled = True
            channel.loop.call_soon(self.flush)
        if len(conn.out) >= WRITE_PARTS:
            self.transport.write(conn.take())
        if request is None:
            call.opened()
        if self.keepalive_timer is None:
            self.received_at = channel.loop.time()
            self.keepalive_timer = channel.loop.call_later(channel.keepalive_s, self.check_alive)
        if conn.next_id > channel.stream_id_max:
            self.retire()

    def on_stream_end(self) -> None:
        """Begin parked calls; close a retiring connection after its last call."""
        if self.receiving:
            return  # called again at the end of this read
        if not self.retiring:
            self.stream_end_awaited = False
            self.channel.unpark()
        elif not self.conn.streams and not self.transport.is_closing():
            self.flush()
            self.transport.close()

    def retire(self) -> None:
        """Take no new calls, and close with the last one."""
        self.retiring = self.stream_end_awaited = True
        self.channel.retired(self)
        self.on_stream_end()

    # Writing

    def schedule_flush(self) -> None:
        """Write soon: at the end of this read, or on the loop's next iteration."""
        if not self.receiving and not self.flush_scheduled:
            self.flush_scheduled = True
            self.channel.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write all frames that are ready; close the connection after an error."""
        self.flush_scheduled = False
        conn = self.conn
        if self.transport.is_closing():  # the peer left while this flush waited for the next iteration
            conn.take()
            return
        if conn.out:
            self.transport.write(conn.take())
        if conn.error is not None:
            self.why = f"the server breaks the protocol: {conn.error}"
            logger.info("%s: %s (%s)", self.channel.target, conn.error, conn.error.code.name)
            self.transport.close()

    def check_alive(self) -> None:
        """Ping a silent peer while calls are open; drop one that does not react."""
        channel = self.channel
        self.keepalive_timer = None
        if not self.conn.streams:
            return
        quiet = channel.loop.time() - self.received_at
        wait = channel.keepalive_s - quiet
        if self.pinged:
            self.why = f"it does not answer pings, and was silent for {quiet:.3g} s"
            self.transport.abort()
            return
        if wait <= 0:
            self.pinged = True
            self.conn.ping(PING)
            self.flush()
            wait = channel.keepalive_timeout_s
        self.keepalive_timer = channel.loop.call_later(wait, self.check_alive)


def reason_of(error: Exception) -> str:
    """Return why a connection failed, in words."""
    if isinstance(error, socket.gaierror):
        return f"DNS resolution failed: {error.strerror}"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
