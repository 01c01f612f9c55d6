"""RocketMQ's own admin tool at a nameserver of ours with two brokers. Numbers are the checklist's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.processes import Process
from support.systems.real_broker import Remoting, kit, need_kit
from support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

SMALL: dict[str, object] = {
    "commitlog_file_size": 1 << 20,
    "consumequeue_file_size": 20_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
    "cluster": "DefaultCluster",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the port that RocketMQ's tools are told."""
    need_kit()
    root = tmp_path_factory.mktemp("cluster")
    with Process(root, "nameserver", "nameserver", remoting_port=0, renew_s=0.2) as nameserver:
        brokers = [a_broker(root, nameserver.grpc, letter) for letter in "ab"]
        try:
            for each in brokers:
                each.start()
            address = str(nameserver.ready["remoting"])
            until(lambda: registered(address) == 2, what="both brokers are registered")
            yield address
        finally:
            for each in brokers:
                each.kill()


def a_broker(root: Path, nameserver: str, letter: str) -> Process:
    process = Process(root, "broker", f"broker-{letter}", **SMALL)
    process.settings |= {"name": f"broker-{letter}", "store": root / letter, "nameservers": nameserver}
    return process


def registered(address: str) -> int:
    """Return how many brokers the nameserver knows."""
    with Remoting(address) as peer:
        _, body = peer.call(106, {})
    return body.decode().count('"brokerName"')


def tool(version: str, address: str, *words: str) -> str:
    """Run a command of the tool, and return what it prints."""
    return kit("admin", version, *words, "-n", address)


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_mqadmin_reads_and_changes_what_a_nameserver_has(address: str, version: str) -> None:
    """6.1/46, 47 and 51: each row of the name server's without an exception; changes show in routes."""
    topic = f"T{version.replace('.', '_')}"

    def run(*words: str) -> str:
        return tool(version, address, *words)

    def route() -> str:
        return "".join(run("topicRoute", "-t", topic).split())

    assert {"broker-a", "broker-b", "BenchmarkTest", "DefaultCluster_REPLY_TOPIC"} <= set(
        run("topicList").split()
    )
    shown = run("clusterList")
    assert "broker-a" in shown
    assert "broker-b" in shown
    assert "success" in run("updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4")
    assert route().count('"perm":6,"readQueueNums":4') == 2
    assert run("topicClusterList", "-t", topic).split()[-1] == "DefaultCluster"

    assert "success" in run("updateKvConfig", "-s", "NSX", "-k", "a", "-v", "b")
    assert "success" in run("deleteKvConfig", "-s", "NSX", "-k", "a")
    assert "success" in run("updateOrderConf", "-m", "put", "-t", topic, "-v", "broker-a:4;broker-b:4")
    assert "orderConf=[broker-a:4;broker-b:4]" in run("updateOrderConf", "-m", "get", "-t", topic)
    assert '"orderTopicConf":"broker-a:4;broker-b:4"' in route()
    assert "success" in run("updateOrderConf", "-m", "delete", "-t", topic)

    assert "OK, " in run("wipeWritePerm", "-b", "broker-a")
    assert '"brokerName":"broker-a","perm":4' in route()
    assert "OK, " in run("addWritePerm", "-b", "broker-a")
    assert route().count('"perm":6') == 2

    assert "orderMessageEnable" in run("getNamesrvConfig")
    assert "from NameServer success" in run("deleteTopic", "-c", "DefaultCluster", "-t", topic)
    assert topic not in run("topicList").split()
