"""The clients of `beside.py`: for each of RocketMQ's official SDKs a producer and a simple consumer that run
all the time, a client that comes with the fault, and a look at the route again and again.

A producer sends one message after the other, each with the SDK's own settings: three tries of 3 s. What it
gives up is not sent again. Each language has a topic of its own.
"""

import bisect
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from support.systems.sdk_programs import Program, remote_ports

__all__ = ["LANGUAGES", "PAUSE_MS", "Clients", "Newcomer", "RouteWatch", "longest_pause"]

LANGUAGES = ("java", "python", "go", "nodejs")
# Between two sends of a producer: consumers, which acknowledge one message after the other, must keep up.
PAUSE_MS = 200
STEADY = 10  # messages, before a fault and after it
START_S = 60.0
START_TRIES = 4
FLOW_S = 90.0
ROUTE_LOOK_S = 0.02
LATE_S = 1.0  # what was answered before a fault may be told so late


def longest_pause(moments: Sequence[float], since: float, to: float) -> tuple[float, bool]:
    """Return the longest time between moments of a span, its ends among them.

    Returns:
        The time, and whether it was at the end of the span, and so was not over.
    """
    inside = moments[bisect.bisect_right(moments, since) : bisect.bisect_left(moments, to)]
    edges = [since, *inside, to]
    gaps = [later - earlier for earlier, later in itertools.pairwise(edges)]
    return max(gaps), max(gaps) == gaps[-1]


class Clients:
    """The programs of all SDKs.

    Args:
        name: what topics and bodies begin with.
    """

    def __init__(self, endpoint: str, name: str, languages: Iterable[str] = LANGUAGES) -> None:
        self.endpoint, self.languages = endpoint, tuple(languages)
        self.topics = {language: f"{name}-{language}" for language in self.languages}
        self.producers: dict[str, Program] = {}
        self.consumers: dict[str, Program] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def start(self) -> None:
        """Start all, and wait until they send and receive."""
        for language, topic in self.topics.items():
            self.producers[language] = self.program(language, "produce", topic, 0, PAUSE_MS)
            self.consumers[language] = self.program(language, "simple", f"{topic}-group", "*")
        self.flow()

    def program(self, language: str, role: str, *words: object) -> Program:
        """Start one. Servers that have just started may be too slow for SDKs that ask only once."""
        for left in reversed(range(START_TRIES)):
            started = Program(language, role, self.endpoint, self.topics[language], *words)
            try:
                return started.wait_ready(START_S)
            except AssertionError:
                started.__exit__(None, None, None)
                if not left:
                    raise
        raise AssertionError("the last try has raised")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.all:
            each.__exit__(kind, error, trace)

    @property
    def all(self) -> list[Program]:
        """All of them."""
        return [*self.producers.values(), *self.consumers.values()]

    def flow(self) -> None:
        """Wait until each sends, and receives what was sent last."""
        for language in self.languages:
            self.producers[language].wait_more("sent", STEADY, FLOW_S, "sending goes on")
        for language in self.languages:
            newest = set(self.producers[language].bodies("sent")[-STEADY:])
            self.consumers[language].wait_bodies("got", newest, FLOW_S)

    def gone_on(self, began: float) -> bool:
        """Whether each has sent and received since a fault."""
        programs = [*((each, "sent") for each in self.producers.values())]
        programs += [(each, "got") for each in self.consumers.values()]
        return all(len(after(each, kind, began + LATE_S)) >= STEADY for each, kind in programs)

    def connected(self, port: int) -> list[str]:
        """Return the languages whose producer is connected to a port."""
        return [language for language, each in self.producers.items() if port in remote_ports(each.child.pid)]

    def sends(self, language: str) -> list[float]:
        """Return when sends were acknowledged."""
        return after(self.producers[language], "sent", 0.0)

    def receives(self, language: str) -> list[float]:
        """Return when messages came."""
        return after(self.consumers[language], "got", 0.0)

    def stop_sending(self) -> None:
        """End all producers."""
        for each in self.producers.values():
            each.end()


def after(program: Program, kind: str, since: float) -> list[float]:
    """Return when lines of a kind came since a moment."""
    lines, times = list(program.lines), list(program.times)
    return [at for line, at in zip(lines, times, strict=False) if line[0] == kind and at > since]


class Newcomer:
    """The client that comes with the fault; it is loaded before."""

    def __init__(self, endpoint: str, topic: str, body: str) -> None:
        self.body = body
        self.found: float | None = None
        self.child = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("newcomer.py")), endpoint, topic, body],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.child.stdout is not None
        assert self.child.stdout.readline().strip() == "loaded"
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        """Wait for its word."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            word, _, text = line.partition(" ")
            if word == "sent":
                self.found = float(text)

    def come(self) -> None:
        """Let it come."""
        assert self.child.stdin is not None
        self.child.stdin.write("come\n")
        self.child.stdin.flush()

    def end(self) -> None:
        """End it, wherever it is."""
        self.child.kill()
        self.child.wait()
        self.reader.join()


class RouteWatch:
    """Asks for the route by a call of its own each time, on a thread, until it names another leader.

    Args:
        ask: returns the leader's address.
    """

    def __init__(self, ask: Callable[[], str], began: float, before: str) -> None:
        self.ask, self.began, self.before = ask, began, before
        self.found: float | None = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        """Look until then."""
        while not self.over.wait(ROUTE_LOOK_S):
            with suppress(OSError, AssertionError, grpc.RpcError):
                if self.ask() not in ("", self.before):
                    self.found = time.monotonic() - self.began
                    return

    def end(self) -> None:
        """End it."""
        self.over.set()
        self.thread.join()
