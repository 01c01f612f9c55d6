"""The simulated disk keeps and loses what Linux would."""

import errno
import fcntl
import os
import random
from pathlib import Path

import pytest

from sim.disk import SECTOR, SimDisk
from sim.files import SimFiles
from sim.scheduler import Crash
from whimbrel.machine import FILES, Files

PAGE = 4096
ROOT = Path("/store")
FILE = ROOT / "file"
CREATE = os.O_RDWR | os.O_CREAT


def make_disk(**options: int) -> tuple[SimDisk, SimFiles]:
    disk = SimDisk(random.Random(1), **options)  # type: ignore[arg-type]
    disk.format(ROOT)
    return disk, SimFiles(disk)


def write(files: SimFiles, path: Path, data: bytes, *, sync: bool = False) -> int:
    fd = files.open(path, CREATE, 0o644)
    files.write_all(fd, data, 0)
    if sync:
        files.fsync(fd)
        files.sync_directory(path.parent)
    return fd


def after_loss(disk: SimDisk, share: float = 0.0) -> SimFiles:
    disk.power_loss(share=share)
    return SimFiles(disk)


def test_what_was_not_synced_is_lost_and_what_was_is_not() -> None:
    disk, files = make_disk()
    fd = write(files, FILE, b"a" * PAGE * 2, sync=True)
    files.pwrite(fd, b"b" * PAGE, PAGE)
    write(files, ROOT / "other", b"x")
    assert disk.durable(FILE) == b"a" * PAGE * 2
    assert disk.durable(ROOT / "other") is None
    files = after_loss(disk)
    assert files.read_bytes(FILE) == b"a" * PAGE * 2
    assert files.names(ROOT) == ["file"]


def test_pages_and_names_survive_each_by_itself() -> None:
    seen = set()
    names = set()
    for seed in range(60):
        disk, files = make_disk()
        fd = write(files, FILE, bytes(PAGE * 2), sync=True)
        files.pwrite(fd, b"b" * PAGE * 2, 0)
        files.touch(ROOT / "x")
        files.touch(ROOT / "y")
        disk.power_loss(random.Random(seed))
        content = disk.content(FILE)
        seen.add((content[0], content[PAGE]))
        names.add(tuple(SimFiles(disk).names(ROOT)))
    assert seen == {(0, 0), (98, 0), (0, 98), (98, 98)}
    assert names == {("file",), ("file", "x"), ("file", "y"), ("file", "x", "y")}


def test_a_page_may_be_torn_between_sectors_where_that_is_asked_for() -> None:
    torn = 0
    for seed in range(30):
        disk, files = make_disk(atom=SECTOR)
        fd = write(files, FILE, bytes(PAGE), sync=True)
        files.pwrite(fd, b"b" * PAGE, 0)
        disk.power_loss(random.Random(seed), share=0.5)
        sectors = {disk.content(FILE)[at] for at in range(0, PAGE, SECTOR)}
        torn += len(sectors) == 2
    assert torn > 20


def test_a_rename_is_kept_whole_or_not_at_all() -> None:
    found = set()
    for seed in range(40):
        disk, files = make_disk()
        write(files, FILE, b"old", sync=True)
        write(files, ROOT / "draft", b"new", sync=True)
        files.rename(ROOT / "draft", FILE)
        disk.power_loss(random.Random(seed))
        files = SimFiles(disk)
        found.add((tuple(files.names(ROOT)), files.read_bytes(FILE)))
    assert found == {(("file",), b"new"), (("draft", "file"), b"old")}


def test_a_name_that_a_durable_rename_took_away_does_not_come_back() -> None:
    for seed in range(10):
        disk, files = make_disk()
        files.mkdir(ROOT / "inner")
        files.sync_directory(ROOT)
        write(files, ROOT / "draft", b"x")
        files.rename(ROOT / "draft", ROOT / "inner" / "file")
        files.sync_directory(ROOT / "inner")
        disk.power_loss(random.Random(seed), share=1.0)
        files = SimFiles(disk)
        assert (files.names(ROOT), files.names(ROOT / "inner")) == (["inner"], ["file"])


def test_a_link_and_a_removed_name_are_durable_with_their_directory() -> None:
    disk, files = make_disk()
    write(files, FILE, b"old", sync=True)
    files.link(FILE, ROOT / "second")
    files.unlink(FILE)
    assert disk.durable(FILE) == b"old"
    files.sync_directory(ROOT)
    assert disk.durable(FILE) is None
    assert after_loss(disk).read_bytes(ROOT / "second") == b"old"


def test_a_directory_needs_its_parent_synced() -> None:
    disk, files = make_disk()
    files.mkdir(ROOT / "inner")
    write(files, ROOT / "inner" / "file", b"x", sync=True)
    assert disk.durable(ROOT / "inner" / "file") is None
    files.sync_directory(ROOT)
    assert disk.durable(ROOT / "inner" / "file") == b"x"


def test_a_synced_file_has_its_name_where_the_file_system_is_kind() -> None:
    disk, files = make_disk(own_entry=True)
    files.mkdir(ROOT / "inner")
    files.fsync(write(files, ROOT / "inner" / "file", b"x"))
    files.touch(ROOT / "inner" / "other")
    assert after_loss(disk).names(ROOT / "inner") == ["file"]


def test_what_is_written_through_a_mapping_is_dirty_until_it_is_synced() -> None:
    disk, files = make_disk()
    fd = write(files, FILE, bytes(PAGE * 4), sync=True)
    mapped = files.map(fd, PAGE * 4)
    mapped[PAGE * 2] = 7
    other = files.map(fd, PAGE * 4, writable=False)
    assert other[PAGE * 2] == 7
    assert disk.durable(FILE) == bytes(PAGE * 4)
    files.fdatasync(fd)
    assert (disk.durable(FILE) or b"")[PAGE * 2] == 7


def test_after_a_failed_sync_the_next_succeeds_without_writing() -> None:
    lost = evicted = 0
    for seed in range(20):
        disk, files = make_disk()
        disk.rng = random.Random(seed)
        fd = write(files, FILE, bytes(PAGE * 8), sync=True)
        files.pwrite(fd, b"b" * PAGE * 8, 0)
        disk.inject("sync", path="*/file")
        with pytest.raises(OSError, match="Input/output error"):
            files.fdatasync(fd)
        files.fdatasync(fd)
        assert files.read_bytes(FILE) == b"b" * PAGE * 8
        lost += (disk.durable(FILE) or b"").count(b"\0") // PAGE
        evicted += disk.evict(random.Random(seed))
        files.pwrite(fd, b"b" * PAGE * 8, 0)  # written again, it is dirty again
        files.fdatasync(fd)
        assert disk.durable(FILE) == b"b" * PAGE * 8
    assert 0 < evicted < lost < 160


def test_each_open_descriptor_learns_of_a_failed_sync_once() -> None:
    disk, files = make_disk()
    fd = write(files, FILE, b"a", sync=True)
    other = files.open(FILE, os.O_RDONLY)
    files.pwrite(fd, b"b", 0)
    disk.inject("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        files.fdatasync(fd)
    with pytest.raises(OSError, match="Input/output"):
        files.fdatasync(other)
    files.fdatasync(other)
    files.fdatasync(files.open(FILE, os.O_RDONLY))


def test_names_whose_sync_failed_are_not_made_durable_by_the_next() -> None:
    disk, files = make_disk()
    write(files, FILE, b"a")
    disk.inject("fsync", path=str(ROOT))
    with pytest.raises(OSError, match="Input/output"):
        files.sync_directory(ROOT)
    files.sync_directory(ROOT)
    assert disk.durable(FILE) is None


def test_the_nth_call_fails_and_no_other() -> None:
    disk, files = make_disk()
    fd = write(files, FILE, b"a")
    fault = disk.inject("write", error=errno.ENOSPC, nth=2)
    files.pwrite(fd, b"b", 0)
    with pytest.raises(OSError, match="No space"):
        files.pwrite(fd, b"c", 0)
    files.pwrite(fd, b"d", 0)
    assert (fault.seen, fault.fired) == (3, 1)
    disk.inject("read", path="/elsewhere/*")
    assert files.read_bytes(FILE) == b"d"


def test_a_short_write_takes_a_part() -> None:
    disk, files = make_disk()
    disk.inject("write", error=0)
    fd = files.open(FILE, CREATE, 0o644)
    assert 0 < files.pwrite(fd, b"x" * 100, 0) < 100
    files.write_all(fd, b"y" * 100, 0)
    assert files.read_bytes(FILE) == b"y" * 100


@pytest.mark.parametrize("simulated", [False, True])
def test_holes_are_passed_over(tmp_path: Path, *, simulated: bool) -> None:
    files, path = (make_disk()[1], FILE) if simulated else (FILES, tmp_path / "file")
    fd = files.open(path, CREATE, 0o644)
    files.posix_fallocate(fd, 0, 64 * PAGE)
    assert files.next_data(fd, 0) == -1
    files.pwrite(fd, b"x", 40 * PAGE + 5)
    assert files.next_data(fd, 0) == 40 * PAGE
    assert files.next_data(fd, 40 * PAGE + 7) == 40 * PAGE + 7
    assert files.next_data(fd, 41 * PAGE) == -1
    assert files.next_data(fd, 65 * PAGE) == -1
    files.close(fd)


def test_room_is_taken_by_blocks_and_given_back() -> None:
    disk, files = make_disk(capacity=8 * PAGE)
    fd = files.open(FILE, CREATE, 0o644)
    files.posix_fallocate(fd, 0, 6 * PAGE)
    with pytest.raises(OSError, match="No space"):
        files.posix_fallocate(fd, 6 * PAGE, 3 * PAGE)
    assert disk.free == 0
    assert files.punch_hole(fd, 0, 4 * PAGE + 1)
    assert disk.free == 4 * PAGE
    other = write(files, ROOT / "other", b"x" * 3 * PAGE)
    assert files.pwrite(other, b"y" * 2 * PAGE, 3 * PAGE) == PAGE
    with pytest.raises(OSError, match="No space"):
        files.pwrite(other, b"y", 5 * PAGE)
    files.unlink(ROOT / "other")
    assert disk.free == 0  # it is open still
    files.close(other)
    assert disk.free == 4 * PAGE


def test_a_mapped_page_without_room_is_a_fault_of_who_writes_it() -> None:
    _, files = make_disk(capacity=PAGE)
    fd = files.open(FILE, CREATE, 0o644)
    files.ftruncate(fd, 4 * PAGE)
    mapped = files.map(fd, 4 * PAGE)
    mapped[0] = mapped[PAGE] = 1
    with pytest.raises(AssertionError, match="SIGBUS"):
        files.fdatasync(fd)
    mapped.close()


def test_descriptors_run_out() -> None:
    _, files = make_disk()
    files.descriptors_max = 2
    fd = write(files, FILE, bytes(PAGE))
    mapped = files.map(fd, PAGE)
    other = files.open(FILE, os.O_RDONLY)
    with pytest.raises(OSError, match="Too many open files"):
        files.open(FILE, os.O_RDONLY)
    files.close(other)
    files.open(FILE, os.O_RDONLY)
    mapped.close()


def test_mappings_run_out() -> None:
    _, files = make_disk()
    files.mappings_max = 1
    fd = write(files, FILE, bytes(PAGE))
    mapped = files.map(fd, PAGE)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        files.map(fd, PAGE)
    mapped.close()
    files.map(fd, PAGE).close()


def test_a_flipped_bit_is_read_and_lasts() -> None:
    disk, files = make_disk()
    write(files, FILE, bytes(10), sync=True)
    disk.flip(FILE, 8 * 3 + 1)
    assert files.read_bytes(FILE)[3] == 2
    assert after_loss(disk).read_bytes(FILE)[3] == 2


def test_a_killed_process_leaves_the_cache_and_frees_its_locks() -> None:
    disk, files = make_disk()
    fd = write(files, FILE, bytes(PAGE))
    mapped = files.map(fd, PAGE)
    mapped[0] = 1
    files.flock(fd, fcntl.LOCK_EX)
    files.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    other = SimFiles(disk)
    there = other.open(FILE, os.O_RDWR)
    for take in (other.flock, lambda fd, how: other.lockf(fd, how, 1)):
        with pytest.raises(BlockingIOError):
            take(there, fcntl.LOCK_EX | fcntl.LOCK_NB)
    files.kill()
    with pytest.raises(Crash):
        files.pread(fd, 1, 0)
    files.close(fd)
    other.flock(there, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other.lockf(there, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    assert other.read_bytes(FILE)[0] == 1


def test_what_a_dead_process_still_holds_mapped_changes_nothing() -> None:
    disk, files = make_disk()
    mapped = files.map(write(files, FILE, bytes(PAGE)), PAGE)
    files.kill()
    mapped[0] = 1
    assert disk.content(FILE)[0] == 0


def test_closing_any_descriptor_of_a_file_frees_its_process_lock() -> None:
    disk, files = make_disk()
    fd = write(files, FILE, b"x")
    files.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    files.close(files.open(FILE, os.O_RDONLY))
    other = SimFiles(disk)
    other.lockf(other.open(FILE, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)


def test_errors_are_those_of_the_kernel() -> None:
    _, files = make_disk()
    files.mkdir(ROOT / "inner")
    fd = write(files, ROOT / "inner" / "file", b"x")
    with pytest.raises(FileNotFoundError):
        files.open(FILE, os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        files.mkdir(ROOT / "no" / "such")
    with pytest.raises(FileExistsError):
        files.mkdir(ROOT / "inner")
    with pytest.raises(FileExistsError):
        files.link(ROOT / "inner" / "file", ROOT / "inner")
    with pytest.raises(NotADirectoryError):
        files.open(ROOT / "inner" / "file" / "x", os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        files.remove(ROOT / "inner")
    with pytest.raises(OSError, match="not empty"):
        files.rmdir(ROOT / "inner")
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.pwrite(files.open(ROOT / "inner" / "file", os.O_RDONLY), b"y", 0)
    files.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.pread(fd, 1, 0)


@pytest.mark.parametrize("seed", range(12))
def test_it_behaves_as_the_real_file_system_does(seed: int, tmp_path: Path) -> None:
    """The same calls on both, errors included."""
    rng = random.Random(seed)
    disk, sim = make_disk()
    disk.format("/real")
    sides: list[tuple[Files, Path]] = [(sim, ROOT), (Files(), tmp_path)]
    names = ["a", "b", "d/a", "d"]

    def attempt(files: Files, root: Path, what: int, one: str, two: str, at: int, data: bytes) -> object:
        try:
            if what == 0:
                files.write_new(root / one, data)
            elif what == 1:
                fd = files.open(root / one, os.O_RDWR)
                files.pwrite(fd, data, at)
                mapped = files.map(fd, at + 1)
                mapped[at] = 65
                mapped.close()
                files.close(fd)
            elif what == 2:
                files.rename(root / one, root / two)
            elif what == 3:
                files.unlink(root / one)
            elif what == 4:
                files.mkdir(root / one)
            elif what == 5:
                files.link(root / one, root / two)
            elif what == 6:
                files.rmdir(root / one)
            elif what == 7:
                fd = files.open(root / one, os.O_RDWR)
                files.ftruncate(fd, at)
                files.posix_fallocate(fd, at // 2, 100)
                files.close(fd)
            return [
                (name, files.read_bytes(root / name) if "." in name else sorted(files.names(root / name)))
                for name in ["", "d"]
            ] + [files.read_bytes(root / name) for name in ("a", "b") if files.exists(root / name)]
        except OSError as error:
            return error.errno

    for _ in range(80):
        what, one, two = rng.randrange(8), rng.choice(names), rng.choice(names)
        at, data = rng.randrange(1, 9000), rng.randbytes(rng.randrange(1, 9000))
        outcomes = [attempt(files, root, what, one, two, at, data) for files, root in sides]
        assert outcomes[0] == outcomes[1], (what, one, two)


def test_another_process_sees_that_a_file_is_locked_and_the_holder_does_not() -> None:
    disk, files = make_disk()
    fd = write(files, FILE, b"lock")
    other = SimFiles(disk)
    theirs = other.open(FILE, os.O_RDONLY)
    assert not other.is_locked(theirs)
    files.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    assert other.is_locked(theirs)
    assert not files.is_locked(fd)
    files.kill()
    assert not other.is_locked(theirs)
