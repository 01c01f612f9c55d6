"""Lease entries of other processes and of the disk: every field has bounds; a bad entry harms no other."""

import logging
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from support.broker.consumption import FakeStore, Rig, offsets
from whimbrel.broker.cluster.lease_sync import LeaseExchange
from whimbrel.broker.consume.lease_checks import (
    CLOCK_AHEAD_MS,
    EPOCH_MAX,
    HELD_MAX,
    REVISION_MAX,
    fault_of,
)
from whimbrel.broker.consume.lease_codec import (
    LEASE_COUNT_MAX,
    OFFSET_MAX,
    QUEUE_ID_MAX,
    EntryEncoder,
    Lease,
    Order,
    decode_entries,
)
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.model.limits import ATTEMPT_MAX, INVISIBLE_MS_MAX

NOW = 1_700_000_000_000
LEASE = Lease(NOW << 20, 0, NOW + 30_000, NOW, 1, False, "")
LAST_SERIAL = (NOW + CLOCK_AHEAD_MS) << 20 | 0xFFFFF


def lease_entry(
    start: int = 0, count: int = 1, *, group: str = "g", topic: str = "t", queue_id: int = 0, epoch: int = 0,
    **changes: Any,
) -> bytes:  # fmt: skip
    encoder = EntryEncoder(group, topic, queue_id)
    return encoder.lease(epoch, start, start + count, LEASE._replace(**changes))


def done_entry(start: int, end: int, *, group: str = "g", topic: str = "t", queue_id: int = 0) -> bytes:
    return EntryEncoder(group, topic, queue_id).done(0, start, end)


# As it was sent to a broker that took it: every receive of every group failed from then on.
POISON = lease_entry(serial=(1 << 64) - 1)


def fault(entry: bytes) -> str:
    [decoded] = decode_entries(entry)
    return fault_of(decoded, NOW)


FINE = {
    "plain": lease_entry(),
    "latest serial": lease_entry(serial=LAST_SERIAL),
    "latest times": lease_entry(
        taken_at=NOW + CLOCK_AHEAD_MS, visible_at=NOW + CLOCK_AHEAD_MS + INVISIBLE_MS_MAX
    ),
    "most offsets": lease_entry(count=LEASE_COUNT_MAX),
    "last offset": done_entry(0, OFFSET_MAX),
    "last queue": lease_entry(queue_id=QUEUE_ID_MAX),
    "greatest counts": lease_entry(revision=REVISION_MAX, attempt=ATTEMPT_MAX, epoch=EPOCH_MAX),
    "position at the begin": done_entry(0, 0),
    "epoch": EntryEncoder("g", "t", 0).epoch(3),
    "order": EntryEncoder("g", "t", 0).order(0, Order(LAST_SERIAL, "x" * 255)),
}
BAD = {
    "serial": lease_entry(serial=LAST_SERIAL + 1),
    "greatest serial": POISON,
    "taken at": lease_entry(taken_at=NOW + CLOCK_AHEAD_MS + 1),
    "taken before time began": lease_entry(taken_at=-1),
    "visible at": lease_entry(visible_at=NOW + CLOCK_AHEAD_MS + INVISIBLE_MS_MAX + 1),
    "visible before time began": lease_entry(visible_at=-1),
    "revision": lease_entry(revision=REVISION_MAX + 1),
    "attempt": lease_entry(attempt=ATTEMPT_MAX + 1),
    "epoch": lease_entry(epoch=EPOCH_MAX + 1),
    "epoch of an order": EntryEncoder("g", "t", 0).order(EPOCH_MAX + 1, Order(1, "a")),
    "offsets": lease_entry(count=LEASE_COUNT_MAX + 1),
    "no offset": lease_entry(count=0),
    "offset": lease_entry(OFFSET_MAX),
    "first offset": lease_entry(-1),
    "done too far": done_entry(0, OFFSET_MAX + 1),
    "done backwards": done_entry(5, 4),
    "done below 0": done_entry(-5, 4),
    "queue": lease_entry(queue_id=-1),
    "queue too high": lease_entry(queue_id=QUEUE_ID_MAX + 1),
    "no group": lease_entry(group=""),
    "no topic": lease_entry(topic=""),
    "group": lease_entry(group="g\x1b"),
    "topic": lease_entry(topic="t\n"),
}


@pytest.mark.parametrize("name", FINE)
def test_values_that_a_broker_writes_count(name: str) -> None:
    assert fault(FINE[name]) == ""


@pytest.mark.parametrize("name", BAD)
def test_values_that_no_broker_writes_do_not_count(name: str) -> None:
    assert fault(BAD[name])


def pair() -> tuple[Rig, Rig]:
    """A master and its slave over the same log."""
    store = FakeStore()
    master = Rig(store=store)
    return master, Rig(store=store, clock=master.clock, broker_id=1, follows=True)


@pytest.mark.parametrize("name", BAD)
def test_bad_entry_changes_nothing_and_the_others_beside_it_count(name: str) -> None:
    rig = Rig()
    for _ in range(3):
        rig.store.put("t", 0)
    exchange = LeaseExchange(rig.consumption.lease_store, ready=lambda: None)
    exchange.received(done_entry(0, 1) + BAD[name] + done_entry(1, 2), complete=True)
    assert exchange.peer_complete
    assert rig.consumption.positions.get_offset("g", "t", 0) == 2
    assert list(rig.consumption.table.by_queue) == [("g", "t", 0)]
    assert BAD[name] not in b"".join(rig.journal.chunks)
    assert rig.consumption.lease_store.checks.refused == 1


def test_serial_at_the_end_of_its_range_stops_neither_master_nor_slave_nor_their_restarts() -> None:
    master, slave = pair()
    for rig in (master, slave):
        for _ in range(2):
            rig.store.put("t", 0)
        rig.consumption.lease_store.merge(POISON)
        [first] = rig.take(batch=1)
        assert rig.ack(first) == [None]
        rig.consumption.close()
        rig.start()
        [second] = rig.take(batch=1)
        assert rig.change(second.handle, 60_000)


def test_journal_that_holds_a_bad_entry_is_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    older = LeaseJournal(tmp_path, file_bytes=1 << 16)
    older.start(lambda: [done_entry(0, 1), POISON, done_entry(0, 7, group="other")])
    older.append(lease_entry(1, visible_at=-1))
    older.close()
    for start in range(3):  # what the second start wrote is in both files
        rig = Rig()
        rig.journal = LeaseJournal(tmp_path, file_bytes=1 << 16)  # type: ignore[assignment]
        for _ in range(4):
            rig.store.put("t", 0)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            rig.start()
        assert offsets(rig.take(batch=1)) == [1 + start]
        assert rig.consumption.positions.get_offset("other", "t", 0) == 7
        if start == 0:
            assert rig.consumption.lease_store.checks.refused == 2
            [line] = [one.getMessage() for one in caplog.records]
            assert "1 lease entries are left out, the last one of 'g' on 't'/0: serial" in line
        rig.consumption.close()
        if start == 2:
            assert rig.consumption.lease_store.checks.refused == 0


def test_slave_takes_entries_beyond_its_own_log() -> None:
    rig = Rig(follows=True)
    rig.store.put("t", 0)
    rig.consumption.lease_store.merge(done_entry(0, 100))
    assert rig.consumption.positions.get_offset("g", "t", 0) == 100


def test_refusals_are_told_once_a_minute_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            rig.consumption.lease_store.merge(POISON)
        rig.clock.advance(60_000)
        rig.consumption.lease_store.merge(lease_entry(group="g\n", serial=1 << 63))
    first, second = (one.getMessage() for one in caplog.records)
    assert first.startswith("1 lease entries")
    assert second.startswith("100 lease entries") and "'g\\n'" in second


def test_held_offsets_of_a_queue_are_bounded() -> None:
    rig = Rig()
    count = HELD_MAX // LEASE_COUNT_MAX + 50
    entries = [lease_entry(number * LEASE_COUNT_MAX, LEASE_COUNT_MAX) for number in range(count)]
    rig.consumption.lease_store.merge(b"".join(entries))
    assert len(rig.consumption.table.state("g", "t", 0).leases) <= HELD_MAX


def test_memory_of_entries_is_bounded_by_their_bytes() -> None:
    """Eleven kilobytes of entries, each for a queue of its own and with as many offsets as count."""
    rig = Rig()
    entries = b"".join(lease_entry(0, LEASE_COUNT_MAX, queue_id=number) for number in range(184))
    older = [struct.pack("<I", 1 << 16).join((one[:21], one[25:])) for one in (lease_entry(queue_id=9),)]
    assert 10_000 < len(entries) < 12_000
    tracemalloc.start()
    rig.consumption.lease_store.merge(entries + b"".join(older))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(rig.consumption.table.state("g", "t", 9).leases) == LEASE_COUNT_MAX
    assert size < 8 << 20


def test_orders_are_judged_too() -> None:
    encoder = EntryEncoder("g", "t", 0)
    assert "hours ahead" in fault(encoder.order(0, Order(LAST_SERIAL + 1, "a")))
    assert "empty" in fault(encoder.order(0, Order(1, "")))
    rig = Rig()
    rig.store.put("t", 0)
    rig.take()
    rig.consumption.lease_store.merge(encoder.order(0, Order(LAST_SERIAL + 1, "a")))
    state = rig.consumption.table.state("g", "t", 0)
    assert (state.orders, rig.consumption.lease_store.checks.refused) == ({}, 1)
