"""Parked long polls: who waits for what, in which order, and until when.

Pure: the caller asks who is next, hands over what it has, and removes the poll. Polls wait in *lines*, one
for each (topic, key); the key is the consumer group for receives, which compete for messages, and the queue
for pulls, which do not. A line is served from its front, and a poll that got nothing keeps its place.

    parked --serve--> answered        (messages are there)
       |----deadline-> answered       (empty)
       '----cancel---> gone           (nothing was taken for it)

Times are epoch milliseconds.
"""

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from whimbrel.errors import Throttled
from whimbrel.model.limits import POLL_MS_MAX

__all__ = ["ANSWER_MARGIN_MS", "POLLS_MAX", "LongPolls", "Parked", "poll_time_ms"]

# A parked poll holds a stream of the transport, about 20 KiB: 4096 of them are as much as one broker should
# spend on waiting. RocketMQ: 100,000 (`maxPopPollingSize`), its streams being cheaper; 1024 for each queue.
POLLS_MAX = 4096
# What is left between the answer and the caller's deadline, so that the answer always gets there first.
ANSWER_MARGIN_MS = 500
# Go's and C++'s requests name no polling time: their deadline is polling time plus request timeout (3 s),
# and the reference takes half of the request timeout off what remains.
UNNAMED_MARGIN_MS = 1_500


def poll_time_ms(requested_ms: int | None, remaining_ms: int | None) -> int:
    """Return how long a poll may be parked; 0 answers at once.

    There is no lower bound other than 0: the reference's 5 s would overrun the deadline of short polls.

    Args:
        requested_ms: what the request asks for, None when it names none.
        remaining_ms: what is left until the caller's deadline, None when it set none.
    """
    if requested_ms is None:
        requested_ms = POLL_MS_MAX if remaining_ms is None else remaining_ms - UNNAMED_MARGIN_MS
    poll_ms = min(requested_ms, POLL_MS_MAX)
    if remaining_ms is not None:
        poll_ms = min(poll_ms, remaining_ms - ANSWER_MARGIN_MS)
    return max(poll_ms, 0)


class Parked(Protocol):
    """What `LongPolls` needs to know of a poll."""

    @property
    def topic(self) -> str: ...
    @property
    def line(self) -> Hashable: ...
    @property
    def deadline_ms(self) -> int: ...


P = TypeVar("P", bound=Parked)


class LongPolls(Generic[P]):
    """The parked polls, by topic and line. An operation's cost does not grow with their number."""

    def __init__(self, *, polls_max: int = POLLS_MAX) -> None:
        self.polls_max = polls_max
        self.by_topic: dict[str, dict[Hashable, dict[P, None]]] = {}  # dicts as sets that keep their order
        self.deadlines: list[tuple[int, int, P]] = []  # may name polls that have left
        self.count = 0
        self.turns = itertools.count()

    def __len__(self) -> int:
        return self.count

    def park(self, poll: P) -> None:
        """Put a poll at the end of its line; raises Throttled when too many are parked."""
        if self.count >= self.polls_max:
            raise Throttled(f"polling full: {self.count} polls are parked")
        self.by_topic.setdefault(poll.topic, {}).setdefault(poll.line, {})[poll] = None
        self.count += 1
        if len(self.deadlines) > 2 * self.count + 64:
            self.deadlines = [entry for entry in self.deadlines if self.is_parked(entry[2])]
            heapq.heapify(self.deadlines)
        heapq.heappush(self.deadlines, (poll.deadline_ms, next(self.turns), poll))

    def leave(self, poll: P) -> bool:
        """Take a poll out of its line; return False when it had left before."""
        lines = self.by_topic.get(poll.topic)
        line = lines.get(poll.line) if lines is not None else None
        if lines is None or line is None or poll not in line:
            return False
        del line[poll]
        self.count -= 1
        if not line:
            del lines[poll.line]
            if not lines:
                del self.by_topic[poll.topic]
        return True

    def waits(self, topic: str) -> bool:
        """Tell whether any poll waits for the topic."""
        return topic in self.by_topic

    def lines(self, topic: str) -> list[Hashable]:
        """Return the keys of the topic's lines, the longest standing first."""
        return list(self.by_topic.get(topic, ()))

    def line(self, topic: str, key: Hashable) -> list[P]:
        """Return the polls of one line, first come first."""
        return list(self.by_topic.get(topic, {}).get(key, ()))

    def parked(self, topic: str, key: Hashable) -> bool:
        """Tell whether any poll stands in this line."""
        return key in self.by_topic.get(topic, ())

    def expired(self, now: int) -> list[P]:
        """Take out the polls whose deadline has come, in its order."""
        gone = []
        while self.deadlines and self.deadlines[0][0] <= now:
            poll = heapq.heappop(self.deadlines)[2]
            if self.leave(poll):
                gone.append(poll)
        return gone

    def next_deadline(self) -> int | None:
        """Return when the next poll must be answered; None when none is parked."""
        while self.deadlines and not self.is_parked(self.deadlines[0][2]):
            heapq.heappop(self.deadlines)
        return self.deadlines[0][0] if self.deadlines else None

    def topics(self) -> list[str]:
        """Return the topics that polls wait for."""
        return list(self.by_topic)

    def is_parked(self, poll: P) -> bool:
        return poll in self.by_topic.get(poll.topic, {}).get(poll.line, ())
