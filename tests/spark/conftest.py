"""One Spark session for all tests that need one; without Java or PySpark they are skipped, with the reason.

REQUIRE_SPARK=1    what is missing is a failure, not a reason to skip
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.commands import Command, Done
from spark.topics import confirmed
from support.cluster.processes import SERVICES, Cluster
from whimbrel.cli.main import main
from whimbrel.cli.spark import running
from whimbrel.spark import session
from whimbrel.spark.session import java_problem


def spark_problem() -> str:
    """Return why Spark can't run here, "" when it can."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        return f"{error}; install the extra `spark`"
    return java_problem(os.environ)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where Spark can't run."""
    ours = [item for item in items if Path(item.path).is_relative_to(Path(__file__).parent)]
    if ours and (problem := spark_problem()) and not os.environ.get("REQUIRE_SPARK"):
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=problem))


# Sessions live for seconds here: what the second compiler would gain, it costs many times over.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    # Compiling a query takes longer than running it here.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Give the session. Nothing is registered with it: Spark finds the source by its name."""
    if problem := spark_problem():
        pytest.fail(f"REQUIRE_SPARK is set, and {problem}")
    os.environ["PYTHONPATH"] = str(SERVICES)  # of the workers
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA)
    running = session("local[2,3]", **SETTINGS)
    running.sparkContext.setLogLevel("ERROR")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster that the tests of a session share, each with topics of its own."""
    with Cluster(tmp_path_factory.mktemp("cluster"), broker={"commitlog_file_size": 1 << 24}) as running:
        running.wait_usable()
        yield running


@pytest.fixture
def read(spark: Any, cluster: Cluster) -> Callable[..., Any]:
    """Return what reads a topic as a batch, with all that was acknowledged before."""

    def load(topic: str, **options: object) -> Any:
        confirmed(cluster)
        reader = spark.read.format("whimbrel").option("servers", cluster.endpoint).option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return load


@pytest.fixture
def command(spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Give what runs `whimbrel spark ...` with the session that all tests share."""

    @contextlib.contextmanager
    def shared(master: str, config: Any) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(running, "session_for", shared)
    monkeypatch.delenv("WHIMBREL_ENDPOINT", raising=False)

    def run(*words: object) -> Done:
        capsys.readouterr()
        code = main(["spark", *map(str, words)])
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def follow(spark: Any, tmp_path: Path) -> Callable[..., Any]:
    """Return what runs an AvailableNow query into a folder of Parquet to its end, and gives the query."""

    def run(endpoint: str, topic: str, **options: object) -> Any:
        reader = spark.readStream.format("whimbrel").option("servers", endpoint).option("subscribe", topic)
        for name, value in {"startingOffsets": "earliest", **options}.items():
            reader = reader.option(name, str(value))
        query = (
            reader.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(240)
        return query

    return run
