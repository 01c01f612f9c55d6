"""Reads an archive: the same rows as the brokers gave, from the files that its manifests name.

    manifests ──► where each queue's range begins and ends ──► pieces of queues, as with brokers
    pieces ──► the files that hold some of them, large ones by row groups ──► tasks of about the same size

Folders are not listed: a file that no manifest names is not there, and one that a manifest names and that is
missing or can't be read is data loss. A gap between the ranges of a queue is passed over in silence here;
`archive --check` tells of it. Only the columns that are asked for, and what they are made of, are read.

Bodies are archived as they were stored, so decompressing and comparing CRCs happen here, by the same rules as
where records are decoded (`whimbrel.store.columns.Decoder`).
"""

import heapq
import itertools
import logging
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from whimbrel.errors import CorruptRecord
from whimbrel.model.names import GROUP_TOPIC_PREFIXES, is_system_topic
from whimbrel.spark.archiving.folder import ArchiveError, Folder
from whimbrel.spark.archiving.manifests import ManifestEntry
from whimbrel.spark.archiving.properties import filled
from whimbrel.spark.offsets import Key
from whimbrel.spark.options import SourceOptions
from whimbrel.spark.planning import DataLoss, Extent, Piece
from whimbrel.spark.push_down import ALL, Narrow, Range
from whimbrel.store.columns import BATCH_BYTES_MAX, BATCH_ROWS_MAX, schema_of
from whimbrel.store.columns.bodies import COMPRESSED, inflate
from whimbrel.store.columns.schema import HEADER, LOG_APPEND_TIME

__all__ = ["ArchiveTask", "ArchiveView", "Part", "plan_tasks", "read_archive_task"]

log = logging.getLogger(__name__)

TASK_BYTES = 128 * 1024 * 1024  # of Parquet files: several times that much of a log

# What a column is made of, where that is not the column of the same name.
MADE_OF: dict[str, tuple[str, ...]] = {
    "topic": (),
    "crcOk": ("body", "bodyCrc"),
    "propertiesText": ("propertiesText", "properties"),
    "key": ("keys",),
    "value": ("body",),
    "partition": ("queueId",),
    "offset": ("queueOffset",),
    "timestamp": ("storeTimestamp",),
    "timestampType": (),
    "headers": ("properties",),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Some row groups of a file, and the ranges of queues that are wanted of it; None: all of it."""

    path: str
    topic: str
    size: int
    groups: tuple[int, int]
    wanted: Mapping[int, tuple[int, int]] | None


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """What one task reads."""

    root: Path
    parts: tuple[Part, ...]
    columns: tuple[str, ...]
    options: SourceOptions
    narrow: Narrow


@dataclass(frozen=True, slots=True)
class ArchiveView:
    """An archive as its manifests tell it.

    Attributes:
        extents: of the queues that are read.
        entries: the files that have some of them.
    """

    root: Path
    extents: dict[Key, Extent]
    entries: tuple[ManifestEntry, ...]

    @classmethod
    def of(cls, options: SourceOptions) -> "ArchiveView":
        """Look at an archive.

        Raises:
            ArchiveError: it is none, or half compacted.
            LookupError: a topic that is named is not in it.
            ValueError: a manifest can't be read.
        """
        folder = Folder(Path(options.archive))
        folder.check()
        if folder.switching():
            raise ArchiveError(
                f"the archive {folder.root} is being compacted in place, or that was cut short: wait for it,"
                f" or run `whimbrel spark compact --in-place {folder.root}` again"
            )
        return cls.made(folder.root, folder.entries(), options)

    @classmethod
    def made(cls, root: Path, entries: Sequence[ManifestEntry], options: SourceOptions) -> "ArchiveView":
        """Choose what is read."""
        subscription = options.subscription
        extents: dict[Key, Extent] = {}
        chosen = []
        for entry in entries:
            system = is_system_topic(entry.topic) or entry.topic.startswith(GROUP_TOPIC_PREFIXES)
            if subscription is not None and not subscription.wants_topic(
                entry.topic, system=system, include_system=options.include_system
            ):
                continue
            chosen.append(entry)
            for part in entry.queues:
                if subscription is not None and not subscription.wants_queue(entry.topic, part.queue_id):
                    continue
                key = (entry.topic, entry.broker, part.queue_id)
                old = extents.get(key, Extent(part.first, part.end))
                extents[key] = Extent(
                    min(old.first, part.first), max(old.end, part.end), entry.size / max(entry.rows, 1)
                )
        if subscription is not None:
            seen = {entry.topic for entry in entries}
            missing = [name for name in subscription.named if name not in seen]
            if missing:
                raise LookupError(
                    f"the archive has no topic {', '.join(missing)}; it has"
                    f" {', '.join(sorted(seen)) or 'none'}"
                )
        return cls(root, extents, tuple(chosen))

    def tasks(
        self,
        pieces: Sequence[Piece],
        columns: tuple[str, ...],
        options: SourceOptions,
        narrow: Narrow,
        tasks_max: int,
    ) -> list[ArchiveTask]:
        """Return the tasks that read pieces of queues, and of these what is stored when and where."""
        first_ms, end_ms = narrow.stored_ms
        found = plan_tasks(
            [one for one in self.entries if one.last_stored >= first_ms and one.first_stored < end_ms],
            pieces,
            task_bytes=options.partition_bytes or TASK_BYTES,
            tasks_max=options.max_partitions or tasks_max,
            tasks_min=options.min_partitions,
        )
        return [ArchiveTask(self.root, tuple(parts), columns, options, narrow) for parts in found]


def plan_tasks(
    entries: Sequence[ManifestEntry],
    pieces: Sequence[Piece],
    *,
    task_bytes: int,
    tasks_max: int = 0,
    tasks_min: int = 0,
) -> list[list[Part]]:
    """Return the parts of files that tasks read, large files by their row groups."""
    ranges = {(piece.topic, piece.broker, piece.queue_id): (piece.start, piece.end) for piece in pieces}
    parts = [part for entry in entries if (part := part_of(entry, ranges)) is not None]
    if not parts:
        return []
    total = sum(part.size for part in parts)
    wanted = max(math.ceil(total / task_bytes), 1)
    count = max(min(wanted, tasks_max) if tasks_max else wanted, tasks_min)
    largest = max(total / count, 1.0)
    cut = [each for part in parts for each in split(part, math.ceil(part.size / largest - 0.01))]
    tasks: list[tuple[int, int, list[Part]]] = [(0, number, []) for number in range(min(count, len(cut)))]
    for part in sorted(cut, key=lambda part: -part.size):
        filled_bytes, number, held = heapq.heappop(tasks)
        heapq.heappush(tasks, (filled_bytes + part.size, number, [*held, part]))
    return [
        sorted(held, key=lambda part: (part.path, part.groups))
        for _, _, held in sorted(tasks, key=lambda task: task[1])
        if held
    ]


def part_of(entry: ManifestEntry, ranges: Mapping[Key, tuple[int, int]]) -> Part | None:
    """Return what of a file lies within ranges of queues; None for nothing."""
    wanted = {}
    whole = True
    for part in entry.queues:
        first, end = ranges.get((entry.topic, entry.broker, part.queue_id), (0, 0))
        first, end = max(first, part.first), min(end, part.end)
        whole = whole and (first, end) == (part.first, part.end)
        if first < end:
            wanted[part.queue_id] = first, end
    if not wanted:
        return None
    return Part(entry.path, entry.topic, entry.size, (0, entry.groups), None if whole else wanted)


def split(part: Part, count: int) -> list[Part]:
    """Return a part in `count` parts, as far as it has row groups."""
    begin, end = part.groups
    count = min(max(count, 1), end - begin)
    borders = [begin + (end - begin) * number // count for number in range(count + 1)]
    return [
        replace(part, groups=(first, last), size=part.size * (last - first) // (end - begin))
        for first, last in itertools.pairwise(borders)
    ]


def read_archive_task(task: ArchiveTask) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task.

    Raises:
        DataLoss: a file is gone or damaged, and that is to fail.
        CorruptRecord: a body is not what it should be, and that is to fail.
    """
    for part in task.parts:
        try:
            yield from PartReader(task, part).batches()
        except (OSError, pa.ArrowException) as error:
            gone = isinstance(error, FileNotFoundError)
            what = f"{task.root / part.path} {'is gone' if gone else f'is damaged: {error}'}"
            if task.options.fail_on_data_loss:
                raise DataLoss(
                    f"{what}; `archive --check --deep` tells what else is; failOnDataLoss=false passes over"
                    " it"
                ) from error
            log.warning("%s; passing over it", what)


class PartReader:
    """Reads a part of one file."""

    def __init__(self, task: ArchiveTask, part: Part) -> None:
        self.part, self.columns, self.options = part, task.columns, task.options
        self.rows = {
            name: limits
            for name, limits in (
                ("physicalOffset", task.narrow.physical_offsets),
                ("storeTimestamp", task.narrow.stored_ms),
            )
            if limits != ALL
        }
        self.path = task.root / part.path
        self.schema = schema_of(task.columns, raw_properties=task.options.properties == "raw")
        self.inflates = task.options.decompress and not {"body", "value"}.isdisjoint(task.columns)

    def needed(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the file that are read; `names` are those that it has."""
        wanted: list[str] = []
        for name in self.columns:
            wanted += MADE_OF.get(name, (name,))
        if self.schema.names.count("properties") and self.options.properties == "raw":
            wanted.append("propertiesText")
        if self.part.wanted is not None:
            wanted += ["queueId", "queueOffset"]
        if self.options.wanted_tags is not None:
            wanted.append("tags")
        wanted += self.rows
        if self.inflates or self.options.verify_crc:
            wanted += ["body", "sysFlag", "physicalOffset", "bodyCrc"]
        found = [name for name in names if name in set(wanted)]
        return found or ["queueId"]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        with pq.ParquetFile(self.path) as file:
            columns = self.needed(file.schema_arrow.names)
            for number in range(*self.part.groups):
                group = file.metadata.row_group(number)
                if not self.holds(group):
                    continue
                each = max(group.total_byte_size / max(group.num_rows, 1), 1.0)
                rows = max(min(BATCH_ROWS_MAX, int(BATCH_BYTES_MAX / each)), 1)
                for batch in file.iter_batches(rows, [number], columns):
                    yield from self.decoded(self.picked(batch))

    def holds(self, group: Any) -> bool:
        """Tell whether a row group may have rows of a wanted queue."""
        if self.part.wanted is None:
            return True
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema == "queueId" and column.is_stats_set and column.statistics.has_min_max:
                low, high = column.statistics.min, column.statistics.max
                return any(low <= queue_id <= high for queue_id in self.part.wanted)
        return True

    def picked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are wanted."""
        mask = np.ones(batch.num_rows, np.bool_)
        if self.part.wanted is not None:
            queue_ids, offsets = (np.asarray(batch.column(name)) for name in ("queueId", "queueOffset"))
            mask[:] = False
            for queue_id, (first, end) in self.part.wanted.items():
                mask |= (queue_ids == queue_id) & (offsets >= first) & (offsets < end)
        for name, limits in self.rows.items():
            mask &= inside(batch.column(name), limits)
        if self.options.wanted_tags is not None:
            tags = pa.array(sorted(self.options.wanted_tags), pa.string())
            mask &= np.asarray(pc.is_in(batch.column("tags"), value_set=tags))
        return batch if mask.all() else batch.filter(pa.array(mask))

    def decoded(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows as they were asked for, cut where inflated bodies make a batch large."""
        while batch.num_rows:
            taken, bodies, good, opaque = self.inflated(batch)
            rows, batch = batch.slice(0, taken), batch.slice(taken)
            matches: Any = None
            if self.options.verify_crc or "crcOk" in self.columns:
                matches = crc_matches(rows)
            if self.options.verify_crc and not matches.all():
                for row in np.flatnonzero(~matches).tolist():
                    if row not in opaque:
                        self.note(rows, row, "its body does not match its CRC")
                if self.options.on_corrupt == "skip":
                    good &= matches
            made = [self.column(name, rows, bodies, matches) for name in self.columns]
            result = pa.RecordBatch.from_arrays(made, schema=self.schema)
            result = result if good.all() else result.filter(pa.array(good))
            if result.num_rows:
                yield result

    def inflated(self, batch: pa.RecordBatch) -> tuple[int, pa.Array | None, Any, set[int]]:
        """Decompress bodies, until there are bytes enough for a batch.

        Returns:
            How many rows that were, their bodies, which rows are kept, and which bodies do not decompress.
        """
        good, opaque = np.ones(batch.num_rows, np.bool_), set[int]()
        if not self.inflates:
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
                body = inflate(memoryview(stored[row].as_buffer()), int(flags[row]))
            except CorruptRecord as error:
                self.note(batch, row, str(error))
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

    def note(self, batch: pa.RecordBatch, row: int, what: str) -> None:
        """Raise CorruptRecord, if that is what is to be done with a corrupt body."""
        place = batch.column("physicalOffset")[row].as_py()
        if self.options.on_corrupt == "fail":
            raise CorruptRecord(f"the record at {place}: {what}")
        log.warning("%s: the record at %d: %s", self.path, place, what)

    def column(self, name: str, rows: pa.RecordBatch, bodies: pa.Array | None, matches: Any) -> pa.Array:
        """Make a column."""
        count = rows.num_rows
        kind = self.schema.field(name).type
        if name in ("body", "value"):
            return rows.column("body") if bodies is None else bodies
        if name == "topic":
            return pa.repeat(pa.scalar(self.part.topic, pa.string()), count)
        if name == "timestampType":
            return pa.array(np.full(count, LOG_APPEND_TIME, np.int32))
        if name == "crcOk":
            return pa.array(matches)
        if name == "propertiesText" or (name == "properties" and self.options.properties == "raw"):
            return filled(rows.column("propertiesText"), rows.column("properties"))
        if name == "headers":
            return headers(rows.column("properties"), kind)
        return rows.column(MADE_OF.get(name, (name,))[0]).cast(kind)


def inside(column: pa.Array, limits: Range) -> Any:
    """Tell of each row whether its number, or its time in milliseconds, lies within a range."""
    in_ms = pa.types.is_timestamp(column.type)
    numbers = np.asarray(
        column.cast(pa.timestamp("ms", "UTC"), safe=False).view(pa.int64()) if in_ms else column
    )
    return (numbers >= limits[0]) & (numbers < limits[1])


def crc_matches(rows: pa.RecordBatch) -> Any:
    """Tell of each row whether its stored body matches its CRC."""
    found = [zlib.crc32(body.as_buffer()) for body in rows.column("body")]
    stored = np.asarray(rows.column("bodyCrc")).astype(np.int64) & 0x7FFFFFFF
    return np.array(found, np.int64) & 0x7FFFFFFF == stored


def headers(properties: pa.Array, kind: pa.DataType) -> pa.Array:
    """Make the column of headers; null where there are none."""
    entries = pa.StructArray.from_arrays(
        [properties.keys, properties.items.cast(pa.binary())], fields=list(HEADER)
    )
    offsets = np.asarray(properties.offsets)
    none = offsets[1:] == offsets[:-1]
    mask = pa.array(none) if none.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=kind, mask=mask)
