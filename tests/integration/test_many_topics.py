"""Topics made in a row: nameservers and slaves are sent what changes, and all end with the same tables."""

import json
from pathlib import Path

import grpc
import pytest

from support.cluster.broker_api import Api
from support.cluster.earlier import exchange, services_of
from support.cluster.processes import Cluster, Process
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = pytest.mark.process

NAMES = [f"made-{number:03d}" for number in range(300)]
SETTINGS: dict[str, object] = {"auto_create_topics": False}


def api(process: Process) -> Api:
    return Api(grpc.insecure_channel(process.grpc, options=[("grpc.max_reconnect_backoff_ms", 200)]))


def make(master: Api, *names: str) -> None:
    for name in names:
        master.administer("CreateTopic", topic=admin.Topic(name=name, read_queues=2, write_queues=2))


def table(process: Process) -> dict[str, int]:
    """Return the queues of the topics that a broker's file holds."""
    content = json.loads((process.store / "config" / "topics.json").read_text(encoding="utf-8"))
    rows = content["topicConfigTable"].items()
    return {name: row["writeQueueNums"] for name, row in rows if name.startswith("made-")}


def routes(nameserver: Api) -> dict[str, int]:
    """Return the queues of the topics that have a route."""
    found = {name: nameserver.route(name) for name in NAMES}
    return {name: len(route.message_queues) for name, route in found.items() if route.status.code == v2.OK}


def end_alike(cluster: Cluster, wanted: dict[str, int]) -> None:
    """Wait until the file, the slave and the routes are as they should be, and nothing else."""
    assert table(cluster.master) == wanted  # durable before it was answered
    nameserver, (slave,) = api(cluster.nameserver), cluster.slaves
    until(lambda: routes(nameserver) == wanted, timeout=20, what="the routes")
    until(lambda: table(slave) == wanted, timeout=20, what="the slave's file")
    listed = api(slave).administer("ListTopics").topics
    assert {topic.name: topic.write_queues for topic in listed} == wanted


def test_topics_made_changed_and_deleted_in_a_row_are_in_route_slave_and_file(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=1, broker=SETTINGS) as cluster:
        cluster.wait_usable()
        master = api(cluster.master)
        make(master, *NAMES)
        end_alike(cluster, dict.fromkeys(NAMES, 2))
        for name in NAMES[:20]:
            master.administer("UpdateTopic", name=name, read_queues=5, write_queues=5)
        for name in NAMES[10:30]:
            master.administer("DeleteTopic", name=name)
        end_alike(cluster, dict.fromkeys(NAMES[:10], 5) | dict.fromkeys(NAMES[30:], 2))


def test_a_nameserver_and_a_slave_that_were_away_meanwhile_end_with_the_same_topics(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=1, broker=SETTINGS) as cluster:
        cluster.wait_usable()
        master = api(cluster.master)
        make(master, *NAMES[:50])
        cluster.nameserver.kill()
        cluster.slaves[0].kill()
        master.administer("DeleteTopic", name=NAMES[7])
        make(master, *NAMES[50:100])
        cluster.nameserver.launch()
        cluster.slaves[0].launch()
        make(master, *NAMES[100:])  # while they come back
        master.administer("DeleteTopic", name=NAMES[120])
        cluster.nameserver.wait_ready()
        cluster.slaves[0].wait_ready()
        end_alike(cluster, {name: 2 for name in NAMES if name not in (NAMES[7], NAMES[120])})


@pytest.mark.parametrize("which", ["nameserver", "master", "slave"])
def test_processes_of_an_earlier_version_end_with_the_same_topics(which: str, tmp_path: Path) -> None:
    """They know nothing of changes, and are sent, or send, whole tables."""
    old = services_of("a83429d", tmp_path)
    with Cluster(tmp_path / "cluster", slaves=1, broker=SETTINGS) as cluster:
        cluster.wait_usable()
        exchange(
            {"nameserver": cluster.nameserver, "master": cluster.master}.get(which, cluster.slaves[0]), old
        )
        cluster.wait_usable()
        master = api(cluster.master)
        make(master, *NAMES[:40])
        master.administer("UpdateTopic", name=NAMES[0], read_queues=5, write_queues=5)
        master.administer("DeleteTopic", name=NAMES[1])
        end_alike(cluster, {NAMES[0]: 5} | dict.fromkeys(NAMES[2:40], 2))
