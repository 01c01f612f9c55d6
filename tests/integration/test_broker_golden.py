"""A broker of ours on store directories that real RocketMQ wrote.

It serves them, and goes on where they end.
"""

from collections import Counter
from pathlib import Path

import grpc
import pytest

from support.cluster.broker_api import Api, Received, duration, queue
from support.cluster.processes import Process
from support.store.goldens import golden, rows, sizes
from support.waiting import until
from whimbrel.model.names import HALF_TOPIC
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store import jsonconfig
from whimbrel.store.inspect import dump_records

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("name", "broker_name", "topic", "group"),
    [
        ("v493-basic", "broker-gold", "TopicTest", "gold-group"),
        ("v533-basic", "broker-five", "FiveTopicNormal", "five-group"),
        ("v493-crash", "broker-gold", "", ""),
    ],
)
def test_store_of_rocketmq_is_served_and_appended_to(
    tmp_path: Path, name: str, broker_name: str, topic: str, group: str
) -> None:
    store = golden(name, tmp_path / "store")
    config = {path.name: jsonconfig.load(path) for path in (store / "config").glob("*.json")}
    topics = config["topics.json"]["topicConfigTable"]
    ranges = {(row["topic"], row["queueId"]): (row["min"], row["max"]) for row in rows(name, "queue")}
    topic = topic or max(
        (
            name
            for name, bean in topics.items()
            if bean["perm"] == 6 and (name, 0) in ranges and name.isalnum()
        ),
        key=lambda name: ranges[name, 0][1],
    )
    process = Process(tmp_path, "broker", "broker", store=store, nameservers="", **sizes(name))
    process.settings["name"] = broker_name
    with process as broker:
        with grpc.insecure_channel(broker.grpc) as channel:
            api = Api(channel)
            low, high = ranges[topic, 0]
            frames = api(
                "PullMessage",
                group=v2.Resource(name=group or "TOOLS_CONSUMER"),
                message_queue=queue(topic, 0),
                offset=max(low, high - 1),
                batch_size=32,
            )
            assert frames[0].status.code == v2.OK
            assert frames[-1].next_offset >= high
            last = frames[1].message.system_properties
            theirs = {
                row["queueOffset"]: row
                for row in rows(name, "record")
                if row["topic"] == topic and not row["queueId"]
            }
            row = theirs[high - 1]
            assert last.message_id == (row.get("uniqKey") or row["offsetMsgId"])
            if group:
                stored = config["consumerOffset.json"]["offsetTable"][f"{topic}@{group}"]
                for queue_id, offset in stored.items():
                    answer = api(
                        "GetOffset", group=v2.Resource(name=group), message_queue=queue(topic, queue_id)
                    )
                    assert (answer.status.code, answer.offset) == (v2.OK, offset)
            count = topics[topic]["writeQueueNums"]
            offsets = sorted(api.send(topic, b"ours").entries[0].offset for _ in range(count))
            ends = sorted(ranges.get((topic, queue_id), (0, 0))[1] for queue_id in range(count))
            # Messages whose delay is over by now have been delivered behind what was recorded.
            assert all(offset >= end for offset, end in zip(offsets, ends, strict=True))
        assert broker.stop() == 0
    after = jsonconfig.load(store / "config" / "topics.json")["topicConfigTable"]
    assert {
        key: {**bean, "attributes": bean.get("attributes", {})} for key, bean in topics.items()
    }.items() <= {
        **after,
        # Automatic creation is off here, so the template is not advertised as one.
        **({"TBW102": {**after["TBW102"], "perm": 7}} if "TBW102" in after else {}),
    }.items()


def test_what_a_group_of_rocketmq_held_comes_again(tmp_path: Path) -> None:
    """Checklist 63: a 5.3.3 broker is killed before it has revived what was popped and not acknowledged."""
    store = golden("v533-basic", tmp_path / "store")
    path = store / "config" / "consumerOffset.json"
    config = jsonconfig.load(path)
    del config["offsetTable"]["rmq_sys_REVIVE_LOG_DefaultCluster@CID_RMQ_SYS_REVIVE_GROUP"]
    config["offsetTable"]["%RETRY%five-group_FiveTopicNormal@five-group"] = {0: 3}  # as if it held nothing
    jsonconfig.save(path, jsonconfig.dumps(config))
    process = Process(tmp_path, "broker", "broker", store=store, nameservers="", **sizes("v533-basic"))
    process.settings["name"] = "broker-five"
    with process as broker, grpc.insecure_channel(broker.grpc) as channel:
        api = Api(channel)
        got = api.receive("FiveTopicNormal", "five-group")
        places = [
            (one.system_properties.queue_id, one.system_properties.queue_offset) for one in got.messages
        ]
        assert sorted(places) == [(0, 3), (0, 6), (1, 1)]
        assert got.attempts == [2, 2, 2]
        assert api.ack("FiveTopicNormal", "five-group", *got.handles).status.code == v2.OK
    with process as broker, grpc.insecure_channel(broker.grpc) as channel:
        assert Api(channel).receive("FiveTopicNormal", "five-group").messages == []


def test_what_rocketmq_left_to_be_redelivered_comes_as_of_its_topic(tmp_path: Path) -> None:
    """Checklist 64: the retry topic of a group on a topic is read with the topic; attempts go on."""
    store = golden("v533-basic", tmp_path / "store")
    process = Process(tmp_path, "broker", "broker", store=store, nameservers="", **sizes("v533-basic"))
    process.settings["name"] = "broker-five"
    with process as broker, grpc.insecure_channel(broker.grpc) as channel:
        api = Api(channel)
        got = api.receive("FiveTopicNormal", "five-group", batch=2)
        assert [one.topic.name for one in got.messages] == ["FiveTopicNormal"] * 2
        assert got.attempts == [2, 2]
        assert api.ack("FiveTopicNormal", "five-group", *got.handles).status.code == v2.OK
        last = api.receive("FiveTopicNormal", "five-group", invisible_s=10)
        assert (len(last.messages), last.attempts) == (1, [2])
        parked = api.start(
            "ReceiveMessage",
            group=v2.Resource(name="five-group"),
            message_queue=queue("FiveTopicNormal", -1),
            batch_size=32,
            invisible_duration=duration(10),
            long_polling_timeout=duration(8),
        )
        changed = api.change("FiveTopicNormal", "five-group", last.handles[0], 0)
        assert changed.status.code == v2.OK
        again = Received(list(parked))
        assert again.attempts == [3]
        assert api.ack("FiveTopicNormal", "five-group", *again.handles).status.code == v2.OK
        assert api.receive("FiveTopicNormal", "five-group").messages == []


@pytest.mark.parametrize(
    ("name", "broker_name"), [("v493-basic", "broker-gold"), ("v493-crash", "broker-gold")]
)
def test_messages_of_delay_levels_come_when_they_are_due(tmp_path: Path, name: str, broker_name: str) -> None:
    """A 4.9.3 store's waiting messages are delivered, each once, though its positions may lie before that."""
    store = golden(name, tmp_path / "store")
    process = Process(tmp_path, "broker", "broker", store=store, nameservers="", **sizes(name))
    process.settings["name"] = broker_name
    waiting = [row for row in rows(name, "record") if row["topic"] == "SCHEDULE_TOPIC_XXXX"]
    wanted = Counter(
        (row["properties"]["REAL_TOPIC"], row["properties"]["UNIQ_KEY"])
        for row in waiting
        if row["properties"]["REAL_TOPIC"] != HALF_TOPIC
    )
    assert wanted
    for _ in range(2):  # after the start, and after a kill

        def delivered() -> bool:
            queues = {
                row["queueId"]: row["max"]
                for row in rows(name, "queue")
                if row["topic"] == "SCHEDULE_TOPIC_XXXX"
            }
            path = store / "config" / "delayOffset.json"
            table = jsonconfig.loads(path.read_text())["offsetTable"] if path.exists() else {}
            return all(table.get(queue_id + 1, 0) == end for queue_id, end in queues.items())

        with process as broker:
            until(delivered, timeout=30, what="the positions of all levels", every_s=0.2)
            broker.kill()
    found = Counter(
        (row["topic"], row["properties"]["UNIQ_KEY"])
        for row in dump_records(store)
        if row["type"] == "record" and "DELAY" in row["properties"] and row["topic"] != "SCHEDULE_TOPIC_XXXX"
    )
    assert {key: found[key] for key in wanted} == wanted
