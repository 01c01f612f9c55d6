"""Group commit: one thread, one fdatasync for all who wait.

The flusher asks its log for the current end, syncs the files that hold data below it, and then tells that
everything below is on disk. Whoever asks while a sync runs is served by the next one, together with all
others who asked meanwhile. With asynchronous flush nobody asks: it runs by interval, and earlier when the
log tells that much is waiting.
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
        """End the thread; what is not flushed yet stays so."""
        self.stopping = True
        self.wanted.set()
        if threading.current_thread() is not self.thread:
            self.thread.join()
