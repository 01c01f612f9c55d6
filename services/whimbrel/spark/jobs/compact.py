"""`compact`: an archive's small files into large ones, in a new root or in place.

The plan is made from manifests only. Each file is written by one task, and the driver replaces the old files
as `archiving.compacting` says. The table is the report of the files that were written.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.spark.archiving import checking, compacting
from whimbrel.spark.archiving.batches import Batch
from whimbrel.spark.archiving.compacting import COMPACT, Output
from whimbrel.spark.archiving.files import BatchTarget, Staged
from whimbrel.spark.archiving.folder import ArchiveError, Folder, write_error
from whimbrel.spark.archiving.layout import BEGUN, today
from whimbrel.spark.archiving.manifests import ManifestEntry
from whimbrel.spark.jobs.archive import table_of
from whimbrel.spark.reporting import JobError, ProgressCallback, ignore_progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CompactOptions", "compact"]

TASKS_MAX = 2000
TABLES = ("_delta_log", "_iceberg")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """What is compacted.

    Attributes:
        root: the archive.
        target: where the result goes, an archive of its own; None: in place.
        before: days from this one on are left as they are, YYYY-MM-DD; "": today, in UTC.
        target_bytes: size of a file aimed at.
        queues: report by queue.
    """

    root: Path
    target: Path | None
    before: str = ""
    target_bytes: int = compacting.TARGET_BYTES
    queues: bool = False


def compact(
    session: "SparkSession", options: CompactOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Compact closed days.

    Raises:
        ArchiveError: the archive can't be read, or the result can't be written.
        JobError: it can't be compacted in place.
    """
    folder = Folder(options.root)
    folder.check()
    try:
        if options.target is None:
            written = in_place(session, folder, options, on_progress)
            target = folder
        else:
            target = Folder(options.target)
            written = into(session, folder, target, options, on_progress)
    except OSError as error:
        raise write_error(options.target or options.root, error) from error
    size = sum(entry.size for entry in written)
    on_progress(f"{len(written)} files made, {sum(entry.rows for entry in written)} messages, {size} bytes")
    every = target.entries() if written else []
    return table_of(session, checking.report(written, all_entries=every, queues=options.queues))


def into(
    session: "SparkSession",
    folder: Folder,
    target: Folder,
    options: CompactOptions,
    on_progress: ProgressCallback,
) -> Sequence[ManifestEntry]:
    """Compact into another root, as a batch of that archive."""
    if target.root.resolve() == folder.root.resolve():
        raise JobError(
            f"{target.root} is the archive itself: name another folder, or compact with --in-place"
        )
    if folder.switching():
        raise ArchiveError(f"compacting {folder.root} in place was cut short: run that again first")
    target.create()
    with target.locked(COMPACT):
        number = compacting.next_number(target)
        batch = Batch(target, COMPACT, number)
        entries = folder.entries()
        held = target.entries()
        outputs = compacting.plan(
            entries, before=day_before(options), have=held, target_bytes=options.target_bytes
        )
        if not outputs:
            on_progress("there is no closed day that the target does not have")
            return []
        check_space(target, outputs)
        batch.begin()
        staged = write_outputs(
            session, folder, BatchTarget(target.root, COMPACT, number), outputs, on_progress
        )
        return batch.finish(staged).entries


def in_place(
    session: "SparkSession", folder: Folder, options: CompactOptions, on_progress: ProgressCallback
) -> Sequence[ManifestEntry]:
    """Compact in place, holding the exclusive lock of the archive."""
    tables = [name for name in TABLES if (folder.root / name).exists()]
    if tables:
        raise JobError(
            f"{folder.root} is a table ({tables[0]}), which knows its files by name: compact it by the"
            " table's own means, or compact the archive into a new folder"
        )
    on_progress("compacting in place: nobody may read the archive until this has ended")
    compacting.recover(folder, on_progress)
    with folder.locked(COMPACT, alone=True):
        for query, number in folder.under_way():
            if query == COMPACT:
                compacting.undo(folder, number)
        entries = folder.entries()
        outputs = compacting.plan(
            entries, before=day_before(options), target_bytes=options.target_bytes, in_place=True
        )
        if not outputs:
            on_progress("there is no closed day with small files")
            return []
        check_space(folder, outputs)
        number = compacting.next_number(folder)
        folder.disk.put(folder.mark_path(COMPACT, number, BEGUN), "")
        staged = write_outputs(
            session, folder, BatchTarget(folder.root, COMPACT, number), outputs, on_progress
        )
        replaced = {part.path for output in outputs for part in output.slices}
        before = sum(entry.rows for entry in entries if entry.path in replaced)
        after = sum(each.entry.rows for each in staged)
        if before != after:
            compacting.undo(folder, number)
            raise ArchiveError(
                f"{folder.root}: {before} messages would become {after}; nothing was changed, `archive"
                " --check --deep` tells what is damaged"
            )
        return compacting.switch(folder, number, staged, replaced).entries


def day_before(options: CompactOptions) -> str:
    """Return the first day that is not compacted."""
    return min(options.before or "9999", today(time.time()))


def check_space(folder: Folder, outputs: Sequence[Output]) -> None:
    """Raise ArchiveError when there is not enough free space for the result."""
    needed = sum(part.size for output in outputs for part in output.slices)
    if (room := folder.room()) < needed:
        raise ArchiveError(f"{folder.root} has room for {room} bytes, and compacting needs about {needed}")


def write_outputs(
    session: "SparkSession",
    folder: Folder,
    target: BatchTarget,
    outputs: Sequence[Output],
    on_progress: ProgressCallback,
) -> list[Staged]:
    """Return the files, written by tasks."""
    on_progress(f"making {len(outputs)} files of {len({p.path for each in outputs for p in each.slices})}")
    tasks = min(len(outputs), TASKS_MAX)
    source, wanted, attempts = folder.root, list(outputs), uuid.uuid4().hex[:6]

    def make(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            for task in batch.column(0).to_pylist():
                attempt = attempts + uuid.uuid4().hex[:6]
                for number in range(task, len(wanted), tasks):
                    try:
                        staged = compacting.merge(source, target, number, wanted[number], attempt)
                    except OSError as error:
                        raise write_error(target.root, error) from error
                    yield pa.RecordBatch.from_arrays([pa.array([staged.text()], pa.string())], ["staged"])

    rows = session.range(0, tasks, 1, tasks).mapInArrow(make, "staged string").collect()
    return [Staged.parse(row["staged"]) for row in rows]
