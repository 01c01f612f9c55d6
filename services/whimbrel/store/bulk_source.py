"""Reads a store in bulk: queue entries and ranges of the log as bytes, not decoded.

Everything is read with `pread`, the last queue file, too: bulk reads must not become resident memory of the
broker. `confirmed_end` is how far a store directory may be read without a broker.
"""

from pathlib import Path

from whimbrel.errors import CorruptRecord, IllegalOffset, RangeGone
from whimbrel.machine import FILES
from whimbrel.store.checkpoint import read_checkpoint
from whimbrel.store.codec import UNIT
from whimbrel.store.consumequeue import ConsumeQueue, is_filler
from whimbrel.store.epoch_file import EPOCH_FILE
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.store import MessageStore
from whimbrel.store.view import LogView

__all__ = ["BulkSource", "confirmed_end", "confirmed_offset"]

FILLERS_AT_ONCE = 1024  # entries read at a time while looking for one that is no filler


class BulkSource:
    """An open store for bulk readers."""

    def __init__(self, store: MessageStore) -> None:
        """Take the store; all calls come from its thread."""
        self.store = store
        self.file_size = store.file_size
        self.begin = -1  # of the log, when the queues' begins were last corrected to it

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, None when nothing was ever stored in it."""
        return self.store.queues.get(topic, queue_id)

    def queue_range(self, topic: str, queue_id: int, log_end: int) -> tuple[int, int, int]:
        """Return (first offset, first one not below `log_end`, next offset) of a queue."""
        begin = self.store.min_offset
        if begin != self.begin:
            # A slave's replicator moves it; entries of records that are gone are not to be returned.
            self.store.queues.follow_log(begin, drop=False)
            self.begin = begin
        queue = self.store.queues.get(topic, queue_id)
        return (queue.min, confirmed_offset(queue, log_end), queue.max) if queue is not None else (0, 0, 0)

    def visible_range(self, topic: str, queue_id: int) -> tuple[int, int, int]:
        """Return a queue's first offset and its end, as consumers see them, and where the log begins."""
        low, high = self.store.queue_range(topic, queue_id)
        return low, high, self.store.min_offset

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        """Return up to `count` entries from an offset on, packed (`codec.UNIT`)."""
        queue = self.store.queues.get(topic, queue_id)
        return queue.packed_units(offset, count) if queue is not None else b""

    def near_units(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        """Return what `units` does, for pulls of few entries: those in the mapped file need no read."""
        queue = self.store.queues.by_key.get((topic, queue_id))
        return queue.near_units(offset, count) if queue is not None else b""

    def span(self, begin: int, end: int) -> bytes:
        """Return the log's bytes [begin, end), which are in one file.

        Raises:
            RangeGone: the log begins later.
            CorruptRecord: the log ends earlier, although queue entries point there.
        """
        store = self.store
        if begin < store.min_offset:
            raise RangeGone(f"byte {begin} of the log is gone: it begins at {store.min_offset}")
        try:
            data = store.read_log(begin, end - begin) if end <= store.written else b""
        except IllegalOffset as error:  # a slave's replicator has just removed the file
            raise RangeGone(f"byte {begin} of the log is gone: {error}") from error
        if len(data) != end - begin:
            raise CorruptRecord(f"a queue entry points at {begin} to {end}; the log ends at {store.written}")
        return data


def confirmed_offset(queue: ConsumeQueue, log_end: int) -> int:
    """Return the first queue offset whose record ends beyond a log offset, the queue's end without one.

    A filler counts with the entry that follows it.
    """
    low, high = queue.min, queue.max
    last = queue.units(high - 1, 1) if low < high else []
    if last and last[0][0] + last[0][1] <= log_end:
        return high  # the usual case
    while low < high:
        middle = (low + high) // 2
        at, record_end = record_from(queue, middle, high)
        if at < high and record_end <= log_end:
            low = at + 1
        else:
            high = middle
    return low


def record_from(queue: ConsumeQueue, offset: int, end: int) -> tuple[int, int]:
    """Return the number of the first entry from an offset on that is no filler, and the end of its record;
    (end, 0) without one."""
    count = 1
    while offset < end:
        packed = queue.packed_units(offset, min(count, end - offset))
        if not packed:
            break
        for number, unit in enumerate(UNIT.iter_unpack(packed)):
            if not is_filler(unit):
                return offset + number, unit[0] + unit[1]
        offset += len(packed) // UNIT.size
        count = FILLERS_AT_ONCE
    return end, 0


def confirmed_end(root: Path) -> int:
    """Return the log offset up to which a store directory may be read, whether or not it is being written.

    With a shared page of this boot, that is what its broker has confirmed, and no more than the log holds.
    Without one (a store of RocketMQ, a copy, a machine that was restarted) it is where recovery would end the
    log, as `whimbrel store recover --dry-run` reports it; of a log with epochs no more than its checkpoint
    says that is committed.

    Raises:
        StoreError: its files can't be a log.
    """
    view = LogView.of(root)
    page = SharedPage.snapshot(root)
    if page is not None:
        return min(page.confirmed, view.end)
    checkpoint = read_checkpoint(root) if FILES.exists(root / EPOCH_FILE) else None
    return min(checkpoint.committed or view.end, view.end) if checkpoint is not None else view.end
