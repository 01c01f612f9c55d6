"""Runs RocketMQ's official SDKs, unmodified, as programs that all speak alike (tests/sdks/README.md).

    with DevCluster(tmp_path / "dev") as cluster, Program("go", "push", cluster.endpoint, ...) as consumer:
        consumer.wait_bodies("got", {"m-1"})

`prepare(language)` installs an SDK through its language's own package client into a cache directory and
returns the command line that starts its program, or says what is missing on this machine (`Missing`).
`WHIMBREL_SDK_CACHE` moves the cache from `~/.cache/whimbrel-sdks`.
"""

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.cluster.processes import dev
from support.waiting import until
from whimbrel.client import Message
from whimbrel.client.sync import Producer
from whimbrel.errors import WhimbrelError
from whimbrel.testing.signals import send_signal

__all__ = [
    "LANGUAGES",
    "DevCluster",
    "Line",
    "Missing",
    "Program",
    "cache",
    "copied",
    "prepare",
    "remote_ports",
    "run",
    "tool",
]

LANGUAGES = ("python", "nodejs", "java", "go", "rust")
SOURCES = Path(__file__).resolve().parents[2] / "sdks"
ESTABLISHED = "01"  # in /proc/net/tcp
INSTALL_TIMEOUT_S = 900  # one step of it; Rust's compiles 200 crates

numbers = itertools.count()

Line = tuple[str, ...]


class Missing(Exception):
    """This machine lacks what an SDK needs."""


def cache() -> Path:
    """Return where SDKs are installed."""
    return Path(os.environ.get("WHIMBREL_SDK_CACHE") or Path.home() / ".cache" / "whimbrel-sdks")


def tool(name: str) -> str:
    """Return the path of a tool."""
    if (path := shutil.which(name)) is None:
        raise Missing(f"there is no {name} on the PATH")
    return path


def run(words: list[str], folder: Path, what: str, timeout: float) -> None:
    """Run an install step; without a network it can't succeed, which is no fault of ours."""
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"{what} took longer than {timeout} s") from None
    if done.returncode:
        raise Missing(f"{what} failed: {(done.stderr or done.stdout).strip()[-400:]}")


def copied(language: str, sources: Path = SOURCES, root: Path | None = None) -> Path:
    """Copy a program's sources into the cache, touching only what has changed, and return the folder."""
    folder = (root or cache()) / language
    for source in sorted((sources / language).rglob("*")):
        target = folder / source.relative_to(sources / language)
        if source.is_file() and (not target.exists() or target.read_bytes() != source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return folder


def node_packages(folder: Path, package: str, timeout: float) -> str:
    """Install what a program for Node.js needs where `package` is not yet; return the path of `node`."""
    node, npm = tool("node"), tool("npm")
    if not (folder / "node_modules" / package).exists():
        run([npm, "install", "--no-audit", "--no-fund"], folder, "npm install", timeout)
    return node


def java_classes(folder: Path, name: str, timeout: float) -> tuple[str, str]:
    """Fetch the jars of a Java program where they are not yet, and compile it; return `java` and the path."""
    java, javac, mvn = tool("java"), tool("javac"), tool("mvn")
    if not (folder / "jars").exists():
        words = ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'jars.part'}"]
        run([mvn, "-q", "-B", *words], folder, "mvn dependency:copy-dependencies", timeout)
        (folder / "jars.part").rename(folder / "jars")
    jars, classes = f"{folder / 'jars'}/*", str(folder / "classes")
    run([javac, "-cp", jars, "-d", classes, str(folder / f"{name}.java")], folder, "javac", timeout)
    return java, f"{classes}:{jars}"


@functools.cache
def prepare(language: str, timeout: float = INSTALL_TIMEOUT_S) -> tuple[str, ...]:
    """Install the SDK where it is not yet, and return the command that starts its program.

    Raises:
        Missing: a tool or the package is not to be had here, or not within `timeout` seconds a step.
    """
    if language == "python":
        return (sys.executable, str(SOURCES / "python" / "sdk.py"))
    if language == "nodejs":
        folder = copied(language)
        return (node_packages(folder, "rocketmq-client-nodejs", timeout), str(folder / "sdk.js"))
    if language == "java":
        folder = copied(language)
        java, path = java_classes(folder, "Sdk", timeout)
        flags = ("-Xmx128m", f"-Duser.home={folder}", "-Drocketmq.log.level=warn")
        return (java, *flags, "-cp", path, "Sdk")
    if language == "go":
        go = tool("go")
        folder = copied(language)
        run([go, "build", "-mod=mod", "-o", "sdk", "."], folder, "go build", timeout)
        return (str(folder / "sdk"),)
    assert language == "rust"
    cargo = tool("cargo")
    tool("protoc")
    folder = copied(language)
    run([cargo, "build", "--quiet"], folder, "cargo build", timeout)
    return (str(folder / "target" / "debug" / "sdk"),)


class Program:
    """A running SDK program; its lines are collected while it runs."""

    def __init__(self, language: str, role: str, endpoint: str, topic: str, *words: object) -> None:
        command = [*prepare(language), role, endpoint, topic, *map(str, words)]
        self.name = f"{language} {role}"
        self.lines: list[Line] = []
        self.times: list[float] = []
        self.log = tempfile.TemporaryFile()  # what the SDK writes to standard error
        self.child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | {"HOME": str(home(language))},
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        """Collect lines until the program ends."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.append(tuple(line.rstrip("\n").split("\t")))
            self.times.append(time.monotonic())

    def of(self, kind: str) -> list[Line]:
        """Return the lines of one kind, without that word."""
        return [line[1:] for line in list(self.lines) if line[0] == kind]

    def bodies(self, kind: str) -> list[str]:
        """Return the bodies that lines of one kind name."""
        return [line[0] for line in self.of(kind)]

    def wait_ready(self, timeout: float = 30.0) -> Self:
        """Wait until the SDK is started."""
        until(lambda: self.of("ready") or not self.running, timeout=timeout, what=f"{self.name} to start")
        assert self.of("ready"), f"{self.name}: {self.lines}"
        return self

    def wait_bodies(self, kind: str, bodies: set[str], timeout: float = 30.0) -> None:
        """Wait until lines of one kind have named all these bodies."""

        def lacking() -> str:
            missing = bodies - set(self.bodies(kind))
            return (
                f"{self.name}: {len(missing)} of {len(bodies)} to be {kind}, {sorted(missing)[:5]};"
                f" errors {self.of('error')[-3:]}"
            )

        until(lambda: bodies <= set(self.bodies(kind)), timeout=timeout, what=lacking)

    @property
    def running(self) -> bool:
        """Tell whether it runs."""
        return self.child.poll() is None

    def wait_more(self, kind: str, count: int, timeout: float, what: str) -> None:
        """Wait for that many more lines of one kind."""
        wanted = len(self.of(kind)) + count
        until(
            lambda: len(self.of(kind)) >= wanted,
            timeout=timeout,
            what=lambda: f"{self.name}: {what}: {self.lines[-3:]}",
        )

    def longest_pause(self, kind: str, since: float) -> float:
        """Return the longest time without a line of one kind, from a moment on to its last such line."""
        moments = [when for line, when in zip(self.lines, self.times, strict=False) if line[0] == kind]
        after = [since, *(when for when in moments if when > since)]
        return max((later - earlier for earlier, later in itertools.pairwise(after)), default=0.0)

    def freeze(self) -> None:
        """Stop its clock, as it were, until `thaw`."""
        send_signal(self.child.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it run on."""
        self.child.send_signal(signal.SIGCONT)

    def wait_ended(self, timeout: float = 40.0) -> Self:
        """Wait until it has ended by itself."""
        self.child.wait(timeout)
        self.reader.join(5)
        return self

    def end(self, timeout: float = 40.0) -> Self:
        """Close its standard input and wait until it has shut its client down."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        return self.wait_ended(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.child.kill()
            self.child.wait()
        if error is not None:
            self.log.seek(0)
            print(f"{self.name} ended with {self.child.returncode}; its last lines: {self.lines[-8:]}")
            print(self.log.read()[-2000:].decode(errors="replace"))
        self.log.close()


def remote_ports(pid: int) -> set[int]:
    """Return the ports to which a process has connections."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(str(link.readlink()))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, *rest = line.split()
            if state == ESTABLISHED and f"socket:[{rest[5]}]" in inodes:
                ports.add(int(remote.rpartition(":")[2], 16))
    return ports


def home(language: str) -> Path:
    """Return a home of their own for the programs: SDKs write logs there."""
    folder = cache() / "home" / language
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class DevCluster:
    """A running `whimbrel dev` with a master and a slave."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        directory.parent.mkdir(parents=True, exist_ok=True)
        self.log = directory.with_name(f"{directory.name}.out")
        self.child = dev(directory, self.log, *arguments)
        file = directory / "cluster.json"
        until(lambda: file.exists() or self.child.poll() is not None, timeout=60, what="cluster.json")
        assert self.child.poll() is None, self.log.read_text()

    def described(self) -> dict[str, Any]:
        """Return cluster.json."""
        return dict(json.loads((self.directory / "cluster.json").read_text()))

    @property
    def endpoint(self) -> str:
        """Return what clients connect to."""
        return str(self.described()["endpoint"])

    @property
    def masters(self) -> int:
        """Return how many brokers have topics."""
        return sum(each["role"] == "master" for each in self.described()["processes"])

    def pid(self, role: str) -> int:
        """Return the process id of the first process with this role."""
        return int(next(each for each in self.described()["processes"] if each["role"] == role)["pid"])

    def kill(self, role: str, *, hold: bool = False) -> int:
        """Kill a process (kill -9), and keep it down when `hold`; return its process id."""
        if hold:
            (self.directory / "run" / f"{role}.hold").touch()
        pid = self.pid(role)
        os.kill(pid, signal.SIGKILL)
        return pid

    def release(self, role: str) -> None:
        """Let a process that is kept down start again."""
        (self.directory / "run" / f"{role}.hold").unlink()

    def wait_restarted(self, role: str, pid: int) -> None:
        """Wait until a process with another process id has taken the place of a killed one."""
        until(lambda: self.pid(role) not in (0, pid), timeout=30, what=f"a new {role}")

    def wait_settled(self) -> None:
        """Wait until a topic that is new can be sent to: some SDKs do not try twice when they start."""
        until(self.takes_messages, timeout=30, what="the cluster")

    def takes_messages(self) -> bool:
        """Tell whether it takes a message for a topic that it does not know yet."""
        with Producer(self.endpoint) as producer:
            try:
                producer.send(Message(topic=f"settled-{next(numbers)}", body=b"x"))
            except WhimbrelError:
                return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        if error is not None:
            print(self.log.read_text())
