"""What was cut off a log is kept, in `STORE/whimbrel/cut/`.

    OFFSET-TIME     what recovery has cut: a file for each log file that had some of it
    EPOCH-FROM-TO   what the leader's log does not have (`divergence.py`): a directory

A file of the first kind holds the bytes of one log file from OFFSET (20 digits) on, up to the last that is
not zero. TIME is in UTC, to the millisecond. They are on disk before the log is cut.

    a fault, no whole record behind it    a torn tail, as any kill may leave it: one line, as information
    a fault, whole records behind it      a warning, with their number and bytes
    no room to keep them                  with whole records, the log is not opened; else the log says so

Zeros are not kept: a file that was prepared for the log and never written is removed.

A directory holds [FROM, TO) of the log (20 digits each), whose first byte the leader of EPOCH has written, 0
before the first epoch; where a directory with other bytes has the name already, `.2` follows, and so on:

    OFFSET          bytes of one log file from OFFSET (20 digits) on
    why.json        what there is to know about them, see `Cut`; without it, the directory is being removed

Beside either, NAME.replayed says how far it was replayed (`cut_reader.py`); it goes with the cut.

At most CUT_FILES_MAX files and directories, and at most CUT_BYTES_MAX bytes (for the second kind a setting
says how many) are kept; the oldest go first, and never those of the cut that is being made.
"""

import errno
import json
import logging
import os
import re
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from whimbrel.errors import StoreError, StoreFull
from whimbrel.machine import FILES, Files, Machine
from whimbrel.store.pages import free_bytes, refusing_when_full
from whimbrel.store.recovery import READ_BYTES, LogState, ReadAt
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import Segments
from whimbrel.store.survey import ZEROS_MAX, survey

__all__ = [
    "CUT_BYTES_MAX",
    "CUT_FILES_MAX",
    "MARK_SUFFIX",
    "WHY",
    "Cut",
    "copy",
    "cut_directory",
    "directory_range",
    "find_cut",
    "keep_cut",
    "keep_range",
    "list_cuts",
    "remove_cut",
    "trim",
]

logger = logging.getLogger(__name__)

CUT_FILES_MAX = 64  # far more than a machine crashes before somebody looks
CUT_BYTES_MAX = 4 << 30  # four whole log files
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
WHY: Final = "why.json"
MARK_SUFFIX: Final = ".replayed"
OF_RECOVERY = re.compile(r"([0-9]{20})-([0-9]{8}T[0-9]{6}\.[0-9]{3})")
OF_DIVERGENCE = re.compile(r"([0-9]{1,10})-([0-9]{20})-([0-9]{20})(?:\.[0-9]+)?")
NOT_LINKED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Cut:
    """What was cut off a log at once, or by recovery off one of its files.

    Attributes:
        path: the file, or the directory.
        epoch: of the first byte, 0 before the first epoch; None for what recovery has cut.
        begin, end: it is [begin, end) of the log as it was.
        records: how many whole ones there are; None where nobody has counted them.
        why: a sentence for people.
        time_ms: when it was cut, epoch milliseconds.
        size: bytes of all its files.
    """

    path: Path
    epoch: int | None
    begin: int
    end: int
    records: int | None
    why: str
    time_ms: int
    size: int


def cut_directory(root: Path) -> Path:
    """Return where a store keeps what was cut off its log."""
    return root / "whimbrel" / "cut"


def directory_range(name: str) -> tuple[int, int, int] | None:
    """Return epoch, begin and end by a directory's name; None for another name."""
    found = OF_DIVERGENCE.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def list_cuts(root: Path, files: Files = FILES) -> list[Cut]:
    """Return what a store keeps of its log's former ends, the oldest first; other names are passed over.

    Raises:
        OSError: the disk can't be read.
    """
    directory = cut_directory(root)
    found = []
    for name in files.names(directory):
        try:
            cut = cut_of(files, directory / name)
        except FileNotFoundError:  # it is being removed
            continue
        if cut is not None:
            found.append(cut)
    return sorted(found, key=lambda cut: (cut.time_ms, cut.path.name))


def find_cut(root: Path, name: str, files: Files = FILES) -> Cut | None:
    """Return the cut of a name in `cut/`, which holds no slash; None without one.

    Raises:
        OSError: the disk can't be read.
    """
    try:
        return cut_of(files, cut_directory(root) / name)
    except FileNotFoundError:
        return None


def cut_of(files: Files, path: Path) -> Cut | None:
    """Return what a name in `cut/` stands for, None when it is no cut.

    Raises:
        FileNotFoundError: it is being removed.
    """
    is_directory = stat.S_ISDIR(files.stat(path).st_mode)
    if (range_ := directory_range(path.name)) is not None and is_directory:
        size = sum(files.size(path / name) for name in files.names(path))
        why = read_why(files, path)
        time_ms, records = why.get("time_ms"), why.get("records")
        return Cut(
            path,
            *range_,
            records if isinstance(records, int) else None,
            str(why.get("reason", f"{path / WHY} can't be read")),
            time_ms if isinstance(time_ms, int) else files.stat(path / WHY).st_mtime_ns // 1_000_000,
            size,
        )
    if (found := OF_RECOVERY.fullmatch(path.name)) is not None and not is_directory:
        begin, size = int(found[1]), files.size(path)
        try:
            made = datetime.strptime(found[2] + "000+0000", "%Y%m%dT%H%M%S.%f%z")
        except ValueError:
            return None
        why_text = "recovery found that the log ends before it"
        return Cut(path, None, begin, begin + size, None, why_text, round(made.timestamp() * 1000), size)
    return None


def read_why(files: Files, path: Path) -> dict[str, Any]:
    """Return what a directory's `why.json` says, nothing where it is damaged.

    Raises:
        FileNotFoundError: it has none.
    """
    try:
        why = json.loads(files.read_bytes(path / WHY))
    except ValueError:
        return {}
    return why if isinstance(why, dict) else {}


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
    directory = cut_directory(root)
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


def trim(files: Files, root: Path, kept: list[Path], bytes_max: int = CUT_BYTES_MAX) -> None:
    """Remove the oldest cuts until the limits hold; those just made stay."""
    directory = cut_directory(root)
    for name in files.names(directory):
        path = directory / name
        if directory_range(name) is not None and not files.exists(path / WHY) and path not in kept:
            remove_cut(files, path)  # a kill has interrupted its removal
    cuts = list_cuts(root, files)
    count, size = len(cuts), sum(cut.size for cut in cuts)
    for cut in cuts:
        if count <= CUT_FILES_MAX and size <= bytes_max:
            return
        if cut.path not in kept:
            remove_cut(files, cut.path)
            count, size = count - 1, size - cut.size
            logger.warning("%s: removed, since cuts made later need its room", cut.path)


def remove_cut(files: Files, path: Path) -> None:
    """Remove a file or directory of `cut/`; of a directory, what says that it is whole goes first."""
    files.unlink(path.with_name(path.name + MARK_SUFFIX), missing_ok=True)
    if not stat.S_ISDIR(files.stat(path).st_mode):
        files.unlink(path, missing_ok=True)
        return
    files.unlink(path / WHY, missing_ok=True)
    files.sync_directory(path)
    for name in files.names(path):
        files.unlink(path / name, missing_ok=True)
    files.rmdir(path)
