"""Offline recovery (`whimbrel store recover`): brings a store into the state that a broker's start would, or
reports that state (dry run).

A dry run takes the same steps as a start, over queues that only count: truncating finds the place and writes
nothing, and a new entry moves the end.
"""

from pathlib import Path
from typing import Any

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, MACHINE, Files
from whimbrel.store.codec import UNIT_SIZE
from whimbrel.store.consumequeue import ConsumeQueue, is_filler
from whimbrel.store.damage import check_whole
from whimbrel.store.dispatch import Dispatcher
from whimbrel.store.locking import is_locked
from whimbrel.store.mapped_queues import MappedQueues
from whimbrel.store.master_store import MasterStore
from whimbrel.store.offline_vote import check_all_committed, check_no_seat
from whimbrel.store.options import parse_delay_levels
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.rebuild import dispatch_log, truncate_queues
from whimbrel.store.recovery_marks import LogMark, QueueMark
from whimbrel.store.view import LogView, store_options

__all__ = ["recover"]


class DryRunQueue(ConsumeQueue):
    """A queue that finds where it would begin and end, and writes nothing.

    Attributes:
        kept_below: entries below stay as they are on disk.
        first_new: number of the first entry that would be written, -1 for none.
    """

    __slots__ = ("first_new", "kept_below")

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        scratch: Path,
        files: Files = FILES,
        places: MappedQueues | None = None,
    ) -> None:
        super().__init__(directory, topic, queue_id, file_size, scratch, files, places)
        self.kept_below, self.first_new = 0, -1

    def truncate(self, below: int, *, scrub: bool = False) -> None:
        """Find the end."""
        self.kept_below = self.max = self.search(below)
        self.first_new = -1
        self.min = self.starts[0] // UNIT_SIZE if self.starts and self.max else self.max

    def restart(self) -> None:
        """It would begin at 0."""
        self.kept_below = self.max = self.min = 0
        self.first_new = -1

    def reserve(self, count: int) -> None:
        """Counting needs no room."""

    def begin_at(self, index: int) -> None:
        """A new queue would begin at an entry other than 0."""
        self.kept_below = self.max = self.min = index

    def place_of(self, index: int) -> int:
        """Return what stands in an entry that stays."""
        return super().place_of(index) if index < self.kept_below else -1

    def go_on_at(self, index: int) -> None:
        """It would begin there."""
        if index > self.max and self.min == self.max:
            self.begin_at(index)

    def drop_files(self) -> None:
        """Its entries would go."""
        self.kept_below = 0

    def put(self, physical_offset: int, size: int, tags_code: int) -> int:
        """Count an entry."""
        if self.first_new < 0 and not is_filler((physical_offset, size, tags_code)):
            self.first_new = self.max
        self.max += 1
        return self.max - 1

    def correct_min(self, log_begin: int) -> None:
        """Find where it would begin: among the entries that stay, else at the first new one."""
        end, self.max = self.max, self.kept_below
        super().correct_min(log_begin)
        self.max = end
        if self.min >= self.kept_below and self.first_new >= 0:
            self.min = self.first_new


class DryRunQueues(ConsumeQueues):
    """The table of queues of a dry run."""

    queue_class = DryRunQueue


def recover(root: Path, *, dry_run: bool, index_slots: int = 0) -> dict[str, Any]:
    """Recover a store at rest, or report what that would do.

    Returns:
        `ok`, `minPhyOffset`, `maxPhyOffset`, and `queues`: `topic@queueId` to [min, max], without empty
        queues.

    Raises:
        StoreError: the store is in use, or is none, or a start would refuse its log (`damage.py`); or it is
            that of a member of a group that elects its leader, and this is no dry run.
    """
    options = store_options(root, index_slots=index_slots)
    if not dry_run:
        check_no_seat(
            root, "recovery by hand", "start its broker and replicator, which recover it; or see --dry-run"
        )
        check_all_committed(
            root, "recovery by hand", "start its broker and replicator, which recover it; or see --dry-run"
        )
        store = MasterStore.open(root, options, clock=MACHINE.wall_ms)
        begin, end, queues = store.min_offset, store.written, store.queues
        found = ranges(queues)
        store.close()
        return {"ok": True, "minPhyOffset": begin, "maxPhyOffset": end, "queues": found}
    if is_locked(root):
        raise StoreError(f"{root} is in use")
    view = LogView.of(root)
    check_whole(root, view.segments, view.state)
    queues = DryRunQueues.load(root, options.consumequeue_file_size)
    log_mark = LogMark.load(root) or LogMark()
    log_mark.add_recovery(view.end)
    start = truncate_queues(
        queues,
        QueueMark.load(root),
        log_mark,
        view.begin,
        view.end,
        boot=MACHINE.boot_id(),
        withdraw=lambda: None,
    )
    walk = view.walk()
    walk.position = start
    if view.segments.file_size:
        dispatcher = Dispatcher(queues, parse_delay_levels(options.delay_levels))
        dispatcher.log_begin = lambda: view.begin
        dispatch_log(dispatcher, walk, skip_damage=start == view.begin, name=root)
    queues.follow_log(view.begin, drop=False)
    queues.go_on_all()
    return {"ok": True, "minPhyOffset": view.begin, "maxPhyOffset": view.end, "queues": ranges(queues)}


def ranges(queues: ConsumeQueues) -> dict[str, list[int]]:
    """Return the ranges of the queues that have one."""
    found = {f"{queue.topic}@{queue.queue_id}": [queue.min, queue.max] for queue in queues if queue.max}
    return dict(sorted(found.items()))
