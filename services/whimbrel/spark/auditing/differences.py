"""Bytes that differ, as records: topic, queue, offset and kind of difference. Pure: reading is passed in.

    the bytes of both sides ──► positions that differ ──► the records that own them ──► the kind of difference

The record is that of the master's side, or of the slave's where the master has none: one of them is damaged,
and only the CRC of a body may tell which. Bytes that belong to no record of either side (in the blank that
ends a file, or where both sides are damaged) are reported with the record before them.

    differs     some bytes differ
    zeros       the bytes that differ are zeros on one side, as of pages that never reached the disk
    other       another whole record is here: records were exchanged
    moved       the record is at another position nearby
    cut off     the file ends within the record
    missing     no byte of the record is there; reported by queue, not by record
    no record   bytes behind the record

A chunk is one task. A record that crosses the border of two chunks that differ is reported by both tasks, and
`findings.py` merges the two.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from whimbrel.errors import CorruptRecord
from whimbrel.store.codec import (
    PHYSICAL_OFFSET,
    PREFIX,
    RECORD_BYTES_MAX,
    RECORD_MAGICS,
    SIZE_AND_MAGIC,
    StoredMessage,
    decode_record,
    record_fault,
)
from whimbrel.store.columns import Records, Scan, Topics
from whimbrel.store.columns.records import Ints

__all__ = ["SINGLE_MAX", "Difference", "Side", "differences", "extra"]

SINGLE_MAX = 100  # records of a chunk that are examined one by one; others are counted by queue
BLOCK_BYTES = 1 << 20
BLOCKS_MAX = 40  # cached of each side: a chunk of 16 MiB, and a record of 16 MiB behind it
BACK_BYTES = (
    64 << 10,
    1 << 20,
    20 << 20,
)  # how far back to search for a record that crosses a chunk's begin
ZEROS_MIN = 16  # fewer zeros may be flipped bits as well

ReadRange = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Difference:
    """A record that differs between the sides, or several records of a queue.

    Attributes:
        at: physical offset of the record, or of the first one.
        topic: None where no record is near.
        queue_offset, last_offset: of the record, or of the first and last one.
        records: number of records; 0 for bytes behind a record.
        count: number of bytes.
        master_crc, slave_crc: ok, BAD, or - where there is no record to check.
        kind: as in the module's text.
        what: a sentence for the report.
    """

    at: int
    topic: str | None
    queue_id: int
    queue_offset: int
    last_offset: int
    records: int
    count: int
    master_crc: str
    slave_crc: str
    kind: str
    what: str


class Side:
    """The bytes of one side, read in blocks, of which some are cached."""

    def __init__(self, name: str, read: ReadRange, *, begin: int, end: int, file_size: int) -> None:
        """Take the function that reads a range of one file; it may return fewer bytes.

        Args:
            name: master or slave, for the report.
            begin, end: of this side's log; nothing beyond is read.
        """
        self.name, self.read_range, self.file_size = name, read, file_size
        self.begin, self.end = begin, end
        self.blocks: OrderedDict[int, bytes] = OrderedDict()

    def read(self, offset: int, length: int) -> bytes:
        """Return up to so many bytes, not beyond the end of the file; as `Segments.read`."""
        file_end = offset - offset % self.file_size + self.file_size
        end = min(offset + length, file_end, self.end)
        pieces, at = [], offset
        while at < end:
            start, block = self.block(at)
            piece = block[at - start : end - start]
            pieces.append(piece)
            at += len(piece)
            if not piece or (at < end and at < start + len(block)):
                break
            if len(block) < min(BLOCK_BYTES, file_end - start):
                break
        return b"".join(pieces)

    def block(self, offset: int) -> tuple[int, bytes]:
        """Return the block that holds an offset, and where it begins."""
        position = offset % self.file_size
        start = offset - position % BLOCK_BYTES
        block = self.blocks.get(start)
        if block is None:
            file_end = offset - position + self.file_size
            low = max(start, self.begin)
            data = self.read_range(low, min(start + BLOCK_BYTES, file_end, self.end))
            block = bytes(low - start) + data
            self.blocks[start] = block
            if len(self.blocks) > BLOCKS_MAX:
                self.blocks.popitem(last=False)
        return start, block

    def scan(self, begin: int, end: int) -> Iterator[Records]:
        """Return the records that begin in a range, passing over damage."""
        return iter(
            Scan(
                self.read,
                max(begin, self.begin),
                end,
                limit=self.end,
                file_size=self.file_size,
                record_bytes_max=RECORD_BYTES_MAX,
                on_fault="skip",
            )
        )


@dataclass(slots=True, eq=False)
class RecordTable:
    """Records of one side, in the order of the log."""

    starts: Ints
    ends: Ints
    queue_ids: Ints
    offsets: Ints
    topic_ids: Ints
    names: list[str]

    @classmethod
    def of(cls, side: Side, begin: int, end: int) -> "RecordTable":
        """Return the records that have a byte in a range."""
        numbers: dict[str, int] = {}
        columns: list[list[Ints]] = [[] for _ in range(5)]
        for records in [*before(side, begin), *side.scan(begin, end)]:
            topics = Topics.of(records)
            ids = np.array([numbers.setdefault(name, len(numbers)) for name in topics.names], np.int64)
            starts = records.ints("physical_offset")
            values = (
                starts,
                starts + records.sizes,
                records.ints("queue_id"),
                records.ints("queue_offset"),
                ids[topics.ids],
            )
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        joined = [np.concatenate(column) if column else np.zeros(0, np.int64) for column in columns]
        starts, ends, queue_ids, offsets, topic_ids = joined
        return cls(starts, ends, queue_ids, offsets, topic_ids, list(numbers))

    def owners(self, positions: Ints) -> Ints:
        """Return for each position the index of the record that contains it, -1 for none."""
        found = np.searchsorted(self.starts, positions, "right") - 1
        inside = (
            (found >= 0) & (positions < self.ends[np.maximum(found, 0)]) if len(self.starts) else found >= 0
        )
        return np.where(inside, found, -1)


def before(side: Side, begin: int, segment: int = -1) -> list[Records]:
    """Return the last record that begins before an offset in a file; by default the offset's file."""
    segment = begin - begin % side.file_size if segment < 0 else segment
    for back in BACK_BYTES:
        low = max(segment, begin - back)
        found = list(side.scan(low, begin)) if low < begin else []
        if found:
            return [found[-1].pick(slice(len(found[-1]) - 1, None))]
        if low == segment:
            break
    return []


def differences(master: Side, slave: Side, begin: int, end: int) -> list[Difference]:
    """Return what differs in a range of one file."""
    master_bytes, slave_bytes = master.read(begin, end - begin), slave.read(begin, end - begin)
    common = min(len(master_bytes), len(slave_bytes))
    unequal = np.frombuffer(master_bytes, np.uint8, common) != np.frombuffer(slave_bytes, np.uint8, common)
    positions = np.flatnonzero(unequal) + begin
    tables = RecordTable.of(master, begin, end), RecordTable.of(slave, begin, end)
    comparison = Comparison(master, slave, begin, tables, (master_bytes, slave_bytes))
    found = comparison.by_record(positions)
    if len(master_bytes) != len(slave_bytes):
        full, table = (master, tables[0]) if len(master_bytes) > common else (slave, tables[1])
        found += comparison.on_one_side(full, table, begin + common)
    return found


class Comparison:
    """One chunk of both sides."""

    def __init__(
        self,
        master: Side,
        slave: Side,
        begin: int,
        tables: tuple[RecordTable, RecordTable],
        chunks: tuple[bytes, bytes],
    ) -> None:
        self.master, self.slave, self.begin = master, slave, begin
        self.tables, self.chunks = tables, chunks
        self.singles = 0

    def by_record(self, positions: Ints) -> list[Difference]:
        """Return the records that own the positions that differ."""
        found: list[Difference] = []
        for table in self.tables:
            owners = table.owners(positions)
            found += self.of_table(table, positions, owners)
            positions = positions[owners < 0]
        return found + self.outside_records(positions)

    def of_table(self, table: RecordTable, positions: Ints, owners: Ints) -> list[Difference]:
        """Return those of one side's records that own some of the positions."""
        hit, counts = np.unique(owners[owners >= 0], return_counts=True)
        one_by_one = max(SINGLE_MAX - self.singles, 0)
        self.singles += len(hit)
        found = []
        for number, count in zip(hit[:one_by_one].tolist(), counts.tolist(), strict=False):
            mine = positions[owners == number]
            found.append(self.of_record(table, number, int(count), mine))
        return found + by_queue(table, hit[one_by_one:], counts[one_by_one:], "differs", "differ")

    def of_record(self, table: RecordTable, number: int, count: int, positions: Ints) -> Difference:
        """Return how a record differs."""
        at, size = int(table.starts[number]), int(table.ends[number] - table.starts[number])
        master_bytes, slave_bytes = self.master.read(at, size), self.slave.read(at, size)
        crcs = crc_of(master_bytes), crc_of(slave_bytes)
        kind, what = self.judge(at, size, master_bytes, slave_bytes, positions - at)
        if kind == "differs":
            bad = [
                side.name for side, crc in zip((self.master, self.slave), crcs, strict=True) if crc == "BAD"
            ]
            reason = (
                f"the CRC is BAD on the {' and the '.join(bad)}"
                if bad
                else "both CRCs fit, they cover the body only"
            )
            what = f"bytes differ: {reason}"
        offset = int(table.offsets[number])
        topic, queue_id = table.names[table.topic_ids[number]], int(table.queue_ids[number])
        return Difference(at, topic, queue_id, offset, offset, 1, count, *crcs, kind, what)

    def judge(
        self, at: int, size: int, master_bytes: bytes, slave_bytes: bytes, inner: Ints
    ) -> tuple[str, str]:
        """Return the kind of a record's difference, and a sentence for all kinds but `differs`."""
        for side, data in ((self.master, master_bytes), (self.slave, slave_bytes)):
            if len(data) < size:
                return "cut off", f"the {side.name}'s file ends within the record"
        sides = (
            (self.slave, slave_bytes, master_bytes, self.chunks[1]),
            (self.master, master_bytes, slave_bytes, self.chunks[0]),
        )
        identity = identity_of(whole_record(master_bytes)), identity_of(whole_record(slave_bytes))
        for side, data, other, chunk in sides:
            found = whole_record_at(side, at)
            if found is not None and found.physical_offset != at:
                position = found.physical_offset
                back = whole_record_at(side, position)
                relation = "exchanged with" if back is not None and back.physical_offset == at else "it is"
                return (
                    "other",
                    f"on the {side.name} another record stands here: {relation} the one of {position}"
                    + (f" ({found.topic}, queue {found.queue_id}, offset {found.queue_offset})"),
                )
            if len(inner) >= ZEROS_MIN and not np.frombuffer(data, np.uint8)[inner].any():
                return "zeros", f"zeros on the {side.name}"
            moved = chunk.find(other) + self.begin if found is None else at
            if moved not in (at, self.begin - 1):
                return "moved", f"on the {side.name} it stands at {moved}, {moved - at:+d} bytes"
        if None not in identity and identity[0] != identity[1]:
            topic, queue_id, offset = identity[1] or ("", 0, 0)
            return (
                "other",
                f"on the slave another record stands here: {topic}, queue {queue_id}, offset {offset}",
            )
        return "differs", ""

    def outside_records(self, positions: Ints) -> list[Difference]:
        """Return what differs where no side has a record, by the record before it."""
        if not len(positions):
            return []
        table = self.tables[0] if len(self.tables[0].starts) else self.tables[1]
        previous = np.searchsorted(table.starts, positions, "right") - 1
        found = []
        for number in np.unique(previous).tolist()[:SINGLE_MAX]:
            mine = positions[previous == number]
            found.append(behind(table, number, int(mine[0]), len(mine)))
        return found

    def on_one_side(self, full: Side, table: RecordTable, begin: int) -> list[Difference]:
        """Return the records that only one side has, from an offset on, by queue."""
        poor = self.slave if full is self.master else self.master
        found = []
        split = np.flatnonzero((table.starts < begin) & (table.ends > begin))
        if len(split) and poor.read(int(table.starts[split[0]]), 1):
            number = int(split[0])
            count = int(table.ends[number]) - begin
            found.append(self.of_record(table, number, count, np.zeros(0, np.int64)))
        whole = np.flatnonzero(table.starts >= max(begin, self.begin))
        sizes = (table.ends - table.starts)[whole]
        kinds = {"slave": "missing", "master": "missing on master"}
        return found + by_queue(table, whole, sizes, kinds[poor.name], f"are missing on the {poor.name}")


def by_queue(table: RecordTable, numbers: Ints, counts: Ints, kind: str, what: str) -> list[Difference]:
    """Return records by queue; `counts` are their bytes."""
    found = []
    keys = table.topic_ids[numbers] << 32 | table.queue_ids[numbers] & 0xFFFFFFFF
    for key in np.unique(keys).tolist():
        mine = numbers[keys == key]
        offsets = table.offsets[mine]
        found.append(
            Difference(
                at=int(table.starts[mine[0]]),
                topic=table.names[key >> 32],
                queue_id=int(table.queue_ids[mine[0]]),
                queue_offset=int(offsets.min()),
                last_offset=int(offsets.max()),
                records=len(mine),
                count=int(counts[keys == key].sum()),
                master_crc="-",
                slave_crc="-",
                kind=kind,
                what=what,
            )
        )
    return found


def behind(table: RecordTable, number: int, at: int, count: int) -> Difference:
    """Return the difference of bytes behind a record; number -1 for no record."""
    what = "bytes differ where no record stands, behind this one"
    if number < 0:
        return Difference(
            at, None, 0, 0, 0, 0, count, "-", "-", "no record", "bytes differ, and no record is near"
        )
    topic = table.names[table.topic_ids[number]]
    queue_id, offset = int(table.queue_ids[number]), int(table.offsets[number])
    return Difference(at, topic, queue_id, offset, offset, 0, count, "-", "-", "no record", what)


def extra(side: Side, segment: int, size: int) -> Difference:
    """Return the bytes that a file has behind its end, by its last record."""
    file_end = segment + side.file_size
    found = before(side, file_end, segment)
    what = f"the {side.name}'s file is {size} bytes too long; this is its last record"
    if not found:
        return Difference(file_end, None, 0, 0, 0, 0, size, "-", "-", "extra", what)
    records = found[0]
    topic, queue_id = Topics.of(records).names[0], int(records.ints("queue_id")[0])
    offset = int(records.ints("queue_offset")[0])
    return Difference(file_end, topic, queue_id, offset, offset, 0, size, "-", "-", "extra", what)


def crc_of(data: bytes) -> str:
    """Return ok, BAD, or - without bytes, for what should be a record, wherever it stands."""
    if not data:
        return "-"
    return "ok" if whole_record(data) is not None else "BAD"


def whole_record(data: bytes) -> StoredMessage | None:
    """Return the record at the begin of some bytes, whatever offset it names; None without a whole one."""
    if len(data) < PREFIX.size:
        return None
    size, magic, _ = PREFIX.unpack_from(data)
    if magic not in RECORD_MAGICS or not PREFIX.size <= size <= len(data):
        return None
    if record_fault(data, 0, PHYSICAL_OFFSET.unpack_from(data)[0]):
        return None
    try:
        return decode_record(data, 0)
    except CorruptRecord:
        return None


def identity_of(record: StoredMessage | None) -> tuple[str, int, int] | None:
    """Return topic, queue and offset of a record."""
    return None if record is None else (record.topic, record.queue_id, record.queue_offset)


def whole_record_at(side: Side, position: int) -> StoredMessage | None:
    """Return the record at a position, whatever offset it names; None without one."""
    if not side.begin <= position < side.end:
        return None
    head = side.read(position, SIZE_AND_MAGIC.size)
    size = SIZE_AND_MAGIC.unpack(head)[0] if len(head) == SIZE_AND_MAGIC.size else 0
    return whole_record(side.read(position, size)) if PREFIX.size <= size <= RECORD_BYTES_MAX else None
