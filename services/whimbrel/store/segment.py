"""One commitlog file, mapped for writing.

A file gets its size and all its blocks in `STORE/whimbrel/` and is then renamed into the log's directory. So
no file of a wrong size is ever listed (RocketMQ refuses to start with one), and writing into the mapping
can't meet a full disk. The preallocator's thread (`preallocation.py`) populates pages ahead of the write
position and releases those far behind it, so a file of 1 GiB costs a few MiB of resident memory.
"""

import errno
import mmap
import os
from pathlib import Path

from whimbrel.machine import Files
from whimbrel.store.pages import PAGE, address_of, allocate

__all__ = ["Segment", "segment_name"]


def segment_name(start: int) -> str:
    """Return the name of the file that begins at a byte offset of its log or queue."""
    return f"{start:020d}"


class Segment:
    """A file of the log that is being written.

    Attributes:
        start, size: the log's bytes [start, start + size) are this file's.
        populated: file position up to which pages were populated ahead.
        released: file position below which pages were released.
    """

    __slots__ = ("address", "fd", "files", "mapped", "path", "populated", "released", "size", "start")

    def __init__(self, files: Files, path: Path, start: int, size: int, fd: int) -> None:
        self.files = files
        self.path, self.start, self.size, self.fd = path, start, size, fd
        self.mapped = files.map(fd, size)
        # A page comes alone: what is read ahead of the log's end would only be made of zeros, and who reads
        # the log by the calls then goes on reading ahead, as the kernel marks those pages for.
        self.mapped.madvise(mmap.MADV_RANDOM)
        self.address = address_of(self.mapped)
        self.populated = self.released = 0

    @classmethod
    def create(cls, files: Files, directory: Path, start: int, size: int, scratch: Path) -> "Segment":
        """Make a new file, all zeros, with every block allocated.

        Raises:
            StoreFull: the disk has no room for it.
            FileExistsError: the file exists, and is not empty: it may hold messages.
        """
        draft = scratch / f"segment-{start:020d}"
        path = directory / segment_name(start)
        if files.exists(path) and files.size(path):
            raise FileExistsError(
                errno.EEXIST, "a file of that name is there already, and the log ends before it", str(path)
            )
        fd = files.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            allocate(files, fd, 0, size)
            files.fsync(fd)  # its size is on disk before its name: else a power loss may leave it empty
            try:
                files.rename(draft, path)
            except OSError as error:
                if error.errno != errno.EXDEV:  # the log's directory is a file system of its own
                    raise
                there = files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                files.close(fd)
                fd = there
                files.unlink(draft)
                allocate(files, fd, 0, size)
                files.fsync(fd)
            files.sync_directory(directory)
            return cls(files, path, start, size, fd)
        except BaseException:
            files.close(fd)
            for leftover in (draft, path):
                files.unlink(leftover, missing_ok=True)
            raise

    @classmethod
    def open(cls, files: Files, directory: Path, start: int, size: int, position: int) -> "Segment":
        """Map an existing file to continue writing at `position`, and allocate the blocks that it lacks:
        RocketMQ's files are sparse.

        Raises:
            StoreFull: the disk has no room for the rest of it.
        """
        path = directory / segment_name(start)
        fd = files.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            first = position // PAGE * PAGE
            allocate(files, fd, 0, size)  # from 0: in a copied file, zeros within a record may be holes
            segment = cls(files, path, start, size, fd)
        except BaseException:
            files.close(fd)
            raise
        segment.populated = segment.released = first
        return segment

    def write(self, position: int, data: memoryview) -> None:
        """Write a large piece by system calls; the mapping shows it, and its pages need no populating."""
        while data:
            count = self.files.pwrite(self.fd, data, position)
            data, position = data[count:], position + count
        self.written(position)

    def written(self, position: int) -> None:
        """Take note that a file is written up to a position: the pages before it need no populating."""
        self.populated = max(self.populated, position // PAGE * PAGE)

    def flush(self) -> None:
        """Put everything written so far on disk; waits for the disk, so call it from a thread."""
        self.files.fdatasync(self.fd)

    def populate(self, end: int) -> None:
        """Make pages present up to a file position."""
        end = min(self.size, (end + PAGE - 1) // PAGE * PAGE)
        if end > self.populated:
            self.files.populate(self.address + self.populated, end - self.populated)
            self.populated = end

    def release(self, end: int) -> None:
        """Remove pages below a file position from this process's memory."""
        end = end // PAGE * PAGE
        if end > self.released:
            self.files.release(self.address + self.released, end - self.released)
            self.released = end

    def close(self) -> None:
        """Unmap and close the file."""
        self.mapped.close()
        self.files.close(self.fd)
