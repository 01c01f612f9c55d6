"""Reading in bulk: entries as they stand, a queue's confirmed offset, and how far a directory may be read."""

import dataclasses
import os
import random
from pathlib import Path

import pytest

from support.store import goldens
from support.store.stores import FILE, NOW, OPTIONS, make_draft, open_log, open_master
from whimbrel.errors import CorruptRecord, RangeGone, StoreError
from whimbrel.store.bulk_source import BulkSource, confirmed_end, confirmed_offset
from whimbrel.store.codec import FILLER_SIZE, UNIT
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.offline_recovery import recover
from whimbrel.store.slave_store import SlaveStore

PER_FILE = OPTIONS.consumequeue_file_size // UNIT.size


def test_spans_of_the_log_are_read_or_refused_by_name(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, delete_when=tuple(range(24)), reserved_hours=1)
    store = open_master(tmp_path / "s", options)
    answers = [store.append([make_draft(number, size=4000)])[0] for number in range(60)]
    source = BulkSource(store)
    one = answers[20]
    assert source.span(one.physical_offset, one.end) == store.read(one.physical_offset, one.size)
    with pytest.raises(CorruptRecord, match="the log ends at"):
        source.span(answers[-1].physical_offset, answers[-1].end + 1)
    store.writer.flush()
    os.utime(tmp_path / "s" / "commitlog" / f"{0:020d}", (0, 0))
    assert store.run_retention(NOW) > 0
    with pytest.raises(RangeGone, match=f"begins at {store.min_offset}"):
        source.span(0, 100)
    assert source.queue_range("topic", 0, store.written)[0] == store.queue_range("topic", 0)[0] > 0
    assert source.queue_range("unknown", 0, store.written) == (0, 0, 0)
    store.close()


@pytest.mark.parametrize("seed", range(30))
def test_confirmed_offset_of_a_queue_is_the_first_whose_record_ends_beyond(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "scratch").mkdir()
    queue = ConsumeQueue(tmp_path / "q", "t", 0, 2000, tmp_path / "scratch")
    place = 0
    ends: list[int | None] = []
    for _ in range(chance.choice([0, 1, 5, 350])):
        place += chance.choice([0, 100, 500])
        queue.reserve(1)
        if chance.random() < chance.choice([0.0, 0.3, 0.9]):
            queue.put(0, FILLER_SIZE, 0)
            ends.append(None)
        else:
            queue.put(place, 100, 7)
            place += 100
            ends.append(place)
    queue.min = chance.randrange(len(ends) // 2 + 1)
    for log_end in (0, 50, place // 3, place // 2, place - 1, place, place + 1):
        wanted = next(
            (
                number
                for number in range(queue.min, len(ends))
                if all(end is None or end > log_end for end in ends[number:])
            ),
            len(ends),
        )
        if all(end is None for end in ends[wanted:]):  # fillers at the end: nothing that could be lost
            assert confirmed_offset(queue, log_end) in range(wanted, len(ends) + 1)
        else:
            assert confirmed_offset(queue, log_end) == wanted
    queue.unmap()


def test_live_store_may_be_read_as_far_as_its_broker_has_confirmed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_master(root)
    ends = [store.append([make_draft(number)])[0].end for number in range(20)]
    store.end_tick()
    assert confirmed_end(root) == 0
    store.page.confirmed = ends[9]
    assert confirmed_end(root) == ends[9]
    store.page.confirmed = ends[-1] + 1000
    assert confirmed_end(root) == ends[-1]
    store.close()
    assert confirmed_end(root) == ends[-1]


def test_store_without_a_page_of_this_boot_may_be_read_to_where_recovery_ends_it(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_master(root)
    end = [store.append([make_draft(number)])[0].end for number in range(20)][-1]
    store.end_tick()
    store.page.confirmed = 50
    store.close()
    page = root / "whimbrel" / "watermark"
    page.write_bytes(page.read_bytes()[:8] + bytes(16) + page.read_bytes()[24:])  # another boot's
    assert confirmed_end(root) == end
    page.unlink()
    assert confirmed_end(root) == end
    with pytest.raises(StoreError):
        confirmed_end(tmp_path)


@pytest.mark.parametrize("name", [*goldens.STORES, *goldens.TORN])
def test_rocketmq_stores_may_be_read_to_where_recovery_ends_them(name: str) -> None:
    root = goldens.shared(name)
    assert confirmed_end(root) == recover(root, dry_run=True)["maxPhyOffset"]


def test_slaves_queues_begin_where_its_log_does_at_once(tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir()
    master = open_master(tmp_path / "m")
    for number in range(60):
        master.append([make_draft(number, size=4000)])
    log = open_log(root)
    while log.end < master.written:
        log.append_raw(log.end, memoryview(master.read_log(log.end, master.written - log.end)))
    log.publish()
    slave = SlaveStore.open(root, OPTIONS)
    source = BulkSource(slave)
    assert source.queue_range("topic", 0, slave.written) == (0, 60, 60)
    slave.page.begin = 2 * FILE  # as the replicator does when it removes files
    low, _, high = source.queue_range("topic", 0, slave.written)
    offset, size, _ = slave.queue_units("topic", 0, low, 1)[0]
    assert (low > 0, high) == (True, 60)
    assert source.span(offset, offset + size) == master.read(offset, size)
    for one in (slave, log, master):
        one.close()
