"""Clients of RocketMQ 4 at real processes, over sockets. Numbers are those of the gateway's checklist.

Times are printed, and never asserted. What real clients do with it: `tests/official`, `tests/clients4`.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.test_broker_cluster import Peer
from support.cluster.elections import ElectedGroup
from support.cluster.processes import Cluster, lone_broker
from support.remoting.handlers import messages_in, send_fields
from support.remoting.wire import Wire, heartbeat, pull_fields
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.signatures import signature_of

pytestmark = pytest.mark.process

SETTINGS: dict[str, object] = {
    "transaction_timeout_ms": 200,
    "transaction_check_interval_ms": 200,
    "metrics_port": 0,
}
GROUP, QUEUE = "consumerGroup", "queueId"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("remoting"), slaves=1, broker=SETTINGS) as running:
        running.wait_usable()
        yield running


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[Wire]:
    with Wire(cluster.master.grpc) as opened:
        yield opened


def offset_of(wire: Wire, group: str, topic: str, queue_id: int = 0) -> int | None:
    answer = wire.call(14, {GROUP: group, "topic": topic, QUEUE: queue_id})
    return int(answer.fields["offset"]) if answer.code == 0 else None


def test_6_1_1_one_port_serves_both_protocols(cluster: Cluster, wire: Wire) -> None:
    peer = Peer(cluster.master)
    assert wire.send("both", b"by remoting", e=0).code == 0
    assert peer.send("both", b"by gRPC").status.code == v2.OK
    found = [message.body for queue_id in range(4) for message in wire.messages("both", queue_id)]
    assert sorted(found) == [b"by gRPC", b"by remoting"]
    assert peer.receive("both", "g1", poll_s=0).bodies
    line = 'protocol_type="remoting",request_code="send_message_v2",response_code="success"'
    assert line in metrics(cluster)


def metrics(cluster: Cluster) -> str:
    with urllib.request.urlopen(f"http://{cluster.master.ready['metrics']}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_6_1_2_a_new_topic_is_in_the_next_route(cluster: Cluster, wire: Wire) -> None:
    with Wire(cluster.nameserver.grpc) as names:
        assert names.call(105, {"topic": "made"}).code == 17
        assert wire.send("made", b"x").code == 0

        def routed() -> bool:
            return names.call(105, {"topic": "made"}).code == 0

        until(routed, timeout=5, what="a route to the new topic")
        body = names.call(105, {"topic": "made"}).body.decode()
    assert '"readQueueNums":4' in body and '"perm":6' in body and cluster.master.grpc in body


def test_6_1_5_a_message_of_grpc_is_found_by_its_offset_id(cluster: Cluster, wire: Wire) -> None:
    Peer(cluster.master).send("ids", b"by gRPC")
    (message,) = [one for queue_id in range(4) for one in wire.messages("ids", queue_id)]
    assert message.store_host == cluster.master.grpc
    with Wire(message.store_host) as dialled:
        (found,) = messages_in([dialled.call(33, {"offset": message.physical_offset}).body])
    assert found.body == b"by gRPC"


def test_6_1_19_a_held_pull_gets_a_message_of_either_protocol(cluster: Cluster, wire: Wire) -> None:
    wire.send("held", b"first", e=0)
    sender = Peer(cluster.master)
    for number in range(4):
        waiting = {
            q: wire.start(11, pull_fields("held", q, end(wire, "held", q), sysFlag=6)) for q in range(4)
        }
        time.sleep(0.05)  # so that they are held, whatever comes first
        began = time.perf_counter()
        sender.send("held", b"%d" % number)
        while not (got := [each for each in waiting.values() if each in wire.answers]):
            wire.receive(10)
        print(f"a held pull was answered {1000 * (time.perf_counter() - began):.1f} ms after a send began")
        assert [each.body for each in messages_in([wire.answers[got[0]].body])] == [b"%d" % number]
        with Wire(cluster.master.grpc) as other:
            for queue_id in range(4):
                other.send("held", b"wakes", e=queue_id)
        for each in waiting.values():
            wire.answer(each)


def end(wire: Wire, topic: str, queue_id: int) -> int:
    return int(wire.call(30, {"topic": topic, QUEUE: queue_id}).fields["offset"])


def test_6_1_24_a_slave_gives_the_same_bytes(cluster: Cluster, wire: Wire) -> None:
    for number in range(20):
        wire.send("bytes", b"%d" % number, e=0)
    with Wire(cluster.slaves[0].grpc) as slave:
        until(lambda: slave.pull("bytes").fields.get("maxOffset") == "20", timeout=10, what="the copy")
        assert slave.pull("bytes").body == wire.pull("bytes").body
        refused = slave.send("bytes", b"x")
        assert refused.code == 14 and "master" in (refused.remark or "")
        assert slave.pull("bytes", offset=99).code == 20


def test_6_1_28_commits_of_both_protocols_are_seen_by_each_other(cluster: Cluster, wire: Wire) -> None:
    for number in range(10):
        wire.send("commits", b"%d" % number, e=0)
    group = "g28"
    assert offset_of(wire, group, "commits") == 0  # a young topic
    wire.call(15, {GROUP: group, "topic": "commits", QUEUE: 0, "commitOffset": 4})
    assert offset_of(wire, group, "commits") == 4
    peer = Peer(cluster.master)
    received = peer.receive("commits", group, batch=2, poll_s=0)
    assert received.bodies == [b"4", b"5"]
    peer.ack("commits", group, *received.handles)
    assert offset_of(wire, group, "commits") == 6
    wire.pull("commits", offset=8, consumerGroup=group, sysFlag=5, commitOffset=8)
    assert peer.receive("commits", group, batch=2, poll_s=0).bodies == [b"8", b"9"]
    assert wire.call(15, {GROUP: group, "topic": "commits", QUEUE: 0, "commitOffset": 99}).code == 0
    assert offset_of(wire, group, "commits") == 10  # brought within the queue


def test_6_1_30_the_first_heartbeat_makes_the_group_and_tells_its_members(cluster: Cluster) -> None:
    with Wire(cluster.master.grpc) as first, Wire(cluster.master.grpc) as second:
        first.send("commits", b"x", e=0)
        began = time.perf_counter()
        assert first.call(34, {}, heartbeat("c1", group="g30", topics={"commits": 1})).code == 0
        assert first.pushed(40).fields == {GROUP: "g30"}
        with Wire(cluster.nameserver.grpc) as names:
            assert names.call(105, {"topic": "%RETRY%g30"}).code == 0
        print(f"the retry topic was routed after {1000 * (time.perf_counter() - began):.0f} ms")
        second.call(34, {}, heartbeat("c2", group="g30", topics={"commits": 2}))
        for each in (first, second):
            each.pushed(40)
        assert first.json(38, {GROUP: "g30"}) == {"consumerIdList": ["c1", "c2"]}
        second.close()
        first.pushed(40)
        assert first.json(38, {GROUP: "g30"}) == {"consumerIdList": ["c1"]}
        assert first.pull("commits", consumerGroup="g30", sysFlag=0, subVersion=1).code == 0
        newer: dict[str, Any] = {"consumerGroup": "g30", "sysFlag": 0, "subVersion": 3}
        assert first.pull("commits", **newer).code == 0  # clients compare tags themselves
        assert first.pull("commits", **newer, expressionType="SQL92").code == 25
    with Wire(cluster.master.grpc) as later:
        until(lambda: later.call(38, {GROUP: "g30"}).code == 1, timeout=5, what="a group without members")


def test_6_1_36_what_is_sent_back_comes_again(cluster: Cluster, wire: Wire) -> None:
    wire.call(34, {}, heartbeat("c", group="g36", topics={"back": 1, "%RETRY%g36": 1}))
    wire.send("back", b"x", e=0)
    (message,) = wire.messages("back")
    fields = {"offset": message.physical_offset, "group": "g36", "delayLevel": 1, "originTopic": "back"}
    began = time.perf_counter()
    assert wire.call(36, fields).code == 0
    waiting = wire.start(11, pull_fields("%RETRY%g36", 0, 0, sysFlag=6))
    (again,) = messages_in([wire.answer(waiting).body])
    print(f"it came again after {time.perf_counter() - began:.2f} s")
    assert (again.body, again.reconsume_times, again.properties["RETRY_TOPIC"]) == (b"x", 1, "back")


def test_6_1_39_an_open_transaction_is_asked_about(cluster: Cluster, wire: Wire) -> None:
    wire.call(34, {}, heartbeat("p", producer="pg39"))
    text = "TRAN_MSG\x01true\x02PGROUP\x01pg39\x02UNIQ_KEY\x01ID39"
    assert wire.send("decided", b"x", i=text, f=4, e=1).code == 0
    asked = wire.pushed(39)
    (half,) = messages_in([asked.body])
    assert (half.topic, half.queue_id, half.body) == ("decided", 1, b"x")
    assert not wire.messages("decided", 1)
    fields = {"producerGroup": "pg39", "commitOrRollback": 8, "fromTransactionCheck": "true", **asked.fields}
    assert wire.call(37, fields).code == 0
    (committed,) = wire.messages("decided", 1)
    assert committed.body == b"x"


def test_6_1_57_a_group_of_both_protocols_loses_nothing(cluster: Cluster, wire: Wire) -> None:
    group, topic = "g57", "mixed"
    wire.send(topic, b"first", e=0)
    wire.call(34, {}, heartbeat("c", group=group, topics={topic: 1}))
    for queue_id in (0, 1):
        wire.start(11, pull_fields(topic, queue_id, 0, sysFlag=2, consumerGroup=group, subVersion=1))
    peer = Peer(cluster.master)
    with Wire(cluster.master.grpc) as sender:
        for number in range(40):
            sender.send(topic, b"%d" % number, e=number % 4)
    by_receives: set[bytes] = set()
    while received := peer.receive(topic, group, poll_s=0):
        if not received.bodies:
            break
        by_receives |= set(received.bodies)
        peer.ack(topic, group, *received.handles)
    by_pulls: set[bytes] = set()
    for queue_id in (0, 1):
        by_pulls |= {message.body for message in wire.messages(topic, queue_id)}
    assert by_receives == {b"%d" % number for number in range(40) if number % 4 > 1}
    assert by_pulls | by_receives == {b"first", *(b"%d" % number for number in range(40))}


def test_6_1_11_without_a_slave_synchronous_sends_are_refused_and_not_stored(tmp_path: Path) -> None:
    settings = {"replication": "sync", "auto_create_topics": True, "auto_create_groups": True}
    with lone_broker(tmp_path, index_entries=2000, **settings) as broker, Wire(broker.grpc) as wire:
        answer = wire.send("sync", b"x", e=0)
        assert answer.code == 14 and answer.remark
        assert wire.call(30, {"topic": "sync", QUEUE: 0}).fields.get("offset") == "0"


def test_6_1_44_further_ports_serve_the_same(tmp_path: Path) -> None:
    settings = {"remoting_port": 0, "auto_create_topics": True, "auto_create_groups": True}
    with lone_broker(tmp_path, index_entries=2000, **settings) as broker:
        host, _, port = str(broker.ready["remoting"]).rpartition(":")
        assert broker.grpc != f"{host}:{port}"
        with Wire(f"{host}:{port}") as further, Wire(broker.grpc) as wire:
            assert further.send("vip", b"x", e=0).code == 0
            assert "vip" in further.json(21)["topicConfigTable"]
            (message,) = wire.messages("vip")
            assert message.store_host == broker.grpc  # the port that ids name is the broker's own
            assert further.json(28)["table"]["brokerVersionDesc"]


def test_6_1_29_58_state_survives_a_kill_and_the_slave_goes_on(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=1) as cluster:
        cluster.wait_usable()
        with Wire(cluster.master.grpc) as wire, Wire(cluster.slaves[0].grpc) as slave:
            wire.call(34, {}, heartbeat("c", group="g29", topics={"kept": 1}))
            for number in range(10):
                wire.send("kept", b"%d" % number, e=0)
            wire.call(15, {GROUP: "g29", "topic": "kept", QUEUE: 0, "commitOffset": 7})
            slave.call(34, {}, heartbeat("c", group="g29", topics={"kept": 1}))
            until(lambda: offset_of(slave, "g29", "kept") == 7, timeout=10, what="the offset at the slave")
            cluster.master.kill()
            answer = slave.pull("kept", offset=7, consumerGroup="g29", sysFlag=0, subVersion=1)
            assert answer.code == 0, answer
            assert [message.body for message in messages_in([answer.body])] == [b"7", b"8", b"9"]
        cluster.restart()
        with Wire(cluster.master.grpc) as wire:
            assert offset_of(wire, "g29", "kept") == 7
            assert [message.body for message in wire.messages("kept")] == [b"%d" % n for n in range(10)]
            assert "%RETRY%g29" in json.dumps(wire.json(21))


def test_a_new_leader_has_what_was_answered_by_the_old_one(tmp_path: Path) -> None:
    """In a group that elects its leader: messages, positions, groups; and routes name the new one as 0."""
    with ElectedGroup(tmp_path) as group:
        leader = group.await_leader()
        with Wire(leader.broker.grpc) as wire:
            until(lambda: wire.send("kept", b"first", e=0).code == 0, timeout=10, what="a send that holds")
            for number in range(20):
                assert wire.send("kept", b"%d" % number, e=0).code == 0
            assert wire.call(34, {}, heartbeat("c", group="g", topics={"kept": 1})).code == 0
            assert wire.call(15, {GROUP: "g", "topic": "kept", QUEUE: 0, "commitOffset": 7}).code == 0
            waiting = wire.start(11, pull_fields("kept", 0, end(wire, "kept", 0), sysFlag=6))
            (follower, *_) = (each for each in group.members.values() if each is not leader)
            with Wire(follower.broker.grpc) as other:
                refused = other.send("kept", b"x", e=0)
                assert refused.code == 14 and "master" in (refused.remark or "")
            leader.kill()
            with pytest.raises((ConnectionError, TimeoutError)):
                wire.answer(waiting, timeout=5)
        successor = group.await_leader(leader)
        with Wire(successor.broker.grpc) as wire:
            until(lambda: wire.send("kept", b"last", e=0).code == 0, timeout=10, what="a send that holds")
            assert offset_of(wire, "g", "kept") == 7
            assert "%RETRY%g" in json.dumps(wire.json(21))
            bodies = [message.body for message in wire.messages("kept")]
            assert set(bodies) >= {b"last", *(b"%d" % number for number in range(20))}
        with Wire(group.endpoint) as names:
            assert f'0:"{successor.broker.grpc}"' in names.call(105, {"topic": "kept"}).body.decode()


@pytest.mark.parametrize("lane", ["auto", "off"])
def test_requests_are_signed_by_an_account_or_name_none(tmp_path: Path, lane: str) -> None:
    file = tmp_path / "accounts"
    file.write_text("tool secret7\n")
    settings = {
        "remoting_admin": "none",
        "auto_create_topics": True,
        "auto_create_groups": True,
        "lane": lane,
    }
    with lone_broker(tmp_path, index_entries=2000, remoting_accounts=file, **settings) as broker:
        with Wire(broker.grpc) as wire:
            wire.send("T", b"first", e=0)
            assert wire.send("T", b"x", e=0, AccessKey="unknown", Signature="x").code == 0
            wrong = wire.send("T", b"x", e=0, AccessKey="tool", Signature="x")
            assert wrong.code == 1 and "tool" in (wrong.remark or "")
            fields = {name: str(value) for name, value in send_fields("T", e=0, AccessKey="tool").items()}
            signature = signature_of(Command(310, 1, fields, b"x"), b"secret7")
            assert wire.call(310, fields | {"Signature": signature}, b"x").code == 0
            assert len(wire.messages("T")) == 3
            assert wire.call(215, {"topic": "T"}).code == 16


# What each kind of client and tool sends, as recorded (clients, mqadmin) or read (Dashboard, benchmark).
CLIENTS = {10, 11, 12, 14, 15, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 42, 46, 310, 320, 324, 325, 361}
MQADMIN = {17, 21, 25, 26, 28, 200, 201, 202, 203, 204, 207, 208, 215, 222, 300, 305, 306, 307, 309, 315, 316}
MQADMIN |= {317, 321, 328, 329, 351, 907}
DASHBOARD = {12, 15, 17, 21, 26, 28, 33, 200, 201, 202, 203, 204, 207, 208, 215, 222, 300, 307, 309, 315, 351}
BENCHMARK = {17, 310, 320}
AT_NAMESERVERS = {100, 101, 102, 105, 106, 205, 206, 216, 219, 304, 311, 312, 313, 318, 319, 327}


def test_6_1_46_47_59_all_requests_of_clients_and_tools_are_known(cluster: Cluster) -> None:
    """Without their fields they fail, but none is answered as an unknown one."""
    for address, codes in (
        (cluster.master.grpc, CLIENTS | MQADMIN | DASHBOARD | BENCHMARK),
        (cluster.slaves[0].grpc, CLIENTS | MQADMIN),
        (cluster.nameserver.grpc, AT_NAMESERVERS),
    ):
        with Wire(address) as wire:
            for code in sorted(codes - {222, 215, 207, 216}):  # these may wait, or take something away
                assert wire.call(code).code != 3, code
            assert wire.call(9999).code == 3
