"""Reads the records of what was cut off a log, and knows how far each cut was replayed.

A cut's files hold bytes of the log under their old offsets (`cut.py`). Records are found in them as recovery
finds them; where none begins, the next one is looked for that is whole and says itself that it stands there:
what recovery has cut begins with the place that it could not read.

    cut/NAME             a file, or a directory
    cut/NAME.replayed    how far it was replayed, as JSON; without it: not at all

The mark is written *after* the records below it are safe in their topics. A kill in between leaves an older
mark, and these records are gone through again, and found in their topics by their ids.
"""

import json
import os
import stat
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Final

from whimbrel.errors import BadRequest, StoreError
from whimbrel.machine import FILES, Files, Machine
from whimbrel.model.cuts import CUT_NAME_CHARS_MAX, CutMark, CutPage, CutStatus
from whimbrel.store.codec import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    record_fault,
)
from whimbrel.store.cut import MARK_SUFFIX, Cut, cut_directory, find_cut, list_cuts
from whimbrel.store.survey import survey

__all__ = ["LOOK_BYTES", "cut_statuses", "read_cut", "read_mark", "write_mark"]

LOOK_BYTES: Final = 2 * RECORD_BYTES_MAX  # looked at in one call where no record begins
WHOLE: Final = 1 << 62  # the cut's files are not parted as the log's were


def cut_statuses(root: Path, files: Files = FILES) -> list[CutStatus]:
    """Return what a store keeps of its log's former ends, the oldest first, and how far it was replayed.

    Raises:
        StoreError: the disk can't be read.
    """
    try:
        return [
            CutStatus(
                name=cut.path.name,
                epoch=cut.epoch,
                begin=cut.begin,
                end=cut.end,
                records=cut.records,
                why=cut.why,
                time_ms=cut.time_ms,
                size=cut.size,
                mark=read_mark(root, cut.path.name, files),
            )
            for cut in list_cuts(root, files)
        ]
    except OSError as error:
        raise StoreError(f"{cut_directory(root)} can't be read: {error}") from error


def cut_named(root: Path, name: str, files: Files) -> Cut:
    """Return a cut.

    Raises:
        BadRequest: there is none of that name.
        OSError: the disk can't be read.
    """
    found = None
    if len(name) <= CUT_NAME_CHARS_MAX and "/" not in name and name not in ("", ".", ".."):
        found = find_cut(root, name, files)
    if found is None:
        raise BadRequest(
            f"there is no cut {name[:CUT_NAME_CHARS_MAX]!r} here; `whimbrel replication cut list` shows what"
            " there is"
        )
    return found


def read_cut(
    root: Path, name: str, position: int, *, count: int, bytes_max: int, files: Files = FILES
) -> CutPage:
    """Return the records of a cut from a position on.

    Args:
        root: the store.
        name: of the cut.
        position: offset in the log as it was; below the cut's begin it stands for that.
        count: at most so many records, and
        bytes_max: of so many bytes together, unless it is one.

    Raises:
        BadRequest: there is no such cut.
        StoreError: the disk can't be read.
    """
    try:
        cut = cut_named(root, name, files)
        pieces = Pieces(cut, files)
        try:
            return page_of(cut, pieces, max(position, cut.begin), count=count, bytes_max=bytes_max)
        finally:
            pieces.close()
    except OSError as error:
        raise StoreError(f"the cut {name} of {root} can't be read: {error}") from error


def page_of(cut: Cut, pieces: "Pieces", position: int, *, count: int, bytes_max: int) -> CutPage:
    """Return a page of an open cut."""
    records: list[tuple[int, bytes]] = []
    size = looked = 0
    at = pieces.begin_of(position)
    while at is not None and looked < LOOK_BYTES:
        record = pieces.record_at(at)
        if record:
            if len(records) == count or (records and size + len(record) > bytes_max):
                break
            records.append((at, record))
            size += len(record)
            at = pieces.begin_of(at + len(record))
            continue
        end = pieces.end_of(at)
        limit = min(end, at + LOOK_BYTES)
        found = survey(pieces.read, at, limit, WHOLE, torn=True, records_max=1)
        looked += limit - at
        if found.first >= 0:
            at = found.first
        else:  # a record may begin in what was looked at, and end behind
            at = pieces.begin_of(end if limit == end else limit - RECORD_BYTES_MAX)
    return CutPage(tuple(records), -1 if at is None else at, cut.begin)


class Pieces:
    """The files of a cut, read by offsets of the log as it was."""

    def __init__(self, cut: Cut, files: Files) -> None:
        """Open them.

        Raises:
            OSError: the disk can't be read, or the cut was removed.
        """
        self.files = files
        self.pieces: list[tuple[int, int, int]] = []  # begin, end, file descriptor; rising
        if stat.S_ISDIR(files.stat(cut.path).st_mode):
            paths = [(int(name), cut.path / name) for name in files.names(cut.path) if name.isdecimal()]
        else:
            paths = [(cut.begin, cut.path)]
        for begin, path in sorted(paths):
            size = files.size(path)
            self.pieces.append((begin, begin + size, files.open(path, os.O_RDONLY | os.O_CLOEXEC)))

    def begin_of(self, position: int) -> int | None:
        """Return the position, or the first one behind it that a file has; None at the end."""
        return next((max(begin, position) for begin, end, _ in self.pieces if end > position), None)

    def end_of(self, position: int) -> int:
        """Return the end of the file that has a position."""
        return next(end for begin, end, _ in self.pieces if begin <= position < end)

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of one file; fewer at its end."""
        for begin, end, fd in self.pieces:
            if begin <= position < end:
                return self.files.pread(fd, min(size, end - position), position - begin)
        return b""

    def record_at(self, position: int) -> bytes:
        """Return the whole record at a position, b"" where none begins."""
        head = self.read(position, SIZE_AND_MAGIC.size)
        if len(head) < SIZE_AND_MAGIC.size:
            return b""
        size, magic = SIZE_AND_MAGIC.unpack(head)
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            return b""
        record = self.read(position, size)
        return record if len(record) == size and not record_fault(record, 0, position) else b""

    def close(self) -> None:
        """Close them."""
        for _, _, fd in self.pieces:
            self.files.close(fd)


def mark_path(root: Path, name: str) -> Path:
    """Return where it stands how far a cut was replayed."""
    return cut_directory(root) / (name + MARK_SUFFIX)


def read_mark(root: Path, name: str, files: Files = FILES) -> CutMark | None:
    """Return how far a cut was replayed; None: not at all, or what is there is damaged, which only makes a
    replay look at all of it again.

    Raises:
        OSError: the disk can't be read.
    """
    path = mark_path(root, name)
    if not files.exists(path):
        return None
    try:
        found = json.loads(files.read_bytes(path))
        mark = CutMark(**{each.name: found[each.name] for each in fields(CutMark)})
    except (ValueError, KeyError, TypeError):
        return None
    numbers = (mark.position, mark.stored, mark.present, mark.refused, mark.time_ms)
    return mark if isinstance(mark.done, bool) and all(isinstance(one, int) for one in numbers) else None


def write_mark(root: Path, name: str, mark: CutMark, machine: Machine) -> None:
    """Write down how far a cut was replayed, with the time; it is on disk then.

    Raises:
        BadRequest: there is no such cut.
        StoreError: the disk refuses.
    """
    files = machine.files
    try:
        cut_named(root, name, files)
        path = mark_path(root, name)
        draft = path.with_name(path.name + ".tmp")
        data = json.dumps(asdict(replace(mark, time_ms=machine.wall_ms()))).encode()
        files.write_new(draft, data)
        files.rename(draft, path)
        files.sync_directory(path.parent)
    except OSError as error:
        raise StoreError(f"it can't be written down how far {name} was replayed: {error}") from error
