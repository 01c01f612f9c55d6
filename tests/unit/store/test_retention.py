"""Which files of the log are removed, and when."""

import dataclasses
import os
from pathlib import Path

import pytest

from storekit import FILE, NOW, OPTIONS, make_draft, open_master
from whimbrel.errors import (
    IllegalOffset,
)
from whimbrel.store.retention import DiskUse


def aged(root: Path, count: int, mtime_ms: int) -> None:
    for path in sorted((root / "commitlog").iterdir())[:count]:
        os.utime(path, (mtime_ms / 1000, mtime_ms / 1000))


def test_retention_removes_aged_files_and_what_points_into_them(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_master(root, dataclasses.replace(OPTIONS, delete_when=tuple(range(24)), reserved_hours=1))
    answers = [store.append([make_draft(number, size=4000)])[0] for number in range(400)]
    store.writer.flush()
    aged(root, 10, NOW - 7_200_000)
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
    aged(root, 3, NOW - 7_200_000)
    assert store.run_retention(NOW) == 0
    store.close()
