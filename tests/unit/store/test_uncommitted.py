"""What of a master's log is not committed is in no queue and no index, and has its numbers all the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.store.stores import FILE, NOW, OPTIONS, StoppedClock, make_draft, open_log, open_master
from whimbrel.store.codec import TRANSACTION_PREPARED, UNIT, decode_record
from whimbrel.store.log_reader import LogReader
from whimbrel.store.master_store import MasterStore
from whimbrel.store.recovery_marks import QueueMark
from whimbrel.store.slave_store import SlaveStore


def open_gated(root: Path, committed: int = 0) -> MasterStore:
    root.mkdir(exist_ok=True)
    return MasterStore.open(root, OPTIONS, clock=lambda: NOW, committed=committed, machine=StoppedClock(NOW))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MasterStore]:
    opened = open_gated(tmp_path / "store")
    yield opened
    opened.close()


def send(store: MasterStore, first: int, count: int, queues: int = 1) -> list[int]:
    """Append messages one by one; return where each ends."""
    return [
        store.append([make_draft(number, queue_id=number % queues)])[0].end
        for number in range(first, first + count)
    ]


def files_of(root: Path, folder: str) -> dict[str, bytes]:
    paths = sorted(path for path in (root / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def test_records_are_seen_when_they_are_committed(store: MasterStore) -> None:
    arrived: list[tuple[int, int]] = []
    store.on_arrival = lambda topic, queue_id, offset, tags: arrived.append((queue_id, offset))
    ends = send(store, 0, 6, queues=2)
    store.end_tick()
    assert store.queue_range("topic", 0) == store.queue_range("topic", 1) == (0, 0)
    assert not store.find_by_key("topic", "key-3")
    assert not arrived
    assert store.page.written == ends[-1]
    assert store.page.dispatched == 0

    assert store.commit(ends[3])
    assert store.visible_end == ends[3]
    assert store.queue_range("topic", 0) == store.queue_range("topic", 1) == (0, 2)
    assert set(arrived) == {(0, 1), (1, 1)}  # told when all that is committed has its entries
    assert len(store.find_by_key("topic", "key-3")) == 1
    assert not store.find_by_key("topic", "key-4")

    assert store.commit(ends[-1])
    place, size, _ = store.queue_units("topic", 1, 2, 1)[0]
    assert decode_record(store.read(place, size)).queue_offset == 2


def test_the_commit_offset_is_the_border_of_a_record_and_never_goes_back(store: MasterStore) -> None:
    ends = send(store, 0, 3)
    assert store.commit(ends[1] + 7)
    assert store.visible_end == ends[1]
    assert not store.commit(ends[0])
    assert not store.commit(-1)
    assert store.visible_end == ends[1]
    assert store.queue_range("topic", 0) == (0, 2)


def test_numbers_go_on_behind_what_is_not_committed(store: MasterStore) -> None:
    send(store, 0, 3)
    batch = store.append([make_draft(number) for number in range(3, 6)])
    assert [one.queue_offset for one in batch] == [3, 4, 5]
    (prepared,) = store.append([make_draft(6, sys_flag=TRANSACTION_PREPARED)])
    assert prepared.queue_offset == 0
    assert store.append([make_draft(7)])[0].queue_offset == 6
    assert store.commit(prepared.end)  # a record without an entry is a border as well
    assert store.visible_end == prepared.end
    assert store.queue_range("topic", 0) == (0, 6)


@pytest.mark.parametrize("clean", [True, False])
def test_numbers_go_on_after_a_restart(tmp_path: Path, clean: bool) -> None:
    store = open_gated(tmp_path / "store")
    ends = send(store, 0, 9, queues=3)
    store.commit(ends[3])
    store.end_tick()
    written = store.written
    store.close(clean=clean)

    store = open_gated(tmp_path / "store", committed=ends[3])
    assert (store.visible_end, store.written) == (ends[3], written)
    assert [store.queue_range("topic", queue_id)[1] for queue_id in range(3)] == [2, 1, 1]
    assert not store.find_by_key("topic", "key-5")
    (later,) = store.append([make_draft(9, queue_id=1)])
    assert later.queue_offset == 3
    assert not store.commit(ends[5])  # what a former run left is one group, which ends with its log
    assert store.commit(written)
    assert [store.queue_range("topic", queue_id)[1] for queue_id in range(3)] == [3, 3, 3]
    assert len(store.find_by_key("topic", "key-5")) == 1
    assert store.commit(later.end)
    assert store.queue_range("topic", 1) == (0, 4)
    store.close()


def test_a_restart_that_knows_less_of_the_commit_shows_no_less_than_the_queues_had(tmp_path: Path) -> None:
    store = open_gated(tmp_path / "store")
    ends = send(store, 0, 4)
    store.commit(ends[2])
    store.close()
    store = open_gated(tmp_path / "store", committed=0)
    assert store.visible_end == ends[2]
    store.close()


def test_a_queue_that_is_empty_without_what_is_not_committed_keeps_its_numbers(tmp_path: Path) -> None:
    store = open_gated(tmp_path / "store")
    ends = send(store, 0, 3)
    store.commit(ends[-1])
    store.delete_topic("topic")
    (later,) = store.append([make_draft(3)])
    store.end_tick()
    QueueMark.withdraw(tmp_path / "store", store.files)
    store.close(clean=False)
    QueueMark.withdraw(tmp_path / "store", store.files)

    store = open_gated(tmp_path / "store", committed=0)
    assert store.visible_end == 0
    assert store.append([make_draft(4)])[0].queue_offset == 4
    assert store.commit(later.end)
    assert store.queue_range("topic", 0) == (3, 4)
    assert store.commit(store.written)
    assert store.queue_range("topic", 0) == (3, 5)
    store.close()


def test_in_the_end_the_files_are_those_of_a_store_that_waits_for_nobody(tmp_path: Path) -> None:
    gated, plain = open_gated(tmp_path / "gated"), open_master(tmp_path / "plain")
    for store in (gated, plain):
        for number in range(300):
            store.append([make_draft(number, queue_id=number % 3, size=1000)])
            if number % 50 == 0:
                store.append([make_draft(number + at, queue_id=1) for at in range(5)])
            if store is gated and number % 7 == 0:
                store.commit(store.written - 3000)
            store.end_tick()
    gated.commit(gated.written)
    gated.close()
    plain.close()
    for folder in ("commitlog", "consumequeue", "index"):
        found, wanted = files_of(tmp_path / "gated", folder), files_of(tmp_path / "plain", folder)
        if folder != "index":  # whose files are named by the time at which they were made
            assert found == wanted
        assert list(found.values()) == list(wanted.values())


def test_what_the_lane_has_appended_waits_as_well(store: MasterStore) -> None:
    (first,) = store.append([make_draft(0)])
    queue = store.queues.get_or_create("topic", 0)
    record = store.read(0, first.size)  # any bytes: nobody looks at them here
    entries = UNIT.pack(first.end, first.size, 5)
    assert store.append_packed(record, [(queue, entries, 5)], (), 1, NOW)
    store.make_visible([(queue, entries, 5)])
    assert (queue.max, queue.uncommitted) == (0, 2)
    assert store.commit(store.written)
    assert (queue.max, queue.uncommitted) == (2, 0)
    assert store.queue_units("topic", 0, 1, 1) == [(first.end, first.size, 5)]


def test_a_deleted_topic_gets_no_entries_any_more(store: MasterStore, tmp_path: Path) -> None:
    ends = send(store, 0, 3)
    store.commit(ends[0])
    store.delete_topic("topic")
    (later,) = store.append([make_draft(3)])
    assert later.queue_offset == 3  # no number is given twice
    assert store.commit(later.end)
    assert store.queue_range("topic", 0) == (3, 4)
    assert [path.name for path in (tmp_path / "store" / "consumequeue").rglob("*") if path.is_file()] == [
        f"{0:020d}"
    ]


def test_who_must_not_do_it_twice_finds_what_is_not_committed(store: MasterStore) -> None:
    (first,) = store.append([make_draft(0)])
    assert store.find_written("topic", "key-0") == [first.physical_offset]
    assert not store.find_by_key("topic", "key-0")
    store.commit(first.end)
    assert store.find_written("topic", "key-0") == [first.physical_offset]


def test_a_disk_without_room_for_entries_stops_the_commit_and_says_so(
    store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (end,) = send(store, 0, 1)
    queue = store.queues.get_or_create("topic", 0)
    queue.unmap()  # another queue took the mapping
    with monkeypatch.context() as patch:
        patch.setattr(store.queues, "reserve", lambda wanted: False)
        assert not store.commit(end)
        assert "entries of committed messages wait" in store.full_reason
        assert not store.writable
    assert store.commit(end)
    assert store.writable
    assert store.queue_range("topic", 0) == (0, 1)


def test_a_slave_shows_what_is_committed(tmp_path: Path) -> None:
    master = open_master(tmp_path / "master")
    ends = send(master, 0, 20)
    master.end_tick()
    log = open_log(tmp_path / "slave")
    reader = LogReader.open(tmp_path / "master")
    log.append_raw(0, reader.view(0, ends[9]))
    log.publish()
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS, committed=0)
    page = slave.page
    while slave.dispatch_ready(FILE):
        pass
    assert slave.queue_range("topic", 0) == (0, 0)
    page.heard_commit = ends[4]
    while slave.dispatch_ready(FILE):
        pass
    assert slave.queue_range("topic", 0) == (0, 5)
    assert not slave.find_by_key("topic", "key-7")
    page.heard_commit = ends[19]  # the log has not come so far
    while slave.dispatch_ready(FILE):
        pass
    assert slave.visible_end == ends[9]
    assert slave.queue_range("topic", 0) == (0, 10)
    slave.close()

    slave = SlaveStore.open(tmp_path / "slave", OPTIONS, committed=ends[4])
    assert slave.visible_end >= ends[4]
    assert slave.queue_range("topic", 0)[1] >= 5
    slave.close()
    log.close(clean=True)
    reader.close()
    master.close()
