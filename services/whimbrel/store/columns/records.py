"""Whole, checked records within some bytes of a log, as numpy arrays: fixed fields, and where the rest is.

All other modules here read fields through this one. It accepts only records whose parts add up to their size,
so that the others need not check lengths.

The fixed fields of all records are gathered into one array of 88-byte heads, each in the layout of two IPv4
hosts (drawn in `store/codec.py`). Where a host is IPv6 (20 bytes in place of 8), every later field stands
further back: those are copied to where they would stand, and the two hosts are read from the log itself.

A gather uses a view of the bytes with a stride of 1, in which each element overlaps the next: one element is
then one copy of 88 bytes, far cheaper than an index for each byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from whimbrel.errors import CorruptRecord
from whimbrel.store.codec import (
    BLANK_MAGIC,
    BORN_V6,
    HEAD_SIZES,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    STORE_V6,
    V6_MASK,
    record_fault,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["BYTES_MAX", "Ints", "Mask", "Records", "Stop", "Walked", "fault_at", "frame", "walk"]

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

BYTES_MAX = 2**31 - 1  # positions become the 32-bit offsets of Arrow's arrays
HEAD_BYTES = HEAD_SIZES[0]
BEHIND_BODY_MIN = 4  # topic of one byte with its length, length of the properties
V6_MORE = HOST_V6_SIZE - HOST_V4_SIZE
HEAD = np.dtype(
    {
        "names": [
            "size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag",
            "born_ms", "born_host", "stored_ms", "store_host", "reconsume_times", "prepared_offset",
            "body_length",
        ],
        "formats": [
            ">i4", ">u4", ">i4", ">i4", ">i4", ">i8", ">i8", ">i4",
            ">i8", "V8", ">i8", "V8", ">i4", ">i8",
            ">i4",
        ],
        "offsets": [0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84],
        "itemsize": HEAD_BYTES,
    }
)  # fmt: skip


class Stop(StrEnum):
    """Why a walk stopped."""

    DONE = "done"  # at the end of the bytes, or at the first record that begins behind the given one
    CUT = "cut"  # the bytes end within what stands here
    BLANK = "blank"  # the rest of this file of the log is void
    ZEROS = "zeros"  # nothing was written here
    DAMAGE = "damage"  # no record


def gather(data: memoryview, positions: Ints, kind: str) -> npt.NDArray[Any]:
    """Return the item of a numpy type (`V88`, `>u2`) that stands at each position."""
    length = np.dtype(kind).itemsize
    return np.ndarray((max(len(data) - length + 1, 0),), kind, data, 0, (1,))[positions]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records in the order of the log. Make them by `walk`, or by `Records.at`.

    Attributes:
        data: the bytes in which they lie; no more than `BYTES_MAX`.
        positions: of their first bytes in `data`, ascending.
        head: their fixed fields; hosts only where they are IPv4.
        body_start, body_end, topic_start, topic_end: positions in `data`; the property text begins two bytes
            behind the topic and goes to the end of the record.
    """

    data: memoryview
    positions: Ints
    head: npt.NDArray[np.void]
    body_start: Ints
    body_end: Ints
    topic_start: Ints
    topic_end: Ints

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.positions)

    @property
    def buffer(self) -> pa.Buffer:
        """The bytes as Arrow sees them, not copied."""
        return pa.py_buffer(self.data)

    @property
    def sizes(self) -> Ints:
        """How long each record is."""
        return self.ints("size")

    @property
    def ends(self) -> Ints:
        """Where each record ends in `data`."""
        return self.positions + self.sizes

    def ints(self, name: str) -> Ints:
        """Return a fixed field of all records as 64-bit integers."""
        return self.head[name].astype(np.int64)

    def pick(self, which: slice | Mask) -> "Records":
        """Return some of the records."""
        return Records(
            self.data,
            self.positions[which],
            self.head[which],
            self.body_start[which],
            self.body_end[which],
            self.topic_start[which],
            self.topic_end[which],
        )

    @classmethod
    def at(
        cls, buffer: "ReadableBuffer", positions: Sequence[int] | Ints, *, base: int | None = None
    ) -> "Records":
        """Return the records at known positions, such as those of a consume queue.

        Args:
            positions: ascending.
            base: physical offset of the first byte, when the bytes are a piece of the log: each record's own
                offset must then match.

        Raises:
            CorruptRecord: no whole record stands at one of them, or they do not ascend.
        """
        data = view_of(buffer)
        places = np.asarray(positions, dtype=np.int64)
        if (places[1:] <= places[:-1]).any():
            raise CorruptRecord("the positions of records do not ascend")
        bad = (places < 0) | (places > len(data) - RECORD_BYTES_MIN)
        if not bad.any():
            records, good = checked(data, places, base)
            if good.all():
                return records
            bad = ~good
        first = int(places[int(np.argmax(bad))])
        raise CorruptRecord(f"at {first + (base or 0)}: {fault_at(data, first, base) or 'no whole record'}")


def view_of(buffer: "ReadableBuffer") -> memoryview:
    """Return the bytes as a plain view."""
    data = memoryview(buffer).cast("B")
    if len(data) > BYTES_MAX:
        raise ValueError(f"{len(data)} bytes at once; at most {BYTES_MAX} can be decoded")
    return data


def checked(data: memoryview, positions: Ints, base: int | None) -> tuple[Records, Mask]:
    """Return records, and which of them are whole; of the others only the positions are meaningful.

    Each position has `RECORD_BYTES_MIN` bytes behind it.
    """
    head = gather(data, positions, f"V{HEAD_BYTES}").view(HEAD)
    sizes, magic, flags = head["size"].astype(np.int64), head["magic"], head["sys_flag"]
    ends = positions + sizes
    second = magic == MAGIC_V2
    good = ((magic == MAGIC_V1) | second) & (ends <= len(data)) & (sizes >= HEAD_BYTES + BEHIND_BODY_MIN)
    body_start = positions + HEAD_BYTES
    if (flags & V6_MASK).any():
        born = np.where(flags & BORN_V6, V6_MORE, 0)
        more = born + np.where(flags & STORE_V6, V6_MORE, 0)
        good &= sizes >= HEAD_BYTES + BEHIND_BODY_MIN + more
        body_start += more
        straighten(data, head, positions, good & (more > 0), born, more)
    body_length = head["body_length"].astype(np.int64)
    body_end = body_start + body_length
    good &= (body_length >= 0) & (body_end + BEHIND_BODY_MIN <= ends)
    if base is not None:
        good &= head["physical_offset"] == positions + base
    safe = np.where(good, body_end, 0)
    topic_length = gather(data, safe, "u1").astype(np.int64)
    topic_start = body_end + 1
    if second.any():
        topic_length = np.where(second, gather(data, safe, ">u2"), topic_length)
        topic_start += second
    topic_end = topic_start + topic_length
    good &= topic_end + 2 <= ends
    text_length = gather(data, np.where(good, topic_end, 0), ">u2")
    good &= topic_end + 2 + text_length == ends
    return Records(data, positions, head, body_start, body_end, topic_start, topic_end), good


def straighten(
    data: memoryview, head: npt.NDArray[np.void], positions: Ints, which: Mask, born: Ints, more: Ints
) -> None:
    """Copy the fields behind IPv6 hosts to where they would stand behind IPv4 hosts."""
    bytes_of = head.view(np.uint8).reshape(-1, HEAD_BYTES)
    places = positions[which]
    middle = gather(data, places + 56 + born[which], "V16")  # store timestamp, and the host when it is IPv4
    tail = gather(data, places + 72 + more[which], "V16")
    bytes_of[which, 56:72] = middle.view(np.uint8).reshape(-1, 16)
    bytes_of[which, 72:88] = tail.view(np.uint8).reshape(-1, 16)


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk has found.

    Attributes:
        end: the position at which it stopped; all bytes before it are those of the records.
        fault: what is wrong there when it is damage, "" otherwise.
    """

    records: Records
    end: int
    stop: Stop
    fault: str = ""


def walk(
    buffer: "ReadableBuffer", start: int = 0, until: int | None = None, *, base: int | None = None
) -> Walked:
    """Go from record to record through bytes that follow each other.

    Args:
        start: the position of a record, or of what may follow one.
        until: only records that begin before this position.
        base: as for `Records.at`.
    """
    data = view_of(buffer)
    found, at, stop = hop(data, start, len(data) if until is None else min(until, len(data)))
    records, good = checked(data, np.array(found, dtype=np.int64), base)
    fault = ""
    if not good.all():
        count = int(np.argmin(good))
        at, stop, records = found[count], Stop.DAMAGE, records.pick(slice(count))
    if stop is Stop.DAMAGE:
        fault = fault_at(data, at, base)
    return Walked(records, at, stop, fault)


def hop(data: memoryview, at: int, until: int) -> tuple[list[int], int, Stop]:
    """Return the positions that have the magic and a possible size of a record, and where and why it stopped.

    The only loop over records in Python that a plain log needs.
    """
    found: list[int] = []
    append, unpack, filled = found.append, SIZE_AND_MAGIC.unpack_from, len(data)
    last = min(until, filled - SIZE_AND_MAGIC.size + 1)
    while at < last:
        size, magic = unpack(data, at)
        end = at + size
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < RECORD_BYTES_MIN or end > filled:
            return found, at, kind_of(size, magic)
        append(at)
        at = end
    return found, at, Stop.CUT if at < until and at < filled else Stop.DONE


def kind_of(size: int, magic: int) -> Stop:
    """Return what begins with these two fields, when it is no record that fits into the bytes."""
    if magic == BLANK_MAGIC:
        return Stop.BLANK
    if magic == MAGIC_V1 or magic == MAGIC_V2:
        return Stop.CUT if size >= RECORD_BYTES_MIN else Stop.DAMAGE
    return Stop.DAMAGE if magic or size else Stop.ZEROS


def fault_at(data: memoryview, at: int, base: int | None) -> str:
    """Return why there is no record at a position, "" when there is one."""
    if at < 0 or len(data) - at < SIZE_AND_MAGIC.size:
        return "the bytes end here"
    size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return f"magic {magic:#010x}"
    if size < RECORD_BYTES_MIN:
        return f"size {size}"
    if at + size > len(data):
        return f"a record of {size} bytes, of which {len(data) - at} are there"
    record = bytes(data[at : at + size])
    place: int = PHYSICAL_OFFSET.unpack_from(record)[0] if base is None else base + at
    return record_fault(record, 0, place, check_crc=False)


def frame(buffer: "ReadableBuffer") -> Records:
    """Return the records of a frame of the bulk service: whole records of any place, one behind the other.

    Raises:
        CorruptRecord: it holds anything else.
    """
    walked = walk(buffer)
    if walked.stop is not Stop.DONE:
        raise CorruptRecord(f"byte {walked.end} of a frame: {walked.fault or walked.stop}")
    return walked.records
