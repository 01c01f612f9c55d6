"""The lock of a file that one nameserver keeps: FILE.lock, locked (flock) for as long as it does."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import Files

__all__ = ["lock"]


def lock(kept: Path, files: Files, setting: str, rule: str) -> int:
    """Return the descriptor of a file's lock, locked.

    Args:
        kept: the file.
        setting: that names it, for errors.
        rule: what to do about another keeper; the end of a sentence.

    Raises:
        StoreError: somebody has it, or the disk refuses.
    """
    path = kept.with_name(kept.name + ".lock")
    fd = -1
    try:
        fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        files.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if fd >= 0:
            with contextlib.suppress(OSError):
                files.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise StoreError(
                f"{setting}: another nameserver keeps this file ({path} is locked): {rule}"
            ) from None
        raise StoreError(f"{setting}: {path} can't be locked: {error}") from error
    return fd
