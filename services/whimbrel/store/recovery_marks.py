"""Recovery marks: where recovery may start, and where the log ended after each of its last recoveries.

`STORE/whimbrel/log-mark` is written by the process that writes the log:

    offset      a boundary between records below which the log is on disk
    check       a boundary at least 64 MiB before it (or the oldest known): recovery reads and verifies from
                here, so that damage near the end is found although it lies below `offset`
    recoveries  how many recoveries there were
    ends        the ends of the log after the last of them: what is kept beside the log must be truncated to
                the lowest end of all recoveries that it has not followed yet

`STORE/whimbrel/queue-mark` is written by the broker:

    offset      every record below is in its queue, and those entries are on disk
    indexed     the keys of every record below are in the index, and it is on disk
    recoveries  number of the last recovery that queues and index have followed
    queues      how many queues have an entry below `offset`
    entries     the sum of their ends: a queue or a file that is missing shows here
    index_end   physical offset of the newest index entry then, -1 without any
    boot        boot id of the machine when it was written; within one boot the page cache has lost nothing

Both are written in place, in one sector, with a CRC. A damaged file counts as missing, and recovery then
reads the whole log.
"""

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files

__all__ = ["CHECK_BYTES", "MARK_BYTES", "MARK_INTERVAL_S", "LogMark", "QueueMark"]

# A mark is written after so much log, or after so long: what recovery reads stays small. The queues' mark
# waits longer after so much log where it takes long itself (`MarkWriter.apart_s`).
MARK_BYTES = 64 * 1024 * 1024
MARK_INTERVAL_S = 5.0
CHECK_BYTES = 64 * 1024 * 1024  # quickly verified, and far more than disks keep in caches of their own
# Ends that are kept. A broker that was down for more recoveries rebuilds its queues from the whole log.
RECOVERIES_MAX = 24

LOG = struct.Struct(f"=8sqqq{RECOVERIES_MAX}q")  # tag, offset, check, recoveries, ends
QUEUES = struct.Struct("=8sqqqqqq16s")
SEAL = struct.Struct("=I")
LOG_TAG = b"whimlog1"
QUEUE_TAG = b"whimque1"


@dataclass(slots=True)
class LogMark:
    """The log's mark; `ends[n % RECOVERIES_MAX]` is the end after recovery number n."""

    offset: int = 0
    check: int = 0
    recoveries: int = 0
    ends: list[int] = field(default_factory=lambda: [0] * RECOVERIES_MAX)

    @classmethod
    def load(cls, root: Path, files: Files = FILES) -> "LogMark | None":
        """Read the mark; None when there is none or it is damaged."""
        fields = load(files, root / "whimbrel" / "log-mark", LOG, LOG_TAG)
        return cls(fields[1], fields[2], fields[3], list(fields[4:])) if fields else None

    def save(self, root: Path, files: Files = FILES) -> None:
        """Write the mark and wait for the disk."""
        save(
            files,
            root / "whimbrel" / "log-mark",
            LOG.pack(LOG_TAG, self.offset, self.check, self.recoveries, *self.ends),
        )

    def add_recovery(self, end: int) -> None:
        """Note that a recovery left the log ending at `end`."""
        self.recoveries += 1
        self.ends[self.recoveries % RECOVERIES_MAX] = end

    def lowest_end_since(self, recovery: int) -> int | None:
        """Return the lowest end of the recoveries after a number; None: there were none, -1: not known."""
        if recovery == self.recoveries:
            return None
        if not 0 <= self.recoveries - recovery < RECOVERIES_MAX:
            return -1
        return min(self.ends[number % RECOVERIES_MAX] for number in range(recovery + 1, self.recoveries + 1))


@dataclass(frozen=True, slots=True)
class QueueMark:
    """The queues' and the index's mark."""

    offset: int
    indexed: int
    recoveries: int
    queues: int
    entries: int
    index_end: int
    boot: bytes

    @classmethod
    def load(cls, root: Path, files: Files = FILES) -> "QueueMark | None":
        """Read the mark; None when there is none or it is damaged."""
        fields = load(files, root / "whimbrel" / "queue-mark", QUEUES, QUEUE_TAG)
        return cls(*fields[1:]) if fields else None

    def save(self, root: Path, files: Files = FILES) -> None:
        """Write the mark and wait for the disk."""
        data = QUEUES.pack(
            QUEUE_TAG,
            self.offset,
            self.indexed,
            self.recoveries,
            self.queues,
            self.entries,
            self.index_end,
            self.boot,
        )
        save(files, root / "whimbrel" / "queue-mark", data)

    @staticmethod
    def withdraw(root: Path, files: Files = FILES) -> None:
        """Remove the mark, before what it vouches for is written anew.

        Raises:
            StoreError: the disk refuses.
        """
        path = root / "whimbrel" / "queue-mark"
        try:
            files.discard(path)
        except OSError as error:
            raise StoreError(
                f"{path} can't be removed: {error}; see to the disk, then start again"
            ) from error


def load(files: Files, path: Path, layout: struct.Struct, tag: bytes) -> tuple:  # type: ignore[type-arg]
    """Return a mark's fields, or an empty tuple."""
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return ()
    if len(data) != layout.size + SEAL.size:
        return ()
    if SEAL.unpack_from(data, layout.size)[0] != zlib.crc32(data[: layout.size]):
        return ()
    fields = layout.unpack_from(data)
    return fields if fields[0] == tag else ()


def save(files: Files, path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a mark in place; with `sync`, it and its name are on disk afterwards."""
    new = sync and not files.exists(path)
    fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        files.write_all(fd, data + SEAL.pack(zlib.crc32(data)), 0)
        if sync:
            files.fdatasync(fd)
    finally:
        files.close(fd)
    if new:
        files.sync_directory(path.parent)
