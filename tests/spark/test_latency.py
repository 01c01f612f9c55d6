"""Latency from spans whose times are known, from those of real processes, and from a log."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from spark.topics import confirmed
from support.cluster.processes import Cluster
from support.store.stores import NOW, OPTIONS, make_draft
from support.waiting import until
from whimbrel.client import Message
from whimbrel.client.sync import Admin, Producer
from whimbrel.spark.jobs import JobError
from whimbrel.spark.jobs.latency import LatencyOptions, latency
from whimbrel.spark.spans import OURS
from whimbrel.store.master_store import MasterStore
from whimbrel.telemetry import ACKNOWLEDGE, APPEND, FLUSH, FRAME, SLAVE_APPEND

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BEGIN_NS = 1_790_000_100_000_000_000  # a multiple of five minutes
MS = 1_000_000


def span(
    number: int, name: str, at_ms: float, took_ms: float, *, failed: bool = False, **attributes: str | int
) -> dict[str, Any]:
    """Return a span in OTLP's JSON form; attributes have `_` for `.`, and `__` for `_`."""
    begin = BEGIN_NS + round(at_ms * MS)
    named = {name.replace("__", "~").replace("_", ".").replace("~", "_"): v for name, v in attributes.items()}
    return {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(begin + round(took_ms * MS)),
        "attributes": [
            {"key": key, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
            for key, v in {"messaging.system": "rocketmq", **named}.items()
        ],
        "status": {"code": 2} if failed else {},
    }


def line(*spans: dict[str, Any]) -> str:
    return (
        json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]})
        + "\n"
    )


def rows(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def write_spans(folder: Path) -> list[dict[str, Any]]:
    """Write what a master with two slaves would: 100 messages of 1000 bytes, one every 10 ms; return all."""
    topic = {"messaging_destination_name": "orders", "whimbrel_broker_name": "broker-a"}
    spans = []
    for number in range(100):
        at, offset = number * 10, number * 1000
        about: dict[str, Any] = {**topic, "whimbrel_physical__offset": offset, "whimbrel_record_size": 1000}
        spans.append(span(5 * number + 1, APPEND, at, (number + 1) / 10, whimbrel_broker_id=0, **about))
        spans.append(span(5 * number + 2, SLAVE_APPEND, at + 1, 1, whimbrel_broker_id=1, **about))
        for slave, late, lag in ((3, 2.0, 0), (4, 500.0, 50)):  # the second is 50 messages behind
            acknowledged = offset + 1000 - lag * 1000
            spans.append(
                span(
                    5 * number + slave,
                    ACKNOWLEDGE,
                    at + 5,
                    late,
                    whimbrel_broker_id=0,
                    whimbrel_slave_address=f"10.0.0.{slave}:9",
                    whimbrel_acknowledged__offset=max(acknowledged, 0) if lag else acknowledged,
                    **about,
                )
            )
    folder.mkdir()
    (folder / "master.jsonl.1").write_text("".join(line(*spans[i : i + 8]) for i in range(0, 200, 8)))
    (folder / "master.jsonl").write_text("".join(line(*spans[i : i + 8]) for i in range(200, 400, 8)))
    return spans


def test_stages_have_percentiles_and_replication_its_rate_and_lag(spark: Any, tmp_path: Path) -> None:
    spans = write_spans(tmp_path / "traces")
    client: dict[str, Any] = {"messaging_operation_type": "send", "messaging_destination_name": "orders"}
    others = [
        span(9001, "send orders", 0, 4.0, **client),
        span(9002, "send orders", 10, -1.5, **client),  # the clock was set back
        span(9003, "send orders", 400_000, 6.0, failed=True, **client),  # more than five minutes later
        span(9004, FRAME, 995, 1, whimbrel_broker_name="broker-a", whimbrel_frame_offset=0),
        span(9005, "GET /", 0, 1, http_method="GET"),
    ]
    collector = line(*spans[:8]) + line(*others)  # the first ones a second time
    half = '{"resourceMetrics": []}\n' + line(*others)[:50]
    (tmp_path / "traces" / "collector.json").write_text(collector + half)
    told, html = list[str](), tmp_path / "latency.html"
    found = rows(latency(spark, LatencyOptions(spans=str(tmp_path / "traces"), html=html), told.append))
    assert "405 spans: 403 of stages, 1 of frames, 1 of something else" in told
    assert "1 lines are no JSON, and are left out: the last of a file may be half written" in told
    assert [(r["stage"], r["broker_id"], r["slave"], r["spans"]) for r in found] == [
        ("send", None, None, 3),
        ("append", 0, None, 100),
        ("slave append", 1, None, 100),
        ("acknowledge", 0, "10.0.0.3:9", 100),
        ("acknowledge", 0, "10.0.0.4:9", 100),
    ]
    send, append, _, near, far = found
    assert (send["failed"], send["negative"], send["max_ms"]) == (1, 1, 6.0)
    exact = statistics.quantiles([(number + 1) / 10 for number in range(100)], n=100, method="inclusive")
    for name, share in (("p50_ms", 50), ("p95_ms", 95), ("p99_ms", 99)):
        assert append[name] == pytest.approx(exact[share - 1], abs=0.11)
    assert append["max_ms"] == pytest.approx(10.0)
    # 99,000 bytes in 990 ms; the other one moves from 0 to 50,000 in as long.
    assert near["mb_per_s"] == pytest.approx(0.1, rel=0.01)
    assert far["mb_per_s"] == pytest.approx(50_000 / 990 / 1000, rel=0.01)
    assert near["lag_max_bytes"] == 1000
    assert far["lag_max_bytes"] == 100_000
    content = html.read_text()
    assert all(text in content for text in ("slave append, 5 s each", "p99_ms", "Most behind"))

    periods = rows(
        latency(spark, LatencyOptions(spans=str(tmp_path / "traces"), per_s=300, topics=("orders",)))
    )
    assert [r["spans"] for r in periods if r["stage"] == "send"] == [2, 1]
    assert len({r["period"] for r in periods}) == 2
    with pytest.raises(JobError, match="no span is about a message of nowhere"):
        latency(spark, LatencyOptions(spans=str(tmp_path / "traces"), topics=("nowhere",)))


def test_folders_without_spans_are_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no such file or folder"):
        latency(spark, LatencyOptions(spans=str(tmp_path / "nowhere")))
    (tmp_path / "other").mkdir()
    with pytest.raises(JobError, match=r"0 lines .* none holds spans .* --trace-to"):
        latency(spark, LatencyOptions(spans=str(tmp_path / "other")))
    (tmp_path / "other" / "log.json").write_text('{"message": "hello"}\n')
    with pytest.raises(JobError, match=r"1 lines .* none holds spans"):
        latency(spark, LatencyOptions(spans=str(tmp_path / "other")))
    (tmp_path / "other" / "log.json").write_text(line(span(1, "GET /", 0, 1)))
    with pytest.raises(JobError, match="1 spans, and none is a stage of a message"):
        latency(spark, LatencyOptions(spans=str(tmp_path / "other")))


def test_the_log_tells_how_old_messages_were_and_clocks_that_differ(spark: Any, tmp_path: Path) -> None:
    now = NOW  # at which all drafts were born
    (tmp_path / "store").mkdir()
    store = MasterStore.open(tmp_path / "store", OPTIONS, clock=lambda: now)
    try:
        for number in range(100):
            now = NOW - 10 + number  # the first ten before they were born
            store.append([make_draft(number, topic="skewed")])
            store.append([make_draft(number, topic="late")])
    finally:
        store.close()
    told, html = list[str](), tmp_path / "latency.html"
    source = {"store": str(tmp_path / "store"), "subscribePattern": ".*", "isolation": "latest"}
    found = rows(latency(spark, LatencyOptions(source=source, html=html), told.append))
    assert [(r["topic"], r["messages"], r["negative"], r["min_ms"], r["max_ms"]) for r in found] == [
        ("late", 100, 10, -10.0, 89.0),
        ("skewed", 100, 10, -10.0, 89.0),
    ]
    assert found[0]["p50_ms"] == pytest.approx(39, abs=1)
    assert "20 of 200 messages were stored before they were born, by 10 ms at worst" in told[-1]
    assert "From born to stored" in html.read_text()


def test_a_running_cluster_tells_the_same_of_its_log(spark: Any, cluster: Cluster) -> None:
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("aged", queues=2)
    with Producer(cluster.endpoint) as producer:
        producer.send_batch([Message(topic="aged", body=b"x") for _ in range(50)])
    confirmed(cluster)
    source = {"servers": cluster.endpoint, "subscribe": "aged"}
    (row,) = rows(latency(spark, LatencyOptions(source=source, per_s=86_400 * 7)))
    assert (row["topic"], row["messages"], row["negative"]) == ("aged", 50, 0)
    assert 0 <= row["min_ms"] <= row["p50_ms"] <= row["p99_ms"] <= row["max_ms"] < 60_000


@pytest.mark.slow
def test_what_real_processes_trace_has_every_stage_of_replication(spark: Any, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    target = f"file:{traces / 'all.jsonl'}"
    tracing = {"trace_to": target, "trace_ratio": 1.0}
    with Cluster(tmp_path / "cluster", broker=tracing, replicator={"trace_to": target}) as running:
        running.wait_usable()
        with Admin(running.endpoint) as admin:
            admin.create_topic("traced", queues=1)
        with Producer(running.endpoint) as producer:
            for _ in range(40):
                producer.send(Message(topic="traced", body=b"x" * 1000))
        spans = traces / "all.jsonl"
        until(lambda: spans.exists() and FLUSH in spans.read_text(), timeout=30, what="a span of a flush")
        assert set(running.stop().values()) == {0}
    found = rows(latency(spark, LatencyOptions(spans=str(traces), topics=("traced",))))
    assert {r["stage"] for r in found} == {"create", *OURS.values()}
    assert {r["broker_id"] for r in found if r["stage"] in ("slave append", "dispatch")} == {1}
    way = [r for r in found if r["stage"] == "acknowledge"]
    assert len(way) == 1
    assert way[0]["spans"] >= 35  # a message in the first moments may have come before the slave did
    assert way[0]["mb_per_s"] > 0
    assert way[0]["lag_max_bytes"] >= 1000
    assert not any(r["negative"] or r["failed"] for r in found)
