"""Where recovery may start: two small files of ours, and the list of the recoveries there were.

`STORE/whimbrel/log-mark` belongs to the process that writes the log:

    offset  a border between records below which the log is on disk
    check   a border at least 64 MiB before it (or the oldest known): recovery reads and verifies from here
    on, so that
            damage near the end is found although it lies below `offset`
    cuts    the ends of the log after its last recoveries, numbered: whoever keeps something beside the log
    must cut
            that back to the lowest end of all recoveries it has not seen

`STORE/whimbrel/queue-mark` belongs to the broker:

    offset   every record below is in its queue, and those entries are on disk
    indexed  the keys of every record below are in the index, and it is on disk
    cuts     number of the last recovery taken into account
    queues   how many queues have an entry below `offset`
    entries  the sum of their ends: a queue or a file that went missing shows here
    index_end  physical offset of the newest index entry then, -1 without any
    boot     the machine's boot in which it was written; in the same boot nothing was lost from the page cache

Both are written in place, in one sector, with a CRC; a file that does not match is as good as none, and
recovery then reads the whole log.
"""

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CHECK_BYTES", "LogMark", "QueueMark"]

CHECK_BYTES = 64 * 1024 * 1024  # verified in 0.1 s; far more than disks keep in caches of their own
CUTS_MAX = 24  # recoveries kept; a broker that slept through more rebuilds its queues from the whole log

LOG = struct.Struct(f"=8sqqq{CUTS_MAX}q")  # tag, offset, check, number of the last cut, ends of the last cuts
QUEUES = struct.Struct("=8sqqqqqq16s")
SEAL = struct.Struct("=I")
LOG_TAG = b"whimlog1"
QUEUE_TAG = b"whimque1"


@dataclass(slots=True)
class LogMark:
    """The log's mark; `ends[n % CUTS_MAX]` is the end after recovery number n."""

    offset: int = 0
    check: int = 0
    cut: int = 0
    ends: list[int] = field(default_factory=lambda: [0] * CUTS_MAX)

    @classmethod
    def load(cls, root: Path) -> "LogMark | None":
        """Read the mark; None when there is none or it is damaged."""
        fields = load(root / "whimbrel" / "log-mark", LOG, LOG_TAG)
        return cls(fields[1], fields[2], fields[3], list(fields[4:])) if fields else None

    def save(self, root: Path) -> None:
        """Write the mark and wait for the disk."""
        save(root / "whimbrel" / "log-mark", LOG.pack(LOG_TAG, self.offset, self.check, self.cut, *self.ends))

    def add_cut(self, end: int) -> None:
        """Note that a recovery left the log ending at `end`."""
        self.cut += 1
        self.ends[self.cut % CUTS_MAX] = end

    def lowest_end_since(self, cut: int) -> int | None:
        """Return the lowest end of the recoveries after number `cut`; -1: no longer known, None: none."""
        if cut == self.cut:
            return None
        if not 0 <= self.cut - cut < CUTS_MAX:
            return -1
        return min(self.ends[number % CUTS_MAX] for number in range(cut + 1, self.cut + 1))


@dataclass(frozen=True, slots=True)
class QueueMark:
    """The queues' and the index's mark."""

    offset: int
    indexed: int
    cut: int
    queues: int
    entries: int
    index_end: int
    boot: bytes

    @classmethod
    def load(cls, root: Path) -> "QueueMark | None":
        """Read the mark; None when there is none or it is damaged."""
        fields = load(root / "whimbrel" / "queue-mark", QUEUES, QUEUE_TAG)
        return cls(*fields[1:]) if fields else None

    def save(self, root: Path) -> None:
        """Write the mark and wait for the disk."""
        data = QUEUES.pack(
            QUEUE_TAG,
            self.offset,
            self.indexed,
            self.cut,
            self.queues,
            self.entries,
            self.index_end,
            self.boot,
        )
        save(root / "whimbrel" / "queue-mark", data)


def load(path: Path, layout: struct.Struct, tag: bytes) -> tuple:  # type: ignore[type-arg]
    """Return a mark's fields, or an empty tuple."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    if len(data) != layout.size + SEAL.size:
        return ()
    if SEAL.unpack_from(data, layout.size)[0] != zlib.crc32(data[: layout.size]):
        return ()
    fields = layout.unpack_from(data)
    return fields if fields[0] == tag else ()


def save(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a mark in place."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(fd, data + SEAL.pack(zlib.crc32(data)), 0)
        if sync:
            os.fdatasync(fd)
    finally:
        os.close(fd)
