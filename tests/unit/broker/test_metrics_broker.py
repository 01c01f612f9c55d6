"""What a broker counts, and how lags are read while the state changes."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.consume.queue_leases import QueueLeases
from whimbrel.broker.counted import Counted
from whimbrel.broker.metrics import Behind, ReserveTime, behind, lag_of, traffic
from whimbrel.metrics import Histogram
from whimbrel.model.topic import MessageType, TopicConfig


@pytest.fixture
def state() -> QueueLeases:
    state = LeaseTable(origin=1).state("g", "t", 0)
    state.finish(0, 10)
    state.finish(20, 30)
    return state


def test_lag_leaves_out_what_is_done_behind_a_gap(state: QueueLeases) -> None:
    assert lag_of(state, 50) == 30


def test_lag_of_a_queue_that_is_not_there_yet_is_none(state: QueueLeases) -> None:
    assert lag_of(state, 0) == 0


def test_lag_seen_between_two_halves_of_a_change_counts_from_the_committed_offset(state: QueueLeases) -> None:
    state.ends.append(60)  # the other half comes next
    assert lag_of(state, 50) == 40


def test_queue_that_a_group_has_not_touched_lies_ahead_of_it_as_a_whole() -> None:
    table = LeaseTable(origin=1)
    table.state("g", "t", 1).finish(0, 4)
    table.state("idle", "t", 0)  # asked for, and no position yet
    ranges = {0: (10, 15), 1: (0, 6), 2: (0, 0)}
    found = list(behind(table, lambda topic: range(3), lambda topic, queue_id: ranges[queue_id]))
    assert found == [
        Behind("g", "t", 0, lag=5, inflight=0, ready=5),
        Behind("g", "t", 1, lag=2, inflight=0, ready=2),
        Behind("g", "t", 2, lag=0, inflight=0, ready=0),
    ]


def test_messages_that_are_removed_no_longer_lie_ahead() -> None:
    table = LeaseTable(origin=1)
    table.state("g", "t", 0).finish(0, 1)
    (one,) = behind(table, lambda topic: (), lambda topic, queue_id: (90, 100))
    assert (one.lag, one.ready) == (10, 10)


def test_position_on_a_queue_that_the_topic_no_longer_has_still_counts() -> None:
    table = LeaseTable(origin=1)
    table.state("g", "t", 7).finish(0, 1)
    (one,) = behind(table, lambda topic: (), lambda topic, queue_id: (0, 3))
    assert (one.queue_id, one.lag) == (7, 2)


def test_stored_messages_count_once_for_each_metric() -> None:
    counted = Counted()
    counted.appended("t", [SimpleNamespace(size=100), SimpleNamespace(size=5000)])
    counted.appended("u", [SimpleNamespace(size=1)])
    counted.appended("rmq_sys_wheel_timer", [SimpleNamespace(size=1)])
    topics = {"u": TopicConfig(name="u").with_type(MessageType.FIFO)}
    found = {family.name: dict(family.read()) for family in traffic(topics.get, counted)}
    labels = ("t", "normal", "false")
    assert found["rocketmq_messages_in_total"] == {
        labels: 2,
        ("u", "fifo", "false"): 1,
        ("rmq_sys_wheel_timer", "normal", "true"): 1,
    }
    assert found["rocketmq_throughput_in_total"][labels] == 5100
    sizes = found["rocketmq_message_size"][labels]
    assert isinstance(sizes, Histogram)
    assert sizes.counts == [1, 0, 1, 0, 0, 0, 0]


def test_deliveries_count_by_topic_and_group() -> None:
    counted = Counted()
    counted.took("t", "g", 3, 300)
    counted.took("t", "g", 1, 50)
    counted.took("%RETRY%g", "CID_RMQ_SYS_x", 1, 1)
    found = {family.name: dict(family.read()) for family in traffic(lambda topic: None, counted)}
    assert found["rocketmq_messages_out_total"] == {
        ("t", "g", "false", "false"): 4,
        ("%RETRY%g", "CID_RMQ_SYS_x", "true", "true"): 1,
    }
    assert found["rocketmq_throughput_out_total"]["t", "g", "false", "false"] == 350


def test_age_of_the_oldest_message_of_a_log_that_is_not_there_is_not_told(tmp_path: Path) -> None:
    assert ReserveTime(tmp_path, lambda: 0).milliseconds(1.0) == []
