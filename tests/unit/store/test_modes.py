"""What modes the files of a store get, and what is said of those that are there."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from whimbrel.store.modes import StoreMode, apply_mode, exposure, same_modes


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def made(root: Path) -> Path:
    (root / "commitlog").mkdir(parents=True)
    (root / "config").mkdir()
    fd = os.open(root / "commitlog" / ("0" * 20), os.O_CREAT | os.O_RDWR, 0o644)
    os.close(fd)
    (root / "config" / "topics.json").write_text("{}")
    return root


def modes(root: Path) -> set[str]:
    return {f"{path.stat().st_mode & 0o777:o}" for path in (root, *root.rglob("*"))}


@pytest.mark.parametrize(
    ("mode", "expected"), [("private", "600 700"), ("group", "640 750"), ("all", "644 755")]
)
def test_a_mode_covers_whatever_is_made(tmp_path: Path, mode: StoreMode, expected: str) -> None:
    assert apply_mode(mode) == 0o022
    root = made(tmp_path / "store")
    assert modes(root) == set(expected.split())
    assert exposure(root, mode) == ""


@pytest.mark.parametrize(("mode", "change"), [("private", "go-rwx"), ("group", "o-rwx")])
def test_a_store_that_others_may_read_is_told_with_the_command_that_ends_it(
    tmp_path: Path, mode: StoreMode, change: str
) -> None:
    root = made(tmp_path / "store")
    text = exposure(root, mode)
    assert f"{root}/commitlog has the mode 0755" in text
    assert f"`chmod -R {change} {root}`" in text
    assert exposure(root, "all") == ""
    assert os.system(f"chmod -R {change} {root}") == 0
    assert exposure(root, mode) == ""


def test_a_root_that_others_can_t_enter_covers_what_is_below(tmp_path: Path) -> None:
    root = made(tmp_path / "store")
    root.chmod(0o700)
    assert exposure(root, "private") == ""


def test_an_open_folder_that_somebody_made_for_a_new_store_is_fine(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    assert exposure(root, "private") == ""
    apply_mode("private")
    made(root)
    assert exposure(root, "private") == ""
    assert exposure(tmp_path / "none", "private") == ""


@pytest.mark.parametrize("mode", ["private", "group", "all"])
def test_a_command_makes_files_of_the_store_s_modes(tmp_path: Path, mode: StoreMode) -> None:
    apply_mode(mode)
    root = made(tmp_path / "store")
    os.umask(0o022)
    with same_modes(root):
        (root / "new").touch()
    with same_modes(tmp_path / "none"):
        pass
    assert (root / "new").stat().st_mode == (root / "config" / "topics.json").stat().st_mode
    assert os.umask(0o022) == 0o022
