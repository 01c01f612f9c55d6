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

    def put(self, group: str, topic: str, positions: Iterable[Position]) -> None:
        """Add positions to what rests of a group's topic; those that say nothing are left out."""
        pair = (group, topic)
        kept = [*self.positions(group, topic), *(one for one in positions if one[1] or one[2] >= 0)]
        if not kept:
            return
        self.by_pair[pair] = b"".join([PACKED.pack(*one) for one in sorted(kept)])
        self.tombstones.pop(pair, None)
        if all(committed < 0 for _, _, committed in kept):
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
        packed = self.by_pair.get((group, topic))
        if packed is not None:
            for one in PACKED.iter_unpack(packed):
                if one[0] == queue_id:
                    return one
        return None

    def committed(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Yield group, topic, and the committed offsets by queue; nothing may change meanwhile."""
        for (group, topic), packed in self.by_pair.items():
            yield group, topic, {one[0]: one[2] for one in PACKED.iter_unpack(packed) if one[2] >= 0}

    def all(self) -> Iterator[tuple[str, str, Position]]:
        """Return everything that rests now, one position after the other."""
        return unpacked(list(self.by_pair.items()))


def unpacked(pairs: Sequence[tuple[tuple[str, str], bytes]]) -> Iterator[tuple[str, str, Position]]:
    for (group, topic), packed in pairs:
        for queue_id, epoch, committed in PACKED.iter_unpack(packed):
            yield group, topic, (queue_id, epoch, committed)
