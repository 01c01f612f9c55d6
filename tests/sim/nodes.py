"""The processes of a cluster: nameserver, broker and replicator, the production code of each on simulated parts.

nameserver   `whimbrel.nameserver.__main__.run` on a `SimLoop`
broker       `whimbrel.broker.broker.Broker` on a `SimLoop`
replicator   `whimbrel.replicator.replicator.Replicator` over `TurnLoop`, which replaces the selector
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sim.loop import SimLoop
from sim.network import ReplicatorNetwork, SimDoorbell, SimNetwork, SimSocket
from sim.process import SimProcess
from sim.scheduler import Crash
from whimbrel.broker.broker import Broker
from whimbrel.broker.options import BrokerOptions
from whimbrel.errors import WhimbrelError
from whimbrel.nameserver.__main__ import run as run_nameserver
from whimbrel.nameserver.options import NameserverOptions
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.replicator import Replicator
from whimbrel.replicator.roles import MasterRole, SlaveRole
from whimbrel.store.shared_page import SharedPage
from whimbrel.wakeup import WAKE_POLL_S

__all__ = ["BrokerNode", "LoopNode", "NameserverNode", "ReplicatorNode"]

logger = logging.getLogger("sim")
TURN_S = (5e-6, 60e-6)


class LoopNode:
    """A process that runs one coroutine on a loop of its own.

    Attributes:
        exit: how the coroutine ended; None while it runs.
    """

    def __init__(self, process: SimProcess, network: SimNetwork) -> None:
        self.process, self.network = process, network
        self.loop = SimLoop(process, network, process.host)
        self.exit: str | None = None
        process.on_death.append(lambda: network.killed(process))

    def launch(self, main: Callable[[], Any]) -> None:
        """Begin to run."""

        async def run() -> None:
            try:
                found = await main()
            except (WhimbrelError, OSError) as error:
                self.exit = str(error)
                self.process.die()
            else:
                self.exit = f"ended: {found}"

        self.loop.call_soon(lambda: setattr(self, "task", self.loop.create_task(run())))


class NameserverNode(LoopNode):
    """A nameserver."""

    def __init__(self, process: SimProcess, network: SimNetwork, options: NameserverOptions) -> None:
        super().__init__(process, network)
        self.launch(lambda: run_nameserver(options))


class BrokerNode(LoopNode):
    """A broker."""

    def __init__(self, process: SimProcess, network: SimNetwork, options: BrokerOptions) -> None:
        super().__init__(process, network)
        self.options = options
        self.broker: Broker | None = None
        self.launch(self.main)

    async def main(self) -> str:
        """Start, and serve for ever."""
        self.broker = Broker(
            self.options,
            machine=self.process.machine,
            doorbell=lambda root, name: SimDoorbell(self.network, self.process, root, name),  # type: ignore[arg-type,return-value]
        )
        await self.broker.start()
        await asyncio.get_running_loop().create_future()
        return ""


class TurnLoop:
    """What `whimbrel.replicator.loop.Loop` is to a replicator: `turn` never waits, and says for how long it would.

    A turn calls back for the sockets that are ready, and the process is run again when one becomes ready, the bell
    rings, or the time that it would have waited has passed.
    """

    def __init__(self, process: SimProcess, network: SimNetwork, root: Path) -> None:
        self.process, self.machine = process, process.machine
        self.network = ReplicatorNetwork(network, process, process.host)
        self.page = SharedPage.open(root, process.machine)
        self.bell = SimDoorbell(network, process, root, "replicator")
        self.bell.on_ring = lambda: self.plan(0.0)
        self.watched: dict[int, tuple[SimSocket, int, Callable[[int], None]]] = {}
        self.stopping = False
        self.planned_at = float("inf")
        self.run: Callable[[], None] = lambda: None

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

    def stop(self, *_: object) -> None:
        """End after the current turn."""
        self.stopping = True

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

    def turn(self, timeout: float, idle: Callable[[], bool]) -> None:
        """Call back for what is ready, and plan the next turn."""
        page = self.page
        page.replica_beat_ns = self.machine.monotonic_ns()
        self.bell.drain()
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
        if called or timeout <= 0 or self.stopping or not idle():
            self.plan(0.0)
            return
        page.replica_sleeping = 1
        self.plan(min(timeout, WAKE_POLL_S))

    def close(self) -> None:
        """Close everything."""
        self.bell.close()
        self.page.close()


class ReplicatorNode:
    """A replicator.

    Attributes:
        exit: why it ended; None while it runs.
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
                loop: Any = TurnLoop(self.process, self.network, self.root)
                loop.run = self.turn
                self.loop = loop
                self.replicator = Replicator(loop, self.options, clock=self.process.machine.monotonic)
                loop.page.replica_pid = 1
                kind = MasterRole if self.options.role == "master" else SlaveRole
                self.replicator.start(kind(loop, self.options, clock=self.process.machine.monotonic))
            except (WhimbrelError, OSError) as error:
                self.end(str(error))
                return
            except Crash:
                return
        self.loop.plan(0.0)

    def turn(self) -> None:
        """One turn of the production code."""
        assert self.replicator is not None
        try:
            self.replicator.turn()
        except (WhimbrelError, OSError) as error:
            self.end(str(error))
        except Crash:
            return

    def end(self, why: str) -> None:
        """The process ends with an error of its own."""
        if self.process.dead:
            return
        self.exit = why
        logger.info("%s ends: %s", self.process.name, why)
        self.process.die()
