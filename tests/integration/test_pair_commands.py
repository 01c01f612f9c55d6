"""`whimbrel replication repair` on a fixed pair whose logs have gone different ways."""

import json
from pathlib import Path

import pytest

from integration.test_broker_cluster import Peer
from support.cluster.elections import bodies_of
from support.cluster.processes import Cluster, Process
from support.pages import Page, Places, Written
from support.waiting import until
from whimbrel.cli.main import main
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = [pytest.mark.process, pytest.mark.slow]

COMMANDS = Page("docs/commands.md")
FAILOVER = Page("docs/failover.md")
A_STORE = "/var/lib/whimbrel/broker-a"  # on the pages


def here(written: Written, cluster: Cluster, places: Places | None = None) -> list[str]:
    """Return a command of a page for this cluster."""
    return [*written.words(places)[1:], "--endpoint", cluster.endpoint]


def test_a_slave_that_went_another_way_is_cut_and_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(tmp_path, slaves=1, broker={"expected_slaves": 0}) as cluster:
        cluster.wait_usable()
        slave, replicator = cluster.slaves[0], cluster.slave_replicators[0]
        master = Peer(cluster.master)

        def log_end(process: Process) -> int:
            return int(Peer(process).administer("DescribeReplication").log_end)

        for number in range(5):
            assert master.send("t", b"both %d" % number).status.code == v2.OK
        until(lambda: log_end(slave) == log_end(cluster.master), timeout=10)
        slave.stop()
        replicator.stop()
        assert master.send("t", b"only the master").status.code == v2.OK
        settings = cluster.broker_settings | {"role": "master", "id": 0, "nameservers": ""}
        other = Process(tmp_path, "broker", "another", store=slave.store, **settings)
        other.start()
        for number in range(2):
            assert Peer(other).send("t", b"only the slave %d" % number).status.code == v2.OK
        run = (
            "replication",
            "repair",
            "broker-a",
            "--store",
            str(slave.store),
            "--endpoint",
            cluster.endpoint,
        )
        assert main((*run, "--keep", "0")) == 1 and "is in use" in capsys.readouterr().err
        other.stop()
        assert main((*run, "--keep", "7")) == 1 and "there is no member 7" in capsys.readouterr().err
        for written in (
            COMMANDS[
                "whimbrel replication repair broker-a --keep 0 --store /var/lib/whimbrel/broker-a --dry-run"
            ],
            FAILOVER[
                "whimbrel replication repair broker-a --keep 0 --store /var/lib/whimbrel/broker-a --dry-run"
            ],
        ):
            assert main((*here(written, cluster, {A_STORE: slave.store}), "-o", "json")) == 0
            shown = json.loads(capsys.readouterr().out)
            assert shown["records"] == 2 and shown["topics"] == {"t": 2}
        assert main((*run, "--keep", "0", "--yes")) == 0
        assert f"the log of {slave.store} ends at {shown['point']} now" in capsys.readouterr().err
        assert main((*run, "--keep", "0")) == 0 and "nothing is to be cut" in capsys.readouterr().err
        for process in (slave, replicator):
            process.launch()
        for process in (slave, replicator):
            process.wait_ready()
        until(lambda: log_end(slave) == log_end(cluster.master), timeout=15, what="a slave in step")
        wanted = sorted([*(b"both %d" % number for number in range(5)), b"only the master"])
        until(lambda: sorted(bodies_of(Peer(slave))) == wanted, timeout=10, what="the master's messages")
        cut = ("replication", "cut", "list", "--member", "1", "-o", "json", "--endpoint", cluster.endpoint)
        capsys.readouterr()
        assert main(cut) == 0
        assert [each["records"] for each in json.loads(capsys.readouterr().out)] == [2]


def await_bodies(peer: Peer, wanted: list[bytes]) -> None:
    """Wait until a member shows these messages."""
    until(lambda: sorted(bodies_of(peer)) == wanted, timeout=10)


def test_a_fixed_pair_becomes_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keeps = {"keeps_groups": tmp_path / "groups.json", "renew_s": 1, "lease_s": 8}
    with Cluster(tmp_path, slaves=2, broker={"expected_slaves": 0}, nameserver=keeps) as cluster:
        cluster.wait_usable()
        master = Peer(cluster.master)
        for number in range(5):
            assert master.send("t", b"%d" % number).status.code == v2.OK
        run = here(COMMANDS["whimbrel replication adopt broker-a"], cluster)
        until(lambda: main(run) == 0, timeout=10)
        told = " ".join(capsys.readouterr().err.split())
        assert "all that is confirmed is the same" in told and "--voters 1,2,3" in told
        assert main(("replication", "adopt", "x", "--endpoint", cluster.endpoint)) == 1
        elected = {"role": "elected", "flush": "sync"}
        broker = cluster.broker_settings | elected | {
            "nameservers": [cluster.endpoint], "coordinator": "nameserver", "replication": "majority",
            "voters": [1, 2, 3],
        }  # fmt: skip
        members = []
        olds = [*zip(cluster.slaves, cluster.slave_replicators, strict=True)]
        for number, (one, beside) in enumerate([*olds, (cluster.master, cluster.master_replicator)], 1):
            beside.stop()
            one.stop()
            store = {"id": number, "store": one.store}
            members += [
                Process(tmp_path, "broker", f"broker-{number}", **(broker | store)),
                Process(tmp_path, "replicator", f"replicator-{number}", commitlog_file_size=1 << 20,
                        **(elected | store)),
            ]  # fmt: skip
            for process in members[-2:]:
                process.launch()
        try:
            for process in members:
                process.wait_ready()
            anybody = Peer(members[4])  # who does not lead hands it on
            until(lambda: anybody.send("t", b"of the group").status.code == v2.OK, timeout=20)
            status = ("replication", "status", "--endpoint", cluster.endpoint)
            until(lambda: main(status) == 0, timeout=20, what="a group in order")
            assert "leads epoch 1 since" in capsys.readouterr().err
            wanted = sorted([*(b"%d" % number for number in range(5)), b"of the group"])
            for process in members[::2]:
                await_bodies(Peer(process), wanted)
            assert main(run) == 0 and "elects its leader already" in capsys.readouterr().err
        finally:
            for process in members:
                process.kill()
