"""Streams over queues of a running cluster: every message once, whatever happens to brokers and driver."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark.topics import fill
from support import provenance
from support.cluster.processes import Cluster, environment
from support.waiting import until
from whimbrel.client import Message
from whimbrel.client.sync import Admin, Producer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

KILLS = int(os.environ.get("WHIMBREL_TEST_DRIVER_KILLS", "1"))


def rows_of(query: Any) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def written(spark: Any, tmp_path: Path) -> list[int]:
    """Return the numbers in the bodies that were written, sorted."""
    frame = spark.read.parquet(str(tmp_path / "out")).select("body")
    return sorted(int(bytes(row["body"])) for row in frame.collect())


def test_limited_batches_reach_the_end_and_a_second_run_reads_what_is_new(
    cluster: Cluster, spark: Any, follow: Callable[..., Any], tmp_path: Path
) -> None:
    fill(cluster, "limited", 1000)
    assert rows_of(follow(cluster.endpoint, "limited", maxOffsetsPerTrigger=300)) == [300, 300, 300, 100]
    assert rows_of(follow(cluster.endpoint, "limited")) == []
    fill(cluster, "limited", 50, start=1000)
    query = follow(cluster.endpoint, "limited")
    assert rows_of(query) == [50]
    assert written(spark, tmp_path) == list(range(1050))
    source = query.lastProgress["sources"][0]
    assert json.loads(source["endOffset"]) == json.loads(source["latestOffset"])


def test_a_query_that_ends_does_so_while_a_producer_goes_on(
    cluster: Cluster, spark: Any, follow: Callable[..., Any], tmp_path: Path
) -> None:
    fill(cluster, "busy", 200)
    program = (
        "import sys\nfrom whimbrel.client import Message\nfrom whimbrel.client.sync import Producer\n"
        "with Producer(sys.argv[1]) as producer:\n"
        "    for number in range(200, 1_000_000):\n"
        "        producer.send(Message(topic='busy', body=b'%d' % number))\n"
    )
    sender = subprocess.Popen(
        [sys.executable, "-c", program, cluster.endpoint], env=environment(), stderr=subprocess.DEVNULL
    )
    try:
        query = follow(cluster.endpoint, "busy", maxOffsetsPerTrigger=100)
        assert sender.poll() is None
    finally:
        sender.kill()
        sender.wait()
    assert len(rows_of(query)) >= 2
    found = written(spark, tmp_path)
    assert set(range(200)) <= set(found)
    assert len(found) == len(set(found))


def test_queues_that_are_added_are_read_from_their_first_message(
    cluster: Cluster, spark: Any, follow: Callable[..., Any], tmp_path: Path
) -> None:
    fill(cluster, "growing", 100, queues=1)
    follow(cluster.endpoint, "growing")
    with Admin(cluster.endpoint) as admin:
        admin.update_topic("growing", queues=4)
    fill(cluster, "growing", 100, start=100)
    follow(cluster.endpoint, "growing")
    assert written(spark, tmp_path) == list(range(200))


def test_messages_that_retention_has_removed_fail_the_query_and_are_named(
    cluster: Cluster, follow: Callable[..., Any], tmp_path: Path
) -> None:
    fill(cluster, "deleted", 100, queues=1)
    follow(cluster.endpoint, "deleted", maxOffsetsPerTrigger=100)
    with Admin(cluster.endpoint) as admin:
        admin.delete_topic("deleted")
    fill(cluster, "deleted", 10, queues=1, start=100)  # goes on at offset 100: nothing of it is lost
    assert rows_of(follow(cluster.endpoint, "deleted")) == [10]


def test_the_stream_follows_the_slave_while_the_master_is_dead_where_that_is_allowed(
    spark: Any, follow: Callable[..., Any], tmp_path: Path
) -> None:
    with Cluster(tmp_path / "own") as cluster:
        cluster.wait_usable()
        fill(cluster, "outage", 300)
        assert sum(rows_of(follow(cluster.endpoint, "outage", maxOffsetsPerTrigger=200))) == 300
        fill(cluster, "outage", 100, start=300)
        cluster.master.kill()
        fast = {"fetchOffset.numRetries": 1}
        with pytest.raises(Exception, match=r"its master does not answer .*: slaves may lag"):
            follow(cluster.endpoint, "outage", **fast)
        partly = follow(cluster.endpoint, "outage", allowPartial=True, **fast)
        assert sum(rows_of(partly)) <= 100  # what the slave knows to be confirmed
        cluster.master.start()
        cluster.wait_usable()
        fill(cluster, "outage", 100, start=400)
        until(lambda: rows_of(follow(cluster.endpoint, "outage")) == [], timeout=120, what="all of it read")
    assert written(spark, tmp_path) == list(range(500))


def test_a_store_directory_is_followed_while_its_broker_writes_it(
    cluster: Cluster, spark: Any, tmp_path: Path
) -> None:
    fill(cluster, "followed", 100)
    reader = spark.readStream.format("whimbrel").option("store", str(cluster.master.store))
    reader = reader.option("subscribe", "followed").option("startingOffsets", "earliest")

    def run() -> None:
        writer = reader.load().writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.option("path", str(tmp_path / "out")).start().awaitTermination(240)

    def everything(count: int) -> bool:
        run()  # what is not confirmed yet comes with a later one
        return written(spark, tmp_path) == list(range(count))

    until(lambda: everything(100), timeout=120, what="the first messages")
    fill(cluster, "followed", 50, start=100)
    until(lambda: everything(150), timeout=120, what="the others")


def test_a_log_that_was_cut_is_never_a_silent_reset(
    spark: Any, follow: Callable[..., Any], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint" / "offsets"
    with Cluster(tmp_path / "own", slaves=0) as cluster:
        cluster.wait_usable()
        fill(cluster, "cut", 100, queues=1)
        follow(cluster.endpoint, "cut")
        last = max(checkpoint.iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
        # As if the query had read 50 messages that a failover took back.
        last.write_text(last.read_text().replace('"0":100', '"0":150').replace('"0": 100', '"0": 150'))
        for crc in checkpoint.glob(".*.crc"):
            crc.unlink()
        fill(cluster, "cut", 20, queues=1, start=100)
        with pytest.raises(Exception, match="its log was cut"):
            follow(cluster.endpoint, "cut")
        assert sum(rows_of(follow(cluster.endpoint, "cut", onTruncation="reset"))) == 0
        fill(cluster, "cut", 5, queues=1, start=120)
        assert rows_of(follow(cluster.endpoint, "cut", onTruncation="reset")) == [5]


def test_a_driver_that_is_killed_goes_on_where_it_was(
    cluster: Cluster, spark: Any, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    seed = provenance.seed()
    chance = random.Random(seed)
    total = 10_000
    fill(cluster, "killed", total, queues=8)
    driver = Path(__file__).with_name("driver.py")
    command = [sys.executable, str(driver), cluster.endpoint, "killed", str(tmp_path), "500"]
    silent: Any = {"env": environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    kills = 0
    for _ in range(KILLS):
        child = subprocess.Popen(command, start_new_session=True, **silent)
        wait_for_batches(child, tmp_path, chance.randrange(1, 8))
        kills += child.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = written(spark, tmp_path)
    measured(
        f"seed {seed}: {kills} kills of the driver, {total} sent, {len(found)} rows,"
        f" {len(set(found))} distinct"
    )
    assert found == list(range(total))


def wait_for_batches(driver: "subprocess.Popen[bytes]", folder: Path, more: int) -> None:
    """Wait until a driver has committed so many more batches, or has ended."""
    commits = folder / "checkpoint" / "commits"

    def count() -> int:
        return len(list(commits.glob("[0-9]*"))) if commits.exists() else 0

    wanted = count() + more
    until(lambda: driver.poll() is not None or count() >= wanted, timeout=120, what="some batches")


def test_one_message_is_enough_for_a_stream_that_starts_at_the_latest(
    cluster: Cluster, spark: Any, tmp_path: Path
) -> None:
    fill(cluster, "latest", 10)
    seen: list[int] = []

    def take(frame: Any, _: int) -> None:
        seen.extend(int(bytes(row["body"])) for row in frame.collect())

    reader = (
        spark.readStream.format("whimbrel").option("servers", cluster.endpoint).option("subscribe", "latest")
    )
    query = reader.load().writeStream.foreachBatch(take).option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    ).start()  # fmt: skip
    try:
        # The first offsets are in the checkpoint: what is sent from here on must come.
        until(lambda: (tmp_path / "checkpoint" / "offsets" / "0").exists() or query.lastProgress, timeout=60)
        with Producer(cluster.endpoint) as producer:
            producer.send(Message(topic="latest", body=b"77"))
        until(lambda: seen, timeout=60, what="the message")
    finally:
        query.stop()
    assert seen == [77]
