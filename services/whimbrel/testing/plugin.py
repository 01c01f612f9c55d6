"""The pytest plugin: fixtures that are there when whimbrel is installed.

    whimbrel_cluster    a `whimbrel.testing.Cluster` for the session; `.endpoint` is what clients take
    whimbrel_topic      the name of a topic that was created for this one test
    whimbrel_options    the cluster's keyword arguments; override it in a conftest.py

What a test has killed or paused is restored after it. The report of a failed test has the lines that each
process logged during it. With pytest-xdist each worker has a cluster of its own.

pytest loads this module in every run, so the client library is imported only when a fixture needs it.
"""

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from whimbrel.testing.cluster import Cluster

__all__ = ["whimbrel_cluster", "whimbrel_options", "whimbrel_topic"]

CLUSTER = pytest.StashKey[Cluster]()
MODES = ("async", "sync")
REPLICATIONS = (*MODES, "majority")
REPLICATION_HELP = "sync: a send is answered when a slave has it; majority: when most brokers do"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options, each on the command line and in the ini file."""
    group = parser.getgroup("whimbrel", "the cluster of whimbrel_cluster")
    parser.addini("whimbrel_slaves", "how many slaves the cluster has", default="0")
    parser.addini("whimbrel_replication", REPLICATION_HELP, default="async")
    parser.addini("whimbrel_flush", "sync: a send is answered when it is on the disk", default="async")
    parser.addini("whimbrel_strict", "topics and groups must be created before use", "bool", default=False)
    parser.addini("whimbrel_keep", "keep the cluster's directory when a test fails", "bool", default=False)
    group.addoption("--whimbrel-slaves", metavar="N", type=int, help="how many slaves")
    group.addoption("--whimbrel-replication", choices=REPLICATIONS, help=REPLICATION_HELP)
    group.addoption("--whimbrel-flush", choices=MODES, help="sync: a send is answered when it is on the disk")
    group.addoption(
        "--whimbrel-strict", action="store_true", help="topics and groups must be created before use"
    )
    group.addoption(
        "--whimbrel-keep", action="store_true", help="keep the directory when a test fails, and say where"
    )


def chosen(config: pytest.Config, name: str) -> Any:
    """Return an option: of the command line, else of the ini file."""
    given = config.getoption(f"whimbrel_{name}")
    return given if given not in (None, False) else config.getini(f"whimbrel_{name}")


@pytest.fixture(scope="session")
def whimbrel_options(pytestconfig: pytest.Config) -> dict[str, Any]:
    """Give the keyword arguments of the session's `Cluster`; override this to choose others."""
    slaves, replication, flush = (chosen(pytestconfig, name) for name in ("slaves", "replication", "flush"))
    chosen_of = (("whimbrel_replication", replication, REPLICATIONS), ("whimbrel_flush", flush, MODES))
    for name, mode, modes in chosen_of:
        if mode not in modes:
            raise pytest.UsageError(f"{name} = {mode}: it is one of {', '.join(modes)}")
    if not str(slaves).isdigit():
        raise pytest.UsageError(f"whimbrel_slaves = {slaves}: it is a number")
    return {
        "slaves": int(slaves),
        "replication": replication,
        "flush": flush,
        "strict": chosen(pytestconfig, "strict"),
    }


@pytest.fixture(scope="session")
def whimbrel_cluster(whimbrel_options: dict[str, Any], pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Give a running cluster, which is the same for all tests of the session."""
    with Cluster(**{"label": os.environ.get("PYTEST_XDIST_WORKER", "")} | whimbrel_options) as cluster:
        pytestconfig.stash[CLUSTER] = cluster
        try:
            yield cluster
        finally:
            del pytestconfig.stash[CLUSTER]


@pytest.fixture
def whimbrel_topic(request: pytest.FixtureRequest, whimbrel_cluster: Cluster) -> str:
    """Give the name of a topic that exists, and that no other test uses."""
    return whimbrel_cluster.new_topic(request.node.name)


def cluster_of(item: pytest.Item) -> Cluster | None:
    """Return the cluster, if it runs and this test uses it."""
    if "whimbrel_cluster" not in getattr(item, "fixturenames", ()):
        return None
    return item.config.stash.get(CLUSTER, None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note where the logs end: a report shows what comes after that."""
    if cluster := cluster_of(item):
        cluster.mark_logs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the processes have logged to the report of a failure."""
    report = yield
    cluster = cluster_of(item)
    if cluster is not None and report.failed:
        for name, text in cluster.excerpts().items():
            report.sections.append((f"whimbrel {name}", text))
        if chosen(item.config, "keep"):
            cluster.keep = True
            report.sections.append(("whimbrel directory", f"kept in {cluster.directory}"))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Restore what the test has killed or paused, once its own fixtures are torn down."""
    try:
        result = yield
    finally:
        cluster = cluster_of(item)
        if cluster is not None and cluster.disturbed:
            cluster.restore()
    return result
