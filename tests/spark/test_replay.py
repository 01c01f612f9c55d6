"""Messages come back into topics: what is kept is equal, in order, each once, whoever is killed."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.topics import fill
from support.cluster.processes import COMMAND, Cluster, environment, wait_for_session_end
from support.waiting import until
from whimbrel.client.sync import Admin
from whimbrel.errors import Forbidden
from whimbrel.model.message import MessageType
from whimbrel.rpc.api.bulk_calls import describe_queues, open_bulk_channel
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.spark.jobs import JobError
from whimbrel.spark.jobs.archive import ArchiveOptions, archive
from whimbrel.spark.jobs.replay import ReplayOptions, Source, replay
from whimbrel.store.codec import RecordDraft, format_properties, pack_host
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DOCS = Path(__file__).resolve().parents[2] / "docs" / "replay.md"
BORN = 1_700_000_000_000
OPTIONS = StoreOptions(
    commitlog_file_size=1 << 20,
    consumequeue_file_size=20_000,
    index_slots=500,
    index_entries=5000,
    prefault_bytes=0,
)
KILLS = int(os.environ.get("WHIMBREL_TEST_REPLAY_KILLS", "1"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster that takes messages back, empty at first."""
    settings: dict[str, object] = {
        "commitlog_file_size": 1 << 24,
        "accept_replays": True,
        "auto_create_topics": False,
    }
    with Cluster(tmp_path_factory.mktemp("target"), slaves=0, broker=settings) as running:
        running.wait_usable()
        yield running


def draft(number: int, *, topic: str = "kept", queue_id: int = 0, **fields: Any) -> RecordDraft:
    """Make a message with everything that is to be kept."""
    pairs = [
        ("KEYS", f"k{number} both"),
        ("TAGS", "red" if number % 2 else "blue"),
        ("UNIQ_KEY", f"ID-{topic}-{queue_id}-{number}"),
        ("own", f"value {number} é"),
        *fields.pop("pairs", ()),
    ]
    made: dict[str, Any] = {
        "body": b"body %d" % number,
        "properties": format_properties(pairs),
        "born_timestamp": BORN + number,
        "born_host": pack_host(f"10.0.0.{number % 250 + 1}", 4000 + number),
        "store_host": pack_host("127.0.0.1", 10911),
        "flag": number,
    }
    return RecordDraft.from_properties(topic=topic, queue_id=queue_id, **{**made, **fields})


def old_store(root: Path) -> Path:
    """Make a store of a broker that is no more: three queues of a topic, and all that is passed over."""
    store = MasterStore.open(root, OPTIONS, clock=lambda: BORN + 50_000)
    for number in range(90):
        store.append([draft(number, queue_id=number % 3)])
    text = b"compressible " * 50
    store.append([draft(90, body=zlib.compress(text), sys_flag=0x301)])
    store.append([draft(91, body=b"")])
    store.append([draft(92, properties=b"")])  # its id is made of its place in the log
    store.append([draft(93, sys_flag=0x8)])  # a committed transaction is a message like any other
    store.append([draft(94, pairs=[("DELAY", "3")])])
    store.append([draft(95, pairs=[("big", "x" * 32_690)])])  # no room for its origin
    store.append([draft(96, topic="%RETRY%g")])
    store.append([draft(97, topic="%DLQ%g")])
    store.append([draft(98, topic="SCHEDULE_TOPIC_XXXX", pairs=[("DELAY", "1")])])
    store.append([draft(99, topic="RMQ_SYS_TRANS_HALF_TOPIC")])
    store.append([draft(100, sys_flag=0x4)])
    store.append([draft(101, queue_id=2)])
    store.append([draft(102, topic="rmq_sys_wheel_timer", pairs=[("TIMER_OUT_MS", str(BORN + 90_000))])])
    store.append(
        [draft(103, queue_id=2, pairs=[("TIMER_OUT_MS", str(BORN)), ("TIMER_DELIVER_MS", str(BORN))])]
    )
    store.close()
    (root / "whimbrel" / "watermark").unlink()  # a copy has no page of marks, and is read to its end
    return root


KEPT = "topic, queueId, msgId, tags, keys, body, bornTimestamp, bornHost, flag, sysFlag"


def kept(spark: Any, topic: str, **options: str) -> list[Any]:
    """Read what is to be kept of a topic, in the order of its queues."""
    reader = spark.read.format("whimbrel").option("subscribe", topic).option("decompress", "false")
    for name, value in options.items():
        reader = reader.option(name, value)
    frame = reader.load().orderBy("queueId", "queueOffset")
    rows = frame.selectExpr(*KEPT.split(", "), "properties").collect()
    found = []
    for row in rows:
        values = row.asDict()
        values["properties"] = {
            name: value
            for name, value in row["properties"].items()
            if name not in ("REPLAYED_FROM", "UNIQ_KEY")
        }
        found.append(values)
    return found


def totals(rows: list[Any]) -> tuple[int, int, int, int]:
    return tuple(sum(row[name] for row in rows) for name in ("read", "stored", "skipped", "refused"))


def test_a_store_comes_back_with_all_that_is_kept_in_order_and_only_once(
    spark: Any, target: Cluster, tmp_path: Path
) -> None:
    root = old_store(tmp_path / "old")
    options = ReplayOptions(endpoint=target.endpoint, source=Source(store=str(root)), create=True)
    told: list[str] = []
    with pytest.raises(JobError, match="no topic kept: --create makes it"):
        replay(spark, ReplayOptions(endpoint=target.endpoint, source=Source(store=str(root))))
    dry = replay(spark, ReplayOptions(**{**fields(options), "dry_run": True}), told.append).collect()
    # 90 to 95, 101, 103 and the first 90; nobody has asked a broker yet whether 95 fits
    assert totals(dry)[:3] == (104, 98, 0)
    with Admin(target.endpoint) as admin:
        assert "kept" not in {topic.name for topic in admin.topics()}

    report = replay(spark, options, told.append)
    rows = report.collect()
    assert totals(rows) == (104, 97, 0, 1)
    by_queue = {(row["topic"], row["queue"]): row for row in rows}
    first = by_queue["kept", 0]
    assert (first["read"], first["stored"], first["target"]) == (37, 35, "kept/0 of broker-a")
    assert first["passedOver"] == "HALF 1"
    assert first["finding"].startswith("offset 35 refused: the property text has")
    assert first["sourceOffsets"] == "0..34"
    assert first["targetOffsets"] == "0..34"
    assert by_queue["%RETRY%g", 0]["passedOver"] == "RETRY 1"
    assert by_queue["%DLQ%g", 0]["passedOver"] == "DEAD_LETTER 1"
    assert by_queue["SCHEDULE_TOPIC_XXXX", 0]["passedOver"] == "SCHEDULE 1"
    assert by_queue["RMQ_SYS_TRANS_HALF_TOPIC", 0]["passedOver"] == "HALF 1"
    assert by_queue["rmq_sys_wheel_timer", 0]["passedOver"] == "TIMER 1"
    with Admin(target.endpoint) as admin:  # it takes all that it was filled with
        assert {topic.name: topic.type for topic in admin.topics()}["kept"] is MessageType.MIXED
    assert any("97 stored" in line for line in told)

    before = [row for row in kept(spark, "kept", store=str(root)) if "big" not in row["properties"]]
    after = kept(spark, "kept", servers=target.endpoint)
    for row in before:
        row["sysFlag"] &= 0x701
    assert after == before
    bodies = [bytes(row["body"]) for row in after]
    assert b"" in bodies
    assert any(body.startswith(b"x\x9c") for body in bodies)

    again = replay(spark, options).collect()
    assert totals(again) == (104, 0, 97, 1)
    assert kept(spark, "kept", servers=target.endpoint) == after


def fields(options: ReplayOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


def test_an_archive_comes_back_equal_into_an_empty_topic(spark: Any, target: Cluster, tmp_path: Path) -> None:
    root = old_store(tmp_path / "old")
    archive(
        spark, ArchiveOptions(root=tmp_path / "archive", source={"store": str(root), "subscribe": "kept"})
    )
    options = ReplayOptions(
        endpoint=target.endpoint,
        source=Source(archive=str(tmp_path / "archive"), topic="kept"),
        to="kept-archived",
        create=True,
    )
    assert totals(replay(spark, options).collect()) == (98, 97, 0, 1)
    before = [
        row | {"topic": "kept-archived", "sysFlag": row["sysFlag"] & 0x701}
        for row in kept(spark, "kept", archive=str(tmp_path / "archive"))
        if "big" not in row["properties"] and row["sysFlag"] & 0xC != 0x4
    ]
    assert before == [
        row | {"topic": "kept-archived", "sysFlag": row["sysFlag"] & 0x701}
        for row in kept(spark, "kept", store=str(root))
        if "big" not in row["properties"] and row["sysFlag"] & 0xC != 0x4
    ]
    assert kept(spark, "kept-archived", servers=target.endpoint) == before
    assert totals(replay(spark, options).collect()) == (98, 0, 97, 1)


def test_what_waits_can_be_sent_to_another_cluster_as_the_page_says(
    spark: Any, target: Cluster, tmp_path: Path
) -> None:
    _, begin, rest = DOCS.read_text().partition("    waits = ")
    code = textwrap.dedent(begin + rest.partition("\n\n")[0])
    later = str(int(time.time() * 1000) + 3_600_000)
    root = tmp_path / "old"
    store = MasterStore.open(root, OPTIONS, clock=lambda: BORN)
    for number, pairs in enumerate(
        [
            [("REAL_TOPIC", "moved"), ("TIMER_DELIVER_MS", later)],
            [("REAL_TOPIC", "moved"), ("TIMER_DELIVER_MS", "1700000000000")],
            [("REAL_TOPIC", "moved"), ("TIMER_DELIVER_MS", later), ("TIMER_OUT_MS", later)],
        ]
    ):
        store.append([draft(number, topic="rmq_sys_wheel_timer", pairs=pairs)])
    recalls = [("TIMER_DEL_UNIQKEY", "moved+ID-rmq_sys_wheel_timer-0-0"), ("TIMER_DELIVER_MS", later)]
    store.append([draft(9, topic="rmq_sys_wheel_timer", pairs=recalls)])
    store.close()
    (root / "whimbrel" / "watermark").unlink()
    with Admin(target.endpoint) as admin:
        admin.create_topic("moved", queues=1, message_type=MessageType.DELAY)
    code = code.replace("/data/broker-a", str(root)).replace("new:8081", target.endpoint)
    exec(code, {"spark": spark})

    found = kept(spark, "rmq_sys_wheel_timer", servers=target.endpoint)
    assert [(row["properties"]["REAL_TOPIC"], row["properties"]["TIMER_DELIVER_MS"]) for row in found] == [
        ("moved", later)
    ]
    assert found[0]["body"] == b"body 2"


def test_another_range_that_leaves_messages_out_is_a_finding(
    spark: Any, cluster: Cluster, target: Cluster
) -> None:
    fill(cluster, "ranges", 100, queues=1)

    def part(first: int, until_: int) -> Any:
        options = ReplayOptions(
            endpoint=target.endpoint,
            source=Source(servers=cluster.endpoint, topic="ranges"),
            to="ranges-again",
            first=first,
            until=until_,
            create=True,
        )
        return replay(spark, options).collect()[0]

    assert part(20, 40)["finding"] is None
    assert part(40, 50)["finding"] is None
    hole = part(60, 70)
    assert (hole["stored"], hole["sourceOffsets"], hole["targetOffsets"]) == (10, "60..69", "30..39")
    assert "offsets 50 to 59 are left out" in hole["finding"]
    early = part(0, 80)
    assert (early["read"], early["stored"], early["skipped"]) == (80, 10, 50)
    assert "offsets 0 to 19 are not stored: an earlier run began at 20" in early["finding"]


def test_fewer_queues_take_several_each_and_the_rate_is_the_jobs(
    spark: Any, cluster: Cluster, target: Cluster
) -> None:
    fill(cluster, "paced", 200, queues=4)
    with Admin(target.endpoint) as admin:
        admin.create_topic("paced-again", queues=3)
    options = ReplayOptions(
        endpoint=target.endpoint,
        source=Source(servers=cluster.endpoint, topic="paced"),
        to="paced-again",
        rate=100,
    )
    began = time.monotonic()
    rows = replay(spark, options).collect()
    assert time.monotonic() - began > 0.7  # 200 messages, and the first of each task goes at once
    assert {row["queue"]: row["target"] for row in rows} == {
        0: "paced-again/0 of broker-a",
        1: "paced-again/1 of broker-a",
        2: "paced-again/2 of broker-a",
        3: "paced-again/0 of broker-a",
    }
    assert totals(rows) == (200, 200, 0, 0)
    assert totals(replay(spark, options).collect()) == (200, 0, 200, 0)


def test_what_cannot_be_is_said_in_a_sentence(spark: Any, cluster: Cluster, target: Cluster) -> None:
    fill(cluster, "refused", 10, queues=1)

    def options(**given: Any) -> ReplayOptions:
        source = given.pop("source", Source(servers=cluster.endpoint, topic="refused"))
        return ReplayOptions(**{"endpoint": target.endpoint, "source": source, "create": True, **given})

    with pytest.raises(JobError, match="name one source"):
        replay(spark, options(source=Source()))
    with pytest.raises(JobError, match="the same topic"):
        replay(spark, options(endpoint=cluster.endpoint))
    with pytest.raises(JobError, match="--to needs --topic"):
        replay(spark, options(source=Source(servers=cluster.endpoint), to="one"))
    with pytest.raises(JobError, match="nothing to put back"):
        replay(spark, options(first=10))
    with pytest.raises(Forbidden, match="--accept-replays true"):
        replay(spark, options(endpoint=cluster.endpoint, to="elsewhere"))
    with Admin(cluster.endpoint) as admin:
        assert "elsewhere" not in {topic.name for topic in admin.topics()}  # none is left behind
    with pytest.raises(LookupError, match="there is no broker broker-z; there are broker-a"):
        replay(spark, options(brokers=(("broker-a", "broker-z"),)))


def ends(target: Cluster, topic: str) -> int:
    """Return how many messages a topic has."""
    with open_bulk_channel(target.master.grpc) as channel:
        seen = perform_blocking(channel, describe_queues(), (), 10)
    return sum(queue.max_offset for found in seen.topics if found.name == topic for queue in found.queues)


def test_a_driver_killed_in_the_middle_leaves_a_job_that_can_be_run_again(
    spark: Any, cluster: Cluster, target: Cluster, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    total = 1500
    fill(cluster, "halfway", total, queues=3)
    words = [
        "spark", "replay", "--servers", cluster.endpoint, "--topic", "halfway", "--endpoint", target.endpoint,
        "--to", "halfway-again", "--create", "--rate", "400", "--spark-master", "local[2]", "-o", "json",
    ]  # fmt: skip
    log = tmp_path / "driver.log"
    for _ in range(KILLS):
        before = ends(target, "halfway-again")
        with log.open("ab") as output:
            driver = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *words], env=environment(), stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        goal = before + chance.randrange(50, 400)
        try:
            until(
                lambda goal=goal, driver=driver: (  # type: ignore[misc]
                    driver.poll() is not None or ends(target, "halfway-again") >= goal
                ),
                timeout=120,
                every_s=0.1,
                what=lambda: log.read_text()[-2000:],
            )
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        # A worker that outlives its driver for a moment may still append the batch that it has in hand.
        wait_for_session_end(driver.pid)
    stored = ends(target, "halfway-again")
    assert 0 < stored < total, f"seed {seed}: {log.read_text()[-2000:]}"
    options = ReplayOptions(
        endpoint=target.endpoint,
        source=Source(servers=cluster.endpoint, topic="halfway"),
        to="halfway-again",
    )
    rows = replay(spark, options).collect()
    assert totals(rows)[1:3] == (total - stored, stored), f"seed {seed}"
    assert [row["finding"] for row in rows] == [None] * 3

    def bodies(endpoint: str, topic: str) -> list[tuple[int, bytes]]:
        reader = spark.read.format("whimbrel").option("servers", endpoint).option("subscribe", topic)
        frame = reader.load().orderBy("queueId", "queueOffset")
        return [(row["queueId"], bytes(row["body"])) for row in frame.select("queueId", "body").collect()]

    assert bodies(target.endpoint, "halfway-again") == bodies(cluster.endpoint, "halfway"), f"seed {seed}"
