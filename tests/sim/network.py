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

Two kinds of ends: asyncio transports (`transport.py`), and the replicator's sockets (`sockets.py`).
"""

import errno
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from sim.scheduler import Scheduler

if TYPE_CHECKING:
    from sim.process import SimProcess
    from sim.sockets import SimDoorbell

__all__ = ["Connection", "Pipe", "SimNetwork"]

DELAY_S = (50e-6, 2e-3)
WINDOW_BYTES = 256 << 10
GIVE_UP_S = 15.0
NO_ANSWER_S = 20.0


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
        left = WINDOW_BYTES - self.in_flight - self.arrived_bytes
        return left if left > 0 else 0

    def send(self, data: bytes) -> None:
        """Send a segment."""
        self.in_flight += len(data)
        self.carry(partial(self.arrive, data))

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
        if not self.arrived:
            return b""
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
        bells, bell_names: doorbells by number, and by host with store and name.
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
