"""From where queues stand to micro-batches and tasks."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.spark.offsets import EARLIEST, LATEST, Key, from_checkpoint, to_checkpoint
from whimbrel.spark.planning import (
    DataLoss,
    Extent,
    OffsetRange,
    ending_positions,
    ending_positions_by_time,
    micro_batch_end,
    pack,
    ranges_between,
    starting_positions,
    starting_positions_by_time,
)

A, B, C = ("t", "a", 0), ("t", "a", 1), ("u", "b", 0)


def test_positions_survive_the_checkpoint() -> None:
    positions = {A: 5, B: 0, C: 1 << 40}
    text = json.dumps(to_checkpoint(positions))
    assert json.loads(text) == {"v": 1, "q": {"t": {"a": {"0": 5, "1": 0}}, "u": {"b": {"0": 1 << 40}}}}
    assert from_checkpoint(json.loads(text)) == positions


def test_a_checkpoint_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        from_checkpoint({"v": 2, "q": {}})


def test_queues_that_an_option_does_not_name_are_read_whole() -> None:
    extents = {A: Extent(3, 10), B: Extent(0, 7), C: Extent(2, 2)}
    assert starting_positions({A: 5, B: LATEST}, extents) == {A: 5, B: 7, C: 2}
    assert ending_positions({A: 8, B: LATEST}, extents) == {A: 8, B: 7, C: 2}
    assert ending_positions({A: 99}, extents)[A] == 10
    assert starting_positions(EARLIEST, extents) == {A: 3, B: 0, C: 2}


def test_a_start_by_time_names_queues_that_have_nothing_as_late() -> None:
    extents = {A: Extent(3, 10), B: Extent(0, 7), C: Extent(0, 0)}
    assert starting_positions_by_time({A: 5, B: 0, C: 0}, extents, latest_without_match=False) == {
        A: 5,
        B: 0,
        C: 0,
    }
    with pytest.raises(LookupError, match="t, queue 1 of a has nothing as late"):
        starting_positions_by_time({A: 5, B: 7, C: 0}, extents, latest_without_match=False)
    assert starting_positions_by_time({A: 5, B: 7, C: 0}, extents, latest_without_match=True) == {
        A: 5,
        B: 7,
        C: 0,
    }
    assert starting_positions_by_time({A: 0, B: 0, C: 0}, extents, latest_without_match=False)[A] == 3


def test_an_end_by_time_is_not_beyond_what_may_be_read() -> None:
    assert ending_positions_by_time({A: 5, B: 99}, {A: Extent(3, 10), B: Extent(0, 7)}) == {A: 5, B: 7}


def test_a_limit_is_shared_in_proportion_to_what_queues_have() -> None:
    extents = {A: Extent(0, 900), B: Extent(0, 100), C: Extent(0, 0)}
    assert micro_batch_end({A: 0, B: 0, C: 0}, extents, rows=100) == {A: 90, B: 10, C: 0}


def test_a_small_queue_is_never_starved() -> None:
    extents = {A: Extent(0, 1_000_000), B: Extent(0, 1)}
    assert micro_batch_end({A: 0, B: 0}, extents, rows=10)[B] == 1


def test_bytes_count_by_the_size_of_a_brokers_records() -> None:
    extents = {A: Extent(0, 100, 1000.0), C: Extent(0, 100, 10.0)}
    end = micro_batch_end({A: 0, C: 0}, extents, size=50_500)
    assert end == {A: 50, C: 50}


def test_a_queue_that_nobody_tells_of_stays_where_it_is() -> None:
    assert micro_batch_end({A: 5, B: 6}, {B: Extent(0, 9)}) == {A: 5, B: 9}


def test_a_new_queue_begins_at_its_first_message() -> None:
    assert micro_batch_end({A: 5}, {A: Extent(0, 5), B: Extent(4, 9)}, rows=2) == {A: 5, B: 6}
    assert micro_batch_end({}, {B: Extent(4, 4)}) == {B: 4}


def test_a_query_that_ends_reads_no_more_than_there_was() -> None:
    extents = {A: Extent(0, 50), B: Extent(0, 50)}
    assert micro_batch_end({A: 10}, extents, ceiling={A: 30}) == {A: 30}
    assert micro_batch_end({A: 30}, extents, ceiling={A: 30}) == {A: 30}


@given(
    ends=st.dictionaries(st.tuples(st.just("t"), st.just("a"), st.integers(0, 5)), st.integers(0, 1000)),
    rows=st.integers(1, 50),
)
def test_limited_batches_reach_the_end_and_never_go_back(ends: dict[Key, int], rows: int) -> None:
    extents = {key: Extent(0, end) for key, end in ends.items()}
    at = dict.fromkeys(ends, 0)
    for _ in range(sum(ends.values()) + 1):
        further = micro_batch_end(at, extents, rows=rows)
        assert all(further[key] >= at[key] for key in at)
        assert sum(further.values()) - sum(at.values()) <= rows + len(ends)
        if further == at:
            break
        at = further
    assert at == ends


def test_what_retention_has_removed_fails_or_is_passed_over() -> None:
    extents = {A: Extent(10, 20)}
    with pytest.raises(DataLoss, match="offsets 5 to 10 are gone"):
        ranges_between({A: 5}, {A: 15}, extents, fail_on_data_loss=True)
    (offset_range,) = ranges_between({A: 5}, {A: 15}, extents, fail_on_data_loss=False)
    assert (offset_range.start, offset_range.end) == (10, 15)
    assert ranges_between({A: 5}, {A: 8}, extents, fail_on_data_loss=False) == []
    assert ranges_between({A: 5}, {A: 5}, extents, fail_on_data_loss=True) == []  # nothing was to be read


def offset_range(queue_id: int, count: int, record_bytes: float = 1000.0) -> OffsetRange:
    return OffsetRange("t", "a", queue_id, 0, count, record_bytes)


def test_many_small_queues_make_few_tasks() -> None:
    tasks = pack([offset_range(number, 10) for number in range(32)], task_bytes=1 << 27, tasks_max=4)
    assert len(tasks) == 1
    tasks = pack([offset_range(number, 10) for number in range(32)], task_bytes=80_000, tasks_max=4)
    assert len(tasks) == 4
    assert {len(task) for task in tasks} == {8}


def test_a_large_queue_is_split() -> None:
    tasks = pack([offset_range(0, 100)], task_bytes=25_000, tasks_max=0)
    assert [(part.start, part.end) for task in tasks for part in task] == [
        (0, 25),
        (25, 50),
        (50, 75),
        (75, 100),
    ]


def test_more_tasks_may_be_asked_for_than_the_bytes_want() -> None:
    assert len(pack([offset_range(0, 100)], task_bytes=1 << 30, tasks_max=2, tasks_min=5)) == 5
    assert (
        len(pack([offset_range(0, 2)], task_bytes=1 << 30, tasks_max=0, tasks_min=5)) == 2
    )  # there are two messages


@given(
    counts=st.lists(st.integers(1, 500), max_size=12),
    task_bytes=st.integers(1000, 200_000),
    tasks_max=st.integers(0, 6),
    tasks_min=st.integers(0, 6),
)
def test_tasks_hold_every_message_once(
    counts: list[int], task_bytes: int, tasks_max: int, tasks_min: int
) -> None:
    ranges = [offset_range(number, count) for number, count in enumerate(counts)]
    tasks = pack(ranges, task_bytes=task_bytes, tasks_max=tasks_max, tasks_min=tasks_min)
    assert not tasks_max or len(tasks) <= max(tasks_max, tasks_min)
    parts = sorted(itertools.chain(*tasks), key=lambda part: (part.queue_id, part.start))
    for number, count in enumerate(counts):
        borders = [(part.start, part.end) for part in parts if part.queue_id == number]
        assert borders[0][0] == 0 and borders[-1][1] == count
        assert all(left[1] == right[0] for left, right in itertools.pairwise(borders))
    for task in tasks:  # rows of a queue keep their order
        assert [part.start for part in task if part.queue_id == 0] == sorted(
            part.start for part in task if part.queue_id == 0
        )
