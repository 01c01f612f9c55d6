"""What the real machine's calls do beyond those of `os`."""

import mmap
import os
from pathlib import Path

import pytest

from whimbrel.machine import FILES


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_mapping_for_writing_holds_no_descriptor_and_shares_the_file(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 2000)  # a mapping need not end with a page
    before = descriptors()
    mappings = [FILES.map(fd, 2000) for _ in range(10)]
    assert descriptors() == before
    reading = FILES.map(fd, 2000, writable=False)
    os.close(fd)
    mappings[0][1999] = 7
    assert [len(one) for one in mappings] == [2000] * 10
    assert [one[1999] for one in (*mappings, reading)] == [7] * 11
    assert (tmp_path / "file").read_bytes()[1999] == 7
    mappings[0].madvise(mmap.MADV_RANDOM)
    for one in (*mappings, reading):
        one.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_store_into_a_mapping_for_reading_is_an_error_and_no_signal(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    with FILES.map(fd, 100, writable=False) as mapped, pytest.raises(TypeError):
        mapped[0] = 1
    with pytest.raises(PermissionError):
        FILES.map(fd, 100)
    os.close(fd)


def test_what_is_longer_than_the_file_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    fd = os.open(tmp_path / "file", os.O_RDWR)
    for writable in (True, False):
        with pytest.raises(ValueError, match="greater than file size"):
            FILES.map(fd, 101, writable=writable)
    os.close(fd)
