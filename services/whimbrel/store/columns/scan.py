"""Reads a split of a log, which may begin and end anywhere.

A split owns the records that begin in it. Adjacent splits find every record once, because where records are
does not depend on where reading begins:

- A record has the magic, its own offset, and parts that add up to its size. The CRC is not checked: a record
  whose body is damaged is still one, and the decoder reports it.
- Behind a record stands the next one, or a blank, behind which its file is void. Where neither stands, the
  bytes are damaged up to the next record. The split whose last record ends there reports that.
- Reading that begins within a file searches the first record or blank. Bodies may hold the magic, and even
  whole records, but those name other offsets. Behind a blank there may be remains of an older log that name
  their own offsets; so near the end of a file, where a blank may be, reading begins further back. A blank is
  never longer than a record, so within twice that length before the end of a file a record is found that
  leads to it.

Known weakness: a body that holds a record which names the very offset at which it is stored is taken for a
record by a split that begins between the two heads.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from whimbrel.errors import CorruptRecord
from whimbrel.store.codec import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    RECORD_MAGICS,
    SIZE_AND_MAGIC,
    record_fault,
)
from whimbrel.store.columns.records import Records, Stop, walk

__all__ = ["CHUNK_BYTES", "Fault", "OnFault", "Scan"]

CHUNK_BYTES = 8 * 1024 * 1024  # read at a time: some batches' worth
BEHIND_BYTES = 64 * 1024  # read behind a split for its last record, and at a time when looking for one

V1, V2, BLANK = (magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC))
MAGIC = re.compile(re.escape(V1[:3]) + b"[" + V1[3:] + V2[3:] + b"]|" + re.escape(BLANK))
OnFault = Literal["fail", "skip"]
SHORT = "the file is shorter than the log"


@dataclass(frozen=True, slots=True)
class Fault:
    """Bytes of the log that are no record where one should be; reading went on behind them."""

    offset: int
    what: str


class Scan:
    """The records that begin in [begin, end) of a log, chunk by chunk.

    Attributes:
        faults: damage found so far, when it is to be skipped.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        begin: int,
        end: int,
        *,
        limit: int,
        file_size: int,
        chunk_bytes: int = CHUNK_BYTES,
        record_bytes_max: int = RECORD_BYTES_MAX,
        on_fault: OnFault = "fail",
    ) -> None:
        """Prepare; nothing is read before the first record is asked for.

        Args:
            read: returns up to so many bytes from an offset on, not beyond the end of that file of the log.
            limit: the log's end, or how far it may be read: a boundary between records, as its writer shows
            it
                or a recovery finds it. A record that goes beyond it is damage.
            file_size: of each file of the log.
            record_bytes_max: a size beyond this is damage.
            on_fault: at damage, raise CorruptRecord, or note it and continue behind it.
        """
        self.read, self.begin, self.end = read, begin, min(end, limit)
        self.limit, self.file_size = limit, file_size
        self.chunk_bytes, self.record_bytes_max = min(chunk_bytes, record_bytes_max), record_bytes_max
        self.on_fault = on_fault
        self.faults: list[Fault] = []
        self.last = -1  # where the last record that was found begins

    def __iter__(self) -> Iterator[Records]:
        """Yield the records, in the order of the log.

        Raises:
            CorruptRecord: the log is damaged, and damage is not to be skipped.
            IllegalOffset: `read` does, when a file of the log is gone.
        """
        at, chained = self.first()
        want = 0
        while at < self.end:
            file_end = self.file_end(at)
            stop = min(file_end, self.limit)
            if stop - at < SIZE_AND_MAGIC.size:
                self.note(at, f"{stop - at} bytes that are no record")
                at, chained = file_end, False
                continue
            asked = min(max(want, min(self.chunk_bytes, self.end - at + BEHIND_BYTES)), stop - at)
            chunk, want = self.read(at, asked), 0
            walked = walk(chunk, until=self.end - at, base=at)
            if len(walked.records):
                self.last = at + int(walked.records.positions[-1])
                yield from self.owned(walked.records, at)
            at, chained, fault = at + walked.end, True, ""
            if walked.stop is Stop.BLANK:
                at = file_end
            elif walked.stop is Stop.CUT and not walked.end:
                want, fault = self.wanted(chunk, asked, stop - at)
            elif walked.stop is Stop.ZEROS:
                fault = "zeros in the middle of the log"
            elif walked.stop is Stop.DAMAGE:
                fault = walked.fault
            elif not chunk:
                fault = SHORT
            if fault:
                self.note(at, fault)
                at, chained = self.find(at + 1), False
        if chained and at < self.limit and at % self.file_size and not self.is_boundary(at, trusted=True):
            self.note(at, "no record")

    def first(self) -> tuple[int, bool]:
        """Return where to begin, and whether a record or blank must stand there."""
        if self.begin >= self.end:
            return self.end, False
        at, file_end = self.begin, self.file_end(self.begin)
        tail = 2 * self.record_bytes_max + SIZE_AND_MAGIC.size
        if file_end - at <= tail:
            at = max(file_end - self.file_size, file_end - tail)
        return (at, True) if at % self.file_size == 0 else (self.find(at), False)

    def owned(self, records: Records, base: int) -> Iterator[Records]:
        """Yield the records that begin in the split."""
        if base < self.begin:
            records = records.pick(records.positions >= self.begin - base)
        if len(records):
            yield records

    def note(self, offset: int, what: str) -> None:
        """Note damage, unless it stands behind another split's record: that split reports it.

        Raises:
            CorruptRecord: damage is not to be skipped.
        """
        owner = offset if offset % self.file_size == 0 else self.last
        if owner < self.begin:
            return
        if self.on_fault == "fail":
            raise CorruptRecord(f"the log is damaged at {offset}: {what}")
        self.faults.append(Fault(offset, what))

    def file_end(self, offset: int) -> int:
        """Return where the file ends that holds an offset."""
        return offset - offset % self.file_size + self.file_size

    def wanted(self, chunk: bytes, asked: int, room: int) -> tuple[int, str]:
        """Return how much to read for a record that is larger than a chunk, or why it is no record."""
        if len(chunk) < asked:
            return 0, SHORT
        size: int = SIZE_AND_MAGIC.unpack_from(chunk)[0]
        if size > min(room, self.record_bytes_max):
            return 0, f"a record with a size of {size}"
        return size, ""

    def find(self, at: int) -> int:
        """Return the first boundary at or behind an offset; without one the end of the file or the split."""
        stop = min(self.file_end(at), self.end)
        while at < stop:
            chunk = self.read(at, min(BEHIND_BYTES, stop - at + SIZE_AND_MAGIC.size))
            for match in MAGIC.finditer(chunk, 4):
                place = at + match.start() - 4
                if place >= stop:
                    break
                if self.is_boundary(place):
                    return place
            if len(chunk) <= SIZE_AND_MAGIC.size:
                break
            at += len(chunk) - SIZE_AND_MAGIC.size + 1
        return stop

    def is_boundary(self, at: int, *, trusted: bool = False) -> bool:
        """Return whether a record or a blank begins at an offset.

        Args:
            trusted: a record or blank must stand there, so the size of a blank is not checked. RocketMQ does
                not check it either.
        """
        file_end = self.file_end(at)
        head = self.read(at, PHYSICAL_OFFSET.size)
        if len(head) < SIZE_AND_MAGIC.size:
            return False
        size, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic == BLANK_MAGIC:
            return trusted or bool(size == file_end - at)
        if magic not in RECORD_MAGICS or len(head) < PHYSICAL_OFFSET.size:
            return False
        if PHYSICAL_OFFSET.unpack(head)[0] != at:
            return False
        if not RECORD_BYTES_MIN <= size <= min(file_end - at, self.limit - at, self.record_bytes_max):
            return False
        record = self.read(at, size)
        return len(record) == size and not record_fault(record, 0, at, check_crc=False)
