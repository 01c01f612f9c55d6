"""What is passed over, where queues go, and how fast."""

import pytest

from whimbrel.model.message import MessageType
from whimbrel.spark.jobs.replay import shares, topic_type
from whimbrel.spark.masters import NoTarget, target_broker
from whimbrel.spark.replay_writer import Pace, kind_of


@pytest.mark.parametrize(
    ("topic", "sys_flag", "kind"),
    [
        ("orders", 0x301, ""),
        ("orders", 0x8, ""),
        ("orders", 0x4, "HALF"),
        ("orders", 0xC, "HALF"),
        ("orders", 0x40, "INNER_BATCH"),
        ("SCHEDULE_TOPIC_XXXX", 0, "SCHEDULE"),
        ("rmq_sys_wheel_timer", 0, "TIMER"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 0x0, "HALF"),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, "OP"),
        ("TRANS_CHECK_MAX_TIME_TOPIC", 0, "UNDECIDED"),
        ("rmq_sys_REVIVE_LOG_DefaultCluster", 0, "POP"),
        ("%RETRY%g", 0, "RETRY"),
        ("%DLQ%g", 0, "DEAD_LETTER"),
        ("RMQ_SYS_TRACE_TOPIC", 0, "SYSTEM"),
    ],
)
def test_what_waits_or_belongs_to_brokers_is_passed_over_by_the_names_of_the_column_type(
    topic: str, sys_flag: int, kind: str
) -> None:
    assert kind_of(topic, sys_flag) == kind


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (set(), MessageType.NORMAL),
        ({"FIFO"}, MessageType.FIFO),
        ({"NORMAL", "DELAY"}, MessageType.MIXED),
        ({"DEAD_LETTER"}, MessageType.NORMAL),
    ],
)
def test_a_topic_is_made_for_what_it_is_filled_with(kinds: set[str], expected: MessageType) -> None:
    assert topic_type(kinds) is expected


def test_a_sources_broker_goes_where_it_is_told_or_where_only_one_is() -> None:
    assert target_broker("old", ["x"], {}) == "x"
    assert target_broker("b", ["a", "b"], {}) == "b"
    assert target_broker("old", ["a", "b"], {"old": "b"}) == "b"
    with pytest.raises(NoTarget, match="--broker old=a"):
        target_broker("old", ["b", "a"], {})


def test_a_rate_is_held_without_catching_up_after_a_pause() -> None:
    now = 10.0
    slept: list[float] = []
    pace = Pace(100.0, lambda: now, slept.append)
    pace.wait(50)  # the first goes at once
    pace.wait(50)
    assert slept == [0.5]
    now = 60.0
    pace.wait(50)
    pace.wait(1)
    assert slept == [0.5, 0.5]


def test_tasks_have_about_as_many_messages_each() -> None:
    sizes = {("t", "b", 0): 90, ("t", "b", 1): 50, ("t", "b", 2): 40, ("t", "b", 3): 10}
    tasks = shares(sizes, 2)
    assert tasks == {("t", "b", 0): 0, ("t", "b", 1): 1, ("t", "b", 2): 1, ("t", "b", 3): 0}
