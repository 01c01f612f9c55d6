"""Damage below what was on disk is no torn tail: the log is not opened for writing, and keeps every byte."""

import os
from pathlib import Path

import pytest

from support.store.stores import FILE, OPTIONS, make_draft, open_log, open_master
from whimbrel.errors import StoreError
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.inspect import recover
from whimbrel.store.master_store import Appended
from whimbrel.store.segment import segment_name


def written(root: Path, count: int, *, clean: bool = True) -> list[Appended]:
    """Make a store with some messages; a clean stop marks all of them as on disk."""
    store = open_master(root)
    answers = [store.append([make_draft(number)])[0] for number in range(count)]
    store.close(clean=clean)
    return answers


def flip(root: Path, offset: int) -> None:
    """Change a bit of the log."""
    start = offset - offset % FILE
    with (root / "commitlog" / segment_name(start)).open("r+b") as file:
        file.seek(offset - start)
        byte = file.read(1)[0]
        file.seek(offset - start)
        file.write(bytes([byte ^ 1]))


def contents(root: Path) -> dict[str, bytes]:
    """Return every file of a store but the shared page, which says that nobody has recovered the log."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "watermark"
    }


def test_one_flipped_bit_below_the_mark_refuses_to_start_and_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "s"
    answers = written(root, 1000)
    hurt = answers[10].physical_offset
    flip(root, hurt + 100)
    before = contents(root)
    for opening in (open_master, open_log):
        with pytest.raises(StoreError) as caught:
            opening(root)
        text = str(caught.value)
        assert f"damaged at {hurt}, byte {hurt} of {root}/commitlog/{0:020d}" in text
        assert "its body does not match its CRC" in text
        assert f"on disk up to {answers[-1].end}" in text
        assert "whole records behind it: 989;" in text
        assert f"`whimbrel store repair {root}`" in text
        assert contents(root) == before
    for dry_run in (True, False):
        with pytest.raises(StoreError, match="whole records behind it: 989;"):
            recover(root, dry_run=dry_run)
        assert contents(root) == before
    flip(root, hurt + 100)
    store = open_master(root)
    assert store.queue_range("topic", 0) == (0, 1000)
    store.close()


@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_missing_last_file_refuses_to_start(tmp_path: Path, how: str) -> None:
    root = tmp_path / "s"
    answers = written(root, 1000)
    paths = sorted((root / "commitlog").iterdir())
    assert len(paths) > 2
    if how == "gone":
        paths[-1].unlink()
    else:
        os.truncate(paths[-1], 0)
    with pytest.raises(StoreError) as caught:
        open_master(root)
    assert f"{paths[-1]} is missing or empty" in str(caught.value)
    assert f"on disk up to {answers[-1].end}" in str(caught.value)
    for path in paths[:-1]:
        path.unlink()
    paths[-1].unlink(missing_ok=True)
    with pytest.raises(StoreError, match="has no files, although it was on disk up to"):
        open_master(root)


def test_a_log_that_was_to_begin_elsewhere_and_got_nothing_yet_starts(tmp_path: Path) -> None:
    """Its mark is ahead of its begin, and verifies nothing."""
    log = open_log(tmp_path / "s")
    log.append_raw(3 * FILE, b"")
    log.flush()
    log.close()
    log = open_log(tmp_path / "s")
    assert log.append_raw(3 * FILE, b"x") == 3 * FILE + 1
    log.close()


def test_whole_records_cut_above_the_mark_are_kept_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    answers = written(root, 1000, clean=False)
    hurt = answers[10].physical_offset
    flip(root, hurt + 100)
    before = {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}
    store = open_master(root)
    assert store.queue_range("topic", 0) == (0, 10)
    store.close()
    kept = sorted((root / "whimbrel" / "cut").iterdir())
    first = next(iter(before.values()))
    assert kept[0].read_bytes().rstrip(b"\0") == first[hurt:].rstrip(b"\0")
    assert kept[0].name.startswith(f"{hurt:020d}-")
    assert [path.read_bytes().rstrip(b"\0") for path in kept[1:]] == [
        data.rstrip(b"\0") for data in list(before.values())[1:]
    ]
    (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"cut at {hurt} (its body does not match its CRC); 989 whole records," in line.getMessage()
    assert str(kept[-1]) in line.getMessage()


def test_a_torn_tail_without_a_whole_record_is_kept_with_one_line_of_information(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    answers = written(root, 5, clean=False)
    flip(root, answers[4].physical_offset + 100)
    caplog.set_level("INFO")
    open_master(root).close()
    lines = [record for record in caplog.records if "torn tail" in record.getMessage()]
    assert [record.levelname for record in lines] == ["INFO"]
    assert not [record for record in caplog.records if record.levelno > 20]
    (kept,) = (root / "whimbrel" / "cut").iterdir()
    assert kept.stat().st_size == answers[4].size
    open_master(root).close()
    assert list((root / "whimbrel" / "cut").iterdir()) == [kept]


def test_bytes_behind_a_hole_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "s"
    answers = written(root, 3, clean=False)
    path = root / "commitlog" / segment_name(0)
    with path.open("r+b") as file:
        file.seek(60_000)
        file.write(b"left over")
    before = path.read_bytes()
    open_master(root).close()
    (kept,) = (root / "whimbrel" / "cut").iterdir()
    assert kept.read_bytes() == before[answers[2].end : 60_009]
    assert path.read_bytes()[answers[2].end :].strip(b"\0") == b""


def test_the_oldest_cuts_make_room_for_new_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whimbrel.store.cut.CUT_FILES_MAX", 2)
    root = tmp_path / "s"
    removed = []
    for number in range(3):
        store = open_master(root)
        answer = store.append([make_draft(number)])[0]
        store.append([make_draft(number)])
        store.close(clean=False)
        flip(root, answer.end + 100)
        open_master(root).close()
        names = sorted(
            (path.name for path in (root / "whimbrel" / "cut").iterdir()), key=lambda name: name[20:]
        )
        assert len(names) == min(number + 1, 2)
        removed.append(names[0])
    assert removed[0] != removed[2]
    assert [line for line in caplog.messages if removed[0] in line and "removed" in line]


def test_whole_records_without_room_to_keep_them_are_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    answers = written(root, 20, clean=False)
    flip(root, answers[10].physical_offset + 100)
    monkeypatch.setattr("whimbrel.store.cut.free_bytes", lambda files, path: 10)
    before = (root / "commitlog" / segment_name(0)).read_bytes()
    with pytest.raises(StoreError, match="no room to keep the 9 whole records behind"):
        open_master(root)
    assert (root / "commitlog" / segment_name(0)).read_bytes() == before
    (root / "commitlog" / segment_name(0)).write_bytes(
        before[: answers[11].physical_offset].ljust(FILE, b"\0")
    )
    open_master(root).close()
    assert "are not kept" in caplog.text


def test_a_store_without_a_mark_is_cut_as_rocketmq_does_and_what_is_cut_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "s"
    answers = written(root, 20)
    (root / "whimbrel" / "log-mark").unlink()
    flip(root, answers[10].physical_offset + 100)
    data = (root / "commitlog" / segment_name(0)).read_bytes()
    store = open_master(root)
    assert store.written == answers[9].end
    store.close()
    (kept,) = (root / "whimbrel" / "cut").iterdir()
    assert kept.read_bytes() == data[answers[10].physical_offset :].rstrip(b"\0")


def test_a_foreign_record_whose_text_ends_in_zeros_is_whole_below_the_mark(tmp_path: Path) -> None:
    """A slave of RocketMQ may have one; only at the very end, above the mark, it is taken for torn."""
    root = tmp_path / "s"
    answers = written(root, 3, clean=False)
    store = open_master(root)
    store.close(clean=False)
    path = root / "commitlog" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[answers[2].end - 1] = 0
    path.write_bytes(data)
    log = LogWriter.open(root, OPTIONS)
    assert log.end == answers[2].end
    log.close()
