"""The lease journal: entries are on disk before the answer that depends on them leaves.

Two files in STORE/whimbrel/leases/, `a.journal` and `b.journal`, are written alternately:

    offset  size
    0       8     magic "WHIMLEAS"
    8       4     layout version, 1
    12      4     zero
    16      8     generation, uint64: the greater was started later
    24      8     CRC-32 of the first 24 bytes, uint64
    32      ...   frames: uint32 length (never 0), uint32 CRC-32 of the entries, seeded with the
                  generation, and the entries

A file starts with a full snapshot and goes on with changes. When it is full the other one is started over:
generation plus 1, a snapshot, and so on; the old file is not touched before the new one's snapshot is known
to be on the disk. Opening the journal reads both, older first, each up to its first frame that is not
whole (a torn tail, or what an earlier generation left), and joins everything: entries merge in any order,
so reading too much does no harm. It then starts the older file over, so that nothing is ever appended
behind a torn frame.

Space for both is allocated at the start, so that receives and acknowledgements go on while the disk is
full; when even that is used up, `append` raises StoreFull and nothing has changed.

Bytes are in the page cache before `append` returns, hence survive a kill -9. A thread calls `fdatasync`
at an interval: a power failure can cost the changes of the last one, which deliver again what was
acknowledged in it.
"""

import errno
import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from whimbrel.errors import NotReady, StoreError, StoreFull
from whimbrel.store.pages import FULL_ADVICE

__all__ = ["LeaseJournal"]

# A file takes at least this many times its snapshot, so that snapshots cost less than the changes between
# them.
SNAPSHOT_RATIO = 4
# The snapshot is written in frames of about this size.
FRAME_BYTES = 256 << 10

MAGIC = b"WHIMLEAS"
VERSION = 1
HEADER = struct.Struct("<8sIIQ")
HEADER_BYTES = 32
FRAME = struct.Struct("<II")

logger = logging.getLogger(__name__)


class LeaseJournal:
    """The open journal. One thread writes; another one flushes."""

    def __init__(
        self,
        store_root: Path,
        *,
        file_bytes: int,
        flush_interval_s: float = 0.5,
    ) -> None:
        """Prepare; nothing is read or written before `load` and `start`.

        Args:
            store_root: the store directory.
            file_bytes: how large a file gets.
            flush_interval_s: how long a change waits for the disk at most.
        """
        self.snapshot: Callable[[], Iterable[bytes]] = tuple
        self.file_bytes = file_bytes
        self.interval = flush_interval_s
        folder = store_root / "whimbrel" / "leases"
        self.paths = (folder / "a.journal", folder / "b.journal")
        self.files: list[int] = []
        self.active = 1  # index of the file being written; the next one to be started is the other
        self.generation = 0
        self.position = 0  # where the next frame goes; 0 while no file could be started
        self.limit = 0
        self.full = False
        # Shared by the writing and the flushing thread. `snapshot_flushed`: the active file's snapshot is on
        # the disk.
        self.signal = threading.Condition()
        self.unflushed = False
        self.snapshot_flushed = True
        self.closing = False
        self.flusher: threading.Thread | None = None

    def load(self) -> list[bytes]:
        """Return all entries on disk, in chunks, oldest first."""
        found = []
        for index, path in enumerate(self.paths):
            data = path.read_bytes() if path.exists() else b""
            generation = read_header(data)
            if generation is None:
                if data.strip(b"\0"):
                    logger.warning("%s is not a lease journal of this version; it is ignored", path)
                continue
            found.append((generation, index, data))
        chunks = []
        for generation, index, data in sorted(found):
            self.generation, self.active = generation, index
            end = HEADER_BYTES
            for chunk in read_frames(data, generation):
                chunks.append(chunk)
                end += FRAME.size + len(chunk)
            logger.info("lease journal %s, generation %d: %d bytes", self.paths[index].name, generation, end)
        return chunks

    def start(self, snapshot: Callable[[], Iterable[bytes]]) -> None:
        """Begin to write; raises StoreError when the directory can't be used.

        A full disk is not an error here: `append` tries again, and refuses until it works.

        Args:
            snapshot: returns the full state as entries; called whenever a file is started.
        """
        self.snapshot = snapshot
        self.open()
        if self.generation and len(self.files) == 2:
            os.fdatasync(self.files[self.active])  # the newest must last before the other is started over
        self.rotate()
        self.allocate()

    def append(self, entries: bytes) -> None:
        """Write entries.

        Raises:
            StoreFull: nothing was written.
            NotReady: the journal is closed. Its files may be another role's by now.
        """
        if self.closing:
            raise NotReady("the lease journal is closed: the broker stops or changes its role")
        if not self.position:
            self.open()
            self.rotate()
        elif self.snapshot_flushed and self.position + len(entries) + FRAME.size > self.limit:
            self.rotate()
        if not self.position:
            raise StoreFull(f"the disk is full (no room for the lease journal); {FULL_ADVICE}")
        frame = FRAME.pack(len(entries), zlib.crc32(entries, self.generation & 0xFFFFFFFF)) + entries
        try:
            write_all(self.files[self.active], frame, self.position)
        except OSError as error:
            # A part of the frame may stand there now. Its checksum doesn't hold, and the next frame goes
            # over it.
            self.report_full(error)
            raise StoreFull(f"the lease journal can't be written: {error.strerror}; {FULL_ADVICE}") from error
        self.position += len(frame)
        self.full = False
        if not self.unflushed:
            with self.signal:
                self.unflushed = True
                self.signal.notify()

    def close(self) -> None:
        """Flush and close; for good."""
        with self.signal:
            self.closing = True
            self.signal.notify()
        if self.flusher is not None:
            self.flusher.join()
            self.flusher = None
        for fd in self.files:
            os.close(fd)
        self.files = []
        self.position = 0

    def open(self) -> None:
        try:
            self.paths[0].parent.mkdir(parents=True, exist_ok=True)
            for path in self.paths[len(self.files) :]:
                self.files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(f"the lease journal can't be opened: {error}") from error
            self.report_full(error)

    def allocate(self) -> None:
        """Give both files their space: the next start needs the other one, perhaps on a full disk."""
        try:
            for fd in self.files:
                os.posix_fallocate(fd, 0, self.file_bytes)
        except OSError as error:
            logger.warning("no room for the second file of the lease journal: %s", error)

    def rotate(self) -> None:
        """Start the other file over; on a full disk go on with this one."""
        if len(self.files) < 2:
            return
        index, generation = 1 - self.active, self.generation + 1
        fd = self.files[index]
        try:
            position, limit = self.write_snapshot(fd, generation)
        except OSError as error:
            self.report_full(error)
            self.limit += (
                self.file_bytes // 8
            )  # go on with this file for a while, as long as the disk has room
            return
        self.active, self.generation, self.position, self.limit = index, generation, position, limit
        self.full = False
        if self.flusher is None:
            self.flusher = threading.Thread(target=self.flush_forever, name="lease-journal", daemon=True)
            self.flusher.start()
        with self.signal:
            self.snapshot_flushed, self.unflushed = False, True
            self.signal.notify()

    def write_snapshot(self, fd: int, generation: int) -> tuple[int, int]:
        # The header goes last: until then the file is no journal, and is ignored.
        os.posix_fallocate(fd, 0, self.file_bytes)
        write_all(fd, bytes(HEADER_BYTES), 0)
        position, pending, size = HEADER_BYTES, [], 0
        for entry in self.snapshot():
            pending.append(entry)
            size += len(entry)
            if size >= FRAME_BYTES:
                position += self.write_frame(fd, b"".join(pending), position, generation)
                pending, size = [], 0
        if pending:
            position += self.write_frame(fd, b"".join(pending), position, generation)
        head = HEADER.pack(MAGIC, VERSION, 0, generation)
        write_all(fd, head + zlib.crc32(head).to_bytes(8, "little"), 0)
        return position, max(self.file_bytes, SNAPSHOT_RATIO * position)

    @staticmethod
    def write_frame(fd: int, entries: bytes, position: int, generation: int) -> int:
        frame = FRAME.pack(len(entries), zlib.crc32(entries, generation & 0xFFFFFFFF)) + entries
        write_all(fd, frame, position)
        return len(frame)

    def report_full(self, error: OSError) -> None:
        if not self.full:
            logger.error(
                "the lease journal can't be written, receives and acknowledgements are refused: %s", error
            )
        self.full = True

    def flush_forever(self) -> None:
        while True:
            with self.signal:
                while not self.unflushed and not self.closing:
                    self.signal.wait()
                if not self.closing:
                    self.signal.wait_for(lambda: self.closing, self.interval)
                closing, dirty, self.unflushed = self.closing, self.unflushed, False
                index, generation = self.active, self.generation
            if dirty:
                try:
                    os.fdatasync(self.files[index])
                except OSError as error:
                    logger.error("the lease journal can't be flushed: %s", error)
                else:
                    with self.signal:
                        self.snapshot_flushed = self.snapshot_flushed or generation == self.generation
            if closing:
                return


def read_header(data: bytes) -> int | None:
    if len(data) < HEADER_BYTES:
        return None
    magic, version, _, generation = HEADER.unpack_from(data)
    checksum = zlib.crc32(data[: HEADER.size])
    if magic != MAGIC or version != VERSION or data[24:32] != checksum.to_bytes(8, "little"):
        return None
    return int(generation)


def read_frames(data: bytes, generation: int) -> Iterable[bytes]:
    position = HEADER_BYTES
    while position + FRAME.size <= len(data):
        size, checksum = FRAME.unpack_from(data, position)
        position += FRAME.size
        entries = data[position : position + size]
        if not size or len(entries) != size or zlib.crc32(entries, generation & 0xFFFFFFFF) != checksum:
            return
        yield entries
        position += size


def write_all(fd: int, data: bytes, position: int) -> None:
    written = os.pwrite(fd, data, position)
    while written < len(data):
        written += os.pwrite(fd, memoryview(data)[written:], position + written)
