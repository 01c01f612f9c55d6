"""When a process started, as the kernel knows it: with its id, that names it without doubt."""

import os
import time
from pathlib import Path

__all__ = ["process_age_s", "started_ticks"]

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
