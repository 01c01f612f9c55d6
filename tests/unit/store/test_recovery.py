"""Where the log ends after a stop of any kind, and what becomes of queues and index."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from support.store.stores import FILE, OPTIONS, make_draft, open_master
from whimbrel.errors import StoreError
from whimbrel.store.inspect import recover
from whimbrel.store.recovery_marks import QueueMark
from whimbrel.store.segments import Segments


def overwrite(root: Path, offset: int, data: bytes) -> None:
    start = offset - offset % FILE
    with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(offset - start)
        file.write(data)


def test_a_tail_torn_at_any_byte_is_truncated_at_the_last_whole_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros from any byte of the last two records on: what is whole before stays, in log, queue and index."""
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)  # some thousands, which show nothing here
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    origin = tmp_path / "origin"
    store = open_master(origin)
    answers = [store.append([make_draft(number, size=40)])[0] for number in range(4)]
    store.close(clean=False)
    last, end = answers[2], answers[3].end
    for at in range(last.physical_offset, end):
        root = tmp_path / "torn"
        shutil.copytree(origin, root)
        data = (root / "commitlog" / f"{0:020d}").read_bytes()[at:end]
        overwrite(root, at, bytes(end - at))
        store = open_master(root)
        whole = 2 + (at >= last.end)
        if not data.strip(b"\0"):
            whole += 1
        assert store.written == answers[whole - 1].end
        assert store.queue_range("topic", 0) == (0, whole)
        for number in range(min(whole, 3)):
            assert store.find_by_key("topic", f"key-{number}") == [answers[number].physical_offset]
        assert store.append([make_draft(9)])[0].queue_offset == whole
        store.close()
        shutil.rmtree(root)


def test_a_body_with_one_wrong_bit_ends_the_log(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    answers = [store.append([make_draft(number)])[0] for number in range(3)]
    store.close(clean=False)
    overwrite(tmp_path / "s", answers[2].physical_offset + 100, b"\xff")
    store = open_master(tmp_path / "s")
    assert store.written == answers[1].end
    store.close()


def test_bytes_behind_a_truncation_do_not_come_back(tmp_path: Path) -> None:
    """After a cut a record of the same length is appended: an old one behind it must not count."""
    store = open_master(tmp_path / "s")
    answers = [store.append([make_draft(number)])[0] for number in range(4)]
    store.close(clean=False)
    overwrite(tmp_path / "s", answers[1].physical_offset + 100, b"\xff")
    store = open_master(tmp_path / "s")
    assert store.written == answers[0].end
    store.append([make_draft(7)])
    store.close(clean=False)
    store = open_master(tmp_path / "s")
    assert store.written == answers[1].end
    assert store.queue_range("topic", 0) == (0, 2)
    store.close()


def test_a_preallocated_file_is_removed(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    answer = store.append([make_draft()])[0]
    store.close(clean=False)
    (tmp_path / "s" / "commitlog" / f"{FILE:020d}").write_bytes(bytes(FILE))
    store = open_master(tmp_path / "s")
    assert store.written == answer.end
    assert [path.name for path in (tmp_path / "s" / "commitlog").iterdir()] == [f"{0:020d}"]
    store.close()


def test_an_empty_last_file_is_ignored_and_other_sizes_are_refused(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    store.append([make_draft()])
    store.close()
    extra = tmp_path / "s" / "commitlog" / f"{FILE:020d}"
    extra.write_bytes(b"")
    assert Segments.open(tmp_path / "s" / "commitlog", 1).starts == [0]
    extra.write_bytes(b"short")
    with pytest.raises(StoreError):
        open_master(tmp_path / "s")
    extra.unlink()
    (tmp_path / "s" / "commitlog" / f"{2 * FILE:020d}").write_bytes(bytes(FILE))
    with pytest.raises(StoreError):
        open_master(tmp_path / "s")


def test_the_size_of_existing_files_wins(tmp_path: Path) -> None:
    open_master(tmp_path / "s").close()
    store = open_master(tmp_path / "s")
    store.append([make_draft()])
    store.close()
    store = open_master(tmp_path / "s", dataclasses.replace(OPTIONS, commitlog_file_size=2 * FILE))
    assert store.file_size == FILE
    store.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    with pytest.raises(StoreError):
        open_master(tmp_path / "s")
    with pytest.raises(StoreError):
        recover(tmp_path / "s", dry_run=True)
    store.close()
    open_master(tmp_path / "s").close()


def test_recovery_reads_from_its_mark_on(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    for number in range(2000):
        store.append([make_draft(number, size=1000)])
    store.close()
    store = open_master(tmp_path / "s")
    assert store.writer.state.marked
    store.close()
    mark = QueueMark.load(tmp_path / "s")
    assert mark is not None
    assert (mark.offset, mark.entries, mark.queues) == (store.dispatched, 2000, 1)
