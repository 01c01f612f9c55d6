"""What goes into a frame, what is read for it, and what is refused."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from whimbrel.broker.engine.frames import (
    FRAME_BYTES_MAX,
    SCAN_MAX,
    UNITS_AT_ONCE,
    BulkFrame,
    BulkReader,
    ReadRange,
)
from whimbrel.errors import (
    BadRequest,
    BeyondConfirmed,
    CorruptRecord,
    IllegalOffset,
    MessageTooLarge,
    RangeGone,
)
from whimbrel.model.limits import BULK_RESPONSE_BYTES_MAX
from whimbrel.store.codec import FILLER_SIZE, MAGIC_V1, UNIT
from whimbrel.store.runs import GAP_BYTES_MAX, SPAN_BYTES_MAX

HEAD = MAGIC_V1.to_bytes(4, "big")
FILE = 64 << 20
RED, BLUE = 5, -7  # tags codes; the second as Java's hash of most tags


class FakeStore:
    """A log of records that say nothing but their size and number, and one queue over some of them."""

    def __init__(self, file_size: int = FILE) -> None:
        self.file_size = file_size
        self.log = bytearray()
        self.entries: list[tuple[int, int, int]] = []
        self.records: list[bytes] = []  # of the queue
        self.low = 0
        self.reads: list[tuple[int, int]] = []

    def other(self, size: int) -> None:
        """Add a record of another queue."""
        self.log += size.to_bytes(4, "big") + HEAD + b"?" * (size - 8)

    def add(self, size: int = 100, code: int = RED) -> None:
        record = (
            size.to_bytes(4, "big") + HEAD + bytes(len(self.entries).to_bytes(4, "big")) + bytes(size - 12)
        )
        self.entries.append((len(self.log), size, code))
        self.records.append(record)
        self.log += record

    def filler(self) -> None:
        self.entries.append((0, FILLER_SIZE, 0))
        self.records.append(b"")

    def queue_range(self, topic: str, queue_id: int, log_end: int) -> tuple[int, int, int]:
        assert (topic, queue_id) == ("t", 3)
        within = [number for number, (at, size, _) in enumerate(self.entries) if at + size <= log_end]
        return self.low, max(within, default=-1) + 1, len(self.entries)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        return b"".join(UNIT.pack(*entry) for entry in self.entries[offset : offset + count])

    def span(self, begin: int, end: int) -> bytes:
        assert begin // self.file_size == (end - 1) // self.file_size, "a read beyond the end of a file"
        self.reads.append((begin, end))
        return bytes(self.log[begin:end])


def cutter(store: FakeStore, start: int = 0, *, confirmed: int = 1 << 60, **fields: Any) -> BulkReader:
    return BulkReader(store, ReadRange(topic="t", queue_id=3, start=start, **fields), confirmed)


def frames(store: FakeStore, start: int = 0, **fields: Any) -> list[BulkFrame]:
    cut = cutter(store, start, **fields)
    found = [cut.next(1 << 60)]
    while not cut.done:
        found.append(cut.next(1 << 60))
    return found


def content(found: Sequence[BulkFrame]) -> bytes:
    return b"".join(frame.records for frame in found)


def test_records_that_touch_are_read_at_once() -> None:
    store = FakeStore()
    for _ in range(50):
        store.add()
    (frame,) = frames(store)
    assert frame.records == b"".join(store.records)
    assert (frame.next_offset, frame.confirmed, frame.min_offset, frame.max_offset) == (50, 50, 0, 50)
    assert store.reads == [(0, 5000)]


def test_small_gaps_are_read_along_and_cut_out_and_large_ones_are_not_read() -> None:
    store = FakeStore()
    store.add()
    store.other(GAP_BYTES_MAX)
    store.add()
    store.other(GAP_BYTES_MAX + 1)
    store.add()
    (frame,) = frames(store)
    assert frame.records == b"".join(store.records)
    assert store.reads == [(0, 200 + GAP_BYTES_MAX), (201 + 2 * GAP_BYTES_MAX, 301 + 2 * GAP_BYTES_MAX)]


def test_no_read_crosses_the_end_of_a_log_file() -> None:
    store = FakeStore(file_size=1000)
    for _ in range(30):
        store.add()
    assert content(frames(store)) == b"".join(store.records)
    assert len(store.reads) == 3


def test_a_read_with_many_gaps_is_bounded() -> None:
    store = FakeStore()
    for _ in range(2000):
        store.add(200)
        store.other(4000)
    assert content(frames(store)) == b"".join(store.records)
    assert max(end - begin for begin, end in store.reads) <= SPAN_BYTES_MAX


def test_frames_hold_whole_records_up_to_their_bound() -> None:
    store = FakeStore()
    for _ in range(30):
        store.add(25_000)
    found = frames(store)
    assert [frame.next_offset for frame in found] == [10, 20, 30]
    assert all(len(frame.records) == 250_000 <= FRAME_BYTES_MAX for frame in found)
    assert content(found) == b"".join(store.records)


def test_a_frame_may_be_exactly_full() -> None:
    store = FakeStore()
    store.add(FRAME_BYTES_MAX - 100)
    store.add(100)
    store.add(100)
    assert [frame.next_offset for frame in frames(store)] == [2, 3]


def test_larger_record_goes_alone() -> None:
    store = FakeStore()
    store.add()
    store.add(4 << 20)
    store.add()
    found = frames(store)
    assert [len(frame.records) for frame in found] == [100, 4 << 20, 100]
    assert content(found) == b"".join(store.records)


def test_record_that_no_frame_can_hold_is_named_after_those_before_it() -> None:
    store = FakeStore()
    store.add()
    store.entries.append((100, BULK_RESPONSE_BYTES_MAX, RED))
    cut = cutter(store)
    assert cut.next(1 << 60).next_offset == 1
    with pytest.raises(MessageTooLarge, match="t/3 at offset 1"):
        cut.next(1 << 60)


@pytest.mark.parametrize("entry", [(100, 0, RED), (100, -5, RED), (100, 90, RED)])
def test_entry_of_no_record_is_named_after_those_before_it(entry: tuple[int, int, int]) -> None:
    store = FakeStore()
    store.add()
    store.entries.append(entry)
    cut = cutter(store, latest=True)
    assert cut.next(1 << 60).next_offset == 1
    with pytest.raises(CorruptRecord, match="offset 1"):
        cut.next(1 << 60)


@pytest.mark.parametrize("damaged", [100, 104])  # the size, the magic
def test_damaged_record_is_not_sent(damaged: int) -> None:
    store = FakeStore()
    for _ in range(3):
        store.add()
    store.log[damaged] ^= 1
    with pytest.raises(CorruptRecord, match="byte 100 of the log"):
        frames(store)


def test_unwanted_tags_are_not_read() -> None:
    store = FakeStore()
    for number in range(40):
        store.add(20_000, RED if number % 4 else BLUE)
    (frame,) = frames(store, codes=frozenset({BLUE & 0xFFFFFFFF}))
    assert frame.records == b"".join(store.records[::4])
    assert frame.next_offset == 40
    assert store.reads == [(at, at + 20_000) for at in range(0, 800_000, 80_000)]


def test_filter_that_matches_little_gives_frames_without_records() -> None:
    store = FakeStore()
    store.entries = [(0, 100, RED)] * (2 * SCAN_MAX)
    store.add(code=BLUE)
    found = frames(store, codes=frozenset({BLUE & 0xFFFFFFFF}))
    assert [(frame.next_offset, len(frame.records)) for frame in found] == [
        (SCAN_MAX, 0),
        (2 * SCAN_MAX, 0),
        (2 * SCAN_MAX + 1, 100),
    ]


def test_fillers_are_passed() -> None:
    store = FakeStore()
    for _ in range(3):
        store.filler()
        store.add()
    (frame,) = frames(store)
    assert frame.records == b"".join(store.records) and frame.next_offset == 6


def test_budget_ends_the_range_before_the_record_that_is_too_much_but_not_before_the_first() -> None:
    store = FakeStore()
    for _ in range(10):
        store.add(50_000)
    assert [frame.next_offset for frame in frames(store, budget=1)] == [1]
    assert [frame.next_offset for frame in frames(store, budget=100_000)] == [2]
    assert [frame.next_offset for frame in frames(store, budget=149_999)] == [2]
    assert [frame.next_offset for frame in frames(store, budget=325_000)] == [5, 6]
    assert [frame.next_offset for frame in frames(store, budget=250_000)] == [5]
    assert [frame.next_offset for frame in frames(store, start=8, budget=10**9)] == [10]


def test_range_ends_where_asked_or_where_confirmed_at_the_begin() -> None:
    store = FakeStore()
    for _ in range(10):
        store.add()
    assert [frame.next_offset for frame in frames(store, start=2, end=7)] == [7]
    cut = cutter(store, confirmed=450)
    frame = cut.next(900)
    assert (frame.next_offset, frame.confirmed, frame.max_offset, cut.done) == (4, 9, 10, True)
    assert cutter(store, latest=True, confirmed=0).end == 10


def test_nothing_to_read_is_one_frame_that_says_where_the_queue_stands() -> None:
    store = FakeStore()
    store.low = 3
    for _ in range(10):
        store.add()
    cut = cutter(store, 4, confirmed=400)
    assert cut.done
    frame = cut.next(400)
    assert (frame.records, frame.next_offset, frame.min_offset, frame.confirmed) == (b"", 4, 3, 4)


@pytest.mark.parametrize(
    ("start", "fields", "error", "text"),
    [
        (2, {}, RangeGone, "begins at 3"),
        (11, {}, IllegalOffset, "ends at 10 here"),
        (3, {"end": 11}, IllegalOffset, "ends at 10 here"),
        (11, {"latest": True}, IllegalOffset, "ends at 10 here"),
        (9, {}, BeyondConfirmed, "confirmed up to 8 of 10"),
        (3, {"end": 9}, BeyondConfirmed, "confirmed up to 8 of 10"),
        (6, {"end": 5}, BadRequest, "ends before it begins"),
        (-1, {}, BadRequest, "negative"),
        (3, {"budget": -1}, BadRequest, "negative"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    start: int, fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    store = FakeStore()
    for _ in range(10):
        store.add()
    store.low = 3
    with pytest.raises(error, match=text) as caught:
        cutter(store, start, confirmed=850, **fields)
    assert type(caught.value) is error


def test_retention_that_passes_the_reader_is_named() -> None:
    store = FakeStore()
    for _ in range(30):
        store.add(25_000)
    cut = cutter(store)
    cut.next(1 << 60)
    store.low = 11
    with pytest.raises(RangeGone, match="begins at 11 now"):
        cut.next(1 << 60)


def test_log_that_is_cut_below_the_reader_is_named() -> None:
    store = FakeStore()
    for _ in range(30):
        store.add(25_000)
    cut = cutter(store)
    cut.next(1 << 60)
    del store.entries[10:]
    with pytest.raises(IllegalOffset, match="cut"):
        cut.next(1 << 60)


@pytest.mark.parametrize("seed", range(20))
def test_random_logs_come_out_as_they_went_in(seed: int) -> None:
    chance = random.Random(seed)
    store = FakeStore(file_size=chance.choice([3 << 20, FILE]))
    for _ in range(chance.choice([10, 300, 3 * UNITS_AT_ONCE // 2])):
        kind = chance.random()
        if kind < 0.3:
            store.other(chance.choice([100, 5000, 20_000]))
        elif kind < 0.32:
            store.filler()
        else:
            store.add(chance.choice([91, 200, 1000, 30_000]), chance.choice([RED, BLUE]))
        if len(store.log) % store.file_size > store.file_size - 30_100:
            store.other(store.file_size - len(store.log) % store.file_size)
    low = chance.randrange(len(store.entries) // 2 + 1)
    codes = chance.choice([None, frozenset({RED}), frozenset({RED, BLUE & 0xFFFFFFFF})])
    wanted = [
        record
        for record, (_, _, code) in zip(store.records[low:], store.entries[low:], strict=True)
        if codes is None or code & 0xFFFFFFFF in codes
    ]
    found = frames(store, low, codes=codes)
    assert content(found) == b"".join(wanted)
    assert found[-1].next_offset == len(store.entries)
    assert all(len(frame.records) <= FRAME_BYTES_MAX for frame in found)
