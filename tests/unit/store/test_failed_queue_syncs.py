"""A failed sync of a queue's file: no mark vouches for what the page cache no longer has."""

from dataclasses import replace
from pathlib import Path

import pytest

from sim.disk import File
from sim.machine import SimHost
from sim.scheduler import Scheduler
from support.store.stores import OPTIONS, make_draft
from whimbrel.store.master_store import MasterStore
from whimbrel.store.recovery_marks import QueueMark

ROOT = Path("/store")
QUEUE = ROOT / "consumequeue" / "topic" / "0" / f"{0:020d}"
INDEXLESS = replace(OPTIONS, index_enabled=False)


@pytest.fixture
def host() -> SimHost:
    host = SimHost(Scheduler(1))
    host.disk.format(ROOT)
    host.may_evict = lambda node: None  # type: ignore[method-assign]
    return host


def open_store(host: SimHost) -> MasterStore:
    process = host.process()
    return MasterStore.open(ROOT, INDEXLESS, clock=process.wall_ms, machine=process)


def queue_file(host: SimHost) -> File:
    node = host.disk.find(QUEUE)
    assert isinstance(node, File)
    return node


def append(store: MasterStore, first: int, count: int, *, size: int = 100) -> None:
    for number in range(first, first + count):
        store.append([make_draft(number, size=size)])


def store_with_old_entries_on_the_medium(host: SimHost) -> MasterStore:
    """The log was cut; on the medium, its old entries still stand where there are others now."""
    store = open_store(host)
    append(store, 0, 10)
    store.writer.flush()
    store.save_mark()
    append(store, 10, 10)
    queue_file(host).write_back(host.rng, 1.0)
    host.power_loss(share=0.0)
    node = queue_file(host)
    before = node.platter
    host.disk.inject("sync", path="*/consumequeue/*")
    store = open_store(host)
    store.mark_writer.wait()
    assert store.queue_range("topic", 0) == (0, 10), "the log was cut"
    node.platter, node.unwritten = before, {0}
    append(store, 20, 10, size=200)
    return store


def let_a_sync_fail(host: SimHost, store: MasterStore) -> None:
    """Nothing of it reaches the medium."""
    node = queue_file(host)
    host.disk.inject("sync", path="*/consumequeue/*")
    before = node.platter
    with pytest.raises(OSError, match="Input/output error"):
        store.save_mark()
    node.platter, node.unwritten = before, {0}
    host.disk.heal()


def test_a_start_goes_on_with_the_old_mark_when_a_sync_of_a_queue_fails(
    host: SimHost, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(host)
    append(store, 0, 10)
    store.writer.flush()
    host.processes[0].kill()
    host.disk.inject("sync", path="*/consumequeue/*")
    store = open_store(host)
    assert store.queue_range("topic", 0) == (0, 10)
    store.mark_writer.wait()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "the mark of /store can't be written" in record.message and record.exc_info is None
    store.save_mark()
    mark = QueueMark.load(ROOT, host.processes[0].files)
    assert mark is not None and mark.offset == store.written


def test_entries_from_before_a_cut_that_come_back_from_the_medium_are_not_vouched_for(host: SimHost) -> None:
    store = store_with_old_entries_on_the_medium(host)
    let_a_sync_fail(host, store)
    evicted = queue_file(host)
    while evicted.unwritten:
        evicted.evict(host.rng)
    with pytest.raises(OSError, match="the next start makes them"):
        store.save_mark()
    host.processes[0].kill()
    store = open_store(host)
    for number, (place, size, _) in enumerate(store.queue_units("topic", 0, 0, 20)):
        body = store.read(place, size)
        assert (b"%08d" % (number if number < 10 else number + 10)) in body


def test_entries_that_the_cache_still_has_are_written_again_and_vouched_for(host: SimHost) -> None:
    store = store_with_old_entries_on_the_medium(host)
    let_a_sync_fail(host, store)
    store.save_mark()
    host.power_loss(share=0.0)
    store = open_store(host)
    assert store.queue_range("topic", 0) == (0, 10)
