"""What tests start as a fork is as what they start by `exec`: exit codes, logs, sessions, environments."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.cluster import processes
from support.cluster.fork_server import MODULES, Forked
from support.cluster.processes import EXEC, Process

pytestmark = pytest.mark.process


@pytest.fixture(params=["fork", "exec"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fork":
        monkeypatch.delenv(EXEC, raising=False)
    else:
        monkeypatch.setenv(EXEC, "1")
    return str(request.param)


def test_a_process_is_a_fork_unless_it_is_wanted_otherwise(way: str, tmp_path: Path) -> None:
    with Process(tmp_path, "nameserver", "ns") as running:
        assert isinstance(running.child, Forked if way == "fork" else subprocess.Popen)


def test_it_leads_a_session_and_has_its_arguments(way: str, tmp_path: Path) -> None:
    with Process(tmp_path, "nameserver", "ns", lease_s=7.5) as running:
        assert os.getsid(running.pid) == running.pid
        assert "lease_s=7.5" in running.log_tail()


def test_it_ends_with_the_code_of_its_end(way: str, tmp_path: Path) -> None:
    running = Process(tmp_path, "nameserver", "ns").start()
    assert running.stop() == 0
    running.start().kill()
    assert running.code == -signal.SIGKILL


@pytest.mark.parametrize("kind", [module.partition(".")[2] for module in MODULES])
def test_wrong_settings_end_it_with_a_sentence_in_its_log(way: str, kind: str, tmp_path: Path) -> None:
    wrong = Process(tmp_path, kind, "wrong", port="no number").launch()
    assert wrong.wait() == 2
    assert "port" in wrong.log_tail()


def test_its_environment_is_what_it_was_given(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = processes.environment() | {"WHIMBREL_NAMESERVER_LEASE_S": "8.5"}
    monkeypatch.setattr(processes, "environment", lambda services=processes.SERVICES: given)
    with Process(tmp_path, "nameserver", "ns") as running:
        assert "lease_s=8.5" in running.log_tail()


def test_a_wait_that_is_too_short_says_so(way: str, tmp_path: Path) -> None:
    with Process(tmp_path, "nameserver", "ns") as running, pytest.raises(AssertionError, match="did not end"):
        running.wait(0.01)
