"""Stores that real RocketMQ wrote: read to the listed values, recovered to where RocketMQ's recovery ended,
gone on with.

Where RocketMQ's recovery loses queue entries and keys, ours keeps them: `test_recovery_loses_nothing`.
"""

import base64
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.store import goldens
from support.store.stores import OPTIONS
from whimbrel.store.codec import RecordDraft, decode_record, keys_of, pack_host
from whimbrel.store.inspect import dump_queues, dump_records, query_index, recover, verify
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions
from whimbrel.store.view import open_index

ALL = (*goldens.STORES, *goldens.TORN)
CLEAN = tuple(name for name in goldens.STORES if name != "v493-crash")
STARTED = ("v493-basic", "v493-crash", "v493-ipv6", "v533-basic", *goldens.TORN)
LOSSY = "v493-torn-no-queues"  # RocketMQ fills the queues from the recovery start file on only
NOW = 1_800_000_000_000


def options(name: str) -> StoreOptions:
    return replace(OPTIONS, **goldens.sizes(name))  # type: ignore[arg-type]


def open_copy(name: str, target: Path) -> MasterStore:
    return MasterStore.open(goldens.golden(name, target), options(name), clock=lambda: NOW)


class Clock:
    """Tells the time it is set to."""

    now = 0

    def __call__(self) -> int:
        return self.now


def pack(host: str) -> bytes:
    address, _, port = host.rpartition(":")
    return pack_host(address, int(port))


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(root.rglob("*"))}


def index_rows(root: Path) -> list[goldens.Row]:
    index = open_index(root, 0)
    rows = [
        {
            "type": "indexFile",
            "name": file.path.name,
            "beginTimestamp": file.begin_ms,
            "endTimestamp": file.end_ms,
            "beginPhyOffset": file.begin_offset,
            "endPhyOffset": file.end_offset,
            "hashSlotCount": file.slots_used,
            "indexCount": file.count,
        }
        for file in index.files
    ]
    index.close()
    return rows


@pytest.mark.parametrize("name", ALL)
def test_every_record_and_blank_reads_as_listed(name: str) -> None:
    want = [row for row in goldens.expected(name) if row["type"] in ("record", "blank")]
    found = list(dump_records(goldens.shared(name)))
    assert len(found) == len(want)
    for row, expected in zip(found, want, strict=True):
        assert {key: row[key] for key in expected} == expected


@pytest.mark.parametrize("name", CLEAN)
def test_every_queue_entry_reads_as_listed(name: str) -> None:
    want = {(row["topic"], row["queueId"]): row for row in goldens.rows(name, "queue") if row["max"]}
    found = {(row["topic"], row["queueId"]): row for row in dump_queues(goldens.shared(name))}
    assert found == want


@pytest.mark.parametrize("name", CLEAN)
def test_index_headers_and_queries_read_as_listed(name: str) -> None:
    root = goldens.shared(name)
    assert index_rows(root) == goldens.rows(name, "indexFile")
    for row in goldens.rows(name, "query"):
        assert query_index(root, row["topic"], row["key"]) == row["phyOffsets"]


def test_the_writer_makes_the_same_log_and_queue_bytes(tmp_path: Path) -> None:
    for name in ("v493-basic", "v493-ipv6"):
        root = tmp_path / name
        clock = Clock()
        root.mkdir()
        store = MasterStore.open(root, options(name), clock=clock)
        for row in goldens.rows(name, "record"):
            body = stored_body(name, row)
            draft = RecordDraft.from_properties(
                topic=row["topic"],
                queue_id=row["queueId"],
                body=body,
                properties=base64.b64decode(row["propertiesRaw"]),
                born_timestamp=row["bornTimestamp"],
                born_host=pack(row["bornHost"]),
                store_host=pack(row["storeHost"]),
                flag=row["flag"],
                sys_flag=row["sysFlag"],
                reconsume_times=row["reconsumeTimes"],
                prepared_offset=row["preparedTransactionOffset"],
            )
            clock.now = row["storeTimestamp"]
            align(store, row)
            appended = store.append([draft])[0]
            assert (appended.physical_offset, appended.size) == (row["phyOffset"], row["size"])
            assert appended.queue_offset == row["queueOffset"]
        store.close()
        original = goldens.shared(name)
        end = goldens.rows(name, "loaded")[0]["maxPhyOffset"]
        assert log_bytes(root, end) == log_bytes(original, end)
        for path in sorted((original / "consumequeue").rglob("0*")):
            if path.is_file():
                assert (root / path.relative_to(original)).read_bytes() == path.read_bytes()


def align(store: MasterStore, row: goldens.Row) -> None:
    """A batch that does not fit ends a file earlier than its first record alone would."""
    log = store.writer
    if log.segment is not None and row["phyOffset"] == log.limit and log.end != log.limit:
        log.roll()


def stored_body(name: str, row: goldens.Row) -> bytes:
    start = row["phyOffset"] - row["phyOffset"] % 65536
    data = (goldens.shared(name) / "commitlog" / f"{start:020d}").read_bytes()
    return decode_record(data, row["phyOffset"] - start).body


def log_bytes(root: Path, end: int) -> bytes:
    """The log's bytes, without those behind a blank's head, which are undefined."""
    blanks = [row for row in dump_records(root) if row["type"] == "blank"]
    data = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))[:end]
    for row in blanks:
        at = row["phyOffset"]
        data = data[: at + 8] + bytes(row["toFileEnd"] - 8) + data[at + row["toFileEnd"] :]
    return data


def wanted_queues(name: str) -> dict[str, list[int]]:
    source = "v493-basic" if name == LOSSY else name
    loaded = [row for row in goldens.expected(source) if row["type"] in ("loaded", "started")][-1]
    return {queue: span for queue, span in loaded["queues"].items() if span != [0, 0]}


@pytest.mark.parametrize("name", STARTED)
def test_recovery_ends_where_rocketmq_ends(name: str, tmp_path: Path) -> None:
    root = goldens.golden(name, tmp_path / "store")
    loaded = goldens.rows(name, "loaded")[0]
    before = snapshot(root)
    planned = recover(root, dry_run=True)
    assert snapshot(root) == before
    done = recover(root, dry_run=False)
    for found in (planned, done):
        assert found["ok"]
        assert (found["minPhyOffset"], found["maxPhyOffset"]) == (
            loaded["minPhyOffset"],
            loaded["maxPhyOffset"],
        )
        assert found["queues"] == wanted_queues(name)
    assert not (root / "abort").exists()
    assert verify(root) == []


@pytest.mark.parametrize("name", STARTED)
def test_recovery_loses_nothing(name: str, tmp_path: Path) -> None:
    """Every record of the log is in its queue and findable by its keys, and by nothing else."""
    store = open_copy(name, tmp_path / "store")
    try:
        for row in goldens.rows(name, "record"):
            data = store.read(row["phyOffset"], row["size"])
            message = decode_record(data)
            ((place, size, _),) = store.queue_units(row["topic"], row["queueId"], row["queueOffset"], 1)
            assert (place, size) == (row["phyOffset"], row["size"])
            for key in keys_of(message.properties_raw):
                assert row["phyOffset"] in store.find_by_key(row["topic"], key, limit=10_000)
    finally:
        store.close()


@pytest.mark.parametrize("name", [name for name in STARTED if name != LOSSY])
def test_recovered_entries_are_those_rocketmq_has(name: str, tmp_path: Path) -> None:
    store = open_copy(name, tmp_path / "store")
    try:
        for row in goldens.rows(name, "queue"):
            units = store.queue_units(row["topic"], row["queueId"], row["min"], row["max"] - row["min"])
            assert [list(unit) for unit in units] == [unit[1:] for unit in row["units"]]
    finally:
        store.close()


def test_delayed_messages_keep_their_delivery_time_when_their_queue_is_written_anew(tmp_path: Path) -> None:
    want = {
        (row["topic"], row["queueId"]): row["units"]
        for row in goldens.rows("v493-basic", "queue")
        if row["topic"] == "SCHEDULE_TOPIC_XXXX"
    }
    store = open_copy(LOSSY, tmp_path / "store")
    try:
        for (topic, queue_id), units in want.items():
            if units:
                found = store.queue_units(topic, queue_id, 0, len(units))
                assert [list(unit) for unit in found] == [unit[1:] for unit in units]
    finally:
        store.close()


@pytest.mark.parametrize("name", ["v493-basic", "v533-basic", "v493-crash", "v493-torn-crc", "v493-ipv6"])
def test_appending_goes_on_with_the_offsets(name: str, tmp_path: Path) -> None:
    store = open_copy(name, tmp_path / "store")
    topic, queue_id = next(iter(wanted_queues(name))).rsplit("@", 1)
    first, end = store.queue_range(topic, int(queue_id))
    log_end = store.written
    draft = RecordDraft.from_properties(
        topic=topic,
        queue_id=int(queue_id),
        body=b"ours",
        properties=b"KEYS\x01fresh",
        born_timestamp=NOW,
        born_host=pack_host("127.0.0.1", 1),
        store_host=pack_host("127.0.0.1", 2),
    )
    appended = store.append([draft])[0]
    assert (appended.queue_offset, appended.physical_offset) == (end, log_end)
    store.close()
    store = MasterStore.open(tmp_path / "store", options(name), clock=lambda: NOW)
    assert store.queue_range(topic, int(queue_id)) == (first, end + 1)
    assert store.find_by_key(topic, "fresh") == [log_end]
    assert decode_record(store.read(log_end, appended.size)).body == b"ours"
    store.close()
    assert verify(tmp_path / "store") == []


@pytest.mark.parametrize("name", CLEAN)
def test_a_whole_store_verifies(name: str) -> None:
    before = snapshot(goldens.shared(name))
    assert verify(goldens.shared(name)) == []
    assert snapshot(goldens.shared(name)) == before


PLACES = {
    "crc": ("commitlog/00000000000000851968", 859004),
    "size-field": ("commitlog/00000000000000851968", 859004),
    "zero-tail": ("commitlog/00000000000000851968", 859004),
    "zero-tail-clean": ("commitlog/00000000000000851968", 859004),
    "garbage": ("commitlog/00000000000000851968", 859209),
    "cut-blank": ("commitlog/00000000000000851968", 851968),
    "queue-ahead": ("consumequeue/OrderTopic/0", 2040),
    "queue-ahead-clean": ("consumequeue/OrderTopic/0", 2040),
    "no-queues": ("consumequeue/TopicTest/0", 0),
    "no-index": ("index", 0),
    "no-checkpoint": ("checkpoint", 0),
}


@pytest.mark.parametrize("variant", PLACES)
def test_damage_is_told_with_its_place(variant: str) -> None:
    root = goldens.shared(f"v493-torn-{variant}")
    found = {(str(damage.path.relative_to(root)), damage.offset) for damage in verify(root)}
    assert PLACES[variant] in found


def test_a_store_with_files_of_different_sizes_is_refused(tmp_path: Path) -> None:
    root = goldens.golden("v493-basic", tmp_path / "store")
    shutil.copy(root / "checkpoint", root / "commitlog" / "00000000000000917504")
    assert [damage.path for damage in verify(root)] == [root / "commitlog"]
