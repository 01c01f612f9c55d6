"""Queues of message groups: the values of the reference's own class and server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.produce.placement import consistent_index, java_hash, queue_of_group

TABLE = {
    "a": (0, 0, 0, 0),
    "order-1": (0, 3, 3, 3),
    "用户": (1, 3, 3, 10),
    "g3": (0, 2, 2, 14),
    "g4": (1, 1, 4, 8),
    "group-17": (1, 3, 7, 7),
}


@pytest.mark.parametrize("group", TABLE)
def test_a_group_goes_to_the_queue_of_the_reference(group: str) -> None:
    """Checklist 1."""
    assert tuple(queue_of_group(group, count) for count in (2, 4, 8, 16)) == TABLE[group]


def test_the_hash_is_of_utf_16_and_signed() -> None:
    assert java_hash("") == 0
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert java_hash("\U0001f600") == 31 * 0xD83D + 0xDE00  # two units


@given(st.text(max_size=40), st.integers(1, 1000))
def test_with_one_queue_more_a_group_stays_or_moves_to_the_new_one(group: str, count: int) -> None:
    before, after = queue_of_group(group, count), queue_of_group(group, count + 1)
    assert 0 <= before < count
    assert after in (before, count)


def test_groups_spread_evenly() -> None:
    counts = [0] * 8
    for number in range(8000):
        counts[consistent_index(java_hash(f"order-{number * 7919}"), 8)] += 1
    assert min(counts) > 800 and max(counts) < 1200
