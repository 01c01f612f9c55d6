"""One consume queue: entry number n is the place of the queue's message n in the log.

Entries are 20 bytes (`codec.UNIT`): i64 physical offset, i32 record size, i64 tags code. Files have a fixed
size, are named by the byte offset of their first entry, and are zero behind the last one. An entry of size
0x7FFFFFFF at physical offset 0 is a filler: it stands for a message that this store never had (a slave whose
log begins in the middle of the master's).

The last file is mapped for writing while there is a place for it (`mapped_queues.py`), older ones are read
with `pread`. A file gets its full size at once, but its blocks in steps ahead of the write position, so that
a thousand queues do not take gigabytes. **Room is reserved before the record is appended to the log**, so
that there is no record without room for its entry. Room is a mapping as well.

Entries are in the order of their physical offsets, so the end of a queue is found by binary search: entries
below the queues' mark are whole, and what follows is beyond the offset that is searched for, or zero, or was
made zero when the queue was truncated.

An empty queue may go on at any number (`go_on_at`); its file is made with the first entry.

**The log wins.** A record says its queue offset, and dispatch puts its entry there. Where an entry of another
record stands at that number, the log decides (`settle`):

    the other record is further on in the log   the entry is from before the log was cut: it and all behind
                                                it go
    no entry names a record that the log has    they are of expired messages, and the number was given again
                                                by a master that did not know of them: the queue begins anew
                                                there
    else                                        two masters gave one number to two messages: both are kept,
                                                the later one under the queue's next number, and an error is
                                                logged

A message whose log was replicated is thus never passed over, whatever its number.
"""

import logging
import mmap
import os
from collections.abc import Callable
from itertools import count as numbers_from
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files
from whimbrel.store.codec import FILLER_SIZE, UNIT, UNIT_SIZE
from whimbrel.store.mapped_queues import MappedQueues
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
BEGIN_BYTES = 200 * UNIT_SIZE  # of a file, read at once to find its end
FILLERS_MAX = 1_000_000  # a queue offset further ahead is taken for damage: the entry is put at the end
EMPTY = bytes(UNIT_SIZE)
FILLER = UNIT.pack(0, FILLER_SIZE, 0)

logger = logging.getLogger(__name__)

Unit = tuple[int, int, int]


class ConsumeQueue:
    """A queue's entries; written by one thread of one process.

    Attributes:
        min, max: entries [min, max) are there and their records are in the log; `max` is the number of the
            next entry.
        room: entries below have blocks on disk, and a mapping.
        deleted_below: entries below are of a deleted topic of the same name.
        base, limit: entries [base, limit) are in the mapped file.
        mapped: the last file, None until it is written the first time, and while others have the places.
        places: for mapped queues.
        collected: the number of the collection for a mark that took the last entries, or will do so.
        next_files: mapped files behind the last, by their first entry, for which room was reserved.
        renumbered: entries that stand at other numbers than their records say, since this process began.
        rolled: files left since the last `take_dirty`.
        dirty: whether anything was written since `take_dirty`.
        uncommitted: numbers from `max` on that are given to records which are not committed yet.
    """

    __slots__ = (
        "address",
        "base",
        "collected",
        "created",
        "deleted_below",
        "directory",
        "dirty",
        "file_size",
        "files",
        "known_path",
        "limit",
        "mapped",
        "max",
        "min",
        "next_files",
        "places",
        "queue_id",
        "released",
        "renumbered",
        "rolled",
        "room",
        "scratch",
        "starts",
        "topic",
        "uncommitted",
    )

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        scratch: Path,
        files: Files = FILES,
        places: MappedQueues | None = None,
    ) -> None:
        self.files = files
        self.directory, self.topic, self.queue_id, self.scratch = directory, topic, queue_id, scratch
        self.file_size = file_size
        self.starts: list[int] = []
        self.min = self.max = self.deleted_below = 0
        self.base = self.limit = self.room = 0
        self.mapped: mmap.mmap | None = None
        self.address = self.released = self.renumbered = 0
        self.next_files: list[tuple[int, mmap.mmap]] = []
        self.rolled: list[
            Path
        ] = []  # files left since the last `take_dirty`, written but perhaps not on disk
        self.dirty = self.created = False
        self.known_path = -1, directory
        self.places = places or MappedQueues()
        self.collected = self.uncommitted = 0

    @classmethod
    def load(
        cls,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        scratch: Path,
        files: Files = FILES,
        places: MappedQueues | None = None,
    ) -> "ConsumeQueue":
        """List a queue's files; their size wins. Its range is unknown until `truncate`.

        Raises:
            StoreError: the files differ in size or leave a gap.
        """
        queue = cls(directory, topic, queue_id, file_size, scratch, files, places)
        starts = list_segments(directory, files)
        if starts:
            sizes = {files.size(queue.path_of(start)) for start in starts}
            if len(sizes) != 1 or (size := sizes.pop()) <= 0 or size % UNIT_SIZE:
                raise StoreError(f"the files in {directory} differ in size or hold no whole entries")
            queue.file_size = size
            if starts[0] % size or starts[-1] - starts[0] != (len(starts) - 1) * size:
                raise StoreError(f"the files in {directory} do not follow each other")
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

    def put_packed(self, entries: bytes) -> None:
        """Write the next entries, packed, for which there is room."""
        end = self.max + len(entries) // UNIT_SIZE
        while end > self.limit:  # what does not fit goes into the next file
            fits = (self.limit - self.max) * UNIT_SIZE
            if fits:
                self.put_packed(entries[:fits])
                entries = entries[fits:]
            self.roll()
        assert self.mapped is not None
        position = (self.max - self.base) * UNIT_SIZE
        self.mapped[position : position + len(entries)] = entries
        self.max = end
        self.dirty = True

    def put_at(self, index: int, physical_offset: int, size: int, tags_code: int, log_begin: int = 0) -> int:
        """Write the entry of a record with a queue offset; return its number, -1 when it was there already.

        A new queue begins at that number, behind fillers in its file; a gap is closed with fillers. An entry
        whose number is too far ahead to be true is put at the end, as in RocketMQ. Where another record has
        the number, see above.

        Args:
            index: the queue offset.
            physical_offset, size, tags_code: the entry.
            log_begin: records below are gone.

        Raises:
            StoreFull: the disk has no room for the entry.
        """
        if index < self.max:
            if index < self.deleted_below or self.place_of(index) == physical_offset:
                return -1
            index = self.settle(index, physical_offset, log_begin)
        if index > self.max:
            if not self.starts:
                self.begin_at(index)
            elif index - self.max <= FILLERS_MAX:
                while self.max < index:
                    self.reserve(1)
                    self.put(0, FILLER_SIZE, 0)
        self.reserve(1)
        return self.put(physical_offset, size, tags_code)

    def place_of(self, index: int) -> int:
        """Return the physical offset in an entry, -1 when there is none."""
        for unit in self.units(index, 1):
            if unit[1] > 0 and not is_filler(unit):
                return unit[0]
        return -1

    def settle(self, index: int, physical_offset: int, log_begin: int) -> int:
        """Make way for the entry of a record at whose number another one stands; return its number now."""
        where = f"queue {self.queue_id} of {self.topic}"
        if self.place_of(index) > physical_offset:
            logger.warning("%s: entries from %d on were not those of the log: they go", where, index)
            self.truncate(physical_offset)
            self.correct_min(log_begin)
            return index
        self.correct_min(log_begin)
        if self.min == self.max:
            logger.warning("%s begins anew at %d: its messages before have expired", where, index)
            self.drop_files()
            self.min = self.max = self.room = index
            return index
        self.renumbered += 1
        if self.renumbered == 1:
            logger.error(
                "%s: the record at %d has offset %d, as an older one that is still there: it is served as "
                "offset %d, and so on",
                where,
                physical_offset,
                index,
                self.max,
            )
        return self.max

    def begin_at(self, index: int) -> None:
        """Create the first file of a queue that begins at an entry other than 0.

        Raises:
            StoreFull: the disk has no room; the queue is empty, and its next entry that number, as before.
        """
        per_file = self.file_size // UNIT_SIZE
        first = index - index % per_file
        self.max = self.base = self.limit = self.room = first
        try:
            while self.max < index:  # all of them in one file
                self.reserve(1)
                assert self.mapped is not None
                end = min(index, self.room)
                position, size = (self.max - first) * UNIT_SIZE, (end - self.max) * UNIT_SIZE
                self.mapped[position : position + size] = FILLER * (end - self.max)
                self.max = end
        except BaseException:
            self.drop_files()
            self.max = self.room = index
            raise
        finally:
            self.min = index

    def go_on_at(self, index: int) -> None:
        """Give a queue without a message in the log no number below `index`.

        Nothing is written: its file is made with the next entry. Files of entries whose records are gone are
        removed. A queue with a message in the log knows better how far it came.
        """
        if index > self.max and self.min == self.max:
            self.drop_files()
            self.min = self.max = self.room = index

    def restart(self) -> None:
        """Forget all entries, and begin at 0."""
        self.drop_files()
        self.min = self.max = self.room = 0

    def drop_files(self) -> None:
        """Remove all files, so that none comes back beside those that follow."""
        self.unmap()
        for start in self.starts:
            self.files.unlink(self.path_of(start), missing_ok=True)
        if self.starts:
            self.files.sync_directory(self.directory)
        self.starts.clear()

    def reserve(self, count: int) -> None:
        """Make sure that the next `count` entries have room.

        Raises:
            StoreFull: the disk has none.
        """
        while self.room < self.max + count:
            self.make_room()

    def make_room(self) -> None:
        """Take blocks for the next step of entries, in the mapped file, in a new one, or in one that was made
        for entries which never came.

        Raises:
            StoreFull: the disk has none, or the file can't be mapped.
        """
        per_file = self.file_size // UNIT_SIZE
        first = self.room - self.room % per_file
        if self.room > first and not self.starts:
            self.begin_at(self.room)
            return
        with refusing_when_full(f"no room for queue {self.queue_id} of {self.topic}"):
            if self.mapped is None:
                self.places.make_way()
            if self.room == first and first * UNIT_SIZE not in self.starts:
                self.create(first)
                return
            path = self.path_of(first * UNIT_SIZE)
            start = (self.room - first) * UNIT_SIZE // PAGE * PAGE
            end = min(self.file_size, start + ALLOCATE_BYTES)
            fd = self.files.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                allocate(self.files, fd, start, end - start)
                if self.mapped is None:
                    self.switch_to(first, self.files.map(fd, self.file_size))
                elif first >= self.limit and (not self.next_files or self.next_files[-1][0] < first):
                    self.next_files.append((first, self.files.map(fd, self.file_size)))
            finally:
                self.files.close(fd)
            self.room = first + end // UNIT_SIZE

    def create(self, first: int) -> None:
        """Create the file that begins with an entry, under another name until it has its size."""
        self.files.make_directories(self.directory)
        draft = self.scratch / "queue-file"
        path = self.path_of(first * UNIT_SIZE)
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

    def switch_to(self, first: int, mapped: mmap.mmap) -> None:
        """Write into a mapped file from now on."""
        self.mapped, self.base, self.limit = mapped, first, first + self.file_size // UNIT_SIZE
        mapped.madvise(mmap.MADV_RANDOM)  # no reading ahead at the first access
        self.address, self.released = address_of(mapped), 0
        self.places.add(self)

    def path_of(self, start: int) -> Path:
        """Return the path of the file that begins at a byte offset; a start asks for the same one often."""
        known, path = self.known_path
        if known != start:
            path = self.directory / segment_name(start)
            self.known_path = start, path
        return path

    @property
    def mapped_path(self) -> Path:
        """The file that is mapped."""
        return self.path_of(self.base * UNIT_SIZE)

    def roll(self) -> None:
        """Continue in the file that `reserve` has created."""
        if self.mapped is not None:
            self.rolled.append(self.mapped_path)
            self.mapped.close()
        self.switch_to(*self.next_files.pop(0))

    def units(self, offset: int, count: int) -> list[Unit]:
        """Return up to `count` entries from a number on, as (physical offset, size, tags code)."""
        found = list(UNIT.iter_unpack(self.near_units(offset, count)))
        count = min(count, self.max - offset)
        while found and len(found) < count:
            part = self.near_units(offset + len(found), count - len(found))
            if not part:
                break
            found += UNIT.iter_unpack(part)
        return found

    def near_units(self, offset: int, count: int) -> bytes:
        """Return entries from a number on, packed: up to `count`, fewer at the end of a file."""
        count = min(count, self.max - offset)
        if count <= 0 or offset < 0:
            return b""
        if self.mapped is not None and offset >= self.base:
            position = (offset - self.base) * UNIT_SIZE
            return self.mapped[position : position + count * UNIT_SIZE]
        return self.packed(offset, count)

    def packed_units(self, offset: int, count: int) -> bytes:
        """Return what `near_units` does, for bulk reads.

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
            fd = self.files.open(self.path_of(first * UNIT_SIZE), os.O_RDONLY | os.O_CLOEXEC)
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
        for start in reversed(self.starts):
            fd = self.files.open(self.path_of(start), os.O_RDONLY | os.O_CLOEXEC)
            try:
                end = self.search_file(fd, start, below)
            finally:
                self.files.close(fd)
            if end >= 0:
                return end
        return 0

    def search_file(self, fd: int, start: int, below: int) -> int:
        """Do so in the file that begins at a byte offset; -1 where the end is in a file before it."""
        # Most queues of a store with thousands of them are short: one read finds their end.
        begin = self.files.pread(fd, BEGIN_BYTES, 0)
        if start != self.starts[0] and not counts(begin[:UNIT_SIZE], below):
            return -1
        low, high = 0, len(begin) // UNIT_SIZE
        if high and counts(begin[(high - 1) * UNIT_SIZE : high * UNIT_SIZE], below):
            low, high = high, self.file_size // UNIT_SIZE
        while low < high:
            middle = (low + high) // 2
            at = middle * UNIT_SIZE
            unit = begin[at : at + UNIT_SIZE]
            if counts(unit or self.files.pread(fd, UNIT_SIZE, at), below):
                low = middle + 1
            else:
                high = middle
        return start // UNIT_SIZE + low

    def truncate(self, below: int, *, scrub: bool = False) -> None:
        """Keep only the entries of records below a physical offset.

        Args:
            scrub: make everything behind them zeros, even when the next entry is zero already.
        """
        self.unmap()
        end = 0
        while self.starts:
            start = self.starts[-1]
            fd = self.files.open(self.path_of(start), os.O_RDWR | os.O_CLOEXEC)
            try:
                end = self.search_file(fd, start, below)
                if end > 0:
                    self.scrub_behind(fd, end * UNIT_SIZE - start, always=scrub)
                    break
            finally:
                self.files.close(fd)
            # The last one first: whoever is killed in between leaves no gap.
            self.files.unlink(self.path_of(start))
            self.starts.pop()
        self.max = self.room = max(end, 0)
        self.min = self.starts[0] // UNIT_SIZE if self.starts else self.max

    def scrub_behind(self, fd: int, position: int, *, always: bool) -> None:
        """Make what follows the last entry of the last file zeros, from a position in it on."""
        if position >= self.file_size:
            return
        if always:
            zero(self.files, fd, position, self.file_size - position)
            self.dirty = True
        elif self.files.pread(fd, UNIT_SIZE, position) != EMPTY:
            self.wipe(fd, position)
            self.dirty = True

    def wipe(self, fd: int, position: int) -> None:
        """Make entries zeros that this boot has written: they follow each other, up to a page without any.

        Punching a hole would have the kernel write the file back and wait for that (ext4): seconds for
        thousands of queues that were written just before a kill.
        """
        while position < self.file_size:
            end = min(self.file_size, position // PAGE * PAGE + PAGE)
            zeros = bytes(end - position)
            if self.files.pread(fd, end - position, position) == zeros:
                return
            self.files.write_all(fd, zeros, position)
            position = end

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

    def first_from(self, place: int) -> int:
        """Return the number of the first entry whose record is not below a physical offset, else `max`."""
        low, high = self.min, self.max
        if low < high and self.place_of(high - 1) < place:
            return high  # most queues have nothing in the newest part of the log
        while low < high:
            middle = (low + high) // 2
            if self.place_of(middle) < place:
                low = middle + 1
            else:
                high = middle
        return low

    def drop_old_files(self) -> int:
        """Remove files all of whose entries are below `min`, never the last; return how many."""
        doomed = [start for start in self.starts[:-1] if (start + self.file_size) // UNIT_SIZE <= self.min]
        for start in doomed:
            self.files.unlink(self.path_of(start), missing_ok=True)
            self.starts.remove(start)
        return len(doomed)

    def take_dirty(self) -> tuple[list[Path], list[Path]]:
        """Return (files, directories) to sync for everything written so far to be on disk, and forget them:
        they belong to the current collection."""
        self.collected = self.places.collection
        files, self.rolled = self.rolled, []
        directories: list[Path] = []
        if self.starts:
            files.append(self.mapped_path if self.mapped else self.path_of(self.starts[-1]))
        if self.created:
            directories = [self.directory, *self.directory.parents[:3]]  # up to the store's
        self.dirty = self.created = False
        position = (self.max - self.base) * UNIT_SIZE // PAGE * PAGE
        if self.mapped is not None and position - self.released > RELEASE_BYTES:
            self.files.release(self.address + self.released, position - self.released)
            self.released = position
        return files, directories

    def write_again(self, path: Path, is_right: Callable[[int, Unit], bool]) -> bool:
        """Write a file's entries again, since a sync of it failed: the page cache takes them for written.

        Args:
            path: of the file.
            is_right: says of an entry, by its number, whether it is the one that was written.

        Returns:
            Whether the page cache still has all of them.
        """
        start = int(path.name)
        if start not in self.starts:
            return True
        first = start // UNIT_SIZE
        length = (min(self.max, first + self.file_size // UNIT_SIZE) - first) * UNIT_SIZE
        fd = self.files.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            data = self.files.pread(fd, length, 0)
            if len(data) < length or not all(map(is_right, numbers_from(first), UNIT.iter_unpack(data))):
                return False
            self.files.write_all(fd, data, 0)
        finally:
            self.files.close(fd)
        return True

    def unmap(self) -> None:
        """Close the mappings; the next write maps again."""
        self.places.remove(self)
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
        self.drop_files()
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
