"""The jobs as commands: exit codes 0, 1, 2 and 130, one sentence for what goes wrong, tables and JSON."""

import json
import shutil
from pathlib import Path

import pytest

from spark.commands import Command
from spark.topics import fill
from support.cluster.processes import Cluster
from support.pages import Page
from support.store import goldens
from whimbrel.cli.spark import SparkJobs

PAGE = Page("docs/audit.md")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("job", sorted(SparkJobs.table))
def test_each_job_tells_what_it_does_with_examples(command: Command, job: str) -> None:
    done = command(job, "--help")
    assert done.exit_code == 0
    assert f"whimbrel spark {job}" in done.stdout.split("Examples:")[1]


def test_an_audit_leaves_with_0_1_or_2(command: Command, tmp_path: Path) -> None:
    master, slave = goldens.golden("ha493-async-master"), goldens.golden("ha493-async-slave")
    written = PAGE["whimbrel spark audit --master ./dev/master --slave ./dev/slave-1"]
    words = written.words({"./dev/master": master, "./dev/slave-1": slave})
    assert command(*words[2:]).exit_code == 0
    damaged = Path(shutil.copytree(slave, tmp_path / "slave"))
    victim = sorted((damaged / "commitlog").iterdir())[0]
    data = bytearray(victim.read_bytes())
    data[300] ^= 1
    victim.write_bytes(bytes(data))
    done = command("audit", "--master", master, "--slave", damaged, "-o", "json")
    assert done.exit_code == 1
    assert any(row["finding"] for row in json.loads(done.stdout))
    assert "finding" in done.stderr
    done = command("audit", "--master", master, "--slave", tmp_path / "nowhere")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("whimbrel: ") and "is no store" in done.stderr


def test_topics_go_into_an_archive_that_is_checked_and_counted(
    command: Command, cluster: Cluster, tmp_path: Path
) -> None:
    fill(cluster, "commanded", 60, queues=2)
    root = tmp_path / "archive"
    done = command("archive", root, "--topic", "commanded", "--endpoint", cluster.endpoint)
    assert done.exit_code == 0, done.stderr
    assert "60 messages archived" in done.stderr
    assert command("archive", root, "--check", "--deep").exit_code == 0
    counted = command("stats", "--archive", root, "--by", "topic", "-o", "json")
    assert [(row["topic"], row["messages"]) for row in json.loads(counted.stdout)] == [("commanded", 60)]
    next(root.glob("topic=*/dt=*/*.parquet")).unlink()
    done = command("archive", root, "--check")
    assert done.exit_code == 1
    assert "1 finding" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("archive", "/tmp/x", "--topic", "orders", "--endpoint", "127.0.0.1:1"), "is the cluster running"),
        (("replay", "/nowhere", "--endpoint", "127.0.0.1:1"), "/nowhere is no archive"),
        (("replay", "--archive", "/nowhere", "--endpoint", "127.0.0.1:1"), "/nowhere is no archive"),
        (("verify-index", "/nowhere"), "/nowhere is no store"),
        (("latency", "--spans", "/nowhere"), "there is no such file or folder"),
        (("lag", "--snapshots", "/nowhere"), "there is no such file or folder"),
        (("compact", "/nowhere", "/elsewhere"), "/nowhere is no archive"),
    ],
)
def test_what_cannot_run_leaves_with_2_and_a_sentence(
    command: Command, words: tuple[str, ...], sentence: str
) -> None:
    done = command(*words)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "job", [("archive", "/tmp/x", "--topic", "t"), ("replay", "--store", "/x"), ("dlq",), ("stats",)]
)
def test_without_a_cluster_a_job_leaves_with_2(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: tuple[str, ...]
) -> None:
    monkeypatch.setenv("WHIMBREL_DEV_DIR", str(tmp_path))
    done = command(*job)
    assert done.exit_code == 2
    assert "no cluster to talk to" in done.stderr


def test_ctrl_c_leaves_with_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("whimbrel.spark.jobs.verify_index.verify_index", interrupted)
    assert command("verify-index", goldens.shared("v493-basic")).exit_code == 130
