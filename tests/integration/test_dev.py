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

from support.cluster.processes import COMMAND, environment
from support.cluster.processes import dev as start_dev
from support.pages import Page
from support.waiting import until
from whimbrel.cli.dev_directory import running_pid
from whimbrel.client import sync
from whimbrel.model.message import Message

pytestmark = pytest.mark.process

README = Page("README.md")
BENCHMARKS = Page("docs/benchmarks.md")
OPERATING = Page("docs/operating.md")
RESIDENT_MB_MAX = 80
DISK_BYTES_MAX = 300_000_000  # of a fresh cluster
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
    with dev(tmp_path / "dev", *OPERATING["whimbrel dev"].words()[2:]) as running:
        described = running.cluster()
        processes = described["processes"]
        assert [each["role"] for each in processes] == ROLES
        assert described["endpoint"] == processes[0]["grpc"]
        assert processes[1]["store"] == processes[2]["store"] == str(tmp_path / "dev" / "master")
        assert all(each["pid"] and not gone(each["pid"]) for each in processes)
        assert all(address.startswith("127.0.0.1:") for each in processes if (address := each["grpc"]))

        until(lambda: "commands find it" in running.output(), what="the last line of the start")
        assert re.search(r"^cluster ready in \d+\.\d s: endpoint", running.output(), re.MULTILINE)
        assert f"export WHIMBREL_DEV_DIR={tmp_path / 'dev'}\n" in running.output()
        with sync.Producer(described["endpoint"]) as producer:
            producer.send(Message(topic="orders", body=b"x", keys=("42",)))
        disk = disk_bytes(tmp_path / "dev")
        measured(f"{disk / 1e6:.0f} MB of disk")
        assert disk <= DISK_BYTES_MAX
        told = r"^(\S+) +ready in ([\d.]+) s, ([\d.]+) MB, pid \d+"
        lines = re.findall(told, running.output(), re.MULTILINE)
        assert [line[0] for line in lines] == [each["name"] for each in processes]
        for name, seconds, resident in lines:
            measured(f"{name}: ready in {seconds} s, {resident} MB")
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


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def disk_bytes(directory: Path) -> int:
    """Return what a directory takes on the disk, in blocks, as `du` counts."""
    done = subprocess.run(["du", "-s", "-B1", directory], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def log_files(directory: Path) -> dict[str, set[int]]:
    """Return the sizes of each store's log files."""
    return {
        store.name: {path.stat().st_size for path in (store / "commitlog").iterdir()}
        for store in directory.iterdir()
        if (store / "commitlog").is_dir()
    }


def test_stores_keep_the_size_of_their_log_files_and_a_new_slave_gets_it(tmp_path: Path) -> None:
    large, message = 16 << 20, Message(topic="orders", body=bytes(4 << 20))
    with dev(tmp_path / "dev", "--log-file-size", "16MiB", "--replication", "sync") as running:
        with sync.Producer(running.cluster()["endpoint"]) as producer:
            producer.send(message)
        assert running.end() == 0
    with dev(tmp_path / "dev", "--slaves", "2", "--log-file-size", "8MiB", "--replication", "sync") as again:
        endpoint = again.cluster()["endpoint"]
        assert "have log files of 16.0 MiB and keep that size" in again.output()
        with sync.Producer(endpoint) as producer:
            for _ in range(5):
                producer.send(message)
        until(
            lambda: (
                log_files(tmp_path / "dev") == {"master": {large}, "slave-1": {large}, "slave-2": {large}}
            ),
            timeout=20,
            what="log files of one size",
        )
        assert again.end() == 0


def test_a_strict_cluster_says_what_production_says(tmp_path: Path) -> None:
    with dev(tmp_path / "dev", "--no-auto-create", "--slaves", "0") as running:
        endpoint = running.cluster()["endpoint"]
        refused = command("send", "orders", "hello", "--endpoint", endpoint)
        assert refused.returncode == 1
        assert "no topic orders; create it with `whimbrel topic create NAME`" in refused.stderr
        assert command("topic", "create", "orders", "--endpoint", endpoint).returncode == 0
        assert command("send", "orders", "hello", "--endpoint", endpoint).returncode == 0
        assert running.end() == 0


def test_a_detached_cluster_is_started_shown_stopped_and_purged(tmp_path: Path) -> None:
    where = ("--dir", tmp_path / "dev")
    status_command = OPERATING["whimbrel dev status"].words()[1:]
    absent = command(*status_command, *where)
    assert (absent.returncode, absent.stdout) == (1, f"stopped in {tmp_path / 'dev'}\n")
    start_command = OPERATING["whimbrel dev start --slaves 2"].words({"2": 0})[1:]
    started = command(*start_command, *where, "--port", "0")
    try:
        assert started.returncode == 0, started.stderr
        assert "\ncluster ready in " in started.stdout
        assert f"export WHIMBREL_DEV_DIR={tmp_path / 'dev'}" in started.stdout
        shown = command(*status_command, *where, "-o", "json")
        status = json.loads(shown.stdout)
        assert (shown.returncode, status["state"]) == (0, "running")
        assert command("send", "orders", "hello", "--endpoint", status["endpoint"]).returncode == 0
        again = command("dev", "start", *where)
        assert again.returncode == 1
        assert "another `whimbrel dev` runs in" in again.stderr
        refused = command("dev", "purge", *where, "--yes")
        assert refused.returncode == 1
        assert "stop it first, with `whimbrel dev stop`" in refused.stderr
    finally:
        stopped = command(*OPERATING["whimbrel dev stop"].words()[1:], *where)
    assert stopped.returncode == 0
    assert all(gone(each["pid"]) for each in status["processes"])
    assert gone(status["pid"])
    assert command("dev", "stop", *where).returncode == 1
    asked = command("dev", "purge", *where)
    assert asked.returncode == 1
    assert "this would remove" in asked.stderr
    assert (tmp_path / "dev" / "master").exists()
    assert command(*OPERATING["whimbrel dev purge --yes"].words()[1:], *where).returncode == 0
    assert not (tmp_path / "dev").exists()


def test_a_detached_cluster_that_cannot_start_says_why_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "dev" / "run").mkdir(parents=True)
    (tmp_path / "dev" / "run" / "lock").touch()
    (tmp_path / "dev" / "master").write_text("no folder")
    failed = command("dev", "start", "--dir", tmp_path / "dev", "--port", "0")
    assert failed.returncode == 1
    sentence, *excerpt = failed.stderr.splitlines()
    assert re.match(r"whimbrel dev: master(-replicator)? did not start: ", sentence)
    assert any(line.startswith("    ") and "ERROR" in line for line in excerpt)
    assert command("dev", "status", "--dir", tmp_path / "dev").returncode == 1


def test_no_process_survives_a_killed_detached_supervisor_and_the_next_one_starts(tmp_path: Path) -> None:
    where = ("--dir", tmp_path / "dev")
    start_command = README["whimbrel dev start"].words()[1:]
    assert command(*start_command, *where, "--port", "0", "--slaves", "0").returncode == 0
    processes = json.loads((tmp_path / "dev" / "cluster.json").read_text())["processes"]
    pid = running_pid(tmp_path / "dev")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: all(gone(each["pid"]) for each in processes), timeout=20, what="the end of all")
    assert command("dev", "status", *where).returncode == 1
    start_command = BENCHMARKS["whimbrel dev start --slaves 0"].words()[1:]
    assert command(*start_command, *where, "--port", "0").returncode == 0
    assert command("dev", "stop", *where).returncode == 0


def test_a_second_one_in_the_same_directory_says_so_in_one_sentence(tmp_path: Path) -> None:
    with dev(tmp_path / "dev") as running:
        running.cluster()
        second = command("dev", "--dir", tmp_path / "dev", "--port", "0")
        assert second.returncode == 1
        assert second.stderr.count("\n") == 1
        assert "another `whimbrel dev` runs in" in second.stderr
