"""The master's store: appending, reading, flushing, a full disk."""

import dataclasses
import errno
import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from support.store.stores import FILE, NOW, OPTIONS, make_draft, open_master
from whimbrel.errors import (
    BadRequest,
    CorruptRecord,
    IllegalOffset,
    IllegalTopic,
    MessageTooLarge,
    NotWritable,
    PropertiesTooLarge,
    StoreFull,
)
from whimbrel.machine import Files
from whimbrel.store import commitlog
from whimbrel.store.codec import (
    BLANK_MAGIC,
    RECORD_BYTES_MAX,
    SIZE_AND_MAGIC,
    UNIT,
    decode_record,
    record_size,
)
from whimbrel.store.retention import DiskUse


def test_offsets_follow_each_other_across_files(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    answers = [store.append([make_draft(number, size=1000)])[0] for number in range(200)]
    assert [answer.queue_offset for answer in answers] == list(range(200))
    for before, answer in pairwise(answers):
        assert answer.physical_offset in (before.end, before.end + -before.end % FILE)
    store.close()


def test_a_file_ends_with_a_blank_of_at_least_eight_bytes(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    overhead = record_size(make_draft(size=0))
    first = store.append([dataclasses.replace(make_draft(), body=bytes(FILE - overhead - 8))])[0]
    assert first.end == FILE - 8
    second = store.append([make_draft()])[0]
    assert second.physical_offset == FILE
    assert SIZE_AND_MAGIC.unpack(store.read_log(FILE - 8, 8)) == (8, BLANK_MAGIC)
    with pytest.raises(MessageTooLarge):
        store.append([dataclasses.replace(make_draft(), body=bytes(FILE - overhead - 7))])
    assert store.append([make_draft()])[0].queue_offset == 2
    store.close()


def test_a_batch_is_not_split_between_files(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    store.append([make_draft(size=40_000)])
    batch = store.append([make_draft(number, size=10_000) for number in range(4)])
    assert [answer.physical_offset // FILE for answer in batch] == [1, 1, 1, 1]
    assert [answer.queue_offset for answer in batch] == [1, 2, 3, 4]
    with pytest.raises(MessageTooLarge):
        store.append([make_draft(number, size=10_000) for number in range(7)])
    with pytest.raises(BadRequest):
        store.append([make_draft(), make_draft(queue_id=1)])
    with pytest.raises(BadRequest):
        store.append([make_draft(), make_draft(sys_flag=8)])
    assert store.queue_range("topic", 0) == (0, 5)
    assert store.append([]) == []
    store.close()


def test_a_batch_larger_than_a_queue_file_gets_all_its_entries(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    answers = store.append([make_draft(number, size=8) for number in range(350)])
    units = store.queue_units("topic", 0, 0, 1000)
    assert [unit[0] for unit in units] == [answer.physical_offset for answer in answers]
    store.close()


def test_what_is_too_large_stores_nothing(tmp_path: Path) -> None:
    """Neither alone nor among others; a record may be larger than any that a client may send."""
    store = open_master(tmp_path / "s", dataclasses.replace(OPTIONS, commitlog_file_size=1 << 25))
    body = bytes(RECORD_BYTES_MAX - record_size(make_draft(size=0)))
    for refused, error in (
        (dataclasses.replace(make_draft(), body=body + b"x"), MessageTooLarge),
        (dataclasses.replace(make_draft(), properties=b"a\x01" + b"b" * 32768), PropertiesTooLarge),
        (dataclasses.replace(make_draft(), properties=b"a\x01b\0"), BadRequest),
        (make_draft(topic="x" * 128), IllegalTopic),
    ):
        for drafts in ([refused], [dataclasses.replace(make_draft(), topic=refused.topic), refused]):
            with pytest.raises(error):
                store.append(drafts)
    assert store.written == 0
    assert store.queue_range("topic", 0) == (0, 0)
    assert not list((tmp_path / "s" / "consumequeue").glob("*/*/*"))
    assert store.append([dataclasses.replace(make_draft(), body=body)])[0].size == RECORD_BYTES_MAX
    store.close()


def test_reads_outside_the_log_and_of_no_record_raise_different_errors(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    answer = store.append([make_draft()])[0]
    with pytest.raises(IllegalOffset):
        store.read(answer.end, 100)
    with pytest.raises(IllegalOffset):
        store.read(-1, 100)
    with pytest.raises(CorruptRecord):
        store.read(8, 100)
    assert store.queue_range("nowhere", 0) == (0, 0)
    assert store.queue_units("topic", 0, 5, 10) == []
    assert store.queue_units("topic", 0, -1, 10) == []
    assert store.find_by_key("topic", "nothing") == []
    store.close()


def test_a_clock_set_back_does_not_put_store_times_out_of_order(tmp_path: Path) -> None:
    times = iter([NOW + 100, NOW, NOW + 50, NOW + 200])
    root = tmp_path / "s"
    root.mkdir()
    store = open_master(root)
    store.clock = lambda: next(times)
    found = [store.append([make_draft(number)])[0].store_timestamp for number in range(4)]
    assert found == [NOW + 100, NOW + 100, NOW + 100, NOW + 200]
    assert store.offset_by_time("topic", 0, NOW + 101) == 3
    assert store.offset_by_time("topic", 0, NOW) == 0
    assert store.offset_by_time("topic", 0, NOW + 1000) == 4
    store.close()


YEAR = 365 * 86_400_000


def test_one_wrong_time_does_not_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_master(tmp_path)
    times = iter([NOW, NOW + 30 * YEAR, NOW + 5000, NOW + 4000])
    store.clock = lambda: next(times)
    found = [store.append([make_draft(number)])[0].store_timestamp for number in range(4)]
    assert found == [NOW, NOW + 30 * YEAR, NOW + 5000, NOW + 5000]
    assert caplog.text.count("ahead of the clock") == 1
    store.clock = lambda: NOW + 30 * YEAR
    store.append([make_draft(4), make_draft(5)])
    store.close()
    store = open_master(tmp_path, now=NOW + 9000)
    assert store.append([make_draft(6)])[0].store_timestamp == NOW + 9000
    store.clock = lambda: NOW + 30 * YEAR
    store.append([make_draft(7)])
    store.clock = lambda: NOW + 9500
    assert [one.store_timestamp for one in store.append([make_draft(8), make_draft(9)])] == [NOW + 9500] * 2
    store.close()


@pytest.mark.parametrize("begin", [0, 1, 20, 37])
@pytest.mark.parametrize("count", [1, 2, 7, 20])
@pytest.mark.parametrize("wrong", [NOW + 30 * YEAR, NOW - 30 * YEAR])
def test_search_by_time_copes_with_times_of_a_wrong_clock(
    tmp_path: Path, begin: int, count: int, wrong: int
) -> None:
    """A message may come too many, if its own time is wrong; none is passed over."""
    store = open_master(tmp_path)
    right = [NOW + 1000 * number for number in range(40)]
    given = [wrong if begin <= number < begin + count else stored for number, stored in enumerate(right)]
    for stored in given:
        store.store_time_ms = 0  # as after a warning
        store.clock = lambda now=stored: now  # type: ignore[misc]
        store.append([make_draft()])
    for number, stored in enumerate(right):
        if given[number] == stored:
            found = store.offset_by_time("topic", 0, stored)
            many_first = begin == 0 and wrong > NOW  # then the search may end at the begin
            assert found == number or (found < number and (many_first or number == begin + count)), number
    store.close()


def test_delayed_messages_carry_their_delivery_time(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    arrivals: list[int] = []
    store.on_arrival = lambda topic, queue_id, offset, tags: arrivals.append(tags)
    for delay in ("3", "99", "0", "x"):
        store.append([make_draft(topic="SCHEDULE_TOPIC_XXXX", delay=delay)])
    store.append([make_draft(topic="SCHEDULE_TOPIC_XXXX", delay=delay) for delay in ("1", "0")])
    codes = [unit[2] for unit in store.queue_units("SCHEDULE_TOPIC_XXXX", 0, 0, 10)]
    tag = make_draft().tags_code
    assert codes == [NOW + 10_000, NOW + 7_200_000, tag, tag, NOW + 1000, tag]
    assert arrivals == codes
    store.close()


def test_only_committed_transaction_records_get_an_entry(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    arrivals: list[tuple[str, int, int, int]] = []
    store.on_arrival = lambda *arrival: arrivals.append(arrival)
    for number, kind in enumerate((4, 8, 12, 0)):
        store.append([make_draft(number, sys_flag=kind)])
    assert store.queue_range("topic", 0) == (0, 2)
    assert [arrival[:3] for arrival in arrivals] == [("topic", 0, 0), ("topic", 0, 1)]
    assert [bool(store.find_by_key("topic", f"key-{number}")) for number in range(4)] == [
        True,
        True,
        False,
        True,
    ]
    store.close()


def test_one_flush_serves_all_requests(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    done = threading.Event()
    seen: list[int] = []

    def flushed(end: int) -> None:
        seen.append(end)
        done.set()

    store.on_flushed = flushed
    answers = [store.append([make_draft(number)])[0] for number in range(10)]
    for answer in answers:
        store.request_flush(answer.end)
    assert done.wait(10)
    assert seen[0] == answers[-1].end
    assert store.flushed == store.page.flushed == answers[-1].end
    store.close()


def test_a_disk_that_refuses_a_sync_ends_all_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_master(tmp_path / "s")
    answer = store.append([make_draft()])[0]

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fdatasync", broken)
    store.writer.flush()
    assert not store.writable
    with pytest.raises(NotWritable):
        store.append([make_draft()])
    assert decode_record(store.read(0, answer.size)).queue_offset == 0
    assert store.flushed == 0
    monkeypatch.undo()
    store.close(clean=False)


class FullDisk:
    """Stands for a disk without room while `full` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.allocate = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self.posix_fallocate)
        monkeypatch.setattr(commitlog, "RETRY_ALLOCATE_S", 0.0)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.allocate(fd, offset, length)


def refused(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_packed_records_that_the_system_refuses_to_write_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many at once are written by a system call; few go into the mapping, and can't be refused."""
    source, store = open_master(tmp_path / "from"), open_master(tmp_path / "to")
    queue = store.queues.get_or_create("topic", 0)
    store.writer.ensure_segment()
    answers = [source.append([make_draft(number, size=1000)])[0] for number in range(10)]
    units = b"".join(UNIT.pack(one.physical_offset, one.size, 0) for one in answers)
    records = source.read_log(0, answers[-1].end)
    assert len(records) > commitlog.PWRITE_BYTES_MIN
    small = answers[0].size

    with monkeypatch.context() as patch:
        patch.setattr(Files, "pwrite", refused)
        assert not store.append_packed(records, [(queue, units, 0)], (), 10, NOW)
        assert (store.written, store.queue_range("topic", 0)) == (0, (0, 0))
        assert store.append_packed(records[:small], [(queue, units[: UNIT.size], 0)], (), 1, NOW)
    left = [(queue, units[UNIT.size :], 0)]
    assert store.append_packed(records[small:], left, (), 9, NOW)
    assert store.read_log(0, answers[-1].end) == records
    assert [store.queue_units("topic", 0, 0, 10)[number][0] for number in range(10)] == [
        one.physical_offset for one in answers
    ]
    source.close()
    store.close()


def test_a_full_disk_refuses_writes_keeps_reading_and_recovers_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    store = open_master(tmp_path / "s", dataclasses.replace(OPTIONS, index_enabled=False))
    first = store.append([make_draft(size=40_000)])[0]
    disk.full = True
    with pytest.raises(StoreFull):
        for number in range(10):
            store.append([make_draft(number, size=10_000)])
    assert not store.writable and "room" in store.full_reason
    end = store.written
    small = store.append([make_draft(size=8)])[0]  # still fits into the file that is there
    assert small.physical_offset == end
    assert store.read(0, first.size)
    disk.full = False
    again = store.append([make_draft(size=40_000)])[0]
    assert store.writable and not store.full_reason
    assert again.queue_offset == small.queue_offset + 1
    store.close()


def test_a_record_is_not_stored_without_room_for_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    store = open_master(tmp_path / "s")
    store.append([make_draft()])
    end = store.written
    disk.full = True
    with pytest.raises(StoreFull):
        store.append([make_draft(topic="another")])
    with pytest.raises(StoreFull):
        store.append([make_draft(number, topic="another") for number in range(3)])
    assert store.written == end
    disk.full = False
    assert store.append([make_draft(topic="another")])[0].queue_offset == 0
    store.close()


def test_a_store_opens_for_reading_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_master(tmp_path / "s")
    answers = [store.append([make_draft(number)])[0] for number in range(5)]
    store.close(clean=False)
    (tmp_path / "s" / "whimbrel" / "queue-mark").unlink()
    disk = FullDisk(monkeypatch)
    disk.full = True
    store = open_master(tmp_path / "s")
    assert not store.writable
    assert store.read(answers[4].physical_offset, answers[4].size)
    with pytest.raises(StoreFull):
        store.append([make_draft()])
    disk.full = False
    store.retry_at = 0.0
    assert store.append([make_draft()])[0].queue_offset == 5
    store.close()


def test_the_index_waits_for_room_and_catches_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch)
    store = open_master(tmp_path / "s")
    store.append([make_draft(0)])
    disk.full = True
    store.end_tick()
    store.index_rest()
    assert store.indexer.behind
    disk.full = False
    store.indexer.retry_at = 0.0
    store.append([make_draft(1)])
    assert store.find_by_key("topic", "key-0") and store.find_by_key("topic", "key-1")
    store.close()


def test_the_index_waits_for_a_disk_that_refuses_its_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_master(tmp_path / "s")
    store.append([make_draft(0)])

    def refused(files: Files, path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as disk:
        disk.setattr(Files, "sync_directory", refused)
        store.end_tick()
        store.index_rest()
    assert store.indexer.behind and not list((tmp_path / "s" / "index").iterdir())
    store.indexer.retry_at = 0.0
    assert store.find_by_key("topic", "key-0")
    store.close()


def test_a_disk_above_its_limit_refuses_writes_until_it_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_master(tmp_path / "s")
    store.append([make_draft()])
    monkeypatch.setattr(DiskUse, "of", classmethod(lambda cls, *_: cls(0.95)))
    store.run_retention(NOW)
    assert "95%" in store.full_reason
    with pytest.raises(StoreFull):
        store.append([make_draft()])
    monkeypatch.setattr(DiskUse, "of", classmethod(lambda cls, *_: cls(0.5)))
    store.run_retention(NOW)
    assert store.append([make_draft()])[0].queue_offset == 1
    store.close()


def test_the_level_of_the_disk_is_known_from_the_start_and_measured_again_by_refused_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskUse, "of", classmethod(lambda cls, *_: cls(0.95)))
    store = open_master(tmp_path / "s")
    with pytest.raises(StoreFull, match="95% full"):
        store.append([make_draft()])
    monkeypatch.setattr(DiskUse, "of", classmethod(lambda cls, *_: cls(0.5)))
    store.writer.disk_retry_at = 0.0
    assert store.append([make_draft()])[0].queue_offset == 0
    store.close()


def test_a_round_of_retention_sees_that_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    store = open_master(tmp_path / "s", dataclasses.replace(OPTIONS, index_enabled=False))
    store.append([make_draft(size=40_000)])
    disk.full = True
    with pytest.raises(StoreFull):
        store.append([make_draft(size=40_000)])
    assert store.full_reason
    disk.full = False
    store.run_retention(NOW)
    assert not store.full_reason
    store.close()
