"""The programs of the scenarios, one for each client; what they need is fetched and compiled once.

    prepare("java-4.9.3")                        its command; `Missing` says what this machine lacks
    scenarios("java-4.9.3")                      the names of its scenarios
    outcomes("java-4.9.3", cluster, ["send_sync"], tmp_path)["send_sync"]

All speak alike: `PROGRAM NAMESERVER RUN SCENARIO ...` plays scenarios whose topics and groups are named after
RUN, and prints a line for each, "@outcome " and JSON: its name, its outcome, seconds. Without words a program
prints the names of its scenarios. An outcome has nothing that differs between two runs: no ports, ids, times.

`java-4.9.3` and `java-5.3.3` are RocketMQ's remoting clients, one source with two class paths; `go` is
client-go v2; `cpp` is librocketmq, by the wheel `rocketmq` in an environment of its own.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from official.clusters import Cluster
from official.running import compile_java
from support.systems import real_broker
from support.systems.sdk_programs import Missing, cache, copied, tool
from support.systems.sdk_programs import run as install
from support.waiting import until

__all__ = ["PROGRAMS", "Outcome", "outcomes", "prepare", "scenarios"]

PROGRAMS = ("java-4.9.3", "java-5.3.3", "go", "cpp")
HERE = Path(__file__).resolve().parent
INSTALL_TIMEOUT_S = 300
LIST_TIMEOUT_S = 30
MARK = "@outcome "
QUEUES = 2  # of a topic at each broker, for programs that don't make their own
ROUTE = 105


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario gave, and how long it took."""

    said: dict[str, Any]
    seconds: float


@functools.cache
def prepare(program: str) -> tuple[str, ...]:
    """Fetch and compile what is not there yet, and return the command.

    Raises:
        Missing: a tool or a package is not to be had here.
    """
    root = cache() / "clients4"
    if program == "go":
        return go(copied("go", sources=HERE, root=root))
    if program == "cpp":
        return cpp(root)
    return java(program.removeprefix("java-"), copied("java", sources=HERE, root=root))


def java(version: str, folder: Path) -> tuple[str, ...]:
    """Compile the Java program with one version of the client."""
    java, javac, _ = tool("java"), tool("javac"), tool("mvn")
    try:
        jars = real_broker.resolved(version).strip()
    except AssertionError as error:
        raise Missing(str(error)) from None
    classes = folder / f"classes-{version}"
    sources = sorted([*folder.glob("*.java"), *(folder / f"shim-{version}").glob("*.java")])
    compile_java(javac, jars, sources, classes)
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return (java, *flags, "-cp", f"{classes}:{jars}", "Scenarios")


def go(folder: Path) -> tuple[str, ...]:
    """Build the Go program."""
    install([tool("go"), "build", "-mod=mod", "-o", "scenarios", "."], folder, "go build", INSTALL_TIMEOUT_S)
    return (str(folder / "scenarios"),)


def cpp(root: Path) -> tuple[str, ...]:
    """Make an environment with the wheel that brings librocketmq."""
    environment = root / "cpp"
    python = environment / "bin" / "python"
    if not (environment / "done").exists():
        install([sys.executable, "-m", "venv", str(environment)], root, "venv", INSTALL_TIMEOUT_S)
        words = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "rocketmq==0.4.4"]
        install(words, root, "pip install rocketmq", INSTALL_TIMEOUT_S)
        (environment / "done").touch()
    return (str(python), str(HERE / "cpp" / "scenarios.py"))


def make_topics(cluster: Cluster, topics: Sequence[str]) -> None:
    """Make topics at all brokers, and wait until they are routed."""
    for address in cluster.brokers.values():
        with real_broker.Remoting(address) as broker:
            for topic in topics:
                broker.create_topic(topic, QUEUES)
    with real_broker.Remoting(cluster.name_server) as names:

        def routed(topic: str) -> bool:
            _, body = names.call(ROUTE, {"topic": topic})
            return all(f'"{broker}"'.encode() in body for broker in cluster.brokers)

        for topic in topics:
            until(functools.partial(routed, topic), what=f"the route of {topic}")


def scenarios(program: str) -> list[str]:
    """Return the names of a program's scenarios."""
    done = subprocess.run(
        prepare(program), capture_output=True, text=True, timeout=LIST_TIMEOUT_S, check=True
    )
    return done.stdout.split()


def outcomes(
    program: str, cluster: Cluster, names: Sequence[str], root: Path, *, timeout_s: float = 300.0
) -> dict[str, Outcome]:
    """Play scenarios against a cluster; one that did not end in time is missing.

    Args:
        root: for the program's logs, and what the client keeps at home.
    """
    root.mkdir(parents=True, exist_ok=True)
    run = f"{time.time_ns() // 1_000_000:x}"
    command = list(prepare(program))
    if not program.startswith("java"):
        make_topics(cluster, [f"T_{run}_{name}" for name in names])
    else:
        command[1:1] = [f"-Duser.home={root}", f"-Drocketmq.client.logRoot={root}"]
    with (root / "out.log").open("wb") as log:
        child = subprocess.Popen(
            [*command, cluster.name_server, run, *names],
            stdout=log,
            stderr=log,
            env=os.environ | {"HOME": str(root)},
            cwd=root,
            start_new_session=True,
        )
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # it, and what it started
            child.wait()
    found = {}
    for line in (root / "out.log").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(MARK):
            said = json.loads(line.removeprefix(MARK))
            found[said["scenario"]] = Outcome(said["outcome"], said["seconds"])
    return found
