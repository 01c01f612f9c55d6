"""From where queues stand to what is read: the end of a micro-batch, and its tasks. Pure.

    extents of the queues ──► positions at which a batch ends (`admit`) ──► pieces ──► tasks (`pack`)

A task costs about 27 ms even when it reads nothing, so queues are packed: a micro-batch has as many tasks as
its bytes ask for, and no more than there are cores for. Rows keep their queue's order within a task; a queue
is split only where it alone is larger than a task should be.
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from whimbrel.spark.offsets import EARLIEST, LATEST, Key, Positions

__all__ = [
    "DataLoss",
    "Extent",
    "Piece",
    "Truncated",
    "admit",
    "ending",
    "ending_at",
    "pack",
    "pieces_between",
    "starting",
    "starting_at",
]


class DataLoss(RuntimeError):
    """What is to be read is not there any more."""


class Truncated(RuntimeError):
    """A queue ends before what was read from it: its log was cut."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a queue stands; offsets from `first` to below `end` can be read.

    Attributes:
        record_bytes: of a record of this broker, on average.
    """

    first: int
    end: int
    record_bytes: float = 1024.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one queue, half open."""

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
    def size(self) -> float:
        """How many bytes it has, about."""
        return (self.end - self.start) * self.record_bytes


def starting(option: int | Positions, extents: Mapping[Key, Extent]) -> Positions:
    """Return where a new query starts."""
    return {key: resolved(option, key, extent, EARLIEST) for key, extent in extents.items()}


def ending(option: int | Positions, extents: Mapping[Key, Extent]) -> Positions:
    """Return where a batch ends."""
    return {key: min(resolved(option, key, extent, LATEST), extent.end) for key, extent in extents.items()}


def starting_at(found: Positions, extents: Mapping[Key, Extent], *, latest_without_match: bool) -> Positions:
    """Return where a query starts that starts at a time.

    Args:
        found: the first offset as late as that of each queue, its end where there is none.

    Raises:
        LookupError: a queue has messages, and none as late; that is to be an error.
    """
    starts = {key: max(found.get(key, extent.end), extent.first) for key, extent in extents.items()}
    early = [key for key, extent in extents.items() if extent.first < extent.end <= starts[key]]
    if early and not latest_without_match:
        topic, broker, queue_id = early[0]
        more = f" and {len(early) - 1} more queues have" if len(early) > 1 else " has"
        raise LookupError(
            f"startingTimestamp: {topic}, queue {queue_id} of {broker}{more} nothing as late as that;"
            " startingOffsetsByTimestampStrategy=latest starts such queues at their end"
        )
    return starts


def ending_at(found: Positions, extents: Mapping[Key, Extent]) -> Positions:
    """Return where a batch ends that ends before a time."""
    return {key: min(found.get(key, extent.end), extent.end) for key, extent in extents.items()}


def resolved(option: int | Positions, key: Key, extent: Extent, default: int) -> int:
    """Return the offset that an option means for a queue."""
    offset = option if isinstance(option, int) else option.get(key, default)
    return extent.first if offset == EARLIEST else extent.end if offset == LATEST else offset


def admit(
    start: Mapping[Key, int],
    extents: Mapping[Key, Extent],
    *,
    rows: float = math.inf,
    size: float = math.inf,
    ceiling: Mapping[Key, int] | None = None,
) -> Positions:
    """Return where a micro-batch ends that begins at `start`.

    A limit is shared by the queues in proportion to what each has, rounded up. Queues that nobody tells
    anything of stay where they are. A queue that `start` does not know begins at its first message.

    Args:
        rows, size: how many messages, and bytes, it may have at most.
        ceiling: where an AvailableNow query ends; queues that are not in it are not read by it.
    """
    ends = dict(start)
    begins: Positions = {}
    left: Positions = {}
    for key, extent in extents.items():
        goal = extent.end
        if ceiling is not None:
            if key not in ceiling:
                continue
            goal = min(goal, ceiling[key])
        begins[key] = max(start.get(key, extent.first), extent.first)
        left[key] = max(goal - begins[key], 0)
    by_bytes = math.isfinite(size)
    total = sum(count * (extents[key].record_bytes if by_bytes else 1) for key, count in left.items())
    limit = size if by_bytes else rows
    share = 1.0 if total <= limit else limit / total
    for key, count in left.items():
        if count or key not in start:
            ends[key] = begins[key] + min(count, math.ceil(count * share))
    return ends


def pieces_between(
    start: Mapping[Key, int],
    end: Mapping[Key, int],
    extents: Mapping[Key, Extent],
    *,
    fail_on_data_loss: bool,
) -> list[Piece]:
    """Return what lies between two positions; a queue without news gives no piece.

    Queues that nobody tells anything of now are read all the same, and fail where they are read.

    Raises:
        DataLoss: a queue's first message that is there lies behind the start.
    """
    pieces = []
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
            pieces.append(Piece(topic, broker, queue_id, first, end[key], extent.record_bytes))
    return pieces


def pack(
    pieces: Iterable[Piece], *, task_bytes: int, tasks_max: int, tasks_min: int = 0
) -> list[list[Piece]]:
    """Return the tasks: each some pieces, of about the same size.

    Args:
        task_bytes: aimed at.
        tasks_max: at most; 0 for no bound, when pieces are split for it.
        tasks_min: at least, as far as there are messages.
    """
    found = list(pieces)
    total = sum(piece.size for piece in found)
    if not found:
        return []
    wanted = max(math.ceil(total / task_bytes), 1)
    count = max(min(wanted, tasks_max) if tasks_max else wanted, tasks_min)
    largest = max(total / count, 1.0)
    parts = [part for piece in found for part in split(piece, math.ceil(piece.size / largest - 0.01))]
    tasks: list[tuple[float, int, list[Piece]]] = [
        (0.0, number, []) for number in range(min(count, len(parts)))
    ]
    for part in sorted(parts, key=lambda part: -part.size):
        filled, number, task = heapq.heappop(tasks)
        heapq.heappush(tasks, (filled + part.size, number, [*task, part]))
    return [
        sorted(task, key=lambda part: (part.topic, part.broker, part.queue_id, part.start))
        for _, _, task in sorted(tasks, key=lambda entry: entry[1])
        if task
    ]


def split(piece: Piece, count: int) -> Sequence[Piece]:
    """Return a piece in `count` parts, as far as it has messages for them."""
    messages = piece.end - piece.start
    count = min(max(count, 1), messages)
    borders = [piece.start + messages * number // count for number in range(count + 1)]
    return [replace(piece, start=first, end=last) for first, last in itertools.pairwise(borders)]
