"""`whimbrel bench send` against brokers: as many messages are stored as it says."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from support.cluster.processes import COMMAND, INTERRUPTIBLE, Cluster, environment
from support.lane.logs import lane_or_skip
from support.waiting import until
from whimbrel.client import sync
from whimbrel.errors import WhimbrelError

pytestmark = pytest.mark.process

LARGE: dict[str, object] = {
    "commitlog_file_size": 64 << 20
}  # a load fills small files faster than they are made
RUN_S_MAX = 60
STOP_S_MAX = 5.0  # a second of it is the client's goodbye to a broker that is gone


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("bench"), slaves=0, broker=LARGE) as running:
        running.wait_usable()
        yield running


def start(cluster: Cluster, lane: str, *words: str) -> subprocess.Popen[str]:
    if lane == "required":
        lane_or_skip()
    return subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE + COMMAND, "bench", "send", *words],
        env=environment() | {"WHIMBREL_ENDPOINT": cluster.endpoint, "WHIMBREL_LANE": lane},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report_of(child: subprocess.Popen[str], code: int = 0) -> tuple[dict[str, Any], str]:
    out, error = child.communicate(timeout=RUN_S_MAX)
    assert child.returncode == code, error
    assert "Traceback" not in error
    found: dict[str, Any] = json.loads(out)
    return found, error


def stored(cluster: Cluster, topic: str) -> list[int]:
    """Return how many messages each queue has."""
    with sync.Admin(cluster.endpoint) as admin:
        return [queue.max_offset for found in admin.describe_topic(topic) for queue in found.queues]


def messages_of(cluster: Cluster, topic: str) -> list[Any]:
    """Return all messages of a topic, from its beginning."""
    found: list[Any] = []
    with sync.PullConsumer(cluster.endpoint, "readers") as consumer:
        for queue in consumer.queues(topic):
            offset = 0
            while (pulled := consumer.pull(queue, offset)).messages:
                found += pulled.messages
                offset = pulled.next_offset
    return found


@pytest.mark.parametrize("lane", ["required", "off"])
def test_as_many_messages_are_stored_as_were_asked_for(cluster: Cluster, lane: str) -> None:
    topic = f"counted-{lane}"
    words = ("--count", "1001", "--batch", "3", "--size", "333", "-c", "7", "-o", "json")
    report, _ = report_of(start(cluster, lane, topic, *words))
    assert (report["messages"], report["errors"]) == (1001, {})
    assert report["generator"] == ("lane" if lane == "required" else "python")
    assert sum(stored(cluster, topic)) == 1001
    assert report["broker"]["pids"] == [cluster.master.pid]
    messages = messages_of(cluster, topic)
    assert {message.body for message in messages} == {b"x" * 333}
    assert len({message.message_id for message in messages}) == len(messages) == 1001
    for message in messages:
        assert (message.tag, message.keys, message.properties) == (None, (), {})
        assert abs(message.born_at - time.time()) < RUN_S_MAX
    counts = Counter(message.queue_id for message in messages)
    assert len(counts) == 8
    assert max(counts.values()) < 2 * min(counts.values())


@pytest.mark.parametrize("lane", ["required", "off"])
def test_it_says_what_both_sides_used(cluster: Cluster, lane: str) -> None:
    report, _ = report_of(start(cluster, lane, "measured", "--seconds", "1", "-c", "16", "-o", "json"))
    assert report["limit"] in ("broker", "client", "both", "machine", "neither")
    assert report["limit_text"]
    assert report["client"]["cpu_s"] > 0
    assert report["broker"]["cpu_s"] > 0
    assert (report["why_not_lane"] is None) == (lane == "required")


@pytest.mark.parametrize("lane", ["required", "off"])
def test_interrupted_it_says_what_was_measured(cluster: Cluster, lane: str) -> None:
    topic = f"interrupted-{lane}"
    child = start(cluster, lane, topic, "--seconds", "600", "-o", "json")

    def sent() -> int:
        try:
            return sum(stored(cluster, topic))
        except WhimbrelError:
            return 0

    until(lambda: sent() > 50, timeout=RUN_S_MAX, what="messages of the bench")
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    report, _ = report_of(child, 130)
    assert time.monotonic() - began < STOP_S_MAX
    assert 20 < report["messages"] <= sum(stored(cluster, topic))
    assert report["latency_ms"]["send"]["p50"] > 0


def test_a_broker_that_is_killed_ends_it_with_a_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Cluster(tmp_path_factory.mktemp("killed"), slaves=0, broker=LARGE) as cluster:
        cluster.wait_usable()
        child = start(cluster, "required", "killed", "--seconds", "600", "-o", "json")

        def sent() -> int:
            try:
                return sum(stored(cluster, "killed"))
            except WhimbrelError:
                return 0

        until(lambda: sent() > 50, timeout=RUN_S_MAX, what="messages of the bench")
        cluster.master.kill()
        report, error = report_of(child, 1)
        assert report["messages"] > 20
        assert f"{cluster.master.grpc}: the " in error
