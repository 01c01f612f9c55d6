"""What records of snapshots tell: lag, rates, gaps, and groups whose lag only grows."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import Cluster
from support.waiting import until
from whimbrel.client import Message
from whimbrel.client.sync import Admin, Consumer, Producer
from whimbrel.spark.jobs import JobError
from whimbrel.spark.jobs.lag import LagOptions, lag
from whimbrel.spark.snapshots import GroupPoller, QueueLag, Snapshot, save

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HOUR = 3600
BEGIN = int(datetime.datetime(2026, 3, 1, 10, tzinfo=datetime.UTC).timestamp())
EVERY_S = 600
Position = Callable[[int], tuple[int, int]]  # of seconds: committed, end


def queue(group: str, number: int, committed: int, end: int, *, broker: str = "broker-a") -> QueueLag:
    return QueueLag(
        group=group,
        topic="orders",
        broker=broker,
        queue=number,
        committed=committed,
        end=end,
        lag=end - committed,
    )


def write(
    folder: Path,
    hours: int,
    positions: dict[tuple[str, int], Position],
    *,
    without: range = range(0),
    silent: range = range(0),
) -> None:
    """Write a snapshot every ten minutes; `without` and `silent` are seconds that lack one, or broker-b."""
    for at in range(0, hours * HOUR, EVERY_S):
        if at in without:
            continue
        queues = [queue(group, number, *position(at)) for (group, number), position in positions.items()]
        if at not in silent:
            queues.append(queue("steady", 7, at, at + 5, broker="broker-b"))
        found = Snapshot(tuple(queues), ("broker-b",) if at in silent else ())
        save(folder, found, at_ms=(BEGIN + at) * 1000, every_ms=EVERY_S * 1000)


def rows(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


POSITIONS: dict[tuple[str, int], Position] = {
    ("steady", 0): lambda at: (at, at + 10),
    # Two in three are consumed, so lag grows by one in three seconds.
    ("slow", 0): lambda at: (at * 2 // 3, at),
    ("slow", 1): lambda at: (at, at),
    # Queue 1 stands still; queue 0 catches up on more than that, so the sum does not grow.
    ("stuck", 0): lambda at: (5 * at, 4 * at + 5 * HOUR * 4),
    ("stuck", 1): lambda at: (100, 100 + at // 10),
    # Done with everything once an hour.
    ("batch", 0): lambda at: (at - at % HOUR, at),
}


def test_a_group_whose_lag_only_grows_is_a_finding_and_one_that_catches_up_is_none(
    spark: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "lag"
    write(folder, 4, POSITIONS, silent=range(HOUR, 2 * HOUR))
    (folder / "dt=2026-03-01" / "_half.jsonl.1").write_text('{"v": 1, "kind"')
    told, html = list[str](), tmp_path / "lag.html"
    found = rows(lag(spark, LagOptions(snapshots=str(folder), html=html), told.append))
    assert told[0] == "24 snapshots from 2026-03-01 10:00:00 to 2026-03-01 13:50:00, 6 of them incomplete"
    assert [(r["group"], r["period"].astimezone(datetime.UTC).hour) for r in found] == [
        (group, hour) for group in ("batch", "slow", "steady", "stuck") for hour in range(10, 14)
    ]
    findings = {
        r["group"]: (r["period"].astimezone(datetime.UTC).hour, r["finding"]) for r in found if r["finding"]
    }
    # The hour without broker-b has no sums, so the last three that have them count; queues have theirs.
    assert findings == {
        "slow": (13, "lag only grows: at least 0, 2400, 3600 messages in the last 3 periods of 3600 s"),
        "stuck": (
            13,
            "lag only grows on 1 of its queues, first on queue 1 of broker-a; --by queue shows them",
        ),
    }
    steady = [r for r in found if r["group"] == "steady"]
    assert [(r["queues"], r["snapshots"], r["incomplete"]) for r in steady] == [
        (2, 6, 0),
        (1, 6, 6),
        (2, 6, 0),
        (2, 6, 0),
    ]
    assert [r["lag_max"] for r in steady] == [15, None, 15, 15]
    slow = [r for r in found if r["group"] == "slow"][-1]
    assert slow["consumed_per_s"] == pytest.approx(1 + 2 / 3, rel=0.01)
    assert slow["produced_per_s"] == pytest.approx(2, rel=0.01)
    assert slow["catch_up_s"] is None
    assert (slow["lag_last"], slow["lag_max"]) == (4600, 4600)
    assert slow["lag_avg"] == pytest.approx((3600 + 4600) / 2)
    content = html.read_text()
    assert all(name in content for name in ("slow on orders", "Most lag", "Produced"))

    by_queue = rows(lag(spark, LagOptions(snapshots=str(folder), by="queue", groups=("stuck",))))
    assert len(by_queue) == 8
    assert [(r["queue"], r["finding"]) for r in by_queue if r["finding"]] == [
        (1, "lag only grows: at least 360, 720, 1080 messages in the last 3 periods of 3600 s")
    ]
    last = [r for r in by_queue if r["queue"] == 0][-1]
    assert last["catch_up_s"] == pytest.approx(last["lag_last"], rel=0.01)


def test_gaps_are_stated_and_moves_back_are_no_consumption(spark: Any, tmp_path: Path) -> None:
    # Reset to the begin at two hours; no snapshot in most of the second hour.
    positions: dict[tuple[str, int], Position] = {
        ("reset", 0): lambda at: (at if at < 2 * HOUR else at - 2 * HOUR, at + 1)
    }
    write(tmp_path / "lag", 3, positions, without=range(HOUR, 2 * HOUR - EVERY_S))
    told: list[str] = []
    options = LagOptions(snapshots=str(tmp_path / "lag"), groups=("reset",), topics=("orders",))
    found = rows(lag(spark, options, told.append))
    assert "no snapshot between 2026-03-01 10:50:00 and 2026-03-01 11:50:00" in told
    assert [r["gap_s"] for r in found] == [0.0, 3600.0, 0.0]
    assert [r["resets"] for r in found] == [0, 0, 1]
    assert found[1]["consumed_per_s"] == pytest.approx(1.0)
    assert found[2]["consumed_per_s"] == pytest.approx(5 / 6)  # one of six steps went back
    assert not any(r["finding"] for r in found)


def test_records_that_are_none_are_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no such file or folder; --record makes one"):
        lag(spark, LagOptions(snapshots=str(tmp_path / "nowhere")))
    with pytest.raises(JobError, match=r"no snapshot among 0 lines .* --record"):
        lag(spark, LagOptions(snapshots=str(tmp_path)))
    save(tmp_path, Snapshot((queue("a", 0, 1, 2),), ()), at_ms=BEGIN * 1000, every_ms=1000)
    with pytest.raises(JobError, match="no snapshot has anything of nobody"):
        lag(spark, LagOptions(snapshots=str(tmp_path), groups=("nobody",)))
    (tmp_path / "new.jsonl").write_text(
        '{"v": 2, "kind": "snapshot", "at": 1, "every_ms": 1, "silent": []}\n'
    )
    with pytest.raises(JobError, match="snapshots of version 2"):
        lag(spark, LagOptions(snapshots=str(tmp_path)))


def test_a_running_cluster_is_asked_for_all_queues_of_a_groups_topics(
    cluster: Cluster, tmp_path: Path
) -> None:
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("lagging", queues=2)
        admin.create_group("laggards")
    with Producer(cluster.endpoint) as producer:
        for _ in range(20):
            producer.send(Message(topic="lagging", body=b"x"))
    with Consumer(cluster.endpoint, "laggards", ["lagging"]) as consumer:
        got = until(lambda: consumer.receive(5), what="messages")
        assert consumer.ack_all(got) == [None] * len(got)
    found = GroupPoller(cluster.endpoint, ["laggards", "not-there"]).poll(lambda line: None)
    assert found.silent == ()
    ours = [each for each in found.queues if each.topic == "lagging"]
    assert [(each.group, each.broker, each.queue) for each in ours] == [
        ("laggards", "broker-a", 0),
        ("laggards", "broker-a", 1),
    ]
    assert sum(each.end for each in ours) == 20
    assert sum(each.lag for each in ours) == 20 - len(got)
