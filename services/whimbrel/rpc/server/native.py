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

What connections need of their server is in `shared.py`; here it listens, makes connections and stops.

All objects of a call go with their last reference, so Python's cycle collector has nothing to do for calls.
"""

import asyncio
from collections.abc import Iterable, Sequence

from whimbrel.errors import Refused
from whimbrel.machine import open_files_limit
from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.admission import Admission, Place, connections_max
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.gathered_reads import GatheredReads
from whimbrel.rpc.server.handlers import RemotingService, Service
from whimbrel.rpc.server.health import Health
from whimbrel.rpc.server.limits import STOP_GRACE_S, Guard, OnCallEnd, OnRequestEnd, ServerLoad
from whimbrel.rpc.server.protocol_detection import (
    HTTP2_FIRST_BYTE,
    ContextProvider,
    ProtocolDetector,
    RejectionLog,
    TlsProtocol,
)
from whimbrel.rpc.server.read_end import ReadEnd
from whimbrel.rpc.server.reflection import with_standard_services
from whimbrel.rpc.server.remoting import RemotingConnection
from whimbrel.rpc.server.shared import AnyConnection, Shared

__all__ = ["NativeServer"]

SWEEP_S = 5.0
REMOTING_FIRST_BYTE = 0  # of a frame's length: frames have less than 16 MiB
BACKLOG = 1024  # connections that wait to be accepted; one that finds no place tries again after a second


class NativeServer(Shared):
    """A server that takes calls; `serving.serve` starts one.

    Attributes:
        handshaking: connections before protocol detection or TLS are done.
        admission: which connections are let in.
        refusals: logs those that are not.
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
        self.health = Health(service.name for service in services)
        super().__init__(
            with_standard_services(services, self.health),
            on_call_end=on_call_end,
            guard=guard,
            limits=limits,
            read_end=read_end,
            remoting=remoting,
            on_request_end=on_request_end,
        )
        self.gathered = None if read_end is None else GatheredReads(read_end)
        self.handshaking: set[ProtocolDetector | TlsProtocol] = set()
        self.refusals = RejectionLog()
        self.admission = admission or Admission(connections_max(open_files_limit()))
        self.context_provider: ContextProvider = None  # type: ignore[assignment]  # set by `start`
        self.host, self.port = "", 0
        self.extra_ports: tuple[int, ...] = ()
        self.listeners: list[asyncio.Server] = []
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
        self.serve_methods(with_standard_services(services, self.health))
        for connection in self.connections:
            connection.set_lane()

    def new_connection(self, connected_at: float, place: Place) -> NativeConnection:
        """Return an HTTP/2 connection for a peer that was accepted at that moment."""
        return NativeConnection(self, connected_at, place)

    def plain_connection(self, connected_at: float, place: Place, data: bytes) -> AnyConnection | None:
        """Return the connection for a peer that begins with these bytes; None: they are of no protocol."""
        if data[0] == HTTP2_FIRST_BYTE:
            return self.new_connection(connected_at, place)
        if data[0] == REMOTING_FIRST_BYTE and self.remoting is not None:
            return RemotingConnection(self, connected_at, place)
        return None

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
