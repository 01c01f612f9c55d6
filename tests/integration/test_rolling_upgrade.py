"""A cluster of an earlier version is taken to this one, one process after the other, under load.

The order is that of docs/upgrade.md: slave, nameserver, master. Nothing acknowledged is missing afterwards,
the group gets everything, both logs end alike, and both stores are without damage.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.cluster.earlier import CURRENT, exchange, released, releases, services_of
from support.cluster.processes import Cluster
from support.history.noting import Load, read_all
from support.waiting import until
from whimbrel.client.sync import Admin
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.verify import verify

TOPIC = "orders"
AFTER_EACH = 40  # messages acknowledged after each process before the next one is exchanged


@pytest.mark.timeout(300)  # a release that nobody has built yet is compiled
@pytest.mark.parametrize(
    ("version", "back"),
    [
        *((version, False) for version in releases()),
        *(pytest.param(version, True, marks=pytest.mark.slow) for version in releases()),
        ("3d4ebd2", False),
        ("a83429d", False),
        pytest.param("a83429d", True, marks=pytest.mark.slow),
    ],
)
def test_a_cluster_is_upgraded_process_by_process_under_load(
    version: str, back: bool, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """From a release, or from a commit before the first one; and back again, with `back`."""
    old, new = released(version) if version in releases() else services_of(version, tmp_path), CURRENT
    settings: dict[str, object] = {"replication": "sync", "commitlog_file_size": 64 * 1024}
    cluster = Cluster(tmp_path / "cluster", start=False, broker=settings)
    with cluster:
        cluster.nameserver.services = old
        cluster.nameserver.start()
        cluster.master, cluster.slaves = cluster.broker("master", 0), [cluster.broker("slave", 1)]
        cluster.master_replicator = cluster.replicator("master", 0)
        cluster.slave_replicators = [cluster.replicator("slave", 1)]
        cluster.started = True
        for process in cluster.processes:
            process.services = old
        cluster.restart()
        cluster.wait_usable()
        with Admin(cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=2)
        with Load(cluster.endpoint, TOPIC, producers=1) as load:
            load.wait_for(AFTER_EACH, "the first messages")
            slave, slave_replicator = cluster.slaves[0], cluster.slave_replicators[0]
            order = (slave_replicator, slave, cluster.nameserver, cluster.master_replicator, cluster.master)
            for services in (new, old) if back else (new,):
                for process in order:
                    exchange(process, services)
                    load.wait_for(AFTER_EACH, f"messages after {process.name} was exchanged")
            load.stop_sending()
            load.settle()
        findings = load.check(read_all(cluster.endpoint, TOPIC))
        measured(f"{load.history.summary}, {len(findings)} findings")
        assert findings == []
        pages = [SharedPage.open(process.store) for process in (cluster.master, slave)]
        until(lambda: pages[0].written == pages[1].written, what="the slave in step")
        for page in pages:
            page.close()
        assert set(cluster.stop().values()) == {0}
    for process in (cluster.master, slave):
        assert verify(process.store) == []
