"""The commands of the pages that start processes, one by one or all by `whimbrel dev`."""

import contextlib
import json
import signal
import urllib.request
from pathlib import Path

import pytest

from integration.test_broker_groups import places
from support.cluster.command_line import Terminal
from support.cluster.processes import Process
from support.pages import Page, Places, Written
from support.systems.sdk_programs import DevCluster
from support.waiting import until

pytestmark = pytest.mark.process

FAILOVER = Page("docs/failover.md")
METRICS = Page("docs/metrics.md")
OPERATING = Page("docs/operating.md")
REMOTING = Page("docs/remoting.md")
SCALING = Page("docs/scaling.md")
SETTINGS = Page("docs/settings.md")
JSON = ("-o", "json")
SMALL = {"commitlog_file_size": 1 << 20, "index_slots": 5_000, "index_entries": 20_000}


class Typed(Process):
    """A process that a page starts, on a free port, and with small files."""

    def __init__(
        self, root: Path, name: str, written: Written, places: Places | None = None, **settings: object
    ) -> None:
        program, kind, *self.words = written.words(places)
        assert program == "whimbrel"
        super().__init__(root, kind, name, **settings)

    def command(self) -> list[str]:
        module, *more = super().command()[1:]
        return ["-m", module, *self.words, *more]

    def end(self) -> None:
        """End it as Ctrl-C does."""
        self.signal(signal.SIGINT)
        assert self.wait() == 0, self.log_tail()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Terminal:
    return Terminal(capsys, tmp_path)


def test_five_processes_make_a_cluster(run: Terminal, tmp_path: Path) -> None:
    command = OPERATING["whimbrel nameserver --host 0.0.0.0"]
    with Typed(tmp_path, "nameserver", command, {"0.0.0.0": "127.0.0.1"}) as nameserver:
        places = {
            "/data/a": tmp_path / "a", "/data/a1": tmp_path / "a1", "ns1:8081,ns2:8081": nameserver.grpc
        }  # fmt: skip

        def at(*names: str) -> Places:
            return {name: places[name] for name in names}

        command = OPERATING[
            "whimbrel broker --store /data/a --name broker-a --nameservers ns1:8081,ns2:8081"
            " --expected-slaves 1"
        ]
        master = Typed(tmp_path, "master", command, at("/data/a", "ns1:8081,ns2:8081"), **SMALL)
        command = OPERATING["whimbrel replicator --store /data/a --role master"]
        beside = Typed(tmp_path, "master-replicator", command, at("/data/a"))
        command = OPERATING[
            "whimbrel broker --store /data/a1 --name broker-a --id 1 --role slave"
            " --nameservers ns1:8081,ns2:8081"
        ]
        slave = Typed(tmp_path, "slave", command, at("/data/a1", "ns1:8081,ns2:8081"), **SMALL)
        command = OPERATING["whimbrel replicator --store /data/a1 --role slave"]
        other = Typed(tmp_path, "slave-replicator", command, at("/data/a1"), commitlog_file_size=1 << 20)
        processes = (master, beside, slave, other)
        for process in processes:
            process.launch()
        for process in processes:
            process.wait_ready()
        with master, beside, slave, other:
            run.set("WHIMBREL_ENDPOINT", nameserver.grpc)
            well = run(OPERATING["whimbrel health --wait 60"], None, *JSON)
            assert json.loads(well.out)["healthy"]
            for process in (other, slave, beside, master, nameserver):
                process.end()


def test_a_broker_starts_with_the_example_of_a_file(run: Terminal, tmp_path: Path) -> None:
    place = {"/data/a": tmp_path / "a"}
    run(SETTINGS["whimbrel config example broker --store /data/a > broker.toml"], place)
    shown = run(SETTINGS["whimbrel config show broker --config broker.toml"], None, *JSON)
    settings = {each["name"]: each for each in json.loads(shown.out)}
    assert settings["store"]["value"] == str(tmp_path / "a")
    config = {"broker.toml": run.folder / "broker.toml"}
    command = SETTINGS["whimbrel broker --config broker.toml"]
    with Typed(tmp_path, "broker", command, config, nameservers="", **SMALL) as broker:
        assert (tmp_path / "a" / "commitlog").is_dir()
        broker.end()


def asked(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_broker_serves_metrics_and_health(tmp_path: Path) -> None:
    own = {"...": ("--store", tmp_path / "a", "--nameservers", "")}
    command = METRICS["whimbrel broker ... --metrics-port 9464"]
    with Typed(tmp_path, "broker", command, own | {"9464": 0}, **SMALL) as broker:
        assert "rocketmq_" in asked(broker.ready["metrics"], "/metrics")
        assert json.loads(asked(broker.ready["metrics"], "/healthz"))["process"] == "broker"
        broker.end()
    command = METRICS["whimbrel broker ... --health-port 9465"]
    with Typed(tmp_path, "broker", command, own | {"9465": 0}, **SMALL) as broker:
        for path in ("/healthz", "/readyz"):
            assert json.loads(asked(broker.ready["health"], path))["process"] == "broker"
        broker.end()


def test_a_nameserver_listens_on_a_second_port(tmp_path: Path) -> None:
    command = REMOTING["whimbrel nameserver --remoting-port 9876"]
    with Typed(tmp_path, "nameserver", command, {"9876": 0}) as nameserver:
        assert nameserver.ready["remoting"]
        nameserver.end()


def test_every_process_of_dev_serves_metrics(tmp_path: Path) -> None:
    command = METRICS["whimbrel dev --metrics"]
    with DevCluster(tmp_path / "dev", *command.words()[2:]) as cluster:
        for process in cluster.described()["processes"]:
            assert "whimbrel_build_info{" in asked(process["metrics"], "/metrics"), process["name"]


def await_votes(run: Terminal) -> None:
    """Wait until all three members vote."""
    status = OPERATING["whimbrel replication status"]
    until(lambda: "members 1, 2, 3 vote" in run(status, code=None).err, timeout=30, what="three votes")


def test_three_members_of_dev_elect_their_leader(run: Terminal, tmp_path: Path) -> None:
    command = FAILOVER["whimbrel dev --replication majority --slaves 2"]
    with DevCluster(tmp_path / "dev", *command.words()[2:]) as cluster:
        cluster.wait_settled()
        run.set("WHIMBREL_DEV_DIR", cluster.directory)
        await_votes(run)


def test_three_members_of_a_page_elect_their_leader(run: Terminal, tmp_path: Path) -> None:
    """A nameserver keeps who leads; `test_etcd_elections.py` has members with an etcd."""
    nameserver = Process(tmp_path, "nameserver", "nameserver", keeps_groups=tmp_path / "groups.json")
    with nameserver, contextlib.ExitStack() as processes:
        members: list[Process] = []
        for number in (1, 2, 3):
            store = ("--store", tmp_path / f"store-{number}")
            broker = FAILOVER[
                "whimbrel broker --role elected --id 1 --coordinator etcd:e1:2379,e2:2379,e3:2379"
                " --replication majority --voters 1,2,3 --flush sync ..."
            ]
            places: dict[str, object] = {
                "1": number,
                "etcd:e1:2379,e2:2379,e3:2379": "nameserver",
                "...": (*store, "--nameservers", nameserver.grpc),
            }
            members.append(Typed(tmp_path, f"broker-{number}", broker, places, **SMALL))
            beside = FAILOVER["whimbrel replicator --role elected --id 1 --flush sync ..."]
            places = {"1": number, "...": store}
            members.append(
                Typed(tmp_path, f"replicator-{number}", beside, places, commitlog_file_size=1 << 20)
            )
        for process in members:
            processes.callback(process.kill)
            process.launch()
        for process in members:
            process.wait_ready()
        run.set("WHIMBREL_ENDPOINT", nameserver.grpc)
        well = run(OPERATING["whimbrel health --wait 60"], None, *JSON)
        assert json.loads(well.out)["healthy"]
        await_votes(run)


def test_two_broker_groups_share_a_topic_until_one_is_drained(run: Terminal, tmp_path: Path) -> None:
    command = SCALING["whimbrel dev --brokers 2"]
    with DevCluster(tmp_path / "dev", *command.words()[2:], "--slaves", "0") as cluster:
        run.set("WHIMBREL_DEV_DIR", cluster.directory)
        run(SCALING["whimbrel topic create orders --queues 8"])
        run(SCALING["whimbrel topic create local --broker broker-b"])
        assert set(places(cluster.endpoint, "local")) == {"broker-b"}
        told = run(SCALING["whimbrel topic describe orders"]).out
        assert "broker-a" in told and "broker-b" in told
        drained = run(SCALING["whimbrel broker drain broker-b --wait 600"], None, *JSON)
        assert json.loads(drained.out)["topics"] > 0 and "broker-b is empty" in drained.err
        again = run(SCALING["whimbrel broker drain broker-b"], None, *JSON)
        undone = run(SCALING["whimbrel broker drain broker-b --undo"], None, *JSON)
        assert json.loads(again.out)["topics"] > 0
        assert json.loads(undone.out)["topics"] == 0
