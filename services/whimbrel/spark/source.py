"""`spark.read.format("whimbrel")` and `spark.readStream.format("whimbrel")`.

Spark pickles readers and copies them: one answers for the whole query on the driver, others read in tasks. So
nothing is shared between them, and a reader holds options only, apart from what the driver's remembers:

    a stream's life    initialOffset ─► latestOffset ─► partitions ─► read (in tasks) ─► commit, a batch late

`initialOffset` may be called again, and gives the same then. `latestOffset` never goes back; a broker that
does not answer leaves its queues where they were. The columns that a user's `.schema(...)` names are the only
ones that are decoded.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from whimbrel.spark.archives import ArchiveTask, ArchiveView, read_archive_task
from whimbrel.spark.brokers import Brokers, Seen
from whimbrel.spark.offsets import Key, Positions, from_checkpoint, to_checkpoint
from whimbrel.spark.options import OptionError, SourceOptions, parse
from whimbrel.spark.planning import (
    Piece,
    Truncated,
    admit,
    ending,
    ending_at,
    pack,
    pieces_between,
    starting,
    starting_at,
)
from whimbrel.spark.progress import Reporter, carrying
from whimbrel.spark.push_down import ALL, EVERYTHING, Range, narrowed, push, within
from whimbrel.spark.sink import batch_writer, stream_writer
from whimbrel.spark.stores import StoreTask, StoreView, read_store_task, splits
from whimbrel.spark.tasks import Task, gathered, read_task
from whimbrel.store.columns import ALL_COLUMNS, COLUMNS, KAFKA_COLUMNS, schema_of

__all__ = ["WhimbrelSource"]

log = logging.getLogger(__name__)

MIB = 1 << 20
BATCH_PARTITION_BYTES = 1 << 30  # a task of seconds
STREAM_PARTITION_BYTES = 128 * MIB
TASKS_PER_CORE = 2


class TaskPartition(InputPartition):
    """What a task is given."""

    def __init__(self, task: Task | StoreTask | ArchiveTask) -> None:
        self.task = task
        super().__init__(None)


class WhimbrelSource(DataSource):
    """Topics of a running cluster."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "whimbrel"

    def schema(self) -> StructType:
        """Return all columns, unless the user names others by `.schema(...)`."""
        return from_arrow_schema(arrow_schema(default_columns(parse(self.options)), parse(self.options)))

    def reader(self, schema: StructType) -> "BatchReader":
        """Return the reader of a batch."""
        options = parse(self.options, streaming=False)
        return (FilteringReader if options.pushdown else BatchReader)(schema, options)

    def streamReader(self, schema: StructType) -> "StreamReader":
        """Return the reader of a stream."""
        return StreamReader(schema, parse(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch."""
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""
        return stream_writer(self.options, schema, overwrite=overwrite)


def default_columns(options: SourceOptions) -> tuple[str, ...]:
    """Return the columns of a table whose columns nobody names."""
    if options.kafka_columns:
        return KAFKA_COLUMNS
    names = COLUMNS if options.properties != "none" else tuple(n for n in COLUMNS if n != "properties")
    return (*names, "crcOk") if options.on_corrupt == "flag" else names


def arrow_schema(columns: Sequence[str], options: SourceOptions) -> pa.Schema:
    """Return the Arrow schema of some columns."""
    return schema_of(columns, raw_properties=options.properties == "raw")


def checked_columns(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Return the columns of a schema, in its order.

    Raises:
        OptionError: it has one that there is not, or one of another type.
    """
    columns = tuple(schema.names)
    unknown = [name for name in columns if name not in ALL_COLUMNS]
    if unknown:
        raise OptionError(f"schema: no column {', '.join(unknown)}; there are {', '.join(ALL_COLUMNS)}")
    ours = from_arrow_schema(arrow_schema(columns, options))
    for mine, theirs in zip(ours, schema, strict=True):
        if mine.dataType != theirs.dataType:
            raise OptionError(
                f"schema: column {mine.name} is of type {mine.dataType.simpleString()},"
                f" not {theirs.dataType.simpleString()}"
            )
    return columns


Stand = Seen | StoreView | ArchiveView  # where queues stand: of brokers, a store directory, an archive


class Reader:
    """What both kinds of readers share."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.options = options
        self.columns = checked_columns(schema, options)
        self.narrow = replace(EVERYTHING, physical_offsets=options.physical_offsets)

    def first(self, seen: Stand) -> Positions:
        """Return where a new query starts.

        Raises:
            LookupError: a queue has nothing as late as the time to start at, and that is to be an error.
        """
        options = self.options
        if options.starting_ms is None or isinstance(seen, ArchiveView):
            return starting(options.starting, seen.extents)
        found = self.offsets_by_time(seen, list(seen.extents), options.starting_ms)
        return starting_at(found, seen.extents, latest_without_match=options.latest_without_match)

    def last(self, seen: Stand) -> Positions:
        """Return where a batch ends."""
        options = self.options
        if options.ending_ms is None or isinstance(seen, ArchiveView):
            return ending(options.ending, seen.extents)
        return ending_at(self.offsets_by_time(seen, list(seen.extents), options.ending_ms), seen.extents)

    def offsets_by_time(self, seen: Seen | StoreView, keys: Sequence[Key], at_ms: int) -> Positions:
        """Return the first offset of each queue that was stored at a time or later, else the queue's end."""
        if isinstance(seen, StoreView):
            return seen.offsets_by_time(keys, at_ms)
        return Brokers(self.options).offsets_by_time(keys, at_ms, seen.groups)

    def offsets_between(self, seen: Stand, keys: Sequence[Key], stored_ms: Range) -> dict[Key, Range]:
        """Return the queue offsets that were stored within a range of times."""
        if isinstance(seen, ArchiveView):
            return {}  # its tasks go by the times of files and rows
        low, high = stored_ms
        begins = self.offsets_by_time(seen, keys, low) if low > ALL[0] else {}
        ends = self.offsets_by_time(seen, keys, high) if high < ALL[1] else {}
        return {key: (begins.get(key, ALL[0]), ends.get(key, ALL[1])) for key in keys}

    def tasks(
        self, start: Positions, end: Positions, seen: Stand, partition_bytes: int
    ) -> list[InputPartition]:
        """Return the tasks that read from one position to another."""
        options = self.options
        pieces = pieces_between(start, end, seen.extents, fail_on_data_loss=options.fail_on_data_loss)
        if self.narrow != EVERYTHING:
            between = partial(self.offsets_between, seen, stored_ms=self.narrow.stored_ms)
            pieces = narrowed(pieces, self.narrow, between)
        if isinstance(seen, StoreView):
            return self.store_tasks(seen, pieces, partition_bytes) if pieces else []
        if isinstance(seen, ArchiveView):
            chosen = seen.tasks(pieces, self.columns, options, self.narrow, default_tasks_max())
            return [TaskPartition(task) for task in chosen]
        packed = pack(
            pieces,
            task_bytes=options.partition_bytes or partition_bytes,
            tasks_max=options.max_partitions or default_tasks_max(),
            tasks_min=options.min_partitions,
        )
        return [TaskPartition(Task(tuple(task), seen.groups, self.columns, self.options)) for task in packed]

    def store_tasks(
        self, view: StoreView, pieces: Sequence[Piece] | None, partition_bytes: int
    ) -> list[InputPartition]:
        """Return the tasks that read pieces from a store's log, or with None all of it."""
        wanted = None
        if pieces is not None:
            wanted = {(piece.topic, piece.queue_id): (piece.start, piece.end) for piece in pieces}
        return [
            TaskPartition(
                StoreTask(
                    view.root,
                    begin,
                    end,
                    view.end,
                    view.file_size,
                    view.broker,
                    wanted,
                    self.columns,
                    self.options,
                    self.narrow,
                )
            )
            for begin, end in splits(
                view, pieces, self.options.partition_bytes or partition_bytes, self.narrow
            )
        ]

    def look(self) -> Stand:
        """Return where the queues stand now."""
        if self.options.archive:
            return ArchiveView.of(self.options)
        return StoreView.of(self.options) if self.options.store else Brokers(self.options).look()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task; runs in a worker."""
        if not isinstance(partition, TaskPartition):  # what Spark makes of a batch without tasks
            return iter(())
        task = partition.task
        if isinstance(task, ArchiveTask):
            return gathered(read_archive_task(task))
        return gathered(read_store_task(task)) if isinstance(task, StoreTask) else read_task(task)


def default_tasks_max() -> int:
    """Return how many tasks a batch should have at most: twice what runs at a time."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return TASKS_PER_CORE * context.defaultParallelism if context is not None else 0


class BatchReader(Reader, DataSourceReader):
    """Reads what is there when the query begins."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        seen = self.look()
        whole_log = isinstance(seen, StoreView) and self.options.subscription is None
        if whole_log or isinstance(seen, ArchiveView):  # times choose rows, not places in queues
            low, high = self.options.starting_ms, self.options.ending_ms
            stored_ms = ALL[0] if low is None else low, ALL[1] if high is None else high
            self.narrow = replace(self.narrow, stored_ms=within(self.narrow.stored_ms, stored_ms))
        if isinstance(seen, StoreView) and whole_log:
            return self.store_tasks(seen, None, BATCH_PARTITION_BYTES)
        return self.tasks(self.first(seen), self.last(seen), seen, BATCH_PARTITION_BYTES)


class FilteringReader(BatchReader):
    """Takes Spark's filters.

    A class of its own: with the session's setting off, Spark refuses any reader that could.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep what can be told of the queues or records; return what Spark has still to apply."""
        pushed, left = push(filters, from_log=not self.options.servers)
        self.narrow = replace(
            pushed, physical_offsets=within(pushed.physical_offsets, self.narrow.physical_offsets)
        )
        if pushed.tags is not None:
            wanted = self.options.wanted_tags
            tags = pushed.tags if wanted is None else pushed.tags & wanted
            self.options = replace(self.options, tags=" || ".join(sorted(tags)))
            if not tags:
                self.narrow = replace(self.narrow, topics=frozenset())
        return left


class StreamReader(Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows queues. The copy on the driver remembers; those in tasks only read.

    Attributes:
        initial: where a new query starts, once it was asked.
        ceiling: where an AvailableNow query ends.
        waiting_since: monotonic time at which there was something too little for a batch.
        newest: where the queues ended when last looked at.
    """

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(schema, options)
        self.initial: dict[str, Any] | None = None
        self.ceiling: Positions | None = None
        self.waiting_since: float | None = None
        self.newest: Positions | None = None
        self.reporter: Reporter | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        if self.initial is None:
            seen = self.look()
            self.initial = to_checkpoint(self.first(seen))
        return self.initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        if self.options.max_offsets:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.max_bytes:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends; `start` when there is nothing for one."""
        before = from_checkpoint(start)
        seen = self.look()
        begin = self.untruncated(before, seen)
        self.newest = admit(begin, seen.extents)
        rows = float(limit.max_rows) if isinstance(limit, ReadMaxRows) else math.inf
        size = float(limit.max_bytes) if isinstance(limit, ReadMaxBytes) else math.inf
        end = admit(begin, seen.extents, rows=rows, size=size, ceiling=self.ceiling)
        if not self.worthwhile(begin, self.newest):
            return start
        return to_checkpoint(end)

    def worthwhile(self, start: Mapping[Any, int], newest: Mapping[Any, int]) -> bool:
        """Tell whether there is enough for a batch, or has been something for long enough."""
        options = self.options
        if not options.min_offsets or self.ceiling is not None:
            return True
        backlog = sum(max(offset - start.get(key, offset), 0) for key, offset in newest.items())
        now = time.monotonic()
        if not backlog:
            self.waiting_since = None
            return True
        self.waiting_since = now if self.waiting_since is None else self.waiting_since
        if (
            backlog >= options.min_offsets
            or (now - self.waiting_since) * 1000 >= options.max_trigger_delay_ms
        ):
            self.waiting_since = None
            return True
        return False

    def untruncated(self, before: Positions, seen: Stand) -> Positions:
        """Return the position, with queues that were cut dealt with as the options say.

        Raises:
            Truncated: a queue ends before what was read of it, and that is to fail.
        """
        begin = dict(before)
        for key, offset in before.items():
            extent = seen.extents.get(key)
            if extent is None or offset <= extent.end:
                continue
            # A slave that lags, or a master that has not heard of its slaves yet, shows less than before:
            # only the end of the master's queue tells.
            end = extent.end if isinstance(seen, StoreView) else Brokers(self.options).master_end(key)
            if end is None or end >= offset:
                continue
            topic, broker, queue_id = key
            what = (
                f"{topic}, queue {queue_id} of {broker} ends at {end}, and this query has read up to"
                f" {offset}: its log was cut, after a failover perhaps"
            )
            if self.options.on_truncation == "fail":
                raise Truncated(f"{what}; onTruncation=reset goes on from its end as it is now")
            log.warning("%s; going on from its end", what)
            begin[key] = end
        return begin

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the query ends."""
        self.ceiling = {key: extent.end for key, extent in self.look().extents.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the queues end, whatever a limit made of it."""
        if self.newest is None:
            return None
        return carrying(to_checkpoint(self.newest), self.options.group, self.options.servers)

    def commit(self, end: dict[str, Any]) -> None:
        """Report the progress of a group where no listener does; see `progress.py`."""
        if self.options.group:
            if self.reporter is None:
                self.reporter = Reporter(self.options.group, Brokers(self.options))
            self.reporter.report(from_checkpoint(end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        first, last = from_checkpoint(start), from_checkpoint(end)
        if first == last:
            return []
        return self.tasks(first, last, self.look(), STREAM_PARTITION_BYTES)
