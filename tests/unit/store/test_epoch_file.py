"""The list of epochs on disk: whole, durable under its name, and refused when it is damaged."""

from pathlib import Path

import pytest

from whimbrel.errors import StoreError
from whimbrel.ha.epochs import TEXT_BYTES_MAX, BadEpochs
from whimbrel.machine import Files
from whimbrel.store.epoch_file import EPOCH_FILE, EpochFile


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = EpochFile(tmp_path)
    assert file.load() == ()
    for epochs in (((1, 0),), ((1, 0), (2, 70)), ()):
        file.save(epochs)
        assert EpochFile(tmp_path).load() == epochs
    assert [path.name for path in tmp_path.iterdir()] == [EPOCH_FILE]


def test_an_empty_file_holds_no_epoch(tmp_path: Path) -> None:
    (tmp_path / EPOCH_FILE).touch()
    assert EpochFile(tmp_path).load() == ()


def test_bytes_name_and_directory_are_synced_in_this_order(tmp_path: Path) -> None:
    calls: list[str] = []

    class Noting(Files):
        def fsync(self, fd: int) -> None:
            calls.append("sync")
            super().fsync(fd)

        def rename(self, old: Path, new: Path) -> None:
            calls.append(f"{old.name} to {new.name}")
            super().rename(old, new)

    EpochFile(tmp_path, Noting()).save(((1, 0),))
    assert calls == ["sync", f"{EPOCH_FILE}.tmp to {EPOCH_FILE}", "sync"]


@pytest.mark.parametrize("data", [b"1\n5\n1-0\n", b"x", b"0" * (TEXT_BYTES_MAX + 1)])
def test_a_damaged_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / EPOCH_FILE).write_bytes(data)
    with pytest.raises(StoreError, match=f"{EPOCH_FILE} is damaged: .*; begin with a backup"):
        EpochFile(tmp_path).load()


def test_an_impossible_list_is_not_saved(tmp_path: Path) -> None:
    file = EpochFile(tmp_path)
    file.save(((1, 0),))
    with pytest.raises(BadEpochs):
        file.save(((2, 0), (1, 5)))
    assert file.load() == ((1, 0),)


def test_errors_of_the_disk_are_told(tmp_path: Path) -> None:
    (tmp_path / f"{EPOCH_FILE}.tmp").mkdir()
    with pytest.raises(StoreError, match="can't be written"):
        EpochFile(tmp_path).save(((1, 0),))
    (tmp_path / EPOCH_FILE).mkdir()
    with pytest.raises(StoreError, match="can't be read"):
        EpochFile(tmp_path).load()
