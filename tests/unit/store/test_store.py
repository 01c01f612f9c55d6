"""One store directory opened in turns as a master's and as a slave's, as when a broker changes its role."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from sim.files import FIRST_DEVICE
from support.store.stores import FILE, OPTIONS, make_draft, open_log, open_master
from whimbrel.errors import IllegalOffset, NotRecovered, StoreError
from whimbrel.store.codec import FILLER_SIZE
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.locking import held, is_locked
from whimbrel.store.log_reader import LogReader
from whimbrel.store.master_store import MasterStore
from whimbrel.store.slave_store import SlaveStore
from whimbrel.store.store import MessageStore
from whimbrel.store.verify import verify

PREPARED, COMMIT = 4, 8


def fill(store: MasterStore, first: int, count: int) -> None:
    """Append messages of every kind to several queues and topics."""
    for number in range(first, first + count):
        store.append([make_draft(number, queue_id=number % 3, size=1000)])
        if number % 10 == 0:
            store.append([make_draft(number, topic="SCHEDULE_TOPIC_XXXX", delay="3")])
            store.append([make_draft(number, sys_flag=PREPARED)])
            store.append([make_draft(number, sys_flag=COMMIT)])
    store.end_tick()


def content(store: MessageStore, keys: int) -> dict[str, Any]:
    """Return everything that can be asked of a store: ranges, entries, records, and what keys lead to."""
    found: dict[str, Any] = {"log": (store.min_offset, store.written), "dispatched": store.dispatched}
    for topic, queue_ids in store.topics_on_disk().items():
        for queue_id in queue_ids:
            low, high = store.queue_range(topic, queue_id)
            units = store.queue_units(topic, queue_id, low, high - low)
            records = [store.read(unit[0], unit[1]) for unit in units]
            found[f"{topic}/{queue_id}"] = (low, high, units, records)
    for number in range(keys):
        found[f"key-{number}"] = store.find_by_key("topic", f"key-{number}")
    return found


def left_open(root: Path) -> list[str]:
    """Return what this process still holds of a store: descriptors, mappings, its lock, and threads."""
    descriptors = list(Path("/proc/self/fd").iterdir())
    targets = [str(path.readlink()) for path in descriptors if path.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    found = [line for line in (*targets, *mapped) if str(root) in line]
    threads = {"queue-mark", "log-preallocate", "log-flush"}
    found += [thread.name for thread in threading.enumerate() if thread.name in threads]
    real = [
        device for device, _ in held if device < FIRST_DEVICE
    ]  # not of simulated disks that were left as they were
    found += ["the lock"] if is_locked(root) or real else []
    return found


def test_a_master_becomes_a_slave_and_a_master_again(tmp_path: Path) -> None:
    root = tmp_path / "s"
    master = open_master(root)
    fill(master, 0, 100)
    master.append([make_draft(topic="gone")])
    master.delete_topic("gone")
    before, epoch = content(master, 100), master.page.epoch
    master.close()
    assert left_open(root) == []
    shutil.copytree(root, tmp_path / "peer")

    log = open_log(root)
    slave = SlaveStore.open(root, OPTIONS)
    assert content(slave, 100) == before
    assert slave.epoch == slave.page.epoch == epoch + 1
    peer = open_master(tmp_path / "peer")  # leads from here on
    fill(peer, 100, 50)
    reader = LogReader.open(tmp_path / "peer")
    while log.end < peer.written:
        log.append_raw(log.end, reader.view(log.end, 5000))
    log.publish()
    while slave.dispatch_ready(50_000):
        pass
    after = content(peer, 150)
    assert content(slave, 150) == after
    torn = peer.append([make_draft(150, size=1000)])[0]
    peer.end_tick()
    assert log.end // FILE == torn.physical_offset // FILE
    log.append_raw(log.end, reader.view(log.end, torn.size // 2))  # the other half never comes
    log.publish()
    slave.dispatch_ready(50_000)
    reader.close()
    peer.close()
    slave.close()
    log.close()
    assert left_open(root) == []

    master = open_master(root)
    assert content(master, 150) == after
    assert master.page.epoch == epoch + 2
    again = master.append([make_draft(150, size=1000)])[0]
    assert (again.queue_offset, again.physical_offset) == (torn.queue_offset, torn.physical_offset)
    assert master.append([make_draft(topic="gone")])[0].queue_offset == 1
    master.close()
    assert left_open(root) == []


def test_a_slave_becomes_a_master_and_a_slave_again(tmp_path: Path) -> None:
    origin = open_master(tmp_path / "origin")
    fill(origin, 0, 60)
    reader = LogReader.open(tmp_path / "origin")
    root = tmp_path / "s"
    log = open_log(root)
    slave = SlaveStore.open(root, OPTIONS)
    while log.end < origin.written:
        log.append_raw(log.end, reader.view(log.end, 5000))
    log.publish()
    while slave.dispatch_ready(50_000):
        pass
    before = content(origin, 60)
    reader.close()
    origin.close()
    slave.close()
    log.close()
    assert left_open(root) == []

    master = open_master(root)
    assert content(master, 60) == before
    fill(master, 60, 40)
    after, epoch = content(master, 100), master.page.epoch
    master.close(clean=False)  # killed
    assert left_open(root) == []

    log = open_log(root)
    slave = SlaveStore.open(root, OPTIONS)
    assert content(slave, 100) == after
    assert slave.epoch == epoch + 1
    slave.close()
    log.close()
    assert left_open(root) == []
    assert verify(root) == []


def test_an_opening_that_fails_lets_go_of_everything(tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir()
    with pytest.raises(NotRecovered):
        SlaveStore.open(root, OPTIONS)
    assert left_open(root) == []
    log = open_log(root)
    (root / "whimbrel" / "queue-floors.json").write_text("{")
    with pytest.raises(StoreError):
        SlaveStore.open(root, OPTIONS)
    log.close()
    with pytest.raises(StoreError):
        open_master(root)
    assert left_open(root) == []


def test_a_store_knows_the_lowest_end_of_its_log_since_it_was_last_open(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_master(root)
    assert store.intact_end == 0
    ends = [store.append([make_draft(number)])[0].end for number in range(20)]
    store.close()
    store = open_master(root)
    assert store.intact_end == ends[-1]
    store.close(clean=False)
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(ends[9])
        file.write(b"\0" * 200)
    # Somebody cuts the log, without its queues.
    log = LogWriter.open(root, OPTIONS, set_aside=True)
    assert log.end == ends[9]
    log.close()
    store = open_master(root)
    for number in range(20):
        store.append([make_draft(number)])
    assert store.intact_end == ends[9] < store.written
    store.close()


def test_a_hole_in_a_queue_is_told_without_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is that of 2 GiB: in a longer log a whole file would be read for it."""

    def read(place: int, size: int) -> bytes:
        raise AssertionError(f"{size} bytes are read")

    store = open_master(tmp_path / "s")
    store.append([make_draft(0)])
    monkeypatch.setattr(store, "read_range", read)
    with pytest.raises(IllegalOffset, match="0 is outside the log, which is 0 to"):
        store.read(0, FILLER_SIZE)
    store.close()
