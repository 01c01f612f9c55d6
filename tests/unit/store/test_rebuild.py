"""Queues and index after a stop of any kind."""

import dataclasses
from pathlib import Path

import pytest

from sim.disk import File, patched
from sim.machine import SimHost
from sim.scheduler import Crash, Scheduler
from support.store.stores import OPTIONS, make_draft, open_master
from whimbrel.store.codec import format_properties
from whimbrel.store.index import IndexFile
from whimbrel.store.inspect import verify
from whimbrel.store.master_store import MasterStore
from whimbrel.store.recovery_marks import QueueMark


def test_all_queues_are_written_anew_when_one_is_missing(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    for number in range(300):
        store.append([make_draft(number, queue_id=number % 2)])
    store.close()
    last = max((tmp_path / "s" / "consumequeue" / "topic" / "1").iterdir())
    last.unlink()
    store = open_master(tmp_path / "s")
    assert [store.queue_range("topic", queue_id) for queue_id in (0, 1)] == [(0, 150), (0, 150)]
    store.close()
    assert verify(tmp_path / "s") == []


@pytest.mark.parametrize("marked", [False, True])
def test_kill_within_a_group_of_index_entries_loses_no_key(
    tmp_path: Path, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries and slots of a group are there and its header is not: as if it had never been put in."""
    roots = [tmp_path / "whole", tmp_path / "killed"]
    for root in roots:
        store = open_master(root)
        places = [store.append([make_draft(number % 4)])[0] for number in range(20)]
        store.index_rest()
        if marked:
            store.save_mark()
        if root.name == "killed":
            monkeypatch.setattr(IndexFile, "write_header", lambda file: None)
        places += [store.append([make_draft(number % 4)])[0] for number in range(20)]
        store.index_rest()
        store.close(clean=False)
        monkeypatch.undo()
    for root in roots:
        store = open_master(root)
        newest = [place.physical_offset for place in reversed(places)]
        for key in range(4):
            assert store.find_by_key("topic", f"key-{key}") == newest[3 - key :: 4]
        store.close()
        assert verify(root) == []
    whole, killed = (next((root / "index").iterdir()).read_bytes() for root in roots)
    assert whole == killed


def test_power_failure_truncates_queues_to_their_mark_and_fills_them_again(tmp_path: Path) -> None:
    """Entries behind the mark may be on disk or not; the index file in use is not trusted."""
    store = open_master(tmp_path / "s")
    for number in range(50):
        store.append([make_draft(number)])
    store.save_mark()
    answers = [store.append([make_draft(number)])[0] for number in range(50, 90)]
    while store.end_tick():
        pass
    store.close(clean=False)
    mark = QueueMark.load(tmp_path / "s")
    assert mark is not None
    dataclasses.replace(mark, boot=b"another boot ...").save(tmp_path / "s")
    queue = tmp_path / "s" / "consumequeue" / "topic" / "0" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    data[55 * 20 : 60 * 20] = bytes(100)
    queue.write_bytes(data)
    store = open_master(tmp_path / "s")
    assert store.queue_range("topic", 0) == (0, 90)
    for number, answer in enumerate(answers, start=50):
        assert store.queue_units("topic", 0, number, 1)[0][:2] == (answer.physical_offset, answer.size)
        assert store.find_by_key("topic", f"key-{number}") == [answer.physical_offset]
    store.close()
    assert verify(tmp_path / "s") == []


@pytest.mark.parametrize("size", [0, 10])
@pytest.mark.parametrize("what", ["consumequeue/topic/0", "index"])
def test_a_file_of_queues_or_index_without_its_size_is_written_anew(
    tmp_path: Path, what: str, size: int
) -> None:
    """As a power loss leaves a new one."""
    store = open_master(tmp_path)
    for number in range(250):
        store.append([make_draft(number)])
    while store.end_tick():
        pass
    store.close()
    for name in sorted((tmp_path / what).iterdir())[-1:]:
        with name.open("r+b") as file:
            file.truncate(size)
    store = open_master(tmp_path)
    assert store.queue_range("topic", 0) == (0, 250)
    for number in range(250):
        assert len(store.find_by_key("topic", f"key-{number}")) == 1
        assert store.queue_units("topic", 0, number, 1)
    store.close()


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_queue_that_lacks_a_file_is_written_anew(tmp_path: Path, gone: int) -> None:
    store = open_master(tmp_path)
    for number in range(350):
        store.append([make_draft(number)])
    store.close(clean=False)
    files = sorted((tmp_path / "consumequeue" / "topic" / "0").iterdir())
    assert len(files) == 4
    files[gone].unlink()
    store = open_master(tmp_path)
    assert store.queue_range("topic", 0) == (0, 350)
    assert all(store.queue_units("topic", 0, number, 1)[0][1] for number in range(350))
    store.close()


def test_index_files_of_a_killed_process_are_synced_before_a_mark_vouches_for_them() -> None:
    host, root = SimHost(Scheduler(1)), Path("/store")
    host.disk.format(root)

    def start() -> MasterStore:
        machine = host.process()
        return MasterStore.open(root, OPTIONS, clock=machine.wall_ms, machine=machine)

    store = start()
    count = (
        2 * (OPTIONS.index_entries - 1) + 1
    )  # the third file has one entry, and is begun anew at the start
    for number in range(count):
        store.append([make_draft(number)])
        if number == 50:
            store.index_rest()
            store.save_mark()
    while store.end_tick():
        pass
    store.index_rest()
    assert len(store.index.files) == 3
    store.writer.flush()
    host.processes[0].kill()
    start()
    host.power_loss(share=0.0)
    store = start()
    assert all(len(store.find_by_key("topic", f"key-{number}")) == 1 for number in range(count))
    store.close()


@pytest.mark.parametrize("losses", [1, 2])
def test_keys_of_a_record_in_two_index_files_survive_a_power_loss(losses: int) -> None:
    """The second file is not full, hence dropped; the first one ends with the same record.

    When the second loss comes, the new second file is not on disk, and the mark is still the old one.
    """
    host, root = SimHost(Scheduler(1)), Path("/store")
    host.disk.format(root)

    def start() -> MasterStore:
        machine = host.process()
        return MasterStore.open(root, OPTIONS, clock=machine.wall_ms, machine=machine)

    store = start()
    for number in range(OPTIONS.index_entries - 2):
        store.append([make_draft(number)])
    draft = make_draft()
    pairs = [("KEYS", "one two")]
    store.append([dataclasses.replace(draft, properties=format_properties(pairs), keys=("one", "two"))])
    while store.end_tick():
        pass
    store.index_rest()
    assert len(store.index.files) == 2
    store.writer.flush()
    store.save_mark()
    host.power_loss(share=0.0)
    for _ in range(1, losses):
        host.disk.inject("sync", path="*/consumequeue/*")
        start()
        host.power_loss(share=0.0)
    store = start()
    assert len(store.find_by_key("topic", "one")) == len(store.find_by_key("topic", "two")) == 1
    store.close()


def test_a_mark_is_withdrawn_before_what_it_vouches_for_is_written_anew() -> None:
    """It counts entries: pages that did not reach the disk, in the middle of a queue, it would not find."""
    root, host = Path("/store"), SimHost(Scheduler(2))
    host.disk.format(root)
    options = dataclasses.replace(OPTIONS, consumequeue_file_size=20_000, index_enabled=False)

    def open_store() -> MasterStore:
        process = host.process()
        return MasterStore.open(root, options, clock=process.wall_ms, machine=process)

    store = open_store()
    for number in range(900):
        store.append([make_draft(number, size=8, queue_id=int(number < 890))])
    store.writer.flush()
    places = [place for place, _, _ in store.queue_units("topic", 1, 0, 890)]
    store.close()
    host.processes[0].kill()
    remover = host.process()
    remover.files.unlink(root / "consumequeue" / "topic" / "0" / f"{0:020d}")
    remover.files.sync_directory(root / "consumequeue" / "topic" / "0")

    process = host.process()
    path = root / "consumequeue" / "topic" / "1" / f"{0:020d}"

    def lose_power_before_a_page(call: str, arguments: tuple[object, ...]) -> None:
        if call == "fdatasync" and process.files.opened(int(str(arguments[0]))).path == str(path):
            node = host.disk.find(path)
            assert isinstance(node, File)
            node.platter = patched(node.cache(), node.size, {1: bytes(4096)})
            host.disk.settle(host.disk.changes)
            host.power_loss(share=0.0)
            raise Crash(call)

    process.files.on_call = lose_power_before_a_page
    with pytest.raises(Crash):
        MasterStore.open(root, options, clock=process.wall_ms, machine=process).mark_writer.wait()
    store = open_store()
    assert store.queue_range("topic", 0) == (0, 10)
    assert [place for place, _, _ in store.queue_units("topic", 1, 0, 890)] == places


def test_a_file_that_came_back_without_those_before_it_does_not_move_where_its_queue_begins(
    tmp_path: Path,
) -> None:
    """Removed, and the removal not on disk when the power failed: the log, from 0 on, knows better."""
    open_master(tmp_path / "s").close()
    back = tmp_path / "s" / "consumequeue" / "topic" / "0" / f"{2000:020d}"
    back.parent.mkdir(parents=True)
    back.write_bytes(bytes(2000))
    (tmp_path / "s" / "whimbrel" / "queue-mark").unlink()
    store = open_master(tmp_path / "s")
    assert store.queue_range("topic", 0) == (0, 0)
    assert store.append([make_draft(1)])[0].queue_offset == 0
    store.close()
    assert verify(tmp_path / "s") == []
