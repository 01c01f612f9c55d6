"""Takes the samples that `traffic.py` counts by: a part of all queues and positions in each sweep."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.remoting.traffic import (
    GOT,
    GOT_SIZE,
    PUT,
    PUT_SIZE,
    SAMPLE_S,
    Collector,
    Key,
    Traffic,
    of_group,
)
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.store.store import MessageStore

if TYPE_CHECKING:
    from whimbrel.broker.counted import Counted

__all__ = ["TrafficSamples", "local_day", "sizes_of"]

STEP = 20_000  # queues and positions in a sweep, which comes each second: some 5 ms


class TrafficSamples:
    """Takes samples of a role's store. On the loop's thread."""

    def __init__(
        self,
        traffic: Traffic,
        topics: TopicTable,
        store: MessageStore,
        leases: LeaseTable,
        *,
        sizes: Callable[[], Iterator[tuple[Key, int]]],
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        """Take what is sampled.

        Args:
            traffic: takes the samples. topics, store, leases: what they are of.
            sizes: yields the bytes that came and went since the start, where they are added up.
            clock, wall_ms: a monotonic one in seconds, and epoch milliseconds.
        """
        self.traffic, self.topics, self.store, self.leases = traffic, topics, store, leases
        self.sizes, self.clock, self.wall_ms = sizes, clock, wall_ms
        self.collector: Collector | None = None
        self.due = clock()  # when the next sample begins

    def sweep(self) -> None:
        """Begin a sample if one is due, or go on with it."""
        now = self.clock()
        if self.collector is None:
            if now < self.due:
                return
            self.collector, self.due = Collector(self.items()), max(self.due + SAMPLE_S, now)
        if self.collector.step(STEP):
            self.traffic.sample(self.collector.counts, now, local_day(self.wall_ms()), self.store.written)
            self.collector = None

    def items(self) -> Iterator[tuple[Key, int]]:
        """Yield the ends of the queues of clients' topics, the positions of groups, and sizes."""
        is_system = self.topics.is_system
        for (topic, _), queue in list(self.store.queues.by_key.items()):
            if not is_system(topic):
                yield (PUT, topic), queue.max
        for group, topic, (_, _, committed) in self.leases.positions():
            if committed >= 0 and not is_system(topic):
                yield (GOT, of_group(topic, group)), committed
        yield from self.sizes()


def sizes_of(counted: "Counted | None", is_system: Callable[[str], bool]) -> Iterator[tuple[Key, int]]:
    """Yield the bytes of clients' messages that metrics have added up, if they do."""
    if counted is None:
        return
    for (topic,), sizes in counted.sizes.items():
        if not is_system(topic):
            yield (PUT_SIZE, topic), int(sizes.total)
    for (topic, group), sent in counted.delivered.items():
        if not is_system(topic):
            yield (GOT_SIZE, of_group(topic, group)), sent.bytes


def local_day(wall_ms: int) -> int:
    """Return the day of a time in this machine's calendar, as a number that grows by one each midnight."""
    at = wall_ms / 1000
    return int((at + time.localtime(at).tm_gmtoff) // 86_400)
