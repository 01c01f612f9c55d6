"""Ordered groups, message group by message group: slow ones stop nobody else, and bounds hold."""

from typing import Any

import pytest

from support.broker.consumption import Rig, attempts, offsets
from whimbrel.broker.consume import grouped_policy
from whimbrel.broker.consume.delivery_planner import Uniform
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.consume.grouped_policy import GroupedPolicy
from whimbrel.broker.consume.plan import HandOn
from whimbrel.store.codec import StoredMessage


def rig_with(*groups: str | None, **options: Any) -> Rig:
    rig = Rig(**{"policy_of": Uniform(GroupedPolicy)} | options)
    for group in groups:
        rig.store.put("t", 0, group=group)
    return rig


def test_a_slow_group_does_not_stop_its_neighbours() -> None:
    rig = rig_with("x", "y", "x", "y", "z")
    (slow,) = rig.take(batch=1)
    first = rig.take()
    assert offsets(first) == [1, 3, 4]
    assert rig.take() == []
    rig.ack(*first)
    assert rig.consumption.positions.get_offset("g", "t", 0) == 0
    rig.ack(slow)
    assert offsets(rig.take()) == [2]


def test_a_group_comes_again_in_its_order() -> None:
    rig = rig_with("x", "y", "x", "x")
    held = rig.take(batch=3)
    rig.ack(held[1])
    rig.clock.advance(30_000)
    again = rig.take()
    assert (offsets(again), attempts(again)) == ([0, 2, 3], [2, 2, 1])


def test_messages_without_a_group_wait_for_nobody() -> None:
    rig = rig_with(None, None, "x", None)
    assert [offsets(rig.take(batch=1)) for _ in range(4)] == [[0], [1], [2], [3]]


def test_same_attempt_id_gets_the_same_messages_and_no_others_of_their_groups() -> None:
    rig = rig_with("x", "y", "x", None)
    assert offsets(rig.take(batch=1, attempt_id="a")) == [0]
    assert offsets(rig.take(batch=1, attempt_id="b")) == [1]
    again = rig.take(attempt_id="a")
    assert (offsets(again), attempts(again)) == ([0, 2, 3], [1, 1, 1])
    assert rig.take(attempt_id="c") == []


def test_a_poll_is_served_when_the_first_of_the_blocked_groups_is_free() -> None:
    rig = rig_with("x", "x", "y", "y")
    held = rig.take(batch=4)
    for one, wait_ms in zip(held, (9_000, 5_000, 3_000, 8_000), strict=True):
        rig.change(one.handle, wait_ms)
    poll = rig.park()
    rig.clock.advance(7_999)
    assert not poll.done
    rig.clock.advance(1)
    assert offsets(poll.result) == [2, 3]
    poll = rig.park()
    rig.clock.advance(1_000)
    assert offsets(poll.result) == [0, 1]


def test_groups_are_known_again_after_a_restart() -> None:
    """Checklist 16."""
    rig = rig_with("x", "y", "x", "y")
    held = rig.take(batch=2, attempt_id="a")
    rig.ack(held[1])
    rig.consumption.close()
    rig.start()
    assert offsets(rig.take(attempt_id="b")) == [3]
    assert offsets(rig.take(attempt_id="a")) == [0, 2]


def test_reset_ends_blocks_and_what_was_known() -> None:
    """Checklist 19."""
    rig = rig_with("x", "y", "x")
    rig.take()
    rig.consumption.positions.reset_offset("g", "t", 0, 1)
    assert offsets(rig.take()) == [1, 2]


def test_filtered_messages_are_done_and_close_no_group() -> None:
    rig = rig_with()
    for group, tag in (("x", "no"), ("x", "yes"), ("y", "no"), ("y", "yes")):
        rig.store.put("t", 0, tag=tag, group=group)
    held = rig.take(filter=compile_filter("tag", "yes"))
    assert offsets(held) == [1, 3]
    rig.ack(*held)
    assert rig.consumption.positions.get_offset("g", "t", 0) == 4


def test_how_far_ahead_and_how_many_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_policy, "AHEAD_MAX", 50)
    rig = rig_with("slow", *[f"g{n}" for n in range(100)])
    (slow,) = rig.take(batch=1)
    seen: list[int] = []
    while held := rig.take(batch=32):
        seen += offsets(held)
        rig.ack(*held)
    assert seen == list(range(1, 50))
    rig.ack(slow)
    assert offsets(rig.take(batch=1)) == [50]
    monkeypatch.setattr(grouped_policy, "HELD_MAX", 3)
    assert offsets(rig.take()) == [51, 52]
    assert rig.take() == []


def test_much_that_is_read_at_once_is_read_in_pieces() -> None:
    """The loop goes on after at most `SCAN_MAX` records that a plan has read; the poll is served soon."""
    rig = rig_with("slow", *["slow"] * 3000)
    rig.take(batch=1)
    rig.store.put("t", 0, group="other")
    poll = rig.park()
    for _ in range(5):
        rig.clock.advance()
    assert not poll.done  # beyond the window
    policy = rig.consumption.planner.subscription("g", "t").policy
    assert isinstance(policy, GroupedPolicy)
    assert len(policy.windows[0].groups) <= grouped_policy.AHEAD_MAX + grouped_policy.READ_AT_ONCE


def test_what_is_known_of_a_queue_is_bounded() -> None:
    rig = rig_with()
    for number in range(3000):
        rig.store.put("t", 0, group=f"g{number % 7}")
        if number % 20 == 19:
            rig.ack(*rig.take())
    policy = rig.consumption.planner.subscription("g", "t").policy
    assert isinstance(policy, GroupedPolicy)
    assert len(policy.windows[0].groups) <= grouped_policy.DROPPED_AT_ONCE + grouped_policy.READ_AT_ONCE


def test_a_record_that_does_not_decode_stops_what_stands_behind_it() -> None:
    """It may be of any group."""
    rig = rig_with("x", "y", "x", "z")
    at, size, _ = rig.store.queues["t", 0][1]
    body = bytes(rig.store.log[at : at + size])
    rig.store.log[at : at + size] = bytes(size)
    assert offsets(rig.take()) == [0]
    assert rig.take() == []
    rig.store.log[at : at + size] = body
    rig.clock.advance(60_000)
    assert offsets(rig.take()) == [0, 1, 2, 3]


def test_a_message_that_is_handed_on_holds_up_its_own_group_only() -> None:
    def rule(message: StoredMessage, attempt: int) -> HandOn | None:
        return HandOn(topic="%DLQ%g") if message.properties.get("TAGS") == "dead" else None

    done = []
    rig = rig_with(
        policy_of=Uniform(lambda: GroupedPolicy(hand_on=rule)),
        hand_on=lambda message, target, since_ms, report: done.append(report),
    )
    for group, tag in (("x", "dead"), ("x", "a"), ("y", "a")):
        rig.store.put("t", 0, group=group, tag=tag)
    poll = rig.park()
    for _ in range(3):
        rig.clock.advance()
    assert offsets(poll.result) == [2]
    done[0](None)
    assert offsets(rig.take()) == [1]
    assert len(done) == 1
