"""The commands of the pages on Spark's jobs, in their order, in the session that all tests share."""

import json
import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from spark.commands import Command, Done
from spark.test_archive_compact import old_archive
from spark.test_latency import write_spans
from spark.test_replay import target
from spark.topics import confirmed, fill
from support.cluster.broker_api import Api
from support.cluster.command_line import Terminal
from support.cluster.processes import Cluster
from support.pages import Page, Places, Written
from support.store import goldens
from support.waiting import until
from whimbrel.client.sync import Admin
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

__all__ = ["target"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

README = Page("README.md")
ARCHIVE = Page("docs/archive.md")
AUDIT = Page("docs/audit.md")
MEASURING = Page("docs/measuring.md")
REPLAY = Page("docs/replay.md")
JSON = ("-o", "json")
ROOT = "/data/archive"  # on the pages, and so are these
STORE = "/data/broker-a"
BROKERS = ("127.0.0.1:8091", "127.0.0.1:8092", "127.0.0.1:8093")


class Jobs:
    """Runs the jobs of pages against a cluster that is found as a running `whimbrel dev` is."""

    def __init__(self, command: Command) -> None:
        self.command = command

    def __call__(self, written: Written, places: Places | None = None, *more: object, code: int = 0) -> Done:
        program, name, *words = written.words(places)
        assert (program, name) == ("whimbrel", "spark")
        done = self.command(*words, *more)
        assert done.exit_code == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def rows(self, written: Written, places: Places | None = None, *more: object) -> list[dict[str, Any]]:
        """Return what a job printed."""
        found = json.loads(self(written, places, *more, *JSON).stdout)
        assert isinstance(found, list)
        return found


@pytest.fixture
def run(command: Command, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setenv("WHIMBREL_ENDPOINT", cluster.endpoint)
    monkeypatch.chdir(tmp_path)
    return Jobs(command)


def test_archiving(run: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster, "page-orders", 20, queues=1)
    fill(cluster, "page-payments", 20, queues=1)
    root: dict[str, object] = {ROOT: tmp_path / "archive"}
    both = {**root, "orders,payments": "page-orders,page-payments"}
    done = run(ARCHIVE["whimbrel spark archive /data/archive --topic orders,payments"], both)
    assert "40 messages archived" in done.stderr
    fill(cluster, "page-orders", 5, queues=1)
    resumed = ARCHIVE[
        "whimbrel spark archive /data/archive --topic orders --checkpoint /data/checkpoint-2 --resume"
    ]
    places = {**root, "orders": "page-orders", "/data/checkpoint-2": tmp_path / "checkpoint-2"}
    assert "5 messages archived" in run(resumed, places).stderr
    rows = run.rows(ARCHIVE["whimbrel spark archive /data/archive --check"], root)
    assert {row["topic"]: row["messages"] for row in rows} == {"page-orders": 25, "page-payments": 20}


def test_archiving_goes_on_until_ctrl_c(run: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    """It ends after the batch in progress, with what it has done."""
    fill(cluster, "page-steady", 5, queues=1)
    places = {ROOT: tmp_path / "archive", "orders": "page-steady"}

    def interrupt() -> None:
        written = tmp_path / "archive" / "_manifests"
        until(lambda: list(written.rglob("*.json")), timeout=120, what="the first batch")
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt, daemon=True)
    other.start()
    done = run(ARCHIVE["whimbrel spark archive /data/archive --topic orders --every 5m"], places)
    other.join()
    assert "5 messages archived" in done.stderr


def test_compacting(run: Jobs, tmp_path: Path) -> None:
    root: dict[str, object] = {ROOT: tmp_path / "archive"}
    old_archive(tmp_path / "archive")
    for written, places in (
        (
            ARCHIVE["whimbrel spark compact /data/archive /data/archive-large"],
            {**root, "/data/archive-large": tmp_path / "large"},
        ),
        (ARCHIVE["whimbrel spark compact /data/archive --in-place"], root),
    ):
        (row,) = run.rows(written, places)
        assert (row["topic"], row["messages"], row["files"]) == ("orders", 600, 1)


def test_tables(run: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    fill(cluster, "page-tables", 5, queues=1)
    places: dict[str, object] = {"/data/table": tmp_path / "delta", "orders": "page-tables"}
    done = run(ARCHIVE["whimbrel spark archive /data/table --topic orders --table delta"], places)
    assert "5 messages archived" in done.stderr
    assert list((tmp_path / "delta" / "_delta_log").iterdir())
    places |= {
        "/data/table": tmp_path / "iceberg",
        "uri=...": f"uri=sqlite:///{tmp_path / 'catalog.db'}",
        "warehouse=...": f"warehouse=file://{tmp_path / 'warehouse'}",
    }
    written = ARCHIVE[
        "whimbrel spark archive /data/table --topic orders --table iceberg"
        " --catalog uri=... --catalog warehouse=..."
    ]
    done = run(written, places)
    assert "5 messages archived" in done.stderr
    assert (tmp_path / "catalog.db").exists()


def test_auditing(run: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster, "page-audited", 20)
    written = AUDIT["whimbrel spark audit"]
    assert written == README["whimbrel spark audit"]
    rows = run.rows(written)
    assert rows and not any(row["finding"] for row in rows)
    written = AUDIT[
        "whimbrel spark audit --master 127.0.0.1:8091 --slave 127.0.0.1:8092 --slave 127.0.0.1:8093"
    ]
    members = (cluster.master.grpc, cluster.slaves[0].grpc, cluster.slaves[0].store)
    assert run.rows(written, dict(zip(BROKERS, members, strict=True)))
    written = AUDIT["whimbrel spark audit --endpoint 127.0.0.1:8081 --broker broker-a --known ./checksums"]
    assert run.rows(written, {"127.0.0.1:8081": cluster.endpoint})
    assert list((tmp_path / "checksums").rglob("*"))


def test_indexes(run: Jobs, tmp_path: Path) -> None:
    places = {"./dev/master": goldens.golden("v493-basic")}
    rows = run.rows(AUDIT["whimbrel spark verify-index ./dev/master"], places)
    assert rows and not any(row["finding"] for row in rows)
    written = AUDIT["whimbrel spark rebuild-index ./dev/master --to ./rebuilt"]
    run(written, {**places, "./rebuilt": tmp_path / "rebuilt"})
    assert (tmp_path / "rebuilt" / "REBUILT.json").exists()


def test_counts(run: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster, "page-counted", 20)
    counted = {row["topic"]: row["messages"] for row in run.rows(MEASURING["whimbrel spark stats"])}
    assert counted["page-counted"]
    run(README["whimbrel spark stats --html stats.html"])
    assert "page-counted" in (tmp_path / "stats.html").read_text()
    written = MEASURING[
        "whimbrel spark stats --store /data/broker-a --topic orders --by hour --html stats.html"
    ]
    (row,) = run.rows(written, {STORE: cluster.master.store, "orders": "page-counted"})
    assert row["messages"] == 20


def test_latency(run: Jobs, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    write_spans(traces)
    written = MEASURING["whimbrel spark latency --spans ./dev/traces --html latency.html"]
    rows = run.rows(written, {"./dev/traces": traces})
    assert {row["stage"] for row in rows} >= {"append", "slave append", "acknowledge"}
    assert (tmp_path / "latency.html").exists()
    written = MEASURING["whimbrel spark latency --spans ./traces --per 5m --topic orders"]
    assert run.rows(written, {"./traces": traces})


def test_lag(run: Jobs, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cluster, "page-behind", 5, queues=1)
    with Admin(cluster.endpoint) as admin, grpc.insecure_channel(cluster.master.grpc) as channel:
        admin.create_group("page-billing")
        assert Api(channel).receive("page-behind", "page-billing", batch=1, poll_s=5).handles
    terminal = Terminal(capsys, tmp_path, WHIMBREL_ENDPOINT=cluster.endpoint)
    recorded = MEASURING["whimbrel spark lag --snapshots ./lag --record --every 60s"]
    with terminal.going(recorded) as recording:
        until(lambda: list(tmp_path.glob("lag/dt=*/[!_]*")), timeout=60, what="a snapshot")
        recording.code = 0
    assert "1 snapshot" in recording.said()
    written = MEASURING["whimbrel spark lag --snapshots ./lag --group billing --per 15m --html lag.html"]
    rows = run.rows(written, {"./lag": tmp_path / "lag", "billing": "page-billing"})
    assert {row["topic"] for row in rows} == {"page-behind"}
    assert (tmp_path / "lag.html").exists()


def test_replaying(
    run: Jobs, cluster: Cluster, target: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, "page-old", 20, queues=1)
    root: dict[str, object] = {ROOT: tmp_path / "archive"}
    archived = README["whimbrel spark archive /data/archive --topic orders"]
    run(archived, {**root, "orders": "page-old"})
    monkeypatch.setenv("WHIMBREL_ENDPOINT", target.endpoint)
    rows = run.rows(REPLAY["whimbrel spark replay /data/archive --create"], root)
    assert sum(row["stored"] for row in rows) == 20
    with Admin(target.endpoint) as admin:
        admin.create_topic("page-again", queues=1)
    written = REPLAY["whimbrel spark replay /data/archive --topic orders --to orders-again --rate 5000"]
    rows = run.rows(written, {**root, "orders": "page-old", "orders-again": "page-again"})
    assert sum(row["stored"] for row in rows) == 20
    written = REPLAY[
        "whimbrel spark replay --store /data/broker-a"
        " --from 2026-11-20T08:00 --until 2026-11-20T09:00 --dry-run"
    ]
    now = datetime.now(UTC)
    times = {
        "2026-11-20T08:00": f"{now - timedelta(hours=1):%Y-%m-%dT%H:%M}",
        "2026-11-20T09:00": f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M}",
    }
    rows = run.rows(written, {STORE: cluster.master.store, **times}, "--topic", "page-old")
    assert sum(row["skipped"] for row in rows) == 20  # since they are there already
    written = REPLAY["whimbrel spark replay --servers old:8081 --endpoint new:8081 --create"]
    places = {"old:8081": cluster.endpoint, "new:8081": target.endpoint}
    rows = run.rows(written, places, "--topic", "page-old")
    assert sum(row["skipped"] for row in rows) == 20


def test_dead_letters(run: Jobs, target: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHIMBREL_ENDPOINT", target.endpoint)
    fill(target, "page-failed", 2, queues=1)
    with Admin(target.endpoint) as admin, grpc.insecure_channel(target.master.grpc) as channel:
        admin.create_group("page-failing")
        api = Api(channel)
        [handle] = api.receive("page-failed", "page-failing", batch=1, poll_s=5).handles
        answer = api(
            "ForwardMessageToDeadLetterQueue",
            group=v2.Resource(name="page-failing"),
            topic=v2.Resource(name="page-failed"),
            receipt_handle=handle,
            message_id="id",
        )
        assert answer.status.code == v2.OK
    confirmed(target)
    group = {"billing": "page-failing"}
    found = {row["group"]: row for row in run.rows(REPLAY["whimbrel spark dlq"])}
    assert found["page-failing"]["messages"] == 1
    (row,) = run.rows(REPLAY["whimbrel spark dlq --group billing --since 2h --messages"], group)
    assert row["group"] == "page-failing"
    written = REPLAY["whimbrel spark dlq --group billing --reason attempts --replay-to ORIGIN --dry-run"]
    (row,) = run.rows(written, {**group, "attempts": "forwarded"})
    assert (row["topic"], row["stored"]) == ("%DLQ%page-failing", 1)
