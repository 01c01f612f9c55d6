"""Pulls: one queue read from an offset on, now or when a message arrives there.

Nothing is held or done by a pull; where it is to go on is the caller's to know. What one read gets is in
`pull.py`.
"""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from whimbrel.broker.consume.pull import Pulled, PullRequest, read_queue
from whimbrel.broker.consume.scan import RecordSource
from whimbrel.broker.consume.wakeups import PullPoll, Wakeups, answer, unchanged
from whimbrel.deferred import Deferred
from whimbrel.errors import WhimbrelError

__all__ = ["Pulling"]

R = TypeVar("R")


class Pulling:
    """Reads queues for pulls; parks those that wait."""

    def __init__(
        self, store: RecordSource, wakeups: Wakeups, *, follows: bool, now_ms: Callable[[], int]
    ) -> None:
        """Take the messages; `follows`: the log is another broker's, and may lag behind a pull's offset."""
        self.store, self.wakeups, self.follows, self.now = store, wakeups, follows, now_ms

    @overload
    def pull(self, request: PullRequest, *, poll_ms: int) -> Pulled | Deferred[Pulled]: ...

    @overload
    def pull(
        self, request: PullRequest, *, poll_ms: int, reply: Callable[[Pulled], R]
    ) -> R | Deferred[R]: ...

    def pull(self, request: PullRequest, *, poll_ms: int, reply: Callable[[Pulled], Any] = unchanged) -> Any:
        """Read one queue from an offset on, or wait for a message there; no lease, no acknowledgement.

        Args:
            request: what to read.
            poll_ms: how long to wait.
            reply: makes the answer of what was read; as with `receive`.

        Raises:
            CorruptRecord: the first record there does not decode.
            IllegalOffset: the offset lies outside the queue.
            Throttled: too many polls are parked.
        """
        pulled, more = read_queue(self.store, request, request.offset, follows=self.follows)
        if pulled.found or more or poll_ms <= 0:
            return reply(pulled)
        poll = PullPoll(request, self.now() + poll_ms, reply, Deferred(), pulled.next_offset)
        self.wakeups.park(poll)
        self.wakeups.arm_timer()
        return poll.deferred

    def serve(self, poll: PullPoll) -> None:
        """Look again at a parked pull."""
        try:
            pulled, more = read_queue(self.store, poll.request, poll.position, follows=self.follows)
        except WhimbrelError as error:
            self.wakeups.polls.remove(poll)
            poll.deferred.fail(error)
            return
        poll.position = pulled.next_offset
        if pulled.found or more:
            self.wakeups.polls.remove(poll)
            answer(poll, pulled)
