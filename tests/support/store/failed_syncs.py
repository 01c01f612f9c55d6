"""A store whose disk refuses syncs: set-up of the tests of failed syncs, and what they do to it.

The disk is `cache_disk.py`'s: what was not synced is lost with the power, and syncs of files that are named
in `failing` fail so many times. Flushes are the tests' own, by `store.writer.flush()`.
"""

import dataclasses
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.store.cache_disk import CachedMachine
from support.store.stores import NOW, OPTIONS, make_draft
from whimbrel.store.master_store import MasterStore
from whimbrel.store.segment import segment_name

__all__ = [
    "LOG",
    "SYNC",
    "RefusingMachine",
    "after_power_loss",
    "append_large",
    "append_small",
    "fail",
    "first_file",
    "kill",
    "make_directory",
    "mark",
    "mend",
    "open_indexed",
    "open_store",
    "opened_store",
    "out_of_descriptors",
    "overwrite",
]

SYNC = dataclasses.replace(OPTIONS, flush="sync", flush_interval_ms=3_600_000)  # tests flush themselves
LOG = "/commitlog/"
LARGE = 12_000  # bytes of a message, of which a file of the log takes five


class RefusingMachine(CachedMachine):
    """The machine of such a store; `ended`: stores that a test has closed itself."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[MasterStore] = []


def make_directory(path: Path) -> Path:
    """Make a directory, and return its path."""
    path.mkdir()
    return path


def open_store(machine: RefusingMachine, root: Path) -> MasterStore:
    """Open a store on the disk; of several processes in one boot, each calls this."""
    root.mkdir(exist_ok=True)
    return MasterStore.open(root, SYNC, clock=lambda: NOW, machine=machine)


@contextmanager
def opened_store(machine: RefusingMachine, root: Path) -> Iterator[MasterStore]:
    """Yield a store with one message on disk; it is closed at the end if the test has not done so."""
    found = open_store(machine, root)
    append_large(found, [0])
    found.writer.flush()
    yield found
    if found not in machine.ended:
        found.close(clean=False)


def open_indexed(machine: RefusingMachine, root: Path) -> MasterStore:
    """Return a store with 300 messages on disk, and with keys in two index files."""
    store = open_store(machine, root)
    for number in range(300):
        store.append([make_draft(number)])
        store.end_tick()
    store.index_rest()
    store.writer.flush()
    return store


def append_large(store: MasterStore, numbers: Iterable[int]) -> None:
    """Append messages of 12,000 bytes."""
    for number in numbers:
        store.append([make_draft(number, size=LARGE)])


def append_small(store: MasterStore, numbers: Iterable[int]) -> None:
    """Append messages of some hundred bytes."""
    for number in numbers:
        store.append([make_draft(number)])


def first_file(root: Path) -> Path:
    """Return the path of the log's first file."""
    return root / "commitlog" / segment_name(0)


def overwrite(root: Path, position: int, data: bytes) -> None:
    """Put other bytes into the log's first file, behind the back of the store."""
    with first_file(root).open("r+b") as file:
        file.seek(position)
        file.write(data)


def kill(machine: RefusingMachine, store: MasterStore) -> None:
    """End a store as a kill of its process does."""
    store.close(clean=False)
    machine.ended.append(store)


def after_power_loss(machine: RefusingMachine, store: MasterStore, root: Path) -> MasterStore:
    """Return the store of the next boot: in `root`, with what was on disk."""
    machine.boots += 1
    after = machine.files.power_loss(store.root, root)
    kill(machine, store)
    return open_store(machine, after)


def fail(store: MasterStore, machine: RefusingMachine, *, again: int = 0) -> None:
    """Let the next sync of the log fail, and so many attempts to write it again."""
    machine.files.failing = {LOG: 1, "/whimbrel/segment-": again}
    store.writer.flush()
    assert store.writer.failed


def mend(store: MasterStore) -> None:
    """Do what the loop and the flush thread do."""
    store.mend()
    store.writer.flush()
    store.mend()


def mark(store: MasterStore, machine: RefusingMachine) -> None:
    """Have the queues' mark written as far as it can be."""
    machine.now += 100
    store.mark_writer.wait()
    store.advance_mark()
    store.mark_writer.wait()


def out_of_descriptors(*_: object) -> Any:
    """Stand for a call that finds no free file descriptor."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
