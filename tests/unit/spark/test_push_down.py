"""Filters of a query: what is taken of them, what Spark has still to apply, and what is left to read."""

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from whimbrel.spark.planning import OffsetRange
from whimbrel.spark.push_down import ALL, UNRESTRICTED, PushDown, intersect, prune, push

LOW, HIGH = ALL
AT = datetime(2026, 11, 21, 8, 0, 0, 500, UTC)
AT_MS = 1_795_248_000_000


def test_filters_on_queues_are_taken_whole() -> None:
    filters = [
        IsNotNull(("topic",)),
        In(("topic",), ("a", "b")),
        EqualTo(("topic",), "a"),
        GreaterThan(("queueId",), 2),
        LessThanOrEqual(("queueOffset",), 9),
        EqualTo(("tags",), "x"),
    ]
    push_down, left = push(filters, has_physical_offsets=False)
    assert push_down == PushDown(
        topics=frozenset("a"), tags=frozenset("x"), queue_ids=(3, HIGH), queue_offsets=(LOW, 10)
    )
    assert left == []


def test_what_is_not_understood_goes_back_as_the_same_object() -> None:
    filters = [
        Not(EqualTo(("topic",), "a")),
        StringStartsWith(("topic",), "a"),
        EqualTo(("body",), b"x"),
        EqualTo(("properties", "n"), "1"),
        EqualTo(("tags",), "a||b"),
        EqualTo(("queueOffset",), None),
        IsNotNull(("tags",)),
    ]
    push_down, left = push(filters, has_physical_offsets=True)
    assert push_down == UNRESTRICTED
    assert all(one is other for one, other in zip(left, filters, strict=True))


def test_places_in_the_log_are_told_only_by_a_log() -> None:
    wanted = GreaterThanOrEqual(("physicalOffset",), 1000)
    assert push([wanted], has_physical_offsets=True) == (PushDown(physical_offsets=(1000, HIGH)), [])
    assert push([wanted], has_physical_offsets=False) == (UNRESTRICTED, [wanted])


def test_a_set_with_gaps_is_a_range_and_goes_back() -> None:
    dense, gaps = In(("queueOffset",), (3, 5, 4)), In(("queueOffset",), (3, 9))
    assert push([dense], has_physical_offsets=True) == (PushDown(queue_offsets=(3, 6)), [])
    assert push([gaps], has_physical_offsets=True) == (PushDown(queue_offsets=(3, 10)), [gaps])


@pytest.mark.parametrize(
    ("asked", "stored_ms"),
    [
        (EqualTo(("storeTimestamp",), AT), (AT_MS, AT_MS + 1)),
        (GreaterThan(("storeTimestamp",), AT), (AT_MS, HIGH)),
        (LessThan(("timestamp",), AT), (LOW, AT_MS + 1)),
        (LessThanOrEqual(("storeTimestamp",), AT), (LOW, AT_MS + 1)),
    ],
)
def test_times_leave_whole_milliseconds_and_go_back(asked: Any, stored_ms: tuple[int, int]) -> None:
    assert push([asked], has_physical_offsets=False) == (PushDown(stored_ms=stored_ms), [asked])


def test_pieces_are_dropped_and_cut() -> None:
    ranges = [OffsetRange(topic, "b", queue, 0, 100, 1.0) for topic in ("a", "z") for queue in (0, 1, 2)]
    push_down = PushDown(
        topics=frozenset("a"), queue_ids=(1, HIGH), queue_offsets=(10, 50), stored_ms=(5, HIGH)
    )
    asked: list[Any] = []

    def offsets_of(keys: Any) -> dict[Any, tuple[int, int]]:
        asked.extend(keys)
        return {("a", "b", 1): (20, HIGH), ("a", "b", 2): (60, HIGH)}

    kept = prune(ranges, push_down, offsets_of)
    assert [(offset_range.key, offset_range.start, offset_range.end) for offset_range in kept] == [
        (("a", "b", 1), 20, 50)
    ]
    assert asked == [("a", "b", 1), ("a", "b", 2)]


def test_ranges_share_what_both_have() -> None:
    assert intersect((0, 10), (5, 20)) == (5, 10)
    assert intersect(ALL, (5, 20)) == (5, 20)
