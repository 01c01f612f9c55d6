"""Dispatch: writes the queue entry of every record of the log, on a slave, and on a master after a recovery.

(`MasterStore.append` writes the entry of a new record itself.) The compiled lane does what is plain, where it
is active: room is reserved for all entries of a pass before the first is written. Records of prepared and
rolled-back transactions have no entry. In the topic of delayed messages an entry carries the time of delivery
in place of the tags code.

RocketMQ: ReputMessageService.doReput, ConsumeQueue.putMessagePositionInfo,
CommitLog.checkMessageAndReturnSize.
"""

import logging
import struct
from collections.abc import Callable, Sequence

from whimbrel.errors import CorruptRecord, StoreFull
from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.store.codec import (
    HEAD_SIZES,
    MAGIC_V1,
    QUEUED_FIELDS_V4,
    RAW_DELAY,
    RAW_TAGS,
    RECORD_BYTES_MIN,
    STORE_TIMES,
    SYS_FLAG,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    UNIT,
    UNIT_SIZE,
    V6_MASK,
    property_of,
    tag_bytes_code,
    topic_and_properties,
)
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.lane_passes import FOREIGN_BYTES, LanePasses, Reach, Run
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.walk import Chunk, Walk

__all__ = ["NO_ENTRY", "Arrival", "Dispatcher", "deliver_time"]

logger = logging.getLogger(__name__)

SCHEDULE_FIELD = bytes((len(SCHEDULE_TOPIC),)) + SCHEDULE_TOPIC.encode()
UNKNOWN_DELAY_MS = 1000  # of a level without one; RocketMQ: ScheduleMessageService.computeDeliverTimestamp
HEAD_V4_SIZE = HEAD_SIZES[0]
LAST_TAGS = struct.Struct(">q")  # of an entry
TAGS_START = RAW_TAGS + b"\x01"
NO_ENTRY = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)

# Topic, queue id, queue offset, tags code; of entries that come together in one queue, those of the last one.
Arrival = Callable[[str, int, int, int], None]
FIELD_BYTES_MAX = 256  # of a topic with its length, whose name is a directory's


def deliver_time(properties: bytes, store_time_ms: int, delays_ms: tuple[int, ...], tags_code: int) -> int:
    """Return the time of delivery of a record in the delay topic, its tags code when it has no delay
    level."""
    text = property_of(properties, RAW_DELAY)
    if not text.isdigit() or not int(text):
        return tags_code
    level = min(int(text), len(delays_ms))
    return store_time_ms + (delays_ms[level - 1] if level else UNKNOWN_DELAY_MS)


def tags_of(properties: bytes) -> int:
    """Return the tags code of a property text."""
    start = properties.find(TAGS_START)
    if start < 0:
        return 0
    end = properties.find(b"\x02", start)
    if (start and properties[start - 1] != 2) or (end >= 0 and properties.find(TAGS_START, end) >= 0):
        return tag_bytes_code(property_of(properties, RAW_TAGS))
    start += len(TAGS_START)
    return tag_bytes_code(properties[start:end] if end >= 0 else properties[start:])


class Dispatcher:
    """Fills the queues from the log.

    Attributes:
        store_time_ms: of the last record that got an entry.
        log_begin: returns where the log begins.
    """

    def __init__(
        self, queues: ConsumeQueues, delays_ms: tuple[int, ...], passes: LanePasses | None = None
    ) -> None:
        self.queues = queues
        self.delays_ms = delays_ms
        self.passes = passes
        self.reach = Reach()
        self.on_arrival: Arrival | None = None
        self.log_begin: Callable[[], int] = int
        self.store_time_ms = 0

    def run(self, walk: Walk, budget_bytes: int) -> None:
        """Dispatch what a walk gives, until it stops or about `budget_bytes` are done.

        Raises:
            StoreFull: a queue has no room; the walk's position is then the record that needs it.
        """
        goal = walk.position + budget_bytes
        passes = self.passes
        while walk.position < goal:
            chunk = None
            if passes is not None and passes.lane.active:
                if self.pass_over(walk, passes):
                    continue
                chunk = walk.next_chunk(FOREIGN_BYTES)
            else:
                chunk = walk.next_chunk()
            if chunk is None:
                return
            try:
                self.dispatch(chunk)
            except StoreFull as error:
                walk.position = error.args[1]
                raise

    def pass_over(self, walk: Walk, passes: LanePasses) -> bool:
        """Have the lane dispatch plain records from the walk's position on; return whether there were any."""
        base = walk.position
        file_end = base - base % walk.file_size + walk.file_size
        available = min(walk.limit, file_end) - base
        if available < RECORD_BYTES_MIN:
            return False
        data = walk.read(base, min(self.reach.size, available))
        done = passes.entries(data, base)
        if done is None:
            return False
        size, foreign, store_time_ms, runs = done
        found = self.places_of(runs)
        self.reach.passed(foreign=foreign or found is None)
        if not size or found is None:
            return False
        for queue, entries in found:
            queue.put_packed(entries)
        self.store_time_ms = store_time_ms
        walk.position = base + size
        if self.on_arrival is not None:
            for queue, entries in found:
                (tags,) = LAST_TAGS.unpack_from(entries, len(entries) - LAST_TAGS.size)
                self.on_arrival(queue.topic, queue.queue_id, queue.max - 1, tags)
        return True

    def places_of(self, runs: Sequence[Run]) -> list[tuple[ConsumeQueue, bytes]] | None:
        """Return the queues of runs of entries, with room for them; None where one is Python's to settle."""
        by_field, found = self.queues.by_field, []
        places = self.queues.places
        given_up = places.given_up
        try:
            for field, queue_id, first, entries in runs:
                queue = by_field.get(field, {}).get(queue_id) or self.queue_for(field, queue_id)
                if queue.max != first:
                    return None
                queue.reserve(len(entries) // UNIT_SIZE)
                found.append((queue, entries))
            if places.given_up != given_up:  # room in one, for another
                wanted = [(queue, len(entries) // UNIT_SIZE) for queue, entries in found]
                if not self.queues.reserve(wanted):
                    return None
        except (CorruptRecord, StoreFull):  # of a record that Python comes to, behind those that fit
            return None
        return found

    def dispatch(self, chunk: Chunk) -> None:
        """Write the entries of a chunk's records; a record whose fields can't be right is logged and
        skipped."""
        base, data, positions = chunk
        by_field = self.queues.by_field
        on_arrival = self.on_arrival
        unpack, pack = QUEUED_FIELDS_V4.unpack_from, UNIT.pack_into
        for at in positions:
            size, magic, queue_id, queue_offset, place, sys_flag, body_length = unpack(data, at)
            if place != base + at:
                logger.error("the record at %d says that it stands at %d: it gets no entry", base + at, place)
                continue
            end = at + size
            topic_at = at + HEAD_V4_SIZE + body_length
            usual = magic == MAGIC_V1 and not sys_flag & V6_MASK and body_length >= 0 and topic_at < end
            properties_at = topic_at + 3 + data[topic_at] if usual else end + 1
            if properties_at <= end:
                field = data[topic_at : properties_at - 2]
                properties = data[properties_at:end]
            else:
                try:
                    topic, properties = topic_and_properties(data, at)
                except CorruptRecord as error:
                    logger.error("the record at %d is damaged, %s: it gets no entry", place, error)
                    continue
                field = bytes((min(len(topic), 255),)) + topic
            if sys_flag & TRANSACTION_MASK in NO_ENTRY:
                continue
            tags = tags_of(properties)
            if field == SCHEDULE_FIELD:
                (stored_ms,) = STORE_TIMES[sys_flag & V6_MASK].unpack_from(data, at)
                tags = deliver_time(properties, stored_ms, self.delays_ms, tags)
            try:
                queue = by_field[field][queue_id]
            except KeyError:
                try:
                    queue = self.queue_for(field, queue_id)
                except CorruptRecord as error:
                    logger.error("at %d: %s: it gets no entry", place, error)
                    continue
                except StoreFull as error:
                    raise StoreFull(str(error), place) from error
            try:
                if queue_offset == queue.max:
                    if queue_offset < queue.room and queue_offset < queue.limit and queue.mapped is not None:
                        # `ConsumeQueue.put`, inlined: catching up consists of this line.
                        pack(queue.mapped, (queue_offset - queue.base) * UNIT_SIZE, place, size, tags)
                        index = queue_offset
                        queue.max = index + 1
                    else:
                        queue.reserve(1)
                        index = queue.put(place, size, tags)
                else:
                    index = queue.put_at(queue_offset, place, size, tags, self.log_begin())
            except StoreFull as error:
                raise StoreFull(str(error), place) from error
            queue.dirty = True
            if on_arrival is not None and index >= 0:
                on_arrival(queue.topic, queue_id, index, tags)
        if positions:
            at = positions[-1]
            (sys_flag,) = SYS_FLAG.unpack_from(data, at)
            (self.store_time_ms,) = STORE_TIMES[sys_flag & V6_MASK].unpack_from(data, at)

    def queue_for(self, field: bytes, queue_id: int) -> ConsumeQueue:
        """Return a queue that is not in the table yet."""
        topic = field[1:].decode("utf-8", "replace")
        # What is no UTF-8 is replaced by three bytes.
        too_long = max(len(field), 1 + len(topic.encode())) > FIELD_BYTES_MAX
        if queue_id < 0 or topic in ("", ".", "..") or not {"/", "\0"}.isdisjoint(topic) or too_long:
            # As a path, the topic would name another directory, or none.
            raise CorruptRecord(f"a record of topic {topic!r}, queue {queue_id}")
        queue = self.queues.get_or_create(topic, queue_id)
        self.queues.by_field.setdefault(field, {})[queue_id] = queue
        return queue
