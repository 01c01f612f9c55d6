"""Rows as messages: acknowledged, none missing after a task failed in the middle, told apart by their ids."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark.test_replay import ends, target
from spark.topics import fill
from support.cluster.processes import Cluster
from whimbrel.client.sync import Admin, PullConsumer
from whimbrel.spark.jobs.replay import Source, rows_of
from whimbrel.spark.replay_writer import COLUMNS

__all__ = ["target"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Read = Callable[..., Any]


def write(frame: Any, cluster: Cluster, **options: object) -> None:
    writer = frame.write.format("whimbrel").mode("append").option("servers", cluster.endpoint)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def test_rows_arrive_with_keys_tags_properties_and_in_the_order_of_their_queue(
    spark: Any, cluster: Cluster, read: Read
) -> None:
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("sunk", queues=4)
    frame = spark.range(0, 300, 1, 2).selectExpr(
        "CAST(id AS STRING) AS body",
        "concat('k', id, ' both') AS keys",
        "IF(id % 2 = 0, 'even', 'odd') AS tags",
        "CAST(id % 3 AS INT) AS queueId",
        "map('n', CAST(id AS STRING)) AS properties",
    )
    write(frame, cluster, topic="sunk", batchBytes="4k")
    rows = read("sunk").orderBy("queueId", "queueOffset").collect()
    numbers = [int(bytes(row["body"])) for row in rows]
    assert sorted(numbers) == list(range(300))
    assert {row["queueId"] for row in rows} == {0, 1, 2}
    assert all(row["queueId"] == number % 3 for row, number in zip(rows, numbers, strict=True))
    for part in (range(150), range(150, 300)):  # a task each
        for queue_id in range(3):
            ours = [n for n in numbers if n in part and n % 3 == queue_id]
            assert ours == sorted(ours)
    first = next(row for row in rows if bytes(row["body"]) == b"7")
    assert (first["keys"], first["tags"], first["properties"]["n"]) == ("k7 both", "odd", "7")


def fails_once(endpoint: str, topic: str) -> Any:
    """Return what gives on a batch, and fails at the first try as soon as some of it is stored."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() == 0:
            with PullConsumer(endpoint, "watchers") as reader:
                queue = reader.queues(topic)[0]
                for _ in range(3):  # long polls of 20 s
                    if reader.pull(queue, 0, wait_s=20).messages:
                        break
            raise RuntimeError("the first try fails")

    return work


def test_a_task_that_failed_in_the_middle_sends_all_again_under_the_same_ids(
    spark: Any, cluster: Cluster, read: Read
) -> None:
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("tries", queues=2)
    frame = spark.range(0, 200, 1, 1).selectExpr("CAST(lpad(id, 5000, '0') AS STRING) AS body")
    frame = frame.mapInArrow(fails_once(cluster.endpoint, "tries"), frame.schema)
    # As many rows go to a Python worker at a time: the writer has some before those behind them fail.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        write(frame, cluster, topic="tries", batchBytes="8k", delivery="idempotent", runId="run-1")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    rows = read("tries").selectExpr("CAST(body AS STRING) AS body", "properties").collect()
    by_id: dict[str, set[int]] = {}
    for row in rows:
        by_id.setdefault(row["properties"]["MQ_SPARK_ID"], set()).add(int(row["body"][-4:]))
    assert {int(name.rpartition(":")[2]): numbers for name, numbers in by_id.items()} == {
        number: {number} for number in range(200)
    }
    assert all(name.startswith("run-1:0:") for name in by_id)
    times = Counter(row["properties"]["MQ_SPARK_ID"] for row in rows)
    assert len(rows) > 200, "the first try has sent nothing"
    assert max(times.values()) == 2


def test_a_stream_names_its_rows_by_query_batch_partition_and_row(
    spark: Any, cluster: Cluster, read: Read, tmp_path: Path
) -> None:
    fill(cluster, "inflow", 120, queues=2)
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("outflow", queues=2)
    stream = spark.readStream.format("whimbrel").option("servers", cluster.endpoint)
    stream = stream.option("subscribe", "inflow").option("startingOffsets", "earliest")
    frame = stream.option("maxOffsetsPerTrigger", "60").load().select("body", "tags")
    query = (
        frame.writeStream.format("whimbrel")
        .option("servers", cluster.endpoint)
        .option("topic", "outflow")
        .option("delivery", "idempotent")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    rows = read("outflow").collect()
    assert sorted(int(bytes(row["body"])) for row in rows) == list(range(120))
    ids = [row["properties"]["MQ_SPARK_ID"].split(":") for row in rows]
    assert len({tuple(parts) for parts in ids}) == 120
    assert {parts[0] for parts in ids} == {str(query.id)}
    assert {parts[1] for parts in ids} == {"0", "1"}


def test_preserved_rows_keep_place_and_text_and_a_second_write_adds_nothing(
    spark: Any, cluster: Cluster, target: Cluster
) -> None:
    fill(cluster, "mirrored", 90, queues=3)
    with Admin(target.endpoint) as admin:
        admin.create_topic("mirrored", queues=3)
    rows = rows_of(spark, Source(servers=cluster.endpoint, topic="mirrored")).select(*COLUMNS)
    mixed = rows.repartition(1).sortWithinPartitions(rows["queueOffset"].desc())
    with pytest.raises(Exception, match="with repartition and sortWithinPartitions"):
        write(mixed, target, preserve="true")
    whole = rows.repartition(2, "topic", "brokerName", "queueId").sortWithinPartitions(
        "queueId", "queueOffset"
    )
    before = ends(target, "mirrored")
    for _ in range(2):
        write(whole, target, preserve="true")

    def kept(cluster: Cluster) -> list[Any]:
        names = ("queueId", "queueOffset", "msgId", "body", "bornTimestamp", "bornHost")
        reader = (
            spark.read.format("whimbrel").option("servers", cluster.endpoint).option("subscribe", "mirrored")
        )
        return [tuple(row) for row in reader.load().select(*names).orderBy(*names[:2]).collect()]

    assert before == 0
    assert kept(target) == kept(cluster)


def test_what_cannot_be_sent_fails_with_one_sentence(spark: Any, cluster: Cluster, read: Read) -> None:
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("strict", queues=1)
    frame = spark.range(0, 3, 1, 1)
    with pytest.raises(Exception, match="column brokerName: a write has no use for it"):
        write(frame.selectExpr("'x' AS body", "'b' AS brokerName"), cluster, topic="strict")
    with pytest.raises(Exception, match="the sink sends no transactions"):
        write(frame.selectExpr("'x' AS body"), cluster, topic="strict", delivery="transactional")
    reserved = frame.selectExpr("'x' AS body", "map('UNIQ_KEY', '1') AS properties")
    with pytest.raises(Exception, match="user property UNIQ_KEY is reserved"):
        write(reserved, cluster, topic="strict")
    with pytest.raises(Exception, match="this one is FIFO"):
        write(frame.selectExpr("'x' AS body", "'g' AS messageGroup"), cluster, topic="strict")
    assert read("strict").count() == 0
