"""An event loop of one simulated process: asyncio over virtual time, with connections of the simulated network.

`SimLoop` has what the production code asks of a loop, and nothing else: an operation that it lacks raises
NotImplementedError, so that nothing slips out to the real machine. Callbacks that are due run together, as in
one iteration of asyncio's own loop: what a callback schedules with `call_soon` runs in the next iteration.

    call_soon, call_at      a queue of callbacks, and a timer of the scheduler
    iteration               one event of the scheduler, `TICK_S` after it was asked for: the time that code takes
    create_server, create_connection     streams of `network.py`
    run_in_executor         runs at once, its result comes later
    add_reader              for the doorbell alone, which is no file (`network.py SimDoorbell`)

A process that is paused keeps its iterations for later; one that was killed loses them.
"""

import asyncio
import contextvars
import random
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.network import SimNetwork
    from sim.process import SimProcess

__all__ = ["SimLoop"]

TICK_S = (10e-6, 150e-6)  # from the wish for an iteration to it
EXECUTOR_S = (50e-6, 5e-3)


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of a process; it is alive for as long as its process."""

    def __init__(self, process: "SimProcess", network: "SimNetwork", host: str) -> None:
        self.process, self.network, self.host = process, network, host
        self.scheduler = process.scheduler
        self.rng: random.Random = process.rng
        self.ready: deque[asyncio.Handle] = deque()
        self.tick_planned = False
        self.readers: dict[int, asyncio.Handle] = {}
        self.failures: list[dict[str, Any]] = []
        self.closed = False
        self.factory: Any = None

    # Time and callbacks

    def time(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return self.process.machine.monotonic()

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run in the next iteration."""
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        self.plan()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As `call_soon`: a worker's thread runs only while nothing else does."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run after so many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run at a time of this loop."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.scheduler.later(max(when - self.time(), 0.0), lambda: self.due(handle))
        return handle

    def due(self, handle: asyncio.TimerHandle) -> None:
        """A timer's time has come."""
        if not handle.cancelled() and not self.process.dead:
            self.ready.append(handle)
            self.plan()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled timer does nothing when it is due."""

    def plan(self) -> None:
        """Have an iteration soon, unless one is coming."""
        if not self.tick_planned:
            self.tick_planned = True
            self.scheduler.later(self.rng.uniform(*TICK_S), self.tick)

    def tick(self) -> None:
        """Run what is ready."""
        process = self.process
        if process.dead:
            return
        if process.paused:
            process.on_resume(self.tick)
            return
        self.tick_planned = False
        with process.running():
            asyncio._set_running_loop(self)
            try:
                for _ in range(len(self.ready)):
                    if process.dead:
                        return
                    handle = self.ready.popleft()
                    if not handle.cancelled():
                        handle._run()
            finally:
                asyncio._set_running_loop(None)
        if self.ready:
            self.plan()

    # Tasks and futures

    def create_future(self) -> "asyncio.Future[Any]":
        """As asyncio's."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> "asyncio.Task[Any]":
        """As asyncio's."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_task_factory(self) -> Any:
        """None: the standard one."""
        return self.factory

    def get_debug(self) -> bool:
        """No."""
        return False

    def is_running(self) -> bool:
        """Whether its process lives."""
        return not self.process.dead

    def is_closed(self) -> bool:
        """Whether its process is gone."""
        return self.process.dead

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep it for the checks."""
        self.failures.append(context)
        self.process.report_failure(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep it for the checks."""
        self.default_exception_handler(context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Run it some time later, at once; its result comes with it."""
        future = self.create_future()

        def work() -> None:
            if self.process.dead or future.cancelled():
                return
            with self.process.running():
                try:
                    found = func(*args)
                except Exception as error:
                    self.call_soon(settle, future, None, error)
                else:
                    self.call_soon(settle, future, found, None)

        self.scheduler.later(self.rng.uniform(*EXECUTOR_S), work)
        return future

    # The network

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        """Listen."""
        return self.network.serve(self, protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Connect."""
        return await self.network.connect(self, protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        """Every name is an address here."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port or 0))]

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """Call back when a doorbell is rung."""
        self.readers[fd] = asyncio.Handle(callback, args, self, None)
        self.network.bells[fd].on_ring = lambda: self.readable(fd)

    def readable(self, fd: int) -> None:
        """A doorbell was rung."""
        handle = self.readers.get(fd)
        if handle is not None and handle not in self.ready:
            self.ready.append(handle)
            self.plan()

    def remove_reader(self, fd: Any) -> bool:
        """No longer."""
        bell = self.network.bells.get(fd)
        if bell is not None:
            bell.on_ring = None
        return self.readers.pop(fd, None) is not None

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        """Nobody sends signals."""


def settle(future: "asyncio.Future[Any]", found: Any, error: Exception | None) -> None:
    """Give a future its result."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(found)
