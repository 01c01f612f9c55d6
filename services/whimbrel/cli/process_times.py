"""What the kernel knows of a process's times: when it started, and how long its threads were on cores.

With its id, the start names a process without doubt.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["CoreTimes", "core_times", "process_age_s", "started_ticks"]

# By process and thread: ns on a core, and ns in which it could have run and had none.
CoreTimes = dict[int, dict[int, tuple[int, int]]]

START_FIELD = 22  # of /proc/PID/stat, counted from 1 (proc(5)); those from the third on follow the name


def started_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine's boot; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[START_FIELD - 3])


def process_age_s() -> float:
    """Return for how long this process has run, in seconds, with the start of the interpreter."""
    ticks = started_ticks(os.getpid())
    assert ticks is not None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def core_times(pids: Iterable[int]) -> CoreTimes | None:
    """Return the times of all threads of processes; None if one has ended, or may not be looked at."""
    try:
        return {pid: dict(thread_times(Path("/proc") / str(pid) / "task")) for pid in pids}
    except (OSError, ValueError):
        return None


def thread_times(tasks: Path) -> Iterable[tuple[int, tuple[int, int]]]:
    for task in tasks.iterdir():
        try:
            ran, waited, _ = (task / "schedstat").read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since it was listed
        yield int(task.name), (int(ran), int(waited))
