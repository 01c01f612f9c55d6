"""What connections cost that do nothing: the native transport in its own process, plain sockets before it."""

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from processes import Process
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.hpack import encode
from whimbrel.rpc.http2.stream import Headers

pytestmark = pytest.mark.process

CONNECTIONS, FIRST = 1000, 20  # so many before measuring, for what is made once
GROWTH_BYTES_MAX = 30_000_000
FILES = 2 * CONNECTIONS
TIMEOUT_S = 20.0
REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/grpc.health.v1.Health/Check"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"user-agent", b"idle/1"),
    (b"x-mq-request-id", b"1234567890"),
]


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Let this process, and those that it starts, have as many open files as are needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"no more than {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes(pid: int) -> int:
    """Return what a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def connect(host: str, port: int) -> socket.socket:
    """Connect, exchange settings, and make one call."""
    sock = socket.create_connection((host, port), TIMEOUT_S)
    conn = Connection(server=False)
    stream = conn.request()
    conn.send_headers(stream, encode(REQUEST))
    conn.send_data(stream, prefixed(b""), end=True)
    trailers: list[Headers] = []
    while not trailers:
        sock.sendall(conn.take())
        data = sock.recv(1 << 16)
        assert data, "the server has closed the connection"
        trailers = [event for event in conn.receive(data) if isinstance(event, Headers) and event.ended]
    assert (b"grpc-status", b"0", False) in trailers[0].fields
    sock.sendall(conn.take())  # its settings acknowledged
    return sock


def test_a_thousand_idle_connections_cost_less_than_30_mb(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with Process(tmp_path, "nameserver", "nameserver", transport="native") as server, ExitStack() as held:
        host, _, port = server.grpc.rpartition(":")
        for _ in range(FIRST):
            held.enter_context(connect(host, int(port)))
        before = resident_bytes(server.pid)
        for _ in range(CONNECTIONS):
            held.enter_context(connect(host, int(port)))
        grown = resident_bytes(server.pid) - before
        measured(
            f"{grown / 1e6:.1f} MB more for {CONNECTIONS} connections, {grown // CONNECTIONS} bytes each"
        )
        assert grown < GROWTH_BYTES_MAX
        held.enter_context(connect(host, int(port)))  # it still serves
