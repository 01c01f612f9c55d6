"""The log: its writer, and readers in other processes."""

import os
from pathlib import Path

import pytest

from support.store.stores import FILE, make_draft, open_log, open_master
from whimbrel.errors import IllegalOffset, StoreError
from whimbrel.store.log_reader import LogReader


def test_raw_bytes_go_only_where_the_log_ends_and_never_across_a_file(tmp_path: Path) -> None:
    log = open_log(tmp_path / "slave")
    assert log.append_raw(0, b"x" * 10) == 10
    for offset, data in ((5, b"x"), (11, b"x"), (10, b"x" * FILE)):
        with pytest.raises(StoreError):
            log.append_raw(offset, data)
    assert log.append_raw(10, b"") == 10
    assert log.append_raw(10, b"x" * (FILE - 10)) == FILE
    assert log.append_raw(FILE, b"y") == FILE + 1
    log.close()


def test_each_opening_is_an_epoch_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path / "slave")
    first = log.page.epoch
    log.close()
    log = open_log(tmp_path / "slave")
    assert log.page.epoch == first + 1
    log.close()


def test_a_reader_sees_what_is_published_and_no_more(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    reader = LogReader.open(tmp_path / "s")
    answer = store.append([make_draft()])[0]
    assert reader.view(0, 1000).nbytes == 0
    assert reader.file_for(0) == (-1, 0, 0)
    store.end_tick()
    assert bytes(reader.view(0, 10_000)) == store.read(0, answer.size)
    fd, position, available = reader.file_for(8)
    assert os.pread(fd, available, position) == store.read(0, answer.size)[8:]
    with pytest.raises(IllegalOffset):
        reader.view(answer.end + 1, 1)
    for number in range(100):
        store.append([make_draft(number, size=1000)])
    store.end_tick()
    assert reader.file_for(100)[2] == FILE - 100
    assert len(reader.view(100, 1 << 20)) == FILE - 100
    reader.close()
    store.close()
