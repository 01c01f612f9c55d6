"""`rebuild-index`: a store's consume queues and index, built from its log in a new folder.

    log ──► entries ──► by queue file ──► a task writes the file
    log ──► keys, counted by split ──► numbered ──► by index file ──► a task writes the file

A queue file holds entries of fixed numbers, so a queue of any size is written by as many tasks as it has
files. The queues are byte for byte those that a broker writes from the same log. So is the index, except that
names of files tell when they were written, and that a restart of a broker may have left a file that is not
full.

The log is read three times: for the queues, to count the keys, and to write them. The store is not changed.
`REBUILT.json` is written last: a folder without it must not be used.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from whimbrel.spark.auditing.comparison import batch
from whimbrel.spark.auditing.derived_files import DerivedFiles, describe_derived_files, scan
from whimbrel.spark.auditing.entries import keys_of, units_of
from whimbrel.spark.auditing.findings import bytes_text
from whimbrel.spark.auditing.parallel import parallelize, run_each
from whimbrel.spark.auditing.rebuilt_files import (
    Entry,
    Gap,
    WrittenQueueFile,
    fill,
    gaps_of,
    path_of,
    queue_file_bytes,
    write_index_file,
    write_queue_file,
)
from whimbrel.spark.queue_files import UNIT
from whimbrel.spark.reporting import JobError, ProgressCallback, ignore_progress
from whimbrel.store.options import DELAY_LEVELS, StoreOptions, parse_delay_levels

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DONE", "RebuildOptions", "rebuild_index"]

SPLIT_BYTES = 128 << 20
WRITERS_MIN, WRITERS_MAX = 4, 2000  # tasks that write, as many as splits of the log within these
DONE = "REBUILT.json"
REPORT = "what string, name string, entries long, files long, first long, last long, finding string"

UNITS = "topic string, queueId int, file long, number long, physical_offset long, size int, tags long"
WROTE = "topic string, queueId int, file long, count long, low long, high long"
COUNTS = "split int, count long"
KEYS = "file int, number long, hash int, physical_offset long, storedMs long"
INDEXED = "name string, count long, first long, last long"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """What is built, and where.

    Attributes:
        store: the directory with commitlog/ in it.
        to: a folder that is not there yet, or is empty.
        index_slots: slots of an index file; 0 for RocketMQ's rule, a quarter of its entries.
        delay_levels: those of the broker; "" for the default.
        split_bytes: of the log, read by one task.
    """

    store: Path
    to: Path
    index_slots: int = 0
    delay_levels: str = ""
    split_bytes: int = SPLIT_BYTES

    def __post_init__(self) -> None:
        """Raise JobError for delay levels that can't be parsed."""
        try:
            parse_delay_levels(self.delay_levels or DELAY_LEVELS)
        except (ValueError, IndexError) as error:
            raise JobError(f"--delay-levels: {error}; they look like {DELAY_LEVELS[:14]}") from error


@dataclass(frozen=True, slots=True)
class SplitTask:
    """A split of the log whose entries or keys are read.

    Attributes:
        number: of the split.
        first_key: number of its first key among all; -1 where keys are only counted.
    """

    view: DerivedFiles
    number: int
    begin: int
    end: int
    per_file: int
    delays_ms: tuple[int, ...] = ()
    first_key: int = -1


@dataclass(frozen=True, slots=True)
class GapTask:
    """A gap of a queue that is filled."""

    folder: Path
    gap: Gap
    per_file: int


def rebuild_index(
    session: "SparkSession", options: RebuildOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Write queues and index; the table has a row for each queue and index file.

    Raises:
        JobError: there is no store, a broker has it open, or the folder is not empty.
    """
    view = run_each(session, [options], prepare)[0]
    splits = view.splits(options.split_bytes, view.begin, view.end)
    on_progress(f"{view.root}: {bytes_text(view.end - view.begin)} of log")
    rows = queues(session, view, splits, options)
    on_progress(f"{len(rows)} queues are written")
    rows += index(session, view, splits, options)
    if view.fault:
        what = f"the log is damaged at {view.end}: {view.fault}; what stands behind has no entry"
        rows.append(("log", "commitlog", None, None, view.begin, view.end, what))
    run_each(session, [(options, view.begin, view.end)], finish)
    on_progress(f"{options.to} is complete")
    return session.createDataFrame(rows, REPORT)


def prepare(options: RebuildOptions) -> DerivedFiles:
    """Describe the store, and create the folder; runs in a task."""
    view = describe_derived_files(options.store, options.index_slots)
    if view.live:
        raise JobError(
            f"{options.store} is in use: stop its broker and replicator first, or rebuild from a copy"
        )
    folder, root = options.to.resolve(), options.store.resolve()
    if folder == root or folder.is_relative_to(root):
        raise JobError(f"--to {options.to} is inside of the store: name a folder beside it")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise JobError(f"--to {options.to} is there and not empty: name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(f"--to {options.to} can't be made: {error}") from error
    return view


def finish(arguments: tuple[RebuildOptions, int, int]) -> None:
    """Write the file that marks the folder as complete; runs in a task."""
    options, begin, end = arguments
    drafts = options.to / "drafts"
    if drafts.is_dir():
        drafts.rmdir()
    draft = options.to / f"{DONE}.draft"
    with draft.open("w", encoding="utf-8") as file:
        json.dump({"version": 1, "store": str(options.store), "begin": begin, "end": end}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(options.to / DONE)


# Queues


def queues(
    session: "SparkSession", view: DerivedFiles, splits: Sequence[tuple[int, int]], options: RebuildOptions
) -> list[tuple[Any, ...]]:
    """Write all queues; return a row for each."""
    per_file = view.queue_file_size // UNIT.itemsize
    delays = parse_delay_levels(options.delay_levels or DELAY_LEVELS)
    tasks = [SplitTask(view, number, *split, per_file, delays) for number, split in enumerate(splits)]
    folder = options.to
    writers = min(max(len(splits), WRITERS_MIN), WRITERS_MAX)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from write_queues(folder, per_file, batches)

    rows_written = (
        parallelize(session, tasks, units, UNITS)
        .repartition(writers, "topic", "queueId", "file")
        .sortWithinPartitions("topic", "queueId", "file")
        .mapInArrow(write, WROTE)
        .collect()
    )
    files = sorted(
        (WrittenQueueFile(*row) for row in rows_written),
        key=lambda each: (each.topic, each.queue_id, each.first),
    )
    rows, gap_tasks = [], []
    for (topic, queue_id), found in groupby(files, key=lambda each: (each.topic, each.queue_id)):
        of_queue = list(found)
        gaps, jumps = gaps_of(of_queue, per_file)
        gap_tasks += [GapTask(folder, gap, per_file) for gap in gaps]
        count = len({*(each.first for each in of_queue), *(gap.first for gap in gaps)})
        entries = sum(each.count for each in of_queue)
        low, high = of_queue[0].low, of_queue[-1].high
        rows.append(("queue", f"{topic}/{queue_id}", entries, count, low, high, "; ".join(jumps) or None))
    run_each(session, gap_tasks, fill_gap)
    return rows


def units(task: SplitTask) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a split; runs in a task."""
    view = task.view
    for records in scan(view, task.begin, task.end)[1]:
        found = units_of(records, task.delays_ms)
        topics = pa.DictionaryArray.from_arrays(
            pa.array(found.topic_ids, pa.int32()), pa.array(found.topics, pa.string())
        ).cast(pa.string())
        columns = [
            topics,
            pa.array(found.queue_ids, pa.int32()),
            pa.array(found.numbers - found.numbers % task.per_file),
            pa.array(found.numbers),
            pa.array(found.physical_offsets),
            pa.array(found.sizes, pa.int32()),
            pa.array(found.tags),
        ]
        rows = pa.record_batch(columns, names=[word.split()[0] for word in UNITS.split(", ")])
        if view.deleted_offsets:
            pairs = zip(topics.to_pylist(), found.queue_ids.tolist(), found.numbers.tolist(), strict=True)
            kept = [
                number >= view.deleted_offsets.get((topic, queue_id), 0) for topic, queue_id, number in pairs
            ]
            rows = rows.filter(pa.array(kept, pa.bool_()))
        yield rows


def write_queues(folder: Path, per_file: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write queue files from their entries, which come file after file; runs in a task."""
    for (topic, queue_id, first), pieces in runs(batches, ("topic", "queueId", "file")):
        held = pa.Table.from_batches(list(pieces))
        numbers = held.column("number").to_numpy()
        entries = np.empty(len(numbers), UNIT)
        for name in ("physical_offset", "size", "tags"):
            entries[name] = held.column(name).to_numpy()
        write_queue_file(
            path_of(folder, topic, queue_id, first), queue_file_bytes(first, per_file, numbers, entries)
        )
        distinct = len(np.unique(numbers))
        row = (topic, queue_id, first, distinct, int(numbers.min()), int(numbers.max()))
        yield batch(WROTE, [row])


def runs(
    batches: Iterator[pa.RecordBatch], names: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], Iterator[pa.RecordBatch]]]:
    """Group the rows of sorted batches by the values of some columns, as `itertools.groupby` does."""

    def pieces() -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        for rows in batches:
            begin, borders = 0, [*borders_of(rows, names), rows.num_rows]
            for end in borders:
                if end > begin:
                    yield (
                        tuple(rows.column(name)[begin].as_py() for name in names),
                        rows.slice(begin, end - begin),
                    )
                begin = end

    for key, found in groupby(pieces(), key=lambda piece: piece[0]):
        yield key, (piece for _, piece in found)


def borders_of(rows: pa.RecordBatch, names: Sequence[str]) -> list[int]:
    """Return the rows at which any of some columns changes."""
    changed = np.zeros(max(rows.num_rows - 1, 0), np.bool_)
    for name in names:
        codes = np.asarray(rows.column(name).dictionary_encode().indices)
        changed |= codes[1:] != codes[:-1]
    found: list[int] = (np.flatnonzero(changed) + 1).tolist()
    return found


def fill_gap(gap_task: GapTask) -> None:
    """Fill a gap; runs in a task."""
    fill(gap_task.folder, gap_task.gap, gap_task.per_file)


# Index


def index(
    session: "SparkSession", view: DerivedFiles, splits: Sequence[tuple[int, int]], options: RebuildOptions
) -> list[tuple[Any, ...]]:
    """Write the index; return a row for each file."""
    capacity = view.index_entries - 1  # the first entry of a file is never used
    tasks = [SplitTask(view, number, *split, capacity) for number, split in enumerate(splits)]
    counts = [0] * len(splits)
    for row in parallelize(session, tasks, count_keys, COUNTS).collect():
        counts[row["split"]] += row["count"]
    firsts = list(accumulate(counts, initial=0))
    tasks = [
        SplitTask(view, number, *split, capacity, first_key=firsts[number])
        for number, split in enumerate(splits)
        if counts[number]
    ]
    made_at = time.time()
    base = int(time.strftime("%Y%m%d%H%M%S", time.localtime(made_at)) + f"{int(made_at * 1000) % 1000:03d}")
    folder = options.to
    settings = StoreOptions(index_slots=view.index_slots, index_entries=view.index_entries)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from write_index(folder, base, settings, batches)

    files = max(-(-firsts[-1] // capacity), 1)
    rows_written = (
        parallelize(session, tasks, numbered_keys, KEYS)
        .repartition(min(files, WRITERS_MAX), "file")
        .sortWithinPartitions("file", "number")
        .mapInArrow(write, INDEXED)
        .collect()
    )
    return [("index", row[0], row[1], 1, row[2], row[3], None) for row in sorted(rows_written)]


def count_keys(task: SplitTask) -> Iterator[pa.RecordBatch]:
    """Count the keys of a split; runs in a task."""
    count = sum(
        len(keys_of(records, tags=task.view.index_tags))
        for records in scan(task.view, task.begin, task.end)[1]
    )
    yield batch(COUNTS, [(task.number, count)])


def numbered_keys(task: SplitTask) -> Iterator[pa.RecordBatch]:
    """Yield the keys of a split with their numbers; the last key of a file for the next file, too.

    Runs in a task.
    """
    first = task.first_key
    for records in scan(task.view, task.begin, task.end)[1]:
        keys = keys_of(records, tags=task.view.index_tags)
        numbers = first + np.arange(len(keys))
        first += len(keys)
        files = numbers // task.per_file
        again = np.flatnonzero(numbers % task.per_file == task.per_file - 1)
        rows = np.concatenate([np.arange(len(keys)), again])
        columns = [
            pa.array(np.concatenate([files, files[again] + 1]).astype(np.int32)),
            pa.array(numbers[rows]),
            pa.array(keys.hashes[rows].astype(np.int32)),
            pa.array(keys.physical_offsets[rows]),
            pa.array(keys.stored_ms[rows]),
        ]
        yield pa.record_batch(columns, names=[word.split()[0] for word in KEYS.split(", ")])


def write_index(
    folder: Path, base: int, options: StoreOptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write index files from their keys, which come file after file; runs in a task."""
    capacity = options.index_entries - 1
    for (number,), pieces in runs(batches, ("file",)):
        entries = (entry for piece in pieces for entry in entries_of(piece))
        before: Entry | None = None
        at, first = next(entries)
        if at < number * capacity:
            before = first
            following = next(entries, None)
            if following is None:
                continue  # the file before is full, and no entry follows it
            first = following[1]
        name = f"{base + number:017d}"
        counts = write_index_file(folder, name, options, before, with_first(first, entries))
        yield batch(INDEXED, [(name, *counts)])


def entries_of(rows: pa.RecordBatch) -> Iterator[tuple[int, Entry]]:
    """Yield the number and the entry of each row."""
    columns = (rows.column(name).to_pylist() for name in ("number", "hash", "physical_offset", "storedMs"))
    for number, *entry in zip(*columns, strict=True):
        yield number, (entry[0], entry[1], entry[2])


def with_first(first: Entry, others: Iterator[tuple[int, Entry]]) -> Iterator[Entry]:
    """Yield an entry, and then the others without their numbers."""
    yield first
    for _, entry in others:
        yield entry
