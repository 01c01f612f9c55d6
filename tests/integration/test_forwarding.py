"""A slave that hands clients' calls on to its master: who asks it gets what the master would have answered.

Roles are as configured here: `forward=on` switches on what groups that elect their leader do by themselves.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.test_broker_cluster import Peer, started, writable
from integration.test_broker_sdk import Sdk, log_of
from integration.test_majority import MAJORITY, as_role
from integration.test_switching import GROUP, SWITCH_S, TOPIC, Site
from support.cluster.broker_api import duration, log_end, message, queue
from support.cluster.processes import Cluster
from support.waiting import until
from whimbrel.broker.roles.master import MasterRole
from whimbrel.client import Message
from whimbrel.client.sync import Consumer, Producer
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.locking import is_locked

pytestmark = pytest.mark.process

FORWARDS: dict[str, object] = {"forward": "on", "metrics_port": 0}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("forwarding"), slaves=1, broker=FORWARDS) as cluster:
        started(cluster)
        yield cluster


@pytest.fixture
def slave(running: Cluster) -> Peer:
    """All that these tests ask, they ask the slave."""
    peer = Peer(running.slaves[0])
    until(lambda: peer.send("warm", b"x").status.code == v2.OK, what="a slave that knows its master")
    return peer


def copies(cluster: Cluster, body: bytes) -> int:
    """Return how often a body stands in the master's log."""
    return log_of(cluster.master.store).count(body)


def system_message(topic: str, body: bytes, message_id: str, **system: Any) -> Any:
    return message(topic, body, message_id=message_id.ljust(34, "0"), **system)


@pytest.mark.transport
def test_plain_and_ordered_messages_are_sent_received_and_acknowledged(running: Cluster, slave: Peer) -> None:
    bodies = [b"plain-%03d" % number for number in range(20)]
    for body in bodies:
        answer = slave.send("plain", body)
        assert answer.status.code == answer.entries[0].status.code == v2.OK
    assert [copies(running, body) for body in bodies] == [1] * 20
    got = slave.receive("plain", "g", poll_s=5)
    assert got.bodies == bodies
    assert slave.ack("plain", "g", *got.handles[1:]).status.code == v2.OK
    changed = slave.change("plain", "g", got.handles[0], 0)
    assert changed.status.code == v2.OK and changed.receipt_handle != got.handles[0]
    again = slave.receive("plain", "g", poll_s=5)
    assert (len(again.bodies), again.attempts) == (1, [2])
    assert slave.ack("plain", "g", *again.handles).status.code == v2.OK
    assert Peer(running.master).receive("plain", "g", poll_s=0).messages == []

    for number in range(5):
        sent = slave.send("ordered", b"fifo-%d" % number, message_group="one", message_type=v2.FIFO)
        assert sent.status.code == v2.OK and sent.entries[0].offset == number
    assert [copies(running, b"fifo-%d" % number) for number in range(5)] == [1] * 5


@pytest.mark.transport
def test_delayed_messages_and_transactions(running: Cluster, slave: Peer) -> None:
    due = v2.SystemProperties().delivery_timestamp
    due.FromMilliseconds(int(time.time() * 1000) + 3_600_000)
    later = slave("SendMessage", messages=[
        system_message("later", b"due-later", "0A", message_type=v2.DELAY, delivery_timestamp=due)
    ])  # fmt: skip
    handle = later.entries[0].recall_handle
    assert later.status.code == v2.OK and handle and copies(running, b"due-later") == 1
    assert slave("RecallMessage", topic=v2.Resource(name="later"), recall_handle=handle).status.code == v2.OK

    sent = slave(
        "SendMessage", messages=[system_message("paid", b"half-one", "0B", message_type=v2.TRANSACTION)]
    )
    assert sent.status.code == v2.OK and copies(running, b"half-one") == 1
    end: dict[str, Any] = {
        "topic": v2.Resource(name="paid"), "message_id": sent.entries[0].message_id,
        "transaction_id": sent.entries[0].transaction_id, "source": v2.SOURCE_CLIENT,
    }  # fmt: skip
    assert slave("EndTransaction", resolution=v2.COMMIT, **end).status.code == v2.OK
    assert slave.receive("paid", "g", poll_s=5).bodies == [b"half-one"]
    assert copies(running, b"half-one") == 2  # and what consumers get
    assert slave("EndTransaction", resolution=v2.ROLLBACK, **end).status.code == v2.INVALID_TRANSACTION_ID


@pytest.mark.transport
def test_dead_letters_and_positions(running: Cluster, slave: Peer) -> None:
    slave.send("given-up", b"letter-one")
    got = slave.receive("given-up", "gives-up", poll_s=5)
    given = slave(
        "ForwardMessageToDeadLetterQueue", group=v2.Resource(name="gives-up"),
        topic=v2.Resource(name="given-up"), receipt_handle=got.handles[0], message_id="id",
    )  # fmt: skip
    assert given.status.code == v2.OK and copies(running, b"letter-one") == 2

    where = {"group": v2.Resource(name="committed"), "message_queue": queue("given-up", 0)}
    assert slave("UpdateOffset", offset=0, **where).status.code == v2.OK
    found = slave("GetOffset", **where)
    assert (found.status.code, found.offset) == (v2.OK, 0)
    assert Peer(running.master)("GetOffset", **where).offset == 0
    assert (
        slave("Heartbeat", group=v2.Resource(name="gives-up"), client_type=v2.SIMPLE_CONSUMER).status.code
        == v2.OK
    )
    known = until(lambda: Peer(running.master).group("gives-up").clients, what="the client at the master")
    assert [each.client_id for each in known] == ["client@1"]


def test_both_sides_count_what_was_handed_on(running: Cluster, slave: Peer) -> None:
    before = running.slaves[0].metric("whimbrel_forward_seconds_count")
    assert slave.send("counted", b"x").status.code == v2.OK
    assert running.slaves[0].metric("whimbrel_forward_seconds_count") == before + 1
    assert running.slaves[0].metric("whimbrel_held_calls") == 0
    assert running.master.metric("whimbrel_held_calls") == 0


def test_the_official_sdk_works_at_the_slave(running: Cluster, slave: Peer, tmp_path: Path) -> None:
    with Sdk(running.slaves[0].grpc, tmp_path) as sdk:
        bodies = [f"sdk-{number:03d}" for number in range(10)]
        assert len(sdk("send", topic="by-sdk", bodies=bodies)) == 10
        sdk("send", topic="by-sdk-fifo", bodies=bodies[:2], group="one")
        assert [copies(running, body.encode()) for body in bodies] == [2, 2] + [1] * 8
        got = sdk("receive", topic="by-sdk", group="sdk-g", count=10, seconds=20)
        assert sorted(each["body"] for each in got) == bodies
    assert Peer(running.master).receive("by-sdk", "sdk-g", poll_s=0).messages == []


def test_our_client_works_at_the_slave(running: Cluster, slave: Peer) -> None:
    with Producer(running.slaves[0].grpc) as producer:
        receipt = producer.send(Message(topic="by-client", body=b"client-one"))
        assert receipt.message_id and copies(running, b"client-one") == 1
    with Consumer(running.slaves[0].grpc, "client-g", ["by-client"]) as consumer:
        found = until(consumer.receive, what="the message")
        assert [each.body for each in found] == [b"client-one"]
        consumer.ack(found[0])
    assert Peer(running.master).receive("by-client", "client-g", poll_s=0).messages == []


def test_a_call_makes_the_hop_once(running: Cluster, slave: Peer) -> None:
    hopped = Peer(running.slaves[0])
    hopped.headers += [("whimbrel-hops", "leader")]
    started = hopped.start("SendMessage", messages=[message("looped", b"looped-one")])
    assert started.result().status.code == v2.HA_NOT_AVAILABLE
    trailers = dict(started.trailing_metadata())
    assert trailers["whimbrel-reason"] == "NOT_MASTER"
    assert trailers["whimbrel-leader"] == running.master.grpc
    assert copies(running, b"looped-one") == 0


def test_a_receive_whose_client_leaves_takes_nothing(running: Cluster, slave: Peer) -> None:
    def polls() -> float:
        return running.master.metric("whimbrel_long_polls_held")

    assert slave.send("left", b"left-first").status.code == v2.OK
    assert (
        slave.ack("left", "left-g", *slave.receive("left", "left-g", poll_s=5).handles).status.code == v2.OK
    )
    before = polls()
    leaving = slave.start(
        "ReceiveMessage", timeout=20, group=v2.Resource(name="left-g"), message_queue=queue("left", -1),
        batch_size=1, invisible_duration=duration(600), long_polling_timeout=duration(15),
    )  # fmt: skip
    until(lambda: polls() == before + 1, what="a receive that waits at the master")
    leaving.cancel()
    until(lambda: polls() == before, what="the end of the receive at the master")
    assert slave.send("left", b"left-second").status.code == v2.OK
    assert slave.receive("left", "left-g", poll_s=5).bodies == [b"left-second"]


def test_a_long_poll_outlives_the_time_of_other_calls(running: Cluster, slave: Peer) -> None:
    started_at = time.monotonic()
    assert slave.receive("nothing-comes", "patient", poll_s=9, timeout=20).messages == []
    assert time.monotonic() - started_at > 8.5  # it has waited for as long as it asked


def test_without_its_master_a_slave_holds_calls_and_then_says_so(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with Cluster(tmp_path, slaves=1, broker=FORWARDS) as cluster:
        _, slave = started(cluster)
        until(lambda: slave.send("t", b"first").status.code == v2.OK, what="a slave that knows its master")
        polling = slave.start(
            "ReceiveMessage", timeout=40, group=v2.Resource(name="g"), message_queue=queue("t", -1),
            batch_size=32, invisible_duration=duration(30), long_polling_timeout=duration(20),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="none"),
        )  # fmt: skip
        until(lambda: cluster.master.metric("whimbrel_long_polls_held") == 1, what="a receive at the master")
        cluster.master.kill()
        begun = time.monotonic()
        sending = slave.start("SendMessage", messages=[message("t", b"refused")])
        until(lambda: cluster.slaves[0].metric("whimbrel_held_calls") >= 1, timeout=2, what="a held call")
        assert sending.result().status.code == v2.HA_NOT_AVAILABLE
        took_s = time.monotonic() - begun
        assert dict(sending.trailing_metadata())["whimbrel-reason"] == "NOT_MASTER"
        frames = list(polling)
        assert frames[0].status.code == v2.HA_NOT_AVAILABLE  # it was held, too, and its time is over
        assert cluster.slaves[0].metric("whimbrel_held_calls") == 0
        assert cluster.slaves[0].metric("whimbrel_held_bytes") == 0

        answers: list[Any] = []
        back = threading.Event()

        def send_on() -> None:
            while not back.is_set():
                answer = slave.send("t", b"again")
                answers.append((time.monotonic(), answer))

        sender = threading.Thread(target=send_on)
        sender.start()
        cluster.master.start()
        until(lambda: writable(Peer(cluster.master)), timeout=20, what="a writable master")
        back_at = time.monotonic()
        until(lambda: answers and answers[-1][1].status.code == v2.OK, timeout=10, what="a send that holds")
        back.set()
        sender.join(20)
        stored = sum(each.status.code == v2.OK for _, each in answers)
        assert copies(cluster, b"again") == stored and copies(cluster, b"refused") == 0
        first = next(at for at, each in answers if each.status.code == v2.OK)
        measured(f"held {took_s:.2f} s; a send goes through {first - back_at:+.2f} s after the return")


def test_clients_of_a_member_go_on_at_the_next_master(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with Cluster(tmp_path, slaves=2, broker=MAJORITY | FORWARDS, replicator={"flush": "sync"}) as cluster:
        member = Peer(cluster.slaves[1])
        until(lambda: member.send("t", b"first").status.code == v2.OK, timeout=20, what="a send that holds")
        polling = member.start(
            "ReceiveMessage", timeout=60, group=v2.Resource(name="g"), message_queue=queue("t", -1),
            batch_size=32, invisible_duration=duration(30), long_polling_timeout=duration(20),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="none"),
        )  # fmt: skip
        until(lambda: cluster.master.metric("whimbrel_long_polls_held") == 1, what="a receive at the master")
        brokers = (cluster.master, *cluster.slaves)
        until(lambda: len({log_end(each.grpc) for each in brokers}) == 1, what="slaves that lack nothing")
        for process in (cluster.master, cluster.master_replicator):
            process.kill()
        codes: list[int] = []
        over = threading.Event()

        def send_on() -> None:
            number = 0
            while not over.is_set():
                code = member.send("t", b"numbered-%04d." % number).status.code
                codes.append(code)
                number += 1

        sender = threading.Thread(target=send_on)
        sender.start()
        for process in (cluster.slaves[0], cluster.slave_replicators[0]):
            process.kill()
        heir = as_role(cluster, cluster.slaves[0], "master", 0)
        try:
            until(lambda: writable(Peer(heir[0])), timeout=20, what="the next master")
            writable_at = time.monotonic()
            until(lambda: codes and codes[-1] == v2.OK, timeout=20, what="a send at the next master")
            flows_at = time.monotonic()
        finally:
            over.set()
            sender.join(20)
        list(polling)
        log = log_of(heir[0].store)
        stored = [log.count(b"numbered-%04d." % number) for number in range(len(codes))]
        assert {count for count, code in zip(stored, codes, strict=True) if code == v2.OK} == {1}
        assert max(stored) == 1 and {code for code in codes if code != v2.OK} <= {v2.HA_NOT_AVAILABLE}
        measured(
            f"sends go through {flows_at - writable_at:+.2f} s after the next master takes them;"
            f" {codes.count(v2.OK)} stored, {len(codes) - codes.count(v2.OK)} refused meanwhile"
        )
        for process in heir:
            process.kill()


def test_calls_during_a_switch_are_served_by_the_role_that_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Site(tmp_path / "a", "master", 0, forward="on") as a:
        assert a.api.send(TOPIC, b"1").status.code == v2.OK
        a.to_slave(1)  # of nobody that is known
        opens, gate = threading.Event(), asyncio.Event()
        original = MasterRole.open_store

        async def open_store(role: MasterRole) -> Any:
            opens.set()
            await gate.wait()
            return await original(role)

        monkeypatch.setattr(MasterRole, "open_store", open_store)
        sent_before = a.api.start("SendMessage", timeout=SWITCH_S, messages=[message(TOPIC, b"2")])
        calls = a.broker.context.leader_calls  # type: ignore[union-attr]
        assert calls is not None
        until(lambda: a.inspect(lambda: len(calls.held)) == 1, what="a held send")
        a.replicator.switch(a.replica_role("master"))
        switching = asyncio.run_coroutine_threadsafe(a.broker.switch("master", 0), a.events)
        assert opens.wait(SWITCH_S)
        sent_between = a.api.start("SendMessage", timeout=SWITCH_S, messages=[message(TOPIC, b"3")])
        receiving = a.api.start(
            "ReceiveMessage", timeout=SWITCH_S, group=v2.Resource(name=GROUP), message_queue=queue(TOPIC, -1),
            batch_size=8, invisible_duration=duration(30), long_polling_timeout=duration(10),
        )  # fmt: skip
        until(lambda: a.inspect(lambda: len(calls.held)) == 3, what="held calls")
        until(lambda: not is_locked(a.root), what="the log that the replicator gives back")
        a.inspect(gate.set)
        switching.result(SWITCH_S)
        assert sent_before.result().status.code == sent_between.result().status.code == v2.OK
        frames = list(receiving)
        assert frames[0].status.code == v2.OK
        bodies = [each.message.body for each in frames if each.WhichOneof("content") == "message"]
        rest = a.api.receive(TOPIC, GROUP, poll_s=0).bodies
        assert sorted(bodies + rest) == [b"1", b"2", b"3"]
        assert len(calls.held) == 0


def test_a_master_that_becomes_a_slave_hands_on(tmp_path: Path) -> None:
    with (
        Site(tmp_path / "a", "master", 0, forward="on") as a,
        Site(tmp_path / "b", "slave", 1, forward="on") as b,
    ):
        b.dial(a)
        assert a.api.send(TOPIC, b"1").status.code == v2.OK
        until(lambda: b.state()[0] == a.state()[0], what="the whole log on the slave")
        a.to_slave(1)
        held = a.api.start("SendMessage", timeout=SWITCH_S, messages=[message(TOPIC, b"2")])
        b.to_master()
        a.dial(b)
        calls = a.broker.context.leader_calls  # type: ignore[union-attr]
        assert calls is not None
        a.inspect(lambda: calls.follow(b.broker.server.address))  # nameservers would say so
        assert held.result().status.code == v2.OK
        assert a.api.send(TOPIC, b"3").status.code == v2.OK
        assert b.api.receive(TOPIC, GROUP, poll_s=5).bodies == [b"1", b"2", b"3"]


def test_without_the_setting_a_slave_refuses_and_names_its_master(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=1) as cluster:
        _, slave = started(cluster)
        end: dict[str, Any] = {
            "topic": v2.Resource(name="t"), "message_id": "a", "transaction_id": "a",
            "resolution": v2.COMMIT,
        }  # fmt: skip

        def named() -> str:
            call = slave.start("EndTransaction", **end)
            assert call.result().status.code == v2.HA_NOT_AVAILABLE
            return str(dict(call.trailing_metadata()).get("whimbrel-leader", ""))

        assert until(named, what="a slave that knows its master") == cluster.master.grpc
        assert slave.send("t", b"x").status.code == v2.INTERNAL_SERVER_ERROR
