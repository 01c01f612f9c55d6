"""A micro-batch from its first mark to its manifest, and what is left of it when its driver dies.

    1 begun      `_BATCH.begun` is written: from here on there may be files of this batch
    2 written    tasks write files under names that begin with `_`, fsynced, and return names and contents
    3 prepared   the manifest is written as `_BATCH.prepared`
    4 visible    the driver renames the files that the tasks returned, and no others
    5 added      a table with a catalog (Delta, Iceberg) gets the files, with query and batch in its commit
    6 done       `_BATCH.prepared` is renamed `BATCH.json`: the batch is in the archive
    7 cleared    `_BATCH.begun` is removed, and files that other attempts of the tasks left

Spark runs a batch again that it has not committed, with the same ranges, perhaps packed into other tasks:

    died before 1   no file is there; the batch is written like a new one
    died in 1 to 5  no manifest: all files of the batch are removed, visible or hidden, then it is written
                    anew. If a table has the batch already (died between 5 and 6), its files are kept, and 6
                    is done
    died after 6    there is a manifest: no file is written, the rest of 7 is done

So a reader of folders never sees a message twice: only the files of one attempt become visible, and those of
a batch are removed before it is written anew. Meanwhile readers see a part of the batch; at rest, all of it,
once. A task that outlives its driver, or that Spark has given up, leaves hidden files only.

A batch that is never run again (its checkpoint was removed) is cleared by the first batch of any other query,
since the lock of its query is free. Ranges that another query has archived are refused in step 3.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from whimbrel.spark.archiving.files import Staged
from whimbrel.spark.archiving.folder import ArchiveError, Folder
from whimbrel.spark.archiving.layout import BEGUN, PREPARED, SWITCH
from whimbrel.spark.archiving.manifests import Manifest, ManifestEntry
from whimbrel.spark.archiving.ranges import by_key, overlaps

__all__ = ["Batch", "CatalogTable", "clear_abandoned"]

logger = logging.getLogger(__name__)


class CatalogTable(Protocol):
    """A table with a catalog, which lists the archive's files."""

    def has(self, query: str, batch: int) -> bool:
        """Return whether a batch was added."""

    def add(self, query: str, batch: int, entries: Sequence[ManifestEntry]) -> None:
        """Add a batch's files, in one commit that names the batch."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one query; the caller holds the query's lock."""

    folder: Folder
    query: str
    number: int
    table: CatalogTable | None = None

    def begin(self) -> bool:
        """Clear leftovers of the batch, and mark it as begun; return False if the archive has it already."""
        folder, disk = self.folder, self.folder.disk
        begun = folder.mark_path(self.query, self.number, BEGUN)
        if folder.manifest_path(self.query, self.number).exists():
            disk.remove(begun)
            return False
        if begun.exists():
            if self.table is not None and self.table.has(self.query, self.number):
                self.complete()
                disk.remove(begun)
                return False
            self.clear()
        else:
            disk.make(begun.parent)
        disk.put(begun, "")
        return True

    def clear(self) -> None:
        """Remove all files of the batch."""
        folder = self.folder
        count = folder.sweep(self.query, self.number)
        folder.disk.remove(folder.mark_path(self.query, self.number, PREPARED))
        if count:
            logger.warning("%s: removed %d files of a batch that was not finished", folder.root, count)

    def finish(self, staged: Sequence[Staged]) -> Manifest:
        """Make the files visible, and write the manifest.

        Raises:
            ArchiveError: another query has archived some of the ranges.
        """
        folder, disk = self.folder, self.folder.disk
        entries = tuple(sorted((each.entry for each in staged), key=lambda entry: entry.path))
        manifest = Manifest(query=self.query, batch=self.number, entries=entries)
        self.refuse_overlaps(entries)
        disk.put(folder.mark_path(self.query, self.number, PREPARED), manifest.text())
        targets = [(folder.root / each.waiting, folder.root / each.entry.path) for each in staged]
        for source, target in targets:
            disk.rename(source, target)
        touched = sorted({target.parent for _, target in targets})
        above = {each.parent for each in touched}
        for each in [*touched, *sorted(above | {each.parent for each in above})]:
            disk.sync(each)
        if self.table is not None and entries:
            self.table.add(self.query, self.number, entries)
        self.complete()
        hidden = [path for each in touched for path in each.glob(f"_{self.query}-*")]
        for path in hidden:
            disk.remove(path)
        disk.remove(folder.mark_path(self.query, self.number, BEGUN))
        return manifest

    def complete(self) -> None:
        """Rename the prepared manifest to its name."""
        folder, disk = self.folder, self.folder.disk
        target = folder.manifest_path(self.query, self.number)
        disk.rename(folder.mark_path(self.query, self.number, PREPARED), target)
        disk.sync(target.parent)

    def refuse_overlaps(self, entries: Iterable[ManifestEntry]) -> None:
        """Raise ArchiveError if a range is in the archive already, or twice in the batch."""
        new = [span for entry in entries for span in entry.spans()]
        keys = {span.key for span in new}
        old = [span for entry in self.folder.entries() for span in entry.spans() if span.key in keys]
        ours = {span.path for span in new}
        for (topic, broker, queue_id), queue in by_key([*old, *new]).items():
            for first, end, one, other in overlaps(queue):
                if ours & {one.path, other.path}:
                    raise ArchiveError(
                        f"{topic}, queue {queue_id} of {broker}: offsets {first} to {end} are in the archive"
                        f" {self.folder.root} already; a new query starts after them with resume=true"
                        " (--resume)"
                    )


def clear_abandoned(folder: Folder, query: str, table: CatalogTable | None = None) -> None:
    """Clear batches of other queries that no process works on any more.

    A batch that the table has is completed, as its own query would do. Compactions in place that were cut
    short are left to `compacting.recover`.
    """
    for other, number in folder.abandoned(query):
        if folder.mark_path(other, number, SWITCH).exists():
            continue
        batch = Batch(folder, other, number)
        if not folder.manifest_path(other, number).exists():
            if table is not None and table.has(other, number):
                batch.complete()
            else:
                batch.clear()
        folder.disk.remove(folder.mark_path(other, number, BEGUN))
