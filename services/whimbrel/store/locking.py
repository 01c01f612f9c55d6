"""`STORE/lock`: one writer at a time.

The lock is RocketMQ's: a POSIX lock on the first byte of a file that holds the text `lock`, so that neither a
second broker of ours nor one of RocketMQ opens the store. POSIX locks do not exclude the process that holds
them; the set of held locks does.
"""

import fcntl
import os
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files

__all__ = ["StoreLock", "is_locked"]

held: set[tuple[int, int]] = set()  # (device, inode) of the lock files this process holds


class StoreLock:
    """The right to write a store's log; held until `release`, or until the process ends."""

    def __init__(self, files: Files, fd: int, identity: tuple[int, int]) -> None:
        self.files, self.fd = files, fd
        self.identity = identity

    @classmethod
    def acquire(cls, root: Path, files: Files = FILES) -> "StoreLock":
        """Take the lock.

        Raises:
            StoreError: it is held, by this process or another.
        """
        path = root / "lock"
        fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        stat = files.fstat(fd)
        identity = (stat.st_dev, stat.st_ino)
        if identity in held:
            # Closing any descriptor of the file would release the POSIX lock, so this one stays open.
            raise StoreError(f"{root} is open in this process already")
        try:
            files.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            files.close(fd)
            raise StoreError(f"{root} is in use by another process") from error
        files.pwrite(fd, b"lock", 0)
        held.add(identity)
        return cls(files, fd, identity)

    def release(self) -> None:
        """Release the lock."""
        held.discard(self.identity)
        self.files.close(self.fd)


def is_locked(root: Path, files: Files = FILES) -> bool:
    """Return whether a process has the store open for writing."""
    path = root / "lock"
    try:
        stat = files.stat(path)
    except FileNotFoundError:
        return False
    if (stat.st_dev, stat.st_ino) in held:  # opening and closing the file would release our own lock
        return True
    try:
        fd = files.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the store may be on a read-only disk
    except PermissionError:
        return False
    try:
        # Queried, not tried: a broker that starts at this moment must not find the lock taken.
        return files.is_locked(fd)
    finally:
        files.close(fd)
