"""Reads the log that another process writes: from the shared page's `begin` to its `written`."""

from pathlib import Path

from whimbrel.errors import IllegalOffset, NotRecovered
from whimbrel.machine import FILES, MACHINE, Files, Machine
from whimbrel.store.segments import Segments
from whimbrel.store.shared_page import SharedPage

__all__ = ["LogReader"]


class LogReader:
    """The log for a process that does not write it.

    It keeps files open. Files that were written again are opened anew by themselves; after another recovery
    of the log (a new epoch) call `close`, since files may have been removed and others have their names.

    Attributes:
        page: its `begin` and `written` are the log's range; every call reads them anew.
    """

    def __init__(self, root: Path, page: SharedPage, file_size: int, files: Files = FILES) -> None:
        self.root, self.page, self.file_size, self.files = root, page, file_size, files
        self.segments = Segments(root / "commitlog", file_size, files)
        self.replaced = page.replaced

    @classmethod
    def open(
        cls,
        root: Path,
        file_size: int = 0,
        *,
        page: SharedPage | None = None,
        machine: Machine = MACHINE,
    ) -> "LogReader":
        """Open the log for reading.

        Args:
            file_size: 0 takes the page's.
            page: a mapped page to share; closing it stays the caller's.

        Raises:
            NotRecovered: the log's writer has not recovered it, and no size is given.
        """
        page = page or SharedPage.open(root, machine)
        size = page.file_size or file_size
        if not size:
            raise NotRecovered(f"the log in {root} is not recovered yet")
        return cls(root, page, size, machine.files)

    @property
    def begin(self) -> int:
        """Start of the log's first file."""
        return self.page.begin

    @property
    def end(self) -> int:
        """End of what may be read."""
        return self.page.written

    def locate(self, offset: int) -> tuple[int, int, int]:
        """Return the start of an offset's file, the position in it, and how many bytes may be read from
        there on.

        Raises:
            IllegalOffset: the offset is below the log's begin or above its end.
        """
        begin, written, replaced = self.page.log_range()
        if not begin <= offset <= written:
            raise IllegalOffset(f"{offset} is outside the log, which is {begin} to {written}")
        if replaced != self.replaced:  # what was appended since is in the new file
            self.segments.close()
            self.replaced = replaced
        if self.segments.open_files and min(self.segments.open_files) < begin:
            self.segments.drop_below(begin)
        position = offset % self.file_size
        return offset - position, position, min(written - offset, self.file_size - position)

    def view(self, offset: int, limit: int) -> memoryview:
        """Return up to `limit` bytes from an offset on, within one file; empty at the log's end."""
        start, position, available = self.locate(offset)
        if not available:
            return memoryview(b"")
        return memoryview(self.files.pread(self.segments.fd(start), min(limit, available), position))

    def file_for(self, offset: int) -> tuple[int, int, int]:
        """Return (file descriptor, position, bytes available) for `os.sendfile`; do not close the descriptor.

        At the log's end the descriptor is -1 and nothing is available: the file may not exist yet.
        """
        start, position, available = self.locate(offset)
        return (self.segments.fd(start) if available else -1), position, available

    def file_of(self, offset: int) -> tuple[int, int] | None:
        """Return the descriptor of the file in which the log goes on at an offset, and where it begins.

        None where it may not exist yet. Do not close the descriptor.

        Raises:
            IllegalOffset: the offset is outside the log.
        """
        start, position, available = self.locate(offset)
        return (self.segments.fd(start), start) if position or available else None

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the log, fewer at the end of a file or of the log."""
        start, position, available = self.locate(offset)
        return self.files.pread(self.segments.fd(start), min(size, available), position) if available else b""

    def close(self) -> None:
        """Close the files, not the page."""
        self.segments.close()
