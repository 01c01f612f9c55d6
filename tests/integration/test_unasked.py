"""What commands print while a broker group is away or hangs, or a slave's broker is gone: what they lack.

`support/unasked.py` has the commands; each is run while `broker-b`, the second of two groups, is killed.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster.command_line import Shell
from support.cluster.elections import ElectedGroup
from support.cluster.processes import Cluster, Process
from support.unasked import CHANGE, GROUP, SEVERAL, TOPIC
from support.waiting import until
from whimbrel.cli.main import main
from whimbrel.client.sync import Admin

pytestmark = pytest.mark.process

JSON = ("tail", "receive", "health", "cluster", "topic list", "group list", "replication status", "dlq list")


class Groups:
    """A nameserver, `broker-a` with a slave, and `broker-b`, which both have a topic."""

    def __init__(self, root: Path) -> None:
        self.cluster = Cluster(root)
        named: dict[str, Any] = {
            **self.cluster.broker_settings, "expected_slaves": 0,
            "store": root / "store-b", "nameservers": [self.cluster.endpoint],
        }  # fmt: skip
        self.other = Process(root, "broker", "broker-b", **named)
        self.other.settings["name"] = "broker-b"

    def __enter__(self) -> "Groups":
        self.cluster.wait_usable()
        self.other.start()
        with Admin(self.cluster.endpoint) as admin:
            until(lambda: len(admin.cluster().masters()) == 2, what="both masters")
            admin.create_topic(TOPIC, queues=2)
            admin.create_group(GROUP)
        return self

    def __exit__(self, *_: object) -> None:
        self.other.kill()
        self.cluster.kill()

    def absent(self) -> list[str]:
        with Admin(self.cluster.endpoint) as admin:
            return [f"{one.broker_name} {one.broker_id}" for one in admin.cluster().absent]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    with Groups(tmp_path_factory.mktemp("groups")) as running:
        yield running


@pytest.fixture
def lacking(groups: Groups) -> Groups:
    """Return the cluster without `broker-b`."""
    groups.other.kill()
    until(lambda: groups.absent() == ["broker-b 0"], what="the nameserver to miss it")
    return groups


@pytest.fixture
def shell(groups: Groups, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.mark.parametrize("command", SEVERAL)
def test_a_command_says_what_it_could_not_ask(lacking: Groups, shell: Shell, command: str) -> None:
    words = (*command.split(), *SEVERAL[command], "--endpoint", lacking.cluster.endpoint)
    shell(*words, code=1)
    (told,) = (line for line in shell.error.splitlines() if "broker-b" in line)
    assert "registered since 20" in told and "`whimbrel broker forget broker-b`" in told


@pytest.mark.parametrize("command", JSON)
def test_what_it_lacks_stands_beside_json_that_is_whole(lacking: Groups, shell: Shell, command: str) -> None:
    words = (*command.split(), *SEVERAL[command], "--endpoint", lacking.cluster.endpoint)
    shown = shell(*words, "-o", "jsonl", code=1)
    for line in shown.splitlines():
        json.loads(line)
    assert "broker-b" in shell.error


def test_a_change_says_who_has_not_made_it(lacking: Groups, shell: Shell) -> None:
    changes = {
        "topic create": (), "topic update": ("--queues", "3"), "topic delete": ("--yes",),
        "group create": (), "group update": ("--no-consume",), "group delete": ("--yes",),
    }  # fmt: skip
    assert sorted(changes) == sorted(CHANGE)
    for command, rest in changes.items():
        shell(*command.split(), "made", *rest, "--endpoint", lacking.cluster.endpoint)
        assert "broker-b was away and has not made this change" in shell.error, command
    shell("topic", "create", "ours", "--broker", "broker-a", "--endpoint", lacking.cluster.endpoint)
    assert "broker-b" not in shell.error


def test_a_broker_that_hangs_is_named_and_the_rest_is_listed(lacking: Groups, shell: Shell) -> None:
    lacking.other.start()
    until(lambda: lacking.absent() == [], what="it to be back")
    lacking.other.signal(signal.SIGSTOP)
    try:
        topics = json.loads(
            shell("topic", "list", "-o", "json", "--endpoint", lacking.cluster.endpoint, code=1)
        )
        assert TOPIC in [topic["name"] for topic in topics]
        assert "broker-b could not be asked, and what it holds is left out: no answer from" in shell.error
    finally:
        lacking.other.signal(signal.SIGCONT)
    until(lambda: lacking.absent() == [], what="it to be registered")


def test_a_slave_whose_broker_is_killed_is_missed_and_let_go_of(lacking: Groups, shell: Shell) -> None:
    endpoint = ("--endpoint", lacking.cluster.endpoint)
    until(  # its master is told by then that nobody of that name is there
        lambda: main(["broker", "forget", "broker-b", *endpoint]) == 0, what="it to be let go of", every_s=0.2
    )
    shell("health", "--wait", "20", *endpoint)
    slave = lacking.cluster.slaves[0]
    slave.kill()
    until(lambda: lacking.absent() == ["broker-a 1"], what="the nameserver to miss it")
    shown = shell("health", *endpoint, code=1)
    assert "broker-a slave 1" in shown and "not registered since 20" in shown
    assert "while its replicator is connected to the master's" in shell.error
    found = json.loads(shell("replication", "status", "-o", "json", *endpoint, code=1))
    assert [(one["role"], one["broker_id"]) for one in found if "error" in one] == [("slave", 1)]
    assert TOPIC in shell("topic", "list", *endpoint)  # its master has all that it had
    shell("replication", "adopt", "broker-a", *endpoint, code=1)
    assert "broker-a is not whole, so this would leave somebody out" in shell.error
    slave.start()
    shell("health", "--wait", "20", *endpoint)
    lacking.cluster.slave_replicators[0].kill()
    slave.kill()
    until(lambda: lacking.absent() == ["broker-a 1"], what="the nameserver to miss it again")
    shell("broker", "forget", "broker-a", "--member", "1", *endpoint)
    assert lacking.absent() == []
    shell("broker", "forget", "broker-a", "--id", "1", *endpoint, code=1)
    assert "no nameserver misses a broker 1 of broker-a" in shell.error


def test_each_voter_that_is_gone_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its broker is killed and its replicator lives: another member leads, and health misses the first."""
    with ElectedGroup(tmp_path) as group:
        first = group.await_leader()
        shell, endpoint = Shell(capsys), ("--endpoint", group.endpoint)
        shell("health", "--wait", "20", *endpoint)
        first.broker.kill()
        group.await_leader(first)
        shown = shell("health", *endpoint, code=1)
        assert f"member {first.number}" in shown and "not registered since 20" in shown
        assert "`whimbrel replication voters broker-a --set IDS`" in shell.error
        shell("replication", "history", *endpoint)  # the others know all of it
        first.broker.start()
        shell("health", "--wait", "20", *endpoint)


@pytest.mark.parametrize(("slaves", "told"), [(1, "there is no master"), (0, "no broker of broker-a is")])
def test_who_is_down_is_said_once_with_since_when(
    tmp_path: Path, shell: Shell, slaves: int, told: str
) -> None:
    with Cluster(tmp_path, slaves=slaves) as cluster:
        endpoint = ("--endpoint", cluster.endpoint)
        cluster.wait_usable()
        shell("topic", "create", "ours", *endpoint)
        cluster.master.kill()
        with Admin(cluster.endpoint) as admin:
            until(lambda: not admin.cluster().masters(), what="the nameserver to miss it")
        for words in (("send", "ours", "x"), ("topic", "create", "more"), ("topic", "list")):
            shell(*words, *endpoint, code=1)
            (line,) = (line for line in shell.error.splitlines() if "broker-a" in line)
            assert " since 20" in line and "start" in line, line
            assert told in line or words == ("topic", "list")
