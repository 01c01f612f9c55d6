"""Repairs a log at rest that ends below what was on disk, as its operator chooses (`whimbrel store repair`).

    examine      changes nothing: which ranges are hurt, and how many whole records lie behind
    set_aside    the log ends before the first hurt range that a start refuses; all behind it is kept in
                 `whimbrel/cut/`, whatever its size
    fetch        every hurt range is taken from another copy of the log

A range is hurt when it lies between whole records and holds none, or up to the log's mark. What is missing is
read as zeros: a file that is gone, or the rest of one that was cut short.

**Fetching.** The copy must hold the same bytes on both sides of each range, up to AROUND_BYTES; what comes
from it must be whole records that end where the range ends. Only then is anything written: the damaged bytes
are kept in `whimbrel/cut/`, a new file is written beside the old one, synced, and renamed into its place, and
the directory is synced. A stop in between leaves the old file.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from whimbrel.errors import StoreError
from whimbrel.machine import MACHINE, Files, Machine
from whimbrel.store.checkpoint import read_checkpoint
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.cut import keep_range
from whimbrel.store.locking import StoreLock
from whimbrel.store.offline_vote import take_vote
from whimbrel.store.options import COMMITLOG_FILE_SIZE_MIN, StoreOptions
from whimbrel.store.pages import refusing_when_full, replacing
from whimbrel.store.recovery import READ_BYTES, LogState, ReadAt, recover_log, verify_file
from whimbrel.store.recovery_marks import LogMark
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import Segments, list_segments
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.survey import survey
from whimbrel.store.view import check_store

__all__ = ["Findings", "Hurt", "LogCopy", "examine", "fetch", "set_aside"]

logger = logging.getLogger(__name__)

AROUND_BYTES = 1 << 20
DRAFT = "repair-"


class LogCopy(Protocol):
    """Another copy of the log."""

    def read(self, begin: int, end: int) -> Iterable[tuple[int, bytes]]:
        """Yield all bytes of a range in order, each piece with its offset.

        Raises:
            WhimbrelError: it does not have them all, or can't be reached.
        """


@dataclass(frozen=True, slots=True)
class Hurt:
    """A range of the log without a whole record; `what` stands at its begin."""

    begin: int
    end: int
    what: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What is in a log directory.

    Attributes:
        segments: its files, with those that are missing.
        missing: starts of files that are not there; `short` of those that are too short.
        state: what recovery finds; `state.lost` says that a start refuses it.
        hurt: the ranges, in order.
        records_behind: whole records behind the end that recovery finds.
        tail: end of the last whole record, or of what was on disk if that is further.
    """

    segments: "LenientSegments"
    missing: tuple[int, ...]
    short: tuple[int, ...]
    state: LogState
    hurt: tuple[Hurt, ...]
    records_behind: int
    tail: int

    @property
    def regular(self) -> bool:
        """Whether the files themselves are as a log's files must be."""
        return not self.missing and not self.short


class LenientSegments(Segments):
    """A log's files, where what is missing reads as zeros."""

    def __init__(self, directory: Path, file_size: int, present: Iterable[int], files: Files) -> None:
        super().__init__(directory, file_size, files)
        self.present = set(present)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from an offset on, not beyond the end of its file."""
        position = offset % self.file_size
        length = min(length, self.file_size - position)
        data = b""
        if offset - position in self.present:
            data = self.files.pread(self.fd(offset - position), length, position)
        return data.ljust(length, b"\0")


def examine(root: Path, *, file_size: int = 0, machine: Machine = MACHINE) -> Findings:
    """Look at the whole log of a store at rest, changing nothing.

    Args:
        file_size: of the log's files, for a log whose only file was cut short.

    Raises:
        StoreError: there is no store, nothing is left of its log, or the size of its files is not known.
    """
    files = machine.files
    check_store(root, files)
    directory = root / "commitlog"
    mark = LogMark.load(root, files)
    synced = mark.offset if mark is not None else 0
    sizes = {start: files.size(directory / segment_name(start)) for start in list_segments(directory, files)}
    if not any(sizes.values()):
        raise StoreError(
            f"{directory} holds no bytes of a log: move the store away, and begin with an empty one, or with"
            " a slave's"
        )
    size = file_size or usual_size(root, sizes, machine)
    if any(start % size or there > size for start, there in sizes.items()):
        raise StoreError(f"the files in {directory} can't be a log's with files of {size} bytes")
    last = max(*sizes, (max(synced, 1) - 1) // size * size)
    segments = LenientSegments(directory, size, sizes, files)
    segments.starts = list(range(min(sizes), last + size, size))
    state = recover_log(
        segments.read,
        segments.starts,
        size,
        clean=not files.exists(root / "abort"),
        mark=mark,
        checkpoint=read_checkpoint(root, files),
    )
    behind = survey(segments.read, state.end, last + size, size, torn=True)
    return Findings(
        segments,
        tuple(start for start in segments.starts if start not in sizes),
        tuple(start for start, there in sizes.items() if there < size),
        state,
        tuple(hurt_ranges(segments.read, segments.starts[0], last + size, size, state.synced)),
        behind.records,
        max(behind.last, state.end, state.synced),
    )


def usual_size(root: Path, sizes: dict[int, int], machine: Machine) -> int:
    """Return the size that a log's files have.

    Raises:
        StoreError: it can't be known.
    """
    page = SharedPage.snapshot(root, machine)
    if page is not None and page.file_size:
        return page.file_size
    fitting = Counter(
        size
        for size in sizes.values()
        if size >= COMMITLOG_FILE_SIZE_MIN and all(start % size == 0 for start in sizes)
    )
    if not fitting:
        raise StoreError(
            f"the files in {root / 'commitlog'} do not tell what size they had: give --commitlog-file-size"
        )
    return max(fitting, key=lambda size: (fitting[size], size))


def hurt_ranges(read: ReadAt, begin: int, end: int, file_size: int, synced: int) -> Iterator[Hurt]:
    """Yield the ranges of [begin, end) that are hurt."""
    position = begin
    while position < end:
        verdict = verify_file(read, position, position - position % file_size + file_size)
        if verdict.blank:
            position += file_size - position % file_size
            continue
        at = verdict.end
        behind = survey(read, at, end, file_size, torn=True, records_max=1)
        following = behind.first if behind.first >= 0 else synced
        if following <= at:
            return
        yield Hurt(at, following, verdict.fault or "zeros")
        if behind.first < 0:
            return
        position = following


def set_aside(root: Path, findings: Findings, *, machine: Machine = MACHINE) -> int:
    """Have the log end where recovery finds its end; keep what is behind. Return that end.

    Raises:
        StoreError: the store is in use, or can't be written.
    """
    files, segments = machine.files, findings.segments
    lock = StoreLock.acquire(root, files)
    try:
        present = max(segments.present)
        for start in findings.missing + findings.short:
            if start < present or start in segments.present:
                lengthen(files, segments.directory / segment_name(start), segments.file_size)
        if not findings.regular:
            files.sync_directory(segments.directory)
    finally:
        segments.close()
        lock.release()
    options = StoreOptions(commitlog_file_size=segments.file_size)
    writer = LogWriter.open(root, options, machine=machine, set_aside=True)
    end = writer.end
    writer.close()
    return end


def lengthen(files: Files, path: Path, size: int) -> None:
    """Give a file its size; what it lacks becomes zeros."""
    fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        files.ftruncate(fd, size)
        files.fsync(fd)
    finally:
        files.close(fd)


def fetch(root: Path, findings: Findings, source: LogCopy, *, machine: Machine = MACHINE) -> int:
    """Take every hurt range from another copy of the log; return how many bytes came from there.

    Raises:
        StoreError: the store is in use or can't be written, or the copy is of another log.
        WhimbrelError: the copy does not have all bytes, or can't be reached.
    """
    segments = findings.segments
    lock = StoreLock.acquire(root, machine.files)
    try:
        patches = {}
        for hurt in findings.hurt:
            compare_around(findings, hurt, source)
            patches[hurt.begin] = bytes_of(source, hurt.begin, hurt.end)
            check_patch(segments, hurt, patches[hurt.begin])
        touched = {
            start
            for hurt in findings.hurt
            for start in range(segments.start_of(hurt.begin), hurt.end, segments.file_size)
        }
        take_vote(root, machine)
        for start in sorted(touched | set(findings.short)):
            keep_damaged(root, segments, start, findings.hurt, machine)
            write_again(machine.files, segments, start, patches)
        return sum(map(len, patches.values()))
    finally:
        segments.close()
        lock.release()


def bytes_of(source: LogCopy, begin: int, end: int) -> bytes:
    """Return a range of the copy.

    Raises:
        StoreError: fewer or other bytes came.
    """
    data = bytearray()
    for offset, piece in source.read(begin, end):
        if offset != begin + len(data):
            raise StoreError(f"the copy sent byte {offset} of its log where {begin + len(data)} follows")
        data += piece
    if len(data) != end - begin:
        raise StoreError(f"the copy sent {len(data)} bytes of its log for {begin} to {end}")
    return bytes(data)


def compare_around(findings: Findings, hurt: Hurt, source: LogCopy) -> None:
    """Check that the copy is one of this log: it has the same bytes before and behind a hurt range.

    Raises:
        StoreError: it is not, or there is nothing to compare.
    """
    read, file_size, compared = findings.segments.read, findings.segments.file_size, 0
    borders = [findings.segments.starts[0], *(each.end for each in findings.hurt)]
    before = max(border for border in borders if border <= hurt.begin)
    behind = min([each.begin for each in findings.hurt if each.begin >= hurt.end], default=findings.tail)
    for begin, end in (
        (max(before, hurt.begin - AROUND_BYTES), hurt.begin),
        (hurt.end, min(behind, hurt.end + AROUND_BYTES)),
    ):
        position = begin
        while position < end:
            size = min(end - position, file_size - position % file_size, READ_BYTES)
            if read(position, size) != bytes_of(source, position, position + size):
                raise StoreError(
                    f"the copy has other bytes at {position} to {position + size}, which are whole here:"
                    " it is of another log"
                )
            position += size
            compared += size
    if not compared:
        raise StoreError(
            f"nothing whole is left around {hurt.begin} to {hurt.end} that could be compared with the copy:"
            " begin with an empty store as its slave"
        )


def check_patch(segments: "LenientSegments", hurt: Hurt, data: bytes) -> None:
    """Check that bytes for a hurt range are whole records that end where it ends.

    Raises:
        StoreError: they are not.
    """

    def read(offset: int, length: int) -> bytes:
        length = min(length, segments.file_size - offset % segments.file_size, hurt.end - offset)
        return data[offset - hurt.begin : offset - hurt.begin + max(length, 0)]

    position = hurt.begin
    while position < hurt.end:
        file_end = position - position % segments.file_size + segments.file_size
        verdict = verify_file(read, position, min(file_end, hurt.end))
        position = verdict.end
        if verdict.blank:
            position = file_end
        elif position != hurt.end:
            what = verdict.fault or "zeros"
            raise StoreError(f"the copy's own bytes at {position} are no record: {what}")
    if position != hurt.end:
        raise StoreError(f"the copy's records do not end at {hurt.end}: it is of another log")


def keep_damaged(
    root: Path, segments: "LenientSegments", start: int, hurt: Iterable[Hurt], machine: Machine
) -> None:
    """Keep the bytes of a file that are about to be replaced, those that are not zeros."""
    for each in hurt:
        begin, end = max(each.begin, start), min(each.end, start + segments.file_size)
        if begin >= end or start not in segments.present:
            continue
        used = survey(segments.read, begin, end, segments.file_size).used_end
        if used > begin:
            path = keep_range(machine.files, root, segments, begin, used, machine.wall_ms(), copied=True)
            logger.info("log %s: the damaged bytes %d to %d are kept in %s", root, begin, used, path)


def write_again(files: Files, segments: "LenientSegments", start: int, patches: dict[int, bytes]) -> None:
    """Put a new file in a file's place, with what it held and the patches."""
    size = segments.file_size
    path = segments.directory / segment_name(start)
    with refusing_when_full(f"no room to write {path} again"):
        with replacing(files, path, segments.directory / f"{DRAFT}{path.name}") as fd:
            files.ftruncate(fd, size)
            for position in range(0, size, READ_BYTES):
                piece = segments.read(start + position, READ_BYTES)
                if piece.strip(b"\0"):
                    files.write_all(fd, piece, position)
            for begin, data in patches.items():
                first, last = max(begin, start), min(begin + len(data), start + size)
                if first < last:
                    files.write_all(fd, data[first - begin : last - begin], first - start)
