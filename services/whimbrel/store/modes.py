"""Who may read a store: a setting that becomes the umask of the processes that make its files.

    mode      umask   files   directories   readers
    private   077     0600    0700          the user of broker and replicator
    group     027     0640    0750          and its group: jobs that read the store's files as another user
    all       022     0644    0755          everybody on the machine, as with RocketMQ

A broker and its replicator write the same files, so they run as one user whatever the mode is. The umask is
set once, when a process starts, before anything is made: so it covers every file, directory and socket of the
process without any code of the store knowing it, its ready file and its traces, too.

Files that are there keep their modes: `exposure` says at a broker's start what others may read and how to end
that. A root that others can't enter covers whatever is below it.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

__all__ = ["STORE_MODES", "StoreMode", "apply_mode", "exposure", "same_modes"]

StoreMode = Literal["private", "group", "all"]

STORE_MODES: dict[StoreMode, int] = {"private": 0o077, "group": 0o027, "all": 0o022}
PARTS = ("commitlog", "config", "consumequeue", "index", "whimbrel", "checkpoint", "lock")
TIGHTENED = {"private": "go-rwx", "group": "o-rwx"}


def apply_mode(mode: StoreMode) -> int:
    """Let all that this process makes from now on have a mode; return the umask that it had."""
    return os.umask(STORE_MODES[mode])


def exposure(root: Path, mode: StoreMode) -> str:
    """Return what others may read of an existing store that its mode keeps from them; empty for nothing."""
    if mode not in TIGHTENED or not open_to(root, mode):
        return ""
    commitlog = root / "commitlog"
    for path in (*(root / name for name in PARTS), *sorted(commitlog.glob("0*"))[:1]):
        if open_to(path, mode):
            found = path.stat().st_mode & 0o777
            return (
                f"{path} has the mode {found:04o}, so that other users may read it: what is new is"
                f" {mode}, what was there stays as it is. `chmod -R {TIGHTENED[mode]} {root}` tightens it;"
                " where others are to read the store, set store_mode to group or all"
            )
    return ""


def open_to(path: Path, mode: StoreMode) -> bool:
    """Return whether a file or directory is there, and has rights that the mode takes away."""
    with contextlib.suppress(OSError):
        return bool(path.stat().st_mode & STORE_MODES[mode])
    return False


@contextlib.contextmanager
def same_modes(root: Path) -> Iterator[None]:
    """Let what this process makes meanwhile have the modes of a store: for commands that write into one."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            before = os.umask(STORE_MODES["private"] & ~(root / "commitlog").stat().st_mode)
            stack.callback(os.umask, before)
        yield
