"""A disk that fills up, and files that a crash tore: nobody dies, nothing acknowledged is lost.

The stores lie on small tmpfs mounts, where a page of a sparse file that is touched on a full disk is a
SIGBUS, also when it is only read.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import Api, queue
from support.cluster.processes import COMMAND, Cluster, Process, environment
from support.cluster.small_disk import SmallDisk
from support.store.goldens import golden, rows, sizes
from support.store.master_log import same_log
from support.waiting import until
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.jsonconfig import load
from whimbrel.store.pages import FULL_ADVICE
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.verify import verify

pytestmark = pytest.mark.process

MIB = 1 << 20
BODY_BYTES = 8000
TOPIC, GROUP = "full", "full-group"
NEVER: dict[str, object] = {"disk_used_ratio_max": 1, "disk_clean_ratio": 1, "disk_full_ratio": 1}
KEEPING: dict[str, object] = {"disk_used_ratio_max": 1, "disk_clean_ratio": 1}
LIMITED: dict[str, object] = {**KEEPING, "disk_full_ratio": 0.9}
SIZES: dict[str, object] = {
    "commitlog_file_size": MIB,
    "consumequeue_file_size": 20_000,
    "index_slots": 500,
    "index_entries": 2000,
}
BROKER: dict[str, object] = {
    "nameservers": "",
    "auto_create_topics": True,
    "auto_create_groups": True,
    **SIZES,
}


class Client:
    """What a test does with one broker, on a channel of its own."""

    def __init__(self, broker: Process) -> None:
        self.broker = broker
        self.channel = grpc.insecure_channel(broker.grpc)
        self.api = Api(self.channel)
        self.sent: dict[int, int] = {}  # acknowledged: number to offset
        self.number = 0

    def send(self, topic: str = TOPIC) -> Any:
        """Send one message; return its status, and remember it when it was acknowledged."""
        self.number += 1
        body = (b"%08d" % self.number).ljust(BODY_BYTES, b".")
        answer = self.api.send(topic, body, keys=[f"key-{self.number}"])
        if answer.status.code == v2.OK and topic == TOPIC:
            self.sent[self.number] = answer.entries[0].offset
        return answer.status

    def send_until_refused(self) -> Any:
        """Send until a send is refused, and return its status."""
        for _ in range(20_000):
            status = self.send()
            if status.code != v2.OK:
                return status
        raise AssertionError("the disk never filled up")

    def messages(self, topic: str, queue_id: int = 0) -> Iterator[Any]:
        """Give all messages of a queue."""
        offset = 0
        while True:
            frames = self.api(
                "PullMessage",
                group=v2.Resource(name="TOOLS_CONSUMER"),
                message_queue=queue(topic, queue_id),
                offset=offset,
                batch_size=32,
            )
            messages = [frame.message for frame in frames if frame.WhichOneof("content") == "message"]
            if not messages:
                return
            yield from messages
            offset = messages[-1].system_properties.queue_offset + 1

    def pull(self) -> dict[int, int]:
        """Return what is in our topic: number to offset."""
        return {int(got.body[:8]): got.system_properties.queue_offset for got in self.messages(TOPIC)}

    def consume(self, count: int) -> None:
        """Receive so many messages, and acknowledge them."""
        done = 0
        while done < count:
            got = self.api.receive(TOPIC, GROUP, batch=min(16, count - done), poll_s=1)
            assert (got.code, bool(got.messages)) == (v2.OK, True), self.broker.log_tail(5)
            answer = self.api.ack(TOPIC, GROUP, *got.handles)
            assert answer.status.code == v2.OK, answer
            done += len(got.handles)

    def close(self) -> None:
        self.channel.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", 32 * MIB) as mounted:
        yield mounted


def create(client: Client, topic: str = TOPIC) -> None:
    client.api.administer("CreateTopic", topic=admin.Topic(name=topic, read_queues=1, write_queues=1))


def check_nothing_lost(client: Client) -> None:
    """Every acknowledged message is at its offset, and offsets go on without a gap."""
    there = client.pull()
    assert client.sent.items() <= there.items()
    assert sorted(there.values()) == list(range(len(there)))


def takes_writes(client: Client, timeout: float = 15) -> None:
    until(lambda: client.send().code == v2.OK, timeout=timeout, what="a send that is taken again")


def check_refusal(status: Any) -> None:
    """The refusal says what is the matter and what helps."""
    assert status.code == v2.INTERNAL_SERVER_ERROR
    assert "disk" in status.message and "full" in status.message
    assert "goes on by itself" in status.message, status.message


def check_end(process: Process) -> None:
    """It ended with an error of its own that names the matter, and by no signal."""
    assert process.code == 1, f"{process.name} ended with {process.code}:\n{process.log_tail()}"
    tail = process.log_tail()
    assert "Traceback" not in tail, tail
    assert "No space left" in tail or "the disk is full" in tail, tail


def started(process: Process, timeout: float = 20) -> bool:
    """Start a process; tell whether it became ready, False when it ended by itself with code 1."""
    process.launch()
    until(lambda: process.ready_file.exists() or not process.running, timeout=timeout, what=process.name)
    if process.running:
        process.wait_ready()
        return True
    check_end(process)
    return False


NO_FILE = f"no {MIB} bytes left for the next log file"
MODES: dict[str, tuple[dict[str, object], str]] = {
    "allocation": (NEVER, NO_FILE),
    "ratio": (LIMITED, "the limit is 90%"),
    "sync": (NEVER | {"flush": "sync"}, NO_FILE),
}


@pytest.mark.parametrize("mode", MODES)
def test_master_refuses_writes_on_a_full_disk_and_goes_on_when_there_is_room(
    disk: SmallDisk, tmp_path: Path, mode: str, measured: Callable[[str], None]
) -> None:
    settings, words = MODES[mode]
    store = disk.path / "store"
    with Process(tmp_path, "broker", "broker", store=store, **BROKER, **settings) as broker:
        pid = broker.pid
        client = Client(broker)
        create(client)
        for _ in range(20):
            client.send()
        client.consume(5)
        disk.fill(leave=5 * MIB if mode == "ratio" else 2 * MIB)
        status = client.send_until_refused()
        check_refusal(status)
        assert words in status.message
        disk.fill()
        count = len(client.sent)
        check_refusal(client.send())
        check_refusal(client.send("another-topic"))  # the topic itself can't be written down, or its queue
        refused = client.api.receive(TOPIC, "another-group")  # nor can a group
        assert refused.code == v2.INTERNAL_SERVER_ERROR
        client.consume(count // 2)
        check_nothing_lost(client)
        view = client.api.administer("DescribeReplication")
        assert not view.writable and "disk" in view.advice
        assert broker.running and broker.pid == pid
        disk.empty()
        takes_writes(client)
        assert client.send("another-topic").code == v2.OK
        for _ in range(50):
            assert client.send().code == v2.OK
        check_nothing_lost(client)
        client.consume(len(client.pull()) - count // 2 - 5)
        assert broker.pid == pid
        assert "Traceback" not in broker.log_tail(1000)
        measured(f"{count} messages until the disk was full, refused with: {status.message}")
        client.close()
        assert broker.stop() == 0
    assert verify(store) == []


def test_a_disk_above_the_limit_is_noticed_at_the_start_and_without_a_restart(
    disk: SmallDisk, tmp_path: Path
) -> None:
    store = disk.path / "store"
    with Process(tmp_path, "broker", "broker", store=store, **BROKER, **LIMITED) as broker:
        client = Client(broker)
        create(client)
        client.send()
        assert broker.stop() == 0
        disk.fill(leave=2 * MIB)
        assert started(broker)
        status = client.send()
        check_refusal(status)
        assert "the limit is 90%" in status.message
        assert len(client.pull()) == 1
        disk.empty()
        takes_writes(client, timeout=2)
        client.close()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_master_starts_and_stops_on_a_full_disk(disk: SmallDisk, tmp_path: Path, end: str) -> None:
    store = disk.path / "store"
    with Process(tmp_path, "broker", "broker", store=store, **BROKER, **NEVER) as broker:
        client = Client(broker)
        create(client)
        client.send()
        client.consume(1)
        disk.fill(leave=2 * MIB)
        client.send_until_refused()
        disk.fill()
        for _ in range(2):
            if end == "kill":
                broker.kill()
            else:
                assert broker.stop() == 0, broker.log_tail()
            disk.fill()
            assert started(broker)
            check_refusal(client.send())
            check_nothing_lost(client)
            client.consume(20)
        disk.empty()
        takes_writes(client)
        check_nothing_lost(client)
        client.consume(len(client.pull()) - 41)
        assert "Traceback" not in broker.log_tail(1000)
        client.close()
        assert broker.stop() == 0
    assert verify(store) == []


@pytest.mark.parametrize(
    "name",
    [
        "v493-basic",
        "v493-torn-no-queues",
        pytest.param("v493-crash", marks=pytest.mark.slow),
        pytest.param("v493-torn-no-index", marks=pytest.mark.slow),
    ],
)
def test_store_of_rocketmq_on_a_full_disk_kills_nobody(
    disk: SmallDisk, tmp_path: Path, name: str, measured: Callable[[str], None]
) -> None:
    """Whatever room there is, a broker serves the store or ends with one clear sentence, and by no signal."""
    store = golden(name, disk.path / "store")
    offsets = group_offsets(store)
    settings: dict[str, object] = {**NEVER, **sizes(name), "nameservers": ""}
    process = Process(tmp_path, "broker", "broker", store=store, **settings)
    served: list[int] = []
    try:
        for free in (0, 4096, 16_384, 49_152, 131_072, 262_144, MIB, 8 * MIB + 65_536, 16 * MIB + 65_536):
            disk.fill(leave=free)
            if started(process):
                served.append(free)
                look(process, empty=name == "v493-torn-no-queues")  # its queues need room
                if free % 3:
                    process.kill()
                else:
                    assert process.stop() == 0, process.log_tail()
            disk.empty()
        process.start()
        serves_everything(process, name)
        assert process.stop() == 0
    finally:
        process.kill()
    assert verify(store) == []
    assert served
    # A broker of ours that checks transactions writes down that the group of these topics stands at 0.
    written = {f"{topic}@{TRANSACTION_GROUP}": {0: 0} for topic in (HALF_TOPIC, HALF_OP_TOPIC)}
    left = {
        name: found
        for name, found in group_offsets(store).items()
        if name in offsets or found != written.get(name)
    }
    assert left == offsets
    measured(f"{name} is served with so many bytes free: {served}")


def group_offsets(store: Path) -> dict[str, dict[int, int]]:
    """Return how far the groups are, as RocketMQ's file has it."""
    content = load(store / "config" / "consumerOffset.json") or {"offsetTable": {}}
    return {name: queues for name, queues in content["offsetTable"].items() if queues}


def look(process: Process, *, empty: bool) -> None:
    """Read and write on a full disk."""
    client = Client(process)
    sent = client.send("TopicTest")
    if sent.code != v2.OK:
        check_refusal(sent)
    if not empty:
        assert len(list(client.messages("TopicTest"))) >= 23
    client.close()


def serves_everything(process: Process, name: str) -> None:
    """Send to all queues, and read what RocketMQ has put there, and what came later."""
    client = Client(process)
    until(lambda: client.send("TopicTest").code == v2.OK, timeout=10)
    for _ in range(64):
        assert client.send("TopicTest").code == v2.OK
    for row in rows(name, "queue"):
        if row["topic"] == "TopicTest":
            messages = client.messages("TopicTest", row["queueId"])
            found = [message.system_properties.queue_offset for message in messages]
            assert found == list(range(len(found)))
            assert len(found) >= row["max"] + 16
    client.close()


class SlaveOnSmallDisk:
    """A cluster whose slave has its store on a small disk, with a client for each broker."""

    def __init__(self, root: Path, disk: SmallDisk, **settings: object) -> None:
        self.disk = disk
        self.cluster = Cluster(root, broker=NEVER | settings, replicator=KEEPING)
        self.cluster.wait_usable()
        self.slave, self.replicator = self.cluster.slaves[0], self.cluster.slave_replicators[0]
        self.master = Client(self.cluster.master)
        self.copy = Client(self.slave)
        self.pids = [process.pid for process in self.cluster.processes]
        create(self.master)
        for _ in range(20):
            assert self.master.send().code == v2.OK
        until(self.caught_up, what="the slave holding the first messages")

    def view(self, client: Client) -> Any:
        return client.api.administer("DescribeReplication")

    def caught_up(self) -> bool:
        copy = self.view(self.copy)
        return bool(copy.log_end == copy.dispatched_offset == self.view(self.master).log_end)

    def stalled(self) -> bool:
        return "replication waits for disk space" in self.view(self.copy).advice

    def check_stall(self) -> None:
        """It is said everywhere; reads go on; nobody has died."""
        page = SharedPage.open(self.slave.store)
        trouble, end = page.trouble, page.written
        page.close()
        assert trouble.startswith(f"replication waits for disk space at {end}: the disk is full")
        assert FULL_ADVICE in trouble
        assert self.view(self.copy).advice == trouble
        told = subprocess.run(
            [sys.executable, "-c", COMMAND, "replication", "status", "--endpoint", self.cluster.endpoint],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert told.returncode == 1, "a slave that waits for its disk is wrong"
        assert f"broker-a (slave): {trouble}" in " ".join(told.stdout.split()), told.stdout
        held = self.copy.pull()
        assert len(held) >= 20
        assert held.items() <= self.master.pull().items()
        assert [process.pid for process in self.cluster.processes if process.running] == self.pids

    def check_goes_on(self) -> None:
        """With room again the log goes on by itself and equals the master's."""
        self.disk.empty()
        until(self.caught_up, timeout=15, what="the slave holding all messages")
        view = self.view(self.copy)
        assert view.connected
        assert view.advice == ""
        end = self.view(self.master).log_end
        assert same_log(self.cluster.master.store, self.slave.store, end)
        there = self.copy.pull()
        assert there == self.master.pull()
        assert self.master.sent.items() <= there.items()
        assert [process.pid for process in self.cluster.processes if process.running] == self.pids
        for process in self.cluster.processes:
            assert "Traceback" not in process.log_tail(2000), process.name

    def close(self) -> None:
        self.master.close()
        self.copy.close()
        self.cluster.kill()


@pytest.fixture
def slave_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "store-slave-1", 32 * MIB) as mounted:
        yield mounted


def test_slave_waits_for_room_on_its_disk_and_goes_on_by_itself(
    slave_disk: SmallDisk, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    pair = SlaveOnSmallDisk(tmp_path, slave_disk)
    try:
        slave_disk.fill()
        for _ in range(400):
            assert pair.master.send().code == v2.OK  # asynchronous: the slave's disk is not the master's
        until(pair.stalled, what="the slave saying that it waits for room")
        pair.check_stall()
        lacking = pair.view(pair.master).log_end - pair.view(pair.copy).log_end
        pair.check_goes_on()
        measured(f"{len(pair.master.sent)} messages; {lacking} bytes of log waited for room")
    finally:
        pair.close()


def test_synchronous_sends_are_not_acknowledged_while_the_disk_of_the_slave_is_full(
    slave_disk: SmallDisk, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    settings = {"replication": "sync", "slave_timeout_ms": 500, "slave_fallbehind_max_bytes": 65_536}
    pair = SlaveOnSmallDisk(tmp_path, slave_disk, **settings)
    try:
        slave_disk.fill()
        status = pair.master.send_until_refused()
        assert status.code == v2.SLAVE_PERSISTENCE_TIMEOUT, status  # stored, and not confirmed
        until(pair.stalled, what="the slave saying that it waits for room")
        codes = [status.code]
        while codes[-1] == v2.SLAVE_PERSISTENCE_TIMEOUT and len(codes) < 20:
            codes.append(pair.master.send().code)
        assert codes[-1] == v2.HA_NOT_AVAILABLE  # too far behind to count: refused before it is stored
        end = pair.view(pair.master).log_end
        assert pair.master.send().code == v2.HA_NOT_AVAILABLE
        assert pair.view(pair.master).log_end == end
        pair.check_stall()
        acknowledged = len(pair.master.sent)
        pair.check_goes_on()
        until(lambda: pair.master.send().code == v2.OK, what="a send that is taken again")
        pair.cluster.master.kill()
        assert pair.master.sent.items() <= pair.copy.pull().items()
        measured(f"{acknowledged} acknowledged, then {len(codes) - 1} timeouts before sends were refused")
    finally:
        pair.close()
