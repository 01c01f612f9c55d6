"""`whimbrel dev` as its users run it: what it prints, what it leaves in its directory, how it ends."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import COMMAND, environment, until
from processes import dev as start_dev

pytestmark = pytest.mark.process

RESIDENT_MB_MAX = 80
ROLES = ["nameserver", "master", "master-replicator", "slave", "slave-replicator"]


class Dev:
    """A running `whimbrel dev`, its output in a file."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.log = directory.with_name(f"{directory.name}.out")
        self.child = start_dev(directory, self.log, *arguments)

    def output(self) -> str:
        return self.log.read_text()

    def cluster(self) -> dict[str, Any]:
        """Return cluster.json, waiting for it."""
        file = self.directory / "cluster.json"
        until(lambda: file.exists() or self.child.poll() is not None, timeout=40, what="cluster.json")
        assert self.child.poll() is None, self.output()
        return dict(json.loads(file.read_text()))

    def entry(self, role: str) -> dict[str, Any]:
        return next(each for each in self.cluster()["processes"] if each["role"] == role)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.child.send_signal(number)
        return self.child.wait(30)


@contextlib.contextmanager
def dev(directory: Path, *arguments: str) -> Iterator[Dev]:
    """Run `whimbrel dev` until the block ends; its children end with it however it ends."""
    running = Dev(directory, *arguments)
    try:
        yield running
    finally:
        if running.child.poll() is None:
            running.child.kill()
            running.child.wait()


def gone(pid: int) -> bool:
    """Tell whether the process has ended; a zombie has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_it_runs_a_cluster_and_ends_it_with_nothing_left(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with dev(tmp_path / "dev") as running:
        described = running.cluster()
        processes = described["processes"]
        assert [each["role"] for each in processes] == ROLES
        assert described["endpoint"] == processes[0]["grpc"]
        assert processes[1]["store"] == processes[2]["store"] == str(tmp_path / "dev" / "master")
        assert all(each["pid"] and not gone(each["pid"]) for each in processes)
        assert all(address.startswith("127.0.0.1:") for each in processes if (address := each["grpc"]))

        until(lambda: "cluster ready" in running.output(), what="the last line of the start")
        lines = re.findall(
            r"^(\S+) +ready in ([\d.]+) s, ([\d.]+) MB resident \(([\d.]+) anonymous, ([\d.]+) of files\)",
            running.output(),
            re.MULTILINE,
        )
        assert [line[0] for line in lines] == [each["name"] for each in processes]
        for name, seconds, resident, anonymous, files in lines:
            measured(f"{name}: ready in {seconds} s, {resident} MB ({anonymous} anonymous, {files} of files)")
            assert float(resident) < RESIDENT_MB_MAX, name

        assert running.end() == 0
        assert all(gone(each["pid"]) for each in processes)
        assert not (tmp_path / "dev" / "cluster.json").exists()
        assert "does not stop" not in running.output()


@pytest.mark.parametrize("role", ROLES)
def test_a_killed_process_comes_back_on_its_address(role: str, tmp_path: Path) -> None:
    with dev(tmp_path / "dev") as running:
        before = running.entry(role)
        os.kill(before["pid"], signal.SIGKILL)
        after = until(
            lambda: (entry := running.entry(role))["pid"] != before["pid"] and entry,
            timeout=30,
            what=f"a new {role}",
        )
        assert (after["grpc"], after["ha"]) == (before["grpc"], before["ha"])
        assert f"{before['name']}: killed by SIGKILL; starting it again" in running.output()
        assert running.end(signal.SIGTERM) == 0


def test_no_process_survives_a_killed_supervisor_and_the_next_one_starts(tmp_path: Path) -> None:
    with dev(tmp_path / "dev") as running:
        processes = running.cluster()["processes"]
        running.child.kill()
        running.child.wait()
        until(lambda: all(gone(each["pid"]) for each in processes), timeout=20, what="the end of all")
    (tmp_path / "dev" / "cluster.json").unlink()
    with dev(tmp_path / "dev") as again:
        assert len(again.cluster()["processes"]) == len(ROLES)
        assert again.end() == 0


def test_two_slaves_and_synchronous_modes(tmp_path: Path) -> None:
    with dev(tmp_path / "dev", "--slaves", "2", "--flush", "sync", "--replication", "sync") as running:
        roles = [each["role"] for each in running.cluster()["processes"]]
        assert sorted(roles) == sorted([*ROLES, "slave", "slave-replicator"])
        assert running.end() == 0


def test_a_second_one_in_the_same_directory_says_so_in_one_sentence(tmp_path: Path) -> None:
    with dev(tmp_path / "dev") as running:
        running.cluster()
        second = subprocess.run(
            [sys.executable, "-c", COMMAND, "dev", "--dir", str(tmp_path / "dev"), "--port", "0"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert second.returncode == 1
        assert second.stderr.count("\n") == 1
        assert "another `whimbrel dev` runs in" in second.stderr
