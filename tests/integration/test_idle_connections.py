"""What connections cost that do nothing: a server in its own process, plain sockets before it."""

import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.cluster.processes import Process
from support.http2.blocking import idle_caller

pytestmark = pytest.mark.process

CONNECTIONS, FIRST = 1000, 20  # so many before measuring, for what is made once
GROWTH_BYTES_MAX = 30_000_000
FILES = 2 * CONNECTIONS


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


def test_a_thousand_idle_connections_cost_less_than_30_mb(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with Process(tmp_path, "nameserver", "nameserver") as server, ExitStack() as held:
        for _ in range(FIRST):
            held.enter_context(idle_caller(server.grpc))
        before = resident_bytes(server.pid)
        for _ in range(CONNECTIONS):
            held.enter_context(idle_caller(server.grpc))
        grown = resident_bytes(server.pid) - before
        measured(
            f"{grown / 1e6:.1f} MB more for {CONNECTIONS} connections, {grown // CONNECTIONS} bytes each"
        )
        assert grown < GROWTH_BYTES_MAX
        held.enter_context(idle_caller(server.grpc))  # it still serves
