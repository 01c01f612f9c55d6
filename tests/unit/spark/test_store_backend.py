"""Store directories of RocketMQ and of ours as tables, without Spark: the tasks that a reader plans."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from support.store import goldens
from support.store.stores import NOW, OPTIONS, make_draft, open_master
from whimbrel.errors import CorruptRecord
from whimbrel.spark.backend import ReadRequest
from whimbrel.spark.options import SourceOptions, parse
from whimbrel.spark.planning import DataLoss, ending_positions, ranges_between, starting_positions
from whimbrel.spark.push_down import UNRESTRICTED, PushDown
from whimbrel.spark.store_backend import StoreBackend
from whimbrel.store.master_store import MasterStore

COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "size", "msgId", "bodyCrc", "storeTimestamp")
WHOLE = ("v493-basic", "v493-ipv6", "v493-crash", "v533-basic")


def options(root: Path, **changes: str) -> SourceOptions:
    return parse({"store": str(root), **changes}, streaming=False)


def rows(
    chosen: SourceOptions, split_bytes: int = 1 << 16, push_down: PushDown = UNRESTRICTED
) -> list[dict[str, Any]]:
    """Return what a batch gives, in the order of the log."""
    backend = StoreBackend.describe(chosen)
    start = starting_positions(chosen.starting, backend.extents)
    end = ending_positions(chosen.ending, backend.extents)
    ranges = ranges_between(start, end, backend.extents, fail_on_data_loss=True)
    request = ReadRequest(columns=COLUMNS, options=chosen, push_down=push_down, task_bytes=split_bytes)
    found = []
    for task in backend.plan(ranges, request):
        for batch in task.read():
            found += batch.to_pylist()
    return found


@pytest.mark.parametrize("split_bytes", [1 << 14, 1 << 30])
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_log_of_rocketmq_gives_the_records_that_rocketmq_lists(name: str, split_bytes: int) -> None:
    listed = [row for row in goldens.expected(name) if row["type"] == "record"]
    found = rows(options(goldens.golden(name)), split_bytes)
    assert [(row["physicalOffset"], row["size"]) for row in found] == [
        (row["phyOffset"], row["size"]) for row in listed
    ]
    assert [(row["topic"], row["queueId"], row["queueOffset"], row["bodyCrc"]) for row in found] == [
        (row["topic"], row["queueId"], row["queueOffset"], row["bodyCRC"]) for row in listed
    ]


@pytest.mark.parametrize("name", WHOLE)
def test_every_queue_gives_what_its_entries_point_at(name: str) -> None:
    queues = [row for row in goldens.expected(name) if row["type"] == "queue" and row["units"]]
    for topic in {row["topic"] for row in queues}:
        found = rows(options(goldens.golden(name), subscribe=topic))
        listed = {
            (row["queueId"], unit[0], unit[1])
            for row in queues
            if row["topic"] == topic
            for unit in row["units"]
        }
        assert {(row["queueId"], row["queueOffset"], row["physicalOffset"]) for row in found} == listed, topic
        assert len(found) == len(listed)


@contextlib.contextmanager
def master(root: Path) -> Iterator[MasterStore]:
    """Give a store of ours, closed at the end."""
    store = open_master(root)
    try:
        yield store
    finally:
        store.close()


def test_ranges_and_queues_are_chosen(tmp_path: Path) -> None:
    with master(tmp_path) as store:
        for number in range(300):
            store.append([make_draft(number, topic="orders" if number % 3 else "bills", queue_id=number % 2)])
    found = rows(options(tmp_path, assign='{"orders": [1]}', isolation="latest"))
    assert {(row["topic"], row["queueId"]) for row in found} == {("orders", 1)}
    assert [row["queueOffset"] for row in found] == list(range(100))
    text = f'{{"orders": {{"{StoreBackend.describe(options(tmp_path)).broker}": {{"1": 10}}}}}}'
    chosen = options(tmp_path, assign='{"orders": [1]}', startingOffsets=text, isolation="latest")
    assert [row["queueOffset"] for row in rows(chosen)] == list(range(10, 100))


def timed_store(root: Path) -> list[int]:
    """Make a store in which message n was stored n seconds after NOW; return the records' places."""
    times = iter(range(NOW, NOW + 1_000_000, 1000))
    store = MasterStore.open(root, OPTIONS, clock=lambda: next(times))
    drafts = [make_draft(number, topic="orders", queue_id=number % 2) for number in range(40)]
    places = [store.append([draft])[0].physical_offset for draft in drafts]
    store.close()
    return places


def test_times_are_found_in_queues_and_in_what_has_no_entry_yet(tmp_path: Path) -> None:
    timed_store(tmp_path)
    chosen = options(tmp_path, subscribe="orders", isolation="latest")
    stored = {
        (row["queueId"], row["queueOffset"]): int(row["storeTimestamp"].timestamp() * 1000)
        for row in rows(chosen)
    }
    shutil.rmtree(tmp_path / "consumequeue" / "orders" / "1")  # its entries were never written
    queue = min((tmp_path / "consumequeue" / "orders" / "0").iterdir())
    data = bytearray(queue.read_bytes())
    data[20 * 10 :] = bytes(len(data) - 20 * 10)  # nor were half of the other's
    queue.write_bytes(data)
    view = StoreBackend.describe(chosen)
    key = ("orders", view.broker, 0)
    for number in range(20):
        at_ms = stored[0, number]
        assert view.offsets_by_time([key], at_ms)[key] == number
        assert view.offsets_by_time([key], at_ms + 1)[key] == number + 1
    assert view.offsets_by_time([key], 0)[key] == 0


def test_a_part_of_the_log_by_place_and_by_time(tmp_path: Path) -> None:
    places = timed_store(tmp_path)
    part = PushDown(physical_offsets=(places[7], places[11]))
    found = rows(options(tmp_path, isolation="latest"), push_down=part)
    assert [row["physicalOffset"] for row in found] == places[7:11]
    stored = [row["storeTimestamp"] for row in found]
    times = tuple(int(at.timestamp() * 1000) for at in (stored[1], stored[3]))
    found = rows(options(tmp_path, isolation="latest"), push_down=PushDown(stored_ms=(times[0], times[1])))
    assert [row["physicalOffset"] for row in found] == places[8:10]
    chosen = PushDown(queue_ids=(1, 2), queue_offsets=(3, 6), topics=frozenset({"orders"}))
    found = rows(options(tmp_path, isolation="latest"), push_down=chosen)
    assert [(row["queueId"], row["queueOffset"]) for row in found] == [(1, 3), (1, 4), (1, 5)]
    assert rows(options(tmp_path, isolation="latest"), push_down=PushDown(topics=frozenset())) == []


def test_what_has_no_queue_entry_yet_is_read_all_the_same(tmp_path: Path) -> None:
    with master(tmp_path) as store:
        for number in range(50):
            store.append([make_draft(number, topic="orders", queue_id=number % 2)])
    shutil.rmtree(tmp_path / "consumequeue" / "orders" / "1")
    queue = min((tmp_path / "consumequeue" / "orders" / "0").iterdir())
    data = bytearray(queue.read_bytes())
    data[20 * 20 :] = bytes(len(data) - 20 * 20)  # the last five entries were never written
    queue.write_bytes(data)
    found = rows(options(tmp_path, subscribe="orders", isolation="latest"))
    assert [row["queueOffset"] for row in found if row["queueId"] == 0] == list(range(25))


def damaged_store(root: Path, *, at: int = 150, with_: bytes = b"!") -> list[int]:
    """Make a store of 60 records in 8 files, the sixth damaged; return where they stand."""
    with master(root) as store:
        drafts = [make_draft(number, topic="orders", size=8000) for number in range(60)]
        places = [store.append([draft])[0].physical_offset for draft in drafts]
    with min((root / "commitlog").iterdir()).open("r+b") as file:
        file.seek(places[5] + at)
        file.write(with_)
    return places


def test_a_damaged_record_is_named_or_passed_over(tmp_path: Path) -> None:
    places = damaged_store(tmp_path)
    shutil.rmtree(tmp_path / "whimbrel")  # as RocketMQ leaves it: only the last three files are verified
    with pytest.raises(CorruptRecord, match=f"{places[5]}.*onCorrupt=skip"):
        rows(options(tmp_path, subscribe="orders"))
    kept = rows(options(tmp_path, subscribe="orders", onCorrupt="skip"))
    assert [row["queueOffset"] for row in kept] == [number for number in range(60) if number != 5]


def test_a_record_without_a_row_is_not_flagged_but_fails(tmp_path: Path) -> None:
    places = damaged_store(tmp_path, at=4, with_=bytes(4))  # no record begins there any more
    shutil.rmtree(tmp_path / "whimbrel")
    with pytest.raises(CorruptRecord, match=f"{places[5]}.*onCorrupt=skip"):
        rows(options(tmp_path, subscribe="orders", onCorrupt="flag"))


def test_a_log_that_ends_by_damage_before_other_records_is_data_loss(tmp_path: Path) -> None:
    places = damaged_store(tmp_path)
    with pytest.raises(DataLoss, match=f"ends at {places[5]}"):
        rows(options(tmp_path, subscribe="orders"))
    kept = rows(options(tmp_path, subscribe="orders", failOnDataLoss="false", isolation="latest"))
    assert [row["queueOffset"] for row in kept] == list(range(5))


def test_a_topic_that_is_not_there_and_a_folder_that_is_no_store_are_named(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="has no topic nowhere"):
        StoreBackend.describe(options(goldens.golden("v493-basic"), subscribe="nowhere"))
    with pytest.raises(Exception, match="is no store"):
        StoreBackend.describe(options(tmp_path))


def test_a_log_that_ends_below_what_was_on_disk_is_data_loss(tmp_path: Path) -> None:
    """One wrong bit near the end of its only file: without the mark it would read as a shorter log."""
    root = tmp_path / "s"
    store = open_master(root)
    answers = [store.append([make_draft(number)])[0] for number in range(20)]
    store.close()
    with next((root / "commitlog").iterdir()).open("r+b") as file:
        file.seek(answers[15].physical_offset + 100)
        file.write(b"\xff")
    with pytest.raises(DataLoss, match=f"was on disk up to {answers[-1].end}"):
        rows(options(root))
    assert len(rows(options(root, failOnDataLoss="false", isolation="latest"))) == 15
