"""From where on a slave lets a master show what both should hold, before the slave's log goes on.

    log file                          log file
    ... | record | record | blank    | record | reco        the own log's end, anywhere within a record
                          ^--------------------^             what is shown: `compare_bytes`, in the last file
               ^-------------------------------^             ... and one whole record at least, wherever it is

Bytes that are not a whole record say little: blanks are zeros, and the end of a body may be like any other.
A record says which it is: where it stands in the log, in its queue, and when it was stored. So the overlap
begins with one, in the file before where the last file has none. **A log that holds anything is never
continued before an overlap was found equal**; a master whose log begins behind the overlap refuses the slave,
which then has to start with an empty store.
"""

import struct
from collections.abc import Callable
from typing import Final

from whimbrel.store.codec import RECORD_BYTES_MAX, RECORD_BYTES_MIN, RECORD_MAGICS

__all__ = ["SEARCHED_BYTES_MAX", "last_record", "overlap_start"]

Read = Callable[[int, int], bytes]  # of the log: offset, count; within one file

# What stands before the end of a log without a whole record: one that has not come whole, a blank, or both.
SEARCHED_BYTES_MAX: Final = 2 * RECORD_BYTES_MAX
PIECE_BYTES: Final = 64 * 1024
HEAD: Final = struct.Struct(">iI20xq")  # size, magic, five fields, and the offset at which the record stands
MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in RECORD_MAGICS)


def overlap_start(read: Read, *, begin: int, end: int, file_size: int, compare_bytes: int) -> int:
    """Return from where on [begin, end) is to be shown; `end` when nothing is to be compared.

    Args:
        read: reads the own log.
        begin, end: its range; it holds nothing when they are equal.
        file_size: of its files.
        compare_bytes: show so much at least, as far as the last file has it; 0: compare nothing.
    """
    if not compare_bytes or begin >= end:
        return end
    last_file = (end - 1) // file_size * file_size
    lowest = max(begin, end - SEARCHED_BYTES_MAX)
    record = last_record(read, begin=lowest, end=end, file_size=file_size)
    if record is None:
        start = lowest
    else:
        start = min(record, max(end - compare_bytes, last_file))
    # A report of 0 would mean an empty log. The first byte of a log is the same in all: that of a size.
    return max(start, begin, 1)


def last_record(read: Read, *, begin: int, end: int, file_size: int) -> int | None:
    """Return where the last whole message record in [begin, end) starts; None when there is none.

    What names its own offset is a record: nothing else does, unless somebody writes a body for that place.
    """
    high = end
    while high > begin:
        low = max(begin, (high - 1) // file_size * file_size, high - PIECE_BYTES)
        # With what follows: a head that begins in this piece may end there.
        piece = read(low, min(high + HEAD.size, end, low - low % file_size + file_size) - low)
        at = len(piece)
        while (at := max(piece.rfind(magic, 0, at) for magic in MAGICS)) >= 0:
            position = low + at - 4
            if at >= 4 and at - 4 + HEAD.size <= len(piece):
                size, _, offset = HEAD.unpack_from(piece, at - 4)
                if offset == position and RECORD_BYTES_MIN <= size <= end - position:
                    return position
        high = low
    return None
