"""The directory of a `whimbrel dev`: who runs in it, stopping that one, and removing what it left.

    DIR/run/lock         held (flock) by the supervisor for as long as it runs; says who holds it: `PID START`
    DIR/.whimbrel-dev    the mark: `dev` made this directory's stores
    DIR/cluster.json     while the cluster takes messages (`supervisor.py`)

A pid alone may belong to a stranger by now. With the time of its start, and while the lock is held, it is the
supervisor, and the signal goes through a descriptor of that very process.

`purge` removes what `dev` makes, by name, and nothing else; the directory itself goes when it is empty
then. A store that was there before `dev` ran is somebody else's: that directory gets no mark, and is never
purged.
"""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from whimbrel.cli.process_times import started_ticks

__all__ = ["MARK", "contents", "held", "log_file_size", "mark", "marked", "purge", "running_pid", "stop"]

MARK = ".whimbrel-dev"
MARK_TEXT = "`whimbrel dev` made this directory; `whimbrel dev purge` removes its stores and logs.\n"
LOCK = Path("run") / "lock"
FILES = ("cluster.json", "cluster.json.tmp", "groups.json", "groups.json.lock", "groups.json.tmp")
FOLDERS = ("master", "logs", "traces", "run")
STORES = ("slave-[0-9]", "[b-i]-master", "[b-i]-slave-[0-9]")  # all but the first master's
LOOK_S = 0.2  # a command that looks whether somebody runs here has the lock for a moment
POLL_S = 0.02


@contextlib.contextmanager
def held(directory: Path) -> Iterator[bool]:
    """Hold the directory's lock while the block runs; yield False when another process does."""
    with (directory / LOCK).open("a+") as lock:
        deadline = time.monotonic() + LOOK_S
        while not taken(lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                yield False
                return
            time.sleep(POLL_S)
        lock.truncate(0)
        lock.write(f"{os.getpid()} {started_ticks(os.getpid())}\n")
        lock.flush()
        yield True


def running_pid(directory: Path) -> int | None:
    """Return the process id of the supervisor that runs in a directory, None if none does."""
    try:
        with (directory / LOCK).open("r") as lock:
            if taken(lock, fcntl.LOCK_SH):
                return None
            words = lock.read().split()
    except FileNotFoundError:
        return None
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None  # it has just started, and has not written who it is
    pid, start = map(int, words)
    return pid if started_ticks(pid) == start else None


def taken(lock: IO[str], kind: int) -> bool:
    """Take a lock if it is free; it is given back when the file is closed."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def stop(directory: Path, timeout_s: float) -> bool | None:
    """End the supervisor of a directory, and wait; None if none runs, False if it runs still."""
    pid = running_pid(directory)
    if pid is None:
        return None
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        if running_pid(directory) != pid:  # it ended before the descriptor was there, which may be another's
            return None
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        return bool(select.select([fd], [], [], timeout_s)[0])
    finally:
        os.close(fd)


def mark(directory: Path) -> None:
    """Mark a directory as made by `dev`, unless stores were in it before `dev` first ran there."""
    if (directory / MARK).exists() or ((directory / "master").exists() and not (directory / LOCK).exists()):
        return
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).write_text(MARK_TEXT, encoding="utf-8")


def marked(directory: Path) -> bool:
    """Return whether `dev` made a directory."""
    return (directory / MARK).is_file()


def contents(directory: Path) -> list[Path]:
    """Return what `purge` would remove in a directory, apart from itself."""
    named = [directory / name for name in (*FILES, *FOLDERS, MARK)]
    there = [path for path in named if path.exists() or path.is_symlink()]
    return sorted([*there, *stores(directory)])


def stores(directory: Path) -> list[Path]:
    """Return the stores in a directory but for the first master's."""
    return sorted(path for pattern in STORES for path in directory.glob(pattern))


def purge(directory: Path) -> bool:
    """Remove what `dev` made in a marked directory; return whether the directory itself went, too.

    The caller holds the lock. A link is removed, not what it points to.
    """
    for path in contents(directory):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError:
        return False
    return True


def log_file_size(directory: Path) -> int | None:
    """Return the size of the stores' log files, the master's first; None when there are none."""
    for store in ("master", *(path.name for path in stores(directory))):
        with contextlib.suppress(StopIteration, FileNotFoundError, NotADirectoryError):
            return next((directory / store / "commitlog").iterdir()).stat().st_size or None
    return None
