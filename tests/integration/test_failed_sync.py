"""A disk that refuses a sync, under the real processes: strace lets `fdatasync` fail.

Kill -9 says nothing about the disk, since the page cache outlives a process; a sync that fails does.
"""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from brokerapi import Api, queue
from masterlog import same_log
from processes import Cluster, Process, until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.segment import segment_name
from whimbrel.store.verify import verify

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (apt install strace)"),
]

TOPIC = "synced"
SETTINGS: dict[str, object] = {
    "nameservers": "",
    "auto_create_topics": True,
    "commitlog_file_size": 1 << 20,
    "consumequeue_file_size": 20_000,
    "index_slots": 500,
    "index_entries": 2000,
    "flush": "sync",
}


@contextlib.contextmanager
def refusing(process: Process, calls: str, when: str, tmp_path: Path) -> Iterator[None]:
    """Let such system calls of a process on its log fail with EIO."""
    log = tmp_path / "strace.log"
    paths = [process.store / "commitlog", process.store / "commitlog" / segment_name(0)]
    paths.append(process.store / "whimbrel" / f"segment-{0:020d}")
    words = ["strace", "-f", "-p", str(process.pid), "-e", f"trace={calls}"]
    words += [word for path in paths for word in ("-P", str(path))]
    words += ["-e", f"inject={calls}:error=EIO:when={when}"]
    with log.open("wb") as output, subprocess.Popen(words, stdout=output, stderr=output) as tracer:
        try:
            until(
                lambda: b"attached" in log.read_bytes() or tracer.poll() is not None, what="strace attached"
            )
            if tracer.poll() is not None:
                pytest.skip(f"strace may not attach here: {log.read_text()}")
            yield
        finally:
            tracer.send_signal(signal.SIGINT)  # it detaches, and the process goes on
            tracer.wait(10)


class Sender:
    """Sends numbered messages, and knows which were acknowledged."""

    def __init__(self, broker: Process) -> None:
        self.channel = grpc.insecure_channel(broker.grpc)
        self.api = Api(self.channel)
        self.number = 0
        self.acknowledged: set[bytes] = set()

    def send(self) -> v2.Status:
        self.number += 1
        body = b"%06d" % self.number
        answer = self.api.send(TOPIC, body)
        if answer.status.code == v2.OK:
            self.acknowledged.add(body)
        status: v2.Status = answer.status
        return status

    def stored(self) -> list[bytes]:
        frames = self.api(
            "PullMessage",
            group=v2.Resource(name="TOOLS_CONSUMER"),
            message_queue=queue(TOPIC, 0),
            offset=0,
            batch_size=32,
        )
        return [bytes(frame.message.body) for frame in frames if frame.WhichOneof("content") == "message"]

    def advice(self) -> str:
        return str(self.api.administer("DescribeReplication").advice)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Process]:
    with Process(tmp_path, "broker", "broker", store=tmp_path / "store", **SETTINGS) as found:
        yield found


@pytest.fixture
def sender(broker: Process) -> Iterator[Sender]:
    found = Sender(broker)
    found.api.administer("CreateTopic", topic=admin.Topic(name=TOPIC, read_queues=1, write_queues=1))
    assert found.send().code == v2.OK
    yield found
    found.channel.close()


def test_a_refused_sync_is_an_error_to_the_sender_and_the_broker_comes_back(
    broker: Process, sender: Sender, tmp_path: Path
) -> None:
    file = broker.store / "commitlog" / segment_name(0)
    before = file.stat().st_ino
    with refusing(broker, "fdatasync", "1", tmp_path):
        status = sender.send()
        assert status.code == v2.MASTER_PERSISTENCE_TIMEOUT, status
        assert "the disk refused a sync" in status.message
        until(lambda: sender.send().code == v2.OK, what="a send that is taken again")
    assert file.stat().st_ino != before
    for _ in range(5):
        assert sender.send().code == v2.OK
    assert sender.acknowledged <= set(sender.stored())
    assert "Traceback" not in broker.log_tail(1000)
    assert broker.stop() == 0
    assert verify(broker.store) == []


def test_a_broker_that_can_not_write_again_says_so_and_its_next_start_does(
    broker: Process, sender: Sender, tmp_path: Path
) -> None:
    with refusing(broker, "fdatasync,fsync", "1+", tmp_path):
        assert sender.send().code == v2.MASTER_PERSISTENCE_TIMEOUT
        until(lambda: "trying again" in sender.advice(), what="the broker saying what it does")
        status = sender.send()
        assert status.code not in (v2.OK, v2.MASTER_PERSISTENCE_TIMEOUT)
        assert "the disk refused a sync" in status.message
        broker.kill()
    marker = broker.store / "whimbrel" / "sync-failed"
    assert marker.exists()
    before = (broker.store / "commitlog" / segment_name(0)).stat().st_ino
    broker.start()
    assert "written again" in broker.log_tail()
    assert not marker.exists()
    assert (broker.store / "commitlog" / segment_name(0)).stat().st_ino != before
    again = Sender(broker)
    assert again.send().code == v2.OK
    assert sender.acknowledged <= set(again.stored())
    again.channel.close()
    assert broker.stop() == 0


def test_a_slave_acknowledges_nothing_that_a_refused_sync_covered(tmp_path: Path) -> None:
    with Cluster(
        tmp_path,
        broker={"replication": "sync", "acks": 1, "slave_timeout_ms": 1000},
        replicator={"flush": "sync"},
    ) as cluster:
        cluster.wait_usable()
        sender, replicator = Sender(cluster.master), cluster.slave_replicators[0]
        sender.api.administer("CreateTopic", topic=admin.Topic(name=TOPIC, read_queues=1, write_queues=1))
        until(lambda: sender.send().code == v2.OK, what="a send that the slave acknowledges")
        with refusing(replicator, "fdatasync,fsync", "1+", tmp_path):
            assert sender.send().code == v2.SLAVE_PERSISTENCE_TIMEOUT
            status = Sender(cluster.slaves[0])
            until(lambda: "refused a sync" in status.advice(), what="the slave saying what is wrong")
        until(lambda: sender.send().code == v2.OK, timeout=20, what="a send that the slave acknowledges")
        until(lambda: not status.advice(), what="the slave saying no more")
        end = sender.api.administer("DescribeReplication").log_end
        assert same_log(cluster.master.store, cluster.slaves[0].store, end)
        assert replicator.running
