"""The lease journal on a real directory, with kills and full disks."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.errors import NotReady, StoreFull


class Book:
    """A state that is a list of entries, and its journal."""

    def __init__(self, root: Path, file_bytes: int = 4096) -> None:
        self.root, self.file_bytes = root, file_bytes
        self.state: dict[bytes, None] = {}
        self.open()

    def open(self) -> None:
        self.journal = LeaseJournal(self.root, file_bytes=self.file_bytes, flush_interval_s=0.001)
        self.state = {}
        for chunk in self.journal.load():
            for entry in chunk.split(b";"):
                self.state[entry + b";"] = None
        self.state.pop(b";", None)
        self.journal.start(lambda: list(self.state))

    def add(self, entry: bytes) -> None:
        self.journal.append(entry)
        self.state[entry] = None


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    book = Book(tmp_path)
    yield book
    book.journal.close()


def reopened(book: Book) -> set[bytes]:
    """What is there after a kill: nothing is closed, nothing flushed."""
    other = Book(book.root, book.file_bytes)
    other.journal.close()
    return set(other.state)


def test_entries_are_there_after_a_kill(book: Book) -> None:
    book.add(b"a;")
    book.add(b"b;c;")
    assert reopened(book) == {b"a;", b"b;", b"c;"}


def test_closed_journal_stays_closed(book: Book) -> None:
    book.add(b"a;")
    book.journal.close()
    with pytest.raises(NotReady, match="journal is closed"):
        book.journal.append(b"b;")
    assert not book.journal.files
    assert reopened(book) == {b"a;"}


def test_files_are_turned_over_and_nothing_is_lost(book: Book) -> None:
    for number in range(200):
        book.add(b"entry-%d;" % number)
    for number in range(200, 2000):
        book.state.pop(b"entry-%d;" % (number - 200))
        book.add(b"entry-%d;" % number)
    assert {b"entry-%d;" % number for number in range(1800, 2000)} <= reopened(book)
    files = sorted(path.name for path in (book.root / "whimbrel" / "leases").iterdir())
    assert files == ["a.journal", "b.journal", "boot"]


def test_state_larger_than_a_file_makes_it_grow(book: Book) -> None:
    for number in range(3000):
        book.add(b"entry-%d;" % number)
    assert len(reopened(book)) == 3000


@pytest.mark.parametrize("zeroed", [False, True])
@pytest.mark.parametrize("cut", range(1, 19))  # the last frame has 18 bytes
def test_torn_tail_costs_only_the_last_frame(tmp_path: Path, cut: int, zeroed: bool) -> None:
    book = Book(tmp_path)
    for name in (b"first;", b"second;", b"third-one;"):
        book.add(name)
    book.journal.close()
    path = max((tmp_path / "whimbrel" / "leases").iterdir(), key=lambda path: path.read_bytes().rfind(b";"))
    data = path.read_bytes()
    end = data.rindex(b";") + 1
    path.write_bytes(data[: end - cut] + bytes(500 if zeroed else 0))
    book.open()
    assert set(book.state) == {b"first;", b"second;"}
    book.add(b"fourth;")
    book.journal.close()
    assert reopened(book) == {b"first;", b"second;", b"fourth;"}


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_damage_in_the_middle_costs_what_follows_it_in_that_file(tmp_path: Path, share: float) -> None:
    book = Book(tmp_path)
    entries = [b"entry-%d;" % number for number in range(80)]
    for entry in entries:
        book.add(entry)
    book.journal.close()
    path = max((tmp_path / "whimbrel" / "leases").iterdir(), key=lambda path: path.read_bytes().rfind(b";"))
    data = bytearray(path.read_bytes())
    at = 32 + int((data.rindex(b";") - 32) * share)
    data[at : at + 5] = b"\xff" * 5
    path.write_bytes(data)
    book.open()
    there = list(book.state)
    assert there == entries[: len(there)]
    assert abs(len(there) - 80 * share) < 2
    book.add(b"later;")
    book.journal.close()
    assert reopened(book) == {*there, b"later;"}


def test_frames_of_an_earlier_generation_are_not_read(book: Book) -> None:
    for number in range(100):
        book.add(b"old-%d;" % number)
    book.state.clear()
    for _ in range(3):
        book.journal.close()
        book.journal = LeaseJournal(book.root, file_bytes=book.file_bytes)
        book.journal.load()
        book.journal.start(lambda: [])
    assert reopened(book) == set()


def test_foreign_files_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "whimbrel" / "leases"
    folder.mkdir(parents=True)
    (folder / "a.journal").write_bytes(b"something else" * 100)
    book = Book(tmp_path)
    book.add(b"a;")
    assert reopened(book) == {b"a;"}
    book.journal.close()


class Disk:
    """Stands in for the disk's two calls; refuses beyond its room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.short = 0
        pwrite, fallocate = os.pwrite, os.posix_fallocate

        def fake_pwrite(fd: int, data: memoryview, position: int) -> int:
            if self.full:
                if self.short:
                    data, self.short = data[: self.short], 0
                    return pwrite(fd, data, position)
                raise OSError(errno.ENOSPC, "No space left on device")
            return pwrite(fd, data, position)

        def fake_fallocate(fd: int, offset: int, size: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            fallocate(fd, offset, size)

        monkeypatch.setattr(os, "pwrite", fake_pwrite)
        monkeypatch.setattr(os, "posix_fallocate", fake_fallocate)


def test_full_disk_refuses_and_recovers_by_itself(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    book.add(b"a;")
    disk.full, disk.short = True, 5
    with pytest.raises(StoreFull):
        book.add(b"never;")
    assert reopened_with_room(book, disk) == {b"a;"}
    book.add(b"b;")
    assert reopened(book) == {b"a;", b"b;"}


def reopened_with_room(book: Book, disk: Disk) -> set[bytes]:
    disk.full = False
    journal = LeaseJournal(book.root, file_bytes=book.file_bytes)
    return {entry + b";" for chunk in journal.load() for entry in chunk.split(b";") if entry}


def test_disk_that_is_full_at_the_start_does_not_keep_us_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.full = True
    book = Book(tmp_path)
    with pytest.raises(StoreFull):
        book.add(b"a;")
    disk.full = False
    book.add(b"a;")
    assert reopened(book) == {b"a;"}
    book.journal.close()


def test_file_that_can_not_be_turned_over_goes_on(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    fallocate = os.posix_fallocate

    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    for number in range(1000):
        book.add(b"entry-%d;" % number)
    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    for number in range(1000, 1100):
        book.add(b"entry-%d;" % number)
    assert len(reopened(book)) == 1100


def test_space_is_allocated_ahead(book: Book) -> None:
    folder = book.root / "whimbrel" / "leases"
    assert max(path.stat().st_blocks * 512 for path in folder.iterdir()) >= book.file_bytes


def filled(root: Path) -> Path:
    """Write entries, and end as after a kill; return the file that holds them."""
    book = Book(root)
    for number in range(80):
        book.add(b"entry-%d;" % number)
    book.journal.close()
    folder = root / "whimbrel" / "leases"
    return max(folder.glob("*.journal"), key=lambda path: path.read_bytes().rfind(b";"))


def lost(root: Path) -> str:
    """Return what a journal that is loaded says of damage."""
    journal = LeaseJournal(root, file_bytes=4096)
    journal.load()
    return journal.lost


def test_a_journal_that_was_ended_anyhow_is_whole(tmp_path: Path) -> None:
    assert "there is no lease journal" in lost(tmp_path)
    filled(tmp_path)
    assert not lost(tmp_path)
    path = filled(tmp_path)  # into the other file
    data = path.read_bytes()
    path.write_bytes(bytes(32) + data[32:])  # killed as it was written anew
    assert not lost(tmp_path)


@pytest.mark.parametrize("other_boot", [False, True])
def test_a_frame_that_is_not_whole_is_damage_unless_the_power_was_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, other_boot: bool
) -> None:
    path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"entry-40;")] ^= 1
    path.write_bytes(data)
    if other_boot:  # then it may be one that was not synced, and nobody was answered for it
        (path.parent / "boot").write_text("0" * 32)
    assert ("is damaged at byte" in lost(tmp_path)) is not other_boot


def test_a_head_that_is_none_is_damage(tmp_path: Path) -> None:
    path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    assert "is damaged" in lost(tmp_path)
