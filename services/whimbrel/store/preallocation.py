"""The helper thread ahead of the log's write position: populates pages, lets old ones go, makes the next
file in time.

All of it can also happen without the thread, only slower: a page not populated comes at its first touch, a
next file that is not there when it is needed is made by the writer itself. So a lost or late wake-up costs
time, nothing else.

A late one must not make what the writer has made meanwhile: the next file is reckoned from the file that the
writer is in, so that stops being known in the moment in which the writer takes the next one.
"""

import logging
import threading
from collections.abc import Callable

from whimbrel.errors import StoreFull
from whimbrel.store.segment import Segment

__all__ = ["RESIDENT_BEHIND_BYTES", "Preallocator"]

logger = logging.getLogger(__name__)

RESIDENT_BEHIND_BYTES = 8 * 1024 * 1024  # kept mapped behind the write position, where most reads are
STEPS_PER_WINDOW = 2  # wake-ups while the writer crosses one window
NEXT_FILE_SHARE = 8  # the next file is made when less than 1/8 of the current one is left


class Preallocator:
    """Follows one writer. `wake_at` is the log offset at which the writer must call `wake`."""

    def __init__(self, window_bytes: int, create: Callable[[int], Segment]) -> None:
        self.window_bytes = window_bytes
        self.create = create  # makes the file that begins at an offset; raises StoreFull
        self.wake_at = 0
        self.current: Segment | None = None
        self.end = 0
        self.next: Segment | None = None
        self.lock = threading.Lock()  # held while a file is made, and by the writer while it takes one
        self.wanted = threading.Event()
        self.stopping = False
        self.thread = threading.Thread(target=self.run, name="log-ahead", daemon=True)
        self.thread.start()

    def wake(self, current: Segment, end: int) -> None:
        """Tell where the writer is."""
        self.current, self.end = current, end
        self.wake_at = end + max(self.window_bytes // STEPS_PER_WINDOW, 64 * 1024)
        self.wanted.set()

    def take(self, start: int) -> Segment:
        """Return the file that begins at an offset: the one made ahead, else a new one.

        Raises:
            StoreFull: the disk has no room for it.
        """
        with self.lock:
            made, self.next = self.next, None
            if made is None or made.start != start:
                if made is not None:
                    discard(made)
                made = self.create(start)
            self.current = None  # from here on the writer is in no file that another one follows
            return made

    def run(self) -> None:
        """The thread's loop."""
        while True:
            self.wanted.wait()
            self.wanted.clear()
            if self.stopping:
                return
            current, end = self.current, self.end
            if current is not None:
                self.step(current, end)

    def step(self, current: Segment, end: int) -> None:
        """Do what is due, unless the writer has left that file meanwhile."""
        with self.lock:  # the mapping stays while the lock is held: `leave` and `take` need it too
            if self.stopping or self.current is not current:
                return
            position = end - current.start
            if 0 <= position <= current.size:
                current.populate(position + self.window_bytes)
                current.release(position - RESIDENT_BEHIND_BYTES)
            if self.next is None and needs_next(current, position):
                self.make_next(current.start + current.size)

    def make_next(self, start: int) -> None:
        """Make the next file; on a full disk the writer will find out itself."""
        try:
            self.next = self.create(start)
        except StoreFull as error:
            logger.warning("the next log file can't be made yet: %s", error)
        except OSError:
            logger.exception("the next log file can't be made")

    def leave(self, segment: Segment) -> None:
        """The writer has left a file, which may be closed from now on."""
        with self.lock:
            if self.current is segment:
                self.current = None

    def stop(self) -> None:
        """End the thread and remove a file made ahead that was not needed."""
        self.stopping = True
        self.wanted.set()
        self.thread.join()
        if self.next is not None:
            discard(self.next)
            self.next = None


def needs_next(current: Segment, position: int) -> bool:
    """Return whether it is time to make the next file."""
    return current.size - position < current.size // NEXT_FILE_SHARE


def discard(segment: Segment) -> None:
    """Remove a file that was made but never written."""
    segment.close()
    segment.path.unlink(missing_ok=True)
