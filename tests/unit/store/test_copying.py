"""Copies of stores: what they hold, whose they are, and what an interrupted one is."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from support.store.stores import OPTIONS, make_draft, open_master
from whimbrel.errors import StoreError
from whimbrel.machine import Files
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.copying import COPYING, LEFT_OUT, copy_store
from whimbrel.store.inspect import dump_records
from whimbrel.store.seat_file import SEAT_FILE, Seat, SeatFile
from whimbrel.store.segment import segment_name

SEAT = Seat(
    uuid="1" * 32, group="2" * 32, member=2, promised=7, promised_to=3, boot="3" * 32, acknowledged=900
)
COUNT, COMMITTED = 400, 200


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store at rest, of several log files."""
    root = tmp_path / "store"
    opened = open_master(root, OPTIONS)
    for number in range(COUNT):
        opened.append([make_draft(number)])
    opened.close()
    return root


def bodies(root: Path) -> list[int]:
    """Return where the records of a log stand."""
    return [row["phyOffset"] for row in dump_records(root) if row["type"] == "record"]


def held(root: Path) -> Iterator[Path]:
    """Yield the files of a store, by their paths in it, that a copy is to have."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.is_file() and name not in LEFT_OUT and not name.name.startswith("segment-"):
            yield name


def test_a_copy_has_all_files_with_their_times_and_their_holes(store: Path, tmp_path: Path) -> None:
    os.utime(store / "commitlog" / segment_name(0), ns=(1, 1_700_000_000_123_456_789))
    copy = tmp_path / "copy"
    done = copy_store(store, copy)
    assert list(held(copy)) == list(held(store))
    for name in held(store):
        old, new = store / name, copy / name
        assert new.read_bytes() == old.read_bytes(), name
        assert new.stat().st_mtime_ns == old.stat().st_mtime_ns, name
        assert new.stat().st_mode == old.stat().st_mode, name
    assert done.seat is None and done.files == len(list(held(copy)))
    assert done.data_bytes < sum((store / name).stat().st_size for name in held(store))
    newest = max((copy / "commitlog").iterdir())
    assert newest.stat().st_blocks * 512 < newest.stat().st_size
    assert bodies(copy) == bodies(store)
    open_master(copy, OPTIONS).close()


def test_the_copy_of_a_members_store_is_another_seat_that_keeps_its_promises(
    store: Path, tmp_path: Path
) -> None:
    SeatFile(store).save(SEAT)
    seats = []
    for name in ("one", "two"):
        done = copy_store(store, tmp_path / name)
        seat = SeatFile(tmp_path / name).load()
        assert seat is not None and seat == done.seat and not seat.votes
        assert (seat.group, seat.member, seat.promised, seat.promised_to) == (SEAT.group, 2, 7, 3)
        seats.append(seat.uuid)
    assert len({SEAT.uuid, *seats}) == 3
    assert SeatFile(store).load() == SEAT


def test_a_copy_that_was_put_back_twice_in_one_place_is_two_seats(store: Path, tmp_path: Path) -> None:
    SeatFile(store).save(SEAT)
    backup, place = tmp_path / "backup", tmp_path / "place"
    copy_store(store, backup)
    seen = {SEAT.uuid}
    for _ in range(2):
        copy_store(backup, place)
        seat = SeatFile(place).load()
        assert seat is not None and seat.uuid not in seen and not seat.votes and seat.promised == 7
        seen.add(seat.uuid)
        Files().remove_tree(place)


def test_a_copy_for_others_has_no_seat_and_ends_where_it_is_told(store: Path, tmp_path: Path) -> None:
    SeatFile(store).save(SEAT)
    end = bodies(store)[COMMITTED]
    copy = tmp_path / "copy"
    assert copy_store(store, copy, group=False, log_end=end).seat is None
    assert not (copy / SEAT_FILE).exists()
    opened = open_master(copy, OPTIONS)
    assert opened.written == end and opened.queue_range("topic", 0)[1] == COMMITTED
    opened.close()
    assert bodies(copy) == bodies(store)[:COMMITTED]
    assert len(bodies(store)) == COUNT


@pytest.mark.parametrize("calls", [0, 1, 4, 9])
def test_an_interrupted_copy_is_not_opened_and_is_begun_anew(store: Path, tmp_path: Path, calls: int) -> None:
    SeatFile(store).save(SEAT)
    copy, write_all, left = tmp_path / "copy", Files.write_all, calls

    def refuse(self: Files, fd: int, data: bytes, position: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        write_all(self, fd, data, position)

    with patch.object(Files, "write_all", refuse), pytest.raises(StoreError, match="No space left"):
        copy_store(store, copy)
    assert (copy / COPYING).exists()
    for refused in (lambda: LogWriter.open(copy, OPTIONS), lambda: copy_store(copy, tmp_path / "other")):
        with pytest.raises(StoreError, match="was interrupted"):
            refused()
    copy_store(store, copy)
    assert bodies(copy) == bodies(store) and not (copy / COPYING).exists()


def test_what_can_not_be_copied_is_refused_and_nothing_is_changed(store: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    (taken / "commitlog").mkdir(parents=True)
    (taken / "precious").touch()
    with pytest.raises(StoreError, match=r"is not empty.*precious"):
        copy_store(store, taken)
    assert sorted(path.name for path in taken.iterdir()) == ["commitlog", "precious"]
    with pytest.raises(StoreError, match="holds no store"):
        copy_store(tmp_path, tmp_path / "new")
    for inside in (store, store / "copy", tmp_path):
        with pytest.raises(StoreError, match=r"same directory|one is in the other|not empty"):
            copy_store(store, inside)
    opened = open_master(store, OPTIONS)
    with pytest.raises(StoreError, match="is in use"):
        copy_store(store, tmp_path / "new")
    opened.close()
    assert not (tmp_path / "new").exists()


def test_an_empty_directory_may_be_there(store: Path, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir(mode=0o700)
    copy_store(store, tmp_path / "volume")
    assert bodies(tmp_path / "volume") == bodies(store)
    assert (tmp_path / "volume").stat().st_mode & 0o777 == 0o700
