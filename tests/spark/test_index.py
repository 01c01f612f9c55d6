"""Queues and index compared with the log, and built anew from it."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import Cluster
from support.store import goldens
from support.store.stores import NOW, OPTIONS, make_draft, open_master
from whimbrel.client import Message
from whimbrel.client.sync import Producer
from whimbrel.spark.jobs import JobError
from whimbrel.spark.jobs.rebuild_index import DONE, RebuildOptions, rebuild_index
from whimbrel.spark.jobs.verify_index import VerifyOptions, verify_index
from whimbrel.store.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

INDEX = replace(OPTIONS, index_slots=200, index_entries=800)
SPLIT = 100_000


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a store at rest: several files of each kind, delayed messages and several topics among them."""
    root = tmp_path_factory.mktemp("index") / "store"
    store = open_master(root, INDEX)
    for number in range(1200):
        delay = "3" if number % 40 == 0 else ""
        store.append([make_draft(number, topic=f"t{number % 3}", queue_id=number % 2, size=160, delay=delay)])
    for number in range(50):
        store.append([make_draft(number, topic="SCHEDULE_TOPIC_XXXX", queue_id=2, size=80, delay="3")])
    while store.indexer.step(store.written):
        pass
    store.close()
    (root / "whimbrel" / "watermark").unlink()
    return root


def report(session: Any, root: Path) -> dict[str, Any]:
    """Verify a store; return the rows that have a finding, by name."""
    frame = verify_index(session, VerifyOptions(store=root, split_bytes=SPLIT))
    return {row["name"]: row for row in frame.collect() if row["finding"] is not None}


def places(root: Path) -> set[str]:
    """Return where the verifier of one process finds damage, as names of this report."""
    found = set()
    for damage in verify(root):
        parts = damage.path.relative_to(root).parts
        if parts[0] == "consumequeue":
            found.add("/".join(parts[1:3]))
        elif parts[0] == "index":
            found.add("index")
    return found


def named(found: dict[str, Any]) -> set[str]:
    return {
        name if row["what"] == "queue" else "index" for name, row in found.items() if row["what"] != "log"
    }


def test_a_clean_store_has_no_findings_and_every_entry_is_counted(spark: Any, original: Path) -> None:
    rows = verify_index(spark, VerifyOptions(store=original, split_bytes=SPLIT)).collect()
    assert [row for row in rows if row["finding"] is not None] == []
    queues = [row for row in rows if row["what"] == "queue"]
    assert sum(row["expected"] for row in queues) == sum(row["found"] for row in queues) == 1250
    assert {row["name"] for row in queues} == {
        f"t{topic}/{queue}" for topic in range(3) for queue in range(2)
    } | {"SCHEDULE_TOPIC_XXXX/2"}
    assert verify(original) == []


@pytest.mark.parametrize("name", ["v493-basic", "v533-basic"])
def test_stores_of_rocketmq_are_clean(spark: Any, name: str) -> None:
    assert report(spark, goldens.shared(name)) == {}


def poke(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_each_damage_is_found_where_the_verifier_of_one_process_finds_it(
    spark: Any, original: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(original, tmp_path / "store"))
    queues = root / "consumequeue"
    poke(queues / "t0" / "0" / f"{0:020d}", 20 * 5 + 8, (77).to_bytes(4, "big"))  # a size
    poke(queues / "t1" / "0" / f"{0:020d}", 20 * 9 + 12, bytes(8))  # a tag
    (queues / "t1" / "1" / f"{2000:020d}").unlink()  # a file, the last one
    shutil.rmtree(queues / "t2" / "0")
    index = sorted((root / "index").iterdir())[0]
    poke(index, 40 + 4 * 500 + 20 * 100 + 4, bytes(8))  # a key's place
    found = report(spark, root)
    assert named(found) == places(root) == {"t0/0", "t1/0", "t1/1", "t2/0", "index"}
    assert (found["t0/0"]["wrong"], found["t0/0"]["firstBad"]) == (1, 5)
    assert (found["t1/0"]["wrong"], found["t1/0"]["firstBad"]) == (1, 9)
    assert "tags code" in found["t1/0"]["finding"]
    assert (found["t1/1"]["missing"], found["t1/1"]["firstBad"]) == (100, 100)
    assert "although the log has records" in found["t2/0"]["finding"]
    assert found[index.name]["missing"] == 1
    assert found[index.name]["wrong"] == 1


def test_entries_without_records_are_found(spark: Any, original: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(original, tmp_path / "store"))
    path = root / "consumequeue" / "t0" / "1" / f"{2000:020d}"
    entry = path.read_bytes()[20 * 99 : 20 * 100]
    assert entry != bytes(20)
    following = root / "consumequeue" / "t0" / "1" / f"{4000:020d}"
    following.write_bytes(entry + (10**9).to_bytes(8, "big") + entry[8:] + bytes(2000 - 40))
    found = report(spark, root)
    assert named(found) == {"t0/1"}
    assert found["t0/1"]["surplus"] == 2
    assert found["t0/1"]["firstBad"] == 200
    assert "1 entries have no record; 1 entries are of records behind" in found["t0/1"]["finding"]


def test_what_retention_has_removed_and_what_is_not_due_is_no_damage(
    spark: Any, original: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(original, tmp_path / "store"))
    sorted((root / "commitlog").iterdir())[0].unlink()
    assert report(spark, root) == {}


def test_a_store_that_a_broker_writes_is_clean(spark: Any, cluster: Cluster) -> None:
    with Producer(cluster.endpoint) as producer:
        for number in range(60):
            producer.send(Message(topic="indexed", body=b"x" * 100, tag="a", keys=(f"k{number}",)))
    assert report(spark, cluster.master.store) == {}


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def rebuilt(spark: Any, original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    to = tmp_path_factory.mktemp("rebuilt") / "new"
    options = RebuildOptions(store=original, to=to, index_slots=200, split_bytes=SPLIT)
    assert [row for row in rebuild_index(spark, options).collect() if row["finding"] is not None] == []
    yield to


def test_what_is_rebuilt_is_what_the_broker_wrote(original: Path, rebuilt: Path) -> None:
    assert contents(rebuilt / "consumequeue") == contents(original / "consumequeue")
    ours, theirs = (
        list(dict(sorted(contents(root / "index").items())).values()) for root in (rebuilt, original)
    )
    assert ours == theirs
    assert len(ours) > 1
    assert json.loads((rebuilt / DONE).read_text())["begin"] == 0
    assert {path.name for path in rebuilt.iterdir()} == {"consumequeue", "index", DONE}


def test_rocketmqs_store_is_rebuilt_byte_for_byte(spark: Any, tmp_path: Path) -> None:
    root = goldens.golden("v533-basic")
    options = RebuildOptions(store=root, to=tmp_path / "new", split_bytes=1 << 20)
    rebuild_index(spark, options)
    assert contents(tmp_path / "new" / "consumequeue") == contents(root / "consumequeue")
    assert sorted(contents(tmp_path / "new" / "index").values()) == sorted(contents(root / "index").values())


def test_a_broker_goes_on_with_what_was_swapped_in(
    original: Path, rebuilt: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(shutil.copytree(original, tmp_path / "store"))
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
        shutil.copytree(rebuilt / name, root / name)
    assert verify(root, index_slots=200) == []
    store = open_master(root, INDEX)
    try:
        assert store.append([make_draft(1, topic="t1", queue_id=1)])[0].queue_offset == 200
        found = list(store.index.find("t0", "key-6", begin_ms=0, end_ms=NOW * 2))
        assert len(found) == 1
    finally:
        store.close()
    assert "written anew" not in caplog.text


def test_a_rebuild_refuses_what_it_would_spoil(
    spark: Any, original: Path, tmp_path: Path, cluster: Cluster
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    for store, to, words in (
        (original, tmp_path / "full", "is there and not empty"),
        (original, original / "new", "is inside of the store"),
        (cluster.master.store, tmp_path / "new", "is in use"),
        (tmp_path, tmp_path / "new", "is no store"),
    ):
        with pytest.raises(JobError, match=words):
            rebuild_index(spark, RebuildOptions(store=store, to=to))
    assert not (tmp_path / "new").exists()
    with pytest.raises(JobError, match="--delay-levels"):
        RebuildOptions(store=original, to=tmp_path / "x", delay_levels="soon")
