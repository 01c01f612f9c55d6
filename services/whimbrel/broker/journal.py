"""The lease journal: entries on disk before the answer that rests on them leaves.

Two files in STORE/whimbrel/leases/, `a.journal` and `b.journal`, are written in turn:

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
to be on the disk. Whoever opens the journal reads both, older first, each up to its first frame that is not
whole (a torn tail, or what an earlier generation left), and joins everything: entries merge in any order,
so reading too much does no harm. It then starts the older file over, so that nothing is ever appended
behind a torn frame.

Space for both is allocated at the start, so that receives and acknowledgements go on while the disk is
full; when even that is used up, `append` raises StoreFull and nothing has changed.

Bytes are handed to the kernel before `append` returns, hence survive a kill -9. A thread calls `fdatasync`
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

from whimbrel.errors import StoreError, StoreFull
from whimbrel.store.pages import FULL_ADVICE

__all__ = ["FILE_BYTES", "LeaseJournal"]

# Holds about 80,000 changes; at 10,000 a second one snapshot every 8 s. Two of them are allocated for each
# store.
FILE_BYTES = 8 << 20
# A file takes at least this many times its snapshot, so that snapshots cost less than the changes between
# them.
_SNAPSHOT_RATIO = 4
# The snapshot is written in frames of about this size.
_FRAME_BYTES = 256 << 10

_MAGIC = b"WHIMLEAS"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQ")
_HEADER_BYTES = 32
_FRAME = struct.Struct("<II")

log = logging.getLogger(__name__)


class LeaseJournal:
    """The open journal. One thread writes; another one flushes."""

    def __init__(
        self,
        store_root: Path,
        *,
        file_bytes: int = FILE_BYTES,
        flush_interval_s: float = 0.5,
    ) -> None:
        """Prepare; nothing is read or written before `load` and `start`.

        Args:
            store_root: the store directory.
            file_bytes: how large a file gets.
            flush_interval_s: how long a change waits for the disk at most.
        """
        self._snapshot: Callable[[], Iterable[bytes]] = tuple
        self._file_bytes = file_bytes
        self._interval = flush_interval_s
        folder = store_root / "whimbrel" / "leases"
        self._paths = (folder / "a.journal", folder / "b.journal")
        self._files: list[int] = []
        self._active = 1  # index of the file being written; the next one to be started is the other
        self._generation = 0
        self._position = 0  # where the next frame goes; 0 while no file could be started
        self._limit = 0
        self._full = False
        # Between the writing and the flushing thread. `_settled`: the active file's snapshot is on the disk.
        self._signal = threading.Condition()
        self._unflushed = False
        self._settled = True
        self._closing = False
        self._flusher: threading.Thread | None = None

    def load(self) -> list[bytes]:
        """Return all entries on disk, in chunks, oldest first."""
        found = []
        for index, path in enumerate(self._paths):
            data = path.read_bytes() if path.exists() else b""
            generation = _read_header(data)
            if generation is None:
                if data.strip(b"\0"):
                    log.warning("%s is not a lease journal of this version; it is ignored", path)
                continue
            found.append((generation, index, data))
        chunks = []
        for generation, index, data in sorted(found):
            self._generation, self._active = generation, index
            end = _HEADER_BYTES
            for chunk in _read_frames(data, generation):
                chunks.append(chunk)
                end += _FRAME.size + len(chunk)
            log.info("lease journal %s, generation %d: %d bytes", self._paths[index].name, generation, end)
        return chunks

    def start(self, snapshot: Callable[[], Iterable[bytes]]) -> None:
        """Begin to write; raises StoreError when the directory can't be used.

        A full disk is not an error here: `append` tries again, and refuses until it works.

        Args:
            snapshot: returns the full state as entries; called whenever a file is started.
        """
        self._snapshot = snapshot
        self._open()
        if self._generation and len(self._files) == 2:
            os.fdatasync(self._files[self._active])  # the newest must last before the other is started over
        self._turn_over()
        self._allocate()

    def append(self, entries: bytes) -> None:
        """Write entries; raises StoreFull, and then nothing was written."""
        if not self._position:
            self._open()
            self._turn_over()
        elif self._settled and self._position + len(entries) + _FRAME.size > self._limit:
            self._turn_over()
        if not self._position:
            raise StoreFull(f"the disk is full (no room for the lease journal); {FULL_ADVICE}")
        frame = _FRAME.pack(len(entries), zlib.crc32(entries, self._generation & 0xFFFFFFFF)) + entries
        try:
            _write_all(self._files[self._active], frame, self._position)
        except OSError as error:
            # A part of the frame may stand there now. Its checksum doesn't hold, and the next frame goes
            # over it.
            self._note_full(error)
            raise StoreFull(f"the lease journal can't be written: {error.strerror}; {FULL_ADVICE}") from error
        self._position += len(frame)
        self._full = False
        if not self._unflushed:
            with self._signal:
                self._unflushed = True
                self._signal.notify()

    def close(self) -> None:
        """Flush and close."""
        if self._flusher is not None:
            with self._signal:
                self._closing = True
                self._signal.notify()
            self._flusher.join()
            self._flusher = None
        for fd in self._files:
            os.close(fd)
        self._files = []
        self._position = 0

    def _open(self) -> None:
        try:
            self._paths[0].parent.mkdir(parents=True, exist_ok=True)
            for path in self._paths[len(self._files) :]:
                self._files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(f"the lease journal can't be opened: {error}") from error
            self._note_full(error)

    def _allocate(self) -> None:
        """Give both files their space: the next start needs the other one, perhaps on a full disk."""
        try:
            for fd in self._files:
                os.posix_fallocate(fd, 0, self._file_bytes)
        except OSError as error:
            log.warning("no room for the second file of the lease journal: %s", error)

    def _turn_over(self) -> None:
        """Start the other file; on a full disk stay where we are."""
        if len(self._files) < 2:
            return
        index, generation = 1 - self._active, self._generation + 1
        fd = self._files[index]
        try:
            position, limit = self._write_start(fd, generation)
        except OSError as error:
            self._note_full(error)
            self._limit += (
                self._file_bytes // 8
            )  # go on where we are for a while, as long as the disk lets us
            return
        self._active, self._generation, self._position, self._limit = index, generation, position, limit
        self._full = False
        if self._flusher is None:
            self._flusher = threading.Thread(target=self._flush_forever, name="lease-journal", daemon=True)
            self._flusher.start()
        with self._signal:
            self._settled, self._unflushed = False, True
            self._signal.notify()

    def _write_start(self, fd: int, generation: int) -> tuple[int, int]:
        # The header goes last: until then the file is what it was, or nothing at all.
        os.posix_fallocate(fd, 0, self._file_bytes)
        _write_all(fd, bytes(_HEADER_BYTES), 0)
        position, pending, size = _HEADER_BYTES, [], 0
        for entry in self._snapshot():
            pending.append(entry)
            size += len(entry)
            if size >= _FRAME_BYTES:
                position += self._write_frame(fd, b"".join(pending), position, generation)
                pending, size = [], 0
        if pending:
            position += self._write_frame(fd, b"".join(pending), position, generation)
        head = _HEADER.pack(_MAGIC, _VERSION, 0, generation)
        _write_all(fd, head + zlib.crc32(head).to_bytes(8, "little"), 0)
        return position, max(self._file_bytes, _SNAPSHOT_RATIO * position)

    @staticmethod
    def _write_frame(fd: int, entries: bytes, position: int, generation: int) -> int:
        frame = _FRAME.pack(len(entries), zlib.crc32(entries, generation & 0xFFFFFFFF)) + entries
        _write_all(fd, frame, position)
        return len(frame)

    def _note_full(self, error: OSError) -> None:
        if not self._full:
            log.error(
                "the lease journal can't be written, receives and acknowledgements are refused: %s", error
            )
        self._full = True

    def _flush_forever(self) -> None:
        while True:
            with self._signal:
                while not self._unflushed and not self._closing:
                    self._signal.wait()
                if not self._closing:
                    self._signal.wait_for(lambda: self._closing, self._interval)
                closing, dirty, self._unflushed = self._closing, self._unflushed, False
                index, generation = self._active, self._generation
            if dirty:
                try:
                    os.fdatasync(self._files[index])
                except OSError as error:
                    log.error("the lease journal can't be flushed: %s", error)
                else:
                    with self._signal:
                        self._settled = self._settled or generation == self._generation
            if closing:
                return


def _read_header(data: bytes) -> int | None:
    if len(data) < _HEADER_BYTES:
        return None
    magic, version, _, generation = _HEADER.unpack_from(data)
    checksum = zlib.crc32(data[: _HEADER.size])
    if magic != _MAGIC or version != _VERSION or data[24:32] != checksum.to_bytes(8, "little"):
        return None
    return int(generation)


def _read_frames(data: bytes, generation: int) -> Iterable[bytes]:
    position = _HEADER_BYTES
    while position + _FRAME.size <= len(data):
        size, checksum = _FRAME.unpack_from(data, position)
        position += _FRAME.size
        entries = data[position : position + size]
        if not size or len(entries) != size or zlib.crc32(entries, generation & 0xFFFFFFFF) != checksum:
            return
        yield entries
        position += size


def _write_all(fd: int, data: bytes, position: int) -> None:
    written = os.pwrite(fd, data, position)
    while written < len(data):
        written += os.pwrite(fd, memoryview(data)[written:], position + written)
