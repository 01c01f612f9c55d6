"""SimDisk: a file system in memory that knows what a power loss would leave.

Contents are in memfds, so descriptors, mappings and `sendfile` are real. Names are the disk's own. Of each
file there are three contents:

    cache     the memfd: what everybody reads and writes
    clean     what the kernel takes for written: a page of the cache that differs from it is dirty
    platter   what the medium holds

A sync makes them equal. Writes through a mapping make no call, so dirty pages are found by comparing. A page
that is rewritten with the same bytes is known to be dirty only when that was done by `pwrite`.

**A failed sync** (EIO) marks all pages clean, and only some reached the medium: the next sync succeeds
without writing the others. Each descriptor that was open sees the error once, as in Linux. Pages that are
clean and not on the medium may be evicted (`evict`): then the old content is read.

**Names** change in the cache at once. Each change is durable when one of its directories was synced after it;
a change whose sync failed is never made durable by a later one. With `own_entry` a sync of a file also makes
the changes durable that gave it its name, as ext4 does.

**A power loss** keeps each dirty page, each changed size and each change of names by itself or not, as drawn;
a rename is kept whole or not at all. Then the cache is what the medium holds. The share that survives is
drawn first, from nothing to all, so that extremes occur.

**Blocks** are counted where a capacity is given: `posix_fallocate` and `pwrite` take them, `punch_hole` and
removing give them back. A mapped page without a block that was written while the disk is full would have been
a SIGBUS: that is an AssertionError at the next sync.
"""

import errno
import os
import random
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap

    from sim.files import SimFiles

__all__ = ["Directory", "Fault", "File", "SimDisk"]

PAGE = 4096
SECTOR = 512
STRIDE = 16 * PAGE
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)  # what of the dirty pages and changes survives a power loss
GROUPS = {"sync": ("fsync", "fdatasync"), "read": ("pread",), "write": ("pwrite",)}
UNLIMITED = 1 << 40  # bytes, of a disk without a capacity


def differing(one: bytes, other: bytes) -> list[int]:
    """Return the pages in which two contents differ; what one lacks differs."""
    if one == other:
        return []
    found = []
    size = max(len(one), len(other))
    for base in range(0, size, STRIDE):
        if one[base : base + STRIDE] != other[base : base + STRIDE]:
            found += [
                at // PAGE
                for at in range(base, min(base + STRIDE, size), PAGE)
                if one[at : at + PAGE] != other[at : at + PAGE]
            ]
    return found


def page_of(content: bytes, page: int) -> bytes:
    """Return one page, filled up with zeros."""
    return content[page * PAGE : (page + 1) * PAGE].ljust(PAGE, b"\0")


def patched(content: bytes, size: int, pages: dict[int, bytes]) -> bytes:
    """Return a content with a size and with some pages replaced."""
    made = bytearray(content[:size].ljust(size, b"\0"))
    for page, data in pages.items():
        if page * PAGE < size:
            made[page * PAGE : (page + 1) * PAGE] = data[: size - page * PAGE]
    return bytes(made)


class File:
    """A file without a name.

    Attributes:
        fd: of the memfd.
        clean, platter: see the module's text; the same object while no sync has failed.
        unwritten: pages that are taken for clean and are not on the medium.
        rewritten: pages written by calls since the last sync.
        blocks: pages with room on the disk.
        errors: failed syncs.
        mappings: made by processes.
    """

    def __init__(self, number: int, content: bytes = b"") -> None:
        self.number = number
        self.fd = os.memfd_create(f"sim-{number}", os.MFD_CLOEXEC)
        if content:
            os.pwrite(self.fd, content, 0)
        self.clean = self.platter = content
        self.unwritten: set[int] = set()
        self.rewritten: set[int] = set()
        self.blocks = set(range((len(content) + PAGE - 1) // PAGE))
        self.errors = self.begun = self.finished = 0
        self.inflight: list[bytes] = []
        self.links = self.opens = 0
        self.mtime = 0.0
        self.mappings: list[tuple[SimFiles, weakref.ref[mmap.mmap]]] = []

    def __del__(self) -> None:
        """Give the memory back; mappings keep theirs."""
        os.close(self.fd)

    @property
    def size(self) -> int:
        """Length in the cache."""
        return os.fstat(self.fd).st_size

    def cache(self) -> bytes:
        """Return what is in the cache."""
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)

    def dirty(self, content: bytes) -> set[int]:
        """Return the dirty pages of a content of the cache."""
        return set(differing(content, self.clean)) | self.rewritten

    def begin_sync(self) -> tuple[int, bytes]:
        """Take what a sync that begins now is about to write."""
        self.begun += 1
        content = self.cache()
        self.inflight.append(content)
        return self.begun, content

    def drop_sync(self, content: bytes) -> None:
        """Forget a sync that has ended, in whatever way."""
        self.inflight = [other for other in self.inflight if other is not content]

    def end_sync(self, number: int, content: bytes) -> None:
        """The sync succeeded: the content as it was at its begin is on the medium."""
        self.drop_sync(content)
        if number < self.finished:
            return  # one that began later has ended before
        self.finished = number
        if self.platter is self.clean and not self.unwritten:
            self.clean = self.platter = content
        else:
            written = {page: page_of(content, page) for page in self.dirty(content)}
            self.unwritten -= written.keys()
            self.platter = patched(self.platter, len(content), written)
            self.clean = content
        self.rewritten.clear()

    def fail_sync(self, number: int, content: bytes, rng: random.Random) -> None:
        """The sync failed: each page was written or not, and all count as written."""
        self.drop_sync(content)
        self.finished = max(self.finished, number)
        self.errors += 1
        dirty = sorted(self.dirty(content))
        written = {page: page_of(content, page) for page in dirty if rng.random() < 0.3}
        self.unwritten |= set(dirty) - written.keys()
        # The size is the file system's to write, not the page cache's: it may come with a later sync.
        size = max([len(self.platter), *(min(len(content), (page + 1) * PAGE) for page in written)])
        self.platter = patched(self.platter, size, written)
        self.clean = content
        self.rewritten.clear()

    def evict(self, rng: random.Random) -> int:
        """Drop clean pages from the cache, as drawn, and read the medium again; return how many differed."""
        content = self.cache()
        dirty = self.dirty(content)
        count = 0
        for page in sorted(self.unwritten):
            if page in dirty or page * PAGE >= len(content) or rng.random() < 0.5:
                continue
            old = page_of(self.platter, page)[: len(content) - page * PAGE]
            os.pwrite(self.fd, old, page * PAGE)
            self.clean = patched(self.clean, len(self.clean), {page: page_of(old, 0)})
            self.unwritten.discard(page)
            count += 1
        return count

    def write_back(self, rng: random.Random, share: float) -> None:
        """Write some dirty pages to the medium, as the kernel does by itself; size and names stay behind."""
        content = self.cache()
        written = {
            page: page_of(content, page) for page in sorted(self.dirty(content)) if rng.random() < share
        }
        if not written:
            return
        clean = patched(self.clean, max(len(self.clean), len(content)), written)[: len(content)]
        platter = patched(self.platter, len(self.platter), written)
        beyond = {page for page in written if (page + 1) * PAGE > len(self.platter)}
        self.rewritten = (
            self.rewritten - written.keys()
        ) | beyond  # the size is not written: they stay dirty
        self.unwritten -= written.keys()
        same = self.platter is self.clean and not self.unwritten and clean == platter
        self.clean, self.platter = clean, platter
        if same:
            self.clean = self.platter

    def survivor(self, rng: random.Random, share: float, atom: int) -> bytes:
        """Return what a power loss leaves.

        Args:
            share: of what was not synced survives, about.
            atom: bytes that survive as one.
        """
        content = self.cache()
        if content == self.platter:
            return content
        size = len(content)
        if size != len(self.platter) and rng.random() >= share:
            size = len(self.platter)
        pages = {}
        for page in sorted(self.dirty(content)):
            if page * PAGE >= len(content):
                continue  # it was cut off: its old content is there, or the size is the new one
            kept = bytearray(page_of(self.platter, page))
            for at in range(0, PAGE, atom):
                if rng.random() < share:
                    source = content
                    if self.inflight and rng.random() < 0.5:
                        source = rng.choice(self.inflight)
                    kept[at : at + atom] = page_of(source, page)[at : at + atom]
            pages[page] = bytes(kept)
        return patched(self.platter, size, pages)


class Directory:
    """A directory: its names in the cache, and on the medium."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.errors = self.links = self.opens = 0
        self.mtime = 0.0


Node = File | Directory


@dataclass(slots=True)
class Change:
    """One operation on names: kept whole or not at all."""

    sets: tuple[tuple[Directory, str, Node | None], ...]
    failed: bool = False  # a sync that was to make it durable failed

    def apply(self) -> None:
        """Make it durable."""
        for directory, name, node in self.sets:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node


@dataclass
class Fault:
    """What goes wrong with some calls.

    Attributes:
        calls: their names.
        path: pattern of what they are about.
        error: errno; 0 only makes writes short.
        nth: the first of the matching calls that is hit, from 1.
        times: how many are hit.
        seen, fired: calls that matched, and that were hit.
    """

    calls: tuple[str, ...]
    path: str = "*"
    error: int = errno.EIO
    nth: int = 1
    times: int = 1
    seen: int = field(default=0, init=False)
    fired: int = field(default=0, init=False)

    def hits(self, call: str, path: str) -> bool:
        """Count a call; return whether it is hit."""
        if call not in self.calls or not fnmatchcase(path, self.path):
            return False
        self.seen += 1
        hit = self.nth <= self.seen < self.nth + self.times
        self.fired += hit
        return hit


class SimDisk:
    """A file system.

    Attributes:
        capacity: in bytes, None for no limit; may change.
        crowded: tells whether others use most of it; there is room still.
        own_entry: whether a sync of a new file makes its name durable.
        punches: whether holes can be punched.
        atom: bytes of a page that survive a power loss as one: a page, or a sector of 512.
        views: of the processes that use it.
        losses: power losses so far.
    """

    def __init__(
        self,
        rng: random.Random | None = None,
        *,
        capacity: int | None = None,
        own_entry: bool = False,
        atom: int = PAGE,
    ) -> None:
        self.rng = rng or random.Random(0)
        self.capacity, self.own_entry, self.atom = capacity, own_entry, atom
        self.punches = True
        self.crowded: Callable[[], bool] = bool
        self.numbers = 0
        self.root = Directory(self.number())
        self.changes: list[Change] = []
        self.views: list[SimFiles] = []
        self.faults: list[Fault] = []
        self.refused = False  # by a fault that is forgotten
        self.losses = 0

    def number(self) -> int:
        """Return the next inode number."""
        self.numbers += 1
        return self.numbers

    # Names.

    def find(self, path: Path | str, *, durable: bool = False) -> Node | None:
        """Return what bears a path, in the cache or on the medium; None for nothing."""
        node: Node = self.root
        for name in (path if isinstance(path, Path) else Path(path)).parts[1:]:
            if not isinstance(node, Directory):
                return None
            found = (node.durable if durable else node.entries).get(name)
            if found is None:
                return None
            node = found
        return node

    def parent_of(self, path: Path) -> Directory:
        """Return the directory that holds a path's last name.

        Raises:
            FileNotFoundError, NotADirectoryError: there is none.
        """
        node: Node | None = self.root
        for name in path.parts[1:-1]:
            node = node.entries.get(name) if isinstance(node, Directory) else None
            if not isinstance(node, Directory):
                code = errno.ENOENT if node is None else errno.ENOTDIR
                raise OSError(code, os.strerror(code), str(path))
        assert isinstance(node, Directory)
        return node

    def change(self, *sets: tuple[Directory, str, Node | None]) -> None:
        """Change names in the cache, as one operation."""
        for directory, name, node in sets:
            old = directory.entries.pop(name, None)
            if old is not None:
                old.links -= 1
            if node is not None:
                node.links += 1
                directory.entries[name] = node
        self.changes.append(Change(sets))

    def pending(self, directory: Directory) -> list[Change]:
        """Return the changes that a sync of a directory makes durable."""
        return [
            change
            for change in self.changes
            if not change.failed and any(where is directory for where, _, _ in change.sets)
        ]

    def pending_names(self, node: Node) -> list[Change]:
        """Return the changes that gave a file its names, and its parents theirs."""
        wanted: list[Node] = [node]
        found: list[Change] = []
        for change in reversed(self.changes):
            if not change.failed and any(any(what is one for one in wanted) for _, _, what in change.sets):
                found.insert(0, change)
                wanted += [where for where, _, _ in change.sets]
        return found

    def settle(self, changes: list[Change]) -> None:
        """Make changes durable, in their order. Earlier ones of the same names have no effect any more."""
        left: list[Change] = []
        for change in self.changes:
            if not any(change is one for one in changes):
                left.append(change)
                continue
            change.apply()
            for earlier in left:
                earlier.sets = tuple(
                    one
                    for one in earlier.sets
                    if not any(one[0] is where and one[1] == name for where, name, _ in change.sets)
                )
        self.changes = [change for change in left if change.sets]

    def format(self, path: Path | str) -> None:
        """Make a directory and its parents, durable at once."""
        node = self.root
        for name in Path(path).parts[1:]:
            inner = node.entries.get(name)
            if inner is None:
                inner = Directory(self.number())
                inner.links = 1
                node.entries[name] = node.durable[name] = inner
            assert isinstance(inner, Directory)
            node = inner

    def walk(self, *, durable: bool = False) -> Iterator[tuple[str, Node]]:
        """Yield (path, file or directory) of all there is, in order of names."""
        waiting: list[tuple[str, Node]] = [("", self.root)]
        while waiting:
            path, node = waiting.pop()
            yield path or "/", node
            if isinstance(node, Directory):
                inner = node.durable if durable else node.entries
                waiting += [(f"{path}/{name}", inner[name]) for name in sorted(inner, reverse=True)]

    # What tests ask for.

    def tree(self, path: Path | str) -> dict[str, bytes | None]:
        """Return what is below a directory, as processes see it: bytes by name, None for a directory."""
        below = f"{path}/"
        return {
            name.removeprefix(below): node.cache() if isinstance(node, File) else None
            for name, node in self.walk()
            if name.startswith(below)
        }

    def put_tree(self, path: Path | str, tree: dict[str, bytes | None]) -> None:
        """Have this below a directory and nothing else, in new files, durable at once."""
        top = self.find(path)
        assert isinstance(top, Directory), path
        self.changes = []
        top.entries, top.durable = {}, {}
        places: dict[str, Directory] = {"": top}
        for name in sorted(tree):
            parent, _, last = name.rpartition("/")
            content = tree[name]
            node: Node = Directory(self.number()) if content is None else File(self.number(), content)
            node.links = 1
            if isinstance(node, Directory):
                places[name] = node
            places[parent].entries[last] = places[parent].durable[last] = node

    def content(self, path: Path | str) -> bytes:
        """Return a file's bytes as processes see them."""
        node = self.find(path)
        assert isinstance(node, File), path
        return node.cache()

    def durable(self, path: Path | str) -> bytes | None:
        """Return what would be read after a power loss that keeps nothing; None when the name would be gone.

        A file that bears the name on the medium but no longer in the cache counts.
        """
        node = self.find(path, durable=True)
        return node.platter if isinstance(node, File) else None

    def inject(
        self, call: str, *, error: int = errno.EIO, path: str = "*", nth: int = 1, times: int = 1
    ) -> Fault:
        """Have calls fail from now on.

        Args:
            call: a call of `Files`, or "sync", "read", "write".
            error: errno; 0 makes a write take a part only.
            path: pattern of full paths, as of `fnmatch`; descriptors count by the name that was opened.
            nth: the first matching call that fails.
            times: how many fail.
        """
        fault = Fault(GROUPS.get(call, (call,)), path, error, nth, times)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget all injected faults."""
        self.refused = self.has_refused
        self.faults.clear()

    @property
    def has_refused(self) -> bool:
        """Whether a call has failed by an injected fault."""
        return self.refused or any(fault.fired for fault in self.faults)

    def flip(self, path: Path | str, bit: int) -> None:
        """Flip a bit at rest: on the medium, and in the cache unless its page is dirty there."""
        node = self.find(path)
        assert isinstance(node, File), path
        at, page = bit // 8, bit // 8 // PAGE
        value = bytes((node.platter[at] ^ 1 << bit % 8,))
        content = node.cache()
        dirty = page in node.dirty(content)
        same = node.platter is node.clean
        node.platter = node.platter[:at] + value + node.platter[at + 1 :]
        if same:
            node.clean = node.platter
        if not dirty and page not in node.unwritten:
            os.pwrite(node.fd, value, at)
            if not same:
                node.clean = node.clean[:at] + value + node.clean[at + 1 :]

    def evict(self, rng: random.Random | None = None) -> int:
        """Drop pages from the cache that a failed sync left unwritten; return how many."""
        return sum(node.evict(rng or self.rng) for node in self.files())

    def write_back(self, share: float = 0.5, rng: random.Random | None = None) -> None:
        """Write dirty pages of all files, as the kernel does by itself; about that share of them."""
        for node in self.files():
            node.write_back(rng or self.rng, share)

    def files(self) -> list[File]:
        """Return all files that have a name, each once, in order of names."""
        found: dict[int, File] = {}
        for _, node in self.walk():
            if isinstance(node, File):
                found.setdefault(node.number, node)
        return list(found.values())

    # Room.

    @property
    def used(self) -> int:
        """Bytes in blocks, of files that have a name or are open."""
        nodes = {node.number: node for node in self.files()}
        for view in self.views:
            for opened in view.table.values():
                if isinstance(opened.node, File):
                    nodes[opened.node.number] = opened.node
        return sum(len(node.blocks) for node in nodes.values()) * PAGE

    @property
    def free(self) -> int:
        """Bytes left."""
        return UNLIMITED if self.capacity is None else self.capacity - self.used

    def take_blocks(self, node: File, start: int, length: int) -> int:
        """Give a range of a file blocks; return how many bytes of it have some, from its begin."""
        if length <= 0:
            return 0
        pages = range(start // PAGE, (start + length - 1) // PAGE + 1)
        missing = [page for page in pages if page not in node.blocks]
        if self.capacity is not None and missing:
            room = max(self.free // PAGE, 0)
            if len(missing) > room:
                node.blocks.update(missing[:room])
                return max(0, missing[room] * PAGE - start)
        node.blocks.update(missing)
        return length

    def check_blocks(self, node: File, content: bytes) -> None:
        """Give mapped pages that were written their blocks.

        Raises:
            AssertionError: there is no room: writing them would have killed the process.
        """
        missing = [page for page in differing(content, node.clean) if page not in node.blocks]
        missing = [page for page in missing if content[page * PAGE : (page + 1) * PAGE].strip(b"\0")]
        if missing:
            assert len(missing) * PAGE <= self.free, (
                f"SIGBUS: pages {missing} were written, and have no blocks"
            )
            node.blocks.update(missing)

    # The end.

    def power_loss(self, rng: random.Random | None = None, *, share: float | None = None) -> None:
        """Lose what was not durable, as drawn. All processes are dead then; their memory stays theirs.

        Args:
            share: of pages and changes that survives, about; None draws one for each.
        """
        rng = rng or self.rng
        pages, names = (rng.choice(SHARES), rng.choice(SHARES)) if share is None else (share, share)
        for change in self.changes:
            if rng.random() < names:
                change.apply()
        self.changes = []
        made: dict[int, Node] = {}

        def rebuilt(node: Node) -> Node:
            if node.number in made:
                return made[node.number]
            fresh: Node
            if isinstance(node, File):
                fresh = made[node.number] = File(node.number, node.survivor(rng, pages, self.atom))
                fresh.blocks |= {page for page in node.blocks if page * PAGE < len(fresh.platter)}
            else:
                fresh = made[node.number] = Directory(node.number)
                for name in sorted(node.durable):
                    inner = rebuilt(node.durable[name])
                    inner.links += 1
                    fresh.entries[name] = fresh.durable[name] = inner
            fresh.mtime = node.mtime
            return fresh

        root = rebuilt(self.root)
        assert isinstance(root, Directory)
        self.root = root
        self.losses += 1
        for view in list(self.views):
            view.kill()

    def export(self, path: Path | str, destination: Path) -> None:
        """Copy a directory as processes see it to a real one, for tools that read real files."""
        base = str(path).rstrip("/")
        for name, node in self.walk():
            if name == base or name.startswith(base + "/"):
                target = destination / name[len(base) + 1 :]
                if isinstance(node, Directory):
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    target.write_bytes(node.cache())
