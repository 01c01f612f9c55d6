"""A server whose methods echo what they are sent, and programs of other languages that call it.

    with EchoServer() as server, ...:
        subprocess.run([*prepare("go"), server.address, "100", "0", "1024"])

The methods and the cases: tests/echo/README.md. The server is ours with handlers of its own,
on a thread with a loop of its own. `prepare` builds a program through its language's own package client into
the cache of `sdk_programs.py`, or names what is missing on this machine (`Missing`).
"""

import asyncio
import functools
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.systems.sdk_programs import Missing, cache, copied, java_classes, node_packages, run, tool
from whimbrel.deferred import Deferred
from whimbrel.errors import NotSupported, TopicNotFound
from whimbrel.rpc.server import loop
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    Outbox,
    PulledStreamMethod,
    ServerStreamMethod,
    Service,
    UnaryMethod,
)
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.serving import serve

__all__ = ["LANGUAGES", "ONCE", "EchoServer", "Missing", "cases", "prepare"]

LANGUAGES = ("python sync", "python aio", "go", "nodejs", "java", "cpp")
SOURCES = Path(__file__).resolve().parents[2] / "echo"
BUILD_TIMEOUT_S = 300.0
START_S = STOP_S = 10.0

FORMS = ("unary", "listed", "pulled", "client", "both")
ONCE = ("status", "metadata", "many", "deadline", "cancel")
MESSAGE = 'no such thing: 100 % ümlaut & "quotes"'
COPIES = 3


class Raw:
    """A message that is bytes as they are."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def FromString(cls, data: bytes) -> Self:
        """Return what was received."""
        return cls(data)

    def SerializeToString(self) -> bytes:
        """Return what is to be sent."""
        return self.data


def echo(call: Call, request: Raw) -> Raw:
    """Return the message, and the call's metadata as trailers."""
    if "x-echo" in call.metadata:
        call.trailers.append(("x-echo", call.metadata["x-echo"]))
        call.trailers.append(("x-echo-bin", call.metadata["x-echo-bin"].encode("latin-1")))  # type: ignore[arg-type]
    return request


def fail(call: Call, _: Raw) -> Raw:
    """End with an error."""
    call.trailers.append(("x-reason", "none"))
    raise TopicNotFound(MESSAGE)


def listed(_: Call, request: Raw) -> list[Raw]:
    """Give back the message some times."""
    return [request] * COPIES


async def pulled(call: Call, request: Raw) -> AsyncGenerator[Raw, None]:
    """Give back the message some times, one after the other."""
    for _ in range(COPIES):
        yield request


class Both:
    """Gives back each message when it comes."""

    def __init__(self, call: Call, outbox: Outbox) -> None:
        self.call, self.outbox = call, outbox

    def received(self, message: Raw) -> None:
        """Return it; a client that does not read misses some, and will notice."""
        self.outbox.send(message)

    def half_closed(self) -> None:
        """End as well."""
        self.outbox.close()

    def closed(self) -> None:
        """Leave nothing."""


class Gather(Both):
    """Gives back the last message when all of them, which are equal, have come."""

    def __init__(self, call: Call, outbox: Outbox) -> None:
        super().__init__(call, outbox)
        self.messages: list[Raw] = []

    def received(self, message: Raw) -> None:
        """Keep it."""
        self.messages.append(message)

    def half_closed(self) -> None:
        """Answer."""
        if len({message.data for message in self.messages}) != 1:
            self.outbox.close(NotSupported("the messages are not equal"))
            return
        self.call.trailers.append(("x-count", str(len(self.messages))))
        self.outbox.send(self.messages[-1])
        self.outbox.close()


class EchoServer:
    """See the module.

    Attributes:
        cancelled: calls of `Never` whose clients have gone.
        server: the transport.
    """

    def __init__(self) -> None:
        self.cancelled = 0
        self.server: NativeServer = None  # type: ignore[assignment]
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.started = threading.Event()
        self.thread = threading.Thread(target=lambda: loop.run(self.main()), daemon=True)

    @property
    def address(self) -> str:
        """Return what clients connect to."""
        return self.server.address

    @property
    def open_streams(self) -> int:
        """Return how many streams have not ended."""
        connections = tuple(self.server.connections)
        return sum(len(each.conn.streams) for each in connections if isinstance(each, NativeConnection))

    def never(self, _: Call, __: Raw) -> Deferred[Raw]:
        """Leave the call without an answer."""
        deferred: Deferred[Raw] = Deferred()
        deferred.on_cancel = self.count
        return deferred

    def count(self) -> None:
        """Count a client that has gone."""
        self.cancelled += 1

    def service(self) -> Service:
        """Return the methods."""
        kinds: dict[str, Any] = {
            "Unary": functools.partial(UnaryMethod, handle=echo),
            "Fail": functools.partial(UnaryMethod, handle=fail),
            "Never": functools.partial(UnaryMethod, handle=self.never),
            "Listed": functools.partial(ServerStreamMethod, handle=listed),
            "Pulled": functools.partial(PulledStreamMethod, open=pulled),
            "Gather": functools.partial(BidiMethod, open=Gather),
            "Both": functools.partial(BidiMethod, open=Both),
        }
        return Service("whimbrel.test.Echo", tuple(make(name, Raw) for name, make in kinds.items()))

    async def main(self) -> None:
        """Serve until `stop`."""
        self.loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        self.server = await serve([self.service()], host="127.0.0.1", port=0)
        self.started.set()
        await self.stopped.wait()
        await self.server.stop(grace=0)

    def __enter__(self) -> Self:
        self.thread.start()
        assert self.started.wait(START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self.stopped.set)
        self.thread.join(STOP_S)


def cases(sizes: tuple[int, ...]) -> list[str]:
    """Return a program's output when all is well."""
    return [f"{form} {size}" for size in sizes for form in FORMS] + list(ONCE)


@functools.cache
def prepare(language: str) -> tuple[str, ...]:
    """Build a program where it is not yet, and return the command that starts it.

    Raises:
        Missing: a tool or a package is not to be had here.
    """
    name, _, variant = language.partition(" ")
    if name == "python":
        return (sys.executable, str(SOURCES / "python" / "echo.py"), variant)
    folder = copied(name, SOURCES, cache() / "echo")
    if name == "go":
        run([tool("go"), "build", "-mod=mod", "-o", "echo", "."], folder, "go build", BUILD_TIMEOUT_S)
        return (str(folder / "echo"),)
    if name == "nodejs":
        return (node_packages(folder, "@grpc/grpc-js", BUILD_TIMEOUT_S), str(folder / "echo.js"))
    if name == "java":
        java, path = java_classes(folder, "Echo", BUILD_TIMEOUT_S)
        return (java, "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", path, "Echo")
    assert name == "cpp"
    compiler, config = tool("g++"), tool("pkg-config")
    asked = subprocess.run([config, "--libs", "grpc++"], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise Missing("there is no grpc++ (Debian: libgrpc++-dev)")
    if (
        not (folder / "echo").exists()
        or (folder / "echo").stat().st_mtime < (folder / "echo.cc").stat().st_mtime
    ):
        words = ["-O1", "-std=c++17", "-o", "echo", "echo.cc", *asked.stdout.split(), "-lpthread"]
        run([compiler, *words], folder, "g++", BUILD_TIMEOUT_S)
    return (str(folder / "echo"),)
