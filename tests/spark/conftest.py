"""One Spark session for all tests that need one; without Java or PySpark they are skipped, with the reason.

REQUIRE_SPARK=1    what is missing is a failure, not a reason to skip
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import SERVICES, Cluster

JAVA_MIN = 17


def spark_problem() -> str:
    """Return why Spark can't run here, "" when it can."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        return f"{error}; install whimbrel[spark]"
    java = shutil.which("java")
    if java is None:
        return "no java on the PATH"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = said.partition('"')[2].partition('"')[0].partition(".")[0]
    good = version.isdigit() and int(version) >= JAVA_MIN
    return "" if good else f"java is of version {version!r}, not {JAVA_MIN} or later"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where Spark can't run."""
    ours = [item for item in items if Path(item.path).is_relative_to(Path(__file__).parent)]
    if ours and (problem := spark_problem()) and not os.environ.get("REQUIRE_SPARK"):
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=problem))


def settings(builder: Any) -> Any:
    """Set what all sessions of tests have: loopback only, no UI, few shuffle partitions."""
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    }.items():
        builder = builder.config(key, value)
    return builder


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Give the session. Nothing is registered with it: Spark finds the source by its name."""
    if problem := spark_problem():
        pytest.fail(f"REQUIRE_SPARK is set, and {problem}")
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = str(SERVICES)  # of the workers
    session = settings(SparkSession.builder.master("local[2,3]").appName("whimbrel-tests")).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster that the tests of a session share, each with topics of its own."""
    with Cluster(tmp_path_factory.mktemp("cluster"), broker={"commitlog_file_size": 1 << 24}) as running:
        running.wait_usable()
        yield running


@pytest.fixture
def read(spark: Any, cluster: Cluster) -> Callable[..., Any]:
    """Return what reads a topic as a batch."""

    def load(topic: str, **options: object) -> Any:
        reader = spark.read.format("whimbrel").option("servers", cluster.endpoint).option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return load
