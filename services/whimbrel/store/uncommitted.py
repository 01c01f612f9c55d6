"""What of a master's log is not committed yet: queue entries and keys that wait until it is.

    append ──► record in the log, its number given ──► waits here ──the commit offset reaches its end──►
                                                       queue entry, keys, whoever waits for the message

All that reads queues or the index (receive, pull, bulk reads, queries by key, Spark) thus sees committed
records only, and so do the files: RocketMQ 5.x dispatches up to its confirm offset likewise. A queue's next
number counts the entries that wait (`ConsumeQueue.uncommitted`), also after a restart.

What waits, waits in the order of the log, in groups: the records of one append, or of one pass of the
compiled lane. The commit offset is always the end of a group, so it is the border of a record.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.index import KeyedRecord

__all__ = ["PackedRun", "Uncommitted", "UncommittedGroup"]

# Entries of one queue that follow each other: the queue, packed entries, the tags code of the last one.
PackedRun = tuple[ConsumeQueue, bytes, int]


# Records that were appended together: where the last one ends; their entries, if they get any; those with
# keys, None where the index is to read them from the log; or their keys, hashed by the lane, and of how many.
# A plain tuple: one is made for each send.
UncommittedGroup = tuple[int, Sequence[PackedRun], Sequence[KeyedRecord] | None, Any, int]


class Uncommitted:
    """The groups that wait, and the commit offset. It writes nothing.

    Attributes:
        committed: the commit offset: the log below it is committed.
        groups: in the order of the log.
        stalled: why a group whose turn has come could not be written to its queues; "" normally.
    """

    __slots__ = ("committed", "groups", "stalled")

    def __init__(self, committed: int) -> None:
        self.committed = committed
        self.groups: deque[UncommittedGroup] = deque()
        self.stalled = ""

    def with_key(self, topic: str, key: str) -> Iterator[int]:
        """Return places of records with a key that wait, newest first; none of those that the lane hashed."""
        for group in reversed(self.groups):
            for name, keys, place, _ in reversed(group[2] or ()):
                if name == topic and key in keys:
                    yield place

    def forget(self, queues: Iterable[ConsumeQueue]) -> None:
        """Write no entries to queues that are being deleted; their records stay in the log."""
        gone = {id(queue) for queue in queues}
        self.groups = deque(
            (end, [run for run in runs if id(run[0]) not in gone], records, hashed, count)
            for end, runs, records, hashed, count in self.groups
        )
