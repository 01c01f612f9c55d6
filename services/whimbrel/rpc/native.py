"""Serves handlers over HTTP/2 of our own: what `server.py` does with grpc.aio, without its threads and tasks.

    bytes of a read ──► Connection ──► events ──► exchanges ──► handler ──► answer ─┐
                                                                                    ├──► one write
    Deferred completed (flush, replica, poll) ──► its connection is marked ──► once a loop tick ─┘

One pass over the bytes of a read finds all frames in it; calls that answer at once are answered within that
pass, without a task or a future, and all answers leave in one write. A `Deferred` holds nothing but its
exchange; when it is completed its connection is put on a list, and all of these are written once the loop
comes round.

An *exchange* is one call: of a method that answers once, one that is pulled (a task), or both ways. It ends
once: answered, reset by the peer, or with its connection; then `gone` tells who still holds it.

**Who does not read.** Answers wait in their streams as long as windows are closed, and in the transport as
long as the socket is full: then nothing is read from that connection any more, pulled streams wait, outboxes
count, and more answers of several messages are refused (`UNREAD_BYTES_MAX`).

**Who is gone without a word** is found by pings (`KEEPALIVE_S`); who connects and says nothing has
`HANDSHAKE_S`. A single timer looks at all connections.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from google.protobuf.message import DecodeError

from whimbrel.errors import BadRequest, NotSupported, Refused, RequestTimeout, Throttled, WhimbrelError
from whimbrel.rpc.edge import (
    MESSAGE_BYTES_MAX,
    OUTBOX_BYTES_MAX,
    OUTBOX_MESSAGES_MAX,
    STOP_GRACE_S,
    UNREAD_BYTES_MAX,
    Heard,
    body_code,
    known_error,
)
from whimbrel.rpc.handlers import (
    BidiMethod,
    Call,
    Deferred,
    PulledStreamMethod,
    ServerStreamMethod,
    Service,
    StreamHandler,
    UnaryMethod,
)
from whimbrel.rpc.health import Health
from whimbrel.rpc.http2.connection import (
    Code,
    Connection,
    Data,
    Drained,
    Headers,
    Limits,
    ProtocolError,
    Reset,
    Stream,
)
from whimbrel.rpc.http2.hpack import HpackError, encode
from whimbrel.rpc.http2.wire import (
    ANSWER,
    OK,
    Assembler,
    CompressedMessage,
    MessageTooLong,
    Metadata,
    prefixed,
    status_block,
    timeout_s,
)
from whimbrel.rpc.status import REASON_KEY, grpc_status

__all__ = ["NativeServer", "serve_native"]

WRITE_BYTES_HIGH = 256 << 10  # in a transport, from which on its peer is not read any more
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, HANDSHAKE_S, SWEEP_S = 60.0, 20.0, 20.0, 5.0
PING = b"whimbrel"
ABOUT = b"This port speaks gRPC (HTTP/2): apache.rocketmq.v2 for clients. `whimbrel --help` tells more.\n"
ABOUT_HEAD = encode(
    [(b":status", b"200"), (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(ABOUT))]
)
NOT_FOUND = encode([(b":status", b"404"), (b"content-length", b"0")])
NOT_GRPC = encode([(b":status", b"415"), (b"content-length", b"0")])

UNKNOWN = status_block(12, "Method not found!", first=True)  # as grpcio says it: no error of ours

# What the kernel holds back for a peer that does not read counts like what the transport holds.
UNSENT_LIMIT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)

log = logging.getLogger(__name__)

Method = UnaryMethod | ServerStreamMethod | PulledStreamMethod | BidiMethod


class Exchange:
    """One call, whatever its method's kind.

    Attributes:
        answered: something was sent already, so that a status comes as trailers.
        over: nothing may be sent any more.
    """

    __slots__ = ("answered", "assembler", "call", "connection", "over", "stream")

    def __init__(self, connection: "NativeConnection", stream: Stream, call: Call) -> None:
        self.connection, self.stream, self.call = connection, stream, call
        self.assembler = Assembler(MESSAGE_BYTES_MAX)
        self.answered = self.over = False

    def data(self, data: bytes) -> None:
        """Take data of the peer."""
        try:
            for message in self.assembler.feed(data):
                if self.over:
                    return
                self.received(message)
        except CompressedMessage as error:
            self.end(NotSupported(str(error)))
        except MessageTooLong as error:
            self.end(Throttled(str(error)))

    def received(self, message: bytes) -> None:
        """Take a message."""
        raise NotImplementedError

    def half_closed(self) -> None:
        """Note that the peer sends no more."""
        raise NotImplementedError

    def gone(self) -> None:
        """Note that nobody waits any more; called once, unless the call was ended here."""
        self.over = True

    def drained(self) -> None:
        """Note that what had to wait was sent."""

    def send(self, message: bytes) -> bool:
        """Send a message; return whether it is on its way, and nothing waits."""
        conn = self.connection.conn
        if not self.answered:
            self.answered = True
            conn.send_headers(self.stream, ANSWER)
        sent = conn.send_data(self.stream, prefixed(message))
        return sent and not self.connection.paused

    def end(self, error: WhimbrelError | None = None) -> None:
        """End the call, with OK or with an error's status."""
        if self.over:
            return
        self.over = True
        trailers = self.call.trailers
        if error is None and not trailers and self.answered:
            block = OK
        elif error is None:
            block = status_block(0, "", trailers, first=not self.answered)
        else:
            code, text, details = grpc_status(error)
            block = status_block(code.value[0], text, (*trailers, *details), first=not self.answered)
        self.connection.conn.send_headers(self.stream, block, end=True)
        self.stream.app = None  # the two hold each other
        self.connection.touched()


class PlainExchange(Exchange):
    """A request of somebody who does not speak gRPC; it is answered with a word of what this is."""

    __slots__ = ("verb",)

    def __init__(self, connection: "NativeConnection", stream: Stream, call: Call, verb: bytes) -> None:
        super().__init__(connection, stream, call)
        self.verb = verb

    def data(self, data: bytes) -> None:
        """Let what was sent along pass."""

    def half_closed(self) -> None:
        """Answer: not before all of the request was there, so that what is wrong with it is told."""
        if self.over:
            return
        self.over = True
        conn, stream = self.connection.conn, self.stream
        stream.app = None
        if self.call.method == "/" and self.verb in (b"GET", b"HEAD", b"POST"):
            conn.send_headers(stream, ABOUT_HEAD, end=self.verb == b"HEAD")
            conn.send_data(stream, ABOUT, end=True)
        else:
            conn.send_headers(stream, NOT_GRPC if self.verb == b"POST" else NOT_FOUND, end=True)


class OnceExchange(Exchange):
    """A method that answers once: with one message, or with a list of them."""

    __slots__ = ("deferred", "later", "method", "raw", "started", "timer")

    def __init__(
        self,
        connection: "NativeConnection",
        stream: Stream,
        call: Call,
        method: UnaryMethod | ServerStreamMethod,
    ) -> None:
        super().__init__(connection, stream, call)
        self.method = method
        self.raw: bytes | None = None
        self.deferred: Deferred[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.started, self.later = 0.0, False

    def received(self, message: bytes) -> None:
        """Keep the request."""
        if self.raw is not None:
            self.end(BadRequest("the call takes one message, and more came"))
            return
        self.raw = message

    def half_closed(self) -> None:
        """Answer, or leave that to who holds the `Deferred`."""
        if self.over:
            return
        if self.raw is None:
            self.end(BadRequest("the call takes one message, and none came"))
            return
        heard = self.connection.server.heard
        self.started = 0.0 if heard is None else time.perf_counter()
        call, method, raw = self.call, self.method, self.raw
        self.raw = b""
        try:
            if type(method) is ServerStreamMethod and self.connection.unread > UNREAD_BYTES_MAX:
                raise Throttled(
                    f"answers of more than {UNREAD_BYTES_MAX} bytes wait to be read by this client"
                )
            response = method.handle(call, method.request.FromString(raw))
        except DecodeError as error:
            self.failed(BadRequest(f"the request does not decode: {error}"), in_body=False)
        except HpackError as error:
            self.connection.fail(ProtocolError(Code.COMPRESSION_ERROR, str(error)))
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes a status
            self.failed(error)
        else:
            if isinstance(response, Deferred):
                self.wait_for(response)
            else:
                self.respond(response)

    def wait_for(self, deferred: Deferred[Any]) -> None:
        """Park the call until it is answered, or its deadline is there."""
        self.later = True
        self.deferred = deferred
        if deferred.done:
            self.settle()
            return
        deferred.waker = self.settle
        if self.call.deadline is not None:
            loop = self.connection.server.loop
            self.timer = loop.call_later(max(self.call.deadline - time.monotonic(), 0), self.expire)

    def settle(self) -> None:
        """Answer with what a `Deferred` was completed with."""
        deferred = self.deferred
        assert deferred is not None and deferred.done
        self.stop_timer()
        if self.over:
            return
        if deferred.error is not None:
            self.failed(deferred.error)
            return
        try:
            self.respond(deferred.result)
        except Exception as error:  # noqa: BLE001 - who completed the call has no part in this
            self.end(known_error(self.call, error))

    def expire(self) -> None:
        """End a call whose deadline has come; who holds it hears of that."""
        self.timer = None
        if self.deferred is not None:
            self.deferred.cancel()
        self.tell("CANCELLED")
        self.end(RequestTimeout("the call's deadline has come"))

    def respond(self, response: Any) -> None:
        """Send the answer."""
        if self.over:
            return
        conn, stream = self.connection.conn, self.stream
        self.tell(body_code(response) if response and self.method.fail is not None else "OK")
        if type(self.method) is UnaryMethod:
            self.answered = True
            conn.send_headers(stream, ANSWER)
            conn.send_data(stream, prefixed(response.SerializeToString()))
        else:
            for one in response:
                self.send(one.SerializeToString())
        self.end()

    def failed(self, error: Exception, *, in_body: bool = True) -> None:
        """Send the answer or the status that an error becomes."""
        known = known_error(self.call, error)
        if self.method.fail is None or not in_body:
            self.tell(known.grpc)
            self.end(known)
        else:
            self.call.trailers.append((REASON_KEY, known.reason))
            self.respond(self.method.fail(self.call, known))

    def tell(self, code: int | str) -> None:
        """Tell who counts how the call ended."""
        heard = self.connection.server.heard
        if heard is not None:
            heard(self.method.name, code, self.later, time.perf_counter() - self.started)

    def gone(self) -> None:
        """Tell who holds the call that nobody waits."""
        super().gone()
        self.stop_timer()
        if self.deferred is not None and not self.deferred.done:
            self.deferred.cancel()
            self.tell("CANCELLED")

    def stop_timer(self) -> None:
        """Forget the deadline."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class PulledExchange(Exchange):
    """A method whose responses are made one after the other, each when the one before is on its way."""

    __slots__ = ("method", "raw", "room", "task")

    def __init__(
        self, connection: "NativeConnection", stream: Stream, call: Call, method: PulledStreamMethod
    ) -> None:
        super().__init__(connection, stream, call)
        self.method = method
        self.raw: bytes | None = None
        self.task: asyncio.Task[None] | None = None
        self.room: asyncio.Future[None] | None = None

    def received(self, message: bytes) -> None:
        """Keep the request."""
        if self.raw is None:
            self.raw = message

    def half_closed(self) -> None:
        """Begin to answer."""
        if self.over:
            return
        if self.raw is None:
            self.end(BadRequest("the call takes one message, and none came"))
            return
        server = self.connection.server
        self.task = server.loop.create_task(self.run(self.raw))
        server.tasks.add(self.task)
        self.task.add_done_callback(server.tasks.discard)

    async def run(self, raw: bytes) -> None:
        """Send response after response."""
        streams = self.connection.server.streams
        streams.opened(self.method.name)
        responses = None
        try:
            responses = self.method.open(self.call, self.method.request.FromString(raw))
            async for response in responses:
                if streams.ending is not None:
                    raise streams.ending
                if self.over:
                    return
                sent = self.send(response.SerializeToString())
                del response
                self.connection.touched()
                if not sent:
                    self.room = self.connection.server.loop.create_future()
                    await self.room
            self.end()
        except asyncio.CancelledError:
            return  # nobody waits any more
        except DecodeError as error:
            self.end(BadRequest(f"the request does not decode: {error}"))
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes a status
            self.end(known_error(self.call, error))
        finally:
            streams.open_by_method[self.method.name] -= 1
            if responses is not None:
                await responses.aclose()

    def drained(self) -> None:
        """Go on."""
        if self.room is not None and not self.room.done():
            self.room.set_result(None)

    def gone(self) -> None:
        """Stop making responses."""
        super().gone()
        if self.task is not None:
            self.task.cancel()


class BothExchange(Exchange):
    """A stream both ways, or of one request and as many responses as somebody has; it is its own outbox."""

    __slots__ = ("closing", "error", "handler", "method", "queue", "queued")

    def __init__(
        self, connection: "NativeConnection", stream: Stream, call: Call, method: BidiMethod
    ) -> None:
        super().__init__(connection, stream, call)
        self.method = method
        self.queue: deque[bytes] = deque()
        self.queued = 0
        self.closing = False
        self.error: Exception | None = None
        self.handler: StreamHandler | None = None

    def open(self) -> None:
        """Let the method open its handler; the initial metadata leave at once."""
        self.answered = True
        self.connection.conn.send_headers(self.stream, ANSWER)
        streams = self.connection.server.streams
        streams.outboxes.add(self.outbox)
        streams.opened(self.method.name)
        try:
            self.handler = self.method.open(self.call, self.outbox)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes a status
            self.end(known_error(self.call, error))

    @property
    def outbox(self) -> "NativeOutbox":
        """The sending half, as handlers see it."""
        return NativeOutbox(self)

    def received(self, message: bytes) -> None:
        """Hand a message to the handler."""
        if self.handler is None or self.closing:
            return
        try:
            self.handler.received(self.method.request.FromString(message))
        except DecodeError as error:
            self.close(BadRequest(f"a message of the stream does not decode: {error}"))
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes a status
            self.close(known_error(self.call, error))

    def half_closed(self) -> None:
        """Tell the handler."""
        if self.handler is not None and not self.closing and not self.over and not self.method.single_request:
            self.handler.half_closed()

    def put(self, message: Any) -> bool:
        """Queue a message; return False, and drop it, when the stream is closed or its queue full."""
        if self.closing or self.over or len(self.queue) >= OUTBOX_MESSAGES_MAX:
            return False
        data: bytes = message.SerializeToString()
        if not self.queue and not self.stream.waiting and not self.connection.paused:
            self.send(data)
        elif self.queue and self.queued + len(data) > OUTBOX_BYTES_MAX:
            return False
        else:
            self.queue.append(data)
            self.queued += len(data)
        self.connection.touched()
        return True

    def drained(self) -> None:
        """Send what was queued meanwhile."""
        while self.queue and not self.stream.waiting and not self.connection.paused:
            data = self.queue.popleft()
            self.queued -= len(data)
            self.send(data)
        if self.closing and not self.queue:
            self.finish()
        self.connection.touched()

    def close(self, error: Exception | None = None) -> None:
        """End the stream after what is queued."""
        if not self.closing:
            self.closing, self.error = True, error
            if not self.queue:
                self.finish()

    def finish(self) -> None:
        """End the stream now."""
        if not self.over:
            self.end(None if self.error is None else known_error(self.call, self.error))

    def end(self, error: WhimbrelError | None = None) -> None:
        """End the stream, and tell the handler that it is over."""
        if not self.over:
            super().end(error)
            self.leave()

    def gone(self) -> None:
        """Tell the handler that it is over."""
        super().gone()
        self.leave()

    def leave(self) -> None:
        """Count the stream out, once."""
        streams = self.connection.server.streams
        streams.outboxes.discard(self.outbox)
        streams.open_by_method[self.method.name] -= 1
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.closed()


@dataclass(frozen=True, slots=True, eq=True)
class NativeOutbox:
    """What handlers send by; equal to any other one of its stream."""

    exchange: BothExchange = field(hash=True)

    def send(self, message: Any) -> bool:
        """Queue a message; return False, and drop it, when the stream is closed or its queue full."""
        return self.exchange.put(message)

    def close(self, error: Exception | None = None) -> None:
        """End the stream after what is queued, with a status when `error` is given."""
        self.exchange.close(error)


class NativeConnection(asyncio.Protocol):
    """One peer.

    Attributes:
        paused: the transport holds as much as it should; its peer is not read from meanwhile.
        heard_at: when something came last, in seconds of the loop's clock.
    """

    def __init__(self, server: "NativeServer") -> None:
        self.server = server
        self.conn = Connection(server=True, limits=server.limits)
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.peer = ""
        self.paused = self.receiving = self.marked = self.pinged = False
        self.made_at = self.heard_at = server.loop.time()

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self.peer = host_and_port(transport.get_extra_info("peername"))
        self.transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        if UNSENT_LIMIT is not None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, UNSENT_LIMIT, WRITE_BYTES_HIGH)
        self.server.connections.add(self)
        self.transport.write(self.conn.take())

    def data_received(self, data: bytes) -> None:
        """Take what a read gave, and write what comes of it at once."""
        self.heard_at = now = self.server.loop.time()
        self.pinged = False
        self.receiving = True
        try:
            for event in self.conn.receive(data, now):
                self.take(event)
        except Exception:
            log.exception("%s: a call can't be answered", self.peer)
            self.conn.fail(ProtocolError(Code.INTERNAL_ERROR, "internal error; the server's log says more"))
        finally:
            self.receiving = False
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """End all exchanges."""
        self.server.connections.discard(self)
        for stream in list(self.conn.streams.values()):
            self.leave(stream)
        self.conn.streams.clear()
        self.server.changed()

    def pause_writing(self) -> None:
        """Read no more from who does not read."""
        self.paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self.paused = False
        self.transport.resume_reading()
        for stream in list(self.conn.streams.values()):
            if isinstance(stream.app, Exchange) and not stream.waiting:
                stream.app.drained()

    # Events

    def take(self, event: Any) -> None:
        """Do what an event asks for."""
        kind = type(event)
        if kind is Data:
            stream = event.stream
            self.conn.consumed(stream, event.size)
            exchange = stream.app
            if exchange is not None:
                if event.data:
                    exchange.data(event.data)
                if event.ended:
                    exchange.half_closed()
        elif kind is Headers:
            if event.trailers:
                if event.stream.app is not None:
                    event.stream.app.half_closed()
            else:
                self.opened(event)
        elif kind is Reset:
            self.leave(event.stream)
        elif kind is Drained and event.stream.app is not None:
            event.stream.app.drained()

    def leave(self, stream: Stream) -> None:
        """Tell an exchange that its stream is gone."""
        exchange = stream.app
        stream.app = None
        if isinstance(exchange, Exchange) and not exchange.over:
            exchange.gone()

    def opened(self, event: Headers) -> None:
        """Begin a call."""
        stream, metadata = event.stream, Metadata(event.fields)
        try:
            path = (metadata.raw(b":path") or b"").decode("latin-1")
            kind = metadata.raw(b"content-type")
            if kind is None or not kind.startswith(b"application/grpc"):
                metadata.check()
                call = Call(path, self.peer, metadata, None)
                plain = stream.app = PlainExchange(self, stream, call, metadata.raw(b":method") or b"")
                if event.ended:
                    plain.half_closed()
                return
            timeout = metadata.raw(b"grpc-timeout")
        except HpackError as error:
            self.fail(ProtocolError(Code.COMPRESSION_ERROR, str(error)))
            return
        seconds = timeout_s(timeout) if timeout is not None else None
        call = Call(path, self.peer, metadata, None if seconds is None else time.monotonic() + seconds)
        method = self.server.methods.get(path)
        if method is None:
            self.conn.send_headers(stream, UNKNOWN, end=True)
            return
        exchange: OnceExchange | PulledExchange | BothExchange
        if isinstance(method, UnaryMethod | ServerStreamMethod):
            exchange = OnceExchange(self, stream, call, method)
        elif isinstance(method, PulledStreamMethod):
            exchange = PulledExchange(self, stream, call, method)
        else:
            exchange = BothExchange(self, stream, call, method)
        stream.app = exchange
        if isinstance(exchange, BothExchange):
            exchange.open()
        if event.ended:
            exchange.half_closed()

    # Writing

    @property
    def unread(self) -> int:
        """Bytes of answers that this peer has not taken."""
        waiting = sum(stream.waiting_bytes for stream in self.conn.blocked.values())
        return waiting + self.transport.get_write_buffer_size()

    def touched(self) -> None:
        """Write what there is: at the end of this read, or once the loop comes round."""
        if not self.receiving and not self.marked:
            self.marked = True
            self.server.mark(self)

    def flush(self) -> None:
        """Write what there is."""
        self.marked = False
        if self.server.idle is not None:
            self.server.changed()
        data = self.conn.take()
        if data:
            self.transport.write(data)
        if self.conn.error is not None and not self.transport.is_closing():
            log.info("%s: %s (%s)", self.peer, self.conn.error, self.conn.error.code.name)
            self.transport.close()

    def fail(self, error: ProtocolError) -> None:
        """End the connection for what its peer did wrong."""
        self.conn.fail(error)
        self.touched()

    def look(self, now: float) -> None:
        """Find out whether anybody is there."""
        quiet = now - self.heard_at
        if not self.conn.settled:
            if now - self.made_at > HANDSHAKE_S:
                self.transport.abort()
        elif self.pinged:
            if quiet > KEEPALIVE_S + KEEPALIVE_TIMEOUT_S:
                log.info("%s does not answer pings", self.peer)
                self.transport.abort()
        elif quiet > KEEPALIVE_S:
            self.pinged = True
            self.conn.ping(PING)
            self.flush()


class NativeStreams:
    """The open streams of a server, by method; as `server.Streams` for who counts and ends them."""

    def __init__(self) -> None:
        self.outboxes: set[NativeOutbox] = set()
        self.open_by_method: dict[str, int] = {}
        self.ending: Exception | None = None

    def opened(self, method: str) -> None:
        """Count a stream in."""
        self.open_by_method[method] = self.open_by_method.get(method, 0) + 1

    def close(self, error: Exception) -> None:
        """End all streams."""
        self.ending = error
        for outbox in tuple(self.outboxes):
            outbox.close(error)


class NativeServer:
    """A server that takes calls; see `serve_native`.

    Attributes:
        methods: by path.
        connections: that are open.
        tasks: of pulled streams.
    """

    def __init__(self, services: Iterable[Service], heard: Heard | None, limits: Limits) -> None:
        services = list(services)
        self.loop = asyncio.get_running_loop()
        self.health = Health(service.name for service in services)
        self.methods: dict[str, Method] = {}
        for service in (*services, self.health.service):
            for method in service.methods:
                path = f"/{service.name}/{method.name}"
                assert path not in self.methods, f"{path} is served twice"
                self.methods[path] = method
        self.heard, self.limits = heard, limits
        self.streams = NativeStreams()
        self.connections: set[NativeConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.marked: list[NativeConnection] = []
        self.host, self.port = "", 0
        self.listener: asyncio.Server | None = None
        self.idle: asyncio.Future[None] | None = None
        self.sweeper: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Return `host:port` as it was bound."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            OSError: the port is taken, or the host is not one of this machine's.
        """
        bracketed = f"[{host}]" if ":" in host else host
        try:
            self.listener = await self.loop.create_server(
                lambda: NativeConnection(self), host, port, reuse_port=False
            )
        except OSError as error:
            raise OSError(
                f"can't listen on {bracketed}:{port}: is another process there? ({error})"
            ) from error
        self.host, self.port = host, self.listener.sockets[0].getsockname()[1]
        self.sweep()

    def sweep(self) -> None:
        """Look at all connections, again and again."""
        now = self.loop.time()
        for connection in tuple(self.connections):
            connection.look(now)
        self.sweeper = self.loop.call_later(SWEEP_S, self.sweep)

    def mark(self, connection: NativeConnection) -> None:
        """Write a connection's answers once the loop comes round, with all that come until then."""
        if not self.marked:
            self.loop.call_soon(self.flush)
        self.marked.append(connection)

    def flush(self) -> None:
        """Write the answers of all connections that have some."""
        marked, self.marked = self.marked, []
        for connection in marked:
            connection.flush()

    def changed(self) -> None:
        """Look whether the last exchange has ended, for who waits for that."""
        if (
            self.idle is not None
            and not self.idle.done()
            and not any(c.conn.streams for c in self.connections)
        ):
            self.idle.set_result(None)

    async def stop(self, grace: float = STOP_GRACE_S) -> None:
        """Take no new calls, end the streams, and give calls in flight `grace` seconds."""
        self.health.stop()
        self.streams.close(Refused("this server is stopping"))
        if self.listener is not None:
            self.listener.close()
        for connection in tuple(self.connections):
            connection.conn.drain()
            connection.flush()
        self.idle = self.loop.create_future()
        self.changed()
        await asyncio.wait({self.idle}, timeout=grace)
        if self.sweeper is not None:
            self.sweeper.cancel()
        for connection in tuple(self.connections):
            connection.transport.close()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=grace)


async def serve_native(
    services: Sequence[Service],
    *,
    host: str,
    port: int,
    heard: Heard | None = None,
    limits: Limits | None = None,
) -> NativeServer:
    """Start to serve on `host` and `port`, as `server.serve` does.

    Raises:
        OSError: the port is taken, or the host is not one of this machine's.
    """
    server = NativeServer(services, heard, limits or Limits())
    await server.start(host, port)
    return server


def host_and_port(address: Any) -> str:
    """Return a socket's address as text."""
    if not isinstance(address, tuple):
        return str(address or "")
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
