"""Damage in a log that was on disk, with real processes: the refusal reaches the person, a repair helps."""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from support.cluster.broker_api import Api, queue
from support.cluster.command_line import Shell
from support.cluster.processes import Cluster, Process, dev
from support.store.stores import make_draft, open_master
from support.waiting import until
from whimbrel.cli.dev_directory import mark
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.recovery_marks import LogMark

pytestmark = pytest.mark.process

TOPIC = "orders"
COUNT = 400


def send(process: Process) -> None:
    with grpc.insecure_channel(process.grpc) as channel:
        api = Api(channel)
        api.administer("CreateTopic", topic=admin.Topic(name=TOPIC, read_queues=1, write_queues=1))
        for number in range(COUNT):
            answer = api.send(TOPIC, b"%06d" % number * 100, keys=[f"key-{number}"])
            assert answer.status.code == v2.OK


def pulled(process: Process) -> list[bytes]:
    """Return the bodies of the queue."""
    found: list[bytes] = []
    with grpc.insecure_channel(process.grpc) as channel:
        while True:
            frames = Api(channel)(
                "PullMessage",
                group=v2.Resource(name="puller"),
                message_queue=queue(TOPIC, 0),
                offset=len(found),
                batch_size=32,
                filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
            )
            messages = [frame.message.body for frame in frames if frame.WhichOneof("content") == "message"]
            if not messages:
                return found
            found += messages


def synced(store: Path) -> int:
    mark = LogMark.load(store)
    return mark.offset if mark is not None else 0


def damage(store: Path, *places: int) -> None:
    """Invert some bytes of the log's first file."""
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        for place in places:
            file.seek(place)
            data = file.read(10)
            file.seek(place)
            file.write(bytes(byte ^ 0xFF for byte in data))


def refused(process: Process) -> str:
    """Start a process whose log is damaged; return the one line in which it says so."""
    process.log.unlink()
    process.launch()
    assert process.wait() == 1
    (line,) = [line for line in process.log.read_text().splitlines() if "whimbrel store repair" in line]
    assert "Traceback" not in process.log.read_text()
    return line


def test_a_damaged_master_and_a_damaged_slave_are_repaired_from_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], measured: Callable[[str], None]
) -> None:
    shell = Shell(capsys, "store", "repair")
    with Cluster(tmp_path) as cluster:
        cluster.wait_usable()
        send(cluster.master)
        bodies = pulled(cluster.master)
        assert len(bodies) == COUNT
        slave = cluster.slaves[0]
        until(lambda: len(pulled(slave)) == COUNT, what="the slave has everything")
        cluster.master_replicator.stop()
        assert cluster.master.stop() == 0
        store = cluster.master.store
        assert synced(store) > 200_000
        damage(store, 50_000, 120_300)
        before = (store / "commitlog" / f"{0:020d}").read_bytes()

        line = refused(cluster.master)
        assert f"{store}/commitlog/{0:020d}" in line
        assert (store / "commitlog" / f"{0:020d}").read_bytes() == before
        found = shell.json(str(store))
        assert found["startRefused"]
        assert len(found["damaged"]) == 2
        assert f"whole records behind it: {found['recordsBehind']};" in line
        assert (store / "commitlog" / f"{0:020d}").read_bytes() == before
        shell(str(store), "--from", slave.grpc)
        assert "can be started" in shell.error
        assert shell(str(store)) == f"{store}: no damage in the log\n"
        cluster.restart()
        cluster.wait_usable()
        assert pulled(cluster.master) == bodies

        replicator = cluster.slave_replicators[0]
        for process in (slave, replicator):
            assert process.stop() == 0
        cluster.restart()  # a slave marks where its log ends when it opens it
        assert synced(slave.store) > 200_000
        for process in (slave, replicator):
            assert process.stop() == 0
        damage(slave.store, 80_000)
        line = refused(replicator)
        assert "whole records behind it" in line
        shell(str(slave.store), "--from", cluster.master.grpc)
        cluster.restart()
        assert pulled(slave) == bodies
    measured(f"{COUNT} messages on both after three damages, {len(found['damaged'])} of them on the master")


def test_dev_says_why_it_does_not_start(tmp_path: Path) -> None:
    """What a broker refuses is the reason that `whimbrel dev` prints, and its exit code is 1."""
    directory, log = tmp_path / "dev", tmp_path / "log"
    store = open_master(made(directory / "master"))
    for number in range(100):
        store.append([make_draft(number)])
    store.close()
    damage(directory / "master", 1000)
    child = dev(directory, log, "--slaves", "0")
    try:
        assert child.wait(30) == 1
    finally:
        child.kill()
    (line,) = [line for line in log.read_text().splitlines() if "did not start" in line]
    assert "whole records behind it: 9" in line
    assert f"`whimbrel store repair {directory}/master`" in line


def made(directory: Path) -> Path:
    """Make a directory of `whimbrel dev` with one store in it."""
    directory.parent.mkdir()
    mark(directory.parent)
    return directory
