"""Room on a disk: blocks are taken before they are written, and an error for a full disk says what to do.

Writing to a page of a mapped file that has no block kills the process with SIGBUS when the disk is full, so
all that is mapped for writing is allocated before. `mmap.flush` and `mmap.madvise` hold the GIL for as long
as they take, so flushing goes through `fdatasync` and `madvise` through ctypes (`whimbrel.machine`).
"""

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from whimbrel.errors import StoreFull
from whimbrel.machine import Files

__all__ = [
    "FULL_ADVICE",
    "PAGE",
    "address_of",
    "allocate",
    "free_bytes",
    "refusing_when_full",
    "replacing",
    "zero",
]

PAGE = mmap.PAGESIZE
ZERO_CHUNK = bytes(1 << 20)
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
OUT_OF_MEMORY = errno.ENOMEM
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_ADVICE = "free some space on it, and writing goes on by itself"


def address_of(mapped: mmap.mmap) -> int:
    """Return where a writable mapping begins; valid until it is closed."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def allocate(files: Files, fd: int, start: int, length: int) -> None:
    """Give a range of a file blocks on disk.

    Raises:
        StoreFull: the disk has no room.
    """
    with refusing_when_full(f"no room for {length} more bytes"):
        files.posix_fallocate(fd, start, length)


@contextlib.contextmanager
def refusing_when_full(what: str) -> Iterator[None]:
    """Turn the kernel's errors for a full disk, and for too many open files or mappings, into StoreFull.

    Raises:
        StoreFull: there is no room, no descriptor or no memory to map; its text names `what`.
    """
    try:
        yield
    except OSError as error:
        if error.errno in OUT_OF_FILES:
            raise StoreFull(
                f"too many files are open ({what}): let the process open more (ulimit -n); writing goes on by"
                " itself once some are closed"
            ) from error
        if error.errno == OUT_OF_MEMORY:
            raise StoreFull(
                f"the kernel has no memory left, or allows no more mappings ({what}): see vm.max_map_count; "
                "writing goes on by itself once there are fewer"
            ) from error
        if error.errno not in FULL:
            raise
        raise StoreFull(f"the disk is full ({what}: {error.strerror}); {FULL_ADVICE}") from error


def zero(files: Files, fd: int, start: int, length: int) -> None:
    """Make a range of a file zeros. It may have no blocks afterwards: allocate before mapping."""
    if length <= 0 or files.punch_hole(fd, start, length):
        return
    end = start + length
    while start < end:
        start += files.pwrite(fd, ZERO_CHUNK[: end - start], start)


@contextlib.contextmanager
def replacing(files: Files, path: Path, draft: Path, mode: int = 0o644) -> Iterator[int]:
    """Yield the descriptor of a new file that takes a name, and its place there, once it is on disk.

    An error leaves the old file, and nothing of the new one; else the name is on disk, too.
    """
    fd = files.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        yield fd
        files.fsync(fd)
        files.rename(draft, path)
    except BaseException:
        files.unlink(draft, missing_ok=True)
        raise
    finally:
        files.close(fd)
    files.sync_directory(path.parent)


def free_bytes(files: Files, path: Path) -> int:
    """Return how much an ordinary process may still write to the file system of `path`."""
    stats = files.statvfs(path)
    return stats.f_bavail * stats.f_frsize
