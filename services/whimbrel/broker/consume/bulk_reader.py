"""Reads a range of one queue as frames: whole records, one after the other, as they stand in the log.

    entries in bulk ──wanted?──► runs of records that touch ──small gaps──► spans, one read each ──► frame

The tags code of an entry decides before its record is read. Of each record, size and magic are compared, and
nothing is decoded. A frame takes a bounded number of entries and of bytes, so that making one does not hold
the loop for long; with a filter that matches little it may hold no record at all.

The compiled lane makes whole frames, where it is active (`by_lane`). A frame that begins with what is not
plain, or for which a read fails, is Python's from its first entry on: nothing has changed by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whimbrel.errors import (
    BadRequest,
    BeyondConfirmed,
    CorruptRecord,
    IllegalOffset,
    MessageTooLarge,
    RangeGone,
)
from whimbrel.model.limits import BULK_RESPONSE_BYTES_MAX
from whimbrel.store.codec import (
    FILLER_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    UNIT,
    UNIT_SIZE,
)
from whimbrel.store.lane_passes import LanePasses

__all__ = [
    "FRAME_BYTES_MAX",
    "BulkFrame",
    "BulkReader",
    "FramePlan",
    "RawSource",
    "ReadRange",
    "read_spans",
]

# Bytes of records in a frame, apart from a larger record, which is alone in its frame. The protocol allows
# 1 MiB; a quarter costs both ends no more for each record, and holds the loop for a quarter of the time.
FRAME_BYTES_MAX = 256 << 10
MESSAGE_EXTRA_BYTES = 64  # of a response beside its records
UNITS_AT_ONCE = 2048  # entries read by one call, 40 KiB
SCAN_MAX = 8 * UNITS_AT_ONCE  # entries scanned for one frame, wanted or not
# Records of other queues are read too where the gap is no larger: copying so much costs about as much as
# another call.
GAP_BYTES_MAX = 8 << 10
SPAN_BYTES_MAX = 2 << 20  # read at once, with what lies between; a larger record makes a larger span


class RawSource(Protocol):
    """What is read of the store; `store.bulk_source.BulkSource` implements it."""

    @property
    def file_size(self) -> int: ...
    def queue_range(self, topic: str, queue_id: int, log_end: int) -> tuple[int, int, int]: ...
    def units(self, topic: str, queue_id: int, offset: int, count: int) -> bytes: ...
    def span(self, begin: int, end: int) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """What a reader asks for.

    Attributes:
        start, end: queue offsets; `end` 0 for all that may be read.
        budget: bytes of records; 0 for no bound.
        codes: hashes of wanted tags; None for all.
        latest: whether to read what is not confirmed, too.
    """

    topic: str
    queue_id: int
    start: int
    end: int = 0
    budget: int = 0
    codes: frozenset[int] | None = None
    latest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFrame:
    """A piece of a queue, and where the queue stands."""

    records: bytes
    next_offset: int
    confirmed: int
    min_offset: int
    max_offset: int


class FramePlan:
    """The parts of the log that go into a frame.

    Attributes:
        spans: what is read at once, each as a list of runs; a run is a piece in which wanted records touch:
        its begin, and the sizes of its records.
        end: of the last record. limit: the last span goes no further. sizes: of the last run.
    """

    __slots__ = ("end", "file_size", "limit", "sizes", "spans")

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.spans: list[list[tuple[int, list[int]]]] = []
        self.sizes: list[int] = []
        self.end = self.limit = -1

    def begin_run(self, offset: int, size: int) -> None:
        """Add a record that does not touch the last one, to its span if it lies near enough."""
        if not (0 <= offset - self.end <= GAP_BYTES_MAX and offset + size <= self.limit):
            self.spans.append([])
            file_end = offset - offset % self.file_size + self.file_size
            self.limit = min(file_end, offset + SPAN_BYTES_MAX)
        self.sizes = [size]
        self.spans[-1].append((offset, self.sizes))
        self.end = offset + size


class BulkReader:
    """One reader's progress through its range. Call `next` until `done`."""

    def __init__(
        self, source: RawSource, wanted: ReadRange, log_confirmed: int, passes: LanePasses | None = None
    ) -> None:
        """Check the range; `passes` run the lane, where there may be one.

        Raises:
            RangeGone, BeyondConfirmed, IllegalOffset: it can't be served here.
            BadRequest: it is no range.
        """
        self.source, self.wanted, self.passes = source, wanted, passes
        if wanted.start < 0 or wanted.end < 0 or wanted.budget < 0:
            raise BadRequest("offsets and the byte budget can't be negative")
        if wanted.end and wanted.end < wanted.start:
            raise BadRequest(f"the range {wanted.start} to {wanted.end} ends before it begins")
        low, confirmed, high = source.queue_range(wanted.topic, wanted.queue_id, log_confirmed)
        limit = high if wanted.latest else confirmed
        where = f"queue {wanted.queue_id} of {wanted.topic}"
        furthest = max(wanted.start, wanted.end)
        if wanted.start < low:
            raise RangeGone(f"offset {wanted.start} of {where} is gone: it begins at {low}")
        if furthest > high:
            raise IllegalOffset(
                f"{where} ends at {high} here, so {furthest} can't be read: the log was cut, or this is a"
                " slave that lags"
            )
        if furthest > limit:
            raise BeyondConfirmed(
                f"{where} is confirmed up to {limit} of {high}, and not up to {furthest} yet"
            )
        self.position = wanted.start
        self.end = wanted.end or limit
        self.sent = 0
        self.spent = False  # the byte budget is used up

    @property
    def done(self) -> bool:
        """Whether nothing is left to be sent."""
        return self.spent or self.position >= self.end

    def next(self, log_confirmed: int) -> BulkFrame:
        """Return the next frame.

        Raises:
            RangeGone: the records were removed meanwhile.
            IllegalOffset: the log was cut meanwhile.
            CorruptRecord, MessageTooLarge: what stands there can't be sent.
        """
        wanted = self.wanted
        low, confirmed, high = self.source.queue_range(wanted.topic, wanted.queue_id, log_confirmed)
        if self.position < low:
            raise RangeGone(
                f"offset {self.position} of queue {wanted.queue_id} of {wanted.topic} is gone: it begins"
                f" at {low} now"
            )
        records = self.by_lane()
        if records is None:
            records = b"".join(read_spans(self.source, self.plan_frame().spans))
        self.sent += len(records)
        self.spent = self.spent or 0 < wanted.budget <= self.sent
        return BulkFrame(
            records=records,
            next_offset=self.position,
            confirmed=confirmed,
            min_offset=low,
            max_offset=high,
        )

    @property
    def room(self) -> int:
        """Bytes of records that the next frame may have, unless its first one is larger."""
        budget = self.wanted.budget
        return min(FRAME_BYTES_MAX, budget - self.sent) if budget else FRAME_BYTES_MAX

    def exceeds(self, sent: int, size: int) -> bool:
        """Return whether a record is too much for the byte budget; the first one never is."""
        return bool(self.wanted.budget and sent and sent + size > self.wanted.budget)

    def by_lane(self) -> bytes | None:
        """Have the lane plan the next frame and cut it out; None where that is Python's, from the same state.

        It is Python's without an active lane, where the first record is larger than `room`, and where an
        entry, a record or a read is not as it should be.
        """
        passes, source, wanted = self.passes, self.source, self.wanted
        if passes is None or (native := passes.lane.native) is None:
            return None
        whole = self.room
        bounds = source.file_size, GAP_BYTES_MAX, SPAN_BYTES_MAX
        plan = passes.run(native.BulkPlan, *bounds, wanted.codes, whole)
        position, spent = self.position, self.spent
        last = min(self.end, position + SCAN_MAX)
        while position < last:
            count = min(UNITS_AT_ONCE, self.end - position)
            packed = source.units(wanted.topic, wanted.queue_id, position, count)
            if plan is None or not packed or len(packed) % UNIT_SIZE:
                return None
            taken = passes.run(plan.take, packed)
            if taken is None:
                return None
            count, room = taken
            position += count
            if count * UNIT_SIZE < len(packed):
                _, size, _ = UNIT.unpack_from(packed, count * UNIT_SIZE)
                spent = self.exceeds(self.sent + whole - room, size)
                if RECORD_BYTES_MIN <= size <= room or not (spent or room < whole):
                    return None
                break
        records = None if plan is None else self.cut_by_lane(passes, plan)
        if records is not None:
            self.position, self.spent = position, spent
        return records

    def cut_by_lane(self, passes: LanePasses, plan: Any) -> bytes | None:
        """Read what the lane has planned, and have it check and cut out the records; see `by_lane`."""
        spans = passes.run(plan.spans)
        if spans is None:
            return None
        try:
            reads = [self.source.span(begin, end) for begin, end in spans]
        except (RangeGone, CorruptRecord):
            return None
        records: bytes | None = passes.run(plan.cut, reads)
        return records

    def plan_frame(self) -> FramePlan:
        """Take entries for one frame, from `position` on; return what to read of the log."""
        wanted, codes = self.wanted, self.wanted.codes
        plan, sent = FramePlan(self.source.file_size), self.sent
        whole = room = self.room
        position, end = self.position, self.end
        last = min(end, position + SCAN_MAX)
        while position < last:
            packed = self.source.units(
                wanted.topic, wanted.queue_id, position, min(UNITS_AT_ONCE, end - position)
            )
            if not packed:
                raise IllegalOffset(
                    f"queue {wanted.queue_id} of {wanted.topic} ends at {position} now: the log was cut"
                )
            for offset, size, code in UNIT.iter_unpack(packed):
                if codes is not None and code & 0xFFFFFFFF not in codes:
                    position += 1
                    continue
                if size > room or size < RECORD_BYTES_MIN:
                    if size == FILLER_SIZE:
                        position += 1
                        continue
                    self.position = position
                    self.spent = self.exceeds(sent + whole - room, size)
                    if self.spent or plan.spans:
                        return plan
                    self.check_size(size)  # it goes alone
                if offset == plan.end and offset + size <= plan.limit:
                    plan.end += size
                    plan.sizes.append(size)
                else:
                    plan.begin_run(offset, size)
                room -= size
                position += 1
        self.position = position
        return plan

    def check_size(self, size: int) -> None:
        """Raise when the next record can't be sent in any frame."""
        where = f"{self.wanted.topic}/{self.wanted.queue_id} at offset {self.position}"
        if size < RECORD_BYTES_MIN:
            raise CorruptRecord(f"{where}: a queue entry tells of a record of {size} bytes")
        if size > BULK_RESPONSE_BYTES_MAX - MESSAGE_EXTRA_BYTES:
            raise MessageTooLarge(
                f"{where}: a record of {size} bytes does not fit into {BULK_RESPONSE_BYTES_MAX}"
            )


def read_spans(source: RawSource, spans: Sequence[Sequence[tuple[int, list[int]]]]) -> list[memoryview]:
    """Return the records of a plan's spans, in order: one piece a run.

    Raises:
        RangeGone: the records were removed meanwhile.
        CorruptRecord: something else stands there.
    """
    parts: list[memoryview] = []
    unpack = SIZE_AND_MAGIC.unpack_from
    for runs in spans:
        begin, (last, sizes) = runs[0][0], runs[-1]
        data = source.span(begin, last + sum(sizes))
        view = memoryview(data)
        for offset, sizes in runs:
            at = first = offset - begin
            for size in sizes:
                stored, magic = unpack(data, at)
                if stored != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
                    raise CorruptRecord(f"no record of {size} bytes at byte {begin + at} of the log")
                at += size
            parts.append(view[first:at])
    return parts
