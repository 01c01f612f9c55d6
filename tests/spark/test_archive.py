"""Topics to Parquet and back: the same rows in every reader, and what the job says when it can't."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from spark.topics import bodies, confirmed, fill
from support.cluster.processes import Cluster
from whimbrel.client import Message
from whimbrel.client.sync import Producer
from whimbrel.spark.jobs.archive import ArchiveOptions, CheckOptions, archive, check

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Read = Callable[..., Any]
FINGERPRINT = (
    "count(*)",
    "bit_xor(xxhash64(* EXCEPT (properties)))",
    "bit_xor(xxhash64(map_entries(properties)))",
)


def options_of(cluster: Cluster, root: Path, topic: str, **changes: Any) -> ArchiveOptions:
    source = {"servers": cluster.endpoint, "subscribe": topic, "maxOffsetsPerTrigger": "200"}
    return ArchiveOptions(root=root, source=source | changes.pop("source", {}), **changes)


def back(spark: Any, root: Path, **options: object) -> Any:
    reader = spark.read.format("whimbrel").option("archive", str(root))
    for name, value in options.items():
        reader = reader.schema(value) if name == "schema" else reader.option(name, str(value))
    return reader.load()


def messages(report: Any) -> int:
    """Return how many messages the first row of a report counts."""
    return int(report.first()["messages"])


def numbers_of(table: Any) -> list[int]:
    return sorted(int(bytes(body.as_py())) for body in table["body"])


def test_an_archive_gives_the_rows_that_brokers_and_stores_give(
    cluster: Cluster, spark: Any, read: Read, tmp_path: Path
) -> None:
    fill(cluster, "kept", 500)
    with Producer(cluster.endpoint) as producer:
        producer.send(Message(topic="kept", body=b"500" * 3000, tag="a", properties={"ä": "ö"}))
    confirmed(cluster)
    root = tmp_path / "archive"
    told: list[str] = []
    rows = archive(spark, options_of(cluster, root, "kept"), told.append).collect()
    assert [(row["topic"], row["messages"], row["gaps"], row["finding"]) for row in rows] == [
        ("kept", 501, 0, None)
    ]
    assert sum("messages in" in line for line in told) == 3
    served = read("kept", verifyCrc="true").selectExpr(*FINGERPRINT).first()
    assert served[0] == 501
    assert back(spark, root, verifyCrc="true").selectExpr(*FINGERPRINT).first() == served
    store = spark.read.format("whimbrel").option("store", str(cluster.master.store))
    stored = store.option("subscribe", "kept").load()
    assert stored.selectExpr(*FINGERPRINT).first() == served
    texts = "topic string, queueId int, queueOffset long, propertiesText binary, body binary, crcOk boolean"
    texts += ", bodyOk boolean"
    wanted = read("kept").sparkSession.read.format("whimbrel").option("servers", cluster.endpoint)
    wanted = wanted.option("subscribe", "kept").schema(texts).load()
    fingerprint = "bit_xor(xxhash64(*))"
    assert (
        back(spark, root, schema=texts).selectExpr(fingerprint).first()
        == wanted.selectExpr(fingerprint).first()
    )
    kafka = read("kept", kafkaColumns="true").selectExpr(fingerprint).first()
    assert back(spark, root, kafkaColumns="true").selectExpr(fingerprint).first() == kafka
    raw = read("kept", properties="raw").selectExpr(fingerprint).first()
    assert back(spark, root, properties="raw").selectExpr(fingerprint).first() == raw
    assert {row["finding"] for row in check(spark, CheckOptions(root=root, deep=True)).collect()} == {None}


def test_ranges_tags_and_topics_are_chosen_as_with_brokers(
    cluster: Cluster, spark: Any, tmp_path: Path
) -> None:
    fill(cluster, "part-a", 200, queues=2)
    fill(cluster, "part-b", 50, queues=1)
    archive(spark, options_of(cluster, tmp_path, "part-a,part-b")).collect()
    assert back(spark, tmp_path).count() == 250
    assert bodies(back(spark, tmp_path, subscribe="part-b")) == list(range(50))
    assert back(spark, tmp_path, subscribePattern="part-.*").count() == 250
    assert bodies(back(spark, tmp_path, subscribe="part-b", tags="a")) == list(range(1, 50, 2))
    begin, end = ({"part-b": {"broker-a": {"0": at}}} for at in (10, 20))
    ranged = back(
        spark, tmp_path, subscribe="part-b", startingOffsets=json.dumps(begin), endingOffsets=json.dumps(end)
    )
    assert bodies(ranged) == list(range(10, 20))
    one = back(spark, tmp_path, assign='{"part-a": [1]}')
    assert {row["queueId"] for row in one.select("queueId").collect()} == {1}
    assert back(spark, tmp_path, schema="topic string").distinct().count() == 2
    many = back(spark, tmp_path, minPartitions="4")
    assert many.rdd.getNumPartitions() > 1 and many.count() == 250
    with pytest.raises(Exception, match=r"the archive has no topic nowhere; it has part-a, part-b"):
        back(spark, tmp_path, subscribe="nowhere").count()
    stream = (
        spark.readStream.format("whimbrel").option("archive", str(tmp_path)).option("subscribe", "part-a")
    )
    with pytest.raises(Exception, match="an archive is read as a batch"):
        stream.load().writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(60)


def test_times_and_filters_choose_rows_of_an_archive(cluster: Cluster, spark: Any, tmp_path: Path) -> None:
    fill(cluster, "timed-a", 60, queues=2)
    fill(cluster, "timed-b", 200, queues=2)
    archive(spark, options_of(cluster, tmp_path, "timed-a,timed-b")).collect()
    whole = back(spark, tmp_path)
    rows = whole.selectExpr("body", "unix_millis(storeTimestamp) AS ms", "physicalOffset AS place").collect()
    begin, end = (sorted(row["ms"] for row in rows)[number] for number in (40, 150))
    wanted = sorted(int(row["body"]) for row in rows if begin <= row["ms"] < end)
    assert 0 < len(wanted) < 260
    assert bodies(back(spark, tmp_path, startingTimestamp=begin, endingTimestamp=end)) == wanted
    pushed = back(spark, tmp_path, pushdown="true")
    middle = sorted(row["place"] for row in rows)[100]
    for condition in (
        "topic = 'timed-b' AND queueId = 1 AND queueOffset >= 20",
        f"physicalOffset >= {middle}",
        f"storeTimestamp < timestamp_millis({end}) AND storeTimestamp > timestamp_millis({begin})",
        "topic = 'nowhere'",
        "tags = 'a'",
    ):
        assert bodies(pushed.filter(condition)) == bodies(whole.filter(condition)), condition


def test_runs_go_on_where_the_last_one_ended_and_a_new_query_has_to_resume(
    cluster: Cluster, spark: Any, tmp_path: Path
) -> None:
    fill(cluster, "again", 300)
    root = tmp_path / "archive"
    archive(spark, options_of(cluster, root, "again")).collect()
    assert archive(spark, options_of(cluster, root, "again")).collect() == []
    fill(cluster, "again", 40, start=300)
    assert messages(archive(spark, options_of(cluster, root, "again"))) == 40
    fill(cluster, "again", 25, start=340)
    other = tmp_path / "other"
    with pytest.raises(Exception, match="this query is new to it: resume=true"):
        archive(spark, options_of(cluster, root, "again", checkpoint=other))
    resumed = options_of(cluster, root, "again", checkpoint=other, resume=True)
    assert messages(archive(spark, resumed)) == 25
    with pytest.raises(Exception, match=r"are in the archive .* already"):
        archive(spark, options_of(cluster, root, "again"))
    with pytest.raises(Exception, match="belongs to the archive"):
        archive(spark, options_of(cluster, tmp_path / "elsewhere", "again", checkpoint=other))
    assert bodies(back(spark, root)) == list(range(365))


def test_every_reader_of_parquet_sees_each_message_once(cluster: Cluster, spark: Any, tmp_path: Path) -> None:
    fill(cluster, "%RETRY%seen", 100, queues=2)
    fill(cluster, "seen", 200)
    archive(spark, options_of(cluster, tmp_path, "seen,%RETRY%seen")).collect()
    (tmp_path / "topic=seen" / "dt=2026-01-01").mkdir()
    (tmp_path / "topic=seen" / "dt=2026-01-01" / "_half.tmp").write_bytes(b"half a file")
    wanted = sorted([*range(100), *range(200)])
    plain = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert numbers_of(plain) == wanted
    assert set(plain["topic"].to_pylist()) == {"seen", "%RETRY%seen"}
    assert plain.schema.field("storeTimestamp").type == pa.timestamp("us", tz="UTC")
    pandas = pytest.importorskip("pandas").read_parquet(tmp_path)
    assert sorted(int(body) for body in pandas["body"]) == wanted
    parquet = spark.read.parquet(str(tmp_path))
    assert bodies(parquet) == wanted
    assert {row["topic"] for row in parquet.select("topic").distinct().collect()} == {"seen", "%RETRY%seen"}
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(f"SELECT body, topic FROM read_parquet('{tmp_path}/**/*.parquet')").fetchall()
    assert sorted(int(body) for body, _ in found) == wanted
    assert {topic for _, topic in found} == {"seen", "%RETRY%seen"}


def test_check_tells_what_is_missing_damaged_and_stray(cluster: Cluster, spark: Any, tmp_path: Path) -> None:
    fill(cluster, "checked", 500, queues=2)
    archive(spark, options_of(cluster, tmp_path, "checked", source={"maxOffsetsPerTrigger": "100"})).collect()
    files = sorted(tmp_path.glob("topic=*/*/*.parquet"))
    assert len(files) == 5
    manifests = sorted(tmp_path.glob("_manifests/*/*.json"))
    moved = manifests[2].rename(tmp_path / "manifest")

    def findings(**options: Any) -> str:
        rows = check(spark, CheckOptions(root=tmp_path, **options)).collect()
        return "\n".join(row["finding"] for row in rows if row["finding"])

    found = findings()
    assert "queue 0 of broker-a: offsets 100 to 150 are missing" in found
    assert "is in no manifest: readers see it" in found
    moved.rename(manifests[2])
    assert findings(deep=True) == ""
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 1
    files[0].write_bytes(data)
    assert findings() == ""
    assert f"{files[0].name} is damaged: its CRC is another one" in findings(deep=True)
    files[1].unlink()
    assert f"{files[1].name} is gone" in findings(queues=True)
    with pytest.raises(Exception, match="is gone; `archive --check --deep` tells"):
        back(spark, tmp_path).count()
    files[0].unlink()
    assert back(spark, tmp_path, failOnDataLoss="false").count() == 300


def test_a_store_directory_is_archived_too(cluster: Cluster, spark: Any, tmp_path: Path) -> None:
    fill(cluster, "from-files", 120)
    source = {"store": str(cluster.master.store), "subscribe": "from-files", "isolation": "latest"}
    archive(spark, ArchiveOptions(root=tmp_path, source=source)).collect()
    assert bodies(back(spark, tmp_path)) == list(range(120))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"subscribe": "nowhere"}, "no broker has the topic nowhere"),
        ({"servers": "127.0.0.1:1", "fetchOffset.numRetries": "1"}, "is the cluster running"),
        ({"tags": "a"}, "an archive holds whole messages"),
        ({"servres": "x"}, "did you mean servers"),
    ],
)
def test_what_can_not_be_archived_is_one_sentence_and_leaves_no_files(
    cluster: Cluster, spark: Any, tmp_path: Path, source: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        archive(spark, options_of(cluster, tmp_path, "kept", source=source))
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_root_that_can_not_be_written_is_named(cluster: Cluster, spark: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=r"the archive .*/file/root can't be made"):
        archive(spark, options_of(cluster, tmp_path / "file" / "root", "kept"))
