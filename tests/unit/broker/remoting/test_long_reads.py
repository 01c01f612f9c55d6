"""Requests that read whole tables have a share of the time; see `broker/remoting/long_reads.py`."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from support.remoting.handlers import FakePeer
from whimbrel.broker.remoting.long_reads import (
    BURST_S,
    PER_PEER_MAX,
    SHARE,
    WAIT_S,
    WAITING_MAX,
    LongReads,
)
from whimbrel.deferred import Deferred
from whimbrel.errors import NotReady, Throttled, TopicNotFound
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Outcome, Peer, Reply

READ, SEND = RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.SEND_MESSAGE_V2
TAKES_S = 0.15


class Rig:
    """Handlers that take some time of a clock, which goes on by that alone, or when a timer is awaited."""

    def __init__(self) -> None:
        self.now, self.takes_s, self.busy_s = 100.0, TAKES_S, 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.error: Exception | None = None
        self.outcome: Outcome = None
        self.handled: list[int] = []
        self.reads = LongReads(clock=lambda: self.now, later=self.later)
        self.handles = self.reads.paced({READ: self.handle, SEND: self.handle})

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now + seconds, callback))

    def handle(self, peer: Peer, request: Command) -> Outcome:
        self.now += self.takes_s
        self.busy_s += self.takes_s
        self.handled.append(request.opaque)
        if self.error is not None:
            raise self.error
        return Reply() if self.outcome is None else self.outcome

    def ask(self, number: int, peer: Any = None, code: int = READ) -> Outcome:
        return self.handles[code](cast(Peer, peer or FakePeer()), Command(code, number))

    def waits(self, number: int, peer: Any = None) -> Deferred[Reply]:
        found = self.ask(number, peer)
        assert isinstance(found, Deferred)
        return found

    def next_timer(self) -> None:
        (timer,) = self.timers
        self.timers.clear()
        self.now = max(self.now, timer[0])
        timer[1]()


def test_few_are_handled_at_once_and_others_in_their_turn() -> None:
    rig = Rig()
    assert rig.ask(1) == Reply()
    later = [rig.waits(number) for number in (2, 3)]
    assert rig.handled == [1]
    assert isinstance(rig.ask(9, code=SEND), Reply)  # sends never wait
    rig.handled.clear()
    rig.next_timer()
    assert rig.handled == [2] and later[0].result == Reply() and not later[1].done
    rig.next_timer()
    assert rig.handled == [2, 3] and later[1].result == Reply()
    assert not rig.timers


def test_they_get_their_share_of_the_time_and_no_more() -> None:
    rig = Rig()
    began = rig.now
    rig.ask(0)
    for number in range(1, 200):
        reply = rig.waits(number)
        rig.next_timer()
        assert reply.done
    share = rig.busy_s / (rig.now - began)
    assert 0.9 * SHARE < share < 1.1 * SHARE


def test_short_ones_do_not_wait_while_others_take_most_of_the_time() -> None:
    rig = Rig()
    rig.takes_s = 0.0005
    for number in range(1000):
        assert rig.ask(number) == Reply()
        rig.now += 0.0015  # until the tool that waits for each reply asks again


def test_a_burst_is_bounded() -> None:
    rig = Rig()
    rig.takes_s, rig.now = 0.001, rig.now + 1000.0
    peer, at_once = FakePeer(), 0
    while isinstance(rig.ask(at_once, peer), Reply):
        at_once += 1
    assert at_once == pytest.approx(BURST_S / 0.001 / (1 - SHARE), abs=3)


def test_those_that_wait_too_long_are_refused() -> None:
    rig = Rig()
    rig.takes_s = WAIT_S * SHARE
    rig.ask(0)
    replies = [rig.waits(number) for number in range(3)]
    rig.next_timer()
    assert [each.done for each in replies] == [True, False, False]
    rig.next_timer()
    assert replies[0].result == Reply() and [type(each.error) for each in replies[1:]] == [Throttled] * 2
    assert rig.handled == [0, 0] and not rig.reads.by_peer


def test_so_many_wait_of_one_peer_and_of_all() -> None:
    rig = Rig()
    rig.ask(0)
    peer = FakePeer()
    for number in range(PER_PEER_MAX):
        rig.waits(number, peer)
    with pytest.raises(Throttled, match="fewer at a time"):
        rig.ask(99, peer)
    for number in range(WAITING_MAX - PER_PEER_MAX):
        rig.waits(number)
    with pytest.raises(Throttled):
        rig.ask(99)
    assert len(rig.timers) == 1


def test_bodies_are_not_kept() -> None:
    rig = Rig()
    rig.ask(0)
    request = Command(READ, 1, body=bytes(1 << 20))
    rig.handles[READ](cast(Peer, FakePeer()), request)
    assert not request.body


def test_who_has_left_is_not_read_for() -> None:
    rig = Rig()
    rig.ask(0)
    gone, there = rig.waits(1), rig.waits(2)
    gone.cancel()
    rig.next_timer()
    assert rig.handled == [0, 2] and there.done


def test_errors_and_later_replies_are_passed_on() -> None:
    rig = Rig()
    rig.ask(0)
    failing = rig.waits(1)
    rig.error = TopicNotFound("no topic T")
    rig.next_timer()
    assert failing.error is rig.error
    rig.error, inner = None, Deferred[Reply]()
    outer, rig.outcome = rig.waits(2), inner
    rig.next_timer()
    assert not outer.done
    inner.complete(Reply(7))
    assert outer.result == Reply(7)


def test_what_waits_is_refused_when_the_role_ends() -> None:
    rig = Rig()
    rig.ask(0)
    waiting = [rig.waits(number) for number in range(3)]
    rig.reads.close()
    assert [type(each.error) for each in waiting] == [NotReady] * 3
    rig.next_timer()
    assert rig.handled == [0] and not rig.timers
