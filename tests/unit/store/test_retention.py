"""Which files of the log are removed, and when."""

import dataclasses
import os
from pathlib import Path

import pytest

from sim.machine import SimHost
from sim.scheduler import Scheduler
from support.store.stores import FILE, NOW, OPTIONS, make_draft, open_master
from whimbrel.errors import (
    IllegalOffset,
)
from whimbrel.machine import FILES
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import Retention, StoreOptions, keep_longer
from whimbrel.store.retention import DOUBT_S, SAVE_S, DiskTrend, DiskUse, RetentionClock

HOUR = 3_600_000


def aged(root: Path, count: int, mtime_ms: int) -> None:
    """Let so many files be changed last at a time, and the others now."""
    for index, path in enumerate(sorted((root / "commitlog").iterdir())):
        changed = (mtime_ms if index < count else NOW) / 1000
        os.utime(path, (changed, changed))


def test_retention_removes_aged_files_and_what_points_into_them(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_master(root, dataclasses.replace(OPTIONS, delete_when=tuple(range(24)), reserved_hours=1))
    answers = [store.append([make_draft(number, size=4000)])[0] for number in range(400)]
    store.writer.flush()
    aged(root, 10, NOW - 2 * HOUR)
    removed = store.run_retention(NOW)
    assert removed > 10
    assert store.min_offset == store.page.begin == 10 * FILE
    first = next(answer for answer in answers if answer.physical_offset >= 10 * FILE)
    assert store.queue_range("topic", 0) == (first.queue_offset, 400)
    with pytest.raises(IllegalOffset):
        store.read(0, answers[0].size)
    assert store.find_by_key("topic", "key-0") == []
    assert store.find_by_key("topic", "key-399")
    store.close()
    store = open_master(root)
    assert store.queue_range("topic", 0) == (first.queue_offset, 400)
    assert store.append([make_draft()])[0].queue_offset == 400
    store.close()


def test_retention_never_removes_the_file_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    store = open_master(root)
    for number in range(100):
        store.append([make_draft(number, size=4000)])
    monkeypatch.setattr(DiskUse, "of", classmethod(lambda cls, *_: cls(0.87)))
    while store.run_retention(NOW):
        pass
    assert store.min_offset == store.written - store.written % FILE
    assert store.append([make_draft()])[0].queue_offset == 100
    store.close()


def test_young_files_stay_and_aged_ones_wait_for_their_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskUse, "of", classmethod(lambda cls, *_: cls(0.5)))
    root = tmp_path / "s"
    store = open_master(root, dataclasses.replace(OPTIONS, delete_when=(), reserved_hours=1))
    for number in range(100):
        store.append([make_draft(number, size=4000)])
    aged(root, 3, NOW - 2 * HOUR)
    assert store.run_retention(NOW) == 0
    store.close()


def filled(root: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, **options: object) -> MasterStore:
    """Return a store of some files, three of them older than an hour, on a disk that is so full."""
    monkeypatch.setattr(DiskUse, "of", classmethod(lambda cls, *_: cls(ratio)))
    store = open_master(root, dataclasses.replace(OPTIONS, delete_when=(), reserved_hours=1, **options))  # type: ignore[arg-type]
    for number in range(100):
        store.append([make_draft(number, size=4000)])
    store.writer.flush()
    aged(root, 3, NOW - 2 * HOUR)
    return store


def test_a_full_disk_drops_the_oldest_or_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropping = filled(tmp_path / "drops", monkeypatch, 0.87)
    told: list[tuple[int, int]] = []
    dropping.writer.before_dropping = lambda begin, end: told.append((begin, end))
    closed = dropping.written // FILE
    assert closed > 5
    dropping.run_retention(NOW)
    assert dropping.min_offset == closed * FILE
    assert told == [(3 * FILE, closed * FILE)], "of those that are not old enough it says before"
    dropping.close()
    refusing = filled(tmp_path / "refuses", monkeypatch, 0.87, full_disk="refuse")
    refusing.writer.before_dropping = lambda begin, end: told.append((begin, end))
    refusing.run_retention(NOW)
    assert refusing.min_offset == 3 * FILE, "what is old enough goes at any hour"
    assert len(told) == 1
    monkeypatch.setattr(DiskUse, "of", classmethod(lambda cls, *_: cls(0.95)))
    refusing.run_retention(NOW)
    assert refusing.min_offset == 3 * FILE
    assert not refusing.writable
    refusing.close()


def test_what_waits_for_others_is_not_told_as_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes up to where it may; what stays has not gone."""
    store = filled(tmp_path / "s", monkeypatch, 0.87)
    told: list[tuple[int, int]] = []
    store.writer.before_dropping = lambda begin, end: told.append((begin, end))
    store.writer.before_removal = lambda below: 2 * FILE
    store.run_retention(NOW)
    assert (store.min_offset, told) == (2 * FILE, [])
    store.writer.before_removal = lambda below: 4 * FILE
    store.run_retention(NOW)
    assert (store.min_offset, told) == (4 * FILE, [(3 * FILE, 4 * FILE)])
    store.close()


@pytest.mark.parametrize(
    ("told", "begins"),
    [
        ((), 3),
        ((Retention(),), 3),
        ((Retention(3.0, None, None),), 0),
        ((Retention(0.5, None, None), Retention(3.0, None, None)), 0),
        ((Retention(0.5, None, None), Retention(1.0, None, None)), 3),
        ((Retention(1.0, 0.9, None),), 0),  # aged files wait for their hour
    ],
)
def test_of_what_the_processes_of_a_store_are_told_the_longest_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: tuple[Retention, ...], begins: int
) -> None:
    store = filled(tmp_path / "s", monkeypatch, 0.8)
    store.writer.retentions = lambda: told
    store.run_retention(NOW)
    assert store.min_offset == begins * FILE
    store.close()


def test_a_process_that_is_told_less_goes_by_what_it_was_not_told() -> None:
    options = StoreOptions()
    assert keep_longer(options, []) == options
    shorter = keep_longer(options, [Retention(24.0, None, 0.8), Retention(12.0, 0.5, None)])
    assert Retention.of(shorter) == Retention(24.0, 0.5, 0.8), "nobody is told the default"


def test_when_a_disk_is_full_as_it_fills_now() -> None:
    trend = DiskTrend()
    disk = DiskUse(0.5, 1000)
    assert trend.seconds_until(0.9, disk) is None
    trend.look(disk, 100.0)
    assert trend.seconds_until(0.9, disk) is None, "one look says nothing"
    trend.look(DiskUse(0.55, 1000), 110.0)
    assert trend.seconds_until(0.9, disk) is None, "nor do two that follow each other"
    trend.look(DiskUse(0.6, 1000), 140.0)
    assert trend.seconds_until(0.9, DiskUse(0.6, 1000)) == pytest.approx(120.0)
    trend.look(DiskUse(0.95, 1000), 150.0)
    assert trend.seconds_until(0.9, DiskUse(0.95, 1000)) == 0.0
    for step in range(1000):
        trend.look(DiskUse(0.4, 1000), 130.0 + step)
    assert trend.seconds_until(0.9, DiskUse(0.4, 1000)) is None, "it does not fill any more"
    assert len(trend.seen) <= 200


def test_until_when_what_stands_at_an_offset_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "s", monkeypatch, 0.1)
    assert store.writer.kept_until_ms(2 * FILE + 5) == NOW - 2 * HOUR + HOUR
    assert store.writer.kept_until_ms(4 * FILE) == NOW + HOUR
    assert store.writer.kept_until_ms(store.written - 1) is None
    assert store.writer.kept_until_ms(store.written) is None
    store.close()


# The clock


def test_one_wrong_time_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskUse, "of", classmethod(lambda cls, *_: cls(0.5)))
    options = dataclasses.replace(OPTIONS, delete_when=tuple(range(24)))
    store = open_master(tmp_path, options)
    for number in range(100):
        store.append([make_draft(number, size=4000)])
    store.writer.flush()
    aged(tmp_path, 3, NOW - 71 * HOUR)
    for wall in (NOW, NOW + 96 * HOUR, NOW + 30 * 365 * 24 * HOUR, NOW + 1000):
        assert store.run_retention(wall) == 0
    store.close()
    store = open_master(tmp_path, options)  # a broker that starts with a wrong clock
    assert store.run_retention(NOW + 96 * HOUR) == 0
    aged(tmp_path, 3, NOW - 73 * HOUR)
    assert store.run_retention(NOW + 96 * HOUR) >= 3  # these are older than the others
    assert store.min_offset == 3 * FILE
    store.close()


def test_a_clock_that_was_behind_for_a_while_makes_no_file_older(tmp_path: Path) -> None:
    store = open_master(
        tmp_path, dataclasses.replace(OPTIONS, delete_when=tuple(range(24)), reserved_hours=3)
    )
    for number in range(100):
        store.append([make_draft(number, size=4000)])
    store.writer.flush()
    aged(tmp_path, 2, NOW - 2 * HOUR)
    second = sorted((tmp_path / "commitlog").iterdir())[1]
    os.utime(second, (0, 0))
    assert store.run_retention(NOW) == 0
    assert store.run_retention(NOW + HOUR // 8) == 0
    store.close()


def test_time_of_retention_goes_on_with_the_monotonic_clock_until_the_wall_clock_is_believed() -> None:
    clock = RetentionClock()
    assert clock.look(NOW, 100.0, NOW - 60_000) == NOW
    assert clock.look(NOW + 10_000, 110.0, 0) == NOW + 10_000
    jump = 96 * HOUR
    assert clock.look(NOW + 20_000 + jump, 120.0, 0) == NOW + 20_000
    assert clock.look(NOW + 30_000 + jump, 130.0, 0) == NOW + 30_000
    assert clock.look(NOW + 40_000, 140.0, 0) == NOW + 40_000 and clock.doubted_since is None
    assert clock.look(NOW + 50_000 + jump, 150.0, 0) == NOW + 50_000
    later = NOW + 50_000 + int(DOUBT_S * 1000)
    assert clock.look(later - 10_000 + jump, 140.0 + DOUBT_S, 0) == later - 10_000
    assert clock.look(later + jump, 150.0 + DOUBT_S, 0) == later + jump
    assert clock.look(later, 150.0 + DOUBT_S, 0) == later  # set back: files look younger, which harms nothing


def test_a_clock_that_jumps_again_is_doubted_anew() -> None:
    clock = RetentionClock()
    clock.look(NOW, 0.0, NOW)
    clock.look(NOW + 24 * HOUR, 10.0, 0)
    clock.look(NOW + 96 * HOUR, DOUBT_S - 10, 0)
    assert clock.doubted_since == DOUBT_S - 10
    assert clock.look(NOW + 96 * HOUR + 30_000, DOUBT_S + 20, 0) == NOW + int(DOUBT_S * 1000) + 20_000


def test_after_a_rest_files_age_by_each_other_for_a_day(caplog: pytest.LogCaptureFixture) -> None:
    clock = RetentionClock()
    assert clock.look(NOW, 5.0, NOW - 50 * HOUR) == NOW - 50 * HOUR
    assert clock.look(NOW + int(DOUBT_S * 1000), 5.0 + DOUBT_S, 0) == NOW + int(DOUBT_S * 1000)
    assert not caplog.records  # nothing to warn of


def fill(store: MasterStore, count: int) -> None:
    """Append so many messages, four of which do not fit into a file with another one."""
    for number in range(count):
        store.append([make_draft(number, size=15_000)])
    store.end_tick()
    store.writer.flush()


@pytest.mark.parametrize("jump_first", [False, True])
def test_a_file_that_is_closed_under_a_wrong_clock_makes_none_older_after_a_restart(jump_first: bool) -> None:
    host, root = SimHost(Scheduler(1)), Path("/store")
    host.disk.format(root)
    options = dataclasses.replace(OPTIONS, commitlog_file_size=64 * 1024, delete_when=tuple(range(24)))

    def open_store() -> MasterStore:
        machine = host.process()
        return MasterStore.open(root, options, clock=machine.wall_ms, machine=machine)

    store = open_store()
    fill(store, 12)
    if jump_first:  # the next process looks at nothing else
        store.close()
        store = open_store()
    host.jump(400_000.0)
    fill(store, 8)
    for _ in range(3):  # whether anybody looked at the clock since the jump or not
        host.processes[-1].kill()
        store = open_store()
        assert store.run_retention(store.machine.wall_ms()) == 0
        assert store.min_offset == 0
        fill(store, 4)
    host.jump(-400_000.0)
    assert store.run_retention(store.machine.wall_ms()) == 0
    assert not store.files.exists(root / "whimbrel" / "retention-clock")  # it is believed again
    store.close()


def test_a_doubt_goes_on_in_the_next_process_until_its_time_is_over(tmp_path: Path) -> None:
    jump, minute = 96 * HOUR, 60.0
    clock = RetentionClock(tmp_path)
    assert clock.look(NOW, 100.0, NOW) == NOW
    assert clock.look(NOW + jump, 100.0 + minute, 0) == NOW + 60_000
    half = DOUBT_S / 2
    assert clock.look(NOW + jump + int(half * 1000), 100.0 + minute + half, 0) == NOW + 60_000 + half * 1000

    again = RetentionClock(tmp_path)  # another monotonic clock; a file was closed with the wrong time
    wall = NOW + jump + int(half * 1000) + 30_000
    assert again.look(wall, 7.0, wall) == NOW + 60_000 + half * 1000
    rest = half + SAVE_S
    assert again.look(wall + int(rest * 1000), 7.0 + rest, 0) == wall + int(rest * 1000)
    assert RetentionClock(tmp_path).left is None


def test_a_clock_that_jumps_between_two_processes_is_doubted_anew(tmp_path: Path) -> None:
    clock = RetentionClock(tmp_path)
    clock.look(NOW, 0.0, NOW - 50 * HOUR)
    clock.look(NOW + int((DOUBT_S - 60) * 1000), DOUBT_S - 60, 0)
    again = RetentionClock(tmp_path)
    again.look(NOW + 200 * HOUR, 0.0, NOW + 200 * HOUR)
    assert again.doubted_since == 0.0


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"doubted_s":1,"now_ms":null,"wall_ms":1}', b"\xff"]
)
def test_a_doubt_that_can_not_be_read_is_left_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "whimbrel").mkdir()
    (tmp_path / "whimbrel" / "retention-clock").write_bytes(content)
    clock = RetentionClock(tmp_path)
    assert clock.look(NOW, 5.0, NOW - 50 * HOUR) == NOW - 50 * HOUR
    assert RetentionClock(tmp_path).left is not None  # written anew


def test_a_doubt_that_can_not_be_written_down_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "no space left on device")

    clock = RetentionClock(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(FILES, "write_new", refuse)
        assert clock.look(NOW, 5.0, NOW - 50 * HOUR) == NOW - 50 * HOUR
    assert RetentionClock(tmp_path).left is None
    assert clock.look(NOW + 10_000, 15.0, 0) == NOW - 50 * HOUR + 10_000
    assert RetentionClock(tmp_path).left is not None
