"""Files of consume queues."""

import dataclasses
from pathlib import Path

import pytest

from support.store.stores import OPTIONS, make_draft, open_master
from whimbrel.machine import Files
from whimbrel.store.codec import UNIT
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.queues import ConsumeQueues

PER_FILE = OPTIONS.consumequeue_file_size // UNIT.size


def test_many_queues_take_little_disk(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s", dataclasses.replace(OPTIONS, consumequeue_file_size=6_000_000))
    for number in range(50):
        store.append([make_draft(number, queue_id=number)])
    files = list((tmp_path / "s" / "consumequeue").rglob("0*"))
    blocks = sum(path.stat().st_blocks * 512 for path in files if path.is_file())
    assert blocks <= 50 * 70 * 1024
    assert {path.stat().st_size for path in files if path.is_file()} == {6_000_000}
    store.close()


def test_packed_entries_are_the_entries_up_to_the_end_of_their_file(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    for number in range(2 * PER_FILE + 50):
        store.append([make_draft(number)])
    queue = store.queues.by_key["topic", 0]
    for offset in (0, 1, PER_FILE - 1, PER_FILE, 2 * PER_FILE, 2 * PER_FILE + 49):
        found = list(UNIT.iter_unpack(queue.packed_units(offset, 1000)))
        assert found == queue.units(offset, len(found))
        assert offset + len(found) == min(offset - offset % PER_FILE + PER_FILE, queue.max)
    assert queue.packed_units(queue.max, 1) == queue.packed_units(-1, 1) == b""
    store.close()


@pytest.mark.parametrize("first", [1, PER_FILE - 1, PER_FILE, PER_FILE + 1])
@pytest.mark.parametrize("count", [1, PER_FILE - 1, PER_FILE, 3 * PER_FILE])
def test_packed_entries_are_written_over_the_ends_of_files(tmp_path: Path, first: int, count: int) -> None:
    (tmp_path / "scratch").mkdir()
    queue = ConsumeQueue(tmp_path / "q", "t", 0, OPTIONS.consumequeue_file_size, tmp_path / "scratch")
    units = [(100 * number, 100, number) for number in range(first + count)]
    for part in (units[:first], units[first:]):
        queue.reserve(len(part))
        queue.dirty = False
        queue.put_packed(b"".join(UNIT.pack(*unit) for unit in part))
        assert queue.dirty
    assert queue.max == first + count
    assert queue.units(0, first + count) == units
    assert len(queue.rolled) == (first + count - 1) // PER_FILE
    queue.unmap()


@pytest.mark.parametrize("scrub", [False, True])
@pytest.mark.parametrize(
    "kept", [0, 1, PER_FILE - 1, PER_FILE, PER_FILE + 1, 2 * PER_FILE, 2 * PER_FILE + 50]
)
def test_files_behind_the_end_go_and_each_file_is_opened_once(
    tmp_path: Path, kept: int, *, scrub: bool
) -> None:
    """A start with thousands of queues consists of such calls."""
    store = open_master(tmp_path / "s")
    places = [store.append([make_draft(number)])[0].physical_offset for number in range(2 * PER_FILE + 50)]
    below = (*places, store.written)[kept]
    store.close(clean=False)
    files = CountingFiles()
    queues = ConsumeQueues.load(tmp_path / "s", OPTIONS.consumequeue_file_size, files)
    queue = queues.by_key["topic", 0]
    queues.truncate(below, scrub=scrub)
    left = -(-kept // PER_FILE)
    assert len(files.opened) == len(set(files.opened)) == 3 - max(left, 1) + 1
    assert (queue.min, queue.max, queue.room) == (0, kept, kept)
    assert queue.starts == [number * OPTIONS.consumequeue_file_size for number in range(left)]
    assert sorted(path.name for path in queue.directory.iterdir()) == [f"{one:020d}" for one in queue.starts]
    assert [place for place, _, _ in queue.units(0, kept)] == places[:kept]
    if left:
        data = queue.path_of(queue.starts[-1]).read_bytes()
        assert not data[kept * UNIT.size - queue.starts[-1] :].strip(b"\0")


class CountingFiles(Files):
    """Files that are noted when they are opened."""

    def __init__(self) -> None:
        self.opened: list[Path] = []

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """See `Files`."""
        self.opened.append(path)
        return super().open(path, flags, mode)


@pytest.mark.parametrize("kept", [0, 1, 50, 204, 205, 410, 649, 650])
def test_what_follows_the_end_is_zeros_over_several_pages(tmp_path: Path, kept: int) -> None:
    """Entries end in the middle of pages, and go over several of them."""
    options = dataclasses.replace(OPTIONS, consumequeue_file_size=20_000, commitlog_file_size=1 << 20)
    store = open_master(tmp_path / "s", options)
    places = [store.append([make_draft(number)])[0].physical_offset for number in range(650)]
    below = (*places, store.written)[kept]
    store.close(clean=False)
    queues = ConsumeQueues.load(tmp_path / "s", 20_000)
    queues.truncate(below)
    queue = queues.by_key["topic", 0]
    assert queue.max == kept
    if kept:
        data = (queue.directory / f"{0:020d}").read_bytes()
        assert len(data) == 20_000
        assert [place for place, _, _ in UNIT.iter_unpack(data[: kept * 20])] == places[:kept]
        assert not data[kept * 20 :].strip(b"\0")


def test_entries_behind_an_empty_one_are_wiped_with_those_before_it(tmp_path: Path) -> None:
    """A process that is killed while it writes several may have written the later ones."""
    store = open_master(tmp_path / "s")
    places = [store.append([make_draft(number)])[0].physical_offset for number in range(20)]
    queue = store.queues.by_key["topic", 0]
    store.close(clean=False)
    path = queue.path_of(0)
    data = bytearray(path.read_bytes())
    data[12 * UNIT.size : 15 * UNIT.size] = bytes(3 * UNIT.size)
    path.write_bytes(data)
    queues = ConsumeQueues.load(tmp_path / "s", OPTIONS.consumequeue_file_size)
    queues.truncate(places[10])
    assert queues.by_key["topic", 0].max == 10
    assert not path.read_bytes()[10 * UNIT.size :].strip(b"\0")
