"""The scan of queues for one answer: what stands at each offset, and the budgets."""

import pytest

from support.broker.consumption import FakeStore
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.store import scan as scan_module
from whimbrel.store.scan import ANSWER_BYTES_MAX, FILTERED_UNITS, SCAN_MAX, Piece, Scan


class CuttingStore(FakeStore):
    """A store whose log has lost what lies below an offset, and that returns few entries at a time."""

    def __init__(self, *, begin: int = 0, units_max: int = 1000) -> None:
        super().__init__()
        self.begin, self.units_max = begin, units_max

    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        return super().queue_units(topic, queue_id, offset, min(count, self.units_max))

    def read(self, physical_offset: int, size: int) -> bytes:
        if physical_offset < self.begin:
            raise IllegalOffset("gone")
        return super().read(physical_offset, size)


def filled(*tags: str | None, store: FakeStore | None = None, size: int = 1) -> FakeStore:
    store = store or FakeStore()
    for tag in tags:
        store.put("t", 0, b"x" * size, tag=tag)
    return store


def scan_of(store: FakeStore, expression: str = "*", batch: int = 32) -> Scan:
    return Scan(store, "t", compile_filter("tag", expression), batch)


def shown(pieces: list[Piece]) -> list[tuple[int, int, str]]:
    """Return what stands where, as ranges."""
    ranges = []
    for begin, start, end, units, index, found in pieces:
        if begin < start:
            ranges.append((begin, start, "filtered"))
        if not isinstance(found, list):
            ranges.append((start, end, type(found).__name__))
        elif found:
            ranges.append((start, end, "messages"))
            assert [message.queue_offset for message in found] == list(range(start, end))
            for message, unit in zip(found, units[index : index + len(found)], strict=True):
                assert (message.physical_offset, message.size) == unit[:2]
    return ranges


def test_messages_next_to_each_other_make_one_piece() -> None:
    scan = scan_of(filled(*[None] * 5))
    assert shown(scan.walk(0, 1, 4)) == [(1, 4, "messages")]
    assert (scan.reached, scan.room, scan.entries_left) == (4, 29, SCAN_MAX - 3)


def test_filtered_out_is_told_apart_by_code_and_by_text() -> None:
    scan = scan_of(filled("a", "Aa", "BB", "Aa", None, "Aa"), "Aa")
    assert shown(scan.walk(0, 0, 6)) == [
        (0, 1, "filtered"), (1, 2, "messages"), (2, 3, "filtered"), (3, 4, "messages"), (4, 5, "filtered"),
        (5, 6, "messages"),
    ]  # fmt: skip
    scan = scan_of(filled("a", "Aa", "b", "c"), "Aa")
    assert shown(scan.walk(0, 2, 4)) == [(2, 4, "filtered")]
    assert (scan.reached, scan.room) == (4, 32)


def test_gone_and_corrupt_records_stand_alone() -> None:
    store = filled("a", "b", "a", "a", "a", store=CuttingStore())
    store.begin = store.queues["t", 0][1][0]  # type: ignore[attr-defined]
    physical_offset = store.queues["t", 0][3][0]
    store.log[physical_offset + 8] ^= 1  # the CRC of the body
    scan = scan_of(store, "a")
    assert shown(scan.walk(0, 0, 5)) == [
        (0, 1, "IllegalOffset"), (1, 2, "filtered"), (2, 3, "messages"), (3, 4, "CorruptRecord"),
        (4, 5, "messages"),
    ]  # fmt: skip
    assert scan.room == 30
    assert [type(piece[-1]) for piece in scan_of(store).walk(0, 0, 4)] == [IllegalOffset, list, CorruptRecord]


def test_answer_ends_with_its_batch() -> None:
    scan = scan_of(filled(*["a", "b"] * 3), "a", batch=2)
    assert shown(scan.walk(0, 0, 6))[-1] == (2, 3, "messages")
    assert (scan.reached, scan.room) == (3, 0)
    assert scan.walk(0, 3, 6) == []
    assert scan_of(filled(None), batch=1000).room == 32
    assert scan_of(filled(None), batch=0).walk(0, 0, 1) == []


def test_answer_ends_with_its_bytes_but_never_before_its_first_message() -> None:
    store = filled(None, None, size=ANSWER_BYTES_MAX + 1)
    filled(None, store=store)
    scan = scan_of(store)
    assert shown(scan.walk(0, 0, 3)) == [(0, 1, "messages")]
    assert scan.walk(0, 2, 3) == [] and scan.reached == 2
    scan = scan_of(store)
    assert shown(scan.walk(0, 2, 3)) == [(2, 3, "messages")]
    assert scan.walk(0, 0, 1) == [] and scan.reached == 0


def test_store_may_return_fewer_entries_than_asked_for() -> None:
    scan = scan_of(filled(*["a", "a", "b"] * 3, store=CuttingStore(units_max=2)), "a")
    assert shown(scan.walk(0, 0, 12)) == [
        (0, 2, "messages"), (2, 3, "filtered"), (3, 4, "messages"), (4, 5, "messages"), (5, 6, "filtered"),
        (6, 8, "messages"), (8, 9, "filtered"),
    ]  # fmt: skip
    assert scan.reached == 9  # where the queue ends


def test_entries_are_charged_when_they_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "SCAN_MAX", 300)
    scan = scan_of(filled(*["b"] * 400), "a")
    assert scan.fetch_count() == FILTERED_UNITS
    scan.walk(0, 0, FILTERED_UNITS)
    assert scan.entries_left == scan.fetch_count() == 300 - FILTERED_UNITS
    assert scan_of(filled(None), batch=5).fetch_count() == 5


def test_what_is_left_out_makes_room_again() -> None:
    scan = scan_of(filled(*[None] * 5), batch=2)
    [piece] = scan.walk(0, 0, 5)
    assert isinstance(piece[-1], list)
    scan.leave_out(piece[-1][0])
    assert (scan.room, scan.bytes_left) == (1, ANSWER_BYTES_MAX - piece[-1][1].size)


def test_walk_that_is_ended_early_keeps_what_lies_before() -> None:
    scan = scan_of(filled("a", "a", "b", "a", "a", "b", "a"), "a")
    pieces = scan.walk(0, 0, 7)
    assert scan.room == 27
    scan.end_walk(pieces, 4)
    assert (scan.reached, scan.room) == (4, 29)
    scan = scan_of(filled(None))
    scan.end_walk(scan.walk(0, 0, 1), 1)
    assert scan.room == 31


def test_filter_that_costs_more_is_scanned_for_fewer_entries() -> None:
    store = filled(*["b"] * 600)
    for expression, entries in (("n = 1", 256), (" OR ".join(["n = 1"] * 1600), 3)):
        scan = Scan(store, "t", compile_filter("sql", expression), 32)
        assert scan.entries_left == entries
        assert shown(scan.walk(0, 0, scan.fetch_count())) == [(0, entries, "filtered")]
        assert scan.entries_left == 0
