"""Finds where a log at rest differs from another copy of it, and cuts it there: for pairs without epochs.

    64 MiB pieces   the first one whose checksums differ
    1 MiB, 4 KiB    within it, the same again
    bytes           of the first 4 KiB piece that differs, both are read: the first byte that does
    the border      the record that has this byte, or the blank, begins there: the point

The other copy answers checksums (`LogSums`); it is not changed. What ours has from the point on is saved and
cut by `divergence.cut_aside`, which says what a crash leaves. Only what the other copy says is confirmed is
compared. What ours has behind that is cut, too, since nobody can say that it is the same: if it is, the slave
gets it again.
"""

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from whimbrel.errors import StoreError
from whimbrel.machine import MACHINE, Machine
from whimbrel.store.codec import decode_record
from whimbrel.store.divergence import cut_aside
from whimbrel.store.locking import is_locked
from whimbrel.store.recovery import READ_BYTES, ReadAt
from whimbrel.store.repair import Findings, examine
from whimbrel.store.seat_file import SeatFile
from whimbrel.store.walk import Walk

__all__ = ["Difference", "LogSums", "cut_difference", "find_difference"]

PIECES: Final = (64 << 20, 1 << 20, 4 << 10)
REASON: Final = "an operator kept the log of the other one, which goes on otherwise"


class LogSums(Protocol):
    """Another copy of the log.

    Attributes:
        begin, confirmed: of its log; it ends there or behind.
    """

    begin: int
    confirmed: int

    def sums(self, begin: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield (offset, size, CRC-32) of the pieces of a range that is confirmed."""

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of a range that is confirmed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What would be cut.

    Attributes:
        compared: [begin, end) was compared.
        at: the first byte that differs, or that can't be compared; our end where nothing does.
        point, end: [point, end) of our log is to be cut; equal where nothing is.
        records: how many whole ones that are.
        topics: how many of each topic.
    """

    compared: tuple[int, int]
    at: int
    point: int
    end: int
    records: int
    topics: dict[str, int]


def find_difference(root: Path, other: LogSums, *, machine: Machine = MACHINE) -> Difference:
    """Compare a log at rest with another copy; nothing is changed.

    Raises:
        StoreError: the store is in use, damaged, or a member's of a group that elects its leader; or nothing
            can be compared, or all of what could be differs.
        WhimbrelError: the other copy does not answer.
    """
    if is_locked(root, machine.files):
        raise StoreError(f"{root} is in use: stop its broker and its replicator first")
    seat = SeatFile(root, machine.files).load()
    if seat is not None and seat.group:
        raise StoreError(
            f"{root} belongs to member {seat.member} of a group that elects its leader: start it, it cuts by"
            " itself what was never committed"
        )
    findings = examine(root, machine=machine)
    state, file_size = findings.state, findings.segments.file_size
    if findings.hurt or not findings.regular or state.lost:
        raise StoreError(
            f"the log of {root} is damaged: `whimbrel store repair {root}` shows where, and helps"
        )
    begin, end = max(state.begin, other.begin), min(state.end, other.confirmed)
    if begin >= end and state.end > state.begin:
        raise StoreError(
            f"our log has [{state.begin}, {state.end}), the other one [{other.begin}, {other.confirmed})"
            " confirmed: there is nothing to compare; start with an empty store instead"
        )
    at = first_difference(findings.segments.read, other, begin, end)
    if at is None:
        if state.end <= other.confirmed:
            return Difference((begin, end), state.end, state.end, state.end, 0, {})
        at = other.confirmed
    point = border(findings, at, file_size)
    if point <= begin and begin:
        raise StoreError(
            f"the logs differ at byte {at} already, and the other one begins at {begin}: start with an empty"
            " store instead"
        )
    records, topics = contents(findings.segments.read, point, state.end, file_size)
    return Difference((begin, end), at, point, state.end, records, topics)


def cut_difference(root: Path, found: Difference, *, machine: Machine = MACHINE) -> Path | None:
    """Save and cut what was found; return where it is kept, None where there was nothing but zeros.

    Raises:
        StoreError: there is no room, or the disk refuses; another call completes what this one has begun.
    """
    return cut_aside(root, found.point, found.end, epochs=None, reason=REASON, machine=machine)


def first_difference(read: ReadAt, other: LogSums, begin: int, end: int) -> int | None:
    """Return the first byte of a range that differs; None where all is the same."""
    for piece_bytes in PIECES:
        if begin >= end:
            return None
        found = None
        for offset, size, crc in other.sums(begin, end, piece_bytes):
            if checksum(read, offset, size) != crc:
                found = offset, min(offset + size, end)
                break
        if found is None:
            return None
        begin, end = found
    theirs = other.read(begin, end)
    ours = read(begin, end - begin)
    same = (at for at, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two)
    return begin + next(same, min(len(ours), len(theirs)))


def checksum(read: ReadAt, offset: int, size: int) -> int:
    """Return the CRC-32 of a piece of our log."""
    crc, end = 0, offset + size
    while offset < end:
        data = read(offset, min(READ_BYTES, end - offset))
        if not data:
            break
        crc = zlib.crc32(data, crc)
        offset += len(data)
    return crc


def border(findings: Findings, at: int, file_size: int) -> int:
    """Return where the record, or the blank, begins that has a byte: a log file begins with a record."""
    start = max(at - at % file_size, findings.state.begin)
    walk = Walk(findings.segments.read, start, findings.state.end, file_size)
    last = start
    while (chunk := walk.next_chunk()) is not None:
        base, _, positions = chunk
        for position in positions:
            if base + position > at:
                return last
            last = base + position
        if walk.position > at:
            return last
    return min(walk.position, at) if walk.position <= at else last


def contents(read: ReadAt, point: int, end: int, file_size: int) -> tuple[int, dict[str, int]]:
    """Return how many whole records a range has, and how many of each topic."""
    topics: Counter[str] = Counter()
    walk = Walk(read, point, end, file_size)
    while (chunk := walk.next_chunk()) is not None:
        _, data, positions = chunk
        for position in positions:
            topics[decode_record(data, position, check_crc=False).topic] += 1
    return sum(topics.values()), dict(topics.most_common())
