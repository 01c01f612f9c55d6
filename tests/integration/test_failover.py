"""What is left when processes, logs and disks go away at bad moments: nothing acknowledged is lost.

Clients try each call once, and note what they sent and saw in a history (`noting.py`), which is checked
against what the stores hold. Which process dies when comes from a seed, which stands in the summary.

    WHIMBREL_FAULT_SEED  repeat a run
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support import provenance
from support.cluster.broker_api import Api, message, queue
from support.cluster.processes import Cluster, Process
from support.history.histories import Place
from support.history.noting import Load
from support.waiting import always, polls, until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.verify import verify
from whimbrel.store.view import LogView

pytestmark = pytest.mark.process

TOPIC = "load"
BROKER = "broker-a"  # the name that all brokers here share
SYNC: dict[str, object] = {"replication": "sync", "slave_timeout_ms": 1500}
KILL_AFTER_MAX = 300  # acknowledged messages: some tenths of a second


class Peer(Api):
    """Calls to one broker, over a channel of its own that follows it through restarts."""

    def __init__(self, process: Process) -> None:
        options = [("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 50)]
        super().__init__(grpc.insecure_channel(process.grpc, options=options))

    def view(self) -> Any:
        return self.administer("DescribeReplication")

    def writable(self) -> bool:
        try:
            return bool(self.view().writable)
        except grpc.RpcError:
            return False

    def ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return each queue's range."""
        queues = self.administer("DescribeTopic", name=topic).queues
        return {one.queue_id: (one.min_offset, one.max_offset) for one in queues}

    def topics(self) -> set[str]:
        return {topic.name for topic in self.administer("ListTopics").topics}

    def bodies(self, topic: str) -> list[bytes]:
        """Pull all that the topic holds."""
        return [body for _, body in self.records(topic)]

    def records(self, topic: str) -> list[tuple[Place, bytes]]:
        """Do the same, with places."""
        found: list[tuple[Place, bytes]] = []
        for queue_id, (offset, end) in self.ends(topic).items():
            while offset < end:
                frames = self(
                    "PullMessage",
                    group=v2.Resource(name="puller"),
                    message_queue=queue(topic, queue_id),
                    offset=offset,
                    batch_size=32,
                )
                assert frames[0].status.code == v2.OK, frames[0].status
                for frame in frames:
                    if frame.HasField("message"):
                        place = f"{BROKER}/{topic}", queue_id, frame.message.system_properties.queue_offset
                        found.append((place, frame.message.body))
                assert frames[-1].next_offset > offset
                offset = frames[-1].next_offset
        return found


def log_bytes(store: Path) -> tuple[int, bytes]:
    """Return where a log at rest begins, and its bytes."""
    view = LogView.of(store)
    data = b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))
    return view.begin, data[: view.end - view.begin]


def equal_logs(*brokers: Process) -> Callable[[], bool]:
    peers = [Peer(broker) for broker in brokers]

    def equal() -> bool:
        try:
            views = [peer.view() for peer in peers]
        except grpc.RpcError:
            return False
        dispatched = all(view.dispatched_offset == view.log_end for view in views)
        return dispatched and len({view.log_end for view in views}) == 1

    return equal


def dice_of(test: str) -> tuple[int, random.Random]:
    seed = provenance.seed()
    return seed, random.Random(f"{seed} {test}")


def kills_then_the_slave_alone(tmp_path: Path, rounds: int, measured: Callable[[str], None]) -> None:
    seed, dice = dice_of("alone")
    with Cluster(tmp_path, broker=SYNC) as cluster:
        cluster.wait_usable()
        kills = 0
        with Load(cluster.endpoint, TOPIC, producers=4, pad_bytes=700) as load:
            load.wait_for(50, "the first messages")
            for _ in range(rounds):
                victims: list[list[Process]] = [[process] for process in cluster.processes]
                victims.append(cluster.processes)
                victims.append([cluster.master_replicator, *cluster.slave_replicators])
                victims.append([cluster.master, *cluster.slaves])
                dice.shuffle(victims)
                for dying in victims:
                    load.wait_for(dice.randrange(KILL_AFTER_MAX), "messages before the next kill")
                    for process in dying:
                        process.signal(signal.SIGKILL)
                    for process in dying:
                        process.wait()
                    kills += len(dying)
                    cluster.restart()
                    load.wait_for(30, f"messages after {len(dying)} kills at once")
            cluster.kill()  # in the middle of the load
            load.stop_sending()
            away = cluster.master.store.with_suffix(".away")
            cluster.master.store.rename(away)
            for process in (cluster.nameserver, cluster.slaves[0], cluster.slave_replicators[0]):
                process.launch()
            slave = Peer(cluster.slaves[0].wait_ready())
            until(lambda: slave.view().dispatched_offset == slave.view().log_end, what="the slave's queues")
            held = slave.records(TOPIC)
            # Consumers may have read of the master what the slave, now alone, has not got.
            alone = [found for found in load.history.check(complete=held) if found.kind != "gone"]
            assert alone == []
            away.rename(cluster.master.store)
            cluster.restart()
            master = Peer(cluster.master)
            until(master.writable, timeout=15, what="a writable master")
            until(equal_logs(cluster.master, cluster.slaves[0]), what="equal logs")
            load.settle()
        findings = load.check(master.records(TOPIC))
        measured(
            f"seed {seed}, {kills} kills, {load.history.summary}, {len(held)} on the slave, "
            f"{len(findings)} findings, errors {load.kinds()}"
        )
        assert findings == []
        assert master.ends(TOPIC) == slave.ends(TOPIC)
        cluster.kill()
        assert log_bytes(cluster.master.store) == log_bytes(cluster.slaves[0].store)
        for broker in (cluster.master, *cluster.slaves):
            assert verify(broker.store) == []


def test_slave_alone_holds_all_that_was_acknowledged(tmp_path: Path, measured: Callable[[str], None]) -> None:
    kills_then_the_slave_alone(tmp_path, 1, measured)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_slave_alone_holds_all_that_was_acknowledged_after_many_kills(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    kills_then_the_slave_alone(tmp_path, 8, measured)


def test_a_topic_made_while_the_slaves_broker_was_down_is_served_without_the_master(tmp_path: Path) -> None:
    settings: dict[str, object] = {"auto_create_topics": False, "acks": 1}
    with Cluster(tmp_path, slaves=1, broker=SYNC | settings) as cluster:
        master, broker = Peer(cluster.master), cluster.slaves[0]
        until(master.writable, timeout=15, what="a writable master")
        until(lambda: master.view().slaves, timeout=15, what="the slave being connected")
        broker.kill()
        master.administer("CreateTopic", topic=admin.Topic(name="fresh", read_queues=3, write_queues=3))
        answer = master("SendMessage", messages=[message("fresh", b"kept")])
        assert answer.status.code == v2.OK, answer.status  # its replicator has it
        cluster.master.kill()
        cluster.master_replicator.kill()
        shutil.rmtree(cluster.master.store)
        broker.start()
        slave = Peer(broker)
        assert "fresh" in slave.topics() and slave.bodies("fresh") == [b"kept"]
        broker.stop()
        cluster.slave_replicators[0].stop()
        leading = {"role": "master", "id": 0, "expected_slaves": 0, "replication": "async", "port": 0}
        with Process(tmp_path, "broker", "promoted", **{**broker.settings, **leading}) as promoted:
            peer = Peer(promoted)
            until(peer.writable, timeout=15, what="a writable master")
            assert peer.bodies("fresh") == [b"kept"]
            assert peer("SendMessage", messages=[message("fresh", b"more")]).status.code == v2.OK


def restart_as(role: str, broker: Process, replicator: Process) -> None:
    """Start the processes of one store in another role."""
    broker.settings |= {"role": role, "id": int(role == "slave")}
    replicator.settings["role"] = role
    for process in (broker, replicator):
        process.launch()
    for process in (broker, replicator):
        process.wait_ready()


def test_resets_of_a_former_master_do_not_undo_those_of_the_one_that_took_over(tmp_path: Path) -> None:
    """Neither in the first takeover nor in the next, when the roles are as they were."""

    def reset(broker: Process, offset: int) -> None:
        Peer(broker).administer("ResetOffsets", group="g", topic=TOPIC, queue_id=0, offset=offset)

    def is_at(offset: int, broker: Process) -> Callable[[], bool]:
        def found() -> bool:
            with contextlib.suppress(grpc.RpcError):  # a slave does not know the group at once
                progress = Peer(broker).administer("DescribeGroup", name="g").progress
                return [one.committed_offset for one in progress] == [offset]
            return False

        return found

    settings: dict[str, object] = {"replication": "async", "expected_slaves": 0}
    names: dict[str, object] = {"lease_s": 3.0, "renew_s": 1.0}
    with Cluster(tmp_path, slaves=1, broker=settings, nameserver=names) as cluster:
        leading = cluster.master, cluster.master_replicator
        following = cluster.slaves[0], cluster.slave_replicators[0]
        until(Peer(leading[0]).writable, timeout=15, what="a writable master")
        one_queue = admin.Topic(name=TOPIC, read_queues=1, write_queues=1)
        Peer(leading[0]).administer("CreateTopic", topic=one_queue)
        for _ in range(9):
            assert Peer(leading[0]).send(TOPIC, b"x").status.code == v2.OK
        Peer(leading[0]).administer("CreateGroup", group=admin.Group(name="g"))
        reset(leading[0], 0)
        until(equal_logs(leading[0], following[0]), what="a slave that holds all")
        for takeover in (1, 2):
            until(is_at(takeover - 1, following[0]), what="a slave that knows the position")
            for process in following:
                process.stop()
            for offset in (7, 8, 9):
                reset(leading[0], offset)
            for process in leading:
                process.kill()
            restart_as("master", *following)
            until(Peer(following[0]).writable, timeout=15, what="a writable master")
            reset(following[0], takeover)
            restart_as("slave", *leading)
            leading, following = following, leading
            until(is_at(takeover, following[0]), what="the former master to know what was answered")
            assert is_at(takeover, leading[0])()


# A master that lost a part of its log


class Lost:
    """A cluster whose master was set back to an earlier log; nothing of the master's side runs.

    `early` stand in both logs, `late` on the slaves alone. Every send from then on must fail.
    """

    def __init__(self, cluster: Cluster, *, hang: bool = False) -> None:
        self.cluster = cluster
        master, self.slave = Peer(cluster.master), cluster.slaves[0]
        until(master.writable, timeout=15, what="a writable master")
        self.early = self.sent(master, 5)
        until(equal_logs(cluster.master, *cluster.slaves), what="slaves that hold all")
        cluster.master.stop()
        snapshot = cluster.root / "snapshot"
        shutil.copytree(cluster.master.store, snapshot, ignore=shutil.ignore_patterns("*.sock"))
        self.common = Peer(self.slave).view().log_end
        cluster.master.start()
        until(master.writable, timeout=15, what="a writable master")
        self.late = self.sent(master, 5)
        self.end = master.view().log_end
        until(lambda: Peer(self.slave).view().dispatched_offset == self.end, what="the slave holding all")
        if hang:
            self.slave.signal(signal.SIGSTOP)
        for process in (cluster.master, cluster.master_replicator):
            process.kill()
        shutil.rmtree(cluster.master.store)
        snapshot.rename(cluster.master.store)

    @staticmethod
    def sent(master: Peer, count: int) -> list[bytes]:
        bodies = [os.urandom(50).hex().encode() for _ in range(count)]
        for body in bodies:
            assert master.send(TOPIC, body).status.code == v2.OK
        return bodies

    def never_writable(self, peer: Peer, seconds: float, *, words: str = "shorter log") -> None:
        """Try to send for a while; then the master must say what is wrong."""
        began = time.monotonic()
        for _ in polls(seconds):
            with contextlib.suppress(grpc.RpcError):
                answer = peer.send(TOPIC, b"this would take the place of another")
                assert answer.status.code != v2.OK, f"after {time.monotonic() - began:.1f} s"
        view = peer.view()
        assert not view.writable
        assert words in view.advice, view.advice

    def untouched(self, *brokers: Process) -> None:
        """Check that nothing has changed on the slave, and that it serves everything."""
        slave = Peer(self.slave)
        assert slave.view().log_end == self.end
        assert sorted(slave.bodies(TOPIC)) == sorted(self.early + self.late)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, slaves=1) as running:
        yield running


@pytest.mark.parametrize("broker", ["dead", pytest.param("hung", marks=pytest.mark.slow)])
def test_replicator_of_a_slave_without_a_broker_keeps_a_shorter_master_from_writing(
    broker: str, cluster: Cluster
) -> None:
    lost = Lost(cluster, hang=broker == "hung")
    if broker == "dead":
        lost.slave.kill()
    cluster.restart_only(cluster.master, cluster.master_replicator)
    lost.never_writable(Peer(cluster.master), 5.0)
    if broker == "dead":
        lost.slave.start()
    lost.slave.signal(signal.SIGCONT)
    lost.never_writable(Peer(cluster.master), 1.0)
    lost.untouched()


def test_claims_of_a_longer_log_stop_no_master_that_has_written_and_none_when_a_stranger_makes_them(
    cluster: Cluster,
) -> None:
    master = Peer(cluster.master)
    until(master.writable, timeout=15, what="a writable master")
    until(lambda: master.view().slaves, what="the slave being connected")

    def claim(host: str) -> None:
        where, _, port = cluster.master_replicator.ha.rpartition(":")
        with socket.create_connection((where, int(port)), timeout=10, source_address=(host, 0)) as stranger:
            stranger.sendall((master.view().log_end + 1000).to_bytes(8, "big"))
            assert stranger.recv(100) == b""

    claim("127.0.0.66")
    always(master.writable, 0.7, "a stranger stops a master")
    Lost.sent(master, 1)
    claim("127.0.0.1")  # where a slave is
    always(master.writable, 0.7, "a claim stops a master that has written")


def test_slaves_of_one_host_acknowledge_each_for_itself_and_again_after_they_came_back(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, slaves=2, broker={"replication": "sync", "acks": 2}) as cluster:
        master = Peer(cluster.master)

        def sends() -> bool:
            return bool(master.send(TOPIC, b"x").status.code == v2.OK)

        def connected() -> list[int]:
            return sorted(slave.broker_id for slave in master.view().slaves if not slave.uncounted)

        until(master.writable, timeout=15, what="a writable master")
        until(sends, what="two slaves that count")
        assert connected() == [1, 2]
        cluster.slave_replicators[0].kill()
        until(lambda: connected() == [2], what="one slave being gone")
        assert master.send(TOPIC, b"x").status.code == v2.HA_NOT_AVAILABLE
        cluster.slave_replicators[0].start()
        until(lambda: connected() == [1, 2], what="the slave being known again")
        until(sends, what="two slaves that count")


def test_shorter_master_does_not_write_while_the_slave_ahead_restarts(cluster: Cluster) -> None:
    lost = Lost(cluster)
    cluster.restart_only(cluster.master, cluster.master_replicator)
    master = Peer(cluster.master)
    until(lambda: "shorter log" in master.view().advice, what="the advice")
    lost.slave.kill()
    cluster.slave_replicators[0].kill()
    lost.never_writable(master, 2.0)
    cluster.restart()
    lost.never_writable(master, 2.0)
    lost.untouched()


@pytest.mark.parametrize(
    "order",
    ["nameserver restarted", pytest.param("master before the nameserver", marks=pytest.mark.slow)],
)
def test_shorter_master_does_not_write_whatever_starts_when(order: str, cluster: Cluster) -> None:
    lost = Lost(cluster)
    cluster.nameserver.kill()
    if order == "nameserver restarted":
        cluster.restart_only(cluster.nameserver, cluster.master, cluster.master_replicator)
    else:
        cluster.restart_only(cluster.master, cluster.master_replicator)
        master = Peer(cluster.master)
        always(lambda: not master.writable(), 1.0, "it writes without a nameserver")
        cluster.restart_only(cluster.nameserver)
    lost.never_writable(Peer(cluster.master), 4.0)
    lost.untouched()


@pytest.mark.slow
def test_shorter_master_does_not_write_when_one_of_two_slaves_is_ahead(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=2) as cluster:
        until(Peer(cluster.master).writable, timeout=15)
        lost = Lost(cluster)
        second, second_replicator = cluster.slaves[1], cluster.slave_replicators[1]
        # The second slave comes back with what both logs hold, as if it had been away before the rest.
        second.kill()
        second_replicator.kill()
        shutil.rmtree(second.store / "commitlog")
        shutil.copytree(cluster.master.store / "commitlog", second.store / "commitlog")
        cluster.restart()
        master = Peer(cluster.master)
        lost.never_writable(master, 3.0, words="slave 1 at")
        assert Peer(second).view().log_end == master.view().log_end == lost.common
        lost.untouched()


# Topics, twins, hangs, stops


def test_recreated_topic_has_the_same_queues_on_both_sides(cluster: Cluster) -> None:
    master, slave = Peer(cluster.master), Peer(cluster.slaves[0])
    until(master.writable, timeout=15, what="a writable master")
    kept: dict[str, list[bytes]] = {}
    for topic, away in (("quick", False), ("away", True)):
        master.administer("CreateTopic", topic=admin.Topic(name=topic, read_queues=1, write_queues=1))
        for number in range(5):
            assert master.send(topic, b"old %d" % number).status.code == v2.OK
        until(equal_logs(cluster.master, cluster.slaves[0]), what="a slave that holds all")
        if away:
            cluster.slaves[0].kill()
        master.administer("DeleteTopic", name=topic)
        master.administer("CreateTopic", topic=admin.Topic(name=topic, read_queues=1, write_queues=1))
        kept[topic] = [b"new %d" % number for number in range(8)]
        for body in kept[topic]:
            assert master.send(topic, body).status.code == v2.OK
        if away:
            cluster.restart()
            slave = Peer(cluster.slaves[0])
        until(equal_logs(cluster.master, cluster.slaves[0]), what="equal logs")
        assert master.bodies(topic) == kept[topic]
    for topic, bodies in kept.items():
        until(lambda topic=topic: topic in slave.topics(), what="the topic on the slave")  # type: ignore[misc]
        until(lambda topic=topic: slave.ends(topic) == master.ends(topic), what=topic)  # type: ignore[misc]
        assert slave.bodies(topic) == bodies
    # A start that builds all queues anew finds the same.
    cluster.master.stop()
    shutil.rmtree(cluster.master.store / "consumequeue")
    (cluster.master.store / "whimbrel" / "queue-mark").unlink()
    cluster.master.start()
    for topic, bodies in kept.items():
        assert master.bodies(topic) == bodies


def test_of_two_masters_of_one_name_one_writes_and_the_other_says_why(cluster: Cluster) -> None:
    master = Peer(cluster.master)
    until(master.writable, timeout=15, what="a writable master")
    assert master.send(TOPIC, b"0").status.code == v2.OK
    until(equal_logs(cluster.master, cluster.slaves[0]), what="a slave that holds all")
    with Process(
        cluster.root, "broker", "twin", **cluster.broker_settings, role="master", id=0,
        store=cluster.root / "store-twin", nameservers=[cluster.endpoint],
    ) as twin:  # fmt: skip
        other = Peer(twin)
        address = f"another broker at {cluster.master.grpc}"
        until(lambda: address in other.view().advice, timeout=10, what="the twin's refusal")
        always(lambda: master.writable() and not other.writable(), 3.0, "who had the place has it no more")
        # A new session of either changes nothing: here all sessions are new, and the twin's may be the first.
        cluster.nameserver.kill()
        cluster.nameserver.start()
        always(lambda: not other.writable(), 3.0, "the twin writes")
        until(master.writable, timeout=15, what="a writable master")
        assert master.send(TOPIC, b"x").status.code == v2.OK
        assert address in other.view().advice


def test_the_place_of_a_master_that_is_dead_goes_to_another_one(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=0) as cluster:
        until(Peer(cluster.master).writable, timeout=15, what="a writable master")
        with Process(
            cluster.root, "broker", "other", **cluster.broker_settings, role="master", id=0,
            store=cluster.root / "store-other", nameservers=[cluster.endpoint],
        ) as other:  # fmt: skip
            until(lambda: "another broker at" in Peer(other).view().advice, what="the refusal")
            cluster.master.kill()
            until(Peer(other).writable, timeout=20, what="the other one in its place")


def test_stop_answers_parked_sends_and_ends_soon(tmp_path: Path) -> None:
    settings: dict[str, object] = {"replication": "sync", "slave_timeout_ms": 30_000, "metrics_port": 0}
    with Cluster(tmp_path, broker=settings) as cluster:
        master = Peer(cluster.master)
        until(lambda: master.send(TOPIC, b"0").status.code == v2.OK, timeout=15, what="a send that holds")
        cluster.slave_replicators[0].signal(signal.SIGSTOP)
        sends = [
            master.start("SendMessage", messages=[message(TOPIC, b"parked")], timeout=30) for _ in range(50)
        ]
        receives = [
            threading.Thread(
                target=master.receive, args=("nothing", "g"), kwargs={"poll_s": 20, "timeout": 30}
            )
            for _ in range(20)
        ]
        master.administer("CreateTopic", topic=admin.Topic(name="nothing"))
        for receive in receives:
            receive.start()
        until(lambda: cluster.master.metric("whimbrel_sends_parked") == len(sends), what="parked sends")
        until(lambda: cluster.master.metric("whimbrel_long_polls_held") == len(receives), what="parked polls")
        began = time.monotonic()
        assert cluster.master.stop() == 0
        assert time.monotonic() - began < 5.0
        for send in sends:
            assert send.result().status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
        for receive in receives:
            receive.join(5.0)
            assert not receive.is_alive()


@pytest.mark.slow
def test_hung_master_leaves_the_route_and_wakes_up_as_the_only_writer(cluster: Cluster) -> None:
    master, slave = Peer(cluster.master), Peer(cluster.slaves[0])
    until(master.writable, timeout=15, what="a writable master")
    assert master.send(TOPIC, b"before").status.code == v2.OK
    nameserver = Peer(cluster.nameserver)
    port = int(cluster.master.grpc.rpartition(":")[2])

    def routed() -> set[tuple[int, int]]:
        """Return (port, permission) of the topic's queues."""
        queues = nameserver.route(TOPIC).message_queues
        return {(one.broker.endpoints.addresses[0].port, one.permission) for one in queues}

    until(lambda: routed() == {(port, v2.READ_WRITE)}, timeout=5, what="the topic in the route")
    until(equal_logs(cluster.master, cluster.slaves[0]), what="a slave that holds all")
    cluster.master.signal(signal.SIGSTOP)
    until(lambda: port not in {one for one, _ in routed()}, timeout=10, what="the route without it")
    assert {permission for _, permission in routed()} == {v2.READ}
    got = slave.receive(TOPIC, "g", poll_s=2)
    assert got.bodies == [b"before"] and slave.ack(TOPIC, "g", *got.handles).status.code == v2.OK
    assert slave.send(TOPIC, b"no").status.code != v2.OK
    always(lambda: port not in {one for one, _ in routed()}, 3.0, "the hung master in the route")
    cluster.master.signal(signal.SIGCONT)
    until(lambda: routed() == {(port, v2.READ_WRITE)}, timeout=5, what="the master in the route")
    assert master.send(TOPIC, b"after").status.code == v2.OK
    assert slave.send(TOPIC, b"no").status.code != v2.OK
    assert master.receive(TOPIC, "g", poll_s=2).bodies == [b"after"]
    until(equal_logs(cluster.master, cluster.slaves[0]), what="equal logs")
