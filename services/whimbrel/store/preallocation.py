"""Preallocation: a thread that populates pages ahead of the log's write position, releases those far behind
it, and creates the next file in time.

Pages are populated for a writer that writes into the mapping, so that it never waits for one. For one that
writes by system calls they would be made of zeros in vain, and what is read ahead with them (8 MiB on some
disks) takes a core for 20 ms.

The writer does not depend on it, only its speed: a page that is not populated comes with a page fault, and a
next file that is missing is created by the writer itself. So a lost or late wake-up costs only time.

A late wake-up must not create a file that the writer has created since. The next file is derived from the
file that the writer is in (`current`), and `take` clears that.
"""

import logging
from collections.abc import Callable

from whimbrel.errors import StoreFull
from whimbrel.machine import Machine
from whimbrel.store.segment import Segment

__all__ = ["RESIDENT_BEHIND_BYTES", "Preallocator"]

logger = logging.getLogger(__name__)

RESIDENT_BEHIND_BYTES = 8 * 1024 * 1024  # stays resident behind the write position, where most reads are
STEPS_PER_WINDOW = 2  # wake-ups while the writer crosses one window
NEXT_FILE_SHARE = 8  # the next file is created when less than 1/8 of the current one is left


class Preallocator:
    """Follows one writer. `wake_at` is the log offset at which the writer must call `wake`."""

    def __init__(self, machine: Machine, window_bytes: int, create: Callable[[int], Segment]) -> None:
        self.window_bytes = window_bytes
        self.create = create  # creates the file that begins at an offset; raises StoreFull
        self.wake_at = 0
        self.current: Segment | None = None
        self.end = 0
        self.populates = True
        self.next: Segment | None = None
        self.lock = machine.lock()  # held while a file is created, and by the writer while it takes one
        self.stopping = False
        self.worker = machine.worker("log-preallocate", self.run)

    def wake(self, current: Segment, end: int, *, populate: bool = True) -> None:
        """Report where the writer is, and whether it writes into the mapping."""
        self.current, self.end, self.populates = current, end, populate
        self.wake_at = end + max(self.window_bytes // STEPS_PER_WINDOW, 64 * 1024)
        self.worker.wake()

    def take(self, start: int) -> Segment:
        """Return the file that begins at an offset: the preallocated one, else a new one.

        Raises:
            StoreFull: the disk has no room for it.
        """
        with self.lock:
            made, self.next = self.next, None
            if made is None or made.start != start:
                if made is not None:
                    discard(made)
                made = self.create(start)
            self.current = None  # until the next `wake`, nothing is preallocated
            return made

    def run(self) -> None:
        """Follow the writer; in the worker's thread."""
        current, end = self.current, self.end
        if current is not None:
            self.step(current, end)

    def step(self, current: Segment, end: int) -> None:
        """Do what is due, unless the writer has left that file since."""
        with self.lock:  # keeps the mapping open: `leave` and `take` need the lock too
            if self.stopping or self.current is not current:
                return
            position = end - current.start
            if 0 <= position <= current.size:
                if self.populates:
                    current.populate(position + self.window_bytes)
                current.release(position - RESIDENT_BEHIND_BYTES)
            if self.next is None and needs_next(current, position):
                self.make_next(current.start + current.size)

    def make_next(self, start: int) -> None:
        """Create the next file; on a full disk the writer gets the error when it needs the file."""
        try:
            self.next = self.create(start)
        except StoreFull as error:
            logger.warning("the next log file can't be created yet: %s", error)
        except OSError:
            logger.exception("the next log file can't be created")

    def leave(self, segment: Segment) -> None:
        """Stop using a file that the writer has left, and that may be closed from now on."""
        with self.lock:
            if self.current is segment:
                self.current = None

    def stop(self) -> None:
        """End the thread and remove a preallocated file that was not needed."""
        self.stopping = True
        self.worker.stop()
        if self.next is not None:
            discard(self.next)
            self.next = None


def needs_next(current: Segment, position: int) -> bool:
    """Return whether it is time to create the next file."""
    return current.size - position < current.size // NEXT_FILE_SHARE


def discard(segment: Segment) -> None:
    """Remove a file that was created but never written."""
    segment.close()
    segment.files.unlink(segment.path, missing_ok=True)
