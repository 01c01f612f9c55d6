"""gRPC clients of other languages call the native transport: all four forms, 0 bytes to 4 MiB.

The programs and their cases: tests/echo/README.md. Where a language's tools are missing its test is skipped;
those whose tools take long to fetch on a new machine, or are not there, are marked `slow`.
"""

import subprocess
from collections.abc import Iterator

import pytest

from support.http2.echoing import LANGUAGES, EchoServer, Missing, cases, prepare
from support.waiting import until

pytestmark = pytest.mark.process

KIB = 1024
SIZES = (0, 1, KIB, 16 * KIB - 1, 64 * KIB, 1 << 20, 4 << 20)
MANY = 100  # calls at the same time
RUN_S_MAX = 90
SLOW = ("go", "java", "cpp")
NEVER = 2  # calls that a program leaves: by deadline, and by cancellation


@pytest.fixture(scope="module")
def server() -> Iterator[EchoServer]:
    """Serve all programs."""
    with EchoServer() as running:
        yield running


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "language",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in LANGUAGES],
)
def test_every_form_of_call_in_every_size(language: str, server: EchoServer) -> None:
    try:
        program = prepare(language)
    except Missing as error:
        pytest.skip(f"no {language} client here: {error}")
    before = server.cancelled
    done = subprocess.run(
        [*program, server.address, str(MANY), *map(str, SIZES)],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, cases(SIZES)), done.stderr[-2000:]
    until(lambda: server.cancelled == before + NEVER, what="the server to hear of clients that have gone")
    until(lambda: not server.open_streams, what="the last stream to end")
