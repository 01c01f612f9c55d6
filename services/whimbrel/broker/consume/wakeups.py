"""Parked polls in time: which of them are looked at again, and when.

A poll is parked when there is nothing for it, and served again for one of these reasons:

    a message arrives, or a change frees some   the topic is dirty: its polls are served in the next turn
    a held message becomes visible              the wait queue of its topic and group is served at that time
    its deadline has come                       it is answered with nothing

All that happens at a time shares one timer, which is armed for the earliest of them: also the renewals of
leases that are due. The owner of the parked polls, of the dirty topics and of the timer is `Wakeups`; what a
poll gets is decided by who serves it (`receiving.py`). Times are epoch milliseconds.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias, TypeVar

from whimbrel.broker.consume.delivery_planner import DeliveryPlanner
from whimbrel.broker.consume.long_polls import LongPolls, Room
from whimbrel.broker.consume.plan import Delivered, ReceiveRequest
from whimbrel.broker.consume.retry_topics import Pair
from whimbrel.deferred import Deferred
from whimbrel.errors import CorruptRecord
from whimbrel.store.scan import RecordSource

__all__ = ["ReceivePoll", "RetryTopics", "Wakeups", "answer", "unchanged"]

# When a wait queue was to be served because a held message is visible, and nothing came of it, it is served
# again after this time.
SERVE_AGAIN_MS = 100

# By group and topic: what else a receive reads, and how many queues of it (`retry_topics.py`).
RetryTopics: TypeAlias = Mapping[Pair, tuple[tuple[str, int], ...]]

R = TypeVar("R")


def unchanged(result: R) -> R:
    """The reply of those who take what was found as it is."""
    return result


@dataclass(eq=False, slots=True)
class ReceivePoll:
    """A parked receive; `reply` makes its answer of what was delivered."""

    request: ReceiveRequest
    deadline_ms: int
    reply: Callable[[list[Delivered]], Any]
    deferred: Deferred[Any]

    @property
    def topic(self) -> str:
        return self.request.topic

    @property
    def wait_key(self) -> str:
        return self.request.group


class Wakeups:
    """Owns the parked polls, and has them served when something may have come for them."""

    def __init__(
        self,
        store: RecordSource,
        planner: DeliveryPlanner,
        retry_topics: RetryTopics,
        *,
        now_ms: Callable[[], int],
        schedule: Callable[[int, Callable[[], None]], object],
        next_renewal: Callable[[], float],
        room: Room,
    ) -> None:
        """Begin with no polls; set the functions that serve them before the first is parked.

        Args:
            store: where the messages are. planner: knows the policies of groups. retry_topics: what a group
            reads beside a topic. now_ms: the clock. schedule: calls a function once at a time, on this
            thread. next_renewal: returns when leases are to be renewed. room: for parked polls.
        """
        self.store, self.planner, self.retry_topics = store, planner, retry_topics
        self.now, self.schedule, self.next_renewal = now_ms, schedule, next_renewal
        self.polls: LongPolls[ReceivePoll] = LongPolls(room)
        # Serve the receives of a topic and group at a time; what of leases is due.
        self.serve_receives: Callable[[str, str, int], None]
        self.renew: Callable[[int], None]
        # Topics whose polls may find something; a dict as an ordered set.
        self.dirty_topics: dict[str, None] = {}
        self.wakeups: list[tuple[int, str, str]] = []  # (time, topic, group): a held message becomes visible
        self.wakeup_at: dict[tuple[str, str], int] = {}  # which of `wakeups` count
        self.timer_at: float = inf
        self.timer_generation = 0

    def close(self) -> None:
        """Answer all parked polls with nothing, and have nothing called any more."""
        self.end_polls()
        self.timer_generation += 1

    def end_polls(self) -> None:
        """Answer all parked polls with nothing."""
        for topic in self.polls.topics():
            for key in self.polls.keys(topic):
                for poll in self.polls.waiting(topic, key):
                    self.polls.remove(poll)
                    answer_empty(poll)

    def on_arrival(self, topic: str, queue_id: int, offset: int, tags_code: int) -> None:
        """Serve the polls that wait for a new message; the callback of `MessageStore.on_arrival`."""
        if topic not in self.dirty_topics and self.polls.has_topic(topic):
            self.wake(topic)

    def park(self, poll: ReceivePoll) -> None:
        """Put a poll at the end of its wait queue; raises Throttled when too many are parked."""
        self.polls.park(poll)

        def leave() -> None:
            self.polls.remove(poll)

        poll.deferred.on_cancel = leave

    def wake_all(self) -> None:
        """Serve all polls soon."""
        for topic in self.polls.topics():
            self.wake(topic)
        self.arm_timer()

    def wake(self, topic: str) -> None:
        """Serve the topic's polls soon."""
        if not self.polls.has_topic(topic):
            return
        if not self.dirty_topics:
            self.schedule(self.now(), self.serve_dirty)
        self.dirty_topics[topic] = None

    def serve_dirty(self) -> None:
        now = self.now()
        topics, self.dirty_topics = self.dirty_topics, {}
        for topic in topics:
            for group in self.polls.keys(topic):
                self.serve_receives(topic, group, now)
        self.arm_timer()

    def schedule_wakeup(self, group: str, topic: str, now: int) -> None:
        """Have the group's polls on the topic served when its next held message becomes visible."""
        at: int | None = None
        for read in (topic, *(name for name, _ in self.retry_topics.get((group, topic), ()))):
            subscription = self.planner.subscription(group, read)
            next_visible = subscription.policy.next_visible
            for queue_id, queue in subscription.queues.items():
                visible_at = next_visible(queue.state, self.store.queue_range(read, queue_id)[1])
                if visible_at is not None and (at is None or visible_at < at):
                    at = visible_at
        if at is None:
            return
        if at <= now:
            at = now + SERVE_AGAIN_MS
        key = (topic, group)
        if at < self.wakeup_at.get(key, inf):
            self.wakeup_at[key] = at
            heapq.heappush(self.wakeups, (at, topic, group))

    def arm_timer(self) -> None:
        """Have `on_timer` called when something is due."""
        at = min(self.next_renewal(), self.wakeups[0][0] if self.wakeups else inf)
        deadline = self.polls.next_deadline()
        if deadline is not None and deadline < at:
            at = deadline
        if at < self.timer_at:
            self.timer_at = at
            self.timer_generation = generation = self.timer_generation + 1
            self.schedule(int(at), lambda: self.on_timer(generation))

    def on_timer(self, generation: int) -> None:
        if generation != self.timer_generation:
            return  # another timer was armed, for an earlier time
        self.timer_at = inf
        now = self.now()
        self.renew(now)
        while self.wakeups and self.wakeups[0][0] <= now:
            at, topic, group = heapq.heappop(self.wakeups)
            if self.wakeup_at.get((topic, group)) == at:
                del self.wakeup_at[topic, group]
                self.serve_receives(topic, group, now)
        for poll in self.polls.expired(now):
            answer_empty(poll)
        self.arm_timer()


def answer(poll: ReceivePoll, result: Any) -> bool:
    """Answer a parked poll; return False when its caller has gone or was answered before."""
    try:
        reply = poll.reply(result)
    except ValueError as error:  # text that protobuf does not take, in a record of other writers
        poll.deferred.fail(CorruptRecord(f"a record can't be delivered: {error}"))
        return True
    return poll.deferred.complete(reply)


def answer_empty(poll: ReceivePoll) -> None:
    answer(poll, [])
