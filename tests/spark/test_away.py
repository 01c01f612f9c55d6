"""A broker group that is away: what ends says who is missing, what goes on waits for it and tells."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.commands import Command
from spark.topics import bodies
from support.cluster.processes import Cluster, Process
from support.waiting import until
from whimbrel.client import Message
from whimbrel.client.sync import Admin, Producer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

AWAY = "broker-b"
FAST = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "50"}


class Pair:
    """Two groups of a master each; `both` is on both, `only` on the one that goes."""

    def __init__(self, cluster: Cluster, away: Process) -> None:
        self.cluster, self.away = cluster, away
        self.sent = {"both": 0, "only": 0}
        self.streams: list[Any] = []

    @property
    def endpoint(self) -> str:
        return self.cluster.endpoint

    def fill(self, topic: str, count: int) -> None:
        """Send numbered messages one by one, so that they go round the queues of all brokers."""
        with Producer(self.endpoint) as producer:
            for number in range(self.sent[topic], self.sent[topic] + count):
                producer.send(Message(topic=topic, body=b"%d" % number))
        self.sent[topic] += count

    def frame(self, spark: Any, topic: str, **options: str) -> Any:
        """Return a topic as a batch, with all that was acknowledged."""
        reader = spark.read.format("whimbrel").option("servers", self.endpoint).option("subscribe", topic)
        return reader.options(**FAST, isolation="latest", **options).load()

    def stream(self, spark: Any, topic: str, folder: Path, **options: str) -> tuple[Any, list[int]]:
        """Follow a topic; return the query, and the numbers that it has read, which go on growing."""
        seen: list[int] = []
        reader = spark.readStream.format("whimbrel").option("servers", self.endpoint)
        reader = reader.option("subscribe", topic).options(**FAST, isolation="latest", **options)
        writer = reader.load().writeStream.foreachBatch(lambda frame, _: seen.extend(bodies(frame)))
        writer = writer.trigger(processingTime="500 milliseconds")
        query = writer.option("checkpointLocation", str(folder)).start()
        self.streams.append(query)
        until(lambda: begun(query, folder), timeout=60, what="the stream to begin")
        return query, seen


def begun(query: Any, folder: Path) -> bool:
    assert query.isActive, str(query.exception())[:500]
    return bool((folder / "offsets" / "0").exists() or query.lastProgress)


def positions(query: Any) -> Any:
    """Return the positions in `both` that a stream has reported last, by broker."""
    progress = query.lastProgress
    return json.loads(progress["sources"][0]["endOffset"])["q"].get("both", {}) if progress else {}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("pair")
    with Cluster(root, slaves=0) as cluster:
        named: dict[str, Any] = {
            **cluster.broker_settings, "expected_slaves": 0,
            "store": root / "store-b", "nameservers": [cluster.endpoint],
        }  # fmt: skip
        away = Process(root, "broker", AWAY, **named)
        away.settings["name"] = AWAY
        with away, Admin(cluster.endpoint) as admin:
            cluster.wait_usable()
            until(lambda: len(admin.cluster().masters()) == 2, what="both masters")
            admin.create_topic("both", queues=2)
            admin.create_topic("only", queues=1, brokers=(AWAY,))
            found = Pair(cluster, away)
            found.fill("both", 40)
            found.fill("only", 10)
            yield found
            for query in found.streams:
                query.stop()


def go(pair: Pair) -> None:
    """Have the broker be away, as a kill leaves it."""
    with contextlib.suppress(ProcessLookupError):
        pair.away.kill()
    with Admin(pair.endpoint) as admin:
        until(lambda: len(admin.cluster().masters()) == 1, what="the broker to be gone")


def test_streams_wait_for_a_broker_that_is_away_and_what_ends_names_it(
    spark: Any, pair: Pair, tmp_path: Path, follow: Callable[..., Any], command: Command
) -> None:
    only, only_seen = pair.stream(spark, "only", tmp_path / "only", startingOffsets="earliest")
    until(lambda: len(only_seen) == 10, timeout=60, what="the first messages")
    assert len(bodies(pair.frame(spark, "both"))) == 40
    go(pair)

    missing = f"{AWAY}: no member of it is registered since"
    with pytest.raises(Exception, match=f"{missing}.*broker forget {AWAY}.*allowPartial=true"):
        pair.frame(spark, "both").count()
    with pytest.raises(Exception, match=missing):
        pair.frame(spark, "only").count()
    half = pair.frame(spark, "both", allowPartial="true").count()
    assert 0 < half < 40
    with pytest.raises(Exception, match=missing):
        follow(pair.endpoint, "both", **FAST)
    words = ["--endpoint", pair.endpoint, "--topic", "both"]
    fast = [word for name, value in FAST.items() for word in ("--option", f"{name}={value}")]
    done = command("archive", tmp_path / "a", *words, *fast, "--option", "isolation=latest")
    assert done.exit_code == 2 and missing in done.stderr
    done = command(
        "archive", tmp_path / "b", *words, *fast, "--option", "isolation=latest", "--allow-partial"
    )
    assert done.exit_code == 0
    assert f"{half} messages archived" in done.stderr
    assert f"without what these have: {missing}" in done.stderr
    done = command("stats", *words)
    assert done.exit_code == 2 and missing in done.stderr

    until(lambda: AWAY in str(only.lastProgress["sources"][0]["latestOffset"]), timeout=30, what="the word")
    latest, latest_seen = pair.stream(spark, "both", tmp_path / "latest", startingOffsets="latest")
    assert only.isActive and latest.isActive
    pair.away.start()
    with Admin(pair.endpoint) as admin:
        until(lambda: len(admin.cluster().masters()) == 2, timeout=30, what="both masters")
    until(lambda: AWAY in positions(latest), timeout=60, what="its queues to be seen")
    pair.fill("only", 5)
    pair.fill("both", 20)
    until(lambda: len(only_seen) >= 15 and len(latest_seen) >= 20, timeout=60, what="the new messages")
    assert sorted(only_seen) == list(range(15))
    assert sorted(latest_seen) == list(range(40, 60))
    assert bodies(pair.frame(spark, "both")) == list(range(60))
