"""A Spark session for the source: on loopback, with a clear error where Java is missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JAVA_MIN", "NoJava", "attach", "java_problem", "session"]

JAVA_MIN = 17  # of Spark 4
JAVA_ASK_S = 30.0
LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
# For the option `pushdown`; it does not affect sources that do not ask for filters.
FILTERS = {"spark.sql.python.filterPushdown.enabled": "true"}


class NoJava(RuntimeError):
    """Spark needs Java, and there is none that it can use."""


def java_problem(environment: Mapping[str, str], version_of: Callable[[str], str] | None = None) -> str:
    """Return what is wrong with Java, in one sentence; "" when nothing is.

    Args:
        environment: with JAVA_HOME, which Spark takes first, and PATH.
        version_of: returns the output of `java -version`.
    """
    install = f"install Java {JAVA_MIN} or later (Debian: apt install openjdk-{JAVA_MIN}-jre-headless)"
    home = environment.get("JAVA_HOME", "")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if not java or not Path(java).exists():
        where = (
            f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no java on the PATH"
        )
        return f"Spark needs Java, and {where}: {install}"
    output = (version_of or java_version)(java)
    number = output.partition('"')[2].partition('"')[0].partition(".")[0]
    if not number.isdigit() or int(number) < JAVA_MIN:
        found = number or "none that it can use"
        return f"Spark needs Java {JAVA_MIN} or later, and {java} is {found}: {install}"
    return ""


def java_version(java: str) -> str:
    """Return the output of `java -version`; "" when it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr


def attach(spark: "SparkSession") -> None:
    """Commit the progress of a session's streams that have the option `group`; `session` has done so."""
    from whimbrel.spark import progress  # imports grpc, which asking for Java does not need

    progress.attach(spark)


def session(master: str = "local[*]", **settings: str) -> "SparkSession":
    """Return a session, bound to loopback and without a UI; `settings` win over ours.

    Names of settings have dots, so they are passed as `**{"spark.driver.memory": "4g"}`. With
    `sc://HOST:PORT` as master, the session is one of a Spark Connect server, and needs no Java here.

    Raises:
        NoJava: Java is missing or too old; the text says what to install.
    """
    remote = master.startswith("sc://")
    if not remote and (problem := java_problem(os.environ)):
        raise NoJava(problem)
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark looks for data sources with this Python, by default with the first `python3`.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local-cluster"):  # its executors are started by scripts of the installation
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    builder = SparkSession.builder.remote(master) if remote else SparkSession.builder.master(master)
    builder = builder.appName("whimbrel")
    for name, value in {**({} if remote else LOOPBACK), **FILTERS, **settings}.items():
        builder = builder.config(name, value)
    running = builder.getOrCreate()
    attach(running)
    return running
