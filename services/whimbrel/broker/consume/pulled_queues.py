"""Queues that consumers of a group pull by the remoting protocol, which receives of the group leave out.

4.x consumers share a topic's queues out among themselves and know nothing of receives. Where a group has
both, RocketMQ gives the receives all queues, so that messages of the pulled ones are consumed twice. Here a
receive skips a queue that a member has pulled within `PULLED_MS`, which covers the time that a pull waits,
for as long as the group has live members that share queues out.

Pure: times are milliseconds of a clock that only grows, and arguments. A queue is remembered for as long as
it counts, `QUEUES_MAX` in all.
"""

__all__ = ["NO_QUEUES", "PULLED_MS", "QUEUES_MAX", "PulledQueues"]

NO_QUEUES: frozenset[int] = frozenset()

PULLED_MS = 60_000
QUEUES_MAX = 100_000  # of groups; as many pulls may be held

Pair = tuple[str, str]  # group, topic


class PulledQueues:
    """When each queue was pulled last, by group and topic."""

    def __init__(self) -> None:
        self.pulled: dict[Pair, dict[int, int]] = {}
        self.count = 0
        self.told: set[Pair] = set()  # of which a log line was written; gone with the pair

    def note(self, group: str, topic: str, queue_id: int, now_ms: int) -> None:
        """Take note of a pull of a member."""
        queues = self.pulled.setdefault((group, topic), {})
        if queue_id not in queues:
            if self.count >= QUEUES_MAX:
                return
            self.count += 1
        queues[queue_id] = now_ms

    def recent(self, group: str, topic: str, now_ms: int) -> frozenset[int]:
        """Return the queues that were pulled lately."""
        queues = self.pulled.get((group, topic))
        if not queues:
            return frozenset()
        return frozenset(queue_id for queue_id, at in queues.items() if now_ms - at <= PULLED_MS)

    def first_told(self, group: str, topic: str) -> bool:
        """Return whether nobody was told yet that a group is consumed in both ways."""
        pair = group, topic
        if pair in self.told:
            return False
        self.told.add(pair)
        return True

    def sweep(self, now_ms: int) -> None:
        """Forget what no longer counts."""
        for pair, queues in tuple(self.pulled.items()):
            for queue_id, at in tuple(queues.items()):
                if now_ms - at > PULLED_MS:
                    del queues[queue_id]
                    self.count -= 1
            if not queues:
                del self.pulled[pair]
                self.told.discard(pair)
