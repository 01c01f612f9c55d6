"""Where two logs differ is found to the byte, and cut at the record: against another copy in memory."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.store.stores import FILE, open_log
from unit.store.test_divergence import AT_BORDER, BORDERS, END, OURS, SMALL, THEIRS, log_bytes, ours
from whimbrel.errors import StoreError
from whimbrel.store.cut import list_cuts
from whimbrel.store.log_compare import cut_difference, find_difference
from whimbrel.store.seat_file import Seat, SeatFile


class Copy:
    """A log in memory; counts what is asked for."""

    def __init__(self, data: bytes, *, begin: int = 0, confirmed: int = -1) -> None:
        self.data, self.begin = data, begin
        self.confirmed = len(data) if confirmed < 0 else confirmed
        self.bytes_read = 0

    def sums(self, begin: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int, int]]:
        assert self.begin <= begin <= end <= self.confirmed
        while begin < end:
            border = min(begin - begin % piece_bytes + piece_bytes, begin - begin % FILE + FILE, end)
            yield begin, border - begin, zlib.crc32(self.data[begin:border])
            begin = border

    def read(self, begin: int, end: int) -> bytes:
        assert self.begin <= begin <= end <= self.confirmed and end - begin <= 4096
        self.bytes_read += end - begin
        return self.data[begin:end]


@pytest.mark.parametrize("number", [1, 9, 14, 15, 22, 38, 39])
def test_the_log_is_cut_at_the_record_that_differs_and_goes_on_like_the_other(
    number: int, tmp_path: Path
) -> None:
    point = BORDERS[number]
    other = Copy(OURS[:point] + THEIRS[point:])
    at = next(at for at in range(point, END) if other.data[at] != OURS[at])
    ours(tmp_path)
    found = find_difference(tmp_path, other)
    assert (found.at, found.point, found.end) == (at, point, END)
    assert found.records == len(BORDERS) - 1 - number == sum(found.topics.values())
    assert list_cuts(tmp_path) == [], "nothing was changed"
    assert cut_difference(tmp_path, found) == list_cuts(tmp_path)[0].path
    log = open_log(tmp_path, SMALL)
    assert log.end == point
    while log.end < END:
        step = min(9000, END - log.end, FILE - log.end % FILE)
        log.append_raw(log.end, other.data[log.end : log.end + step])
    assert log_bytes(log) == other.data
    log.close()


@pytest.mark.parametrize("end", [BORDERS[9], AT_BORDER, BORDERS[38]])
def test_a_log_that_goes_on_behind_what_can_be_compared_is_cut_there(end: int, tmp_path: Path) -> None:
    ours(tmp_path)
    assert find_difference(tmp_path, Copy(OURS, confirmed=end)).point == end
    found = find_difference(tmp_path, Copy(OURS[:end]))
    assert (found.at, found.point, found.end) == (end, end, END)


def test_equal_logs_are_left_as_they_are(tmp_path: Path) -> None:
    ours(tmp_path, end=BORDERS[29])
    found = find_difference(tmp_path, Copy(OURS))
    assert found.point == found.end == BORDERS[29] and not found.records


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (Copy(THEIRS, begin=BORDERS[22]), "differ at byte"),
        (Copy(OURS, begin=END), "nothing to compare"),
    ],
)
def test_what_can_not_be_judged_is_refused(other: Copy, text: str, tmp_path: Path) -> None:
    ours(tmp_path)
    with pytest.raises(StoreError, match=text):
        find_difference(tmp_path, other)


def test_an_open_store_and_a_members_are_refused(tmp_path: Path) -> None:
    ours(tmp_path)
    log = open_log(tmp_path, SMALL)
    with pytest.raises(StoreError, match="is in use"):
        find_difference(tmp_path, Copy(OURS))
    log.close()
    SeatFile(tmp_path).save(Seat(uuid="1" * 32, group="2" * 32, member=2))
    with pytest.raises(StoreError, match="cuts by itself"):
        find_difference(tmp_path, Copy(OURS))
