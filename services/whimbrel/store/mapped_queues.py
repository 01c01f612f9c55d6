"""How many consume queues are mapped at a time: those written longest ago give up their mappings first.

A queue is mapped from its first entry on, and the kernel allows a process so many mappings
(`vm.max_map_count`, 65,530 as a rule). A broker may have more queues than that:

    unmapped ──an entry──► written ──a mark collects it──► collected ──all of it is synced──► on disk
        ▲                    ▲  │                            │                                  │  │
        │                    └──┼──────── an entry ──────────┴──────────────────────────────────┘  │
        │                  synced at once                                                          │
        └───────────────────────┴──────────── another queue needs the place ───────────────────────┘

**Only queues whose entries are on disk give up a mapping.** It keeps the file's inode in memory, and the
inode is where the kernel notes that it could not write a page back. Without it the next sync may succeed
although entries are lost, and a mark vouch for them.

Age is counted in marks: `ConsumeQueue.collected` is the number of the collection that took a queue's last
entries, or of the next one where the queue has just been mapped. `MarkWriter.synced` is the last collection
of which all files are on disk. So what was written within the last mark's interval stays, and choosing costs
a look at all mapped queues for some hundreds that go.

Where all were written since, the oldest are synced at once, `SYNCED_AT_ONCE` of them, by the thread that
needs the place. **A refusal comes before the record is stored**: room for an entry, and with it the mapping,
is reserved first. Reserving in one queue may take the mapping of another in which room was reserved before,
so who reserves in several looks again, and those that are to be written go last (`ConsumeQueues.reserve`).

A queue that goes from one file to the next has both mapped for a moment. Nothing else is counted here: the
bound leaves three quarters of the mappings to others.
"""

import contextlib
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from whimbrel.errors import StoreFull
from whimbrel.machine import mappings_allowed

if TYPE_CHECKING:
    from whimbrel.store.consumequeue import ConsumeQueue
    from whimbrel.store.mark_writer import MarkWriter

__all__ = ["MAPPED_QUEUES_MAX", "MappedQueues"]

MAPPED_QUEUES_MAX = 16_384  # more than most brokers have; each takes 4 KiB or so of the kernel's tables
MAPPINGS_SHARE = 4  # one of so many mappings that the kernel allows is for queues
SYNCED_AT_ONCE = 64  # a tenth of a second on a slow disk, and a place for as many queues
CHOSEN_AT_ONCE = 512  # to choose one costs as much as to choose so many


class MappedQueues:
    """The mapped queues of a store, used by the thread that writes them.

    Attributes:
        limit: so many queues may be mapped.
        mapped: those that are, in the order in which they were mapped.
        collection: the number of the last collection of written queues for a mark.
        given_up: mappings given up for others so far.
        writer: writes the marks; None for queues that are only looked at.
        settle: writes files again of which a sync failed; may raise OSError.
    """

    def __init__(self, limit: int | None = None) -> None:
        """Take the bound; None: as many as the kernel leaves, `MAPPED_QUEUES_MAX` at most."""
        if limit is None:
            limit = max(1, min(MAPPED_QUEUES_MAX, mappings_allowed() // MAPPINGS_SHARE))
        self.limit = limit
        self.mapped: dict[ConsumeQueue, None] = {}
        self.collection = self.given_up = 0
        self.chosen: list[tuple[int, ConsumeQueue]] = []  # with their collections; the oldest are last
        self.writer: MarkWriter | None = None
        self.settle: Callable[[], None] = lambda: None

    def add(self, queue: "ConsumeQueue") -> None:
        """Take note that a queue is mapped."""
        self.mapped[queue] = None
        self.keep(queue)

    def remove(self, queue: "ConsumeQueue") -> None:
        """Take note that a queue is not mapped any more."""
        self.mapped.pop(queue, None)

    def keep(self, queue: "ConsumeQueue") -> None:
        """Let a queue go last, as if it had just been mapped: it is about to be written."""
        queue.collected = self.collection + 1

    def make_way(self) -> None:
        """Have a place for one more queue.

        Raises:
            StoreFull: all places are taken, and the disk refuses to sync what would have to go.
        """
        while len(self.mapped) >= self.limit and not self.give_up_oldest():
            self.sync_oldest()

    def give_up_oldest(self) -> bool:
        """Unmap the queue that was written longest ago; return whether there is one that may go."""
        while True:
            while self.chosen:
                collected, queue = self.chosen.pop()
                if queue.collected == collected and not queue.dirty and queue in self.mapped:
                    self.give_up(queue)
                    return True
            self.choose()
            if not self.chosen:
                return False

    def choose(self) -> None:
        """Find the oldest queues whose entries are all on disk."""
        synced = self.writer.synced if self.writer is not None else 0
        on_disk = [
            (queue.collected, queue) for queue in self.mapped if queue.collected <= synced and not queue.dirty
        ]
        self.chosen = heapq.nsmallest(CHOSEN_AT_ONCE, on_disk, key=age)
        self.chosen.reverse()

    def sync_oldest(self) -> None:
        """Sync some queues, the oldest, and unmap them.

        Raises:
            StoreFull: none could be synced.
        """
        before, refusal = self.given_up, "no mark is ever written"
        writer = self.writer
        if writer is not None:
            if writer.doubtful and not writer.busy:
                with contextlib.suppress(OSError):  # those that are still in doubt are refused below
                    self.settle()
            oldest = heapq.nsmallest(SYNCED_AT_ONCE, self.mapped, key=collection_of)
            for queue in oldest:
                try:
                    writer.sync(queue.mapped_path)
                except OSError as error:
                    refusal = str(error)
                else:
                    self.give_up(queue)
        if self.given_up == before:
            raise StoreFull(f"{len(self.mapped)} queues are mapped, and none can be synced: {refusal}")

    def give_up(self, queue: "ConsumeQueue") -> None:
        """Unmap a queue whose entries are on disk."""
        queue.unmap()
        self.given_up += 1


def age(one: "tuple[int, ConsumeQueue]") -> int:
    """Return by what chosen queues are ordered."""
    return one[0]


def collection_of(queue: "ConsumeQueue") -> int:
    """Return the collection that took a queue's last entries."""
    return queue.collected
