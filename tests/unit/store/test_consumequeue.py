"""Files of consume queues."""

import dataclasses
from pathlib import Path

import pytest

from storekit import OPTIONS, make_draft, open_master
from whimbrel.store.codec import UNIT
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
