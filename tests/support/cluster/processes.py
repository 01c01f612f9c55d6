"""Starts our own processes for tests, on free ports, and ends them in every way a process can end.

    with Cluster(tmp_path, slaves=1) as cluster:
        cluster.endpoint                    # "127.0.0.1:PORT" of the nameserver
        cluster.master.kill()               # kill -9, returns when it is gone
        cluster.master.start()              # the same command again, on the same ports
        cluster.slaves[0].store

A `Process` is ready when its ready file is there. The ports it got at its first start are kept for the next
ones, so that peers find it again. Whatever still runs when the test process ends is killed.
"""

import atexit
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.cluster.fork_server import Forked, ForkServer
from support.waiting import polls, until
from whimbrel.testing.signals import send_signal

__all__ = [
    "COMMAND",
    "INTERRUPTIBLE",
    "READY_TIMEOUT_S",
    "Cluster",
    "Process",
    "StartFailed",
    "dev",
    "kill_all",
    "lone_broker",
    "program",
    "wait_for_session_end",
]

READY_TIMEOUT_S = 30.0  # a machine with all cores taken by other tests; a quiet one needs about one second
STOP_TIMEOUT_S = 20.0

COMMAND = "from whimbrel.cli.main import run; run()"  # `python -c` it: the installed program may be another
# Stands before it where the child is to be interrupted: shells start what runs in the background with SIGINT
# ignored, and children inherit that. (Not by `preexec_fn`: grpcio's handlers of forks may wait for ever.)
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
SERVICES = Path(__file__).resolve().parents[3] / "services"
PYTHON = sys.executable  # what starts our processes; another environment's takes the package installed there
# Removes nothing early and refuses nothing, however full the disk.
ANY_DISK = {
    "WHIMBREL_BROKER_DISK_USED_RATIO_MAX": "1",
    "WHIMBREL_BROKER_DISK_CLEAN_RATIO": "1",
    "WHIMBREL_BROKER_DISK_FULL_RATIO": "1",
}

alive: set["Process"] = set()
EXEC = "WHIMBREL_TEST_EXEC"  # in the environment: nothing is started by a fork


@functools.cache
def fork_server() -> ForkServer:
    """Return what starts processes of this version for the tests of this process."""
    return ForkServer(sys.executable, environment())


class StartFailed(AssertionError):
    """A process ended, or was not ready in time; carries the end of its log."""


def environment(services: Path = SERVICES) -> dict[str, str]:
    """Return the environment of a child: ours, the package on its path, and no settings from outside.

    WHIMBREL_CLIENT_TRANSPORT=grpcio lets our clients call by that library, those in the tests' own process as
    well. WHIMBREL_TEST_LANE=off lets all go without the compiled lane.

    How full the machine's disk is changes nothing: tests of full disks have disks of their own, and say their
    limits themselves.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHIMBREL_")}
    if transport := os.environ.get("WHIMBREL_CLIENT_TRANSPORT"):
        kept["WHIMBREL_CLIENT_TRANSPORT"] = transport
    lane = os.environ.get("WHIMBREL_TEST_LANE")
    if lane and (services / "whimbrel/lane.py").exists():  # earlier versions have no such settings
        kept |= {"WHIMBREL_LANE": lane, "WHIMBREL_BROKER_LANE": lane, "WHIMBREL_REPLICATOR_LANE": lane}
    return kept | ANY_DISK | {"PYTHONPATH": str(services), "PYTHONUNBUFFERED": "1"}


def dev(directory: Path, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `whimbrel dev` on free ports."""
    return program(["-c", COMMAND, "dev", "--dir", directory, "--port", "0", *arguments], log)


def program(
    arguments: Sequence[str | Path], log: Path | int, services: Path = SERVICES
) -> subprocess.Popen[bytes]:
    """Start a Python program in a session of its own, so that a signal to the tests does not reach it."""
    command, variables = [PYTHON, *map(str, arguments)], environment(services)
    if PYTHON != sys.executable:
        del variables["PYTHONPATH"]
    if isinstance(log, int):
        return subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
    with log.open("ab") as output:
        return subprocess.Popen(command, env=variables, stdout=output, stderr=output, start_new_session=True)


def session_members(leader: int) -> list[int]:
    """Return the processes of a session that still run: Spark's workers have a process group of their own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):  # it has just ended
            continue
        if int(session) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def wait_for_session_end(leader: int) -> None:
    """Wait until no process of a session is left."""
    until(lambda: not session_members(leader), timeout=60, what=f"the end of the session of {leader}")


class Process:
    """One of our processes.

    Attributes:
        kind: `nameserver`, `broker` or `replicator`.
        name: names its ready file and its log below `root`.
        ready: what the ready file said at the last start.
        services: the directory of the package that the next start runs, ours or that of another version.
    """

    def __init__(self, root: Path, kind: str, name: str, **settings: object) -> None:
        self.kind = kind
        self.name = name
        self.settings = {"port": 0, **settings}
        self.ready_file = root / f"{name}.ready.json"
        self.log = root / f"{name}.log"
        self.child: subprocess.Popen[bytes] | Forked | None = None
        self.services = SERVICES
        self.ready: dict[str, Any] = {}
        self.ready_s = 0.0
        root.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def grpc(self) -> str:
        """Return `host:port` of its gRPC port."""
        return str(self.ready["grpc"])

    @property
    def ha(self) -> str:
        """Return `host:port` of its HA port."""
        return str(self.ready["ha"])

    @property
    def store(self) -> Path:
        """Return its store directory."""
        return Path(str(self.settings["store"]))

    @property
    def pid(self) -> int:
        """Return its process id."""
        assert self.child is not None, f"{self.name} was never started"
        return self.child.pid

    @property
    def running(self) -> bool:
        """Tell whether it runs."""
        return self.child is not None and self.child.poll() is None

    def command(self) -> list[str]:
        """Return the arguments after the interpreter."""
        words = ["-m", f"whimbrel.{self.kind}", "--ready-file", str(self.ready_file)]
        for key, value in self.settings.items():
            words += [f"--{key.replace('_', '-')}", spelled(value)]
        return words

    def launch(self) -> Self:
        """Start it and return at once."""
        assert not self.running, f"{self.name} runs already"
        self.ready_file.unlink(missing_ok=True)
        self.started = time.monotonic()
        self.child = self.started_child()
        alive.add(self)
        return self

    def started_child(self) -> "subprocess.Popen[bytes] | Forked":
        """Start it: as a fork, where it is of this version and nobody wants it otherwise."""
        command = self.command()
        if self.services != SERVICES or PYTHON != sys.executable or os.environ.get(EXEC):
            return program(command, self.log, self.services)
        _, module, *arguments = command
        return fork_server().start(module, arguments, environment(), self.log)

    def wait_ready(self, timeout: float = READY_TIMEOUT_S) -> Self:
        """Wait for its ready file."""
        for _ in polls(timeout):
            if self.ready_file.exists():
                break
            if not self.running:
                raise StartFailed(
                    f"{self.name} ended with code {self.code} while starting:\n{self.log_tail()}"
                )
        else:
            raise StartFailed(f"{self.name} was not ready within {timeout} s:\n{self.log_tail()}")
        self.ready_s = time.monotonic() - self.started
        self.ready = json.loads(self.ready_file.read_text(encoding="utf-8"))
        self.keep_port()
        return self

    def start(self, timeout: float = READY_TIMEOUT_S) -> Self:
        """Start it and wait until it is ready."""
        return self.launch().wait_ready(timeout)

    def keep_port(self) -> None:
        """Make the port it got a setting, for the next start."""
        bound = self.ready.get("ha" if self.kind == "replicator" else "grpc")
        if bound:
            self.settings["port"] = int(str(bound).rpartition(":")[2])

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples; the process must have been given a `metrics_port`."""
        with urllib.request.urlopen(f"http://{self.ready['metrics']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = [line.rpartition(" ")[2] for line in lines if re.match(rf"{name}(?:{{| )", line)]
        assert found, f"{self.name} has no metric {name}"
        return sum(map(float, found))

    @property
    def code(self) -> int | None:
        """Return its exit code; negative: the signal that ended it."""
        return None if self.child is None else self.child.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; SIGSTOP has taken effect when this returns."""
        if self.running:
            send_signal(self.pid, number)

    def stop(self) -> int:
        """End it as its operator would, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it at once (kill -9) and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = STOP_TIMEOUT_S) -> int:
        """Wait for its end and return the exit code."""
        if self.child is None:
            return 0
        try:
            return self.child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {timeout} s:\n{self.log_tail()}") from None
        finally:
            if not self.running:
                alive.discard(self)

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of its log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def kill_all(processes: Sequence[Process]) -> None:
    """End processes at once: all get the signal before any is waited for."""
    for process in processes:
        process.signal(signal.SIGKILL)
    for process in processes:
        process.wait()


def spelled(value: object) -> str:
    """Return a setting as it stands on a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def lone_broker(root: Path, *, index_entries: int, **settings: object) -> Process:
    """Return a broker without nameservers, whose files are small; it is not started yet."""
    small = {"commitlog_file_size": 16 << 20, "index_slots": 500, "index_entries": index_entries}
    return Process(root, "broker", "broker", store=root / "store", nameservers="", **small, **settings)


class Cluster:
    """A nameserver, a master and its replicator, slaves and theirs; each broker has its store below `root`.

    Args:
        root: where everything goes.
        slaves: how many.
        start: False leaves starting to the test.
        broker: settings for the brokers, over the small file sizes that suit tests.
        replicator: settings for the replicators.
        nameserver: settings for the nameserver.
    """

    def __init__(
        self,
        root: Path,
        *,
        slaves: int = 1,
        start: bool = True,
        broker: dict[str, object] | None = None,
        replicator: dict[str, object] | None = None,
        nameserver: dict[str, object] | None = None,
    ) -> None:
        self.root = root
        self.broker_settings: dict[str, object] = {
            "commitlog_file_size": 1 << 20,
            "consumequeue_file_size": 20_000,
            "index_slots": 5_000,
            "index_entries": 20_000,
            "auto_create_topics": True,
            "auto_create_groups": True,
            "expected_slaves": slaves,
        } | (broker or {})
        self.replicator_settings = replicator or {}
        self.nameserver = Process(root, "nameserver", "nameserver", **(nameserver or {}))
        self.slaves: list[Process] = []
        self.slave_replicators: list[Process] = []
        self.slave_count = slaves
        self.started = False
        if start:
            self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for process in self.processes:
                print(f"--- {process.name}\n{process.log_tail(15)}")
        self.kill()

    def start(self) -> None:
        """Start everything; brokers and replicators at once, because each waits for the other."""
        self.nameserver.start()
        self.master = self.broker("master", 0)
        self.master_replicator = self.replicator("master", 0)
        self.slaves = [self.broker("slave", index + 1) for index in range(self.slave_count)]
        self.slave_replicators = [self.replicator("slave", index + 1) for index in range(self.slave_count)]
        self.started = True
        launched = [process.launch() for process in self.processes if process is not self.nameserver]
        for process in launched:
            process.wait_ready()

    def broker(self, role: str, identity: int) -> Process:
        """Describe a broker."""
        settings: dict[str, object] = {
            "role": role,
            "id": identity,
            "store": self.root / f"store-{role}-{identity}",
            "nameservers": [self.endpoint],
        }
        return Process(self.root, "broker", f"{role}-{identity}", **self.broker_settings, **settings)

    def replicator(self, role: str, identity: int) -> Process:
        """Describe the replicator beside a broker."""
        settings: dict[str, object] = {"role": role, "store": self.root / f"store-{role}-{identity}"}
        if role == "slave":
            settings["commitlog_file_size"] = self.broker_settings["commitlog_file_size"]
        return Process(
            self.root, "replicator", f"{role}-{identity}-replicator", **settings, **self.replicator_settings
        )

    def wait_usable(self, timeout: float = READY_TIMEOUT_S) -> None:
        """Wait until the nameserver is settled, knows all brokers, and the master takes messages."""
        brokers = str(1 + self.slave_count)
        waiting = [sys.executable, "-m", "whimbrel.cli.usable", self.endpoint, brokers, str(timeout)]
        done = subprocess.run(waiting, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def endpoint(self) -> str:
        """Return what clients connect to."""
        return self.nameserver.grpc

    @property
    def processes(self) -> list[Process]:
        """Return every process, nameserver first."""
        if not self.started:
            return [self.nameserver]
        return [
            self.nameserver,
            self.master,
            self.master_replicator,
            *self.slaves,
            *self.slave_replicators,
        ]

    def kill(self) -> None:
        """End everything at once."""
        kill_all(self.processes)

    def restart(self) -> None:
        """Start again whatever does not run, and wait until all are ready."""
        self.restart_only(*(process for process in self.processes if not process.running))

    def restart_only(self, *processes: Process) -> None:
        """Start these at once, and wait until all are ready."""
        for process in processes:
            process.launch()
        for process in processes:
            process.wait_ready()

    def stop(self) -> dict[str, int]:
        """End everything as its operator would; return name to exit code."""
        for process in self.processes:
            process.signal(signal.SIGTERM)
        return {process.name: process.wait() for process in self.processes}


def end_all() -> None:
    """Kill what tests left behind."""
    for process in list(alive):
        process.kill()


atexit.register(end_all)
