"""Topics that two broker groups have: read as one, as a batch and as a stream, and each group is audited."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.commands import Command
from support.systems.sdk_programs import DevCluster
from support.waiting import until
from whimbrel.client import Message, MessageType, Resolution
from whimbrel.client.sync import Admin, Producer
from whimbrel.rpc.api.bulk_calls import describe_queues, open_bulk_channel
from whimbrel.rpc.api.calls import perform_blocking

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COUNT = 60
BROKERS = ("broker-a", "broker-b")


def log_ends(address: str) -> tuple[int, int]:
    """Return how far a broker's log is written, and how far it is confirmed."""
    with open_bulk_channel(address) as channel:
        found = perform_blocking(channel, describe_queues(("-",)), (), 10)
    return found.log_written, found.log_confirmed


def wait_confirmed(running: DevCluster) -> None:
    """Wait until all brokers of both groups have what their masters have, confirmed."""
    with Admin(running.endpoint) as admin:
        brokers = admin.cluster().brokers
    assert len(brokers) == 4
    masters = {broker.broker_name: broker.address for broker in brokers if broker.broker_id == 0}
    ends = {name: log_ends(address)[0] for name, address in masters.items()}
    until(
        lambda: all(log_ends(each.address)[1] >= ends[each.broker_name] for each in brokers),
        timeout=60,
        what="confirmation",
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Two groups with a slave each; messages of two kinds on both."""
    with DevCluster(tmp_path_factory.mktemp("two") / "dev", "--brokers", "2") as running:
        with Admin(running.endpoint) as admin:
            admin.create_topic("orders", queues=2)
            admin.create_topic("payments", queues=2, message_type=MessageType.TRANSACTION)
        with Producer(running.endpoint, check=lambda message: Resolution.UNKNOWN) as producer:
            for number in range(COUNT):
                producer.send(Message(topic="orders", body=b"%d" % number))
            for number in range(8):
                with producer.transaction(Message(topic="payments", body=b"%d" % number)):
                    pass
        wait_confirmed(running)
        yield running


def frame(spark: Any, running: DevCluster, topic: str, schema: str = "brokerName string, body binary") -> Any:
    reader = spark.read.format("whimbrel").schema(schema)
    return reader.option("servers", running.endpoint).option("subscribe", topic).load()


def test_a_batch_has_the_messages_of_both_each_once(spark: Any, two: DevCluster) -> None:
    rows = frame(spark, two, "orders").collect()
    assert sorted(int(bytes(row["body"])) for row in rows) == list(range(COUNT))
    assert Counter(row["brokerName"] for row in rows) == dict.fromkeys(BROKERS, COUNT // 2)


def test_system_topics_of_both_are_read(spark: Any, two: DevCluster) -> None:
    read = frame(spark, two, "RMQ_SYS_TRANS_HALF_TOPIC", "brokerName string, type string")
    halves = read.where("type = 'HALF'").collect()
    assert Counter(row["brokerName"] for row in halves) == dict.fromkeys(BROKERS, 4)


def test_a_stream_has_them_each_once_and_its_positions_name_both(
    spark: Any, two: DevCluster, follow: Callable[..., Any], tmp_path: Path
) -> None:
    query = follow(two.endpoint, "orders", maxOffsetsPerTrigger=25)
    rows = spark.read.parquet(str(tmp_path / "out")).select("body").collect()
    assert sorted(int(bytes(row["body"])) for row in rows) == list(range(COUNT))
    end = json.dumps(query.lastProgress["sources"][0]["endOffset"])
    assert all(name in end for name in BROKERS)


def test_each_group_is_audited_by_its_name_and_without_one_the_names_are_told(
    two: DevCluster, command: Command
) -> None:
    asked = command("audit", "--endpoint", two.endpoint)
    assert asked.exit_code == 2
    assert all(name in asked.stderr for name in ("--broker", *BROKERS))
    for name in BROKERS:
        done = command("audit", "--endpoint", two.endpoint, "--broker", name, "-o", "json")
        assert done.exit_code == 0, done.stderr
        assert {row["state"] for row in json.loads(done.stdout)} == {"EQUAL"}
