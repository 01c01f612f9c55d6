"""Whole records of one queue as they stand in the log: which entries are wanted, and what is read for them.

    entries ──wanted by their tags code?──► runs of records that touch ──small gaps──► spans, one read each

Pulls by the remoting protocol and readers in bulk share it. The tags code of an entry decides before its
record is read. Of each record, size and magic are compared, and nothing is decoded.

The compiled lane plans and checks as well, where it is active (`plan_pull`, `BulkPlan` in `native/core`);
what it has planned is read and cut out by `cut_by_lane`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from whimbrel.errors import CorruptRecord, RangeGone
from whimbrel.store.codec import (
    FILLER_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    UNIT,
)
from whimbrel.store.lane_passes import LanePasses

__all__ = ["GAP_BYTES_MAX", "SPAN_BYTES_MAX", "LogSource", "RecordRuns", "cut_by_lane"]

# Records of other queues are read too where the gap is no larger: copying so much costs about as much as
# another call.
GAP_BYTES_MAX = 8 << 10
SPAN_BYTES_MAX = 2 << 20  # read at once, with what lies between; a larger record makes a larger span


class LogSource(Protocol):
    """What is read of the log; `bulk_source.BulkSource` implements it."""

    @property
    def file_size(self) -> int: ...
    def span(self, begin: int, end: int) -> bytes: ...


class RecordRuns:
    """Records of one queue that are wanted, and the parts of the log that hold them.

    Attributes:
        spans: what is read at once, each as a list of runs; a run is a piece in which wanted records touch:
            its begin, and the sizes of its records.
        count: of the records. size: their bytes. last_place: of the last one; -1 before there is one.
        stopped: the size that an entry tells of which was wanted and not taken: there is no room, or it is
            no size of a record. None while all were taken.
        limit: how far the last span may go, to the end of its file at most.
    """

    __slots__ = ("count", "file_size", "last_place", "limit", "size", "spans", "stopped")

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.spans: list[list[tuple[int, list[int]]]] = []
        self.count = self.size = 0
        self.last_place = self.limit = -1
        self.stopped: int | None = None

    def take(
        self,
        packed: bytes,
        codes: frozenset[int] | None,
        *,
        records_max: int,
        first_max: int,
        room: int,
        log_begin: int,
    ) -> int:
        """Take the records of entries, as far as there is room; return how many entries were passed.

        Args:
            packed: the entries, those that follow what was taken before.
            codes: the low 32 bits of wanted tags codes; None: all are wanted.
            records_max: how many there may be in all.
            first_max: the largest size of the first record of all.
            room: bytes of all records together.
            log_begin: records below it are gone, and passed.
        """
        spans, count, size_sum = self.spans, self.count, self.size
        sizes = spans[-1][-1][1] if spans else []
        end = self.last_place + sizes[-1] if sizes else -1
        limit = self.limit
        passed = 0
        for place, size, code in UNIT.iter_unpack(packed):
            if (
                (codes is not None and code & 0xFFFFFFFF not in codes)
                or size == FILLER_SIZE
                or place < log_begin
            ):
                passed += 1
                continue
            if (
                count >= records_max
                or size < RECORD_BYTES_MIN
                or size > (room - size_sum if count else first_max)
            ):
                self.stopped = size
                break
            if place == end and place + size <= limit:
                sizes.append(size)
            else:
                if not (0 <= place - end <= GAP_BYTES_MAX and place + size <= limit):
                    spans.append([])
                    limit = min(place - place % self.file_size + self.file_size, place + SPAN_BYTES_MAX)
                sizes = [size]
                spans[-1].append((place, sizes))
            end = place + size
            self.last_place = place
            count += 1
            size_sum += size
            passed += 1
        self.count, self.size, self.limit = count, size_sum, limit
        return passed

    def read(self, source: LogSource) -> list[memoryview]:
        """Return the records, in order: one piece a run.

        Raises:
            RangeGone: the records were removed meanwhile.
            CorruptRecord: something else stands there.
        """
        parts: list[memoryview] = []
        unpack = SIZE_AND_MAGIC.unpack_from
        for runs in self.spans:
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


def cut_by_lane(
    passes: LanePasses, source: LogSource, plan: Any, spans: Sequence[tuple[int, int]]
) -> bytes | None:
    """Read what the lane has planned, and have it check and cut out the records, in one piece: many pieces
    cost more than a copy. None where a read, a record or the lane fails: it is Python's then."""
    try:
        reads = [source.span(begin, end) for begin, end in spans]
    except (RangeGone, CorruptRecord):
        return None
    records: bytes | None = passes.run(plan.cut, reads)
    return records
