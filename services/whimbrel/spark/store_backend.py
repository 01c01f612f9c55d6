"""Reads a store directory, ours or RocketMQ's, at rest or while a broker writes it. Changes nothing in it.

    consume queues ──► where each queue stands: first entry with a record in the log, first one not confirmed
    end of the log ──► records behind the last entry of any queue, which are not dispatched yet, but are read
    ranges of queues ──► the range of the log in which their records lie ──► splits, each scanned by a task

Records of all topics stand side by side in the log, so a task scans its split and selects from it; that costs
less than jumping from record to record as soon as about a third of the records is wanted. How far the log may
be read is told by `bulk_source.confirmed_end`. Without a topic, a batch reads the whole log without its
queues; a store whose queues a crash has damaged can be read in that way, or is to be recovered first.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from whimbrel.errors import CorruptRecord, IllegalOffset, StoreError
from whimbrel.spark.backend import ON_CORRUPT_HINT, Backend, ReadRequest
from whimbrel.spark.offsets import Key, Positions
from whimbrel.spark.options import SourceOptions
from whimbrel.spark.planning import DataLoss, Extent, NotThere, OffsetRange
from whimbrel.spark.push_down import ALL, UNRESTRICTED, PushDown, Range, intersect
from whimbrel.spark.queue_files import QueueFiles, queue_directories
from whimbrel.store.bulk_source import confirmed_end
from whimbrel.store.columns import Decoder, Records, Scan, Selection, Topics
from whimbrel.store.recovery import store_time_at
from whimbrel.store.segments import Segments
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.view import LogView

__all__ = ["StoreBackend", "StoreTask"]

logger = logging.getLogger(__name__)

BROKER = "store"  # shown as brokerName where no broker has left its name
RECORD_BYTES = 1024.0
QUEUE_IDS_MAX = 1 << 16
FILE_SIZE = 1 << 30  # of a log without files: RocketMQ's default

UndispatchedRecords = dict[tuple[str, int], list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class StoreBackend(Backend):
    """A store as it stood when it was described.

    Attributes:
        extents: none where the whole log is read.
        undispatched: queue offset and store time (ms) of the records that have no queue entry yet, by queue.
        begin, end: of the log that may be read.
        dispatched: the records below have their queue entries.
        broker: the name of the broker whose store it is.
    """

    has_physical_offsets = True
    shows_empty_queues = False

    root: Path
    extents: dict[Key, Extent]
    undispatched: UndispatchedRecords
    begin: int
    end: int
    dispatched: int
    file_size: int
    broker: str
    whole_log: bool

    @classmethod
    def describe(
        cls,
        options: SourceOptions,
        *,
        first_contact: bool = False,
        whole: bool = True,
        known: Collection[str] = (),
    ) -> "StoreBackend":
        """Read how far log and queues go.

        Raises:
            StoreError: it is no store.
            DataLoss: damage ends the log before other records, and the options say that this fails.
            NotThere: a topic that is named is not in it.
        """
        root = Path(options.store)
        view = LogView.of(root)
        check_end(root, view, fail_on_data_loss=options.fail_on_data_loss)
        end = view.end if options.isolation == "latest" else min(confirmed_end(root), view.end)
        broker = broker_name(root)
        file_size = view.segments.file_size or FILE_SIZE
        if options.subscription is None:
            return cls(root, {}, {}, view.begin, end, end, file_size, broker, whole_log=True)
        topics = queue_directories(root)
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
        undispatched = by_queue(rest)
        extents = queue_extents(topics, undispatched, view.begin, end, broker, options)
        return cls(
            root, extents, undispatched, view.begin, end, dispatched, file_size, broker, whole_log=False
        )

    @property
    def selects_by_time(self) -> bool:
        """Whether tasks select records by store time: where the whole log is read."""
        return self.whole_log

    def offsets_by_time(self, keys: Iterable[Key], at_ms: int) -> Positions:
        """Return the first offset of each queue that was stored at a time or later, else the queue's end."""
        segments = Segments.open(self.root / "commitlog", 0)
        try:
            return {key: self.offset_by_time(segments.read, key, at_ms) for key in keys}
        finally:
            segments.close()

    def offset_by_time(self, read: Callable[[int, int], bytes], key: Key, at_ms: int) -> int:
        """Return the same of one queue, by binary search."""
        topic, _, queue_id = key
        extent = self.extents[key]
        queue = QueueFiles.of(self.root, topic, queue_id)
        undispatched = dict(self.undispatched.get((topic, queue_id), ()))

        def stored_ms(number: int) -> int:
            if number in undispatched:
                return undispatched[number]
            physical_offset = queue.physical_offset(number)
            return store_time_at(read, physical_offset) if physical_offset >= 0 else 0

        numbers = range(extent.first, extent.end)
        return extent.first + bisect_left(numbers, at_ms, key=stored_ms)

    def confirmed_end(self, key: Key) -> int | None:
        """Return where a queue ends: files show no less than they hold."""
        return self.extents[key].end

    def plan(self, ranges: Sequence[OffsetRange], request: ReadRequest) -> "list[StoreTask]":
        """Return the tasks that read some ranges; where the whole log is read, those that scan it."""
        if not ranges and not self.whole_log:
            return []
        wanted = None
        if not self.whole_log:
            wanted = {(each.topic, each.queue_id): (each.start, each.end) for each in ranges}
        return [
            StoreTask(
                self.root,
                begin,
                end,
                self.end,
                self.file_size,
                self.broker,
                wanted,
                request.columns,
                request.options,
                request.push_down,
            )
            for begin, end in self.splits(ranges, request.task_bytes, request.push_down)
        ]

    def splits(
        self, ranges: Sequence[OffsetRange], split_bytes: int, push_down: PushDown
    ) -> list[tuple[int, int]]:
        """Return the ranges of the log that tasks scan."""
        log_range = (self.begin, self.end) if self.whole_log else self.log_range(ranges)
        if push_down.stored_ms != ALL:
            log_range = intersect(log_range, self.log_range_by_time(push_down.stored_ms))
        begin, end = intersect(log_range, push_down.physical_offsets)
        return [(at, min(at + split_bytes, end)) for at in range(begin, end, max(split_bytes, 1))]

    def log_range(self, ranges: Sequence[OffsetRange]) -> Range:
        """Return the range of the log in which the records of some queues' ranges lie."""
        low, high = self.end, self.begin
        for wanted in ranges:
            files = QueueFiles.of(self.root, wanted.topic, wanted.queue_id)
            for first, end in files.log_ranges(wanted.start, wanted.end):
                low, high = min(low, first), max(high, end)
            if wanted.end > files.end():
                low, high = min(low, self.dispatched), self.end
        return max(low, self.begin), min(high, self.end)

    def log_range_by_time(self, stored_ms: Range) -> Range:
        """Return the range of the log whose files may hold records of a range of store times."""
        segments = Segments.open(self.root / "commitlog", 0)
        try:
            begins = {start: store_time_at(segments.read, start) for start in segments.starts}
        finally:
            segments.close()
        early = [start for start, first in begins.items() if first and first < stored_ms[0]]
        late = [start for start, first in begins.items() if first >= stored_ms[1]]
        return max(early, default=self.begin), min(late, default=self.end)


def check_end(root: Path, view: LogView, *, fail_on_data_loss: bool) -> None:
    """Raise DataLoss, or log a warning, when damage ends the log before files that hold records, or before
    what was on disk by its mark."""
    state = view.state
    behind = [at for at in state.removed if store_time_at(view.segments.read, at)]
    if not behind and not state.lost:
        return
    what = f"{root}: the log ends at {view.end} ({state.fault or 'zeros'})"
    what += f", and {len(behind)} files stand behind" if behind else f", and was on disk up to {state.synced}"
    if fail_on_data_loss:
        raise DataLoss(f"{what}; `whimbrel store verify` says more, failOnDataLoss=false reads up to there")
    logger.warning("%s: what is behind is passed over", what)


def by_queue(undispatched: Iterable[Records]) -> UndispatchedRecords:
    """Return queue offsets and store times of records, by queue."""
    found: UndispatchedRecords = {}
    for records in undispatched:
        topics = Topics.of(records)
        columns = (topics.ids, *(records.ints(name) for name in ("queue_id", "queue_offset", "stored_ms")))
        for number, queue_id, offset, stored_ms in zip(*columns, strict=True):
            key = topics.names[number], int(queue_id)
            found.setdefault(key, []).append((int(offset), int(stored_ms)))
    return found


def queue_extents(
    topics: Mapping[str, Sequence[Path]],
    undispatched: UndispatchedRecords,
    begin: int,
    end: int,
    broker: str,
    options: SourceOptions,
) -> dict[Key, Extent]:
    """Return where the queues of a store stand.

    Raises:
        NotThere: a topic that is named is not there.
    """
    subscription = options.subscription
    assert subscription is not None, "a whole log has no queues"
    extents: dict[Key, Extent] = {}
    for topic, queues in topics.items():
        for queue in queues:
            if options.reads_queue(topic, int(queue.name)):
                first, last = QueueFiles(queue).extent(begin, end)
                extents[topic, broker, int(queue.name)] = Extent(first, last, RECORD_BYTES)
    for (topic, queue_id), records in undispatched.items():
        if options.reads_queue(topic, queue_id):
            before = extents.get((topic, broker, queue_id))
            first = before.first if before is not None else records[0][0]
            extents[topic, broker, queue_id] = Extent(first, records[-1][0] + 1, RECORD_BYTES)
    seen = {*topics, *(topic for topic, _ in undispatched)}
    missing = [name for name in subscription.named if name not in seen]
    if missing:
        raise NotThere(f"the store has no topic {', '.join(missing)}; it has {', '.join(sorted(seen))}")
    return extents


def broker_name(root: Path) -> str:
    """Return the name that a broker of ours has written into the shared page."""
    page = SharedPage.snapshot(root)
    return (page.broker_name if page is not None else "") or BROKER


@dataclass(frozen=True, slots=True)
class StoreTask:
    """A split of a log, and what is selected of it.

    Attributes:
        begin, end: records that begin here are read,
        limit: and these end here at the latest.
        wanted: queue offsets by topic and queue; None for every record.
    """

    root: Path
    begin: int
    end: int
    limit: int
    file_size: int
    broker: str
    wanted: dict[tuple[str, int], tuple[int, int]] | None
    columns: tuple[str, ...]
    options: SourceOptions
    push_down: PushDown = UNRESTRICTED

    def selection(self) -> Selection:
        """Return which records of the split become rows."""
        push_down = self.push_down
        low, high = intersect(push_down.queue_ids, (0, QUEUE_IDS_MAX))
        return Selection(
            topics=push_down.topics,
            queues=self.wanted,
            queue_ids=None if push_down.queue_ids == ALL else frozenset(range(low, high)),
            queue_offsets=push_down.queue_offsets,
            physical_offsets=push_down.physical_offsets,
            stored_ms=push_down.stored_ms,
            tags=self.options.wanted_tags,
            queued_only=self.wanted is not None,
        )

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches.

        Raises:
            DataLoss: retention has removed a file meanwhile, and the options say that this fails.
            CorruptRecord: the log or a body is damaged, and the options say that this fails.
        """
        options = self.options
        decoder = Decoder(
            self.columns,
            broker_name=self.broker,
            verify_crc=options.verify_crc,
            on_corrupt=options.on_corrupt,
            raw_bodies=not options.decompress,
            raw_properties=options.properties == "raw",
            selection=self.selection(),
        )
        segments = Segments.open(self.root / "commitlog", 0)
        try:
            scan = Scan(
                segments.read,
                self.begin,
                self.end,
                limit=self.limit,
                file_size=self.file_size,
                on_fault="skip" if options.on_corrupt == "skip" else "fail",  # there is no row to flag
            )
            for records in scan:
                yield from decoder.batches(records)
            for fault in scan.faults:
                logger.warning("%s is damaged at %d: %s", self.root, fault.offset, fault.what)
        except CorruptRecord as error:
            raise CorruptRecord(f"{self.root}: {error}; {ON_CORRUPT_HINT}") from error
        except (IllegalOffset, StoreError) as error:
            if options.fail_on_data_loss:
                raise DataLoss(
                    f"{self.root}: a part of the log between {self.begin} and {self.end} is gone: {error};"
                    " failOnDataLoss=false passes over it"
                ) from error
            logger.warning("%s: passing over what is gone: %s", self.root, error)
        finally:
            segments.close()
