"""Jobs of `whimbrel spark` that can't run say so before Spark starts: with exit code 2 and one sentence."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from support.cluster.statuses import registered
from support.store import goldens
from whimbrel.cli.main import main
from whimbrel.cli.spark import running
from whimbrel.errors import NotSupported, Unavailable
from whimbrel.model.cluster import BrokerStatus, Cluster
from whimbrel.rpc.api.bulk_calls import BrokerQueues
from whimbrel.spark import brokers, nameservers
from whimbrel.spark.auditing import members

ENDPOINT = "127.0.0.1:8081"

Run = Callable[..., tuple[int, str]]


def broker(name: str, identity: int) -> BrokerStatus:
    return registered(identity, name, address=f"127.0.0.1:{9000 + identity}")


class Registered:
    """A nameserver that knows some brokers, all without topics; `started` counts sessions."""

    def __init__(self) -> None:
        self.brokers: list[BrokerStatus] = []
        self.failure: Exception | None = None
        self.started = 0

    def describe_cluster(self, server: str, timeout_s: float) -> Cluster:
        if self.failure is not None:
            raise self.failure
        return Cluster(tuple(self.brokers), True)

    def perform(self, channel: Any, call: Any, *_: Any) -> Any:
        return BrokerQueues(
            broker_name="broker-a",
            broker_id=0,
            role="master",
            topics=(),
            log_begin=0,
            log_written=0,
            log_confirmed=0,
            log_file_size=1024,
        )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Registered:
    """Give a nameserver in memory, and no running `whimbrel dev`."""
    found = Registered()
    monkeypatch.setattr(nameservers, "describe_cluster", found.describe_cluster)
    for module in (brokers, members):
        monkeypatch.setattr(module, "perform_blocking", found.perform)
    monkeypatch.setattr("whimbrel.spark.brokers.time.sleep", lambda seconds: None)
    monkeypatch.setenv("WHIMBREL_DEV_DIR", str(tmp_path / "dev"))
    monkeypatch.delenv("WHIMBREL_ENDPOINT", raising=False)
    return found


@pytest.fixture
def run(cluster: Registered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Give what runs `whimbrel spark ...`, and returns its exit code and what it said."""

    @contextlib.contextmanager
    def started(*_: object) -> Iterator[Any]:
        cluster.started += 1
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(running, "session_for", started)

    def command(*words: object) -> tuple[int, str]:
        code = main(["spark", *map(str, words)])
        return code, capsys.readouterr().err

    return command


JOBS: list[tuple[str, ...]] = [
    ("archive", "{tmp}/archive", "--topic", "orders"),
    ("stats", "--topic", "orders"),
    ("latency", "--topic", "orders"),
    ("replay", "--servers", "127.0.0.1:1", "--topic", "orders"),
    ("dlq", "--group", "orders"),
    ("audit",),
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job[0])
def test_a_wrong_address_is_told_before_spark_starts(
    cluster: Registered, run: Run, tmp_path: Path, job: tuple[str, ...]
) -> None:
    words = [word.format(tmp=tmp_path) for word in job]
    code, said = run(*words, "--endpoint", "127.0.0.1")
    assert (code, said.count("\n")) == (2, 1)
    assert "--endpoint: '127.0.0.1' is not of the form HOST:PORT" in said
    cluster.failure = NotSupported(f"{ENDPOINT} is not a nameserver (a broker answers there?)")
    code, said = run(*words, "--endpoint", ENDPOINT)
    assert (code, said.count("\n")) == (2, 1)
    assert "is not a nameserver" in said
    cluster.failure = Unavailable("refused")
    code, said = run(*words, "--endpoint", ENDPOINT)
    assert (code, said.count("\n")) == (2, 1)
    assert "refused" in said
    code, said = run(*words)
    assert (code, said.count("\n")) == (2, 1)
    assert "no cluster to talk to" in said
    assert not cluster.started


@pytest.mark.parametrize("job", JOBS[:-1], ids=lambda job: job[0])
def test_a_mistyped_topic_is_told_before_spark_starts(
    cluster: Registered, run: Run, tmp_path: Path, job: tuple[str, ...]
) -> None:
    cluster.brokers = [broker("broker-a", 0)]
    words = [word.format(tmp=tmp_path) for word in job]
    code, said = run(*words, "--endpoint", ENDPOINT)
    assert (code, said.count("\n"), cluster.started) == (2, 1, 0)
    assert "no broker has the topic" in said
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("archive", "{store}", "--store", "{store}", "--topic", "TopicTest"), "no archive and not empty"),
        (("archive", "{tmp}/a", "--store", "{store}", "--topic", "nowhere"), "has no topic nowhere"),
        (("archive", "{tmp}/a", "--check"), "is no archive"),
        (("compact", "{tmp}/a", "{tmp}/b"), "is no archive"),
        (("replay", "{tmp}/a", "--endpoint", ENDPOINT), "is no archive"),
        (("replay", "--endpoint", ENDPOINT), "name one source: ARCHIVE, --store"),
        (("verify-index", "{tmp}/a"), "is no store: there is no such directory"),
        (("rebuild-index", "{tmp}", "--to", "{tmp}/b"), "is no store: it has no commitlog directory"),
        (("audit", "--master", "{tmp}", "--slave", "{store}"), "is no store"),
        (("audit", "--master", "{store}"), "no slave to compare the master with"),
        (("stats", "--store", "{tmp}"), "is no store"),
        (("stats", "--archive", "{tmp}"), "is no archive"),
        (("latency", "--spans", "{tmp}/a"), "there is no such file or folder"),
        (("lag", "--snapshots", "{tmp}/a"), "there is no such file or folder; --record makes one"),
        (("dlq", "--store", "{store}", "--reason", "none"), "is not one of attempts"),
        (("stats", "--store", "{store}", "--write", "{store}/config/topics.json/x"), "is no folder"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_paths_and_options_are_looked_at_before_spark_starts(
    cluster: Registered, run: Run, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    places = {"tmp": str(tmp_path), "store": str(goldens.shared("v493-basic"))}
    code, said = run(*(word.format(**places) for word in words))
    assert (code, said.count("\n"), cluster.started) == (2, 1, 0), said
    assert said.startswith("whimbrel: ")
    assert sentence in said


def test_an_audit_takes_the_only_broker_that_has_a_slave(
    cluster: Registered, run: Run, tmp_path: Path
) -> None:
    cluster.brokers = [broker("broker-a", 0), broker("broker-a", 1), broker("broker-b", 0)]
    (tmp_path / "dev").mkdir()
    running = {"role": "nameserver", "pid": os.getpid()}
    content = {"endpoint": ENDPOINT, "processes": [running]}
    (tmp_path / "dev" / "cluster.json").write_text(json.dumps(content))
    assert run("audit")[0] == 130  # where Spark starts, this test interrupts
    assert cluster.started == 1
    assert run("audit", "--broker", "broker-a")[0] == 130
    cluster.brokers += [broker("broker-b", 1)]
    code, said = run("audit")
    assert code == 2
    assert "--broker says which one is audited: broker-a, broker-b" in said
    cluster.brokers = [broker("broker-a", 0)]
    assert "no slave is registered beside broker-a" in run("audit")[1]


def test_without_a_cluster_an_audit_says_what_else_can_be_named(run: Run) -> None:
    code, said = run("audit")
    assert code == 2
    assert said.endswith("; or name stores with --master and --slave\n")


def test_the_archive_of_a_replay_is_named_once(run: Run, tmp_path: Path) -> None:
    code, said = run("replay", tmp_path, "--archive", tmp_path, "--endpoint", ENDPOINT)
    assert code == 2
    assert "named twice" in said


def test_nothing_is_looked_at_for_spark_connect(cluster: Registered, run: Run) -> None:
    assert run("stats", "--archive", "/of-the-server", "--spark-master", "sc://127.0.0.1:15002")[0] == 130
    assert cluster.started == 1
