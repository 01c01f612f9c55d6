"""Signals to processes that take effect before the next line of a test."""

import os
import signal
import time
from pathlib import Path

__all__ = ["STILL_TIMEOUT_S", "send_signal"]

STILL_TIMEOUT_S = 20.0  # a thread that waits for its disk stands still after that
POLL_S = 0.001
STANDS_STILL = frozenset("TtZX")  # stopped, traced, a zombie, dead: proc(5)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a process a signal; after SIGSTOP, return when all of its threads stand still.

    One thread takes the SIGSTOP and stops the others. On a busy machine it may wait for its turn meanwhile,
    and they still answer.

    Raises:
        ProcessLookupError: there is no such process.
        TimeoutError: a thread still ran after 20 s.
    """
    os.kill(pid, number)
    if number is not signal.SIGSTOP:
        return
    deadline = time.monotonic() + STILL_TIMEOUT_S
    while not still(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} still runs {STILL_TIMEOUT_S:.0f} s after SIGSTOP")
        time.sleep(POLL_S)


def still(pid: int) -> bool:
    """Tell whether no thread of a process runs; none does of one that is gone."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            state = path.read_text().rpartition(")")[2].split()[0]
        except OSError:  # that thread has ended
            continue
        if state not in STANDS_STILL:
            return False
    return True
