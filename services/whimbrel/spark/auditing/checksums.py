"""The CRC32 of chunks, computed where the log is: by a task on the files, or by the broker that has them.

Every planned chunk gives a row, even if it is not there: then without a CRC, and with the trouble. So each
chunk of one member can be joined with that of another.

    missing   the file is gone, or ends before the chunk
    short     the file ends within the chunk

A file with known checksums (`known_checksums.py`) is not read if it has not changed. Of a directory, size,
times and inode tell that. Of a broker, the CRC of the file's last MiB does: it differs if the log was
truncated and written again, and needs a thousandth of the file to be read.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import grpc
import pyarrow as pa

from whimbrel.rpc.api.bulk_calls import checksum_log, open_bulk_channel, stream_blocking
from whimbrel.spark.auditing.known_checksums import KnownFile
from whimbrel.spark.auditing.members import CALL_S_MAX, GONE, FileState, Member
from whimbrel.spark.auditing.ranges import FilePart, chunks
from whimbrel.store.segment import segment_name

__all__ = ["CHUNK_BYTES", "SCHEMA", "Checksums", "sum_up"]

CHUNK_BYTES = 16 << 20
READ_BYTES = 4 << 20
TAIL_BYTES = 1 << 20  # of a broker's file, read to tell whether it has changed
MISSING, SHORT = "missing", "short"

SCHEMA = "member int, segment long, at long, size int, crc long, trouble string, known boolean, tail long"
TYPES = (pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int64(), pa.string(), pa.bool_(), pa.int64())
NAMES = [word.split()[0] for word in SCHEMA.split(", ")]


@dataclass(frozen=True, slots=True)
class Checksums:
    """The checksums that one task computes.

    Attributes:
        known: the checksums that an earlier audit has kept; None when the file is to be read.
        tailed: compute the CRC of the tail too, by which the next audit recognizes a broker's file.
    """

    member: Member
    part: FilePart
    file_size: int
    chunk_bytes: int
    known: KnownFile | None
    tailed: bool


Sum = tuple[int, int, int | None, str | None]  # offset, size, CRC, trouble


def sum_up(task: Checksums) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task.

    Raises:
        WhimbrelError: a broker does not answer.
    """
    known, tail = task.known, None
    if task.member.address:
        with open_bulk_channel(task.member.address) as channel:
            if task.tailed:
                tail = tail_of(channel, task.part.segment, task.file_size)
            if known is not None and (tail is None or known.tail != tail):
                known = None
            sums = known_sums(task, known) if known else list(sums_of_broker(channel, task))
    else:
        path = task.member.root / "commitlog" / segment_name(task.part.segment)
        if known is not None and (not path.exists() or state_of(path.stat()) != known.state):
            known = None
        sums = known_sums(task, known) if known else list(sums_of_file(task))
    count, part = len(sums), task.part
    columns = [
        [part.member] * count,
        [part.segment] * count,
        *(list(values) for values in zip(*sums, strict=True)),
        [known is not None] * count,
        [tail] * count,
    ]
    if count:
        arrays = [pa.array(values, kind) for values, kind in zip(columns, TYPES, strict=True)]
        yield pa.record_batch(arrays, names=NAMES)


def known_sums(task: Checksums, known: KnownFile) -> list[Sum]:
    """Return the known checksums of a file."""
    places = planned(task)
    return [(at, size, crc, None) for (at, size), crc in zip(places, known.chunks, strict=True)]


def planned(task: Checksums) -> list[tuple[int, int]]:
    """Return the chunks of a task: offset and size."""
    return [place for piece in task.part.pieces for place in chunks(piece, task.chunk_bytes, task.file_size)]


def sums_of_file(task: Checksums) -> Iterator[Sum]:
    """Compute the checksums of a file."""
    path = task.member.root / "commitlog" / segment_name(task.part.segment)
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        yield from ((at, size, None, MISSING) for at, size in planned(task))
        return
    with file:
        fd = file.fileno()
        for at, size in planned(task):
            start = position = at - task.part.segment
            crc, end = 0, position + size
            while position < end:
                data = os.pread(fd, min(READ_BYTES, end - position), position)
                if not data:
                    break
                crc = zlib.crc32(data, crc)
                position += len(data)
            os.posix_fadvise(fd, start, size, os.POSIX_FADV_DONTNEED)  # spare a broker's page cache
            if position == end:
                yield at, size, crc, None
            else:
                yield at, size, None, SHORT if position > start else MISSING


def sums_of_broker(channel: grpc.Channel, task: Checksums) -> Iterator[Sum]:
    """Let a broker compute the checksums of a file; behind a chunk that it lacks, ask for the next one."""
    for piece in task.part.pieces:
        left = list(chunks(piece, task.chunk_bytes, task.file_size))
        while left:
            call = checksum_log(left[0][0], piece.end, chunk_bytes=task.chunk_bytes)
            try:
                with closing(stream_blocking(channel, call, timeout_s=CALL_S_MAX)) as answers:
                    for chunk in answers:
                        assert (chunk.offset, chunk.size) == left[0], "brokers cut the same chunks"
                        left.pop(0)
                        yield chunk.offset, chunk.size, chunk.crc32, None
            except GONE:
                at, size = left.pop(0)
                yield at, size, None, MISSING


def tail_of(channel: grpc.Channel, segment: int, file_size: int) -> int | None:
    """Return the CRC of the last bytes of a broker's file; None if they are gone."""
    begin, end = segment + max(file_size - TAIL_BYTES, 0), segment + file_size
    call = checksum_log(begin, end, chunk_bytes=TAIL_BYTES)
    crc = 0
    try:
        with closing(stream_blocking(channel, call, timeout_s=CALL_S_MAX)) as answers:
            for chunk in answers:
                crc = crc << 32 ^ chunk.crc32
    except GONE:
        return None
    return crc & 0x7FFFFFFFFFFFFFFF


def state_of(stat: os.stat_result) -> FileState:
    """Return the state by which a change of the file is recognized."""
    return FileState(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
