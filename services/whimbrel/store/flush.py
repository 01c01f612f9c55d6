"""Group commit: one thread, and one fdatasync for all appends that wait.

A flush takes the log's current end, syncs the files that hold data below it, and reports that everything
below is on disk. Requests made while a sync runs are served together by the next one. With asynchronous
flush there are no requests: a flush runs by interval, and earlier when much data is waiting.
"""

import logging
import threading
from collections.abc import Callable

__all__ = ["Flusher"]

logger = logging.getLogger(__name__)


class Flusher:
    """Runs `flush` in a thread whenever asked, and every `interval_s`."""

    def __init__(self, flush: Callable[[], None], interval_s: float) -> None:
        self.flush = flush
        self.interval_s = interval_s
        self.wanted = threading.Event()
        self.stopping = False
        self.thread = threading.Thread(target=self.run, name="log-flush", daemon=True)
        self.thread.start()

    def wake(self) -> None:
        """Ask for a flush soon."""
        self.wanted.set()

    def run(self) -> None:
        """The thread's loop."""
        while not self.stopping:
            self.wanted.wait(self.interval_s)
            self.wanted.clear()
            if self.stopping:
                return
            self.flush()

    def stop(self) -> None:
        """End the thread without a last flush."""
        self.stopping = True
        self.wanted.set()
        if threading.current_thread() is not self.thread:
            self.thread.join()
