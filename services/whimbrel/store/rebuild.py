"""Rebuilds what is derived from the log, at a start: up to where queues and index are right, and filling them
from there.

`truncate_queues` uses the queues' mark (`recovery_marks.py`). Entries below it are on disk, so each queue is
truncated to the mark, or to the lowest end that the log has had since, and continued from there. Without a
mark (a store written by RocketMQ), or when a queue is missing, the whole log is read and every entry written
anew: RocketMQ's own recovery loses entries and keys there.
"""

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from whimbrel.errors import CorruptRecord
from whimbrel.machine import Machine
from whimbrel.store.checkpoint import read_checkpoint
from whimbrel.store.codec import topic_and_properties
from whimbrel.store.dispatch import Dispatcher
from whimbrel.store.index import Index
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.recovery import ReadAt, is_boundary
from whimbrel.store.recovery_marks import LogMark, QueueMark
from whimbrel.store.walk import Walk

__all__ = ["dispatch_log", "dispatch_topics", "truncate_index", "truncate_queues"]

logger = logging.getLogger(__name__)


def truncate_queues(
    queues: ConsumeQueues,
    mark: QueueMark | None,
    log_mark: LogMark,
    begin: int,
    end: int,
    *,
    boot: bytes,
    withdraw: Callable[[], None],
) -> int:
    """Truncate the queues to where they are known to be right; return the log offset to dispatch from.

    Args:
        withdraw: removes the mark from the disk, before entries go for which it vouches: it counts them, and
            would find as many after a power loss in which others were not yet written.
    """
    if mark is not None and begin <= mark.offset:
        lowest = log_mark.lowest_end_since(mark.recoveries)
        if lowest is None or lowest >= 0:
            queues.truncate(mark.offset, scrub=mark.boot != boot)
            if queues.totals() == (mark.queues, mark.entries):
                start = min(mark.offset, end, end if lowest is None else lowest)
                if start < mark.offset:
                    queues.truncate(start)
                return max(start, begin)
            logger.warning("%s: queues are missing or short; all are written anew", queues.directory)
    withdraw()
    queues.truncate(begin, scrub=True)
    if not begin:
        # All that they ever held is there. A file that stands without those before it has come back from a
        # removal that was not on disk, and tells nothing of where its queue begins.
        queues.restart()
    return begin


def dispatch_log(dispatcher: Dispatcher, walk: Walk, *, skip_damage: bool, name: Path) -> None:
    """Dispatch to the walk's limit; `skip_damage` goes on at the next file behind damage.

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


def dispatch_topics(dispatcher: Dispatcher, walk: Walk, topics: Collection[str], *, name: Path) -> None:
    """Dispatch the records of some topics alone to the walk's limit; at damage go on at the next file.

    Raises:
        StoreFull: a queue has no room.
    """
    names = {topic.encode() for topic in topics}
    while True:
        while (chunk := walk.next_chunk()) is not None:
            base, data, positions = chunk
            theirs = [at for at in positions if topic_at(data, at) in names]
            if theirs:
                dispatcher.dispatch((base, data, theirs))
        if not walk.fault or walk.position >= walk.limit:
            return
        logger.error("%s: damage in the log at %d: %s", name, walk.position, walk.fault)
        if not walk.skip_file():
            return


def topic_at(data: bytes, at: int) -> bytes:
    """Return the topic of a record; nothing of a damaged one."""
    try:
        return topic_and_properties(data, at)[0]
    except CorruptRecord:
        return b""


def truncate_index(
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
    machine: Machine,
) -> None:
    """Truncate the index to where it is known to be right, and set its position."""
    indexed, index_end, trusted_to = 0, -1, None
    if mark is not None:
        lowest = log_mark.lowest_end_since(mark.recoveries)
        indexed = mark.indexed if lowest is None else max(0, min(mark.indexed, lowest))
        # Where the newest entry that the mark knows is gone, the index is built from its own end on: a later
        # recovery may have removed entries, a power failure files, and nothing else tells which.
        index_end = mark.index_end
        if mark.boot != machine.boot_id() and not clean:
            trusted_to = mark.indexed
    elif not clean:
        checkpoint = read_checkpoint(root, machine.files)
        index.drop_newer(checkpoint.index_ms if checkpoint else 0)
    index.recover(begin, end, trusted_to=trusted_to, indexed=indexed, index_end=index_end)
    position = index.position
    if begin < position < end and not is_boundary(read, position, file_size):
        logger.warning("%s: the index does not belong to this log; it is built anew", root)
        index.truncate(begin)
        index.position = begin
