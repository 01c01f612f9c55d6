"""Queues that ordered consumers of the remoting protocol have locked: one client of a group each.

    free ──lock──► held ──lock by its client──► held for LOCK_S more
                    ├────lock by another one──► not granted
                    └────unlock by its client, or LOCK_S without a lock──► free

In memory only, as in RocketMQ: nothing tells another broker, and the end of a connection releases nothing. A
client locks what it holds again each 20 s and takes a lock for lost after 30 s, so after a failover or a
restart two clients may hold a queue until then.

Pure: times are seconds of the monotonic clock, and arguments. The number of locks is bounded; at the bound
those whose time is over go first.

RocketMQ: RebalanceLockManager.
"""

from collections.abc import Hashable, Sequence
from typing import TypeVar

from whimbrel.errors import Throttled

__all__ = ["LOCKS_MAX", "LOCK_S", "QueueLocks"]

LOCK_S = 60.0  # RocketMQ's rebalance.lockMaxLiveTime
LOCKS_MAX = 200_000  # of all groups: some 60 MB

Queue = TypeVar("Queue", bound=Hashable)


class QueueLocks:
    """The locks, those refreshed longest ago first."""

    def __init__(self) -> None:
        """Begin without locks."""
        self.locks: dict[tuple[str, Hashable], tuple[str, float]] = {}  # by group and queue: client, until

    def __len__(self) -> int:
        return len(self.locks)

    def lock(self, group: str, client_id: str, queues: Sequence[Queue], now: float) -> list[Queue]:
        """Lock what is free, and refresh what the client holds; return which of the queues it holds now.

        Raises:
            Throttled: there are too many locks; none was made or refreshed.
        """
        self.expire(now)
        asked = list(dict.fromkeys(queues))
        new = sum((group, queue) not in self.locks for queue in asked)
        if new and len(self.locks) + new > LOCKS_MAX:
            raise Throttled(f"{len(self.locks)} queues are locked here, and {LOCKS_MAX} may be")
        held = []
        for queue in asked:
            found = self.locks.get((group, queue))
            if found is None or found[0] == client_id:
                self.locks.pop((group, queue), None)  # to the end, where the newest are
                self.locks[group, queue] = client_id, now + LOCK_S
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Sequence[Hashable]) -> None:
        """Release queues that the client holds; others stay as they are."""
        for queue in queues:
            found = self.locks.get((group, queue))
            if found is not None and found[0] == client_id:
                del self.locks[group, queue]

    def expire(self, now: float) -> None:
        """Release queues whose locks were not refreshed in time."""
        while self.locks:
            oldest = next(iter(self.locks))
            if self.locks[oldest][1] > now:
                return
            del self.locks[oldest]
