"""A page cache over a disk, as small as it can be: what no sync has confirmed is gone after `power_loss`.

The files of the machine are the page cache, and a copy of what was synced, page by page, is the disk. After a
sync that fails, a file's first page is on disk and the others are not, and all stay in the cache and count
as clean: the next sync succeeds without writing them, unless they were written again. Names and sizes are on
disk at once, which is kinder than a disk is.
"""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.machine import Files, Machine

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["CacheDisk", "CachedMachine"]

PAGE = 4096


class CacheDisk(Files):
    """Files whose syncs can be made to fail.

    Attributes:
        failing: part of a path to the number of syncs of such files that fail from now on.
        calls: what was done to names, written back and synced, in order: (call, name).
    """

    def __init__(self) -> None:
        self.clean: dict[int, bytearray] = {}  # by inode: what the cache takes for written
        self.platter: dict[int, bytearray] = {}
        self.failing: dict[str, int] = {}
        self.calls: list[tuple[str, str]] = []

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        there = path.exists()
        fd = super().open(path, flags, mode)
        if not there:
            self.forget(fd)  # inodes are used again
        return fd

    def forget(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        self.clean.pop(inode, None)
        self.platter.pop(inode, None)

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        """Write, and make the pages dirty, also where they are as they were."""
        count = super().pwrite(fd, data, position)
        self.make_dirty(fd, position, count)
        return count

    def make_dirty(self, fd: int, position: int, length: int) -> None:
        clean = self.clean.get(os.fstat(fd).st_ino, bytearray())
        for at in range(position // PAGE * PAGE, min(position + length, len(clean)), PAGE):
            clean[at : at + PAGE] = b"\xff" * len(clean[at : at + PAGE])

    def punch_hole(self, fd: int, start: int, length: int) -> bool:
        """Make a hole, and its pages dirty."""
        done = super().punch_hole(fd, start, length)
        self.make_dirty(fd, start, length)
        return done

    def fdatasync(self, fd: int) -> None:
        self.sync(fd)

    def fsync(self, fd: int) -> None:
        self.sync(fd)

    def write_back_all(self, fd: int) -> None:
        """Put nothing on disk: it promises nothing."""
        self.calls.append(("write back", Path(f"/proc/self/fd/{fd}").readlink().name))

    def sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        self.calls.append(("sync", path.name))
        for part in [part for part, left in self.failing.items() if left and part in str(path)]:
            self.failing[part] -= 1
            if not path.is_dir():
                self.write_back(fd, keeps=False)
            raise OSError(errno.EIO, "Input/output error")
        if not path.is_dir():
            self.write_back(fd, keeps=True)

    def write_back(self, fd: int, *, keeps: bool) -> None:
        """Count all pages as clean; `keeps` is whether the disk takes more than the first."""
        inode = os.fstat(fd).st_ino
        content = Path(f"/proc/self/fd/{fd}").read_bytes()
        clean = self.clean.get(inode, bytearray())
        platter = self.platter.setdefault(inode, bytearray())
        platter.extend(bytes(max(len(content) - len(platter), 0)))
        for at in range(0, len(content), PAGE):
            if (keeps or not at) and content[at : at + PAGE] != clean[at : at + PAGE]:
                platter[at : at + PAGE] = content[at : at + PAGE]
        self.clean[inode] = bytearray(content)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.calls.append(("rename", new.name))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.calls.append(("remove", path.name))

    def is_on_disk(self, path: Path, end: int) -> bool:
        """Tell whether a file's first bytes would outlast a power loss."""
        content = path.read_bytes()[:end]
        return bytes(self.platter.get(path.stat().st_ino, b""))[:end] == content

    def power_loss(self, root: Path, to: Path) -> Path:
        """Write what a directory's files hold after a power loss below another one."""
        for path in root.rglob("*"):
            there = to / path.relative_to(root)
            if path.is_dir():
                there.mkdir(parents=True, exist_ok=True)
            elif path.is_file():
                stat = path.stat()
                there.parent.mkdir(parents=True, exist_ok=True)
                kept = bytes(self.platter.get(stat.st_ino, b""))[: stat.st_size]
                there.write_bytes(kept.ljust(stat.st_size, b"\0"))
        return to


class CachedMachine(Machine):
    """A machine with such a disk, which can be booted anew, and whose clock the test turns."""

    files: CacheDisk

    def __init__(self) -> None:
        super().__init__(CacheDisk())
        self.boots = 1
        self.now = 1000.0

    def boot_id(self) -> bytes:
        return b"boot %011d" % self.boots

    def monotonic(self) -> float:
        return self.now
