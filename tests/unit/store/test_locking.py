"""Who has a store open."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whimbrel.errors import StoreError
from whimbrel.store.locking import StoreLock, is_locked

HOLD = """
import sys
from pathlib import Path
from whimbrel.store.locking import StoreLock
lock = StoreLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_lock_of_another_process_is_seen_until_it_ends(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env={"PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    assert is_locked(tmp_path)
    with pytest.raises(StoreError, match="in use by another process"):
        StoreLock.acquire(tmp_path)
    holder.communicate(b"")
    assert not is_locked(tmp_path)


def test_own_lock_is_seen_and_survives_the_look(tmp_path: Path) -> None:
    lock = StoreLock.acquire(tmp_path)
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)


def test_a_lock_that_can_t_be_written_can_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StoreLock.acquire(tmp_path).release()
    opened, really = [], os.open

    def spy(path: object, flags: int, *rest: int) -> int:
        opened.append(flags & os.O_ACCMODE)
        return really(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", spy)
    assert not is_locked(tmp_path)
    assert opened == [os.O_RDONLY]
