"""Small files into large ones: the plan, the merging, and the switch.

    entries of closed days ──► by topic, broker, day ──► queue by queue, in the order of offsets ──► files of
    TARGET_BYTES, each named by its first and last row, and each written by one task

A day is closed when it is over. Messages that are archived late for it are compacted by a later run: only
ranges that are not in the target yet are compacted.

Into a new root, the result is a batch like any other (`batches.py`), of the query `compact`; the source is
only read. In place, new files replace the old ones. Readers must not see that half done, so it needs the
exclusive lock of the archive, and that nothing reads it:

    1 begun      `_BATCH.begun`; tasks write new files under hidden names
    2 switch     `_BATCH.prepared` is renamed `_BATCH.switch`: the new files, the old ones, the manifest
    3 changed    old files are removed, then new ones renamed
    4 done       the manifest, which names the new files and replaces the old ones; marks are removed

After a kill before 2, the new files are removed. After a kill behind 2, the next `compact` or `archive`
finishes the switch. Old manifests stay: they say which batches are in the archive.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from whimbrel.spark.archiving.files import GROUP_BYTES, BatchTarget, FileWriter, Staged, file_schema
from whimbrel.spark.archiving.folder import ArchiveError, Folder
from whimbrel.spark.archiving.layout import BEGUN, PREPARED, SWITCH, waiting_name
from whimbrel.spark.archiving.manifests import Manifest, ManifestEntry
from whimbrel.spark.archiving.ranges import QueueSpan, by_key, overlaps, without
from whimbrel.spark.offsets import Key
from whimbrel.spark.reporting import ProgressCallback, ignore_progress

__all__ = [
    "COMPACT",
    "FileSlice",
    "Output",
    "merge",
    "next_number",
    "plan",
    "recover",
    "switch",
    "undo",
]

COMPACT = "compact"
TARGET_BYTES = 512 * 1024 * 1024
FILE_BYTES_MIN, FILE_BYTES_MAX = 256 * 1024 * 1024, 1 << 30
CACHE_BYTES = 256 * 1024 * 1024  # of row groups, so that one with several queues is read once


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A range of one queue in one file, with its estimated bytes."""

    path: str
    queue_id: int
    first: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class Output:
    """A file to be written from slices, in this order."""

    topic: str
    broker: str
    day: str
    slices: tuple[FileSlice, ...]


def plan(
    entries: Iterable[ManifestEntry],
    *,
    before: str,
    have: Iterable[ManifestEntry] = (),
    target_bytes: int = TARGET_BYTES,
    in_place: bool = False,
) -> list[Output]:
    """Return the files to write.

    Args:
        entries: the archive's files.
        before: days from this one on are not closed, as YYYY-MM-DD.
        have: the target's files.
        target_bytes: size of a file aimed at; never more than twice that.
        in_place: leave topics and days as they are that have one file, or large ones only.

    Raises:
        ArchiveError: the archive has messages twice.
    """
    groups: dict[tuple[str, str, str], list[ManifestEntry]] = {}
    for entry in entries:
        if entry.day < before:
            groups.setdefault((entry.topic, entry.broker, entry.day), []).append(entry)
    held = by_key(span for entry in have for span in entry.spans())
    outputs: list[Output] = []
    for (topic, broker, day), files in sorted(groups.items()):
        if in_place and (len(files) < 2 or all(file.size >= target_bytes // 2 for file in files)):
            continue
        slices = slices_of(files, held)
        outputs += [Output(topic, broker, day, tuple(run)) for run in runs(slices, target_bytes)]
    return outputs


def slices_of(files: Sequence[ManifestEntry], held: Mapping[Key, Sequence[QueueSpan]]) -> list[FileSlice]:
    """Return the slices of files that the target does not hold, queue by queue, in the order of offsets."""
    sizes = {file.path: file.size / max(file.rows, 1) for file in files}
    found = []
    for key, queue in by_key(span for file in files for span in file.spans()).items():
        for first, end, one, other in overlaps(queue):
            raise ArchiveError(
                f"{key[0]}, queue {key[2]} of {key[1]}: offsets {first} to {end} stand in both {one.path} and"
                f" {other.path}; `archive --check` tells of all that is wrong"
            )
        for span in queue:
            found += [
                FileSlice(span.path, key[2], first, end, round((end - first) * sizes[span.path]))
                for first, end in without(span.first, span.end, held.get(key, ()))
            ]
    return found


def runs(slices: Iterable[FileSlice], target_bytes: int) -> Iterator[list[FileSlice]]:
    """Cut slices into runs of about the target's size."""
    run: list[FileSlice] = []
    size = 0
    for part in slices:
        if run and (size >= target_bytes or size + part.size > 2 * target_bytes):
            yield run
            run, size = [], 0
        run.append(part)
        size += part.size
    if run:
        yield run


def next_number(folder: Folder) -> int:
    """Return the number of the next compaction."""
    numbers = [manifest.batch for manifest in folder.manifests() if manifest.query == COMPACT]
    return max(numbers, default=-1) + 1


def merge(source: Path, target: BatchTarget, number: int, output: Output, attempt: str) -> Staged:
    """Write a file from slices, under a hidden name.

    Raises:
        ArchiveError: a file has fewer rows than its manifest says.
    """
    cache = RowGroupCache(source)
    name = waiting_name(target.query, target.batch, attempt, number)
    file = FileWriter.open(target, output.topic, output.broker, output.day, name)
    try:
        held: list[pa.Table] = []
        size = 0
        for part in output.slices:
            for table in cache.rows(part):
                held.append(table)
                size += table.nbytes
                if size >= GROUP_BYTES:
                    file.write(pa.concat_tables(held).combine_chunks())
                    held, size = [], 0
        if held:
            file.write(pa.concat_tables(held).combine_chunks())
        if not file.rows:
            raise ArchiveError(f"{output.slices[0].path} has none of the rows that its manifest tells of")
        return file.close()
    except BaseException:
        file.drop()
        raise


class RowGroupCache:
    """Row groups of an archive's files; some are cached, since one can hold several queues."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.kept: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self.size = 0
        self.path, self.file = "", None

    def rows(self, part: FileSlice) -> Iterator[pa.Table]:
        """Yield the rows of a slice, in order."""
        found = 0
        for number in range(self.open_file(part.path).num_row_groups):
            if not self.may_hold(part, number):
                continue
            table = self.group(part.path, number)
            queue_ids, offsets = (np.asarray(table[name]) for name in ("queueId", "queueOffset"))
            mask = (queue_ids == part.queue_id) & (offsets >= part.first) & (offsets < part.end)
            if mask.any():
                found += int(mask.sum())
                yield table if mask.all() else table.filter(pa.array(mask))
        if not found:
            raise ArchiveError(
                f"{self.source / part.path} has no rows of queue {part.queue_id} from {part.first} to"
                f" {part.end}; `archive --check --deep` tells what is damaged"
            )

    def open_file(self, path: str) -> Any:
        """Return a file; one is open at a time."""
        if path != self.path:
            self.close()
            self.file, self.path = pq.ParquetFile(self.source / path), path
        return self.file

    def close(self) -> None:
        """Close the file that is open."""
        if self.file is not None:
            self.file.close()
        self.path, self.file = "", None

    def may_hold(self, part: FileSlice, number: int) -> bool:
        """Return whether a row group may have rows of a slice."""
        group = self.open_file(part.path).metadata.row_group(number)
        limits = {"queueId": (part.queue_id, part.queue_id)}
        for at in range(group.num_columns):
            column = group.column(at)
            wanted = limits.get(column.path_in_schema)
            if wanted and column.is_stats_set and column.statistics.has_min_max:
                return bool(column.statistics.min <= wanted[1] and column.statistics.max >= wanted[0])
        return True

    def group(self, path: str, number: int) -> pa.Table:
        """Return a row group."""
        key = path, number
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        table = self.open_file(path).read_row_group(number, columns=file_schema().names)
        self.kept[key] = table
        self.size += table.nbytes
        while self.size > CACHE_BYTES and len(self.kept) > 1:
            self.size -= self.kept.popitem(last=False)[1].nbytes
        return table


def switch(folder: Folder, number: int, staged: Sequence[Staged], replaced: Iterable[str]) -> Manifest:
    """Replace old files by new ones, in place; the caller holds the exclusive lock of the archive."""
    disk = folder.disk
    entries = tuple(sorted((each.entry for each in staged), key=lambda entry: entry.path))
    manifest = Manifest(
        query=COMPACT, batch=number, entries=entries, kind=COMPACT, replaces=tuple(sorted(replaced))
    )
    renames = [[each.waiting, each.entry.path] for each in staged]
    prepared = folder.mark_path(COMPACT, number, PREPARED)
    disk.put(prepared, json.dumps({"manifest": manifest.text(), "renames": renames}))
    disk.rename(prepared, folder.mark_path(COMPACT, number, SWITCH))
    disk.sync(prepared.parent)
    redo(folder, number)
    return manifest


def redo(folder: Folder, number: int) -> None:
    """Carry out the switch from its beginning, however far an earlier run came."""
    disk = folder.disk
    mark = folder.mark_path(COMPACT, number, SWITCH)
    target = folder.manifest_path(COMPACT, number)
    value = json.loads(mark.read_text(encoding="utf-8"))
    manifest = Manifest.parse(value["manifest"], str(mark))
    if not target.exists():
        for path in manifest.replaces:
            disk.remove(folder.root / path)
        for waiting, path in value["renames"]:
            if (folder.root / waiting).exists():
                disk.rename(folder.root / waiting, folder.root / path)
            elif not (folder.root / path).exists():
                raise ArchiveError(f"{folder.root / path} is gone: compaction can't be finished without it")
        for touched in sorted({(folder.root / path).parent for _, path in value["renames"]}):
            disk.sync(touched)
        prepared = folder.mark_path(COMPACT, number, PREPARED)
        disk.put(prepared, manifest.text())
        disk.rename(prepared, target)
        disk.sync(target.parent)
    disk.remove(mark)
    disk.remove(folder.mark_path(COMPACT, number, BEGUN))


def undo(folder: Folder, number: int) -> None:
    """Remove the files of a compaction that had not reached its switch."""
    if not folder.manifest_path(COMPACT, number).exists():
        folder.sweep(COMPACT, number)
        folder.disk.remove(folder.mark_path(COMPACT, number, PREPARED))
    folder.disk.remove(folder.mark_path(COMPACT, number, BEGUN))


def recover(folder: Folder, on_progress: ProgressCallback = ignore_progress) -> None:
    """Finish a compaction in place that was cut short in its switch.

    Raises:
        ArchiveError: another process writes the archive.
    """
    if not folder.switching():
        return
    with folder.locked(COMPACT, alone=True):
        for _, number in folder.switching():
            on_progress(f"finishing compaction {number}, which was cut short")
            redo(folder, number)
