"""Ordered groups, queue by queue: blocks, attempts, what a restart and another broker know of them."""

from collections.abc import Callable

import pytest

from support.broker.consumption import Rig, attempts, offsets
from whimbrel.broker.consume.delivery_planner import Uniform
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.consume.ordered_policy import OrderedPolicy
from whimbrel.broker.consume.plan import HandOn
from whimbrel.errors import InvalidReceiptHandle, StoreFull, WhimbrelError
from whimbrel.store.codec import StoredMessage


@pytest.fixture
def rig() -> Rig:
    made = Rig(policy_of=Uniform(OrderedPolicy))
    for _ in range(3):
        made.store.put("t", 0)
    return made


def committed(rig: Rig) -> int:
    return rig.consumption.positions.get_offset("g", "t", 0)


def test_a_queue_is_blocked_until_all_that_it_gave_out_is_done(rig: Rig) -> None:
    """Checklist 5 and 6."""
    held = rig.take(batch=3)
    assert offsets(held) == [0, 1, 2]
    rig.store.put("t", 0)
    assert rig.take() == []
    rig.ack(held[0], held[1])
    assert rig.take() == [] and committed(rig) == 2
    rig.ack(held[2])
    assert offsets(rig.take()) == [3]


def test_an_acknowledgement_that_ends_the_block_serves_parked_polls(rig: Rig) -> None:
    """Checklist 6: the poll is served in the same turn of the loop."""
    first = rig.take(batch=1)
    poll = rig.park()
    rig.clock.advance()
    assert not poll.done
    rig.ack(*first)
    rig.clock.advance()
    assert offsets(poll.result) == [1, 2]


def test_a_receive_with_the_same_attempt_id_gets_the_same_messages(rig: Rig) -> None:
    """Checklist 4."""
    first = rig.take(batch=2, attempt_id="a")
    assert rig.take(batch=2, attempt_id="b") == []
    assert rig.take(batch=2) == []
    again = rig.take(batch=2, attempt_id="a")
    assert (offsets(again), attempts(again)) == ([0, 1], [1, 1])
    assert {one.handle for one in first}.isdisjoint(one.handle for one in again)
    assert all(isinstance(error, InvalidReceiptHandle) for error in rig.ack(*first))
    assert rig.ack(*again) == [None, None]
    assert offsets(rig.take(attempt_id="b")) == [2]


def test_an_attempt_that_is_over_is_of_no_use(rig: Rig) -> None:
    rig.take(batch=1, attempt_id="a")
    rig.clock.advance(30_000)
    assert attempts(rig.take(batch=1)) == [2]
    assert rig.take(batch=1, attempt_id="a") == []


def test_an_attempt_repeated_after_its_time_is_still_the_same(rig: Rig) -> None:
    rig.take(batch=1, attempt_id="a")
    rig.clock.advance(30_000)
    assert attempts(rig.take(batch=1, attempt_id="a")) == [1]
    rig.clock.advance(30_000)
    assert attempts(rig.take(batch=1, attempt_id="b")) == [2]


def test_what_comes_again_skips_what_is_done_and_counts(rig: Rig) -> None:
    """Checklist 7 and 8."""
    held = rig.take()
    rig.ack(held[1])
    rig.store.put("t", 0)
    rig.clock.advance(29_999)
    assert rig.take() == []
    rig.clock.advance(1)
    again = rig.take()
    assert (offsets(again), attempts(again)) == ([0, 2, 3], [2, 2, 1])


def test_a_change_ends_the_block_at_its_time(rig: Rig) -> None:
    """Checklist 9: of the only one."""
    (held,) = rig.take(batch=1)
    poll = rig.park()
    rig.change(held.handle, 2_000)
    rig.clock.advance(1_999)
    assert not poll.done
    rig.clock.advance(1)
    assert (offsets(poll.result), attempts(poll.result)) == ([0, 1, 2], [2, 1, 1])


def test_a_block_lasts_until_the_latest_of_what_is_held(rig: Rig) -> None:
    """Checklist 9: of one of two."""
    held = rig.take(batch=2)
    poll = rig.park(poll_ms=60_000)
    rig.change(held[0].handle, 2_000)
    rig.clock.advance(29_999)
    assert not poll.done
    rig.clock.advance(1)
    assert offsets(poll.result) == [0, 1, 2]


def test_a_change_of_the_second_stops_the_first(rig: Rig) -> None:
    held = rig.take(batch=2)
    rig.change(held[1].handle, 60_000)
    rig.clock.advance(30_000)
    assert rig.take() == []
    rig.clock.advance(30_000)
    assert offsets(rig.take()) == [0, 1, 2]


def test_groups_in_one_queue_block_together() -> None:
    """Checklist 10."""
    rig = Rig(policy_of=Uniform(OrderedPolicy))
    rig.store.put("t", 0, group="g0")
    rig.store.put("t", 0, group="g1")
    assert offsets(rig.take(batch=1)) == [0]
    assert rig.take() == []


def test_queues_do_not_block_each_other(rig: Rig) -> None:
    rig.store.put("t", 1)
    rig.take(batch=3, queue_ids=(0,))
    assert [one.message.queue_id for one in rig.take(queue_ids=(0, 1))] == [1]


def test_what_is_filtered_out_is_done_at_once() -> None:
    rig = Rig(policy_of=Uniform(OrderedPolicy))
    for tag in ("no", "yes", "no", "yes", "no"):
        rig.store.put("t", 0, tag=tag)
    (held,) = rig.take(batch=1, filter=compile_filter("tag", "yes"))
    assert held.message.queue_offset == 1
    rig.ack(held)
    assert committed(rig) == 2 or committed(rig) == 3
    (held,) = rig.take(filter=compile_filter("tag", "yes"))
    rig.ack(held)
    assert committed(rig) == 5


def test_a_reset_ends_the_block(rig: Rig) -> None:
    """Checklist 19."""
    rig.take()
    poll = rig.park()
    rig.consumption.positions.reset_offset("g", "t", 0, 1)
    rig.clock.advance()
    assert (offsets(poll.result), attempts(poll.result)) == ([1, 2], [1, 1])


def test_what_a_client_held_that_has_gone_is_free_in_a_second(rig: Rig) -> None:
    """Checklist 18."""
    rig.take(invisible_ms=None, attempt_id="a")
    poll = rig.park(client_id="d", attempt_id="b")
    rig.consumption.upkeep.release_client("c")
    rig.clock.advance(999)
    assert not poll.done
    rig.clock.advance(1)
    assert offsets(poll.result) == [0, 1, 2]


def test_leases_that_are_renewed_go_on_to_block(rig: Rig) -> None:
    rig.take(invisible_ms=None)
    rig.clock.advance(600_000)
    assert rig.take() == []


def test_a_restart_keeps_blocks_attempts_and_progress(rig: Rig) -> None:
    """Checklist 16."""
    held = rig.take(attempt_id="a")
    rig.clock.advance(30_000)
    held = rig.take(attempt_id="b")
    rig.ack(held[0])
    rig.consumption.close()
    rig.start()
    assert rig.take(attempt_id="a") == []
    assert committed(rig) == 1
    again = rig.take(attempt_id="b")
    assert (offsets(again), attempts(again)) == ([1, 2], [2, 2])


def test_a_snapshot_keeps_the_attempt_id(rig: Rig) -> None:
    """Checklist 16: the journal was started over."""
    rig.take(attempt_id="a")
    rig.journal.chunks = [b"".join(rig.consumption.lease_store.snapshot())]
    rig.start()
    assert rig.take(attempt_id="b") == []
    assert offsets(rig.take(attempt_id="a")) == [0, 1, 2]


def test_another_broker_that_has_the_entries_goes_on_where_this_one_was(rig: Rig) -> None:
    """Checklist 17."""
    held = rig.take(attempt_id="a")
    rig.ack(held[0], held[1])
    other = Rig(clock=rig.clock, store=rig.store, policy_of=Uniform(OrderedPolicy), broker_id=1)
    other.consumption.lease_store.merge(b"".join(rig.consumption.lease_store.snapshot()))
    assert other.take(attempt_id="b") == []
    again = other.take(attempt_id="a")
    assert (offsets(again), attempts(again)) == ([2], [1])
    rig.clock.advance(30_000)
    again = other.take(attempt_id="b")
    assert (offsets(again), attempts(again)) == ([2], [2])


def test_a_full_disk_changes_nothing(rig: Rig) -> None:
    rig.journal.full = True
    with pytest.raises(StoreFull):
        rig.take(attempt_id="a")
    rig.journal.full = False
    assert (attempts(rig.take()), rig.consumption.table.state("g", "t", 0).orders) == ([1, 1, 1], {})


def test_an_answer_that_did_not_get_out_does_not_count(rig: Rig) -> None:
    for _ in range(2):
        held = rig.take(attempt_id="a")
        assert attempts(held) == [1, 1, 1]
        rig.takes.take_back([one.handle for one in held])
    assert attempts(rig.take(attempt_id="b")) == [1, 1, 1]


def test_polls_of_other_attempts_are_served_though_one_found_nothing(rig: Rig) -> None:
    rig.take(attempt_id="a")
    other, same = rig.park(attempt_id="b"), rig.park(poll_ms=30_000, attempt_id="c")
    rig.clock.advance(20_000)
    assert other.done and other.result == [] and not same.done


def test_where_it_is_not_allowed_nothing_goes_out_and_nothing_wakes() -> None:
    """A slave whose master lives."""
    allowed = [False]
    rig = Rig(policy_of=Uniform(lambda: OrderedPolicy(allowed=lambda: allowed[0])))
    rig.store.put("t", 0)
    poll = rig.park()
    rig.clock.advance(1_000)
    assert not poll.done
    allowed[0] = True
    rig.consumption.renew_policies()
    rig.clock.advance()
    assert offsets(poll.result) == [0]


class Appends:
    """Where messages are handed on to."""

    def __init__(self) -> None:
        self.asked: list[tuple[StoredMessage, Callable[[WhimbrelError | None], None]]] = []

    def __call__(
        self, message: StoredMessage, target: HandOn, since: int, done: Callable[[WhimbrelError | None], None]
    ) -> None:
        self.asked.append((message, done))


def dead_after(deliveries: int) -> Callable[[StoredMessage, int], HandOn | None]:
    return lambda message, attempt: HandOn(topic="%DLQ%g") if attempt > deliveries else None


def test_an_exhausted_message_is_handed_on_and_the_next_comes_in_the_same_answer() -> None:
    """Checklist 12: the poll is parked for as long as the append takes."""
    appends = Appends()
    rule = dead_after(2)
    rig = Rig(policy_of=Uniform(lambda: OrderedPolicy(hand_on=rule)), hand_on=appends)
    rig.store.put("t", 0)
    rig.store.put("t", 0)
    for _ in range(2):
        assert offsets(rig.take(batch=1)) == [0]
        rig.clock.advance(30_000)
    poll = rig.park(batch=1, attempt_id="a")
    rig.clock.advance()
    assert not poll.done and len(appends.asked) == 1
    assert rig.take(attempt_id="a") == [] and len(appends.asked) == 1
    appends.asked[0][1](None)
    rig.clock.advance()
    assert (offsets(poll.result), attempts(poll.result)) == ([1], [1])
