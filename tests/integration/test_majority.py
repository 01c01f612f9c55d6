"""A group that commits by majority: what most of its members hold is answered, and seen; else neither.

Roles are given by configuration here. A member "hangs" while its replicator is stopped: it is connected, and
confirms nothing.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.test_broker_cluster import Peer, writable
from support.cluster.broker_api import queue
from support.cluster.processes import Cluster, Process
from support.waiting import until
from whimbrel.ha.epochs import Epochs
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.bulk_source import confirmed_end
from whimbrel.store.epoch_file import EpochFile

pytestmark = [pytest.mark.process, pytest.mark.lane]

MAJORITY: dict[str, object] = {
    "replication": "majority",
    "voters": ["0", "1", "2"],
    "slave_timeout_ms": 700,
    "flush": "sync",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, slaves=2, broker=MAJORITY, replicator={"flush": "sync"}) as running:
        yield running


def peers(cluster: Cluster) -> tuple[Peer, list[Peer]]:
    master = Peer(cluster.master)
    until(lambda: writable(master), timeout=15, what="a writable master")
    until(lambda: master.send("t", b"first").status.code == v2.OK, timeout=10, what="a send that holds")
    return master, [Peer(slave) for slave in cluster.slaves]


def hang(*processes: Process) -> None:
    for process in processes:
        process.signal(signal.SIGSTOP)


def wake(*processes: Process) -> None:
    for process in processes:
        process.signal(signal.SIGCONT)


def pulled(peer: Peer, topic: str = "t", group: str = "puller") -> list[bytes]:
    """Return all that can be pulled of a topic, by queues."""
    bodies = []
    for queue_id in range(8):
        frames = peer(
            "PullMessage", group=v2.Resource(name=group), message_queue=queue(topic, queue_id), offset=0,
            batch_size=32,
        )  # fmt: skip
        bodies += [frame.message.body for frame in frames if frame.WhichOneof("content") == "message"]
    return sorted(bodies)


def await_all(peer: Peer, *bodies: bytes) -> None:
    until(lambda: pulled(peer) == [*bodies], timeout=5, what="all that is committed")


def await_commit(peer: Peer, end: int) -> None:
    until(lambda: peer.replication().confirmed_offset == end, timeout=5, what="the commit offset")


def await_log(peer: Peer, end: int) -> None:
    until(lambda: peer.replication().log_end == end, timeout=5, what="the log of a slave")


def queue_ends(peer: Peer, topic: str = "t") -> int:
    return sum(each.max_offset for each in peer.administer("DescribeTopic", name=topic).queues)


def epochs(process: Process) -> Epochs:
    return EpochFile(process.store).load()


def test_what_no_majority_holds_is_answered_late_and_seen_by_nobody(cluster: Cluster) -> None:
    master, slaves = peers(cluster)
    before = master.replication()
    hang(*cluster.slave_replicators)
    late = master.send("t", b"late")
    assert late.status.code == late.entries[0].status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
    assert "nobody sees it before a majority has it" in late.status.message
    view = master.replication()
    assert view.log_end > before.log_end
    assert view.confirmed_offset == view.dispatched_offset == before.log_end
    assert pulled(master) == [b"first"]
    assert queue_ends(master) == 1
    assert master.receive("t", "g", poll_s=1).bodies == [b"first"]
    assert confirmed_end(cluster.master.store) == before.log_end

    waiting = master.start(
        "ReceiveMessage", group=v2.Resource(name="g"), message_queue=queue("t", -1), batch_size=32,
        invisible_duration={"seconds": 30}, long_polling_timeout={"seconds": 8},
    )  # fmt: skip
    wake(*cluster.slave_replicators)
    assert [frame.message.body for frame in waiting if frame.WhichOneof("content") == "message"] == [b"late"]
    for peer in (master, *slaves):
        await_all(peer, b"first", b"late")
        await_commit(peer, view.log_end)


def test_a_topic_may_ask_for_an_earlier_answer_and_is_seen_no_earlier(cluster: Cluster) -> None:
    master, slaves = peers(cluster)
    master.administer("CreateTopic", topic={"name": "fast", "answer": "written"})
    until(lambda: all("fast" in topics(peer) for peer in slaves), timeout=5, what="the topic on the slaves")
    hang(*cluster.slave_replicators)
    assert master.send("fast", b"early").status.code == v2.OK
    assert pulled(master, "fast") == []
    assert queue_ends(master, "fast") == 0
    wake(*cluster.slave_replicators)
    until(lambda: pulled(master, "fast") == [b"early"], timeout=10, what="the commit")


def topics(peer: Peer) -> list[str]:
    return [topic.name for topic in peer.administer("ListTopics").topics]


def test_one_of_three_may_be_missing_and_with_two_nothing_is_stored(cluster: Cluster) -> None:
    master, slaves = peers(cluster)
    for process in (cluster.slaves[0], cluster.slave_replicators[0]):
        process.kill()
    assert master.send("t", *(b"%d" % number for number in range(20))).status.code == v2.OK
    until(lambda: queue_ends(slaves[1]) == 21, timeout=5, what="the messages on the other slave")
    cluster.slave_replicators[1].kill()
    until(lambda: master.send("t", b"x").status.code == v2.HA_NOT_AVAILABLE, timeout=10)
    end = master.replication().log_end
    refused = master.send("t", b"refused")
    assert refused.status.code == v2.HA_NOT_AVAILABLE and not refused.entries
    assert "1 of the 2 members" in refused.status.message
    assert master.replication().log_end == end
    cluster.restart()
    until(lambda: master.send("t", b"again").status.code == v2.OK, timeout=15, what="a send that holds again")
    until(lambda: slaves[0].replication().confirmed_offset > end, timeout=10)


def test_a_hung_slave_delays_nobody(cluster: Cluster) -> None:
    master, slaves = peers(cluster)
    hang(cluster.slave_replicators[0])
    for number in range(5):
        assert master.send("t", b"%d" % number).status.code == v2.OK
    until(lambda: queue_ends(slaves[1]) == 6, timeout=5)
    assert queue_ends(slaves[0]) <= 1
    wake(cluster.slave_replicators[0])
    until(lambda: queue_ends(slaves[0]) == 6, timeout=10)


def test_a_master_that_comes_back_commits_what_it_had_before_it_takes_more(cluster: Cluster) -> None:
    master, slaves = peers(cluster)
    hang(*cluster.slave_replicators)
    assert master.send("t", b"late").status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
    end = master.replication().log_end
    cluster.master.kill()
    cluster.master_replicator.kill()
    cluster.restart_only(cluster.master, cluster.master_replicator)
    until(lambda: "committed up to byte" in master.replication().advice, timeout=15)
    assert not writable(master)
    assert pulled(master) == [b"first"]
    wake(*cluster.slave_replicators)
    until(lambda: writable(master), timeout=15, what="a master that takes writes")
    assert pulled(master) == [b"first", b"late"]
    assert master.send("t", b"more").status.code == v2.OK
    assert epochs(cluster.master) == ((1, 0), (2, end))
    for process, slave in zip(cluster.slaves, slaves, strict=True):
        await_all(slave, b"first", b"late", b"more")
        assert epochs(process) == ((1, 0), (2, end))


def test_a_slave_of_another_mode_gets_what_is_committed_and_counts_for_nothing(cluster: Cluster) -> None:
    master, _ = peers(cluster)
    settings = cluster.broker_settings | {"replication": "async", "voters": []}
    cluster.broker_settings = settings
    broker, replicator = cluster.broker("slave", 3), cluster.replicator("slave", 3)
    cluster.restart_only(broker, replicator)
    observer = Peer(broker)
    until(lambda: pulled(observer) == [b"first"], timeout=10, what="the observer in step")
    committed = master.replication().log_end
    hang(*cluster.slave_replicators)
    assert master.send("t", b"late").status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
    assert observer.replication().log_end == committed
    wake(*cluster.slave_replicators)
    until(lambda: pulled(observer) == [b"first", b"late"], timeout=10)
    for process in (broker, replicator):
        process.kill()


def test_without_elections_a_slave_is_made_the_master_by_hand_and_nothing_is_lost(cluster: Cluster) -> None:
    master, slaves = peers(cluster)
    sent = [b"%02d" % number for number in range(20)]
    assert master.send("t", *sent).status.code == v2.OK
    end = master.replication().log_end
    for slave in slaves:  # one of them may lack what the other one has made committed
        await_log(slave, end)
    hang(*cluster.slave_replicators)
    assert master.send("t", b"lost").status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
    # What the slaves have not read goes with their processes: only the old master has it.
    for process in (cluster.master, cluster.master_replicator, cluster.slaves[0], *cluster.slave_replicators):
        process.kill()
    cluster.restart_only(cluster.slave_replicators[1])
    heir = as_role(cluster, cluster.slaves[0], "master", 0)
    until(lambda: writable(Peer(heir[0])), timeout=20, what="the slave as the master")
    new = Peer(heir[0])
    until(lambda: new.send("t", b"more").status.code == v2.OK, timeout=10, what="a majority")
    assert pulled(new) == sorted([b"first", *sent, b"more"])
    until(lambda: pulled(Peer(cluster.slaves[1])) == sorted([b"first", *sent, b"more"]), timeout=10)

    back = as_role(cluster, cluster.master, "slave", 1)
    old = Peer(back[0])
    until(lambda: "epoch" in old.replication().advice, timeout=15, what="a log that is another one")
    assert "keep the store that is right" in old.replication().advice
    assert new.send("t", b"last").status.code == v2.OK
    for process in (*heir, *back):
        process.kill()


def as_role(cluster: Cluster, broker: Process, role: str, identity: int) -> tuple[Process, Process]:
    """Start a broker and a replicator over the store of one that has ended."""
    pair = cluster.broker(role, identity), cluster.replicator(role, identity)
    for process in pair:
        process.settings["store"] = broker.store
        process.ready_file = process.ready_file.with_suffix(".again")
    cluster.restart_only(*pair)
    return pair
