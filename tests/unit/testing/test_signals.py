"""After SIGSTOP nothing of a process runs any more, however many threads it had."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import elapse, until
from whimbrel.testing import signals
from whimbrel.testing.signals import send_signal, still

THREADS = 4
WORK = f"""
import threading

def sums():
    total = 0
    while True:
        total += 1

for _ in range({THREADS - 1}):
    threading.Thread(target=sums, daemon=True).start()
print("works", flush=True)
sums()
"""


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "works\n"
        yield child
        child.kill()


def ticks(pid: int) -> int:
    """Return how long a process has run, in clock ticks: proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_stopped_process_stands_still_with_all_of_its_threads(busy: subprocess.Popen[str]) -> None:
    assert not still(busy.pid)
    for _ in range(20):
        send_signal(busy.pid, signal.SIGSTOP)
        assert still(busy.pid)
        before = ticks(busy.pid)
        elapse(0.03)
        assert ticks(busy.pid) == before
        send_signal(busy.pid, signal.SIGCONT)
        until(lambda: not still(busy.pid), what="its going on")


def test_one_that_can_not_be_stopped_is_told(
    busy: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "STILL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(signals, "STANDS_STILL", frozenset())
    with pytest.raises(TimeoutError, match=f"process {busy.pid} still runs"):
        send_signal(busy.pid, signal.SIGSTOP)


def test_one_that_has_ended(busy: subprocess.Popen[str]) -> None:
    send_signal(busy.pid, signal.SIGKILL)
    busy.wait()
    assert still(busy.pid)
    with pytest.raises(ProcessLookupError):
        send_signal(busy.pid, signal.SIGSTOP)
