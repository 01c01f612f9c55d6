"""What `whimbrel dev` shows of its processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from whimbrel.cli.dev_plan import DevOptions, plan
from whimbrel.cli.dev_view import Column, LiveView, PlainView, fitted, reach, summary
from whimbrel.cli.main import main
from whimbrel.cli.supervisor import Child, Memory
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


def drawn(view: LiveView, children: list[Child], width: int = 160) -> str:
    """Return the table as text."""
    return "\n".join(fitted(view.columns(children), width))


def test_the_summary_tells_time_to_ready_memory_and_address(children: list[Child]) -> None:
    told = rf"nameserver +ready in 0\.42 s, [\d.]+ MB, pid {os.getpid()}, 127\.0\.0\.1:8081"
    assert re.fullmatch(told, summary(children[0]))


def test_the_plain_view_prints_a_line_for_each_process_and_the_endpoint(
    children: list[Child], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = PlainView(tmp_path, tmp_path)
    view.refresh(children)
    assert capsys.readouterr().out == ""
    view.ready("127.0.0.1:8081", children, 0.84)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(children) + 2
    assert lines[-2] == "cluster ready in 0.8 s: endpoint 127.0.0.1:8081"
    assert lines[-1] == f"described in {tmp_path / 'cluster.json'}"
    assert all(len(line) < 80 for line in lines[:-1])


@pytest.mark.parametrize(
    ("lanes", "told"),
    [
        (("lane on", "lane on"), ["lane on"]),
        (("lane on", "lane off, because x"), ["lane on", "lane off, because x"]),
        (("", ""), []),
    ],
)
def test_what_brokers_say_of_the_lane_is_told_once(
    children: list[Child],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lanes: tuple[str, str],
    told: list[str],
) -> None:
    brokers = [child for child in children if child.plan.program == "broker"]
    for child, lane in zip(brokers, lanes, strict=True):
        child.ready = {"lane": lane}
    PlainView(tmp_path, tmp_path).ready("127.0.0.1:8081", children, 0.8)
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("lane ")] == told


def test_a_cluster_elsewhere_says_how_commands_find_it(
    children: list[Child], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reach(tmp_path, tmp_path) == ""
    PlainView(tmp_path / "my cluster", tmp_path).ready("127.0.0.1:8081", children, 0.8)
    line = f"commands find it after: export WHIMBREL_DEV_DIR='{tmp_path / 'my cluster'}'"
    assert capsys.readouterr().out.splitlines()[-1] == line


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 200])
def test_every_process_has_one_whole_line_at_any_width(
    width: int, children: list[Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = Memory(resident=46_800_000, anonymous=25_800_000, file=21_000_000)
    monkeypatch.setattr("whimbrel.cli.dev_view.memory", lambda pid: size)  # ours changes between two drawings
    (tmp_path / "master").mkdir()
    page = SharedPage.open(tmp_path / "master")
    page.written = page.flushed = page.dispatched = 10**12
    view = LiveView(tmp_path, tmp_path)
    wide, lines = drawn(view, children, 1000).splitlines(), drawn(view, children, width).splitlines()
    assert len(lines) == len(children) + 1
    assert all(len(line) <= width for line in lines)
    assert [line.split()[:2] for line in lines] == [line.split()[:2] for line in wide]
    words = {word for line in (*wide, "931.3 GiB") for word in line.split()}
    assert {word for line in lines for word in line.split()} <= words
    page.close()


def test_the_table_at_80_columns_has_addresses_and_the_log(children: list[Child], tmp_path: Path) -> None:
    (tmp_path / "master").mkdir()
    page = SharedPage.open(tmp_path / "master")
    page.written = page.flushed = page.dispatched = 10**9
    titles = drawn(LiveView(tmp_path, tmp_path), children, 80).splitlines()[0].split()
    page.close()
    assert titles == ["process", "state", "pid", "address", "MB", "log"]


def test_columns_that_do_not_fit_go_least_important_first() -> None:
    columns = [
        Column("name", 9, ["abcdef"]),
        Column("x", 1, ["123"]),
        Column("y", 2, ["long text"], ["short"]),
    ]
    assert fitted(columns, 22) == ["name    x    y", "abcdef  123  long text"]
    assert fitted(columns, 17) == ["name    y", "abcdef  long text"]
    assert fitted(columns, 13) == ["name    y", "abcdef  short"]
    assert fitted(columns, 12) == ["name", "abcdef"]


def test_the_table_shows_what_the_page_of_marks_says(children: list[Child], tmp_path: Path) -> None:
    (tmp_path / "master").mkdir()
    page = SharedPage.open(tmp_path / "master")
    page.written, page.flushed, page.dispatched = 123456, 99999, 5
    text = drawn(LiveView(tmp_path, tmp_path), children)
    assert "end 123,456, flushed 99,999, dispatched 5" in text
    assert "slaves 0" in text
    page.close()


def test_the_table_says_how_a_child_ended_that_waits(children: list[Child], tmp_path: Path) -> None:
    children[1].state, children[1].ended = "waiting", "killed by SIGKILL"
    text = drawn(LiveView(tmp_path, tmp_path), children)
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
    lines = capsys.readouterr().out.splitlines()
    assert any("whimbrel dev --port 0 --dir ./c " in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_start_waits_for_no_library_that_reads_options(tmp_path: Path) -> None:
    program = """
import sys, typer
from whimbrel.cli import dev
dev.options_of = lambda directory, port, flush, *rest: print(directory, port, flush, *rest) or sys.exit()
try:
    typer.main.get_command(dev.app)(sys.argv[1:])
finally:
    print("pydantic" in sys.modules)
"""
    for words, expected in (
        ([], "None 8081 None async 1 1 0.0 False False True 64MiB None None None private\nFalse\n"),
        (
            ["--dir", str(tmp_path), "--port", "0", "--slaves", "2", "--replication", "sync"],
            f"{tmp_path} 0 None sync 1 2 0.0 False False True 64MiB None None None private\nFalse\n",
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
        )
        assert done.stdout == expected


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["--port", "x"], "--port"), (["--slaves", "10"], "--slaves"), (["--flush", "often"], "--flush")],
)
def test_options_that_are_given_are_checked(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", *words]) == 2
    assert reason in capsys.readouterr().err
