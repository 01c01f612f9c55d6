"""One queue's lease state."""

from typing import Any

import pytest

from whimbrel.broker.consume.lease_codec import EntryEncoder, Lease, Order
from whimbrel.broker.consume.leases import UNSURE_MS, LeaseTable
from whimbrel.broker.consume.queue_leases import ORDERS_MAX, ORDERS_SLACK, RENEW_MS, QueueLeases, Standing
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.errors import InvalidReceiptHandle

FAR = 1 << 40


@pytest.fixture
def table() -> LeaseTable:
    return LeaseTable(origin=5)


@pytest.fixture
def state(table: LeaseTable) -> QueueLeases:
    state = table.state("g", "t", 0)
    state.finish(0, 0)
    return state


def lease(serial: int = 1, visible_at: int = 100, **changes: Any) -> Lease:
    return Lease(serial, 0, visible_at, 0, 1, False, "")._replace(**changes)


def at_once(group: str, attempt: int) -> int:
    return 0


def handle(offset: int, serial: int, epoch: int = 0) -> ReceiptHandle:
    return ReceiptHandle("b", "g", "t", 0, epoch, offset, 0, 0, serial, 1)


def test_committed_offset_moves_over_what_is_done_behind_a_gap(state: QueueLeases) -> None:
    state.hold(0, 5, lease())
    state.finish(1, 2)
    state.finish(3, 5)
    assert (state.committed, state.done_above()) == (0, [(1, 2), (3, 5)])
    state.finish(2, 3)
    assert state.done_above() == [(1, 5)]
    state.finish(0, 1)
    assert (state.committed, state.done_above(), state.leases) == (5, [], {})


def test_message_that_nobody_consumes_does_not_make_the_state_grow(state: QueueLeases) -> None:
    state.hold(0, 1, lease(visible_at=FAR))
    for offset in range(1, 50_000):
        state.hold(offset, offset + 1, lease(visible_at=FAR))
        state.finish(offset, offset + 1)
    assert state.done_above() == [(1, 50_000)]
    assert list(state.leases) == [0]
    assert len(state.expiry) < 200
    assert len(state.entries()) == 3


def test_finished_offset_is_never_held_again(state: QueueLeases) -> None:
    state.finish(0, 3)
    assert not state.hold(1, 2, lease(serial=FAR))
    assert state.leases == {}


def test_lease_with_the_greater_serial_stays(state: QueueLeases) -> None:
    state.hold(0, 1, lease(serial=2, visible_at=50))
    assert not state.hold(0, 1, lease(serial=1, visible_at=500))
    assert state.hold(0, 1, lease(serial=2, visible_at=60, revision=1))
    assert state.leases[0].visible_at == 60


def test_ready_offsets_come_lowest_first_and_once(state: QueueLeases) -> None:
    state.hold(0, 2, lease(visible_at=100))
    state.hold(2, 4, lease(visible_at=50))
    assert state.pop_ready(49, 10, FAR) == []
    assert state.pop_ready(50, 10, FAR) == [2, 3]
    assert state.pop_ready(100, 1, FAR) == [0]
    assert state.pop_ready(100, 10, FAR) == [1]
    assert state.pop_ready(100, 10, FAR) == []
    state.return_ready([3, 0])
    assert state.pop_ready(100, 10, FAR) == [0, 3]


def test_ready_offsets_beyond_the_log_wait(state: QueueLeases) -> None:
    state.hold(0, 4, lease())
    assert state.pop_ready(100, 10, 2) == [0, 1]
    assert state.next_visible(2) is None
    assert state.pop_ready(100, 10, 4) == [2, 3]


def test_next_visible_skips_what_is_finished_or_changed(state: QueueLeases) -> None:
    state.hold(0, 1, lease(visible_at=10))
    state.hold(1, 2, lease(visible_at=20))
    state.hold(2, 3, lease(visible_at=30))
    state.finish(0, 1)
    state.hold(1, 2, lease(serial=2, visible_at=40))
    assert state.next_visible(FAR) == 30


def test_gap_is_unread(state: QueueLeases) -> None:
    state.hold(0, 2, lease())
    state.finish(5, 6)
    assert state.next_unread(0, 10, 100) == (2, 5)
    assert state.next_unread(0, 2, 100) == (2, 4)
    assert state.next_unread(5, 10, 100) == (6, 16)
    state.hold(2, 5, lease())
    assert state.next_unread(0, 10, 100) == (6, 16)
    assert state.next_unread(0, 10, 6) == (6, 6)


def test_standing_of_handles(state: QueueLeases) -> None:
    state.hold(0, 3, lease(serial=10))
    state.finish(2, 3)
    assert state.standing(handle(0, 10), 99) is Standing.HELD
    assert state.standing(handle(2, 10), 99) is Standing.FINISHED
    assert state.standing(handle(2, 10), 500) is Standing.FINISHED
    assert state.standing(handle(0, 11), 99) is Standing.UNKNOWN
    assert state.standing(handle(7, 3), 99) is Standing.UNKNOWN
    for refused, now in ((handle(0, 9), 99), (handle(0, 10), 100), (handle(0, 10, epoch=1), 99)):
        with pytest.raises(InvalidReceiptHandle):
            state.standing(refused, now)


def test_expired_lease_that_the_server_renews_still_counts(state: QueueLeases) -> None:
    state.hold(0, 1, lease(serial=10, auto_renew=True, client_id="c"))
    assert state.standing(handle(0, 10), 500) is Standing.HELD


def test_new_epoch_forgets_everything(table: LeaseTable, state: QueueLeases) -> None:
    state.hold(0, 5, lease())
    table.join(state.encoder.done(1, 0, 2))
    assert (state.epoch, state.committed, state.next, state.leases) == (1, 2, 2, {})
    assert table.join(state.encoder.done(0, 0, 50)) == b""
    assert state.committed == 2


def test_serials_are_unique_and_grow(table: LeaseTable) -> None:
    other = LeaseTable(origin=6)
    ours = [table.next_serial(1_000) for _ in range(100)] + [table.next_serial(500), table.next_serial(2_000)]
    theirs = [other.next_serial(1_000) for _ in range(100)]
    assert ours == sorted(set(ours))
    assert not set(ours) & set(theirs)
    assert table.next_serial(1 << 42) < 1 << 63


def test_renewals_keep_what_is_still_held(table: LeaseTable, state: QueueLeases) -> None:
    held = lease(visible_at=RENEW_MS, auto_renew=True, client_id="c")
    table.apply([(state, 0, 5, held)])
    table.apply([(state, 2, 3, None)])
    at = table.next_renewal()
    assert at == RENEW_MS - 10_000
    assert table.renewals_due(int(at) - 1, lambda *_: True, at_once) == []
    changes = table.renewals_due(int(at), lambda *_: True, at_once)
    assert [(start, end, new.visible_at, new.revision) for _, start, end, new in changes if new] == [
        (0, 2, at + RENEW_MS, 1),
        (3, 5, at + RENEW_MS, 1),
    ]
    table.apply(changes)
    assert table.next_renewal() == at + RENEW_MS - 10_000


def test_what_a_broker_that_died_has_handed_out_last_is_not_renewed(
    table: LeaseTable, state: QueueLeases
) -> None:
    """Its answer may have been lost, and the client that lives on would have it renewed for hours."""
    begun = 1_000_000
    now = begun + RENEW_MS
    for number, age_ms in enumerate((UNSURE_MS + 1, UNSURE_MS, 0, 0)):
        serial, taken_at = table.next_serial(begun - age_ms), begun - age_ms
        held = lease(serial, now, taken_at=taken_at, auto_renew=True, client_id="c")
        table.apply([(state, number, number + 1, held)])
        if number == 2:
            table.taken_over()
    changes = table.renewals_due(now, lambda *_: True, at_once)
    assert [(first, end) for _, first, end, _ in changes] == [(0, 1), (3, 4)]
    table.apply(changes)
    assert [offset for offset in range(4) if state.leases[offset].visible_at <= now] == [1, 2]
    assert table.next_renewal() == now + RENEW_MS - 10_000


def test_what_was_unsure_stays_so_when_others_tell_of_later_deliveries(table: LeaseTable) -> None:
    table.taken_over()
    assert 1 not in table.unsure
    first = table.next_serial(1_000_000)
    table.taken_over()
    later = table.next_serial(2_000_000)
    assert first in table.unsure and later not in table.unsure
    table.taken_over()
    assert first in table.unsure and later in table.unsure
    assert table.next_serial(2_000_000) not in table.unsure


def test_renewal_asks_again_while_the_client_is_away(table: LeaseTable, state: QueueLeases) -> None:
    table.apply([(state, 0, 1, lease(visible_at=RENEW_MS, auto_renew=True, client_id="c"))])
    asked: list[tuple[str, str]] = []

    def alive(group: str, client_id: str) -> bool:
        asked.append((group, client_id))
        return False

    now = int(table.next_renewal())
    while now < RENEW_MS + 5_000:
        assert table.renewals_due(now, alive, at_once) == []
        now += 1_000
    assert asked == [("g", "c")] * 11
    assert table.next_renewal() == float("inf")


def test_released_leases_are_visible_soon(table: LeaseTable, state: QueueLeases) -> None:
    table.apply(
        [
            (state, 0, 2, lease(visible_at=60_000, auto_renew=True, client_id="c")),
            (state, 2, 3, lease(visible_at=60_000, auto_renew=True, client_id="d")),
            (state, 3, 4, lease(visible_at=60_000)),
        ]
    )
    assert table.released("c", "other", 5_000) == []
    table.apply(table.released("c", "g", 5_000))
    assert state.pop_ready(6_000, 10, FAR) == [0, 1]
    table.forget_idle_clients()
    assert set(table.clients) == {"d"}


def test_orders_are_kept_for_what_is_held_and_bounded(table: LeaseTable, state: QueueLeases) -> None:
    for serial in range(1, 5000):
        state.hold(0, 1, lease(serial))
        state.note_order(Order(serial, f"attempt {serial}"))
        assert len(state.orders) <= ORDERS_SLACK + 2
    assert state.held_orders() == [Order(4999, "attempt 4999")]
    state.hold(1, 1001, lease(6000))
    for serial in range(10_000, 15_000):
        state.note_order(Order(serial, "a"))
    assert len(state.orders) <= ORDERS_MAX


def test_order_of_a_queue_of_which_nothing_is_known_makes_no_state(table: LeaseTable) -> None:
    entry = EntryEncoder("g", "elsewhere", 0).order(0, Order(5, "a"))
    assert table.join(entry) == b"" and table.position("g", "elsewhere", 0) is None


def test_orders_join_in_any_order_and_once(table: LeaseTable, state: QueueLeases) -> None:
    state.hold(0, 1, lease(5))
    entry = state.encoder.order(0, Order(5, "a"))
    assert table.join(entry) == entry
    assert table.join(entry) == b""
    assert state.held_orders() == [Order(5, "a")]
    table.join(state.encoder.epoch(1))
    assert table.join(entry) == b"" and state.orders == {}
