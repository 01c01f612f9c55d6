"""What `whimbrel dev` shows of its processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from whimbrel.cli import dev as module
from whimbrel.cli.dev import LiveView, PlainView, summary
from whimbrel.cli.main import main
from whimbrel.cli.supervisor import Child, DevOptions, plan
from whimbrel.store.shared_page import SharedPage


@pytest.fixture
def children(tmp_path: Path) -> list[Child]:
    """Give the children of a cluster, all of them this very process."""
    made = [Child(each, tmp_path) for each in plan(DevOptions(directory=tmp_path), "127.0.0.1:8081")]
    for child in made:
        child.state, child.ready_s = "ready", 0.42
        child.process = subprocess.Popen([sys.executable, "-S", "-c", ""])
        child.process.wait()
        child.process.pid = os.getpid()
    made[0].ready = {"grpc": "127.0.0.1:8081"}
    return made


def drawn(view: LiveView, children: list[Child]) -> str:
    """Return the table as text."""
    console = Console(width=160)
    with console.capture() as capture:
        console.print(view.table(children))
    return capture.get()


def test_the_summary_tells_time_to_ready_and_both_kinds_of_memory(children: list[Child]) -> None:
    assert re.fullmatch(
        r"nameserver +ready in 0\.42 s, [\d.]+ MB resident \([\d.]+ anonymous, [\d.]+ of files\), "
        rf"pid {os.getpid()}, 127\.0\.0\.1:8081",
        summary(children[0]),
    )


def test_the_plain_view_prints_a_line_for_each_process_and_the_endpoint(
    children: list[Child], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = PlainView(tmp_path)
    view.refresh(children)
    assert capsys.readouterr().out == ""
    view.ready("127.0.0.1:8081", children)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(children) + 1
    assert lines[-1] == f"cluster ready: endpoint 127.0.0.1:8081, described in {tmp_path / 'cluster.json'}"


def test_the_table_shows_what_the_page_of_marks_says(children: list[Child], tmp_path: Path) -> None:
    (tmp_path / "master").mkdir()
    page = SharedPage.open(tmp_path / "master")
    page.written, page.flushed, page.dispatched = 123456, 99999, 5
    text = drawn(LiveView(tmp_path), children)
    assert "end 123,456, flushed 99,999, dispatched 5" in text
    assert "slaves 0" in text
    page.close()


def test_the_table_says_how_a_child_ended_that_waits(children: list[Child], tmp_path: Path) -> None:
    children[1].state, children[1].ended = "waiting", "killed by SIGKILL"
    text = drawn(LiveView(tmp_path), children)
    assert "killed by SIGKILL" in text
    assert "waiting" in text


def test_a_cluster_that_cannot_start_ends_the_command_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["dev", "--dir", str(tmp_path), "--slaves", "0", "--replication", "sync"])
    assert code == 1
    error = capsys.readouterr().err
    assert error.startswith("whimbrel dev: synchronous replication needs a slave")
    assert error.count("\n") == 1


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "--help"]) == 0
    assert "whimbrel dev --port 0 --dir ./cluster" in capsys.readouterr().out
    assert module.EXAMPLES
