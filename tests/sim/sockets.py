"""The replicator's ends of the simulated network: sockets that never block, and the bell between processes.

connecting    `connect_ex` was called; ready for nothing until an answer has come
listening     ready to read when a connection waits to be accepted
connected     ready as its pipes are; once the connection is lost, its next call raises
closed        ready for nothing
"""

import errno
import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim.network import Connection, Pipe, SimNetwork
from whimbrel.errors import StoreError

if TYPE_CHECKING:
    from sim.process import SimProcess

__all__ = ["ReplicatorNetwork", "SimDoorbell", "SimSocket"]

RING_S = (20e-6, 500e-6)


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

    def ended(self, sock: SimSocket) -> bool:
        """Return whether the other end of a connection has closed it, or it is lost."""
        return bool(sock.error) or (sock.incoming is not None and sock.incoming.end_arrived)

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
        self.network, self.process, self.name = network, process, name
        self.root = f"{process.host}:{root}"  # stores of several hosts have one path
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

    def answers(self, other: str) -> bool:
        """Whether the other process lives."""
        bell = self.network.bell_names.get((self.root, other))
        return bell is not None and not bell.process.dead

    def take(self) -> bool:
        """Take one ring."""
        if not self.rings:
            return False
        self.rings -= 1
        return True

    def close(self) -> None:
        """No more."""
        self.network.bells.pop(self.number, None)
        if self.network.bell_names.get((self.root, self.name)) is self:
            del self.network.bell_names[self.root, self.name]
