"""Half-open ranges of queues: gaps, overlaps, unions and differences. Pure."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from whimbrel.spark.offsets import Key

__all__ = ["QueueSpan", "by_key", "gaps", "merged", "overlaps", "without"]


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """A range of a queue in a file: `rows` of the offsets in [first, end)."""

    key: Key
    first: int
    end: int
    rows: int
    path: str = ""


def by_key(spans: Iterable[QueueSpan]) -> dict[Key, list[QueueSpan]]:
    """Return spans by queue, each queue's in the order of their offsets."""
    ordered = sorted(spans, key=lambda span: (span.key, span.first, span.end))
    return {key: list(group) for key, group in itertools.groupby(ordered, key=lambda span: span.key)}


def merged(spans: Iterable[QueueSpan]) -> list[QueueSpan]:
    """Return spans, with those that touch or overlap merged; paths are lost."""
    found: list[QueueSpan] = []
    for queue in by_key(spans).values():
        current = replace(queue[0], path="")
        for span in queue[1:]:
            if span.first <= current.end:
                current = replace(current, end=max(current.end, span.end), rows=current.rows + span.rows)
            else:
                found.append(current)
                current = replace(span, path="")
        found.append(current)
    return found


def gaps(queue: Sequence[QueueSpan]) -> list[tuple[int, int]]:
    """Return the ranges between the spans of one queue, in order, that no span holds."""
    found, reached = [], queue[0].first
    for span in queue:
        if span.first > reached:
            found.append((reached, span.first))
        reached = max(reached, span.end)
    return found


def overlaps(queue: Sequence[QueueSpan]) -> list[tuple[int, int, QueueSpan, QueueSpan]]:
    """Return the ranges of one queue, in order, that a span shares with the earlier one that ends last."""
    found = []
    last = queue[0]
    for span in queue[1:]:
        if span.first < last.end:
            found.append((span.first, min(span.end, last.end), last, span))
        last = max(last, span, key=lambda each: each.end)
    return found


def without(first: int, end: int, queue: Iterable[QueueSpan]) -> list[tuple[int, int]]:
    """Return the parts of [first, end) that no span holds; the spans are of its queue, in order."""
    left = []
    for span in queue:
        if span.end <= first or span.first >= end:
            continue
        if span.first > first:
            left.append((first, span.first))
        first = max(first, span.end)
    if first < end:
        left.append((first, end))
    return left
