"""Dead letters at a real broker: the official Python SDK's consumer that always fails, and forwards."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.test_broker_sdk import Sdk, log_of, wait_writable
from integration.test_commands import command
from support.cluster.broker_api import Api, queue
from support.cluster.processes import Cluster, Process
from support.waiting import until
from whimbrel.client import DeadLetterResult, Message, sync
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.process

# Three deliveries, a second apart.
GROUPS: dict[str, dict[str, Any]] = {
    name: {
        "groupName": name,
        "retryMaxTimes": 2,
        "groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}},
    }
    for name in ("failing", "other", "in-order", "pusher")
}
for name in ("in-order", "pusher"):
    GROUPS[name]["consumeMessageOrderly"] = True


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    config = root / "store-master-0" / "config"
    config.mkdir(parents=True)
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    table = {"dataVersion": version, "subscriptionGroupTable": GROUPS}
    (config / "subscriptionGroup.json").write_text(json.dumps(table))
    with Cluster(root, slaves=0, broker={"metrics_port": 0}) as running:
        wait_writable(running)
        yield running


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Api]:
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        yield Api(channel)


def forward(api: Api, topic: str, group: str, handle: str) -> Any:
    return api(
        "ForwardMessageToDeadLetterQueue",
        group=v2.Resource(name=group),
        topic=v2.Resource(name=topic),
        receipt_handle=handle,
        message_id="id",
    )


def forwarded(api: Api, topic: str, group: str, handle: str) -> bool:
    """Return whether a forward succeeded."""
    return bool(forward(api, topic, group, handle).status.code == v2.OK)


def pulled(api: Api, topic: str) -> list[Any]:
    """Return what stands in a dead-letter topic, as it is read without leases."""
    frames = api("PullMessage", group=v2.Resource(name="other"), message_queue=queue(topic, 0), batch_size=32)
    return [frame.message for frame in frames if frame.WhichOneof("content") == "message"]


def attempts_told(cluster: Cluster, group: str) -> list[int]:
    """Return how often dead letters were delivered, as `whimbrel dlq list` tells it."""
    with sync.Admin(cluster.endpoint) as admin:
        return [letter.attempts for letter in admin.dead_letters(group)]


@pytest.mark.timeout(90)
def test_a_message_that_always_fails_becomes_a_dead_letter_of_its_group(
    cluster: Cluster, tmp_path: Path, api: Api
) -> None:
    """Checklist 54 to 58: an official SDK retries by its group's policy; the third failure is the last."""
    with Sdk(cluster.endpoint, tmp_path) as sdk, Sdk(cluster.endpoint, tmp_path) as consumer:
        [[message_id, _]] = sdk("send", topic="orders", bodies=["bad"], tag="red")
        consumer("push", topic="orders", group="failing", failures=100)
        until(lambda: pulled(api, "%DLQ%failing"), timeout=40, every_s=0.2, what="a dead letter")
        assert cluster.master.metric("rocketmq_send_to_dlq_messages_total") == 1
        assert consumer("pushed") == [["bad", 1], ["bad", 2], ["bad", 3]]
        described = api.administer("DescribeTopic", name="%DLQ%failing").topic
        assert (described.read_queues, described.write_queues, described.permission) == (1, 1, 6)

        [letter] = pulled(api, "%DLQ%failing")
        system = letter.system_properties
        assert (letter.topic.name, letter.body, system.message_id) == ("%DLQ%failing", b"bad", message_id)
        assert (system.tag, list(system.keys), system.message_type) == ("red", ["key-0"], v2.NORMAL)
        assert dict(letter.user_properties) == {"own": "value"}
        assert system.delivery_attempt == 5, "reconsumeTimes 4"
        assert attempts_told(cluster, "failing") == [3]
        assert system.dead_letter_queue.topic == "orders"
        assert system.dead_letter_queue.message_id == message_id
        log = log_of(cluster.master.store)
        assert len(re.findall(rb"ORIGIN_MESSAGE_ID\x01[0-9A-F]{32}\x02", log)) == 1
        assert len(re.findall(rb"RETRY_TOPIC\x01orders\x02", log)) == 1

        [seen] = sdk("receive", topic="%DLQ%failing", group="other", count=1, seconds=15)
        assert (seen["body"], seen["id"], seen["attempt"], seen["properties"]) == (
            "bad", message_id, 1, {"own": "value"}
        )  # fmt: skip


def test_an_ordered_group_moves_what_is_used_up_and_goes_on_behind_it(cluster: Cluster, api: Api) -> None:
    """Checklist 12, with two retries."""
    made = {"name": "in-order", "read_queues": 1, "write_queues": 1, "message_type": 2}
    api.administer("CreateTopic", topic=made)
    for body in (b"0", b"1"):
        assert api.send("in-order", body, message_type=v2.FIFO, message_group="m").status.code == v2.OK
    for attempt in (1, 2, 3):
        received = api.receive("in-order", "in-order", batch=1, poll_s=5)
        assert (received.bodies, received.attempts) == ([b"0"], [attempt])
        api.change("in-order", "in-order", received.handles[0], 0)
    received = api.receive("in-order", "in-order", batch=1, poll_s=5)
    assert (received.bodies, received.attempts) == ([b"1"], [1])
    [letter] = pulled(api, "%DLQ%in-order")
    system = letter.system_properties
    assert (letter.body, system.message_type, system.message_group) == (b"0", v2.FIFO, "m")
    assert system.delivery_attempt == 2, "reconsumeTimes 1"
    assert attempts_told(cluster, "in-order") == [3]
    for _ in range(2):
        assert forward(api, "in-order", "in-order", received.handles[0]).status.code == v2.OK
    assert [letter.body for letter in pulled(api, "%DLQ%in-order")] == [b"0", b"1"]


@pytest.mark.timeout(90)
def test_an_ordered_push_consumer_forwards_what_always_fails_and_goes_on(
    cluster: Cluster, tmp_path: Path, api: Api
) -> None:
    """Checklist 13, by the official SDK."""
    made = {"name": "pushed", "read_queues": 1, "write_queues": 1, "message_type": 2}
    api.administer("CreateTopic", topic=made)
    for body in (b"bad", b"good"):
        assert api.send("pushed", body, message_type=v2.FIFO, message_group="m").status.code == v2.OK
    with Sdk(cluster.endpoint, tmp_path) as consumer:
        consumer("push", topic="pushed", group="pusher", failures=3)
        until(lambda: "good" in str(consumer("pushed")), timeout=60, every_s=0.2, what="the next message")
        assert [body for body, _ in consumer("pushed")] == ["bad"] * 3 + ["good"]
        [letter] = pulled(api, "%DLQ%pusher")
        assert (letter.body, letter.system_properties.delivery_attempt) == (b"bad", 2)


def test_a_forwarded_message_is_a_dead_letter_once(cluster: Cluster, api: Api) -> None:
    """Checklist 14 and 15, and the rows of chapter 9."""
    api.administer("CreateTopic", topic={"name": "given-up", "read_queues": 1, "write_queues": 1})
    api.administer("CreateGroup", group={"name": "giver"})
    api.send("given-up", b"0", b"1", b"2")
    received = api.receive("given-up", "giver", poll_s=5)
    assert len(received.messages) == 3
    for _ in range(2):
        assert forward(api, "given-up", "giver", received.handles[0]).status.code == v2.OK
    changed = api.change("given-up", "giver", received.handles[1], 30).receipt_handle
    assert forward(api, "given-up", "giver", changed).status.code == v2.OK
    assert [letter.body for letter in pulled(api, "%DLQ%giver")] == [b"0", b"1"]
    assert [letter.system_properties.delivery_attempt for letter in pulled(api, "%DLQ%giver")] == [2, 2]
    assert forward(api, "given-up", "giver", "junk").status.code == v2.INVALID_RECEIPT_HANDLE
    assert forward(api, "given-up", "failing", changed).status.code == v2.INVALID_RECEIPT_HANDLE
    assert forward(api, "given up", "giver", changed).status.code == v2.ILLEGAL_TOPIC
    api.ack("given-up", "giver", received.handles[2])
    assert forward(api, "given-up", "giver", received.handles[2]).status.code == v2.OK
    assert len(pulled(api, "%DLQ%giver")) == 2


def test_after_a_restart_a_forward_finds_its_copy(cluster: Cluster, api: Api) -> None:
    """Checklist 14; kill -9 leaves the message undone or its copy stored, and never two copies."""
    api.administer("CreateTopic", topic={"name": "killed", "read_queues": 1, "write_queues": 1})
    api.administer("CreateGroup", group={"name": "survivor"})
    api.send("killed", b"0")
    [handle] = api.receive("killed", "survivor", poll_s=5).handles
    assert forward(api, "killed", "survivor", handle).status.code == v2.OK
    cluster.master.kill()
    cluster.restart()
    wait_writable(cluster)
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        again = Api(channel)
        assert forward(again, "killed", "survivor", handle).status.code == v2.OK
        assert [letter.body for letter in pulled(again, "%DLQ%survivor")] == [b"0"]


def dead_letters(cluster: Cluster, api: Api, topic: str, group: str, count: int) -> list[str]:
    """Have a group give up messages, with the keys 0, 1, ...; return their ids."""
    api.administer("CreateTopic", topic={"name": topic, "read_queues": 4, "write_queues": 4})
    api.administer("CreateGroup", group={"name": group})
    with sync.Producer(cluster.endpoint) as producer:
        ids = [
            producer.send(
                Message(topic=topic, body=b"%d" % n, keys=(f"k{n}",), properties={"own": "v"})
            ).message_id
            for n in range(count)
        ]
    for _ in range(count):
        [handle] = api.receive(topic, group, batch=1, poll_s=5).handles
        assert forward(api, topic, group, handle).status.code == v2.OK
    return ids


def stored(api: Api, topic: str) -> list[tuple[int, Any]]:
    """Return queue and message of all that stands in a topic."""
    found = []
    for queue_id in range(4):
        frames = api("PullMessage", group=v2.Resource(name="other"), message_queue=queue(topic, queue_id),
                     batch_size=32)  # fmt: skip
        found += [(queue_id, frame.message) for frame in frames if frame.WhichOneof("content") == "message"]
    return found


def run(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    """Run a command to its end."""
    child = command(cluster, *words)
    out, err = child.communicate(timeout=30)
    return child.returncode, out, err


def listed(cluster: Cluster, group: str, *words: str) -> list[str]:
    """Return the ids that the command lists."""
    code, out, err = run(cluster, "dlq", "list", group, "-o", "json", *words)
    assert code == 0, err
    return [letter["message_id"] for letter in json.loads(out)]


def test_chosen_dead_letters_are_put_back_once_and_others_dropped(cluster: Cluster, api: Api) -> None:
    ids = dead_letters(cluster, api, "bills", "billing", 6)
    queues = {message.system_properties.message_id: queue_id for queue_id, message in stored(api, "bills")}
    assert sorted(listed(cluster, "billing")) == sorted(ids)
    assert listed(cluster, "billing", "--key", "k3") == [ids[3]]
    assert listed(cluster, "billing", "--topic", "other") == []

    for expected in ('"put_back": 1', '"chosen": 0'):
        code, out, err = run(cluster, "dlq", "replay", "billing", "--id", ids[0], "--yes", "-o", "json")
        assert code == 0 and expected in out, (out, err)
    again = [(at, one) for at, one in stored(api, "bills") if one.system_properties.message_id == ids[0]]
    assert len(again) == 2
    (_, first), (_, second) = sorted(again, key=lambda pair: pair[1].system_properties.queue_offset)
    assert {at for at, _ in again} == {queues[ids[0]]}
    assert (second.body, dict(second.user_properties)) == (first.body, {"own": "v"})
    assert list(second.system_properties.keys) == ["k0"]
    assert second.system_properties.born_timestamp == first.system_properties.born_timestamp
    assert not second.system_properties.HasField("dead_letter_queue")
    assert second.system_properties.delivery_attempt == 1
    assert b"REPLAYED_FROM\x01broker-a:%DLQ%billing:0:" in log_of(cluster.master.store)

    code, out, err = run(cluster, "dlq", "drop", "billing", "--key", "k1", "--yes", "-o", "json")
    assert code == 0 and '"dropped": 1' in out, (out, err)
    assert sorted(listed(cluster, "billing")) == sorted(ids[2:])
    code, out, _ = run(cluster, "dlq", "show", "billing", "--id", ids[2], "-o", "json")
    assert (code, json.loads(out)[0]["body"], json.loads(out)[0]["origin_topic"]) == (0, "2", "bills")
    assert run(cluster, "dlq", "show", "billing", "--id", ids[0])[0] == 1
    assert run(cluster, "dlq", "show", "billing", ids[2], "-o", "json")[1] == out  # as it was named before
    code, _, err = run(cluster, "dlq", "replay", "billing", "--all")
    assert code == 1 and "this would put 4 dead letters of group billing back" in err and "--yes" in err
    assert run(cluster, "dlq", "replay", "billing")[0] == 2
    assert run(cluster, "dlq", "replay", "billing", "--all", "--dry-run", "-o", "json")[1].count("4") == 1

    cluster.master.kill()
    cluster.restart()
    wait_writable(cluster)
    assert sorted(listed(cluster, "billing")) == sorted(ids[2:])
    code, _, err = run(cluster, "dlq", "replay", "billing", "--all", "--rate", "50", "--yes")
    assert code == 0, err
    assert listed(cluster, "billing") == []


def test_dead_letters_of_a_group_that_is_not_there_are_not_none(cluster: Cluster) -> None:
    for words in (
        ("list", "nobody"),
        ("replay", "nobody", "--all", "--yes"),
        ("drop", "nobody", "--all", "--yes"),
    ):
        code, _, err = run(cluster, "dlq", *words)
        assert code == 1 and "no consumer group nobody" in err


def test_a_topic_that_is_gone_and_a_letter_that_was_settled_before_are_told(
    cluster: Cluster, api: Api
) -> None:
    dead_letters(cluster, api, "gone", "leaver", 2)
    with sync.Admin(cluster.endpoint) as admin:
        letters = list(admin.dead_letters("leaver"))
        assert [letter.origin_topic for letter in letters] == ["gone", "gone"]
        assert [one.result for one in admin.drop_dead_letters(letters[:1])] == [DeadLetterResult.DONE]
        api.administer("DeleteTopic", name="gone")
        before, refused = admin.replay_dead_letters(letters)
        assert before.result is DeadLetterResult.BEFORE
        assert refused.result is DeadLetterResult.REFUSED and "no topic gone" in refused.why
    code, _, err = run(cluster, "dlq", "replay", "leaver", "--all", "--yes")
    assert code == 1 and "make it, or drop the dead letter" in err


@pytest.mark.timeout(90)
def test_a_slave_refuses_forwards_and_as_the_master_it_finds_the_copy(tmp_path: Path) -> None:
    """Checklist 14 and chapter 9, without a master: 50002; after the fail-over there is still one copy."""
    with Cluster(tmp_path, slaves=1, broker={"replication": "sync"}) as cluster:
        wait_writable(cluster)
        with grpc.insecure_channel(cluster.master.grpc) as channel:
            api = Api(channel)
            api.administer("CreateTopic", topic={"name": "moved", "read_queues": 1, "write_queues": 1})
            api.administer("CreateGroup", group={"name": "mover"})
            api.send("moved", b"0", b"1")
            first, second = api.receive("moved", "mover", poll_s=5).handles
            assert forward(api, "moved", "mover", first).status.code == v2.OK
        slave = cluster.slaves[0]
        with grpc.insecure_channel(slave.grpc) as channel:
            assert forward(Api(channel), "moved", "mover", second).status.code == v2.HA_NOT_AVAILABLE
        for process in (cluster.master, cluster.master_replicator, slave, *cluster.slave_replicators):
            process.kill()
        leading = {"role": "master", "id": 0, "expected_slaves": 0, "replication": "async", "port": 0}
        with Process(tmp_path, "broker", "promoted", **{**slave.settings, **leading}) as promoted:
            with grpc.insecure_channel(promoted.grpc) as channel:
                api = Api(channel)
                for handle in (second, first, second):
                    again = partial(forwarded, api, "moved", "mover", handle)
                    until(again, timeout=30, every_s=0.2, what="a forward at the new master")
                assert [letter.body for letter in pulled(api, "%DLQ%mover")] == [b"0", b"1"]
