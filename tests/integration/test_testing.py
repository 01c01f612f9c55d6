"""`whimbrel.testing`: the handle in this process, and the plugin in runs of pytest as its users have them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import environment, program
from support.waiting import until
from whimbrel.client import sync
from whimbrel.errors import GroupNotFound, MessageTooLarge, TopicNotFound
from whimbrel.model.message import Message
from whimbrel.testing import Cluster, ClusterError

pytestmark = pytest.mark.process

DISK_BYTES_MAX = 32_000_000

PRELUDE = """
import json, os, signal, time
from pathlib import Path
from whimbrel.client import Message, sync

# Shells start what runs in the background with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent

def note(cluster, **more):
    pids = [cluster.host.pid, *(cluster.pid(name) for name in cluster.names)]
    facts = {"directory": str(cluster.directory), "endpoint": cluster.endpoint, "pids": pids}
    text = json.dumps(facts | more)
    path = HERE / f"note-{os.getpid()}.tmp"
    path.write_text(text)
    path.rename(path.with_suffix(".json"))

def send(cluster, topic, body=b"x"):
    with sync.Producer(cluster.endpoint) as producer:
        return producer.send(Message(topic=topic, body=body))
"""


class Project:
    """A folder with tests of somebody who uses the plugin."""

    def __init__(self, folder: Path, code: str, ini: str = "") -> None:
        self.folder = folder
        (folder / "test_sample.py").write_text(PRELUDE + code)
        (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{ini}")

    def command(self, *arguments: str) -> list[str]:
        return ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", str(self.folder), *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run its tests to the end."""
        return subprocess.run(
            [sys.executable, *self.command(*arguments)],
            env=environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.folder.glob("note-*.json")]


def gone(pid: int) -> bool:
    """Tell whether the process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def disk_bytes(directory: Path) -> int:
    """Return what a directory takes on the disk, in blocks, as `du` counts."""
    done = subprocess.run(["du", "-s", "-B1", directory], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def send(cluster: Cluster, topic: str, body: bytes = b"x") -> None:
    with sync.Producer(cluster.endpoint) as producer:
        producer.send(Message(topic=topic, body=body))


def test_a_cluster_takes_a_message_and_little_disk_and_leaves_nothing(
    measured: Callable[[str], None],
) -> None:
    started = time.monotonic()
    with Cluster() as cluster:
        ready = time.monotonic() - started
        assert re.fullmatch(r"127\.0\.0\.1:\d+", cluster.endpoint)
        assert cluster.names == ("nameserver", "master", "master-replicator")
        topic = cluster.new_topic("orders / à la carte")
        assert re.fullmatch(r"orders_la_carte-[0-9a-f]{8}", topic)
        send(cluster, topic, bytes(4 << 20))  # the largest one
        taken = disk_bytes(cluster.directory)
        measured(f"ready in {ready:.2f} s, {taken / 1e6:.1f} MB of disk with a message of 4 MiB")
        assert taken <= DISK_BYTES_MAX
        pids = [cluster.pid(name) for name in cluster.names]
    assert not cluster.directory.exists()
    assert all(gone(pid) for pid in pids)


def test_members_elect_another_leader() -> None:
    with Cluster(slaves=2, replication="majority") as cluster:
        assert cluster.names[1:3] == ("member-1", "member-1-replicator")
        topic, first = cluster.new_topic(), cluster.leader()
        send(cluster, topic)
        cluster.kill(first)
        second = cluster.leader()
        assert second != first
        send(cluster, topic)
        cluster.restore()
        assert cluster.leader() == second
        cluster.pause(second)
        cluster.pause(f"{second}-replicator")
        assert cluster.leader() not in {second}
        send(cluster, topic)


def test_what_was_killed_and_paused_comes_back() -> None:
    with Cluster(slaves=1) as cluster:
        topic = cluster.new_topic()
        before = {name: cluster.pid(name) for name in cluster.names}
        endpoint = cluster.endpoint
        cluster.kill("master")
        cluster.kill("master")  # it is down already
        cluster.pause("slave-1-replicator")
        assert cluster.disturbed
        with pytest.raises(ClusterError, match="master is down"):
            cluster.pause("master")
        assert gone(before["master"])
        assert not gone(before["slave-1-replicator"])
        cluster.restart("nameserver")
        assert cluster.endpoint == endpoint
        cluster.restore()
        assert not cluster.disturbed
        send(cluster, topic)
        changed = {name for name in cluster.names if cluster.pid(name) != before[name]}
        assert changed == {"master", "nameserver"}
        with pytest.raises(ValueError, match="no process is called 'slave-2'; there are nameserver, master,"):
            cluster.kill("slave-2")
        cluster.pause("master")  # the end does not wait for it
    assert all(gone(pid) for pid in before.values())


def test_a_strict_cluster_knows_only_what_was_created() -> None:
    with Cluster(strict=True) as cluster, sync.Producer(cluster.endpoint) as producer:
        with pytest.raises(TopicNotFound):
            producer.send(Message(topic="orders", body=b"x"))
        topic = cluster.new_topic("orders")
        producer.send(Message(topic=topic, body=b"x"))
        with sync.Consumer(cluster.endpoint, "billing", [topic]) as consumer:
            with pytest.raises(GroupNotFound):
                consumer.receive(wait_s=1.0)
            cluster.create_group("billing")
            assert [message.body for message in consumer.receive(wait_s=5.0)] == [b"x"]


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "master").write_text("no folder")
    cluster = Cluster(directory=tmp_path)
    with pytest.raises(ClusterError, match="master"):
        cluster.start()
    assert cluster.host is None
    assert not (tmp_path / "cluster.json").exists()


def test_a_slave_gets_the_messages_through_several_log_files(tmp_path: Path) -> None:
    with Cluster(slaves=1, replication="sync", directory=tmp_path / "kept") as cluster:
        topic = cluster.new_topic()
        with sync.Producer(cluster.endpoint) as producer:
            for number in range(7):
                producer.send(Message(topic=topic, body=bytes([number]) * (3 << 20)))
            batch = [Message(topic=topic, body=bytes([number]) * (3 << 19)) for number in range(4)]
            assert len(producer.send_batch(batch)) == len(batch)
            with pytest.raises(MessageTooLarge, match="fit into no log file"):
                producer.send_batch(2 * batch)  # one request is one piece of the log
        cluster.kill("master")
        files = [sorted((cluster.store(name) / "commitlog").iterdir()) for name in ("master", "slave-1")]
        assert [path.stat().st_size for path in files[1]] == [8 << 20] * len(files[1])
        assert len(files[1]) >= 5  # two messages in each of the first three, and one
        for one, other in zip(*files, strict=False):
            assert one.read_bytes() == other.read_bytes()
    assert (tmp_path / "kept" / "master").exists()


def test_the_plugin_restores_between_tests_and_reports_what_was_logged(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        """
topics = []

def test_sends(whimbrel_cluster, whimbrel_topic):
    note(whimbrel_cluster)
    topics.append(whimbrel_topic)
    send(whimbrel_cluster, whimbrel_topic)

def test_without():
    pass

def test_loses_the_master(whimbrel_cluster):
    whimbrel_cluster.kill("master")

def test_fails(whimbrel_cluster, whimbrel_topic):
    topics.append(whimbrel_topic)
    assert len(set(topics)) == 2
    send(whimbrel_cluster, whimbrel_topic)
    whimbrel_cluster.kill("nameserver")
    assert False, "as it should"

def test_works_again(whimbrel_cluster, whimbrel_topic):
    send(whimbrel_cluster, whimbrel_topic)
""",
    )
    done = project.run("--whimbrel-keep", "-vv")
    assert "1 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    (described,) = project.notes()
    report = done.stdout
    section = report[report.index("whimbrel cluster") :]
    assert "nameserver: killed by SIGKILL; it stays down" in section
    assert "master: killed by SIGKILL" not in report  # that was in another test
    kept = re.search(r"kept in (\S+)", report)
    assert kept is not None and kept[1] == described["directory"]
    assert (Path(kept[1]) / "logs" / "master.log").exists()
    shutil.rmtree(kept[1])
    assert all(gone(pid) for pid in described["pids"])


def test_each_worker_of_xdist_has_its_own_cluster_as_the_ini_file_says(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        """
import pytest

assert Path("uvloop.py").exists()  # a module of the project's, which no server may import

@pytest.mark.parametrize("number", range(4))
def test_sends(number, whimbrel_cluster, whimbrel_topic):
    assert whimbrel_cluster.names[-1] == "slave-1-replicator"
    assert (whimbrel_cluster.strict, whimbrel_cluster.replication) == (True, "sync")
    send(whimbrel_cluster, whimbrel_topic)
    note(whimbrel_cluster, worker=os.environ["PYTEST_XDIST_WORKER"])
""",
        ini="whimbrel_slaves = 1\nwhimbrel_strict = true\nwhimbrel_replication = sync\n",
    )
    (tmp_path / "uvloop.py").write_text("raise AssertionError")
    done = project.run("-n", "2")
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    notes = project.notes()
    assert len({each["endpoint"] for each in notes}) == len(notes) == 2
    for each in notes:
        assert f"whimbrel-{each['worker']}-" in each["directory"]
        assert not Path(each["directory"]).exists()
        assert all(gone(pid) for pid in each["pids"])


def test_the_options_can_be_overridden(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        """
import pytest

@pytest.fixture(scope="session")
def whimbrel_options(whimbrel_options):
    return whimbrel_options | {"strict": True}

def test_options(whimbrel_cluster):
    assert whimbrel_cluster.strict and whimbrel_cluster.flush == "sync"
""",
    )
    done = project.run("--whimbrel-flush", "sync")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_tests_are_ended(number: signal.Signals, tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        """
def test_waits(whimbrel_cluster):
    whimbrel_cluster.pause("master")
    note(whimbrel_cluster)
    while True:  # signal.pause() would sleep through a signal that comes just before it
        time.sleep(0.05)
""",
    )
    running = program(project.command(), tmp_path / "output.log")
    try:
        until(project.notes, timeout=40, what="the test")
        os.kill(running.pid, number)
        running.wait(30)
    finally:
        running.kill()
        running.wait()
    (described,) = project.notes()
    until(lambda: all(gone(pid) for pid in described["pids"]), timeout=20, what="the end of all processes")
    assert not Path(described["directory"]).exists()


def test_nothing_is_left_when_the_host_is_killed() -> None:
    cluster = Cluster().start()
    assert cluster.host is not None
    pids = [cluster.pid(name) for name in cluster.names]
    cluster.pause("master")
    cluster.host.kill()
    until(lambda: all(gone(pid) for pid in pids), what="the end of all processes")
    with pytest.raises(ClusterError, match="does not run"):
        cluster.pid("master")
    cluster.close()
    assert not cluster.directory.exists()
