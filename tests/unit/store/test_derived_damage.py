"""Queues and index are derived from the log: whatever their files look like, the log decides."""

import os
from pathlib import Path

import pytest

from support.store.stores import NOW, OPTIONS, make_draft, open_master
from whimbrel.machine import Machine
from whimbrel.store.master_store import MasterStore
from whimbrel.store.segment import segment_name
from whimbrel.store.verify import verify

COUNT = 250  # entries of three queue files, and of three index files


def filled(root: Path) -> None:
    store = open_master(root)
    for number in range(COUNT):
        store.append([make_draft(number)])
    store.append([make_draft(7, topic="other", queue_id=2)])
    store.close()


def check_all(root: Path) -> None:
    """Open a store, and find every message by its queue and by its key."""
    store = open_master(root)
    assert store.queue_range("topic", 0) == (0, COUNT)
    assert store.queue_range("other", 2) == (0, 1)
    assert len(store.queue_units("topic", 0, 0, COUNT)) == COUNT
    for number in range(COUNT):
        assert store.find_by_key("topic", f"key-{number}"), number
    assert store.append([make_draft()])[0].queue_offset == COUNT
    store.close()
    assert verify(root) == []


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("size", [-1, 0, 10, 1010, 2100])
@pytest.mark.parametrize("folder", ["consumequeue/topic/0", "index"])
def test_a_file_of_an_odd_size_does_not_block_the_start(
    tmp_path: Path, folder: str, size: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """-1 is a file that is gone; of the first file that is what retention does, and no damage."""
    if size < 0 and number == 0:
        return
    root = tmp_path / "s"
    filled(root)
    path = sorted((root / folder).iterdir())[number]
    if size < 0:
        path.unlink()
    else:
        os.truncate(path, size)
    check_all(root)
    if size >= 0:
        assert str(path) in caplog.text


def test_a_quiet_queue_goes_on_where_it_ended_although_its_file_was_cut_short(tmp_path: Path) -> None:
    """The log has none of its records any more: only its own entries tell its next number."""
    root = tmp_path / "s"
    store = open_master(root)
    for number in range(50):
        store.append([make_draft(number, topic="quiet")])
    for number in range(1000):
        store.append([make_draft(number)])
    store.close()
    (root / "commitlog" / segment_name(0)).unlink()  # as retention does
    path = root / "consumequeue" / "quiet" / "0" / segment_name(0)
    os.truncate(path, 1010)
    store = open_master(root)
    assert store.queue_range("quiet", 0)[1] == 50
    store.close()


class OtherBoot(Machine):
    def boot_id(self) -> bytes:
        return b"another boot ..."


def test_keys_are_found_after_a_power_failure_that_took_what_a_queue_mark_knew(tmp_path: Path) -> None:
    """The mark of queues and index was ahead of the log's flush: the index is built from its own end on."""
    root = tmp_path / "s"
    store = open_master(root)
    for number in range(50):
        end = store.append([make_draft(number)])[0].end
    while store.end_tick():
        pass
    store.index_rest()
    store.writer.flush()
    for number in range(50, 60):
        store.append([make_draft(number)])
    while store.end_tick():
        pass
    store.index_rest()
    store.save_mark()
    store.close(clean=False)
    with (root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(end)
        file.write(bytes(10_000))  # not on disk yet
    store = MasterStore.open(root, OPTIONS, clock=lambda: NOW, machine=OtherBoot())
    assert store.written == end
    assert [number for number in range(50) if not store.find_by_key("topic", f"key-{number}")] == []
    store.close()
    assert verify(root) == []
