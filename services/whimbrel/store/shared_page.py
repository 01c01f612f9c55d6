"""The page that a broker and its replicator share: `STORE/whimbrel/watermark`, mapped by both.

Its parts have the cells, by who writes them and what for; each part's module has its table and its protocol:

    `page_log.py`         how far the log is, and in which epoch                        the log's writer
    `page_slots.py`       connections of slaves, and what they acknowledge              the replicator mostly
    `page_elections.py`   roles, promises, seats, leader's epoch, commit offset         both
    `page_processes.py`   whether a process lives and sleeps, what it says of itself    both

`page_cells.py` says what a cell is: one aligned, native int64 with exactly one writing process. What is left
is about the file itself:

    at    cells                                                                         written by
       0  layout version, boot id (16 bytes), inode of the page's file                  the first opener
    4096  layout version and boot id once more                                          the first opener

A page of another boot of the machine, or of another layout, is zeroed by the first process that opens it: its
cells describe a page cache that is gone. So is one whose file is not the one that was mapped: it came with a
copy of the store, perhaps later than the log did, and its cells describe the store that was copied. An
earlier version leaves the inode 0, which tells nothing.

A process of an earlier version maps the first 4,096 bytes only, and zeroes no more for a new boot: so the
second half has a header of its own.
"""

import fcntl
import mmap
import os
import struct
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import MACHINE, Machine
from whimbrel.store.page_cells import Cell
from whimbrel.store.page_processes import Processes
from whimbrel.store.page_slots import ReplicaSlots

__all__ = ["PAGE_BYTES", "SharedPage"]

PAGE_FILE = Path("whimbrel") / "watermark"  # in a store directory
PAGE_BYTES = 8192
SECOND = 4096  # where the half begins that earlier versions do not have

LAYOUT = 0x5748494D_00000001  # "WHIM", then the version
HEADER = struct.Struct("=q16s")
INODE = struct.Struct("=q")


class SharedPage(ReplicaSlots, Processes):
    """The mapped page. Attributes are the cells; the modules of the parts say which process sets which."""

    inode = Cell(HEADER.size)  # of the page's file; 0 from an earlier version

    @classmethod
    def open(cls, store_root: Path, machine: Machine = MACHINE) -> "SharedPage":
        """Map the page of a store; a missing one is created, one of another boot or layout zeroed.

        Raises:
            StoreError: the page can't be created or mapped.
        """
        path, files = store_root / PAGE_FILE, machine.files
        try:
            files.make_directories(path.parent)
            fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"the page {path} can't be opened: {error}") from error
        try:
            files.flock(fd, fcntl.LOCK_EX)  # two processes that start together must not both zero it
            stat = files.fstat(fd)
            if stat.st_size < PAGE_BYTES or not stat.st_blocks:
                # Otherwise writing to the page on a full disk raises SIGBUS.
                files.posix_fallocate(fd, 0, PAGE_BYTES)
            page = cls(files.map(fd, PAGE_BYTES))
            boot = machine.boot_id()
            if not describes(page.mapped, boot, stat.st_ino):
                page.mapped[:] = bytes(PAGE_BYTES)
                page.clear_slaves()
                HEADER.pack_into(page.mapped, 0, LAYOUT, boot)
            elif HEADER.unpack_from(page.mapped, SECOND) != (LAYOUT, boot):
                page.mapped[SECOND:] = bytes(PAGE_BYTES - SECOND)
            HEADER.pack_into(page.mapped, SECOND, LAYOUT, boot)
            if page.inode != stat.st_ino:
                page.inode = stat.st_ino
        except OSError as error:
            raise StoreError(f"the page {path} can't be mapped: {error}") from error
        finally:
            # Closing is not enough: the mapping holds a copy of the descriptor.
            files.flock(fd, fcntl.LOCK_UN)
            files.close(fd)
        return page

    @classmethod
    def snapshot(cls, store_root: Path, machine: Machine = MACHINE) -> "SharedPage | None":
        """Return a copy of a store's page, None without one of this boot; the page itself is not mapped."""
        path, files = store_root / PAGE_FILE, machine.files
        try:
            data = files.read_bytes(path)
            current = len(data) >= SECOND and describes(data, machine.boot_id(), files.stat(path).st_ino)
        except (FileNotFoundError, StoreError):
            return None
        return cls(bytearray(data[:PAGE_BYTES].ljust(PAGE_BYTES, b"\0"))) if current else None

    def close(self) -> None:
        """Unmap the page; its file stays."""
        self.cells.release()
        self.bytes.release()
        if isinstance(self.mapped, mmap.mmap):
            self.mapped.close()


def describes(data: mmap.mmap | bytearray | bytes, boot: bytes, inode: int) -> bool:
    """Return whether a page is of this boot, and was mapped where it is now."""
    (mapped_as,) = INODE.unpack_from(data, HEADER.size)
    return HEADER.unpack_from(data) == (LAYOUT, boot) and mapped_as in (0, inode)
