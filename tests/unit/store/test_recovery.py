"""Where the log ends after a stop of any kind, and what becomes of queues and index."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from storekit import FILE, OPTIONS, make_draft, open_master
from whimbrel.errors import StoreError
from whimbrel.store.codec import decode_record
from whimbrel.store.index import IndexFile
from whimbrel.store.inspect import recover, verify
from whimbrel.store.recovery_marks import RECOVERIES_MAX, LogMark, QueueMark
from whimbrel.store.segments import Segments


def overwrite(root: Path, offset: int, data: bytes) -> None:
    start = offset - offset % FILE
    with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(offset - start)
        file.write(data)


@pytest.mark.parametrize("clean", [True, False])
def test_a_tail_torn_at_any_byte_is_cut_at_the_last_whole_record(
    tmp_path: Path, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros from any byte of the last two records on: what is whole before stays, in log, queue and index."""
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)  # some thousands, which show nothing here
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    origin = tmp_path / "origin"
    store = open_master(origin)
    answers = [store.append([make_draft(number, size=40)])[0] for number in range(4)]
    store.close(clean=clean)
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
    store.close()
    overwrite(tmp_path / "s", answers[2].physical_offset + 100, b"\xff")
    store = open_master(tmp_path / "s")
    assert store.written == answers[1].end
    store.close()


def test_bytes_behind_a_cut_do_not_come_back(tmp_path: Path) -> None:
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


def test_a_file_made_ahead_is_removed(tmp_path: Path) -> None:
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
    assert store.writer is not None
    assert store.writer.state.marked
    store.close()
    mark = QueueMark.load(tmp_path / "s")
    assert mark is not None
    assert (mark.offset, mark.entries, mark.queues) == (store.dispatched, 2000, 1)


def test_a_queue_that_went_missing_is_noticed_and_written_anew(tmp_path: Path) -> None:
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


def test_power_failure_cuts_queues_to_their_mark_and_fills_them_again(tmp_path: Path) -> None:
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


def test_the_log_mark_remembers_the_lowest_end_of_recoveries_not_seen() -> None:
    mark = LogMark()
    for end in (500, 300, 400):
        mark.add_recovery(end)
    assert mark.lowest_end_since(3) is None
    assert mark.lowest_end_since(2) == 400
    assert mark.lowest_end_since(0) == 300
    for _ in range(RECOVERIES_MAX):
        mark.add_recovery(1000)
    assert mark.lowest_end_since(0) == -1
    assert mark.lowest_end_since(4) == 1000


def test_a_damaged_mark_is_as_good_as_none(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    answer = store.append([make_draft()])[0]
    store.close()
    for name in ("log-mark", "queue-mark"):
        path = tmp_path / "s" / "whimbrel" / name
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
    store = open_master(tmp_path / "s")
    assert store.written == answer.end
    assert decode_record(store.read(0, answer.size)).queue_offset == 0
    store.close()
