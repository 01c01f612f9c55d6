"""One consume queue: entry number n is the place of the queue's message n in the log.

Entries are 20 bytes (`codec.UNIT`): i64 physical offset, i32 record size, i64 tags code. Files have a fixed
size, are named by the byte offset of their first entry, and are zero behind the last one. An entry of size
0x7FFFFFFF at physical offset 0 is a filler: it stands for a message that this store never had (a slave whose
log begins in the middle of the master's).

The last file is mapped for writing, older ones are read with `pread`. A file gets its full size at once, but
its blocks in steps ahead of the write position, so that a thousand queues do not take gigabytes. **Room is
reserved before the record is appended to the log**, so that there is no record without room for its entry.

Entries are in the order of their physical offsets, so the end of a queue is found by binary search: entries
below the queues' mark are whole, and what follows is beyond the offset that is searched for, or zero, or was
made zero when the queue was truncated.
"""

import mmap
import os
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files
from whimbrel.store.codec import FILLER_SIZE, UNIT, UNIT_SIZE
from whimbrel.store.pages import (
    PAGE,
    address_of,
    allocate,
    refusing_when_full,
    zero,
)
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import list_segments

__all__ = ["ConsumeQueue", "Unit", "is_filler"]

ALLOCATE_BYTES = 64 * 1024  # blocks taken at a time: 3276 entries
RELEASE_BYTES = 256 * 1024  # written entries that may stay resident; there may be thousands of queues
FILLERS_MAX = 1_000_000  # a queue offset further ahead is taken for damage: the entry is put at the end
EMPTY = bytes(UNIT_SIZE)

Unit = tuple[int, int, int]


class ConsumeQueue:
    """A queue's entries; written by one thread of one process.

    Attributes:
        min, max: entries [min, max) are there and their records are in the log; `max` is the number of the
            next entry.
        room: entries below have blocks on disk, and a mapping.
        deleted_below: entries below are of a deleted topic of the same name.
        base, limit: entries [base, limit) are in the mapped file.
        mapped: the last file, None until it is written the first time.
        next_files: mapped files behind the last, by their first entry, for which room was reserved.
        rolled: files left since the last `take_dirty`.
        dirty: whether anything was written since `take_dirty`.
    """

    __slots__ = (
        "address",
        "base",
        "created",
        "deleted_below",
        "directory",
        "dirty",
        "file_size",
        "files",
        "limit",
        "mapped",
        "max",
        "min",
        "next_files",
        "queue_id",
        "released",
        "rolled",
        "room",
        "scratch",
        "starts",
        "topic",
    )

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        scratch: Path,
        files: Files = FILES,
    ) -> None:
        self.files = files
        self.directory, self.topic, self.queue_id, self.scratch = directory, topic, queue_id, scratch
        self.file_size = file_size
        self.starts: list[int] = []
        self.min = self.max = self.deleted_below = 0
        self.base = self.limit = self.room = 0
        self.mapped: mmap.mmap | None = None
        self.address = self.released = 0
        self.next_files: list[tuple[int, mmap.mmap]] = []
        self.rolled: list[
            Path
        ] = []  # files left since the last `take_dirty`, written but perhaps not on disk
        self.dirty = self.created = False

    @classmethod
    def load(
        cls,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        scratch: Path,
        files: Files = FILES,
    ) -> "ConsumeQueue":
        """List a queue's files; their size wins. Its range is unknown until `truncate`.

        Raises:
            StoreError: the files differ in size or leave a gap.
        """
        starts = list_segments(directory, files)
        if starts:
            sizes = {files.size(directory / segment_name(start)) for start in starts}
            if len(sizes) != 1 or (size := sizes.pop()) <= 0 or size % UNIT_SIZE:
                raise StoreError(f"the files in {directory} differ in size or hold no whole entries")
            file_size = size
            if starts[0] % size or starts[-1] - starts[0] != (len(starts) - 1) * size:
                raise StoreError(f"the files in {directory} do not follow each other")
        queue = cls(directory, topic, queue_id, file_size, scratch, files)
        queue.starts = starts
        return queue

    def put(self, physical_offset: int, size: int, tags_code: int) -> int:
        """Write the next entry, for which there is room; return its number."""
        index = self.max
        if index == self.limit:
            self.roll()
        assert self.mapped is not None
        UNIT.pack_into(self.mapped, (index - self.base) * UNIT_SIZE, physical_offset, size, tags_code)
        self.max = index + 1
        return index

    def put_at(self, index: int, physical_offset: int, size: int, tags_code: int) -> int:
        """Write the entry of a record with a queue offset; return its number, -1 when it was there already.

        A new queue begins at that number, behind fillers in its file; a gap is closed with fillers. An entry
        whose number is too far ahead to be true is put at the end, as in RocketMQ.

        Raises:
            StoreFull: the disk has no room for the entry.
        """
        if index < self.max:
            return -1
        if index > self.max:
            if not self.starts:
                self.begin_at(index)
            elif index - self.max <= FILLERS_MAX:
                while self.max < index:
                    self.reserve(1)
                    self.put(0, FILLER_SIZE, 0)
        self.reserve(1)
        return self.put(physical_offset, size, tags_code)

    def begin_at(self, index: int) -> None:
        """Create the first file of a queue that begins at an entry other than 0."""
        per_file = self.file_size // UNIT_SIZE
        first = index - index % per_file
        self.max = self.base = self.limit = self.room = first
        while self.max < index:
            self.reserve(1)
            self.put(0, FILLER_SIZE, 0)
        self.min = index

    def skip_deleted(self) -> None:
        """Begin an empty queue where it ended when its topic was deleted."""
        if self.deleted_below and not self.starts:
            self.begin_at(self.deleted_below)

    def reserve(self, count: int) -> None:
        """Make sure that the next `count` entries have room.

        Raises:
            StoreFull: the disk has none.
        """
        while self.room < self.max + count:
            self.make_room()

    def make_room(self) -> None:
        """Take blocks for the next step of entries, in the mapped file or in a new one."""
        per_file = self.file_size // UNIT_SIZE
        first = self.room - self.room % per_file
        if self.room == first and first * UNIT_SIZE not in self.starts:
            with refusing_when_full(f"no room for queue {self.queue_id} of {self.topic}"):
                self.create(first)
            return
        if self.mapped is None:
            self.map_last(first)
        path = self.directory / segment_name(first * UNIT_SIZE)
        start = (self.room - first) * UNIT_SIZE // PAGE * PAGE
        end = min(self.file_size, start + ALLOCATE_BYTES)
        fd = self.files.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            allocate(self.files, fd, start, end - start)
        finally:
            self.files.close(fd)
        self.room = first + end // UNIT_SIZE

    def create(self, first: int) -> None:
        """Create the file that begins with an entry, under another name until it has its size."""
        self.files.make_directories(self.directory)
        draft = self.scratch / "queue-file"
        path = self.directory / segment_name(first * UNIT_SIZE)
        fd = self.files.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self.files.ftruncate(fd, self.file_size)
            step = min(self.file_size, ALLOCATE_BYTES)
            allocate(self.files, fd, 0, step)
            mapped = self.files.map(fd, self.file_size)
            self.files.rename(draft, path)
        except BaseException:
            self.files.unlink(draft, missing_ok=True)
            raise
        finally:
            self.files.close(fd)
        self.created = True
        self.starts.append(first * UNIT_SIZE)
        self.room = first + step // UNIT_SIZE
        if self.mapped is None and self.max == first:
            self.switch_to(first, mapped)
        else:
            self.next_files.append((first, mapped))

    def map_last(self, first: int) -> None:
        """Map the existing file into which the next entry goes."""
        fd = self.files.open(self.directory / segment_name(first * UNIT_SIZE), os.O_RDWR | os.O_CLOEXEC)
        try:
            self.switch_to(first, self.files.map(fd, self.file_size))
        finally:
            self.files.close(fd)

    def switch_to(self, first: int, mapped: mmap.mmap) -> None:
        """Write into a mapped file from now on."""
        self.mapped, self.base, self.limit = mapped, first, first + self.file_size // UNIT_SIZE
        mapped.madvise(mmap.MADV_RANDOM)  # no reading ahead at the first access
        self.address, self.released = address_of(mapped), 0

    def roll(self) -> None:
        """Continue in the file that `reserve` has created."""
        if self.mapped is not None:
            self.rolled.append(self.directory / segment_name(self.base * UNIT_SIZE))
            self.mapped.close()
        self.switch_to(*self.next_files.pop(0))

    def units(self, offset: int, count: int) -> list[Unit]:
        """Return up to `count` entries from a number on, as (physical offset, size, tags code)."""
        count = min(count, self.max - offset)
        if count <= 0 or offset < 0:
            return []
        if self.mapped is not None and offset >= self.base:
            position = (offset - self.base) * UNIT_SIZE
            return list(UNIT.iter_unpack(self.mapped[position : position + count * UNIT_SIZE]))
        found: list[Unit] = []
        while count:
            part = self.stored(offset, count)
            if not part:
                break
            found += part
            offset += len(part)
            count -= len(part)
        return found

    def stored(self, offset: int, count: int) -> list[Unit]:
        """Read entries from one file."""
        return list(UNIT.iter_unpack(self.packed(offset, count)))

    def packed_units(self, offset: int, count: int) -> bytes:
        """Return entries from a number on, packed: up to `count`, fewer at the end of a file.

        They are read with `pread` from the mapped file, too: bulk reads must not become resident memory.
        """
        count = min(count, self.max - offset)
        if count <= 0 or offset < 0:
            return b""
        return self.packed(offset, count)

    def packed(self, offset: int, count: int) -> bytes:
        """Read entries from one file."""
        per_file = self.file_size // UNIT_SIZE
        first = offset - offset % per_file
        try:
            fd = self.files.open(self.directory / segment_name(first * UNIT_SIZE), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return self.files.pread(
                fd, min(count, first + per_file - offset) * UNIT_SIZE, (offset - first) * UNIT_SIZE
            )
        finally:
            self.files.close(fd)

    def search(self, below: int) -> int:
        """Return the number of the first entry that is missing, or whose record is not below an offset."""
        if not self.starts:
            return 0
        for start in reversed(self.starts):  # the end is in the last file whose first entry counts
            fd = self.files.open(self.directory / segment_name(start), os.O_RDONLY | os.O_CLOEXEC)
            try:
                low, high = 0, self.file_size // UNIT_SIZE
                if start != self.starts[0] and not counts(self.files.pread(fd, UNIT_SIZE, 0), below):
                    continue
                while low < high:
                    middle = (low + high) // 2
                    if counts(self.files.pread(fd, UNIT_SIZE, middle * UNIT_SIZE), below):
                        low = middle + 1
                    else:
                        high = middle
            finally:
                self.files.close(fd)
            return start // UNIT_SIZE + low
        raise AssertionError

    def truncate(self, below: int, *, scrub: bool = False) -> None:
        """Keep only the entries of records below a physical offset.

        Args:
            scrub: make everything behind them zeros, even when the next entry is zero already.
        """
        self.unmap()
        end = self.search(below)
        unit = UNIT_SIZE
        for start in [start for start in self.starts[1:] if start >= end * unit]:
            self.files.unlink(self.directory / segment_name(start))
            self.starts.remove(start)
        if self.starts and end == 0:
            self.files.unlink(self.directory / segment_name(0))
            self.starts.clear()
        if self.starts:
            self.scrub_behind(end, always=scrub)
        self.max = self.room = end
        self.min = self.starts[0] // UNIT_SIZE if self.starts else end

    def scrub_behind(self, end: int, *, always: bool) -> None:
        """Make what follows the last entry of the last file zeros."""
        start = self.starts[-1]
        position = end * UNIT_SIZE - start
        if position >= self.file_size:
            return
        fd = self.files.open(self.directory / segment_name(start), os.O_RDWR | os.O_CLOEXEC)
        try:
            if always or self.files.pread(fd, UNIT_SIZE, position) != EMPTY:
                zero(self.files, fd, position, self.file_size - position)
                self.dirty = True
        finally:
            self.files.close(fd)

    def correct_min(self, log_begin: int) -> None:
        """Move `min` to the first entry whose record the log still has."""
        low = max(self.min, self.starts[0] // UNIT_SIZE) if self.starts else self.max
        high = self.max
        low = min(max(low, self.deleted_below), high)
        first = self.units(low, 1)
        if first and first[0][0] >= log_begin and not is_filler(first[0]):
            high = low  # nothing was removed since the last time: the usual case
        while low < high:
            middle = (low + high) // 2
            unit = self.units(middle, 1)
            if unit and (unit[0][0] < log_begin or is_filler(unit[0])):
                low = middle + 1
            else:
                high = middle
        self.min = low

    def drop_old_files(self) -> int:
        """Remove files all of whose entries are below `min`, never the last; return how many."""
        doomed = [start for start in self.starts[:-1] if (start + self.file_size) // UNIT_SIZE <= self.min]
        for start in doomed:
            self.files.unlink(self.directory / segment_name(start), missing_ok=True)
            self.starts.remove(start)
        return len(doomed)

    def take_dirty(self) -> tuple[list[Path], list[Path]]:
        """Return (files, directories) to sync for everything written so far to be on disk, and forget
        them."""
        files, self.rolled = self.rolled, []
        directories: list[Path] = []
        if self.starts:
            files.append(
                self.directory / segment_name(self.base * UNIT_SIZE if self.mapped else self.starts[-1])
            )
        if self.created:
            directories = [self.directory, self.directory.parent, self.directory.parent.parent]
        self.dirty = self.created = False
        position = (self.max - self.base) * UNIT_SIZE // PAGE * PAGE
        if self.mapped is not None and position - self.released > RELEASE_BYTES:
            self.files.release(self.address + self.released, position - self.released)
            self.released = position
        return files, directories

    def unmap(self) -> None:
        """Close the mappings; the next write maps again."""
        if self.mapped is not None:
            self.mapped.close()
            self.mapped = None
        for _, mapped in self.next_files:
            mapped.close()
        self.next_files.clear()
        self.base = self.limit = 0
        self.room = self.max

    def remove(self) -> None:
        """Delete the queue's files and its directory."""
        self.unmap()
        for start in self.starts:
            self.files.unlink(self.directory / segment_name(start), missing_ok=True)
        self.starts.clear()
        self.max = self.min = self.room = 0
        if self.files.exists(self.directory):
            self.files.rmdir(self.directory)
            self.files.sync_directory(self.directory.parent)


def is_filler(unit: Unit) -> bool:
    """Return whether an entry is a filler."""
    return unit[0] == 0 and unit[1] == FILLER_SIZE


def counts(entry: bytes, below: int) -> bool:
    """Return whether there is an entry, of a record below a physical offset."""
    if len(entry) < UNIT_SIZE:
        return False
    physical_offset, size, _ = UNIT.unpack(entry)
    return bool(size > 0 and 0 <= physical_offset < below)
