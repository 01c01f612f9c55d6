"""What recovery cuts off a log is kept: `STORE/whimbrel/cut/OFFSET-TIME`.

A file holds the bytes of one log file from OFFSET (20 digits) on, up to the last that is not zero. TIME is in
UTC, to the millisecond. They are on disk before the log is cut. At most CUT_FILES_MAX files, and at most
CUT_BYTES_MAX bytes, are kept; the oldest go first, and never those of the cut that is being made.

    a fault, no whole record behind it    a torn tail, as any kill may leave it: one line, as information
    a fault, whole records behind it      a warning, with their number and bytes
    no room to keep them                  with whole records, the log is not opened; else the log says so

Zeros are not kept: a file that was prepared for the log and never written is removed.
"""

import errno
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

from whimbrel.errors import StoreError, StoreFull
from whimbrel.machine import Files, Machine
from whimbrel.store.pages import free_bytes, refusing_when_full
from whimbrel.store.recovery import READ_BYTES, LogState, ReadAt
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import Segments
from whimbrel.store.survey import ZEROS_MAX, survey

__all__ = ["CUT_BYTES_MAX", "CUT_FILES_MAX", "keep_cut", "keep_range"]

logger = logging.getLogger(__name__)

CUT_FILES_MAX = 64  # far more than a machine crashes before somebody looks
CUT_BYTES_MAX = 4 << 30  # four whole log files
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
NOT_LINKED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


def keep_cut(root: Path, segments: Segments, state: LogState, machine: Machine) -> None:
    """Keep what lies behind the end that recovery found, if it is not zeros, and say so in the log.

    Raises:
        StoreError: there is no room for whole records.
        OSError: the disk fails.
    """
    files, file_size = machine.files, segments.file_size
    kept: list[Path] = []
    records = size = 0
    for start in segments.starts:
        begin, end = max(start, state.end), start + file_size
        if begin >= end:
            continue
        found = survey(
            segments.read,
            begin,
            end,
            file_size,
            torn=begin == state.end,
            zeros_max=ZEROS_MAX,
            next_data=segments.next_data,
        )
        if found.used_end == begin:
            continue
        records += found.records
        size += found.used_end - begin
        try:
            kept.append(keep_range(files, root, segments, begin, found.used_end, machine.wall_ms()))
        except StoreFull as error:
            if found.records:
                raise StoreError(
                    f"the log of {root} would be cut at {state.end} ({state.fault or 'zeros'}), and there is"
                    f" no room to keep the {found.records} whole records behind: {error}"
                ) from error
            logger.warning("log %s: %d bytes cut at %d are not kept: %s", root, size, begin, error)
    if not kept:
        return
    trim(files, root, kept)
    names = ", ".join(str(path) for path in kept)
    if records:
        logger.warning(
            "log %s: cut at %d (%s); %d whole records, %d bytes in all, lay behind and are kept in %s",
            root, state.end, state.fault or "zeros", records, size, names,
        )  # fmt: skip
    else:
        logger.info("log %s: a torn tail of %d bytes at %d is kept in %s", root, size, state.end, names)


def keep_range(
    files: Files,
    root: Path,
    segments: Segments,
    begin: int,
    end: int,
    now_ms: int,
    *,
    copied: bool = False,
) -> Path:
    """Keep [begin, end) of a log file and wait for the disk; return where.

    A file that is used by more than half costs no room: it gets a second name. `copied` copies that, too.

    Raises:
        StoreFull: there is no room.
    """
    directory = root / "whimbrel" / "cut"
    files.make_directories(directory)
    path = directory / cut_name(begin, now_ms)
    while files.exists(path):
        now_ms += 1
        path = directory / cut_name(begin, now_ms)
    source = segments.directory / segment_name(begin)
    large = not copied and begin % segments.file_size == 0 and 2 * (end - begin) > segments.file_size
    if not (large and linked(files, source, path)):
        if free_bytes(files, directory) < end - begin:
            raise StoreFull(f"{directory} has no {end - begin} bytes left")
        with refusing_when_full(f"no room for {end - begin} bytes in {directory}"):
            copy(files, segments.read, begin, end, path)
    files.sync_directory(directory)
    files.sync_directory(directory.parent)
    return path


def cut_name(begin: int, now_ms: int) -> str:
    """Return the name of a file that keeps what began at an offset."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return f"{begin:020d}-{now:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}"


def linked(files: Files, source: Path, path: Path) -> bool:
    """Give a file a second name; return False where the file system can't."""
    try:
        files.link(source, path)
    except OSError as error:
        if error.errno in NOT_LINKED:
            return False
        raise
    return True


def copy(files: Files, read: ReadAt, begin: int, end: int, path: Path) -> None:
    """Copy a range of the log into a new file and wait for the disk; a failure leaves no file."""
    fd = files.open(path, CREATE, 0o644)
    try:
        position = begin
        while position < end:
            data = read(position, min(READ_BYTES, end - position))
            if not data:
                break
            files.write_all(fd, data, position - begin)
            position += len(data)
        files.fsync(fd)
    except BaseException:
        files.unlink(path, missing_ok=True)
        raise
    finally:
        files.close(fd)


def trim(files: Files, root: Path, kept: list[Path]) -> None:
    """Remove the oldest cuts until the limits hold; those just made stay."""
    directory = root / "whimbrel" / "cut"
    fresh = {path.name for path in kept}
    names = sorted(files.names(directory), key=lambda name: name.partition("-")[2])
    sizes = {name: files.size(directory / name) for name in names}
    for name in names:
        if len(sizes) <= CUT_FILES_MAX and sum(sizes.values()) <= CUT_BYTES_MAX:
            return
        if name not in fresh:
            files.unlink(directory / name, missing_ok=True)
            del sizes[name]
            logger.warning("%s: removed, since cuts made later need its room", directory / name)
