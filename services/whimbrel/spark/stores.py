"""Reads a store directory, ours or RocketMQ's, at rest or while a broker writes it. Changes nothing in it.

    consume queues ──► where each queue stands (first entry whose record is there, first one not confirmed)
    the log's rest ──► what stands behind the last entry of any queue: not dispatched yet, read all the same
    pieces of queues ──► the stretch of the log in which their records lie ──► splits, each scanned by a task

Topics lie side by side in the log, so a task scans a stretch and takes what is wanted of it; that costs less
than jumping as soon as about a third of it is wanted. How far the log may be read says `raw.confirmed_end`.
Files are read with system calls, not mapped: one that is cut away meanwhile would end the worker. Queues are
taken as they stand: a store whose queues a crash has damaged is to be recovered first, or read as a whole.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from whimbrel.errors import IllegalOffset, StoreError
from whimbrel.model.names import GROUP_TOPIC_PREFIXES, is_system_topic
from whimbrel.spark.offsets import Key, Positions
from whimbrel.spark.options import SourceOptions
from whimbrel.spark.planning import DataLoss, Extent, Piece
from whimbrel.spark.push_down import ALL, EVERYTHING, Narrow, Range, within
from whimbrel.store.bulk_source import confirmed_end
from whimbrel.store.codec import FILLER_SIZE
from whimbrel.store.columns import Decoder, Records, Scan, Selection, Topics
from whimbrel.store.recovery import first_store_time
from whimbrel.store.segments import Segments
from whimbrel.store.view import LogView, page_cells

__all__ = ["QueueFiles", "StoreTask", "StoreView", "read_store_task", "splits"]

log = logging.getLogger(__name__)

UNIT = np.dtype([("place", ">i8"), ("size", ">i4"), ("tags", ">i8")])
NAME_AT, NAME_BYTES = 2816, 136  # `broker_name` in the page of marks, a text behind a counter of 8 bytes
BROKER = "store"  # what stands in brokerName where nobody has written a name
RECORD_BYTES = 1024.0
QUEUE_IDS_MAX = 1 << 16

Units = npt.NDArray[np.void]
Tails = dict[tuple[str, int], list[tuple[int, int]]]


class QueueFiles:
    """One queue's files: entries of 20 bytes, the file's name being the position of its first byte."""

    def __init__(self, directory: Path) -> None:
        files = sorted(path for path in directory.glob("*") if path.name.isdigit())
        self.files = [(int(path.name) // UNIT.itemsize, path) for path in files]

    @staticmethod
    def units(path: Path) -> Units:
        """Return the entries of one file; those that nobody has written yet have no size."""
        found: Units = np.fromfile(path, UNIT, path.stat().st_size // UNIT.itemsize)
        return found

    def extent(self, log_begin: int, log_end: int) -> tuple[int, int]:
        """Return the first entry whose record lies within the log, and the first one behind that does not."""
        first = end = 0
        found = False
        for start, path in self.files:
            units = self.units(path)
            inside = (units["size"] > 0) & (units["size"] != FILLER_SIZE) & (units["place"] >= log_begin)
            inside &= units["place"] + units["size"] <= log_end
            numbers = np.flatnonzero(inside)
            if len(numbers):
                first = first if found else start + int(numbers[0])
                end, found = start + int(numbers[-1]) + 1, True
        return first, end

    def log_end(self) -> int:
        """Return where the last entry's record ends in the log, 0 without an entry."""
        for _, path in reversed(self.files):
            units = self.units(path)
            units = units[(units["size"] > 0) & (units["size"] != FILLER_SIZE)]
            if len(units):
                return int((units["place"] + units["size"]).max())
        return 0

    def end(self) -> int:
        """Return one past the last entry."""
        return self.extent(0, 1 << 62)[1]

    def place(self, number: int) -> int:
        """Return where in the log an entry's record stands; -1 without one, and for a filler."""
        for start, path in reversed(self.files):
            if start <= number:
                unit = np.fromfile(path, UNIT, 1, offset=(number - start) * UNIT.itemsize)
                there = len(unit) and unit["size"][0] > 0 and unit["size"][0] != FILLER_SIZE
                return int(unit["place"][0]) if there else -1
        return -1

    def stretches(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield for each file the part of the log in which the records of [first, end) lie."""
        for start, path in self.files:
            units = self.units(path)[max(first - start, 0) : max(end - start, 0)]
            units = units[(units["size"] > 0) & (units["size"] != FILLER_SIZE)]
            if len(units):
                yield int(units["place"].min()), int((units["place"] + units["size"]).max())


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store as it stands.

    Attributes:
        extents: of the queues that are read.
        tails: offset and store time (ms) of the records that have no queue entry yet, by queue.
        begin, end: of the log that may be read.
        dispatched: up to here its records have their queue entries.
        broker: the name of the broker whose store it is.
    """

    root: Path
    extents: dict[Key, Extent]
    tails: "Tails"
    begin: int
    end: int
    dispatched: int
    file_size: int
    broker: str

    @classmethod
    def of(cls, options: SourceOptions) -> "StoreView":
        """Look at a store.

        Raises:
            StoreError: it is none.
            DataLoss: damage ends the log before other records, and that is to fail.
            LookupError: a topic that is named is not in it.
        """
        root = Path(options.store)
        view = LogView.of(root)
        behind = [at for at in view.state.removed if first_store_time(view.segments.read, at)]
        if behind:
            fault = view.state.fault
            what = f"{root}: the log ends at {view.end} ({fault}), and {len(behind)} files stand behind"
            if options.fail_on_data_loss:
                raise DataLoss(
                    f"{what}; `whimbrel store verify` says more, failOnDataLoss=false reads up to there"
                )
            log.warning("%s, which are passed over", what)
        end = view.end if options.isolation == "latest" else min(confirmed_end(root), view.end)
        broker = broker_name(root)
        file_size = view.segments.file_size or 1 << 30
        extents: dict[Key, Extent] = {}
        tails: Tails = {}
        dispatched = end
        if options.subscription is not None:
            topics = topics_of(root)
            ends = [QueueFiles(queue).log_end() for queues in topics.values() for queue in queues]
            dispatched = min(max(ends, default=view.begin), end)
            rest = Scan(
                view.segments.read,
                max(dispatched, view.begin),
                end,
                limit=end,
                file_size=file_size,
                on_fault="skip",
            )
            tails = tails_of(rest)
            extents = queue_extents(topics, tails, view.begin, end, broker, options)
        return cls(root, extents, tails, view.begin, end, dispatched, file_size, broker)

    def stretch(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """Return the part of the log in which the records of pieces lie."""
        low, high = self.end, self.begin
        for piece in pieces:
            files = QueueFiles(self.root / "consumequeue" / piece.topic / str(piece.queue_id))
            for first, end in files.stretches(piece.start, piece.end):
                low, high = min(low, first), max(high, end)
            if piece.end > files.end():
                low, high = min(low, self.dispatched), self.end
        return max(low, self.begin), min(high, self.end)

    def offsets_by_time(self, keys: Iterable[Key], at_ms: int) -> Positions:
        """Return the first offset of each queue that was stored at a time or later, else the queue's end."""
        segments = Segments.open(self.root / "commitlog", 0)
        try:
            return {key: self.offset_by_time(segments.read, key, at_ms) for key in keys}
        finally:
            segments.close()

    def offset_by_time(self, read: Callable[[int, int], bytes], key: Key, at_ms: int) -> int:
        """Return the first offset of one queue that was stored at a time or later, else its end."""
        topic, _, queue_id = key
        extent = self.extents[key]
        queue = QueueFiles(self.root / "consumequeue" / topic / str(queue_id))
        tail = dict(self.tails.get((topic, queue_id), ()))

        def stored_ms(number: int) -> int:
            if number in tail:
                return tail[number]
            place = queue.place(number)
            return first_store_time(read, place) if place >= 0 else 0

        numbers = range(extent.first, extent.end)
        return extent.first + bisect_left(numbers, at_ms, key=stored_ms)

    def stretch_by_time(self, stored_ms: Range) -> Range:
        """Return the part of the log whose files may hold records of a range of store times."""
        segments = Segments.open(self.root / "commitlog", 0)
        try:
            begins = {start: first_store_time(segments.read, start) for start in segments.starts}
        finally:
            segments.close()
        early = [start for start, first in begins.items() if first and first < stored_ms[0]]
        late = [start for start, first in begins.items() if first >= stored_ms[1]]
        return max(early, default=self.begin), min(late, default=self.end)


def topics_of(root: Path) -> dict[str, list[Path]]:
    """Return the folders of a store's queues, by topic."""
    return {
        topic.name: [queue for queue in sorted(topic.iterdir()) if queue.name.isdigit()]
        for topic in sorted((root / "consumequeue").glob("*"))
        if topic.is_dir()
    }


def tails_of(rest: Iterable[Records]) -> Tails:
    """Return by queue what of the log has no queue entries yet."""
    tails: Tails = {}
    for records in rest:
        topics = Topics.of(records)
        columns = (topics.ids, *(records.ints(name) for name in ("queue_id", "queue_offset", "stored_ms")))
        for number, queue_id, offset, stored_ms in zip(*columns, strict=True):
            key = topics.names[number], int(queue_id)
            tails.setdefault(key, []).append((int(offset), int(stored_ms)))
    return tails


def queue_extents(
    topics: Mapping[str, Sequence[Path]],
    tails: Tails,
    begin: int,
    end: int,
    broker: str,
    options: SourceOptions,
) -> dict[Key, Extent]:
    """Return where the queues of a store stand.

    Raises:
        LookupError: a topic that is named is not there.
    """
    wanted = options.subscription
    assert wanted is not None, "a whole log has no queues"

    def reads(topic: str, queue_id: int) -> bool:
        system = is_system_topic(topic) or topic.startswith(GROUP_TOPIC_PREFIXES)
        wants = wanted.wants_topic(topic, system=system, include_system=options.include_system)
        return wants and wanted.wants_queue(topic, queue_id)

    extents: dict[Key, Extent] = {}
    for topic, queues in topics.items():
        for queue in queues:
            if reads(topic, int(queue.name)):
                first, last = QueueFiles(queue).extent(begin, end)
                extents[topic, broker, int(queue.name)] = Extent(first, last, RECORD_BYTES)
    for (topic, queue_id), tail in tails.items():
        if reads(topic, queue_id):
            before = extents.get((topic, broker, queue_id))
            first = before.first if before is not None else tail[0][0]
            extents[topic, broker, queue_id] = Extent(first, tail[-1][0] + 1, RECORD_BYTES)
    seen = {*topics, *(topic for topic, _ in tails)}
    missing = [name for name in wanted.named if name not in seen]
    if missing:
        raise LookupError(f"the store has no topic {', '.join(missing)}; it has {', '.join(sorted(seen))}")
    return extents


def broker_name(root: Path) -> str:
    """Return the name that a broker of ours has written into the page of marks."""
    if page_cells(root) is None:
        return BROKER
    text = (root / "whimbrel" / "watermark").read_bytes()[NAME_AT + 8 : NAME_AT + NAME_BYTES]
    return text.partition(b"\0")[0].decode("utf-8", "replace") or BROKER


@dataclass(frozen=True, slots=True)
class StoreTask:
    """A stretch of a log, and what is wanted of it; `wanted` None takes everything."""

    root: Path
    begin: int
    end: int
    limit: int
    file_size: int
    broker: str
    wanted: dict[tuple[str, int], tuple[int, int]] | None
    columns: tuple[str, ...]
    options: SourceOptions
    narrow: Narrow = EVERYTHING


def splits(
    view: StoreView, pieces: Sequence[Piece] | None, split_bytes: int, narrow: Narrow = EVERYTHING
) -> list[tuple[int, int]]:
    """Return the stretches of the log that tasks read; `pieces` None is all of it."""
    stretch = (view.begin, view.end) if pieces is None else view.stretch(pieces)
    if narrow.stored_ms != ALL:
        stretch = within(stretch, view.stretch_by_time(narrow.stored_ms))
    begin, end = within(stretch, narrow.physical_offsets)
    return [(at, min(at + split_bytes, end)) for at in range(begin, end, max(split_bytes, 1))]


def selected(task: StoreTask) -> Selection:
    """Return which records of a stretch become rows."""
    narrow = task.narrow
    low, high = within(narrow.queue_ids, (0, QUEUE_IDS_MAX))
    return Selection(
        topics=narrow.topics,
        queues=task.wanted,
        queue_ids=None if narrow.queue_ids == ALL else frozenset(range(low, high)),
        queue_offsets=narrow.queue_offsets,
        physical_offsets=narrow.physical_offsets,
        stored_ms=narrow.stored_ms,
        tags=task.options.wanted_tags,
        queued_only=task.wanted is not None,
    )


def read_store_task(task: StoreTask) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stretch.

    Raises:
        DataLoss: retention has removed a file meanwhile, and that is to fail.
        CorruptRecord: the log or a body is damaged, and that is to fail.
    """
    options = task.options
    decoder = Decoder(
        task.columns,
        broker_name=task.broker,
        verify_crc=options.verify_crc,
        on_corrupt=options.on_corrupt,
        raw_bodies=not options.decompress,
        raw_properties=options.properties == "raw",
        selection=selected(task),
    )
    segments = Segments.open(task.root / "commitlog", 0)
    try:
        scan = Scan(
            segments.read,
            task.begin,
            task.end,
            limit=task.limit,
            file_size=task.file_size,
            on_fault="fail" if options.on_corrupt == "fail" else "skip",
        )
        for records in scan:
            yield from decoder.batches(records)
        for fault in scan.faults:
            log.warning("%s is damaged at %d: %s", task.root, fault.offset, fault.what)
    except (IllegalOffset, StoreError) as error:
        if options.fail_on_data_loss:
            raise DataLoss(
                f"{task.root}: a part of the log between {task.begin} and {task.end} is gone: {error};"
                " failOnDataLoss=false passes over it"
            ) from error
        log.warning("%s: passing over what is gone: %s", task.root, error)
    finally:
        segments.close()
