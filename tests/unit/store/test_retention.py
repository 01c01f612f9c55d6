"""Which files of the log are removed, and when."""

import dataclasses
import os
from pathlib import Path

import pytest

from storekit import FILE, NOW, OPTIONS, make_draft, open_master
from whimbrel.errors import (
    IllegalOffset,
)
from whimbrel.store.retention import DOUBT_S, DiskUse, RetentionClock

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
