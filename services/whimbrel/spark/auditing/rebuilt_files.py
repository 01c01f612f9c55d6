"""Queue and index files, written anew: each by one task, whole or not at all.

A queue file is built in memory from its entries, and its gaps are filled as the broker fills them. The number
of an entry tells its position in the file, so the files of one queue do not depend on each other. An index
file is written by the store's own `IndexFile`, which gets its entries in the order of the log. Which entry
goes into which file follows from counting, since every file but the last is full.

Files are written under another name, fsynced and renamed. A task that is tried again writes the same.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from whimbrel.machine import FILES
from whimbrel.spark.queue_files import UNIT
from whimbrel.store.codec import FILLER_SIZE
from whimbrel.store.consumequeue import FILLERS_MAX
from whimbrel.store.index import GROUP_MAX, IndexFile
from whimbrel.store.options import StoreOptions
from whimbrel.store.segment import segment_name

__all__ = [
    "Gap",
    "WrittenQueueFile",
    "fill",
    "gaps_of",
    "queue_file_bytes",
    "write_index_file",
    "write_queue_file",
]

Entry = tuple[int, int, int]  # key hash, physical offset, store time in ms


@dataclass(frozen=True, slots=True)
class WrittenQueueFile:
    """A queue file that was written: the numbers of its first and last entry that stand for records."""

    topic: str
    queue_id: int
    first: int
    count: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries of a queue file that have to be fillers: [begin, end)."""

    topic: str
    queue_id: int
    first: int
    begin: int
    end: int


def queue_file_bytes(
    first: int, per_file: int, numbers: npt.NDArray[np.int64], units: npt.NDArray[np.void]
) -> bytes:
    """Return the bytes of a queue file whose first entry has the number `first`.

    Of several entries with one number the first of the log counts (a broker serves the others under later
    numbers: `store/consumequeue.py`). Fillers are written before the first entry and into gaps; behind
    the last entry there are zeros.
    """
    whole = np.zeros(per_file, UNIT)
    whole["size"][: int(numbers.max()) - first + 1] = FILLER_SIZE
    order = np.lexsort((units["physical_offset"], numbers))
    numbers, units = numbers[order], units[order]
    distinct = np.append(True, numbers[1:] != numbers[:-1])
    whole[numbers[distinct] - first] = units[distinct]
    return whole.tobytes()


def path_of(folder: Path, topic: str, queue_id: int, first: int) -> Path:
    """Return where a queue file belongs."""
    return folder / "consumequeue" / topic / str(queue_id) / segment_name(first * UNIT.itemsize)


def write_queue_file(path: Path, data: bytes) -> None:
    """Write a file; it appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    with draft.open("wb") as file:
        used = len(data.rstrip(b"\0"))
        file.write(data[:used])
        file.truncate(len(data))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    FILES.sync_directory(path.parent)


def gaps_of(files: Sequence[WrittenQueueFile], per_file: int) -> tuple[list[Gap], list[str]]:
    """Return the gaps between the files of one queue, and findings about gaps that a broker would refuse.

    Args:
        files: of one queue, in order.
    """
    gaps, jumps = [], []
    for one, following in pairwise(files):
        begin, end = one.high + 1, following.low
        if end - begin > FILLERS_MAX:
            jumps.append(f"queue offsets jump from {one.high} to {end}, which a broker does not believe")
            continue
        for first in range(one.first, following.first, per_file):
            low, high = max(begin, first), first + per_file
            if low < high:
                gaps.append(Gap(one.topic, one.queue_id, first, low, high))
    return gaps, jumps


def fill(folder: Path, gap: Gap, per_file: int) -> None:
    """Write the fillers of a gap."""
    path = path_of(folder, gap.topic, gap.queue_id, gap.first)
    data = path.read_bytes() if path.exists() else bytes(per_file * UNIT.itemsize)
    units = np.frombuffer(data, UNIT).copy()
    units["size"][gap.begin - gap.first : gap.end - gap.first] = FILLER_SIZE
    write_queue_file(path, units.tobytes())


def write_index_file(
    folder: Path, name: str, options: StoreOptions, before: Entry | None, entries: Iterator[Entry]
) -> tuple[int, int, int]:
    """Write an index file; return (entries, first and last physical offset).

    Args:
        before: the last entry of the previous file, to whose time the first entry's is relative.
        entries: in the order of the log, as many as fit and at least one.
    """
    scratch = folder / "drafts" / name
    scratch.mkdir(parents=True, exist_ok=True)
    (folder / "index").mkdir(parents=True, exist_ok=True)
    made = IndexFile.create(scratch, name, options, scratch, None)
    with closing(made):
        if before is not None:
            made.begin_ms = made.end_ms = before[2]
            made.begin_offset = made.end_offset = before[1]
        group: list[Entry] = []
        for entry in entries:
            group.append(entry)
            if len(group) == GROUP_MAX:
                made.reserve(len(group))
                made.put(group)
                group = []
        if group:
            made.reserve(len(group))
            made.put(group)
        made.mapped.flush()
        counts = made.count - 1, made.begin_offset, made.end_offset
    path = scratch / name
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.rename(folder / "index" / name)
    FILES.sync_directory(folder / "index")
    scratch.rmdir()
    return counts
