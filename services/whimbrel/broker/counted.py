"""What a broker adds up on the way: sends by topic, deliveries by topic and group, calls."""

from collections.abc import Sequence
from typing import Protocol

from whimbrel.metrics import SECONDS, Histogram, Series, Traffic, Trail
from whimbrel.rpc.server.call_metrics import CallTimes

__all__ = ["MESSAGE_BYTES", "Counted"]

KIB, MIB = 1024, 1024 * 1024
MESSAGE_BYTES = (1.0 * KIB, 4.0 * KIB, 512.0 * KIB, 1.0 * MIB, 2.0 * MIB, 4.0 * MIB)  # RocketMQ's


class Placed(Protocol):
    """What is asked of an appended message."""

    @property
    def size(self) -> int:
        """Bytes of its record."""


class Counted:
    """What is added up on the way. Each part is written by the loop's thread, flushes by the flusher's."""

    def __init__(self) -> None:
        self.sizes: Series[Histogram] = Series(lambda: Histogram(MESSAGE_BYTES))  # by topic
        self.delivered: Series[Traffic] = Series(Traffic)  # by topic and group
        self.dead_letters: Series[Traffic] = Series(Traffic)  # by group and topic that they come from
        self.flushes = Histogram(SECONDS)
        self.calls = CallTimes()
        self.trail = Trail()  # slave: of what has arrived

    def appended(self, topic: str, placed: Sequence[Placed]) -> None:
        """Take messages of one topic that were stored."""
        sizes = self.sizes.at((topic,))
        for one in placed:
            sizes.observe(one.size)

    def appended_many(self, topic: str, counts: Sequence[int], size: int) -> None:
        """Take messages of one topic: how many lie up to each of `MESSAGE_BYTES`, and all of their bytes."""
        sizes = self.sizes.at((topic,))
        for number, count in enumerate(counts):
            sizes.counts[number] += count
        sizes.total += size

    def took(self, topic: str, group: str, messages: int, size: int) -> None:
        """Take messages that go to a consumer."""
        self.delivered.at((topic, group)).add(messages, size)

    def gave_up(self, group: str, topic: str) -> None:
        """Take a message of a topic that has become a dead letter of a group."""
        self.dead_letters.at((group, topic)).add(1, 0)
