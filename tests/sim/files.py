"""SimFiles: one process's view of a SimDisk.

Descriptors are real ones (copies of the files' memfds), so what maps them or sends from them directly works.
Each call passes `enter`: it refuses a dead process, counts the call, runs `on_call`, and finds out whether it
is to fail. `close`, `populate` and `release` always work and are not counted: when garbage is collected must
not change what the k-th call is.

Locks are the disk's: those of `flock` belong to a descriptor, those of `lockf` to the process, which loses
them with the first descriptor of that file that it closes.

A sync covers what was written when it began. It takes virtual time: other fibers run meanwhile.
"""

import errno
import fcntl
import itertools
import mmap
import os
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.disk import PAGE, Change, Directory, Fault, File, Node, SimDisk
from sim.scheduler import Crash
from whimbrel.machine import Files, Identity
from whimbrel.store.locking import held

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from sim.machine import SimMachine

__all__ = ["SimFiles"]

CROWDED = 25  # of so many pages one is free, where others have filled the disk
FIRST_DEVICE = 1 << 40  # above all real ones
devices = itertools.count(FIRST_DEVICE)


class Opened:
    """A descriptor.

    Attributes:
        errors: failed syncs of the file that this descriptor knows of.
    """

    __slots__ = ("errors", "node", "path", "writable")

    def __init__(self, node: Node, path: str, *, writable: bool) -> None:
        self.node, self.path, self.writable = node, path, writable
        self.errors = node.errors


class SimFiles(Files):
    """The file system as one process has it.

    Attributes:
        calls: system calls made so far.
        on_call: called before each with its name and arguments; may raise Crash after killing the process.
        descriptors_max: open files; more is EMFILE. Mappings hold none.
        mappings_max: mappings; more is ENOMEM.
        dead: whether the process was killed.
        device: number of the disk as this process sees it: locks that production code keeps by device and
            inode, for its own process, do not exclude the processes of others here.
    """

    def __init__(self, disk: SimDisk, machine: "SimMachine | None" = None) -> None:
        self.disk, self.machine = disk, machine
        self.table: dict[int, Opened] = {}
        self.flocks: dict[int, tuple[Node, int]] = {}  # by descriptor
        self.lockfs: dict[int, tuple[Node, int]] = {}  # by inode number
        self.mappings: list[tuple[File, weakref.ref[mmap.mmap]]] = []
        self.calls = 0
        self.on_call: Callable[[str, tuple[Any, ...]], None] | None = None
        self.descriptors_max = self.mappings_max = 1 << 20
        self.dead = False
        self.device = next(devices)
        disk.views.append(self)

    # What every call passes.

    def enter(self, call: str, *args: Any, path: str) -> Fault | None:
        """Begin a system call; return the fault that only shortens it.

        Raises:
            Crash: the process is dead.
            OSError: it is to fail, and does nothing. A sync fails in its own way.
        """
        if self.dead:
            raise Crash(f"{call} of a dead process")
        self.calls += 1
        if self.on_call is not None:
            self.on_call(call, args)
            if self.dead:
                raise Crash(f"killed at {call}")
        if self.machine is not None:
            self.machine.may_yield()
        hit = None
        for fault in self.disk.faults:
            if fault.hits(call, path):
                hit = fault
        if hit is not None and hit.error and call not in ("fsync", "fdatasync"):
            raise OSError(hit.error, os.strerror(hit.error), path)
        return hit

    def opened(self, fd: int, *, writing: bool = False) -> Opened:
        """Return a descriptor's entry.

        Raises:
            Crash: the process is dead.
            OSError: EBADF, it is not open, or not for writing.
        """
        if self.dead:
            raise Crash("a dead process has no descriptors")
        opened = self.table.get(fd)
        if opened is None or (writing and not opened.writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return opened

    def file_of(self, fd: int, *, writing: bool = False) -> tuple[File, str]:
        """Return a descriptor's file and the name it was opened by."""
        opened = self.opened(fd, writing=writing)
        if not isinstance(opened.node, File):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), opened.path)
        return opened.node, opened.path

    def wall(self) -> float:
        """Return the time that files get."""
        return self.machine.wall_ns() / 1e9 if self.machine is not None else 0.0

    # Descriptors.

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """See `Files`."""
        self.enter("open", path, flags, path=str(path))
        if len(self.table) >= self.descriptors_max:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        node = self.disk.find(path)
        if node is None:
            parent = self.disk.parent_of(path)
            if not flags & os.O_CREAT:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = File(self.disk.number())
            node.mtime = self.wall()
            self.disk.change((parent, path.name, node))
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        writable = bool(flags & (os.O_WRONLY | os.O_RDWR))
        if isinstance(node, Directory):
            if writable:
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            fd = os.memfd_create("sim-directory", os.MFD_CLOEXEC)
        else:
            if flags & os.O_DIRECTORY:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if flags & os.O_TRUNC and node.size:
                os.ftruncate(node.fd, 0)
                node.blocks.clear()
                node.rewritten.clear()
            fd = os.dup(node.fd)
        node.opens += 1
        self.table[fd] = Opened(node, str(path), writable=writable)
        return fd

    def close(self, fd: int) -> None:
        """See `Files`."""
        if self.dead:
            return
        opened = self.opened(fd)
        del self.table[fd]
        self.flocks.pop(fd, None)
        self.lockfs.pop(opened.node.number, None)
        opened.node.opens -= 1
        os.close(fd)
        if self.machine is not None:
            self.machine.stir()

    def live_mappings(self) -> int:
        """Count this process's mappings."""
        self.mappings = [(node, seen) for node, seen in self.mappings if is_mapped(seen)]
        return len(self.mappings)

    def fstat(self, fd: int) -> os.stat_result:
        """See `Files`."""
        opened = self.opened(fd)
        self.enter("fstat", fd, path=opened.path)
        return self.status(opened.node)

    def identity(self, fd: int) -> Identity | None:
        """See `Files`: a number is given once."""
        opened = self.opened(fd)
        self.enter("statx", fd, path=opened.path)
        return Identity(opened.node.number, 0, 0)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """See `Files`."""
        _, path = self.file_of(fd)
        self.enter("pread", fd, length, position, path=path)
        return os.pread(fd, length, position)

    def next_data(self, fd: int, position: int) -> int:
        """See `Files`."""
        _, path = self.file_of(fd)
        self.enter("lseek", fd, position, path=path)
        return super().next_data(fd, position)

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        """See `Files`."""
        node, path = self.file_of(fd, writing=True)
        view = memoryview(data).cast("B")
        short = self.enter("pwrite", fd, data, position, path=path)
        length = len(view)
        if short is not None and length > 1:
            length = self.disk.rng.randrange(1, length)
        room = self.disk.take_blocks(node, position, length)
        if length and not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        count = os.pwrite(fd, view[:room], position)
        if count:
            node.rewritten.update(range(position // PAGE, (position + count - 1) // PAGE + 1))
        node.mtime = self.wall()
        return count

    def ftruncate(self, fd: int, length: int) -> None:
        """See `Files`."""
        node, path = self.file_of(fd, writing=True)
        self.enter("ftruncate", fd, length, path=path)
        os.ftruncate(node.fd, length)
        node.blocks = {page for page in node.blocks if page * PAGE < length}
        node.rewritten = {page for page in node.rewritten if page * PAGE < length}
        node.mtime = self.wall()

    def posix_fallocate(self, fd: int, start: int, length: int) -> None:
        """See `Files`."""
        node, path = self.file_of(fd, writing=True)
        self.enter("posix_fallocate", fd, start, length, path=path)
        if self.disk.take_blocks(node, start, length) < length:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if node.size < start + length:
            os.ftruncate(node.fd, start + length)
        node.mtime = self.wall()

    def fdatasync(self, fd: int) -> None:
        """See `Files`."""
        self.sync("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        """See `Files`."""
        self.sync("fsync", fd)

    def sync(self, call: str, fd: int) -> None:
        """Sync a file or a directory; what is written meanwhile is not covered."""
        opened = self.opened(fd)
        fault = self.enter(call, fd, path=opened.path)
        node, disk = opened.node, self.disk
        failed = fault is not None and fault.error
        if isinstance(node, Directory):
            changes = disk.pending(node)
            self.take_time()
            if failed:
                for change in changes:
                    change.failed = True
            else:
                disk.settle(changes)
        else:
            names = disk.pending_names(node) if disk.own_entry else []
            with self.syncing(node) as (number, content):
                self.take_time()
                if failed:
                    node.fail_sync(number, content, disk.rng)
                else:
                    node.end_sync(number, content)
                    disk.settle(named(names))
        if failed and fault is not None:
            node.errors += 1 if isinstance(node, Directory) else 0
            opened.errors = node.errors
            if self.machine is not None and isinstance(node, File):
                self.machine.host.may_evict(node)
            raise OSError(fault.error, os.strerror(fault.error), opened.path)
        if opened.errors < node.errors:  # it failed when another descriptor of the file was synced
            opened.errors = node.errors
            raise OSError(errno.EIO, os.strerror(errno.EIO), opened.path)

    @contextmanager
    def syncing(self, node: File) -> Iterator[tuple[int, bytes]]:
        """Begin a sync of a file; one whose process dies is dropped: its pages stay dirty."""
        number, content = node.begin_sync()
        if content != node.clean:  # written through a mapping, which has no call of its own
            node.mtime = self.wall()
        self.disk.check_blocks(node, content)
        try:
            yield number, content
        finally:
            node.drop_sync(content)

    def take_time(self) -> None:
        """Let a sync's time pass.

        Raises:
            Crash: the process was killed meanwhile.
        """
        if self.machine is not None:
            self.machine.sync_time()
        if self.dead:
            raise Crash("killed in a sync")

    def punch_hole(self, fd: int, start: int, length: int) -> bool:
        """See `Files`."""
        node, path = self.file_of(fd, writing=True)
        self.enter("punch_hole", fd, start, length, path=path)
        if not self.disk.punches:
            return False
        end = min(start + length, node.size)
        if end > start:
            os.pwrite(node.fd, bytes(end - start), start)
            node.rewritten.update(range(start // PAGE, (end - 1) // PAGE + 1))
            node.blocks -= set(range(-(-start // PAGE), end // PAGE))
            node.mtime = self.wall()
        return True

    # Names.

    def stat(self, path: Path) -> os.stat_result:
        """See `Files`."""
        self.enter("stat", path, path=str(path))
        return self.status(self.existing(path))

    def existing(self, path: Path) -> Node:
        """Return what bears a path.

        Raises:
            OSError: nothing does.
        """
        node = self.disk.find(path)
        if node is None:
            self.disk.parent_of(path)
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    def status(self, node: Node) -> os.stat_result:
        """Return what `stat` tells of a file or directory."""
        is_file = isinstance(node, File)
        size = node.size if isinstance(node, File) else 0
        blocks = len(node.blocks) * (PAGE // 512) if isinstance(node, File) else 0
        mode = stat.S_IFREG | 0o644 if is_file else stat.S_IFDIR | 0o755
        at = int(node.mtime)
        fields = (mode, node.number, self.device, node.links, os.getuid(), os.getgid(), size, at, at, at)
        more = {
            "st_atime": node.mtime,
            "st_mtime": node.mtime,
            "st_ctime": node.mtime,
            "st_mtime_ns": int(node.mtime * 1e9),
            "st_blksize": PAGE,
            "st_blocks": blocks,
        }
        return os.stat_result(fields, more)

    def statvfs(self, path: Path) -> os.statvfs_result:
        """See `Files`."""
        self.enter("statvfs", path, path=str(path))
        self.existing(path)
        free = max(self.disk.free, 0) // PAGE
        total = CROWDED * free if self.disk.crowded() else free + self.disk.used // PAGE
        return os.statvfs_result((PAGE, PAGE, total, free, free, 1 << 20, 1 << 20, 1 << 20, 0, 255))

    def listdir(self, path: Path) -> list[str]:
        """See `Files`."""
        self.enter("listdir", path, path=str(path))
        node = self.existing(path)
        if not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return list(node.entries)

    def mkdir(self, path: Path) -> None:
        """See `Files`."""
        self.enter("mkdir", path, path=str(path))
        if self.disk.find(path) is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        made = Directory(self.disk.number())
        made.mtime = self.wall()
        self.disk.change((self.disk.parent_of(path), path.name, made))

    def rmdir(self, path: Path) -> None:
        """See `Files`."""
        self.enter("rmdir", path, path=str(path))
        node = self.existing(path)
        if not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if node.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self.disk.change((self.disk.parent_of(path), path.name, None))

    def rename(self, old: Path, new: Path) -> None:
        """See `Files`."""
        self.enter("rename", old, new, path=str(new))
        source, target = self.disk.parent_of(old), self.disk.parent_of(new)
        node = self.existing(old)
        there = self.disk.find(new)
        if old in new.parents or new in old.parents:
            code = errno.EINVAL if old in new.parents else errno.ENOTEMPTY
            raise OSError(code, os.strerror(code), str(new))
        if there is node:
            return
        if isinstance(there, Directory) != isinstance(node, Directory) and there is not None:
            code = errno.EISDIR if isinstance(there, Directory) else errno.ENOTDIR
            raise OSError(code, os.strerror(code), str(new))
        if isinstance(there, Directory) and there.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(new))
        self.disk.change((source, old.name, None), (target, new.name, node))

    def link(self, old: Path, new: Path) -> None:
        """See `Files`."""
        self.enter("link", old, new, path=str(new))
        node, parent = self.existing(old), self.disk.parent_of(new)
        if self.disk.find(new) is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
        if isinstance(node, Directory):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(old))
        self.disk.change((parent, new.name, node))

    def real_path(self, path: Path) -> Path:
        """See `Files`; there are no symbolic links."""
        return path

    def copy_status(self, old: Path, new: Path) -> None:
        """See `Files`."""
        self.enter("copy_status", old, new, path=str(new))
        self.existing(new).mtime = self.existing(old).mtime

    def remove(self, path: Path) -> None:
        """See `Files`."""
        self.enter("remove", path, path=str(path))
        if isinstance(self.existing(path), Directory):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        self.disk.change((self.disk.parent_of(path), path.name, None))

    # Locks.

    def flock(self, fd: int, operation: int) -> None:
        """See `Files`."""
        opened = self.opened(fd)
        self.enter("flock", fd, operation, path=opened.path)
        self.lock(self.flocks, fd, opened, operation, lambda view: list(view.flocks.items()))

    def lockf(self, fd: int, operation: int, length: int) -> None:
        """See `Files`; the whole file is taken, whatever the length."""
        opened = self.opened(fd, writing=bool(operation & fcntl.LOCK_EX))
        self.enter("lockf", fd, operation, length, path=opened.path)
        self.lock(self.lockfs, opened.node.number, opened, operation, lambda view: list(view.lockfs.items()))

    def is_locked(self, fd: int) -> bool:
        """See `Files`."""
        opened = self.opened(fd)
        self.enter("fcntl", fd, path=opened.path)
        others = [view for view in self.disk.views if view is not self]
        return any(node is opened.node for view in others for node, _ in view.lockfs.values())

    def lock(
        self,
        mine: dict[int, tuple[Node, int]],
        key: int,
        opened: Opened,
        operation: int,
        locks_of: Callable[["SimFiles"], list[tuple[int, tuple[Node, int]]]],
    ) -> None:
        """Take, change or free a lock; wait for it unless LOCK_NB is among the flags."""
        kind = operation & (fcntl.LOCK_SH | fcntl.LOCK_EX)
        if not kind:
            mine.pop(key, None)
            if self.machine is not None:
                self.machine.stir()
            return

        def free() -> bool:
            return not any(
                node is opened.node and not (view is self and other == key)
                for view in self.disk.views
                for other, (node, held) in locks_of(view)
                if fcntl.LOCK_EX in (held, kind)
            )

        if not free():
            if operation & fcntl.LOCK_NB or self.machine is None:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), opened.path)
            self.machine.block(free, f"the file lock of {opened.path}")
        mine[key] = (opened.node, kind)

    # Mappings.

    def map(self, fd: int, size: int, *, writable: bool = True) -> mmap.mmap:
        """See `Files`."""
        node, path = self.file_of(fd, writing=writable)
        self.enter("map", fd, size, path=path)
        if self.live_mappings() >= self.mappings_max:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)
        mapped = super().map(fd, size, writable=writable)
        seen = weakref.ref(mapped)
        self.mappings.append((node, seen))
        node.mappings = [(view, other) for view, other in node.mappings if is_mapped(other)]
        node.mappings.append((self, seen))
        return mapped

    def write_back_all(self, fd: int) -> None:
        """Nothing: a page that is written back early may be so or not, whatever the disk does."""

    def populate(self, address: int, length: int) -> None:
        """Nothing: pages of a memfd come by themselves."""

    def release(self, address: int, length: int) -> None:
        """Nothing: pages of a memfd are few."""

    # The end.

    def kill(self) -> None:
        """End the process: descriptors are closed and locks freed; what it wrote stays in the cache.

        Its mappings stay readable and writable for objects that are still about. So that these change nothing
        any more, a file that no other process uses gets new memory.
        """
        if self.dead:
            return
        self.dead = True
        self.disk.views = [view for view in self.disk.views if view is not self]
        for fd, opened in self.table.items():
            opened.node.opens -= 1
            os.close(fd)
        self.table.clear()
        self.flocks.clear()
        self.lockfs.clear()
        held.difference_update([identity for identity in held if identity[0] == self.device])
        for node in {node.number: node for node, seen in self.mappings if is_mapped(seen)}.values():
            others = [view for view, seen in node.mappings if view is not self and is_mapped(seen)]
            if not node.opens and not others:
                content, old = node.cache(), node.fd
                node.fd = os.memfd_create(f"sim-{node.number}", os.MFD_CLOEXEC)
                os.pwrite(node.fd, content, 0)
                os.close(old)
        self.mappings.clear()

    def __del__(self) -> None:
        """Close what a process has open that was never killed: nobody is left to use it."""
        self.dead = True
        for fd in self.table:
            os.close(fd)


def is_mapped(seen: "weakref.ref[mmap.mmap]") -> bool:
    """Return whether a mapping is still there."""
    mapped = seen()
    return mapped is not None and not mapped.closed


def named(changes: list[Change]) -> list[Change]:
    """Return the changes that are still pending."""
    return [change for change in changes if not change.failed]
