"""A simulated process: what it runs while it lives, pauses and dies; and the clocks that its code sees.

    lives     its loop or its turns run it, within `running`
    paused    as after SIGSTOP: whoever would run it asks to be called by `on_resume`
    dead      as after SIGKILL: whoever would run it does not; files, workers and connections are gone

Code asks `time.monotonic` and its kin in many places that are not the store's. `clocks_of_processes` puts
functions in their place that ask the machine of the process whose code runs; outside of any they are the real
ones.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from sim.machine import SimMachine
from sim.scheduler import Scheduler

__all__ = ["SimProcess", "clocks_of_processes", "running"]

REAL = {name: getattr(time, name) for name in ("monotonic", "monotonic_ns", "time", "time_ns")}
running: list["SimProcess"] = []  # innermost last


class Running:
    """The time in which code of a process runs."""

    __slots__ = ("process",)

    def __init__(self, process: "SimProcess") -> None:
        self.process = process

    def __enter__(self) -> None:
        """It begins."""
        running.append(self.process)

    def __exit__(self, *_: object) -> None:
        """It ends."""
        running.pop()


class SimProcess:
    """One process.

    Attributes:
        host: the address of its host.
        machine: where its files, clocks and workers come from.
        dead, paused: what its code notices by not being run.
        failures: errors that nobody caught.
        on_death: called in this order when it dies.
    """

    def __init__(
        self, name: str, host: str, machine: SimMachine, scheduler: Scheduler, rng: random.Random
    ) -> None:
        self.name, self.host, self.machine, self.scheduler, self.rng = name, host, machine, scheduler, rng
        self.dead = self.paused = False
        self.waiting: list[Callable[[], None]] = []
        self.failures: list[Any] = []
        self.on_death: list[Callable[[], None]] = []

    def running(self) -> "Running":
        """Code of this process runs."""
        return Running(self)

    def on_resume(self, callback: Callable[[], None]) -> None:
        """Have something called when the pause ends."""
        self.waiting.append(callback)

    def pause(self) -> None:
        """Stop it, as SIGSTOP does."""
        self.paused = True

    def resume(self) -> None:
        """Let it go on."""
        if self.paused:
            self.paused = False
            waiting, self.waiting = self.waiting, []
            for callback in waiting:
                self.scheduler.later(0.0, callback)

    def die(self) -> None:
        """It runs no more, and the kernel takes back what it had."""
        if not self.dead:
            self.dead = True
            self.machine.kill()
            for callback in self.on_death:
                callback()

    def report_failure(self, what: Any) -> None:
        """Keep an error that nobody caught; what a dead process stumbles over is none."""
        if not self.dead:
            self.failures.append(what)


@contextlib.contextmanager
def clocks_of_processes() -> Iterator[None]:
    """Let code that asks the module `time` have the clocks of its process."""
    real_monotonic = REAL["monotonic"]

    def monotonic() -> float:
        return running[-1].machine.monotonic() if running else real_monotonic()

    def monotonic_ns() -> int:
        return running[-1].machine.monotonic_ns() if running else REAL["monotonic_ns"]()

    def wall_ns() -> int:
        return running[-1].machine.wall_ns() if running else REAL["time_ns"]()

    def wall() -> float:
        return wall_ns() / 1e9

    time.monotonic, time.monotonic_ns, time.time, time.time_ns = monotonic, monotonic_ns, wall, wall_ns
    try:
        yield
    finally:
        for name, function in REAL.items():
            setattr(time, name, function)
