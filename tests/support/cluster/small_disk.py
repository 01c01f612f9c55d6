"""A small file system for tests of a full disk: a tmpfs that can be filled up and emptied again.

Needs the right to mount; without it `SmallDisk` skips the test and says so.
"""

import contextlib
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

__all__ = ["SmallDisk"]

PAGE = os.sysconf("SC_PAGE_SIZE")


class SmallDisk:
    """A mounted tmpfs of `size` bytes at `path`; a file of ballast takes what shall not be free."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.ballast = path / "ballast"

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        options = f"size={self.size},huge=never"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"a full disk needs a small file system, and mount can't be run: {error}")
        if done.returncode:
            pytest.skip(
                f"a full disk needs a small file system, and mounting is refused: {done.stderr.strip()}"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Lazily: a process that is just dying must not keep the mount there.
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=True)

    @property
    def free(self) -> int:
        """Return how many bytes can still be written."""
        stats = os.statvfs(self.path)
        return stats.f_bavail * stats.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Let the ballast grow until only `leave` bytes are free."""
        fd = os.open(self.ballast, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            step = self.free
            while step >= PAGE and self.free > leave:
                length = min(step, self.free - leave) // PAGE * PAGE
                if not length:
                    return
                try:
                    os.posix_fallocate(fd, os.fstat(fd).st_size, length)
                except OSError:  # somebody else took some of it just now
                    step //= 2
        finally:
            os.close(fd)

    def make_read_only(self) -> None:
        """Take no writes any more, as a disk that the system has found damaged."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], capture_output=True, check=True)

    def empty(self) -> None:
        """Let the ballast go."""
        with contextlib.suppress(FileNotFoundError):
            self.ballast.unlink()
