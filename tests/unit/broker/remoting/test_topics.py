"""Topics as tools of RocketMQ make, change, delete and show them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import FakePeer
from support.remoting.tables import Broker
from support.store.stores import NOW
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.remoting.topics import RemotingTopics
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.rpc.remoting.handlers import Reply


class Rig(Broker):
    def __init__(self, root: Path, *, master: bool = True) -> None:
        super().__init__(root, master=master)
        changes = TableChanges(self.topics, self.groups, self.consumption, self.store, master=master)
        self.service = RemotingTopics(
            changes, self.clients, self.consumption.positions, self.traffic, broker_name="broker-a"
        )
        self.handles = self.service.handles()

    def put_topic(self, topic: str = "T", **fields: object) -> Reply:
        """17, as mqadmin sends it."""
        sent: dict[str, Any] = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        } | fields  # fmt: skip
        return self(17, **sent)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


def test_a_topic_is_made_and_changed_as_a_whole(rig: Rig) -> None:
    assert rig.put_topic().code == 0
    assert rig.topics.get("T") == TopicConfig(name="T", read_queues=8, write_queues=8)
    assert rig.put_topic(writeQueueNums=4, perm=4, order="true", topicSysFlag=1).code == 0
    assert rig.topics.get("T") == TopicConfig(
        name="T", read_queues=8, write_queues=4, permission=4, order=True, system_flag=1
    )


def test_5_x_attributes_set_the_type(rig: Rig) -> None:
    plain = "+queue.type=SimpleCQ,+cleanup.policy=DELETE,-lite.topic.expiration"
    assert rig.put_topic(attributes=f"+message.type=FIFO,{plain}").code == 0
    topic = rig.topics.get("T")
    assert topic is not None and topic.attributes == {"message.type": "FIFO"}
    rig.put_topic(readQueueNums=9)
    topic = rig.topics.get("T")
    assert topic is not None and topic.message_type is MessageType.FIFO and topic.read_queues == 9
    rig.put_topic(attributes="-message.type")
    topic = rig.topics.get("T")
    assert topic is not None and topic.message_type is MessageType.NORMAL


@pytest.mark.parametrize(
    "text",
    [
        "message.type=FIFO", "+message.type", "-a=b", "+", "+message.type=X", "+message.type=LITE",
        "+" * 5000,
        "+queue.type=BatchCQ", "+cleanup.policy=COMPACTION", "+lite.topic.expiration=5", "+a=b",
        "+message.type=FIFO,+a=b",
    ],
)  # fmt: skip
def test_attributes_that_say_nothing_or_are_not_served_are_refused(rig: Rig, text: str) -> None:
    assert rig.put_topic(attributes=text).code == 1
    assert rig.topics.get("T") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "a b"},
        {"topic": ""},
        {"topic": "TBW102"},
        {"topic": "broker-a"},
        {"topic": "t" * 128},
        {"readQueueNums": 0},
        {"writeQueueNums": 4097},
        {"perm": 8},
        {"perm": -1},
        {"topicFilterType": "X"},
        {"readQueueNums": "x"},
    ],
)
def test_what_no_topic_can_be_is_refused(rig: Rig, fields: dict[str, Any]) -> None:
    before = dict(rig.topics.rows)
    assert rig.put_topic(**fields).code == 1
    assert rig.topics.rows == before


def test_a_slave_answers_0_and_makes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, master=False)
    reply = rig.put_topic()
    assert reply.code == 0 and "slave" in (reply.remark or "") and rig.topics.get("T") is None
    assert rig.put_topic("a b").code == 1
    rig.topic("U")
    assert rig(215, topic="U").code == 0 and rig.topics.get("U") is not None
    rig.close()


def test_a_drained_brokers_topics_take_no_messages_until_it_is_over(rig: Rig) -> None:
    rig.topic("U")
    known = rig.topics.get("U")
    assert known is not None
    rig.topics.put(known.with_drained(drained=True))
    for name in ("T", "U"):
        rig.put_topic(name, perm=7)
        topic = rig.topics.get(name)
        assert topic is not None and topic.drained and not topic.writable
        assert topic.with_drained(drained=False).permission == 7
    rig.put_topic("U", perm=4)
    topic = rig.topics.get("U")
    assert topic is not None and topic.permission == 4 and not topic.drained


def test_6_1_51_a_topic_is_deleted_with_its_queues_and_positions(rig: Rig) -> None:
    rig.topic()
    rig.group()
    rig.put(3)
    rig.positions.commit("G", "T", 0, 2, owned=True)
    assert rig(215, topic="T").code == 0
    assert rig.topics.get("T") is None and rig.positions.get("G", "T", 0) is None
    assert rig.store.queue_range("T", 0)[1] == 0 or "T" not in rig.store.topics_on_disk()
    assert rig(215, topic="T").code == 0, "deleteSubGroup deletes what may not be there"
    assert rig(215, topic="TBW102").code == 1


def test_how_far_queues_go(rig: Rig) -> None:
    rig.topic(queues=2)
    rig.put(3, queue_id=1)
    (body,) = rig(202, topic="T").body
    assert body == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
        b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:'
        b'{"lastUpdateTimestamp":%d,"maxOffset":3,"minOffset":0}},"topicPutTps":0.0}' % NOW
    )
    assert rig(202, topic="U").code == 17


def test_a_topics_configuration(rig: Rig) -> None:
    rig.topic(attributes={"message.type": "FIFO"})
    assert rig.json(351, topic="T", lo="true") == {
        "attributes": {"message.type": "FIFO"},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    assert rig(351, topic="U").code == 17


def test_all_configurations(rig: Rig) -> None:
    rig.topic()
    found = rig.json(21)
    assert found["topicConfigTable"].keys() == rig.topics.rows.keys()
    assert found["topicConfigTable"]["T"]["readQueueNums"] == 4
    assert found["dataVersion"]["counter"] == rig.topics.version.counter


def test_who_consumes_a_topic(rig: Rig) -> None:
    rig.topic()
    rig.group("was")
    rig.join(FakePeer(), "is", "T")
    rig.join(FakePeer(), "other", "U")
    rig.positions.commit("was", "T", 0, 0, owned=True)
    assert rig.json(300, topic="T") == {"groupList": ["is", "was"]}
    assert rig.json(300, topic="V") == {"groupList": []}


def test_entries_of_a_queue(rig: Rig) -> None:
    rig.topic()
    rig.put(3)
    asked = {"topic": "T", "queueId": 0, "index": 1, "count": 5, "consumerGroup": "G"}
    found = rig.json(321, **asked)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3) and "subscriptionData" not in found
    assert [one["eval"] for one in found["queueData"]] == [True, True]
    place, size, code = rig.store.queue_units("T", 0, 1, 1)[0]
    assert found["queueData"][0] == {
        "eval": True, "physicOffset": place, "physicSize": size, "tagsCode": code,
    }  # fmt: skip
    rig.join(FakePeer(), "G", "T")
    assert rig.json(321, **asked)["subscriptionData"]["subString"] == "*"
    assert rig.json(321, **asked | {"index": 99})["queueData"] == []
    assert rig.json(321, **asked | {"count": -1})["queueData"] == []
    assert rig.json(321, **asked | {"queueId": 7})["queueData"] == []
    assert rig(321, **asked | {"topic": "U"}).code == 17


def test_the_brokers_own_topics(rig: Rig) -> None:
    rig.topic()
    found = rig.json(305)["topicList"]
    assert {"broker-a", "C", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} <= set(found)
    assert "T" not in found
