"""Preallocation: a late step never creates a file that the writer has created."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from whimbrel.machine import FILES, MACHINE
from whimbrel.store.pages import PAGE
from whimbrel.store.preallocation import Preallocator
from whimbrel.store.segment import Segment, segment_name

SIZE = 64 * 1024


class Disk:
    """Makes files, and notes which."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: list[int] = []
        (root / "log").mkdir()

    def create(self, start: int) -> Segment:
        self.made.append(start)
        return Segment.create(FILES, self.root / "log", start, SIZE, self.root)

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.root / "log").iterdir())


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def preallocator(disk: Disk) -> Iterator[Preallocator]:
    """Yield one whose thread is never woken: tests take its steps."""
    found = Preallocator(MACHINE, 0, disk.create)
    yield found
    found.stop()


def test_the_next_file_is_made_in_time_and_taken(disk: Disk, preallocator: Preallocator) -> None:
    first = preallocator.take(0)
    preallocator.current = first
    preallocator.step(first, SIZE // 2)
    assert disk.made == [0]
    preallocator.step(first, SIZE - 100)
    assert disk.made == [0, SIZE]
    assert preallocator.take(SIZE).start == SIZE
    assert disk.made == [0, SIZE]


def test_a_step_that_comes_late_does_not_make_the_writers_file_again(
    disk: Disk, preallocator: Preallocator
) -> None:
    first = preallocator.take(0)
    preallocator.current = first
    # The thread has seen the writer at the end of its file, and is about to take the lock.
    second = preallocator.take(SIZE)
    second.write(0, memoryview(b"a message"))
    preallocator.step(first, SIZE)
    preallocator.leave(first)
    preallocator.step(first, SIZE)
    preallocator.current = second
    preallocator.step(first, SIZE)
    assert disk.made == [0, SIZE]
    third = preallocator.take(2 * SIZE)
    assert disk.names() == [segment_name(start) for start in (0, SIZE, 2 * SIZE)]
    assert second.path.read_bytes()[:9] == b"a message"
    for segment in (first, second, third):
        segment.close()


def test_a_file_that_is_there_is_never_replaced(disk: Disk) -> None:
    segment = disk.create(0)
    segment.write(0, memoryview(b"a message"))
    with pytest.raises(FileExistsError, match="there already"):
        disk.create(0)
    assert segment.path.read_bytes()[:9] == b"a message"
    assert disk.names() == [segment_name(0)]
    segment.close()


def test_pages_are_populated_only_for_a_writer_that_writes_into_the_mapping(
    disk: Disk, preallocator: Preallocator
) -> None:
    first = preallocator.take(0)
    preallocator.window_bytes = 4 * PAGE
    for populate, end in ((False, PAGE), (True, 2 * PAGE)):
        preallocator.wake(first, end, populate=populate)
        preallocator.step(first, end)
        assert first.populated == (6 * PAGE if populate else 0)
