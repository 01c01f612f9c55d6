"""MessageStore: what the store of a master and the store of a slave have in common.

The broker writes consume queues and index on both. The log is written by the broker on a master
(`master_store.py`) and by the replicator on a slave (`slave_store.py`). Both begin by rebuilding queues and
index where they lag behind the log (`rebuild.py`).
"""

import abc
import errno
import logging
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from whimbrel.errors import CorruptRecord, IllegalOffset, StoreError, StoreFull
from whimbrel.machine import Machine
from whimbrel.store.codec import (
    FILLER_SIZE,
    IDENTITY,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    StoredMessage,
    decode_record,
    keys_of,
)
from whimbrel.store.consumequeue import ConsumeQueue, Unit
from whimbrel.store.dispatch import Arrival, Dispatcher
from whimbrel.store.index import Index
from whimbrel.store.indexer import Indexer
from whimbrel.store.lane_messages import LaneMessages, PackedMessages
from whimbrel.store.lane_passes import LanePasses
from whimbrel.store.mapped_queues import MappedQueues
from whimbrel.store.mark_writer import MarkWriter
from whimbrel.store.mending import mend_queues
from whimbrel.store.options import StoreOptions, parse_delay_levels
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.rebuild import dispatch_log, dispatch_topics, truncate_index, truncate_queues
from whimbrel.store.recovery import ReadAt, store_time_at
from whimbrel.store.recovery_marks import MARK_BYTES, MARK_INTERVAL_S, LogMark, QueueMark
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.walk import Walk

__all__ = ["RETRY_S", "MessageStore"]

logger = logging.getLogger(__name__)

CATCH_UP_BYTES = 32 * 1024 * 1024  # of log indexed before the store opens, or before a search by key
# What a search by key reads, records of other keys with the same hash among them: some 50 ms.
KEY_READS_MAX = 4096
KEY_BYTES_MAX = 64 * 1024 * 1024  # of records of other keys
STORE_TIME_MAX = (1 << 63) - 1
RETRY_S = 0.5  # queues without room: how often writing an entry is tried again


class MessageStore(abc.ABC):
    """Queues and index over a log. All methods are for one thread.

    Attributes:
        page: shared with the replicator; unmapped by `close`.
        read_log: returns bytes of the log from an offset on, fewer at the end of a file.
        on_arrival: called for each entry written to a queue, with topic, queue id, queue offset and the
            entry's tags code.
        dispatched: every record below is in its queue.
        intact_end: the lowest end that the log has had since the store was last open. What was known of the
            log below it still holds.
        unfilled: topics whose queues lack entries, for want of room as these were to be made anew.
        stall_reason: why entries could not be written for want of room, "" when they could.
    """

    def __init__(
        self,
        root: Path,
        options: StoreOptions,
        page: SharedPage,
        *,
        read_log: ReadAt,
        read_range: ReadAt,
        file_size: int,
        machine: Machine,
    ) -> None:
        """Take the log's reading side; the subclasses open it.

        Args:
            read_range: as `read_log`, but raises IllegalOffset for what is outside the log.
        """
        self.machine, self.files = machine, machine.files
        self.root, self.options, self.page = root, options, page
        self.read_log, self.read_range, self.file_size = read_log, read_range, file_size
        self.delays_ms = parse_delay_levels(options.delay_levels)
        self.mapped_queues = MappedQueues()
        self.queues = ConsumeQueues(root, options.consumequeue_file_size, machine.files, self.mapped_queues)
        passes = self.passes = LanePasses(machine.lane, page)
        self.lane_messages = LaneMessages(passes, read_range)
        self.dispatcher = Dispatcher(self.queues, self.delays_ms, passes)
        self.dispatcher.log_begin = lambda: self.min_offset
        self.index = Index(root, options, machine, passes)
        self.indexer = Indexer(self.index, self.read_log, self.file_size, machine.monotonic, passes)
        self.dispatched = self.recoveries_seen = 0
        self.unfilled: set[str] = set()
        self.intact_end = 0
        self.stall_reason = ""
        self.retry_at = 0.0
        self.store_time_ms = 0
        self.marked_offset = 0
        self.marked_at = 0.0
        self.mark_writer = MarkWriter(root, machine)  # last: it starts a thread
        self.mapped_queues.writer, self.mapped_queues.settle = self.mark_writer, self.settle_doubtful

    # The log's range.

    @property
    @abc.abstractmethod
    def written(self) -> int:
        """End of the log."""

    @property
    @abc.abstractmethod
    def visible_end(self) -> int:
        """Where the part of the log ends that may be delivered: all of it, unless a majority commits it."""

    @property
    @abc.abstractmethod
    def flushed(self) -> int:
        """End of what is on disk."""

    @property
    @abc.abstractmethod
    def min_offset(self) -> int:
        """Begin of the log."""

    @property
    @abc.abstractmethod
    def writable(self) -> bool:
        """Whether the store takes appends."""

    # Recovery of what can be derived from the log.

    @abc.abstractmethod
    def sync_log(self) -> None:
        """Put the log on disk, and wait for that, where this process writes it."""

    def recover_derived(
        self, log_mark: LogMark, begin: int, end: int, *, clean: bool, committed: int | None = None
    ) -> None:
        """Truncate queues and index to what is known to be right, then rebuild the rest.

        Args:
            log_mark, clean: of the log's recovery.
            begin, end: the log's range.
            committed: the log below is known to be committed, and what is behind it gets no entries, unless
                the queues' mark knows of them; None: all of it is to be seen.
        """
        queue_mark = mark = QueueMark.load(self.root, self.files)
        try:
            self.queues = self.load_queues()
        except StoreError as error:
            logger.warning("%s; all queues are written anew", error)
            QueueMark.withdraw(self.root, self.files)
            mend_queues(self.root, self.options.consumequeue_file_size, self.files)
            self.queues = self.load_queues()
            queue_mark = None
        self.dispatcher.queues = self.queues
        self.dispatched = truncate_queues(
            self.queues,
            queue_mark,
            log_mark,
            begin,
            end,
            boot=self.machine.boot_id(),
            withdraw=lambda: QueueMark.withdraw(self.root, self.files),
        )
        lowest = log_mark.lowest_end_since(mark.recoveries) if mark is not None else -1
        self.intact_end = end if lowest is None else min(max(lowest, begin), end)
        self.recoveries_seen = log_mark.recoveries
        visible = end if committed is None else min(max(committed, self.dispatched), end)
        self.dispatch_to(visible, skip_damage=self.dispatched == begin)
        self.queues.follow_log(begin, drop=False)
        self.queues.go_on_all()
        self.store_time_ms = self.dispatcher.store_time_ms or self.last_store_time(end)
        if self.options.index_enabled:
            truncate_index(
                self.index,
                self.root,
                mark,
                log_mark,
                begin,
                end,
                clean=clean,
                read=self.read_log,
                file_size=self.file_size,
                machine=self.machine,
            )
            self.indexer.step(self.dispatched, step_bytes=CATCH_UP_BYTES)
        self.submit_mark()  # thousands of queues take the disk longer than anybody should wait for a start

    def load_queues(self) -> ConsumeQueues:
        """List the queues on disk.

        Raises:
            StoreError: the files of one are not as a queue's must be.
        """
        return ConsumeQueues.load(
            self.root, self.options.consumequeue_file_size, self.files, self.mapped_queues
        )

    def dispatch_to(self, end: int, *, skip_damage: bool) -> None:
        """Dispatch up to `end`; sets `stall_reason` when there is no room for all entries."""
        walk = Walk(self.read_log, self.dispatched, end, self.file_size)
        try:
            dispatch_log(self.dispatcher, walk, skip_damage=skip_damage, name=self.root)
        except StoreFull as error:
            self.stall_reason = str(error)
        else:
            self.stall_reason = ""
        self.dispatched = walk.position

    def last_store_time(self, end: int) -> int:
        """Return the store time of the newest entry's record, 0 without one."""
        newest = -1
        for queue in self.queues:
            unit = queue.units(queue.max - 1, 1)
            if unit and newest < unit[0][0] < end:
                newest = unit[0][0]
        return self.store_time_of(newest) if newest >= 0 else 0

    def store_time_of(self, physical_offset: int) -> int:
        """Return a record's store time, 0 when it is gone."""
        try:
            return store_time_at(self.read_log, physical_offset)
        except IllegalOffset:
            return 0

    @property
    def on_arrival(self) -> Arrival | None:
        """Called for each queue entry."""
        return self.dispatcher.on_arrival

    @on_arrival.setter
    def on_arrival(self, callback: Arrival | None) -> None:
        self.dispatcher.on_arrival = callback

    # Marks.

    def advance_mark(self) -> None:
        """Have the queues' mark written when it is due and the last one is done."""
        now = self.machine.monotonic()
        due = self.dispatched - self.marked_offset >= MARK_BYTES or now - self.marked_at >= MARK_INTERVAL_S
        writer = self.mark_writer
        if not due or writer.busy or (self.dispatched == self.marked_offset and writer.written):
            return
        if now - self.marked_at < writer.apart_s:
            return
        self.submit_mark()

    def submit_mark(self) -> None:
        """Have the queues' mark written; not to be called while one is being written."""
        self.marked_at = self.machine.monotonic()
        try:
            self.settle_doubtful()
        except OSError as error:
            logger.error("%s: the mark of the queues stays where it is: %s", self.root, error)
            return
        self.marked_offset = self.dispatched
        self.mark_writer.submit(*self.collect_mark())

    def settle_doubtful(self) -> None:
        """Write again the files of queues and index of which a sync failed; not to be called while a mark is
        being written.

        Entries of queues are taken from the page cache, which must still have all of them: where it has read
        the disk again, others may stand there from before the log was cut, so the log is asked. An index file
        is dropped and built again from the log: in it, a page that is missing would not show.

        Raises:
            OSError: that can't be done now; no mark may be written.
        """
        if self.unfilled:
            raise OSError(errno.ENOSPC, f"queues of {', '.join(sorted(self.unfilled))} lack entries")
        writer = self.mark_writer
        for path in sorted(writer.doubtful):
            if path.parent == self.index.directory:
                self.index.drop_from(path, self.min_offset)
                self.indexer.fall_behind()
            else:
                queue = self.queues.get(path.parent.parent.name, int(path.parent.name))
                if queue is not None and not queue.write_again(path, partial(self.is_entry, queue)):
                    raise OSError(
                        errno.EIO,
                        "entries are gone from memory and disk, the next start makes them",
                        str(path),
                    )
                writer.owed.add(path)  # also where the store's thread has tried to sync it
            writer.doubtful.discard(path)
            logger.warning("%s: %s is written again: a sync of it failed", self.root, path)

    def is_entry(self, queue: ConsumeQueue, number: int, unit: Unit) -> bool:
        """Return whether an entry is right: on disk by the last mark, or that of a record of the log."""
        place, size, _ = unit
        if 0 <= place < max(self.mark_writer.vouched, self.min_offset) and size > 0:
            return True
        try:
            record = decode_record(self.read(place, size), check_crc=False)
        except (CorruptRecord, IllegalOffset, OSError):
            return False
        if (record.topic, record.queue_id) != (queue.topic, queue.queue_id):
            return False
        return record.queue_offset == number or queue.renumbered > 0

    def collect_mark(self) -> tuple[QueueMark, set[Path], set[Path], int, int]:
        """Return the mark as of now, the files and directories to sync before it is written, a store time,
        and the number of this collection."""
        queues, entries = self.queues.totals()
        files, directories = self.queues.take_dirty()
        indexed = min(self.index.position, self.dispatched) if self.options.index_enabled else 0
        files.update(self.index.take_dirty())
        mark = QueueMark(
            self.dispatched,
            indexed,
            self.recoveries_seen,
            queues,
            entries,
            self.index.end_offset,
            self.machine.boot_id(),
        )
        store_time_ms = self.store_time_ms or self.dispatcher.store_time_ms
        return mark, files, directories, store_time_ms, self.mapped_queues.collection

    def save_mark(self) -> None:
        """Write the mark now, waiting for the disk."""
        self.mark_writer.wait()
        self.settle_doubtful()
        self.marked_offset, self.marked_at = self.dispatched, self.machine.monotonic()
        self.mark_writer.write(*self.collect_mark())

    def try_save_mark(self) -> None:
        """Write the mark now where the disk takes it; else the old one counts, until `advance_mark`."""
        try:
            self.save_mark()
        except OSError as error:
            logger.error("%s: the mark of the queues stays where it is: %s", self.root, error)

    # Reading.

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (first offset, next offset) of a queue; (0, 0) when it is unknown."""
        queue = self.queues.by_key.get((topic, queue_id))
        return (queue.min, queue.max) if queue is not None else (0, 0)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that a queue's next message gets; some before it may not be seen yet."""
        queue = self.queues.by_key.get((topic, queue_id))
        return queue.max + queue.uncommitted if queue is not None else 0

    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]:
        """Return up to `count` entries from an offset on: (physical offset, size, tags code).

        An entry of size 0x7FFFFFFF stands for a message that this store never had.
        """
        queue = self.queues.by_key.get((topic, queue_id))
        return queue.units(offset, count) if queue is not None else []

    def first_from(self, topic: str, queue_id: int, place: int) -> int:
        """Return the offset of a queue's first entry whose record is not below a place in the log."""
        queue = self.queues.by_key.get((topic, queue_id))
        return queue.first_from(place) if queue is not None else 0

    def count_below(self, topic: str, queue_id: int, first: int, place: int) -> int:
        """Return how many entries a queue has from one on whose records are below a place in the log."""
        low, _ = self.queue_range(topic, queue_id)
        return max(self.first_from(topic, queue_id, place) - max(first, low), 0)

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return a record's bytes.

        Raises:
            IllegalOffset: it is not in the log (any more).
            CorruptRecord: what stands there is no record of that size.
        """
        if size == FILLER_SIZE:
            where = f"which is {self.min_offset} to {self.written}"
            raise IllegalOffset(f"{physical_offset} is outside the log, {where}")
        data = self.read_range(physical_offset, size) if size >= RECORD_BYTES_MIN else b""
        if len(data) != size or not data:
            raise CorruptRecord(f"no record of {size} bytes at {physical_offset}")
        stored, magic, place = IDENTITY.unpack_from(data)
        if stored != size or place != physical_offset or (magic != MAGIC_V1 and magic != MAGIC_V2):
            raise CorruptRecord(f"no record of {size} bytes at {physical_offset}")
        return data

    def read_plain(self, units: Sequence[Unit]) -> list[StoredMessage | None]:
        """Return the messages of queue entries, None for those that are to be read one by one; [] for all."""
        return self.lane_messages.read(units)

    def pull_plain(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        budget: tuple[int, int, int],
        tags: tuple[list[int], list[bytes]] | None,
        namespace: str,
    ) -> PackedMessages | None:
        """Return what the lane makes of up to `count` messages of a queue from an offset on, for a pull.

        The other arguments are those of `LaneMessages.pull`. None: there is no lane, or no entry.
        """
        queue = self.queues.by_key.get((topic, queue_id))
        if queue is None or not self.passes.lane.active:
            return None
        units = queue.near_units(offset, count)
        return self.lane_messages.pull(units, budget, tags, namespace) if units else None

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the first offset whose record was stored at or after a time, else the queue's end.

        Times may stand out that a wrong clock has given: later than the queue's newest, or earlier than what
        stands before. They decide nothing, and the first offset may be that of a message with such a time,
        just before the one that was looked for.
        """
        queue = self.queues.by_key.get((topic, queue_id))
        if queue is None or queue.min >= queue.max:
            return queue.max if queue is not None else 0
        low, high = queue.min, queue.max
        earliest, latest = self.stored_at(queue, low), self.stored_at(queue, high - 1)
        if latest < earliest:  # the last one stands out, unless the first does, and few with it
            latest = STORE_TIME_MAX
            if self.stored_at(queue, low + (high - low) // 8) < earliest:
                earliest = 0
        while low < high:
            middle = at = (low + high) // 2
            stored, step = self.stored_at(queue, at), 1
            while not earliest <= stored <= latest:
                step = step if at + step < high else 1
                at, step = at + step, step * 2
                if at >= high:
                    break
                stored = self.stored_at(queue, at)
            if at >= high:
                high = middle
            elif stored < timestamp_ms:
                low, earliest = at + 1, stored
            else:
                high = at
        return low

    def stored_at(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the store time of an entry's record, 0 when it is gone."""
        unit = queue.units(offset, 1)
        return self.store_time_of(unit[0][0]) if unit else 0

    def find_by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 64,
        begin: int = 0,
        end: int = STORE_TIME_MAX,
        deleted: bool = False,
    ) -> list[int]:
        """Return the physical offsets of records of a topic with a key, newest first.

        Args:
            topic, key: theirs.
            limit: so many at most. Others may have the same hash: KEY_READS_MAX records are read at most, and
                KEY_BYTES_MAX bytes of others.
            begin: earliest store time, ms.
            end: latest store time, ms.
            deleted: whether those of a deleted topic of that name are among them.
        """
        if not self.options.index_enabled:
            return []
        self.indexer.step(self.dispatched, records=self.indexer.waiting, step_bytes=CATCH_UP_BYTES)
        found: list[int] = []
        log_begin, in_vain = self.min_offset, 0
        # An index file has whole seconds since its begin, so the search begins a second earlier.
        candidates = self.index.find(topic, key, begin_ms=max(0, begin - 1000), end_ms=end)
        for physical_offset in islice(candidates, KEY_READS_MAX):
            if len(found) >= limit or in_vain > KEY_BYTES_MAX:
                break
            if physical_offset < log_begin:
                continue
            try:
                head = self.read_log(physical_offset, SIZE_AND_MAGIC.size)
                size = SIZE_AND_MAGIC.unpack(head)[0] if len(head) == SIZE_AND_MAGIC.size else 0
                if size > RECORD_BYTES_MAX:  # a wrong bit in it must not make this read a whole file
                    continue
                message = decode_record(self.read(physical_offset, size))
            except (CorruptRecord, IllegalOffset):
                continue
            if message.topic != topic or key not in keys_of(message.properties_raw, tags=True):
                in_vain += size
                continue
            ended = 0 if deleted else self.queues.deleted_offsets.get(topic, message.queue_id)
            in_time = begin <= message.store_timestamp <= end
            if message.queue_offset >= ended and in_time and physical_offset not in found:
                found.append(physical_offset)
        return found

    def find_written(self, topic: str, key: str, *, limit: int = 64, begin: int = 0) -> list[int]:
        """Return what `find_by_key` does, deleted ones too, and before it records that are not committed yet.

        For whoever must not do again what the log has.
        """
        return self.find_by_key(topic, key, limit=limit, begin=begin, deleted=True)

    def newest_message(self, topic: str, queue_id: int) -> StoredMessage | None:
        """Return the last message of a queue; None when there is none, or it can't be read."""
        low, high = self.queue_range(topic, queue_id)
        try:
            for physical_offset, size, _ in self.queue_units(topic, queue_id, max(low, high - 1), 1):
                return decode_record(self.read(physical_offset, size), check_crc=False)
        except (CorruptRecord, IllegalOffset):
            pass
        return None

    # Upkeep.

    def topics_on_disk(self) -> dict[str, set[int]]:
        """Return the ids of the queues with entries, by topic."""
        found: dict[str, set[int]] = {}
        for queue in self.queues:
            if queue.starts and queue.max > queue.deleted_below:
                found.setdefault(queue.topic, set()).add(queue.queue_id)
        return found

    def queue_ids(self, topic: str, count: int) -> list[int]:
        """Return the ids of a topic's queues: so many, and those beyond that hold messages all the same.

        A topic that has fewer queues than it had holds what lies in the others; whoever counts, counts it.
        """
        beyond = [
            queue_id
            for queue_id, queue in self.queues.by_topic.get(topic, {}).items()
            if queue_id >= count and queue.max > queue.min
        ]
        return [*range(count), *sorted(beyond)]

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic; its records stay in the log until their files are removed."""
        self.mark_writer.wait()
        self.queues.delete_topic(topic)
        self.try_save_mark()

    def take_deleted_offsets(self, text: str) -> None:
        """Have where deleted queues ended as another member has it, also where that is further back.

        Queues that ended further on get all their entries from the log, at once: it is read as a whole, 1.4 s
        of CPU for each million records of 220 bytes. It happens where a deletion that nobody was answered is
        taken back.

        Raises:
            StoreError: the text can't be parsed, or the disk refuses.
            StoreFull: there is no room; the same text is to be taken again later.
        """
        queues = self.queues
        offsets = queues.deleted_offsets.decode(text)
        if offsets == queues.deleted_offsets.by_topic and not self.unfilled:
            return
        self.mark_writer.wait()
        again = queues.lower_deleted_offsets(offsets)
        if again:
            QueueMark.withdraw(self.root, self.files)  # after a crash from here on all queues are made anew
            self.unfilled |= again
        if offsets != queues.deleted_offsets.by_topic:
            queues.deleted_offsets.put(offsets)
            queues.hide_deleted()
        if self.unfilled:
            logger.warning("%s: topics are there again: %s", self.root, ", ".join(sorted(self.unfilled)))
            self.fill(self.unfilled)
            self.unfilled.clear()
        queues.follow_log(self.min_offset, drop=False)
        self.try_save_mark()

    def fill(self, topics: set[str]) -> None:
        """Make all entries of some topics anew, up to what is dispatched.

        Raises:
            StoreFull: a queue has no room for its entries.
        """
        for topic in topics:
            self.queues.remove_topic(topic)
        dispatcher = self.dispatcher
        heard, newest = dispatcher.on_arrival, dispatcher.store_time_ms
        dispatcher.on_arrival = None  # they arrived before
        walk = Walk(self.read_log, self.min_offset, self.dispatched, self.file_size)
        try:
            dispatch_topics(dispatcher, walk, topics, name=self.root)
        finally:
            dispatcher.on_arrival, dispatcher.store_time_ms = heard, newest

    def run_retention(self, now_ms: int) -> int:
        """Remove the files of queues and index that point below the log's begin; return how many."""
        begin = self.min_offset
        removed = self.queues.follow_log(begin, drop=True) + self.index.follow_log(begin)
        try:
            self.queues.note_expired()
        except StoreFull as error:  # the next round tries again; meanwhile the queues' files say the same
            logger.warning("%s", error)
        return removed

    @abc.abstractmethod
    def close(self, *, clean: bool = True) -> None:
        """Stop, and release log, page, files and threads: the store may then be opened in the other role.

        Args:
            clean: finish the index, put everything on disk and write the marks.
        """

    def finish_derived(self) -> None:
        """Index the rest, and put queues and index on disk; the next start makes up for what is refused."""
        while self.options.index_enabled and self.indexer.step(
            self.dispatched, records=1 << 30, step_bytes=1 << 30
        ):
            pass
        self.try_save_mark()

    def close_derived(self) -> None:
        """Close queues and index."""
        self.mark_writer.stop()
        self.queues.close()
        self.index.close()
