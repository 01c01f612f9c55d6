"""`recover`: brings a store into the state that a broker's start would, or tells what that state is (dry
run).

The dry run goes the same way as the start, over queues that only count: cutting looks for the place and
writes nothing, and a new entry moves the end.
"""

import time
from pathlib import Path
from typing import Any

from whimbrel.errors import StoreError
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.dispatch import Dispatcher
from whimbrel.store.locking import is_locked
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import parse_delay_levels
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.rebuild import cut_queues, dispatch_log
from whimbrel.store.recovery_marks import LogMark, QueueMark
from whimbrel.store.view import LogView, store_options

__all__ = ["recover"]


class PlannedQueue(ConsumeQueue):
    """A queue that says where it would begin and end, and writes nothing."""

    __slots__ = ("first_new", "kept")

    kept: int  # entries below stay as they are on disk
    first_new: int  # number of the first entry that would be written, -1 for none

    def cut(self, below: int, *, scrub: bool = False) -> None:
        """Find the end."""
        self.kept = self.max = self.search(below)
        self.first_new = -1
        self.min = self.starts[0] // 20 if self.starts and self.max else self.max

    def reserve(self, count: int) -> None:
        """Counting needs no room."""

    def begin_at(self, index: int) -> None:
        """A new queue would begin at an entry other than 0."""
        self.kept = self.max = self.min = index

    def put(self, physical_offset: int, size: int, tags_code: int) -> int:
        """Count an entry."""
        if physical_offset or tags_code or size != 0x7FFFFFFF:
            if getattr(self, "first_new", -1) < 0:
                self.first_new = self.max
        self.max += 1
        return self.max - 1

    def correct_min(self, log_begin: int) -> None:
        """Find where it would begin: among the entries that stay, else at the first new one."""
        end = self.max
        self.max = getattr(self, "kept", 0)
        super().correct_min(log_begin)
        low, self.max = self.min, end
        first_new = getattr(self, "first_new", -1)
        if low >= getattr(self, "kept", 0) and first_new >= 0:
            self.min = first_new


class PlannedQueues(ConsumeQueues):
    """A table of them."""

    queue_class = PlannedQueue


def recover(root: Path, *, dry_run: bool, index_slots: int = 0) -> dict[str, Any]:
    """Recover a store at rest, or tell what that would do.

    Returns:
        `ok`, `minPhyOffset`, `maxPhyOffset`, and `queues`: `topic@queueId` to [min, max], without empty
        queues.

    Raises:
        StoreError: the store is in use, or is none.
    """
    options = store_options(root, index_slots=index_slots)
    if not dry_run:
        store = MasterStore.open(root, options, clock=lambda: time.time_ns() // 1_000_000)
        begin, end, queues = store.min_offset, store.written, store.queues
        found = ranges(queues)
        store.close()
        return {"ok": True, "minPhyOffset": begin, "maxPhyOffset": end, "queues": found}
    if is_locked(root):
        raise StoreError(f"{root} is in use")
    view = LogView.of(root)
    planned = PlannedQueues.load(root, options.consumequeue_file_size)
    log_mark = LogMark.load(root) or LogMark()
    log_mark.add_cut(view.end)
    read, size = view.segments.read, view.segments.file_size
    start = cut_queues(planned, QueueMark.load(root), log_mark, view.begin, view.end, read)
    walk = view.walk()
    walk.position = start
    if size:
        dispatcher = Dispatcher(planned, parse_delay_levels(options.delay_levels))
        dispatch_log(dispatcher, walk, skip_damage=start == view.begin, name=root)
    planned.follow_log(view.begin, drop=False)
    return {"ok": True, "minPhyOffset": view.begin, "maxPhyOffset": view.end, "queues": ranges(planned)}


def ranges(queues: ConsumeQueues) -> dict[str, list[int]]:
    """Return the ranges of the queues that have one."""
    found = {f"{queue.topic}@{queue.queue_id}": [queue.min, queue.max] for queue in queues if queue.max}
    return dict(sorted(found.items()))
