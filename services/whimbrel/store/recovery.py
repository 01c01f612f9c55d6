"""Log recovery: where the log ends after a stop of any kind.

`recover_log` decides and changes nothing; `commitlog.LogWriter` then truncates. The log ends before the first
record that is not whole:

    a whole record  go on behind it
    a blank         go on at the next file; without one the log ends before the blank
    anything else   the log ends here: zeros, an impossible size or magic, parts that do not add up to the
                    size, a body that does not match its CRC, or a record whose own offset names another place
                    (bytes left from before an earlier truncation)

Verifying starts at the log's mark when there is one (`recovery_marks.py`), else where RocketMQ starts: after
a clean stop at the third last file, after a crash at the last file whose first record is older than the
checkpoint.

What lies below the mark was on disk. So an end below it is damage and no torn tail: the log is not opened for
writing, nothing of it is changed, and `whimbrel store repair` has the choices (`repair.py`). What is cut off
above it is kept (`cut.py`).

RocketMQ: CommitLog.recoverNormally, recoverAbnormally, checkMessageAndReturnSize.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from whimbrel.store.checkpoint import Checkpoint
from whimbrel.store.codec import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    PREFIX,
    RECORD_MAGICS,
    SIZE_AND_MAGIC,
    STORE_TIMES,
    V6_MASK,
    decode_record,
    record_fault,
)
from whimbrel.store.lane_passes import LanePasses
from whimbrel.store.recovery_marks import LogMark

__all__ = [
    "NO_NEXT_FILE",
    "READ_BYTES",
    "FileVerdict",
    "LogState",
    "ReadAt",
    "blank_fault",
    "is_boundary",
    "recover_log",
    "store_time_at",
    "text_ends_in_zeros",
    "verify_file",
]

READ_BYTES = 1 << 20  # of a file at a time; larger reads gain nothing and cost memory
FILES_CHECKED_AFTER_CLEAN_STOP = 3
NO_NEXT_FILE = "a blank without a file behind it"
STORE_TIME_END = max(field.size for field in STORE_TIMES.values())

ReadAt = Callable[[int, int], bytes]  # (offset in the log, length) -> bytes, fewer at the end of the file


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """Up to where the records of a file are whole.

    Attributes:
        end: offset behind the last whole record.
        last: offset of that record, -1 when the walk met none.
        blank: whether a blank stands there.
        fault: what stands there otherwise; "" for zeros.
    """

    end: int
    blank: bool
    fault: str
    last: int = -1


@dataclass(frozen=True, slots=True)
class LogState:
    """What recovery found.

    Attributes:
        begin, end: of the log.
        verified_from: where verifying started.
        removed: starts of files behind the end.
        dirty: whether something other than zeros stands behind the end in its file.
        fault: what is wrong there, "" for nothing.
        marked: whether verifying started at our mark.
        synced: bytes below were on disk by our mark; 0 without one.
    """

    begin: int
    end: int
    verified_from: int
    removed: tuple[int, ...]
    dirty: bool
    fault: str
    marked: bool
    synced: int = 0

    @property
    def lost(self) -> bool:
        """Whether the log ends below what was on disk."""
        return self.end < self.synced


def verify_file(
    read: ReadAt,
    position: int,
    file_end: int,
    *,
    check_crc: bool = True,
    passes: LanePasses | None = None,
) -> FileVerdict:
    """Walk the records of one file from a boundary on; `passes` run the lane, where there may be one."""
    last = -1
    while True:
        chunk = read(position, min(READ_BYTES, file_end - position))
        at, filled = 0, len(chunk)
        kept = None if passes is None else passes.kept(chunk, position)
        if kept is not None and kept[0]:
            at, last = kept
        while filled - at >= PREFIX.size:
            size, magic, _ = PREFIX.unpack_from(chunk, at)
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                break
            if size <= 0 or position + at + size > file_end:
                return FileVerdict(position + at, False, f"a size of {size}", last)
            if at + size > filled:
                break
            fault = record_fault(chunk, at, position + at, check_crc=check_crc)
            if fault:
                return FileVerdict(position + at, False, fault, last)
            last = position + at
            at += size
        verdict = boundary_verdict(chunk, at, position, file_end)
        if verdict is not None:
            return replace(verdict, last=last)
        if at == 0:  # a record larger than what was read
            size, _ = SIZE_AND_MAGIC.unpack_from(chunk)
            fault = "the file is cut off"
            chunk = read(position, size)
            if len(chunk) == size:
                fault = record_fault(chunk, 0, position, check_crc=check_crc)
            if fault:
                return FileVerdict(position, False, fault, last)
            last, at = position, size
        position += at


def boundary_verdict(chunk: bytes, at: int, position: int, file_end: int) -> FileVerdict | None:
    """Return what a walk that stopped at `at` has found; None when it only needs the next chunk."""
    if len(chunk) - at < 8:
        if position + len(chunk) < file_end and at:
            return None
        return FileVerdict(position + at, False, "the file ends without a blank")
    size, magic = SIZE_AND_MAGIC.unpack_from(chunk, at)
    if magic == BLANK_MAGIC:
        fault = blank_fault(size, position + at, file_end)
        return FileVerdict(position + at, not fault, fault)
    if magic == MAGIC_V1 or magic == MAGIC_V2:
        if at == 0 and len(chunk) < PREFIX.size:
            return FileVerdict(position, False, "a record is cut off by the end of the file")
        return None
    return FileVerdict(position + at, False, "" if magic == 0 else f"magic {magic:#010x}")


def blank_fault(size: int, offset: int, file_end: int) -> str:
    """Return what is wrong with a blank at an offset; "" where it ends its file, as each does.

    One that does not is another log's: of a master whose files are smaller. What stands behind it in the file
    would be passed over.
    """
    if offset + size == file_end:
        return ""
    return (
        f"a blank of {size} bytes, {file_end - offset} before the end of its file: the master's log files"
        " have another size"
    )


def recover_log(
    read: ReadAt,
    starts: list[int],
    file_size: int,
    *,
    clean: bool,
    mark: LogMark | None,
    checkpoint: Checkpoint | None,
    passes: LanePasses | None = None,
) -> LogState:
    """Find the log's end; `passes` run the lane, where there may be one."""
    if not starts:
        # A log that was never written has a mark, too, where it is to begin: it verifies nothing.
        synced = mark.offset if mark is not None and mark.check < mark.offset else 0
        return LogState(0, 0, 0, (), False, "", True, synced)
    begin, marked = starts[0], False
    synced = mark.offset if mark is not None and mark.offset >= begin else 0
    verify_from = begin
    if mark is not None and begin <= mark.offset:
        verify_from = max(begin, mark.check)
        there = verify_from < starts[-1] + file_size
        marked = verify_from == begin or (there and is_boundary(read, verify_from, file_size))
    if not marked:
        verify_from = rocketmq_start(read, starts, clean=clean, checkpoint=checkpoint)
    end, fault = walk_files(read, verify_from, starts[-1], file_size, synced, passes)
    if fault == NO_NEXT_FILE and synced == end - end % file_size + file_size:
        synced = end  # all of this file is there, and the next one had nothing yet, as on a full disk
    removed = tuple(start for start in starts if start > end)
    rest = read(end, min(READ_BYTES, file_size - end % file_size)) if end < starts[-1] + file_size else b""
    dirty = bool(rest.strip(b"\0"))
    return LogState(begin, end, verify_from, removed, dirty, fault, marked, synced)


def walk_files(
    read: ReadAt, position: int, last: int, file_size: int, synced: int, passes: LanePasses | None
) -> tuple[int, str]:
    """Walk from a boundary to the log's end; return that end and what is wrong there."""
    while True:
        file_end = position - position % file_size + file_size
        verdict = verify_file(read, position, file_end, passes=passes)
        if not verdict.blank:
            if not verdict.fault and verdict.last >= 0 and verdict.end > synced:
                torn = text_ends_in_zeros(read(verdict.last, verdict.end - verdict.last))
                if torn:
                    return verdict.last, "a record whose text ends in zeros"
            return verdict.end, verdict.fault
        if file_end > last:
            return verdict.end, NO_NEXT_FILE
        position = file_end


def text_ends_in_zeros(record: bytes) -> bool:
    """Return whether the last record of a log was torn within topic or properties.

    No CRC covers them. What did not reach the disk reads as zeros, and `MasterStore.append` stores no text
    that ends in a zero byte.
    """
    message = decode_record(record, check_crc=False)
    return (message.properties_raw or message.topic.encode()).endswith(b"\0")


def is_boundary(read: ReadAt, offset: int, file_size: int) -> bool:
    """Return whether a whole record or a blank begins at an offset."""
    left = file_size - offset % file_size
    head = read(offset, min(PREFIX.size, left))
    if len(head) < 8:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(head)
    if magic == BLANK_MAGIC:
        return True
    if magic not in RECORD_MAGICS or not PREFIX.size <= size <= left or len(head) < PREFIX.size:
        return False
    chunk = read(offset, size)
    return len(chunk) == size and not record_fault(chunk, 0, offset)


def rocketmq_start(read: ReadAt, starts: list[int], *, clean: bool, checkpoint: Checkpoint | None) -> int:
    """Return the file at which RocketMQ would start verifying."""
    if clean:
        return starts[max(len(starts) - FILES_CHECKED_AFTER_CLEAN_STOP, 0)]
    limit_ms = checkpoint.minimum_ms if checkpoint else 0
    for start in reversed(starts):
        if 0 < store_time_at(read, start) <= limit_ms:
            return start
    return starts[0]


def store_time_at(read: ReadAt, offset: int) -> int:
    """Return the store time of the record that begins at an offset, 0 when there is none."""
    head = read(offset, STORE_TIME_END)
    if len(head) < STORE_TIME_END:
        return 0
    _, magic, sys_flag = PREFIX.unpack_from(head)
    if magic not in RECORD_MAGICS:
        return 0
    (stored_ms,) = STORE_TIMES[sys_flag & V6_MASK].unpack_from(head)
    return int(stored_ms)
