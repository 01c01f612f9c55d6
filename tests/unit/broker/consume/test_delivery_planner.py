"""Plans under policies: what each selects, when a plan ends, and what is handed on instead of delivered."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from support.broker.consumption import Rig, attempts, offsets
from whimbrel.broker.consume import plan as plan_module
from whimbrel.broker.consume.delivery_planner import Uniform
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.consume.plan import DeliveryPlan, HandOn, ReceiveRequest
from whimbrel.broker.consume.policy import HandOnRule, QueueCursor, Run, SelectRuns, UnorderedPolicy
from whimbrel.broker.consume.queue_leases import HAND_ON_LEASE_MS, QueueLeases
from whimbrel.errors import NoReplica, StoreFull, WhimbrelError
from whimbrel.store.codec import StoredMessage
from whimbrel.store.scan import Scan

HELD_MAX = 4


class StrictPolicy:
    """Goes upward, never past an offset that is not done; blocked while what it delivered is not visible."""

    hand_on: HandOnRule | None = None
    delivers_up_to = 0
    stops_at_undone = True
    full_at = 1

    def __init__(self) -> None:
        self.now = 0

    def begin(self, request: ReceiveRequest, now: int) -> Sequence[SelectRuns]:
        self.now = now
        return (self.upward,)

    def upward(self, queue: QueueCursor, scan: Scan) -> Sequence[Run]:
        state = queue.state
        if any(lease.visible_at > self.now for lease in state.leases.values()):
            return ()
        first = max(queue.position, state.committed)
        end = min(queue.high, first + min(scan.fetch_count(), HELD_MAX - queue.taken))
        runs: list[Run] = []
        for offset in range(first, end):
            if state.is_done(offset):
                continue
            attempt = state.leases[offset].attempt + 1 if offset in state.leases else 1
            if runs and runs[-1][1:] == (offset, attempt):
                runs[-1] = (runs[-1][0], offset + 1, attempt)
            else:
                runs.append((offset, offset + 1, attempt))
        return runs

    def unused(self, queue: QueueCursor, runs: Sequence[Run]) -> None:
        pass

    def end(self, plan: DeliveryPlan) -> None:
        pass

    def rollback(self) -> None:
        pass

    def next_visible(self, state: QueueLeases, end: int) -> int | None:
        return max((lease.visible_at for lease in state.leases.values()), default=None)


def given_up(deliveries: int = 1) -> HandOnRule:
    """Hand on what was delivered `deliveries` times, and what is dead by its tag."""

    def hand_on(message: StoredMessage, attempt: int) -> HandOn | None:
        if attempt <= deliveries and message.properties.get("TAGS") != "dead":
            return None
        return HandOn(topic="%DLQ%g", added=(("RETRY_TOPIC", message.topic),))

    return hand_on


class Appends:
    """The hand-on function, which completes when told to."""

    def __init__(self) -> None:
        self.begun: list[tuple[StoredMessage, HandOn, Callable[[WhimbrelError | None], None]]] = []

    def __call__(
        self, message: StoredMessage, target: HandOn, since: int, done: Callable[[WhimbrelError | None], None]
    ) -> None:
        self.begun.append((message, target, done))

    @property
    def offsets(self) -> list[int]:
        return [message.queue_offset for message, _, _ in self.begun]

    def finish(self, error: WhimbrelError | None = None) -> None:
        begun, self.begun = self.begun, []
        for _, _, done in begun:
            done(error)


def strict() -> Rig:
    return Rig(policy_of=Uniform(StrictPolicy))


def dead_letters(deliveries: int = 1, **options: Any) -> tuple[Rig, Appends]:
    appends = Appends()
    options = {"hand_on": appends} | options
    return Rig(policy_of=Uniform(lambda: UnorderedPolicy(given_up(deliveries))), **options), appends


# A policy of another kind, with the same planner and scan


def test_strict_policy_is_blocked_until_all_that_it_delivered_is_visible_or_done() -> None:
    rig = strict()
    for _ in range(8):
        rig.store.put("t", 0)
    taken = rig.take(batch=3)
    assert offsets(taken) == [0, 1, 2]
    assert rig.take() == []
    rig.ack(taken[1])
    assert rig.take() == []
    rig.clock.advance(30_000)
    again = rig.take()
    assert (offsets(again), attempts(again)) == ([0, 2, 3, 4], [2, 2, 1, 1])  # as many as it holds
    rig.ack(*again)
    assert offsets(rig.take()) == [5, 6, 7]


def test_strict_policy_never_passes_a_record_that_does_not_decode() -> None:
    rig = strict()
    for _ in range(3):
        rig.store.put("t", 0, b"0123456789")
    at = rig.store.log.index(b"0123456789", rig.store.queues["t", 0][1][0])
    rig.store.log[at] ^= 1
    [first] = rig.take()
    rig.ack(first)
    assert rig.take() == []  # blocked by the lease of the damaged one
    rig.store.log[at] ^= 1
    rig.clock.advance(60_000)
    assert offsets(rig.take()) == [1, 2]


def test_strict_policy_finishes_what_is_filtered_out_and_goes_on() -> None:
    rig = strict()
    for tag in ("b", "a", "b", "b", "a"):
        rig.store.put("t", 0, tag=tag)
    taken = rig.take(filter=compile_filter("tag", "a"))
    assert offsets(taken) == [1, 4]
    rig.ack(*taken)
    assert rig.consumption.positions.get_offset("g", "t", 0) == 5


def test_strict_policy_wakes_polls_at_the_latest_visible_time() -> None:
    rig = strict()
    for _ in range(2):
        rig.store.put("t", 0)
    taken = rig.take()
    for one, ms in zip(taken, (1_000, 3_000), strict=True):
        rig.change(one.handle, ms)
    poll = rig.park()
    rig.clock.advance(2_999)
    assert not poll.done
    rig.clock.advance(1)
    assert offsets(poll.result) == [0, 1]


# Handing on


def test_message_is_handed_on_after_its_deliveries_and_done_when_its_copy_is_durable() -> None:
    rig, appends = dead_letters()
    rig.store.put("t", 0)
    [one] = rig.take(invisible_ms=10_000)
    rig.clock.advance(10_000)
    assert rig.take() == []
    [(message, target, _)] = appends.begun
    assert message == one.message
    assert target == HandOn(topic="%DLQ%g", added=(("RETRY_TOPIC", "t"),))
    assert rig.consumption.positions.get_offset("g", "t", 0) == 0
    assert rig.take() == []  # held meanwhile
    assert len(appends.begun) == 1
    appends.finish()
    assert rig.consumption.positions.get_offset("g", "t", 0) == 1
    rig.clock.advance(HAND_ON_LEASE_MS)
    assert rig.take() == [] and appends.begun == []


def test_rest_of_the_answer_is_filled() -> None:
    rig, appends = dead_letters()
    for tag in ("dead", None, "dead", None, None, "dead", None):
        rig.store.put("t", 0, tag=tag)
    assert offsets(rig.take(batch=4)) == [1, 3, 4, 6]
    assert appends.offsets == [0, 2, 5]
    appends.finish()
    assert rig.consumption.positions.get_offset("g", "t", 0) == 1


def test_refused_append_is_tried_again_after_its_lease_and_counts_no_attempt() -> None:
    rig, appends = dead_letters(deliveries=2)
    rig.store.put("t", 0)
    for attempt in (1, 2):
        [one] = rig.take(invisible_ms=10_000)
        assert one.attempt == attempt
        rig.clock.advance(10_000)
    for _ in range(3):
        assert rig.take() == []
        assert len(appends.begun) == 1
        appends.finish(NoReplica("none is near"))
        rig.clock.advance(HAND_ON_LEASE_MS - 1)
        assert rig.take() == [] and appends.begun == []
        rig.clock.advance(1)
        [lease] = rig.consumption.table.state("g", "t", 0).leases.values()
        assert lease.attempt == 2
    rig.take()
    appends.finish()
    assert rig.consumption.positions.get_offset("g", "t", 0) == 1


def test_parked_poll_hands_on_when_the_lease_is_over() -> None:
    rig, appends = dead_letters()
    rig.store.put("t", 0, tag="dead")
    poll = rig.park()
    appends.finish(NoReplica("none is near"))
    rig.clock.advance(HAND_ON_LEASE_MS)
    assert appends.offsets == [0]
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert offsets(poll.result) == [1]


def test_late_completion_after_another_took_the_message_finishes_nothing() -> None:
    rig, appends = dead_letters()
    rig.store.put("t", 0, tag="dead")
    rig.take()
    late, appends.begun = appends.begun, []
    rig.clock.advance(HAND_ON_LEASE_MS)
    rig.take()
    late[0][2](None)
    assert rig.consumption.positions.get_offset("g", "t", 0) == 0
    appends.finish()
    assert rig.consumption.positions.get_offset("g", "t", 0) == 1


@pytest.mark.parametrize("event", ["reset", "close"])
def test_completion_after_a_reset_or_the_end_finishes_nothing(event: str) -> None:
    rig, appends = dead_letters()
    for _ in range(2):
        rig.store.put("t", 0, tag="dead")
    rig.take()
    if event == "reset":
        rig.consumption.positions.reset_offset("g", "t", 0, 0)
    else:
        rig.consumption.close()
    written = len(rig.journal.chunks)
    appends.finish()
    assert len(rig.journal.chunks) == written
    assert rig.consumption.positions.get_offset("g", "t", 0) == 0


def test_leases_are_written_down_before_anything_is_handed_on() -> None:
    rig, appends = dead_letters()
    rig.store.put("t", 0, tag="dead")
    rig.journal.full = True
    with pytest.raises(StoreFull):
        rig.take()
    assert appends.begun == []
    rig.journal.full = False
    rig.take()
    assert appends.offsets == [0]


def test_message_is_handed_on_once_more_after_a_crash_before_it_was_done() -> None:
    rig, appends = dead_letters()
    rig.store.put("t", 0, tag="dead")
    rig.take()
    appends.begun.clear()
    rig.start()
    assert rig.take() == []  # its lease was written down
    rig.clock.advance(HAND_ON_LEASE_MS)
    rig.take()
    assert appends.offsets == [0]


def test_broker_that_cannot_append_holds_such_messages_back() -> None:
    rig, appends = dead_letters(hand_on=None)
    for tag in ("dead", None):
        rig.store.put("t", 0, tag=tag)
    assert offsets(rig.take()) == [1]
    rig.clock.advance(HAND_ON_LEASE_MS)
    assert rig.take() == []
    assert rig.consumption.positions.get_offset("g", "t", 0) == 0
    rig.consumption.hand_ons.append = appends  # it has become the master
    rig.clock.advance(HAND_ON_LEASE_MS)
    rig.take()
    assert appends.offsets == [0]


def test_one_plan_hands_on_a_bounded_number_and_the_rest_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "HAND_ONS_MAX", 2)
    rig, appends = dead_letters()
    for tag in ("dead",) * 5 + (None,):
        rig.store.put("t", 0, tag=tag)
    assert rig.take() == []
    assert appends.offsets == [0, 1]
    poll = rig.park()
    assert appends.offsets == [0, 1, 2, 3]
    rig.clock.advance(0)
    assert (appends.offsets, offsets(poll.result)) == ([0, 1, 2, 3, 4], [5])


def test_one_plan_hands_on_a_bounded_number_of_bytes() -> None:
    rig, appends = dead_letters()
    for _ in range(4):
        rig.store.put("t", 0, bytes(3 << 20), tag="dead")
    rig.take()
    assert appends.offsets == [0, 1]
    rig.take()
    assert appends.offsets == [0, 1, 2, 3]


def test_bound_of_handing_on_returns_redeliveries_to_the_ready_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "HAND_ONS_MAX", 2)
    rig, appends = dead_letters()
    for _ in range(5):
        rig.store.put("t", 0)
    rig.take(invisible_ms=10_000)
    rig.clock.advance(10_000)
    for expected in ([0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
        rig.take()
        assert appends.offsets == expected


def test_full_group_goes_on_when_a_message_was_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnorderedPolicy, "full_at", 1)
    rig, appends = dead_letters()
    for tag in ("dead", None):
        rig.store.put("t", 0, tag=tag)
    poll = rig.park()
    rig.clock.advance(0)
    assert not poll.done
    appends.finish()
    rig.clock.advance(0)
    assert offsets(poll.result) == [1]


def test_completion_may_come_before_the_hand_on_function_returns() -> None:
    def append(
        message: StoredMessage, target: HandOn, since: int, done: Callable[[WhimbrelError | None], None]
    ) -> None:
        done(None)

    rig, _ = dead_letters(hand_on=append)
    for tag in ("dead", None):
        rig.store.put("t", 0, tag=tag)
    assert offsets(rig.take()) == [1]
    assert rig.consumption.positions.get_offset("g", "t", 0) == 1


def test_strict_policy_stops_at_a_message_that_is_handed_on() -> None:
    class StrictDeadLetters(StrictPolicy):
        def __init__(self) -> None:
            super().__init__()
            self.hand_on = given_up()

    appends = Appends()
    rig = Rig(policy_of=Uniform(StrictDeadLetters), hand_on=appends)
    for tag in (None, "dead", None):
        rig.store.put("t", 0, tag=tag)
    taken = rig.take()
    assert (offsets(taken), appends.offsets) == ([0], [1])
    rig.ack(*taken)
    assert rig.take() == []
    appends.finish()
    assert offsets(rig.take()) == [2]


def test_queues_of_priorities_are_tried_in_the_order_of_the_request() -> None:
    """Checklist 77: the greatest first, each time, and redeliveries last."""
    rig = Rig()
    for queue_id in (0, 3, 1, 3, 2):
        rig.store.put("t", queue_id)
    downward: dict[str, Any] = {"queue_ids": range(4)[::-1], "by_priority": True}
    first = rig.take(batch=2, **downward)
    assert [one.message.queue_id for one in first] == [3, 3]
    rig.clock.advance(30_001)
    rest = rig.take(batch=8, **downward)
    assert [(one.message.queue_id, one.attempt) for one in rest] == [(2, 1), (1, 1), (0, 1), (3, 2), (3, 2)]


def test_queues_take_turns_where_priorities_do_not_count() -> None:
    rig = Rig()
    for queue_id in range(4):
        rig.store.put("t", queue_id)
        rig.store.put("t", queue_id)
    taken = [rig.take(batch=1, queue_ids=range(4))[0].message.queue_id for _ in range(4)]
    assert sorted(taken) == [0, 1, 2, 3]
