"""Serves handlers over our own HTTP/2, which takes neither a thread nor a task for each call.

    bytes of a read ──► Connection ──► events ──► server calls ──► handler ──► response ─┐
                                                                                         ├──► one write
    Deferred completed (flush, replica, poll) ──► flush of its connection ──► once a tick ─┘

One pass over the bytes of a read finds all frames in it. Calls with an immediate response are handled within
that pass, without a task or a future, and all responses leave in one write. A `Deferred` refers to nothing
but its server call. When it is completed, its connection is put on a list; the connections on the list are
flushed together on the loop's next iteration.

**Slow readers.** Responses wait in their streams while windows are closed, and in the transport while the
socket is full. In the second case nothing is read from that connection, pulled streams pause, outboxes fill
up, and further responses of several messages are refused (`budget.py`, `UNREAD_BYTES_MAX`).

**Received data** is given back to the windows at once. A handler takes a message when it is whole, within the
same pass, and never waits before it takes the next one, so there is no slow handler to protect. What a
handler keeps it must bound itself. Incomplete messages and requests, which no handler has
yet, are bounded over all streams of a connection (`HELD_BYTES_MAX`). A smaller window for each stream would
bound them, too, but could stop every stream in the middle of a message that would soon be whole.

**One budget for all.** What each connection holds counts in the budget of the process (`connection.py`), from
which the one that holds most is ended when all together hold too much.

**Dead peers** are found by pings (`KEEPALIVE_S`). A peer that connects and sends nothing has `HANDSHAKE_S`.
A call with one request ends when that is not whole within `REQUEST_S`; streams of requests may stay open.
A single timer checks all connections. Before a connection gets here, it was let in (`admission.py`), and its
first byte has told whether it is under TLS (`protocol_detection.py`).

All objects of a call go with their last reference, so Python's cycle collector has nothing to do for calls.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from whimbrel.errors import Refused
from whimbrel.machine import open_files_limit
from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.admission import Admission, Place, connections_max
from whimbrel.rpc.server.budget import ProcessBudget
from whimbrel.rpc.server.calls import NativeOutbox
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.gathered_reads import GatheredReads
from whimbrel.rpc.server.handlers import RemotingService, Service, UnaryMethod, methods_by_path
from whimbrel.rpc.server.health import Health
from whimbrel.rpc.server.lanes import CallLane
from whimbrel.rpc.server.limits import STOP_GRACE_S, Guard, OnCallEnd, ServerLoad
from whimbrel.rpc.server.protocol_detection import (
    ContextProvider,
    ProtocolDetector,
    RejectionLog,
    TlsProtocol,
)
from whimbrel.rpc.server.read_end import ReadEnd
from whimbrel.rpc.server.reflection import with_standard_services
from whimbrel.rpc.server.remoting import OnRequestEnd, RemotingConnection

__all__ = ["NativeServer"]

SWEEP_S = 5.0
BACKLOG = 1024  # connections that wait to be accepted; one that finds no place tries again after a second

AnyConnection: TypeAlias = NativeConnection | RemotingConnection


class NativeStreams:
    """The open streams of a server by method, and the outboxes that its stop closes."""

    def __init__(self) -> None:
        self.outboxes: set[NativeOutbox] = set()
        self.open_by_method: dict[str, int] = {}
        self.ending: Exception | None = None

    def count_opened(self, method: str) -> None:
        """Count a stream in."""
        self.open_by_method[method] = self.open_by_method.get(method, 0) + 1

    def close(self, error: Exception) -> None:
        """End all streams."""
        self.ending = error
        for outbox in tuple(self.outboxes):
            outbox.close(error)


class NativeServer:
    """A server that takes calls; `serving.serve` starts one.

    Attributes:
        methods: by path.
        call_lane: the compiled lane's, where it takes plain calls of some methods; None without one.
        remoting: what is served by the remoting protocol; None where that is not spoken.
        on_request_end: called at the end of each of its requests.
        handshaking: connections before protocol detection or TLS are done.
        connections: that speak HTTP/2, or the remoting protocol.
        admission: which connections are let in.
        budget: what all of them hold in memory.
        read_end: is told of each read.
        gathered: small reads for the lane; None where nothing is put off to the end of a read.
        tasks: of pulled streams.
        unflushed: connections with responses to write on the loop's next iteration.
        port: where it listens, also when 0 was asked for.
        extra_ports: where it listens as well; likewise.
    """

    def __init__(
        self,
        services: Iterable[Service],
        *,
        on_call_end: OnCallEnd | None = None,
        guard: Guard | None = None,
        limits: Limits | None = None,
        admission: Admission | None = None,
        read_end: ReadEnd | None = None,
        remoting: RemotingService | None = None,
        on_request_end: OnRequestEnd | None = None,
    ) -> None:
        services = list(services)
        self.remoting, self.on_request_end = remoting, on_request_end
        self.loop = asyncio.get_running_loop()
        self.health = Health(service.name for service in services)
        self.serve_methods(services)
        self.on_call_end, self.guard, self.limits = on_call_end, guard, limits or Limits()
        self.read_end = read_end
        self.gathered = None if read_end is None else GatheredReads(read_end)
        self.streams = NativeStreams()
        self.handshaking: set[ProtocolDetector | TlsProtocol] = set()
        self.rejections, self.refusals = RejectionLog(), RejectionLog()
        self.admission = admission or Admission(connections_max(open_files_limit()))
        self.budget: ProcessBudget[AnyConnection] = ProcessBudget()
        self.context_provider: ContextProvider = None  # type: ignore[assignment]  # set by `start`
        self.connections: dict[AnyConnection, None] = {}  # in the order of their begin
        self.tasks: set[asyncio.Task[None]] = set()
        self.unflushed: list[AnyConnection] = []
        self.host, self.port = "", 0
        self.extra_ports: tuple[int, ...] = ()
        self.listeners: list[asyncio.Server] = []
        self.idle: asyncio.Future[None] | None = None
        self.sweeper: asyncio.TimerHandle | None = None

    @property
    def load(self) -> ServerLoad:
        """Return what its connections are and hold."""
        return ServerLoad(self.admission, self.budget)

    @property
    def address(self) -> str:
        """Return `host:port` as it was bound."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def replace(self, services: Sequence[Service], remoting: RemotingService | None = None) -> None:
        """Serve these services of the same names from the next call on; calls that have begun go on."""
        self.remoting = remoting
        if self.gathered is not None:
            self.gathered.run()
        self.serve_methods(services)
        for connection in self.connections:
            connection.set_lane()

    def serve_methods(self, services: Sequence[Service]) -> None:
        """Take the methods of services."""
        self.methods = methods_by_path(with_standard_services(services, self.health))
        self.call_lane: CallLane | None = None
        for method in self.methods.values():
            if type(method) is UnaryMethod and method.lane is not None:
                self.call_lane = method.lane

    def new_connection(self, connected_at: float, place: Place) -> NativeConnection:
        """Return an HTTP/2 connection for a peer that was accepted at that moment."""
        return NativeConnection(self, connected_at, place)

    def new_remoting_connection(self, connected_at: float, place: Place) -> RemotingConnection:
        """Return a connection for a peer that speaks the remoting protocol."""
        return RemotingConnection(self, connected_at, place)

    async def start(self, host: str, port: int, tls: TlsSettings, extra_ports: Sequence[int] = ()) -> None:
        """Listen.

        Raises:
            CertificateError: the certificate that `tls` names can't be used.
            OSError: a port is taken, or the host is not one of this machine's.
        """
        self.context_provider = ContextProvider(self.loop, tls, host)
        self.host = host
        try:
            self.port, *extra = [await self.listen(each) for each in (port, *extra_ports)]
        except OSError:
            for listener in self.listeners:
                listener.close()
            raise
        self.extra_ports = tuple(extra)
        self.sweep()

    async def listen(self, port: int) -> int:
        """Listen on a port of the server's host, and return it: 0 asks for a free one.

        Raises:
            OSError: it is taken, or the host is not one of this machine's.
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        try:
            listener = await self.loop.create_server(
                lambda: ProtocolDetector(self), self.host, port, reuse_port=False, backlog=BACKLOG
            )
        except OSError as error:
            raise OSError(f"can't listen on {host}:{port}: is another process there? ({error})") from error
        self.listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    def sweep(self) -> None:
        """Check the timeouts of all connections, periodically."""
        now = self.loop.time()
        for each in (*self.connections, *self.handshaking):
            each.check_timeouts(now)
        self.sweeper = self.loop.call_later(SWEEP_S, self.sweep)

    def schedule_flush(self, connection: AnyConnection) -> None:
        """Flush a connection on the loop's next iteration, together with others."""
        if not self.unflushed:
            self.loop.call_soon(self.flush)
        self.unflushed.append(connection)

    def flush(self) -> None:
        """Write the responses of all connections that have some."""
        unflushed, self.unflushed = self.unflushed, []
        for connection in unflushed:
            connection.flush()

    def notify_if_idle(self) -> None:
        """Complete `idle` once the last call has ended, for `stop`."""
        if (
            self.idle is not None
            and not self.idle.done()
            and not any(connection.open_calls for connection in self.connections)
        ):
            self.idle.set_result(None)

    async def stop(self, grace: float = STOP_GRACE_S) -> None:
        """Take no new calls, end the streams, and give calls in flight `grace` seconds."""
        self.health.stop()
        if self.gathered is not None:
            self.gathered.run()
        self.streams.close(Refused("this server is stopping"))
        for listener in self.listeners:
            listener.close()
        for waiting in tuple(self.handshaking):
            waiting.transport.abort()
        for connection in tuple(self.connections):
            connection.drain()
        self.idle = self.loop.create_future()
        self.notify_if_idle()
        await asyncio.wait({self.idle}, timeout=grace)
        if self.sweeper is not None:
            self.sweeper.cancel()
        for connection in tuple(self.connections):
            connection.transport.close()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=grace)
