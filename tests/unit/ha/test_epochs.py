"""Epoch lists: how far two logs are the same, what a follower adopts, and the text of `epochFileCheckpoint`.

tests/interop/test_epochs.py compares consistent points, truncated lists and texts with RocketMQ's.
"""

import pytest

from whimbrel.ha.epochs import (
    EPOCHS_MAX,
    OFFSET_MAX,
    TEXT_BYTES_MAX,
    BadEpochs,
    Epochs,
    adopted,
    check_epochs,
    common_epoch,
    consistent_point,
    cut,
    decode_epochs,
    encode_epochs,
    epoch_at,
    reached,
)
from whimbrel.model.group_record import EPOCH_MAX

MINE: Epochs = ((1, 0), (2, 100), (4, 150))


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "point"),
    [
        (MINE, 200, MINE, 200, 200),
        (MINE, 200, MINE, 180, 180),
        (MINE, 180, MINE, 200, 180),
        (MINE, 200, (*MINE, (5, 190)), 300, 190),
        (MINE, 200, (*MINE, (5, 250)), 300, 200),
        (MINE, 200, ((1, 0), (2, 100), (3, 120)), 300, 120),
        (MINE, 200, ((1, 0), (3, 80)), 300, 80),
        (MINE, 200, ((1, 0), (2, 101)), 300, 100),  # another start is another epoch
        (MINE, 200, ((2, 100), (4, 160)), 300, 150),  # an older list was cut by retention
        (MINE, 200, ((7, 0),), 300, None),
        (MINE, 200, (), 300, None),
        ((), 0, MINE, 200, None),
    ],
)
def test_logs_are_the_same_up_to_the_lesser_end_of_their_newest_common_epoch(
    mine: Epochs, my_end: int, theirs: Epochs, their_end: int, point: int | None
) -> None:
    assert consistent_point(mine, my_end, theirs, their_end) == point
    assert consistent_point(theirs, their_end, mine, my_end) == point
    assert (common_epoch(mine, theirs) is None) is (point is None)


def test_an_epoch_that_starts_where_the_log_is_cut_goes() -> None:
    assert cut(MINE, 151) == MINE
    assert cut(MINE, 150) == ((1, 0), (2, 100))
    assert cut(MINE, 0) == ()


def test_an_epoch_that_starts_at_the_logs_end_is_reached() -> None:
    assert reached(MINE, 150) == MINE
    assert reached(MINE, 149) == ((1, 0), (2, 100))


@pytest.mark.parametrize(
    ("mine", "theirs", "end", "expected"),
    [
        ((), MINE, 0, ((1, 0),)),
        ((), MINE, 99, ((1, 0),)),
        (((1, 0),), MINE, 150, MINE),
        (((1, 0), (2, 100)), ((1, 0), (3, 100)), 100, ((1, 0), (3, 100))),  # epoch 2 wrote nothing
        (((1, 0), (2, 100)), ((2, 100), (3, 200)), 200, ((1, 0), (2, 100), (3, 200))),
        (((1, 0),), ((5, 300),), 200, ((1, 0),)),  # not reached yet
        (MINE, ((9, 150),), 150, ((1, 0), (2, 100), (9, 150))),  # a leader begins
    ],
)
def test_a_follower_adopts_what_its_log_has_reached(
    mine: Epochs, theirs: Epochs, end: int, expected: Epochs
) -> None:
    assert adopted(mine, theirs, end) == expected
    check_epochs(expected, end)


def test_the_oldest_epochs_of_a_list_that_is_too_long_go() -> None:
    full = tuple((number, number * 10) for number in range(1, EPOCHS_MAX + 1))
    longer = adopted(full, ((EPOCHS_MAX + 1, 1 << 40),), 1 << 40)
    assert longer == (*full[1:], (EPOCHS_MAX + 1, 1 << 40))


def test_where_an_offset_is() -> None:
    assert epoch_at(MINE, 0) == ((1, 0), 100)
    assert epoch_at(MINE, 99) == ((1, 0), 100)
    assert epoch_at(MINE, 100) == ((2, 100), 150)
    assert epoch_at(MINE, 5000) == ((4, 150), OFFSET_MAX)
    assert epoch_at(((3, 50),), 49) == ((0, 0), 50)


@pytest.mark.parametrize(
    "epochs",
    [
        ((0, 0),),
        ((-1, 0),),
        ((EPOCH_MAX + 1, 0),),
        ((1, -1),),
        ((1, OFFSET_MAX + 1),),
        ((1, 0), (1, 5)),
        ((2, 0), (1, 5)),
        ((1, 5), (2, 5)),
        ((1, 5), (2, 4)),
        tuple((number, number) for number in range(1, EPOCHS_MAX + 2)),
    ],
)
def test_impossible_lists_are_refused(epochs: Epochs) -> None:
    with pytest.raises(BadEpochs):
        check_epochs(epochs)


def test_an_epoch_behind_the_logs_end_is_refused() -> None:
    check_epochs(MINE, 150)
    with pytest.raises(BadEpochs, match="starts at 150, behind the log's end 149"):
        check_epochs(MINE, 149)


def test_a_list_as_text() -> None:
    assert encode_epochs(((1, 0), (2, 1000))) == b"2\n1953333299\n1-0\n2-1000\n"
    assert encode_epochs(()) == b"0\n0\n"
    for epochs in ((), MINE, ((EPOCH_MAX, OFFSET_MAX),)):
        assert decode_epochs(encode_epochs(epochs)) == epochs


def test_the_longest_text_has_room_in_its_bound() -> None:
    first = EPOCH_MAX - EPOCHS_MAX
    epochs = tuple((first + number, OFFSET_MAX - EPOCHS_MAX + number) for number in range(1, EPOCHS_MAX + 1))
    text = encode_epochs(epochs).replace(b"\n", b"\r\n")
    assert len(text) <= TEXT_BYTES_MAX
    assert decode_epochs(encode_epochs(epochs)) == epochs


def test_a_crc_of_0_is_not_checked() -> None:
    assert decode_epochs(b"1\n0\n7-20\n") == ((7, 20),)
    assert decode_epochs(b"1\r\n0\r\n7-20\r\n") == ((7, 20),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "its count, its CRC"),
        (b"2\n", "its count, its CRC"),
        (b"one\n0\n1-0\n", "its count, its CRC"),
        (b"1\n-5\n1-0\n", "its count, its CRC"),
        (b"1\n7\n1-0\n", "but 7 stands above it"),
        (b"2\n0\n1-0\n", "a list of 1 epochs says that it has 2"),
        (b"1\n0\n1-0-3\n", "not epoch-start"),
        (b"1\n0\n1--3\n", "not epoch-start"),
        (b"1\n0\n\xff-3\n", "not epoch-start"),
        (b"2\n0\n1-0\n\n", "not epoch-start"),
        (b"2\n0\n2-0\n1-5\n", "follows epoch 2"),
        (b"1\n0\n9999999999-0\n", "out of bounds"),
        (b"0" * (TEXT_BYTES_MAX + 1), "the limit is"),
    ],
)
def test_a_broken_text_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(BadEpochs, match=why):
        decode_epochs(text)
