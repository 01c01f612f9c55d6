"""A network in memory: streams between simulated processes, with delay, loss of connections, and cuts.

A connection is two `Pipe`s, one each way. Bytes leave in segments; each takes a drawn delay, none overtakes
another of its pipe, but connections overtake each other. What is on its way and what the receiver has not
taken is bounded by `WINDOW_BYTES`: a sender finds its socket full.

    cut(a, b)    nothing goes from a to b any more (one way); `mend` or `heal` ends it. Segments wait: TCP
                 repeats them; a connection with one that waits for `GIVE_UP_S` is reset
    reset        a connection is lost: both ends learn of it, each after its own delay, and what was on
                 its way is gone
    killed       the kernel of a killed process closes its ends: after a delay they are reset
    power loss   the other ends learn nothing until they send and the host is back, or their timers end it
    close        an end sends the end behind its last byte; once both ends have, the network forgets the
                 connection: nothing can happen to it any more

Attempts to connect: refused when the host is up and nobody listens; when it is down or cut off, no answer for
`NO_ANSWER_S`.

Two kinds of ends: `SimTransport`, an asyncio transport, and `SimSocket`, which the replicator uses.
"""

import asyncio
import errno
import random
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sim.scheduler import Scheduler
from whimbrel.errors import StoreError

if TYPE_CHECKING:
    from sim.loop import SimLoop
    from sim.process import SimProcess

__all__ = ["SimDoorbell", "SimNetwork", "SimSocket", "SimTransport"]

DELAY_S = (50e-6, 2e-3)
WINDOW_BYTES = 256 << 10
GIVE_UP_S = 15.0
RING_S = (20e-6, 500e-6)
NO_ANSWER_S = 20.0
READ_BYTES = 256 << 10


class Pipe:
    """One direction of a connection.

    Attributes:
        arrived: bytes that the receiver has not taken.
        in_flight: bytes sent that have not arrived.
        ended: the sender has closed.
        end_arrived: the receiver may learn of it, behind the last byte.
        waiting: arrivals that a cut holds up, in the order of their begin, since `waiting_since`.
        on_arrival: called when there is more to take.
        on_room: called when a pipe that was full has room.
    """

    def __init__(self, connection: "Connection", source: str, target: str) -> None:
        self.connection, self.network = connection, connection.network
        self.source, self.target = source, target
        self.arrived: deque[bytes] = deque()
        self.arrived_bytes = self.in_flight = 0
        self.ended = self.end_arrived = False
        self.last_at = 0.0
        self.waiting: deque[Callable[[], None]] = deque()
        self.waiting_since = 0.0
        self.on_arrival: Callable[[], None] | None = None
        self.on_room: Callable[[], None] | None = None

    @property
    def room(self) -> int:
        """How many more bytes the sender may send."""
        return max(WINDOW_BYTES - self.in_flight - self.arrived_bytes, 0)

    def send(self, data: bytes) -> None:
        """Send a segment."""
        self.in_flight += len(data)
        self.carry(lambda: self.arrive(data))

    def close(self) -> None:
        """Send the end."""
        if not self.ended:
            self.ended = True
            self.carry(self.arrive_end)
            self.connection.end_closed()

    def carry(self, arrival: Callable[[], None]) -> None:
        """Bring something to the other side, behind all that was sent before."""
        network = self.network
        if self.waiting or not network.passes(self.source, self.target):
            if not self.waiting:
                self.waiting_since = network.scheduler.now
                network.scheduler.later(GIVE_UP_S, self.give_up)
                network.held.append(self)
            self.waiting.append(arrival)
            return
        self.last_at = max(self.last_at, network.scheduler.now + network.delay())
        network.scheduler.at(self.last_at, arrival)

    def healed(self) -> None:
        """Let what waited go on."""
        waiting, self.waiting = self.waiting, deque()
        for arrival in waiting:
            self.carry(arrival)

    def give_up(self) -> None:
        """Reset a connection whose segments have waited too long."""
        if self.waiting and self.network.scheduler.now - self.waiting_since >= GIVE_UP_S - 1e-6:
            self.connection.reset("Connection timed out", errno.ETIMEDOUT)

    def arrive(self, data: bytes) -> None:
        """A segment has come."""
        self.in_flight -= len(data)
        if self.connection.lost:
            return
        if not self.network.up(self.target):
            return  # into the void; its sender learns when the host is back
        if self.connection.forgotten_by(self.target):
            self.connection.reset("Connection reset by peer", errno.ECONNRESET)
            return
        self.arrived.append(data)
        self.arrived_bytes += len(data)
        if self.on_arrival is not None:
            self.on_arrival()

    def arrive_end(self) -> None:
        """The end has come."""
        self.end_arrived = True
        if self.on_arrival is not None and not self.connection.lost:
            self.on_arrival()

    def take(self, count: int) -> bytes:
        """Take up to so many bytes that have arrived."""
        pieces = []
        while count > 0 and self.arrived:
            piece = self.arrived.popleft()
            if len(piece) > count:
                self.arrived.appendleft(piece[count:])
                piece = piece[:count]
            count -= len(piece)
            pieces.append(piece)
        data = b"".join(pieces)
        was_full = not self.room
        self.arrived_bytes -= len(data)
        if was_full and data and self.on_room is not None:
            self.network.scheduler.later(self.network.delay(), self.tell_room)
        return data

    def tell_room(self) -> None:
        """The sender may go on."""
        if self.on_room is not None and not self.connection.lost:
            self.on_room()


class Connection:
    """Two pipes, and the processes at their ends.

    Attributes:
        number: how many were before it.
        hosts, ports: the client's, then the server's.
        out, back: what the client sends, and the server.
        lost: it was reset; the ends learn of it by `on_lost`.
        owners: by host, the process that has the end; None until it has taken it.
        generations: by host, its generation at the begin.
    """

    def __init__(
        self, network: "SimNetwork", number: int, client: str, server: str, ports: tuple[int, int]
    ) -> None:
        self.network, self.number = network, number
        self.hosts, self.ports = (client, server), ports
        self.out = Pipe(self, client, server)
        self.back = Pipe(self, server, client)
        self.lost = False
        self.owners: dict[str, SimProcess | None] = {client: None, server: None}
        self.generations = {host: network.generation(host) for host in (client, server)}
        self.on_lost: list[Callable[[OSError], None]] = []

    def forgotten_by(self, host: str) -> bool:
        """Whether a host has lost its power since."""
        return self.network.generation(host) != self.generations[host]

    def reset(self, text: str, code: int) -> None:
        """Lose the connection; each end learns of it after a delay."""
        if self.lost:
            return
        self.lost = True
        self.network.connections.discard(self)
        for told in self.on_lost:
            self.network.scheduler.later(self.network.delay(), partial(told, OSError(code, text)))

    def end_closed(self) -> None:
        """Have the network forget it when the other end has closed as well."""
        if self.out.ended and self.back.ended:
            self.network.connections.discard(self)


class Connections:
    """The live connections in the order of their begin: sets of objects have no order that repeats."""

    def __init__(self) -> None:
        self.found: dict[int, Connection] = {}
        self.count = 0

    def begin(self, network: "SimNetwork", client: str, server: str, ports: tuple[int, int]) -> Connection:
        """Return a new one."""
        connection = self.found[self.count] = Connection(network, self.count, client, server, ports)
        self.count += 1
        return connection

    def discard(self, connection: Connection) -> None:
        """Forget one; harmless when it is forgotten."""
        self.found.pop(connection.number, None)

    def __iter__(self) -> Iterator[Connection]:
        """Yield those that live now, also when some end meanwhile."""
        return iter(list(self.found.values()))


class Listener(Protocol):
    """What takes connections at an address."""

    process: "SimProcess"

    def accepted(self, connection: Connection) -> None:
        """Take a connection."""


class SimNetwork:
    """All hosts, and what lies between them. A host is its address.

    Attributes:
        cuts: (source, target) between which nothing passes.
        connections: those that are neither lost nor closed at both ends.
        held: pipes with arrivals that a cut holds up.
        bells, bell_names: doorbells by number, and by store and name.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler, self.rng = scheduler, rng
        self.cuts: set[tuple[str, str]] = set()
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.connections = Connections()
        self.held: list[Pipe] = []
        self.down: dict[str, bool] = {}
        self.generations: dict[str, int] = {}
        self.next_port = 40000
        self.bells: dict[int, SimDoorbell] = {}
        self.bell_names: dict[tuple[str, str], SimDoorbell] = {}

    # The state of hosts and of what lies between them

    def up(self, host: str) -> bool:
        """Whether a host has power."""
        return not self.down.get(host, False)

    def generation(self, host: str) -> int:
        """How often a host has lost its power."""
        return self.generations.get(host, 0)

    def passes(self, source: str, target: str) -> bool:
        """Whether something sent now arrives."""
        return (source, target) not in self.cuts

    def delay(self) -> float:
        """Draw how long something takes."""
        low, high = DELAY_S
        drawn = self.rng.uniform(low, high)
        if self.rng.random() < 0.01:
            drawn += self.rng.uniform(0, 0.05)
        return drawn

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from one host to another."""
        if source != target:
            self.cuts.add((source, target))

    def mend(self, one: str, other: str) -> None:
        """End the cuts between two hosts."""
        self.cuts -= {(one, other), (other, one)}
        self.let_through()

    def heal(self) -> None:
        """End all cuts."""
        self.cuts.clear()
        self.let_through()

    def let_through(self) -> None:
        """Let go on what no cut holds up any more."""
        held, self.held = self.held, []
        for pipe in held:
            if self.passes(pipe.source, pipe.target):
                pipe.healed()
            else:
                self.held.append(pipe)

    def lose_power(self, host: str) -> None:
        """A host is gone: its ends know nothing any more; others are not told."""
        self.down[host] = True
        self.generations[host] = self.generation(host) + 1
        for key in [key for key in self.listeners if key[0] == host]:
            del self.listeners[key]

    def power_on(self, host: str) -> None:
        """A host is back, and knows none of its connections."""
        self.down[host] = False

    def killed(self, process: "SimProcess") -> None:
        """The kernel closes what a process had open."""
        for key in [key for key, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[key]
        for connection in self.connections:
            if process in connection.owners.values():
                self.scheduler.later(
                    self.delay(), partial(connection.reset, "Connection reset by peer", errno.ECONNRESET)
                )
        for number in [number for number, bell in self.bells.items() if bell.process is process]:
            del self.bells[number]

    def lose_connections(self, share: float) -> int:
        """Reset some connections, as a flapping link or a full table does; return how many."""
        chosen = [connection for connection in self.connections if self.rng.random() < share]
        for connection in chosen:
            connection.reset("Connection reset by peer", errno.ECONNRESET)
        return len(chosen)

    # For loops

    def serve(self, loop: "SimLoop", factory: Callable[[], Any], port: int) -> "SimServer":
        """Listen for an asyncio server on the loop's host; port 0 is a free one.

        Raises:
            OSError: the port is taken.
        """
        return SimServer(self, loop, factory, self.bind(loop.host, port))

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Return an address of a host that is free; port 0 is any.

        Raises:
            OSError: it is taken.
        """
        if not port:
            port = self.free_port()
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return host, port

    def free_port(self) -> int:
        """Return a port that nobody has had."""
        self.next_port += 1
        return self.next_port

    async def connect(
        self, loop: "SimLoop", factory: Callable[[], Any], host: str, port: int
    ) -> "tuple[SimTransport, Any]":
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

        self.dial(loop.host, host, port, done)
        connection = await future
        protocol = factory()
        transport = SimTransport(loop, connection, connection.back, connection.out, protocol)
        connection.owners[loop.host] = loop.process
        transport.begin()
        return transport, protocol

    def dial(
        self,
        source: str,
        host: str,
        port: int,
        done: Callable[[Connection | None, OSError | None], None],
    ) -> None:
        """Try to connect; `done` gets a connection or an error."""

        def arrive() -> None:
            if not self.up(host) or not self.passes(source, host) or not self.passes(host, source):
                self.scheduler.later(
                    NO_ANSWER_S, lambda: done(None, OSError(errno.ETIMEDOUT, "Connection timed out"))
                )
                return
            listener = self.listeners.get((host, port))
            if listener is None:
                self.scheduler.later(
                    self.delay(), lambda: done(None, OSError(errno.ECONNREFUSED, "Connection refused"))
                )
                return
            connection = self.connections.begin(self, source, host, (self.free_port(), port))
            connection.owners[host] = listener.process
            listener.accepted(connection)
            self.scheduler.later(self.delay(), lambda: done(connection, None))

        self.scheduler.later(self.delay(), arrive)


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


class SimSocket:
    """What a replicator uses of a socket, never blocking."""

    def __init__(self, network: SimNetwork, process: "SimProcess", host: str) -> None:
        self.network, self.process, self.host = network, process, host
        self.number = network.free_port()  # as a descriptor
        self.connection: Connection | None = None
        self.incoming: Pipe | None = None
        self.outgoing: Pipe | None = None
        self.accepts: deque[Connection] = deque()
        self.address: tuple[str, int] = (host, 0)
        self.peer: tuple[str, int] = ("", 0)
        self.listening = self.closed = False
        self.error = 0
        self.connecting = False
        self.on_ready: Callable[[], None] | None = None

    # Connecting and listening

    def connect_ex(self, address: tuple[str, int]) -> int:
        """Begin to connect."""
        self.connecting = True
        self.peer = address

        def done(connection: Connection | None, error: OSError | None) -> None:
            if self.closed or self.process.dead:
                if connection is not None:
                    connection.reset("Connection reset by peer", errno.ECONNRESET)
                return
            self.connecting = False
            if connection is None:
                assert error is not None
                self.error = error.errno or errno.ECONNREFUSED
            else:
                self.attach(connection, client=True)
            self.notify()

        self.network.dial(self.host, address[0], address[1], done)
        return errno.EINPROGRESS

    def listen(self, port: int) -> None:
        """Listen."""
        self.address = self.network.bind(self.host, port)
        self.listening = True
        self.network.listeners[self.address] = self

    def accepted(self, connection: Connection) -> None:
        """A connection waits to be accepted."""
        self.accepts.append(connection)
        self.notify()

    def accept(self) -> "tuple[SimSocket, tuple[str, int]]":
        """Take a connection."""
        if not self.accepts:
            raise BlockingIOError
        connection = self.accepts.popleft()
        sock = SimSocket(self.network, self.process, self.host)
        sock.attach(connection, client=False)
        return sock, sock.peer

    def attach(self, connection: Connection, *, client: bool) -> None:
        """Become an end of a connection."""
        self.connection = connection
        connection.owners[self.host] = self.process
        if client:
            self.incoming, self.outgoing = connection.back, connection.out
            self.address = (self.host, connection.ports[0])
            self.peer = (connection.hosts[1], connection.ports[1])
        else:
            self.incoming, self.outgoing = connection.out, connection.back
            self.address = (self.host, connection.ports[1])
            self.peer = (connection.hosts[0], connection.ports[0])
        self.incoming.on_arrival = self.notify
        self.outgoing.on_room = self.notify
        connection.on_lost.append(self.lost)

    def lost(self, error: OSError) -> None:
        """The connection is lost."""
        self.error = error.errno or errno.ECONNRESET
        self.notify()

    def notify(self) -> None:
        """Something may be possible now."""
        if self.on_ready is not None:
            self.on_ready()

    # Reading and writing

    def events(self) -> int:
        """What is possible now, as selectors say it."""
        if self.closed:
            return 0
        if self.listening:
            return selectors.EVENT_READ if self.accepts else 0
        if self.connecting:
            return 0
        if self.error or self.incoming is None or self.outgoing is None:
            return selectors.EVENT_READ | selectors.EVENT_WRITE
        found = 0
        if self.incoming.arrived or self.incoming.end_arrived:
            found |= selectors.EVENT_READ
        if self.outgoing.room:
            found |= selectors.EVENT_WRITE
        return found

    def recv(self, count: int) -> bytes:
        """Return bytes that have come."""
        self.raise_error()
        assert self.incoming is not None
        if not self.incoming.arrived:
            if self.incoming.end_arrived:
                return b""
            raise BlockingIOError
        return self.incoming.take(count)

    def recv_into(self, room: Any) -> int:
        """Take bytes that have come."""
        data = self.recv(len(room))
        room[: len(data)] = data
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send what there is room for."""
        self.raise_error()
        assert self.outgoing is not None
        count = min(len(data), self.outgoing.room)
        if not count:
            raise BlockingIOError
        self.outgoing.send(bytes(data[:count]))
        return count

    def raise_error(self) -> None:
        """Raise what has happened to the connection."""
        if self.error:
            raise OSError(self.error, errno.errorcode.get(self.error, "error"))
        if self.connection is not None and self.connection.forgotten_by(self.host):
            raise OSError(errno.ECONNRESET, "Connection reset by peer")

    def close(self) -> None:
        """Close."""
        if self.closed:
            return
        self.closed = True
        self.on_ready = None
        if self.listening:
            if self.network.listeners.get(self.address) is self:
                del self.network.listeners[self.address]
            for connection in self.accepts:
                connection.reset("Connection reset by peer", errno.ECONNRESET)
        if self.incoming is not None and self.outgoing is not None:
            if self.incoming.arrived and self.connection is not None:
                self.connection.reset("Connection reset by peer", errno.ECONNRESET)
            self.outgoing.close()

    # The rest

    def getsockname(self) -> tuple[str, int]:
        """Its own address."""
        return self.address

    def getpeername(self) -> tuple[str, int]:
        """The other's address."""
        return self.peer

    def getsockopt(self, level: int, option: int) -> int:
        """The error of an attempt to connect."""
        return self.error if option == socket.SO_ERROR else 0

    def setsockopt(self, *_: Any) -> None:
        """Nothing."""

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def fileno(self) -> int:
        """Its number, -1 when it is closed."""
        return -1 if self.closed else self.number


class ReplicatorNetwork:
    """The network as `whimbrel.replicator.sockets.Network` has it."""

    def __init__(self, network: SimNetwork, process: "SimProcess", host: str) -> None:
        self.network, self.process, self.host = network, process, host

    def resolve(self, host: str, port: int) -> list[tuple[int, Any]]:
        """Every name is an address."""
        return [(int(socket.AF_INET), (host, port))]

    def listen(self, host: str, port: int) -> SimSocket:
        """Return a socket that listens."""
        sock = SimSocket(self.network, self.process, self.host)
        try:
            sock.listen(port)
        except OSError as error:
            raise StoreError(f"can't listen on {host}:{port}: {error}") from error
        return sock

    def stream(self, family: int) -> SimSocket:
        """Return a socket to connect with."""
        return SimSocket(self.network, self.process, self.host)

    def send_file(self, sock: SimSocket, fd: int, position: int, count: int) -> int:
        """Send a part of a file."""
        assert sock.outgoing is not None
        sock.raise_error()
        count = min(count, sock.outgoing.room)
        if not count:
            raise BlockingIOError
        data = self.process.machine.files.pread(fd, count, position)
        return sock.send(data) if data else 0


class SimDoorbell:
    """The bell between a broker and its replicator, whose ring may be late or lost."""

    def __init__(self, network: SimNetwork, process: "SimProcess", root: Any, name: str) -> None:
        self.network, self.process, self.root, self.name = network, process, str(root), name
        self.number = network.free_port()
        self.rings = 0
        self.on_ring: Callable[[], None] | None = None
        network.bells[self.number] = self
        network.bell_names[self.root, name] = self

    def fileno(self) -> int:
        """Its number."""
        return self.number

    def ring(self, other: str) -> None:
        """Ring the other process's."""
        network = self.network

        def arrive() -> None:
            bell = network.bell_names.get((self.root, other))
            if bell is not None and not bell.process.dead:
                bell.rings += 1
                if bell.on_ring is not None:
                    bell.on_ring()

        if network.rng.random() > 0.02:
            network.scheduler.later(network.rng.uniform(*RING_S), arrive)

    def drain(self) -> int:
        """Take the rings."""
        rings, self.rings = self.rings, 0
        return rings

    def close(self) -> None:
        """No more."""
        self.network.bells.pop(self.number, None)
        if self.network.bell_names.get((self.root, self.name)) is self:
            del self.network.bell_names[self.root, self.name]
