"""A disk that refuses a sync, under the real processes: strace lets `fdatasync` fail.

Kill -9 says nothing about the disk, since the page cache outlives a process; a sync that fails does. Clients
send, consume and read all along, and their history is checked (`noting.py`).
"""

import contextlib
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from support.cluster.broker_api import Api, log_end, replication
from support.cluster.processes import Cluster, Process
from support.history.histories import Outcome
from support.history.noting import Load, read_all
from support.store.master_log import same_log
from support.waiting import until
from whimbrel.errors import FlushTimeout, Refused, ReplicaTimeout, WhimbrelError
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.segment import segment_name
from whimbrel.store.verify import verify

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (apt install strace)"),
]

TOPIC = "synced"
ANSWERS = 10
PAUSE_S = 0.01  # strace stops a traced process at each of its system calls
SETTINGS: dict[str, object] = {
    "nameservers": "",
    "auto_create_topics": True,
    "auto_create_groups": True,
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


def advice(broker: Process) -> str:
    """Return what a broker advises its operator to do."""
    return str(replication(broker.grpc).advice)


def covered(load: Load, since: float) -> Counter[Outcome]:
    """Return the outcomes of sends that began after that and were answered, once there are some."""

    def answered() -> Counter[Outcome]:
        sends = list(load.history.sends.values())
        return Counter(sent.outcome for sent in sends if since <= sent.began and sent.ended < float("inf"))

    until(lambda: answered().total() >= ANSWERS, what="answers while syncs are refused")
    return answered()


def finish(load: Load, what: str) -> None:
    """End the load once it was steady again, and wait until all that was sent is consumed."""
    load.wait_for(20, what)
    load.stop_sending()
    load.settle()


def check(load: Load, endpoint: str, measured: Callable[[str], None]) -> None:
    """Check the history."""
    findings = load.check(read_all(endpoint, TOPIC))
    measured(f"{load.history.summary}, {len(findings)} findings")
    assert findings == []


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Process]:
    with Process(tmp_path, "broker", "broker", store=tmp_path / "store", **SETTINGS) as found:
        yield found


@pytest.fixture
def load(broker: Process) -> Iterator[Load]:
    with grpc.insecure_channel(broker.grpc) as channel:
        topic = admin.Topic(name=TOPIC, read_queues=2, write_queues=2)
        Api(channel).administer("CreateTopic", topic=topic)
    with Load(broker.grpc, TOPIC, pause_s=PAUSE_S) as found:
        found.wait_for(20, "the first messages")
        yield found


def refusals(load: Load, kind: type[WhimbrelError]) -> list[str]:
    """Return what sends were told that met an error of a kind."""
    return [str(error) for error in list(load.errors) if isinstance(error, kind)]


def test_a_refused_sync_is_an_error_to_the_sender_and_the_broker_comes_back(
    broker: Process, load: Load, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    file = broker.store / "commitlog" / segment_name(0)
    before = file.stat().st_ino
    with refusing(broker, "fdatasync", "1", tmp_path):
        until(lambda: refusals(load, FlushTimeout), what="a send that the refused sync covered")
        load.wait_for(1, "a send that is taken again")
    assert all("the disk refused a sync" in told for told in refusals(load, FlushTimeout))
    assert file.stat().st_ino != before
    finish(load, "sends that are taken again")
    assert load.outcomes()["stored"]
    check(load, broker.grpc, measured)
    assert "Traceback" not in broker.log_tail(1000)
    assert broker.stop() == 0
    assert verify(broker.store) == []


def test_a_broker_that_can_not_write_again_says_so_and_its_next_start_does(
    broker: Process, load: Load, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with refusing(broker, "fdatasync,fsync", "1+", tmp_path):
        began = load.clock()
        until(lambda: "trying again" in advice(broker), what="the broker saying what it does")
        until(lambda: refusals(load, Refused), what="a send that is refused")
        assert "the disk refused a sync" in refusals(load, Refused)[-1]
        assert refusals(load, FlushTimeout)
        assert not covered(load, began)["ok"]
        broker.kill()
    marker = broker.store / "whimbrel" / "sync-failed"
    assert marker.exists()
    before = (broker.store / "commitlog" / segment_name(0)).stat().st_ino
    broker.start()
    assert "written again" in broker.log_tail()
    assert not marker.exists()
    assert (broker.store / "commitlog" / segment_name(0)).stat().st_ino != before
    finish(load, "sends that are taken again")
    check(load, broker.grpc, measured)
    assert broker.stop() == 0


def test_a_slave_acknowledges_nothing_that_a_refused_sync_covered(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with Cluster(
        tmp_path,
        broker={"replication": "sync", "acks": 1, "slave_timeout_ms": 1000},
        replicator={"flush": "sync"},
    ) as cluster:
        cluster.wait_usable()
        replicator = cluster.slave_replicators[0]
        with Load(cluster.endpoint, TOPIC, pause_s=PAUSE_S) as load:
            load.wait_for(20, "sends that the slave acknowledges")
            with refusing(replicator, "fdatasync,fsync", "1+", tmp_path):
                began = load.clock()
                until(lambda: refusals(load, ReplicaTimeout), what="a send that no slave confirms")
                until(lambda: "refused a sync" in advice(cluster.slaves[0]), what="the slave's advice")
                assert not covered(load, began)["ok"]
            until(lambda: not advice(cluster.slaves[0]), what="the slave saying no more")
            finish(load, "sends that the slave acknowledges")
        check(load, cluster.endpoint, measured)
        end = log_end(cluster.master.grpc)
        until(lambda: log_end(cluster.slaves[0].grpc) == end, what="the slave in step")
        assert same_log(cluster.master.store, cluster.slaves[0].store, end)
        assert replicator.running
