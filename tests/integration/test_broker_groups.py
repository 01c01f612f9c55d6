"""Several broker groups: `whimbrel dev --brokers 2`, a topic on both, and one of them killed under load."""

import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.systems.sdk_programs import DevCluster
from support.waiting import until
from whimbrel.client import (
    ConsumerOptions,
    Message,
    MessageType,
    ProducerOptions,
    ReceivedMessage,
    Resolution,
    RetryPolicy,
)
from whimbrel.client.sync import Admin, Consumer, Producer, PullConsumer
from whimbrel.errors import BadRequest, WhimbrelError

pytestmark = pytest.mark.process

COUNT = 40
PATIENT = RetryPolicy(attempts_max=20)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Two broker groups without slaves."""
    with DevCluster(tmp_path_factory.mktemp("groups") / "dev", "--brokers", "2", "--slaves", "0") as running:
        yield running


def places(endpoint: str, topic: str) -> Counter[str]:
    """Return how many messages of a topic each broker holds."""
    found: Counter[str] = Counter()
    with PullConsumer(endpoint, "places") as reader:
        for queue in reader.queues(topic):
            found[queue.broker_name] += reader.offset(queue, "latest") - reader.offset(queue, "earliest")
    return found


def receive_all(cluster: DevCluster, topic: str, group: str, count: int) -> list[ReceivedMessage]:
    """Receive and acknowledge until there are so many messages."""
    found: list[ReceivedMessage] = []
    with Consumer(cluster.endpoint, group, [topic]) as consumer:

        def more() -> bool:
            messages = consumer.receive(32, wait_s=1)
            assert consumer.ack_all(messages) == [None] * len(messages)
            found.extend(messages)
            return len(found) >= count

        until(more, timeout=30, what=lambda: f"{count} messages; there are {len(found)}")
    return found


def test_a_topic_is_on_all_brokers_and_its_messages_come_from_all(cluster: DevCluster) -> None:
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("spread", queues=2)
    with Producer(cluster.endpoint) as producer:
        sent = {producer.send(Message(topic="spread", body=b"%d" % n)).message_id for n in range(COUNT)}
    assert places(cluster.endpoint, "spread") == {"broker-a": COUNT // 2, "broker-b": COUNT // 2}
    received = receive_all(cluster, "spread", "spread-g", COUNT)
    assert {message.message_id for message in received} == sent
    assert len(received) == COUNT
    assert {message.queue.broker_name for message in received} == {"broker-a", "broker-b"}


def test_a_topic_may_be_on_chosen_brokers(cluster: DevCluster) -> None:
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("chosen", queues=2, brokers=["broker-b"])
        with pytest.raises(
            BadRequest, match="no master of broker-x is registered; there are broker-a, broker-b"
        ):
            admin.create_topic("nowhere", brokers=["broker-x"])
    with Producer(cluster.endpoint) as producer:
        assert {queue.broker_name for queue in producer.queues("chosen")} == {"broker-b"}
        producer.send(Message(topic="chosen", body=b"x"))
    assert places(cluster.endpoint, "chosen") == {"broker-b": 1}


def test_a_message_group_stays_on_one_broker(cluster: DevCluster) -> None:
    """Checklist 3, with the client library: all messages of a group are in one queue, in their order."""
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("lines", message_type=MessageType.FIFO, queues=2)
    groups = [f"line-{n}" for n in range(6)]
    with Producer(cluster.endpoint) as producer, Producer(cluster.endpoint) as other:
        for n, (group, sender) in enumerate(itertools.product(groups, [producer, other])):
            sender.send(Message(topic="lines", body=b"%d" % n, message_group=group))
    held: dict[str | None, list[tuple[str, int, int, bytes]]] = {}
    with PullConsumer(cluster.endpoint, "places") as reader:
        for queue in reader.queues("lines"):
            for message in reader.stream(queue, 0, until=reader.offset(queue, "latest")):
                place = (queue.broker_name, queue.queue_id, message.queue_offset, message.body)
                held.setdefault(message.message_group, []).append(place)
    assert {group: len({place[:2] for place in places}) for group, places in held.items()} == dict.fromkeys(
        groups, 1
    )
    for n, group in enumerate(groups):
        assert [place[3] for place in sorted(held[group])] == [b"%d" % (2 * n), b"%d" % (2 * n + 1)]


def test_transactions_are_ended_at_the_broker_that_has_them(cluster: DevCluster) -> None:
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("paid", message_type=MessageType.TRANSACTION, queues=1)
    with Producer(cluster.endpoint, topics=["paid"], check=lambda _: Resolution.UNKNOWN) as producer:
        for n in range(4):
            with producer.transaction(Message(topic="paid", body=b"%d" % n)):
                pass
    assert places(cluster.endpoint, "paid") == {"broker-a": 2, "broker-b": 2}
    assert sorted(message.body for message in receive_all(cluster, "paid", "paid-g", 4)) == [
        b"0", b"1", b"2", b"3",
    ]  # fmt: skip


def test_a_broker_that_is_killed_costs_the_other_one_nothing(cluster: DevCluster) -> None:
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("lost", queues=2)
    hold = cluster.directory / "run" / "b-master.hold"
    hold.touch()
    described = cluster.described()["processes"]
    pid = next(int(each["pid"]) for each in described if each["name"] == "b-master")
    options = ProducerOptions(retry=PATIENT)
    with (
        Producer(cluster.endpoint, options=options) as producer,
        Consumer(cluster.endpoint, "lost-g", ["lost"], options=ConsumerOptions(retry=PATIENT)) as consumer,
    ):
        before = {producer.send(Message(topic="lost", body=b"x")).broker_name for _ in range(4)}
        assert before == {"broker-a", "broker-b"}
        consumer.receive(32, wait_s=1)
        os.kill(pid, signal.SIGKILL)
        try:
            after = [producer.send(Message(topic="lost", body=b"y")) for _ in range(COUNT)]
            assert {receipt.broker_name for receipt in after} == {"broker-a"}
            wanted, found = {receipt.message_id for receipt in after}, set[str]()

            def all_there() -> bool:
                messages = consumer.receive(32, wait_s=1)
                found.update(message.message_id for message in messages)
                return wanted <= found

            until(all_there, timeout=30, what=lambda: f"{len(wanted - found)} messages")
        finally:
            hold.unlink()

        def back() -> bool:
            return producer.send(Message(topic="lost", body=b"z")).broker_name == "broker-b"

        until(back, timeout=40, what="sends to the broker that is back", every_s=0.2)


def test_a_drained_broker_takes_no_messages_and_says_when_it_is_empty(tmp_path: Path) -> None:
    with (
        DevCluster(tmp_path / "dev", "--brokers", "2", "--slaves", "0") as cluster,
        Admin(cluster.endpoint) as admin,
        Producer(cluster.endpoint, options=ProducerOptions(retry=PATIENT)) as producer,
    ):
        admin.create_topic("drained", queues=2)
        admin.create_group("drained-g")
        for _ in range(4):
            producer.send(Message(topic="drained", body=b"before"))
        with Consumer(cluster.endpoint, "drained-g", ["drained"]) as consumer:
            first = consumer.receive(1, wait_s=5)  # the group has begun
            assert consumer.ack_all(first) == [None]
        before = admin.drain_broker("broker-b")
        assert (before.drained, before.empty) == (False, False)
        left = admin.drain_broker("broker-b", drain=True)
        assert left.drained
        receipts = [producer.send(Message(topic="drained", body=b"after")) for _ in range(6)]
        assert {receipt.broker_name for receipt in receipts} == {"broker-a"}
        for _ in range(4):
            producer.send(Message(topic="made-meanwhile", body=b"x"))
        assert places(cluster.endpoint, "made-meanwhile") == {"broker-a": 4}

        received = {message.message_id for message in first}
        with Consumer(cluster.endpoint, "drained-g", ["drained"]) as consumer:

            def emptied() -> bool:
                messages = consumer.receive(32, wait_s=1)
                received.update(message.message_id for message in messages)
                consumer.ack_all(messages)
                return admin.drain_broker("broker-b").empty and len(received) == 10

            until(emptied, timeout=60, what=lambda: f"{received}, {admin.drain_broker('broker-b')}")
        assert places(cluster.endpoint, "drained") == {"broker-a": 8, "broker-b": 2}

        described = cluster.described()["processes"]
        pid = next(int(each["pid"]) for each in described if each["name"] == "b-master")
        os.kill(pid, signal.SIGKILL)

        def still_drained() -> bool:
            try:
                return admin.drain_broker("broker-b").drained
            except WhimbrelError:
                return False

        until(still_drained, timeout=40, what="the state after a restart", every_s=0.2)
        undone = admin.drain_broker("broker-b", drain=False)
        assert not undone.drained

        def used() -> bool:
            return producer.send(Message(topic="drained", body=b"again")).broker_name == "broker-b"

        until(used, timeout=40, what="sends to the broker", every_s=0.2)
