"""Group consumption over a store, a journal and a clock in memory."""

from collections.abc import Callable, Sequence

import pytest

from support.broker.consumption import Rig, attempts, offsets
from whimbrel.broker.cluster.lease_sync import LeaseExchange
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.consume.lease_codec import EntryEncoder
from whimbrel.broker.consume.leases import UNSURE_MS
from whimbrel.broker.consume.plan import Delivered
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.broker.engine.take import Take
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    CorruptRecord,
    IllegalOffset,
    InvalidReceiptHandle,
    OffsetNotFound,
    StoreFull,
    Throttled,
)
from whimbrel.store.codec import tags_code


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_new_group_begins_at_the_earliest_message(rig: Rig) -> None:
    for _ in range(5):
        rig.store.put("t", 0)
    rig.store.minima["t", 0] = 2
    assert offsets(rig.take()) == [2, 3, 4]
    assert rig.consumption.positions.get_offset("g", "t", 0) == 2


def test_batch_is_bounded_and_the_rest_follows(rig: Rig) -> None:
    for _ in range(50):
        rig.store.put("t", 0)
    assert offsets(rig.take(batch=100)) == list(range(32))
    assert offsets(rig.take(batch=100)) == list(range(32, 50))
    assert rig.take() == []


def test_answer_is_bounded_in_bytes(rig: Rig) -> None:
    for _ in range(3):
        rig.store.put("t", 0, bytes(3 << 20))
    assert offsets(rig.take()) == [0]
    assert offsets(rig.take()) == [1]


def test_all_queues_are_received_from_without_rotation(rig: Rig) -> None:
    for queue_id in range(4):
        rig.store.put("t", queue_id)
    assert len(rig.take(queue_ids=range(4))) == 4


def test_receives_begin_with_another_queue_each_time(rig: Rig) -> None:
    for _ in range(4):
        for queue_id in range(4):
            rig.store.put("t", queue_id)
    taken = [rig.take(queue_ids=range(4), batch=1)[0].message.queue_id for _ in range(4)]
    assert sorted(taken) == [0, 1, 2, 3]


def test_groups_do_not_share_and_members_do(rig: Rig) -> None:
    rig.store.put("t", 0)
    assert len(rig.take()) == 1
    assert rig.take() == []
    assert len(rig.take(group="other")) == 1


def test_unacknowledged_message_comes_again_after_its_invisible_time_and_not_before(rig: Rig) -> None:
    rig.store.put("t", 0)
    [first] = rig.take(invisible_ms=10_000)
    rig.clock.advance(9_999)
    assert rig.take() == []
    rig.clock.advance(1)
    [second] = rig.take()
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.handle != second.handle
    assert isinstance(rig.ack(first)[0], InvalidReceiptHandle)
    assert rig.ack(second) == [None]


def test_redelivery_has_no_limit(rig: Rig) -> None:
    rig.store.put("t", 0)
    for attempt in range(1, 40):
        [one] = rig.take(invisible_ms=10_000)
        assert one.attempt == attempt
        rig.clock.advance(10_000)


def test_redeliveries_come_first(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.take(invisible_ms=10_000)
    rig.store.put("t", 0)
    rig.clock.advance(10_000)
    assert offsets(rig.take(batch=1)) == [0]


def test_messages_that_always_fail_do_not_keep_new_ones_back(rig: Rig) -> None:
    for _ in range(4):
        rig.store.put("t", 0)
    for one in rig.take(batch=2):
        rig.change(one.handle, 0)
    seen = set()
    for _ in range(4):
        taken = rig.take(batch=2)
        seen |= set(offsets(taken))
        for one in taken:
            rig.change(one.handle, 0)
    assert seen == {0, 1, 2, 3}


def test_acknowledging_twice_is_no_error(rig: Rig) -> None:
    rig.store.put("t", 0)
    taken = rig.take()
    assert rig.ack(*taken, *taken) == [None, None]
    assert rig.ack(*taken) == [None]
    rig.clock.advance(100_000)
    assert rig.ack(*taken) == [None]
    assert rig.take() == []


def test_acknowledging_after_the_invisible_time_is_refused(rig: Rig) -> None:
    rig.store.put("t", 0)
    taken = rig.take(invisible_ms=10_000)
    rig.clock.advance(10_000)
    assert isinstance(rig.ack(*taken)[0], InvalidReceiptHandle)


def test_bad_handles_are_told_apart_from_good_ones_in_a_batch(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take()
    results = rig.ack_handles("junk", one.handle, one.handle + "0")
    assert isinstance(results[0], InvalidReceiptHandle)
    assert results[1] is None


@pytest.mark.parametrize(("group", "topic"), [("other", "t"), ("g", "other")])
def test_handle_of_another_group_or_topic_is_refused(rig: Rig, group: str, topic: str) -> None:
    rig.store.put("t", 0)
    [one] = rig.take()
    assert isinstance(rig.ack(one, group=group, topic=topic)[0], InvalidReceiptHandle)


def test_changing_the_invisible_time_voids_the_old_handle(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take()
    handle = rig.change(one.handle, 20_000)
    assert isinstance(rig.ack(one)[0], InvalidReceiptHandle)
    rig.clock.advance(19_999)
    assert rig.take() == []
    assert rig.ack_handles(handle) == [None]


def test_zero_invisible_time_delivers_at_once_with_one_more_attempt(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take()
    rig.change(one.handle, 0)
    assert attempts(rig.take()) == [2]


def test_suspended_delivery_does_not_count(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take()
    handle = rig.change(one.handle, 5_000, suspend=True)
    rig.change(handle, 0, suspend=True)
    assert attempts(rig.take()) == [1]


def test_full_disk_changes_nothing(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.journal.full = True
    with pytest.raises(StoreFull):
        rig.take()
    rig.journal.full = False
    [one] = rig.take(invisible_ms=10_000)
    assert one.attempt == 1
    rig.journal.full = True
    with pytest.raises(StoreFull):
        rig.ack(one)
    rig.clock.advance(10_000)
    with pytest.raises(StoreFull):
        rig.take()
    rig.journal.full = False
    assert attempts(rig.take()) == [2]


def test_state_survives_a_restart(rig: Rig) -> None:
    for _ in range(4):
        rig.store.put("t", 0)
    taken = rig.take(invisible_ms=10_000)
    rig.ack(taken[0], taken[2])
    rig.start()
    assert rig.take() == []
    assert rig.ack(taken[1]) == [None]
    rig.clock.advance(10_000)
    again = rig.take()
    assert (offsets(again), attempts(again)) == ([3], [2])


# Filters


def test_filter_delivers_what_matches_and_finishes_the_rest(rig: Rig) -> None:
    for tag in ("a", "b", None, "a", "c"):
        rig.store.put("t", 0, tag=tag)
    taken = rig.take(filter=compile_filter("tag", "a || c"))
    assert offsets(taken) == [0, 3, 4]
    rig.ack(*taken)
    assert rig.consumption.positions.get_offset("g", "t", 0) == 5
    assert rig.take() == []


def test_tags_of_equal_hash_are_told_apart_by_their_text(rig: Rig) -> None:
    rig.store.put("t", 0, tag="Aa")
    rig.store.put("t", 0, tag="BB")
    assert tags_code("Aa") == tags_code("BB")
    assert offsets(rig.take(filter=compile_filter("tag", "BB"))) == [1]


def test_long_run_of_other_tags_is_searched_in_turns(rig: Rig) -> None:
    for _ in range(5_000):
        rig.store.put("t", 0, tag="other")
    rig.store.put("t", 0, tag="mine")
    poll = rig.park(filter=compile_filter("tag", "mine"))
    assert not poll.done
    rig.clock.advance(0)
    assert offsets(poll.result) == [5_000]


def test_corrupt_record_is_passed_over_and_stays_undone(rig: Rig) -> None:
    for _ in range(3):
        rig.store.put("t", 0, body=b"0123456789")
    physical_offset, size, _ = rig.store.queues["t", 0][1]
    at = rig.store.log.index(b"0123456789", physical_offset)
    assert at < physical_offset + size
    rig.store.log[at] ^= 1
    taken = rig.take()
    assert offsets(taken) == [0, 2]
    rig.ack(*taken)
    assert rig.consumption.positions.get_offset("g", "t", 0) == 1
    rig.store.log[at] ^= 1
    rig.clock.advance(60_000)
    assert offsets(rig.take()) == [1]


# Long polls


def test_parked_poll_is_woken_by_a_message(rig: Rig) -> None:
    poll = rig.park()
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert offsets(poll.result) == [0]


def test_parked_poll_is_woken_when_a_held_message_becomes_visible(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.take(invisible_ms=10_000)
    poll = rig.park(poll_ms=15_000)
    rig.clock.advance(9_999)
    assert not poll.done
    rig.clock.advance(1)
    assert attempts(poll.result) == [2]


def test_parked_poll_is_woken_by_a_refused_message(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take()
    poll = rig.park()
    handle = rig.change(one.handle, 1_000)
    rig.clock.advance(1_000)
    assert attempts(poll.result) == [2]
    assert handle


def test_parked_poll_ends_empty_at_its_time(rig: Rig) -> None:
    poll = rig.park(poll_ms=5_000)
    rig.clock.advance(4_999)
    assert not poll.done
    rig.clock.advance(1)
    assert poll.result == []
    assert rig.parked == 0


def test_cancelled_poll_takes_nothing(rig: Rig) -> None:
    gone, here = rig.park(), rig.park()
    gone.cancel()
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert not gone.done
    assert offsets(here.result) == [0]


def test_polls_are_served_in_turn(rig: Rig) -> None:
    polls = [rig.park(batch=1) for _ in range(3)]
    rig.store.put("t", 0)
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert [poll.done for poll in polls] == [True, True, False]


def test_each_group_gets_a_new_message(rig: Rig) -> None:
    polls = [rig.park(group=group) for group in "xyz"]
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert [offsets(poll.result) for poll in polls] == [[0], [0], [0]]


def test_too_many_polls_are_refused() -> None:
    rig = Rig(polls_max=2)
    rig.park()
    rig.park()
    with pytest.raises(Throttled):
        rig.park()


def test_released_message_comes_at_once_and_counts_as_new(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take()
    poll = rig.park()
    rig.takes.take_back([one.handle])
    rig.clock.advance(0)
    assert attempts(poll.result) == [1]


def offsets_of(take: Take, found: Sequence[Delivered]) -> list[int]:
    return offsets(list(found))


def test_reply_makes_the_answer_at_once_and_later(rig: Rig) -> None:
    rig.store.put("t", 0)
    assert rig.receive(offsets_of, 0) == [0]
    poll = rig.receive(offsets_of, 20_000)
    assert isinstance(poll, Deferred)
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert poll.result == [1]


def test_messages_whose_call_was_answered_otherwise_are_released(rig: Rig) -> None:
    poll = rig.park()
    poll.done = True
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert attempts(rig.take()) == [1]


def test_answer_that_cannot_be_encoded_is_a_corrupt_record(rig: Rig) -> None:
    def refuse(take: Take, found: object) -> None:
        raise ValueError("surrogates")

    received = rig.receive(refuse, 20_000)
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert isinstance(received, Deferred) and isinstance(received.error, CorruptRecord)
    assert rig.take() == []  # it comes again when its invisible time is over, and not at once


def test_closing_answers_all_polls(rig: Rig) -> None:
    poll = rig.park()
    rig.waiting.close("the broker stops")
    assert poll.result == []


# Leases that the server renews


def test_lease_is_renewed_while_its_client_lives(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take(invisible_ms=None)
    for _ in range(10):
        rig.clock.advance(50_000)
        assert rig.take() == []
    assert rig.ack(one) == [None]


def test_lease_of_a_dead_client_ends(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.take(invisible_ms=None)
    rig.alive.clear()
    rig.clock.advance(59_999)
    assert rig.take() == []
    rig.clock.advance(1)
    assert attempts(rig.take()) == [2]


def test_lease_is_renewed_when_its_client_comes_back_in_time(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.take(invisible_ms=None)
    rig.alive.clear()
    rig.clock.advance(55_000)
    rig.alive.add("c")
    rig.clock.advance(30_000)
    assert rig.take() == []


def test_lease_is_renewed_for_three_hours_at_most(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.take(invisible_ms=None)
    rig.clock.advance(3 * 3600 * 1000 - 1)
    assert rig.take() == []
    rig.clock.advance(70_000)
    assert len(rig.take()) == 1


def test_renewals_go_on_after_a_restart(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take(invisible_ms=None)
    rig.clock.advance(UNSURE_MS + 1)
    rig.store.put("t", 0)
    [newest] = rig.take(invisible_ms=None)
    rig.start()
    rig.clock.advance(200_000)
    [again] = rig.take()
    assert offsets([again]) == offsets([newest]), "the answer to that receive may have been lost"
    assert rig.ack(one) == [None]


def test_messages_of_a_client_that_left_go_to_another_within_a_second(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take(invisible_ms=None)
    poll = rig.park(client_id="d")
    rig.alive.clear()
    rig.consumption.upkeep.release_client("c", "g")
    rig.clock.advance(999)
    assert not poll.done
    rig.clock.advance(1)
    assert attempts(poll.result) == [2]
    assert isinstance(rig.ack(one)[0], InvalidReceiptHandle)


def test_leaving_ends_no_lease_that_the_client_asked_for(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take(invisible_ms=30_000)
    rig.consumption.upkeep.release_client("c")
    rig.clock.advance(5_000)
    assert rig.take() == []
    assert rig.ack(one) == [None]


# Positions


def test_offset_is_committed_up_to_the_end_of_the_queue(rig: Rig) -> None:
    for _ in range(5):
        rig.store.put("t", 0)
    with pytest.raises(OffsetNotFound):
        rig.consumption.positions.get_offset("g", "t", 0)
    rig.consumption.positions.update_offset("g", "t", 0, 4)
    assert rig.consumption.positions.get_offset("g", "t", 0) == 4
    assert offsets(rig.take()) == [4]
    for offset in (-1, 6, 2**63 - 1):
        with pytest.raises(IllegalOffset):
            rig.consumption.positions.update_offset("g", "t", 0, offset)
    assert rig.consumption.positions.get_offset("g", "t", 0) == 4


def test_a_late_commit_takes_nothing_back(rig: Rig) -> None:
    for _ in range(5):
        rig.store.put("t", 0)
    rig.consumption.positions.update_offset("g", "t", 0, 2)
    taken = rig.take()
    rig.consumption.positions.update_offset("g", "t", 0, 1)  # sent before the 2, and here only now
    assert rig.consumption.positions.get_offset("g", "t", 0) == 2
    assert rig.ack(*taken) == [None] * 3  # no epoch has begun: the handles count
    assert rig.consumption.positions.reset_offset("g", "t", 0, 1) == 5
    assert offsets(rig.take()) == [1, 2, 3, 4]


def test_reset_voids_the_handles_before_it(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take()
    assert rig.consumption.positions.reset_offset("g", "t", 0, 0) == 0
    assert isinstance(rig.ack(one)[0], InvalidReceiptHandle)
    assert offsets(rig.take()) == [0]


def test_offset_of_rocketmq_is_taken_over_unless_ours_is_better(rig: Rig) -> None:
    for _ in range(5):
        rig.store.put("t", 0)
    assert rig.consumption.positions.import_offset("g", "t", 0, 2)
    assert not rig.consumption.positions.import_offset("g", "t", 0, 1)
    assert rig.consumption.positions.import_offset("g", "t", 0, 3)
    rig.consumption.positions.reset_offset("g", "t", 0, 1)
    assert not rig.consumption.positions.import_offset("g", "t", 0, 3)
    assert rig.consumption.positions.committed_offsets() == {("t", "g"): {0: 1}}


@pytest.mark.parametrize("offset", [6, 2**62 + 1, 2**63, 10**400])
def test_offset_of_rocketmq_beyond_the_queue_is_its_end(rig: Rig, offset: int) -> None:
    for _ in range(5):
        rig.store.put("t", 0)
    rig.consumption.positions.import_offset("g", "t", 0, offset)
    rig.start()
    assert rig.consumption.positions.get_offset("g", "t", 0) == 5
    rig.store.put("t", 0)
    assert offsets(rig.take()) == [5]


def test_progress_counts_lag_and_what_is_in_flight(rig: Rig) -> None:
    for _ in range(10):
        rig.store.put("t", 0)
    taken = rig.take(batch=4)
    rig.ack(taken[0], taken[2])
    [progress] = rig.consumption.positions.progress("g")
    assert (progress.committed_offset, progress.next_offset, progress.max_offset) == (1, 4, 10)
    assert (progress.in_flight, progress.lag) == (2, 8)


def test_progress_counts_queues_that_the_group_has_not_touched(rig: Rig) -> None:
    for queue_id, count in ((0, 10), (1, 4)):
        for _ in range(count):
            rig.store.put("t", queue_id)
    rig.take(batch=1, queue_ids=range(1))
    progress = rig.consumption.positions.progress("g", lambda topic: range(3))
    assert [(one.queue_id, one.committed_offset, one.lag) for one in progress] == [
        (0, 0, 10),
        (1, 0, 4),
        (2, 0, 0),
    ]


def test_deleted_group_starts_anew(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.ack(*rig.take())
    rig.consumption.delete_group("g")
    assert rig.consumption.positions.progress("g") == []
    assert not rig.consumption.positions.import_offset("g", "t", 0, 1)
    rig.start()
    assert offsets(rig.take()) == [0]


def test_retention_moves_a_group_on(rig: Rig) -> None:
    for _ in range(10):
        rig.store.put("t", 0)
    rig.take(batch=2)
    rig.store.minima["t", 0] = 6
    assert offsets(rig.take()) == [6, 7, 8, 9]
    assert rig.consumption.positions.get_offset("g", "t", 0) == 6


def test_offsets_that_a_cut_log_gives_away_again_are_delivered(rig: Rig) -> None:
    for _ in range(6):
        rig.store.put("t", 0)
    taken = rig.take()
    rig.ack(*taken)
    del rig.store.queues["t", 0][3:]
    assert rig.consumption.positions.clamp_to_log() == 1
    rig.store.put("t", 0)
    assert offsets(rig.take()) == [3]
    assert isinstance(rig.ack(taken[3])[0], InvalidReceiptHandle)


def test_handle_for_a_message_the_log_never_had_is_refused(rig: Rig) -> None:
    rig.store.put("t", 0)
    [one] = rig.take()
    other = Rig(clock=rig.clock)
    assert isinstance(other.ack(one)[0], InvalidReceiptHandle)


def test_in_flight_messages_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whimbrel.broker.consume.policy.UnorderedPolicy.full_at", 3)
    for _ in range(6):
        rig.store.put("t", 0)
    taken = rig.take()
    assert len(taken) == 3
    poll = rig.park()
    rig.ack(taken[1])
    rig.clock.advance(0)
    assert offsets(poll.result) == [3]


# Master and slave


def exchange(one: Rig, other: Rig) -> None:
    """Let two brokers tell each other all that they know, until neither has news."""
    ends = [LeaseExchange(rig.consumption.lease_store, ready=lambda: None) for rig in (one, other)]
    messages: list[tuple[LeaseExchange, bytes, bool]] = []

    def to(end: LeaseExchange) -> Callable[[bytes, bool], bool]:
        def send(entries: bytes, done: bool) -> bool:
            messages.append((end, entries, done))
            return True

        return send

    while any(end.pending for end in ends):
        ends[0].push(to(ends[1]))
        ends[1].push(to(ends[0]))
        for end, entries, done in messages:
            end.received(entries, done)
        messages.clear()
    for end in ends:
        end.close()


@pytest.mark.parametrize("offset", [6, 2**62 + 1, 2**63 - 1])
def test_a_slave_keeps_no_position_beyond_its_queue(offset: int) -> None:
    master, slave = pair()
    for _ in range(5):
        master.store.put("t", 0)
    slave.consumption.positions.update_offset("g", "t", 0, offset)
    assert slave.consumption.positions.get_offset("g", "t", 0) == 5
    slave.start()
    exchange(master, slave)
    assert master.consumption.positions.get_offset("g", "t", 0) == 5
    master.store.put("t", 0)
    assert offsets(master.take()) == [5]


def test_a_leader_takes_no_position_beyond_its_log_from_a_slave() -> None:
    master, slave = pair()
    for _ in range(5):
        master.store.put("t", 0)
    master.ack(*master.take(batch=2))
    master.consumption.positions.clamp_to_log()  # it leads from here on
    table = slave.consumption.table
    table.apply([(table.state("g", "t", 0), 0, 2**40, None)])  # as an earlier version has kept it
    exchange(slave, master)
    assert (
        master.consumption.positions.get_offset("g", "t", 0)
        == slave.consumption.positions.get_offset("g", "t", 0)
        == 2
    )
    assert offsets(master.take()) == [2, 3, 4]


@pytest.mark.parametrize("fits", [True, False])
def test_a_former_master_hands_over_nothing_beyond_the_log_that_it_has_left(*, fits: bool) -> None:
    """Kind 5: its acknowledgements would be those of messages that the new master gave these offsets to."""
    master = Rig()
    former = Rig(clock=master.clock, broker_id=1)
    for _ in range(10):
        former.store.put("t", 0)
    former.ack(*former.take())
    for _ in range(10):
        master.store.put("t", 0)  # from 5 on others
    master.ack(*master.take(batch=5))
    del former.store.queues["t", 0][5:]
    if fits:
        assert former.consumption.positions.forget_beyond_log() == 1
        assert former.consumption.positions.get_offset("g", "t", 0) == 5
        assert former.consumption.positions.forget_beyond_log() == 0
    exchange(former, master)
    assert offsets(master.take()) == ([5, 6, 7, 8, 9] if fits else [])
    for rig in (master, former):
        state = rig.consumption.table.find("g", "t", 0)
        assert state is not None
        assert state.epoch == 0, "it is forgotten by the former master alone"


def test_a_journal_with_an_offset_that_no_queue_can_have_is_read(rig: Rig) -> None:
    rig.store.put("t", 0)
    rig.ack(*rig.take())
    encoder = EntryEncoder("g", "t", 0)
    rig.journal.chunks.append(encoder.done(0, 0, 2**63 - 1) + encoder.done(0, 1, 1))
    rig.start()
    assert rig.consumption.positions.get_offset("g", "t", 0) == 1


def pair() -> tuple[Rig, Rig]:
    master = Rig()
    slave = Rig(clock=master.clock, store=master.store, broker_id=1, follows=True)
    master.store.arrivals = [master.arrived, slave.arrived]
    return master, slave


def join(one: Rig, other: Rig) -> tuple[LeaseExchange, LeaseExchange]:
    """Connect two brokers by a stream without delay."""
    links: list[LeaseExchange] = []

    def send_to(index: int) -> Callable[[bytes, bool], bool]:
        def send(entries: bytes, complete: bool) -> bool:
            links[index].received(entries, complete)
            return True

        return send

    links.append(LeaseExchange(one.consumption.lease_store, ready=lambda: links[0].push(send_to(1))))
    links.append(LeaseExchange(other.consumption.lease_store, ready=lambda: links[1].push(send_to(0))))
    links[0].push(send_to(1))
    links[1].push(send_to(0))
    assert links[0].peer_complete and links[1].peer_complete
    return links[0], links[1]


def test_slave_goes_on_where_its_master_died_and_the_master_where_the_slave_was() -> None:
    master, slave = pair()
    for _ in range(10):
        master.store.put("t", 0)
    early = master.take(batch=2)
    links = join(master, slave)
    late = master.take(batch=4)
    master.ack(early[0], late[0])
    for link in links:
        link.close()

    # The master is gone: its handles count, what it delivered stays invisible, the rest is delivered.
    assert slave.ack(early[1], late[1]) == [None, None]
    taken = slave.take(batch=2)
    assert offsets(taken) == [6, 7]
    slave.ack(*taken)
    master.clock.advance(30_000)
    again = slave.take(batch=2)
    assert (offsets(again), attempts(again)) == ([4, 5], [2, 2])
    slave.ack(again[0])

    # It comes back: nothing acknowledged anywhere is delivered again, no offset moves back.
    master.start()
    join(master, slave)
    assert (
        master.consumption.positions.committed_offsets()
        == slave.consumption.positions.committed_offsets()
        == {("t", "g"): {0: 5}}
    )
    assert master.ack(again[1]) == [None]
    assert offsets(master.take()) == [8, 9]
    assert slave.take() == []


def test_slave_honours_a_delivery_that_it_never_heard_of() -> None:
    master, slave = pair()
    for _ in range(3):
        master.store.put("t", 0)
    taken = master.take()
    assert slave.ack(taken[1]) == [None]
    assert offsets(slave.take()) == [0, 2]


def test_acknowledgement_ahead_of_a_lagging_log_counts() -> None:
    master = Rig()
    slave = Rig(clock=master.clock, broker_id=1, follows=True)
    join(master, slave)
    master.store.put("t", 0)
    taken = master.take()
    assert slave.ack(*taken) == [None]
    slave.store.put("t", 0)
    assert slave.take() == []


def test_lease_of_a_message_that_the_slave_does_not_have_yet_waits_for_it() -> None:
    master = Rig()
    slave = Rig(clock=master.clock, broker_id=1, follows=True)
    join(master, slave)
    master.store.put("t", 0)
    master.take(invisible_ms=10_000)
    master.clock.advance(10_000)
    poll = slave.park()
    slave.clock.advance(1_000)
    assert not poll.done
    slave.store.put("t", 0)
    slave.clock.advance(1_000)
    assert attempts(poll.result) == [2]


def test_reset_on_one_side_counts_on_the_other() -> None:
    master, slave = pair()
    for _ in range(3):
        master.store.put("t", 0)
    join(master, slave)
    master.ack(*master.take())
    master.consumption.positions.reset_offset("g", "t", 0, 1)
    assert slave.consumption.positions.get_offset("g", "t", 0) == 1
    assert offsets(slave.take()) == [1, 2]


def test_group_deleted_while_a_slave_was_away_does_not_come_back() -> None:
    master, slave = pair()
    master.store.put("t", 0)
    links = join(master, slave)
    master.ack(*master.take())
    for link in links:
        link.close()
    master.consumption.delete_group("g")
    join(master, slave)
    assert slave.consumption.positions.progress("g") == []
    assert master.consumption.positions.progress("g") == []


def test_full_disk_does_not_stop_a_merge() -> None:
    master, slave = pair()
    join(master, slave)
    slave.journal.full = True
    master.store.put("t", 0)
    master.ack(*master.take())
    assert slave.consumption.positions.get_offset("g", "t", 0) == 1


@pytest.mark.parametrize("follows", [False, True])
def test_forged_handles_make_no_state_for_groups_and_queues_that_there_are_not(follows: bool) -> None:
    """Their maker has a delivery of its own, so it knows where the record stands."""
    rig = Rig(
        follows=follows, exists=lambda group, topic, queue_id: (group, topic, queue_id) == ("g", "t", 0)
    )
    rig.store.put("t", 0)
    [held] = rig.take()
    own = ReceiptHandle.decode(held.handle)
    for number in range(20_000):
        group, topic, queue_id = ((f"g{number}", "t", 0), ("g", f"t{number}", 0), ("g", "t", 1 + number))[
            number % 3
        ]
        forged = own._replace(group=group, topic=topic, queue_id=queue_id % 65_536).encode()
        [error] = rig.ack_handles(forged, group=group, topic=topic)
        assert isinstance(error, InvalidReceiptHandle)
        if number < 100:
            with pytest.raises(InvalidReceiptHandle):
                rig.change(forged, 10_000, group=group, topic=topic)
    assert list(rig.consumption.table.by_queue) == [("g", "t", 0)]
    assert rig.ack(held) == [None]


def test_delivery_of_a_group_that_only_another_broker_served_can_be_acknowledged() -> None:
    rig = Rig(follows=True, exists=lambda group, topic, queue_id: True)
    rig.store.put("t", 0)
    [held] = Rig(store=rig.store, clock=rig.clock).take()
    rig.store.arrivals = []
    assert rig.ack(held) == [None]
    assert rig.consumption.positions.get_offset("g", "t", 0) == 1
