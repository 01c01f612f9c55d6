"""Deadlines in buckets, on a loop that a test winds by hand."""

from typing import Any

from whimbrel.rpc.client import deadlines
from whimbrel.rpc.client.deadlines import Bucket, Deadlines


class Timer:
    """One timer of the loop."""

    def __init__(self, when: float, callback: Any, argument: Any) -> None:
        self.when, self.callback, self.argument = when, callback, argument
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """The part of a loop that deadlines use."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any) -> Any:
        self.timers.append(Timer(when, callback, *args))
        return self.timers[-1]

    def call_later(self, delay: float, callback: Any, *args: Any) -> Any:
        return self.call_at(self.now + delay, callback, *args)

    @property
    def armed(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def turn(self, now: float) -> None:
        """Let the time be `now`."""
        while due := [timer for timer in self.armed if timer.when <= now]:
            timer = min(due, key=lambda timer: timer.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            timer.callback(timer.argument)
        self.now = now


class Waiting:
    """A call."""

    deadline: float | None = None
    bucket: Bucket | None = None

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.expired: float | None = None

    def expire(self) -> None:
        self.expired = self.loop.now

    def end(self) -> None:
        assert self.bucket is not None
        self.bucket.calls.pop(self)
        self.bucket = None


def test_calls_expire_in_their_turn_on_one_timer() -> None:
    loop: Any = Loop()
    due = Deadlines(loop)
    calls = [Waiting(loop) for _ in range(4)]
    for number, call in enumerate(calls):
        loop.turn(number)
        due.add(call, 10.0)
    assert len(loop.armed) == 1
    calls[1].end()
    loop.turn(9.9)
    assert not any(call.expired for call in calls)
    loop.turn(12.5)
    assert [call.expired for call in calls] == [10.0, None, 12.0, None]
    assert calls[0].bucket is None
    assert len(loop.armed) == 1
    loop.turn(20.0)
    assert calls[3].expired == 13.0
    assert not due.buckets
    assert not loop.armed


def test_a_call_that_ends_leaves_nothing_behind_when_its_timer_fires() -> None:
    loop: Any = Loop()
    due = Deadlines(loop)
    call = Waiting(loop)
    due.add(call, 3.0)
    call.end()
    loop.turn(3.0)
    assert (call.expired, due.buckets, loop.armed) == (None, {}, [])


def test_empty_buckets_of_many_timeouts_are_dropped(monkeypatch: Any) -> None:
    monkeypatch.setattr(deadlines, "BUCKETS_MAX", 4)
    loop: Any = Loop()
    due = Deadlines(loop)
    due.many = 4
    kept = Waiting(loop)
    due.add(kept, 100.0)
    for number in range(50):
        call = Waiting(loop)
        due.add(call, 1000.0 + number)
        call.end()
        assert len(due.buckets) <= 5
    assert len(loop.armed) == len(due.buckets)
    loop.turn(100.0)
    assert kept.expired == 100.0
    due.close()
    assert not loop.armed
