"""The client library and the commands against our real processes."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import COMMAND, INTERRUPTIBLE, SERVICES, Cluster, Process, environment
from support.history import noting
from support.history.histories import History
from support.waiting import until
from whimbrel.client import (
    Consumer,
    ConsumerOptions,
    GroupProgress,
    Message,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    ReplicationStatus,
    RetryPolicy,
    sync,
)
from whimbrel.errors import (
    AlreadyExists,
    IllegalOffset,
    IllegalPropertyKey,
    IllegalTopic,
    InvalidReceiptHandle,
    MessageTooLarge,
    NotWritable,
    QueueNotFound,
    WhimbrelError,
)
from whimbrel.rpc.api.admin_calls import describe_group
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.client.channel import open_channel

pytestmark = pytest.mark.process

UNSEEN_MAX = 100  # messages that a producer is ahead of its consumer
PATIENT = RetryPolicy(attempts_max=60, initial_s=0.1, max_s=0.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("client")
    settings: dict[str, object] = {"commitlog_file_size": 8 << 20, "metrics_port": 0}  # holds a body of 4 MiB
    with Cluster(root, slaves=1, broker=settings) as running:
        running.wait_usable()  # a busy machine registers its slave long before its master
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[sync.Admin]:
    with sync.Admin(cluster.endpoint) as client:
        yield client


@pytest.fixture
def producer(cluster: Cluster) -> Iterator[sync.Producer]:
    with sync.Producer(cluster.endpoint) as client:
        yield client


def all_of(consumer: sync.Consumer, count: int, wait_s: float = 10.0) -> list[ReceivedMessage]:
    """Receive and acknowledge until `count` messages are there."""
    messages: list[ReceivedMessage] = []
    deadline = time.monotonic() + wait_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages within {wait_s} s"
        more = consumer.receive(wait_s=1.0)
        assert consumer.ack_all(more) == [None] * len(more)
        messages += more
    return messages


@pytest.mark.transport
def test_messages_go_through_as_they_are(
    cluster: Cluster, admin: sync.Admin, producer: sync.Producer
) -> None:
    admin.create_topic("round", queues=3)
    admin.create_group("round-readers", max_attempts=5)
    sent = Message(
        topic="round",
        body=bytes(range(256)),
        tag="new",
        keys=("k1", "k2"),
        properties={"region": "eu", "naïve": "ü"},
    )
    receipt = producer.send(sent)
    with sync.Consumer(cluster.endpoint, "round-readers", {"round": "old || new"}) as consumer:
        (got,) = consumer.receive(wait_s=5.0)
        consumer.ack(got)
        with pytest.raises(InvalidReceiptHandle):
            consumer.change_invisible(got, 0)
    assert (got.body, got.tag, got.keys) == (sent.body, sent.tag, sent.keys)
    assert dict(got.properties) == dict(sent.properties)
    assert (got.message_id, got.queue_offset) == (receipt.message_id, receipt.queue_offset)
    assert got.delivery_attempt == 1
    assert got.stored_at is not None
    assert abs(got.stored_at - time.time()) < 60


def test_a_tag_filter_lets_only_its_own_through(
    cluster: Cluster, admin: sync.Admin, producer: sync.Producer
) -> None:
    admin.create_topic("tagged", queues=1)
    for tag in ("a", "b", "a", None):
        producer.send(Message(topic="tagged", body=str(tag).encode(), tag=tag))
    with sync.Consumer(cluster.endpoint, "tagged-readers", {"tagged": "a"}) as consumer:
        assert [message.body for message in all_of(consumer, 2)] == [b"a", b"a"]
        assert consumer.receive(wait_s=0) == []


def test_a_hidden_message_comes_again_with_a_new_receipt(
    cluster: Cluster, admin: sync.Admin, producer: sync.Producer
) -> None:
    admin.create_topic("again", queues=1)
    producer.send(Message(topic="again", body=b"x"))
    with sync.Consumer(cluster.endpoint, "again-readers", ["again"]) as consumer:
        (first,) = consumer.receive(wait_s=5.0)
        hidden = consumer.change_invisible(first, 0)
        assert hidden.receipt_handle
        (second,) = consumer.receive(wait_s=5.0)
        assert second.delivery_attempt == 2
        with pytest.raises(InvalidReceiptHandle):
            consumer.ack(first)
        consumer.ack(second)


def test_queues_can_be_chosen_and_read_by_offset(
    cluster: Cluster, admin: sync.Admin, producer: sync.Producer
) -> None:
    admin.create_topic("queues", queues=3)
    queues = producer.queues("queues")
    assert [queue.queue_id for queue in queues] == [0, 1, 2]
    batch = [Message(topic="queues", body=b"%d" % number) for number in range(40)]
    receipts = producer.send_batch(batch, queue=queues[2])
    assert [receipt.queue_offset for receipt in receipts] == list(range(40))
    started = time.time()
    with sync.PullConsumer(cluster.endpoint, "queues-readers") as reader:
        queue = next(queue for queue in reader.queues("queues") if queue.queue_id == 2)
        assert [message.body for message in reader.stream(queue, 0, until=40)] == [
            message.body for message in batch
        ]
        result = reader.pull(queue, 39)
        assert [message.queue_offset for message in result.messages] == [39]
        assert result.next_offset == 40
        assert reader.pull(queue, 40).next_offset == 40
        with pytest.raises(IllegalOffset):
            reader.pull(queue, 41)
        assert (reader.offset(queue, "earliest"), reader.offset(queue, "latest")) == (0, 40)
        assert reader.offset(queue, started - 60) == 0
        assert reader.offset(queue, started + 60) == 40
        assert reader.committed(queue) is None
        reader.commit(queue, 17)
        assert reader.committed(queue) == 17
    (view,) = admin.describe_topic("queues")
    assert [(queue.min_offset, queue.max_offset) for queue in view.queues] == [(0, 0), (0, 0), (0, 40)]


def test_a_long_poll_returns_when_a_message_arrives(
    cluster: Cluster, admin: sync.Admin, producer: sync.Producer
) -> None:
    admin.create_topic("poll", queues=4)

    def parked() -> bool:
        return (
            sum(broker.metric("whimbrel_long_polls_held") for broker in (cluster.master, *cluster.slaves)) > 0
        )

    async def poll() -> tuple[list[ReceivedMessage], float]:
        async with Consumer(cluster.endpoint, "poll-readers", ["poll"]) as consumer:
            await consumer.receive(wait_s=0)
            waiting = asyncio.create_task(consumer.receive(wait_s=15.0))
            await asyncio.to_thread(until, parked, what="a parked poll")
            started = time.monotonic()
            await asyncio.to_thread(producer.send, Message(topic="poll", body=b"x"))
            return await waiting, time.monotonic() - started

    messages, elapsed = asyncio.run(poll())
    assert [message.body for message in messages] == [b"x"]
    assert elapsed < 5.0


def test_bad_requests_come_back_as_their_own_errors(
    cluster: Cluster, admin: sync.Admin, producer: sync.Producer
) -> None:
    admin.create_topic("bad", queues=1)
    cases: list[tuple[type[WhimbrelError], Message]] = [
        (IllegalTopic, Message(topic="no good", body=b"x")),
        (MessageTooLarge, Message(topic="bad", body=bytes((4 << 20) + 1))),
        (IllegalPropertyKey, Message(topic="bad", body=b"x", properties={"KEYS": "x"})),
    ]
    for kind, message in cases:
        with pytest.raises(kind):
            producer.send(message)
    with pytest.raises(AlreadyExists):
        admin.create_topic("bad")
    queue = producer.queues("bad")[0]
    with pytest.raises(QueueNotFound):
        producer.send(
            Message(topic="bad", body=b"x"),
            selector=lambda _, __: type(queue)(
                **{name: getattr(queue, name) for name in queue.__slots__} | {"queue_id": 99}
            ),
        )
    producer.send(Message(topic="bad", body=bytes(4 << 20)))


def test_a_group_can_be_described_and_moved(
    cluster: Cluster, admin: sync.Admin, producer: sync.Producer
) -> None:
    admin.create_topic("moved", queues=1)
    admin.create_group("movers")
    producer.send_batch([Message(topic="moved", body=b"%d" % number) for number in range(10)])
    with sync.Consumer(cluster.endpoint, "movers", ["moved"]) as consumer:
        all_of(consumer, 10)
        (view,) = admin.describe_group("movers")
        (progress,) = [item for item in view.progress if item.topic == "moved"]
        assert (progress.committed_offset, progress.max_offset, progress.lag) == (10, 10, 0)
        (moved,) = admin.reset_offsets("movers", "moved", to=4).values()
        assert [item.committed_offset for item in moved if item.queue_id == 0] == [4]
        assert sorted(message.queue_offset for message in all_of(consumer, 6)) == list(range(4, 10))


def test_the_cluster_and_its_replication_are_shown(cluster: Cluster, admin: sync.Admin) -> None:
    roles = {(broker.role, broker.broker_id) for broker in admin.cluster().brokers}
    assert roles == {("master", 0), ("slave", 1)}

    def caught_up() -> bool:
        views = {view.role: view for view in admin.replication() if isinstance(view, ReplicationStatus)}
        master, slave = views["master"], views["slave"]
        return (
            [item.acknowledged_offset for item in master.slaves] == [master.log_end]
            and slave.log_end == master.log_end
            and slave.connected
            and not slave.writable
        )

    until(caught_up, what="a slave that has it all")


def shell(cluster: Cluster, *arguments: str, code: int = 0, text: str = "") -> str:
    """Run the command in a process of its own and return its standard output."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        env=environment() | {"WHIMBREL_ENDPOINT": cluster.endpoint},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def json_of(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(shell(cluster, *arguments, "-o", "json"))


def test_the_commands_work_against_real_processes(cluster: Cluster) -> None:
    shell(cluster, "topic", "create", "shop", "--queues", "2")
    shell(cluster, "group", "create", "clerks")
    assert "shop" in shell(cluster, "topic", "list")
    assert "clerks" in shell(cluster, "group", "list")
    receipts = json_of(cluster, "send", "shop", "hello", "--tag", "a", "--count", "10", "--batch", "5")
    assert len(receipts) == 10
    assert sorted({receipt["queue_id"] for receipt in receipts}) == [0, 1]
    shell(cluster, "send", "shop", "-", text="from a pipe")
    got = json_of(cluster, "receive", "shop", "--group", "clerks", "--count", "11")
    assert len(got) == 11
    assert json_of(cluster, "receive", "shop", "--group", "clerks", "--wait", "0") == []
    assert len(json_of(cluster, "pull", "shop", "--queue", "0", "--offset", "1")) in (4, 5)
    assert json_of(cluster, "group", "describe", "clerks")[0]["progress"]
    shell(cluster, "group", "reset-offsets", "clerks", "shop", "--to", "earliest", "--yes")
    assert len(json_of(cluster, "receive", "shop", "--group", "clerks", "--count", "11")) == 11
    assert json_of(cluster, "topic", "update", "shop", "--queues", "4")["write_queues"] == 4
    assert "broker" in shell(cluster, "cluster")
    assert len(json_of(cluster, "replication", "status")) == 2
    shell(cluster, "group", "delete", "clerks", "--yes")
    shell(cluster, "topic", "delete", "shop", "--yes")
    shell(cluster, "topic", "describe", "shop", code=1)


def test_an_interrupted_command_ends_with_130(cluster: Cluster) -> None:
    shell(cluster, "topic", "create", "quiet")
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE + COMMAND, "receive", "quiet", "--group", "g", "--wait", "60"],
        env=environment() | {"WHIMBREL_ENDPOINT": cluster.endpoint},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with sync.Admin(cluster.endpoint) as admin:

        def waits() -> bool:
            with contextlib.suppress(WhimbrelError):
                return any(view.clients for view in admin.describe_group("g"))
            return False

        until(waits, what="the waiting command to be known")
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=20)
    assert child.returncode == 130, error
    assert b"Traceback" not in error


def test_help_loads_nothing_heavy() -> None:
    tell = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    done = subprocess.run(
        [sys.executable, "-c", tell + COMMAND, "--help"],
        check=True,
        env=environment(),
        capture_output=True,
        text=True,
    )
    loaded = set(done.stderr.split())
    assert "typer" in loaded
    assert not loaded & {"grpc", "google.protobuf", "opentelemetry", "numpy", "pandas", "pyspark", "asyncio"}


def test_starters_become_the_process(tmp_path: Path) -> None:
    for name in ("nameserver", "broker", "replicator"):
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, name, "--help"],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert "--ready-file" in done.stdout


def test_clients_go_on_by_themselves_when_any_process_was_killed(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    asyncio.run(_killed_and_restarted(tmp_path, measured))


async def _killed_and_restarted(root: Path, measured: Callable[[str], None]) -> None:
    """Kill nameserver and master in turn under a producer and a consumer; their history is checked."""
    cluster = await asyncio.to_thread(Cluster, root, slaves=1, broker={"flush": "sync"})
    clock, history = asyncio.get_running_loop().time, History()
    seen: set[bytes] = set()
    stopping = asyncio.Event()
    taken: list[bytes] = []
    changed = asyncio.Condition()  # `seen` or `taken`

    async def handler(message: ReceivedMessage) -> None:
        history.deliver("crashers", message.body, noting.place_of(message), clock())
        async with changed:
            seen.add(message.body)
            changed.notify_all()

    async def produce(producer: Producer) -> None:
        number = 0
        while not stopping.is_set():
            number += 1
            message = Message(topic="crash", body=b"%d" % number)
            sent = await noting.send(producer, message, history, "producer", clock)
            assert sent.outcome == "ok"
            sent.tries_unknown = True  # of several tries the last one was answered
            async with changed:
                taken.append(sent.id)
                changed.notify_all()
                await changed.wait_for(lambda: len(taken) - len(seen) < UNSEEN_MAX)

    async def reach(count: int) -> None:
        async with asyncio.timeout(40), changed:
            await changed.wait_for(lambda: len(taken) >= count)

    try:
        await asyncio.to_thread(cluster.wait_usable)
        with sync.Admin(cluster.endpoint) as admin:
            await asyncio.to_thread(admin.create_topic, "crash", queues=4)
        producing = ProducerOptions(retry=PATIENT)
        consuming = ConsumerOptions(retry=PATIENT)
        async with (
            Producer(cluster.endpoint, options=producing) as producer,
            Consumer(cluster.endpoint, "crashers", ["crash"], options=consuming) as consumer,
        ):
            loop = asyncio.create_task(consumer.run(handler))
            sending = asyncio.create_task(produce(producer))
            await reach(50)
            for victim in (cluster.nameserver, cluster.master, cluster.master_replicator, cluster.master):
                await asyncio.to_thread(victim.kill)
                await asyncio.to_thread(victim.start)
                await reach(len(taken) + 50)
            stopping.set()
            await sending
            async with asyncio.timeout(40), changed:
                await changed.wait_for(lambda: seen.issuperset(taken))
            assert not loop.done()
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop
        complete = await asyncio.to_thread(noting.read_all, cluster.endpoint, "crash")
        findings = history.check(complete=complete, groups=["crashers"])
        measured(f"4 kills, {history.summary}, {len(findings)} findings")
        assert findings == []
    finally:
        cluster.kill()


def progress(broker: Process) -> tuple[GroupProgress, ...]:
    """Return the progress of the group `orphans` as one broker has it."""
    with open_channel(broker.grpc) as channel:
        return perform_blocking(channel, describe_group("orphans", broker.name), (), 10.0).progress


def test_a_running_consumer_reads_from_the_slave_when_the_master_is_gone(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=1) as cluster:
        cluster.wait_usable()
        with sync.Admin(cluster.endpoint) as admin:
            admin.create_topic("orphan", queues=2)
            admin.create_group("orphans")
        options = ConsumerOptions(retry=PATIENT)
        with (
            sync.Producer(cluster.endpoint, options=ProducerOptions(retry=PATIENT)) as producer,
            sync.Consumer(cluster.endpoint, "orphans", ["orphan"], options=options) as consumer,
            sync.PullConsumer(cluster.endpoint, "orphans", options=options) as reader,
            sync.Admin(cluster.endpoint) as admin,
        ):
            sent = {producer.send(Message(topic="orphan", body=b"%d" % n)).message_id for n in range(20)}
            first = consumer.receive(5, wait_s=5.0)
            for message in first[:-1]:
                consumer.ack(message)

            def copied() -> bool:
                views = [view for view in admin.replication() if isinstance(view, ReplicationStatus)]
                return len({view.dispatched_offset for view in views}) == 1 and len(views) == 2

            until(copied, what="the slave's copy")
            until(lambda: progress(cluster.master) == progress(cluster.slaves[0]), what="the slave's leases")
            cluster.master.kill()
            consumer.ack(first[-1])  # the slave takes what the master gave
            got = {message.message_id for message in first}
            while len(got) < 20:
                more = consumer.receive(wait_s=2.0)
                assert not got & {message.message_id for message in more}
                assert consumer.ack_all(more) == [None] * len(more)
                got |= {message.message_id for message in more}
            assert got == sent
            queue = reader.queues("orphan")[0]
            assert [message.queue_offset for message in reader.stream(queue, 0, until=3)] == [0, 1, 2]
        with sync.Producer(cluster.endpoint) as impatient, pytest.raises(NotWritable):
            impatient.send(Message(topic="orphan", body=b"x"))


def test_the_official_sdk_and_ours_share_a_process_and_a_topic(cluster: Cluster, admin: sync.Admin) -> None:
    """In a child, so that the SDK's threads and log files do not stay with the tests."""
    admin.create_topic("shared", queues=2)
    admin.create_group("shared-readers")
    script = (
        "import sys, time\n"
        "from rocketmq import ClientConfiguration, Credentials, Message, Producer, SimpleConsumer\n"
        "from whimbrel.client import Message as Ours, sync\n"
        "configuration = ClientConfiguration(sys.argv[1], Credentials())\n"
        "theirs = Producer(configuration, ('shared',))\n"
        "theirs.startup()\n"
        "message = Message()\n"
        "message.topic, message.body, message.tag, message.keys = 'shared', b'theirs', 'a', 'k'\n"
        "sent = theirs.send(message)\n"
        "with sync.Producer(sys.argv[1]) as producer:\n"
        "    receipt = producer.send(Ours(topic='shared', body=b'ours', tag='b', keys=('k',)))\n"
        "    with sync.Consumer(sys.argv[1], 'shared-readers', ['shared']) as consumer:\n"
        "        got = {}\n"
        "        while len(got) < 2:\n"
        "            for item in consumer.receive(wait_s=5):\n"
        "                got[item.message_id] = (item.body, item.tag, item.keys)\n"
        "                consumer.ack(item)\n"
        "assert got[sent.message_id] == (b'theirs', 'a', ('k',)), got\n"
        "assert got[receipt.message_id] == (b'ours', 'b', ('k',)), got\n"
        "theirs.shutdown()\n"
        "print('both')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, cluster.endpoint],
        env=environment() | {"HOME": str(cluster.root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["both"]), done.stderr


def test_forked_children_need_clients_of_their_own(cluster: Cluster) -> None:
    assert str(SERVICES) in environment()["PYTHONPATH"]
    script = (
        "import os, sys\n"
        "from whimbrel.client import sync\n"
        "from whimbrel.errors import ClientError\n"
        "admin = sync.Admin(sys.argv[1])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        admin.start()\n"
        "    except ClientError:\n"
        "        with sync.Admin(sys.argv[1]) as own:\n"
        "            os._exit(0 if own.cluster().brokers else 2)\n"
        "    os._exit(1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, cluster.endpoint], env=environment(), check=False)
    assert done.returncode == 0
