"""Reads an archive: the same rows as the brokers gave, from the files that its manifests name.

    manifests ──► where each queue's offsets begin and end ──► ranges of queues, as with brokers
    ranges ──► the files that hold some of them, large ones by row groups ──► tasks of about the same size

Folders are not listed: a file that no manifest names does not count, and one that a manifest names and that
is missing or can't be read is data loss. Gaps between the ranges of a queue are passed over in silence here;
`archive --check` reports them. Only the columns that are asked for, and what they are made of, are read.

Bodies are archived as they were stored, so they are decompressed and their CRCs are checked here, by the same
rules as where records are decoded (`whimbrel.store.columns.Decoder`).
"""

import itertools
import logging
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from whimbrel.errors import CorruptRecord
from whimbrel.model.limits import INFLATED_BYTES_MAX
from whimbrel.spark.archiving.folder import ArchiveError, Folder
from whimbrel.spark.archiving.manifests import ManifestEntry
from whimbrel.spark.archiving.properties import filled
from whimbrel.spark.backend import ON_CORRUPT_HINT, Backend, ReadRequest
from whimbrel.spark.offsets import Key, Positions
from whimbrel.spark.options import SourceOptions
from whimbrel.spark.planning import SLACK, DataLoss, Extent, NotThere, OffsetRange, fill_tasks, task_count
from whimbrel.spark.push_down import ALL, PushDown, Range
from whimbrel.store.codec import COMPRESSED, CRC_MASK
from whimbrel.store.columns import BATCH_BYTES_MAX, BATCH_ROWS_MAX, schema_of
from whimbrel.store.columns.decoder import INFLATED
from whimbrel.store.columns.kinds import kinds
from whimbrel.store.columns.records import Mask
from whimbrel.store.columns.schema import HEADER, LOG_APPEND_TIME
from whimbrel.store.compression import inflate

__all__ = ["ArchiveBackend", "ArchiveTask", "FileSplit"]

logger = logging.getLogger(__name__)

TASK_BYTES = 128 * 1024 * 1024  # of Parquet files: several times that much of a log

# What a column is made of, where that is not the column of the same name.
MADE_OF: dict[str, tuple[str, ...]] = {
    "topic": (),
    "crcOk": ("body", "bodyCrc"),
    "bodyOk": ("body", "bodyCrc", "sysFlag", "physicalOffset"),
    "propertiesText": ("propertiesText", "properties"),
    "key": ("keys",),
    "value": ("body",),
    "partition": ("queueId",),
    "offset": ("queueOffset",),
    "timestamp": ("storeTimestamp",),
    "timestampType": (),
    "headers": ("properties",),
    "type": ("properties",),
}


@dataclass(frozen=True, slots=True)
class FileSplit:
    """Some row groups of a file, and the offsets by queue that are read of them; None for all rows."""

    path: str
    topic: str
    size: int
    groups: tuple[int, int]
    wanted: Mapping[int, tuple[int, int]] | None


@dataclass(frozen=True, slots=True)
class ArchiveBackend(Backend):
    """An archive as its manifests describe it.

    Attributes:
        extents: of the queues that are read.
        entries: the files that hold some of them.
    """

    has_physical_offsets = True
    shows_empty_queues = False

    root: Path
    extents: dict[Key, Extent]
    entries: tuple[ManifestEntry, ...]

    @classmethod
    def describe(
        cls,
        options: SourceOptions,
        *,
        first_contact: bool = False,
        whole: bool = True,
        known: Collection[str] = (),
    ) -> "ArchiveBackend":
        """Read the manifests.

        Raises:
            ArchiveError: there is no archive, or it is being compacted in place.
            NotThere: a topic that is named is not in it.
            ValueError: a manifest can't be read.
        """
        folder = Folder(Path(options.archive))
        folder.check()
        if folder.switching():
            raise ArchiveError(
                f"the archive {folder.root} is being compacted in place, or that was cut short: wait for it,"
                f" or run `whimbrel spark compact --in-place {folder.root}` again"
            )
        entries = folder.entries()
        if options.subscription is not None:
            seen = {entry.topic for entry in entries}
            missing = [name for name in options.subscription.named if name not in seen]
            if missing:
                raise NotThere(
                    f"the archive has no topic {', '.join(missing)}; it has"
                    f" {', '.join(sorted(seen)) or 'none'}"
                )
        chosen = tuple(entry for entry in entries if options.reads_topic(entry.topic))
        return cls(folder.root, extents_of(chosen, options), chosen)

    @property
    def selects_by_time(self) -> bool:
        """Whether tasks select records by store time: by that of files first, then by that of rows."""
        return True

    def offsets_by_time(self, keys: Sequence[Key], at_ms: int) -> Positions:
        """Not called, since tasks select by time."""
        raise NotImplementedError("an archive has no index of its queues by time")

    def confirmed_end(self, key: Key) -> int | None:
        """Return where a queue ends in the archive, which grows only."""
        return self.extents[key].end

    def plan(self, ranges: Sequence[OffsetRange], request: ReadRequest) -> "list[ArchiveTask]":
        """Return the tasks that read some ranges, and of these the files of the wanted times."""
        options, push_down = request.options, request.push_down
        first_ms, end_ms = push_down.stored_ms
        entries = [
            each for each in self.entries if each.last_stored >= first_ms and each.first_stored < end_ms
        ]
        wanted = {each.key: (each.start, each.end) for each in ranges}
        whole = [split for entry in entries if (split := split_of(entry, wanted)) is not None]
        count = task_count(
            sum(split.size for split in whole),
            task_bytes=options.partition_bytes or TASK_BYTES,
            tasks_max=request.tasks_max,
            tasks_min=options.min_partitions,
        )
        largest = max(sum(split.size for split in whole) / count, 1.0)
        splits = [split for split in whole for split in cut(split, math.ceil(split.size / largest - SLACK))]
        return [
            ArchiveTask(
                self.root,
                tuple(sorted(task, key=lambda split: (split.path, split.groups))),
                request.columns,
                options,
                push_down,
            )
            for task in fill_tasks(splits, count, lambda split: split.size)
        ]


def extents_of(entries: Sequence[ManifestEntry], options: SourceOptions) -> dict[Key, Extent]:
    """Return where the queues that are read begin and end in some files."""
    extents: dict[Key, Extent] = {}
    for entry in entries:
        for split in entry.queues:
            if not options.reads_queue(entry.topic, split.queue_id):
                continue
            key = (entry.topic, entry.broker, split.queue_id)
            old = extents.get(key, Extent(split.first, split.end))
            extents[key] = Extent(
                min(old.first, split.first), max(old.end, split.end), entry.size / max(entry.rows, 1)
            )
    return extents


def split_of(entry: ManifestEntry, ranges: Mapping[Key, tuple[int, int]]) -> FileSplit | None:
    """Return what of a file lies within ranges of queues; None for nothing."""
    wanted = {}
    whole = True
    for split in entry.queues:
        first, end = ranges.get((entry.topic, entry.broker, split.queue_id), (0, 0))
        first, end = max(first, split.first), min(end, split.end)
        whole = whole and (first, end) == (split.first, split.end)
        if first < end:
            wanted[split.queue_id] = first, end
    if not wanted:
        return None
    return FileSplit(entry.path, entry.topic, entry.size, (0, entry.groups), None if whole else wanted)


def cut(split: FileSplit, count: int) -> list[FileSplit]:
    """Return a split in `count` parts, as far as it has row groups."""
    begin, end = split.groups
    count = min(max(count, 1), end - begin)
    borders = [begin + (end - begin) * number // count for number in range(count + 1)]
    return [
        replace(split, groups=(first, last), size=split.size * (last - first) // (end - begin))
        for first, last in itertools.pairwise(borders)
    ]


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """What one task reads."""

    root: Path
    splits: tuple[FileSplit, ...]
    columns: tuple[str, ...]
    options: SourceOptions
    push_down: PushDown

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches.

        Raises:
            DataLoss: a file is gone or damaged, and the options say that this fails.
            CorruptRecord: a body is damaged, and the options say that this fails.
        """
        for split in self.splits:
            try:
                yield from FileSplitReader(self, split).batches()
            except (OSError, pa.ArrowException) as error:
                gone = isinstance(error, FileNotFoundError)
                what = f"{self.root / split.path} {'is gone' if gone else f'is damaged: {error}'}"
                if self.options.fail_on_data_loss:
                    raise DataLoss(
                        f"{what}; `archive --check --deep` tells what else is; failOnDataLoss=false passes"
                        " over it"
                    ) from error
                logger.warning("%s; passing over it", what)


class FileSplitReader:
    """Reads the rows of a split of one file."""

    def __init__(self, task: ArchiveTask, split: FileSplit) -> None:
        self.split, self.columns, self.options = split, task.columns, task.options
        self.rows = {
            name: limits
            for name, limits in (
                ("physicalOffset", task.push_down.physical_offsets),
                ("storeTimestamp", task.push_down.stored_ms),
            )
            if limits != ALL
        }
        self.path = task.root / split.path
        self.schema = schema_of(task.columns, raw_properties=task.options.properties == "raw")
        self.decompresses = task.options.decompress and not INFLATED.isdisjoint(task.columns)

    def needed(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the file that are read; `names` are those that it has."""
        wanted: list[str] = []
        for name in self.columns:
            wanted += MADE_OF.get(name, (name,))
        if self.schema.names.count("properties") and self.options.properties == "raw":
            wanted.append("propertiesText")
        if self.split.wanted is not None:
            wanted += ["queueId", "queueOffset"]
        if self.options.wanted_tags is not None:
            wanted.append("tags")
        wanted += self.rows
        if self.decompresses or self.options.verify_crc:
            wanted += ["body", "sysFlag", "physicalOffset", "bodyCrc"]
        found = [name for name in names if name in set(wanted)]
        return found or ["queueId"]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        with pq.ParquetFile(self.path) as file:
            columns = self.needed(file.schema_arrow.names)
            for number in range(*self.split.groups):
                group = file.metadata.row_group(number)
                if not self.may_hold(group):
                    continue
                each = max(group.total_byte_size / max(group.num_rows, 1), 1.0)
                rows = max(min(BATCH_ROWS_MAX, int(BATCH_BYTES_MAX / each)), 1)
                for batch in file.iter_batches(rows, [number], columns):
                    yield from self.decode(self.select(batch))

    def may_hold(self, group: Any) -> bool:
        """Return whether a row group may have rows of a wanted queue."""
        if self.split.wanted is None:
            return True
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema == "queueId" and column.is_stats_set and column.statistics.has_min_max:
                low, high = column.statistics.min, column.statistics.max
                return any(low <= queue_id <= high for queue_id in self.split.wanted)
        return True

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that the split and the filters select."""
        mask = np.ones(batch.num_rows, np.bool_)
        if self.split.wanted is not None:
            queue_ids, offsets = (np.asarray(batch.column(name)) for name in ("queueId", "queueOffset"))
            mask[:] = False
            for queue_id, (first, end) in self.split.wanted.items():
                mask |= (queue_ids == queue_id) & (offsets >= first) & (offsets < end)
        for name, limits in self.rows.items():
            mask &= is_within(batch.column(name), limits)
        if self.options.wanted_tags is not None:
            tags = pa.array(sorted(self.options.wanted_tags), pa.string())
            mask &= np.asarray(pc.is_in(batch.column("tags"), value_set=tags))
        return batch if mask.all() else batch.filter(pa.array(mask))

    def decode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns of the query; batches that decompressed bodies make large are cut."""
        while batch.num_rows:
            taken, bodies, good, opaque = self.decompress(batch)
            rows, batch = batch.slice(0, taken), batch.slice(taken)
            matches: Any = None
            if self.options.verify_crc or not {"crcOk", "bodyOk"}.isdisjoint(self.columns):
                matches = crc_matches(rows)
            if self.options.verify_crc and not matches.all():
                for row in np.flatnonzero(~matches).tolist():
                    if row not in opaque:
                        self.report_corrupt(rows, row, "its body does not match its CRC")
                if self.options.on_corrupt == "skip":
                    good &= matches
            whole = None if matches is None else matches & ~np.isin(np.arange(taken), list(opaque))
            marks = {"crcOk": matches, "bodyOk": whole}
            made = [self.column(name, rows, bodies, marks) for name in self.columns]
            result = pa.RecordBatch.from_arrays(made, schema=self.schema)
            result = result if good.all() else result.filter(pa.array(good))
            if result.num_rows:
                yield result

    def decompress(self, batch: pa.RecordBatch) -> tuple[int, pa.Array | None, Any, set[int]]:
        """Decompress bodies, until there are enough bytes for a batch.

        Returns:
            The number of rows, their bodies, which rows are kept, and which bodies can't be decompressed.
        """
        good, opaque = np.ones(batch.num_rows, np.bool_), set[int]()
        if not self.decompresses:
            return batch.num_rows, None, good, opaque
        stored = batch.column("body")
        flags = np.asarray(batch.column("sysFlag"))
        packed = ((flags & COMPRESSED) != 0) & (np.asarray(pc.binary_length(stored)) > 0)
        rows = np.flatnonzero(packed).tolist()
        if not rows:
            return batch.num_rows, stored, good, opaque
        plain: dict[int, bytes] = {}
        size, taken = 0, batch.num_rows
        for row in rows:
            try:
                body = inflate(memoryview(stored[row].as_buffer()), int(flags[row]), INFLATED_BYTES_MAX)
            except CorruptRecord as error:
                self.report_corrupt(batch, row, str(error))
                good[row] = self.options.on_corrupt != "skip"
                opaque.add(row)
                continue
            size += len(body)
            if size > BATCH_BYTES_MAX and row:
                taken = row
                break
            plain[row] = body
        places = np.arange(taken)
        numbers = sorted(plain)
        places[numbers] = taken + np.arange(len(numbers))
        bodies = pa.array([plain[row] for row in numbers], pa.binary())
        whole = pa.concat_arrays([stored.slice(0, taken), bodies]).take(pa.array(places))
        return taken, whole, good[:taken], opaque

    def report_corrupt(self, batch: pa.RecordBatch, row: int, what: str) -> None:
        """Raise CorruptRecord or log a warning about a corrupt body, as the options say."""
        place = batch.column("physicalOffset")[row].as_py()
        if self.options.on_corrupt == "fail":
            raise CorruptRecord(f"{self.path}: the record at {place}: {what}; {ON_CORRUPT_HINT}")
        logger.warning("%s: the record at %d: %s", self.path, place, what)

    def column(
        self, name: str, rows: pa.RecordBatch, bodies: pa.Array | None, marks: Mapping[str, Any]
    ) -> pa.Array:
        """Return a column of the query."""
        count = rows.num_rows
        kind = self.schema.field(name).type
        if name in ("body", "value"):
            return rows.column("body") if bodies is None else bodies
        if name == "topic":
            return pa.repeat(pa.scalar(self.split.topic, pa.string()), count)
        if name == "timestampType":
            return pa.array(np.full(count, LOG_APPEND_TIME, np.int32))
        if name in marks:
            return pa.array(marks[name])
        if name == "propertiesText" or (name == "properties" and self.options.properties == "raw"):
            return filled(rows.column("propertiesText"), rows.column("properties"))
        if name == "type":
            return kinds(pa.array([self.split.topic] * count, pa.string()), having(rows.column("properties")))
        if name == "headers":
            return headers(rows.column("properties"), kind)
        return rows.column(MADE_OF.get(name, (name,))[0]).cast(kind)


def is_within(column: pa.Array, limits: Range) -> Any:
    """Return for each row whether its number, or its time in milliseconds, lies within a range."""
    in_ms = pa.types.is_timestamp(column.type)
    numbers = np.asarray(
        column.cast(pa.timestamp("ms", "UTC"), safe=False).view(pa.int64()) if in_ms else column
    )
    return (numbers >= limits[0]) & (numbers < limits[1])


def crc_matches(rows: pa.RecordBatch) -> Any:
    """Return for each row whether its stored body matches its CRC."""
    found = [zlib.crc32(body.as_buffer()) for body in rows.column("body")]
    stored = np.asarray(rows.column("bodyCrc")).astype(np.int64) & CRC_MASK
    return np.array(found, np.int64) & CRC_MASK == stored


def having(properties: pa.Array) -> Callable[[str], Mask]:
    """Return what tells for each row whether it has a property."""
    offsets = np.asarray(properties.offsets)  # of a slice: within all keys
    rows = np.repeat(np.arange(len(properties)), np.diff(offsets))
    names = properties.keys.slice(offsets[0], offsets[-1] - offsets[0])

    def has(name: str) -> Mask:
        return np.isin(np.arange(len(properties)), rows[np.asarray(pc.equal(names, name))])

    return has


def headers(properties: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column of headers; null in rows without any."""
    entries = pa.StructArray.from_arrays(
        [properties.keys, properties.items.cast(pa.binary())], fields=list(HEADER)
    )
    offsets = np.asarray(properties.offsets)
    none = offsets[1:] == offsets[:-1]
    mask = pa.array(none) if none.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=kind, mask=mask)
