"""The processes of a cluster: nameserver, broker and replicator, production code on simulated parts.

nameserver   `whimbrel.nameserver.program.run` on a `SimLoop`
broker       `whimbrel.broker.broker.Broker` on a `SimLoop`
replicator   `whimbrel.replicator.replicator.Replicator` over `TurnLoop`, which replaces the selector

A node is a process from its start to its end. It ends by an error that its program would end with (`exit`
says which), or because the process is killed; starting another one is the cluster's (`cluster.py`).
"""

import asyncio
import contextlib
import logging
import selectors
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sim.loop import SimLoop
from sim.network import SimNetwork
from sim.process import SimProcess, running
from sim.scheduler import Crash
from sim.sockets import ReplicatorNetwork, SimDoorbell, SimSocket
from support.replication.replica_shell import Shell
from whimbrel.broker.broker import Broker
from whimbrel.broker.cluster import log_dispatcher
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.produce import appender
from whimbrel.broker.timing import timers
from whimbrel.errors import WhimbrelError
from whimbrel.nameserver import program as nameserver
from whimbrel.nameserver.options import NameserverOptions
from whimbrel.replicator import feeder, follower, replicator
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.program import begin
from whimbrel.replicator.replicator import Replicator
from whimbrel.store import timer_files, timer_layout
from whimbrel.store.shared_page import SharedPage

__all__ = ["BrokerNode", "LoopNode", "NameserverNode", "ReplicatorNode", "surroundings"]

logger = logging.getLogger("sim")
TURN_S = (5e-6, 60e-6)
POLL_S = 0.5  # WAKE_POLL_S here: what a lost ring costs
POLLING = (appender, follower, feeder, log_dispatcher, replicator)
SLOTS = 1 << 12  # of the timer wheel, seconds; its file and those of its log are compared at each sync
UNITS = 64  # of a file of the timer's log
ROLL_MS = 6000  # a message that waits longer is stored again


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """Let nameservers have the address of their host, idle processes look less often, and timers be small.

    What idle processes look for is a ring that was lost: such looks were three of four turns of a replicator.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(nameserver, "own_addresses", lambda: frozenset({running[-1].host})))
        for module in POLLING:
            stack.enter_context(patch.object(module, "WAKE_POLL_S", POLL_S))
        for module, name, value in (
            (timer_layout, "SLOTS", SLOTS),
            (timer_layout, "ROLL_WINDOW_MS", ROLL_MS),
            (timer_files, "WHEEL_SIZE", SLOTS * timer_layout.SLOT_SIZE),
            (timers, "AHEAD_MS_MAX", SLOTS // 2 * timer_layout.SECOND_MS),
        ):
            stack.enter_context(patch.object(module, name, value))
        size = UNITS * timer_layout.UNIT_SIZE + timer_layout.TAIL_SIZE
        stack.enter_context(patch.dict(timers.Timers.__init__.__kwdefaults__, file_size=size))
        yield


class LoopNode:
    """A process that runs one coroutine on a loop of its own.

    Attributes:
        exit: how the coroutine ended; None while it runs.
        task: what runs it, once the loop has had its first iteration.
    """

    def __init__(self, process: SimProcess, network: SimNetwork) -> None:
        self.process, self.network = process, network
        self.loop = SimLoop(process, network, process.host)
        self.exit: str | None = None
        self.task: asyncio.Task[None] | None = None
        process.on_death.append(lambda: network.killed(process))

    def launch(self, main: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin to run."""

        async def run() -> None:
            try:
                await main()
            except (WhimbrelError, OSError) as error:
                self.exit = str(error)
                self.process.die()
            except Exception as error:  # a finding of a check, or a bug: nobody else would hear of it
                self.process.report_failure(error)
                raise
            else:
                self.exit = "it has ended"

        def begin() -> None:
            self.task = self.loop.create_task(run())

        self.loop.call_soon(begin)


class NameserverNode(LoopNode):
    """A nameserver."""

    def __init__(self, process: SimProcess, network: SimNetwork, options: NameserverOptions) -> None:
        super().__init__(process, network)
        self.options = options
        self.launch(self.main)

    async def main(self) -> None:
        """Serve for ever.

        Raises:
            OSError: it could not.
        """
        if code := await nameserver.run(self.options, self.process.machine.files):
            raise OSError(f"it has ended with code {code}")


class BrokerNode(LoopNode):
    """A broker.

    Attributes:
        broker: the production code's; None before its first iteration.
    """

    def __init__(self, process: SimProcess, network: SimNetwork, options: BrokerOptions) -> None:
        super().__init__(process, network)
        self.options = options
        self.broker: Broker | None = None
        self.launch(self.main)

    async def main(self) -> None:
        """Start, and serve for ever."""
        doorbell: Any = partial(SimDoorbell, self.network, self.process)
        self.broker = Broker(self.options, machine=self.process.machine, doorbell=doorbell)
        await self.broker.start()
        await self.loop.create_future()


class TurnLoop:
    """What `whimbrel.replicator.loop.Loop` is to a replicator, in virtual time: `turn` never waits.

    A turn calls back for the sockets that are ready, and the process is run again when one becomes ready, the
    bell rings, or the time that it would have waited has passed.
    """

    def __init__(self, process: SimProcess, network: SimNetwork, root: Path, run: Callable[[], None]) -> None:
        self.process, self.machine = process, process.machine
        self.network = ReplicatorNetwork(network, process, process.host)
        self.page = SharedPage.open(root, process.machine)
        self.bell = SimDoorbell(network, process, root, "replicator")
        self.bell.on_ring = lambda: self.plan(0.0)
        self.watched: dict[int, tuple[SimSocket, int, Callable[[int], None]]] = {}
        self.run = run
        self.planned_at = float("inf")
        shell = Shell(
            self,
            process.machine.files,
            process.machine.monotonic,
            lambda sock: bool(sock.events() & selectors.EVENT_READ),
            self.others_ready,
        )
        self.feed, self.follow = shell.feed, shell.follow

    def plan(self, delay: float) -> None:
        """Have a turn after a while, unless one comes earlier."""
        scheduler = self.process.scheduler
        at = scheduler.now + delay + self.process.rng.uniform(*TURN_S)
        if at < self.planned_at:
            self.planned_at = at
            scheduler.at(at, lambda: self.due(at))

    def due(self, at: float) -> None:
        """A planned turn's time has come."""
        if self.process.dead or at != self.planned_at:
            return
        if self.process.paused:
            self.process.on_resume(lambda: self.due(at))
            return
        self.planned_at = float("inf")
        with self.process.running():
            self.run()

    def wake(self) -> None:
        """Have a turn soon."""
        self.plan(0.0)

    def wake_flushed(self) -> None:
        """Have a turn soon: more of the log is on disk."""
        self.plan(0.0)

    def watch(self, sock: SimSocket, events: int, callback: Callable[[int], None]) -> None:
        """Call back whenever a socket is ready."""
        if events:
            self.watched[sock.number] = (sock, events, callback)
            sock.on_ready = lambda: self.plan(0.0)
            if sock.events() & events:
                self.plan(0.0)
        else:
            self.watched.pop(sock.number, None)
            sock.on_ready = None

    def ring_broker(self) -> None:
        """Wake the broker if it sleeps."""
        if self.page.broker_sleeping:
            self.bell.ring("broker")

    def others_ready(self, socks: Sequence[SimSocket]) -> bool:
        """Whether something else than to read from these is possible."""
        wanted = {sock.number: selectors.EVENT_READ for sock in socks}
        return any(
            sock.events() & events & ~wanted.get(sock.number, 0) for sock, events, _ in self.watched.values()
        )

    def turn(self, timeout: float, idle: Callable[[], bool]) -> None:
        """Call back for what is ready, and plan the next turn."""
        page = self.page
        page.replica_beat_ns = self.machine.monotonic_ns()
        self.bell.take()
        page.replica_sleeping = 0
        called = False
        for number in list(self.watched):
            known = self.watched.get(number)
            if known is None:
                continue
            sock, events, callback = known
            ready = sock.events() & events
            if ready:
                called = True
                callback(ready)
        if called or timeout <= 0 or not idle():
            self.plan(0.0)
            return
        page.replica_sleeping = 1
        self.plan(min(timeout, POLL_S))


class ReplicatorNode:
    """A replicator.

    Attributes:
        exit: why it ended by itself; None while it runs.
        replicator: the production code's; None before its start.
    """

    def __init__(self, process: SimProcess, network: SimNetwork, options: ReplicatorOptions) -> None:
        self.process, self.options = process, options
        self.exit: str | None = None
        self.replicator: Replicator | None = None
        self.root = Path(options.store)
        process.on_death.append(lambda: network.killed(process))
        self.network = network
        process.scheduler.later(1e-4, self.start)

    def start(self) -> None:
        """Begin to serve."""
        if self.process.dead:
            return
        with self.process.running():
            try:
                self.process.machine.files.make_directories(self.root / "whimbrel")
                loop: Any = TurnLoop(self.process, self.network, self.root, self.turn)
                self.replicator = Replicator(loop, self.options, clock=self.process.machine.monotonic)
                loop.page.replica_pid = 1
                begin(self.replicator, loop, self.options, clock=self.process.machine.monotonic)
            except (WhimbrelError, OSError) as error:
                self.end(str(error))
                return
            except Crash:
                return
        loop.plan(0.0)

    def turn(self) -> None:
        """Run one turn of the production code."""
        assert self.replicator is not None
        try:
            self.replicator.turn()
        except (WhimbrelError, OSError) as error:
            self.end(str(error))
        except Crash:
            return
        else:
            loop: Any = self.replicator.loop
            if loop.planned_at == float("inf"):  # the role is to start anew, and has not waited
                loop.plan(0.0)

    def end(self, why: str) -> None:
        """End the process with an error of its own."""
        if self.process.dead:
            return
        self.exit = why
        logger.info("%s ends: %s", self.process.name, why)
        self.process.die()
