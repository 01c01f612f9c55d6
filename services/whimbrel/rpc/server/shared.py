"""What the connections of a server share, and what the server knows of each, whichever protocol it speaks.

    NativeServer ──► Shared ◄── AnyConnection ◄── NativeConnection, RemotingConnection

A server makes connections, and each of them needs its server. What they need of it is here, below both: what
is served, hooks, budgets, and the list of those that have something to write.
"""

import asyncio
import socket
from collections.abc import Iterable
from typing import Protocol, cast

from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.admission import Place
from whimbrel.rpc.server.budget import ConnectionBudget, ProcessBudget
from whimbrel.rpc.server.handlers import Outbox, RemotingService, Service, UnaryMethod, methods_by_path
from whimbrel.rpc.server.lanes import CallLane
from whimbrel.rpc.server.limits import Guard, OnCallEnd, OnRequestEnd
from whimbrel.rpc.server.protocol_detection import RejectionLog, host_and_port
from whimbrel.rpc.server.read_end import ReadEnd

__all__ = ["COUNT_BYTES", "WRITE_BYTES_HIGH", "AnyConnection", "Gathered", "NativeStreams", "Shared"]

WRITE_BYTES_HIGH = 256 << 10  # in a transport; from there on nothing is read from its peer
COUNT_BYTES = 256 << 10  # in and out, before what a connection holds is counted anew

# Bounds what the kernel holds unsent, so that a slow reader shows in the transport's buffer.
UNSENT_LIMIT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)


class AnyConnection(asyncio.Protocol):
    """One connection of a peer, after protocol detection and TLS.

    Attributes:
        place: what it has taken of the connections that the server allows.
        connected_at: when it was accepted, by the loop's clock.
        peer: the other side's address.
        paused: the transport holds as much as it should; nothing is read from the peer meanwhile.
        receiving: a read is being handled; responses to it leave at its end.
        flush_scheduled: it is on its server's list of connections to flush.
        budget: what it holds in memory for requests and responses.
        uncounted: bytes in and out since its share in the process's budget was counted.
        calls: that the current read has begun.
    """

    def __init__(self, server: "Shared", connected_at: float, place: Place | None = None) -> None:
        self.server, self.connected_at, self.place = server, connected_at, place
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.peer = ""
        self.paused = self.receiving = self.flush_scheduled = False
        self.budget = ConnectionBudget()
        self.uncounted = self.calls = 0

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection in."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        self.peer = host_and_port(transport.get_extra_info("peername"))
        self.transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        if UNSENT_LIMIT is not None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, UNSENT_LIMIT, WRITE_BYTES_HIGH)
        self.server.connections[self] = None
        self.set_lane()

    def eof_received(self) -> None:
        """Handle what came before the peer's end; the transport closes then."""
        if self.server.gathered is not None and (data := self.server.gathered.withdraw(self)):
            self.receive(data)

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read."""
        self.paused = True
        self.transport.pause_reading()

    # Of each protocol

    def receive(self, data: bytes) -> None:
        """Handle a read that has waited, and write the responses at once."""
        raise NotImplementedError

    def set_lane(self) -> None:
        """Have the lane of what is served, if there is one, take what is plain from now on."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write all that is ready; close the connection after an error."""
        raise NotImplementedError

    def drain(self) -> None:
        """Take no calls any more; the server stops."""
        raise NotImplementedError

    def check_timeouts(self, now: float) -> None:
        """End what has taken too long."""
        raise NotImplementedError

    def end_for_memory(self) -> None:
        """End this connection, which holds more than any other when all together hold too much."""
        raise NotImplementedError

    @property
    def open_calls(self) -> int:
        """How many calls have begun and are not over."""
        raise NotImplementedError

    # Of all

    def schedule_flush(self) -> None:
        """Write responses soon: at the end of this read, or on the loop's next iteration."""
        if not self.receiving and not self.flush_scheduled:
            self.flush_scheduled = True
            self.server.schedule_flush(self)

    @property
    def unread(self) -> int:
        """Bytes of responses that this peer has not taken."""
        return self.budget.unread(self.waiting_bytes())

    def waiting_bytes(self) -> int:
        """Return the bytes of responses that wait to leave."""
        return self.transport.get_write_buffer_size()


class Gathered(Protocol):
    """Small reads that wait for the loop's next iteration (`gathered_reads.py`)."""

    def add(self, connection: AnyConnection, data: bytes, *, partial: bool) -> bool:
        """Take a read; return False where it is to be handled at once, behind what `withdraw` gives.

        `partial`: something is not whole on that connection.
        """

    def withdraw(self, connection: AnyConnection) -> bytes:
        """Return a connection's read, which does not wait any more; empty without one."""

    def run(self) -> None:
        """Handle all reads that wait."""


class NativeStreams:
    """The open streams of a server by method, and the outboxes that its stop closes."""

    def __init__(self) -> None:
        self.outboxes: set[Outbox] = set()
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


class Shared:
    """What the connections of a server share.

    Attributes:
        methods: by path.
        call_lane: the compiled lane's, where it takes plain calls of some methods; None without one.
        remoting: what is served by the remoting protocol; None where that is not spoken.
        on_request_end: called at the end of each of its requests.
        read_end: is told of each read.
        gathered: small reads for the lane; None where nothing is put off to the end of a read.
        rejections: logs the connections that speak no protocol.
        budget: what all connections hold in memory.
        connections: that speak HTTP/2, or the remoting protocol.
        tasks: of pulled streams.
        unflushed: connections with responses to write on the loop's next iteration.
        idle: completed when no call is open; None while the server does not stop.
    """

    gathered: Gathered | None

    def __init__(
        self,
        services: Iterable[Service],
        *,
        on_call_end: OnCallEnd | None,
        guard: Guard | None,
        limits: Limits | None,
        read_end: ReadEnd | None,
        remoting: RemotingService | None,
        on_request_end: OnRequestEnd | None,
    ) -> None:
        self.remoting, self.on_request_end = remoting, on_request_end
        self.loop = asyncio.get_running_loop()
        self.serve_methods(services)
        self.on_call_end, self.guard, self.limits = on_call_end, guard, limits or Limits()
        self.read_end = read_end
        self.streams, self.rejections = NativeStreams(), RejectionLog()
        self.budget: ProcessBudget[AnyConnection] = ProcessBudget()
        self.connections: dict[AnyConnection, None] = {}  # in the order of their begin
        self.tasks: set[asyncio.Task[None]] = set()
        self.unflushed: list[AnyConnection] = []
        self.idle: asyncio.Future[None] | None = None

    def serve_methods(self, services: Iterable[Service]) -> None:
        """Take the methods of services."""
        self.methods = methods_by_path(services)
        self.call_lane: CallLane | None = None
        for method in self.methods.values():
            if type(method) is UnaryMethod and method.lane is not None:
                self.call_lane = method.lane

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
        """Complete `idle` once the last call has ended, for the server's stop."""
        if (
            self.idle is not None
            and not self.idle.done()
            and not any(connection.open_calls for connection in self.connections)
        ):
            self.idle.set_result(None)
