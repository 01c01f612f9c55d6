"""Puts the timer files on disk: once a second, in a worker's thread, and what R counts there.

    R --safe: (R, the log's end then)--> that end is on disk --> durable R --> a flush writes it

R on disk stays behind the log on disk, so that no start takes a slot for delivered whose records are gone.
One flush is under way at a time. All but `run_flush` runs on the loop's thread; `flush_done` hands it back.
"""

import logging

from whimbrel.errors import StoreFull
from whimbrel.machine import Worker
from whimbrel.store.store import MessageStore
from whimbrel.store.timer_files import TimerFiles, TimerFlush

__all__ = ["TimerDisk"]

logger = logging.getLogger(__name__)

FLUSH_S = 1.0
EXPIRE_S = 30.0


class TimerDisk:
    """What of the timers is on disk, and the flush that brings more there.

    Attributes:
        changed: there is something to put on disk.
        effects_ms: R behind the last slot that had units.
        durable_read_ms: the R that may stand on disk.
    """

    def __init__(self, store: MessageStore, files: TimerFiles) -> None:
        """Take the files; nothing is read."""
        self.store, self.files, self.machine = store, files, store.machine
        self.changed = False
        self.effects_ms = self.durable_read_ms = 0
        self.safe: tuple[int, int] = (0, 0)  # an R, and the log's end that it needs on disk
        self.flush: TimerFlush | None = None
        self.flush_error: OSError | StoreFull | None = None
        self.flush_done = False  # set by the worker
        self.flushed_at = self.expired_at = 0.0
        self.worker: Worker | None = None

    def begin(self, read_ms: int) -> None:
        """Begin with the R that a start has found."""
        self.safe = read_ms, 0
        self.durable_read_ms = read_ms

    def close(self, read_ms: int, queue_offset: int, counts: dict[str, int]) -> None:
        """Put everything on disk, and close the files."""
        self.wait()
        try:
            self.finish_flush()
            self.store.sync_log()
            self.note_progress(read_ms)
            if self.store.flushed >= self.store.written:
                self.durable_read_ms = read_ms  # else RocketMQ would deliver the last seconds again
            flush = self.begin_flush(queue_offset, counts)
            if flush is not None:
                flush.run()
        except StoreFull as error:  # the next start goes on from the last one
            logger.warning("the timer files can't be put on disk: %s", error)
        except OSError as error:
            logger.error("the next start makes the timer files anew: a sync failed: %s", error)
            self.files.discard()
        if self.worker is not None:
            self.worker.stop()
            self.worker = None
        self.files.close()

    def wait(self) -> None:
        """Wait for a flush that is under way."""
        if self.worker is not None:
            self.worker.wait()

    def discard(self) -> None:
        """Remove the files, and forget the flush of them."""
        self.wait()
        self.flush, self.flush_error, self.flush_done = None, None, False
        self.files.discard()

    def note_progress(self, read_ms: int) -> None:
        """Let R count on disk as soon as the records of its slots are there."""
        safe_ms, end = self.safe
        if self.store.flushed >= end:
            self.durable_read_ms = safe_ms
            self.safe = read_ms, self.store.written

    def keep(self, read_ms: int, queue_offset: int, counts: dict[str, int]) -> None:
        """Begin a flush when one is due, and take note of one that is done."""
        self.finish_flush()
        now = self.machine.monotonic()
        if now - self.flushed_at < FLUSH_S or self.flush is not None:
            return
        self.flushed_at = now
        self.note_progress(read_ms)
        if now - self.expired_at >= EXPIRE_S:
            self.expired_at = now
            self.files.expire(self.store.min_offset)
        check = self.files.check
        if not self.changed and (check is None or check.read_ms >= self.durable_read_ms - 60_000):
            return
        self.changed = self.durable_read_ms < self.effects_ms  # then R follows, with a later flush
        self.flush = self.begin_flush(queue_offset, counts)
        if self.flush is not None:
            if self.worker is None:
                self.worker = self.machine.worker("timers", self.run_flush)
            self.worker.wake()

    def begin_flush(self, queue_offset: int, counts: dict[str, int]) -> TimerFlush | None:
        """Return what is to be put on disk."""
        now = self.machine.wall_ms()
        return self.files.begin_flush(self.durable_read_ms, queue_offset, now, counts)

    def run_flush(self) -> None:
        """Put a flush on disk; in the worker's thread."""
        flush = self.flush
        if flush is not None and not self.flush_done:
            try:
                flush.run()
            except (OSError, StoreFull) as error:
                self.flush_error = error
            self.flush_done = True

    def finish_flush(self) -> None:
        """Take note of a flush that is done.

        Raises:
            OSError: a sync failed.
        """
        if self.flush is None or not self.flush_done:
            return
        flush, error = self.flush, self.flush_error
        self.flush, self.flush_error, self.flush_done = None, None, False
        if error is None:
            self.files.end_flush(flush)
        elif isinstance(error, StoreFull):
            self.changed = True
            logger.warning("the timer files can't be put on disk: %s", error)
        else:
            raise error
