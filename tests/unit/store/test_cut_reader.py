"""The records of what was cut off a log: all of them, in pages, over files and damage; marks outlive all but
the cut."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from unit.store.test_divergence import BORDERS, END, IN_SECOND, OURS, aside, ours
from whimbrel.errors import BadRequest
from whimbrel.machine import MACHINE
from whimbrel.model.cuts import CutMark
from whimbrel.store.cut import cut_directory, remove_cut
from whimbrel.store.cut_reader import cut_statuses, read_cut, read_mark, write_mark

ALL = 1 << 30


def records_of(root: Path, name: str, *, count: int, bytes_max: int = ALL) -> list[tuple[int, bytes]]:
    """Return all records of a cut, page by page."""
    found: list[tuple[int, bytes]] = []
    position = 0
    while position >= 0:
        page = read_cut(root, name, position, count=count, bytes_max=bytes_max)
        assert len(page.records) <= count
        assert page.next == -1 or page.next > position, "each page goes on"
        found += page.records
        position = page.next
    return found


@pytest.mark.parametrize("count", [1, 7, 256])
@pytest.mark.parametrize("point", [0, BORDERS[9], IN_SECOND, BORDERS[38]])
def test_pages_have_every_record_of_a_cut_once_in_order(point: int, count: int, tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    kept = aside(root, point)
    assert kept is not None
    found = records_of(root, kept.name, count=count)
    inside = [at for at in BORDERS[:-1] if at >= point]
    assert [at for at, _ in found] == inside
    assert all(OURS[at : at + len(record)] == record for at, record in found)
    by_bytes = records_of(root, kept.name, count=256, bytes_max=len(found[0][1]))
    assert by_bytes == found, "a page has one record at least"
    (status,) = cut_statuses(root)
    assert (status.name, status.records, status.begin, status.end) == (kept.name, len(inside), point, END)
    assert status.mark is None


def test_what_stands_before_or_between_whole_records_is_passed_over(tmp_path: Path) -> None:
    directory = cut_directory(tmp_path)
    directory.mkdir(parents=True)
    begin, third = BORDERS[1], BORDERS[3]
    data = bytearray(OURS[begin : BORDERS[5]])
    data[:40] = b"\xff" * 40  # the place that recovery could not read
    data[third - begin + 200] ^= 1  # and a damaged body
    name = f"{begin:020d}-20260101T000000.000"
    (directory / name).write_bytes(data)
    found = records_of(tmp_path, name, count=10)
    assert [at for at, _ in found] == [BORDERS[2], BORDERS[4]]
    (status,) = cut_statuses(tmp_path)
    assert status.epoch is None and status.records is None


@pytest.mark.parametrize("name", ["", ".", "..", "../seat", "a/b", "x" * 300, "nothing", "a.replayed"])
def test_what_is_no_cut_is_refused(name: str, tmp_path: Path) -> None:
    cut_directory(tmp_path).mkdir(parents=True)
    (cut_directory(tmp_path) / "a.replayed").write_text("{}")
    with pytest.raises(BadRequest, match="cut list"):
        read_cut(tmp_path, name, 0, count=1, bytes_max=ALL)
    with pytest.raises(BadRequest, match="cut list"):
        write_mark(tmp_path, name, CutMark(), MACHINE)


def test_a_mark_stands_until_the_cut_goes_and_a_damaged_one_counts_as_none(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    kept = aside(root, IN_SECOND)
    assert kept is not None
    mark = CutMark(position=END, done=True, stored=3, present=1, refused=2)
    write_mark(root, kept.name, mark, MACHINE)
    found = read_mark(root, kept.name)
    assert found is not None and found.time_ms and replace(found, time_ms=0) == mark
    assert cut_statuses(root)[0].mark == found
    path = cut_directory(root) / (kept.name + ".replayed")
    for text in ("", "[]", "{}", json.dumps({"position": "x"}), path.read_text()[:-3]):
        path.write_text(text)
        assert read_mark(root, kept.name) is None
    remove_cut(MACHINE.files, kept)
    assert list(cut_directory(root).iterdir()) == []
