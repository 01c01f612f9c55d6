"""Frames of bulk readers, and pulls of whole records, are the same by Python and by the compiled lane."""

import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.lane.logs import lane_or_skip
from support.store.stores import make_draft, open_master
from whimbrel.broker.consume.filters import ALL, TagFilter
from whimbrel.broker.engine import frames, read_forms
from whimbrel.broker.engine.frames import BulkReader, ReadRange
from whimbrel.broker.engine.read import Read, Run, Status
from whimbrel.broker.remoting.pulls import REMOTING_READS
from whimbrel.errors import CorruptRecord, RangeGone, WhimbrelError
from whimbrel.lane import Lane
from whimbrel.model.limits import BULK_RESPONSE_BYTES_MAX
from whimbrel.store import runs
from whimbrel.store.bulk_source import BulkSource
from whimbrel.store.codec import FILLER_SIZE, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, UNIT
from whimbrel.store.lane_passes import LanePasses

ROUNDS = int(os.environ.get("WHIMBREL_LANE_ROUNDS", "1"))  # of `make fuzz-fast`
SEED = int(os.environ.get("WHIMBREL_LANE_SEED", "1"))
# So that logs of some ten KiB have frames, spans and borders of each kind.
SMALL = {
    "FRAME_BYTES_MAX": 4000,
    "GAP_BYTES_MAX": 300,
    "SPAN_BYTES_MAX": 3000,
    "UNITS_AT_ONCE": 16,
    "SCAN_MAX": 64,
}
UNITS_PER_FILE = 25  # of a queue
CODES = (0, 5, -7, 0x1_0000_0005)  # the last one has the hash of the second
ODD = (
    "damaged size",
    "damaged magic",
    "wrong size",
    "tiny",
    "empty",
    "negative",
    "huge",
    "nowhere",
    "misplaced",
    "again",
)
LAST = (1 << 63) - 1
PYTHON = LanePasses(Lane("off"))


class Source:
    """A log of records that say nothing but their size, and the queues of it; as `BulkSource` shows them."""

    def __init__(self, file_size: int, queues: int) -> None:
        self.file_size = file_size
        self.log = bytearray()
        self.entries: list[list[tuple[int, int, int]]] = [[] for _ in range(queues)]
        self.begin = self.low = 0
        self.reads: list[tuple[int, int]] = []

    def queue_range(self, topic: str, queue_id: int, log_end: int) -> tuple[int, int, int]:
        """See `BulkSource`."""
        high = len(self.entries[queue_id])
        return min(self.low, high), high, high

    def visible_range(self, topic: str, queue_id: int) -> tuple[int, int, int]:
        """See `BulkSource`."""
        high = len(self.entries[queue_id])
        return min(self.low, high), high, self.begin

    def near_units(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        """See `BulkSource`."""
        return self.units(topic, queue_id, offset, count)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        """See `BulkSource`."""
        count = min(count, UNITS_PER_FILE - offset % UNITS_PER_FILE)
        return b"".join(UNIT.pack(*entry) for entry in self.entries[queue_id][offset : offset + count])

    def span(self, begin: int, end: int) -> bytes:
        """See `BulkSource`."""
        if begin < self.begin:
            raise RangeGone(f"{begin} is gone")
        file_end = begin - begin % self.file_size + self.file_size
        if end > min(len(self.log), file_end):
            raise CorruptRecord(f"{begin} to {end} is not there")
        self.reads.append((begin, end))
        return bytes(self.log[begin:end])

    def add(self, queue_id: int, size: int, kind: str, rng: random.Random) -> None:
        """Append a record, and its entry."""
        if len(self.log) % self.file_size + size > self.file_size:
            self.log += bytes(self.file_size - len(self.log) % self.file_size)
        place, code, stored = len(self.log), rng.choice(CODES), size
        if kind in ("tiny", "empty"):
            size = stored = rng.randrange(8, 91) if kind == "tiny" else 0
        elif kind == "negative":
            size = stored = -rng.randrange(1, 200)
        elif kind == "wrong size":
            size += rng.choice([-1, 1, 30])
        elif kind == "huge":
            size = rng.choice([FILLER_SIZE - 1, BULK_RESPONSE_BYTES_MAX, 5000])
        elif kind == "damaged size":
            stored ^= 1 << rng.randrange(12)
        elif kind == "nowhere":
            place = rng.choice([-1, -LAST - 1, LAST, LAST - 100, place + 100_000])
        elif kind == "misplaced":
            place = max(place - rng.choice([50, 200, 1000]), 0)
        magic = rng.choice([MAGIC_V1, MAGIC_V1, MAGIC_V2]) ^ (1 << rng.randrange(32)) * (
            kind == "damaged magic"
        )
        self.log += SIZE_AND_MAGIC.pack(stored, magic) + bytes(max(stored, 91) - SIZE_AND_MAGIC.size)
        if rng.random() < 0.05:
            self.entries[queue_id] += [(0, FILLER_SIZE, rng.choice(CODES))] * rng.choice([1, 2, 40])
        self.entries[queue_id].append((place, size, code))
        if kind == "again":
            self.entries[queue_id].append(rng.choice(self.entries[queue_id][-4:]))


def make_source(rng: random.Random, records: int, odd: float) -> Source:
    """Make a log whose queues lie close together or far apart."""
    source = Source(rng.choice([4096, 10_000, 1 << 30]), rng.choice([1, 1, 2, 5]))
    sizes = rng.choice([(91, 92), (91, 300), (91, 1500), (700, 3000)])
    for _ in range(records):
        kind = rng.choice(ODD) if rng.random() < odd else "plain"
        source.add(rng.randrange(len(source.entries)), rng.randrange(*sizes), kind, rng)
    return source


class Counted(BulkReader):
    """A reader that tells which of its frames the lane has made."""

    made_by_lane = False

    def by_lane(self) -> bytes | None:
        """See `BulkReader`."""
        records = super().by_lane()
        self.made_by_lane = records is not None
        return records


def step(reader: BulkReader, source: Source) -> tuple[Any, ...]:
    """Make a frame; return all that can be seen of it, and what was read of the log for it."""
    source.reads = []
    try:
        outcome: Any = reader.next(0)
    except WhimbrelError as error:
        outcome = (type(error), str(error))
    return outcome, (reader.position, reader.sent, reader.spent, reader.done), source.reads


def disturb(source: Source, rng: random.Random) -> None:
    """Cut the log, let its begin go, or cut the queues."""
    kind = rng.randrange(4)
    if kind == 0:
        del source.log[rng.randrange(len(source.log)) :]
    elif kind == 1:
        source.begin = rng.randrange(len(source.log) + 1)
    elif kind == 2:
        source.low += rng.randrange(30)
    else:
        for entries in source.entries:
            del entries[rng.randrange(len(entries) + 1) :]


def compare(source: Source, wanted: ReadRange, lane: Lane, rng: random.Random | None = None) -> list[int]:
    """Read a range by both, until it ends or fails; return bytes of frames by the lane, and of all.

    With `rng` something happens to the store now and then.
    """
    reader, compiled = BulkReader(source, wanted, 0), Counted(source, wanted, 0, LanePasses(lane))
    found = [0, 0]
    while not reader.done:
        expected, seen = step(reader, source), step(compiled, source)
        assert seen[:2] == expected[:2]
        if isinstance(expected[0], tuple):
            break
        if compiled.made_by_lane:
            assert seen[2] == expected[2], "other pieces of the log are read"
            found[0] += len(expected[0].records)
        found[1] += len(expected[0].records)
        if rng is not None and rng.random() < 0.3:
            disturb(source, rng)
    assert lane.active, lane.why
    return found


def some_range(source: Source, rng: random.Random) -> ReadRange:
    """Choose a queue, a range of it, tags, and a budget."""
    queue_id = rng.randrange(len(source.entries))
    high = len(source.entries[queue_id])
    start = rng.choice([0, rng.randrange(high + 1)])
    return ReadRange(
        topic="t",
        queue_id=queue_id,
        start=start,
        end=rng.choice([0, 0, rng.randrange(start, high + 1)]),
        budget=rng.choice([0, 0, 1, rng.randrange(1, 20_000)]),
        codes=rng.choice([None, None, frozenset(), frozenset({5}), frozenset({0, -7 & 0xFFFFFFFF})]),
    )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set small bounds."""
    for name, value in SMALL.items():
        monkeypatch.setattr(frames, name, value)
    for name in ("GAP_BYTES_MAX", "SPAN_BYTES_MAX"):
        monkeypatch.setattr(read_forms, name, SMALL[name])
        monkeypatch.setattr(runs, name, SMALL[name])


@pytest.mark.parametrize("part", range(4))
def test_queues_of_all_kinds_of_records_give_the_same_frames(part: int) -> None:
    lane = lane_or_skip()
    for number in range(ROUNDS * 150):
        seed = SEED * 1_000_003 + part * 100_003 + number
        rng = random.Random(seed)
        source = make_source(rng, rng.choice([1, 20, 150]), rng.choice([0, 0.02, 0.2]))
        disturbed = rng if rng.random() < 0.3 else None
        try:
            compare(source, some_range(source, rng), lane, disturbed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("codes", [None, frozenset({5})])
@pytest.mark.parametrize("budget", [0, 30_000])
def test_the_lane_makes_nearly_all_frames_of_plain_records(codes: frozenset[int] | None, budget: int) -> None:
    lane, rng = lane_or_skip(), random.Random(SEED)
    by_lane = total = 0
    for _ in range(20):
        source = make_source(rng, 400, 0)
        for queue_id in range(len(source.entries)):
            wanted = ReadRange(topic="t", queue_id=queue_id, start=0, budget=budget, codes=codes)
            some, all_of_them = compare(source, wanted, lane)
            by_lane, total = by_lane + some, total + all_of_them
    assert total > 100_000 and by_lane >= 0.99 * total, f"{by_lane} of {total} bytes by the lane"


def test_bounds_as_they_are_give_the_same_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert frames.FRAME_BYTES_MAX > SMALL["FRAME_BYTES_MAX"]
    lane, rng = lane_or_skip(), random.Random(SEED)
    source = Source(1 << 22, 2)
    for number in range(2000):
        source.add(number % 2, rng.choice([100, 1100, 6000, 9000]), "plain", rng)
    for queue_id in range(2):
        by_lane, total = compare(source, ReadRange(topic="t", queue_id=queue_id, start=0), lane)
        assert by_lane == total > 0


@pytest.mark.parametrize("failing", ["BulkPlan", "take", "spans", "cut"])
def test_a_lane_that_fails_leaves_the_frame_to_python(failing: str) -> None:
    lane = lane_or_skip()
    source = make_source(random.Random(SEED), 150, 0)
    wanted = ReadRange(topic="t", queue_id=0, start=0)
    reader, compiled = (
        BulkReader(source, wanted, 0),
        BulkReader(source, wanted, 0, FailingPasses(lane, failing)),
    )
    while not reader.done:
        assert step(compiled, source)[:2] == step(reader, source)[:2]
    assert not lane.active and lane.failures == 1


def test_queues_of_a_store_give_the_same_frames(tmp_path: Path) -> None:
    lane = lane_or_skip()
    store = open_master(tmp_path / "s")
    for number in range(900):
        store.append([make_draft(number, queue_id=number % 7 % 3, size=number % 5 * 300)])
    source = BulkSource(store)
    for queue_id in range(3):
        wanted = ReadRange(topic="topic", queue_id=queue_id, start=3)
        reader = BulkReader(source, wanted, store.written)
        compiled = Counted(source, wanted, store.written, LanePasses(lane, store.page))
        while not reader.done:
            assert compiled.next(store.written) == reader.next(store.written)
            assert compiled.made_by_lane and not store.page.lane_pass
        assert compiled.done
    store.close()


# Pulls


class WantedCodes(TagFilter):
    """A filter by hashes of tags."""

    def __init__(self, codes: frozenset[int]) -> None:
        super().__init__("", frozenset())
        self.codes = codes


def whole_records(source: Source, request: Read, passes: LanePasses) -> Run:
    """Read from a place within a queue; where there is none nothing is found."""
    low, high, begin = source.visible_range("t", request.queue_id)
    store = SimpleNamespace(passes=passes, min_offset=begin)
    reads: Any = SimpleNamespace(source=source, store=store, follows=False)
    form = REMOTING_READS.form if low <= request.offset < high else REMOTING_READS.outside
    return form(reads, request, low, high)


def pulled(source: Source, request: Read, passes: LanePasses) -> tuple[Any, ...]:
    """Pull; return all that can be seen of it, and what was read of the log for it."""
    source.reads = []
    try:
        found = whole_records(source, request, passes)
    except WhimbrelError as error:
        return (type(error), str(error)), None, source.reads
    return seen(found), found, source.reads


def seen(found: Run) -> tuple[Any, ...]:
    """Return what a pull has found, as values."""
    records = b"".join(found.parts)
    return (
        found.status, found.next_offset, found.low, found.high, records, found.messages,
        found.size, found.last_place, found.waits,
    )  # fmt: skip


def request_of(queue_id: int, offset: int, messages: int, size: int, wanted: TagFilter) -> Read:
    """Return a pull."""
    read = Read(REMOTING_READS, "g", "t", None, False, queue_id, offset, messages, size)
    read.wanted = wanted
    return read


def some_request(source: Source, rng: random.Random) -> Read:
    """Choose a queue, a place in it, tags, and how much."""
    queue_id = rng.randrange(len(source.entries))
    codes = rng.choice([None, None, frozenset({5}), frozenset({0, -7 & 0xFFFFFFFF})])
    return request_of(
        queue_id,
        rng.randrange(len(source.entries[queue_id]) + 1),
        rng.choice([1, 2, 32, 100]),
        rng.choice([1, 500, 4000, 262_144]),
        ALL if codes is None else WantedCodes(codes),
    )


@pytest.mark.parametrize("part", range(2))
def test_pulls_of_all_kinds_of_records_find_the_same(part: int) -> None:
    lane = lane_or_skip()
    passes = LanePasses(lane)
    for number in range(ROUNDS * 150):
        seed = SEED * 1_000_003 + part * 100_003 + number
        rng = random.Random(seed)
        source = make_source(rng, rng.choice([1, 20, 150]), rng.choice([0, 0.02, 0.2]))
        for _ in range(8):
            request = some_request(source, rng)
            expected, found = (
                pulled(source, request, PYTHON),
                pulled(source, request, passes),
            )
            assert found[0] == expected[0], f"seed {seed}"
            if rng.random() < 0.1:
                disturb(source, rng)
    assert lane.active, lane.why


def test_the_lane_makes_nearly_all_pulls_of_plain_records(monkeypatch: pytest.MonkeyPatch) -> None:
    lane, rng = lane_or_skip(), random.Random(SEED)
    passes = LanePasses(lane)
    source = make_source(rng, 1500, 0)
    monkeypatch.setattr(read_forms, "RecordRuns", None)  # Python's
    offset = messages = 0
    while offset < len(source.entries[0]):
        request = request_of(0, offset, 32, 262_144, ALL)
        found = whole_records(source, request, passes)
        assert found.status in (Status.FOUND, Status.NO_MATCHED_MESSAGE)
        offset, messages = found.next_offset, messages + found.messages
    assert messages >= 200 and lane.active


@pytest.mark.parametrize("failing", ["plan_pull", "cut"])
def test_a_lane_that_fails_leaves_the_pull_to_python(failing: str) -> None:
    lane = lane_or_skip()
    source = make_source(random.Random(SEED), 150, 0)
    request = request_of(0, 0, 32, 262_144, ALL)
    expected = pulled(source, request, PYTHON)[0]
    assert pulled(source, request, FailingPasses(lane, failing))[0] == expected
    assert not lane.active and lane.failures == 1


class FailingPasses(LanePasses):
    """Passes of which one kind panics."""

    def __init__(self, lane: Lane, failing: str) -> None:
        super().__init__(lane)
        self.failing = failing

    def run(self, work: Any, *arguments: Any) -> Any:
        """See `LanePasses`."""
        if work.__name__ == self.failing:
            native = self.lane.native
            assert native is not None
            return super().run(native.panic, "for the test")
        return super().run(work, *arguments)
