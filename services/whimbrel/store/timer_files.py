"""Timer log, wheel and check on disk: appended to, walked, cut, and synced in an order that a crash keeps.

`timer_layout.py` has the bytes. The files are made with the first unit; the wheel is one large hole at first,
and takes a page of 4 KiB for every two minutes in which something is due.

    unit     written at once, into the page cache
    slot     kept in memory, written by the next flush
    flush    in a thread, a second after the change: log synced, slots written, wheel synced, check replaced

So a slot on disk never names a unit that is not. What is found at the start beyond the check was written
after it: these units are undone, the newest first, and their messages get new ones
(`broker/timing/engine.py`). RocketMQ, which maps both files, does without that order; where one of its slots
names a unit that is not there, all is built anew from the timer topic.

One owner on the loop's thread; only `TimerFlush.run` is for a worker's thread, and touches nothing else.
"""

import logging
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import Files
from whimbrel.store.jsonconfig import dumps, loads, save
from whimbrel.store.pages import refusing_when_full, zero
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import list_segments
from whimbrel.store.timer_layout import (
    BLANK,
    BLANK_MAGIC,
    DELETE,
    LOG_FILE_SIZE,
    SECOND_MS,
    SLOT,
    SLOT_SIZE,
    TAIL_SIZE,
    UNIT_SIZE,
    WHEEL_SIZE,
    Check,
    Slot,
    TimerUnit,
    slot_position,
)

__all__ = ["TimerFiles", "TimerFlush"]

logger = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024  # of the log, read at a time
SLOTS_READ = 4096  # of the wheel
OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


@dataclass(slots=True)
class TimerFlush:
    """What one flush puts on disk."""

    files: Files
    root: Path
    logs: list[int]  # descriptors
    wheel: int
    slots: list[tuple[int, bytes]]
    check: Check
    metrics: str

    def run(self) -> None:
        """Write and sync, in the order that a crash needs.

        Raises:
            OSError: from then on nothing is known of what is on disk.
            StoreFull: there was no room; it may be tried again.
        """
        files = self.files
        for fd in self.logs:
            files.fdatasync(fd)
        with refusing_when_full("no room for the slots of delayed messages"):
            for position, data in self.slots:
                files.write_all(self.wheel, data, position)
        if self.slots:
            files.fdatasync(self.wheel)
        path = self.root / "config" / "timercheck"
        with refusing_when_full("no room for timercheck"):
            files.make_directory(path.parent)
            draft = path.with_name("timercheck.tmp")
            files.write_new(draft, self.check.pack())
            files.rename(draft, path)
            files.sync_directory(path.parent)
        save(path.with_name("timermetrics"), self.metrics, files)


class TimerFiles:
    """The timer files of one store.

    Attributes:
        end: position of the next unit.
        check: as it is on disk; None while there is none.
    """

    def __init__(self, root: Path, files: Files, *, file_size: int = LOG_FILE_SIZE) -> None:
        """Name the files; nothing is read."""
        self.root, self.files, self.file_size = root, files, file_size
        self.directory, self.wheel_path = root / "timerlog", root / "timerwheel"
        self.check_path = root / "config" / "timercheck"
        self.metrics_path = root / "config" / "timermetrics"
        self.end = 0
        self.check: Check | None = None
        self.starts: list[int] = []
        self.descriptors: dict[int, int] = {}
        self.wheel = -1
        self.dirty: dict[int, Slot] = {}  # by position in the wheel
        self.flushing: dict[int, Slot] = {}
        self.unsynced: set[int] = set()  # starts of log files
        self.chunk_at, self.chunk = 0, b""
        self.counter = 0

    # Opening

    def load(self, log_end: int) -> bool:
        """Open the files, and undo what is beyond the check or names records beyond the end of the log.

        Returns:
            Whether they can be relied on; if not, they are gone, and `end` is 0.
        """
        if not self.files.exists(self.wheel_path) or not self.files.exists(self.check_path):
            self.discard()
            return False
        self.check = Check.unpack(self.files.read_bytes(self.check_path))
        self.starts = list_segments(self.directory, self.files)
        try:
            if self.check is None:
                raise StoreError("timercheck says nothing")
            self.open_checked(self.check)
            self.cut(log_end)
        except StoreError as error:
            logger.warning("%s: the timer files are made anew: %s", self.root, error)
            self.discard()
            return False
        return True

    def open_checked(self, check: Check) -> None:
        """Open what is there, and come back to what the check says."""
        size, starts = self.file_size, self.starts
        if self.files.size(self.wheel_path) != WHEEL_SIZE:
            raise StoreError("timerwheel has another size")
        if any(self.files.size(self.directory / segment_name(start)) != size for start in starts):
            raise StoreError("a file of timerlog has another size")
        if any(start % size for start in starts) or starts != [
            starts[0] + number * size for number in range(len(starts))
        ]:
            raise StoreError("the files of timerlog do not follow each other")
        if check.flushed and not (starts and starts[0] <= check.flushed <= starts[-1] + size):
            raise StoreError("timerlog ends before what timercheck says")
        self.wheel = self.files.open(self.wheel_path, OPEN, 0o644)
        self.end = check.flushed
        self.counter = check.counter
        last = -1
        for position, unit in self.forward(check.flushed):
            if unit.place <= last or unit.previous >= position:
                break
            last = unit.place
            self.end = position + UNIT_SIZE
        self.undo_to(check.flushed)

    def forward(self, position: int) -> Iterator[tuple[int, TimerUnit]]:
        """Yield units from a position on, until none follows."""
        while self.starts and position < self.starts[-1] + self.file_size:
            position = self.next_position(position)
            unit = self.read_unit(position)
            if unit is None:
                return
            yield position, unit
            position += UNIT_SIZE

    def next_position(self, position: int) -> int:
        """Return where the unit goes that follows at a position: there, or in the next file."""
        left = self.file_size - position % self.file_size
        return position + left if left < TAIL_SIZE else position

    def position_before(self, position: int) -> int:
        """Return the position of the unit before one, -1 when its file is gone."""
        if not self.starts or position <= self.starts[0]:
            return -1
        within = position % self.file_size
        if within:
            return position - UNIT_SIZE
        units = (self.file_size - BLANK.size) // UNIT_SIZE
        return position - self.file_size + (units - 1) * UNIT_SIZE

    def discard(self) -> None:
        """Remove all files."""
        self.close()
        for start in list_segments(self.directory, self.files):
            self.files.unlink(self.directory / segment_name(start))
        for path in (self.check_path, self.wheel_path):
            self.files.discard(path)
        self.starts, self.end, self.check = [], 0, None
        self.dirty.clear()
        self.flushing.clear()

    def close(self) -> None:
        """Close the files."""
        for fd in self.descriptors.values():
            self.files.close(fd)
        if self.wheel >= 0:
            self.files.close(self.wheel)
        self.descriptors.clear()
        self.unsynced.clear()
        self.wheel, self.chunk = -1, b""

    # Units

    def append(self, slot_ms: int, now_second: int, magic: int, place: int, size: int, topic: int) -> None:
        """Write a unit, and note it in its slot.

        Raises:
            StoreFull: the disk has no room; nothing has changed.
        """
        position = self.next_position(self.end)
        with refusing_when_full("no room for the timer log"):
            if self.wheel < 0:
                self.make_wheel()
            fd = self.log_file(position)
            slot = self.slot(slot_ms)
            previous = -1 if slot is None else slot.last
            unit = TimerUnit(previous, magic, now_second, slot_ms - now_second, place, size, topic)
            self.files.write_all(fd, unit.pack(), position % self.file_size)
        self.unsynced.add(position - position % self.file_size)
        self.end = position + UNIT_SIZE
        if self.chunk_at <= position < self.chunk_at + len(self.chunk):
            self.chunk = b""
        first = position if slot is None else slot.first
        count = (0 if slot is None else slot.messages) + (-1 if magic & DELETE else 1)
        self.dirty[slot_position(slot_ms)] = Slot(slot_ms // SECOND_MS, first, position, count)

    def make_wheel(self) -> None:
        """Make the wheel, all of it a hole."""
        fd = self.files.open(self.wheel_path, OPEN, 0o644)
        try:
            self.files.ftruncate(fd, WHEEL_SIZE)
            self.files.fsync(fd)
            self.files.sync_directory(self.root)
        except BaseException:
            self.files.close(fd)
            raise
        self.wheel = fd

    def log_file(self, position: int) -> int:
        """Return the descriptor of a position's file, which is made where it is missing."""
        start = position - position % self.file_size
        fd = self.descriptors.get(start)
        if fd is not None:
            return fd
        new = start not in self.starts
        if new:
            self.files.make_directory(self.directory)
            self.end_file(start)
        fd = self.files.open(self.directory / segment_name(start), OPEN, 0o644)
        try:
            if new:
                self.files.ftruncate(fd, self.file_size)
                self.files.fsync(fd)
                self.files.sync_directory(self.directory)
                self.starts.append(start)
        except BaseException:
            self.files.close(fd)
            raise
        self.descriptors[start] = fd
        return fd

    def end_file(self, start: int) -> None:
        """Write what ends the file before."""
        before = start - self.file_size
        if before in self.starts:
            rest = self.file_size - self.end % self.file_size
            data = BLANK.pack(rest, 0, BLANK_MAGIC)
            self.files.write_all(self.log_file(before), data, self.file_size - rest)
            self.unsynced.add(before)

    def read_unit(self, position: int) -> TimerUnit | None:
        """Return the unit at a position, None when none stands there. Neighbours are read with it."""
        start = position - position % self.file_size
        if start not in self.starts:
            return None
        at = position - self.chunk_at
        if not 0 <= at <= len(self.chunk) - UNIT_SIZE:
            # Chains are walked backwards: what lies before is read as well.
            self.chunk_at = max(start, position + UNIT_SIZE - CHUNK_BYTES)
            within = self.chunk_at - start
            self.chunk = self.files.pread(self.log_file(position), CHUNK_BYTES, within)
            at = position - self.chunk_at
        if at > len(self.chunk) - UNIT_SIZE:
            return None
        return TimerUnit.unpack(self.chunk, at)

    def unit(self, position: int) -> TimerUnit:
        """Return a unit that a slot or another unit names.

        Raises:
            StoreError: there is none.
        """
        unit = self.read_unit(position) if 0 <= position < self.end else None
        if unit is None:
            raise StoreError(f"the timer log has no unit at {position}")
        return unit

    def units_from(self, position: int, count: int) -> Iterator[tuple[int, TimerUnit]]:
        """Yield at most so many units from a position on, or from where the log begins."""
        position = max(position, self.starts[0] if self.starts else self.end)
        for _ in range(count):
            position = self.next_position(position)
            if position >= self.end:
                return
            yield position, self.unit(position)
            position += UNIT_SIZE

    def first_from(self, place: int) -> int:
        """Return the position of the first unit whose record is not below an offset of the log, else the end:
        units are in the order of their records."""
        if not self.starts:
            return self.end
        size, units = self.file_size, (self.file_size - BLANK.size) // UNIT_SIZE

        def position(number: int) -> int:
            return self.starts[0] + number // units * size + number % units * UNIT_SIZE

        files, rest = divmod(self.end - self.starts[0], size)
        count = files * units + min(rest // UNIT_SIZE, units)
        found = bisect_left(range(count), place, key=lambda number: self.unit(position(number)).place)
        return position(found) if found < count else self.end

    # Slots

    def slot(self, time_ms: int) -> Slot | None:
        """Return the slot of a second; None when it is empty."""
        position = slot_position(time_ms)
        slot = self.dirty.get(position) or self.flushing.get(position)
        if slot is None:
            if self.wheel < 0:
                return None
            slot = Slot(*SLOT.unpack(self.files.pread(self.wheel, SLOT_SIZE, position))[:4])
        return slot if slot.second == time_ms // SECOND_MS and slot.last >= 0 else None

    def next_used(self, begin_ms: int, end_ms: int) -> int:
        """Return the first second from `begin_ms` on with units, or where the search ended."""
        slots, searched_ms = self.used(begin_ms, end_ms, count_max=1)
        return slots[0].second * SECOND_MS if slots else searched_ms

    def used(self, begin_ms: int, end_ms: int, *, count_max: int = SLOTS_READ) -> tuple[list[Slot], int]:
        """Return the slots with units of the seconds from `begin_ms` on, and where the search ended.

        Args:
            begin_ms, end_ms: at most `SLOTS_READ` seconds are looked at.
            count_max: the search ends with so many slots.
        """
        second, end = begin_ms // SECOND_MS, end_ms // SECOND_MS
        if self.wheel < 0:
            return [], end_ms
        end = min(end, second + SLOTS_READ)
        slots: list[Slot] = []
        while second < end:
            position = slot_position(second * SECOND_MS)
            count = min(end - second, (WHEEL_SIZE - position) // SLOT_SIZE)
            data = self.files.pread(self.wheel, count * SLOT_SIZE, position)
            for number, found in enumerate(SLOT.iter_unpack(data)):
                at = position + number * SLOT_SIZE
                slot = self.dirty.get(at) or self.flushing.get(at) or found
                if slot[0] == second + number and slot[2] >= 0:
                    slots.append(Slot(*slot[:4]))
                    if len(slots) == count_max:
                        return slots, (second + number + 1) * SECOND_MS
            second += count
        return slots, second * SECOND_MS

    # Cutting

    def cut(self, log_end: int) -> None:
        """Undo the units of records beyond an end of the log.

        Raises:
            StoreError: the files do not hold what they should.
        """
        position = self.end
        while (before := self.position_before(position)) >= 0 and self.unit(before).place >= log_end:
            position = before
        self.undo_to(position)
        self.clear_tail()

    def undo_to(self, target: int) -> None:
        """Undo units, the newest first, until the log ends at a position."""
        while self.end > target:
            position = self.position_before(self.end)
            unit = self.unit(position)
            slot = self.slot(unit.slot_ms)
            if slot is not None and slot.last == position:
                count = slot.messages - (-1 if unit.magic & DELETE else 1)
                self.dirty[slot_position(unit.slot_ms)] = Slot(slot.second, slot.first, unit.previous, count)
            self.end = max(position, target)

    def clear_tail(self) -> None:
        """Make zeros of what stands behind the end, so that nobody takes it for units."""
        start = self.end - self.end % self.file_size
        for later in [later for later in self.starts if later > start]:
            self.files.unlink(self.directory / segment_name(later))
            self.starts.remove(later)
            fd = self.descriptors.pop(later, -1)
            if fd >= 0:
                self.files.close(fd)
        if start in self.starts:
            within = self.end - start
            zero(self.files, self.log_file(start), within, self.file_size - within)
            self.unsynced.add(start)
        self.chunk = b""

    def expire(self, log_begin: int) -> int:
        """Remove files of which all records are gone; return how many."""
        removed = 0
        while len(self.starts) > 1:
            last = self.position_before(self.starts[1])
            unit = self.read_unit(last)
            if unit is None or unit.place >= log_begin:
                break
            start = self.starts.pop(0)
            fd = self.descriptors.pop(start, -1)
            if fd >= 0:
                self.files.close(fd)
            self.unsynced.discard(start)
            self.files.unlink(self.directory / segment_name(start))
            removed += 1
        return removed

    # On disk

    @property
    def last_place(self) -> int:
        """Physical offset of the newest unit's record, -1 without one."""
        position = self.position_before(self.end)
        return self.unit(position).place if position >= 0 else -1

    def begin_flush(
        self, read_ms: int, queue_offset: int, now_ms: int, counts: Mapping[str, int]
    ) -> TimerFlush | None:
        """Return what is to be put on disk now; None before there is a unit.

        Args:
            read_ms, queue_offset, now_ms: for the check.
            counts: how many messages wait, by topic; for `config/timermetrics`.
        """
        if self.wheel < 0:
            return None
        self.counter += 1
        self.flushing, self.dirty = self.flushing | self.dirty, {}
        check = Check(read_ms, self.end, queue_offset, queue_offset, now_ms, self.counter)
        logs = [self.descriptors[start] for start in sorted(self.unsynced) if start in self.descriptors]
        self.unsynced.clear()
        slots = [(position, slot.pack()) for position, slot in sorted(self.flushing.items())]
        table = {topic: {"count": count, "timeStamp": now_ms} for topic, count in counts.items()}
        version = {"counter": self.counter, "stateVersion": 0, "timestamp": now_ms}
        metrics = dumps({"dataVersion": version, "timingCount": table}, pretty=False)
        return TimerFlush(self.files, self.root, logs, self.wheel, slots, check, metrics)

    def saved_counts(self) -> dict[str, int]:
        """Return how many messages waited when that was written last; nothing where it can't be read."""
        try:
            table = loads(self.files.read_bytes(self.metrics_path).decode("utf-8"))["timingCount"]
            return {str(topic): int(entry["count"]) for topic, entry in table.items() if entry["count"] > 0}
        except (OSError, UnicodeDecodeError, StoreError, TypeError, ValueError, KeyError, AttributeError):
            return {}

    def end_flush(self, flush: TimerFlush) -> None:
        """Note that a flush is done."""
        self.flushing = {}
        self.check = flush.check
