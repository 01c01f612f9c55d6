"""Calls to the kernel's memory and disk management, without holding the GIL.

`mmap.flush` and `mmap.madvise` hold the GIL for as long as they take, so flushing goes through
`os.fdatasync` and `madvise` through ctypes. Writing to a page of a mapped file that has no block kills the
process with SIGBUS when the disk is full, so all that is mapped for writing is allocated before.
"""

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from whimbrel.errors import StoreFull

__all__ = [
    "FULL_ADVICE",
    "PAGE",
    "address_of",
    "allocate",
    "free_bytes",
    "populate",
    "refusing_when_full",
    "release",
    "sync_directory",
    "zero",
]

PAGE = mmap.PAGESIZE
MADV_DONTNEED = 4
MADV_POPULATE_WRITE = 23  # Linux 5.14; an older kernel refuses it, and pages come with page faults
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
ZERO_CHUNK = bytes(1 << 20)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_ADVICE = "free some space on it, and writing goes on by itself"

libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def address_of(mapped: mmap.mmap) -> int:
    """Return where a writable mapping begins; valid until it is closed."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def populate(address: int, length: int) -> None:
    """Make the pages of a range present and writable. A failure is harmless: they come with page faults."""
    libc.madvise(address, length, MADV_POPULATE_WRITE)


def release(address: int, length: int) -> None:
    """Unmap the pages of a range of a shared file mapping; what was written stays in the page cache."""
    libc.madvise(address, length, MADV_DONTNEED)


def allocate(fd: int, start: int, length: int) -> None:
    """Give a range of a file blocks on disk.

    Raises:
        StoreFull: the disk has no room.
    """
    with refusing_when_full(f"no room for {length} more bytes"):
        os.posix_fallocate(fd, start, length)


@contextlib.contextmanager
def refusing_when_full(what: str) -> Iterator[None]:
    """Turn the kernel's error for a full disk into StoreFull.

    Raises:
        StoreFull: the disk has no room; its text names `what`.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise StoreFull(f"the disk is full ({what}: {error.strerror}); {FULL_ADVICE}") from error


def zero(fd: int, start: int, length: int) -> None:
    """Make a range of a file zeros. It may have no blocks afterwards: allocate before mapping."""
    if length <= 0 or libc.fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, length) == 0:
        return
    end = start + length
    while start < end:
        start += os.pwrite(fd, ZERO_CHUNK[: end - start], start)


def sync_directory(path: Path) -> None:
    """Put on disk which files a directory holds, and by which names."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def free_bytes(path: Path) -> int:
    """Return how much an ordinary process may still write to the file system of `path`."""
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize
