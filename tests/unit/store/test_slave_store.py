"""A slave: bytes of the master's log come in raw, the broker beside follows them by the page's marks."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.store.stores import FILE, OPTIONS, make_draft, open_log, open_master
from whimbrel.errors import NotRecovered, StoreError
from whimbrel.store import commitlog, slave_store
from whimbrel.store.codec import decode_record
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.inspect import verify
from whimbrel.store.log_reader import LogReader
from whimbrel.store.master_store import MasterStore
from whimbrel.store.segment import segment_name
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.slave_store import SlaveStore


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterStore]:
    store = open_master(tmp_path / "master")
    for number in range(300):
        store.append([make_draft(number, queue_id=number % 3, size=1000)])
    store.end_tick()
    yield store
    store.close()


def copy(reader: LogReader, log: LogWriter, end: int, step: int) -> None:
    while log.end < end:
        left = FILE - log.end % FILE
        log.append_raw(log.end, reader.view(log.end, min(step, end - log.end, left)))
    log.publish()


def follow(slave: SlaveStore) -> None:
    while slave.dispatch_ready(50_000):
        pass


def same(slave: SlaveStore, master: MasterStore) -> bool:
    return all(
        slave.queue_units("topic", queue_id, 0, 1000) == master.queue_units("topic", queue_id, 0, 1000)
        for queue_id in range(3)
    )


def test_a_query_by_key_between_dispatch_and_index_leaves_no_hole_in_the_index(
    tmp_path: Path, master: MasterStore
) -> None:
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    half = master.queue_units("topic", 0, 50, 1)[0][0]
    copy(reader, log, half, 1 << 20)
    follow(slave)
    copy(reader, log, master.written, 1 << 20)
    slave.dispatch_ready(1 << 20)  # dispatched, not indexed
    for number in range(300):
        assert slave.find_by_key("topic", f"key-{number}") == master.find_by_key("topic", f"key-{number}")
    slave.close()
    log.close(clean=True)
    reader.close()


@pytest.mark.parametrize("step", [77, 4096, 1 << 20])
def test_a_slave_ends_with_the_masters_bytes_queues_and_index(
    tmp_path: Path, master: MasterStore, step: int
) -> None:
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    arrivals: dict[int, int] = {}  # by queue: the last entry that was told of
    slave.on_arrival = lambda topic, queue_id, offset, tags: arrivals.update({queue_id: offset})
    for part in range(1, 11):
        copy(reader, log, master.written * part // 10, step)
        follow(slave)
        assert arrivals == {queue.queue_id: queue.max - 1 for queue in slave.queues if queue.max}, (
            "told of each entry that is there, or of a later one"
        )
    assert slave.dispatched == master.written == slave.page.dispatched
    assert same(slave, master)
    for number in (0, 150, 299):
        found = slave.find_by_key("topic", f"key-{number}")
        assert found == master.find_by_key("topic", f"key-{number}")
        assert decode_record(slave.read(found[0], slave_size(slave, found[0]))).physical_offset == found[0]
    assert not slave.writable and not hasattr(slave, "append")
    slave.close()
    log.close()
    reader.close()
    assert verify(tmp_path / "slave") == []
    assert log_bytes(tmp_path / "slave", master.written) == log_bytes(tmp_path / "master", master.written)


@pytest.mark.parametrize("first", ["replicator", "broker"])
def test_what_came_last_is_dispatched_when_a_slave_stops(
    tmp_path: Path, master: MasterStore, first: str
) -> None:
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    copy(reader, log, master.written, 4096)
    for part in (log, slave) if first == "replicator" else (slave, log):
        part.close()
    reader.close()
    assert verify(tmp_path / "slave") == []


def slave_size(store: SlaveStore, offset: int) -> int:
    return int.from_bytes(store.read_log(offset, 4), "big")


def log_bytes(root: Path, end: int) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))[:end]


def test_a_record_that_has_come_in_half_waits_for_the_rest(tmp_path: Path, master: MasterStore) -> None:
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    first = master.queue_units("topic", 0, 0, 1)[0]
    copy(reader, log, first[1] - 1, 100)
    follow(slave)
    assert slave.queue_range("topic", 0) == (0, 0)
    copy(reader, log, first[1], 100)
    follow(slave)
    assert slave.queue_range("topic", 0) == (0, 1)
    slave.close()
    log.close()


def test_queues_are_truncated_when_the_log_comes_back_shorter(tmp_path: Path, master: MasterStore) -> None:
    """The replicator dies with half a record at the end, recovers, and goes on."""
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    units = master.queue_units("topic", 0, 0, 1000)
    end = units[50][0] + units[50][1]
    copy(reader, log, end + 500, 1 << 20)
    follow(slave)
    assert slave.dispatched == end
    log.close(clean=False)
    start = units[40][0] - units[40][0] % FILE
    with (tmp_path / "slave" / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(units[40][0] - start + 100)
        file.write(b"\xff")
    log = open_log(tmp_path / "slave")
    assert log.end == units[40][0]
    follow(slave)
    assert slave.queue_range("topic", 0) == (0, 40)
    assert slave.dispatched == units[40][0]
    copy(reader, log, master.written, 1 << 20)
    follow(slave)
    assert same(slave, master)
    slave.close()
    log.close()
    assert verify(tmp_path / "slave") == []


def test_a_slave_that_was_down_at_a_truncation_follows_it_at_its_next_start(
    tmp_path: Path, master: MasterStore
) -> None:
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    copy(reader, log, master.written, 1 << 20)
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    slave.close()
    log.close(clean=False)
    unit = master.queue_units("topic", 0, 40, 1)[0]
    start = unit[0] - unit[0] % FILE
    with (tmp_path / "slave" / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(unit[0] - start + 100)
        file.write(b"\xff")
    log = open_log(tmp_path / "slave")
    copy(reader, log, unit[0] + 10, 1 << 20)  # the log has grown again before the broker looks
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    assert slave.queue_range("topic", 0) == (0, 40)
    assert slave.find_by_key("topic", "key-120") == []
    slave.close()
    log.close()


def test_a_slave_that_begins_in_the_middle_has_fillers_before(tmp_path: Path, master: MasterStore) -> None:
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    begin = 2 * FILE
    with pytest.raises(StoreError):
        log.append_raw(begin + 100, b"x")
    log.append_raw(begin, reader.view(begin, 1000))
    copy(reader, log, master.written, 1 << 20)
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    low, high = slave.queue_range("topic", 1)
    assert high == 100 and 0 < low < 100
    assert slave.queue_units("topic", 1, low, 1)[0][0] >= begin
    assert slave.queue_units("topic", 1, low, 100) == master.queue_units("topic", 1, low, 100)
    slave.close()
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    assert slave.queue_range("topic", 1) == (low, high)
    slave.close()
    log.close()


def test_a_slave_waits_until_the_log_is_recovered(tmp_path: Path) -> None:
    (tmp_path / "slave").mkdir()
    with pytest.raises(NotRecovered):
        SlaveStore.open(tmp_path / "slave", OPTIONS)
    with pytest.raises(NotRecovered):
        LogReader.open(tmp_path / "slave")
    page = SharedPage.open(tmp_path / "slave")
    assert page.epoch == 0
    page.close()


def test_the_slaves_log_mark_is_the_last_boundary_that_was_synced(
    tmp_path: Path, master: MasterStore
) -> None:
    """Across a file's end, and where the received bytes end within a record."""
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    boundaries = sorted(
        place + size
        for queue_id in range(3)
        for place, size, _ in master.queue_units("topic", queue_id, 0, 1000)
    )
    for end in (500, *range(5_000, master.written, 40_001), master.written):
        copy(reader, log, end, 1 << 20)
        log.marked_at = 0.0
        log.flush()
        assert log.flushed == end
        assert log.mark.offset == max([place for place in boundaries if place <= end], default=0)
    log.close()


def test_a_mark_that_is_far_behind_goes_on_where_the_broker_had_come(
    tmp_path: Path, master: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commitlog, "BOUNDARY_WALK_BYTES", 0)
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)

    def grow(end: int) -> None:
        copy(reader, log, end, 1 << 20)
        log.marked_at = 0.0
        log.flush()

    grow(master.written - 9000)
    assert log.mark.offset == log.end - log.end % FILE, "it knows no better"
    follow(slave)
    before = slave.dispatched
    grow(master.written - 5000)
    assert log.mark.offset == before < log.end
    follow(slave)
    log.flush()
    grow(master.written)
    assert before < log.mark.offset == slave.dispatched < log.end
    log.page.dispatched = log.mark.offset + 10  # as of another log: no record begins there
    grow(log.end)
    assert log.mark.offset == slave.dispatched
    slave.close()
    log.close()


def test_damage_below_a_slaves_mark_refuses_and_above_is_cut_kept_and_counted(
    tmp_path: Path, master: MasterStore, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "slave"
    reader = LogReader.open(tmp_path / "master")
    log = open_log(root)
    copy(reader, log, master.written - 3000, 1 << 20)
    log.marked_at = 0.0
    log.flush()
    synced = log.mark.offset
    assert synced % FILE > 4_000, "the last file has some records below the mark"
    copy(reader, log, master.written, 1 << 20)
    log.close(clean=False)
    last = root / "commitlog" / segment_name(synced - synced % FILE)

    def flip(position: int) -> None:
        data = bytearray(last.read_bytes())
        data[position] ^= 1
        last.write_bytes(data)

    flip(2_000)
    with pytest.raises(StoreError) as caught:
        open_log(root)
    text = str(caught.value)
    assert str(last) in text and "whole records behind it:" in text and f"on disk up to {synced}" in text
    assert f"`whimbrel store repair {root}`" in text
    flip(2_000)
    flip(synced % FILE + 100)
    log = open_log(root)
    assert log.end == synced
    (kept,) = (root / "whimbrel" / "cut").iterdir()
    assert kept.name.startswith(f"{synced:020d}-")
    assert any("whole records" in record.message for record in caplog.records)
    log.close()


def test_a_slave_reports_where_its_log_was_truncated(tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir()
    master = open_master(tmp_path / "m")
    ends = [master.append([make_draft(number)])[0].end for number in range(20)]
    log = open_log(root)
    log.append_raw(0, memoryview(master.read_log(0, ends[-1])))
    log.publish()
    slave = SlaveStore.open(root, OPTIONS)
    cuts: list[int] = []
    slave.on_truncated = cuts.append
    log.close(clean=False)
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(ends[9])
        file.write(b"\0" * 200)
    log = open_log(root)
    log.append_raw(log.end, memoryview(master.read_log(log.end, ends[-1] - log.end)))
    log.publish()
    while slave.dispatch_ready(50_000):
        pass
    assert cuts == [ends[9]]
    for one in (slave, log, master):
        one.close()


def test_the_page_of_a_copied_store_says_nothing_of_the_copys_log(
    tmp_path: Path, master: MasterStore
) -> None:
    """The log was copied before the page, and the log went on in between."""
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    copy(reader, log, master.written // 4, 4096)
    shutil.copytree(tmp_path / "slave" / "commitlog", tmp_path / "copy" / "commitlog")
    copy(reader, log, master.written, 4096)
    shutil.copytree(tmp_path / "slave" / "whimbrel", tmp_path / "copy" / "whimbrel")
    with pytest.raises(NotRecovered):
        SlaveStore.open(tmp_path / "copy", OPTIONS)
    copied = open_log(tmp_path / "copy")
    slave = SlaveStore.open(tmp_path / "copy", OPTIONS)
    assert slave.written == slave.dispatched == copied.end <= master.written // 4
    slave.close()
    copied.close()
    reader.close()
    log.close()


def test_a_slaves_log_that_ends_with_a_file_starts_without_the_next_one(tmp_path: Path) -> None:
    """The disk was full when the file was, and the mark stands behind its blank."""
    master = open_master(tmp_path / "master")
    number = 0
    while master.written <= FILE:
        master.append([make_draft(number)])
        number += 1
    slave = open_log(tmp_path / "slave")
    slave.append_raw(0, master.read_log(0, FILE))
    slave.flush()
    slave.close()
    master.close()
    (tmp_path / "slave" / "commitlog" / segment_name(FILE)).unlink(missing_ok=True)
    again = open_log(tmp_path / "slave")
    assert again.state.fault and 0 < again.end < FILE
    again.close()


def test_a_slave_that_stops_leaves_what_takes_long_to_its_next_start(
    tmp_path: Path, master: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_store, "REST_BYTES_MAX", 50_000)
    monkeypatch.setattr(slave_store, "REST_STEP_BYTES", 10_000)
    reader = LogReader.open(tmp_path / "master")
    log = open_log(tmp_path / "slave")
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    copy(reader, log, master.written, 4096)
    slave.close()
    assert 50_000 <= slave.dispatched < 70_000 < master.written
    slave = SlaveStore.open(tmp_path / "slave", OPTIONS)
    assert same(slave, master)
    slave.close()
    log.close()
    reader.close()
