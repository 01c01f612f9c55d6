"""Who runs in a directory of `whimbrel dev`, and what is removed from it."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from whimbrel.cli import dev_directory
from whimbrel.cli.dev_directory import contents, held, log_file_size, mark, marked, purge, running_pid, stop
from whimbrel.cli.main import main
from whimbrel.cli.process_times import process_age_s, started_ticks
from whimbrel.testing.signals import send_signal

HOLDER = """
import sys
from pathlib import Path
from whimbrel.cli.dev_directory import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Give a directory in which `dev` has run."""
    mark(tmp_path)
    for name in ("run", "logs", "master", "slave-1", "b-master", "c-slave-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "lock").touch()
    return tmp_path


def holder(directory: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock."""
    running = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "held\n"
    return running


def test_whoever_holds_the_lock_runs(directory: Path) -> None:
    assert running_pid(directory) is None
    with holder(directory) as other:
        assert running_pid(directory) == other.pid
        with held(directory) as mine:
            assert not mine
        other.communicate()
    assert running_pid(directory) is None


def test_whoever_looks_does_not_keep_a_start_from_the_lock(directory: Path) -> None:
    with (directory / "run" / "lock").open() as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (look, fcntl.LOCK_UN)).start()
        with held(directory) as mine:
            assert mine


def test_nothing_runs_where_nothing_is(tmp_path: Path) -> None:
    assert running_pid(tmp_path / "absent") is None
    assert stop(tmp_path / "absent", 1.0) is None


def test_stop_ends_the_holder(directory: Path) -> None:
    with holder(directory) as other:
        assert stop(directory, 10.0) is True
        assert other.wait() == -signal.SIGTERM


def test_stop_says_when_it_takes_too_long(directory: Path) -> None:
    with holder(directory) as other:
        send_signal(other.pid, signal.SIGSTOP)
        assert stop(directory, 0.0) is False
        os.kill(other.pid, signal.SIGCONT)
        other.communicate()


def test_a_pid_that_belongs_to_a_stranger_by_now_is_nobody(directory: Path) -> None:
    with holder(directory) as other:
        ticks = started_ticks(os.getpid())
        assert ticks is not None
        (directory / "run" / "lock").write_text(f"{os.getpid()} {ticks - 1}\n")
        assert running_pid(directory) is None
        assert stop(directory, 1.0) is None
        other.communicate()


def test_a_process_knows_its_age() -> None:
    assert 0.0 <= process_age_s() < 24 * 3600
    assert started_ticks(2**22 + 1) is None


def test_purge_removes_what_dev_made_and_leaves_the_rest(directory: Path) -> None:
    (directory / "notes.txt").touch()
    assert not purge(directory)
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]


def test_purge_removes_a_directory_that_is_empty_then(directory: Path) -> None:
    assert purge(directory)
    assert not directory.exists()


def test_purge_does_not_follow_links(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    (directory / "traces").symlink_to(elsewhere)
    assert directory / "traces" in contents(directory)
    purge(directory)
    assert (elsewhere / "file").exists()


def test_a_store_that_was_there_before_is_not_marked_as_made_by_dev(tmp_path: Path) -> None:
    (tmp_path / "master").mkdir()
    mark(tmp_path)
    assert not marked(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").touch()  # an earlier version has run there
    mark(tmp_path)
    assert marked(tmp_path)


def test_purge_refuses_a_directory_that_dev_did_not_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "master").mkdir()
    assert main(["dev", "purge", "--dir", str(tmp_path), "--yes"]) == 1
    assert f"it has no file {dev_directory.MARK}" in capsys.readouterr().err
    assert (tmp_path / "master").exists()


def test_the_size_of_log_files_is_that_of_the_master_else_of_a_slave(directory: Path) -> None:
    assert log_file_size(directory) is None
    for store, size in (("slave-1", 8192), ("master", 4096)):
        (directory / store / "commitlog").mkdir()
        with (directory / store / "commitlog" / "00000000000000000000").open("wb") as file:
            file.truncate(size)
        assert log_file_size(directory) == size


@pytest.mark.parametrize("words", [["--log-file-size", "7MiB"], ["--log-file-size", "much"]])
def test_a_size_that_cannot_be_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", *words]) == 2
    assert "MiB" in capsys.readouterr().err


def test_options_before_the_subcommand_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", "--dir", str(tmp_path), "status"]) == 2
    assert "whimbrel dev status OPTIONS" in capsys.readouterr().err
