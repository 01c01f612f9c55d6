"""`compact`: an archive's small files into large ones, in a new root or in place.

The plan is made from manifests alone, each file is made by one task, and the driver changes over as
`archiving.compacting` says. The table that comes back tells of the files that were made.
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
from whimbrel.spark.archiving.files import Staged, Target
from whimbrel.spark.archiving.folder import ArchiveError, Folder, trouble
from whimbrel.spark.archiving.layout import BEGUN, today
from whimbrel.spark.archiving.manifests import ManifestEntry
from whimbrel.spark.jobs import JobError, Tell, silent
from whimbrel.spark.jobs.archive import table_of

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
        before: days from this one on are left alone, YYYY-MM-DD; "": today, in UTC.
        target_bytes: of a file, about.
        queues: report by queue.
    """

    root: Path
    target: Path | None
    before: str = ""
    target_bytes: int = compacting.TARGET_BYTES
    queues: bool = False


def compact(session: "SparkSession", options: CompactOptions, tell: Tell = silent) -> "DataFrame":
    """Compact closed days.

    Raises:
        ArchiveError: the archive can't be read, or the result can't be written.
        JobError: it can't be compacted in place.
    """
    folder = Folder(options.root)
    folder.check()
    try:
        if options.target is None:
            made = in_place(session, folder, options, tell)
            target = folder
        else:
            target = Folder(options.target)
            made = into(session, folder, target, options, tell)
    except OSError as error:
        raise trouble(options.target or options.root, error) from error
    size = sum(entry.size for entry in made)
    tell(f"{len(made)} files made, {sum(entry.rows for entry in made)} messages, {size} bytes")
    every = target.entries() if made else []
    return table_of(session, checking.report(made, all_entries=every, queues=options.queues))


def into(
    session: "SparkSession", folder: Folder, target: Folder, options: CompactOptions, tell: Tell
) -> Sequence[ManifestEntry]:
    """Compact into a root of its own; a batch like any other."""
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
            tell("there is no closed day that the target does not have")
            return []
        enough_room(target, outputs)
        batch.begin()
        staged = made_of(session, folder, Target(target.root, COMPACT, number), outputs, tell)
        return batch.finish(staged).entries


def in_place(
    session: "SparkSession", folder: Folder, options: CompactOptions, tell: Tell
) -> Sequence[ManifestEntry]:
    """Compact in place, with the archive for ourselves."""
    tables = [name for name in TABLES if (folder.root / name).exists()]
    if tables:
        raise JobError(
            f"{folder.root} is a table ({tables[0]}), which knows its files by name: compact it by the"
            " table's own means, or compact the archive into a new folder"
        )
    tell("compacting in place: nobody may read the archive until this has ended")
    compacting.recover(folder, tell)
    with folder.locked(COMPACT, alone=True):
        for query, number in folder.under_way():
            if query == COMPACT:
                compacting.undo(folder, number)
        entries = folder.entries()
        outputs = compacting.plan(
            entries, before=day_before(options), target_bytes=options.target_bytes, in_place=True
        )
        if not outputs:
            tell("there is no closed day with small files")
            return []
        enough_room(folder, outputs)
        number = compacting.next_number(folder)
        folder.disk.put(folder.mark_path(COMPACT, number, BEGUN), "")
        staged = made_of(session, folder, Target(folder.root, COMPACT, number), outputs, tell)
        replaced = {piece.path for output in outputs for piece in output.pieces}
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


def enough_room(folder: Folder, outputs: Sequence[Output]) -> None:
    """Raise ArchiveError when the result can't fit."""
    needed = sum(piece.size for output in outputs for piece in output.pieces)
    if (room := folder.room()) < needed:
        raise ArchiveError(f"{folder.root} has room for {room} bytes, and compacting needs about {needed}")


def made_of(
    session: "SparkSession", folder: Folder, target: Target, outputs: Sequence[Output], tell: Tell
) -> list[Staged]:
    """Have tasks make the files."""
    tell(f"making {len(outputs)} files of {len({p.path for each in outputs for p in each.pieces})}")
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
                        raise trouble(target.root, error) from error
                    yield pa.RecordBatch.from_arrays([pa.array([staged.text()], pa.string())], ["staged"])

    rows = session.range(0, tasks, 1, tasks).mapInArrow(make, "staged string").collect()
    return [Staged.parse(row["staged"]) for row in rows]
