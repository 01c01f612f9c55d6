"""Beans of topics and groups: golden ones come back unchanged, 4.9.3's gain 5.3.3's fields."""

from typing import Any

import pytest

from support.store.goldens import shared
from whimbrel.model.topic import DataVersion, GroupConfig, MessageType, TopicConfig
from whimbrel.store import jsonconfig


def bean_table(store: str, file: str, table: str) -> dict[str, Any]:
    content = jsonconfig.load(shared(store) / "config" / file)
    rows: dict[str, Any] = content[table]
    return rows


def test_topics_of_533_come_back_unchanged() -> None:
    for name, bean in bean_table("v533-basic", "topics.json", "topicConfigTable").items():
        again = TopicConfig.from_bean(name, bean).bean()
        assert again == bean and list(again) == list(bean)


def test_groups_of_533_come_back_unchanged() -> None:
    for name, bean in bean_table("v533-basic", "subscriptionGroup.json", "subscriptionGroupTable").items():
        again = GroupConfig.from_bean(name, bean).bean()
        assert again == bean and list(again) == list(bean)


def test_topics_of_493_gain_attributes_only() -> None:
    for name, bean in bean_table("v493-basic", "topics.json", "topicConfigTable").items():
        assert TopicConfig.from_bean(name, bean).bean() == {"attributes": {}, **bean}


def test_groups_of_493_keep_their_values() -> None:
    for name, bean in bean_table("v493-basic", "subscriptionGroup.json", "subscriptionGroupTable").items():
        assert bean.items() <= GroupConfig.from_bean(name, bean).bean().items()


def test_message_type_is_read_from_the_attribute() -> None:
    rows = bean_table("v533-basic", "topics.json", "topicConfigTable")
    types = {name: TopicConfig.from_bean(name, rows[name]).message_type for name in rows}
    assert types["FiveTopicFifo"] is MessageType.FIFO
    assert types["FiveTopicTx"] is MessageType.TRANSACTION
    assert types["FiveTopic"] is MessageType.NORMAL
    assert TopicConfig(name="t", attributes={"+message.type": "DELAY"}).message_type is MessageType.DELAY
    assert TopicConfig(name="t", attributes={"message.type": "NEW"}).message_type is MessageType.NORMAL


def test_every_change_moves_time_and_counter_of_a_version() -> None:
    version = DataVersion(timestamp=5, counter=1)
    assert version.after(9) == DataVersion(timestamp=9, counter=2)
    assert DataVersion.from_bean(version.bean()) == version


def test_unknown_fields_are_kept() -> None:
    bean = {**TopicConfig(name="t").bean(), "zNew": {"a": 1}}
    assert TopicConfig.from_bean("t", bean).bean() == bean


@pytest.mark.parametrize(
    ("attributes", "percent"),
    [
        ({}, 100),
        ({"priority.factor": "30"}, 30),
        ({"+priority.factor": "0"}, 0),
        ({"priority.factor": "250"}, 100),
        ({"priority.factor": "-1"}, 100),
        ({"priority.factor": "many"}, 100),
        ({"priority.factor": "9" * 5000}, 100),
        ("damaged", 100),
    ],
)
def test_share_of_receives_by_priority_is_read_from_the_attribute(attributes: Any, percent: int) -> None:
    bean = {"groupName": "g", "attributes": attributes}
    assert GroupConfig.from_bean("g", bean).priority_percent == percent


def test_share_of_receives_by_priority_is_set_as_rocketmq_reads_it() -> None:
    """Whichever way it was written before, and what else there is stays."""
    bean = {"groupName": "g", "attributes": {"+priority.factor": "5", "other": "x"}}
    group = GroupConfig.from_bean("g", bean).with_priority_percent(30)
    assert group.bean()["attributes"] == {"priority.factor": "30", "other": "x"}
    assert group.priority_percent == 30
    assert group.with_priority_percent(0).priority_percent == 0
    assert group.with_priority_percent(100).bean()["attributes"] == {"other": "x"}


def test_a_drained_topic_gets_its_write_bit_back_and_one_that_had_none_does_not() -> None:
    topic = TopicConfig(name="t", permission=6, attributes={"message.type": "FIFO"})
    drained = topic.with_drained(drained=True)
    assert (drained.permission, drained.drained, drained.writable) == (4, True, False)
    assert TopicConfig.from_bean("t", drained.bean()).drained  # over a restart
    assert drained.with_drained(drained=True) is drained
    assert drained.with_drained(drained=False) == topic
    assert topic.with_drained(drained=False) is topic
    closed = TopicConfig(name="t", permission=4)
    assert closed.with_drained(drained=True) is closed
