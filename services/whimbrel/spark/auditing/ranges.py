"""Which part of which log is compared, in chunks. Pure.

Each slave is compared with the master over the range that both hold: from the later of the two begins to the
earlier of the two confirmed ends. The chunks of all members are cut at the same offsets, so that each can be
compared with its counterpart: at multiples of the chunk size from the begin of their file, where a file ends,
and where any slave's range begins or ends.

    file      0                                         1 GiB
    chunks    |--16 MiB--|--16 MiB--|-- ... --|--16 MiB--|
    a slave's end                      ^ cuts the chunk of all
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from whimbrel.spark.auditing.members import MemberState

__all__ = ["FilePart", "LogRange", "chunks", "common_range", "parts_of"]


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of the log; empty when `end` is `begin`."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """What is summed up of one file of one member, in pieces without a cut inside."""

    member: int  # its number: 0 for the master
    segment: int  # where the file begins
    pieces: tuple[LogRange, ...]
    sealed: bool  # all of the file, so that its checksums can be kept


def common_range(master: MemberState, slave: MemberState) -> LogRange:
    """Return the range that is compared of a master and a slave."""
    begin = max(master.begin, slave.begin)
    return LogRange(begin, max(min(master.end, slave.end), begin))


def parts_of(spans: Sequence[LogRange], file_size: int) -> list[FilePart]:
    """Return what is summed up of the master (number 0), and of its slaves with these ranges."""
    cuts = sorted({border for span in spans for border in (span.begin, span.end)})
    parts = []
    covered = merged(spans)
    for member, held in enumerate([covered, *([span] for span in spans)]):
        for span in held:
            first = span.begin - span.begin % file_size
            for segment in range(first, span.end, file_size):
                begin, end = max(span.begin, segment), min(span.end, segment + file_size)
                inner = [cut for cut in cuts if begin < cut < end]
                borders = [begin, *inner, end]
                pieces = tuple(LogRange(low, high) for low, high in pairwise(borders))
                parts.append(FilePart(member, segment, pieces, len(pieces) == 1 and end - begin == file_size))
    return parts


def merged(spans: Sequence[LogRange]) -> list[LogRange]:
    """Return the union of some ranges."""
    found: list[LogRange] = []
    for span in sorted((span for span in spans if span.end > span.begin), key=lambda span: span.begin):
        if found and span.begin <= found[-1].end:
            found[-1] = LogRange(found[-1].begin, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def chunks(piece: LogRange, chunk_bytes: int, file_size: int) -> Iterator[tuple[int, int]]:
    """Cut a piece into chunks, each an offset and a size, as brokers do for `ChecksumLog`."""
    at = piece.begin
    while at < piece.end:
        position = at % file_size
        border = min(position - position % chunk_bytes + chunk_bytes, file_size)
        size = min(border - position, piece.end - at)
        yield at, size
        at += size
