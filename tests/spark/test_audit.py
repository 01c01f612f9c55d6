"""Masters and slaves compared: damage of every kind is found down to the record, and nothing else is."""

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import Cluster
from support.store import goldens
from support.store.stores import FILE, OPTIONS, make_draft, open_master
from support.waiting import until
from whimbrel.client import Message
from whimbrel.client.sync import Producer
from whimbrel.spark.auditing.members import Member, bytes_between
from whimbrel.spark.jobs import JobError
from whimbrel.spark.jobs.audit import AuditOptions, audit
from whimbrel.store.master_store import Appended

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

CHUNK = 16 * 1024
TOPICS = 3


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Appended]]:
    """Give a store at rest of a dozen files."""
    root = tmp_path_factory.mktemp("audit") / "master"
    store = open_master(root, replace(OPTIONS, index_slots=5000, index_entries=20_000))
    records = [
        store.append([make_draft(number, topic=f"t{number % TOPICS}", queue_id=number % 2, size=400)])[0]
        for number in range(1400)
    ]
    while store.indexer.step(store.written):
        pass
    store.close()
    (root / "whimbrel" / "watermark").unlink()
    return root, records


def poke(root: Path, offset: int, data: bytes) -> None:
    """Write bytes into a log."""
    with (root / "commitlog" / f"{offset - offset % FILE:020d}").open("r+b") as file:
        file.seek(offset % FILE)
        file.write(data)


def file_of(root: Path, number: int) -> Path:
    return root / "commitlog" / f"{number * FILE:020d}"


def rows(session: Any, master: object, *slaves: object, **fields: Any) -> list[Any]:
    options = AuditOptions(master=str(master), slaves=tuple(map(str, slaves)), chunk_bytes=CHUNK, **fields)
    found: list[Any] = audit(session, options).collect()
    return found


def findings(found: list[Any]) -> list[Any]:
    return [row for row in found if row["finding"] is not None]


def damage(root: Path, kind: str, records: list[Appended]) -> set[tuple[str, int, int]]:
    """Damage a store; return the topic, queue and offset of what has to be found."""

    def names(*numbers: int) -> set[tuple[str, int, int]]:
        return {(f"t{number % TOPICS}", number % 2, records[number].queue_offset) for number in numbers}

    one, other = records[200], records[801]
    if kind == "flipped bit":
        poke(root, one.physical_offset + 200, b"\xff")
        return names(200)
    if kind == "zeros":
        poke(root, one.physical_offset, bytes(one.size))
        return names(200)
    if kind == "swapped":
        assert one.size == other.size
        data = [
            bytes_between(Member(str(root)), each.physical_offset, each.end, FILE) for each in (one, other)
        ]
        poke(root, one.physical_offset, data[1])
        poke(root, other.physical_offset, data[0])
        return names(200, 801)
    if kind == "extra":
        with file_of(root, 2).open("ab") as file:
            file.write(b"stray")
        last = max(number for number, each in enumerate(records) if each.end < 3 * FILE)
        return names(last)
    within = [number for number, each in enumerate(records) if each.physical_offset // FILE == 3]
    if kind == "lost":
        file_of(root, 3).unlink()
        return names(*within)
    assert kind == "short"
    os.truncate(file_of(root, 3), 40_000)
    return names(*(number for number in within if records[number].end > 3 * FILE + 40_000))


KINDS = {
    "flipped bit": "DIFFERS",
    "zeros": "DIFFERS",
    "swapped": "DIFFERS",
    "extra": "TOO LONG ON SLAVE",
    "lost": "MISSING ON SLAVE",
    "short": "SHORT ON SLAVE",
}


def test_each_kind_of_damage_is_found_down_to_the_record(
    spark: Any, original: tuple[Path, list[Appended]], tmp_path: Path
) -> None:
    root, records = original
    wanted: dict[str, tuple[str, set[tuple[str, int, int]]]] = {}
    for kind in KINDS:
        copy = Path(shutil.copytree(root, tmp_path / kind.replace(" ", "-")))
        wanted[str(copy)] = kind, damage(copy, kind, records)
    found = rows(spark, root, *wanted)
    for slave, (kind, names) in wanted.items():
        mine = [row for row in found if row["slave"] == slave]
        damaged = [row for row in mine if row["equal"] is not None and row["state"] != "EQUAL"]
        assert {row["state"] for row in damaged} == {KINDS[kind]}, kind
        assert all(row["finding"] for row in damaged), kind
        told = [row for row in mine if row["topic"] is not None]
        if kind in ("lost", "short"):
            queues = {(topic, queue_id) for topic, queue_id, _ in names}
            assert {(row["topic"], row["queueId"]) for row in told} == queues
            assert sum(row["records"] for row in told) == len(names)
            firsts = {queue: min(offset for *of, offset in names if tuple(of) == queue) for queue in queues}
            for queue in queues:
                offsets = [row["queueOffset"] for row in told if (row["topic"], row["queueId"]) == queue]
                assert min(offsets) == firsts[queue]
        else:
            assert {(row["topic"], row["queueId"], row["queueOffset"]) for row in told} == names, kind
        assert all(row["finding"] for row in told)
    crcs = {
        (row["masterCrc"], row["slaveCrc"])
        for row in found
        if row["slave"].endswith("flipped-bit") and row["topic"]
    }
    assert crcs == {("ok", "BAD")}


def test_damage_on_the_master_is_found_as_well(
    spark: Any, original: tuple[Path, list[Appended]], tmp_path: Path
) -> None:
    root, records = original
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    damage(copy, "flipped bit", records)
    damage(copy, "lost", records)
    found = findings(rows(spark, copy, root))
    assert {row["state"] for row in found if row["state"]} == {"DIFFERS", "MISSING ON MASTER"}
    assert ("BAD", "ok") in {(row["masterCrc"], row["slaveCrc"]) for row in found}


def test_a_slave_that_is_behind_or_has_removed_old_files_is_not_wrong(
    spark: Any, original: tuple[Path, list[Appended]], tmp_path: Path
) -> None:
    root, records = original
    clean = shutil.copytree(root, tmp_path / "clean")
    behind = Path(shutil.copytree(root, tmp_path / "behind"))
    (behind / "whimbrel" / "log-mark").unlink()
    for number in range(6, len(list((root / "commitlog").iterdir()))):
        file_of(behind, number).unlink()
    poke(behind, records[700].physical_offset, bytes(6 * FILE - records[700].physical_offset))
    younger = Path(shutil.copytree(root, tmp_path / "younger"))
    for number in range(2):
        file_of(younger, number).unlink()
    found = rows(spark, root, clean, behind, younger)
    assert findings(found) == []
    states: dict[str, list[str]] = {row["slave"]: [] for row in found}
    for row in found:
        if row["state"] != "EQUAL":
            states[row["slave"]].append(row["state"])
    missing = records[-1].end - records[700].physical_offset
    assert states == {
        str(clean): [],
        str(behind): [f"BEHIND {missing / 1024:.1f} KiB"],
        str(younger): [f"REMOVED ON SLAVE up to {2 * FILE}"],
    }


@pytest.mark.parametrize("name", ["ha493-async", "ha533-sync"])
def test_pairs_of_rocketmq_are_equal(spark: Any, name: str) -> None:
    master, slave = goldens.golden(f"{name}-master"), goldens.golden(f"{name}-slave")
    found = rows(spark, master, slave)
    assert findings(found) == []
    assert sum(row["equal"] or 0 for row in found) > 4
    victim = sorted((slave / "commitlog").iterdir())[1]
    data = bytearray(victim.read_bytes())
    data[5000] ^= 4
    victim.write_bytes(bytes(data))
    assert {row["segment"] for row in findings(rows(spark, master, slave))} == {int(victim.name)}


def test_known_files_are_not_read_again(
    spark: Any, original: tuple[Path, list[Appended]], tmp_path: Path
) -> None:
    root, records = original
    slave = Path(shutil.copytree(root, tmp_path / "slave"))
    known = tmp_path / "known"
    told: list[str] = []

    def again(**fields: Any) -> list[Any]:
        told.clear()
        options = AuditOptions(
            master=str(root), slaves=(str(slave),), chunk_bytes=CHUNK, known=known, **fields
        )
        return findings(audit(spark, options, told.append).collect())

    files = records[-1].end // FILE
    assert again() == []
    assert f"0 of {2 * files + 2} files were known" in " ".join(told)
    assert again() == []
    assert f"{2 * files} of {2 * files + 2} files were known" in " ".join(told)
    # A bit that rots leaves size, times and inode: here they are forged to be what they were.
    path = next(each for each in known.iterdir())
    assert path.suffix == ".json"
    damage(slave, "flipped bit", records)
    assert len(again()) == 2  # the file has another time
    assert len(again(again=True)) == 2
    damage(slave, "lost", records)
    assert "MISSING ON SLAVE" in {row["state"] for row in again()}


def test_deep_finds_entries_that_are_missing(
    spark: Any, original: tuple[Path, list[Appended]], tmp_path: Path
) -> None:
    root, _ = original
    slave = Path(shutil.copytree(root, tmp_path / "slave"))
    queue = slave / "consumequeue" / "t1" / "0"
    with (queue / f"{0:020d}").open("r+b") as file:
        file.seek(20 * 17)
        file.write(bytes(40))
    assert findings(rows(spark, root, slave)) == []
    (found,) = findings(rows(spark, root, slave, deep=True))
    assert (found["slave"], found["topic"], found["queueId"], found["queueOffset"]) == (
        str(slave),
        "t1",
        0,
        17,
    )
    assert found["finding"] == "2 records have no entry"


def send(cluster: Cluster, topic: str, numbers: range) -> None:
    with Producer(cluster.endpoint) as producer:
        for number in numbers:
            producer.send(Message(topic=topic, body=b"%d" % number * 200, keys=(f"k{number}",)))


def test_a_live_pair_is_equal_while_a_producer_writes(spark: Any, cluster: Cluster) -> None:
    send(cluster, "audited", range(100))
    stop = threading.Event()

    def write() -> None:
        with Producer(cluster.endpoint) as producer:
            while not stop.is_set():
                producer.send(Message(topic="audited", body=b"more" * 100))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for master, slave in (
            (cluster.master.grpc, cluster.slaves[0].grpc),
            (cluster.master.store, cluster.slaves[0].store),
            (cluster.master.store, cluster.slaves[0].grpc),
        ):
            found = rows(spark, master, slave)
            assert findings(found) == []
            assert sum(row["equal"] or 0 for row in found) > 0
    finally:
        stop.set()
        writer.join()


def test_brokers_with_a_damaged_file_are_told_apart_by_record(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    send(cluster, "damaged", range(60))
    until(lambda: look_end(cluster.slaves[0].grpc) == look_end(cluster.master.grpc), what="the slave")
    store = cluster.slaves[0].store
    whole = bytes_between(Member(str(store)), 0, 1 << 24, 1 << 24)
    at = whole.rindex(b"59" * 20)
    path = store / "commitlog" / f"{0:020d}"
    try:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"6")
        found = findings(rows(spark, cluster.master.grpc, cluster.slaves[0].grpc))
        (record,) = [row for row in found if row["topic"]]
        assert (record["topic"], record["bytes"], record["masterCrc"], record["slaveCrc"]) == (
            "damaged",
            1,
            "ok",
            "BAD",
        )
    finally:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"5")


def look_end(address: str) -> int:
    from whimbrel.spark.auditing.members import describe_member

    return describe_member(Member(address)).end


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (lambda: AuditOptions(master="", slaves=("b",)), "no master"),
        (lambda: AuditOptions(master="a", slaves=()), "no slave"),
        (lambda: AuditOptions(master="a", slaves=("a",)), "named twice"),
        (lambda: AuditOptions(master="a", slaves=("h:1",), deep=True), "--deep reads store directories"),
        (lambda: AuditOptions(master="a", slaves=("b",), again=True), "--again has a meaning with"),
    ],
)
def test_what_can_t_be_audited_is_told_in_a_sentence(options: Callable[[], object], words: str) -> None:
    with pytest.raises(JobError, match=words):
        options()


def test_a_member_that_is_none_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no broker answers"):
        rows(spark, tmp_path, "127.0.0.1:1")
    with pytest.raises(JobError, match="is no store"):
        rows(spark, tmp_path / "a", tmp_path)
