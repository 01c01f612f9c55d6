"""Positions of groups that nobody uses at the moment, at 16 bytes a queue.

A state at work (`leases.QueueLeases`) takes more than a kilobyte, and a group has one for each queue of each
topic that it ever read. Most groups of a broker are idle, and many will never be heard of again, like those
that every run of a test makes. A state of which nothing is held, and nothing done beyond its position, says
no more than that position; so it *rests* here, together with the others of its group and topic:

                  nothing held or left open, no receive for a while
    at work  ------------------------------------------------------->  resting
             <-------------------------------------------------------
                  whatever asks for one of them

    per queue   queue id uint32, epoch uint32, position int64; -1 where the group has none

Positions rest for as long as there is a group that they belong to, as RocketMQ keeps them: one that was away
for long must find its place, and operators see how far it is behind. States that say nothing (no position, no
epoch) are dropped.

What is left of a deleted group or topic is a *tombstone*: an epoch without position, by which entries of
before are known when a broker that was away sends them. The oldest go once there are `TOMBSTONES_MAX`: if a
broker comes back later still, the group has its old positions again.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["TOMBSTONES_MAX", "Position", "RestingPositions"]

# Deleted pairs of group and topic: with eight queues, about 0.4 KiB each, and 200 bytes in the journal. A
# broker that is away seldom misses so many.
TOMBSTONES_MAX = 4096

Position = tuple[int, int, int]  # queue id, epoch, committed offset: -1 for none
PACKED = struct.Struct("<IIq")


class RestingPositions:
    """What rests, by group and topic."""

    def __init__(self) -> None:
        self.by_pair: dict[tuple[str, str], bytes] = {}
        self.tombstones: dict[tuple[str, str], None] = {}  # those of `by_pair` without any position

    def __len__(self) -> int:
        return len(self.by_pair)

    def add(self, group: str, topic: str, position: Position) -> bool:
        """Add the position of a queue of which none rests; return False when it says nothing."""
        if not says_something(position):
            return False
        pair = (group, topic)
        packed = self.by_pair.get(pair, b"")
        at = place_of(packed, position[0])
        tomb = position[2] < 0 and (not packed or pair in self.tombstones)
        self.keep(pair, packed[:at] + PACKED.pack(*position) + packed[at:], tombstone=tomb)
        return True

    def put(self, group: str, topic: str, positions: Iterable[Position]) -> None:
        """Add positions to what rests of a group's topic; those that say nothing are left out."""
        kept = sorted([*self.positions(group, topic), *filter(says_something, positions)])
        if kept:
            packed = b"".join([PACKED.pack(*one) for one in kept])
            self.keep((group, topic), packed, tombstone=all(one[2] < 0 for one in kept))

    def keep(self, pair: tuple[str, str], packed: bytes, *, tombstone: bool) -> None:
        self.by_pair[pair] = packed
        if not tombstone:
            self.tombstones.pop(pair, None)
            return
        self.tombstones[pair] = None
        if len(self.tombstones) > TOMBSTONES_MAX:
            oldest = next(iter(self.tombstones))
            del self.tombstones[oldest], self.by_pair[oldest]

    def take(self, group: str, topic: str) -> list[Position]:
        """Take out what rests of a group's topic."""
        found = self.positions(group, topic)
        self.by_pair.pop((group, topic), None)
        self.tombstones.pop((group, topic), None)
        return found

    def positions(self, group: str, topic: str) -> list[Position]:
        """Return what rests of a group's topic, by queue."""
        return list(PACKED.iter_unpack(self.by_pair.get((group, topic), b"")))

    def position(self, group: str, topic: str, queue_id: int) -> Position | None:
        """Return what rests of one queue."""
        packed = self.by_pair.get((group, topic), b"")
        at = place_of(packed, queue_id)
        if at < len(packed):
            found: Position = PACKED.unpack_from(packed, at)
            if found[0] == queue_id:
                return found
        return None

    def committed(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Yield group, topic, and the committed offsets by queue; nothing may change meanwhile."""
        for (group, topic), packed in self.by_pair.items():
            yield group, topic, {one[0]: one[2] for one in PACKED.iter_unpack(packed) if one[2] >= 0}

    def all(self) -> Iterator[tuple[str, str, Position]]:
        """Return everything that rests now, one position after the other."""
        return unpacked(list(self.by_pair.items()))


def says_something(position: Position) -> bool:
    return position[1] > 0 or position[2] >= 0


def place_of(packed: bytes, queue_id: int) -> int:
    """Return where the position of a queue stands among sorted ones, or would have to."""
    low, high = 0, len(packed) // PACKED.size
    while low < high:
        middle = (low + high) // 2
        if PACKED.unpack_from(packed, middle * PACKED.size)[0] < queue_id:
            low = middle + 1
        else:
            high = middle
    return low * PACKED.size


def unpacked(pairs: Sequence[tuple[tuple[str, str], bytes]]) -> Iterator[tuple[str, str, Position]]:
    for (group, topic), packed in pairs:
        for queue_id, epoch, committed in PACKED.iter_unpack(packed):
            yield group, topic, (queue_id, epoch, committed)
