"""The key index: files of hash chains, from a key to the physical offsets of the records that carry it.

    0               40 bytes      i64 begin time, i64 end time, i64 begin offset, i64 end offset,
                                  i32 slots used, i32 count
    40              4 a slot      i32 number of the slot's newest entry, 0 for none
    40 + 4 * slots  20 an entry   i32 key hash, i64 physical offset, i32 seconds since the begin time,
                                  i32 number of the slot's entry before this one

Entry 0 is never used, so the count starts at 1 and a file is full when it reaches `entries`. Files are named
by their time of creation. Times and offsets in the header are those of the first and the last entry's record.

The index may lag behind the log: records below `Index.position` are in it. Entries are written in groups of
at most `GROUP_MAX`, and the header counts them when the whole group is written. After a crash, and when the
log was truncated, entries behind the position that is known to be right are removed one by one, newest first,
those of an uncounted group among them: each names the entry before it in its slot, so the slot gets its old
value back. Only after a power failure, when the pages of a file may be of different ages, is the last file
dropped and built again.

A search also finds other keys of the same hash: the caller compares the keys of the records found.

RocketMQ: index.IndexFile, index.IndexService.
"""

import logging
import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, MACHINE, Files, Machine
from whimbrel.store.codec import index_key_hash, index_key_hashes
from whimbrel.store.lane_passes import LanePasses
from whimbrel.store.options import StoreOptions
from whimbrel.store.pages import PAGE, address_of, allocate, refusing_when_full

__all__ = [
    "ENTRIES_PER_SLOT",
    "Index",
    "IndexFile",
    "KeyedRecord",
    "entries_of",
    "file_size",
    "index_sizes",
    "list_index_files",
]

logger = logging.getLogger(__name__)

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")
SLOT = struct.Struct(">i")
HEADER_SIZE, ENTRY_SIZE, SLOT_SIZE = HEADER.size, ENTRY.size, SLOT.size
ALLOCATE_BYTES = 1 << 20  # blocks for entries taken at a time
RELEASE_BYTES = 4 << 20  # written entries that may stay mapped
GROUP_MAX = 256  # entries written before the header counts them
SECONDS_MAX = 0x7FFFFFFF
SIZE_MIN = HEADER_SIZE + SLOT_SIZE + ENTRY_SIZE  # of a file with one slot and one entry
ENTRIES_PER_SLOT = 4  # of RocketMQ's files

KeyedRecord = tuple[str, tuple[str, ...], int, int]  # topic, keys, physical offset, store time in ms


def index_sizes(size: int, options: StoreOptions | None) -> tuple[int, int]:
    """Return (slots, entries) of a file: those of the options when they fit its size, else RocketMQ's 1:4.

    Raises:
        StoreError: the size fits neither.
    """
    if options is not None and size == file_size(options.index_slots, options.index_entries):
        return options.index_slots, options.index_entries
    slots, rest = divmod(size - HEADER_SIZE, SLOT_SIZE + ENTRIES_PER_SLOT * ENTRY_SIZE)
    if slots < 1 or rest:
        raise StoreError(f"an index file of {size} bytes: give its number of slots (--index-slots)")
    return slots, slots * ENTRIES_PER_SLOT


def file_size(slots: int, entries: int) -> int:
    """Return how large a file is."""
    return HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * entries


def entries_of(size: int, slots: int) -> int:
    """Return how many entries a file of a size has room for."""
    return (size - HEADER_SIZE - SLOT_SIZE * slots) // ENTRY_SIZE


class IndexFile:
    """One file; `mapped` is writable only for the last of a store that is open for writing."""

    def __init__(self, path: Path, slots: int, entries: int, *, writable: bool, files: Files = FILES) -> None:
        self.files = files
        self.path, self.slots, self.entries, self.writable = path, slots, entries, writable
        self.entries_at = HEADER_SIZE + SLOT_SIZE * slots
        self.size = file_size(slots, entries)
        fd = files.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            self.mapped = files.map(fd, self.size, writable=writable)
        finally:
            files.close(fd)
        self.mapped.madvise(mmap.MADV_RANDOM)  # slots are far apart: reading ahead gains nothing
        fields = HEADER.unpack_from(self.mapped)
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.count = fields
        if self.count <= 0:
            self.count = 1
        self.allocated = self.released = 0
        self.address = address_of(self.mapped) if writable else 0

    @classmethod
    def create(
        cls,
        directory: Path,
        name: str,
        options: StoreOptions,
        scratch: Path,
        last: "IndexFile | None",
        files: Files = FILES,
    ) -> "IndexFile":
        """Create a file behind `last`, whose end is its begin until its first entry is written.

        Raises:
            StoreFull: the disk has no room for the slots.
        """
        files.make_directory(directory)
        slots, entries = options.index_slots, options.index_entries
        draft = scratch / "index-file"
        fd = files.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            files.ftruncate(fd, file_size(slots, entries))
            allocate(files, fd, 0, HEADER_SIZE + SLOT_SIZE * slots)
            files.rename(draft, directory / name)
        except BaseException:
            files.unlink(draft, missing_ok=True)
            raise
        finally:
            files.close(fd)
        try:
            files.sync_directory(directory)
        except OSError:  # nobody knows whether its name is on disk
            files.unlink(directory / name, missing_ok=True)
            raise
        made = cls(directory / name, slots, entries, writable=True, files=files)
        made.allocated = made.entries_at
        if last is not None:
            made.begin_ms = made.end_ms = last.end_ms
            made.begin_offset = made.end_offset = last.end_offset
        return made

    @property
    def full(self) -> bool:
        """Whether no more entry fits."""
        return bool(self.count >= self.entries)

    def reserve(self, entries: int = 1) -> None:
        """Make sure that the header, the slots and the next entries have blocks.

        Raises:
            StoreFull: the disk has no room.
        """
        need = self.entries_at + ENTRY_SIZE * (self.count + entries)
        if need <= self.allocated:
            return
        fd = self.files.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if not self.allocated:  # RocketMQ's files may be sparse
                allocate(self.files, fd, 0, self.entries_at)
            start = (self.entries_at + ENTRY_SIZE * self.count) // PAGE * PAGE
            end = min(self.size, start + ALLOCATE_BYTES)
            allocate(self.files, fd, start, end - start)
            self.allocated = end
        finally:
            self.files.close(fd)
        position = start - PAGE
        if position - max(self.released, PAGE) > RELEASE_BYTES:
            first = max(self.released, (self.entries_at + PAGE - 1) // PAGE * PAGE)
            if position > first:
                self.files.release(self.address + first, position - first)
                self.released = position

    def put(self, group: Sequence[tuple[int, int, int]]) -> None:
        """Add entries (key hash, physical offset, store time in ms); `reserve` was called for all of them."""
        mapped, slots, number = self.mapped, self.slots, self.count
        begin_ms, slots_used = self.begin_ms, self.slots_used
        at = self.entries_at + ENTRY_SIZE * number
        for key_hash, physical_offset, store_time_ms in group:
            slot_at = HEADER_SIZE + SLOT_SIZE * (key_hash % slots)
            (before,) = SLOT.unpack_from(mapped, slot_at)
            if not 0 < before < number:
                before = 0
                slots_used += 1
            seconds = (store_time_ms - begin_ms) // 1000 if begin_ms > 0 else 0
            if not 0 <= seconds <= SECONDS_MAX:
                seconds = 0 if seconds < 0 else SECONDS_MAX
            ENTRY.pack_into(mapped, at, key_hash, physical_offset, seconds, before)
            SLOT.pack_into(mapped, slot_at, number)
            if number == 1:  # its seconds count from the end of the file before
                self.begin_ms, self.begin_offset = store_time_ms, physical_offset
                begin_ms = store_time_ms
            number += 1
            at += ENTRY_SIZE
        _, self.end_offset, self.end_ms = group[-1]
        self.count, self.slots_used = number, slots_used
        self.write_header()

    def put_keys(self, passes: LanePasses, keys: Any, first: int, count: int) -> bool:
        """Add some of the keys that the lane has hashed, as `put` does; return whether it did."""
        header = (
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.count,
        )  # fmt: skip
        done = passes.put_keys(self.mapped, self.slots, header, keys, first, count)
        if done is None:
            return False
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.count = done
        return True

    def write_header(self) -> None:
        """Write the header's fields."""
        HEADER.pack_into(
            self.mapped,
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.count,
        )

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterable[int]:
        """Yield the physical offsets stored under a hash within a range of times, newest first."""
        mapped, count = self.mapped, self.count
        (number,) = SLOT.unpack_from(mapped, HEADER_SIZE + SLOT_SIZE * (key_hash % self.slots))
        while 0 < number < count:
            at = self.entries_at + ENTRY_SIZE * number
            found, physical_offset, seconds, before = ENTRY.unpack_from(mapped, at)
            stored_ms = self.begin_ms + max(seconds, 0) * 1000
            if found == key_hash and begin_ms <= stored_ms <= end_ms:
                yield physical_offset
            if before >= number or stored_ms < begin_ms:
                return
            number = before

    def reachable(self) -> Iterator[tuple[int, int]]:
        """Yield (key hash, physical offset) of all entries that `find` can reach, in the log's order."""
        mapped, slots, count = self.mapped, self.slots, self.count
        visited, there = bytearray(count), bytearray(count)
        for slot, (number,) in enumerate(SLOT.iter_unpack(mapped[HEADER_SIZE : self.entries_at])):
            while 0 < number < count and not visited[number]:
                key_hash, _, _, before = ENTRY.unpack_from(mapped, self.entries_at + ENTRY_SIZE * number)
                visited[number], there[number] = 1, key_hash % slots == slot
                if before >= number:
                    break
                number = before
        for number in range(1, count):
            if there[number]:
                yield ENTRY.unpack_from(mapped, self.entries_at + ENTRY_SIZE * number)[:2]

    def newest(self) -> Iterator[tuple[int, int]]:
        """Yield (key hash, physical offset) of all entries, the last one first."""
        for number in range(min(self.count, self.entries) - 1, 0, -1):
            yield ENTRY.unpack_from(self.mapped, self.entries_at + ENTRY_SIZE * number)[:2]

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether any entry can lie in a range of times."""
        return bool(self.count > 1 and self.begin_ms <= end_ms and self.end_ms >= begin_ms)

    def truncate(self, below: int) -> bool:
        """Remove the entries of records at or beyond a physical offset; return whether any is left."""
        mapped = self.mapped
        number = self.last_written()
        changed = False
        while number > 0:
            at = self.entries_at + ENTRY_SIZE * number
            key_hash, physical_offset, _, before = ENTRY.unpack_from(mapped, at)
            counted = number < self.count
            if counted and physical_offset < below:
                break
            slot_at = HEADER_SIZE + SLOT_SIZE * (key_hash % self.slots if key_hash >= 0 else 0)
            if SLOT.unpack_from(mapped, slot_at)[0] == number:  # else its slot was not written
                self.reserve_all()
                SLOT.pack_into(mapped, slot_at, before)
                if counted and not before:
                    self.slots_used -= 1
                changed = True
            if counted:
                self.count, changed = number, True
            number -= 1
        if changed:
            self.set_end()
        return bool(self.count > 1)

    def last_written(self) -> int:
        """Return the number of the last entry that may have been written, counted or not.

        Entries behind the counted ones are looked at by a system call: where nothing was written there is no
        block, and a full tmpfs kills who reads that through a mapping.
        """
        most: int = min(self.count + GROUP_MAX - 1, self.entries - 1)
        fd = self.files.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = self.entries_at + ENTRY_SIZE * self.count
            data = self.files.pread(fd, ENTRY_SIZE * max(most + 1 - self.count, 0), at)
        finally:
            self.files.close(fd)
        written = len(data.rstrip(b"\0"))
        last: int = self.count - 1 + (written + ENTRY_SIZE - 1) // ENTRY_SIZE
        return min(last, most)

    def reserve_all(self) -> None:
        """Give header and slots blocks before they are written."""
        if not self.allocated:
            self.reserve()

    def set_end(self) -> None:
        """Set the header's end to the last entry, whose time is known to the second only."""
        if self.count > 1:
            at = self.entries_at + ENTRY_SIZE * (self.count - 1)
            _, self.end_offset, seconds, _ = ENTRY.unpack_from(self.mapped, at)
            latest_ms = self.begin_ms + (seconds * 1000 + 999 if self.count > 2 else 0)
            self.end_ms = min(self.end_ms, latest_ms)
        else:
            self.end_ms, self.end_offset = self.begin_ms, self.begin_offset
        self.write_header()

    def faults(self, end: int) -> Iterable[tuple[int, str]]:
        """Yield (position, what) of everything in the file that is wrong; `end` is the log's."""
        mapped, count = self.mapped, self.count
        if count > self.entries:
            yield 36, f"a count of {count} in a file of {self.entries} entries"
            return
        for number in range(1, count):
            at = self.entries_at + ENTRY_SIZE * number
            key_hash, physical_offset, _, before = ENTRY.unpack_from(mapped, at)
            if key_hash < 0 or before < 0 or before >= number:
                yield at, "an entry that is not chained backwards"
            elif physical_offset >= end:
                yield at, "an entry of a record behind the log's end"
        for slot in range(self.slots):
            at = HEADER_SIZE + SLOT_SIZE * slot
            (number,) = SLOT.unpack_from(mapped, at)
            if number and (number < 0 or number >= count + GROUP_MAX):
                yield at, "a slot that names no entry"

    def close(self) -> None:
        """Unmap."""
        self.mapped.close()


def list_index_files(directory: Path, files: Files = FILES) -> list[Path]:
    """Return the index files, oldest first."""
    return [directory / name for name in files.names(directory) if name.isdecimal() and name.isascii()]


class Index:
    """All index files of a store.

    Attributes:
        position: the keys of every record below are in the index; a boundary between records.
        files: oldest first; those before the last are full, or were the last of an earlier start.
        finished: files filled since the last `take_dirty`.
    """

    def __init__(
        self,
        root: Path,
        options: StoreOptions,
        machine: Machine = MACHINE,
        passes: LanePasses | None = None,
    ) -> None:
        self.machine, self.disk, self.passes = machine, machine.files, passes
        self.directory = root / "index"
        self.scratch = root / "whimbrel"
        self.options = options
        self.files: list[IndexFile] = []
        self.finished: list[IndexFile] = []
        self.position = 0
        self.dirty = False

    def load(self) -> None:
        """Map the files; only the last is writable.

        The first that can't be one, by its size or its count, is removed with those behind it: the log has
        their keys.
        """
        self.disk.unlink(self.scratch / "index-file", missing_ok=True)
        paths = list_index_files(self.directory, self.disk)
        for number, path in enumerate(paths):
            try:
                slots, entries = index_sizes(self.disk.size(path), self.options)
                file = IndexFile(path, slots, entries, writable=path == paths[-1], files=self.disk)
                if file.count > entries:
                    file.close()
                    raise StoreError(f"it counts {file.count} entries and has room for {entries}")
            except StoreError as error:
                logger.warning("%s is no index file (%s): its keys are taken from the log", path, error)
                for behind in reversed(paths[number:]):
                    self.disk.unlink(behind)
                self.open_last()
                return
            self.files.append(file)

    def recover(
        self, log_begin: int, end: int, *, trusted_to: int | None, indexed: int, index_end: int
    ) -> None:
        """Bring the index back to a state that it had, at or before `end`, and set `position` to match.

        Args:
            end: of the log; nothing beyond stays.
            trusted_to: None when all pages are of one age; else only full files that end at or below it stay.
            indexed: up to where it was complete by the last mark; 0 when unknown.
            index_end: the end offset that its newest file had then, -1 when there was none.
        """
        if not self.files:
            self.load()
        found = len(self.files)
        if trusted_to is not None:
            while self.files and not (self.files[-1].full and self.files[-1].end_offset <= trusted_to):
                self.drop_last()
        last = self.end_offset
        # Else a file is missing. One that was dropped, or that stood behind a full one, may have held further
        # keys of the last record.
        followed = last == index_end and bool(self.files) and self.files[-1].full
        complete = indexed if last >= index_end and len(self.files) == found and not followed else 0
        if complete <= last:  # the last record's keys may be in only partly: it is removed and indexed again
            complete = max(last, 0)
        complete = min(complete, end)
        self.truncate(complete)  # always: slots may lead to entries of an uncounted group
        # A process that was killed may have filled files and not synced them: no mark vouches for those yet.
        self.finished = [file for file in self.files[:-1] if file.end_offset >= indexed]
        self.position = max(log_begin, complete)

    @property
    def end_offset(self) -> int:
        """Physical offset of the last record that has an entry, -1 without any."""
        return self.files[-1].end_offset if self.files and self.files[-1].count > 1 else -1

    def drop_newer(self, limit_ms: int) -> None:
        """Load, and remove the files that were not on disk at the checkpoint's time, of a RocketMQ that
        crashed."""
        self.load()
        while self.files and self.files[-1].end_ms > limit_ms:
            self.drop_last()

    def drop_last(self) -> None:
        """Remove the last file; the one before becomes writable."""
        self.remove_last()
        self.open_last()

    def remove_last(self) -> None:
        """Remove the last file."""
        self.disk.unlink(self.files[-1].path, missing_ok=True)  # a sync of it failed, perhaps
        self.files.pop().close()

    def drop_from(self, path: Path, log_begin: int) -> None:
        """Remove a file and all behind it; what they held is to be indexed again from `position` on."""
        while any(file.path == path for file in self.files):
            self.remove_last()
        self.open_last()
        self.finished = [file for file in self.finished if file in self.files]
        self.position = min(self.position, max(self.end_offset, log_begin))

    def open_last(self) -> None:
        """Make the last file writable."""
        if self.files and not self.files[-1].writable:
            old = self.files[-1]
            self.files[-1] = IndexFile(old.path, old.slots, old.entries, writable=True, files=self.disk)
            old.close()

    def truncate(self, below: int) -> None:
        """Remove the entries of records at or beyond a physical offset."""
        self.dirty = True
        self.position = min(self.position, below)
        self.open_last()
        while self.files and not self.files[-1].truncate(below):
            self.drop_last()

    def put(self, records: list[KeyedRecord]) -> None:
        """Add the keys of records, in the order of the log.

        Raises:
            StoreFull: the disk has no room; some of the keys may be in the index.
        """
        keys = None if self.passes is None else self.passes.hashed(records)
        if keys is not None:
            if self.put_keys(keys):
                return
            self.truncate(keys.first_offset)
        hashes = index_key_hashes([(topic, key) for topic, keys, _, _ in records for key in keys])
        places = [(offset, time_ms) for _, keys, offset, time_ms in records for _ in keys]
        entries = [(key_hash, *place) for key_hash, place in zip(hashes, places, strict=True)]
        done = 0
        while done < len(entries):
            last, count = self.next_group(len(entries) - done)
            last.put(entries[done : done + count])
            done += count

    def put_keys(self, keys: Any) -> bool:
        """Add keys that the lane has hashed; return whether it did. If not, some may be in, and are to go.

        Raises:
            StoreFull: the disk has no room; some of the keys may be in the index.
        """
        assert self.passes is not None
        done = 0
        while done < len(keys):
            last, count = self.next_group(len(keys) - done)
            if not last.put_keys(self.passes, keys, done, count):
                return False
            done += count
        return True

    def next_group(self, entries: int) -> tuple["IndexFile", int]:
        """Return the file that takes the next of so many entries, and how many of them it has room for.

        Raises:
            StoreFull: the disk has none.
        """
        last = self.files[-1] if self.files else None
        if last is None or last.full:
            last = self.roll(last)
        elif not last.writable:  # it could not be opened when it became the last one
            self.open_last()
            last = self.files[-1]
        count = min(entries, GROUP_MAX, last.entries - last.count)
        last.reserve(count)
        self.dirty = True
        return last, count

    def roll(self, last: IndexFile | None) -> IndexFile:
        """Begin a new file."""
        now = self.machine.wall_ns() / 1e9
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now)) + f"{int(now * 1000) % 1000:03d}"
        if last is not None and name <= last.path.name:
            name = f"{int(last.path.name) + 1:017d}"
        with refusing_when_full("no room for an index file"):
            made = IndexFile.create(self.directory, name, self.options, self.scratch, last, self.disk)
        if last is not None:
            self.finished.append(last)
            last.writable = False
        self.files.append(made)
        return made

    def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield physical offsets under a key's hash, newest first; records of other keys are among them."""
        key_hash = index_key_hash(topic, key)
        for file in reversed(self.files):
            if file.overlaps(begin_ms, end_ms):
                yield from file.find(key_hash, begin_ms, end_ms)
            if file.begin_ms < begin_ms:
                return

    def follow_log(self, log_begin: int) -> int:
        """Remove files all of whose records are gone, never the last; return how many."""
        removed = 0
        while len(self.files) > 1 and self.files[0].end_offset < log_begin:
            gone = self.files.pop(0)
            gone.close()
            self.disk.unlink(gone.path, missing_ok=True)
            removed += 1
        return removed

    def take_dirty(self) -> list[Path]:
        """Return the files to sync for everything written so far to be on disk, and forget them."""
        paths = [file.path for file in self.finished]
        if self.files and self.dirty:
            paths.append(self.files[-1].path)
        self.finished.clear()
        self.dirty = False
        return paths

    def close(self) -> None:
        """Unmap everything."""
        for file in self.files:
            file.close()
        self.files.clear()
