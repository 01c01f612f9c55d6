"""The work of a task: batches from the source to Parquet files, which are hidden until the batch is complete.

    batches ──► held until there are enough of them ──► sorted by topic, broker, day, queue, offset ──► files

A file holds rows of one topic, broker and day, of all queues that the task reads of it, in the order of queue
and offset. A file is continued as long as the next rows are behind its own; else another one is begun. A task
that reads brokers gets its queues one after the other, so it writes a file for each topic and day. A task
that reads a store directory gets them in the order of the log, and writes a file for each HELD_BYTES_MAX of
it. `compact` merges small files.

The files' columns are those of the source without `topic`, which is in the folder's name, and
`propertiesText` at the end (`properties.py`). Bodies are as they were stored.
"""

import itertools
import json
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from whimbrel.spark.archiving.folder import ArchiveError
from whimbrel.spark.archiving.layout import data_name, day_of, folder_name, waiting_name
from whimbrel.spark.archiving.manifests import ManifestEntry, QueueRange
from whimbrel.spark.archiving.properties import reduced
from whimbrel.store.columns import COLUMNS, schema_of

__all__ = ["ARCHIVED", "BatchTarget", "FileWriter", "Staged", "fault_of", "file_schema", "write_task"]

ARCHIVED = (*COLUMNS, "propertiesText")  # columns that the source is asked for
HELD_BYTES_MAX = 64 * 1024 * 1024  # sorting needs twice that for a moment
GROUP_BYTES = 16 * 1024 * 1024  # of a row group, before compression: readers read one at a time
GROUP_ROWS_MAX = 100_000
FILE_BYTES_MAX = 1 << 30
OPEN_FILES_MAX = 16
DAY_MS = 86_400_000
READ_BYTES = 4 * 1024 * 1024

# Columns with few different values, or runs of equal ones. In others a dictionary would save nothing.
DICTIONARY = [
    "topic", "brokerName", "queueId", "tags", "bornHost", "storeHost", "reconsumeTimes", "flag", "sysFlag",
    "properties.key_value.key",
]  # fmt: skip
STATISTICS = [
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "bornTimestamp",
    "storeTimestamp",
]


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """Where a batch's files go; `inside`: with the column `topic`, in folders that are no partitions."""

    root: Path
    query: str
    batch: int
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Staged:
    """A file that was written, and the hidden path, below the root, that it still has."""

    waiting: str
    entry: ManifestEntry

    def text(self) -> str:
        """Return a text that a task can return to the driver."""
        return json.dumps([self.waiting, self.entry.to_json()])

    @classmethod
    def parse(cls, text: str) -> "Staged":
        """Return the value of a text."""
        waiting, entry = json.loads(text)
        return cls(waiting, ManifestEntry.from_json(entry))


def file_schema(*, inside: bool = False) -> pa.Schema:
    """Return the schema of an archive's files."""
    return schema_of(ARCHIVED if inside else tuple(name for name in ARCHIVED if name != "topic"))


class ChecksummedFile:
    """A file that computes the CRC and the size of what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.crc, self.size = file, 0, 0

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self.file.closed

    def write(self, data: Any) -> int:
        """Write some bytes."""
        view = memoryview(data)
        self.crc = zlib.crc32(view, self.crc)
        self.size += view.nbytes
        self.file.write(view)
        return view.nbytes

    def tell(self) -> int:
        """Return how much was written."""
        return self.size

    def flush(self) -> None:
        """Flush the buffer."""
        self.file.flush()

    def close(self) -> None:
        """Sync the file to the disk and close it; does nothing the second time."""
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()


@dataclass
class FileWriter:
    """One file while it is written; its rows come in the order of queue and offset.

    Attributes:
        last: queue and offset of its last row.
    """

    target: BatchTarget
    topic: str
    broker: str
    day: str
    waiting: str
    first: tuple[int, int] = (-1, -1)
    last: tuple[int, int] = (-1, -1)
    rows: int = 0
    log_bytes: int = 0
    first_stored: int = 2**62
    last_stored: int = -(2**62)
    queues: dict[int, QueueRange] = field(default_factory=dict)

    @classmethod
    def open(cls, target: BatchTarget, topic: str, broker: str, day: str, name: str) -> "FileWriter":
        """Create a file under a hidden name."""
        folder = folder_name(topic, day, inside=target.inside)
        (target.root / folder).mkdir(parents=True, exist_ok=True)
        made = cls(target, topic, broker, day, f"{folder}/{name}")
        made.sink = ChecksummedFile((target.root / made.waiting).open("xb"))
        made.writer = pq.ParquetWriter(
            made.sink,
            file_schema(inside=target.inside),
            compression="zstd",
            use_dictionary=DICTIONARY,
            write_statistics=STATISTICS,
        )
        return made

    def __post_init__(self) -> None:
        self.sink: Any = None
        self.writer: Any = None

    def write(self, table: pa.Table) -> None:
        """Write rows, which must be behind those that were written."""
        queue_ids = np.asarray(table["queueId"]).astype(np.int64)
        offsets = np.asarray(table["queueOffset"]).astype(np.int64)
        ends = [*np.flatnonzero(np.diff(queue_ids)).tolist(), len(queue_ids) - 1]
        begin = 0
        for end in ends:
            queue_id, first, last = int(queue_ids[end]), int(offsets[begin]), int(offsets[end])
            known = self.queues.get(queue_id)
            rows = end - begin + 1 + (known.rows if known else 0)
            self.queues[queue_id] = QueueRange(queue_id, known.first if known else first, last + 1, rows)
            begin = end + 1
        if not self.rows:
            self.first = int(queue_ids[0]), int(offsets[0])
        self.last = int(queue_ids[-1]), int(offsets[-1])
        self.rows += table.num_rows
        self.log_bytes += int(pc.sum(table["size"]).as_py() or 0)
        stored = stored_ms(table)
        self.first_stored = min(self.first_stored, int(stored.min()))
        self.last_stored = max(self.last_stored, int(stored.max()))
        fits = int(GROUP_BYTES / max(table.nbytes / table.num_rows, 1.0))
        self.writer.write_table(table, row_group_size=min(max(fits, 1), GROUP_ROWS_MAX))

    def close(self) -> Staged:
        """Close the file, and return its entry."""
        self.writer.close()
        self.sink.close()
        target = self.target
        name = data_name(target.query, target.batch, self.broker, self.first, self.last)
        folder, _, _ = self.waiting.rpartition("/")
        groups = pq.read_metadata(target.root / self.waiting).num_row_groups
        entry = ManifestEntry(
            path=f"{folder}/{name}",
            topic=self.topic,
            broker=self.broker,
            day=self.day,
            rows=self.rows,
            size=self.sink.size,
            crc=self.sink.crc,
            log_bytes=self.log_bytes,
            groups=groups,
            queues=tuple(self.queues[queue_id] for queue_id in sorted(self.queues)),
            first_stored=self.first_stored,
            last_stored=self.last_stored,
        )
        return Staged(self.waiting, entry)

    def drop(self) -> None:
        """Remove the file."""
        if self.sink is not None:
            self.sink.file.close()
        (self.target.root / self.waiting).unlink(missing_ok=True)


def stored_ms(table: pa.Table) -> Any:
    """Return the store times in ms; 0 of a record whose time is beyond the calendar."""
    micros = pc.fill_null(table["storeTimestamp"].cast(pa.int64()), 0)
    return np.asarray(micros) // 1000


def write_task(target: BatchTarget, batches: Iterable[pa.RecordBatch]) -> Iterator[Staged]:
    """Write the batches of a task, and yield the files when they are complete.

    Raises:
        ArchiveError: the archive can't be written. The files of this task are removed then.
    """
    writer = TaskFiles(target)
    try:
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(batch)
            size += batch.nbytes
            if size >= HELD_BYTES_MAX:
                yield from writer.take(held)
                held, size = [], 0
        yield from writer.take(held)
        yield from writer.end()
    except OSError as error:
        writer.drop()
        raise ArchiveError(
            f"the archive {target.root} can't be written: {error.strerror or error}; readers see nothing"
            " of this batch, and the next run writes it"
        ) from error
    except BaseException:
        writer.drop()
        raise


class TaskFiles:
    """The files of one attempt of a task."""

    def __init__(self, target: BatchTarget) -> None:
        self.target, self.attempt = target, uuid.uuid4().hex[:12]
        self.open: dict[tuple[str, str, str], FileWriter] = {}
        self.waiting: list[str] = []

    def take(self, batches: Sequence[pa.RecordBatch]) -> Iterator[Staged]:
        """Write some batches."""
        if not batches:
            return
        table = pa.Table.from_batches(batches)
        order, keys = ordered(table)
        if order is not None:
            table = table.take(pa.array(order))
        for begin, end, key in keys:
            yield from self.write(key, table.slice(begin, end - begin))
        current = keys[-1][2][:2]
        for key in [key for key in self.open if key[:2] != current]:
            yield self.open.pop(key).close()

    def write(self, key: tuple[str, str, str], table: pa.Table) -> Iterator[Staged]:
        """Write rows of one topic, broker and day."""
        first = int(table["queueId"][0].as_py()), int(table["queueOffset"][0].as_py())
        file = self.open.get(key)
        if file is not None and (first <= file.last or file.sink.size >= FILE_BYTES_MAX):
            yield self.open.pop(key).close()
            file = None
        if file is None:
            while len(self.open) >= OPEN_FILES_MAX:
                yield self.open.pop(next(iter(self.open))).close()
            target = self.target
            name = waiting_name(target.query, target.batch, self.attempt, len(self.waiting))
            self.waiting.append(f"{folder_name(key[0], key[2], inside=target.inside)}/{name}")
            file = self.open[key] = FileWriter.open(target, *key, name)
        file.write(shaped(table, inside=self.target.inside))

    def end(self) -> Iterator[Staged]:
        """Close what is open."""
        while self.open:
            yield self.open.pop(next(iter(self.open))).close()

    def drop(self) -> None:
        """Remove all files; those that can't be removed are swept later."""
        for file in self.open.values():
            file.sink.file.close()
        for waiting in self.waiting:
            (self.target.root / waiting).unlink(missing_ok=True)


def shaped(table: pa.Table, *, inside: bool) -> pa.Table:
    """Return rows of the source with the columns of files."""
    chunks = []
    for batch in table.to_batches():
        texts = reduced(batch.column("propertiesText"), batch.column("properties"))
        names = [name for name in batch.schema.names if name not in ("propertiesText", "topic")]
        if inside:
            names.insert(0, "topic")
        columns = {name: batch.column(name) for name in names} | {"propertiesText": texts}
        schema = file_schema(inside=inside)
        chunks.append(
            pa.RecordBatch.from_arrays(
                [columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema
            )
        )
    return pa.Table.from_batches(chunks)


Run = tuple[int, int, tuple[str, str, str]]


def ordered(table: pa.Table) -> tuple[Any | None, list[Run]]:
    """Return the order of the rows, None if they are in order, and the runs of one topic, broker and day."""
    topics, brokers = codes(table["topic"]), codes(table["brokerName"])
    days = stored_ms(table) // DAY_MS
    queue_ids = np.asarray(table["queueId"]).astype(np.int64)
    offsets = np.asarray(table["queueOffset"]).astype(np.int64)
    groups = topics[1] * len(brokers[0]) + brokers[1]
    order = np.lexsort((offsets, queue_ids, days, groups))
    kind = np.stack([groups[order], days[order]])
    borders = [0, *(np.flatnonzero((np.diff(kind) != 0).any(axis=0)) + 1).tolist(), len(order)]
    runs = []
    for begin, end in itertools.pairwise(borders):
        group, day = int(kind[0][begin]), int(kind[1][begin])
        key = topics[0][group // len(brokers[0])], brokers[0][group % len(brokers[0])], day_of(day)
        runs.append((begin, end, key))
    return (None if bool((np.diff(order) == 1).all()) else order), runs


def codes(column: pa.ChunkedArray) -> tuple[list[str], Any]:
    """Return the sorted names of a column, and for each row the index of its name."""
    names = sorted(column.unique().to_pylist())
    numbers = pc.index_in(column, value_set=pa.array(names, pa.string()))
    return names, np.asarray(numbers).astype(np.int64)


def fault_of(path: Path, size: int, crc: int) -> str:
    """Return the fault of a file, "" without one."""
    found, seen = 0, 0
    try:
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                found, seen = zlib.crc32(piece, found), seen + len(piece)
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    if seen != size:
        return f"has {seen} bytes, not {size}"
    return "" if found == crc else "is damaged: its CRC is another one"
