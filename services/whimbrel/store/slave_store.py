"""SlaveStore: the store of a slave's broker, whose log its replicator writes.

`dispatch_ready` dispatches what has arrived to the queues, then indexes it. After another recovery of the log
(a new epoch), queues and index are truncated to what the log still holds.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

from whimbrel.errors import NotRecovered, StoreError, StoreFull
from whimbrel.machine import FILES, MACHINE, Files, Machine, open_files_limit
from whimbrel.store.log_reader import LogReader
from whimbrel.store.options import StoreOptions
from whimbrel.store.recovery_marks import LogMark
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.store import RETRY_S, MessageStore
from whimbrel.store.walk import Walk

__all__ = ["SlaveStore"]

logger = logging.getLogger(__name__)

MARK_READS_MAX = 100  # a mark is written in one call; one that stays unreadable is damaged
REST_BYTES_MAX = 16 << 20  # dispatched when it closes: 0.6 s of Python where the bodies have 8 bytes
REST_STEP_BYTES = 1 << 20


class SlaveStore(MessageStore):
    """A store that follows its log.

    Attributes:
        committed: the log below is committed; None: all of it is to be seen. It grows as the replicator
            hears of it, and goes back only where the log is cut.
        reader: of the log.
        epoch: the last epoch of the log that queues and index have followed.
        on_truncated: called with the offset to which they were truncated.
    """

    writable = False

    def __init__(self, root: Path, options: StoreOptions, reader: LogReader, machine: Machine) -> None:
        """Take an open log and its page."""
        super().__init__(
            root,
            options,
            reader.page,
            read_log=reader.read,
            read_range=reader.read,
            file_size=reader.file_size,
            machine=machine,
        )
        self.reader = reader
        self.indexer.is_fed = False
        self.committed: int | None = None
        self.epoch = 0
        self.on_truncated: Callable[[int], None] | None = None
        self.reported_fault = -1
        # How far queues had come at a place that our log has not reached.
        self.offered_offsets: tuple[int, dict[str, dict[int, int]]] | None = None

    @classmethod
    def open(
        cls,
        root: Path,
        options: StoreOptions,
        *,
        committed: int | None = None,
        machine: Machine = MACHINE,
    ) -> Self:
        """Open a store whose log another process writes, and recover queues and index up to its end.

        Args:
            root, options, machine: where it is, and what it runs on.
            committed: the log below is known to be committed, and nothing behind it is to be seen before it
                is; None: all of the log is to be seen.

        Raises:
            NotRecovered: the log is not recovered yet.
            StoreError: the files of queues or index can't be a store's.
        """
        open_files_limit()
        page = SharedPage.open(root, machine)
        store = None
        try:
            epoch = page.epoch
            if not epoch:
                raise NotRecovered(f"the log in {root} is not recovered yet")
            store = cls(root, options, LogReader.open(root, page=page, machine=machine), machine)
            store.epoch = epoch
            log_mark = load_log_mark(root, machine.files)
            store.recover_derived(log_mark, page.begin, page.written, clean=False, committed=committed)
            if committed is not None:
                store.committed = store.dispatched
        except BaseException:
            if store is not None:
                store.close_derived()
                store.reader.close()
            page.close()
            raise
        page.dispatched = store.dispatched
        return store

    # The log's range.

    @property
    def written(self) -> int:
        """End of the log."""
        return self.page.written

    def sync_log(self) -> None:
        """Nothing: the replicator puts the log on disk."""

    @property
    def flushed(self) -> int:
        """End of what is on disk."""
        return self.page.flushed

    @property
    def min_offset(self) -> int:
        """Begin of the log."""
        return self.page.begin

    # Following the log of another process.

    def dispatch_ready(self, budget_bytes: int) -> bool:
        """Dispatch about `budget_bytes` of the log, or index as much when all is dispatched.

        Returns:
            Whether there is more to do.
        """
        if self.page.epoch != self.epoch:
            if not self.page.epoch:
                return False
            self.log_epoch_changed()
        end = self.visible_end
        begin = self.page.begin
        if self.dispatched < begin:
            self.dispatched = begin
        if self.dispatched < end and self.machine.monotonic() >= self.retry_at:
            walk = Walk(self.read_log, self.dispatched, end, self.file_size)
            try:
                self.dispatcher.run(walk, budget_bytes)
                self.stall_reason = ""
            except StoreFull as error:
                self.stall_reason = str(error)
                self.retry_at = self.machine.monotonic() + RETRY_S
            moved = walk.position > self.dispatched
            self.dispatched = walk.position
            self.page.dispatched = self.dispatched
            if walk.fault and self.reported_fault != walk.position:
                self.reported_fault = walk.position
                logger.error("%s: the log can't be read at %d: %s", self.root, walk.position, walk.fault)
            self.advance_mark()
            if moved:
                return True
        if self.options.index_enabled and self.index.position < self.dispatched:
            if self.index.position < begin:
                self.index.position = begin
            return self.indexer.step(self.dispatched, step_bytes=budget_bytes)
        return False

    @property
    def visible_end(self) -> int:
        """Where the part of the log ends that may be delivered."""
        page = self.page
        if self.committed is None:
            return page.written
        self.committed = max(self.committed, min(page.heard_commit, page.written))
        return self.committed

    def log_epoch_changed(self) -> None:
        """Truncate queues and index to the lowest end that the log has had since the last epoch."""
        epoch = self.page.epoch
        if not epoch or epoch == self.epoch:
            return
        self.epoch = epoch
        self.reader.close()  # its files may be others of the same names now
        log_mark = load_log_mark(self.root, self.files)
        lowest = log_mark.lowest_end_since(self.recoveries_seen)
        begin = self.page.begin
        limit = begin if lowest == -1 else self.dispatched if lowest is None else max(lowest, begin)
        self.mark_writer.wait()
        if limit < self.dispatched:
            logger.warning("%s: the log was cut to %d; queues and index follow", self.root, limit)
            self.queues.truncate(limit)
            self.queues.follow_log(begin, drop=False)
            self.index.truncate(limit)
            self.dispatched = limit
            if self.committed is not None:
                self.committed = min(self.committed, limit)
        self.recoveries_seen = log_mark.recoveries
        self.page.dispatched = self.dispatched
        self.try_save_mark()
        if self.on_truncated is not None:
            self.on_truncated(limit)

    # Upkeep.

    def merge_deleted_offsets(self, text: str) -> None:
        """Take over where deleted queues ended on the master, see `deleted_queue_offsets.py`."""
        self.mark_writer.wait()
        self.queues.merge_deleted_offsets(text)
        self.queues.follow_log(self.min_offset, drop=False)
        self.try_save_mark()

    def fill(self, topics: set[str]) -> None:
        """Make all entries of some topics anew, after following what has become of the log.

        Raises:
            NotRecovered: its writer is about to cut it, or to recover it.
            StoreFull: a queue has no room for its entries.
        """
        if self.page.epoch != self.epoch:
            if not self.page.epoch:
                raise NotRecovered(f"the log in {self.root} is not recovered yet")
            self.log_epoch_changed()
        super().fill(topics)

    def take_given_offsets(self, place: int, text: str) -> None:
        """Take over how far queues had come on the master at a place in the log, see `queue_floors.py`.

        Raises:
            StoreError: the text can't be parsed.
        """
        self.offered_offsets = place, self.queues.given_offsets.decode(text)
        self.merge_given_offsets()

    def merge_given_offsets(self) -> None:
        """Do what `take_given_offsets` has put off until our log has come to that place; to be called again
        and again."""
        if self.offered_offsets is None:
            return
        place, offsets = self.offered_offsets
        if self.dispatched < place or self.page.epoch != self.epoch:
            return
        self.queues.follow_log(self.min_offset, drop=False)
        try:
            if self.queues.merge_given_offsets(offsets):
                self.try_save_mark()
        except StoreFull as error:
            logger.warning("%s", error)
            return
        self.offered_offsets = None

    def dispatch_rest(self) -> None:
        """Dispatch what came last, so that queues and index of a store at rest have all of its log.

        Where that is more than `REST_BYTES_MAX`, the next start does what is left.
        """
        self.dispatcher.on_arrival = None
        last = self.dispatched + REST_BYTES_MAX
        while self.dispatched < last and self.dispatch_ready(REST_STEP_BYTES):
            pass

    def close(self, *, clean: bool = True) -> None:
        """Stop; the log stays open for its writer."""
        if clean:
            self.dispatch_rest()
            self.finish_derived()
        self.close_derived()
        self.reader.close()
        self.page.close()


def load_log_mark(root: Path, files: Files = FILES) -> LogMark:
    """Read the log's mark, which its writer may be writing at the same time.

    Raises:
        StoreError: it can't be read, although the log is recovered.
    """
    for _ in range(MARK_READS_MAX):
        mark = LogMark.load(root, files)
        if mark is not None:
            return mark
    raise StoreError(f"the log mark of {root} can't be read")
