"""The modes of everything that real brokers and replicators make, and of a store that was there before."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.processes import Cluster
from support.waiting import until
from whimbrel.client import sync
from whimbrel.model.message import Message

pytestmark = pytest.mark.process

ROLL = 24  # messages of this many fill a commitlog file of 1 MiB
BODY = os.urandom(50_000)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Start the processes from a shell with the usual umask, whatever the tests' own is."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def stores(cluster: Cluster) -> list[Path]:
    return [cluster.master.store, cluster.slaves[0].store]


def modes(roots: list[Path]) -> dict[str, set[str]]:
    """Return the modes of all below, by the kind of file."""
    found: dict[str, set[str]] = {"directory": set(), "file": set(), "socket": set()}
    for root in roots:
        for path in (root, *root.rglob("*")):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a draft that has got its place and its name meanwhile
                continue
            kind = "directory" if stat.S_ISDIR(mode) else "socket" if stat.S_ISSOCK(mode) else "file"
            found[kind].add(f"{stat.S_IMODE(mode):o}")
    return found


def traffic(cluster: Cluster, topic: str) -> None:
    """Send so much that the log rolls, receive and acknowledge, and wait for the slave."""
    with sync.Producer(cluster.endpoint) as producer:
        for number in range(ROLL):
            producer.send(Message(topic=topic, body=BODY, keys=(f"k{number}",)))
    with sync.Consumer(cluster.endpoint, "g", {topic: "*"}) as consumer:
        for message in consumer.receive(8, wait_s=10):
            consumer.ack(message)
    ends = [store / "commitlog" for store in stores(cluster)]
    until(lambda: all(len(list(end.glob("0*"))) >= 2 for end in ends), what="rolled logs on both sides")


def log_of(cluster: Cluster) -> str:
    return cluster.master.log.read_text()


@pytest.mark.parametrize(
    ("mode", "directories", "files", "sockets"),
    [("private", "700", "600", "700"), ("group", "750", "640", "750")],
)
def test_everything_below_a_store_has_the_mode_of_the_setting(
    tmp_path: Path, mode: str, directories: str, files: str, sockets: str
) -> None:
    settings: dict[str, object] = {} if mode == "private" else {"store_mode": mode}  # private is the default
    with Cluster(tmp_path, broker=settings, replicator=settings) as cluster:
        traffic(cluster, "first")
        cluster.stop()
        cluster.restart()
        traffic(cluster, "second")
        expected = {"directory": {directories}, "file": {files}, "socket": {sockets}}
        assert modes(stores(cluster)) == expected
        assert "other users may read" not in log_of(cluster)


def test_a_store_of_an_earlier_version_opens_keeps_its_modes_and_is_told(tmp_path: Path) -> None:
    everybody: dict[str, object] = {"store_mode": "all"}
    with Cluster(tmp_path, broker=everybody, replicator=everybody) as cluster:
        traffic(cluster, "first")
        assert modes(stores(cluster)) == {"directory": {"755"}, "file": {"644"}, "socket": {"755"}}
        assert "other users may read" not in log_of(cluster)
        log = cluster.master.store / "commitlog" / ("0" * 20)
        for process in cluster.processes:
            process.settings.pop("store_mode", None)
        cluster.stop()
        cluster.restart()
        traffic(cluster, "second")
        warnings = [line for line in log_of(cluster).splitlines() if "other users may read" in line]
        assert len(warnings) == 1
        assert f"`chmod -R go-rwx {cluster.master.store}` tightens it" in warnings[0]
        assert stat.S_IMODE(log.stat().st_mode) == 0o644
        assert stat.S_IMODE((cluster.master.store / "consumequeue" / "second").stat().st_mode) == 0o700
        assert os.system(f"chmod -R go-rwx {cluster.master.store} {cluster.slaves[0].store}") == 0
        cluster.stop()
        cluster.restart()
        traffic(cluster, "third")
        assert modes(stores(cluster)) == {"directory": {"700"}, "file": {"600"}, "socket": {"700"}}
