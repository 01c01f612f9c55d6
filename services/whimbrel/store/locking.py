"""`STORE/lock` and `STORE/abort`: one writer at a time, and whether the last one stopped cleanly.

The lock is RocketMQ's: a POSIX lock on the first byte of a file that holds the text `lock`, so that neither
a second broker of ours nor one of RocketMQ's opens the store. POSIX locks do not keep a process from itself,
hence the set.
"""

import fcntl
import os
import struct
from pathlib import Path

from whimbrel.errors import StoreError

__all__ = ["StoreLock", "is_locked"]

FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, pid

held: set[tuple[int, int]] = set()  # (device, inode) of the lock files this process holds


class StoreLock:
    """The right to write a store's log; held until `release`, or until the process ends."""

    def __init__(self, fd: int, identity: tuple[int, int]) -> None:
        self.fd = fd
        self.identity = identity

    @classmethod
    def acquire(cls, root: Path) -> "StoreLock":
        """Take the lock.

        Raises:
            StoreError: somebody else holds it.
        """
        path = root / "lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        stat = os.fstat(fd)
        identity = (stat.st_dev, stat.st_ino)
        if identity in held:
            # Closing any descriptor of the file would let the POSIX lock go: keep this one open.
            raise StoreError(f"{root} is open in this process already")
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            os.close(fd)
            raise StoreError(f"{root} is in use by another process") from error
        os.pwrite(fd, b"lock", 0)
        held.add(identity)
        return cls(fd, identity)

    def release(self) -> None:
        """Let the lock go."""
        held.discard(self.identity)
        os.close(self.fd)


def is_locked(root: Path) -> bool:
    """Return whether some process has the store open for writing."""
    path = root / "lock"
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    if (stat.st_dev, stat.st_ino) in held:  # opening and closing the file here would let our own lock go
        return True
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the store may lie on a disk that we can't write
    except PermissionError:
        return False
    try:
        # Asked, not tried: a broker that starts at this moment must not find the lock taken by us.
        asked = fcntl.fcntl(fd, fcntl.F_GETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    finally:
        os.close(fd)
    return int(FLOCK.unpack(asked)[0]) != fcntl.F_UNLCK
