"""Members, positions, topics and settings by the remoting protocol, at real processes.

Numbers are those of the gateway's checklist. Times are printed, and never asserted.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.test_broker_cluster import Peer
from support.cluster.processes import Cluster
from support.remoting.wire import Wire, heartbeat
from support.waiting import until

pytestmark = pytest.mark.process

GROUP, QUEUE = "consumerGroup", "queueId"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("members"), slaves=1) as running:
        running.wait_usable()
        yield running


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[Wire]:
    with Wire(cluster.master.grpc) as opened:
        yield opened


def join(wire: Wire, client: str, group: str, topic: str) -> None:
    assert wire.call(34, {}, heartbeat(client, group=group, topics={topic: 1})).code == 0


def members(wire: Wire, group: str) -> list[str]:
    return list(wire.json(38, {GROUP: group})["consumerIdList"])


def offset_of(wire: Wire, group: str, topic: str) -> int:
    answer = wire.call(14, {GROUP: group, "topic": topic, QUEUE: 0})
    assert answer.code == 0, answer
    return int(answer.fields["offset"])


def commit(wire: Wire, group: str, topic: str, offset: int) -> int:
    fields = {GROUP: group, "topic": topic, QUEUE: 0, "commitOffset": offset}
    return wire.call(15, fields).code


def test_31_members_are_told_of_each_other_and_of_one_that_closes(cluster: Cluster) -> None:
    with Wire(cluster.master.grpc) as first, Wire(cluster.master.grpc) as second:
        join(first, "a", "g31", "t31")
        first.pushed(40)
        join(second, "b", "g31", "t31")
        assert first.pushed(40).fields == {GROUP: "g31"}
        second.pushed(40)
        assert members(first, "g31") == members(second, "g31") == ["a", "b"]
        second.close()
        since = time.monotonic()
        assert first.pushed(40).fields == {GROUP: "g31"}
        print(f"told {(time.monotonic() - since) * 1000:.1f} ms after the end of a connection")
        assert members(first, "g31") == ["a"]


def test_33_35_with_an_empty_group_creates_nothing(cluster: Cluster, wire: Wire) -> None:
    assert wire.call(35, {"clientID": "c", "producerGroup": "", "consumerGroup": ""}).code == 0
    assert "" not in wire.json(201)["subscriptionGroupTable"]
    assert wire.call(38, {GROUP: ""}).code == 1


def test_34_a_second_client_waits_for_a_queue(cluster: Cluster, wire: Wire) -> None:
    queue = {"brokerName": "broker-a", "queueId": 3, "topic": "t34"}
    assert wire.send("t34", b"x").code == 0
    join(wire, "a", "g34", "t34")

    def ask(code: int, client: str) -> Any:
        body = {"clientId": client, "consumerGroup": "g34", "mqSet": [queue]}
        return wire.call(code, {}, json.dumps(body).encode())

    assert json.loads(ask(41, "a").body) == {"lockOKMQSet": [queue]}
    assert json.loads(ask(41, "b").body) == {"lockOKMQSet": []}
    assert ask(42, "a").code == 0
    assert json.loads(ask(41, "b").body) == {"lockOKMQSet": [queue]}


def test_26_27_where_a_group_stands(cluster: Cluster, wire: Wire) -> None:
    for _ in range(3):
        assert wire.send("t27", b"x", e=0).code == 0
    with Wire(cluster.master.grpc) as member:
        join(member, "c", "g27", "t27")
        assert offset_of(wire, "g27", "t27") == 0
        assert commit(member, "g27", "t27", 99) == commit(member, "g27", "unknown", 5) == 0
        assert offset_of(wire, "g27", "t27") == 3
        assert commit(member, "g27", "t27", 1) == commit(wire, "g27", "t27", 1) == 0
        assert offset_of(wire, "g27", "t27") == 3
    until(lambda: wire.call(38, {GROUP: "g27"}).code == 1, timeout=5, what="the member to be gone")
    assert commit(wire, "g27", "t27", 1) == 0
    assert offset_of(wire, "g27", "t27") == 1


def test_50_a_reset_moves_the_group_and_tells_its_members(cluster: Cluster, wire: Wire) -> None:
    for _ in range(3):
        assert wire.send("t50", b"x", e=0).code == 0
    join(wire, "c", "g50", "t50")
    commit(wire, "g50", "t50", 3)
    with Wire(cluster.master.grpc) as tool:
        answer = tool.call(222, {"topic": "t50", "group": "g50", "timestamp": 0, "isForce": "true"})
        assert answer.code == 0 and b'{"offsetTable":{{"brokerName":"broker-a","queueId":0' in answer.body
    told = wire.pushed(220)
    assert told.body == answer.body and told.fields["group"] == "g50"
    pulled = {
        GROUP: "g50", "topic": "t50", QUEUE: 0, "queueOffset": 3, "maxMsgNums": 32, "sysFlag": 3,
        "commitOffset": 3, "suspendTimeoutMillis": 15_000, "subVersion": 1, "expressionType": "TAG",
    }  # fmt: skip
    moved = wire.call(11, pulled)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (21, "0")
    assert offset_of(wire, "g50", "t50") == 0
    assert wire.call(11, pulled | {"queueOffset": 0, "sysFlag": 2}).code == 0


def test_51_topics_of_tools_are_those_of_grpc(cluster: Cluster, wire: Wire) -> None:
    fields = {
        "topic": "t51", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        "attributes": "+message.type=FIFO,+queue.type=SimpleCQ",
    }  # fmt: skip
    with Wire(cluster.slaves[0].grpc) as slave:
        assert slave.call(17, fields).code == 0
    assert wire.call(351, {"topic": "t51"}).code == 17, "a slave makes none"
    refused = wire.call(17, fields | {"attributes": "+queue.type=BatchCQ"})
    assert refused.code == 1 and "queue.type=SimpleCQ" in str(refused.remark)
    assert wire.call(17, fields).code == 0
    found = wire.json(351, {"topic": "t51"})
    assert found["attributes"] == {"message.type": "FIFO"} and found["readQueueNums"] == 3
    assert "t51" in Peer(cluster.master).topics()
    assert wire.call(202, {"topic": "t51"}).code == 0
    assert wire.call(215, {"topic": "t51"}).code == wire.call(215, {"topic": "t51"}).code == 0
    assert "t51" not in Peer(cluster.master).topics()


def test_48_52_what_clusterlist_reads_and_what_may_not_be_set(cluster: Cluster, wire: Wire) -> None:
    table = wire.json(28)["table"]
    assert len(table["putTps"].split(" ")) == 3 and table["brokerVersionDesc"] == "V4_9_3"
    before = wire.call(26).body
    assert str(cluster.root).encode() not in before
    assert wire.call(25, {}, b"fileReservedTime=48\nrocketmqHome=/tmp\n").code == 1
    assert wire.call(26).body == before
    assert wire.call(25, {}, b"fileReservedTime=48\n").code == 0
    assert b"fileReservedTime=48\n" in wire.call(26).body


def test_59_unknown_codes_and_fields(cluster: Cluster, wire: Wire) -> None:
    assert wire.call(1007).code == wire.call(370).code == 3
    assert wire.call(30, {"topic": "none", QUEUE: 0, "whatever": "x"}).fields == {"offset": "0"}


def test_our_own_tools_show_members_as_well(cluster: Cluster, wire: Wire) -> None:
    join(wire, "c-shown", "gshown", "tshown")
    (client,) = Peer(cluster.master).group("gshown").clients
    assert (client.client_id, client.language, client.version) == ("c-shown", "JAVA", "399 (remoting)")


def test_members_of_a_slave_are_its_own(cluster: Cluster) -> None:
    with Wire(cluster.slaves[0].grpc) as slave, Wire(cluster.master.grpc) as master:
        join(slave, "c", "gslave", "tslave")
        assert members(slave, "gslave") == ["c"]
        assert master.call(38, {GROUP: "gslave"}).code == 1
        assert "gslave" not in master.json(201)["subscriptionGroupTable"]


def test_who_may_change_the_broker_is_a_setting(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=0, broker={"remoting_admin": "none"}) as running:
        with Wire(running.master.grpc) as wire:
            for code in (17, 25, 200, 207, 215, 222):
                answer = wire.call(code, {"topic": "T", "group": "G", "groupName": "G"})
                assert answer.code == 16 and "remoting_admin" in (answer.remark or "")
            assert wire.call(28).code == 0
