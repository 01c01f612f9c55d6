"""The same program on one machine, a cluster within it, a standalone cluster, and through Spark Connect.

Everything binds to loopback. The program is started by the path of its interpreter alone, as from a service:
no environment is activated, so Spark has to be told which Python finds the source.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.topics import fill
from support.cluster.processes import Cluster, environment
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("program.py")
MESSAGES = 300


def bare() -> dict[str, str]:
    """Return an environment in which no Python environment is activated."""
    java = shutil.which("java")
    assert java is not None
    folders = [str(Path(java).parent), "/usr/bin", "/bin"]
    return environment() | {"PATH": os.pathsep.join(folders), "SPARK_LOCAL_IP": "127.0.0.1"}


def run(master: str, cluster: Cluster, topic: str, folder: Path) -> dict[str, list[Any]]:
    """Run the program and return what it saw."""
    command = [sys.executable, str(PROGRAM), master, cluster.endpoint, topic]
    stores = [str(cluster.master.store), str(cluster.slaves[0].store)]
    done = subprocess.run(
        [*command, *stores, str(folder)], env=bare(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, list[Any]]) -> None:
    assert found["batch"][0] == MESSAGES
    assert found["batch"] == found["store"] == found["stream"] == found["archive"]
    findings, equal = found["audit"]
    assert findings == [] and equal > 0


@contextlib.contextmanager
def spark_class(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """Run one of Spark's own programs; give its log."""
    import pyspark

    home = Path(pyspark.__file__).parent
    log = folder / f"{name.rpartition('.')[2]}.log"
    settings = {"SPARK_HOME": str(home), "SPARK_NO_DAEMONIZE": "1", "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", name, *arguments],
            env=bare() | settings,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


def said(log: Path, pattern: str) -> "re.Match[str]":
    """Wait for a line in a log."""
    found: Any = until(lambda: re.search(pattern, log.read_text()), timeout=90, what=pattern)
    return found  # type: ignore[no-any-return]


def test_on_one_machine_without_an_activated_environment(cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster, "here", MESSAGES)
    check(run("local[2]", cluster, "here", tmp_path))


@pytest.mark.slow  # the last one has workers of its own, too
def test_on_a_cluster_within_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster, "within", MESSAGES)
    check(run("local-cluster[2,1,1024]", cluster, "within", tmp_path))


@pytest.mark.slow
def test_on_a_standalone_cluster(cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster, "standalone", MESSAGES)
    package = "org.apache.spark.deploy"
    loopback = "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
    with spark_class(tmp_path, f"{package}.master.Master", *loopback) as master:
        url = said(master, r"Starting Spark master at (spark://\S+)")[1]
        worker_arguments = (
            *loopback,
            "--cores",
            "2",
            "--memory",
            "1g",
            "--work-dir",
            str(tmp_path / "work"),
            url,
        )
        with spark_class(tmp_path, f"{package}.worker.Worker", *worker_arguments) as worker:
            said(worker, "Successfully registered with master")
            check(run(url, cluster, "standalone", tmp_path))


def test_through_spark_connect(cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster, "connect", MESSAGES)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    chosen = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = "org.apache.spark.deploy.SparkSubmit"
    with spark_class(tmp_path, submit, "--class", server, *chosen, "spark-internal") as log:
        said(log, "Spark Connect server started at")
        check(run(f"sc://127.0.0.1:{port}", cluster, "connect", tmp_path))
