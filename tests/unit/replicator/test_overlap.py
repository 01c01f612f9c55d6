"""Where a comparison starts: with a whole record, in the file before where the last one has none."""

from pathlib import Path

import pytest

from support.store.master_log import MasterLog
from whimbrel.replicator.overlap import overlap_start

FILE = 1 << 16
RECORD_MAX = 610  # of 500 bytes of body and a key


class Log:
    """A log of records, cut anywhere, that counts what is read of it."""

    def __init__(self, root: Path, count: int, *, body_bytes: int = 500) -> None:
        self.ends = [0]
        with MasterLog(root, file_size=FILE) as master:
            for _ in range(count):
                self.ends.append(master.append(1, body_bytes=body_bytes))
            self.data = b"".join(
                path.read_bytes() for path in sorted((root / "commitlog").iterdir()) if path.stat().st_size
            )
        self.read_bytes = 0

    def read(self, offset: int, count: int) -> bytes:
        assert offset // FILE == (offset + count - 1) // FILE, "a read across files"
        self.read_bytes += count
        return self.data[offset : offset + count]

    def start(self, end: int, *, begin: int = 0, compare_bytes: int = 1000) -> int:
        return overlap_start(self.read, begin=begin, end=end, file_size=FILE, compare_bytes=compare_bytes)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return Log(tmp_path_factory.mktemp("log"), 250)


def test_as_much_is_shown_as_is_asked_for(log: Log) -> None:
    assert log.start(log.ends[20]) == log.ends[20] - 1000
    assert log.start(log.ends[20], compare_bytes=5000) == log.ends[20] - 5000


def test_nothing_is_shown_where_nothing_is_asked_for_or_held(log: Log) -> None:
    assert log.start(log.ends[20], compare_bytes=0) == log.ends[20]
    assert log.start(0) == 0
    assert log.start(FILE, begin=FILE) == FILE  # a log that starts there, and is empty
    assert log.start(2 * FILE, begin=2 * FILE, compare_bytes=FILE) == 2 * FILE


@pytest.mark.parametrize("cut", [0, 1, 10, 35, 36, 300])
def test_a_whole_record_is_shown_wherever_the_log_ends(log: Log, cut: int) -> None:
    start = log.start(log.ends[20] + cut, compare_bytes=1)
    assert start == log.ends[19]


def test_a_log_that_ends_at_a_file_border_shows_the_last_record_of_the_file(log: Log) -> None:
    last = max(end for end in log.ends if end < FILE)  # the blank begins here
    record = max(end for end in log.ends if end < last)
    assert FILE - last < RECORD_MAX + 8
    assert log.start(FILE, compare_bytes=1) == record
    assert log.start(FILE, compare_bytes=3000) == FILE - 3000


@pytest.mark.parametrize("over", [1, 8, 40, 500])
def test_a_file_that_has_no_whole_record_yet_needs_the_one_before(log: Log, over: int) -> None:
    last = max(end for end in log.ends if end < FILE)
    record = max(end for end in log.ends if end < last)
    assert log.start(FILE + over, compare_bytes=1000) == record


def test_more_than_a_record_is_shown_of_the_last_file_only(log: Log) -> None:
    second = min(end for end in log.ends if end > FILE)  # the end of the file's first record
    assert log.start(second, compare_bytes=5000) == FILE


def test_a_log_is_never_asked_for_from_0(log: Log) -> None:
    assert log.start(log.ends[1], compare_bytes=FILE) == 1
    assert log.start(100, compare_bytes=FILE) == 1
    assert log.start(1, compare_bytes=FILE) == 1


def test_what_the_own_log_no_longer_holds_is_not_asked_for(log: Log) -> None:
    assert log.start(FILE + 20, begin=FILE) == FILE


def test_records_longer_than_what_is_asked_for_are_shown_whole(tmp_path: Path) -> None:
    log = Log(tmp_path, 3, body_bytes=30_000)
    end = log.ends[2]
    assert log.start(end, compare_bytes=1000) == log.ends[1]
    assert log.read_bytes < FILE + 100


def test_something_that_is_no_record_is_shown_as_far_as_it_is_searched(tmp_path: Path) -> None:
    log = Log(tmp_path, 1)
    log.data = bytes(3 * FILE)
    assert log.start(3 * FILE, compare_bytes=1000) == 1
