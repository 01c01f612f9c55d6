"""Pulls of whole records as they stand in the log: what the remoting protocol answers with.

    entries ──wanted by their tags code?──► runs of records that touch ──one read a span──► pieces of the log

The compiled lane plans and checks, where it is active (`by_lane`); what is not plain is Python's from the
same entries, and so are errors.

Nothing is decoded, unless the filter asks for properties (SQL): those records are read one by one. What one
pull gets is bounded as RocketMQ bounds it: `SCANNED_MAX` entries, or the batch where that is more; messages;
bytes, of which the first message may have more. RocketMQ gives 8 messages and 64 KiB of what lies far behind
the end, which we do not: reads of the page cache and of the disk cost the same calls here.

What a pull finds, and where the next one begins (RocketMQ: DefaultMessageStore.getMessage):

    NO_MESSAGE_IN_QUEUE     the queue never had a message                              0
    OFFSET_TOO_SMALL        below the first offset                                     the first offset
    OFFSET_OVERFLOW_ONE     at the end                                                 there
    OFFSET_OVERFLOW_BADLY   beyond the end (4.9.3: 0 where the queue begins there)     the end
    FOUND                                                                              behind the last entry
    NO_MATCHED_MESSAGE      what was scanned is filtered out                           behind the last entry
    MESSAGE_WAS_REMOVING    retention has removed the records meanwhile                behind what is gone

Where the log is another broker's, and may lag behind it, an offset outside the queue stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from whimbrel.broker.consume.bulk_reader import (
    GAP_BYTES_MAX,
    SPAN_BYTES_MAX,
    FramePlan,
    RawSource,
    read_spans,
)
from whimbrel.broker.consume.filters import Filter, TagFilter
from whimbrel.errors import CorruptRecord, RangeGone
from whimbrel.store.codec import (
    FILLER_SIZE,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    UNIT,
    decode_record,
)
from whimbrel.store.lane_passes import LanePasses

__all__ = ["BYTES_MAX", "MESSAGES_MAX", "SCANNED_MAX", "RawPull", "RawRequest", "Status", "pull_raw"]

SCANNED_MAX = 800  # entries (RocketMQ: maxFilterMessageCount / CQ_STORE_UNIT_SIZE)
MESSAGES_MAX = 32  # RocketMQ: maxTransferCountOnMessageInMemory
BYTES_MAX = 262_144  # RocketMQ: maxTransferBytesOnMessageInMemory


class Status(Enum):
    """What a pull has found."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"


class RangedSource(RawSource, Protocol):
    """What is read of the store; `store.bulk_source.BulkSource` implements it."""

    def visible_range(self, topic: str, queue_id: int) -> tuple[int, int, int]: ...
    def near_units(self, topic: str, queue_id: int, offset: int, count: int) -> bytes: ...


@dataclass(slots=True)
class RawRequest:
    """What a pull asks for; `filter` decides by tags code, and those of SQL by properties."""

    topic: str
    queue_id: int
    offset: int
    messages: int
    bytes: int
    filter: Filter


@dataclass(slots=True)
class RawPull:
    """What a pull has found.

    Attributes:
        next_offset: where the next one begins.
        low, high: first offset of the queue, and its end.
        records: pieces of the log, each some whole records.
        messages: how many those are. size: their bytes.
        last_place: where the last one stands in the log; None for none.
    """

    status: Status
    next_offset: int
    low: int
    high: int
    records: Sequence[bytes | memoryview] = field(default_factory=list)
    messages: int = 0
    size: int = 0
    last_place: int | None = None


def pull_raw(
    source: RangedSource, request: RawRequest, *, follows: bool, passes: LanePasses | None = None
) -> RawPull:
    """Read one queue from an offset on.

    Args:
        source: the store. request: what is wanted.
        follows: the log is another broker's.
        passes: run the lane, where there may be one.

    Raises:
        CorruptRecord: an entry points at no record.
    """
    low, high, log_begin = source.visible_range(request.topic, request.queue_id)
    offset = request.offset
    if not low <= offset < high:
        return outside(offset, low, high, follows=follows)
    if not (request.filter.admits_all or isinstance(request.filter, TagFilter)):
        return pull_by_properties(source, request, low, high)
    codes = request.filter.codes if isinstance(request.filter, TagFilter) else None
    most, room = min(request.messages, MESSAGES_MAX), min(request.bytes, BYTES_MAX)
    found = RawPull(Status.FOUND, offset, low, high)
    last = min(high, offset + max(SCANNED_MAX, most))
    packed = source.near_units(
        request.topic, request.queue_id, offset, most if codes is None else last - offset
    )
    if passes is not None and by_lane(passes, source, found, packed, codes, most, room, log_begin):
        return found
    plan, position = FramePlan(source.file_size), offset
    count = size_sum = 0
    for place, size, code in UNIT.iter_unpack(packed):
        if (codes is not None and code & 0xFFFFFFFF not in codes) or size == FILLER_SIZE or place < log_begin:
            position += 1
            continue
        if count >= most or (count and size_sum + size > room):
            break
        if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            raise no_record(request, position, size)
        if place == plan.end and place + size <= plan.limit:
            plan.end += size
            plan.sizes.append(size)
        else:
            plan.begin_run(place, size)
        count += 1
        size_sum += size
        position += 1
        found.last_place = place
    if not count:
        found.status = Status.NO_MATCHED_MESSAGE
        found.next_offset = max(position, offset + 1)  # a hole in the queue is passed, too
        return found
    try:
        found.records = read_spans(source, plan.spans)
    except RangeGone:  # a slave's replicator has just removed the file: the entries below it are passed next
        return RawPull(Status.MESSAGE_WAS_REMOVING, offset, low, high)
    found.next_offset, found.messages, found.size = position, count, size_sum
    return found


def by_lane(
    passes: LanePasses,
    source: RangedSource,
    found: RawPull,
    packed: bytes,
    codes: frozenset[int] | None,
    most: int,
    room: int,
    log_begin: int,
) -> bool:
    """Have the lane plan a pull over entries from `found.next_offset` on, and check what was read for it; put
    the outcome into `found`.

    Returns:
        Whether it did. If not, nothing has changed: there is no lane, or an entry, a record or a read is not
        as it should be.
    """
    native = passes.lane.native
    if native is None:
        return False
    bounds = source.file_size, GAP_BYTES_MAX, SPAN_BYTES_MAX
    planned = passes.run(native.plan_pull, packed, bounds, codes, room, (most, RECORD_BYTES_MAX), log_begin)
    if planned is None:
        return False
    done, count, size, last_place, spans, plan = planned
    if not count:
        found.status = Status.NO_MATCHED_MESSAGE
        found.next_offset += max(done, 1)
        return True
    try:
        reads = [source.span(begin, end) for begin, end in spans]
    except (RangeGone, CorruptRecord):
        return False
    records = passes.run(plan.cut, reads)  # in one piece: many pieces cost more than a copy
    if records is None:
        return False
    found.records = [records]
    found.next_offset += done
    found.messages, found.size, found.last_place = count, size, last_place
    return True


def pull_by_properties(source: RangedSource, request: RawRequest, low: int, high: int) -> RawPull:
    """Read those whose properties match, one record after the other."""
    wanted = request.filter
    most, room = min(request.messages, MESSAGES_MAX), min(request.bytes, BYTES_MAX)
    found = RawPull(Status.NO_MATCHED_MESSAGE, request.offset, low, high)
    scanned = max(SCANNED_MAX // wanted.weight, 1)
    count = min(high - request.offset, scanned)
    packed = source.near_units(request.topic, request.queue_id, request.offset, count)
    position, records = request.offset, list[memoryview]()
    for place, size, code in UNIT.iter_unpack(packed):
        if size != FILLER_SIZE and wanted.admits_code(code):
            if found.messages >= most or (found.messages and found.size + size > room):
                break
            if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
                raise no_record(request, position, size)
            try:
                record = source.span(place, place + size)
            except RangeGone:
                position += 1
                continue
            properties = decode_record(record).properties
            if wanted.admits(properties, properties.get("TAGS")):
                found.status = Status.FOUND
                records.append(memoryview(record))
                found.messages += 1
                found.size += size
                found.last_place = place
        position += 1
    found.records = records
    found.next_offset = max(position, request.offset + 1)
    return found


def outside(offset: int, low: int, high: int, *, follows: bool) -> RawPull:
    """Return what a pull finds outside of a queue."""
    if high == 0:
        return RawPull(Status.NO_MESSAGE_IN_QUEUE, offset if follows else 0, low, high)
    if offset < low:
        return RawPull(Status.OFFSET_TOO_SMALL, offset if follows else low, low, high)
    if offset == high:
        return RawPull(Status.OFFSET_OVERFLOW_ONE, offset, low, high)
    return RawPull(Status.OFFSET_OVERFLOW_BADLY, offset if follows else high, low, high)


def no_record(request: RawRequest, position: int, size: int) -> CorruptRecord:
    """Return the error of an entry that can't be one."""
    where = f"{request.topic}/{request.queue_id} at offset {position}"
    return CorruptRecord(f"{where}: a queue entry tells of a record of {size} bytes")
