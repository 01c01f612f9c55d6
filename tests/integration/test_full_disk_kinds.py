"""A disk that is full when a message is due, a dead letter moves, a transaction ends: later, and once.

The store lies on a small tmpfs. Messages are large: what the broker stores of itself must not fit into the
rest of a log file.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.test_full_disk import BODY_BYTES, BROKER, NEVER, Client, check_refusal, create, started
from integration.test_transactions import Checked
from support.cluster.processes import Process
from support.cluster.small_disk import SmallDisk
from support.waiting import until
from whimbrel.model.names import DEAD_LETTER_PREFIX
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.verify import verify

pytestmark = pytest.mark.process

MIB = 1 << 20
DUE_S = 8  # until then the disk is to be full
LATER, ORDERS, MIXED = "later", "orders", "mixed"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", 32 * MIB) as mounted:
        yield mounted


@pytest.fixture
def broker(disk: SmallDisk, tmp_path: Path) -> Iterator[Process]:
    """A master on the small disk, whose transactions are asked about soon."""
    settings: dict[str, object] = {
        "store": disk.path / "store",
        "transaction_timeout_ms": 500,
        "transaction_check_interval_ms": 500,
        "transaction_check_max": 1000,
    }
    with Process(tmp_path, "broker", "broker", **BROKER, **NEVER, **settings) as process:
        yield process
        assert "Traceback" not in process.log_tail(1000)
        assert process.stop() == 0
    assert verify(disk.path / "store") == []


def make(client: Client, name: str, kind: Any) -> None:
    topic = admin.Topic(name=name, read_queues=1, write_queues=1, message_type=kind)
    client.api.administer("CreateTopic", topic=topic)


def large(text: str) -> bytes:
    return text.encode().ljust(BODY_BYTES, b".")


def texts(messages: list[Any]) -> list[str]:
    return [one.body.rstrip(b".").decode() for one in messages]


def fill_up(disk: SmallDisk, client: Client) -> None:
    """Leave no room for a message, neither on the disk nor in the log file."""
    disk.fill(leave=64 * 1024)
    client.send_until_refused()
    disk.fill()
    check_refusal(client.send())


@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
def test_delayed_messages_that_are_due_on_a_full_disk_come_later_in_order(
    disk: SmallDisk, broker: Process, killed: bool
) -> None:
    """Checklist 30: each once, also when the broker dies while the disk is full."""
    client = Client(broker)
    create(client)
    make(client, LATER, admin.MESSAGE_TYPE_DELAY)
    due = int(time.time()) + DUE_S
    sent = [f"{number:02}" for number in range(20)]
    for number, name in enumerate(sent):
        at = Timestamp(seconds=due + number // 10)
        answer = client.api.send(
            LATER, large(name), message_id=name, message_type=v2.DELAY, delivery_timestamp=at
        )
        assert answer.status.code == v2.OK, answer
    fill_up(disk, client)
    assert time.time() < due, "the machine is too slow for this test"
    refused = "delayed messages wait: the disk is full"
    until(lambda: refused in broker.log_tail(20), timeout=DUE_S + 10, what="a delivery that is refused")
    if killed:
        broker.kill()
        disk.fill()
        assert started(broker)
        until(lambda: broker.log_tail(1000).count(refused) > 1, timeout=10, what="another one")
        client.close()
        client = Client(broker)
    assert list(client.messages(LATER)) == []
    check_refusal(client.send())
    disk.empty()
    until(lambda: len(list(client.messages(LATER))) >= len(sent), timeout=15, what="all of them")
    until(lambda: client.send().code == v2.OK, what="a send that is taken again")
    assert texts(list(client.messages(LATER))) == sent
    client.close()


def test_dead_letters_on_a_full_disk_are_moved_later(disk: SmallDisk, broker: Process) -> None:
    """Checklist 59: neither lost nor delivered to the group once more."""
    client = Client(broker)
    create(client)
    make(client, MIXED, admin.MESSAGE_TYPE_NORMAL)
    client.api.administer("CreateGroup", group=admin.Group(name="failing", max_attempts=1))
    names = [f"dead-{number}" for number in range(3)]
    for name in names:
        assert client.api.send(MIXED, large(name), message_id=name).status.code == v2.OK
    got = client.api.receive(MIXED, "failing", poll_s=5)
    assert texts(got.messages) == names
    fill_up(disk, client)
    for handle in got.handles:
        assert client.api.change(MIXED, "failing", handle, 0).status.code == v2.OK
    for _ in range(3):
        assert client.api.receive(MIXED, "failing", poll_s=0.5).messages == []
    dead = DEAD_LETTER_PREFIX + "failing"
    assert lag(client) == len(names)
    assert "were not handed on and are tried again" in broker.log_tail(1000)
    disk.empty()

    def moved() -> bool:
        assert client.api.receive(MIXED, "failing", poll_s=1).messages == []
        return lag(client) == 0

    until(moved, timeout=30, what="the dead letters")
    assert sorted(texts(list(client.messages(dead)))) == names
    client.close()


def lag(client: Client) -> int:
    """Return how many messages the group has not done with."""
    view = client.api.administer("DescribeGroup", name="failing")
    (one,) = (each for each in view.progress if each.topic == MIXED)
    return int(one.lag)


def test_transactions_on_a_full_disk_are_refused_and_end_well_later(disk: SmallDisk, broker: Process) -> None:
    """Half and commit are refused in a sentence that says what to do; what was open ends later, and once."""
    client = Client(broker)
    create(client)
    make(client, ORDERS, admin.MESSAGE_TYPE_TRANSACTION)
    producer = Checked(client.channel, "producer@1", ORDERS)
    by_producer, by_check = (
        producer.half(large(name), message_id=name, topic=ORDERS) for name in ("by-producer", "by-check")
    )
    fill_up(disk, client)
    half = client.api.send(ORDERS, large("refused"), message_id="R", message_type=v2.TRANSACTION)
    check_refusal(half.status)
    check_refusal(commit(client, by_producer, v2.SOURCE_CLIENT))
    while producer.asked().transaction_id != by_check:
        pass
    check_refusal(commit(client, by_check, v2.SOURCE_SERVER_CHECK))
    assert list(client.messages(ORDERS)) == []
    broker.kill()
    disk.fill()
    assert started(broker)
    client.close()
    client = Client(broker)
    producer = Checked(client.channel, "producer@1", ORDERS)
    until(lambda: commit(client, by_producer, v2.SOURCE_CLIENT).code != v2.OK, what="a refusal")
    disk.empty()
    until(lambda: commit(client, by_producer, v2.SOURCE_CLIENT).code == v2.OK, what="a commit that is taken")
    while producer.asked().transaction_id != by_check:
        pass
    assert commit(client, by_check, v2.SOURCE_SERVER_CHECK).code == v2.OK
    assert commit(client, by_producer, v2.SOURCE_CLIENT).code == v2.OK  # as it was
    assert texts(list(client.messages(ORDERS))) == ["by-producer", "by-check"]
    client.close()


def commit(client: Client, name: str, source: Any) -> Any:
    """Commit a transaction; return the status of the answer."""
    return client.api(
        "EndTransaction",
        topic=v2.Resource(name=ORDERS),
        message_id=name,
        transaction_id=name,
        resolution=v2.COMMIT,
        source=source,
    ).status
