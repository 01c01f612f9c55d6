"""What this machine lacks for the tests, and which of them are skipped for it: said before a run begins.

Each test decides for itself whether it can run, by looking for what it needs; this list says it beforehand,
in one place. What was skipped, and why, stands at the end of a run as the tests gave it. `REQUIRE_LANE`,
`REQUIRE_SPARK`, `REQUIRE_DOCKER`, `REQUIRE_ETCD` make an absence a failure.
"""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from containers.rig import engine_problem
from etcd import NoEtcd
from etcd import programs as find_etcd
from whimbrel.machine import MACHINE
from whimbrel.spark.session import java_problem

__all__ = ["NEEDS", "SLOW_NEEDS", "Need", "lacking"]


@dataclass(frozen=True)
class Need:
    """What some tests need.

    Attributes:
        missing: says what is missing here, "" when nothing is.
        tests: which tests are skipped without it.
        remedy: what to do about it.
    """

    missing: Callable[[], str]
    tests: str
    remedy: str


def programs(*names: str) -> Callable[[], str]:
    """Return what looks for programs on the PATH."""

    def look() -> str:
        absent = [name for name in names if shutil.which(name) is None]
        return f"no {' and no '.join(absent)} on the PATH" if absent else ""

    return look


def modules(*names: str) -> Callable[[], str]:
    """Return what looks for Python's modules."""

    def look() -> str:
        absent = [name for name in names if importlib.util.find_spec(name) is None]
        return f"no module {' and no '.join(absent)}" if absent else ""

    return look


def java() -> str:
    """Say why Spark finds no Java that it takes."""
    return modules("pyspark", "pyarrow")() or java_problem(os.environ)


def lane() -> str:
    """Say why the compiled lane can't be used."""
    return "" if MACHINE.lane.active else f"no compiled lane, because {MACHINE.lane.why}"


def etcd() -> str:
    """Say that etcd is not here, and can't be fetched from Debian's packages."""
    try:
        find_etcd()
    except NoEtcd as error:
        return str(error)
    return ""


def cpp() -> str:
    """Say that gRPC's C++ library is not here."""
    missing = programs("g++", "pkg-config")()
    if not missing and subprocess.run(["pkg-config", "--exists", "grpc++"], check=False).returncode:
        missing = "no grpc++ that pkg-config knows"
    return missing


NEEDS = (
    Need(lane, "what compares the compiled lane with Python", "install cargo (rustup), then `make setup`"),
    Need(programs("java", "mvn"), "tests/interop, tests/official and Java's clients", "apt install maven"),
    Need(java, "tests/spark", "install Java 17 or later"),
    Need(engine_problem, "tests/containers", "start a Docker engine"),
    Need(programs("prometheus", "promtool"), "alerts and rules by Prometheus", "apt install prometheus"),
    Need(programs("tmux"), "how `whimbrel dev` looks in a terminal", "apt install tmux"),
    Need(etcd, "elections by etcd", "install etcd-server and etcd-client"),
    Need(programs("strace"), "syncs that fail under real processes", "apt install strace"),
    Need(programs("go"), "h2spec, and Go's clients", "install Go"),
    Need(programs("node", "npm"), "Node.js's clients", "install Node.js"),
    Need(programs("g++", "make"), "the load generator of bench/load", "apt install g++ make"),
)
SLOW_NEEDS = (
    Need(programs("cargo", "protoc"), "Rust's SDK", "apt install protobuf-compiler"),
    Need(cpp, "gRPC's C++ library as a client", "apt install pkg-config libgrpc++-dev"),
)


def lacking(*, slow: bool = False) -> Iterator[str]:
    """Yield a line for each need that is not met; `slow`: those of slow tests as well."""
    for need in (*NEEDS, *(SLOW_NEEDS if slow else ())):
        if problem := need.missing():
            yield f"{problem} ({need.remedy}); skipped: {need.tests}"
