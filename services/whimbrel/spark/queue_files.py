"""A store's consume queues as files of entries, read with numpy.

Files are read with system calls, not mapped: a mapped file that is cut off meanwhile would end the process.
Queues are taken as they stand: after a crash that damaged them, the store is to be recovered first.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from whimbrel.store.codec import FILLER_SIZE

__all__ = ["UNIT", "QueueFiles", "Units", "queue_directories"]

UNIT = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])  # store/consumequeue.py

Units = npt.NDArray[np.void]


def queue_directories(root: Path) -> dict[str, list[Path]]:
    """Return the directories of a store's queues, by topic."""
    return {
        topic.name: [queue for queue in sorted(topic.iterdir()) if queue.name.isdigit()]
        for topic in sorted((root / "consumequeue").glob("*"))
        if topic.is_dir()
    }


class QueueFiles:
    """One queue's files. An entry has 20 bytes, and a file's name is the position of its first byte."""

    def __init__(self, directory: Path) -> None:
        files = sorted(path for path in directory.glob("*") if path.name.isdigit())
        self.files = [(int(path.name) // UNIT.itemsize, path) for path in files]

    @classmethod
    def of(cls, root: Path, topic: str, queue_id: int) -> "QueueFiles":
        """Return the files of a store's queue."""
        return cls(root / "consumequeue" / topic / str(queue_id))

    @staticmethod
    def units(path: Path) -> Units:
        """Return the entries of one file; those that are not written yet have size 0."""
        found: Units = np.fromfile(path, UNIT, path.stat().st_size // UNIT.itemsize)
        return found

    def extent(self, log_begin: int, log_end: int) -> tuple[int, int]:
        """Return the first queue offset with a record within the log, and one past the last such offset."""
        first = end = 0
        found = False
        for start, path in self.files:
            units = self.units(path)
            inside = is_entry(units) & (units["physical_offset"] >= log_begin)
            inside &= units["physical_offset"] + units["size"] <= log_end
            numbers = np.flatnonzero(inside)
            if len(numbers):
                first = first if found else start + int(numbers[0])
                end, found = start + int(numbers[-1]) + 1, True
        return first, end

    def log_end(self) -> int:
        """Return where the last entry's record ends in the log, 0 without an entry."""
        for _, path in reversed(self.files):
            units = self.units(path)
            units = units[is_entry(units)]
            if len(units):
                return int((units["physical_offset"] + units["size"]).max())
        return 0

    def end(self) -> int:
        """Return one past the last queue offset that has an entry."""
        return self.extent(0, 1 << 62)[1]

    def physical_offset(self, number: int) -> int:
        """Return the physical offset of an entry's record; -1 where there is no entry, or a filler."""
        for start, path in reversed(self.files):
            if start <= number:
                unit = np.fromfile(path, UNIT, 1, offset=(number - start) * UNIT.itemsize)
                return int(unit["physical_offset"][0]) if len(unit) and is_entry(unit)[0] else -1
        return -1

    def log_ranges(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield for each file the range of the log in which the records of [first, end) lie."""
        for start, path in self.files:
            units = self.units(path)[max(first - start, 0) : max(end - start, 0)]
            units = units[is_entry(units)]
            if len(units):
                begins = units["physical_offset"]
                yield int(begins.min()), int((begins + units["size"]).max())


def is_entry(units: Units) -> npt.NDArray[np.bool_]:
    """Return which entries stand for records: written ones that are no fillers."""
    found: npt.NDArray[np.bool_] = (units["size"] > 0) & (units["size"] != FILLER_SIZE)
    return found
