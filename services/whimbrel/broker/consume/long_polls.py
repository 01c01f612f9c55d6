"""Parked receives: which poll waits for what, in which order, and until when.

Pure: the caller serves a poll and removes it. Polls wait in wait queues, one for each (topic, key). The key
is the consumer group, whose receives compete for messages. A wait queue is served from its front, and a poll
that got nothing keeps its place. Reads, which do not compete, wait elsewhere (`engine/waiting.py`) and share
their room.

    parked --serve--> answered        (messages are there)
       |----deadline-> answered       (empty)
       '----cancel---> gone           (nothing was taken for it)

Times are epoch milliseconds.
"""

import heapq
import itertools
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from whimbrel.errors import Throttled
from whimbrel.model.limits import POLL_MS_MAX

__all__ = ["ANSWER_MARGIN_MS", "POLLS_MAX", "LongPolls", "ParkedPoll", "Room", "poll_time_ms"]

# A parked poll keeps a stream of the transport, about 20 KiB; the bound limits that memory. RocketMQ: 100,000
# (`maxPopPollingSize`), its streams being cheaper; 1024 for each queue.
POLLS_MAX = 4096
# Time between the answer and the caller's deadline, so that the answer arrives first.
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


@dataclass(slots=True)
class Room:
    """How much of a bound is taken, by all who share it."""

    most: int
    taken: int = 0


class ParkedPoll(Protocol):
    """What `LongPolls` needs to know of a poll."""

    @property
    def topic(self) -> str: ...
    @property
    def wait_key(self) -> str: ...
    @property
    def deadline_ms(self) -> int: ...


P = TypeVar("P", bound=ParkedPoll)


class LongPolls(Generic[P]):
    """The parked polls, by topic and key. An operation's cost does not grow with their number."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.by_topic: dict[str, dict[str, dict[P, None]]] = {}  # dicts as sets that keep their order
        self.deadlines: list[tuple[int, int, P]] = []  # may name polls that were removed
        self.count = 0
        self.sequence = itertools.count()  # orders polls of equal deadline

    def __len__(self) -> int:
        return self.count

    def park(self, poll: P) -> None:
        """Put a poll at the end of its wait queue; raises Throttled when too many are parked."""
        room = self.room
        if room.taken >= room.most:
            raise Throttled(f"polling full: {room.taken} polls are parked")
        room.taken += 1
        self.by_topic.setdefault(poll.topic, {}).setdefault(poll.wait_key, {})[poll] = None
        self.count += 1
        if len(self.deadlines) > 2 * self.count + 64:
            self.deadlines = [entry for entry in self.deadlines if self.is_parked(entry[2])]
            heapq.heapify(self.deadlines)
        heapq.heappush(self.deadlines, (poll.deadline_ms, next(self.sequence), poll))

    def remove(self, poll: P) -> bool:
        """Take a poll out of its wait queue; return False when it was removed before."""
        queues = self.by_topic.get(poll.topic)
        queue = queues.get(poll.wait_key) if queues is not None else None
        if queues is None or queue is None or poll not in queue:
            return False
        del queue[poll]
        self.count -= 1
        self.room.taken -= 1
        if not queue:
            del queues[poll.wait_key]
            if not queues:
                del self.by_topic[poll.topic]
        return True

    def has_topic(self, topic: str) -> bool:
        """Return whether any poll waits for the topic."""
        return topic in self.by_topic

    def has_key(self, topic: str, key: str) -> bool:
        """Return whether any poll waits for the topic under this key."""
        return key in self.by_topic.get(topic, ())

    def topics(self) -> list[str]:
        """Return the topics that polls wait for."""
        return list(self.by_topic)

    def keys(self, topic: str) -> list[str]:
        """Return the keys under which polls wait for the topic, the longest standing first."""
        return list(self.by_topic.get(topic, ()))

    def waiting(self, topic: str, key: str) -> list[P]:
        """Return the polls of one wait queue, first come first."""
        return list(self.by_topic.get(topic, {}).get(key, ()))

    def expired(self, now: int) -> list[P]:
        """Remove and return the polls whose deadline has come, in its order."""
        gone = []
        while self.deadlines and self.deadlines[0][0] <= now:
            poll = heapq.heappop(self.deadlines)[2]
            if self.remove(poll):
                gone.append(poll)
        return gone

    def next_deadline(self) -> int | None:
        """Return when the next poll must be answered; None when none is parked."""
        while self.deadlines and not self.is_parked(self.deadlines[0][2]):
            heapq.heappop(self.deadlines)
        return self.deadlines[0][0] if self.deadlines else None

    def is_parked(self, poll: P) -> bool:
        return poll in self.by_topic.get(poll.topic, {}).get(poll.wait_key, ())
