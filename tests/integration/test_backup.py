"""Backup and restore as docs/backup.md tells them: its commands are run, on real clusters."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from support.cluster.broker_api import Api, log_end
from support.cluster.processes import COMMAND, Cluster, Process
from support.pages import Page, Written
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.process

PAGE = Page("docs/backup.md")
TOPIC, GROUP = "kept", "kept-group"
LEASED_S = 600
SLAVE, MASTER, BACKUP = "/data/a1", "/data/a", "/backup/broker-a"  # on the page


def documented(written: Written, places: dict[str, Path]) -> list[str]:
    """Return the words of a command of the page, with our places for those of the page."""
    words = written.words(places)
    if words[0] == "whimbrel":
        words[:1] = [sys.executable, "-c", COMMAND]
    return words


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def keep(store: Path, backup: Path) -> None:
    places = {SLAVE: store, BACKUP: backup}
    run(documented(PAGE["cp -a --sparse=always /data/a1 /backup/broker-a"], places))


def look_at(backup: Path) -> None:
    found = run(documented(PAGE["whimbrel store verify /backup/broker-a"], {BACKUP: backup}))
    assert "no damage" in found


def send(api: Api, numbers: range) -> None:
    for number in numbers:
        assert api.send(TOPIC, b"%d" % number, message_id=f"id-{number}").status.code == v2.OK


def in_step(slave: Process, master: Process) -> None:
    until(lambda: log_end(slave.grpc) == log_end(master.grpc), what="a slave with the whole log")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "first") as running:
        running.wait_usable()
        yield running


def taken_from_stopped_slave(cluster: Cluster, backup: Path) -> None:
    """Back up as the page says; the master goes on."""
    slave, replicator = cluster.slaves[0], cluster.slave_replicators[0]
    in_step(slave, cluster.master)
    assert (slave.stop(), replicator.stop()) == (0, 0)
    keep(slave.store, backup)
    cluster.restart()
    look_at(backup)


def test_backup_of_a_stopped_slave_becomes_a_whole_group(cluster: Cluster, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        api = Api(channel)
        send(api, range(200))
        got = api.receive(TOPIC, GROUP, invisible_s=LEASED_S)
        assert api.ack(TOPIC, GROUP, *got.handles[:20]).status.code == v2.OK
        leased = {int(body.body) for body in got.messages[20:]}
        done = {int(body.body) for body in got.messages[:20]}
        taken_from_stopped_slave(cluster, backup)
        send(api, range(200, 210))  # after the backup: lost
    cluster.kill()

    with Cluster(tmp_path / "second", start=False) as restored:
        target = tmp_path / "second" / "store-master-0"
        target.parent.mkdir(exist_ok=True)
        places = {BACKUP: backup, MASTER: target}
        run(documented(PAGE["whimbrel restore /backup/broker-a /data/a"], places))
        restored.start()
        restored.wait_usable()
        in_step(restored.slaves[0], restored.master)  # whose directory was empty
        with grpc.insecure_channel(restored.master.grpc) as channel:
            api = Api(channel)
            seen: set[int] = set()
            while bodies := api.receive(TOPIC, GROUP, invisible_s=LEASED_S).bodies:
                seen |= set(map(int, bodies))
            assert seen == set(range(200)) - done - leased
            send(api, range(300, 301))


def test_slave_begins_with_a_backup_and_fetches_the_rest(cluster: Cluster, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    slave, replicator = cluster.slaves[0], cluster.slave_replicators[0]
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        api = Api(channel)
        send(api, range(100))
        taken_from_stopped_slave(cluster, backup)
        kept = log_end(cluster.master.grpc)
        send(api, range(100, 150))
    in_step(slave, cluster.master)
    slave.kill()
    replicator.kill()
    run(["rm", "-r", str(slave.store)])
    places = {BACKUP: backup, SLAVE: slave.store}
    run(documented(PAGE["whimbrel restore /backup/broker-a /data/a1"], places))
    cluster.restart()
    in_step(slave, cluster.master)
    assert f"asking for the log from {kept} on" in replicator.log_tail(1)


def test_copy_of_one_instant_of_a_running_slave_recovers(cluster: Cluster, tmp_path: Path) -> None:
    backup, slave, replicator = tmp_path / "backup", cluster.slaves[0], cluster.slave_replicators[0]
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        api = Api(channel)
        send(api, range(300))
        in_step(slave, cluster.master)
        end = log_end(slave.grpc)
        for process in (replicator, slave):
            process.signal(signal.SIGSTOP)
        keep(slave.store, backup)
        for process in (replicator, slave):
            process.signal(signal.SIGCONT)
        send(api, range(300, 310))
    in_step(slave, cluster.master)
    found = run([sys.executable, "-c", COMMAND, "store", "recover", str(backup)])
    assert f'"maxPhyOffset": {end}' in found
    look_at(backup)
