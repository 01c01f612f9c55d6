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

**What is received** is given back to the windows at once: a handler takes a message when it is whole, in the
same pass, and either answers or keeps nothing but what it needs to; none of them waits before it takes the
next one, so there is nobody to slow a peer down for. What a handler keeps it must bound itself, as it must
behind grpcio (a journal refuses, a ledger answers). What no handler has yet, halves of messages and requests
that have not ended, is bounded over all streams of a connection (`HELD_BYTES_MAX`): a window for each stream
would stop a peer, too, but every one of these streams then, in the middle of messages that may be whole soon.

**Who is gone without a word** is found by pings (`KEEPALIVE_S`); who connects and says nothing has
`HANDSHAKE_S`. A single timer looks at all connections. Before a connection is here its first byte has told
whether it is under TLS (`arrivals.py`).

**What a call costs** (`bench/front.py`, sends of 1 KiB, four in a read, on a slow virtual core, in us):

    frames, header block, windows     6       18 when the client puts its ids into the table (Go, Java)
    method, metadata, answer          5
    protobuf's decoding               3 to 5
    the broker: checks, log, queue entry, index, the answer's bytes    33; 20 in batches of 32

and what the kernel takes for a read and a write, which all calls of a read share. All objects of a call go
with their last reference: Python's collector ran 3 times in 180,000 calls, for 0.4 ms at most.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from whimbrel.errors import Refused
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.errors import Code, ProtocolError
from whimbrel.rpc.http2.hpack import HpackError
from whimbrel.rpc.http2.stream import Data, Drained, Headers, Limits, Reset, Stream
from whimbrel.rpc.http2.wire import Metadata, status_block, timeout_s
from whimbrel.rpc.server.budget import ConnectionBudget, held_too_much
from whimbrel.rpc.server.calls import (
    BidiServerCall,
    NativeOutbox,
    PlainCall,
    PulledStreamCall,
    ServerCall,
    UnaryServerCall,
)
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    Method,
    PulledStreamMethod,
    ServerStreamMethod,
    Service,
    UnaryMethod,
    methods_by_path,
)
from whimbrel.rpc.server.health import Health
from whimbrel.rpc.server.limits import STOP_GRACE_S, Guard, OnCallEnd
from whimbrel.rpc.server.protocol_detection import (
    HANDSHAKE_S,
    Contexts,
    ProtocolDetector,
    Secured,
    Strangers,
    host_and_port,
)
from whimbrel.rpc.server.reflection import with_standard_services

__all__ = ["NativeServer", "serve_native"]

WRITE_BYTES_HIGH = 256 << 10  # in a transport, from which on its peer is not read any more
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, SWEEP_S = 60.0, 20.0, 5.0
PING = b"whimbrel"
UNKNOWN = status_block(12, "Method not found!", first=True)  # as grpcio says it: no error of ours

# What the kernel holds back for a peer that does not read counts like what the transport holds.
UNSENT_LIMIT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)

log = logging.getLogger(__name__)

KIND_FIELDS = frozenset((b":path", b"content-type", b"grpc-timeout"))


class Kind:
    """What the fields of a call say; found out once for all calls of a shape (`hpack.Shape`).

    Attributes:
        method: None when it is unknown. methods: the server's table that `method` was found in; another one
        means that the services were replaced. seconds: until the deadline; None without one. known, varying:
        for `Metadata`.
    """

    __slots__ = ("grpc", "known", "method", "methods", "path", "seconds", "varying")

    def __init__(
        self, path: str, methods: Mapping[str, Method], seconds: float | None, *, grpc: bool
    ) -> None:
        self.path, self.methods, self.seconds, self.grpc = path, methods, seconds, grpc
        self.method = methods.get(path) if grpc else None
        self.known: dict[str, str | None] | None = None
        self.varying: frozenset[bytes] = frozenset()


class NativeConnection(asyncio.Protocol):
    """One peer.

    Attributes:
        paused: the transport holds as much as it should; its peer is not read from meanwhile.
        made_at: when it came to the port, by the loop's clock; `heard_at`: when something came last.
        budget: what it holds in memory.
    """

    def __init__(self, server: "NativeServer", made_at: float) -> None:
        self.server = server
        self.conn = Connection(server=True, limits=server.limits)
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.peer = ""
        self.paused = self.receiving = self.marked = self.pinged = False
        self.made_at = self.heard_at = made_at
        self.budget = ConnectionBudget()

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
            if isinstance(stream.app, ServerCall) and not stream.waiting:
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
                elif not exchange.over:
                    self.hold(exchange)
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

    def hold(self, exchange: ServerCall) -> None:
        """Count what an exchange has received and nobody has taken."""
        size = exchange.received_bytes()
        before, exchange.held = exchange.held, size
        if not self.budget.reserve(size, before=before):
            exchange.end(held_too_much())

    def leave(self, stream: Stream) -> None:
        """Tell an exchange that its stream is gone."""
        exchange = stream.app
        stream.app = None
        if isinstance(exchange, ServerCall) and not exchange.over:
            exchange.gone()

    def opened(self, event: Headers) -> None:
        """Begin a call."""
        stream, shape = event.stream, event.shape
        kind: Kind | None = None if shape is None else shape.memo
        if kind is not None and kind.methods is self.server.methods:
            metadata = Metadata(event.fields, kind.known, kind.varying)
        else:
            metadata = Metadata(event.fields)
            try:
                kind = self.kind_of(metadata)
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
            if self.server.guard is not None and not once.may_begin(self.server.guard):
                return
            if event.ended:
                once.half_closed()
            return
        if not kind.grpc:
            plain = stream.app = PlainCall(self, stream, call, metadata.raw(b":method") or b"")
            if event.ended:
                plain.half_closed()
            return
        exchange: PulledStreamCall | BidiServerCall
        if method is None:
            self.conn.send_headers(stream, UNKNOWN, end=True)
            return
        elif type(method) is PulledStreamMethod:
            exchange = PulledStreamCall(self, stream, call, method)
        else:
            assert type(method) is BidiMethod
            exchange = BidiServerCall(self, stream, call, method)
        stream.app = exchange
        if self.server.guard is not None and not exchange.may_begin(self.server.guard):
            return
        if type(exchange) is BidiServerCall:
            exchange.open()
        if event.ended:
            exchange.half_closed()

    def kind_of(self, metadata: Metadata) -> "Kind":
        """Find out what a call's fields ask for.

        Raises:
            HpackError: a field is wrongly coded.
        """
        path = (metadata.raw(b":path") or b"").decode("latin-1")
        content = metadata.raw(b"content-type")
        if content is None or not content.startswith(b"application/grpc"):
            return Kind(path, self.server.methods, None, grpc=False)
        timeout = metadata.raw(b"grpc-timeout")
        seconds = None if timeout is None else timeout_s(timeout)
        return Kind(path, self.server.methods, seconds, grpc=True)

    # Writing

    @property
    def unread(self) -> int:
        """Bytes of answers that this peer has not taken: the queues', the streams', and the transport's."""
        return self.budget.unread(self.waiting_bytes())

    def waiting_bytes(self) -> int:
        """Return the bytes of responses that wait in streams for windows, and in the transport."""
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
        self.budget.flushed()
        if self.server.idle is not None:
            self.server.changed()
        data = self.conn.take()
        if self.transport.is_closing():  # its peer went while answers waited for the loop to come round
            return
        if data:
            self.transport.write(data)
        if self.conn.error is not None:
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
        arrivals: of whom it is not known yet what they speak.
        connections: that are open.
        tasks: of pulled streams.
    """

    def __init__(
        self,
        services: Iterable[Service],
        *,
        on_call_end: OnCallEnd | None = None,
        guard: Guard | None = None,
        limits: Limits | None = None,
    ) -> None:
        services = list(services)
        self.loop = asyncio.get_running_loop()
        self.health = Health(service.name for service in services)
        self.methods = methods_by_path(with_standard_services(services, self.health))
        self.on_call_end, self.guard, self.limits = on_call_end, guard, limits or Limits()
        self.streams = NativeStreams()
        self.arrivals: set[ProtocolDetector | Secured] = set()
        self.strangers = Strangers()
        self.contexts: Contexts = None  # type: ignore[assignment]  # until it starts
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

    def replace(self, services: Sequence[Service]) -> None:
        """Serve these services of the same names from the next call on; calls that have begun go on."""
        self.methods = methods_by_path(with_standard_services(services, self.health))

    def connection(self, made_at: float) -> NativeConnection:
        """Return a connection for who came at that moment, and speaks HTTP/2."""
        return NativeConnection(self, made_at)

    async def start(self, host: str, port: int, tls: TlsSettings) -> None:
        """Listen.

        Raises:
            CertificateError: the certificate that `tls` names can't be used.
            OSError: the port is taken, or the host is not one of this machine's.
        """
        bracketed = f"[{host}]" if ":" in host else host
        self.contexts = Contexts(self.loop, tls, host)
        try:
            self.listener = await self.loop.create_server(
                lambda: ProtocolDetector(self), host, port, reuse_port=False
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
        for each in (*self.connections, *self.arrivals):
            each.look(now)
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
        for arrival in tuple(self.arrivals):
            arrival.transport.abort()
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
    on_call_end: OnCallEnd | None = None,
    guard: Guard | None = None,
    tls: TlsSettings | None = None,
    limits: Limits | None = None,
) -> NativeServer:
    """Start to serve on `host` and `port`, as `serving.serve` does.

    Raises:
        CertificateError: the certificate that `tls` names can't be used.
        OSError: the port is taken, or the host is not one of this machine's.
    """
    server = NativeServer(services, on_call_end=on_call_end, guard=guard, limits=limits)
    await server.start(host, port, tls or TlsSettings())
    return server
