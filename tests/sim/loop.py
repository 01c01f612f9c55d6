"""An event loop of one simulated process: asyncio over virtual time, and streams of the simulated network.

`SimLoop` has what the production code asks of a loop, and nothing else: an operation that it lacks raises
NotImplementedError, so that nothing slips out to the real machine. Callbacks that are due run together, as in
one iteration of asyncio's own loop: what a callback schedules with `call_soon` runs in the next iteration.

    call_soon, call_at      a queue of callbacks, and a timer of the scheduler
    iteration               one event of the scheduler, some of `TICK_S` after it was asked for: the time that
                            code takes
    create_server, create_connection     streams of `transport.py`
    run_in_executor         runs in one piece some of `EXECUTOR_S` later, and has its result then
    add_reader              for the doorbell alone, which is no file (`sockets.py SimDoorbell`)

A process that is paused keeps its iterations for later; one that was killed loses them.
"""

import asyncio
import contextvars
import random
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple

from sim.process import running
from sim.scheduler import Handle
from sim.transport import SimServer, SimTransport, connect, serve

if TYPE_CHECKING:
    from sim.network import SimNetwork
    from sim.process import SimProcess

__all__ = ["SimLoop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TICK_S = (10e-6, 150e-6)  # from the wish for an iteration to it
EXECUTOR_S = (50e-6, 5e-3)


def lacking(name: str) -> Any:
    """Return an operation that the loop does not have."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"SimLoop has no {name}")

    return refuse


class Timer(asyncio.TimerHandle):
    """A timer that is no event any more once it is cancelled."""

    __slots__ = ("event",)

    event: Handle

    def cancel(self) -> None:
        """See asyncio's."""
        self.event.cancel()
        super().cancel()


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of a process; it is alive for as long as its process.

    Attributes:
        host: the address of its host.
        ready: callbacks of the next iteration, in the order of their begin.
    """

    def __init__(self, process: "SimProcess", network: "SimNetwork", host: str) -> None:
        self.process, self.network, self.host = process, network, host
        self.scheduler = process.scheduler
        self.rng: random.Random = process.rng
        self.monotonic = process.machine.monotonic
        self.ready: deque[asyncio.Handle] = deque()
        self.tick_planned = False
        self.readers: dict[int, asyncio.Handle] = {}

    # Time and callbacks

    def time(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return self.monotonic()

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run in the next iteration."""
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        if not self.tick_planned:
            self.plan()
        return handle

    # A worker's thread runs only while nothing else does.
    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run after so many seconds."""
        handle = Timer(self.monotonic() + delay, callback, args, self, context)
        handle.event = self.scheduler.later(max(delay, 0.0), partial(self.due, handle))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run at a time of this loop."""
        handle = Timer(when, callback, args, self, context)
        handle.event = self.scheduler.later(max(when - self.monotonic(), 0.0), partial(self.due, handle))
        return handle

    def due(self, handle: asyncio.TimerHandle) -> None:
        """Have a timer's callback run in the next iteration: its time has come."""
        if not self.process.dead:
            self.ready.append(handle)
            self.plan()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: the timer has told the scheduler."""

    def plan(self) -> None:
        """Have an iteration soon, unless one is coming."""
        if not self.tick_planned:
            self.tick_planned = True
            self.scheduler.later(TICK_S[0] + (TICK_S[1] - TICK_S[0]) * self.rng.random(), self.tick)

    def tick(self) -> None:
        """Run what is ready."""
        process = self.process
        if process.dead:
            return
        if process.paused:
            process.on_resume(self.tick)
            return
        self.tick_planned = False
        ready = self.ready
        running.append(process)
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                if process.dead:
                    return
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:  # what Handle._run does, without its own calls
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except Exception as error:  # noqa: BLE001 - the checks get it
                    self.call_exception_handler({"message": f"in {handle!r}", "exception": error})
        finally:
            asyncio._set_running_loop(None)
            running.pop()
        if ready:
            self.plan()

    # Tasks and futures

    def create_future(self) -> "asyncio.Future[Any]":
        """As asyncio's."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T],  # type: ignore[override]
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[T]":
        """As asyncio's."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        """No."""
        return False

    def is_running(self) -> bool:
        """Whether its process lives."""
        return not self.process.dead

    def is_closed(self) -> bool:
        """Whether its process is gone."""
        return self.process.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an error that nobody caught for the checks."""
        self.process.report_failure(context)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        """Run it in one piece some time later; its result comes with that."""
        future = self.create_future()

        def work() -> None:
            if self.process.dead or future.cancelled():
                return
            with self.process.running():
                try:
                    found = func(*args)
                except Exception as error:  # noqa: BLE001 - whoever awaits it gets it
                    self.call_soon(settle, future, None, error)
                else:
                    self.call_soon(settle, future, found, None)

        self.scheduler.later(self.rng.uniform(*EXECUTOR_S), work)
        return future

    # The network

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **_: Any
    ) -> SimServer:
        """Listen on a port of this process's host, whatever `host` says."""
        return serve(self, protocol_factory, port)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **_: Any
    ) -> tuple[SimTransport, Any]:
        """Connect.

        Raises:
            OSError: refused, or no answer for `NO_ANSWER_S`.
        """
        return await connect(self, protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Every name is an address here."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port or 0))]

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """Call back when a doorbell is rung."""
        self.readers[fd] = asyncio.Handle(callback, args, self, None)
        self.network.bells[fd].on_ring = lambda: self.readable(fd)

    def readable(self, fd: int) -> None:
        """Call back in the next iteration: a doorbell was rung."""
        handle = self.readers.get(fd)
        if handle is not None and handle not in self.ready:
            self.ready.append(handle)
            self.plan()

    def remove_reader(self, fd: Any) -> bool:
        """Call back no longer; return whether it would have."""
        bell = self.network.bells.get(fd)
        if bell is not None:
            bell.on_ring = None
        return self.readers.pop(fd, None) is not None

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Nobody sends signals."""

    # What nobody asks for

    add_writer = lacking("add_writer")
    close = lacking("close")
    connect_accepted_socket = lacking("connect_accepted_socket")
    connect_read_pipe = lacking("connect_read_pipe")
    connect_write_pipe = lacking("connect_write_pipe")
    create_datagram_endpoint = lacking("create_datagram_endpoint")
    create_unix_connection = lacking("create_unix_connection")
    create_unix_server = lacking("create_unix_server")
    default_exception_handler = lacking("default_exception_handler")
    get_exception_handler = lacking("get_exception_handler")
    get_task_factory = lacking("get_task_factory")
    getnameinfo = lacking("getnameinfo")
    remove_signal_handler = lacking("remove_signal_handler")
    remove_writer = lacking("remove_writer")
    run_forever = lacking("run_forever")
    run_until_complete = lacking("run_until_complete")
    sendfile = lacking("sendfile")
    set_debug = lacking("set_debug")
    set_default_executor = lacking("set_default_executor")
    set_exception_handler = lacking("set_exception_handler")
    set_task_factory = lacking("set_task_factory")
    shutdown_asyncgens = lacking("shutdown_asyncgens")
    shutdown_default_executor = lacking("shutdown_default_executor")
    sock_accept = lacking("sock_accept")
    sock_connect = lacking("sock_connect")
    sock_recv = lacking("sock_recv")
    sock_recv_into = lacking("sock_recv_into")
    sock_recvfrom = lacking("sock_recvfrom")
    sock_recvfrom_into = lacking("sock_recvfrom_into")
    sock_sendall = lacking("sock_sendall")
    sock_sendfile = lacking("sock_sendfile")
    sock_sendto = lacking("sock_sendto")
    start_tls = lacking("start_tls")
    stop = lacking("stop")
    subprocess_exec = lacking("subprocess_exec")
    subprocess_shell = lacking("subprocess_shell")


def settle(future: "asyncio.Future[Any]", found: Any, error: Exception | None) -> None:
    """Give a future its result."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(found)
