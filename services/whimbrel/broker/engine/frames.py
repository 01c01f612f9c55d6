"""Reads a range of one queue as frames: whole records, one after the other, as they stand in the log.

What a frame holds is chosen and read by `store/runs.py`. A frame takes a bounded number of entries and of
bytes, so that making one does not hold the loop for long; with a filter that matches little it may hold no
record at all.

The compiled lane makes whole frames, where it is active (`by_lane`). A frame that begins with what is not
plain, or for which a read fails, is Python's from its first entry on: nothing has changed by then.
"""

from dataclasses import dataclass
from typing import Protocol

from whimbrel.errors import (
    BadRequest,
    BeyondConfirmed,
    CorruptRecord,
    IllegalOffset,
    MessageTooLarge,
    RangeGone,
)
from whimbrel.model.limits import BULK_RESPONSE_BYTES_MAX
from whimbrel.store.codec import RECORD_BYTES_MIN, UNIT, UNIT_SIZE
from whimbrel.store.lane_passes import LanePasses
from whimbrel.store.runs import GAP_BYTES_MAX, SPAN_BYTES_MAX, LogSource, RecordRuns, cut_by_lane

__all__ = ["FRAME_BYTES_MAX", "BulkFrame", "BulkReader", "ReadRange"]

# Bytes of records in a frame, apart from a larger record, which is alone in its frame. The protocol allows
# 1 MiB; a quarter costs both ends no more for each record, and holds the loop for a quarter of the time.
FRAME_BYTES_MAX = 256 << 10
RECORD_MAX = BULK_RESPONSE_BYTES_MAX - 64  # of a response's bytes some stand beside its records
UNITS_AT_ONCE = 2048  # entries read by one call, 40 KiB
SCAN_MAX = 8 * UNITS_AT_ONCE  # entries scanned for one frame, wanted or not
ALL_PLACES = -(1 << 63)  # what is below the log's begin is an error here, not passed


class RawSource(LogSource, Protocol):
    """What is read of the store; `store.bulk_source.BulkSource` implements it."""

    def queue_range(self, topic: str, queue_id: int, log_end: int) -> tuple[int, int, int]: ...
    def units(self, topic: str, queue_id: int, offset: int, count: int) -> bytes: ...


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
            records = b"".join(self.plan_frame().read(self.source))
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
        spans = None if plan is None else passes.run(plan.spans)
        records = None if spans is None else cut_by_lane(passes, source, plan, spans)
        if records is not None:
            self.position, self.spent = position, spent
        return records

    def plan_frame(self) -> RecordRuns:
        """Take entries for one frame, from `position` on; return what to read of the log."""
        source, wanted, sent = self.source, self.wanted, self.sent
        runs, room = RecordRuns(source.file_size), self.room
        first_max = min(RECORD_MAX, wanted.budget - sent) if wanted.budget and sent else RECORD_MAX
        position, last = self.position, min(self.end, self.position + SCAN_MAX)
        while position < last and runs.stopped is None:
            count = min(UNITS_AT_ONCE, self.end - position)
            packed = source.units(wanted.topic, wanted.queue_id, position, count)
            if not packed:
                raise IllegalOffset(
                    f"queue {wanted.queue_id} of {wanted.topic} ends at {position} now: the log was cut"
                )
            position += runs.take(
                packed,
                wanted.codes,
                records_max=2 * SCAN_MAX,
                first_max=first_max,
                room=room,
                log_begin=ALL_PLACES,
            )
        self.position = position
        if runs.stopped is not None:
            self.spent = self.exceeds(sent + runs.size, runs.stopped)
            if not (self.spent or runs.count):
                raise self.unsendable(runs.stopped)
        return runs

    def unsendable(self, size: int) -> CorruptRecord | MessageTooLarge:
        """Return why the next record can't be sent in any frame."""
        where = f"{self.wanted.topic}/{self.wanted.queue_id} at offset {self.position}"
        if size < RECORD_BYTES_MIN:
            return CorruptRecord(f"{where}: a queue entry tells of a record of {size} bytes")
        return MessageTooLarge(
            f"{where}: a record of {size} bytes does not fit into {BULK_RESPONSE_BYTES_MAX}"
        )
