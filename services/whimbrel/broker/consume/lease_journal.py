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
generation plus 1, a snapshot, and so on. Opening the journal reads both, older first, each up to its first
frame that is not whole (a torn tail, or what an earlier generation left), and joins everything: entries merge
in any order, so reading too much does no harm. It then starts the older file over, so that nothing is ever
appended behind a torn frame.

Space for both is allocated at the start, so that receives and acknowledgements go on while the disk is
full; when even that is used up, `append` raises StoreFull and nothing has changed.

Bytes are in the page cache before `append` returns, hence survive a kill -9. A thread calls `fdatasync`
at an interval: a power failure can cost the changes of the last one, which deliver again what was
acknowledged in it.

**Prompt syncs.** A member of a group that elects its leader answers for what it has written down
(`cluster/state_quorum.py`). There the thread syncs as soon as something is written, all that came meanwhile
with the next sync, and `synced` says how many of the `appended` frames the disk has.

**What the disk holds.** At any time one file has the newest state that is known to be on the disk, and it is
not started over before the other one has a newer one there:

    written    the active file has its snapshot, not synced yet: the other one is what a power failure leaves
       |
       v  sync
    settled    the active file is what a power failure leaves, but for the changes of the last interval
       |
       v  the file is full: the rest of it is synced before the new one is
    written, the other file

A sync that is refused is final for its file: the kernel keeps the pages and marks them clean, so that the
next sync succeeds without writing them. Of such a file only what was synced before counts, and `beat` writes
the whole state elsewhere, at once and then ever less often until it is settled:

    refused while settled    into the other file, whose content is older
    refused while written    into a new file, with other blocks, which is synced and then takes the name of
                             the refused one

That doubles the interval of changes that a power failure can cost, once for each refused sync. A process that
ended may have left a refused file as well, which reads well out of memory; so opening the journal writes the
newest file once more, with the same bytes, and syncs it, and its name, before it touches the other one. When
that is refused, too, nobody knows which of them the disk has: both stay until a new file is synced.

**Damage.** A frame that is not whole ends a file without a word: after a power failure it is one that was
not synced. It is none while the machine has not started again (`boot` names the start in which the journal
was written last): then a frame of the same generation behind it is proof of damage, as a head that is none
is, and `lost` says so. A bit in a frame's length, or in the last frame, is not noticed.
"""

import contextlib
import errno
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from whimbrel.errors import NotReady, StoreError, StoreFull
from whimbrel.machine import MACHINE, Machine, Worker
from whimbrel.store.pages import FULL_ADVICE

__all__ = ["LeaseJournal"]

# A file takes at least this many times its snapshot, so that snapshots cost less than the changes between
# them.
SNAPSHOT_RATIO = 4
# The snapshot is written in frames of about this size.
FRAME_BYTES = 256 << 10
# While the disk refuses every sync, the state is written anew after 1, 3, 7 beats and so on up to this many.
BEATS_APART_MAX = 63
FILE_MODE = 0o644
BOOT = "boot"  # file in the folder

MAGIC = b"WHIMLEAS"
VERSION = 1
HEADER = struct.Struct("<8sIIQ")
HEADER_BYTES = 32
FRAME = struct.Struct("<II")

logger = logging.getLogger(__name__)


class LeaseJournal:
    """The open journal. One thread writes; another one flushes.

    Attributes:
        sync_failures: how many syncs were refused since the start.
        appended: 1 for the state as it was at the start, and one for each frame since. synced: how many of
            these the disk has.
        lost: why entries may be missing that were written down, as `load` has found; "" where none may.
        on_synced: called by the flushing thread when `synced` has moved. While it is set syncs are prompt.
    """

    def __init__(
        self,
        store_root: Path,
        *,
        file_bytes: int,
        flush_interval_s: float = 0.5,
        machine: Machine = MACHINE,
    ) -> None:
        """Prepare; nothing is read or written before `load` and `start`.

        Args:
            store_root: the store directory.
            file_bytes: how large a file gets.
            flush_interval_s: how long a change waits for the disk at most.
            machine: where files and the flushing thread come from.
        """
        self.machine, self.disk = machine, machine.files
        self.snapshot: Callable[[], Iterable[bytes]] = tuple
        self.file_bytes = file_bytes
        self.interval = flush_interval_s
        self.folder = store_root / "whimbrel" / "leases"
        self.paths = (self.folder / "a.journal", self.folder / "b.journal")
        self.files: list[int] = []
        self.active = 1  # index of the file being written; the next one to be started is the other
        self.generation = 0
        self.position = 0  # where the next frame goes; 0 while no file could be started
        self.limit = 0
        self.full = False
        self.newest = b""  # what `load` found in the active file; until `start`
        self.lost = ""
        self.beats_to_wait = self.beats_waited = 0  # between two tries to write what a refused sync lost
        # Shared by the writing and the flushing thread, under `lock`.
        self.lock = machine.lock()
        self.unflushed = False
        self.settled = True  # the active file's snapshot is on the disk
        self.failed = False  # a sync of the active file was refused
        self.refused: set[int] = set()  # indexes of the files of which a sync was ever refused
        self.sync_failures = 0
        self.appended, self.synced = 1, 0
        self.on_synced: Callable[[], None] | None = None
        self.rest: int | None = None  # a file that was full, with changes that are to be synced first
        self.new_names = False  # the directory is to be synced: a file has a new name
        self.retired: list[int] = []  # files to be closed by the thread that may just be syncing them
        self.closing = False
        self.flusher: Worker | None = None

    def load(self) -> list[bytes]:
        """Return all entries on disk, in chunks, oldest first."""
        found = []
        for index, path in enumerate(self.paths):
            data = self.disk.read_bytes(path) if self.disk.exists(path) else b""
            generation = read_header(data)
            if generation is None:
                if data.strip(b"\0"):
                    logger.warning("%s is not a lease journal of this version; it is ignored", path)
                if data[:HEADER_BYTES].strip(b"\0"):  # else a process has ended as it wrote it anew
                    self.lost = f"{path} is damaged"
                continue
            found.append((generation, index, data))
        if not found:
            self.lost = self.lost or f"there is no lease journal in {self.folder}"
        same_boot = self.read_boot() == self.machine.boot_id().hex()
        chunks = []
        for generation, index, data in sorted(found):
            self.generation, self.active = generation, index
            end = HEADER_BYTES
            for chunk in read_frames(data, generation):
                chunks.append(chunk)
                end += FRAME.size + len(chunk)
            self.newest = data[:end]
            if same_boot and goes_on(data, end, generation):
                self.lost = f"{self.paths[index]} is damaged at byte {end}"
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
        self.write_boot()
        if self.newest and len(self.files) == 2:
            self.write_newest_again()
        self.newest = b""
        self.turn_over()
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
            if not self.failed:  # else `beat` tries again
                self.open()
                self.turn_over()
        elif self.settled and self.position + len(entries) + FRAME.size > self.limit:
            self.turn_over()
        if not self.position:
            why = "refuses to sync" if self.failed else "is full (no room for the lease journal)"
            raise StoreFull(f"the disk {why}; {FULL_ADVICE}")
        frame = FRAME.pack(len(entries), zlib.crc32(entries, self.generation & 0xFFFFFFFF)) + entries
        try:
            self.disk.write_all(self.files[self.active], frame, self.position)
        except OSError as error:
            # A part of the frame may stand there now. Its checksum doesn't hold, and the next frame goes
            # over it.
            self.report_full(error)
            raise StoreFull(f"the lease journal can't be written: {error.strerror}; {FULL_ADVICE}") from error
        self.position += len(frame)
        self.full = False
        self.appended += 1  # before `unflushed`: the thread reads it after that
        if not self.unflushed:
            with self.lock:
                self.unflushed = True
            if self.on_synced is not None and self.flusher is not None:
                self.flusher.wake()

    def sync_promptly(self, on_synced: Callable[[], None]) -> None:
        """Sync as soon as something is written from now on.

        Args:
            on_synced: see the class.
        """
        self.on_synced = on_synced
        if self.flusher is not None:
            self.flusher.wake()

    def rewrite(self) -> bool:
        """Write the whole state anew, where a part of it could not be appended; return whether it was.

        That counts as one more that was appended.
        """
        generation = self.generation
        if self.settled and not self.failed:
            self.appended += 1
            self.turn_over()
            if self.generation == generation:
                self.appended -= 1
        return self.generation > generation

    def beat(self) -> None:
        """Write the whole state into another file when a sync was refused; to be called periodically."""
        if not self.failed:
            return
        if self.beats_waited < self.beats_to_wait:
            self.beats_waited += 1
            return
        self.beats_waited, self.beats_to_wait = 0, min(2 * self.beats_to_wait + 1, BEATS_APART_MAX)
        self.turn_over()

    def close(self) -> None:
        """Flush and close; for good."""
        if self.failed and not self.closing:
            self.turn_over()
        self.closing = True
        if self.flusher is not None:
            self.flusher.stop()
            self.flusher = None
            self.flush()
        for fd in self.files:
            self.disk.close(fd)
        self.files = []
        self.position = 0

    def open(self) -> None:
        try:
            self.disk.make_directory(self.folder)
            for path in self.paths[len(self.files) :]:
                self.disk.unlink(new_file_of(path), missing_ok=True)  # a kill came while it was written
                self.files.append(self.disk.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
            self.new_names = True  # perhaps
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(f"the lease journal can't be opened: {error}") from error
            self.report_full(error)

    def read_boot(self) -> str:
        """Return in which start of the machine the journal was written last; "" where that is not known."""
        path = self.folder / BOOT
        try:
            return self.disk.read_bytes(path).decode("ascii", "replace") if self.disk.exists(path) else ""
        except OSError:
            return ""

    def write_boot(self) -> None:
        """Note this start of the machine; where there is no room, less damage is noticed."""
        boot = self.machine.boot_id().hex()
        if self.read_boot() != boot:
            with contextlib.suppress(OSError):
                self.disk.write_new(self.folder / BOOT, boot.encode())

    def allocate(self) -> None:
        """Give both files their space: the next start needs the other one, perhaps on a full disk."""
        try:
            for fd in self.files:
                self.disk.posix_fallocate(fd, 0, self.file_bytes)
        except OSError as error:
            logger.warning("no room for the second file of the lease journal: %s", error)

    def write_newest_again(self) -> None:
        """Bring what `load` found in the newest file to the disk, whatever became of earlier syncs."""
        fd = self.files[self.active]
        try:
            self.disk.write_all(fd, self.newest, 0)
        except OSError as error:
            self.sync_refused(self.active, self.generation, error)
            self.settled = False
        else:
            self.settled = self.sync(fd, self.active, self.generation, names=True)

    def turn_over(self) -> None:
        """Start a file over with the full state; on a full disk go on with this one."""
        if len(self.files) < 2:
            return
        # A refused file without anything sure in it makes room for the new one, and the other is kept.
        index = self.active if self.failed and not self.settled else 1 - self.active
        generation = self.generation + 1
        try:
            if index in self.refused:
                fd, position = self.write_new_file(index, generation)
            else:
                fd = self.files[index]
                position = self.write_snapshot(fd, generation)
        except OSError as error:
            self.report_full(error)
            # Go on with this file for a while, as long as the disk has room.
            self.limit += self.file_bytes // 8
            return
        if self.flusher is None:
            self.flusher = self.machine.worker("lease-journal", self.flush, self.interval)
        with self.lock:
            if self.unflushed and not self.failed:
                self.rest = self.files[self.active]
            if fd != self.files[index]:
                self.retired.append(self.files[index])
                self.files[index] = fd
                self.refused.discard(index)
                self.new_names = True
            self.active, self.generation = index, generation
            urgent = self.failed
            self.settled, self.failed, self.unflushed = False, False, True
        if urgent or self.on_synced is not None:
            self.flusher.wake()
        self.position, self.limit = position, max(self.file_bytes, SNAPSHOT_RATIO * position)
        self.full = False

    def write_new_file(self, index: int, generation: int) -> tuple[int, int]:
        """Put a new file with a snapshot, which is on the disk, in the place of a refused one.

        Returns:
            The file, and the end of the snapshot.
        """
        path = new_file_of(self.paths[index])
        fd = self.disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            position = self.write_snapshot(fd, generation)
            self.disk.fdatasync(fd)
            self.disk.rename(path, self.paths[index])
        except OSError:
            self.disk.close(fd)
            self.disk.unlink(path, missing_ok=True)
            raise
        return fd, position

    def write_snapshot(self, fd: int, generation: int) -> int:
        # The header goes last: until then the file is no journal, and is ignored.
        self.disk.posix_fallocate(fd, 0, self.file_bytes)
        self.disk.write_all(fd, bytes(HEADER_BYTES), 0)
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
        self.disk.write_all(fd, head + zlib.crc32(head).to_bytes(8, "little"), 0)
        return position

    def write_frame(self, fd: int, entries: bytes, position: int, generation: int) -> int:
        frame = FRAME.pack(len(entries), zlib.crc32(entries, generation & 0xFFFFFFFF)) + entries
        self.disk.write_all(fd, frame, position)
        return len(frame)

    def report_full(self, error: OSError) -> None:
        if not self.full and not self.failed:  # a refused sync was told of
            logger.error(
                "the lease journal can't be written, receives and acknowledgements are refused: %s", error
            )
        self.full = True

    # The flushing thread

    def flush(self) -> None:
        """Bring to the disk what was written so far; called by the flushing thread."""
        with self.lock:
            dirty = self.unflushed and not self.failed
            self.unflushed = False
            active, generation, appended = self.active, self.generation, self.appended
            fd, rest, self.rest = self.files[active], self.rest, None
            retired, self.retired = self.retired, []
            new_names, self.new_names = self.new_names, False
        if rest is not None:
            self.sync(rest, 1 - active, generation - 1)
        if dirty and self.sync(fd, active, generation, names=new_names):
            with self.lock:
                # Of another generation, too: its file has all that was appended before that began.
                self.synced = max(self.synced, appended)
                if generation == self.generation:
                    self.settled = True
                    self.beats_to_wait = 0
            if self.on_synced is not None:
                self.on_synced()
        for fd in retired:
            self.disk.close(fd)

    def sync(self, fd: int, index: int, generation: int, *, names: bool = False) -> bool:
        """Sync a file, and the names in the directory; return False when that was refused."""
        try:
            self.disk.fdatasync(fd)
            if names:
                self.disk.sync_directory(self.folder)
        except OSError as error:
            self.sync_refused(index, generation, error)
            return False
        return True

    def sync_refused(self, index: int, generation: int, error: OSError) -> None:
        """Remember it for good: no later sync of this file means anything."""
        with self.lock:
            self.refused.add(index)
            self.sync_failures += 1
            if generation == self.generation:
                self.failed = True
        if not self.beats_to_wait:
            logger.error(
                "the lease journal can't be flushed, it is written anew into another file: %s", error
            )


def new_file_of(path: Path) -> Path:
    return path.with_suffix(".new")


def read_header(data: bytes) -> int | None:
    if len(data) < HEADER_BYTES:
        return None
    magic, version, _, generation = HEADER.unpack_from(data)
    checksum = zlib.crc32(data[: HEADER.size])
    if magic != MAGIC or version != VERSION or data[24:32] != checksum.to_bytes(8, "little"):
        return None
    return int(generation)


def goes_on(data: bytes, position: int, generation: int) -> bool:
    """Return whether there is a whole frame of a generation behind one that is not whole."""
    if position + FRAME.size > len(data):
        return False
    size, _ = FRAME.unpack_from(data, position)
    following = position + FRAME.size + size
    return bool(size) and any(True for _ in read_frames(data, generation, following))


def read_frames(data: bytes, generation: int, position: int = HEADER_BYTES) -> Iterable[bytes]:
    while position + FRAME.size <= len(data):
        size, checksum = FRAME.unpack_from(data, position)
        position += FRAME.size
        entries = data[position : position + size]
        if not size or len(entries) != size or zlib.crc32(entries, generation & 0xFFFFFFFF) != checksum:
            return
        yield entries
        position += size
