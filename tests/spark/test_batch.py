"""Topics of a running cluster as DataFrames."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark.topics import bodies, fill
from support.cluster.processes import Cluster
from support.waiting import until
from whimbrel.client import Message
from whimbrel.client.sync import Producer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Read = Callable[..., Any]


def test_a_topic_is_found_by_name_and_shows_every_message_once(cluster: Cluster, read: Read) -> None:
    fill(cluster, "whole", 500)
    frame = read("whole")
    assert bodies(frame) == list(range(500))
    row = frame.filter("queueOffset = 0").orderBy("queueId").first()
    number = int(bytes(row["body"]))
    assert (row["topic"], row["brokerName"], row["keys"]) == ("whole", "broker-a", f"k{number} both")
    assert row["properties"]["n"] == str(number)
    assert row["tags"] == ("a" if number % 2 else "b")
    assert abs((row["storeTimestamp"] - row["bornTimestamp"]).total_seconds()) < 60
    frame.createOrReplaceTempView("whole")
    spans = frame.sparkSession.sql(
        "SELECT min(queueOffset), max(queueOffset), count(*) FROM whole GROUP BY queueId"
    )
    assert all(first == 0 and last == count - 1 for first, last, count in spans.collect())


def test_only_the_asked_columns_come_in_the_asked_order(cluster: Cluster, spark: Any) -> None:
    fill(cluster, "narrow", 20)
    frame = (
        spark.read.format("whimbrel")
        .option("servers", cluster.endpoint)
        .option("subscribe", "narrow")
        .schema("queueOffset long, topic string")
        .load()
    )
    assert frame.columns == ["queueOffset", "topic"]
    assert {row["topic"] for row in frame.collect()} == {"narrow"}


def test_tags_are_filtered_by_the_broker_and_compared_as_text(cluster: Cluster, read: Read) -> None:
    fill(cluster, "tagged", 100)
    assert bodies(read("tagged", tags="a")) == list(range(1, 100, 2))
    assert bodies(read("tagged", tags="a || b")) == list(range(100))
    # "Aa" and "BB" have the same hash in Java.
    with Producer(cluster.endpoint) as producer:
        for tag in ("Aa", "BB"):
            producer.send(Message(topic="tagged", body=b"1000", tag=tag))
    assert [row["tags"] for row in read("tagged", tags="BB").collect()] == ["BB"]


def test_ranges_of_offsets_are_read_half_open(cluster: Cluster, read: Read) -> None:
    fill(cluster, "ranged", 100, queues=1)
    begin, end = '{"ranged": {"broker-a": {"0": 10}}}', '{"ranged": {"broker-a": {"0": 20}}}'
    assert bodies(read("ranged", startingOffsets=begin, endingOffsets=end)) == list(range(10, 20))


def test_a_large_queue_is_split_and_small_ones_are_packed(cluster: Cluster, read: Read) -> None:
    fill(cluster, "split", 400, queues=1)
    assert read("split").rdd.getNumPartitions() == 1
    split = read("split", minPartitions=5)
    assert split.rdd.getNumPartitions() == 5
    assert bodies(split) == list(range(400))
    fill(cluster, "packed", 400, queues=32)
    assert read("packed").rdd.getNumPartitions() == 1


def test_kafka_columns_serve_a_job_that_was_written_for_kafka(cluster: Cluster, read: Read) -> None:
    fill(cluster, "kafka", 40)
    frame = read("kafka", kafkaColumns="true")
    values = frame.selectExpr("CAST(value AS STRING) AS value", "partition", "offset", "timestamp").collect()
    assert sorted(int(row["value"]) for row in values) == list(range(40))
    header = {entry["key"]: bytes(entry["value"]) for entry in frame.first()["headers"]}
    assert "n" in header


def test_large_and_empty_looking_bodies_come_as_they_are(cluster: Cluster, read: Read) -> None:
    sent = [b"\x00", bytes(range(256)) * 4096 * 4, b"x" * (4 << 20)]
    with Producer(cluster.endpoint) as producer:
        for body in sent:
            producer.send(Message(topic="large", body=body))
    assert sorted(bytes(row["body"]) for row in read("large").collect()) == sorted(sent)


def test_a_slave_serves_the_same_rows(cluster: Cluster, read: Read) -> None:
    fill(cluster, "replica", 200)
    fingerprint = (
        "count(*)",
        "bit_xor(xxhash64(* EXCEPT (properties)))",
        "bit_xor(xxhash64(map_entries(properties)))",
    )
    master = read("replica", readFrom="master").selectExpr(*fingerprint).first()
    # What the slave has been told is confirmed follows the master's within a tenth of a second or so.
    until(lambda: read("replica", readFrom="slave").count() == 200, timeout=30, what="the slave's rows")
    assert read("replica", readFrom="slave").selectExpr(*fingerprint).first() == master


def test_the_stores_of_master_and_slave_give_the_same_rows_as_the_brokers(
    cluster: Cluster, spark: Any, read: Read
) -> None:
    fill(cluster, "files", 300)
    columns = "count(*)", "bit_xor(xxhash64(* EXCEPT (properties, brokerName)))"

    def of(store: Path) -> Any:
        reader = spark.read.format("whimbrel").option("store", str(store)).option("subscribe", "files")
        return reader.load().selectExpr(*columns).first()

    served = read("files", readFrom="master").selectExpr(*columns).first()
    assert served[0] == 300
    until(lambda: of(cluster.master.store) == served, timeout=60, what="the master's files")
    until(lambda: of(cluster.slaves[0].store) == served, timeout=60, what="the slave's files")
    whole = spark.read.format("whimbrel").option("store", str(cluster.master.store)).load()
    assert whole.filter("topic = 'files'").count() == 300


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"servres": "x"}, "did you mean servers"),
        ({"store": "/x"}, "exactly one is needed"),
        ({"archive": "/x"}, "exactly one is needed"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
    ],
)
def test_a_wrong_option_fails_with_its_name(
    cluster: Cluster, read: Read, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        read("whole", **options).count()


def test_a_topic_that_is_nowhere_is_named(read: Read) -> None:
    with pytest.raises(Exception, match="no broker has the topic nowhere"):
        read("nowhere").count()


def test_nobody_at_the_address_is_one_sentence(spark: Any) -> None:
    reader = spark.read.format("whimbrel").option("servers", "127.0.0.1:1").option("subscribe", "x")
    reader = reader.option("fetchOffset.numRetries", "1").option("fetchOffset.retryIntervalMs", "10")
    with pytest.raises(Exception, match="is the cluster running"):
        reader.load().count()


def test_positions_and_queues_that_are_not_there_are_refused(
    cluster: Cluster, spark: Any, read: Read
) -> None:
    fill(cluster, "positioned", 20, queues=1)
    begin = '{"positioned": {"broker-a": {"0": %d}}}'
    assert read("positioned", startingOffsets=begin % 20).count() == 0
    with pytest.raises(Exception, match="queue 0 of broker-a does not reach to offset 21: it holds 0 to 19"):
        read("positioned", startingOffsets=begin % 21).count()
    with pytest.raises(Exception, match="has no queue 7 on broker-a, or it is not read; it has queue 0 on"):
        read("positioned", startingOffsets='{"positioned": {"broker-a": {"7": 0}}}').count()
    reader = spark.read.format("whimbrel").option("servers", cluster.endpoint)
    with pytest.raises(Exception, match="option assign: positioned has no queue 7"):
        reader.option("assign", '{"positioned": [0, 7]}').load().count()


def test_a_broker_in_place_of_the_nameserver_is_told_so(cluster: Cluster, spark: Any) -> None:
    reader = spark.read.format("whimbrel").option("servers", cluster.master.grpc).option("subscribe", "x")
    with pytest.raises(Exception, match=f"{cluster.master.grpc} is not a nameserver"):
        reader.load().count()


def test_a_column_of_another_type_is_named(spark: Any, cluster: Cluster) -> None:
    reader = spark.read.format("whimbrel").option("servers", cluster.endpoint).option("subscribe", "whole")
    with pytest.raises(Exception, match="column queueId is of type int, not string"):
        reader.schema("queueId string").load().count()
