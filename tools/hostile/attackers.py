"""What programs that attack our processes share: peers, what an attack costs, and an honest client beside it.

    target = Target(address, bytes_told=130_000, times=10)
    with Watch(pid, address) as watch:          # CPU time, memory, and whether others are still answered
        attack(target)                          # sends through `Peer` and `Caller` until `target.left` is 0
        watch.wait_until_quiet()
    watch.cpu_s, watch.grown_bytes, watch.longest_wait_s

Attackers come from 127.0.0.1 and the honest client from 127.0.0.2, so that limits by host tell them apart.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.errors import ProtocolError
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.hpack import encode, value_of
from whimbrel.rpc.http2.stream import Data, GoAway, Headers, Limits, Reset

__all__ = ["HONEST_HOST", "Caller", "Ended", "Honest", "Peer", "Target", "Watch", "dial", "request_fields"]

HONEST_HOST = "127.0.0.2"
READ_BYTES = 1 << 18
# Of a client that takes everything.
WIDE = Limits(
    window=1 << 30,
    connection_window=1 << 30,
    frame=(1 << 24) - 1,
    block=1 << 28,
    header_list=1 << 28,
    empty=1 << 20,
)
SAMPLE_S = 0.02
# Quiet: it takes no more than that in that time. What the honest client asks takes a tenth of the time.
QUIET_S, QUIET_CPU_S = 0.3, 0.1
QUIET_WITHIN_S = 120.0
HONEST_S = 60.0  # how long the honest client waits for an answer
HEALTH = "/grpc.health.v1.Health/Check"
TICKS = os.sysconf("SC_CLK_TCK")


class Ended(Exception):
    """The other end has closed the connection."""


def dial(address: str, source: str = "") -> socket.socket:
    """Connect, from an address of this machine where one is given."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection(
        (host, int(port)), HONEST_S, source_address=(source, 0) if source else None
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def request_fields(path: str, metadata: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the header block of a call."""
    return encode(
        [
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"x"),
            (b"te", b"trailers"), (b"content-type", b"application/grpc"),
            *((name.encode(), value.encode()) for name, value in metadata),
        ]
    )  # fmt: skip


class Target:
    """A process that is attacked, and how many bytes are left to attack it with.

    Attributes:
        address: of the port that is attacked.
        sent: bytes so far.
    """

    def __init__(self, address: str, bytes_told: int, times: float) -> None:
        self.address, self.total, self.sent = address, int(bytes_told * times), 0

    @property
    def left(self) -> int:
        """Return how many bytes are left."""
        return max(self.total - self.sent, 0)


class Peer:
    """A connection that sends any bytes, and throws away what comes.

    Attributes:
        ended: the other end has closed it.
    """

    def __init__(self, target: Target, *, source: str = "") -> None:
        self.target = target
        self.sock = dial(target.address, source)
        self.sock.setblocking(False)
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def took(self, data: bytes) -> None:
        """Take what has come."""

    def ready(self, wanted: int, seconds: float) -> int:
        """Wait until the socket is ready for something; return for what, errors count as readable."""
        poll = select.poll()  # knows descriptors above 1023
        poll.register(self.sock, wanted)
        found = sum(flags for _, flags in poll.poll(seconds * 1000))
        return found | select.POLLIN if found & (select.POLLHUP | select.POLLERR) else found

    def read(self, seconds: float) -> bool:
        """Take what comes within a time; False: nothing came."""
        if self.ended or not self.ready(select.POLLIN, seconds):
            return False
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.ended = not data
        self.took(data)
        return bool(data)

    def send(self, data: bytes) -> None:
        """Send all of it, and take meanwhile what comes.

        Raises:
            Ended: the other end took only a part.
        """
        view = memoryview(data)
        deadline = time.monotonic() + HONEST_S
        while view:
            ready = self.ready(select.POLLIN | select.POLLOUT, 1.0)
            if ready & select.POLLIN:
                self.read(0)
            if self.ended or time.monotonic() > deadline:
                raise Ended
            if ready & select.POLLOUT:
                try:
                    count = self.sock.send(view[:READ_BYTES])
                except BlockingIOError:
                    continue
                except OSError:
                    self.ended = True
                    raise Ended from None
                self.target.sent += count
                view = view[count:]

    def settle(self) -> None:
        """Wait until the other end has handled what was sent, as it shows by answering a ping.

        Raises:
            Ended: it has closed the connection.
        """
        ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00hostile!"
        self.send(ping)
        self.target.sent -= len(ping)
        found = bytearray()
        took, self.took = self.took, found.extend  # type: ignore[method-assign,assignment]
        deadline = time.monotonic() + HONEST_S
        while not self.ended and b"hostile!" not in found and time.monotonic() < deadline:
            del found[:-8]
            self.read(1.0)
        self.took = took  # type: ignore[method-assign]
        if self.ended:
            raise Ended


class Caller(Peer):
    """A client that keeps HTTP/2's rules, with any number of calls at a time.

    Attributes:
        statuses: gRPC statuses of the calls that have ended, by stream; -1: the stream was reset.
        messages: what came, by stream, with prefixes.
    """

    def __init__(self, target: Target, *, source: str = "") -> None:
        super().__init__(target, source=source)
        self.conn = Connection(server=False, limits=WIDE)
        self.statuses: dict[int, int] = {}
        self.messages: dict[int, bytes] = {}

    def took(self, data: bytes) -> None:
        """Take frames."""
        for event in self.conn.receive(data):
            if isinstance(event, Data):
                self.conn.consumed(event.stream, event.size)
                self.messages[event.stream.id] = self.messages.get(event.stream.id, b"") + event.data
            elif isinstance(event, Headers) and event.ended:
                found = {name: value_of((name, value, coded)) for name, value, coded in event.fields}
                self.statuses[event.stream.id] = int(found.get(b"grpc-status", b"0"))
            elif isinstance(event, Reset):
                self.statuses.setdefault(event.stream.id, -1)
            elif isinstance(event, GoAway) and event.code:
                self.ended = True

    def begin(
        self, path: str, body: bytes | None, metadata: Sequence[tuple[str, str]] = (), *, end: bool = True
    ) -> Any:
        """Begin a call; without a body its stream stays open. Raises Ended."""
        try:
            stream = self.conn.request()
        except ProtocolError:
            self.ended = True
            raise Ended from None
        self.conn.send_headers(stream, request_fields(path, metadata))
        if body is not None:
            self.conn.send_data(stream, prefixed(body), end=end)
        self.write()
        return stream

    def add(self, stream: Any, body: bytes) -> None:
        """Send a further message of a stream. Raises Ended."""
        self.conn.send_data(stream, prefixed(body))
        self.write()

    def write(self) -> None:
        """Send what may be sent. Raises Ended."""
        while data := self.conn.take():
            self.send(data)

    def wait(self, numbers: Iterable[int], until: Callable[[int], bool] | None = None) -> None:
        """Wait until calls have ended, or are as `until` says. Raises Ended when that does not come."""
        done = until or self.statuses.__contains__
        deadline = time.monotonic() + HONEST_S
        for number in numbers:
            while not done(number):
                if self.ended or time.monotonic() > deadline:
                    raise Ended
                self.read(1.0)
                self.write()

    def call(self, path: str, body: bytes, metadata: Sequence[tuple[str, str]] = ()) -> int:
        """Call, and return the status. Raises Ended."""
        stream = self.begin(path, body, metadata)
        self.wait([stream.id])
        return self.statuses[stream.id]


class Honest:
    """Asks by one question after the other whether it is still served, and notes the longest wait.

    Attributes:
        asked: how many answers came.
        failed: why an answer did not come; empty when all did.
    """

    def __init__(self, address: str, ask: Callable[[], None] | None = None) -> None:
        self.address, self.ask = address, ask or self.check
        self.caller: Caller | None = None
        self.asked, self.longest_s, self.failed = 0, 0.0, ""

    def check(self) -> None:
        """Ask for the health, over one connection for as long as it lasts."""
        if self.caller is None or self.caller.ended or self.asked % 500 == 499:
            if self.caller is not None:
                self.caller.sock.close()
            self.caller = Caller(Target(self.address, 0, 0), source=HONEST_HOST)
        assert self.caller.call(HEALTH, b"") == 0

    def turn(self) -> None:
        """Ask once."""
        began = time.monotonic()
        try:
            self.ask()
        except (OSError, Ended, AssertionError) as error:
            self.failed = self.failed or repr(error)
        self.asked += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began)


class Watch:
    """Measures a process from the begin of the block to its end, while an honest client asks it."""

    def __init__(self, pid: int, honest: Honest) -> None:
        self.stat, self.status = Path(f"/proc/{pid}/stat"), Path(f"/proc/{pid}/status")
        self.honest = honest
        self.over = threading.Event()
        self.cpu_s, self.grown_bytes = 0.0, 0
        self.asking = threading.Thread(target=self.keep_asking, daemon=True)
        self.sampling = threading.Thread(target=self.keep_sampling, daemon=True)

    def __enter__(self) -> Self:
        for _ in range(20):  # what is made once is made before
            self.honest.turn()
        self.honest.longest_s = 0.0
        self.begin_cpu_s, self.begin_bytes = self.cpu_now_s(), self.anonymous_bytes()
        self.sampling.start()
        self.asking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self.asking.join(2 * HONEST_S)
        self.sampling.join()

    def cpu_now_s(self) -> float:
        """Return the CPU time of the process so far, of all its threads."""
        fields = self.stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def anonymous_bytes(self) -> int:
        """Return the anonymous memory that the process has now."""
        line = next(line for line in self.status.read_text().splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024

    def keep_sampling(self) -> None:
        """Note the greatest growth."""
        while not self.over.wait(SAMPLE_S):
            self.grown_bytes = max(self.grown_bytes, self.anonymous_bytes() - self.begin_bytes)

    def keep_asking(self) -> None:
        """Ask again and again."""
        while not self.over.wait(SAMPLE_S):
            self.honest.turn()

    def wait_until_quiet(self) -> None:
        """Wait until the process has done all that it was given, and note what it took."""
        deadline = time.monotonic() + QUIET_WITHIN_S
        before = self.cpu_now_s()
        waiting = threading.Event()
        while time.monotonic() < deadline:
            waiting.wait(QUIET_S)  # another process works meanwhile; nothing tells when it is done
            now = self.cpu_now_s()
            self.cpu_s = now - self.begin_cpu_s
            if now - before <= QUIET_CPU_S:
                return
            before = now
