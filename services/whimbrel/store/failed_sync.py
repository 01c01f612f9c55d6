"""What a failed sync of the log leaves behind, and how it is got over.

After a sync that failed, Linux keeps the pages in its cache and marks them clean: the next sync of that file
succeeds without having written them, in this process, and in the next one as long as the machine runs. So a
failed sync is final for the file. What was flushed before stays flushed; from there to the log's end, every
file is copied into a new one, which is synced and takes the old one's name. Only then does `flushed` move on.
(Reading past the cache would tell what is on disk, not put it there; and the cache can't be made to let go of
a file that is mapped. So nothing is asked of it but to still hold the bytes, and their CRCs say if it does.)

    state     what is so                                                           left by
    FOUND     a sync has failed; the marker stands; appends are refused            the writer's thread: `mend`
    WANTED    sends that waited for that sync are answered; the end stands still   the flush thread
    WRITTEN   the new files are on disk under the old names; the marker is gone    the writer's thread: `mend`
    LOST      it did not work; a restart tries again, and cuts what is not whole   -

`LogWriter` holds the state. FOUND to WANTED is for the thread that appends: a send that the failed sync
covered has its error before the bytes are written again, so that it is never answered as stored on disk. In
WANTED an attempt that fails is repeated after `REWRITE_RETRY_S`, at most `REWRITE_ATTEMPTS_MAX` times; one
for which the disk has no room does not count, since room can be made. Where the cache has let go of a page
meanwhile, a record is not whole any more and no attempt can succeed: a restart ends the log before it.

A slave's log may end within a record. No CRC covers what is there of it, so nothing tells whether the cache
still holds it: it is left out, and the log ends behind the last whole record until the master sends it again.
No new epoch is needed, since the broker beside has not seen that record.

**The marker** keeps the next process of the same boot from trusting the cache: the cell `doubtful` of the
shared page, for when the disk takes nothing, and a file, for when the page can't be kept either. At a start
with one of them, recovery finds the log's end as ever, and the files from the marked offset on are written
again. In another boot the cache is gone, and so is the reason: what can be read then is on disk.

`STORE/whimbrel/sync-failed`, with a CRC-32 at its end:

    tag      8 bytes   "whimsyn1"
    durable  i64       bytes of the log below are on disk
    boot     16 bytes  boot id of the machine when the sync failed
"""

import logging
import os
import struct
import zlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import Files, Machine
from whimbrel.store.page_log import LogProgress
from whimbrel.store.pages import allocate, replacing
from whimbrel.store.recovery import ReadAt, text_ends_in_zeros, verify_file
from whimbrel.store.segment import Segment, segment_name

__all__ = [
    "REWRITE_ATTEMPTS_MAX",
    "REWRITE_RETRY_S",
    "FailedSync",
    "RewriteState",
    "clear_marker",
    "read_marker",
    "rewrite_file",
    "set_marker",
    "whole_records_end",
]

logger = logging.getLogger(__name__)

REWRITE_RETRY_S = 5.0
REWRITE_ATTEMPTS_MAX = 60  # five minutes: a path to a disk may come back; a disk that is gone does not
COPY_BYTES = 1 << 20
MARKER = struct.Struct("=8sq16s")
SEAL = struct.Struct("=I")
TAG = b"whimsyn1"
SIZE = struct.Struct(">i")


class RewriteState(Enum):
    """How far it is; see the module's text."""

    FOUND = "found"
    WANTED = "wanted"
    WRITTEN = "written"
    LOST = "lost"


@dataclass(slots=True)
class FailedSync:
    """A sync that failed, until it is got over.

    Attributes:
        what: which file, and what the disk said.
        durable: bytes below are on disk.
        end: the log's end, which stands still from WANTED on.
        retry_at: when the next attempt may begin, by the monotonic clock.
        current: the new file of the one being written, in WRITTEN; None where there was none.
    """

    what: str
    durable: int
    end: int = 0
    state: RewriteState = RewriteState.FOUND
    attempts: int = 0
    retry_at: float = 0.0
    current: Segment | None = None

    def due(self, now: float) -> bool:
        """Whether an attempt may begin."""
        return self.state is RewriteState.WANTED and now >= self.retry_at

    def refusal(self, root: Path, trouble: str = "") -> str:
        """Return why nothing is written, as a sentence for people.

        Args:
            trouble: what was wrong with the last attempt.
        """
        if self.state is RewriteState.LOST:
            return (
                f"{self.what}, and what it covered can't be written again ({trouble}): see to the disk of"
                f" {root}, then start this process again, which ends the log behind the last whole record"
            )
        again = f"; trying again every {REWRITE_RETRY_S:.0f} s ({trouble})" if trouble else ""
        return f"{self.what}: what it covered is being written again, into new files{again}"

    def missed(self, now: float, *, counts: bool, bytes_gone: bool) -> None:
        """Note that an attempt failed.

        Args:
            counts: it is one of those that are bounded.
            bytes_gone: the cache has let go of what was to be written: no later attempt can succeed.
        """
        self.retry_at = now + REWRITE_RETRY_S
        self.attempts += counts
        if bytes_gone or self.attempts >= REWRITE_ATTEMPTS_MAX:
            self.state = RewriteState.LOST


def set_marker(root: Path, page: LogProgress, machine: Machine, durable: int) -> None:
    """Leave word for the next process that the log is not known to be on disk from an offset on."""
    page.doubtful = durable + 1
    path = root / "whimbrel" / "sync-failed"
    try:
        data = MARKER.pack(TAG, durable, machine.boot_id())
        machine.files.write_new(path, data + SEAL.pack(zlib.crc32(data)))
        machine.files.sync_directory(path.parent)
    except (OSError, StoreError) as error:
        logger.warning("%s can't be written, the shared page alone remembers: %s", path, error)


def read_marker(root: Path, page: LogProgress, machine: Machine) -> int | None:
    """Return below which offset the log is known to be on disk, None without a marker of this boot.

    A marker that can't be read gives 0: nothing is known.
    """
    found = [page.doubtful - 1] if page.doubtful else []
    try:
        data = machine.files.read_bytes(root / "whimbrel" / "sync-failed")
    except FileNotFoundError:
        data = None
    except OSError:
        data = b""
    if data is not None:
        durable, boot = 0, machine.boot_id()
        if len(data) == MARKER.size + SEAL.size and data[MARKER.size :] == SEAL.pack(
            zlib.crc32(data[: MARKER.size])
        ):
            _, durable, boot = MARKER.unpack_from(data)
        if boot == machine.boot_id():
            found.append(durable)
    return min(found, default=None)


def clear_marker(root: Path, page: LogProgress, files: Files) -> None:
    """Withdraw the marker; one that stays costs the next start some copying, and nothing else."""
    page.doubtful = 0
    path = root / "whimbrel" / "sync-failed"
    try:
        files.discard(path)
    except OSError as error:
        logger.warning("%s can't be removed: %s", path, error)


def rewrite_file(
    files: Files, directory: Path, start: int, size: int, scratch: Path, *, end: int, boundary: int
) -> None:
    """Copy a log file into a new one, and put that on disk in its place.

    Args:
        start, size: of the file.
        end: of the log, between two records; what lies behind becomes zeros.
        boundary: between two records of the file, from which on the copy is checked.

    Raises:
        StoreFull: the disk has no room for a second file.
        StoreError: the records are not whole any more; the file is as it was.
        OSError: the disk refuses; the file is the old one, or the new one with a name that is not on disk.
    """
    path = directory / segment_name(start)
    length = min(end - start, size)
    old = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        stat = files.fstat(old)
        if files.stat(scratch).st_dev != stat.st_dev:
            scratch = directory  # a file system of its own; other names are ignored there
        with replacing(files, path, scratch / f"segment-{start:020d}", stat.st_mode & 0o777) as new:
            allocate(files, new, 0, size)
            copy(files, old, new, length)
            check_copy(files, new, start, size, end=start + length, boundary=boundary)
    finally:
        files.close(old)


def copy(files: Files, source: int, target: int, length: int) -> None:
    """Copy the first bytes of a file.

    Raises:
        StoreError: there are fewer.
    """
    at = 0
    while at < length:
        piece = files.pread(source, min(COPY_BYTES, length - at), at)
        if not piece:
            raise StoreError(f"the file ends after {at} bytes of {length}")
        files.write_all(target, piece, at)
        at += len(piece)


def check_copy(files: Files, fd: int, start: int, size: int, *, end: int, boundary: int) -> None:
    """See that the records from a boundary to the end are whole.

    Raises:
        StoreError: they are not.
    """

    def read(offset: int, length: int) -> bytes:
        return files.pread(fd, length, offset - start)

    verdict = verify_file(read, boundary, start + size)
    if not verdict.blank and verdict.end != end:
        raise StoreError(f"the record at {verdict.end} is not whole any more: {verdict.fault or 'zeros'}")


def whole_records_end(read: ReadAt, boundary: int, end: int, file_end: int, *, durable: int) -> int:
    """Return where the whole records of a file end, if the one behind them is not all there yet; else `end`,
    also where one before it is damaged.

    Args:
        boundary: between two records, from which on they are looked at.
        end: of the log.
        durable: bytes below are on disk.

    Raises:
        StoreError: the last record's text ends in zeros.
    """
    verdict = verify_file(read, boundary, file_end)
    left = end - verdict.end
    if verdict.blank or left < 0:
        return end
    if left == 0:
        if verdict.last >= 0 and end > durable:
            if text_ends_in_zeros(read(verdict.last, end - verdict.last)):
                raise StoreError(
                    f"the record at {verdict.last} is not whole any more: its text ends in zeros"
                )
        return end
    if left >= SIZE.size and SIZE.unpack(read(verdict.end, SIZE.size))[0] <= left:
        return end
    return verdict.end
