"""What a process takes from its machine: files, clocks, threads, and the id of the machine's boot.

Store, tables and replicator ask the operating system for these through a `Machine` that they are given, so
that a test can put another one in its place: a disk that loses what was not synced, a clock that it turns,
threads that it interleaves. `MACHINE` is the real one and the default everywhere.

It is no layer of its own: `Files` has the calls of `os`, as they are, under one roof. A call through it costs
some 50 ns beside a system call, and nothing where a hot path works on a mapping. A mapping for writing holds
no descriptor: there may be as many as the kernel allows mappings, whatever the limit of open files is.

    files       descriptors, names, mappings, syncs; errors are OSError as the kernel gives them
    clocks      `monotonic` for waits, `wall_ns` for what is written down
    workers     a function that runs in a thread of its own when it is woken, or by interval
    locks       what a worker and its owner share
    boot id     differs between two boots; within one, the page cache has lost nothing
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import shutil
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from whimbrel.errors import StoreError
from whimbrel.lane import Lane

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "FILES",
    "MACHINE",
    "Files",
    "Identity",
    "Machine",
    "Worker",
    "mappings_allowed",
    "open_files_limit",
]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MAP_COUNT = Path("/proc/sys/vm/max_map_count")
MAPPINGS_USUAL = 65_530  # what Linux allows unless it is told otherwise
MADV_DONTNEED = 4
MADV_POPULATE_WRITE = 23  # Linux 5.14; an older kernel refuses it, and pages come with page faults
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
MAP_FIXED = 0x10
OPEN_FILES_WANTED = 1 << 16  # a connection holds a descriptor, and the usual soft limit is 1024
FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, pid
CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
COPY_BYTES = 1 << 20
AT_EMPTY_PATH = 0x1000
STATX_INO, STATX_BTIME = 0x100, 0x800
STATX_BYTES = 256
STATX = struct.Struct("=I28xQ40xqI")  # struct statx: mask, inode, birth time in seconds and nanoseconds
FS_IOC_GETVERSION = 0x80087601
STATFS_BYTES = 256
STATFS = struct.Struct("@l")  # struct statfs: the type
# FUSE and virtiofs, NFS, 9p, SMB in three forms: what they say of inodes may change with each mount.
CHANGING_INODES = frozenset({0x65735546, 0x6969, 0x01021997, 0xFF534D42, 0xFE534D42, 0x517B})

libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p


class Identity(NamedTuple):
    """What tells a file from any copy of it, as long as its file system is the same.

    An inode alone does not: `rm` and `cp` reuse it. Neither does the device's number, which changes with a
    reboot.

    Attributes:
        birth_ns: when it was made, since the epoch; 0 where the file system does not say.
        generation: of the inode, as drawn when the file was made; -1 where the file system has none.
    """

    inode: int
    birth_ns: int
    generation: int

    def is_copy_of(self, other: "Identity") -> bool:
        """Return whether this can't be the same file."""
        if self.inode != other.inode:
            return True
        births, generations = {self.birth_ns, other.birth_ns}, {self.generation, other.generation}
        return (len(births) > 1 and 0 not in births) or (len(generations) > 1 and -1 not in generations)


class Files:
    """The file system. A subclass replaces the system calls; what is built from them below stays."""

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """As `os.open`."""
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        """As `os.close`."""
        os.close(fd)

    def fstat(self, fd: int) -> os.stat_result:
        """As `os.fstat`."""
        return os.fstat(fd)

    def identity(self, fd: int) -> Identity | None:
        """Return what tells a file from its copies; None where the file system has nothing that stays.

        By statx(2), FS_IOC_GETVERSION of ioctl_fs(2), and the type by fstatfs(2).
        """
        return identity_of(fd)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """As `os.pread`."""
        return os.pread(fd, length, position)

    def next_data(self, fd: int, position: int) -> int:
        """Return where a file has anything but a hole next, `position` itself if there; -1 for nowhere.

        What was allocated and never written is a hole. A file system that knows none says `position`.
        """
        try:
            return os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return -1
            if error.errno == errno.EINVAL:
                return position
            raise

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        """As `os.pwrite`: it may take fewer bytes than there are."""
        return os.pwrite(fd, data, position)

    def ftruncate(self, fd: int, length: int) -> None:
        """As `os.ftruncate`."""
        os.ftruncate(fd, length)

    def posix_fallocate(self, fd: int, start: int, length: int) -> None:
        """As `os.posix_fallocate`."""
        os.posix_fallocate(fd, start, length)

    def fdatasync(self, fd: int) -> None:
        """As `os.fdatasync`. An error is final: a later call may succeed without having written anything."""
        os.fdatasync(fd)

    def write_back_all(self, fd: int) -> None:
        """Write back what is dirty on a file's file system, of all files and writers, and wait for that.

        Syncs of many files that follow find little left to do. It vouches for none of them: errors are theirs
        to find, and a failure here is harmless.
        """
        libc.syncfs(fd)

    def fsync(self, fd: int) -> None:
        """As `os.fsync`, also for directories."""
        os.fsync(fd)

    def stat(self, path: Path) -> os.stat_result:
        """As `os.stat`."""
        return os.stat(path)

    def statvfs(self, path: Path) -> os.statvfs_result:
        """As `os.statvfs`."""
        return os.statvfs(path)

    def listdir(self, path: Path) -> list[str]:
        """As `os.listdir`."""
        return os.listdir(path)

    def mkdir(self, path: Path) -> None:
        """As `os.mkdir`."""
        os.mkdir(path)

    def rmdir(self, path: Path) -> None:
        """As `os.rmdir`."""
        os.rmdir(path)

    def rename(self, old: Path, new: Path) -> None:
        """As rename(2): what bears the new name is replaced."""
        os.replace(old, new)

    def link(self, old: Path, new: Path) -> None:
        """As `os.link`."""
        os.link(old, new)

    def remove(self, path: Path) -> None:
        """As `os.unlink`."""
        os.unlink(path)

    def real_path(self, path: Path) -> Path:
        """As `os.path.realpath`."""
        return Path(os.path.realpath(path))

    def copy_status(self, old: Path, new: Path) -> None:
        """Give a file the times and the mode of another one, and its owner where that is allowed."""
        shutil.copystat(old, new)
        found = os.stat(old)
        with contextlib.suppress(PermissionError):
            os.chown(new, found.st_uid, found.st_gid)

    def flock(self, fd: int, operation: int) -> None:
        """As `fcntl.flock`."""
        fcntl.flock(fd, operation)

    def lockf(self, fd: int, operation: int, length: int) -> None:
        """As `fcntl.lockf`, from the file's begin."""
        fcntl.lockf(fd, operation, length)

    def is_locked(self, fd: int) -> bool:
        """Whether another process has the first byte locked, by `lockf`; asked, not tried."""
        asked = fcntl.fcntl(fd, fcntl.F_GETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        return int(FLOCK.unpack(asked)[0]) != fcntl.F_UNLCK

    def map(self, fd: int, size: int, *, writable: bool = True) -> mmap.mmap:
        """Map a file from its begin; its pages are shared with all who map it.

        `fd` may be closed at once: a mapping for writing holds no descriptor. Up to Python 3.12 one for
        reading has its own.

        Args:
            fd: of the file, open for reading, and for writing where the mapping is.
            size: in bytes, above 0; `len` of the mapping says it (its method `size` needs a descriptor).

        Raises:
            ValueError: the file is shorter; a page behind its end would end the process with SIGBUS.
            OSError: the kernel refuses, as for ENOMEM when the process has too many mappings.
        """
        return map_file(fd, size, writable=writable)

    def punch_hole(self, fd: int, start: int, length: int) -> bool:
        """Make a range zeros by taking its blocks; return whether the file system can."""
        flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        return bool(libc.fallocate(fd, flags, start, length) == 0)

    def populate(self, address: int, length: int) -> None:
        """Make mapped pages present and writable. A failure is harmless: they come with page faults."""
        libc.madvise(address, length, MADV_POPULATE_WRITE)

    def release(self, address: int, length: int) -> None:
        """Take pages of a shared mapping from this process; what was written stays in the page cache."""
        libc.madvise(address, length, MADV_DONTNEED)

    # Built from the calls above.

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or directory of that name."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: Path) -> int:
        """Return a file's length in bytes."""
        return self.stat(path).st_size

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory in order; none when there is no such directory."""
        try:
            return sorted(self.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_directories(self, path: Path) -> None:
        """Make a directory and its parents where they are missing; nothing is synced."""
        try:
            self.mkdir(path)
        except FileExistsError:
            return
        except FileNotFoundError:
            self.make_directories(path.parent)
            self.make_directories(path)

    def make_directory(self, path: Path) -> None:
        """Make a directory and the parents that are missing; their names are on disk."""
        missing = []
        while not self.exists(path):
            missing.append(path)
            path = path.parent
        for made in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process of the store made it meanwhile
                self.mkdir(made)
            with contextlib.suppress(PermissionError):  # above the store there may be one that we can't read
                self.sync_directory(made.parent)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a name."""
        try:
            self.remove(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_tree(self, path: Path) -> None:
        """Remove a file, or a directory with all that is in it; nothing where there is none."""
        if not self.exists(path):
            return
        if not stat.S_ISDIR(self.stat(path).st_mode):
            self.unlink(path)
            return
        for name in self.names(path):
            self.remove_tree(path / name)
        self.rmdir(path)

    def read_bytes(self, path: Path) -> bytes:
        """Return a whole file."""
        fd = self.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            position = 0
            while piece := self.pread(fd, COPY_BYTES, position):
                pieces.append(piece)
                position += len(piece)
            return b"".join(pieces)
        finally:
            self.close(fd)

    def write_all(self, fd: int, data: bytes | memoryview, position: int) -> None:
        """Write all bytes at a position; the kernel may take them in pieces."""
        written = self.pwrite(fd, data, position)
        while written < len(data):
            written += self.pwrite(fd, memoryview(data)[written:], position + written)

    def write_new(self, path: Path, *pieces: "ReadableBuffer") -> None:
        """Write a file anew and wait for the disk; its name is durable after `sync_directory`."""
        fd = self.open(path, CREATE, 0o644)
        try:
            position = 0
            for piece in pieces:
                with memoryview(piece) as data:
                    self.write_all(fd, data, position)
                    position += data.nbytes
            self.fsync(fd)
        finally:
            self.close(fd)

    def touch(self, path: Path) -> None:
        """Make an empty file, unless it is there."""
        self.close(self.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def sync_directory(self, path: Path) -> None:
        """Put on disk which files a directory holds, and by which names."""
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def discard(self, path: Path) -> None:
        """Remove a name, where there is one, and put that on disk."""
        if self.exists(path):
            self.unlink(path)
            self.sync_directory(path.parent)


def identity_of(fd: int) -> Identity | None:
    """See `Files.identity`."""
    kind, found = ctypes.create_string_buffer(STATFS_BYTES), ctypes.create_string_buffer(STATX_BYTES)
    if libc.fstatfs(fd, kind) or STATFS.unpack_from(kind)[0] & 0xFFFFFFFF in CHANGING_INODES:
        return None
    statx = getattr(libc, "statx", None)  # glibc 2.28, musl 1.2.5
    if statx is None or statx(fd, b"", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, found):
        return None
    mask, inode, seconds, nanoseconds = STATX.unpack_from(found)
    birth_ns = seconds * 1_000_000_000 + nanoseconds if mask & STATX_BTIME else 0
    try:
        generation = int.from_bytes(fcntl.ioctl(fd, FS_IOC_GETVERSION, bytes(8))[:4], sys.byteorder)
    except OSError:
        generation = -1
    return Identity(inode, birth_ns, generation) if birth_ns or generation >= 0 else None


if sys.version_info >= (3, 13):

    def map_file(fd: int, size: int, *, writable: bool) -> mmap.mmap:
        """See `Files.map`."""
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(fd, size, access=access, trackfd=False)

else:

    def map_file(fd: int, size: int, *, writable: bool) -> mmap.mmap:
        """See `Files.map`.

        Up to Python 3.12, `mmap` keeps a descriptor of its own for each file. It has none for memory that
        belongs to no file, so the file is mapped over such memory. An object of that kind takes itself for
        writable: one for reading only is mapped as usual, so that a store into it is an exception and not a
        signal.
        """
        if not writable:
            return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        if os.fstat(fd).st_size < size:
            raise ValueError("mmap length is greater than file size")
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        if libc.mmap(address, size, protection, mmap.MAP_SHARED | MAP_FIXED, fd, 0) != address:
            code = ctypes.get_errno()
            mapped.close()
            raise OSError(code, os.strerror(code))
        return mapped


class Worker(Protocol):
    """A function with a thread of its own, run once for any number of `wake` since it last began."""

    def wake(self) -> None:
        """Have it run soon; from any thread."""

    def wait(self) -> None:
        """Wait until it has run for every `wake` so far, and does not run."""

    def stop(self) -> None:
        """End the thread after the current run; a `wake` that is not served yet is dropped."""


class ThreadWorker:
    """A worker with a thread of the system."""

    def __init__(self, name: str, work: Callable[[], None], interval_s: float | None) -> None:
        self.work = work
        self.interval_s = interval_s
        self.signal = threading.Condition()
        self.wanted = self.running = self.stopping = False
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)
        self.thread.start()

    def wake(self) -> None:
        """See `Worker`."""
        if not self.wanted:  # mostly it is awake already; a `wake` that is missed here is one that is served
            with self.signal:
                self.wanted = True
                self.signal.notify_all()

    def wait(self) -> None:
        """See `Worker`."""
        with self.signal:
            self.signal.wait_for(lambda: self.stopping or not (self.wanted or self.running))

    def stop(self) -> None:
        """See `Worker`."""
        with self.signal:
            self.stopping = True
            self.signal.notify_all()
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def run(self) -> None:
        """The thread's loop."""
        while True:
            with self.signal:
                self.signal.wait_for(lambda: self.wanted or self.stopping, self.interval_s)
                if self.stopping:
                    return
                self.wanted, self.running = False, True
            try:
                self.work()
            finally:
                with self.signal:
                    self.running = False
                    self.signal.notify_all()


class Machine:
    """One machine, as one of its processes sees it, and the compiled lane of that process."""

    files: Files
    monotonic = staticmethod(time.monotonic)  # seconds
    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)  # since the epoch
    random_bytes = staticmethod(os.urandom)  # so many that nobody else draws

    def __init__(self, files: Files | None = None, lane: Lane | None = None) -> None:
        self.files = files or Files()
        if lane is not None:
            self.lane = lane

    @cached_property
    def lane(self) -> Lane:
        """The lane of this process; where nobody has chosen one, that of the environment.

        Raises:
            StoreError: the environment says nonsense, or requires one that can't be used.
        """
        return Lane.of_environment()

    def wall_ms(self) -> int:
        """Return the wall clock in epoch milliseconds."""
        return self.wall_ns() // 1_000_000

    def boot_id(self) -> bytes:
        """Return 16 bytes that differ between two boots of the machine.

        Raises:
            StoreError: the kernel does not tell.
        """
        try:
            return bytes.fromhex(BOOT_ID.read_text().strip().replace("-", ""))
        except (OSError, ValueError) as error:
            raise StoreError(f"{BOOT_ID} can't be read: {error}") from error

    def worker(self, name: str, work: Callable[[], None], interval_s: float | None = None) -> Worker:
        """Start a worker.

        Args:
            name: of its thread.
            work: what it runs; an error that it raises ends the thread.
            interval_s: also run it after so long without a `wake`; None: never.
        """
        return ThreadWorker(name, work, interval_s)

    def lock(self) -> AbstractContextManager[Any]:
        """Return a lock for what a worker and its owner share."""
        return threading.Lock()


def open_files_limit() -> int:
    """Raise the process's limit of open files as far as it may and is useful; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return OPEN_FILES_WANTED if soft == resource.RLIM_INFINITY else soft


@cache
def mappings_allowed() -> int:
    """Return how many mappings the kernel allows a process."""
    try:
        return int(MAP_COUNT.read_text())
    except (OSError, ValueError):
        return MAPPINGS_USUAL


FILES = Files()
MACHINE = Machine(FILES)
