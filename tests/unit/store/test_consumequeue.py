"""Files of consume queues."""

import dataclasses
from pathlib import Path

from storekit import OPTIONS, make_draft, open_master
from whimbrel.store.codec import UNIT

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
