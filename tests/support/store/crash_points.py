"""Kills a process, or takes the power, at every k-th system call of something that it does.

Each scene is set up anew for every k, on a disk in memory, and acts until its k-th call. Then the process is
killed there; or the power goes, and of what was not synced nothing or a drawn part is left.

Where there are many calls, every fifth is tried; `WHIMBREL_CRASH_POINTS=all` tries all.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sim.machine import SimHost, SimMachine
from sim.scheduler import Crash, Scheduler

__all__ = ["STRIDE", "CrashScene", "crash_everywhere"]

# How it ends: killed, or the share of what was not synced that a power loss leaves; None is drawn.
ENDS: tuple[tuple[str, float | None], ...] = (("kill", 0.0), ("loss", 0.0), ("loss", None))
CALLS_MAX = 5000
STRIDE = 1 if os.environ.get("WHIMBREL_CRASH_POINTS") == "all" else 5


class CrashScene:
    """A machine of its own.

    Attributes:
        process: the one that is killed.
        power_lost: whether it was the power that went.
    """

    def __init__(self, seed: int, *directories: Path) -> None:
        self.host = SimHost(Scheduler(seed))
        for directory in directories:
            self.host.disk.format(directory)
        self.process: SimMachine = self.host.process()
        self.power_lost = False

    def revive(self) -> SimMachine:
        """Start the process anew, if it is dead."""
        if self.process.dead:
            self.process = self.host.process()
        return self.process

    def pass_time(self, seconds: float) -> None:
        self.host.scheduler.run_until(self.host.scheduler.now + seconds)


S = TypeVar("S", bound=CrashScene)


def crash_everywhere(
    make: Callable[[int], S],
    set_up: Callable[[S], None],
    act: Callable[[S], None],
    check: Callable[[S], None],
    *,
    seeds: int = 1,
    stride: int = 1,
) -> int:
    """Do it for every k, or every so many, and every end; return about how many k there are."""
    for seed in range(seeds):
        for first, (end, share) in enumerate(ENDS, 1):
            for k in range(min(first, stride), CALLS_MAX, stride):
                scene = make(seed)
                set_up(scene)
                if not crash_at(scene, k, act, end, share):
                    break
                try:
                    check(scene)
                except BaseException as error:
                    error.add_note(f"{end} at call {k}, share {share}, seed {seed}")
                    raise
            else:
                raise AssertionError("it never comes to an end")
    return k - 1


def crash_at(scene: S, k: int, act: Callable[[S], None], end: str, share: float | None) -> bool:
    """Act until the k-th call and crash there; False when there are fewer."""
    host = scene.host
    left = k

    def count(call: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        left -= 1
        if not left:
            if end == "kill":
                scene.process.kill()
            else:
                scene.power_lost = True
                host.power_loss(share=share)
            raise Crash(call)

    scene.revive().files.on_call = count
    try:
        act(scene)
    except Crash:
        return True
    scene.process.files.on_call = None
    return False
