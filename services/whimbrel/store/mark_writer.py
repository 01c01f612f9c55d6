"""The thread that writes the queues' mark: it syncs the files of queues and index, then writes the mark.

The broker's thread collects both between two ticks: the mark, and the files and directories that must be on
disk for it to be true. The syncs, one for each queue, are left to this thread, so that no message waits for
them.

What one mark was to sync, and did not, the next one owes: no mark is written before all of it is on disk. A
file whose sync failed is `doubtful`: its pages count as written and are not, so another sync would prove
nothing. No mark is written before the store has written that file again (`MessageStore.settle_doubtful`). A
process that is killed before leaves the old mark: the next one writes all entries behind it anew. The index
has entries of all ages in all of its pages, so its file is removed at once.

**Very many files** (`WRITTEN_BACK_FROM`) are written back together before, by one `syncfs`: syncs that then
find clean pages cost half as much. It says nothing about a file, so each is synced all the same. It also
writes back what others have written to the same file system, which is why few files go without.

The store's thread may sync a file as well, while a mark is being written (`mapped_queues.py`). A failure is
reported to one of both: under the lock, the other one finds the file among the doubtful.
"""

import contextlib
import errno
import logging
import os
from pathlib import Path

from whimbrel.machine import Machine
from whimbrel.store.checkpoint import write_checkpoint
from whimbrel.store.recovery_marks import MARK_INTERVAL_S, QueueMark

__all__ = ["MarkWriter"]

logger = logging.getLogger(__name__)

WRITTEN_BACK_FROM = 1024  # files; syncing so many takes a fast disk a tenth of a second
APART = 3  # marks of very many files are so many times apart as one takes: the disk has other work, too

Job = tuple[QueueMark, set[Path], set[Path], int, int]


class MarkWriter:
    """Writes one mark at a time."""

    def __init__(self, root: Path, machine: Machine) -> None:
        self.root, self.files, self.machine = root, machine.files, machine
        self.lock = machine.lock()  # while a file is synced
        self.job: Job | None = None  # being written, or about to be
        # These belong to whoever writes: this thread while `busy`, else the store's.
        self.owed: set[Path] = set()  # files to sync before the next mark
        self.owed_directories: set[Path] = set()
        self.doubtful: set[Path] = set()  # files of which a sync failed; owed as well
        self.written = True  # whether the last mark is
        self.vouched = 0  # the offset of the last mark that is
        self.took_s = 0.0  # to write the last one of very many files, or to fail to; 0 behind one of fewer
        self.synced = 0  # the last collection of which all files are on disk, and so all of those before
        self.worker = machine.worker("queue-mark", self.run)

    @property
    def busy(self) -> bool:
        """Whether a mark is being written."""
        return self.job is not None

    @property
    def apart_s(self) -> float:
        """How long after the begin of a mark of very many files the next one has to wait, at most
        MARK_INTERVAL_S."""
        return min(APART * self.took_s, MARK_INTERVAL_S)

    def submit(
        self, mark: QueueMark, files: set[Path], directories: set[Path], store_time_ms: int, collection: int
    ) -> None:
        """Have a mark written, see `write`; not to be called while `busy`."""
        self.job = (mark, files, directories, store_time_ms, collection)
        self.worker.wake()

    def wait(self) -> None:
        """Wait until no mark is being written."""
        self.worker.wait()

    def run(self) -> None:
        """Write the mark that was submitted; in the worker's thread."""
        if self.job is None:
            return
        began = self.machine.monotonic()
        try:
            self.write(*self.job)
        except OSError as error:
            logger.error(
                "the mark of %s can't be written: %s; recovery would start further back", self.root, error
            )
        finally:
            many = len(self.job[1]) >= WRITTEN_BACK_FROM
            self.took_s = self.machine.monotonic() - began if many else 0.0
            self.job = None

    def write(
        self, mark: QueueMark, files: set[Path], directories: set[Path], store_time_ms: int, collection: int
    ) -> None:
        """Sync, then write the mark and the checkpoint's queue time.

        Args:
            mark: what is written.
            files, directories: all that must be on disk before, and is not since the last collection.
            store_time_ms: for the checkpoint, 0 for none.
            collection: the number of the collection of `files`.

        Raises:
            OSError: the disk refuses; what is not synced stays owed.
        """
        disk = self.files
        self.written = False
        self.owed |= files
        self.owed_directories |= directories
        if len(self.owed) >= WRITTEN_BACK_FROM:
            self.write_back_all()
        for path in sorted(self.owed, key=str):  # paths themselves are slow to compare
            self.sync(path)
            self.owed.discard(path)
        self.synced = collection
        for directory in sorted(self.owed_directories):
            if disk.exists(directory):
                disk.sync_directory(directory)
            self.owed_directories.discard(directory)
        mark.save(self.root, disk)
        self.vouched = mark.offset
        if store_time_ms:
            write_checkpoint(self.root, queues_ms=store_time_ms, files=disk)
        self.written = True

    def write_back_all(self) -> None:
        """Have what is written on the store's file system written back; it proves nothing."""
        fd = self.files.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.files.write_back_all(fd)
        finally:
            self.files.close(fd)

    def sync(self, path: Path) -> None:
        """Put a file on disk, if it is still there; from any thread.

        Raises:
            OSError: the disk refuses, or has refused before and the file was not written again since.
        """
        disk = self.files
        with self.lock:
            if path in self.doubtful:
                raise OSError(errno.EIO, "a sync of it failed, and it is not written again yet", str(path))
            try:
                fd = disk.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # removed since
                return
            try:
                disk.fdatasync(fd)
            except OSError:
                self.doubtful.add(path)
                if path.parent == self.root / "index":
                    self.remove_from(path)
                raise
            finally:
                disk.close(fd)

    def remove_from(self, path: Path) -> None:
        """Remove an index file and those behind it, the newest first: after a kill they would be trusted."""
        with contextlib.suppress(OSError):  # `settle_doubtful` tries again, and tells
            for name in reversed(self.files.names(path.parent)):
                if name >= path.name:
                    self.files.unlink(path.parent / name, missing_ok=True)

    def stop(self) -> None:
        """Finish what was submitted and end the thread."""
        self.worker.wait()
        self.worker.stop()
