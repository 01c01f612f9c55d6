"""Copies a store to another place: `whimbrel restore`, and `whimbrel store export --to`.

    1  the marker   STORE/whimbrel/copying: what is here is not whole, and no process opens it
    2  the files    data where there is data, holes where there are holes; with times, which retention goes by
    3  the seat     where the store is a member's: another one, with its promises, without its vote
    4  no marker

Each step is on disk before the next, so a copy that was interrupted says so, and the same command begins it
anew. What belongs to processes that run (locks, the page of marks, log files in reserve) is left out.

**A member's store** that is put back is not the member that it was: since the copy was made it may have
promised itself to another candidate and acknowledged records that the copy lacks (F1). So the copy gets a
seat of its own, `copied`: what was promised stays as a minimum, and it votes once its group has been told to
count it (`whimbrel replication voters --set`), as a replaced disk does. A copy for somebody else
(`group=False`) has no seat, and its log ends where the member knew that it was committed.
"""

import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whimbrel.errors import StoreError
from whimbrel.machine import MACHINE, Files, Machine
from whimbrel.store.locking import is_locked
from whimbrel.store.seat_file import SEAT_FILE, Seat, SeatFile, copied, draw_uuid

__all__ = ["COPYING", "CopiedStore", "check_copied", "copy_store"]

logger = logging.getLogger(__name__)

COPYING: Final = Path("whimbrel") / "copying"  # in a store directory
COPY_BYTES: Final = 64 * 1024
# Of processes that run, and the seat, which is made anew.
LEFT_OUT: Final = frozenset(
    {
        Path("lock"),
        Path("whimbrel/broker.lock"),
        Path("whimbrel/replicator.lock"),
        Path("whimbrel/watermark"),
        SEAT_FILE,
        SEAT_FILE.with_name("seat.tmp"),
        COPYING,
    }
)
RESERVED: Final = "segment-"  # log files that are not in use yet, in whimbrel/
# What says how far a log goes that is cut here: its recovery finds that out.
LOG_MARKS: Final = frozenset({Path("checkpoint"), Path("whimbrel/log-mark"), Path("whimbrel/queue-mark")})


@dataclass(frozen=True, slots=True)
class CopiedStore:
    """What was copied.

    Attributes:
        files, data_bytes: how many files, and bytes of data in them, without holes.
        seat: that of the copy; None where it is no member's.
    """

    files: int
    data_bytes: int
    seat: Seat | None


def check_copied(root: Path, files: Files) -> None:
    """Refuse a store that is not whole.

    Raises:
        StoreError: a copy into it was begun, and has not come to its end.
    """
    if files.exists(root / COPYING):
        raise StoreError(
            f"the copy of a store into {root} was interrupted: what is there is not whole; give the same"
            " command again (`whimbrel restore BACKUP STORE`), which begins anew"
        )


def copy_store(
    source: Path,
    target: Path,
    *,
    group: bool = True,
    log_end: int | None = None,
    machine: Machine = MACHINE,
) -> CopiedStore:
    """Copy a store at rest, or a backup, to a directory that is empty or not there.

    Args:
        group: a member's store stays a store of its group, with another seat; else it has none.
        log_end: nothing of the log from here on is copied, a boundary of its records; None: all of it is.

    Raises:
        StoreError: there is no store, or a process has it open; there is something at the target; a seat is
            damaged; or the disk refuses.
    """
    files = machine.files
    if not files.exists(source / "commitlog"):
        raise StoreError(f"{source} holds no store: there is no commitlog/ in it")
    if is_locked(source, files):
        raise StoreError(f"{source} is in use: stop its broker and its replicator, or copy a snapshot of it")
    check_copied(source, files)
    outer, inner = files.real_path(source), files.real_path(target)
    if outer == inner or outer in inner.parents or inner in outer.parents:
        raise StoreError(f"{target} and {source} are the same directory, or one is in the other")
    seat = SeatFile(source, files).load() if group else None
    try:
        there = files.exists(target)
        begin_copy(target, files)
        copier = Copier(source, target, log_end, files)
        copier.directory(Path())
        if not there:
            files.copy_status(source, target)
        if log_end is not None:
            files.touch(target / "abort")  # so that recovery looks for the log's end
        files.sync_directory(target)
        copy = None
        if seat is not None:
            copy = copied(seat, draw_uuid(machine.random_bytes))
            SeatFile(target, files).save(copy)
        files.unlink(target / COPYING)
        files.sync_directory(target / COPYING.parent)
    except OSError as error:
        raise StoreError(
            f"{source} can't be copied to {target}: {error}; see to that, then give the same command again,"
            " which begins anew"
        ) from error
    return CopiedStore(copier.count, copier.data_bytes, copy)


def begin_copy(target: Path, files: Files) -> None:
    """Make the directory with its marker; what an interrupted copy has left there is removed.

    Raises:
        StoreError: there is something else.
    """
    marker = target / COPYING
    names = files.names(target)
    if names and not files.exists(marker):
        raise StoreError(
            f"{target} is not empty ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}): move away"
            " what is there, or name another directory"
        )
    files.make_directory(marker.parent)
    files.touch(marker)
    files.sync_directory(marker.parent)
    for name in names:
        if name != COPYING.parent.name:
            files.remove_tree(target / name)
    for name in files.names(marker.parent):
        if name != COPYING.name:
            files.remove_tree(marker.parent / name)


class Copier:
    """Copies the files of a store, each on disk before the next.

    Attributes:
        count, data_bytes: see `CopiedStore`.
    """

    def __init__(self, source: Path, target: Path, log_end: int | None, files: Files) -> None:
        self.source, self.target, self.log_end, self.files = source, target, log_end, files
        self.count = self.data_bytes = 0

    def directory(self, path: Path) -> None:
        """Copy what is in a directory, named by its path in the store."""
        files = self.files
        files.make_directory(self.target / path)
        for name in files.names(self.source / path):
            each = path / name
            if each in LEFT_OUT or (each.parent == COPYING.parent and name.startswith(RESERVED)):
                continue
            mode = files.stat(self.source / each).st_mode
            if stat.S_ISDIR(mode):
                self.directory(each)
                files.copy_status(self.source / each, self.target / each)
            elif stat.S_ISREG(mode):
                self.file(each)
        files.sync_directory(self.target / path)

    def file(self, path: Path) -> None:
        """Copy a file, of the log as far as that is wanted."""
        files, end = self.files, None
        if self.log_end is not None:
            if path in LOG_MARKS:
                return
            if path.parent == Path("commitlog") and path.name.isdigit():
                end = self.log_end - int(path.name)
                if end <= 0:
                    return
        fd = files.open(self.source / path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            new = files.open(self.target / path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                self.content(fd, new, end)
            finally:
                files.close(new)
        finally:
            files.close(fd)
        files.copy_status(self.source / path, self.target / path)
        self.count += 1

    def content(self, fd: int, new: int, end: int | None) -> None:
        """Copy data up to an offset, None for all; what is no data is a hole."""
        files, size = self.files, self.files.fstat(fd).st_size
        position, end = 0, size if end is None else min(end, size)
        while position < end and 0 <= (position := files.next_data(fd, position)) < end:
            data = files.pread(fd, min(COPY_BYTES, end - position), position)
            if not data:
                break
            kept = data.rstrip(b"\0")  # what was allocated and never written some file systems call data
            if kept:
                files.write_all(new, kept, position)
                self.data_bytes += len(kept)
            position += len(data)
        files.ftruncate(new, size)
        files.fsync(new)
