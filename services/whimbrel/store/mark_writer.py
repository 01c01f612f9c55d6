"""The thread that writes the queues' mark: it syncs the files of queues and index, then writes the mark.

The broker's thread collects both between two ticks: the mark, and the files and directories that must be on
disk for it to be true. The syncs, one for each queue, are left to this thread, so that no message waits for
them.
"""

import logging
import os
import threading
from pathlib import Path
from queue import SimpleQueue

from whimbrel.store.checkpoint import write_checkpoint
from whimbrel.store.pages import sync_directory
from whimbrel.store.recovery_marks import QueueMark

__all__ = ["MarkWriter"]

logger = logging.getLogger(__name__)

Job = tuple[QueueMark, set[Path], set[Path], int]


class MarkWriter:
    """Writes one mark at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.idle = threading.Event()
        self.idle.set()
        self.thread = threading.Thread(target=self.run, name="queue-mark", daemon=True)
        self.thread.start()

    @property
    def busy(self) -> bool:
        """Whether a mark is being written."""
        return not self.idle.is_set()

    def submit(self, mark: QueueMark, files: set[Path], directories: set[Path], store_time_ms: int) -> None:
        """Have a mark written; not to be called while `busy`."""
        self.idle.clear()
        self.jobs.put((mark, files, directories, store_time_ms))

    def wait(self) -> None:
        """Wait until no mark is being written."""
        self.idle.wait()

    def run(self) -> None:
        """The thread's loop."""
        while (job := self.jobs.get()) is not None:
            try:
                self.write(*job)
            except OSError:
                logger.exception("the mark of %s can't be written: recovery starts further back", self.root)
            finally:
                self.idle.set()

    def write(self, mark: QueueMark, files: set[Path], directories: set[Path], store_time_ms: int) -> None:
        """Sync, then write the mark and the checkpoint's queue time."""
        for path in files:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # removed since
                continue
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)
        for directory in directories:
            if directory.is_dir():
                sync_directory(directory)
        mark.save(self.root)
        if store_time_ms:
            write_checkpoint(self.root, queues_ms=store_time_ms)

    def stop(self) -> None:
        """Finish what was submitted and end the thread."""
        self.jobs.put(None)
        self.thread.join()
