"""Entries that records should have, as many at once as one by one; sums of them; queue files drawn up."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from support.store import goldens
from support.store.stores import make_draft, open_master
from whimbrel.spark.auditing.bucket_sums import mix_bits, sum_by_bucket
from whimbrel.spark.auditing.derived_files import describe_derived_files, index_part, queue_units
from whimbrel.spark.auditing.entries import key_hashes, keys_of, units_of
from whimbrel.spark.auditing.rebuilt_files import Gap, WrittenQueueFile, gaps_of, queue_file_bytes
from whimbrel.spark.jobs import JobError
from whimbrel.spark.queue_files import UNIT
from whimbrel.store.codec import decode_record, index_key_hash
from whimbrel.store.codec import keys_of as plain_keys_of
from whimbrel.store.columns import Scan
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.options import DELAY_LEVELS, parse_delay_levels
from whimbrel.store.view import LogView

DELAYS = parse_delay_levels(DELAY_LEVELS)


@pytest.mark.parametrize("name", ["v493-basic", "v493-ipv6", "v533-basic"])
def test_records_of_rocketmq_give_the_entries_that_rocketmq_wrote(name: str) -> None:
    root = goldens.shared(name)
    view = LogView.of(root)
    scan = Scan(view.segments.read, view.begin, view.end, limit=view.end, file_size=view.segments.file_size)
    due, keys, plain = set(), [], []
    for records in scan:
        units = units_of(records, DELAYS)
        names = [units.topics[number] for number in units.topic_ids.tolist()]
        columns = (units.queue_ids, units.numbers, units.physical_offsets, units.sizes, units.tags)
        due |= set(zip(names, *(column.tolist() for column in columns), strict=True))
        found = keys_of(records, tags=False)
        keys += list(
            zip(found.physical_offsets.tolist(), found.hashes.tolist(), found.stored_ms.tolist(), strict=True)
        )
        for position in records.positions.tolist():
            message = decode_record(records.data, position)
            for key in plain_keys_of(message.properties_raw):
                key_hash = index_key_hash(message.topic, key)
                plain.append((message.physical_offset, key_hash, message.store_timestamp))
    derived = describe_derived_files(root, 0)
    there = set()
    for file in derived.queues:
        numbers, found_units = queue_units(derived, file)
        for number, unit in zip(numbers.tolist(), found_units.tolist(), strict=True):
            there.add((file.topic, file.queue_id, number, *unit))
    assert due == there
    assert keys == plain
    parts = [index_part(derived, path) for path in derived.index]
    assert all(not part.faults for part in parts)
    pairs = [(physical_offset, key_hash) for physical_offset, key_hash, _ in keys]
    assert {
        pair
        for part in parts
        for pair in zip(part.physical_offsets.tolist(), part.hashes.tolist(), strict=True)
    } == set(pairs)


@given(st.lists(st.tuples(st.sampled_from(["t", "Thema-ü", "x" * 40]), st.text(max_size=300)), max_size=40))
def test_hashes_of_many_keys_are_those_of_each(pairs: list[tuple[str, str]]) -> None:
    pairs = [(topic, key) for topic, key in pairs if key.isprintable()]
    topics = sorted({topic for topic, _ in pairs})
    ids = np.array([topics.index(topic) for topic, _ in pairs], np.int64)
    found = key_hashes(topics, ids, pa.array([key for _, key in pairs], pa.string()))
    assert found.tolist() == [index_key_hash(topic, key) for topic, key in pairs]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**62), st.integers(-5, 5)), min_size=1),
    st.randoms(),
)
def test_sums_do_not_depend_on_order_and_differ_where_entries_do(
    rows: list[tuple[int, int, int]], random: object
) -> None:
    def summed(some: list[tuple[int, int, int]]) -> dict[int, tuple[int, int, int]]:
        keys, physical_offsets, others = (np.array(column, np.int64) for column in zip(*some, strict=True))
        groups = sum_by_bucket(keys, mix_bits(physical_offsets, others), physical_offsets)
        values = zip(groups.counts.tolist(), groups.low.tolist(), groups.high.tolist(), strict=True)
        return dict(zip(keys[groups.first].tolist(), values, strict=True))

    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert summed(rows) == summed(shuffled)
    key, physical_offset, other = rows[0]
    changed = [(key, physical_offset, other + 1), *rows[1:]]
    assert summed(changed)[key] != summed(rows)[key]
    assert summed(changed)[key][0] == summed(rows)[key][0]


@pytest.mark.parametrize("numbers", [[0, 1, 2], [3, 4], [0, 5, 9], [7, 3]])
def test_a_queue_file_is_drawn_up_as_a_queue_writes_it(tmp_path: Path, numbers: list[int]) -> None:
    physical_offsets = np.array([100 * (order + 1) for order in range(len(numbers))])
    units = np.zeros(len(numbers), UNIT)
    units["physical_offset"], units["size"], units["tags"] = physical_offsets, 10, -3
    data = queue_file_bytes(0, 10, np.array(numbers), units)
    queue = ConsumeQueue(tmp_path / "t" / "0", "t", 0, 200, tmp_path)
    for number, physical_offset in sorted(zip(numbers, physical_offsets.tolist(), strict=True)):
        queue.put_at(number, physical_offset, 10, -3)
    queue.unmap()
    assert data == (tmp_path / "t" / "0" / f"{0:020d}").read_bytes()


def test_of_several_entries_with_one_number_the_first_of_the_log_is_drawn_up() -> None:
    units = np.zeros(3, UNIT)
    units["physical_offset"], units["size"] = [300, 100, 200], 10
    found = np.frombuffer(queue_file_bytes(0, 10, np.array([3, 7, 3]), units), UNIT)
    assert found["physical_offset"].tolist() == [0, 0, 0, 200, 0, 0, 0, 100, 0, 0]


def test_gaps_between_files_become_fillers_unless_nobody_would_believe_them() -> None:
    def wrote(first: int, low: int, high: int) -> WrittenQueueFile:
        return WrittenQueueFile("t", 0, first, 1, low, high)

    gaps, jumps = gaps_of([wrote(0, 0, 4), wrote(30, 33, 35)], 10)
    assert (
        gaps
        == [
            Gap("t", 0, 0, 5, 10),
            Gap("t", 0, 10, 10, 20),
            Gap("t", 0, 20, 20, 30),
            Gap("t", 0, 30, 30, 40),
        ][:3]
    )
    assert jumps == []
    assert gaps_of([wrote(0, 0, 9), wrote(10, 10, 19)], 10) == ([], [])
    gaps, jumps = gaps_of([wrote(0, 0, 9), wrote(5_000_000, 5_000_000, 5_000_001)], 10)
    assert not gaps
    assert "jump from 9 to 5000000" in jumps[0]


def test_a_broken_chain_is_followed_one_by_one(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = open_master(root)
    for number in range(60):
        store.append([make_draft(number)])
    while store.indexer.step(store.written):
        pass
    store.close()
    view = describe_derived_files(root, 50)
    whole = index_part(view, view.index[0])
    assert (whole.count, len(whole.physical_offsets), whole.faults) == (60, 60, [])
    with view.index[0].open("r+b") as file:
        file.seek(40 + 4 * 50 + 20 * 30 + 16)
        file.write((59).to_bytes(4, "big"))  # entry 30 says that 59 stands before it
    broken = index_part(view, view.index[0])
    assert broken.faults == [(40 + 4 * 50 + 20 * 30, "an entry that is not chained backwards")]
    assert 0 < len(broken.physical_offsets) <= 60


def test_what_is_no_store_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is no store: it has no commitlog directory"):
        describe_derived_files(tmp_path, 0)
    with pytest.raises(JobError, match="no such directory"):
        describe_derived_files(tmp_path / "nowhere", 0)
    copy = Path(shutil.copytree(goldens.shared("v493-basic"), tmp_path / "copy"))
    sorted((copy / "commitlog").iterdir())[1].unlink()
    with pytest.raises(JobError, match="do not follow each other"):
        describe_derived_files(copy, 0)
