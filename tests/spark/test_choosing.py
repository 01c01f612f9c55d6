"""What of the queues is read: by time, by place, by filters; and a query's progress as a group's."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark.topics import bodies, fill
from support.cluster.processes import Cluster
from support.waiting import until
from whimbrel.client.sync import Admin

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Read = Callable[..., Any]


def milliseconds(at: Any) -> int:
    return int(at.timestamp() * 1000)


def middle(frame: Any) -> Any:
    """Return a store time of the rows, about half of which were stored earlier."""
    times = sorted(row["storeTimestamp"] for row in frame.select("storeTimestamp").collect())
    return times[len(times) // 2]


def test_a_batch_between_two_times(cluster: Cluster, read: Read) -> None:
    fill(cluster, "timed", 600, queues=2)
    at = middle(read("timed"))
    later = read("timed").filter(f"storeTimestamp >= '{at}'").count()
    assert read("timed", startingTimestamp=milliseconds(at)).count() == later
    assert read("timed", endingTimestamp=milliseconds(at)).count() == 600 - later
    tomorrow = milliseconds(at + timedelta(days=1))
    with pytest.raises(Exception, match="nothing as late as that"):
        read("timed", startingTimestamp=tomorrow).count()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read("timed", startingTimestamp=tomorrow, **strategy).count() == 0


def test_a_store_between_two_times_and_places(cluster: Cluster, spark: Any) -> None:
    fill(cluster, "placed", 600, queues=2)

    def load(**options: object) -> Any:
        reader = spark.read.format("whimbrel").option("store", str(cluster.master.store))
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    until(lambda: load(subscribe="placed").count() == 600, timeout=60, what="the master's files")
    at = middle(load(subscribe="placed"))
    for options in ({"subscribe": "placed"}, {}):
        rows = load(**options)
        later = rows.filter(f"storeTimestamp >= '{at}'").count()
        assert load(startingTimestamp=milliseconds(at), **options).count() == later
    places = sorted(row[0] for row in load(subscribe="placed").select("physicalOffset").collect())
    some = load(subscribe="placed", startingPhysicalOffset=places[100], endingPhysicalOffset=places[200])
    assert sorted(row[0] for row in some.select("physicalOffset").collect()) == places[100:200]


@pytest.mark.parametrize("kind", ["servers", "store"])
def test_filters_that_are_pushed_change_nothing_but_what_is_read(
    cluster: Cluster, spark: Any, kind: str
) -> None:
    topic = f"pushed-{kind}"
    fill(cluster, topic, 600, queues=4)
    where = cluster.endpoint if kind == "servers" else str(cluster.master.store)

    def load(pushdown: str) -> Any:
        reader = spark.read.format("whimbrel").option(kind, where).option("subscribe", f"{topic},{topic}2")
        return reader.option("pushdown", pushdown).load()

    fill(cluster, f"{topic}2", 100, queues=1)
    until(lambda: load("false").count() == 700, timeout=60, what="all messages")
    at = middle(load("false").filter(f"topic = '{topic}'"))
    place = load("false").agg({"physicalOffset": "avg"}).first()[0]
    for condition in (
        f"topic = '{topic}' AND queueId = 2 AND queueOffset BETWEEN 10 AND 50",
        f"topic IN ('{topic}2') AND tags = 'a'",
        f"storeTimestamp > '{at}' AND queueId <> 1",
        f"physicalOffset < {int(place)}",
        "queueId IN (0, 3) OR queueOffset = 5",
    ):
        chosen = load("true").filter(condition)
        assert bodies(chosen) == bodies(load("false").filter(condition)), condition
        assert bodies(chosen), condition
    pushed = load("true").filter(f"topic = '{topic}2'")
    plan = pushed._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan, plan  # nothing was left to Spark


def test_a_streams_progress_shows_as_a_groups(cluster: Cluster, spark: Any, tmp_path: Path) -> None:
    fill(cluster, "progress", 500, queues=4)
    with Admin(cluster.endpoint) as admin:
        admin.create_group("pipeline")

        def run() -> None:
            reader = spark.readStream.format("whimbrel").option("servers", cluster.endpoint)
            reader = reader.option("subscribe", "progress").option("startingOffsets", "earliest")
            stream = reader.option("maxOffsetsPerTrigger", "200").option("group", "pipeline").load()
            writer = stream.writeStream.format("noop").trigger(availableNow=True)
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)

        def committed() -> int:
            groups = admin.describe_group("pipeline")
            return sum(one.committed_offset for group in groups for one in group.progress)

        run()
        until(lambda: committed() == 500, timeout=30, what="the progress, the last batch's as well")
        fill(cluster, "progress", 40, start=500)
        run()
        until(lambda: committed() == 540, timeout=30, what="the second run's progress")
