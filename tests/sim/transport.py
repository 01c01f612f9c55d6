"""Asyncio's ends of connections of the simulated network: servers, attempts to connect, and transports.

A transport keeps what its pipe has no room for, and tells its protocol to wait beyond `high` bytes.

    open       reads, unless paused, and sends
    closing    `close` was called: sends what it has kept, then the end
    gone       its protocol has been told of the end, or is about to be
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim.network import Connection, Pipe, SimNetwork

if TYPE_CHECKING:
    from sim.loop import SimLoop

__all__ = ["SimServer", "SimTransport", "connect", "serve"]

READ_BYTES = 256 << 10


class SimServer:
    """A listener of an asyncio server."""

    def __init__(
        self, network: SimNetwork, loop: "SimLoop", factory: Callable[[], Any], address: tuple[str, int]
    ) -> None:
        self.network, self.loop, self.factory, self.address = network, loop, factory, address
        self.process = loop.process
        self.sockets = [NamedSocket(address)]
        network.listeners[address] = self

    def accepted(self, connection: Connection) -> None:
        """Take a connection, once the process gets to it."""

        def take() -> None:
            protocol = self.factory()
            SimTransport(self.loop, connection, connection.out, connection.back, protocol).begin()

        self.loop.call_soon(take)

    def close(self) -> None:
        """Stop listening."""
        if self.network.listeners.get(self.address) is self:
            del self.network.listeners[self.address]

    async def wait_closed(self) -> None:
        """Nothing is left."""


class NamedSocket:
    """What asyncio code asks of a transport's socket."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address

    def getsockname(self) -> tuple[str, int]:
        """The address it is bound to."""
        return self.address

    def setsockopt(self, *_: Any) -> None:
        """Nothing."""

    def getsockopt(self, *_: Any) -> int:
        """0."""
        return 0

    def fileno(self) -> int:
        """None."""
        return -1


class SimTransport(asyncio.Transport):
    """An end of a connection for an asyncio protocol."""

    def __init__(
        self, loop: "SimLoop", connection: Connection, incoming: Pipe, outgoing: Pipe, protocol: Any
    ) -> None:
        self.loop, self.connection = loop, connection
        self.incoming, self.outgoing = incoming, outgoing
        self.protocol = protocol
        self.buffer: deque[bytes] = deque()
        self.buffered = 0
        self.high, self.low = 64 << 10, 16 << 10
        self.paused = self.closing = self.gone = self.full = self.planned = False
        incoming.on_arrival = self.plan_read
        outgoing.on_room = self.plan_write
        connection.on_lost.append(self.plan_lose)
        here, there = incoming.target, incoming.source
        ports = connection.ports if here == connection.hosts[0] else connection.ports[::-1]
        self.extra = {
            "socket": NamedSocket((here, ports[0])),
            "sockname": (here, ports[0]),
            "peername": (there, ports[1]),
        }

    def begin(self) -> None:
        """Introduce the protocol."""
        self.protocol.connection_made(self)
        if self.incoming.arrived or self.incoming.end_arrived:
            self.plan_read()

    def plan_read(self) -> None:
        """Read in the next iteration."""
        if not self.planned:
            self.planned = True
            self.loop.call_soon(self.read)

    def plan_write(self) -> None:
        """Send more in the next iteration."""
        self.loop.call_soon(self.write_more)

    def plan_lose(self, error: OSError) -> None:
        """Learn of the loss in the next iteration."""
        self.loop.call_soon(self.lose, error)

    def read(self) -> None:
        """Give the protocol what has arrived."""
        self.planned = False
        if self.gone or self.paused:
            return
        data = self.incoming.take(READ_BYTES)
        if data:
            self.protocol.data_received(data)
        elif self.incoming.end_arrived:
            if not getattr(self.protocol, "eof_received", lambda: None)():
                self.close()

    def write(self, data: Any) -> None:
        """Send, or keep what the pipe does not take."""
        if self.gone or (self.closing and not self.buffer and self.outgoing.ended):
            return
        data = bytes(data)
        if not data:
            return
        if not self.buffer and not self.full and len(data) <= self.outgoing.room:
            self.outgoing.send(data)
            return
        self.buffer.append(data)
        self.buffered += len(data)
        self.write_more()

    def write_more(self) -> None:
        """Send what the pipe takes."""
        if self.gone:
            return
        while self.buffer and self.outgoing.room:
            piece = self.buffer.popleft()
            room = self.outgoing.room
            if len(piece) > room:
                self.buffer.appendleft(piece[room:])
                piece = piece[:room]
            self.buffered -= len(piece)
            self.outgoing.send(piece)
        if self.buffered > self.high and not self.full:
            self.full = True
            self.protocol.pause_writing()
        elif self.full and self.buffered <= self.low:
            self.full = False
            self.protocol.resume_writing()
        if self.closing and not self.buffer:
            self.finish(None)

    def writelines(self, pieces: Any) -> None:
        """Send all."""
        self.write(b"".join(pieces))

    def close(self) -> None:
        """Close when all is sent."""
        if not self.closing:
            self.closing = True
            if not self.buffer:
                self.finish(None)

    def abort(self) -> None:
        """Close at once."""
        if not self.gone:
            self.closing = True
            self.gone = True
            self.connection.reset("Connection reset by peer", errno.ECONNRESET)
            self.loop.call_soon(self.protocol.connection_lost, None)

    def finish(self, error: OSError | None) -> None:
        """The end of this side."""
        if not self.gone:
            self.gone = True
            self.outgoing.close()
            self.loop.call_soon(self.protocol.connection_lost, error)

    def lose(self, error: OSError) -> None:
        """The connection is lost."""
        if not self.gone:
            self.gone = self.closing = True
            self.buffer.clear()
            self.protocol.connection_lost(error)

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self.closing

    def set_protocol(self, protocol: Any) -> None:
        """Another protocol takes over."""
        self.protocol = protocol

    def get_protocol(self) -> Any:
        """The protocol."""
        return self.protocol

    def pause_reading(self) -> None:
        """Take nothing more for now."""
        self.paused = True

    def resume_reading(self) -> None:
        """Go on."""
        self.paused = False
        self.plan_read()

    def is_reading(self) -> bool:
        """Whether it reads."""
        return not self.paused and not self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set from how many bytes on the protocol is told to wait."""
        self.high = high if high is not None else 64 << 10
        self.low = low if low is not None else self.high // 4

    def get_write_buffer_size(self) -> int:
        """The bytes that wait."""
        return self.buffered

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the socket."""
        return self.extra.get(name, default)


def serve(loop: "SimLoop", factory: Callable[[], Any], port: int) -> SimServer:
    """Listen for an asyncio server on the loop's host; port 0 is a free one.

    Raises:
        OSError: the port is taken.
    """
    return SimServer(loop.network, loop, factory, loop.network.bind(loop.host, port))


async def connect(
    loop: "SimLoop", factory: Callable[[], Any], host: str, port: int
) -> tuple[SimTransport, Any]:
    """Connect for an asyncio client; return transport and protocol.

    Raises:
        OSError: refused, or no answer.
    """
    future: asyncio.Future[Connection] = loop.create_future()

    def done(connection: Connection | None, error: OSError | None) -> None:
        if future.done():
            if connection is not None:
                connection.reset("Connection reset by peer", errno.ECONNRESET)
            return
        if connection is not None:
            loop.call_soon(fulfil, future, connection)
        elif error is not None:
            loop.call_soon(fail, future, error)

    loop.network.dial(loop.host, host, port, done)
    connection = await future
    protocol = factory()
    transport = SimTransport(loop, connection, connection.back, connection.out, protocol)
    connection.owners[loop.host] = loop.process
    transport.begin()
    return transport, protocol


def fulfil(future: "asyncio.Future[Connection]", connection: Connection) -> None:
    """Give a connection to whoever waits; reset it when nobody does any more."""
    if not future.done():
        future.set_result(connection)
    else:
        connection.reset("Connection reset by peer", errno.ECONNRESET)


def fail(future: "asyncio.Future[Connection]", error: OSError) -> None:
    """Give an error to whoever waits."""
    if not future.done():
        future.set_exception(error)
