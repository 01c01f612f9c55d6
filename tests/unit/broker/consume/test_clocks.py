"""Clocks that are wrong: set back, or another broker's, ahead of the master's."""

import pytest

from support.broker.consumption import Rig, attempts, offsets
from whimbrel.broker.consume import leases
from whimbrel.broker.consume.leases import TAKEN_AHEAD_MS

HOUR_MS = 3_600_000


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_clock_that_is_set_back_holds_messages_for_their_own_time_only(rig: Rig) -> None:
    rig.store.put("t", 0)
    (taken,) = rig.take()
    rig.clock.now -= HOUR_MS
    rig.consumption.sweep()  # about once a second
    rig.clock.advance(29_999)
    assert rig.take() == []
    rig.clock.advance(1)
    (again,) = rig.take()
    assert attempts([again]) == [2]
    assert rig.ack(taken) != [None] and rig.ack(again) == [None]


def test_a_poll_that_waits_gets_what_a_clock_held_that_was_ahead(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.take()
    poll = rig.park(poll_ms=HOUR_MS)
    rig.clock.now -= HOUR_MS
    rig.consumption.sweep()
    rig.clock.advance(29_999)
    assert not poll.done
    rig.clock.advance(1)
    assert offsets(poll.result) == [0]


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_new_master_goes_by_its_own_clock(rig: Rig, restarts: int) -> None:
    rig.store.put("t", 0)
    (taken,) = rig.take()
    rig.clock.now -= HOUR_MS
    for _ in range(restarts):  # what the first one corrected is written down
        rig.start()
    rig.clock.advance(29_000)
    assert rig.take() == [] and rig.ack(taken) == [None]
    rig.clock.advance(HOUR_MS)
    assert rig.take() == []


def test_what_a_slave_delivered_whose_clock_is_ahead_comes_by_the_masters(rig: Rig) -> None:
    rig.store.put("t", 0)
    slave = Rig(store=rig.store, broker_id=1, follows=True)
    slave.clock.now += HOUR_MS
    slave.take()
    rig.consumption.lease_store.merge(slave.journal.chunks[-1])
    rig.consumption.sweep()
    rig.clock.advance(29_999)
    assert rig.take() == []
    rig.clock.advance(1)
    assert attempts(rig.take()) == [2]


def test_a_slave_leaves_the_times_of_its_masters_clock_alone() -> None:
    rig = Rig()
    rig.store.put("t", 0)
    rig.take()
    rig.clock.now -= HOUR_MS
    rig.options["follows"] = True
    rig.start()
    rig.clock.advance(HOUR_MS)
    assert rig.take() == []


def test_what_is_taken_after_a_clock_was_set_back_keeps_its_time(rig: Rig) -> None:
    """Its serial is of the time before: serials only grow."""
    rig.store.put("t", 0)
    rig.store.put("t", 0)
    rig.take(batch=1)
    rig.clock.now -= HOUR_MS
    rig.take(batch=1, invisible_ms=3 * HOUR_MS)
    rig.start()
    rig.clock.advance(2 * HOUR_MS)
    assert offsets(rig.take()) == [0]
    rig.clock.advance(HOUR_MS)
    assert 1 in offsets(rig.take())


def test_a_clock_that_is_ahead_by_less_than_clocks_differ_changes_nothing(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.take()
    before = list(rig.journal.chunks)
    rig.clock.now -= TAKEN_AHEAD_MS
    rig.start()
    assert rig.journal.chunks == before


def test_what_the_server_renews_goes_on_by_the_clock_that_was_set_back(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.take(invisible_ms=None)
    rig.clock.now -= HOUR_MS
    rig.consumption.sweep()
    rig.clock.advance(10 * 60_000)
    assert rig.take() == []  # its client lives
    rig.alive.clear()
    rig.clock.advance(61_000)
    assert offsets(rig.take()) == [0]


def test_a_message_whose_time_had_come_when_a_clock_was_set_back_a_little_comes_again(rig: Rig) -> None:
    for _ in range(2):
        rig.store.put("t", 0)
    rig.take()
    rig.clock.advance(30_000)
    assert offsets(rig.take(batch=1)) == [0]  # the time of 1 has come as well
    rig.clock.now -= TAKEN_AHEAD_MS - 1
    assert rig.take() == []
    rig.clock.advance(TAKEN_AHEAD_MS)
    assert offsets(rig.take()) == [1]


def test_leases_are_compared_with_the_clock_some_at_a_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "COMPARED_AT_ONCE", 2)
    for queue_id in range(5):
        rig.store.put("t", queue_id)
    rig.take(queue_ids=range(5))
    rig.clock.now -= HOUR_MS
    corrected = []
    for _ in range(4):
        rig.consumption.sweep()
        states = rig.consumption.table.by_queue.values()
        corrected.append(
            sum(one.taken_at == rig.clock.now for state in states for one in state.leases.values())
        )
    assert corrected == [2, 4, 5, 5]


def test_what_comes_from_elsewhere_is_compared_once(rig: Rig) -> None:
    """Serials stay ahead, so this must not be work for ever."""
    rig.store.put("t", 0)
    slave = Rig(store=rig.store, broker_id=1, follows=True)
    slave.clock.now += HOUR_MS
    slave.take()
    rig.consumption.lease_store.merge(slave.journal.chunks[-1])
    table = rig.consumption.table
    assert len(table.uncompared) == 1
    rig.consumption.sweep()
    assert not table.uncompared
    rig.consumption.lease_store.merge(slave.journal.chunks[-1])  # nothing new
    assert not table.uncompared


def test_a_slave_keeps_no_list_of_what_to_compare() -> None:
    master = Rig()
    master.store.put("t", 0)
    master.take()
    slave = Rig(store=master.store, broker_id=1, follows=True)
    slave.consumption.lease_store.merge(master.journal.chunks[-1])
    slave.consumption.sweep()
    assert not slave.consumption.table.uncompared


def test_the_log_tells_of_wrong_clocks_once_a_minute(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    slave = Rig(store=rig.store, broker_id=1, follows=True)
    slave.clock.now += HOUR_MS
    told = []
    for _ in range(70):
        rig.store.put("t", 0)
        slave.take(invisible_ms=HOUR_MS)
        rig.consumption.lease_store.merge(slave.journal.chunks[-1])
        rig.consumption.sweep()
        told.append(len(caplog.records))
        for clock in (rig.clock, slave.clock):
            clock.advance(1000)
    assert (told[0], told[59], told[60], told[69]) == (1, 1, 2, 2)
    assert caplog.records[1].getMessage().startswith("60 messages were delivered by a clock")


@pytest.mark.parametrize("ahead_ms", [6_000, 20_000, 25_000, 29_999, 31_000])
def test_what_was_corrected_keeps_its_time_when_it_is_compared_again(rig: Rig, ahead_ms: int) -> None:
    rig.store.put("t", 0)
    rig.take()
    rig.clock.now -= ahead_ms
    rig.start()
    rig.start()
    rig.clock.advance(29_999)
    assert rig.take() == []
    rig.clock.advance(1)
    assert offsets(rig.take()) == [0]


def test_what_was_renewed_by_a_clock_that_is_ahead_comes_when_its_client_is_gone(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.take(invisible_ms=None)
    rig.clock.now += HOUR_MS
    rig.clock.advance()
    rig.store.put("t", 0)
    assert offsets(rig.take()) == [1]  # 0 was renewed
    rig.consumption.sweep()
    rig.clock.now -= HOUR_MS
    rig.consumption.sweep()
    rig.alive.clear()
    rig.clock.advance(61_000)
    assert offsets(rig.take()) == [0, 1]
