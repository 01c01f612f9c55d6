"""MasterStore: the store of a master, which owns the log's writer.

A send takes these steps, all on the broker's thread: room in the queue, room in the log, the record in one
slice store, the queue entry, the keys queued. At the end of the tick `end_tick` moves the shared mark once
and builds a bounded part of the index.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from whimbrel.errors import BadRequest, MessageTooLarge, StoreFull
from whimbrel.store.checkpoint import write_checkpoint
from whimbrel.store.codec import (
    BLANK_SIZE_MIN,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    RecordDraft,
    encode_record,
    record_size,
)
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.dispatch import NO_ENTRY, SCHEDULE_TOPIC, deliver_time
from whimbrel.store.options import StoreOptions
from whimbrel.store.store import RETRY_S, MessageStore, raise_file_limit

__all__ = ["Appended", "MasterStore"]


class Appended(NamedTuple):
    """Where a message went; `end` is the log offset that flush and replicas must reach for it to be safe."""

    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int
    end: int


class MasterStore(MessageStore):
    """A store opened for writing.

    Attributes:
        writer: the log.
        on_flushed: called with the new flushed offset, from the flush thread.
    """

    def __init__(
        self, root: Path, options: StoreOptions, writer: LogWriter, *, clock: Callable[[], int]
    ) -> None:
        """Take an open log; `clock` gives epoch milliseconds."""
        super().__init__(
            root,
            options,
            writer.page,
            read_log=writer.segments.read,
            read_range=writer.read,
            file_size=writer.file_size,
        )
        self.writer, self.clock = writer, clock

    @classmethod
    def open(cls, root: Path, options: StoreOptions, *, clock: Callable[[], int]) -> Self:
        """Open a store for writing: lock it, recover log, queues and index, publish a new epoch.

        Raises:
            StoreError: it is in use, or its files can't be a store.
        """
        raise_file_limit()
        writer = LogWriter.open(root, options, clock=clock)
        store = None
        try:
            store = cls(root, options, writer, clock=clock)
            store.recover_derived(writer.mark, writer.begin, writer.end, clean=writer.was_clean)
        except BaseException:
            if store is not None:
                store.close_derived()
            writer.close(clean=False)
            raise
        store.page.dispatched = store.dispatched
        return store

    # Writing.

    def append(self, draft: RecordDraft) -> Appended:
        """Append one message: log, queue entry, keys queued.

        Raises:
            NotWritable: the disk refused a sync.
            StoreFull: no room on disk; nothing was stored.
            MessageTooLarge, PropertiesTooLarge, IllegalTopic: the message can't be stored.
        """
        log = self.writer
        if self.lagging or log.disk.ratio > self.options.disk_full_ratio:
            self.check_writable()
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
        self.check_writable()
        log = self.writer
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

    def check_writable(self) -> None:
        """Refuse what can't be appended for want of room.

        Raises:
            StoreFull: the disk is full, or the queues had no room for an entry.
        """
        log = self.writer
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

    @property
    def writable(self) -> bool:
        """Whether the store takes appends, as far as the disk goes."""
        return not self.full_reason and not self.writer.failed

    @property
    def full_reason(self) -> str:
        """Why the disk has no room; "" when it has."""
        return self.lagging or self.writer.disk_refusal or self.writer.full_reason

    def end_tick(self) -> bool:
        """Publish what was appended, index a bounded part of it, move the mark now and then.

        Returns:
            Whether the index has more to do: call again soon then, even if nothing is appended. What makes no
            group yet does not count: `index_rest` is for that.
        """
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
        """Ask for a flush up to a log offset; `on_flushed` is called when it is done."""
        self.writer.request_flush(end)

    @property
    def on_flushed(self) -> Callable[[int], None] | None:
        """What the flush thread calls."""
        return self.writer.on_flushed

    @on_flushed.setter
    def on_flushed(self, callback: Callable[[int], None] | None) -> None:
        self.writer.on_flushed = callback

    # The log's range.

    @property
    def written(self) -> int:
        """End of the log."""
        return self.writer.end

    @property
    def flushed(self) -> int:
        """End of what is on disk."""
        return self.writer.flushed

    @property
    def min_offset(self) -> int:
        """Begin of the log."""
        return self.writer.begin

    # Upkeep.

    def run_retention(self, now_ms: int) -> int:
        """Remove log files that may go, and files of queues and index that follow; return how many."""
        return self.writer.run_retention(now_ms) + super().run_retention(now_ms)

    def close(self, *, clean: bool = True) -> None:
        """Stop, see the base; also removes `abort` when `clean`, and releases the log's lock."""
        if clean:
            self.finish_derived()
            if self.index.files:
                write_checkpoint(self.root, index_ms=self.index.files[-1].end_ms)
        self.close_derived()
        self.writer.close(clean=clean)
