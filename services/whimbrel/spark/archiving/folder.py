"""The folder of an archive: durable writes, locks, manifests, and leftovers of batches that died.

Every change goes through a `Disk`, one small step at a time, so that tests can stop between any two. A file
gets the name under which it is read only by a rename, when it is on the disk.

Two locks (flock on folders), which the kernel releases when their holder dies, even by kill -9:

    _manifests          shared by batches; exclusive for compacting in place, which moves files of others
    _manifests/QUERY    exclusive for each batch of one query

The driver and all executors must mount the folder, and on it a rename must be atomic: a local disk, NFS, a
cluster file system; no object store.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from whimbrel.spark.archiving.layout import (
    BEGUN,
    MANIFESTS,
    PREPARED,
    SWITCH,
    batch_name,
    owner_of,
)
from whimbrel.spark.archiving.manifests import Manifest, ManifestEntry, live
from whimbrel.spark.local_paths import RemotePath, local_path

__all__ = ["ArchiveError", "Disk", "Folder", "write_error"]

MARK = re.compile(rf"_(\d+)\.(?:{BEGUN}|{PREPARED}|{SWITCH})")


class ArchiveError(RuntimeError):
    """An archive can't be written or read; the text says why and what to do."""


def write_error(root: Path, error: OSError) -> ArchiveError:
    """Return the error of a failed write to an archive, as one sentence."""
    return ArchiveError(
        f"the archive {root} can't be written: {error.strerror or error}; the next run writes what is missing"
    )


class Disk:
    """Changes files, one step at a time; each step is on the disk when its method returns."""

    def make(self, folder: Path) -> None:
        """Create a folder, and those above it."""
        missing = [folder, *folder.parents]
        folder.mkdir(parents=True, exist_ok=True)
        for each in missing:
            self.sync(each.parent)
            if (each / MANIFESTS).exists() or each.parent == each:
                break

    def put(self, path: Path, text: str) -> None:
        """Write a file under a name that nothing reads; it is renamed later."""
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.sync(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, and replace one that has the name."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def sync(self, folder: Path) -> None:
        """Sync the names in a folder to the disk."""
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


class Folder:
    """An archive.

    Attributes:
        root: its folder.
        disk: what changes it.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        """Take the folder; raises ArchiveError for one that is none of this machine."""
        try:
            self.root, self.disk = local_path(root).absolute(), disk or Disk()
        except RemotePath as error:
            raise ArchiveError(f"the archive {error}") from None
        self.known: dict[Path, Manifest] = {}

    @property
    def manifest_root(self) -> Path:
        """The folder of the manifests."""
        return self.root / MANIFESTS

    def create(self) -> None:
        """Create the archive if it is not there.

        Raises:
            ArchiveError: it can't be created, or the folder has other files in it.
        """
        try:
            others = not self.manifest_root.is_dir() and self.root.is_dir() and any(self.root.iterdir())
            if others and not (self.root / "_checkpoints").is_dir():
                raise ArchiveError(f"{self.root} is no archive and not empty: name a new or an empty folder")
            self.manifest_root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArchiveError(
                f"the archive {self.root} can't be made: {error.strerror}; name a folder that can be written"
            ) from error

    def check(self) -> None:
        """Raise ArchiveError when there is no archive."""
        if not self.manifest_root.is_dir():
            raise ArchiveError(
                f"{self.root} is no archive: there is no {MANIFESTS} in it; `whimbrel spark archive`"
                " makes one"
            )

    def manifests(self) -> list[Manifest]:
        """Return all manifests; each is read once.

        Raises:
            ValueError: one can't be read.
        """
        paths = [path for path in self.manifest_root.glob("*/*.json") if path.stem.isdigit()]
        for path in paths:
            if path not in self.known:
                self.known[path] = Manifest.parse(path.read_text(encoding="utf-8"), str(path))
        return [self.known[path] for path in sorted(paths)]

    def entries(self) -> list[ManifestEntry]:
        """Return the files that count."""
        return live(self.manifests())

    def manifest_path(self, query: str, batch: int) -> Path:
        """Return the path of a batch's manifest."""
        return self.manifest_root / query / f"{batch_name(batch)}.json"

    def mark_path(self, query: str, batch: int, mark: str) -> Path:
        """Return the path of a mark of a batch in progress."""
        return self.manifest_root / query / f"_{batch_name(batch)}.{mark}"

    def under_way(self) -> list[tuple[str, int]]:
        """Return the batches that have begun and not ended, running or cut short."""
        found = set()
        for path in self.manifest_root.glob("*/_*"):
            if matched := MARK.fullmatch(path.name):
                found.add((path.parent.name, int(matched[1])))
        return sorted(found)

    def switching(self) -> list[tuple[str, int]]:
        """Return the compactions in place that are switching files, or were cut short in that."""
        marks = self.manifest_root.glob(f"*/_*.{SWITCH}")
        return sorted((path.parent.name, int(path.stem.removeprefix("_"))) for path in marks)

    def data_files(self) -> Iterator[Path]:
        """Yield every file below the folders of topics, visible or hidden."""
        for pattern in ("topic=*/dt=*", "data/*/*"):
            for folder in self.root.glob(pattern):
                with os.scandir(folder) as found:
                    for entry in found:
                        yield Path(entry.path)

    def sweep(self, query: str, batch: int) -> int:
        """Remove a batch's files, and hidden ones that older batches of its query left.


        Returns:
            The number of files.
        """
        count = 0
        touched = set()
        for path in list(self.data_files()):
            owner = owner_of(path.name)
            hidden = path.name.startswith("_")
            if owner is None or owner[0] != query or owner[1] > batch:
                continue
            if owner[1] == batch or hidden:
                self.disk.remove(path)
                touched.add(path.parent)
                count += 1
        for folder in sorted(touched):
            self.disk.sync(folder)
        return count

    @contextlib.contextmanager
    def locked(self, query: str, *, alone: bool = False) -> Iterator[None]:
        """Hold the lock of a query; with `alone`, the exclusive lock of the archive as well.

        Raises:
            ArchiveError: another process holds the lock.
        """
        folder = self.manifest_root / query
        folder.mkdir(exist_ok=True)
        mode = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        with contextlib.ExitStack() as held:
            if not held.enter_context(flock(self.manifest_root, mode)):
                who = "is being written" if alone else "is being compacted in place"
                raise ArchiveError(f"the archive {self.root} {who} by somebody else: wait for its end")
            if not held.enter_context(flock(folder, fcntl.LOCK_EX)):
                raise ArchiveError(
                    f"another run writes a batch of the same query to {self.root}: wait for its end, or give"
                    " this run a checkpoint of its own"
                )
            if not alone and self.switching():
                raise ArchiveError(
                    f"compacting the archive {self.root} in place was cut short: run"
                    f" `whimbrel spark compact --in-place {self.root}` again, which finishes it"
                )
            yield

    def abandoned(self, query: str) -> Iterator[tuple[str, int]]:
        """Yield the batches of other queries that no process works on; each is locked for its iteration."""
        for other, batch in self.under_way():
            if other == query:
                continue
            with flock(self.manifest_root / other, fcntl.LOCK_EX) as free:
                if free and (other, batch) in self.under_way():
                    yield other, batch

    def room(self) -> int:
        """Return the free bytes of the archive's file system."""
        return shutil.disk_usage(self.root).free


@contextlib.contextmanager
def flock(folder: Path, mode: int) -> Iterator[bool]:
    """Lock a folder without waiting; yield whether that succeeded."""
    number = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(number, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(number)
