"""A failed sync of queues and of the index: no mark vouches for them, and what is in doubt is built again."""

import dataclasses
from pathlib import Path

import pytest

from support.store.failed_syncs import (
    SYNC,
    RefusingMachine,
    after_power_loss,
    append_small,
    kill,
    make_directory,
    mark,
    open_indexed,
    open_store,
    out_of_descriptors,
)
from support.store.stores import make_draft
from whimbrel.errors import StoreFull
from whimbrel.store import mark_writer
from whimbrel.store.codec import UNIT_SIZE
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.master_store import MasterStore


@pytest.mark.parametrize("why", ["sync", "open"])
def test_a_mark_that_could_not_be_written_leaves_its_syncs_to_the_next(
    machine: RefusingMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    options = dataclasses.replace(
        SYNC, consumequeue_file_size=20 * 1024, commitlog_file_size=4 << 20, index_enabled=False
    )
    root = tmp_path / "s"
    root.mkdir()
    store = MasterStore.open(root, options, clock=lambda: 1, machine=machine)
    append_small(store, range(300))
    store.writer.flush()
    mark(store, machine)
    append_small(store, range(300, 1100))  # in the queue's second file, too
    store.writer.flush()
    if why == "sync":
        machine.files.failing = {"/consumequeue/": 1}
        mark(store, machine)
    else:
        with monkeypatch.context() as patched:
            patched.setattr(machine.files, "open", out_of_descriptors)
            mark(store, machine)
    append_small(store, range(1100, 1150))
    store.writer.flush()
    mark(store, machine)
    mark(store, machine)
    machine.boots += 1
    after = machine.files.power_loss(root, tmp_path / "after")
    store.close(clean=False)
    store = MasterStore.open(after, options, clock=lambda: 1, machine=machine)
    assert store.queue_range("topic", 0) == (0, 1150)
    assert all(size for _, size, _ in store.queue_units("topic", 0, 0, 1150))
    store.close()


def test_an_index_file_whose_sync_failed_is_built_again(machine: RefusingMachine, tmp_path: Path) -> None:
    store = open_store(machine, tmp_path / "s")
    for number in range(50):
        store.append([make_draft(number)])
    store.end_tick()
    store.index_rest()
    store.writer.flush()
    machine.files.failing = {"/index/": 1}
    mark(store, machine)
    assert store.mark_writer.doubtful
    mark(store, machine)
    assert not store.mark_writer.doubtful
    store.index_rest()
    store.append([make_draft(50)])
    store.index_rest()
    store.writer.flush()
    mark(store, machine)
    assert all(store.find_by_key("topic", f"key-{number}") for number in range(51))
    assert all(machine.files.is_on_disk(file.path, file.size) for file in store.index.files)
    store.close()


def test_index_files_behind_one_whose_sync_failed_are_built_again_with_it(
    machine: RefusingMachine, tmp_path: Path
) -> None:
    store = open_indexed(machine, tmp_path / "s")
    assert len(store.index.files) == 2
    machine.files.failing = {"/index/": 1}
    mark(store, machine)
    assert not list((store.root / "index").iterdir()), "no later start may trust them"
    mark(store, machine)
    assert not store.mark_writer.doubtful
    assert all(store.find_by_key("topic", f"key-{number}") for number in range(300))
    store.close()


@pytest.mark.parametrize("where", ["/consumequeue/", "/index/"])
def test_a_kill_after_a_failed_sync_of_what_is_derived_leaves_nothing_to_trust(
    machine: RefusingMachine, tmp_path: Path, where: str
) -> None:
    root = tmp_path / "s"
    store = open_indexed(machine, root)
    assert len(store.index.files) == 2  # after another boot, only full files are trusted
    machine.files.failing = {where: 1}
    mark(store, machine)
    kill(machine, store)
    store = open_store(machine, root)  # in the same boot; its own marks vouch for all of it
    assert all(store.find_by_key("topic", f"key-{number}") for number in range(300))
    mark(store, machine)
    store = after_power_loss(machine, store, tmp_path / "after")
    assert all(size for _, size, _ in store.queue_units("topic", 0, 0, 300))
    assert all(store.find_by_key("topic", f"key-{number}") for number in range(300))
    store.close()


def test_a_queue_without_a_descriptor_refuses_before_the_record_is_stored(
    machine: RefusingMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.written
    with monkeypatch.context() as patched:
        patched.setattr(machine.files, "open", out_of_descriptors)
        with pytest.raises(StoreFull, match="too many files are open"):
            store.append([make_draft(1, queue_id=7)])
    assert store.written == before
    store.append([make_draft(1, queue_id=7)])


def test_the_flush_thread_outlives_a_mark_that_can_not_be_looked_up(
    machine: RefusingMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter.open(make_directory(tmp_path / "slave"), SYNC, machine=machine)
    log.append_raw(0, b"x" * 100)
    machine.now += 100
    log.page.dispatched = 50
    monkeypatch.setattr(log.flush_segments, "read", out_of_descriptors)
    log.flush()
    assert log.flushed == 100
    monkeypatch.undo()
    log.close(clean=False)


@pytest.mark.parametrize("queues", [2, 4])
def test_very_many_files_are_written_back_together_and_each_is_synced(
    store: MasterStore, machine: RefusingMachine, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    mark(store, machine)
    monkeypatch.setattr(mark_writer, "WRITTEN_BACK_FROM", 4)
    for queue_id in range(queues):
        store.append([make_draft(queue_id, queue_id=queue_id)])
    machine.files.calls.clear()
    mark(store, machine)
    calls = machine.files.calls
    assert calls.count(("write back", "s")) == calls[:1].count(("write back", "s")) == (queues == 4)
    assert store.mark_writer.vouched == store.written
    for queue in store.queues:
        assert machine.files.is_on_disk(queue.mapped_path, queue.max * UNIT_SIZE)


def test_what_is_written_back_is_not_vouched_for_before_it_is_synced(
    store: MasterStore, machine: RefusingMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark(store, machine)
    monkeypatch.setattr(mark_writer, "WRITTEN_BACK_FROM", 1)
    before = store.mark_writer.vouched
    append_small(store, range(10))
    machine.files.failing = {"/consumequeue/": 1}
    mark(store, machine)
    assert ("write back", "s") in machine.files.calls
    assert store.mark_writer.vouched == before and not store.mark_writer.written
    mark(store, machine)
    assert store.mark_writer.vouched == store.written


@pytest.mark.parametrize(
    ("very_many", "takes_s", "apart_s"),
    [(1, 0.0, 0.0), (1, 1.0, 3.0), (1, 2.0, 5.0), (1, 60.0, 5.0), (1000, 60.0, 0.0)],
)
def test_marks_of_very_many_files_are_apart(
    store: MasterStore,
    machine: RefusingMachine,
    monkeypatch: pytest.MonkeyPatch,
    very_many: int,
    takes_s: float,
    apart_s: float,
) -> None:
    monkeypatch.setattr(mark_writer, "WRITTEN_BACK_FROM", very_many)
    sync = store.mark_writer.sync

    def slow(path: Path) -> None:
        machine.now += takes_s
        monkeypatch.setattr(store.mark_writer, "sync", sync)
        sync(path)

    append_small(store, range(5))
    store.mark_writer.wait()
    machine.now += 100
    began = machine.now
    monkeypatch.setattr(store.mark_writer, "sync", slow)
    store.advance_mark()
    store.mark_writer.wait()
    marked = store.mark_writer.vouched
    assert (marked, machine.now) == (store.written, began + takes_s)
    monkeypatch.setattr("whimbrel.store.store.MARK_BYTES", 1)
    append_small(store, range(5))
    if apart_s:
        machine.now = began + apart_s - 0.01
        store.advance_mark()
        store.mark_writer.wait()
        assert store.mark_writer.vouched == marked
    machine.now = began + apart_s
    store.advance_mark()
    store.mark_writer.wait()
    assert store.mark_writer.vouched == store.written
