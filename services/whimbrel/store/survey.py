"""What lies behind the place at which a log ends: whole records, other bytes, or zeros only.

Behind a fault nothing says where the next record begins. So the walk looks for the magic of a record, and
takes what stands there for one if it is whole and says itself that it stands there: bytes of a body that look
like a record do not count, since they stand elsewhere.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from whimbrel.store.codec import PHYSICAL_OFFSET, RECORD_BYTES_MIN, SIZE_AND_MAGIC, record_fault
from whimbrel.store.recovery import READ_BYTES, ReadAt

__all__ = ["ZEROS_MAX", "Survey", "survey"]

# Zeros in a row that end a look for what a crash has left: as much as may wait for a flush (`flush_bytes`).
ZEROS_MAX = 64 * 1024 * 1024
ZEROS = bytes(READ_BYTES)
MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
MAGIC_AT = 4  # of a record


@dataclass(slots=True)
class Survey:
    """What was found.

    Attributes:
        records: how many whole ones.
        first: offset of the first of them, -1 without any.
        last: end of the last of them, -1 without any.
        used_end: behind the last byte that is not zero; the place where the look began when there is none.
    """

    records: int
    first: int
    last: int
    used_end: int


def survey(
    read: ReadAt,
    begin: int,
    end: int,
    file_size: int,
    *,
    torn: bool = False,
    records_max: int = 1 << 62,
    zeros_max: int = 1 << 62,
    next_data: Callable[[int], int] = lambda position: position,
) -> Survey:
    """Look at [begin, end), which may be in several files; what can't be read there counts as zeros.

    Args:
        torn: what begins at `begin` is known to be no whole record, even if it looks like one.
        records_max: once so many whole records are found, the rest of what was read is still looked at.
        zeros_max: so many zeros in a row end the look.
        next_data: returns where zeros may end that are not stored as such; most of a file that was prepared
            for the log is a hole.
    """
    found = Survey(0, -1, -1, begin)
    position, zeros, first = begin, 0, MAGIC_AT if torn else 0
    while position < end and zeros < zeros_max and found.records < records_max:
        file_end = min(position - position % file_size + file_size, end)
        chunk = read(position, min(READ_BYTES, file_end - position))
        if chunk != ZEROS and (used := len(chunk.rstrip(b"\0"))):
            zeros, found.used_end = 0, position + used
            position = survey_chunk(read, chunk, position, file_end, found, first)
        else:
            before, position = position, position + len(chunk) if chunk else file_end
            if position < file_end:
                position = min(max(next_data(position), position), file_end)
            zeros += position - before
        first = 0
    return found


def survey_chunk(read: ReadAt, chunk: bytes, position: int, file_end: int, found: Survey, behind: int) -> int:
    """Count the records that begin in a chunk, from `behind` on; return where to look on."""
    for match in MAGIC.finditer(chunk):
        at = match.start() - MAGIC_AT
        if at < behind:
            continue
        size = whole_at(read, chunk, at, position, file_end)
        if size:
            behind = at + size
            found.records += 1
            found.last = position + behind
            found.used_end = max(found.used_end, found.last)
            if found.first < 0:
                found.first = position + at
    step = len(chunk)
    if position + step < file_end:  # size and magic of the next record may be cut in two
        step = max(step - SIZE_AND_MAGIC.size + 1, 1)
    return position + max(step, behind)


def whole_at(read: ReadAt, chunk: bytes, at: int, position: int, file_end: int) -> int:
    """Return the size of the whole record at `at` of a chunk that was read at `position`, 0 for none."""
    place = position + at
    if place + RECORD_BYTES_MIN > file_end:
        return 0
    if at + RECORD_BYTES_MIN > len(chunk):
        chunk, at = read(place, RECORD_BYTES_MIN), 0
        if len(chunk) < RECORD_BYTES_MIN:
            return 0
    size, _ = SIZE_AND_MAGIC.unpack_from(chunk, at)
    if PHYSICAL_OFFSET.unpack_from(chunk, at)[0] != place or not RECORD_BYTES_MIN <= size <= file_end - place:
        return 0
    if at + size > len(chunk):
        chunk, at = read(place, size), 0
        if len(chunk) < size:
            return 0
    return 0 if record_fault(chunk, at, place) else int(size)
