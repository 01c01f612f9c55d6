"""Which calls go on, are held or are given up while a leader is looked for; time is an argument."""

import pytest

from whimbrel.broker.api.held_calls import (
    HOLD_S,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    SETTLE_S,
    TRIED_MAX,
    HeldCall,
    HeldCalls,
    Leads,
    Place,
)
from whimbrel.errors import (
    NoReplica,
    NotMaster,
    NotReady,
    NotWritable,
    StoreFull,
    Throttled,
    WhimbrelError,
)
from whimbrel.rpc.server.forwarder import Target

A, B = Target("a", "a:1"), Target("b", "b:1")
NOBODY, HERE, CHANGING = Leads.NOBODY, Leads.HERE, Leads.CHANGING


def held_calls(place: Place, *, calls_max: int = 100, bytes_max: int = 1000) -> HeldCalls[HeldCall]:
    calls: HeldCalls[HeldCall] = HeldCalls(calls_max=calls_max, bytes_max=bytes_max)
    calls.moved(place, 0.0)
    return calls


def arrived(calls: HeldCalls[HeldCall], now: float, *, size: int = 1, needs_leader: bool = True) -> HeldCall:
    one = HeldCall(size=size, needs_leader=needs_leader)
    calls.arrived(one, now)
    return one


@pytest.mark.parametrize("place", [A, HERE])
def test_a_known_leader_gets_calls_at_once(place: Place) -> None:
    calls = held_calls(place)
    assert calls.arrived(HeldCall(size=1), 1.0) and len(calls) == 0


def test_calls_go_on_in_their_order_when_a_leader_is_known() -> None:
    calls = held_calls(NOBODY)
    some = [arrived(calls, float(number) / 10) for number in range(5)]
    assert (len(calls), calls.bytes, calls.due(0.5), calls.over(1.9)) == (5, 5, [], [])
    assert calls.moved(A, 1.9) == some
    assert (len(calls), calls.bytes) == (0, 0)


def test_nobody_is_held_for_longer_than_that() -> None:
    calls = held_calls(NOBODY)
    one, other = arrived(calls, 10.0), arrived(calls, 10.5)
    assert calls.over(10.0 + HOLD_S - 0.01) == []
    assert calls.over(10.0 + HOLD_S) == [one]
    assert calls.over(10.5 + HOLD_S) == [other] and len(calls) == 0


def test_without_a_role_all_are_held_and_without_a_leader_those_that_need_one() -> None:
    calls = held_calls(CHANGING)
    write, read = arrived(calls, 0.0), arrived(calls, 0.0, needs_leader=False)
    assert calls.moved(NOBODY, 0.1) == [read]
    assert calls.arrived(HeldCall(size=1, needs_leader=False), 0.1)
    assert calls.moved(CHANGING, 0.2) == []
    assert calls.moved(HERE, 0.3) == [write]


def test_what_waits_is_bounded_by_number_and_bytes() -> None:
    calls = held_calls(NOBODY, calls_max=3, bytes_max=10)
    arrived(calls, 0.0, size=6)
    with pytest.raises(Throttled):
        arrived(calls, 0.0, size=5)
    last = arrived(calls, 0.0, size=4)
    calls.drop(last)
    calls.drop(last)
    assert (len(calls), calls.bytes) == (1, 6)
    for _ in range(2):
        arrived(calls, 0.0)
    with pytest.raises(Throttled):
        arrived(calls, 0.0)


def test_a_refused_call_is_tried_again_after_pauses_that_grow() -> None:
    calls = held_calls(A)
    one, now, pauses = arrived(calls, 0.0), 0.0, []
    while calls.refused(one, A, NotMaster("no"), now):
        assert calls.due(one.again_at - 0.001 if one.again_at else 0.0) == []
        pauses.append((one.again_at or 0.0) - now)
        now = one.again_at or 0.0
        if now >= HOLD_S:
            assert calls.over(now) == [one]
            break
        assert calls.due(now) == [one]
    assert pauses[:4] == pytest.approx([PAUSE_FIRST_S * 2**n for n in range(4)])
    assert max(pauses) == pytest.approx(PAUSE_MAX_S) and now >= HOLD_S and len(calls) == 0


@pytest.mark.parametrize("error", [StoreFull("full"), Throttled("busy"), WhimbrelError("a bug")])
def test_other_refusals_are_the_answer(error: WhimbrelError) -> None:
    calls = held_calls(A)
    one = arrived(calls, 0.0)
    assert not calls.refused(one, A, error, 0.1) and len(calls) == 0 and one.refusal is error


@pytest.mark.parametrize("error", [NoReplica("alone"), NotWritable("not settled")])
@pytest.mark.parametrize("place", [A, HERE])
def test_who_is_not_ready_is_waited_for_only_while_it_is_new(place: Place, error: WhimbrelError) -> None:
    calls = held_calls(place)
    assert calls.refused(arrived(calls, SETTLE_S - 1), place, error, SETTLE_S - 1)
    assert not calls.refused(arrived(calls, SETTLE_S + 1), place, error, SETTLE_S + 1)


def test_who_does_not_serve_is_new_when_it_does() -> None:
    calls = held_calls(A)
    assert calls.refused(arrived(calls, 100.0), A, NotReady("no connection"), 100.0)
    assert calls.refused(arrived(calls, 101.0), A, NoReplica("alone"), 101.0)
    assert not calls.refused(arrived(calls, 110.0), A, NoReplica("alone"), 110.0)


def test_another_leader_gets_what_the_one_before_has_refused() -> None:
    calls = held_calls(A)
    early, late = arrived(calls, 0.0), arrived(calls, 0.0)
    assert calls.refused(early, A, NotMaster("not any more"), 0.0)
    assert calls.moved(B, 0.01) == [early]
    assert calls.refused(late, A, NotMaster("not any more"), 0.02)  # said by the one before
    assert calls.due(0.02) == [late]
    assert calls.moved(NOBODY, 0.03) == []
    assert calls.refused(late, B, NotMaster("not any more"), 0.03)
    assert calls.due(1.0) == [] and calls.moved(HERE, 1.0) == [late]


def test_a_late_refusal_says_nothing_of_the_next_leader() -> None:
    calls = held_calls(A)
    one = arrived(calls, 0.0)
    calls.moved(B, 1.0)
    assert calls.refused(one, A, NoReplica("alone"), 1.0 + SETTLE_S + 1)


def test_pauses_begin_anew_with_another_leader() -> None:
    calls = held_calls(A)
    one = arrived(calls, 0.0)
    for now in (0.0, 0.1, 0.3):
        assert calls.refused(one, A, NotMaster("no"), now)
        calls.due(now + PAUSE_MAX_S)
    assert calls.refused(one, A, NotMaster("no"), 0.5)
    assert calls.moved(B, 0.5) == [one]
    assert calls.refused(one, B, NotMaster("no"), 0.5)
    assert one.again_at == pytest.approx(0.5 + PAUSE_FIRST_S)


def test_a_long_poll_that_is_cut_off_is_held_anew() -> None:
    calls = held_calls(A)
    poll = arrived(calls, 0.0)
    assert calls.refused(poll, A, NotReady("lost"), 15.0)
    assert calls.moved(B, 16.0) == [poll]
    assert calls.refused(poll, B, NotReady("lost"), 16.5)
    assert calls.over(15.0 + HOLD_S) == [poll]
    assert calls.refused(poll, B, NotReady("lost"), 40.0)  # as if it had gone on
    assert calls.over(40.0) == [] and calls.over(40.0 + HOLD_S) == [poll]


def test_a_leader_that_comes_back_is_not_overrun() -> None:
    calls = held_calls(A, calls_max=1000)
    many = [arrived(calls, 0.0) for _ in range(TRIED_MAX + 10)]
    for one in reversed(many):
        assert calls.refused(one, A, NotReady("no connection"), 0.0)
    assert calls.due(1.0) == many[:TRIED_MAX]
    assert calls.due(1.0) == many[TRIED_MAX:]


def test_an_answer_ends_the_pauses() -> None:
    calls = held_calls(A)
    one = arrived(calls, 0.0)
    assert calls.refused(one, A, NotReady("no connection"), 0.0)
    calls.answered(B, 0.001)
    assert calls.due(0.001) == []
    calls.answered(A, 0.001)
    assert calls.due(0.001) == [one]


def test_a_refusal_without_room_is_the_answer() -> None:
    calls = held_calls(A, calls_max=1)
    first, second = arrived(calls, 0.0), arrived(calls, 0.0)
    assert calls.refused(first, A, NotMaster("no"), 0.0)
    assert not calls.refused(second, A, NotMaster("no"), 0.0) and len(calls) == 1
