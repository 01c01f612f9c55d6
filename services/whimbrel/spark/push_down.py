"""What of the chosen queues is wanted: ranges and sets that filters and options leave. Pure.

    filters of the query ──► `Narrow` + the filters that Spark has still to apply

Planning drops queues and cuts ranges with it; tasks select by what is left. Where rows come from decides what
can be told exactly: brokers do not know places in the log, so they leave that to Spark. Times are looked up
in each queue and left to Spark as well: a column of time is finer than what queues are searched by.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from whimbrel.spark.offsets import Key
from whimbrel.spark.planning import Piece

__all__ = ["ALL", "EVERYTHING", "Narrow", "Range", "narrowed", "push", "within"]

I64_MIN, I64_MAX = -(2**63), 2**63 - 1
Range = tuple[int, int]  # half open
ALL: Range = (I64_MIN, I64_MAX)

# Columns that are never null, so that nothing is left of "is not null".
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
class Narrow:
    """What is wanted; None and ALL do not narrow.

    Attributes:
        stored_ms: store times, in milliseconds; whole milliseconds that hold a wanted time.
    """

    topics: Set[str] | None = None
    tags: Set[str] | None = None
    queue_ids: Range = ALL
    queue_offsets: Range = ALL
    physical_offsets: Range = ALL
    stored_ms: Range = ALL


EVERYTHING = Narrow()


def push(filters: Iterable[Any], *, from_log: bool) -> tuple[Narrow, list[Any]]:
    """Return what filters leave, and those that have still to be applied: the same objects.

    Args:
        filters: Spark's: each asks of a column (`attribute`, the parts of its name) what its class says.
        from_log: rows come out of a log, which knows where in it they stand; brokers do not.
    """
    narrow = EVERYTHING
    left: list[Any] = []
    for one in filters:
        name, kind = ".".join(getattr(one, "attribute", ())), type(one).__name__
        value = getattr(one, "value", None)
        if kind == "IsNotNull" and (name in FILLED or name == "tags"):
            left += [one] if name == "tags" else []
        elif name in SETS and (names := wanted_names(kind, value)) is not None and pushable(name, names):
            field = SETS[name]
            before = getattr(narrow, field)
            kept: Any = {field: names if before is None else names & before}
            narrow = replace(narrow, **kept)
        elif name in RANGES and (from_log or name != "physicalOffset"):
            field = RANGES[name]
            limits = wanted_range(kind, value, in_ms=field == "stored_ms")
            if limits is not None:
                cut: Any = {field: within(getattr(narrow, field), limits[0])}
                narrow = replace(narrow, **cut)
            if limits is None or not limits[1] or field == "stored_ms":
                left.append(one)
        else:
            left.append(one)
    return narrow, left


def wanted_names(kind: str, value: Any) -> frozenset[str] | None:
    """Return the texts that a filter leaves; None when it can't be told."""
    if kind == "EqualTo" and isinstance(value, str):
        return frozenset((value,))
    if kind == "In" and all(isinstance(one, str) for one in value):
        return frozenset(value)
    return None


def pushable(column: str, names: Set[str]) -> bool:
    """Tell whether an expression can ask for these texts: tags are joined by `||` in one."""
    return column != "tags" or all(
        name and name == name.strip() and not {"|", "*"} & set(name) for name in names
    )


def wanted_range(kind: str, value: Any, *, in_ms: bool) -> tuple[Range, bool] | None:
    """Return the range that a filter leaves, and whether that is all it asks; None when it can't be told."""
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
    """Return a value as a whole number, a time as its milliseconds, rounded down; None for another."""
    if in_ms:
        if not isinstance(value, datetime):
            return None
        return int(value.timestamp() * 1000 // 1) if value.tzinfo is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def within(one: Range, other: Range) -> Range:
    """Return what two ranges share."""
    return max(one[0], other[0]), min(one[1], other[1])


def narrowed(
    pieces: Sequence[Piece], narrow: Narrow, offsets_of: Callable[[Sequence[Key]], dict[Key, Range]]
) -> list[Piece]:
    """Return the pieces that are left.

    Args:
        offsets_of: gives the queue offsets that were stored within `narrow.stored_ms`, of some queues; those
            that it can't tell are missing.
    """
    kept = [
        piece
        for piece in pieces
        if (narrow.topics is None or piece.topic in narrow.topics)
        and narrow.queue_ids[0] <= piece.queue_id < narrow.queue_ids[1]
    ]
    found = offsets_of([piece.key for piece in kept]) if narrow.stored_ms != ALL and kept else {}
    cut = []
    for piece in kept:
        first, end = within(narrow.queue_offsets, found.get(piece.key, ALL))
        start, stop = max(piece.start, first), min(piece.end, end)
        if start < stop:
            cut.append(replace(piece, start=start, end=stop))
    return cut
