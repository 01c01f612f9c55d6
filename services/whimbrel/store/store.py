"""MessageStore: the face of the store for the broker, on a master and on a slave.

On a master it owns the log's writer. A send takes these steps, all on the broker's thread: room in the
queue, room in the log, the record in one slice store, the queue entry, the keys queued. At the end of the
tick `end_tick` moves the shared mark once and builds a bounded part of the index.

On a slave the log is the replicator's; `dispatch_ready` walks what has arrived and fills queues, then the
index.

Both start with what `rebuild.py` makes of the queues and the index on disk.
"""

import logging
import resource
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from whimbrel.errors import (
    BadRequest,
    CorruptRecord,
    IllegalOffset,
    MessageTooLarge,
    NotRecovered,
    NotWritable,
    StoreError,
    StoreFull,
)
from whimbrel.store.checkpoint import write_checkpoint
from whimbrel.store.codec import (
    BLANK_SIZE_MIN,
    MAGIC_V1,
    MAGIC_V2,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    RecordDraft,
    decode_record,
    encode_record,
    keys_of,
    record_size,
)
from whimbrel.store.commitlog import LogReader, LogWriter
from whimbrel.store.dispatch import NO_ENTRY, SCHEDULE_TOPIC, STORE_TIMES, Arrival, Dispatcher, deliver_time
from whimbrel.store.index import Index
from whimbrel.store.indexer import Indexer
from whimbrel.store.mark_writer import MarkWriter
from whimbrel.store.options import StoreOptions, parse_delay_levels
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.rebuild import cut_index, cut_queues, dispatch_log
from whimbrel.store.recovery_marks import LogMark, QueueMark
from whimbrel.store.shared_page import SharedPage, boot_id
from whimbrel.store.walk import Walk

__all__ = ["Appended", "MessageStore"]

logger = logging.getLogger(__name__)

RECORD_EXTRA_BYTES_MAX = 64 * 1024  # a record may be this much larger than the largest body (RocketMQ 5.x)
MARK_BYTES = 64 * 1024 * 1024  # as in commitlog: the mark moves after so much log ...
MARK_INTERVAL_S = 5.0  # ... or after so long
CATCH_UP_BYTES = 32 * 1024 * 1024  # of log indexed before the store opens, or before a search by key
OPEN_FILES_WANTED = 65536  # a mapped queue file holds a descriptor, and the usual soft limit is 1024
RETRY_S = 0.5  # queues without room: how often an append tries again
SIZE_AND_MAGIC = struct.Struct(">iI")
PREFIX_FLAGS = struct.Struct(">36xi")

Unit = tuple[int, int, int]


class Appended(NamedTuple):
    """Where a message went; `end` is the log offset that flush and replicas must reach for it to be safe."""

    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int
    end: int


class MessageStore:
    """A store opened by `open_master` or `open_slave`. All methods are for one thread.

    Attributes:
        on_flushed: called with the new flushed offset, from the flush thread (master).
        on_arrival: called for each entry written to a queue, with topic, queue id, queue offset and tags
        code. dispatched: every record below is in its queue.
    """

    def __init__(
        self,
        root: Path,
        options: StoreOptions,
        clock: Callable[[], int],
        writer: LogWriter | None,
        reader: LogReader | None,
        page: SharedPage,
    ) -> None:
        self.root, self.options, self.clock, self.writer, self.reader, self.page = (
            root,
            options,
            clock,
            writer,
            reader,
            page,
        )
        self.read_log: Callable[[int, int], bytes]
        if writer is not None:
            self.read_log, self.file_size = writer.segments.read, writer.file_size
        else:
            assert reader is not None
            self.read_log, self.file_size = reader.read, reader.file_size
        self.delays_ms = parse_delay_levels(options.delay_levels)
        self.queues = ConsumeQueues(root, options.consumequeue_file_size)
        self.dispatcher = Dispatcher(self.queues, self.delays_ms)
        self.index = Index(root, options)
        self.indexer = Indexer(self.index, self.read_log, self.file_size)
        self.marker = MarkWriter(root)
        self.dispatched = self.cut_seen = 0
        self.epoch = 0
        self.kept = 0  # what the log has held without a break since it was open the last time ends here
        self.on_cut: Callable[[int], None] | None = None  # slave: told where the log was cut
        self.lagging = ""  # why queues could not follow the log; "" when they do
        self.retry_at = 0.0
        self.store_time_ms = 0
        self.marked_offset = 0
        self.marked_at = 0.0
        self.reported_fault = -1

    @classmethod
    def open_master(cls, root: Path, options: StoreOptions, *, clock: Callable[[], int]) -> "MessageStore":
        """Open a store for writing: lock it, recover log, queues and index, publish a new epoch.

        Raises:
            StoreError: it is in use, or its files can't be a store.
        """
        raise_file_limit()
        writer = LogWriter.open(root, options, clock=clock)
        try:
            store = cls(root, options, clock, writer, None, writer.page)
            store.recover_derived(writer.mark, writer.begin, writer.end, clean=writer.was_clean)
        except BaseException:
            writer.close(clean=False)
            raise
        store.page.dispatched = store.dispatched
        return store

    @classmethod
    def open_slave(cls, root: Path, options: StoreOptions, *, clock: Callable[[], int]) -> "MessageStore":
        """Open a store whose log another process writes: recover queues and index up to what it has
        recovered.

        Raises:
            NotRecovered: the log is not recovered yet.
            StoreError: the files of queues or index can't be a store's.
        """
        raise_file_limit()
        page = SharedPage.open(root)
        epoch = page.epoch
        if not epoch:
            page.close()
            raise NotRecovered(f"the log in {root} is not recovered yet")
        try:
            reader = LogReader.open(root, page=page)
            store = cls(root, options, clock, None, reader, page)
            store.epoch = epoch
            mark = load_log_mark(root)
            store.recover_derived(mark, page.begin, page.written, clean=False)
        except BaseException:
            page.close()
            raise
        page.dispatched = store.dispatched
        return store

    # Recovery of what can be derived from the log.

    def recover_derived(self, log_mark: LogMark, begin: int, end: int, *, clean: bool) -> None:
        """Cut queues and index to what the log and their mark vouch for, then fill them again."""
        self.queues = ConsumeQueues.load(self.root, self.options.consumequeue_file_size)
        self.dispatcher.queues = self.queues
        mark = QueueMark.load(self.root)
        self.dispatched = cut_queues(self.queues, mark, log_mark, begin, end, self.read_log)
        lowest = log_mark.lowest_end_since(mark.cut) if mark is not None else -1
        self.kept = end if lowest is None else min(max(lowest, begin), end)
        self.cut_seen = log_mark.cut
        self.dispatch_to(end, skip_damage=self.dispatched == begin)
        self.queues.follow_log(begin, drop=False)
        self.store_time_ms = self.dispatcher.store_time_ms or self.last_store_time(end)
        if self.options.index_enabled:
            cut_index(
                self.index,
                self.root,
                mark,
                log_mark,
                begin,
                end,
                clean=clean,
                read=self.read_log,
                file_size=self.file_size,
            )
            self.indexer.step(self.dispatched, step_bytes=CATCH_UP_BYTES)
        self.save_mark()

    def dispatch_to(self, end: int, *, skip_damage: bool) -> None:
        """Dispatch up to `end`; notes in `lagging` why it did not come that far."""
        walk = Walk(self.read_log, self.dispatched, end, self.file_size)
        try:
            dispatch_log(self.dispatcher, walk, skip_damage=skip_damage, name=self.root)
        except StoreFull as error:
            self.lagging = str(error)
        else:
            self.lagging = ""
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
            head = self.read_log(physical_offset, 80)
        except IllegalOffset:
            return 0
        if len(head) < 80 or SIZE_AND_MAGIC.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
            return 0
        (sys_flag,) = PREFIX_FLAGS.unpack_from(head)
        return int(STORE_TIMES[sys_flag & 0x30].unpack_from(head)[0])

    # Writing.

    def append(self, draft: RecordDraft) -> Appended:
        """Append one message: log, queue entry, keys queued.

        Raises:
            NotWritable: this is a slave, or the disk refused a sync.
            StoreFull: no room on disk; nothing was stored.
            MessageTooLarge, PropertiesTooLarge, IllegalTopic: the message can't be stored.
        """
        log = self.writer
        if log is None or self.lagging or log.disk.ratio > self.options.disk_full_ratio:
            log = self.check_writable()
        if len(draft.body) > self.options.message_bytes_max:
            raise MessageTooLarge(f"a body of {len(draft.body)} bytes, over {self.options.message_bytes_max}")
        if draft.properties.endswith(b"\0"):
            raise BadRequest(
                "properties that end in a zero byte: recovery could not tell them from torn ones"
            )
        topic, queue_id, keys = draft.topic, draft.queue_id, draft.keys
        queue = self.queues.by_key.get((topic, queue_id))
        if queue is None:
            queue = self.queues.need(topic, queue_id)
        kind = draft.sys_flag & TRANSACTION_MASK
        entered = kind not in NO_ENTRY
        queue_offset = queue.max
        if entered:
            if queue_offset >= queue.room:
                queue.reserve(1)
        else:
            queue_offset = 0
        now = self.clock()
        if now < self.store_time_ms:
            now = self.store_time_ms  # a clock set back must not put times in a queue out of order
        physical_offset = log.end
        record = encode_record(draft, physical_offset, queue_offset, now)
        size = len(record)
        if physical_offset + size + BLANK_SIZE_MIN > log.limit or log.failed:
            physical_offset = log.reserve(size)  # it goes into the next file
            record = encode_record(draft, physical_offset, queue_offset, now)
        log.put(record)
        self.store_time_ms = log.store_time_ms = now
        if entered:
            tags = draft.tags_code
            if topic == SCHEDULE_TOPIC:
                tags = deliver_time(draft.properties, now, self.delays_ms, tags)
            queue.put(physical_offset, size, tags)
            queue.dirty = True
        self.dispatched = end = log.end
        if keys and kind != TRANSACTION_ROLLBACK and self.options.index_enabled:
            self.indexer.add(topic, keys, physical_offset, now)
        if entered and self.on_arrival is not None:
            self.on_arrival(topic, queue_id, queue_offset, tags)
        return Appended(queue_offset, physical_offset, size, now, end)

    def append_batch(self, drafts: Sequence[RecordDraft]) -> list[Appended]:
        """Append messages of one topic and queue next to each other, all or none.

        Raises:
            BadRequest: several topics or queues, or a transaction's message among them.
            NotWritable, StoreFull, MessageTooLarge, PropertiesTooLarge, IllegalTopic: as in `append`.
        """
        log = self.check_writable()
        if not drafts:
            return []
        topic, queue_id = drafts[0].topic, drafts[0].queue_id
        sizes = []
        for draft in drafts:
            if draft.topic != topic or draft.queue_id != queue_id or draft.sys_flag & TRANSACTION_MASK:
                raise BadRequest("a batch is for one queue and holds no transaction")
            if len(draft.body) > self.options.message_bytes_max:
                raise MessageTooLarge(
                    f"a body of {len(draft.body)} bytes, over {self.options.message_bytes_max}"
                )
            if draft.properties.endswith(b"\0"):
                raise BadRequest("properties that end in a zero byte")
            sizes.append(record_size(draft))
        queue = self.queues.need(topic, queue_id)
        queue.reserve(len(drafts))
        place = log.reserve(sum(sizes))
        now = max(self.clock(), self.store_time_ms)
        first = queue.max
        records, answers = [], []
        for number, draft in enumerate(drafts):
            records.append(encode_record(draft, place, first + number, now))
            answers.append(Appended(first + number, place, sizes[number], now, place + sizes[number]))
            place += sizes[number]
        log.put(b"".join(records))
        self.store_time_ms = log.store_time_ms = now
        for draft, answer in zip(drafts, answers, strict=True):
            tags = draft.tags_code
            if topic == SCHEDULE_TOPIC:
                tags = deliver_time(draft.properties, now, self.delays_ms, tags)
            queue.put(answer.physical_offset, answer.size, tags)
            if draft.keys and self.options.index_enabled:
                self.indexer.add(topic, draft.keys, answer.physical_offset, now)
        queue.dirty = True
        self.dispatched = log.end
        if self.on_arrival is not None:
            for draft, answer in zip(drafts, answers, strict=True):
                self.on_arrival(topic, queue_id, answer.queue_offset, draft.tags_code)
        return answers

    def check_writable(self) -> LogWriter:
        """Return the writer if appending may be tried.

        Raises:
            NotWritable, StoreFull: it may not.
        """
        log = self.writer
        if log is None:
            raise NotWritable("this broker is a slave")
        if log.disk_refusal and time.monotonic() >= log.disk_retry_at:
            log.measure_disk()
        if log.disk_refusal:
            raise StoreFull(log.disk_refusal)
        if self.lagging:
            now = time.monotonic()
            if now < self.retry_at:
                raise StoreFull(self.lagging)
            self.retry_at = now + RETRY_S
            self.dispatch_to(log.end, skip_damage=False)
            if self.lagging:
                raise StoreFull(self.lagging)
        return log

    @property
    def writable(self) -> bool:
        """Whether the store takes appends, as far as the disk goes."""
        return self.writer is not None and not self.full_reason and not self.writer.failed

    @property
    def full_reason(self) -> str:
        """Why the disk has no room; "" when it has."""
        log = self.writer
        return self.lagging or (log.disk_refusal or log.full_reason if log is not None else "")

    def end_tick(self) -> bool:
        """Publish what was appended, index a bounded part of it, move the mark now and then.

        Returns:
            Whether the index has more to do: call again soon then, even if nothing is appended. What makes no
            group yet does not count: `index_rest` is for that.
        """
        if self.writer is not None:
            self.writer.publish()
        self.page.dispatched = self.dispatched
        more = self.options.index_enabled and self.indexer.step(self.dispatched, rest=False)
        self.advance_mark()
        return more

    def index_rest(self) -> None:
        """Index what the last ticks left over; to be called some time after each."""
        if self.options.index_enabled:
            self.indexer.step(self.dispatched)

    def request_flush(self, end: int) -> None:
        """Ask for a flush up to a log offset; `on_flushed` tells when it is done (master)."""
        assert self.writer is not None
        self.writer.request_flush(end)

    @property
    def on_flushed(self) -> Callable[[int], None] | None:
        """What the flush thread calls."""
        return self.writer.on_flushed if self.writer is not None else None

    @on_flushed.setter
    def on_flushed(self, callback: Callable[[int], None] | None) -> None:
        if self.writer is not None:  # a slave's log is flushed by its replicator
            self.writer.on_flushed = callback

    @property
    def on_arrival(self) -> Arrival | None:
        """What is called for each queue entry."""
        return self.dispatcher.on_arrival

    @on_arrival.setter
    def on_arrival(self, callback: Arrival | None) -> None:
        self.dispatcher.on_arrival = callback

    # Marks.

    @property
    def written(self) -> int:
        """End of the log."""
        return self.writer.end if self.writer is not None else self.page.written

    @property
    def flushed(self) -> int:
        """End of what is on disk."""
        return self.writer.flushed if self.writer is not None else self.page.flushed

    @property
    def min_offset(self) -> int:
        """Begin of the log."""
        return self.writer.begin if self.writer is not None else self.page.begin

    def advance_mark(self) -> None:
        """Hand a mark to the marker thread, when it is time and the last one is done."""
        now = time.monotonic()
        due = self.dispatched - self.marked_offset >= MARK_BYTES or now - self.marked_at >= MARK_INTERVAL_S
        if not due or self.dispatched == self.marked_offset or self.marker.busy:
            return
        self.marked_at = now
        self.marked_offset = self.dispatched
        self.marker.submit(*self.mark_job())

    def mark_job(self) -> tuple[QueueMark, set[Path], set[Path], int]:
        """Return a mark of this moment, what must be synced before it is written, and a store time."""
        queues, entries = self.queues.totals()
        files, directories = self.queues.take_dirty()
        indexed = min(self.index.position, self.dispatched) if self.options.index_enabled else 0
        files.update(self.index.take_dirty())
        mark = QueueMark(
            self.dispatched, indexed, self.cut_seen, queues, entries, self.index.end_offset, boot_id()
        )
        return mark, files, directories, self.store_time_ms or self.dispatcher.store_time_ms

    def save_mark(self) -> None:
        """Write the mark now, waiting for the disk."""
        self.marker.wait()
        self.marked_offset, self.marked_at = self.dispatched, time.monotonic()
        self.marker.write(*self.mark_job())

    # Reading.

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (first offset, next offset) of a queue; (0, 0) when it is unknown."""
        queue = self.queues.by_key.get((topic, queue_id))
        return (queue.min, queue.max) if queue is not None else (0, 0)

    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]:
        """Return up to `count` entries from an offset on: (physical offset, size, tags code).

        An entry of size 0x7FFFFFFF stands for a message that this store never had.
        """
        queue = self.queues.by_key.get((topic, queue_id))
        return queue.units(offset, count) if queue is not None else []

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return a record's bytes.

        Raises:
            IllegalOffset: it is not in the log (any more).
            CorruptRecord: what stands there is no record of that size.
        """
        log = self.writer
        if log is not None:
            if not log.begin <= physical_offset or physical_offset + size > log.end:
                raise IllegalOffset(
                    f"{physical_offset} is outside the log, which is {log.begin} to {log.end}"
                )
            data = log.read(physical_offset, size)
        else:
            assert self.reader is not None
            data = self.reader.read(physical_offset, size)
        if len(data) != size or size < 8:
            raise CorruptRecord(f"no record of {size} bytes at {physical_offset}")
        stored, magic = SIZE_AND_MAGIC.unpack_from(data)
        if stored != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
            raise CorruptRecord(f"no record of {size} bytes at {physical_offset}")
        return data

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the first offset whose record was stored at or after a time, else the queue's end."""
        queue = self.queues.by_key.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min, queue.max
        while low < high:
            middle = (low + high) // 2
            unit = queue.units(middle, 1)
            if not unit or self.store_time_of(unit[0][0]) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def find_by_key(
        self, topic: str, key: str, *, limit: int = 64, begin: int = 0, end: int = 2**63 - 1
    ) -> list[int]:
        """Return the physical offsets of records of a topic with a key, newest first.

        Args:
            begin: earliest store time, ms.
            end: latest store time, ms.
        """
        if not self.options.index_enabled:
            return []
        self.indexer.step(self.dispatched, records=len(self.indexer.pending), step_bytes=CATCH_UP_BYTES)
        found: list[int] = []
        log_begin = self.min_offset
        # A stored time is rounded down to the second of a file's begin, so the index is asked for a little
        # more.
        candidates = self.index.find(topic, key, limit=limit * 4, begin_ms=max(0, begin - 1000), end_ms=end)
        for physical_offset in candidates:
            if physical_offset < log_begin or len(found) >= limit:
                continue
            try:
                head = SIZE_AND_MAGIC.unpack_from(self.read_log(physical_offset, 8))
                message = decode_record(self.read(physical_offset, head[0]), check_crc=False)
            except (CorruptRecord, IllegalOffset, struct.error):
                continue
            if message.topic == topic and key in keys_of(message.properties_raw):
                if begin <= message.store_timestamp <= end and physical_offset not in found:
                    found.append(physical_offset)
        return found

    # Following the log of another process.

    def dispatch_ready(self, budget_bytes: int) -> bool:
        """Slave: dispatch about `budget_bytes` of what the log has; return whether more is there.

        With nothing to dispatch it builds the index.
        """
        if self.page.epoch != self.epoch:
            if not self.page.epoch:
                return False
            self.log_epoch_changed()
        end = self.page.written
        begin = self.page.begin
        if self.dispatched < begin:
            self.dispatched = begin
        if self.dispatched < end and time.monotonic() >= self.retry_at:
            walk = Walk(self.read_log, self.dispatched, end, self.file_size)
            try:
                self.dispatcher.run(walk, budget_bytes)
                self.lagging = ""
            except StoreFull as error:
                self.lagging = str(error)
                self.retry_at = time.monotonic() + RETRY_S
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
            self.indexer.fall_behind()
            return self.indexer.step(self.dispatched, step_bytes=budget_bytes)
        return False

    def log_epoch_changed(self) -> None:
        """Slave: the log was recovered again; cut queues and index to the lowest end it has had since."""
        epoch = self.page.epoch
        if not epoch or epoch == self.epoch:
            return
        self.epoch = epoch
        log_mark = load_log_mark(self.root)
        lowest = log_mark.lowest_end_since(self.cut_seen)
        begin = self.page.begin
        limit = begin if lowest == -1 else self.dispatched if lowest is None else max(lowest, begin)
        self.marker.wait()
        if limit < self.dispatched:
            logger.warning("%s: the log was cut to %d; queues and index follow", self.root, limit)
            self.queues.cut(limit)
            self.queues.follow_log(begin, drop=False)
            self.index.cut(limit)
            self.dispatched = limit
        self.cut_seen = log_mark.cut
        self.page.dispatched = self.dispatched
        self.save_mark()
        if self.on_cut is not None:
            self.on_cut(limit)

    # Upkeep.

    def topics_on_disk(self) -> dict[str, set[int]]:
        """Return the queues there are, by topic."""
        found: dict[str, set[int]] = {}
        for queue in self.queues:
            if queue.max > queue.floor:
                found.setdefault(queue.topic, set()).add(queue.queue_id)
        return found

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic; its records stay in the log until that is removed."""
        self.marker.wait()
        self.queues.retire_topic(topic)
        self.save_mark()

    def raise_floors(self, text: str) -> None:
        """Slave: take over where the master's deleted queues ended, see `floors.py`."""
        self.marker.wait()
        self.queues.raise_floors(text)
        self.queues.follow_log(self.min_offset, drop=False)
        self.save_mark()

    def run_retention(self, now_ms: int) -> int:
        """Remove log files that may go (master) and files of queues and index that follow; count them."""
        removed = self.writer.run_retention(now_ms) if self.writer is not None else 0
        begin = self.min_offset
        removed += self.queues.follow_log(begin, drop=True)
        removed += self.index.follow_log(begin)
        return removed

    def close(self, *, clean: bool = True) -> None:
        """Stop. `clean` finishes the index, puts everything on disk and marks it as whole."""
        if clean:
            while self.options.index_enabled and self.indexer.step(
                self.dispatched, records=1 << 30, step_bytes=1 << 30
            ):
                pass
            self.save_mark()
            if self.index.files and self.writer is not None:
                write_checkpoint(self.root, index_ms=self.index.files[-1].end_ms)
        self.marker.stop()
        self.queues.close()
        self.index.close()
        if self.writer is not None:
            self.writer.close(clean=clean)
        else:
            assert self.reader is not None
            self.reader.close()
            self.page.close()


def load_log_mark(root: Path) -> LogMark:
    """Read the log's mark while its owner may be writing it.

    Raises:
        StoreError: it can't be read, although the log is recovered.
    """
    for _ in range(100):
        mark = LogMark.load(root)
        if mark is not None:
            return mark
    raise StoreError(f"the log mark of {root} can't be read")


def raise_file_limit() -> None:
    """Let this process keep a file open for each queue."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
