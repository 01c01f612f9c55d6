"""Master and slave brokers together.

Metadata, refusals, synchronous replication, a master with a shorter log.
"""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import Api
from support.cluster.processes import Cluster, Process
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = pytest.mark.process


class Peer(Api):
    """Calls to one broker, over a channel of its own that follows it through restarts."""

    def __init__(self, process: Process) -> None:
        super().__init__(
            grpc.insecure_channel(process.grpc, options=[("grpc.max_reconnect_backoff_ms", 200)])
        )

    def replication(self) -> Any:
        return self.administer("DescribeReplication")

    def group(self, name: str) -> Any:
        """Describe a group; one that is not there yet has no progress."""
        try:
            return self.administer("DescribeGroup", name=name)
        except grpc.RpcError:
            return admin.DescribeGroupResponse()

    def topics(self) -> set[str]:
        return {topic.name for topic in self.administer("ListTopics").topics}


def writable(peer: Peer) -> bool:
    try:
        return bool(peer.replication().writable)
    except grpc.RpcError:
        return False


def started(cluster: Cluster) -> tuple[Peer, Peer]:
    master, slave = Peer(cluster.master), Peer(cluster.slaves[0])
    until(lambda: writable(master), timeout=15, what="a writable master")
    return master, slave


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, slaves=1) as running:
        yield running


def test_slave_copies_metadata_at_once_and_refuses_changes(cluster: Cluster) -> None:
    master, slave = started(cluster)
    master.administer("CreateTopic", topic=admin.Topic(name="copied", read_queues=3))
    master.administer("CreateGroup", group=admin.Group(name="copied-g", max_attempts=4))
    until(lambda: "copied" in slave.topics(), timeout=3, what="the topic on the slave")
    until(lambda: slave.group("copied-g").group.max_attempts == 4, timeout=3)
    assert slave.send("copied", b"x").status.code == v2.INTERNAL_SERVER_ERROR
    with pytest.raises(grpc.RpcError) as caught:
        slave.administer("CreateTopic", topic=admin.Topic(name="own"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    view = slave.replication()
    assert (view.role, view.writable) == ("SLAVE", False)
    until(lambda: slave.replication().connected, timeout=5, what="a connected slave")
    assert master.send("copied", b"0", b"1").status.code == v2.OK
    until(lambda: slave.receive("copied", "copied-g", poll_s=1).bodies == [b"0", b"1"], timeout=5)
    until(lambda: len(master.replication().slaves) == 1, timeout=5)
    master.administer("DeleteTopic", name="copied")
    until(lambda: "copied" not in slave.topics(), timeout=3, what="the deletion on the slave")


def test_lease_taken_at_one_broker_holds_at_the_other(cluster: Cluster) -> None:
    master, slave = started(cluster)
    master.send("shared", b"0")
    until(lambda: "shared" in slave.topics(), timeout=5)
    got = master.receive("shared", "g", poll_s=2)
    assert got.bodies == [b"0"]
    until(
        lambda: [one.in_flight for one in slave.group("g").progress if one.in_flight],
        timeout=3,
        what="the lease on the slave",
    )
    assert slave.receive("shared", "g").messages == []
    assert slave.ack("shared", "g", got.handles[0]).status.code == v2.OK
    until(
        lambda: not any(one.lag for one in master.group("g").progress),
        timeout=3,
        what="the acknowledgement on the master",
    )


def test_synchronous_replication_refuses_before_and_tells_after_the_append(tmp_path: Path) -> None:
    settings: dict[str, object] = {"replication": "sync", "flush": "sync", "slave_timeout_ms": 700}
    with Cluster(tmp_path, slaves=1, broker=settings) as cluster:
        master, slave = started(cluster)
        until(lambda: master.send("sync", b"0").status.code == v2.OK, timeout=10, what="a send that holds")
        view = master.replication()
        assert view.confirmed_offset == view.log_end == slave.replication().log_end
        hung = cluster.slave_replicators[0]
        hung.signal(signal.SIGSTOP)
        late = master.send("sync", b"1")
        assert late.status.code == late.entries[0].status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
        assert master.replication().log_end > view.log_end
        hung.signal(signal.SIGCONT)
        hung.kill()
        until(lambda: not master.replication().slaves, timeout=5, what="the lost slave")
        before = master.replication().log_end
        refused = master.send("sync", b"2")
        assert refused.status.code == v2.HA_NOT_AVAILABLE and not refused.entries
        assert master.replication().log_end == before
        hung.start()
        until(
            lambda: master.send("sync", b"3").status.code == v2.OK, timeout=10, what="a send that holds again"
        )


def test_master_with_an_empty_log_does_not_write_and_the_slave_keeps_everything(cluster: Cluster) -> None:
    master, slave = started(cluster)
    master.send("kept", *[b"%d" % n for n in range(10)])
    master.ack("kept", "g", *master.receive("kept", "g", batch=4, poll_s=2).handles)
    end = master.replication().log_end
    until(lambda: slave.replication().dispatched_offset == end, timeout=5)
    until(lambda: any(one.committed_offset or one.in_flight for one in slave.group("g").progress), timeout=5)
    store = cluster.master.store
    cluster.master.kill()
    cluster.master_replicator.kill()
    shutil.rmtree(store)
    cluster.master.launch()
    cluster.master_replicator.launch()
    cluster.master.wait_ready()
    until(lambda: "shorter log" in Peer(cluster.master).replication().advice, timeout=15, what="the advice")
    empty = Peer(cluster.master)
    assert not empty.replication().writable
    assert empty.send("kept", b"x").status.code == v2.INTERNAL_SERVER_ERROR
    assert empty.replication().log_end == 0
    assert slave.replication().log_end == end and "kept" in slave.topics()
    rest = slave.receive("kept", "g", poll_s=3)
    assert len(rest.messages) == 6
    # Without the slave that is ahead the master takes writes again.
    cluster.slaves[0].kill()
    cluster.slave_replicators[0].kill()
    until(lambda: writable(empty), timeout=15, what="a writable master")


def test_acknowledged_at_the_slave_is_not_delivered_by_the_returned_master(cluster: Cluster) -> None:
    master, slave = started(cluster)
    master.send("back", *[b"%d" % n for n in range(6)])
    until(lambda: slave.replication().dispatched_offset == master.replication().log_end, timeout=5)
    until(lambda: "back" in slave.topics(), timeout=5)
    cluster.master.kill()
    got = slave.receive("back", "g", batch=3, poll_s=3)
    assert len(got.messages) == 3
    assert slave.ack("back", "g", *got.handles).status.code == v2.OK
    cluster.master.start()
    returned = Peer(cluster.master)
    rest = returned.receive("back", "g", poll_s=5)
    assert sorted(got.bodies + rest.bodies) == [b"%d" % n for n in range(6)]
