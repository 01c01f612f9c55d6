"""Which part of which log is compared, in chunks. Pure.

Each slave is compared with the master over what both hold: from the later of the two begins to the earlier of
the two confirmed ends. The chunks of all members are cut at the same places, so that each can be compared
with its counterpart: at multiples of the chunk size from the begin of their file, where a file ends, and
wherever one slave's part begins or ends.

    file      0                                         1 GiB
    chunks    |--16 MiB--|--16 MiB--|-- ... --|--16 MiB--|
    a slave's end                      ^ cuts the chunk of all
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from whimbrel.spark.auditing.members import Look

__all__ = ["Part", "Span", "chunks", "parts_of", "span_of"]


@dataclass(frozen=True, slots=True)
class Span:
    """What two members both hold; empty when `end` is `begin`."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Part:
    """What of one file of one member is to be summed up, in pieces that hold no cut."""

    member: int  # its number: 0 for the master
    segment: int  # where the file begins
    pieces: tuple[Span, ...]
    sealed: bool  # all of the file, so that it is worth keeping what it sums up to


def span_of(master: Look, slave: Look) -> Span:
    """Return what is compared of a master and a slave."""
    begin = max(master.begin, slave.begin)
    return Span(begin, max(min(master.end, slave.end), begin))


def parts_of(spans: Sequence[Span], file_size: int) -> list[Part]:
    """Return the work on checksums: of the master (number 0), and of its slaves with these spans."""
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
                pieces = tuple(Span(low, high) for low, high in pairwise(borders))
                parts.append(Part(member, segment, pieces, len(pieces) == 1 and end - begin == file_size))
    return parts


def merged(spans: Sequence[Span]) -> list[Span]:
    """Return the parts of a log that some spans cover, without what is between them."""
    found: list[Span] = []
    for span in sorted((span for span in spans if span.end > span.begin), key=lambda span: span.begin):
        if found and span.begin <= found[-1].end:
            found[-1] = Span(found[-1].begin, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def chunks(piece: Span, chunk_bytes: int, file_size: int) -> Iterator[tuple[int, int]]:
    """Cut a piece into chunks, each an offset and a size, as brokers do for `ChecksumLog`."""
    at = piece.begin
    while at < piece.end:
        position = at % file_size
        border = min(position - position % chunk_bytes + chunk_bytes, file_size)
        size = min(border - position, piece.end - at)
        yield at, size
        at += size
