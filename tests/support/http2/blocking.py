"""Clients that wait in their thread: one that sends any bytes, and one that keeps HTTP/2's rules.

    with Caller(Target("127.0.0.1:8091")) as caller:
        status = caller.call("/grpc.health.v1.Health/Check", b"")

For attacks on our processes and for thousands of connections: an answer is a status and bytes, and no rule is
checked that the server must keep.
"""

import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from support.http2.frames import PING, block, frame, status_of
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.errors import ProtocolError
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.stream import Data, GoAway, Headers, Limits, Reset

__all__ = ["ANSWER_S", "HEALTH", "Caller", "Ended", "Peer", "Target", "dial", "idle_caller"]

ANSWER_S = 60.0  # for as long something is waited for
HEALTH = "/grpc.health.v1.Health/Check"
IDLE_CLIENT = (("user-agent", "idle/1"), ("x-mq-request-id", "1234567890"))
MARK = b"hostile!"  # of the pings by which `settle` waits
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


class Ended(Exception):
    """The other end has closed the connection."""


def dial(address: str, source: str = "") -> socket.socket:
    """Connect, from an address of this machine where one is given."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection(
        (host, int(port)), ANSWER_S, source_address=(source, 0) if source else None
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Target:
    """What peers connect to.

    Attributes:
        address: of its port.
        sent: bytes so far, by all of them.
    """

    def __init__(self, address: str) -> None:
        self.address, self.sent = address, 0


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
        deadline = time.monotonic() + ANSWER_S
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
        ping = frame(PING, 0, 0, MARK)
        self.send(ping)
        self.target.sent -= len(ping)
        found = bytearray()
        took, self.took = self.took, found.extend  # type: ignore[method-assign,assignment]
        deadline = time.monotonic() + ANSWER_S
        while not self.ended and MARK not in found and time.monotonic() < deadline:
            del found[: -len(MARK)]
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

    def __init__(self, target: Target, *, source: str = "", limits: Limits = WIDE) -> None:
        super().__init__(target, source=source)
        self.conn = Connection(server=False, limits=limits)
        self.statuses: dict[int, int] = {}
        self.messages: dict[int, bytes] = {}

    def took(self, data: bytes) -> None:
        """Take frames."""
        for event in self.conn.receive(data):
            if isinstance(event, Data):
                self.conn.consumed(event.stream, event.size)
                self.messages[event.stream.id] = self.messages.get(event.stream.id, b"") + event.data
            elif isinstance(event, Headers) and event.ended:
                self.statuses[event.stream.id] = status_of(event) or 0
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
        more = [(name.encode(), value.encode()) for name, value in metadata]
        self.conn.send_headers(stream, block(path, more))
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
        deadline = time.monotonic() + ANSWER_S
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


def idle_caller(address: str) -> Caller:
    """Connect, make one call, and do nothing more."""
    caller = Caller(Target(address), limits=Limits())
    assert caller.call(HEALTH, b"", IDLE_CLIENT) == 0
    return caller
