"""`spark.read.format("whimbrel")` and `spark.readStream.format("whimbrel")`: the classes that Spark calls.

Spark pickles readers and copies them: one copy plans the whole query on the driver, others read in tasks. So
nothing is shared between them, and a reader holds options only, apart from what the driver's copy remembers:

    a stream's life    initialOffset ─► latestOffset ─► partitions ─► read (in tasks) ─► commit, a batch late

`initialOffset` may be called again, and returns the same then. `latestOffset` never goes back; a broker that
does not answer leaves its queues where they were, and one that was away when the query began is awaited
(`offsets.py`). What ends (a batch, an AvailableNow query) reads everything or fails. Only the columns of the
schema are decoded, which the user may have named by `.schema(...)`. What is read, and from where, is behind
`Backend`.
"""

import logging
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
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

from whimbrel.spark.backend import Backend, ReadRequest, ReadTask, merge_small_batches
from whimbrel.spark.before import BACKENDS
from whimbrel.spark.brokers import Brokers, away_text
from whimbrel.spark.named_queues import beyond_end, check_assigned, check_known, check_order, unassigned
from whimbrel.spark.offsets import AWAY, EARLIEST, Key, Positions, awaited_in, from_checkpoint, to_checkpoint
from whimbrel.spark.options import OptionError, SourceOptions, Subscription, parse
from whimbrel.spark.planning import (
    Extent,
    Truncated,
    ending_positions,
    ending_positions_by_time,
    gone_between,
    micro_batch_end,
    ranges_between,
    starting_positions,
    starting_positions_by_time,
)
from whimbrel.spark.progress import ProgressReporter, with_group
from whimbrel.spark.push_down import ALL, UNRESTRICTED, Range, intersect, prune, push
from whimbrel.spark.sink import batch_writer, stream_writer
from whimbrel.spark.workers import in_one_sentence, leave_out_cut_off_tasks, without_traceback
from whimbrel.store.columns import ALL_COLUMNS, COLUMNS, KAFKA_COLUMNS, schema_of

__all__ = ["WhimbrelSource"]

logger = logging.getLogger(__name__)

MIB = 1 << 20
BATCH_PARTITION_BYTES = 1 << 30  # a task of seconds
STREAM_PARTITION_BYTES = 128 * MIB
TASKS_PER_CORE = 2
LEFT_OUT = "allowPartial: what is read is not all there is"
WAITING = "queues of brokers that are away wait for them"


class TaskPartition(InputPartition):
    """The task of one partition, on its way to an executor."""

    def __init__(self, task: ReadTask) -> None:
        self.task = task
        super().__init__(None)


class WhimbrelSource(DataSource):
    """Topics as tables: of a running cluster, a store directory or an archive."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "whimbrel"

    @without_traceback
    def schema(self) -> StructType:
        """Return all columns, unless the user names others by `.schema(...)`."""
        return from_arrow_schema(arrow_schema(default_columns(parse(self.options)), parse(self.options)))

    @without_traceback
    def reader(self, schema: StructType) -> "BatchReader":
        """Return the reader of a batch."""
        options = parse(self.options, streaming=False)
        return (FilteringReader if options.pushdown else BatchReader)(schema, options)

    def streamReader(self, schema: StructType) -> "StreamReader":
        """Return the reader of a stream."""
        try:
            return StreamReader(schema, parse(self.options, streaming=True))
        except OptionError as error:
            return RefusingReader(error)

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch."""
        return batch_writer(self.options, schema, overwrite=overwrite)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""
        return stream_writer(self.options, schema, overwrite=overwrite)


def default_columns(options: SourceOptions) -> tuple[str, ...]:
    """Return the columns of a table without a schema of the user's."""
    if options.kafka_columns:
        return (*KAFKA_COLUMNS, "bodyOk") if options.on_corrupt == "flag" else KAFKA_COLUMNS
    names = COLUMNS if options.properties != "none" else tuple(n for n in COLUMNS if n != "properties")
    return (*names, "crcOk", "bodyOk") if options.on_corrupt == "flag" else names


def arrow_schema(columns: Sequence[str], options: SourceOptions) -> pa.Schema:
    """Return the Arrow schema of some columns."""
    return schema_of(columns, raw_properties=options.properties == "raw")


def checked_columns(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Return the columns of a schema, in its order.

    Raises:
        OptionError: a column is unknown, or of another type.
    """
    columns = tuple(schema.names)
    unknown = [name for name in columns if name not in ALL_COLUMNS]
    if unknown:
        raise OptionError(f"schema: no column {', '.join(unknown)}; there are {', '.join(ALL_COLUMNS)}")
    if options.on_corrupt == "flag" and not {"body", "value"}.isdisjoint(columns) and "bodyOk" not in columns:
        raise OptionError(
            "option onCorrupt=flag: the column that tells which bodies are not good is missing; name it in"
            " the schema, `bodyOk boolean`"
        )
    ours = from_arrow_schema(arrow_schema(columns, options))
    for mine, theirs in zip(ours, schema, strict=True):
        if mine.dataType != theirs.dataType:
            raise OptionError(
                f"schema: column {mine.name} is of type {mine.dataType.simpleString()},"
                f" not {theirs.dataType.simpleString()}"
            )
    return columns


class TopicReader:
    """What readers of batches and of streams share.

    Attributes:
        whole: it ends, so that nothing may be left out.
        away: who was away when the queues were last described, and why; where it ends, options allow that.
    """

    whole = True
    away: Mapping[str, str] = MappingProxyType({})

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.options = options
        self.columns = checked_columns(schema, options)
        self.push_down = replace(UNRESTRICTED, physical_offsets=options.physical_offsets)

    def begin(self) -> Backend:
        """Return the same for a query that begins, once the queues and positions that it names are checked.

        Raises:
            OptionError: one is not there. Under `failOnDataLoss=false`, unknown queues are ignored.
        """
        options = self.options
        backend = BACKENDS[options.place].describe(options, first_contact=True, whole=self.whole)
        self.note_away(backend.away)
        chosen = options.subscription
        if chosen is not None and backend.shows_empty_queues and not backend.away:
            missing = unassigned(chosen, backend.extents)
            if missing:
                whole = replace(options, subscription=Subscription(topics=chosen.named))
                check_assigned(missing, BACKENDS[options.place].describe(whole).extents)
        check_order(options.starting, options.ending)
        if options.starting_ms is None:
            self.check_positions("startingOffsets", options.starting, backend)
        if options.ending_ms is None:
            self.check_positions("endingOffsets", options.ending, backend)
        return backend

    def note_away(self, away: Mapping[str, str]) -> None:
        """Tell at the driver who is away, when that is somebody else than before."""
        if away.keys() - self.away.keys():
            logger.warning("%s: %s", LEFT_OUT if self.whole else WAITING, away_text(away))
        elif self.away and not away:
            logger.warning("no broker is away any more")
        self.away = away

    def check_positions(self, name: str, given: int | Positions, backend: Backend) -> None:
        """Raise OptionError for a position in a queue that is not there, or behind a queue's end."""
        if isinstance(given, int):
            return
        extents = backend.extents
        named = given
        if not backend.shows_empty_queues:  # a queue that is not seen may be an empty one
            named = {key: offset for key, offset in given.items() if key in extents or offset > 0}
        if self.options.fail_on_data_loss:
            check_known(name, named, extents, backend.away)
        for key, offset in named.items():
            extent = extents.get(key)
            if extent is None or offset <= extent.end:
                continue
            end = backend.confirmed_end(key)
            if end is not None and offset > end:
                raise beyond_end(name, key, offset, replace(extent, end=end))

    def first(self, backend: Backend, among: Mapping[Key, Extent] | None = None) -> Positions:
        """Return where a new query starts in these queues; None: in all.

        Raises:
            NotThere: a queue has no message as late as the time to start at, and the options say that this
                fails.
        """
        options, extents = self.options, backend.extents if among is None else among
        if options.starting_ms is None or backend.selects_by_time:
            return starting_positions(options.starting, extents)
        found = backend.offsets_by_time(list(extents), options.starting_ms)
        return starting_positions_by_time(found, extents, latest_without_match=options.latest_without_match)

    def last(self, backend: Backend) -> Positions:
        """Return where a batch ends."""
        options, extents = self.options, backend.extents
        if options.ending_ms is None or backend.selects_by_time:
            return ending_positions(options.ending, extents)
        return ending_positions_by_time(backend.offsets_by_time(list(extents), options.ending_ms), extents)

    def tasks(
        self, start: Positions, end: Positions, backend: Backend, partition_bytes: int
    ) -> list[InputPartition]:
        """Return the tasks that read from one position to another."""
        options = self.options
        ranges = ranges_between(start, end, backend.extents, fail_on_data_loss=options.fail_on_data_loss)
        for (topic, broker, queue_id), at, first in gone_between(start, end, backend.extents):
            what = f"{topic}, queue {queue_id} of {broker}"
            logger.warning("failOnDataLoss=false: %s: offsets %d to %d are gone", what, at, first)
        if self.push_down != UNRESTRICTED:
            ranges = prune(
                ranges, self.push_down, partial(offsets_between, backend, stored_ms=self.push_down.stored_ms)
            )
        request = ReadRequest(
            columns=self.columns,
            options=options,
            push_down=self.push_down,
            task_bytes=options.partition_bytes or partition_bytes,
            tasks_max=options.max_partitions or default_tasks_max(),
        )
        return [TaskPartition(task) for task in backend.plan(ranges, request)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task; runs in a worker."""
        if not isinstance(partition, TaskPartition):  # what Spark makes of a batch without tasks
            return iter(())
        leave_out_cut_off_tasks()
        return read_task(partition.task)


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task."""
    with in_one_sentence():
        yield from merge_small_batches(task.read())


def offsets_between(backend: Backend, keys: Sequence[Key], stored_ms: Range) -> dict[Key, Range]:
    """Return the offsets that were stored within a range of times; none where tasks select by time."""
    if backend.selects_by_time:
        return {}
    low, high = stored_ms
    begins = backend.offsets_by_time(keys, low) if low > ALL[0] else {}
    ends = backend.offsets_by_time(keys, high) if high < ALL[1] else {}
    return {key: (begins.get(key, ALL[0]), ends.get(key, ALL[1])) for key in keys}


def default_tasks_max() -> int:
    """Return the most tasks that a batch should have: twice as many as run at a time."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return TASKS_PER_CORE * context.defaultParallelism if context is not None else 0


class BatchReader(TopicReader, DataSourceReader):
    """Reads the messages that are there when the query begins."""

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        backend = self.begin()
        if backend.selects_by_time:
            low, high = self.options.starting_ms, self.options.ending_ms
            stored_ms = ALL[0] if low is None else low, ALL[1] if high is None else high
            self.push_down = replace(self.push_down, stored_ms=intersect(self.push_down.stored_ms, stored_ms))
        return self.tasks(self.first(backend), self.last(backend), backend, BATCH_PARTITION_BYTES)


class FilteringReader(BatchReader):
    """Lets Spark push filters down.

    A class of its own: Spark refuses any reader that has `pushFilters` while the session's setting is off.
    """

    @without_traceback
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep what can be pushed down; return the filters that Spark has still to apply."""
        pushed, left = push(filters, has_physical_offsets=BACKENDS[self.options.place].has_physical_offsets)
        self.push_down = replace(
            pushed, physical_offsets=intersect(pushed.physical_offsets, self.push_down.physical_offsets)
        )
        if pushed.tags is not None:
            wanted = self.options.wanted_tags
            tags = pushed.tags if wanted is None else pushed.tags & wanted
            self.options = replace(self.options, tags=" || ".join(sorted(tags)))
            if not tags:
                self.push_down = replace(self.push_down, topics=frozenset())
        return left


class StreamReader(TopicReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows queues. The copy on the driver keeps state; those in tasks only read.

    Attributes:
        initial: where a new query starts, once Spark has asked.
        ceiling: where an AvailableNow query ends.
        waiting_since: monotonic time since which there are messages, but too few for a batch.
        newest: where the queues ended when they were last described.
    """

    whole = False

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(schema, options)
        self.initial: dict[str, Any] | None = None
        self.ceiling: Positions | None = None
        self.waiting_since: float | None = None
        self.newest: Positions | None = None
        self.progress: ProgressReporter | None = None

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        if self.initial is None:
            backend = self.begin()
            seen = backend.extents
            if self.options.starting != EARLIEST or self.options.starting_ms is not None:
                # Slaves whose master is away may not know where a queue ends.
                seen = {key: extent for key, extent in seen.items() if key[1] not in backend.away}
            self.initial = to_checkpoint(self.first(backend, seen), backend.away)
        return self.initial

    def describe(self, known: Collection[Key], *, whole: bool = False) -> Backend:
        """Return how the queues stand now; `known` are those that the query knows."""
        brokers = {broker for _, broker, _ in known}
        backend = BACKENDS[self.options.place].describe(self.options, whole=whole, known=brokers)
        self.note_away(backend.away)
        return backend

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        if self.options.max_offsets:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.max_bytes:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    @without_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends; `start` when there are no messages for one."""
        before, awaited = from_checkpoint(start), awaited_in(start)
        waiting = [("", broker, 0) for broker in awaited]
        # With `allowPartial` it was tried when the query's end was fixed.
        whole = self.ceiling is not None and not self.options.allow_partial
        backend = self.describe([*before, *waiting], whole=whole)
        begin = self.untruncated(before, backend)
        awaited &= backend.away.keys()
        come = self.first_of_awaited(awaited_in(start) - awaited, begin, backend)
        begin |= come
        extents = {
            key: extent
            for key, extent in backend.extents.items()
            if key not in come and (key in begin or key[1] not in awaited)
        }
        self.newest = micro_batch_end(begin, extents)
        rows = float(limit.max_rows) if isinstance(limit, ReadMaxRows) else math.inf
        size = float(limit.max_bytes) if isinstance(limit, ReadMaxBytes) else math.inf
        end = micro_batch_end(begin, extents, rows=rows, size=size, ceiling=self.ceiling)
        if not come and not self.worthwhile(begin, self.newest):
            return start
        return to_checkpoint(end, awaited)

    def first_of_awaited(self, brokers: Collection[str], begin: Positions, backend: Backend) -> Positions:
        """Return where the query starts in the queues of brokers that it has awaited, and that have come."""
        come = {
            key: extent for key, extent in backend.extents.items() if key[1] in brokers and key not in begin
        }
        return self.first(backend, come) if come else {}

    def worthwhile(self, start: Mapping[Any, int], newest: Mapping[Any, int]) -> bool:
        """Return whether there are enough messages for a batch, or there have been some for long enough."""
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

    def untruncated(self, before: Positions, backend: Backend) -> Positions:
        """Return the position, moved back in queues that were truncated.

        Raises:
            Truncated: a queue ends before what was read of it, and the options say that this fails.
        """
        begin = dict(before)
        for key, offset in before.items():
            extent = backend.extents.get(key)
            if extent is None or offset <= extent.end:
                continue
            end = backend.confirmed_end(key)
            if end is None or end >= offset:
                continue
            topic, broker, queue_id = key
            what = (
                f"{topic}, queue {queue_id} of {broker} ends at {end}, and this query has read up to"
                f" {offset}: its log was cut, after a failover perhaps"
            )
            if self.options.on_truncation == "fail":
                raise Truncated(f"{what}; onTruncation=reset goes on from its end as it is now")
            logger.warning("%s; going on from its end", what)
            begin[key] = end
        return begin

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the query ends."""
        self.whole = True
        self.ceiling = {key: extent.end for key, extent in self.describe((), whole=True).extents.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the queues end, regardless of the limit of a batch, and who is away."""
        if self.newest is None:
            return None
        newest = with_group(to_checkpoint(self.newest), self.options.group, self.options.servers)
        return newest | ({AWAY: dict(self.away)} if self.away else {})

    @without_traceback
    def commit(self, end: dict[str, Any]) -> None:
        """Report the progress of a group where no listener does; see `progress.py`."""
        if self.options.group:
            if self.progress is None:
                self.progress = ProgressReporter(self.options.group, Brokers(self.options))
            self.progress.report(from_checkpoint(end))

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        first, last, awaited = from_checkpoint(start), from_checkpoint(end), awaited_in(start)
        # Queues of a broker that was awaited start where they were first seen.
        first |= {key: at for key, at in last.items() if key[1] in awaited and key not in first}
        if first == last:
            return []
        return self.tasks(first, last, self.describe(last), STREAM_PARTITION_BYTES)


class RefusingReader(StreamReader):
    """Says why a stream can't be read when it is asked for anything.

    `streamReader` itself may not fail: PySpark's runner would then stop a reader that it does not have, which
    fails as well, and hides the reason.
    """

    def __init__(self, error: OptionError) -> None:
        self.error = error

    @without_traceback
    def refuse(self, *_: Any) -> Any:
        """Raise the error."""
        raise self.error

    initialOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = refuse
    latestOffset = refuse  # type: ignore[assignment]  # whatever it is given
