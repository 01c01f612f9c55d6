"""The commitlog's files in order, for reading.

Reading uses `os.pread`: old data does not become resident memory of this process, and a file that is removed
while it is read is an error, not a signal.
"""

import os
from collections import OrderedDict
from pathlib import Path

from whimbrel.errors import IllegalOffset, StoreError
from whimbrel.machine import FILES, Files
from whimbrel.store.segment import segment_name

__all__ = ["FILES_OPEN_MAX", "Segments", "list_segments", "repair_advice"]

CHUNK_BYTES = 1 << 20
FILES_OPEN_MAX = 32  # readers of old data are mostly within a few files


def list_segments(directory: Path, files: Files = FILES) -> list[int]:
    """Return the starts of the files in a directory, in order; files with other names are ignored."""
    names = files.names(directory)
    return sorted(int(name) for name in names if len(name) == 20 and name.isdecimal() and name.isascii())


def is_blank(path: Path, files: Files) -> bool:
    """Return whether a file holds nothing but zeros."""
    fd = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position = 0
        while piece := files.pread(fd, CHUNK_BYTES, position):
            if piece.strip(b"\0"):
                return False
            position += len(piece)
        return True
    finally:
        files.close(fd)


def repair_advice(root: Path) -> str:
    """Return the command that helps where a log can't be opened."""
    return f"`whimbrel store repair {root}` tells what can be done"


class Segments:
    """The log's files by their starts.

    Attributes:
        starts: of the files that are part of the log, in order.
        file_size: of each of them.
        leftover: start of a last file that was made and got neither size nor content, None without one.
    """

    def __init__(self, directory: Path, file_size: int, files: Files = FILES) -> None:
        self.files = files
        self.directory = directory
        self.file_size = file_size
        self.starts: list[int] = []
        self.leftover: int | None = None
        self.open_files: OrderedDict[int, int] = OrderedDict()

    @classmethod
    def open(cls, directory: Path, file_size: int, files: Files = FILES) -> "Segments":
        """List the log's files; their size wins over `file_size`.

        Raises:
            StoreError: they differ in size, or one is missing between others.
        """
        starts = list_segments(directory, files)
        sizes = [files.size(directory / segment_name(start)) for start in starts]
        leftover = None
        if sizes and (sizes[-1] == 0 or (len(set(sizes[:-1])) == 1 and sizes[-1] != sizes[0])):
            # Made, but not sized, when its writer died (RocketMQ 5.x removes it as well).
            path = directory / segment_name(starts[-1])
            if not is_blank(path, files):
                raise StoreError(
                    f"{path} has {sizes[-1]} bytes, the log's other files have {sizes[0]}, and it is not"
                    " empty: copy it again if it was copied, or move it away to end the log before it"
                )
            leftover = starts.pop()
            sizes.pop()
        if sizes:
            if len(set(sizes)) != 1:
                raise StoreError(
                    f"the files in {directory} differ in size, {sorted(set(sizes))}:"
                    f" {repair_advice(directory.parent)}"
                )
            if starts[0] % sizes[0] or starts[-1] - starts[0] != (len(starts) - 1) * sizes[0]:
                raise StoreError(
                    f"the files in {directory} do not follow each other, {starts}, {sizes[0]} bytes each:"
                    f" {repair_advice(directory.parent)}"
                )
            file_size = sizes[0]
        segments = cls(directory, file_size, files)
        segments.starts, segments.leftover = starts, leftover
        return segments

    @property
    def begin(self) -> int:
        """Start of the log's first file; 0 without files."""
        return self.starts[0] if self.starts else 0

    def start_of(self, offset: int) -> int:
        """Return where the file begins that holds an offset."""
        return offset - offset % self.file_size

    def fd(self, start: int) -> int:
        """Return a file descriptor for reading a file; do not close it.

        Raises:
            IllegalOffset: the file is gone.
        """
        fd = self.open_files.get(start)
        if fd is not None:
            self.open_files.move_to_end(start)
            return fd
        try:
            fd = self.files.open(self.directory / segment_name(start), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise IllegalOffset(f"the log has no file {segment_name(start)}") from error
        self.open_files[start] = fd
        if len(self.open_files) > FILES_OPEN_MAX:
            self.files.close(self.open_files.popitem(last=False)[1])
        return fd

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from an offset on, not beyond the end of its file."""
        position = offset % self.file_size
        return self.files.pread(self.fd(offset - position), min(length, self.file_size - position), position)

    def next_data(self, offset: int) -> int:
        """Return the next offset at which its file is not a hole; the file's end when there is none."""
        position = offset % self.file_size
        found = self.files.next_data(self.fd(offset - position), position)
        return offset - position + (self.file_size if found < 0 else found)

    def drop_below(self, begin: int) -> None:
        """Close and unlist the files before `begin`; the caller removes them."""
        self.starts = [start for start in self.starts if start >= begin]
        for start in [start for start in self.open_files if start < begin]:
            self.files.close(self.open_files.pop(start))

    def close(self) -> None:
        """Close every file; a later read opens what bears the name then."""
        while self.open_files:
            self.files.close(self.open_files.popitem()[1])

    __del__ = close  # short-lived readers need not close it
