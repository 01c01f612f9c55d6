"""A bound on mapped queues: those written longest ago go first, and none before its entries are on disk."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.store.failed_syncs import SYNC, RefusingMachine, mark
from support.store.stores import NOW, OPTIONS, make_draft, open_log, open_master
from whimbrel.errors import StoreFull
from whimbrel.store import mapped_queues
from whimbrel.store.codec import UNIT, UNIT_SIZE
from whimbrel.store.log_reader import LogReader
from whimbrel.store.mapped_queues import MappedQueues
from whimbrel.store.master_store import MasterStore
from whimbrel.store.slave_store import SlaveStore

PER_FILE = OPTIONS.consumequeue_file_size // UNIT_SIZE


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_queues, "MAPPED_QUEUES_MAX", 3)


@pytest.fixture
def machine() -> RefusingMachine:
    return RefusingMachine()


@pytest.fixture
def store(machine: RefusingMachine, tmp_path: Path) -> Iterator[MasterStore]:
    (tmp_path / "s").mkdir()
    options = dataclasses.replace(SYNC, index_enabled=False)
    found = MasterStore.open(tmp_path / "s", options, clock=lambda: NOW, machine=machine)
    found.mark_writer.wait()
    yield found
    found.close(clean=False)


def send(store: MasterStore, *queue_ids: int) -> None:
    for queue_id in queue_ids:
        store.append([make_draft(queue_id, queue_id=queue_id)])


def mapped(store: MasterStore | SlaveStore) -> list[int]:
    assert len(store.mapped_queues.mapped) <= store.mapped_queues.limit
    return sorted(queue.queue_id for queue in store.queues if queue.mapped is not None)


def synced(machine: RefusingMachine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the queue id of each queue file which is synced from now on."""
    found: list[str] = []
    opened: dict[int, Path] = {}
    disk = machine.files

    def spy(name: str, note: Callable[..., None]) -> None:
        call = getattr(disk, name)

        def called(*arguments: Any) -> Any:
            done = call(*arguments)
            note(done, *arguments)
            return done

        monkeypatch.setattr(disk, name, called)

    def note_open(fd: int, path: Path, *_: object) -> None:
        opened[fd] = path

    def note_sync(_: object, fd: int) -> None:
        if "consumequeue" in opened[fd].parts:
            found.append(opened[fd].parent.name)

    spy("open", note_open)
    spy("fdatasync", note_sync)
    return found


def test_the_queue_that_was_written_longest_ago_goes_once_a_mark_has_put_it_on_disk(
    store: MasterStore, machine: RefusingMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store, 0, 1)
    mark(store, machine)
    send(store, 2, 0)
    mark(store, machine)
    syncs = synced(machine, monkeypatch)
    send(store, 3)
    assert mapped(store) == [0, 2, 3]
    send(store, 2, 4)
    assert mapped(store) == [2, 3, 4]  # 0 went: 2 was written again since, 3 is new
    assert not syncs
    send(store, 5)
    assert mapped(store) == [5]  # nothing else was on disk, so all were synced
    assert sorted(syncs) == ["2", "3", "4"]
    assert [store.queue_range("topic", n) for n in range(6)] == [(0, n) for n in (2, 1, 2, 1, 1, 1)]


def test_a_queue_that_gave_up_its_mapping_goes_on_in_the_same_file(
    store: MasterStore, machine: RefusingMachine
) -> None:
    for number in range(3 * PER_FILE):
        send(store, number % 2, 2 + number % 3, 5)
        if number % 50 == 7:
            mark(store, machine)
        mapped(store)
    for queue in store.queues:
        places = [unit[0] for unit in queue.units(0, queue.max)]
        assert places == sorted(set(places))
        assert len(queue.starts) == -(-queue.max // PER_FILE)
        for offset, (place, size, _) in enumerate(queue.units(0, queue.max)[::37]):
            assert store.is_entry(queue, offset * 37, (place, size, 0))


def test_a_refused_sync_refuses_the_message_before_it_is_stored_and_is_got_over(
    store: MasterStore, machine: RefusingMachine
) -> None:
    send(store, 0, 1, 2)
    end = store.written
    machine.files.failing = {"/consumequeue/": 3}
    with pytest.raises(StoreFull, match="none can be synced"):
        send(store, 3)
    assert store.written == end
    assert mapped(store) == [0, 1, 2]
    assert len(store.mark_writer.doubtful) == 3
    send(store, 0, 1, 2)  # they have their places
    send(store, 3)  # the files are written again, then synced
    assert mapped(store) == [3]
    assert not store.mark_writer.doubtful
    store.writer.flush()
    mark(store, machine)
    assert store.mark_writer.vouched == store.written


def test_what_could_not_be_synced_stays_mapped_and_others_go(
    store: MasterStore, machine: RefusingMachine
) -> None:
    send(store, 0, 1, 2)
    machine.files.failing = {"/consumequeue/topic/1/": 1}
    send(store, 3)
    assert mapped(store) == [1, 3]
    assert len(store.mark_writer.doubtful) == 1
    mark(store, machine)
    assert not store.mark_writer.doubtful
    assert store.mark_writer.vouched == store.written


def test_no_mark_vouches_for_a_file_of_which_the_stores_thread_could_not_sync_the_entries(
    store: MasterStore, machine: RefusingMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store, 0, 1, 2)
    machine.files.failing = {"/consumequeue/topic/1/": 1}
    monkeypatch.setattr(store.mark_writer.worker, "wake", lambda: None)
    machine.now += 100
    store.advance_mark()  # collected, and not begun
    assert store.mark_writer.busy
    send(store, 3)
    store.mark_writer.run()
    assert not store.mark_writer.written
    mark_before = store.mark_writer.vouched
    assert mark_before < store.written
    machine.now += 100
    store.advance_mark()
    store.mark_writer.run()
    assert store.mark_writer.vouched == store.written


def test_a_file_made_for_entries_that_never_came_is_mapped_again(
    store: MasterStore, machine: RefusingMachine
) -> None:
    for number in range(PER_FILE - 5):
        store.append([make_draft(number)])
    queue = store.queues.by_key["topic", 0]
    queue.reserve(PER_FILE + 20)  # of the next two files
    assert len(queue.starts) == 3
    made = [(queue.directory / f"{start:020d}").stat().st_ino for start in queue.starts]
    mark(store, machine)
    send(store, 1, 2)
    mark(store, machine)
    send(store, 3)
    assert mapped(store) == [1, 2, 3]
    for number in range(2 * PER_FILE):
        store.append([make_draft(number)])
    assert queue.max == 3 * PER_FILE - 5
    assert [(queue.directory / f"{start:020d}").stat().st_ino for start in queue.starts] == made
    places = [unit[0] for unit in queue.units(0, queue.max)]
    assert len(places) == queue.max
    assert places == sorted(set(places))
    mark(store, machine)


def test_room_in_several_queues_is_looked_at_again(store: MasterStore, machine: RefusingMachine) -> None:
    send(store, 0, 1, 2)
    mark(store, machine)
    queues = [store.queues.get_or_create("topic", queue_id) for queue_id in range(6)]
    assert store.queues.reserve([(queue, 1) for queue in (*queues[:2], queues[3])])
    mark(store, machine)
    send(store, 4, 5)
    assert store.queues.reserve([(queue, 1) for queue in (queues[0], queues[3])])
    assert not store.queues.reserve([(queue, 1) for queue in queues[:4]])  # more than there are places
    end = store.written
    runs = [(queue, UNIT.pack(end, 100, 0), 0) for queue in queues[:4]]
    assert not store.append_packed(bytes(400), runs, None, 4, NOW)
    assert store.written == end
    assert store.append_packed(bytes(300), runs[:3], None, 3, NOW)
    assert [queue.max for queue in queues[:3]] == [2, 2, 2]


def test_a_slave_keeps_to_the_bound_and_ends_with_the_masters_queues(tmp_path: Path) -> None:
    master = open_master(tmp_path / "master")
    for number in range(600):
        master.append([make_draft(number, queue_id=number * 7 % 11)])
    master.end_tick()
    reader, log = LogReader.open(tmp_path / "master"), open_log(tmp_path / "slave")
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    while log.end < master.written:
        log.append_raw(
            log.end, reader.view(log.end, min(5000, master.written - log.end, 65536 - log.end % 65536))
        )
        log.publish()
        while slave.dispatch_ready(50_000):
            mapped(slave)
    for queue_id in range(11):
        units = slave.queue_units("topic", queue_id, 0, 1000)
        assert units == master.queue_units("topic", queue_id, 0, 1000)
    mapped(master)
    slave.close()
    log.close()
    master.close()


def test_no_more_than_a_quarter_of_what_the_kernel_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_queues, "MAPPED_QUEUES_MAX", 16_384)
    for allowed, limit in ((65_530, 16_382), (1 << 20, 16_384), (1000, 250), (0, 1)):
        monkeypatch.setattr(mapped_queues, "mappings_allowed", lambda allowed=allowed: allowed)
        assert MappedQueues().limit == limit
