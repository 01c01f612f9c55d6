"""MasterStore: the store of a master, which owns the log's writer.

An append takes these steps, all on the broker's thread: the record encoded and checked, room in the queue,
room in the log, the record written by one slice assignment, the queue entry, the keys queued for the index.
At the end of the tick `end_tick` publishes the log's end once and indexes a bounded part.

Where a majority commits, the last two steps wait until the record is committed (`uncommitted.py`, `commit`).
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from whimbrel.errors import BadRequest, MessageTooLarge, StoreFull
from whimbrel.machine import MACHINE, Machine, open_files_limit
from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.store.checkpoint import write_checkpoint
from whimbrel.store.codec import (
    BLANK_SIZE_MIN,
    FILLER_SIZE,
    RECORD_BYTES_MAX,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    UNIT,
    UNIT_SIZE,
    RecordDraft,
    encode_record,
    encode_sealed,
    tag_keys_of,
)
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.dispatch import NO_ENTRY, deliver_time
from whimbrel.store.options import StoreOptions
from whimbrel.store.store import RETRY_S, MessageStore
from whimbrel.store.uncommitted import PackedRun, Uncommitted, UncommittedGroup

__all__ = ["Appended", "MasterStore"]

# How far the clock may be set back with store times waiting for it. Steps of a clock that is kept by NTP are
# far below a second.
CLOCK_BEHIND_MAX_MS = 60_000

Encoder = Callable[[RecordDraft, int, int, int], bytes]

logger = logging.getLogger(__name__)


class Appended(NamedTuple):
    """Where a message was stored; it is safe when flush and replicas have reached the log offset `end`."""

    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int
    end: int


class MasterStore(MessageStore):
    """A store opened for writing.

    Attributes:
        writer: of the log.
        encoder: of records; with or without a CRC of all their bytes (`codec.py`).
        uncommitted: what is not committed yet; None: records are seen as soon as they are appended.
        on_flushed: called with the new flushed offset, by the flush thread.
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
            machine=writer.machine,
        )
        self.writer, self.clock = writer, clock
        self.uncommitted: Uncommitted | None = None
        self.given_at = (-1, "")  # a place in the log, and how far the queues had come there
        self.encoder: Encoder = encode_sealed if options.append_property_crc else encode_record

    @classmethod
    def open(
        cls,
        root: Path,
        options: StoreOptions,
        *,
        clock: Callable[[], int],
        committed: int | None = None,
        by_member: bool = False,
        machine: Machine = MACHINE,
    ) -> Self:
        """Open a store for writing: lock it, recover log, queues and index, publish a new epoch.

        Args:
            root, options, machine: where it is, and what it runs on.
            clock: gives epoch milliseconds.
            committed: the log below is known to be committed, and what is behind it waits for `commit`; None:
                all of the log is to be seen.
            by_member: see `LogWriter.open`.

        Raises:
            StoreError: it is in use, or its files can't be a store.
        """
        open_files_limit()
        writer = LogWriter.open(root, options, machine=machine, by_lane=True, by_member=by_member)
        store = None
        try:
            store = cls(root, options, writer, clock=clock)
            store.recover_derived(
                writer.mark, writer.begin, writer.end, clean=writer.was_clean, committed=committed
            )
            if committed is not None:
                store.uncommitted = Uncommitted(store.dispatched)
                store.take_uncommitted()
        except BaseException:
            if store is not None:
                store.close_derived()
            writer.close(clean=False)
            raise
        store.page.dispatched = store.dispatched
        return store

    # Writing.

    def append(self, drafts: Sequence[RecordDraft]) -> list[Appended]:
        """Append messages of one queue next to each other in the log, all or none: records, queue entries,
        and their keys queued for the index.

        The store refuses only what it can't keep or recover. What clients may send (topic, type, sizes,
        properties) is checked before, so that a record which the broker makes itself is not refused for being
        longer than the stored one that it was made from.

        Args:
            drafts: one, which may be a transaction's, or several of the same queue, which may not.

        Raises:
            NotWritable: the disk refused a sync.
            StoreFull: no room on disk for a record or its queue entry.
            MessageTooLarge: a record over `RECORD_BYTES_MAX`, or records that do not fit into one log file.
            PropertiesTooLarge, IllegalTopic: too long for their length fields.
            BadRequest: properties that end in a zero byte, or drafts that make no batch.
        """
        log = self.writer
        if self.stall_reason or log.disk.ratio > self.options.disk_full_ratio:
            self.check_writable()
        if len(drafts) != 1:
            return self.append_several(drafts)
        draft = drafts[0]
        topic, queue_id = draft.topic, draft.queue_id
        queue = self.queues.by_key.get((topic, queue_id))
        if queue is None:
            queue = self.queues.get_or_create(topic, queue_id)
        entered = draft.sys_flag & TRANSACTION_MASK not in NO_ENTRY
        waiting = self.uncommitted
        queue_offset = queue.max if entered else 0
        if waiting is not None and entered:
            queue_offset += queue.uncommitted
        now = self.clock()
        if now < self.store_time_ms:
            now = self.store_time(now)
        place, text = log.end, draft.properties
        record = self.encoder(draft, place, queue_offset, now)
        size = len(record)
        if size > RECORD_BYTES_MAX or text.endswith(b"\0"):
            raise unfit(text, size)
        if entered and queue_offset >= queue.room:
            queue.reserve(queue_offset - queue.max + 1)
        if place + size + BLANK_SIZE_MIN > log.limit or log.failed:
            place = log.reserve(size)  # it goes into the next file
            record = encode(draft, place, queue_offset, now, self.encoder)
        log.put(record)
        self.store_time_ms = log.store_time_ms = now
        if waiting is not None:
            end = place + size
            tags = self.tags_of(draft, now)
            if entered:
                queue.uncommitted += 1
            runs = [(queue, UNIT.pack(place, size, tags), tags)] if entered else ()
            keys = self.keys_of(draft)
            keyed = [(topic, keys, place, now)] if keys else ()
            waiting.groups.append((end, runs, keyed, (), 0))
            return [Appended(queue_offset, place, size, now, end)]
        self.dispatched = end = log.end
        tags = self.dispatch(draft, queue if entered else None, place, size, now)
        if entered:
            on_arrival = self.dispatcher.on_arrival
            if on_arrival is not None:
                on_arrival(topic, queue_id, queue_offset, tags)
        return [Appended(queue_offset, place, size, now, end)]

    def append_several(self, drafts: Sequence[RecordDraft]) -> list[Appended]:
        """Do the rest of `append` for several drafts, or none. `append` inlines it for one that is seen at
        once."""
        if not drafts:
            return []
        check_batch(drafts)
        log, waiting = self.writer, self.uncommitted
        queue = self.queues.get_or_create(drafts[0].topic, drafts[0].queue_id)
        now = self.clock()
        if now < self.store_time_ms:
            now = self.store_time(now)
        place, number = log.end, queue.max + queue.uncommitted
        records, appended = self.encoded(drafts, place, now, number)
        queue.reserve(queue.uncommitted + len(drafts))
        reserved = log.reserve(sum(map(len, records)))
        if reserved != place:
            records, appended = self.encoded(drafts, reserved, now, number)
        log.put(b"".join(records))
        self.store_time_ms = log.store_time_ms = now
        if waiting is not None:
            waiting.groups.append(self.group_of(drafts, queue, appended))
        else:
            self.dispatch_several(drafts, appended)
        return appended

    def encoded(
        self, drafts: Sequence[RecordDraft], place: int, now: int, number: int
    ) -> tuple[list[bytes], list[Appended]]:
        """Return records of one queue that stand next to each other, and where each of them is.

        Args:
            drafts, place, now: what, from where on, and when it is stored.
            number: of the first one in its queue.

        Raises:
            WhimbrelError: the store can't keep one, see `encode`.
        """
        records, appended = [], []
        for draft in drafts:
            record = encode(draft, place, number, now, self.encoder)
            end = place + len(record)
            records.append(record)
            appended.append(Appended(number, place, len(record), now, end))
            place, number = end, number + 1
        return records, appended

    def dispatch_several(self, drafts: Sequence[RecordDraft], appended: Sequence[Appended]) -> None:
        """Write the entries of records just appended, and tell who waits for them."""
        self.dispatched = self.writer.end
        by_key, tags = self.queues.by_key, []
        for draft, (_, place, size, now, _) in zip(drafts, appended, strict=True):
            queue = by_key[draft.topic, draft.queue_id]
            tags.append(self.dispatch(draft, queue, place, size, now))
        on_arrival = self.dispatcher.on_arrival
        if on_arrival is not None:  # after the last entry, so that a receive that waits takes all of them
            for draft, one, tags_code in zip(drafts, appended, tags, strict=True):
                on_arrival(draft.topic, draft.queue_id, one.queue_offset, tags_code)

    def group_of(
        self, drafts: Sequence[RecordDraft], queue: ConsumeQueue, appended: Sequence[Appended]
    ) -> UncommittedGroup:
        """Return what waits for `commit` of records just appended to one queue, whose numbers are given."""
        units, keyed, tags = [], [], 0
        for draft, one in zip(drafts, appended, strict=True):
            tags = self.tags_of(draft, one.store_timestamp)
            units.append(UNIT.pack(one.physical_offset, one.size, tags))
            if keys := self.keys_of(draft):
                keyed.append((draft.topic, keys, one.physical_offset, one.store_timestamp))
        queue.uncommitted += len(units)
        return appended[-1].end, [(queue, b"".join(units), tags)], keyed, (), 0

    def room_for_packed(self) -> int:
        """Return how many bytes of records `append_packed` takes now.

        0: none, for the disk, the queues or the form of records are not as they usually are; `append` then
        says what the matter is.
        """
        log = self.writer
        refused = self.stall_reason or log.failed or log.disk.ratio > self.options.disk_full_ratio
        if refused or log.segment is None or self.encoder is not encode_record:
            return 0
        return max(log.limit - log.end - BLANK_SIZE_MIN, 0)

    def append_packed(
        self, records: bytes, runs: Sequence[PackedRun], keys: Any, count: int, now_ms: int
    ) -> bool:
        """Append records that the lane has made for where log and queues end now, all or none.

        Args:
            records: next to each other, as many as `room_for_packed` allows.
            runs: their entries.
            keys: theirs, hashed; empty where there is no index.
            count: of records.
            now_ms: their store time.

        Returns:
            Whether they were appended: none where the disk has no room for entries or refuses to write, or
            where fewer queues may be mapped than have some.
        """
        waiting = self.uncommitted
        for queue, entries, _ in runs:
            if queue.max + queue.uncommitted + len(entries) // UNIT_SIZE > queue.room:
                more = [(queue, queue.uncommitted + len(entries) // UNIT_SIZE) for queue, entries, _ in runs]
                if not self.reserve_queues(more):
                    return False
                break
        if not self.put_packed(records):
            return False
        log = self.writer
        self.store_time_ms = log.store_time_ms = now_ms
        if waiting is not None:
            for queue, entries, _ in runs:
                queue.uncommitted += len(entries) // UNIT_SIZE
            waiting.groups.append((log.end, runs, (), keys, count))
            return True
        self.dispatched = log.end
        for queue, entries, _ in runs:
            queue.put_packed(entries)
        self.indexer.add_hashed(keys, count)
        return True

    def put_packed(self, records: bytes) -> bool:
        """Put records into the log, whose file has room for them; return whether the system does."""
        log = self.writer
        try:
            log.put_packed(records)
        except OSError as error:
            logger.warning(
                "%s: %d bytes can't be written to the log at %d: %s", self.root, len(records), log.end, error
            )
            return False
        return True

    def reserve_queues(self, wanted: Sequence[tuple[ConsumeQueue, int]]) -> bool:
        """Make sure that queues have room for so many entries each; return whether all have."""
        try:
            return self.queues.reserve(wanted)
        except StoreFull:
            return False

    def make_visible(self, runs: Sequence[PackedRun]) -> None:
        """Tell who waits for messages of records just appended, unless these are not committed.

        Appending and making visible are two steps. What stands below `visible_end` may be delivered.
        """
        if self.uncommitted is None:
            self.arrived(runs)

    def arrived(self, runs: Sequence[PackedRun]) -> None:
        """Tell who waits for messages whose entries have just been written."""
        on_arrival = self.dispatcher.on_arrival
        if on_arrival is None:
            return
        for queue, _, tags in runs:
            on_arrival(queue.topic, queue.queue_id, queue.max - 1, tags)

    @property
    def visible_end(self) -> int:
        """Where the part of the log ends that may be delivered."""
        return self.writer.end if self.uncommitted is None else self.uncommitted.committed

    def commit(self, offset: int) -> bool:
        """Take it that the log is committed up to an offset: write entries and keys of the records that end
        there or before, and tell who waits for them.

        Returns:
            Whether the commit offset has moved. It does not where the disk has no room for entries (they had
            room when they were appended, but a mapping may have gone to other queues): `uncommitted.stalled`
            then says so, and the next call tries again.
        """
        waiting = self.uncommitted
        assert waiting is not None
        groups, before = waiting.groups, waiting.committed
        if not groups or groups[0][0] > offset:
            return False
        arrived: list[PackedRun] = []
        end, stalled = before, ""
        while groups and groups[0][0] <= offset:
            group_end, runs, records, hashed, hashed_records = groups[0]
            for queue, entries, _ in runs:
                if queue.max + len(entries) // UNIT_SIZE > queue.room:
                    stalled = self.lack_of_room(runs)
                    break
            if stalled:
                break
            groups.popleft()
            end = group_end
            for queue, entries, _ in runs:
                queue.put_packed(entries)
                queue.uncommitted -= len(entries) // UNIT_SIZE
            arrived += runs
            if records is None:
                self.indexer.fall_behind()
            elif hashed_records:
                self.indexer.add_hashed(hashed, hashed_records)
            else:
                for record in records:
                    self.indexer.add(*record)
        waiting.committed = self.dispatched = end
        if stalled and not waiting.stalled:
            logger.warning("%s: %s", self.root, stalled)
        waiting.stalled = stalled
        self.arrived(arrived)
        return end != before

    def lack_of_room(self, runs: Sequence[PackedRun]) -> str:
        """Make room for entries that are to be written now; return why there is none, "" where there is."""
        try:
            has_room = self.queues.reserve([(queue, len(entries) // UNIT_SIZE) for queue, entries, _ in runs])
        except StoreFull as error:
            return f"entries of committed messages wait: {error}"
        return "" if has_room else "entries of committed messages wait: too many queues at a time"

    def take_uncommitted(self) -> None:
        """Find the numbers and entries of what the log holds beyond the commit offset, after a recovery.

        The entries are made as for all other records and taken out of the queues again, so a number that the
        log gives twice is settled here as there. They become one group: a leader's own epoch begins at the
        log's end, and nothing below is committed before all of it is.
        """
        waiting = self.uncommitted
        assert waiting is not None
        begin, end, touched = self.dispatched, self.writer.end, set()
        if begin >= end:
            return

        def note(topic: str, queue_id: int, *_: int) -> None:
            touched.add((topic, queue_id))

        self.dispatcher.on_arrival = note
        self.dispatch_to(end, skip_damage=False)
        self.dispatcher.on_arrival = None
        self.dispatched = begin
        self.store_time_ms = max(self.store_time_ms, self.dispatcher.store_time_ms)
        runs: list[PackedRun] = []
        for key in sorted(touched):
            queue = self.queues.by_key[key]
            first = queue.first_from(begin)
            units = queue.units(first, queue.max - first)
            queue.truncate(begin)
            queue.go_on_at(first)  # one that is empty now has no number of its own
            gap = [(0, FILLER_SIZE, 0)] * (first - queue.max)
            queue.uncommitted = len(gap) + len(units)
            runs.append((queue, b"".join(UNIT.pack(*unit) for unit in (*gap, *units)), units[-1][2]))
        if self.stall_reason:
            raise StoreFull(f"{self.stall_reason}: free some space, and start the broker again")
        waiting.groups.append((end, runs, None, (), 0))

    def store_time(self, now_ms: int) -> int:
        """Return the store time of the next record while the clock is behind the last one's.

        A clock that is set back a little does not put times out of order. But one wrong time, far ahead, must
        not stay in the times of all later messages: the search by time copes with some that stand out
        (`MessageStore.offset_by_time`).
        """
        behind_ms = self.store_time_ms - now_ms
        if behind_ms <= CLOCK_BEHIND_MAX_MS:
            return self.store_time_ms
        logger.warning(
            "%s: the last message was stored at a time %.0f s ahead of the clock, which was or is wrong: "
            "times go on by the clock",
            self.root,
            behind_ms / 1000,
        )
        return now_ms

    def dispatch(
        self, draft: RecordDraft, queue: ConsumeQueue | None, place: int, size: int, now: int
    ) -> int:
        """Write the queue entry of a record just appended, for which there is room, and queue its keys.

        Args:
            queue: None for a transaction's record that gets no entry.

        Returns:
            What the entry carries as tags code.
        """
        tags = draft.tags_code
        if queue is not None:
            tags = self.tags_of(draft, now)
            queue.put(place, size, tags)
            queue.dirty = True
        if keys := self.keys_of(draft):
            self.indexer.add(draft.topic, keys, place, now)
        return tags

    def tags_of(self, draft: RecordDraft, now: int) -> int:
        """Return what the entry of a record carries as tags code."""
        if draft.topic == SCHEDULE_TOPIC:
            return deliver_time(draft.properties, now, self.delays_ms, draft.tags_code)
        return draft.tags_code

    def keys_of(self, draft: RecordDraft) -> tuple[str, ...]:
        """Return the keys of a record that go into the index."""
        options = self.options
        if not options.index_enabled or draft.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return ()
        return draft.keys + tag_keys_of(draft.properties) if options.index_tags else draft.keys

    def check_writable(self) -> None:
        """Refuse an append while there is no room, trying again now and then.

        Raises:
            StoreFull: the disk is full, or the queues have no room for entries.
        """
        log = self.writer
        if log.disk_refusal and self.machine.monotonic() >= log.disk_retry_at:
            log.measure_disk()
        if log.disk_refusal:
            raise StoreFull(log.disk_refusal)
        if self.stall_reason:
            now = self.machine.monotonic()
            if now < self.retry_at:
                raise StoreFull(self.stall_reason)
            self.retry_at = now + RETRY_S
            self.dispatch_to(log.end, skip_damage=False)
            if self.stall_reason:
                raise StoreFull(self.stall_reason)

    @property
    def writable(self) -> bool:
        """Whether the disk lets the store append."""
        return not self.full_reason

    @property
    def full_reason(self) -> str:
        """Why the disk takes nothing: no room, or a sync that failed; "" when it does."""
        writer = self.writer
        stalled = self.uncommitted.stalled if self.uncommitted is not None else ""
        return writer.failed or self.stall_reason or stalled or writer.disk_refusal or writer.full_reason

    def end_tick(self) -> bool:
        """Publish what was appended, index a bounded part of it, and write the queues' mark when it is due.

        Returns:
            Whether the index has full groups left: call again soon then, even without an append. For the rest
            there is `index_rest`.
        """
        self.writer.publish()
        self.page.dispatched = self.dispatched
        more = self.options.index_enabled and self.indexer.step(self.dispatched, rest=False)
        self.advance_mark()
        return more

    def index_rest(self) -> None:
        """Index what the last ticks have left; to be called some time after each."""
        if self.options.index_enabled:
            self.indexer.step(self.dispatched)

    def sync_log(self) -> None:
        """Put the log on disk, and wait for that; a sync that fails shows in `flushed`."""
        self.writer.flusher.wake()
        self.writer.flusher.wait()

    def request_flush(self, end: int) -> None:
        """Ask for a flush up to a log offset; `on_flushed` is called when it is done."""
        self.writer.request_flush(end)

    @property
    def on_flushed(self) -> Callable[[int], None] | None:
        """Called by the flush thread."""
        return self.writer.on_flushed

    @on_flushed.setter
    def on_flushed(self, callback: Callable[[int], None] | None) -> None:
        self.writer.on_flushed = callback

    @property
    def failed(self) -> str:
        """Why nothing is appended since a sync of the log failed; "" normally."""
        return self.writer.failed

    def mend(self) -> None:
        """Get over a failed sync as far as that goes now; see `LogWriter.mend`."""
        self.writer.mend()

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

    def given_offsets(self) -> tuple[int, str]:
        """Return the begin of the log's last file, and how far all queues had come there: for slaves."""
        # Queues have come to where the commit offset is.
        starts = [start for start in self.writer.segments.starts if start <= self.visible_end]
        place = max(starts[-1], self.min_offset) if starts else self.visible_end
        if self.given_at[0] != place:
            self.given_at = place, self.queues.offsets_at(place)
        return self.given_at

    def find_written(self, topic: str, key: str, *, limit: int = 64, begin: int = 0) -> list[int]:
        """Return what `find_by_key` does, and before it records that are not committed yet."""
        found = super().find_written(topic, key, limit=limit, begin=begin)
        waiting = self.uncommitted
        return found if waiting is None else [*waiting.with_key(topic, key), *found][:limit]

    # Upkeep.

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic; its records stay in the log until their files are removed."""
        doomed = list(self.queues.by_topic.get(topic, {}).values())
        super().delete_topic(topic)
        if self.uncommitted is not None:
            self.uncommitted.forget(doomed)

    def fill(self, topics: set[str]) -> None:
        """Make all entries of some topics anew; those of what is not committed wait, as at the start.

        To be called before anything is appended.
        """
        super().fill(topics)
        self.given_at = (-1, "")
        if self.uncommitted is not None:
            self.uncommitted.groups.clear()
            for queue in self.queues:
                queue.uncommitted = 0
            self.take_uncommitted()

    def run_retention(self, now_ms: int) -> int:
        """Remove log files that may go, and files of queues and index that follow; return how many."""
        return self.writer.run_retention(now_ms) + super().run_retention(now_ms)

    def close(self, *, clean: bool = True) -> None:
        """Stop; also unlocks the log, and removes `abort` when `clean`."""
        if clean:
            self.finish_derived()
            if self.index.files and self.mark_writer.written:
                with contextlib.suppress(OSError):  # it is RocketMQ's; the disk's other refusals are told
                    write_checkpoint(self.root, index_ms=self.index.files[-1].end_ms, files=self.files)
        self.close_derived()
        self.writer.close(clean=clean)


def check_batch(drafts: Sequence[RecordDraft]) -> None:
    """Refuse drafts that can't be appended together.

    Raises:
        BadRequest: several topics or queues, or a transaction's message among them.
    """
    topic, queue_id = drafts[0].topic, drafts[0].queue_id
    for draft in drafts:
        if draft.topic != topic or draft.queue_id != queue_id or draft.sys_flag & TRANSACTION_MASK:
            raise BadRequest("a batch is for one queue and holds no transaction")


def encode(draft: RecordDraft, place: int, queue_offset: int, now: int, encoder: Encoder) -> bytes:
    """Return the record of a draft.

    Raises:
        MessageTooLarge, PropertiesTooLarge, IllegalTopic, BadRequest: the store can't keep it, see
            `MasterStore.append`.
    """
    text = draft.properties
    record = encoder(draft, place, queue_offset, now)
    if len(record) > RECORD_BYTES_MAX or text.endswith(b"\0"):
        raise unfit(text, len(record))
    return record


def unfit(text: bytes, size: int) -> BadRequest | MessageTooLarge:
    """Return why the store can't keep a record of that size, with that property text."""
    if text.endswith(b"\0"):
        return BadRequest("properties that end in a zero byte: recovery could not tell them from torn ones")
    return MessageTooLarge(f"a record of {size} bytes, over {RECORD_BYTES_MAX}")
