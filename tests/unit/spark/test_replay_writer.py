"""What is passed over, where queues go, and how fast."""

import pytest

from whimbrel.spark.jobs.replay import shares
from whimbrel.spark.masters import NoTarget, target_broker
from whimbrel.spark.replay_writer import Pace, kind_of


@pytest.mark.parametrize(
    ("topic", "sys_flag", "text", "kind"),
    [
        ("orders", 0x301, b"KEYS\x01a\x02", ""),
        ("orders", 0x8, b"", ""),
        ("orders", 0x4, b"", "transaction"),
        ("orders", 0xC, b"", "transaction"),
        ("orders", 0x40, b"", "inner batch"),
        ("orders", 0, b"KEYS\x01a\x02DELAY\x0118\x02", "delayed"),
        ("orders", 0, b"DELAY\x010\x02", ""),
        ("orders", 0, b"DELAY\x01-1\x02", ""),
        ("orders", 0, b"MY_DELAY\x013\x02", ""),
        ("orders", 0, b"TIMER_DELAY_SEC\x0130\x02", "delayed"),
        ("SCHEDULE_TOPIC_XXXX", 0, b"", "delayed"),
        ("rmq_sys_wheel_timer", 0, b"", "delayed"),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, b"", "transaction"),
        ("%RETRY%g", 0, b"", "retry"),
        ("%DLQ%g", 0, b"", "dead letter"),
        ("RMQ_SYS_TRACE_TOPIC", 0, b"", "system"),
    ],
)
def test_messages_of_the_brokers_own_and_delayed_ones_are_passed_over(
    topic: str, sys_flag: int, text: bytes, kind: str
) -> None:
    assert kind_of(topic, sys_flag, text) == kind


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
