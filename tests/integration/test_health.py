"""What an operator sees of a cluster that loses a process: commands, probes, logs."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import COMMAND, Cluster, Process, environment
from support.waiting import until

HEALTH: dict[str, object] = {"health_port": 0}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, slaves=1, broker=HEALTH, replicator=HEALTH, nameserver=HEALTH) as running:
        yield running


def whimbrel(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, *arguments, "--endpoint", cluster.endpoint]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=60)


def probe(process: Process, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://{process.ready['health']}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def missing(process: Process) -> list[str]:
    """Return which conditions of being ready a process does not meet."""
    status, told = probe(process, "/readyz")
    unmet = [condition["name"] for condition in told["conditions"] if not condition["met"]]
    assert (status == 200) == (not unmet), told
    return unmet


def test_a_lost_master_is_shown_told_and_over_when_it_is_back(cluster: Cluster) -> None:
    """Commands, probes, exit codes and logs; in one cluster, since starting one is most of the time."""
    waited = whimbrel(cluster, "health", "--wait", "30")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    status = whimbrel(cluster, "replication", "status")
    assert status.returncode == 0
    assert (
        status.stderr.startswith("broker-a may lose ") and status.stderr.count("\n") == 1
    )  # nothing else is wrong
    assert [missing(process) for process in cluster.processes] == [[]] * 5

    cluster.master.kill()
    (slave,), (slave_replicator,) = cluster.slaves, cluster.slave_replicators
    until(lambda: whimbrel(cluster, "health").returncode == 1, what="health to notice", every_s=0.1)
    status = whimbrel(cluster, "replication", "status")
    assert status.returncode == 1
    assert "missing, slave 1 serves reads" in status.stdout
    assert "broker-a (master): there is no master" in status.stderr
    shown = whimbrel(cluster, "cluster", "-o", "json")
    assert json.loads(shown.stdout)["missing_masters"] == ["broker-a"]

    cluster.master_replicator.kill()
    until(lambda: missing(slave) == ["connected"], what="the slave to be not ready")
    until(lambda: missing(slave_replicator) == ["connected"], what="its replicator to be not ready")
    assert probe(slave, "/healthz")[0] == probe(slave_replicator, "/healthz")[0] == 200
    assert missing(cluster.nameserver) == []

    cluster.restart()
    waited = whimbrel(cluster, "health", "--wait", "30")
    assert waited.returncode == 0, waited.stdout + waited.stderr

    cluster.nameserver.kill()
    asked = whimbrel(cluster, "health")
    assert asked.returncode == 1
    assert "no answer" in asked.stdout
    until(lambda: "not registered" in slave.log_tail(), what="the slave to notice")
    for process in cluster.processes:
        assert "Traceback" not in process.log.read_text(), process.log_tail()


def test_a_slave_that_is_expected_and_not_there_is_wrong(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=0, broker={"expected_slaves": 1, **HEALTH}) as cluster:
        until(lambda: missing(cluster.master) == [], what="the master to take messages")
        status = whimbrel(cluster, "replication", "status", "-o", "json")
        (master,) = json.loads(status.stdout)
        assert (status.returncode, master["healthy"]) == (1, False)
        assert master["problem"].startswith("0 of 1 slaves are connected")


def test_a_process_that_waits_for_its_replicator_lives_and_is_not_ready(tmp_path: Path) -> None:
    """A slave writes no ready file before its replicator runs, so its port is chosen here."""
    with Cluster(tmp_path, slaves=0, nameserver=HEALTH) as cluster:
        port = int(str(cluster.nameserver.ready["health"]).rpartition(":")[2])
        cluster.nameserver.kill()  # its port is free now
        slave = cluster.broker("slave", 1)
        slave.settings["health_port"] = port
        slave.ready = {"health": f"127.0.0.1:{port}"}
        slave.launch()
        with slave:
            until(lambda: "waiting for the replicator" in slave.log_tail(), what="the slave to wait")
            assert probe(slave, "/healthz") == (
                200,
                {"process": "broker", "alive": True, "state": "starting"},
            )
            assert missing(slave) == ["serving"]
