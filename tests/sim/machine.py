"""Hosts and processes: what production code takes for its machine.

A `SimHost` has a disk, clocks and a boot id. Its processes are `SimMachine`s. All that happens in a process
happens in the driver (its own thread: the "main" one) or in a worker's run, a fiber of the scheduler's.

**Turns.** A worker begins to run some time after `wake`. A sync, in a worker, takes a drawn time in which
all others go on; other calls of files and locks in a worker yield now and then. With `line_share` a worker is
also interrupted between two lines of production code, so often.

A sync, a wait for a worker or a lock by the main thread lets this process's workers run meanwhile, and
nothing else. What can't come true is a Deadlock that says who waits for whom.

**Ends.** `SimMachine.kill` is a kill -9: workers end where they stand, locks are freed, the page cache stays.
`SimHost.power_loss` ends all processes, loses what was not durable, and boots anew. What runs on in a dead
process gets Crash (a BaseException) from its next call.
"""

import random
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from sim.disk import File, SimDisk
from sim.files import SimFiles
from sim.scheduler import Crash, Deadlock, Fiber, Handle, Scheduler
from whimbrel.machine import Machine, Worker

__all__ = ["SimHost", "SimLock", "SimMachine", "SimWorker", "WorkerFailed"]

EPOCH_NS = 1_800_000_000_000_000_000
YIELD_SHARE = 0.05  # of the calls of a worker after which another one may run
LINE_S = 0.0002  # how long an interruption between two lines lasts, at most


class WorkerFailed(AssertionError):
    """A worker raised an error; in production its thread would have ended."""


class SimHost:
    """A machine with its disk.

    Attributes:
        sync_s: shortest and longest time of a sync.
        slow_s: the same in workers while the disk is slow.
        wake_s: the same of a worker's beginning after `wake`.
        line_share: how often a worker is interrupted between two lines; 0 for never.
        wall_offset_ns, drift: of the wall clock; may change at any time.
        boot: its boot id.
        processes: those that live.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        disk: SimDisk | None = None,
        *,
        name: str = "host",
        line_share: float = 0.0,
    ) -> None:
        self.scheduler, self.name = scheduler, name
        self.rng = random.Random(scheduler.rng.getrandbits(64))
        self.disk = disk or SimDisk(self.rng)
        self.sync_s = (0.0002, 0.02)
        self.slow_s: tuple[float, float] | None = None
        self.wake_s = (0.0, 0.001)
        self.line_share = line_share
        self.wall_offset_ns = 0
        self.drift = 0.0
        self.processes: list[SimMachine] = []
        self.boot = b""
        self.booted_at = 0.0
        self.start()

    def start(self) -> None:
        """Boot."""
        self.boot = self.rng.randbytes(16)
        self.booted_at = self.scheduler.now

    def process(self, name: str = "process") -> "SimMachine":
        """Start a process."""
        return SimMachine(self, name)

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch, as its clock has it."""
        return EPOCH_NS + int(self.scheduler.now * (1.0 + self.drift) * 1e9) + self.wall_offset_ns

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self.wall_offset_ns += int(seconds * 1e9)

    def power_loss(self, *, share: float | None = None, disk: SimDisk | None = None) -> None:
        """Lose power and boot again.

        Args:
            share: of what is not durable that survives; None draws it.
            disk: an other one in its place.
        """
        self.disk.power_loss(self.rng, share=share)
        for process in list(self.processes):
            process.kill()
        self.disk = disk or self.disk
        self.start()

    def may_evict(self, node: File) -> None:
        """After a failed sync: pages that were not written may be read from the medium some time later."""
        if self.rng.random() < 0.5:
            self.scheduler.later(self.rng.expovariate(1.0), lambda: self.evict(node))

    def evict(self, node: File) -> None:
        """Read pages that were not written from the medium."""
        node.evict(self.rng)


class SimMachine(Machine):
    """A process.

    Attributes:
        files: its view of the disk.
        dead: whether it was killed.
        workers: all that it started.
    """

    files: SimFiles

    def __init__(self, host: SimHost, name: str = "process") -> None:
        super().__init__(SimFiles(host.disk, self))
        self.host, self.name, self.scheduler, self.rng = host, name, host.scheduler, host.rng
        self.dead = False
        self.workers: list[SimWorker] = []
        self.locks: list[SimLock] = []
        self.blocked: list[Fiber] = []
        self.main_waits_for = ""
        host.processes.append(self)

    # Clocks.

    def monotonic(self) -> float:
        """Seconds since the machine booted."""
        return self.scheduler.now - self.host.booted_at + 1.0

    def monotonic_ns(self) -> int:
        """The same in nanoseconds."""
        return int(self.monotonic() * 1e9)

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch, as this machine's clock has it."""
        return self.host.wall_ns()

    def boot_id(self) -> bytes:
        """See `Machine`."""
        return self.host.boot

    def random_bytes(self, count: int) -> bytes:
        """See `Machine`; a seed has the same ones each time."""
        return self.host.rng.randbytes(count)

    # Threads.

    def worker(self, name: str, work: Callable[[], None], interval_s: float | None = None) -> Worker:
        """See `Machine`."""
        self.check()
        return SimWorker(self, name, work, interval_s)

    def lock(self) -> "SimLock":
        """See `Machine`."""
        return SimLock(self)

    def check(self) -> None:
        """Refuse to go on in a dead process.

        Raises:
            Crash: it is dead.
        """
        if self.dead:
            raise Crash(f"{self.name} is dead")

    @property
    def here(self) -> str:
        """Who runs, for people."""
        fiber = self.scheduler.current
        return "main" if fiber is None else fiber.name

    def run(self, fiber: Fiber) -> None:
        """Give a fiber its turn, and raise here what it raised.

        Raises:
            Crash: the process was killed by the fiber's own call.
            WorkerFailed: the worker raised an error.
        """
        fiber.resume()
        if fiber.done and fiber.error is not None and not fiber.killed:
            error, fiber.error = fiber.error, None
            if isinstance(error, (Crash, Deadlock)):
                raise error
            raise WorkerFailed(f"{self.name}: the worker {fiber.name} raised {error!r}") from error

    def sleep(self, seconds: float) -> None:
        """Let time pass for whoever calls: a worker pauses; meanwhile the others of this process run."""
        fiber = self.scheduler.current
        if fiber is None:
            self.scheduler.run_until(self.scheduler.now + seconds, owner=self)
        else:
            self.scheduler.later(seconds, partial(self.run, fiber), owner=self)
            fiber.pause()

    def sync_time(self) -> None:
        """Let the time of a sync pass; a slow disk slows workers only: the world waits for main threads."""
        host = self.host
        in_worker = self.scheduler.current is not None
        self.sleep(self.rng.uniform(*(host.slow_s if host.slow_s and in_worker else host.sync_s)))

    def may_yield(self) -> None:
        """In a worker: let others run now and then."""
        if self.scheduler.current is not None and self.rng.random() < YIELD_SHARE:
            self.sleep(self.rng.uniform(0.0, LINE_S))
            self.check()

    def block(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds that workers of this process make true.

        Raises:
            Deadlock: it never will.
            Crash: the process was killed meanwhile.
        """
        fiber = self.scheduler.current
        if fiber is None:
            self.main_waits_for = what
            self.scheduler.run_while(lambda: not (condition() or self.dead), owner=self, what=self.describe)
            self.main_waits_for = ""
            self.check()
            return
        fiber.waits_for = what
        while not condition():
            self.blocked.append(fiber)
            fiber.pause()
        fiber.waits_for = ""

    def stir(self) -> None:
        """Have the fibers that wait look again."""
        waiting, self.blocked = self.blocked, []
        for fiber in waiting:
            self.scheduler.later(0.0, lambda fiber=fiber: self.run(fiber), owner=self)  # type: ignore[misc]

    def describe(self) -> str:
        """Say who waits for whom."""
        lines = [f"{self.name}: main waits for {self.main_waits_for}"]
        lines += [f"{fiber.name} waits for {fiber.waits_for}" for fiber in self.blocked]
        lines += [f"{lock.name} is held by {lock.holder}" for lock in self.locks if lock.holder]
        running = [worker.name for worker in self.workers if worker.running]
        return "; ".join([*lines, f"running: {', '.join(running) or 'nobody'}"])

    # The end.

    def kill(self) -> None:
        """End the process, at once; may be called by itself, which then has to raise Crash."""
        if self.dead:
            return
        self.dead = True
        self.host.processes.remove(self)
        self.files.kill()
        self.scheduler.forget(self)
        for worker in self.workers:
            if worker.fiber is not None and worker.fiber is not self.scheduler.current:
                worker.fiber.kill()


class SimLock:
    """What a process's fibers and its main thread exclude each other with."""

    def __init__(self, machine: SimMachine) -> None:
        self.machine = machine
        self.name = f"lock {len(machine.locks) + 1}"
        self.holder = ""
        machine.locks.append(self)

    def __enter__(self) -> bool:
        """Take it; waits while it is held."""
        machine = self.machine
        machine.check()
        machine.may_yield()
        if self.holder:
            if self.holder == machine.here:
                raise Deadlock(f"{machine.name}: {self.holder} takes {self.name} twice")
            machine.block(lambda: not self.holder, self.name)
        self.holder = machine.here
        return True

    def __exit__(self, *_: object) -> None:
        """Free it."""
        self.holder = ""
        self.machine.stir()


class SimWorker:
    """A worker of a process; see `whimbrel.machine.Worker`."""

    def __init__(
        self, machine: SimMachine, name: str, work: Callable[[], None], interval_s: float | None
    ) -> None:
        self.machine, self.name, self.work, self.interval_s = machine, name, work, interval_s
        self.wanted = self.running = self.stopping = False
        self.handle: Handle | None = None
        self.fiber: Fiber | None = None
        machine.workers.append(self)
        self.schedule()

    def schedule(self) -> None:
        """Have it run when it is due."""
        machine = self.machine
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None
        if self.stopping or self.running or machine.dead:
            return
        delay = machine.rng.uniform(*machine.host.wake_s) if self.wanted else self.interval_s
        if delay is not None:
            self.handle = machine.scheduler.later(delay, self.begin, owner=machine)

    def wake(self) -> None:
        """See `Worker`."""
        if not self.wanted:
            self.wanted = True
            self.schedule()

    def begin(self) -> None:
        """Start a run."""
        self.handle = None
        self.wanted, self.running = False, True
        self.fiber = Fiber(self.machine.scheduler, self.name, self.run)
        self.machine.run(self.fiber)

    def run(self) -> None:
        """One run, in the fiber."""
        if self.machine.host.line_share:
            sys.settrace(self.trace)
        try:
            self.work()
        finally:
            sys.settrace(None)
            self.running = False
            self.fiber = None
            self.schedule()
            self.machine.stir()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Interrupt the run between two lines of production code, now and then."""
        machine = self.machine
        if "/whimbrel/" not in frame.f_code.co_filename:
            return None
        if event == "line" and not machine.dead and machine.rng.random() < machine.host.line_share:
            machine.sleep(machine.rng.uniform(0.0, LINE_S))
        return self.trace

    def wait(self) -> None:
        """See `Worker`."""
        machine = self.machine
        machine.check()
        machine.block(lambda: self.stopping or not (self.wanted or self.running), f"the worker {self.name}")

    def stop(self) -> None:
        """See `Worker`."""
        self.stopping = True
        machine = self.machine
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None
        machine.stir()
        if not machine.dead and not (self.fiber is not None and self.fiber is machine.scheduler.current):
            machine.block(lambda: not self.running, f"the end of the worker {self.name}")
