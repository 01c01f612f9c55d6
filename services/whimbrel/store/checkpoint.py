"""RocketMQ's `checkpoint`: the store times up to which the log, the queues and the index are on disk.

    0   i64  store time of the last flushed record           the process that writes the log
    8   i64  store time of the last queue entry on disk      the broker
    16  i64  store time of the last full index file's end    the broker
    24       zeros (RocketMQ 5.x: i64 master's flushed offset)
    32  i64  commit offset of a log whose group commits by       the broker
             majority, 0 elsewhere (RocketMQ 5.x: its confirmed offset)
    40       zeros up to 4096

We write it for RocketMQ, whose recovery after a crash starts at the last file whose first record is older
than the lowest of these. Ours starts at its own marks (`recovery_marks.py`).
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from whimbrel.machine import FILES, Files

__all__ = ["CHECKPOINT_SIZE", "Checkpoint", "read_checkpoint", "write_checkpoint"]

CHECKPOINT_SIZE = 4096
TIMES = struct.Struct(">qqq")
TIME = OFFSET = struct.Struct(">q")
COMMITTED = 32
GRACE_MS = 3000  # RocketMQ subtracts this: times are written a little later than the data


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The three times in ms and the commit offset, 0 where unknown."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    committed: int = 0

    @property
    def minimum_ms(self) -> int:
        """Everything stored before is on disk, in the log and in the queues."""
        return max(0, min(self.log_ms, self.queues_ms) - GRACE_MS)


def read_checkpoint(root: Path, files: Files = FILES) -> Checkpoint | None:
    """Return the times, or None when there is no usable file."""
    try:
        data = files.read_bytes(root / "checkpoint")
    except FileNotFoundError:
        return None
    if len(data) < TIMES.size:
        return None
    (committed,) = OFFSET.unpack_from(data.ljust(COMMITTED + OFFSET.size, b"\0"), COMMITTED)
    log_ms, queues_ms, index_ms = TIMES.unpack_from(data)
    return Checkpoint(log_ms, queues_ms, index_ms, committed)


def write_checkpoint(
    root: Path,
    *,
    log_ms: int | None = None,
    queues_ms: int | None = None,
    index_ms: int | None = None,
    committed: int | None = None,
    files: Files = FILES,
) -> None:
    """Write what is given and leave the rest, which may belong to another process.

    The times are on disk in the end. The commit offset need not be: an older one is right as well.
    """
    fd = files.open(root / "checkpoint", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        stat = files.fstat(fd)
        if stat.st_size < CHECKPOINT_SIZE or not stat.st_blocks:
            files.posix_fallocate(fd, 0, CHECKPOINT_SIZE)  # so that it can be written while the disk is full
        for position, value in ((0, log_ms), (8, queues_ms), (16, index_ms), (COMMITTED, committed)):
            if value is not None:
                files.pwrite(fd, TIME.pack(value), position)
        if committed is None:
            files.fdatasync(fd)
    finally:
        files.close(fd)
