"""Deadlines of many calls, at the cost of two dict operations a call instead of a timer of the loop's.

Calls with the same timeout expire in the order in which they began. So each timeout has a bucket, a dict in
that order, whose one timer waits for its first call. A call that ends removes itself (`bucket.calls`). Empty
buckets go when their timer fires, or when there are many (`BUCKETS_MAX`) of them.
"""

import asyncio
from typing import Protocol

__all__ = ["Bucket", "Deadlines"]

BUCKETS_MAX = 64  # from here on empty ones are dropped; a program has few timeouts


class Expiring(Protocol):
    """What has a deadline.

    Attributes:
        deadline: of the loop's clock, in seconds.
        bucket: where it waits; set to None by whoever removes it there.
    """

    deadline: float | None
    bucket: "Bucket | None"

    def expire(self) -> None:
        """End; the bucket does not hold it any more."""


class Bucket:
    """The calls of one timeout, oldest first."""

    __slots__ = ("calls", "timer")

    def __init__(self) -> None:
        self.calls: dict[Expiring, None] = {}
        self.timer: asyncio.TimerHandle | None = None


class Deadlines:
    """Ends calls whose deadline has passed."""

    __slots__ = ("buckets", "loop", "many")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buckets: dict[float, Bucket] = {}
        self.many = BUCKETS_MAX

    def add(self, call: Expiring, timeout_s: float) -> None:
        """End a call after so many seconds, unless it removes itself before."""
        bucket = self.buckets.get(timeout_s)
        if bucket is None:
            bucket = self.opened(timeout_s)
        call.deadline = self.loop.time() + timeout_s
        call.bucket = bucket
        bucket.calls[call] = None

    def opened(self, timeout_s: float) -> Bucket:
        """Make the bucket of a new timeout."""
        if len(self.buckets) >= self.many:
            for other in [other for other, bucket in self.buckets.items() if not bucket.calls]:
                self.drop(other)
            self.many = max(BUCKETS_MAX, 2 * len(self.buckets))
        bucket = self.buckets[timeout_s] = Bucket()
        bucket.timer = self.loop.call_later(max(0.0, timeout_s), self.fire, timeout_s)
        return bucket

    def fire(self, timeout_s: float) -> None:
        """End the calls of one timeout whose deadline has passed."""
        bucket = self.buckets[timeout_s]
        now = self.loop.time()
        while bucket.calls:
            call = next(iter(bucket.calls))
            assert call.deadline is not None
            if call.deadline > now:
                bucket.timer = self.loop.call_at(call.deadline, self.fire, timeout_s)
                return
            del bucket.calls[call]
            call.bucket = None
            call.expire()
        self.drop(timeout_s)

    def drop(self, timeout_s: float) -> None:
        """Forget an empty bucket."""
        bucket = self.buckets.pop(timeout_s, None)
        if bucket is not None and bucket.timer is not None:
            bucket.timer.cancel()

    def close(self) -> None:
        """Forget all buckets; no call waits in them any more."""
        for timeout_s in list(self.buckets):
            self.drop(timeout_s)
