"""A cluster of an earlier version is taken to this one, one process after the other, under load.

The order is that of docs/upgrade.md: slave, nameserver, master. Nothing acknowledged is missing afterwards,
the group gets everything, both logs end alike, and both stores are without damage.
"""

import asyncio
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from histories import History, Place, outcome_of
from processes import Cluster, Process, until
from whimbrel.client import Admin, Consumer, Message, Producer, PullConsumer
from whimbrel.client.options import ConsumerOptions, ProducerOptions
from whimbrel.client.retry import RetryPolicy
from whimbrel.errors import WhimbrelError
from whimbrel.model.message import ReceivedMessage
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.verify import verify

REPOSITORY = Path(__file__).parents[2]
TOPIC, GROUP = "orders", "billing"
AFTER_EACH = 40  # messages acknowledged after each process before the next one is exchanged
ONCE = RetryPolicy(attempts_max=1)


def services_of(commit: str, to: Path) -> Path:
    """Return the package's directory as of a commit."""
    archive = to / "services.tar"
    made = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", "-o", str(archive), commit, "services"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"commit {commit} is not in this clone: {made.stderr.strip()}")
    with tarfile.open(archive) as found:
        found.extractall(to, filter="data")
    return to / "services"


def place_of(message: ReceivedMessage) -> Place:
    return message.topic, message.queue_id, message.queue_offset


class Load:
    """A producer and a consumer; each call is tried once, so that the history knows its outcome."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.history = History()
        self.stopping = False
        self.news = asyncio.Event()
        self.clock = asyncio.get_running_loop().time

    async def send(self) -> None:
        number = 0
        options = ProducerOptions(retry=ONCE, route_ttl_s=1.0)
        async with Producer(self.endpoint, options=options) as producer:
            while not self.stopping:
                body = b"m%d" % number
                number += 1
                sent = self.history.send(body, "producer", TOPIC, self.clock())
                try:
                    receipt = await producer.send(Message(topic=TOPIC, body=body, keys=(body.decode(),)))
                except WhimbrelError as error:
                    sent.outcome = outcome_of(error)
                    await asyncio.sleep(0.05)
                else:
                    sent.outcome = "ok"
                    if receipt.queue_id is not None:
                        sent.place = receipt.topic, receipt.queue_id, receipt.queue_offset
                sent.ended = self.clock()
                self.news.set()

    async def receive(self) -> None:
        options = ConsumerOptions(retry=ONCE, invisible_s=10.0, route_ttl_s=1.0, assignment_s=1.0)
        async with Consumer(self.endpoint, GROUP, {TOPIC: "*"}, options=options) as consumer:
            while True:
                try:
                    for message in await consumer.receive(wait_s=1.0):
                        self.history.deliver(GROUP, message.body, place_of(message), self.clock())
                        self.news.set()
                        await consumer.ack(message)
                except WhimbrelError:
                    await asyncio.sleep(0.05)

    async def acknowledged(self, more: int) -> None:
        """Wait until so many more messages are acknowledged."""
        wanted = len(self.history.acknowledged) + more
        await self.wait_for(lambda: len(self.history.acknowledged) >= wanted)

    async def all_delivered(self) -> None:
        """Wait until the group has had everything."""
        await self.wait_for(lambda: not self.history.check(groups=[GROUP]))

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, looking whenever there is news."""
        async with asyncio.timeout(60):
            while not condition():
                self.news.clear()
                await self.news.wait()


async def read_all(endpoint: str) -> list[tuple[Place, bytes]]:
    found = []
    async with PullConsumer(endpoint, "audit") as reader:
        for queue in await reader.queues(TOPIC):
            at = await reader.offset(queue, "earliest")
            while messages := (await reader.pull(queue, at)).messages:
                found += [(place_of(message), message.body) for message in messages]
                at = messages[-1].queue_offset + 1
    return found


def exchange(process: Process, services: Path) -> None:
    """Stop it, and start it with another version."""
    assert process.stop() == 0
    process.services = services
    process.start()


@pytest.mark.parametrize(
    ("commit", "back"),
    [("3d4ebd2", False), ("a83429d", False), pytest.param("a83429d", True, marks=pytest.mark.slow)],
)
async def test_a_cluster_is_upgraded_process_by_process_under_load(
    commit: str, back: bool, tmp_path: Path
) -> None:
    """And back again, with `back`."""
    old, new = services_of(commit, tmp_path), REPOSITORY / "services"
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
        await asyncio.to_thread(cluster.wait_usable)
        async with Admin(cluster.endpoint) as admin:
            await admin.create_topic(TOPIC, queues=2)
        load = Load(cluster.endpoint)
        work = [asyncio.create_task(load.send()), asyncio.create_task(load.receive())]
        await load.acknowledged(AFTER_EACH)
        slave, slave_replicator = cluster.slaves[0], cluster.slave_replicators[0]
        order = (slave_replicator, slave, cluster.nameserver, cluster.master_replicator, cluster.master)
        for services in (new, old) if back else (new,):
            for process in order:
                await asyncio.to_thread(exchange, process, services)
                await load.acknowledged(AFTER_EACH)
        load.stopping = True
        await work[0]
        await load.all_delivered()
        work[1].cancel()
        final = await read_all(cluster.endpoint)
        assert load.history.check(complete=final, groups=[GROUP]) == []
        pages = [SharedPage.open(process.store) for process in (cluster.master, slave)]
        until(lambda: pages[0].written == pages[1].written, what="the slave in step")
        for page in pages:
            page.close()
        assert set(cluster.stop().values()) == {0}
    for process in (cluster.master, slave):
        assert verify(process.store) == []
