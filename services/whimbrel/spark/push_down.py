"""Filters that are pushed down: which ranges and sets of records are read. Pure.

    filters of the query ──► `PushDown` + the filters that Spark has still to apply

Planning prunes queues and ranges by it; tasks select records by what is left of it. Which filters can be
pushed down exactly depends on the backend: brokers do not know physical offsets, so those filters are left to
Spark. Times are looked up in each queue and left to Spark as well: a column of time is finer than the
milliseconds by which queues are searched.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from whimbrel.spark.offsets import Key
from whimbrel.spark.planning import OffsetRange

__all__ = ["ALL", "UNRESTRICTED", "PushDown", "Range", "intersect", "prune", "push"]

I64_MIN, I64_MAX = -(2**63), 2**63 - 1
Range = tuple[int, int]  # half open
ALL: Range = (I64_MIN, I64_MAX)

# Columns that are never null: "is not null" always holds.
FILLED = frozenset(("topic", "queueId", "queueOffset", "physicalOffset", "partition", "offset"))
RANGES = {
    "queueOffset": "queue_offsets",
    "offset": "queue_offsets",
    "physicalOffset": "physical_offsets",
    "queueId": "queue_ids",
    "partition": "queue_ids",
    "storeTimestamp": "stored_ms",
    "timestamp": "stored_ms",
}
SETS = {"topic": "topics", "tags": "tags"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PushDown:
    """Which records are read; None and ALL restrict nothing.

    Attributes:
        stored_ms: store times, as whole milliseconds in which a wanted time lies.
    """

    topics: Set[str] | None = None
    tags: Set[str] | None = None
    queue_ids: Range = ALL
    queue_offsets: Range = ALL
    physical_offsets: Range = ALL
    stored_ms: Range = ALL


UNRESTRICTED = PushDown()


def push(filters: Iterable[Any], *, has_physical_offsets: bool) -> tuple[PushDown, list[Any]]:
    """Return what can be pushed down, and the filters (the same objects) that Spark has still to apply.

    Args:
        filters: Spark's. The class says what is asked of the column whose name is in `attribute`, in parts.
        has_physical_offsets: the backend knows where in the log a record stands; brokers do not.
    """
    push_down = UNRESTRICTED
    left: list[Any] = []
    for one in filters:
        name, kind = ".".join(getattr(one, "attribute", ())), type(one).__name__
        value = getattr(one, "value", None)
        if kind == "IsNotNull" and (name in FILLED or name == "tags"):
            left += [one] if name == "tags" else []
        elif name in SETS and (names := wanted_names(kind, value)) is not None and pushable(name, names):
            field = SETS[name]
            before = getattr(push_down, field)
            kept: Any = {field: names if before is None else names & before}
            push_down = replace(push_down, **kept)
        elif name in RANGES and (has_physical_offsets or name != "physicalOffset"):
            field = RANGES[name]
            limits = wanted_range(kind, value, in_ms=field == "stored_ms")
            if limits is not None:
                cut: Any = {field: intersect(getattr(push_down, field), limits[0])}
                push_down = replace(push_down, **cut)
            if limits is None or not limits[1] or field == "stored_ms":
                left.append(one)
        else:
            left.append(one)
    return push_down, left


def wanted_names(kind: str, value: Any) -> frozenset[str] | None:
    """Return the texts that a filter admits; None for a filter of another kind."""
    if kind == "EqualTo" and isinstance(value, str):
        return frozenset((value,))
    if kind == "In" and all(isinstance(one, str) for one in value):
        return frozenset(value)
    return None


def pushable(column: str, names: Set[str]) -> bool:
    """Return whether these texts can be asked for: in an expression, tags are joined by `||`."""
    return column != "tags" or all(
        name and name == name.strip() and not {"|", "*"} & set(name) for name in names
    )


def wanted_range(kind: str, value: Any, *, in_ms: bool) -> tuple[Range, bool] | None:
    """Return the range that a filter admits, and whether that is the whole filter; None for another kind."""
    values = list(value) if kind == "In" else [value]
    numbers = [number_of(one, in_ms=in_ms) for one in values]
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return None
    low, high = min(known), max(known)
    match kind:
        case "EqualTo":
            return (low, low + 1), True
        case "In":
            return (low, high + 1), high - low + 1 == len(set(known))
        case "GreaterThan":
            return (low if in_ms else low + 1, I64_MAX), True
        case "GreaterThanOrEqual":
            return (low, I64_MAX), True
        case "LessThan":
            return (I64_MIN, low + 1 if in_ms else low), True
        case "LessThanOrEqual":
            return (I64_MIN, low + 1), True
    return None


def number_of(value: Any, *, in_ms: bool) -> int | None:
    """Return a value as a whole number, a time in milliseconds, rounded down; None for another type."""
    if in_ms:
        if not isinstance(value, datetime):
            return None
        return int(value.timestamp() * 1000 // 1) if value.tzinfo is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def intersect(one: Range, other: Range) -> Range:
    """Return the intersection of two ranges."""
    return max(one[0], other[0]), min(one[1], other[1])


def prune(
    ranges: Sequence[OffsetRange],
    push_down: PushDown,
    offsets_of: Callable[[Sequence[Key]], dict[Key, Range]],
) -> list[OffsetRange]:
    """Return the ranges that are left.

    Args:
        offsets_of: returns for some queues the offsets stored within `push_down.stored_ms`; queues for which
            it does not know are missing.
    """
    kept = [
        each
        for each in ranges
        if (push_down.topics is None or each.topic in push_down.topics)
        and push_down.queue_ids[0] <= each.queue_id < push_down.queue_ids[1]
    ]
    by_time = offsets_of([each.key for each in kept]) if push_down.stored_ms != ALL and kept else {}
    cut = []
    for each in kept:
        limits = intersect(push_down.queue_offsets, by_time.get(each.key, ALL))
        start, end = intersect((each.start, each.end), limits)
        if start < end:
            cut.append(replace(each, start=start, end=end))
    return cut
