"""Dead letters: why, how many, and a selection that goes back where it came from, once."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark.test_replay import BORN, draft, ends, target
from support.cluster.processes import Cluster
from whimbrel.broker.consume.dead_letters import dead_letter
from whimbrel.broker.produce.internal_append import onward_draft
from whimbrel.client.sync import Admin
from whimbrel.errors import Forbidden
from whimbrel.model.topic import GroupConfig
from whimbrel.spark.jobs import JobError
from whimbrel.spark.jobs.dlq import DlqOptions, dlq
from whimbrel.store.codec import decode_record
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

__all__ = ["target"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with dead letters of two groups, as RocketMQ 4 and 5 write them."""
    root = tmp_path_factory.mktemp("dead") / "store"
    now = [BORN]
    options = StoreOptions(commitlog_file_size=1 << 20, consumequeue_file_size=20_000, index_slots=500,
                           index_entries=5000, prefault_bytes=0)  # fmt: skip
    opened = MasterStore.open(root, options, clock=lambda: now[0])

    def add(number: int, group: str, times: int, **pairs: str) -> None:
        now[0] += 60_000
        opened.append(
            [draft(number, topic=f"%DLQ%{group}", pairs=list(pairs.items()), reconsume_times=times)]
        )

    for number in range(6):
        add(number, "billing", 17, RETRY_TOPIC="orders", ORIGIN_MESSAGE_ID=f"O{number}", DELAY="0")
    add(6, "billing", 3, RETRY_TOPIC="orders", DELAY="0")
    add(7, "billing", 5, RETRY_TOPIC="refunds", MAX_RECONSUME_TIMES="5", DELAY="3")
    add(8, "mail", 0, DLQ_ORIGIN_TOPIC="letters", DLQ_ORIGIN_MESSAGE_ID="D8")
    add(9, "mail", 0)
    opened.append([draft(10, topic="orders")])
    opened.close()
    (root / "whimbrel" / "watermark").unlink()
    return root


def add_ours(opened: MasterStore, number: int, group: GroupConfig, times: int) -> None:
    """Add a dead letter as our own broker writes it."""
    [place] = opened.append([draft(number, topic="orders")])
    message = decode_record(opened.read(place.physical_offset, place.size))
    letter = dead_letter(group, message, times, attempts=max(times - 1, 1))
    opened.append([onward_draft(message, letter, 0, message.store_host_raw)])


def test_dead_letters_of_ours_are_told_like_those_of_rocketmq(spark: Any, tmp_path: Path) -> None:
    options = StoreOptions(commitlog_file_size=1 << 20, consumequeue_file_size=20_000, index_slots=500,
                           index_entries=5000, prefault_bytes=0)  # fmt: skip
    opened = MasterStore.open(tmp_path / "store", options, clock=lambda: BORN)
    group, few, ordered = (
        GroupConfig(name="ours"),
        GroupConfig(name="few", retry_max=2),
        GroupConfig(name="ordered", fifo=True),
    )
    add_ours(opened, 1, group, group.max_attempts + 1)
    add_ours(opened, 2, group, 1)  # forwarded after its first delivery
    add_ours(opened, 3, few, few.max_attempts + 1)
    add_ours(opened, 4, ordered, ordered.max_attempts + 1)
    opened.close()
    (tmp_path / "store" / "whimbrel" / "watermark").unlink()
    listed = rows(spark, store=str(tmp_path / "store"), messages=True)
    assert [
        (row["group"], row["originTopic"], row["reason"], row["times"], row["keys"]) for row in listed
    ] == [
        ("few", "orders", "early", 3, "k3 both"),
        ("ordered", "orders", "forwarded", 17, "k4 both"),
        ("ours", "orders", "attempts", 17, "k1 both"),
        ("ours", "orders", "forwarded", 1, "k2 both"),
    ]
    assert [row["msgId"] for row in listed] == [f"ID-orders-0-{number}" for number in (3, 4, 1, 2)]


def rows(spark: Any, **options: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in dlq(spark, DlqOptions(**options)).collect()]


def test_dead_letters_are_counted_by_group_and_origin_with_what_they_tell(spark: Any, store: Path) -> None:
    found = {(row["group"], row["originTopic"]): row for row in rows(spark, store=str(store))}
    assert set(found) == {
        ("billing", "orders"), ("billing", "refunds"), ("mail", "letters"), ("mail", "(unknown)")
    }  # fmt: skip
    orders = found["billing", "orders"]
    assert (orders["messages"], orders["attempts"], orders["early"], orders["timesMax"]) == (7, 6, 1, 17)
    assert orders["topKeys"] == "both (7), k0 (1), k1 (1)"
    assert orders["newest"] - orders["oldest"] == timedelta(minutes=6)
    assert orders["oldestAgeS"] > 0
    assert found["billing", "refunds"]["attempts"] == 1
    assert found["mail", "letters"]["forwarded"] == 1
    assert found["mail", "(unknown)"]["unknown"] == 1


def test_single_messages_are_listed_by_group_reason_and_time(spark: Any, store: Path) -> None:
    listed = rows(spark, store=str(store), group="billing", reason="early", messages=True)
    assert [(row["originTopic"], row["times"], row["keys"], row["tags"]) for row in listed] == [
        ("orders", 3, "k6 both", "blue")]  # fmt: skip
    assert bytes(listed[0]["body"]) == b"body 6"
    late = datetime.fromtimestamp(BORN / 1000 + 9 * 60, UTC)
    assert [row["msgId"] for row in rows(spark, store=str(store), since=late, messages=True)] == [
        "ID-%DLQ%mail-0-8", "ID-%DLQ%mail-0-9"]  # fmt: skip


def test_a_selection_goes_back_to_its_origin_once_and_a_later_one_adds_the_rest(
    spark: Any, store: Path, target: Cluster
) -> None:
    with Admin(target.endpoint) as admin:
        for topic in ("orders", "refunds", "again"):
            admin.create_topic(topic, queues=2)

    def back(**options: Any) -> tuple[int, int]:
        report = rows(spark, **{"store": str(store), "endpoint": target.endpoint, **options})
        assert all(row["finding"] is None for row in report)
        return sum(row["stored"] for row in report), sum(row["skipped"] for row in report)

    assert back(group="billing", reason="early", replay_to="ORIGIN", dry_run=True) == (1, 0)
    assert ends(target, "orders") == 0
    assert back(group="billing", reason="early", replay_to="ORIGIN") == (1, 0)
    assert back(group="billing", replay_to="ORIGIN") == (7, 1)
    assert back(group="billing", replay_to="ORIGIN") == (0, 8)
    assert (ends(target, "orders"), ends(target, "refunds")) == (7, 1)
    assert back(group="mail", replay_to="again") == (2, 0)
    with pytest.raises(JobError, match="1 of these messages do not tell where they came from"):
        back(group="mail", replay_to="ORIGIN")
    frame = (
        spark.read.format("whimbrel").option("servers", target.endpoint).option("subscribe", "orders").load()
    )
    texts = {bytes(row["body"]): row["properties"] for row in frame.collect()}
    assert set(texts) == {b"body %d" % number for number in range(7)}
    assert texts[b"body 3"]["RETRY_TOPIC"] == "orders"
    assert texts[b"body 3"]["REPLAYED_FROM"] == "store:%DLQ%billing:0:3"


def test_a_cluster_is_read_too_and_wrong_options_are_named(spark: Any, cluster: Cluster, store: Path) -> None:
    assert rows(spark, endpoint=cluster.endpoint) == []
    with pytest.raises(JobError, match="--reason 'old' is not one of attempts"):
        rows(spark, store=str(store), reason="old")
    with pytest.raises(JobError, match="list them first"):
        rows(spark, store=str(store), messages=True, replay_to="x")
    with Admin(cluster.endpoint) as admin:
        admin.create_topic("switched-off")
    with pytest.raises(Forbidden, match="--accept-replays true"):
        rows(spark, store=str(store), group="mail", replay_to="switched-off", endpoint=cluster.endpoint)
