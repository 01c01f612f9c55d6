"""The cells of the page of marks as attributes, and what the parts of the page are made of.

Each cell is one aligned, native int64 with exactly one writing process, so it needs no lock: a reader sees
the old value or the new one. **The cells are the truth**; the doorbell (`whimbrel.wakeup`) only saves a poll.

A text is a sequence lock: an int64 that is odd while the text changes, then UTF-8 bytes ended by a zero
byte or the end of the field. A writer that is killed in between leaves an odd number; the text then reads as
empty until it is written again.
"""

import inspect
import mmap
import threading
from typing import ClassVar

from whimbrel.store.options import Retention

__all__ = ["ID_BITS", "SLAVES_MAX", "Cell", "Column", "EpochOf", "Part", "RetentionCell", "SleepCell", "Text"]

SLAVES_MAX = 16  # connections that a master's replicator serves: cells of a column
ID_BITS = 8  # broker ids are below 64
RATIO_BITS, RATIO_UNIT = 15, 10_000
TEXT_READS_MAX = 100  # a text that is still changing after so many reads has a dead writer


class Part:
    """What one part of the page is built on: the whole page's bytes, and its cells."""

    def __init__(self, mapped: mmap.mmap | bytearray) -> None:
        self.mapped = mapped
        self.bytes = memoryview(mapped)
        self.cells = self.bytes.cast("q")

    @classmethod
    def place(cls, name: str) -> int:
        """Return where the cell of an attribute is, in bytes."""
        cell: Cell | EpochOf = inspect.getattr_static(cls, name)
        return 8 * cell.index

    def read_text(self, at: int, size: int) -> str:
        """Return a sequence-locked text, "" when its writer was killed while changing it."""
        for _ in range(TEXT_READS_MAX):
            before = self.cells[at // 8]
            if before & 1:
                continue
            raw = bytes(self.bytes[at + 8 : at + size])
            if self.cells[at // 8] == before:
                return raw.partition(b"\0")[0].decode("utf-8", "replace")
        return ""

    def write_text(self, at: int, size: int, text: str) -> None:
        """Change a sequence-locked text; what is too long is cut."""
        room = size - 8
        odd = self.cells[at // 8] | 1
        self.cells[at // 8] = odd
        self.bytes[at + 8 : at + size] = text.encode()[:room].ljust(room, b"\0")
        self.cells[at // 8] = odd + 1


class Cell:
    """One int64 of the page as an attribute."""

    __slots__ = ("index",)

    def __init__(self, at: int) -> None:
        self.index = at // 8

    def __get__(self, page: Part, owner: type | None = None) -> int:
        return page.cells[self.index]

    def __set__(self, page: Part, value: int) -> None:
        page.cells[self.index] = value


class EpochOf:
    """An epoch and the member id of its leader or candidate in one cell, so that nobody reads one without
    the other."""

    __slots__ = ("index",)

    def __init__(self, at: int) -> None:
        self.index = at // 8

    def __get__(self, page: Part, owner: type | None = None) -> tuple[int, int]:
        return divmod(page.cells[self.index], 1 << ID_BITS)

    def __set__(self, page: Part, value: tuple[int, int]) -> None:
        page.cells[self.index] = value[0] << ID_BITS | value[1]


class SleepCell(Cell):
    """A sleeping flag: a memory barrier stands before each read and after each write."""

    __slots__ = ()
    barrier: ClassVar = threading.Lock()  # taking a lock is an atomic operation, hence a full barrier

    def __get__(self, page: Part, owner: type | None = None) -> int:
        with self.barrier:
            pass
        return page.cells[self.index]

    def __set__(self, page: Part, value: int) -> None:
        page.cells[self.index] = value
        with self.barrier:
            pass


class RetentionCell:
    """How long a process is told to keep log files, in one cell: seconds of age and the two ratios in ten
    thousandths, each greater by 1 than it is; 0 where it is not told, which is what is there at first."""

    __slots__ = ("index",)

    def __init__(self, at: int) -> None:
        self.index = at // 8

    def __get__(self, page: Part, owner: type | None = None) -> Retention:
        seconds, ratios = divmod(page.cells[self.index], 1 << 2 * RATIO_BITS)
        used, clean = divmod(ratios, 1 << RATIO_BITS)
        return Retention(
            (seconds - 1) / 3600 if seconds else None,
            (used - 1) / RATIO_UNIT if used else None,
            (clean - 1) / RATIO_UNIT if clean else None,
        )

    def __set__(self, page: Part, value: Retention) -> None:
        told = (
            (value.reserved_hours, 3600, (1 << 31) - 1),
            (value.disk_used_ratio_max, RATIO_UNIT, RATIO_UNIT),
            (value.disk_clean_ratio, RATIO_UNIT, RATIO_UNIT),
        )
        cell = 0
        for number, unit, limit in told:
            cell <<= RATIO_BITS
            cell |= 0 if number is None else 1 + min(round(number * unit), limit)
        page.cells[self.index] = cell


class Text:
    """A sequence-locked text of the page as an attribute."""

    __slots__ = ("at", "size")

    def __init__(self, at: int, size: int) -> None:
        self.at, self.size = at, size

    def __get__(self, page: Part, owner: type | None = None) -> str:
        return page.read_text(self.at, self.size)

    def __set__(self, page: Part, value: str) -> None:
        page.write_text(self.at, self.size, value)


class Column:
    """A cell for each slot as an attribute that is read as a whole; its writer sets one slot's at a time."""

    __slots__ = ("cells",)

    def __init__(self, at: int) -> None:
        self.cells = slice(at // 8, at // 8 + SLAVES_MAX)

    def __get__(self, page: Part, owner: type | None = None) -> list[int]:
        return page.cells[self.cells].tolist()
