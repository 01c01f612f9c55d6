"""Cuts off a log what the leader's log does not have: a former leader's records that were never committed.

Two logs are the same up to a point (`ha/epochs.py`); ours goes on there with other bytes. They are saved, the
log ends at the point, and then the leader's bytes can follow. Each step is on disk before the next:

    1  the intent    the caller writes (point, end) to the seat (`seat_file.py`)
    2  saved         [point, end) is in `whimbrel/cut/EPOCH-FROM-TO/` (`cut.py`): it is written and synced as
                     `whimbrel/cut-draft`, then renamed
    3  the mark      of the log says no more than the point (`recovery_marks.py`): an end there is no damage
    4  the log       files behind the point's are removed, the last one first; the rest of the point's file
                     becomes zeros, so that no old record is taken for one of the new log later
    5  the epochs    `epochFileCheckpoint` ends at the point
    6  no intent     the caller clears it

The log is closed meanwhile, and nobody may follow it: its epoch in the shared page is 0 from step 2 on. So
`LogWriter.open` comes after step 6. It finds the point as the log's end, and begins an epoch; the broker
beside cuts its queues and index, as after each recovery. A log that is opened earlier, against this rule,
ends at the point or behind it, at a whole record.

**Again.** A kill or a power loss leaves the intent, and the next start does all of it again (`finish_cut`).
Each step can be repeated. Before step 3 the log is untouched: what was saved in part is thrown away. Later a
directory is there that holds all of the log's bytes, but for those that are zeros by now: then it is whole,
and what is left in the log is not saved over it. Where an earlier cut of the same range held other bytes, the
directory gets another name.

**Failed syncs.** After one the kernel takes for written what is not (`failed_sync.py`). What was being saved
is written anew; so are mark and list of epochs. For the log's file the marker is set, and `LogWriter.open`
writes it again.

Other marks that may reach further: the checkpoint's times only choose where RocketMQ's recovery starts; the
queues' mark follows the ends of recoveries; `whimbrel/sync-failed` never reaches beyond the log. The commit
offset (checkpoint, `whimbrel/confirmed`) is the broker's, and no cut goes below it.

`why.json` of a directory:

    version       1
    reason        a sentence for people
    point, end    [point, end) of the log was cut off
    time_ms       when, epoch milliseconds
    records       how many whole records that were
    ours, theirs  both lists of epochs, [epoch, start] each; theirs is null where it is not known any more
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whimbrel.errors import IllegalOffset, StoreError, StoreFull
from whimbrel.ha.epochs import Epochs, cut, epoch_at
from whimbrel.machine import MACHINE, Files, Machine
from whimbrel.store.cut import WHY, copy, cut_directory, directory_range, trim
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.failed_sync import read_marker, set_marker
from whimbrel.store.locking import StoreLock
from whimbrel.store.options import COMMITLOG_FILE_SIZE_MIN
from whimbrel.store.page_log import LogProgress
from whimbrel.store.pages import free_bytes, refusing_when_full, zero
from whimbrel.store.recovery import READ_BYTES, is_boundary
from whimbrel.store.recovery_marks import CHECK_BYTES, LogMark
from whimbrel.store.seat_file import Seat
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import Segments
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.survey import ZEROS_MAX, survey
from whimbrel.store.walk import Walk

__all__ = ["CUT_KEEP_BYTES", "cut_aside", "finish_cut"]

logger = logging.getLogger(__name__)

CUT_KEEP_BYTES: Final = 1 << 30  # one log file; what a majority has not committed is at most 64 MiB
DRAFT = "cut-draft"
SECTOR = 512  # what was on its way to the disk is there or not, sector by sector


@dataclass(frozen=True, slots=True)
class Piece:
    """What is to be saved of one log file: [begin, end), with so many whole records."""

    begin: int
    end: int
    records: int


def cut_aside(
    root: Path,
    point: int,
    end: int,
    *,
    epochs: Epochs | None,
    reason: str,
    keep_bytes: int = CUT_KEEP_BYTES,
    machine: Machine = MACHINE,
) -> Path | None:
    """Save [point, end) of a closed log, and have the log end at the point.

    Args:
        root: the store.
        point: offset up to which both logs are the same, between two records; not below the log's begin.
        end: of the log, before anything of it was cut.
        epochs: the leader's list, for people; None where it is not known any more.
        reason: a sentence for people.
        keep_bytes: the oldest of all that is kept of cuts go beyond that, never what this call saves.

    Returns:
        Where the bytes are; None when there were none but zeros.

    Raises:
        StoreFull: there is no room to save them; nothing was cut.
        StoreError: the store is open, the log begins behind the point, or the disk refuses; with the same
            arguments, another call completes what this one has begun.
    """
    assert point <= end, (point, end)
    files = machine.files
    lock = StoreLock.acquire(root, files)
    try:
        page = SharedPage.open(root, machine)
        try:
            page.recovering()
            return cut_locked(
                root,
                point,
                end,
                epochs=epochs,
                reason=reason,
                keep_bytes=keep_bytes,
                machine=machine,
                page=page,
            )
        except OSError as error:
            raise StoreError(
                f"the log of {root} can't be cut at {point}: {error}; see to the disk, then start again,"
                " which completes the cut"
            ) from error
        finally:
            page.close()
    finally:
        lock.release()


def finish_cut(
    root: Path, seat: Seat, *, keep_bytes: int = CUT_KEEP_BYTES, machine: Machine = MACHINE
) -> Path | None:
    """Complete the cut whose intent a seat holds, before the log is opened; nothing without one.

    The caller then saves the seat without it (`seat_file.after_cut`). Arguments, result and errors are as of
    `cut_aside`.
    """
    if seat.cut is None:
        return None
    point, end = seat.cut
    return cut_aside(
        root,
        point,
        end,
        epochs=None,
        reason="the log went on otherwise than the leader's; a stop had interrupted the cut",
        keep_bytes=keep_bytes,
        machine=machine,
    )


def cut_locked(
    root: Path,
    point: int,
    end: int,
    *,
    epochs: Epochs | None,
    reason: str,
    keep_bytes: int,
    machine: Machine,
    page: LogProgress,
) -> Path | None:
    """Do it while the lock is held."""
    files = machine.files
    file_size = page.file_size or COMMITLOG_FILE_SIZE_MIN  # only asked for where there are no files
    segments = Segments.open(root / "commitlog", file_size, files)
    try:
        if segments.starts and point < segments.begin:
            raise StoreError(
                f"the log of {root} begins at {segments.begin}, behind the point {point} at which it would be"
                " cut: move the store away and begin with an empty one"
            )
        epoch_file = EpochFile(root, files)
        ours = epoch_file.load()
        pieces = list(used_pieces(segments, point, end))
        kept = saved_already(root, segments, point, end, pieces)
        if kept is None and pieces:
            why = {
                "version": 1,
                "reason": reason,
                "point": point,
                "end": end,
                "time_ms": machine.wall_ms(),
                "records": sum(piece.records for piece in pieces),
                "ours": ours,
                "theirs": epochs,
            }
            kept = save(root, segments, point, end, pieces, ours, why)
        sync_names(root, files)
        lower_mark(root, segments, point)
        end_log(root, segments, point, page, machine)
        epoch_file.save(cut(ours, point))
    finally:
        segments.close()
    if pieces:
        logger.warning(
            "log %s: %d bytes from %d on, %d whole records, are not in the leader's log; they are kept in %s,"
            " and cut",
            root,
            end - point,
            point,
            sum(piece.records for piece in pieces),
            kept,
        )
    try:
        trim(files, root, [] if kept is None else [kept], keep_bytes)
    except OSError as error:
        logger.warning("old cuts of the log %s can't be removed: %s", root, error)
    return kept


def used_pieces(segments: Segments, point: int, end: int) -> Iterator[Piece]:
    """Yield what is to be saved, file by file: up to the log's end, or to the last byte that is not zero.

    Of a file that has only zeros there, it is nothing.
    """
    for start in segments.starts:
        begin, file_end = max(start, point), start + segments.file_size
        if begin >= file_end:
            continue
        found = survey(
            segments.read,
            begin,
            file_end,
            segments.file_size,
            zeros_max=ZEROS_MAX,
            next_data=segments.next_data,
        )
        if found.used_end > begin:
            yield Piece(begin, max(found.used_end, min(end, file_end)), found.records)


def saved_already(root: Path, segments: Segments, point: int, end: int, pieces: list[Piece]) -> Path | None:
    """Return the directory that holds all that the log still has of [point, end), None without one."""
    files, directory = segments.files, cut_directory(root)
    for name in reversed(files.names(directory)):
        found = directory_range(name)
        path = directory / name
        if found is None or found[1:] != (point, end) or not files.exists(path / WHY):
            continue
        if all(holds(files, path / segment_name(piece.begin), segments, piece) for piece in pieces):
            return path
    return None


def holds(files: Files, path: Path, segments: Segments, piece: Piece) -> bool:
    """Return whether a saved file has every byte of a piece that is not zero in the log by now."""
    if not files.exists(path) or files.size(path) < piece.end - piece.begin:
        return False
    fd = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position = piece.begin
        while position < piece.end:
            data = segments.read(position, min(READ_BYTES, piece.end - position))
            saved = files.pread(fd, len(data), position - piece.begin)
            if data != saved and not zeroed_only(data, saved, position % segments.file_size):
                return False
            position += len(data)
        return True
    finally:
        files.close(fd)


def zeroed_only(data: bytes, saved: bytes, position: int) -> bool:
    """Return whether bytes at a position of a file are as saved, but for zeros up to the end of a sector."""
    at = 0
    while at < len(data):
        stop = at + SECTOR - (position + at) % SECTOR
        left = data[at:stop].rstrip(b"\0")
        if left != saved[at : at + len(left)]:
            return False
        at = stop
    return True


def save(
    root: Path,
    segments: Segments,
    point: int,
    end: int,
    pieces: list[Piece],
    ours: Epochs,
    why: dict[str, object],
) -> Path:
    """Write a directory with the pieces, and give it its name once it is on disk; return its path.

    Raises:
        StoreFull: there is no room.
    """
    files, directory, draft = segments.files, cut_directory(root), root / "whimbrel" / DRAFT
    discard_draft(files, draft)
    size = sum(piece.end - piece.begin for piece in pieces)
    what = f"no room to save {size} bytes of the log of {root}, which the leader's log does not have"
    if (free := free_bytes(files, directory.parent)) < size:
        raise StoreFull(f"{what}: the disk has {free} left; free some space, else they can't be cut")
    files.make_directories(directory)
    files.mkdir(draft)
    try:
        with refusing_when_full(what):
            for piece in pieces:
                copy(files, segments.read, piece.begin, piece.end, draft / segment_name(piece.begin))
            files.write_new(draft / WHY, json.dumps(why, indent=1).encode())
            files.sync_directory(draft)
    except (OSError, StoreFull):
        with contextlib.suppress(OSError):
            discard_draft(files, draft)
        raise
    (epoch, _), _ = epoch_at(ours, point)
    name = stem = f"{epoch}-{point:020d}-{end:020d}"
    number = 1
    while files.exists(directory / name):
        number += 1
        name = f"{stem}.{number}"
    files.rename(draft, directory / name)
    try:
        sync_names(root, files)
    except OSError:  # no later sync makes this name durable for certain: another call takes it anew
        with contextlib.suppress(OSError):
            files.rename(directory / name, draft)
            files.rmdir(directory)  # it may be as new; one that is older is not empty, or loses nothing
        raise
    return directory / name


def discard_draft(files: Files, draft: Path) -> None:
    """Remove what was saved in part."""
    if files.exists(draft):
        for name in files.names(draft):
            files.unlink(draft / name)
        files.rmdir(draft)


def sync_names(root: Path, files: Files) -> None:
    """Have what is kept under its name on disk; a kill may have come between the name and its sync."""
    directory = cut_directory(root)
    if files.exists(directory):
        files.sync_directory(directory)
        files.sync_directory(directory.parent)


def lower_mark(root: Path, segments: Segments, point: int) -> None:
    """Have the log's mark say no more than that the log is on disk up to the point."""
    mark = LogMark.load(root, segments.files)
    if mark is None:  # recovery then starts where RocketMQ's does
        return
    file_size = segments.file_size
    if mark.check >= point:  # a file always begins between two records
        mark.check = max(segments.begin, segments.start_of(max(point - CHECK_BYTES, 0)))
    if mark.offset > point:
        mark.offset = point
        with contextlib.suppress(IllegalOffset):
            if point % file_size and not is_boundary(segments.read, point, file_size):
                mark.offset = last_boundary(segments, mark.check, point)
    mark.save(root, segments.files)


def last_boundary(segments: Segments, boundary: int, point: int) -> int:
    """Return the last place between two records, from a known one on, that is not behind the point."""
    walk = Walk(segments.read, boundary, point, segments.file_size)
    while walk.next_chunk() is not None:
        pass
    return walk.position


def end_log(root: Path, segments: Segments, point: int, page: LogProgress, machine: Machine) -> None:
    """Remove the files behind the point's, and make the rest of that one zeros.

    A file that begins at the point stays: without it, the blank at the end of the one before would not count.
    """
    files, directory = segments.files, segments.directory
    for start in [start for start in reversed(segments.starts) if start > point]:
        remove_file(files, directory, start)
        segments.starts.remove(start)
    segments.close()
    start = segments.start_of(point)
    if start not in segments.starts:
        return
    fd = files.open(directory / segment_name(start), os.O_RDWR | os.O_CLOEXEC)
    try:
        zero(files, fd, point - start, start + segments.file_size - point)
        try:
            files.fsync(fd)
        except OSError:
            doubt(root, point, page, machine)
            raise
    finally:
        files.close(fd)


def remove_file(files: Files, directory: Path, start: int) -> None:
    """Remove a file of the log; it is gone from the disk, or, after an error, there.

    A name whose removal was not synced may be there again after a power loss, and the one before it not.
    """
    path, draft = directory / segment_name(start), directory / f"segment-{start:020d}"
    files.rename(path, draft)  # a name that a start removes
    try:
        files.sync_directory(directory)
    except OSError:
        with contextlib.suppress(OSError):
            files.rename(draft, path)
        raise
    files.unlink(draft)


def doubt(root: Path, point: int, page: LogProgress, machine: Machine) -> None:
    """Have `LogWriter.open` write the point's file again: nobody knows what of its zeros is on disk."""
    mark, marked = LogMark.load(root, machine.files), read_marker(root, page, machine)
    known = 0 if mark is None else min(mark.offset, point)  # what follows may be in the page cache only
    set_marker(root, page, machine, known if marked is None else min(known, marked))
