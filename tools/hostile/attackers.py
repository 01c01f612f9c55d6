"""What programs that attack our processes share: what an attack costs, and an honest client beside it.

    target = Target(address, bytes_told=130_000, times=10)
    with Watch(pid, address) as watch:          # CPU time, memory, and whether others are still answered
        attack(target)                          # sends through `Peer` and `Caller` until `target.left` is 0
        watch.wait_until_quiet()
    watch.cpu_s, watch.grown_bytes, watch.longest_wait_s

Attackers come from 127.0.0.1 and the honest client from 127.0.0.2, so that limits by host tell them apart.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from support.http2 import blocking
from support.http2.blocking import ANSWER_S, HEALTH, Caller, Ended

__all__ = ["HONEST_HOST", "Honest", "Target", "Watch"]

HONEST_HOST = "127.0.0.2"
SAMPLE_S = 0.02
# Quiet: it takes no more than that in that time. What the honest client asks takes a tenth of the time.
QUIET_S, QUIET_CPU_S = 0.3, 0.1
QUIET_WITHIN_S = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


class Target(blocking.Target):
    """A process that is attacked, and how many bytes are left to attack it with."""

    def __init__(self, address: str, bytes_told: int, times: float) -> None:
        super().__init__(address)
        self.total = int(bytes_told * times)

    @property
    def left(self) -> int:
        """Return how many bytes are left."""
        return max(self.total - self.sent, 0)


class Honest:
    """Asks by one question after the other whether it is still served, and notes the longest wait.

    Attributes:
        asked: how many answers came.
        failed: why an answer did not come; empty when all did.
    """

    def __init__(self, address: str, ask: Callable[[], None] | None = None) -> None:
        self.address, self.ask = address, ask or self.check
        self.caller: Caller | None = None
        self.asked, self.longest_s, self.failed = 0, 0.0, ""

    def check(self) -> None:
        """Ask for the health, over one connection for as long as it lasts."""
        if self.caller is None or self.caller.ended or self.asked % 500 == 499:
            if self.caller is not None:
                self.caller.sock.close()
            self.caller = Caller(blocking.Target(self.address), source=HONEST_HOST)
        assert self.caller.call(HEALTH, b"") == 0

    def turn(self) -> None:
        """Ask once."""
        began = time.monotonic()
        try:
            self.ask()
        except (OSError, Ended, AssertionError) as error:
            self.failed = self.failed or repr(error)
        self.asked += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began)


class Watch:
    """Measures a process from the begin of the block to its end, while an honest client asks it."""

    def __init__(self, pid: int, honest: Honest) -> None:
        self.stat, self.status = Path(f"/proc/{pid}/stat"), Path(f"/proc/{pid}/status")
        self.honest = honest
        self.over = threading.Event()
        self.cpu_s, self.grown_bytes = 0.0, 0
        self.asking = threading.Thread(target=self.keep_asking, daemon=True)
        self.sampling = threading.Thread(target=self.keep_sampling, daemon=True)

    def __enter__(self) -> Self:
        for _ in range(20):  # what is made once is made before
            self.honest.turn()
        self.honest.longest_s = 0.0
        self.begin_cpu_s, self.begin_bytes = self.cpu_now_s(), self.anonymous_bytes()
        self.sampling.start()
        self.asking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self.asking.join(2 * ANSWER_S)
        self.sampling.join()

    def cpu_now_s(self) -> float:
        """Return the CPU time of the process so far, of all its threads."""
        fields = self.stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def anonymous_bytes(self) -> int:
        """Return the anonymous memory that the process has now."""
        line = next(line for line in self.status.read_text().splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024

    def keep_sampling(self) -> None:
        """Note the greatest growth."""
        while not self.over.wait(SAMPLE_S):
            self.grown_bytes = max(self.grown_bytes, self.anonymous_bytes() - self.begin_bytes)

    def keep_asking(self) -> None:
        """Ask again and again."""
        while not self.over.wait(SAMPLE_S):
            self.honest.turn()

    def wait_until_quiet(self) -> None:
        """Wait until the process has done all that it was given, and note what it took."""
        deadline = time.monotonic() + QUIET_WITHIN_S
        before = self.cpu_now_s()
        waiting = threading.Event()
        while time.monotonic() < deadline:
            waiting.wait(QUIET_S)  # another process works meanwhile; nothing tells when it is done
            now = self.cpu_now_s()
            self.cpu_s = now - self.begin_cpu_s
            if now - before <= QUIET_CPU_S:
                return
            before = now
