"""Cuts a range of one queue into frames: whole records, one after the other, as they stand in the log.

    entries in bulk ──wanted?──► runs of records that touch ──small gaps──► spans, one read each ──► frame

The tags code of an entry decides before its record is read. Of each record, size and magic are compared, and
nothing is decoded. A frame takes a bounded number of entries and of bytes, so that making one holds the loop
for a few milliseconds at most; with a filter that matches little it may hold no record at all.
"""

import struct
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
from whimbrel.store.codec import FILLER_SIZE, MAGIC_V1, MAGIC_V2, UNIT

__all__ = ["FRAME_BYTES_MAX", "MESSAGE_BYTES_MAX", "Frame", "FrameCutter", "RawSource", "Reading"]

FRAME_BYTES_MAX = 1 << 20  # of records, apart from one that is larger and then alone
# Both ends' limit of a gRPC message. RocketMQ's brokers take bodies of 4 MiB unless told otherwise.
MESSAGE_BYTES_MAX = 8 << 20
MESSAGE_EXTRA_BYTES = 64  # what a message has beside its records
UNITS_AT_ONCE = 2048  # entries read by one call, 40 KiB
SCAN_MAX = 8 * UNITS_AT_ONCE  # entries looked at for one frame: 2 ms when none of them is wanted
# Records of other queues that are read along rather than read around: copying so much costs about what one
# more call does.
GAP_BYTES_MAX = 8 << 10
SPAN_BYTES_MAX = 2 << 20  # read at once, with what lies between; a larger record makes a larger span
RECORD_BYTES_MIN = 91

SIZE_AND_MAGIC = struct.Struct(">iI")


class RawSource(Protocol):
    """What is read of the store; `store.raw.RawRecords` does."""

    @property
    def file_size(self) -> int: ...
    def queue_range(self, topic: str, queue_id: int, log_end: int) -> tuple[int, int, int]: ...
    def units(self, topic: str, queue_id: int, offset: int, count: int) -> bytes: ...
    def span(self, begin: int, end: int) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reader wants.

    Attributes:
        start, end: queue offsets; `end` 0 for all that may be read.
        budget: bytes of records; 0 for no bound.
        codes: hashes of wanted tags; None for all.
        latest: whether to read what is not confirmed too.
    """

    topic: str
    queue_id: int
    start: int
    end: int = 0
    budget: int = 0
    codes: frozenset[int] | None = None
    latest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A piece of a queue, and where the queue stands."""

    records: bytes
    next_offset: int
    confirmed: int
    min_offset: int
    max_offset: int


@dataclass(slots=True)
class _Span:
    """A piece of the log that is read at once: wanted records, and what lies between them.

    Attributes:
        file_end: where its log file ends.
        runs: pieces in which wanted records touch, as [begin, end).
        records: offset and size of each.
    """

    begin: int
    end: int
    file_end: int
    runs: list[list[int]]
    records: list[tuple[int, int]]


class FrameCutter:
    """One reader's way through its range. `next` is asked until `done`."""

    def __init__(self, source: RawSource, reading: Reading, log_confirmed: int) -> None:
        """Check the range.

        Raises:
            RangeGone, BeyondConfirmed, IllegalOffset: it can't be served here.
            BadRequest: it is none.
        """
        self._source, self._reading = source, reading
        if reading.start < 0 or reading.end < 0 or reading.budget < 0:
            raise BadRequest("offsets and the byte budget can't be negative")
        if reading.end and reading.end < reading.start:
            raise BadRequest(f"the range {reading.start} to {reading.end} ends before it begins")
        low, confirmed, high = source.queue_range(reading.topic, reading.queue_id, log_confirmed)
        limit = high if reading.latest else confirmed
        where = f"queue {reading.queue_id} of {reading.topic}"
        furthest = max(reading.start, reading.end)
        if reading.start < low:
            raise RangeGone(f"offset {reading.start} of {where} is gone: it begins at {low}")
        if furthest > high:
            raise IllegalOffset(
                f"{where} ends at {high} here, so {furthest} can't be read: the log was cut, or this is a"
                " slave that lags"
            )
        if furthest > limit:
            raise BeyondConfirmed(
                f"{where} is confirmed up to {limit} of {high}, and not up to {furthest} yet"
            )
        self.position = reading.start
        self.end = reading.end or limit
        self.sent = 0
        self.spent = False  # the byte budget is used up

    @property
    def done(self) -> bool:
        """Whether nothing is left to be sent."""
        return self.spent or self.position >= self.end

    def next(self, log_confirmed: int) -> Frame:
        """Return the next frame.

        Raises:
            RangeGone: the records were removed meanwhile.
            IllegalOffset: the log was cut meanwhile.
            CorruptRecord, MessageTooLarge: what stands there can't be sent.
        """
        reading = self._reading
        low, confirmed, high = self._source.queue_range(reading.topic, reading.queue_id, log_confirmed)
        if self.position < low:
            raise RangeGone(
                f"offset {self.position} of queue {reading.queue_id} of {reading.topic} is gone: it begins"
                f" at {low} now"
            )
        records = b"".join(self._read(self._choose()))
        self.sent += len(records)
        self.spent = self.spent or 0 < reading.budget <= self.sent
        return Frame(
            records=records,
            next_offset=self.position,
            confirmed=confirmed,
            min_offset=low,
            max_offset=high,
        )

    def _choose(self) -> list[_Span]:
        """Take entries for one frame, from `position` on; what is wanted of the log."""
        reading, codes, budget = self._reading, self._reading.codes, self._reading.budget
        spans: list[_Span] = []
        scan, filled, sent = SCAN_MAX, 0, self.sent
        position, end = self.position, self.end
        while position < end and scan > 0:
            packed = self._source.units(
                reading.topic, reading.queue_id, position, min(UNITS_AT_ONCE, end - position)
            )
            if not packed:
                raise IllegalOffset(
                    f"queue {reading.queue_id} of {reading.topic} ends at {position} now: the log was cut"
                )
            scan -= len(packed) // UNIT.size
            for offset, size, code in UNIT.iter_unpack(packed):
                if (codes is not None and code & 0xFFFFFFFF not in codes) or size == FILLER_SIZE:
                    position += 1
                    continue
                self.position = position
                if budget and sent + filled and sent + filled + size > budget:
                    self.spent = True
                    return spans
                if filled and filled + size > FRAME_BYTES_MAX:
                    return spans
                if size < RECORD_BYTES_MIN or size > MESSAGE_BYTES_MAX - MESSAGE_EXTRA_BYTES:
                    self._refuse(position, size, filled)
                    return spans
                self._add(spans, offset, size)
                filled += size
                position += 1
        self.position = position
        return spans

    def _refuse(self, position: int, size: int, filled: int) -> None:
        """Raise for a record that can't be sent, unless others go before it."""
        if filled:
            return
        where = f"{self._reading.topic}/{self._reading.queue_id} at offset {position}"
        if size < RECORD_BYTES_MIN:
            raise CorruptRecord(f"{where}: a queue entry tells of a record of {size} bytes")
        raise MessageTooLarge(f"{where}: a record of {size} bytes does not fit into {MESSAGE_BYTES_MAX}")

    def _add(self, spans: list[_Span], offset: int, size: int) -> None:
        """Have a record read, with those before it if it lies near enough to them."""
        end = offset + size
        if spans:
            span = spans[-1]
            gap = offset - span.end
            if gap == 0 and end <= span.file_end and end - span.begin <= SPAN_BYTES_MAX:
                span.end = span.runs[-1][1] = end
                span.records.append((offset, size))
                return
            if 0 < gap <= GAP_BYTES_MAX and end <= span.file_end and end - span.begin <= SPAN_BYTES_MAX:
                span.end = end
                span.runs.append([offset, end])
                span.records.append((offset, size))
                return
        file_size = self._source.file_size
        file_end = offset - offset % file_size + file_size
        spans.append(_Span(offset, end, file_end, [[offset, end]], [(offset, size)]))

    def _read(self, spans: list[_Span]) -> list[bytes | memoryview]:
        """Return the records of the spans, in order."""
        parts: list[bytes | memoryview] = []
        unpack = SIZE_AND_MAGIC.unpack_from
        for span in spans:
            data, begin = self._source.span(span.begin, span.end), span.begin
            for offset, size in span.records:
                stored, magic = unpack(data, offset - begin)
                if stored != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
                    raise CorruptRecord(f"no record of {size} bytes at byte {offset} of the log")
            if len(span.runs) == 1:
                parts.append(data)
            else:
                view = memoryview(data)
                parts += [view[first - begin : last - begin] for first, last in span.runs]
        return parts
