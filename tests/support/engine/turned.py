"""A whole master whose time stands still: clocks and the loop's timers move when a test says so.

    run_on_turned_loop(work)   runs a coroutine on a loop whose clock can be put forward
    turned_master(root)        a master on it; metrics are on, since they count what is delivered

So what waits until its time is over is answered at once, and nothing depends on how fast a test runs.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from support.engine.in_process import InProcess, in_process
from support.remoting.handlers import NOW
from support.store.stores import StoppedClock, make_draft
from whimbrel.rpc.server.handlers import ServerStreamMethod

__all__ = ["TurnedClock", "TurnedLoop", "TurnedMaster", "run_on_turned_loop", "turned_master"]

TURNS = 8  # of the loop: a timer's task wakes in the one behind its time, and its work is done one later

R = TypeVar("R")


class TurnedClock(StoppedClock):
    """Clocks that move when they are told to; the monotonic ones go on beside, as a machine's do."""

    ahead_ms = 0

    def monotonic(self) -> float:
        """See `Machine`."""
        return super().monotonic() + self.ahead_ms / 1000

    def monotonic_ns(self) -> int:
        """See `Machine`."""
        return super().monotonic_ns() + self.ahead_ms * 1_000_000


class TurnedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    ahead_ms = 0

    def time(self) -> float:
        """Return the loop's time."""
        return super().time() + self.ahead_ms / 1000


def run_on_turned_loop(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on a loop whose clock can be put forward."""
    with asyncio.Runner(loop_factory=TurnedLoop) as runner:
        return runner.run(work)


class TurnedMaster:
    """A broker that runs, and its parts."""

    def __init__(self, broker: InProcess, clock: TurnedClock) -> None:
        role, context = broker.role, broker.context
        self.broker, self.clock = broker, clock
        self.topics, self.groups, self.clients = context.topics, context.groups, context.remoting_clients
        self.store, self.creation, self.consumption = role.store, role.creation, role.consumption
        self.reads, self.takes, self.polls = role.reads, role.takes, role.polls
        self.counted = context.counted

    def stream(self, name: str) -> ServerStreamMethod:
        """Return a method of many answers."""
        method = self.broker.method(name)
        assert isinstance(method, ServerStreamMethod)
        return method

    async def turn(self) -> None:
        """Let the loop do what is due."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def put_forward(self, ms: int) -> None:
        """Put all clocks forward."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TurnedLoop)
        loop.ahead_ms += ms
        self.clock.ahead_ms += ms
        self.clock.now_ms += ms

    async def pass_time(self, seconds: int) -> None:
        """Put all clocks forward, and do what is due then."""
        self.put_forward(seconds * 1000)
        await self.turn()


@asynccontextmanager
async def turned_master(root: Path, **options: Any) -> AsyncIterator[TurnedMaster]:
    """Start a master, and stop it in the end; `options` are of `BrokerOptions`.

    It has a record of nobody's in the log, so that the log may begin behind it.
    """
    clock = TurnedClock(NOW)
    async with in_process(root, machine=clock, metrics_port=0, **options) as broker:
        broker.role.store.append([make_draft()])
        yield TurnedMaster(broker, clock)
