"""Counts and rates of topics: of a running cluster, and of a store whose times are known."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spark.topics import confirmed
from support.cluster.processes import Cluster
from support.store.stores import OPTIONS, make_draft
from whimbrel.client import Message
from whimbrel.client.sync import Admin, Producer
from whimbrel.spark.jobs.stats import StatsOptions, stats
from whimbrel.store.master_store import MasterStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BEGIN = int(datetime(2026, 3, 1, 10, tzinfo=UTC).timestamp() * 1000)  # an hour begins


def fill(root: Path) -> None:
    """Make a store: 60 orders in the first minute of two hours, 120 in the second one's 30th; 10 bills."""
    root.mkdir()
    now = BEGIN
    store = MasterStore.open(root, OPTIONS, clock=lambda: now)
    try:
        for number in range(60):
            now = BEGIN + number * 1000
            store.append([make_draft(number, topic="orders", queue_id=number % 2, size=80)])
        for number in range(120):
            now = BEGIN + (90 * 60 + number // 4) * 1000
            store.append([make_draft(number, topic="orders", queue_id=0, size=80)])
        for number in range(10):
            store.append([make_draft(number, topic="bills", size=160)])
    finally:
        store.close()


def rows(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def utc(at: datetime) -> datetime:
    """Return a time as PySpark gives it, in the machine's zone, as one in UTC."""
    return at.astimezone(UTC)


def test_a_store_is_counted_by_queue_topic_and_hour_and_drawn(spark: Any, tmp_path: Path) -> None:
    fill(tmp_path / "store")
    source = {"store": str(tmp_path / "store"), "subscribePattern": ".*", "isolation": "latest"}
    html, told = tmp_path / "stats.html", list[str]()
    found = rows(stats(spark, StatsOptions(source=source, html=html), told.append))
    assert [(r["topic"], r["queue"], r["messages"], r["first_offset"], r["last_offset"]) for r in found] == [
        ("bills", 0, 10, 0, 9),
        ("orders", 0, 150, 0, 149),
        ("orders", 1, 30, 0, 29),
    ]
    bills, first, second = found
    assert bills["average_bytes"] == bills["bytes"] / 10
    assert first["average_bytes"] < bills["average_bytes"]
    assert bills["per_s"] is None  # all at one moment
    assert second["per_s"] == pytest.approx(30 / 58)
    assert second["bytes_per_s"] == pytest.approx(second["bytes"] / 58)
    assert utc(first["busiest_minute"]) == datetime(2026, 3, 1, 11, 30, tzinfo=UTC)
    assert (first["busiest_messages"], second["busiest_messages"]) == (120, 30)
    assert utc(first["first_stored"]) == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert any(str(html) in line for line in told)
    content = html.read_text()
    assert f"<h1>Messages of the store {tmp_path / 'store'}</h1>" in content
    assert "190 messages in 2 topics and 3 queues" in content
    assert "stored from 2026-03-01 10:00:00 UTC to 2026-03-01 11:30:29 UTC" in content
    assert all(name in content for name in ("Messages by topic", "Messages by queue and hour", "orders"))

    by_topic = rows(stats(spark, StatsOptions(source=source, by="topic")))
    assert [(r["topic"], r["queues"], r["messages"]) for r in by_topic] == [
        ("bills", 1, 10),
        ("orders", 2, 180),
    ]
    assert by_topic[1]["busiest_messages"] == 120
    by_hour = rows(stats(spark, StatsOptions(source=source, by="hour")))
    assert [(r["topic"], utc(r["hour"]).hour, r["messages"]) for r in by_hour] == [
        ("bills", 11, 10),
        ("orders", 10, 60),
        ("orders", 11, 120),
    ]
    assert by_hour[2]["per_s"] == pytest.approx(120 / 3600)


def test_a_running_cluster_is_counted_and_a_topic_without_messages_is_no_row(
    spark: Any, cluster: Cluster
) -> None:
    with Admin(cluster.endpoint) as admin:
        for topic in ("stats-some", "stats-none"):
            admin.create_topic(topic, queues=2)
    with Producer(cluster.endpoint) as producer:
        for _ in range(3):
            producer.send_batch([Message(topic="stats-some", body=b"x" * 100) for _ in range(20)])
    confirmed(cluster)
    source = {"servers": cluster.endpoint, "subscribe": "stats-some,stats-none"}
    found = rows(stats(spark, StatsOptions(source=source, by="topic")))
    assert [(r["topic"], r["messages"]) for r in found] == [("stats-some", 60)]
    told: list[str] = []
    nothing = stats(spark, StatsOptions(source={**source, "subscribe": "stats-none"}), told.append)
    assert nothing.count() == 0
    assert told == ["no messages: none of the topics holds any"]
