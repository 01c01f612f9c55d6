"""What can be derived from the log, after a start: how far queues and index are right, and filling them from
there.

`cut_queues` asks the queues' mark (`marks.py`). Entries below it are on disk, so each queue is cut to the
mark, or to the lowest end the log has had since, and written on from there. When there is no mark, as in a
store of RocketMQ's, or when a queue went missing, the whole log is walked once and every entry written anew:
RocketMQ's own recovery loses entries and keys there.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from whimbrel.store.checkpoint import read_checkpoint
from whimbrel.store.dispatch import Dispatcher
from whimbrel.store.index import Index
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.recovery import stands_record
from whimbrel.store.recovery_marks import LogMark, QueueMark
from whimbrel.store.shared_page import boot_id
from whimbrel.store.walk import Walk

__all__ = ["cut_index", "cut_queues", "dispatch_log"]

logger = logging.getLogger(__name__)

ReadAt = Callable[[int, int], bytes]


def cut_queues(
    queues: ConsumeQueues, mark: QueueMark | None, log_mark: LogMark, begin: int, end: int, read: ReadAt
) -> int:
    """Cut the queues to where they are known to be right; return that log offset, from which to dispatch."""
    if mark is not None and begin <= mark.offset:
        lowest = log_mark.lowest_end_since(mark.cut)
        if lowest is None or lowest >= 0:
            queues.cut(mark.offset, scrub=mark.boot != boot_id())
            if queues.totals() == (mark.queues, mark.entries):
                start = min(mark.offset, end, end if lowest is None else lowest)
                if start < mark.offset:
                    queues.cut(start)
                return max(start, begin)
            logger.warning("%s: queues are missing or short; all are written anew", queues.directory)
    queues.cut(begin, scrub=True)
    return begin


def dispatch_log(dispatcher: Dispatcher, walk: Walk, *, skip_damage: bool, name: Path) -> None:
    """Dispatch to the walk's limit; `skip_damage` goes on at the next file where nothing else is left to do.

    Raises:
        StoreFull: a queue has no room; the walk's position is the record that needs it.
    """
    while True:
        dispatcher.run(walk, walk.limit - walk.position)
        if not walk.fault or walk.position >= walk.limit:
            return
        logger.error("%s: damage in the log at %d: %s", name, walk.position, walk.fault)
        if not skip_damage or not walk.skip_file():
            return


def cut_index(
    index: Index,
    root: Path,
    mark: QueueMark | None,
    log_mark: LogMark,
    begin: int,
    end: int,
    *,
    clean: bool,
    read: ReadAt,
    file_size: int,
) -> None:
    """Cut the index to where it is known to be right, and set its position."""
    indexed, index_end, trusted_to = 0, -1, None
    if mark is not None:
        lowest = log_mark.lowest_end_since(mark.cut)
        indexed = mark.indexed if lowest is None else max(0, min(mark.indexed, lowest))
        # With entries cut since, the newest one of the mark may rightly be gone.
        index_end = mark.index_end if lowest is None or mark.index_end < lowest else -1
        if mark.boot != boot_id() and not clean:
            trusted_to = mark.indexed
    elif not clean:
        checkpoint = read_checkpoint(root)
        index.drop_newer(checkpoint.index_ms if checkpoint else 0)
    index.recover(begin, end, trusted_to=trusted_to, indexed=indexed, index_end=index_end)
    position = index.position
    if begin < position < end and not stands_record(read, position, file_size):
        logger.warning("%s: the index does not belong to this log; it is built anew", root)
        index.cut(begin)
        index.position = begin
