"""Queues and index of a store as they are on disk, and which of the log's records must have entries there.

The rules are those of `store/verify.py`: while a store is written, or after a crash, entries must be there up
to the queues' recovery mark; those behind it are written by the next start. Entries of records that retention
has removed are not compared, nor those of deleted topics (`store/deleted_queue_offsets.py`).
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from whimbrel.errors import StoreError
from whimbrel.spark.queue_files import UNIT, QueueFiles
from whimbrel.spark.reporting import JobError
from whimbrel.store.codec import FILLER_SIZE
from whimbrel.store.columns import Records, Scan
from whimbrel.store.columns.records import Ints
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets
from whimbrel.store.index import HEADER, IndexFile, list_index_files
from whimbrel.store.queues import list_queues
from whimbrel.store.recovery_marks import QueueMark
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import Segments
from whimbrel.store.view import LogView, store_options

__all__ = [
    "DerivedFiles",
    "IndexPart",
    "QueueFile",
    "describe_derived_files",
    "index_part",
    "queue_units",
    "scan",
]

ENTRY = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("before", ">i4")])


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A file of a queue; `first` is the number of its first entry."""

    topic: str
    queue_id: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class DerivedFiles:
    """The files of a store when it was described.

    Attributes:
        begin, end: of the log.
        entries_due, keys_due: records below must have their entries in queues and index.
        fault: why the log ends there; "" for a regular end.
        index: paths of the index files. index_tags: whether tags are keys there.
        deleted_offsets: by queue, the offset at which a deleted topic ended.
        broken: queues whose files can't be read, and why.
    """

    root: Path
    begin: int
    end: int
    live: bool
    entries_due: int
    keys_due: int
    fault: str
    file_size: int
    queue_file_size: int
    index_slots: int
    index_entries: int
    index_tags: bool
    queues: tuple[QueueFile, ...]
    index: tuple[Path, ...]
    deleted_offsets: dict[tuple[str, int], int]
    broken: dict[tuple[str, int], str]

    def splits(self, split_bytes: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Cut a range of the log into splits."""
        return [(at, min(at + split_bytes, end)) for at in range(begin, end, split_bytes)]


def describe_derived_files(root: Path, index_slots: int) -> DerivedFiles:
    """Describe a store's files; runs in a task, where the files are.

    Raises:
        JobError: it is no store, or its log or index can't be read.
    """
    try:
        options = store_options(root, index_slots=index_slots)
        view = LogView.of(root)
        deleted_offsets = DeletedQueueOffsets(root)
        queues, broken = queue_files(root)
        mark = QueueMark.load(root)
    except StoreError as error:
        raise JobError(str(error)) from error
    entries_due = keys_due = view.end
    if mark is not None and (view.live or (root / "abort").exists()):
        entries_due, keys_due = min(view.end, mark.offset), min(view.end, mark.indexed)
    return DerivedFiles(
        root,
        view.begin,
        view.end,
        view.live,
        entries_due,
        keys_due,
        view.state.fault,
        view.segments.file_size or options.commitlog_file_size,
        options.consumequeue_file_size,
        options.index_slots,
        options.index_entries,
        options.index_tags,
        queues,
        tuple(list_index_files(root / "index")),
        {
            (topic, number): floor
            for topic, found in deleted_offsets.by_topic.items()
            for number, floor in found.items()
        },
        broken,
    )


def queue_files(root: Path) -> tuple[tuple[QueueFile, ...], dict[tuple[str, int], str]]:
    """Return the files of all queues, and the queues that a broker would refuse to load."""
    found, broken = [], {}
    for topic, queue_id, directory in list_queues(root / "consumequeue"):
        try:
            ConsumeQueue.load(directory, topic, queue_id, 0, root)
        except StoreError as error:
            broken[topic, queue_id] = str(error)
        for first, path in QueueFiles(directory).files:
            found.append(QueueFile(topic, queue_id, first, path.stat().st_size // UNIT.itemsize))
    return tuple(found), broken


def scan(view: DerivedFiles, begin: int, end: int) -> tuple[Scan, Iterator[Records]]:
    """Return the records that begin in a range of the log; damage is passed over."""
    segments = Segments(view.root / "commitlog", view.file_size)
    found = Scan(segments.read, begin, end, limit=view.end, file_size=view.file_size, on_fault="skip")

    def records() -> Iterator[Records]:
        with closing(segments):
            yield from found

    return found, records()


def queue_units(view: DerivedFiles, file: QueueFile) -> tuple[Ints, npt.NDArray[np.void]]:
    """Return the numbers and entries of a file that stand for records; none if it is gone."""
    directory = view.root / "consumequeue" / file.topic / str(file.queue_id)
    try:
        units = QueueFiles.units(directory / segment_name(file.first * UNIT.itemsize))
    except FileNotFoundError:
        units = np.zeros(0, UNIT)
    numbers = file.first + np.arange(len(units))
    there = (units["size"] > 0) & ~((units["size"] == FILLER_SIZE) & (units["physical_offset"] == 0))
    there &= numbers >= view.deleted_offsets.get((file.topic, file.queue_id), 0)
    return numbers[there], units[there]


@dataclass(frozen=True, slots=True, eq=False)
class IndexPart:
    """The entries of one index file that a search can reach, in the order of the log.

    Attributes:
        begin, end: offsets of the first and last record, from the file's header.
        faults: positions in the file, and what is wrong there.
    """

    count: int
    begin: int
    end: int
    physical_offsets: Ints
    hashes: Ints
    faults: list[tuple[int, str]]


def index_part(view: DerivedFiles, path: Path) -> IndexPart:
    """Read an index file; its chains are checked as columns, and followed one by one only if broken."""
    slots, entries = view.index_slots, view.index_entries
    try:
        size = path.stat().st_size
    except FileNotFoundError:  # retention has removed it meanwhile
        return IndexPart(0, 0, 0, np.zeros(0, np.int64), np.zeros(0, np.int64), [])
    if size != HEADER.size + 4 * slots + 20 * entries:
        return IndexPart(0, 0, 0, np.zeros(0, np.int64), np.zeros(0, np.int64), [(0, f"it has {size} bytes")])
    with path.open("rb") as file:
        _, _, begin, end, _, count = HEADER.unpack(file.read(HEADER.size))
        table = np.fromfile(file, ">i4", slots).astype(np.int64)
        found = np.fromfile(file, ENTRY, max(min(count, entries), 1))[1:]
    limit = (1 << 63) - 1 if view.live else view.end
    if 0 <= count <= entries and chained(table, found, slots, live=view.live) and not behind(found, limit):
        return IndexPart(
            max(count - 1, 0),
            begin,
            end,
            found["physical_offset"].astype(np.int64),
            found["hash"].astype(np.int64),
            [],
        )
    with closing(IndexFile(path, slots, entries, writable=False)) as whole:
        faults = list(whole.faults(limit))
        pairs = [] if count > entries else list(whole.reachable())
    hashes, physical_offsets = (
        np.array(values, np.int64) for values in (zip(*pairs, strict=True) if pairs else ((), ()))
    )
    return IndexPart(max(count - 1, 0), begin, end, physical_offsets, hashes, faults)


def behind(found: npt.NDArray[np.void], limit: int) -> bool:
    """Return whether any entry is of a record behind the log's end."""
    return bool((found["physical_offset"] >= limit).any())


def chained(table: Ints, found: npt.NDArray[np.void], slots: int, *, live: bool) -> bool:
    """Return whether each slot leads to all of its entries, from the newest to the oldest."""
    hashes = found["hash"].astype(np.int64)
    if (hashes < 0).any():
        return False
    slot = hashes % slots
    order = np.argsort(slot, kind="stable")
    ordered, numbers = slot[order], order + 1
    same = np.append(False, ordered[1:] == ordered[:-1]) if len(order) else np.zeros(0, np.bool_)
    before = np.where(same, np.append(0, numbers[:-1])[: len(numbers)], 0)
    if (found["before"][order] != before).any():
        return False
    newest = np.zeros(slots, np.int64)
    newest[ordered] = numbers  # of several, the last one stays
    later = table > len(found)  # added since the header was read
    return bool(((table == newest) | (later if live else np.zeros(slots, np.bool_))).all())
