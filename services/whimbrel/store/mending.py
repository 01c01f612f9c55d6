"""Consume queues whose files have lost their sizes: the log says what is in them, so they stop no start.

A file that was cut short is lengthened by zeros, one with too many bytes is cut, and a file that is missing
between others is made. All entries of records that the log still has are then written anew; entries of older
ones stay where they are, since only they tell at which number a quiet queue goes on.
"""

import logging
import os
from collections import Counter
from pathlib import Path

from whimbrel.machine import Files
from whimbrel.store.codec import UNIT_SIZE
from whimbrel.store.queues import list_queues
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import list_segments

__all__ = ["mend_queues", "usual_queue_size"]

logger = logging.getLogger(__name__)

Sizes = dict[int, int]  # of a queue's files, by their starts


def mend_queues(root: Path, file_size: int, files: Files) -> None:
    """Give every queue's files one size, without a gap between them.

    Args:
        file_size: of a queue whose files do not tell it.
    """
    directories = {
        directory: {
            start: files.size(directory / segment_name(start)) for start in list_segments(directory, files)
        }
        for _, _, directory in list_queues(root / "consumequeue", files)
    }
    usual = usual_queue_size(list(directories.values()), file_size)
    for directory, sizes in directories.items():
        if sizes:
            mend_queue(directory, sizes, usual_queue_size([sizes], usual), files)


def mend_queue(directory: Path, sizes: Sizes, size: int, files: Files) -> None:
    """Give the files of one queue their size."""
    starts = [start for start in sizes if start % size == 0]
    for start in sizes:
        if start not in starts:
            logger.warning("%s: removed, since no file can begin there", directory / segment_name(start))
            files.unlink(directory / segment_name(start))
    if not starts:
        return
    for start in range(min(starts), max(starts) + size, size):
        if sizes.get(start) == size:
            continue
        path = directory / segment_name(start)
        logger.warning(
            "%s has %d bytes instead of %d: it is mended from the log", path, sizes.get(start, 0), size
        )
        fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            files.ftruncate(fd, size)
        finally:
            files.close(fd)


def usual_queue_size(queues: list[Sizes], otherwise: int) -> int:
    """Return the size that most files have, of those that a file between these starts can have."""
    found = Counter(
        size
        for sizes in queues
        for size in sizes.values()
        if size > 0 and size % UNIT_SIZE == 0 and all(start % size == 0 for start in sizes)
    )
    return max(found, key=lambda size: (found[size], size)) if found else otherwise
