"""Repairing a log that a start refuses: what is there, cutting it, and taking it from another copy."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.store.stores import FILE, OPTIONS, make_draft, open_master
from whimbrel.errors import StoreError
from whimbrel.store.master_store import Appended
from whimbrel.store.repair import Hurt, examine, fetch, set_aside
from whimbrel.store.segment import segment_name
from whimbrel.store.verify import verify

COUNT = 1000


class DirectoryCopy:
    """The log in another directory; `spoil` changes what it sends."""

    def __init__(self, root: Path, spoil: Callable[[int, bytes], bytes] = lambda offset, data: data) -> None:
        self.root, self.spoil = root, spoil

    def read(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        while begin < end:
            start = begin - begin % FILE
            size = min(end, start + FILE) - begin
            data = (self.root / "commitlog" / segment_name(start)).read_bytes()
            yield begin, self.spoil(begin, data[begin - start : begin - start + size])
            begin += size


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path, list[Appended]]:
    """A store of several files that was stopped, a copy of it, and where its messages stand."""
    root = tmp_path / "s"
    store = open_master(root)
    answers = [store.append([make_draft(number)])[0] for number in range(COUNT)]
    store.close()
    shutil.copytree(root, tmp_path / "copy")
    return root, tmp_path / "copy", answers


def flip(root: Path, offset: int, count: int = 1) -> None:
    """Invert bytes of the log."""
    with (root / "commitlog" / segment_name(offset - offset % FILE)).open("r+b") as file:
        file.seek(offset % FILE)
        data = file.read(count)
        file.seek(offset % FILE)
        file.write(bytes(byte ^ 0xFF for byte in data))


def log_of(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


def served(root: Path) -> int:
    """Open a store and read all; return how many messages it has."""
    store = open_master(root)
    for offset, size, _ in store.queue_units("topic", 0, 0, COUNT):
        store.read(offset, size)
    _, end = store.queue_range("topic", 0)
    assert store.find_by_key("topic", f"key-{end - 1}")
    store.close()
    assert verify(root) == []
    return end


def test_looking_changes_nothing_and_tells_every_range(made: tuple[Path, Path, list[Appended]]) -> None:
    root, _, answers = made
    flip(root, answers[10].physical_offset + 100)
    flip(root, answers[20].physical_offset, 300)  # two records and a bit
    flip(root, answers[-1].physical_offset + 100)
    before = log_of(root)
    found = examine(root)
    body = "its body does not match its CRC"
    assert found.hurt == (
        Hurt(answers[10].physical_offset, answers[11].physical_offset, body),
        Hurt(answers[20].physical_offset, answers[22].physical_offset, found.hurt[1].what),
        Hurt(answers[-1].physical_offset, answers[-1].end, body),
    )
    assert found.state.lost
    assert found.state.end == answers[10].physical_offset
    assert found.records_behind == COUNT - 14
    assert log_of(root) == before


def test_setting_aside_ends_the_log_below_the_damage_and_keeps_the_rest(
    made: tuple[Path, Path, list[Appended]],
) -> None:
    root, _, answers = made
    hurt = answers[10].physical_offset
    flip(root, hurt + 100)
    before = log_of(root)
    assert set_aside(root, examine(root)) == hurt
    kept = sorted((root / "whimbrel" / "cut").iterdir())
    assert len(kept) == len(before)
    together = b"".join(path.read_bytes().ljust(FILE, b"\0") for path in kept[1:])
    assert together == b"".join(list(before.values())[1:])
    assert kept[0].read_bytes() == next(iter(before.values()))[hurt:].rstrip(b"\0")
    assert served(root) == 10
    assert examine(root).hurt == ()


def damage_bit(root: Path, answers: list[Appended]) -> None:
    flip(root, answers[10].physical_offset + 100)


def damage_many(root: Path, answers: list[Appended]) -> None:
    for number in range(0, COUNT, 50):
        flip(root, answers[number].physical_offset + 3, 400)
    flip(root, answers[-1].physical_offset + 3, 10)


def damage_border(root: Path, answers: list[Appended]) -> None:
    flip(root, FILE - 2000, 2000)
    flip(root, FILE, 2000)


def damage_last_file_gone(root: Path, answers: list[Appended]) -> None:
    sorted((root / "commitlog").iterdir())[-1].unlink()


def damage_middle_file_gone(root: Path, answers: list[Appended]) -> None:
    (root / "commitlog" / segment_name(FILE)).unlink()


def damage_file_short(root: Path, answers: list[Appended]) -> None:
    os.truncate(root / "commitlog" / segment_name(FILE), 1000)


def damage_last_file_empty(root: Path, answers: list[Appended]) -> None:
    os.truncate(sorted((root / "commitlog").iterdir())[-1], 0)


DAMAGES = [
    damage_bit,
    damage_many,
    damage_border,
    damage_last_file_gone,
    damage_middle_file_gone,
    damage_file_short,
    damage_last_file_empty,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_taken_from_another_copy(
    made: tuple[Path, Path, list[Appended]], damage: Callable[[Path, list[Appended]], None]
) -> None:
    root, copy, answers = made
    intact = log_of(root)
    damage(root, answers)
    with pytest.raises(StoreError, match="`whimbrel store repair"):
        open_master(root)
    found = examine(root)
    count = fetch(root, found, DirectoryCopy(copy))
    assert count == sum(hurt.end - hurt.begin for hurt in found.hurt) > 0
    end = answers[-1].end
    assert b"".join(log_of(root).values())[:end] == b"".join(intact.values())[:end]
    assert examine(root).hurt == ()
    assert served(root) == COUNT


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_set_aside(
    made: tuple[Path, Path, list[Appended]], damage: Callable[[Path, list[Appended]], None]
) -> None:
    root, _, answers = made
    damage(root, answers)
    found = examine(root)
    if found.state.end == 0:  # the log's first record: nothing stays
        assert set_aside(root, found) == 0
        return
    end = set_aside(root, found)
    assert served(root) == next(number for number, answer in enumerate(answers) if answer.end > end)


def test_a_copy_of_another_log_changes_nothing(
    made: tuple[Path, Path, list[Appended]], tmp_path: Path
) -> None:
    root, copy, answers = made
    hurt = answers[10].physical_offset
    flip(root, hurt + 100)
    before = log_of(root)
    other = open_master(tmp_path / "other")
    for number in range(COUNT):
        other.append([make_draft(number + 1)])
    other.close()

    def torn(offset: int, data: bytes) -> bytes:
        return bytes(len(data)) if offset == hurt else data

    def short(offset: int, data: bytes) -> bytes:
        return data[:-1] if offset == hurt else data

    for source, why in (
        (DirectoryCopy(tmp_path / "other"), "it is of another log"),
        (DirectoryCopy(copy, torn), "are no record"),
        (DirectoryCopy(copy, short), r"sent 211 bytes .* 2110 to 2322"),
    ):
        with pytest.raises(StoreError, match=why):
            fetch(root, examine(root), source)
        assert log_of(root) == before


def test_a_store_in_use_is_not_touched(made: tuple[Path, Path, list[Appended]]) -> None:
    root, copy, _ = made
    found = examine(root)
    store = open_master(root)
    with pytest.raises(StoreError, match="is open in this process"):
        set_aside(root, found)
    with pytest.raises(StoreError, match="is open in this process"):
        fetch(root, found, DirectoryCopy(copy))
    store.close()


def test_nothing_left_of_a_log_is_said(made: tuple[Path, Path, list[Appended]]) -> None:
    root, _, _ = made
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").mkdir()
    with pytest.raises(StoreError, match="holds no bytes of a log"):
        examine(root)


def test_a_rest_of_the_only_file_asks_for_its_size(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_master(root)
    answers = [store.append([make_draft(number)])[0] for number in range(20)]
    store.close()
    (root / "whimbrel" / "watermark").unlink()
    os.truncate(root / "commitlog" / segment_name(0), answers[5].end + 7)
    with pytest.raises(StoreError, match="--commitlog-file-size"):
        examine(root)
    found = examine(root, file_size=OPTIONS.commitlog_file_size)
    assert found.state.end == answers[5].end
    set_aside(root, found)
    assert served(root) == 6
