"""From where queues stand to what is read: the end of a micro-batch, and its tasks. Pure.

    extents of the queues ──► the end of a batch (`micro_batch_end`) ──► ranges of offsets ──► tasks (`pack`)

A task has a fixed cost even when it reads nothing, so queues are packed: a micro-batch has as many tasks as
its bytes ask for, and no more than there are cores for. Rows keep their queue's order within a task; a queue
is split only where it alone is larger than a task should be.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from whimbrel.spark.offsets import EARLIEST, LATEST, Key, Positions

__all__ = [
    "DataLoss",
    "Extent",
    "Incomplete",
    "NotThere",
    "OffsetRange",
    "Truncated",
    "ending_positions",
    "ending_positions_by_time",
    "fill_tasks",
    "gone_between",
    "micro_batch_end",
    "pack",
    "ranges_between",
    "starting_positions",
    "starting_positions_by_time",
    "task_count",
]

T = TypeVar("T")
SLACK = 0.01  # of a task's size: a part that is so little larger is not split for it


class DataLoss(RuntimeError):
    """Messages that are to be read are gone."""


class Incomplete(RuntimeError):
    """Some of what is to be read can't be asked for now; the text says whom, and what to do."""


class NotThere(LookupError):
    """What a query names is not there; the text says what is."""


class Truncated(RuntimeError):
    """A queue ends before what was read from it: its log was cut."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a queue stands; offsets from `first` to below `end` can be read.

    Attributes:
        record_bytes: average size of this broker's records.
    """

    first: int
    end: int
    record_bytes: float = 1024.0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A half-open range of one queue's offsets."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    record_bytes: float

    @property
    def key(self) -> Key:
        """Its queue."""
        return self.topic, self.broker, self.queue_id

    @property
    def queue(self) -> str:
        """Its queue, for messages to people."""
        return f"{self.topic}, queue {self.queue_id} of {self.broker}"

    @property
    def size(self) -> float:
        """Estimated bytes."""
        return (self.end - self.start) * self.record_bytes


def starting_positions(option: int | Positions, extents: Mapping[Key, Extent]) -> Positions:
    """Return where a new query starts."""
    return {key: resolve_offset(option, key, extent, EARLIEST) for key, extent in extents.items()}


def ending_positions(option: int | Positions, extents: Mapping[Key, Extent]) -> Positions:
    """Return where a batch ends."""
    return {
        key: min(resolve_offset(option, key, extent, LATEST), extent.end) for key, extent in extents.items()
    }


def starting_positions_by_time(
    found: Positions, extents: Mapping[Key, Extent], *, latest_without_match: bool
) -> Positions:
    """Return where a query starts that starts at a time.

    Args:
        found: the first offset of each queue stored at that time or later, its end where there is none.
        latest_without_match: a queue that has messages, but none stored so late, starts at its end.

    Raises:
        NotThere: there is such a queue, and `latest_without_match` is false.
    """
    starts = {key: max(found.get(key, extent.end), extent.first) for key, extent in extents.items()}
    early = [key for key, extent in extents.items() if extent.first < extent.end <= starts[key]]
    if early and not latest_without_match:
        topic, broker, queue_id = early[0]
        more = f" and {len(early) - 1} more queues have" if len(early) > 1 else " has"
        raise NotThere(
            f"startingTimestamp: {topic}, queue {queue_id} of {broker}{more} nothing as late as that;"
            " startingOffsetsByTimestampStrategy=latest starts such queues at their end"
        )
    return starts


def ending_positions_by_time(found: Positions, extents: Mapping[Key, Extent]) -> Positions:
    """Return where a batch ends that ends before a time."""
    return {key: min(found.get(key, extent.end), extent.end) for key, extent in extents.items()}


def resolve_offset(option: int | Positions, key: Key, extent: Extent, default: int) -> int:
    """Return the offset that an option means for a queue."""
    offset = option if isinstance(option, int) else option.get(key, default)
    return extent.first if offset == EARLIEST else extent.end if offset == LATEST else offset


def micro_batch_end(
    start: Mapping[Key, int],
    extents: Mapping[Key, Extent],
    *,
    rows: float = math.inf,
    size: float = math.inf,
    ceiling: Mapping[Key, int] | None = None,
) -> Positions:
    """Return where a micro-batch ends that begins at `start`.

    A limit is shared by the queues in proportion to their backlogs, rounded up. Queues without an extent stay
    where they are. A queue that `start` does not have begins at its first message.

    Args:
        rows, size: at most so many messages, and bytes.
        ceiling: where an AvailableNow query ends; queues that are not in it are not read by it.
    """
    ends = dict(start)
    begins: Positions = {}
    backlogs: Positions = {}
    for key, extent in extents.items():
        goal = extent.end
        if ceiling is not None:
            if key not in ceiling:
                continue
            goal = min(goal, ceiling[key])
        begins[key] = max(start.get(key, extent.first), extent.first)
        backlogs[key] = max(goal - begins[key], 0)
    by_bytes = math.isfinite(size)
    total = sum(count * (extents[key].record_bytes if by_bytes else 1) for key, count in backlogs.items())
    limit = size if by_bytes else rows
    share = 1.0 if total <= limit else limit / total
    for key, count in backlogs.items():
        if count or key not in start:
            ends[key] = begins[key] + min(count, math.ceil(count * share))
    return ends


def gone_between(
    start: Mapping[Key, int], end: Mapping[Key, int], extents: Mapping[Key, Extent]
) -> list[tuple[Key, int, int]]:
    """Return the queues and offsets, half open, that `ranges_between` passes over where that is allowed."""
    return [
        (key, start[key], min(extent.first, end[key]))
        for key, extent in sorted(extents.items())
        if key in start and key in end and start[key] < min(extent.first, end[key])
    ]


def ranges_between(
    start: Mapping[Key, int],
    end: Mapping[Key, int],
    extents: Mapping[Key, Extent],
    *,
    fail_on_data_loss: bool,
) -> list[OffsetRange]:
    """Return the ranges between two positions; a queue without new messages has none.

    Queues without an extent are read all the same, and fail where they are read.

    Raises:
        DataLoss: a queue's first message lies behind the start, and `fail_on_data_loss` is set.
    """
    ranges = []
    for key in sorted(end):
        topic, broker, queue_id = key
        extent = extents.get(key, Extent(0, end[key]))
        first = start.get(key, extent.first)
        if first < extent.first and end[key] > first:
            if fail_on_data_loss:
                raise DataLoss(
                    f"{topic}, queue {queue_id} of {broker}: offsets {first} to {extent.first} are gone,"
                    " retention has removed them; failOnDataLoss=false goes on at the first that is there"
                )
            first = min(extent.first, end[key])
        if end[key] > first:
            ranges.append(OffsetRange(topic, broker, queue_id, first, end[key], extent.record_bytes))
    return ranges


def pack(
    ranges: Iterable[OffsetRange], *, task_bytes: int, tasks_max: int, tasks_min: int = 0
) -> list[list[OffsetRange]]:
    """Return the ranges that each task reads; tasks are of about the same size.

    Args:
        task_bytes: size of a task aimed at.
        tasks_max: 0 for no bound.
        tasks_min: wins over both; ranges are split to reach it, as far as there are messages.
    """
    found = list(ranges)
    total = sum(each.size for each in found)
    count = task_count(total, task_bytes=task_bytes, tasks_max=tasks_max, tasks_min=tasks_min)
    largest = max(total / count, 1.0)
    parts = [part for each in found for part in split(each, math.ceil(each.size / largest - SLACK))]
    return [
        sorted(task, key=lambda part: (part.topic, part.broker, part.queue_id, part.start))
        for task in fill_tasks(parts, count, lambda part: part.size)
    ]


def task_count(total: float, *, task_bytes: int, tasks_max: int, tasks_min: int) -> int:
    """Return how many tasks read `total` bytes; arguments as in `pack`."""
    wanted = max(math.ceil(total / task_bytes), 1)
    return max(min(wanted, tasks_max) if tasks_max else wanted, tasks_min)


def fill_tasks(parts: Sequence[T], count: int, size_of: Callable[[T], float]) -> list[list[T]]:
    """Spread parts over at most `count` tasks, the largest first, each to the task that has the least."""
    tasks: list[list[T]] = [[] for _ in range(min(count, len(parts)))]
    filled = [(0.0, number) for number in range(len(tasks))]
    for part in sorted(parts, key=size_of, reverse=True):
        size, number = heapq.heappop(filled)
        tasks[number].append(part)
        heapq.heappush(filled, (size + size_of(part), number))
    return [task for task in tasks if task]


def split(offset_range: OffsetRange, count: int) -> Sequence[OffsetRange]:
    """Return a range in `count` parts, as far as it has messages for them."""
    messages = offset_range.end - offset_range.start
    count = min(max(count, 1), messages)
    borders = [offset_range.start + messages * number // count for number in range(count + 1)]
    return [replace(offset_range, start=first, end=last) for first, last in itertools.pairwise(borders)]
