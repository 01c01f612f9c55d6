"""The consuming half of a broker: receive, acknowledge, pull, positions, in the model's terms.

Joins the lease state (`leases.py`, written down by `lease_store.py`), the choice of messages
(`delivery_planner.py`, `pull.py`) and the parked polls (`long_polls.py`). The steps of a receive:

    plan --> write down the leases --> deliver, or park the poll until there is something
                '--> hand on: messages that go to another topic instead; done when their copy is durable

Everything runs on one thread. Times are epoch milliseconds from the clock handed in; `schedule(at_ms, fn)`
calls `fn` once on the same thread at that time, or soon (never within the call) when it has passed.

A new group begins at the earliest message kept. A group's position moves back only by `reset_offset` and
`clamp_to_log`, and where another broker told of positions that no log holds; each starts a new epoch of the
state and voids the receipt handles of the old one. Within an epoch positions only grow, and never beyond the
end of the queue: a position further on would count messages as done that are still to come.
"""

import heapq
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from typing import Any, Literal, TypeAlias, TypeVar, overload

from whimbrel.broker.consume.delivery_planner import UNORDERED, DeliveryPlanner, PolicyFactory
from whimbrel.broker.consume.lease_codec import Lease
from whimbrel.broker.consume.lease_store import Journal, LeaseStore
from whimbrel.broker.consume.leases import (
    INFLIGHT_MAX,
    Change,
    QueueLeases,
    Standing,
    WaitAfter,
    serial_ms,
)
from whimbrel.broker.consume.long_polls import POLLS_MAX, LongPolls
from whimbrel.broker.consume.plan import (
    HAND_ON_LEASE_MS,
    Delivered,
    HandOn,
    PendingHandOn,
    ReceiveRequest,
)
from whimbrel.broker.consume.popped import Held
from whimbrel.broker.consume.pull import Pulled, PullRequest, read_queue
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.broker.consume.retry_topics import Pair
from whimbrel.broker.consume.scan import RecordSource
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    CorruptRecord,
    IllegalOffset,
    InvalidReceiptHandle,
    NotWritable,
    OffsetNotFound,
    StoreFull,
    WhimbrelError,
)
from whimbrel.model.cluster import GroupProgress
from whimbrel.model.retry import DEFAULT_POLICY
from whimbrel.store.codec import StoredMessage, decode_record

__all__ = [
    "Delivered",
    "GroupConsumption",
    "HandOnAppend",
    "PullRequest",
    "Pulled",
    "ReceiveRequest",
]

# When a wait queue was to be served because a held message is visible, and nothing came of it, it is served
# again after this time.
SERVE_AGAIN_MS = 100
# After this time without a receive a group's state on a topic rests, if nothing is held.
IDLE_MS = 60_000
# Pairs of group and topic that `rest_idle` looks at in one call: a few milliseconds.
RESTED_AT_ONCE = 100

R = TypeVar("R")

Done: TypeAlias = Callable[[WhimbrelError | None], None]
# Appends a copy of a message elsewhere, unless there is one that was stored since a time (ms), and calls back
# with None once it is durable, or with what went wrong; perhaps before it returns. Never raises.
HandOnAppend: TypeAlias = Callable[[StoredMessage, HandOn, int, Done], None]
# Makes a dead letter of a message that was delivered so often.
GivenUp: TypeAlias = Callable[[StoredMessage, int], HandOn]

logger = logging.getLogger(__name__)


def unchanged(result: R) -> R:
    return result


def always(group: str, topic: str, queue_id: int) -> bool:
    return True


def default_wait_ms(group: str, attempt: int) -> int:
    return DEFAULT_POLICY.wait_ms(attempt)


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


@dataclass(eq=False, slots=True)
class PullPoll:
    """A parked pull; what lies between the request's offset and `position` does not match."""

    request: PullRequest
    deadline_ms: int
    reply: Callable[[Pulled], Any]
    deferred: Deferred[Any]
    position: int

    @property
    def topic(self) -> str:
        return self.request.topic

    @property
    def wait_key(self) -> int:
        return self.request.queue_id


class GroupConsumption:
    """Serves consumers from one store and one lease state."""

    def __init__(
        self,
        store: RecordSource,
        journal: Journal,
        *,
        broker_name: str,
        broker_id: int,
        now_ms: Callable[[], int],
        schedule: Callable[[int, Callable[[], None]], object],
        client_alive: Callable[[str, str], bool],
        follows: bool = False,
        polls_max: int = POLLS_MAX,
        exists: Callable[[str, str, int], bool] = always,
        hand_on: HandOnAppend | None = None,
        policy_of: PolicyFactory = UNORDERED,
        wait_ms: WaitAfter = default_wait_ms,
    ) -> None:
        """Prepare; call `open` next.

        Args:
            store: where the messages are. journal: where changes are written down. broker_name: shared by a
            master and its slaves. broker_id: keeps delivery serials apart from those of the other brokers
            of that name. now_ms: the clock. schedule: calls a function once at a time, on this thread.
            client_alive: returns by group and client id whether the client was active lately. follows: the
            log is another broker's (a slave): it may lag behind the lease state. May be changed later.
            polls_max: parked polls at most. exists: returns whether there is such a group, and a topic with
            such a queue; an acknowledgement without lease state here counts only then. hand_on: appends
            messages that a policy hands on to other topics; None where nothing can be appended (a slave):
            such messages are held back. May be changed later. policy_of: makes the delivery
            policies of groups on topics. wait_ms: how long a message waits whose lease was renewed for as
            long as it may be.
        """
        self.follows = follows
        self.hand_on = hand_on
        self.exists = exists
        self.wait_ms = wait_ms
        self.store = store
        self.broker_name = broker_name
        self.now, self.schedule, self.client_alive = now_ms, schedule, client_alive
        self.lease_store = LeaseStore(journal, broker_id=broker_id, now_ms=now_ms)
        self.lease_store.on_merged = self.on_merged
        self.table = self.lease_store.table
        self.planner = DeliveryPlanner(self.table, store, broker_name, policy_of=policy_of)
        self.polls: LongPolls[ReceivePoll | PullPoll] = LongPolls(polls_max=polls_max)
        # By group and topic: what else a receive reads, and how many queues of it (`retry_topics.py`).
        self.retry_topics: Mapping[Pair, tuple[tuple[str, int], ...]] = {}
        self.closed = False
        self.to_rest: dict[tuple[str, str], list[QueueLeases]] = {}  # what `rest_idle` has not looked at yet
        self.look_at = 0  # when it looks at all states again
        self.warned_at = self.not_handed_on = 0  # when the log said so last, and how many since
        # Topics whose polls may find something; a dict as an ordered set.
        self.dirty_topics: dict[str, None] = {}
        self.wakeups: list[tuple[int, str, str]] = []  # (time, topic, group): a held message becomes visible
        self.wakeup_at: dict[tuple[str, str], int] = {}  # which of `wakeups` count
        self.timer_at: float = inf
        self.timer_generation = 0

    def open(self) -> None:
        """Load the lease state and begin to write it down."""
        self.lease_store.open()
        while self.to_rest or not self.look_at:
            self.rest_idle()
        self.arm_timer()

    def close(self) -> None:
        """Answer all parked polls with nothing, and close the journal."""
        self.end_polls()
        self.closed = True
        self.timer_generation += 1
        self.lease_store.close()

    def end_polls(self) -> None:
        """Answer all parked polls with nothing."""
        for topic in self.polls.topics():
            for key in self.polls.keys(topic):
                for poll in self.polls.waiting(topic, key):
                    self.polls.remove(poll)
                    answer_empty(poll)

    @property
    def parked(self) -> int:
        """How many polls are parked."""
        return len(self.polls)

    # Receiving

    @overload
    def receive(
        self, request: ReceiveRequest, *, poll_ms: int
    ) -> list[Delivered] | Deferred[list[Delivered]]: ...

    @overload
    def receive(
        self,
        request: ReceiveRequest,
        *,
        poll_ms: int,
        reply: Callable[[list[Delivered]], R],
        deferred: Deferred[R] | None = None,
    ) -> R | Deferred[R]: ...

    def receive(
        self,
        request: ReceiveRequest,
        *,
        poll_ms: int,
        reply: Callable[[list[Delivered]], Any] = unchanged,
        deferred: Deferred[Any] | None = None,
    ) -> Any:
        """Receive messages, or wait for some; the answer is empty when none came within `poll_ms`.

        Args:
            request: what to receive; its invisible time was checked (`check_invisible_ms`).
            poll_ms: how long to wait.
            reply: makes the answer of what was delivered, now or later. A ValueError, from text in a record
                of other writers that protobuf does not take, fails a parked poll with CorruptRecord.
            deferred: completed with the answer, should the poll be parked; a new one otherwise.

        Returns:
            The answer, or the deferred of the parked poll.

        Raises:
            StoreFull: the leases can't be written down.
            Throttled: too many polls are parked.
        """
        now = self.now()
        delivered, more = self.take(request, now)
        if delivered or poll_ms <= 0:
            return reply(delivered)
        poll = ReceivePoll(request, now + poll_ms, reply, Deferred() if deferred is None else deferred)
        self.park(poll)
        if more:
            self.wake(request.topic)
        self.schedule_wakeup(request.group, request.topic, now)
        self.arm_timer()
        return poll.deferred

    def release_undelivered(self, handles: Sequence[str]) -> None:
        """Make messages visible again whose answer did not get out; that delivery does not count."""
        now = self.now()
        changes: list[Change] = []
        for text in handles:
            handle = ReceiptHandle.decode(text)
            state = self.table.find(handle.group, handle.topic, handle.queue_id)
            lease = state.leases.get(handle.offset) if state is not None else None
            if state is None or lease is None or lease.serial != handle.serial or handle.epoch != state.epoch:
                continue
            visible = lease._replace(
                serial=self.table.next_serial(now),  # of no attempt: one that is repeated counts anew
                revision=0,
                visible_at=now,
                attempt=max(lease.attempt - 1, 0),
                auto_renew=False,
            )
            changes.append((state, handle.offset, handle.offset + 1, visible))
            self.wake(handle.topic)
        self.lease_store.commit_best_effort(changes)

    def on_arrival(self, topic: str, queue_id: int, offset: int, tags_code: int) -> None:
        """Serve the polls that wait for a new message; the callback of `MessageStore.on_arrival`."""
        if topic not in self.dirty_topics and self.polls.has_topic(topic):
            self.wake(topic)

    # What clients do with what they received

    def ack_batch(self, group: str, topic: str, handles: Sequence[str]) -> list[InvalidReceiptHandle | None]:
        """Mark messages done; return None, or what is wrong, for each handle.

        Acknowledging a finished message again is no error.

        Raises:
            StoreFull: it can't be written down; nothing was acknowledged.
        """
        now = self.now()
        results: list[InvalidReceiptHandle | None] = []
        changes: list[Change] = []
        for text in handles:
            try:
                handle = ReceiptHandle.decode(text)
                state, standing = self.check_handle(handle, group, topic, now)
            except InvalidReceiptHandle as error:
                results.append(error)
                continue
            results.append(None)
            if standing is not Standing.FINISHED:
                changes.append((state, handle.offset, handle.offset + 1, None))
                self.wake_if_full(state)
        if changes:
            self.lease_store.commit(changes)
        return results

    def change_invisible(
        self, group: str, topic: str, handle_text: str, invisible_ms: int, *, suspend: bool = False
    ) -> str:
        """Set when a message becomes visible again, 0 for at once; return its new receipt handle.

        Args:
            group: the caller's group.
            topic: the message's topic.
            handle_text: the current receipt handle; it no longer counts afterwards.
            invisible_ms: from now on; it was checked (`check_invisible_ms`).
            suspend: the delivery does not count as an attempt.

        Raises:
            InvalidReceiptHandle: the handle does not count, or its message is done.
            StoreFull: it can't be written down.
        """
        now = self.now()
        handle = ReceiptHandle.decode(handle_text)
        state, standing = self.check_handle(handle, group, topic, now)
        if standing is Standing.FINISHED:
            raise InvalidReceiptHandle("the message is acknowledged already")
        serial = self.table.next_serial(now)
        attempt = handle.attempt - suspend
        lease = Lease(serial, 0, now + invisible_ms, now, attempt, False, "")
        self.lease_store.commit([(state, handle.offset, handle.offset + 1, lease)])
        if not invisible_ms:
            self.wake(topic)
        elif self.polls.has_key(topic, group):
            self.schedule_wakeup(group, topic, now)
            self.arm_timer()
        return handle._replace(serial=serial).encode()

    def forward(self, group: str, topic: str, handle_text: str, give_up: GivenUp, done: Done) -> None:
        """Hand a message on to the dead letters, and mark it done once its copy is durable.

        A consumer repeats this until it succeeds, so whatever can't be done any more is no error: the message
        is done, the group's position was reset since, or the record is gone. Nor is a delivery that is over:
        a consumer has given the message up, whoever holds it now.

        Args:
            group: the caller's group.
            topic: the message's topic.
            handle_text: any receipt handle of it.
            give_up: makes the dead letter.
            done: called with None, or with why it was not done; perhaps before this returns.

        Raises:
            CorruptRecord: the record does not decode.
            InvalidReceiptHandle: the handle is none, or of another broker, group or topic.
            NotWritable: nothing is appended here.
            StoreFull: it can't be written down.
        """
        handle = ReceiptHandle.decode(handle_text)
        topic = self.topic_of(handle, group, topic)
        if self.hand_on is None:
            raise NotWritable("this broker takes no writes: forward to the master")
        offset = handle.offset
        state = self.table.find(group, topic, handle.queue_id)
        known = state is not None or self.exists(group, topic, handle.queue_id)
        if not known or (state is not None and (handle.epoch != state.epoch or state.is_done(offset))):
            done(None)
            return
        message = self.message_of(handle)
        if message is None:
            done(None)
            return
        if state is None:
            state = self.table.state(group, topic, handle.queue_id)
        now = self.now()
        until = now + HAND_ON_LEASE_MS
        lease = state.leases.get(offset)
        if lease is None:  # a delivery that only another broker, or a journal's lost tail, knows
            taken_at = min(serial_ms(handle.serial), now)
            held = Lease(self.table.next_serial(now), 0, until, taken_at, handle.attempt, False, "")
        else:
            held = lease._replace(
                revision=lease.revision + 1, visible_at=max(until, lease.visible_at), auto_renew=False
            )
        self.lease_store.commit([(state, offset, offset + 1, held)])
        one = PendingHandOn(state, state.epoch, offset, held, message, give_up(message, held.attempt))

        def confirmed(error: WhimbrelError | None) -> None:
            if error is None:
                self.finish_hand_on(one, whoever_holds_it=True)
            done(error)

        self.hand_on(message, one.target, held.taken_at, confirmed)

    def message_of(self, handle: ReceiptHandle) -> StoredMessage | None:
        """Return the message that a handle names; None when its record is gone, or another one has its place.

        Raises:
            CorruptRecord: it does not decode.
        """
        units = self.store.queue_units(handle.topic, handle.queue_id, handle.offset, 1)
        low, high = self.store.queue_range(handle.topic, handle.queue_id)
        if not low <= handle.offset < high or not units:
            return None
        physical_offset, size, _ = units[0]
        if (physical_offset, size) != (handle.physical_offset, handle.size):
            return None
        try:
            return decode_record(self.store.read(physical_offset, size))
        except IllegalOffset:
            return None

    def release_client(self, client_id: str, group: str | None = None) -> None:
        """Make what a client that has gone holds visible within about a second; of one group, or of all."""
        now = self.now()
        changes = self.table.released(client_id, group, now)
        self.lease_store.commit_best_effort(changes)
        for state in {change[0] for change in changes}:
            if self.polls.has_key(state.topic, state.group):
                self.schedule_wakeup(state.group, state.topic, now)
        self.arm_timer()

    # Pulling and positions

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
        if pulled.messages or more or poll_ms <= 0:
            return reply(pulled)
        poll = PullPoll(request, self.now() + poll_ms, reply, Deferred(), pulled.next_offset)
        self.park(poll)
        self.arm_timer()
        return poll.deferred

    def update_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit a position: everything before it is done; a position that is lower already stays as it is.

        A call that comes late, or again after a newer one, must not take back what was done since. Whoever
        wants to go back resets. A slave's log may lag behind what the client has read at the master: the
        slave takes a position beyond its queue as the queue's end, and messages behind that come again.

        Raises:
            IllegalOffset: the offset is negative, or on a master beyond the queue's end.
            StoreFull: it can't be written down.
        """
        if self.follows:
            offset = min(offset, self.queue_end(topic, queue_id))
        self.check_offset(topic, queue_id, offset)
        state = self.table.state(group, topic, queue_id)
        if not state.started or offset > state.committed:
            self.lease_store.commit([(state, 0, offset, None)])
            self.wake(topic)

    def get_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the group's committed offset; raises OffsetNotFound when it has none."""
        known = self.table.position(group, topic, queue_id)
        if known is None or known[2] < 0:
            raise OffsetNotFound(f"group {group} has no offset on {topic}/{queue_id}")
        return known[2]

    def undone(self, group: str, topic: str, queue_id: int, start: int, count: int) -> list[int]:
        """Return the first offsets of a queue, from `start` on, that a group has not finished."""
        low, high = self.store.queue_range(topic, queue_id)
        position = max(low, start)
        state = self.table.find(group, topic, queue_id)
        if state is None:
            return list(range(position, min(high, position + count)))
        found: list[int] = []
        position = max(position, state.committed)
        for begin, end in (*state.done_above(), (high, high)):
            if position < begin:
                found += range(position, min(begin, high, position + count - len(found)))
            position = max(position, end)
        return found

    def is_done(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a group has finished a message."""
        state = self.table.find(group, topic, queue_id)
        return state is not None and state.is_done(offset)

    def finish(self, group: str, topic: str, places: Sequence[tuple[int, int]]) -> None:
        """Mark messages done for a group: queue ids and offsets, which stand in the log.

        Raises:
            StoreFull: it can't be written down.
        """
        changes: list[Change] = []
        for queue_id, offset in places:
            changes.append((self.table.state(group, topic, queue_id), offset, offset + 1, None))
        self.lease_store.commit(changes)

    def query_offset(
        self, topic: str, queue_id: int, policy: Literal["begin", "end", "time"], timestamp_ms: int = 0
    ) -> int:
        """Return the queue's first offset, its end, or the first offset stored at or after a time."""
        if policy == "time":
            return self.store.offset_by_time(topic, queue_id, timestamp_ms)
        return self.store.queue_range(topic, queue_id)[policy == "end"]

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Put a group's position anywhere in the queue and forget its leases; return the old position.

        Raises:
            IllegalOffset: the offset lies outside the queue.
            StoreFull: it can't be written down.
        """
        self.check_offset(topic, queue_id, offset)
        state = self.table.state(group, topic, queue_id)
        before = state.committed if state.started else None
        self.lease_store.commit_entries(state.encoder.done(state.epoch + 1, 0, offset))
        logger.info("%s on %s/%d was reset from %s to %d", group, topic, queue_id, before, offset)
        self.wake(topic)
        return before

    def is_news(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether a position from RocketMQ's consumerOffset.json is to be adopted.

        The exports of this broker never lie ahead of its state, so a greater offset was written by RocketMQ.
        Nothing is adopted once a position was reset or a group deleted: the file may be older than that.
        """
        known = self.table.position(group, topic, queue_id)
        return known is None or (not known[1] and min(offset, self.queue_end(topic, queue_id)) > known[2])

    def import_offset(
        self, group: str, topic: str, queue_id: int, offset: int, held: Sequence[Held] = ()
    ) -> bool:
        """Adopt a position from RocketMQ's consumerOffset.json; return False when the state's is kept.

        One beyond the end of its queue is taken as that end: the file may be damaged, or the log cut.

        Args:
            group, topic, queue_id, offset: whose position, where, and what it is.
            held: what the group had taken below it and not finished, by offset: it stays held until its time.
        """
        if not self.is_news(group, topic, queue_id, offset):
            return False
        offset = min(offset, self.queue_end(topic, queue_id))
        if len(held) > INFLIGHT_MAX:
            logger.warning("%s held %d messages of %s/%d: from offset %d on, all come again",
                           group, len(held), topic, queue_id, held[INFLIGHT_MAX].offset)  # fmt: skip
            offset = min(offset, held[INFLIGHT_MAX].offset)
        state = self.table.state(group, topic, queue_id)
        changes: list[Change] = []
        start = 0
        serial = self.table.next_serial(self.now())
        for one in held[:INFLIGHT_MAX]:
            if not max(start, state.committed) <= one.offset < offset:
                continue
            lease = Lease(serial, 0, one.visible_at, one.taken_at, 1, False, "")
            changes += [(state, start, one.offset, None), (state, one.offset, one.offset + 1, lease)]
            start = one.offset + 1
        changes.append((state, start, offset, None))
        # On a full disk the file still has it, and the next start adopts it again.
        self.lease_store.commit_best_effort(changes)
        return True

    def committed_offsets(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return every group's committed offsets: by (topic, group), by queue."""
        offsets: dict[tuple[str, str], dict[int, int]] = {}
        for group, topic, found in self.table.resting.committed():
            if found:
                offsets[topic, group] = found
        for state in self.table.by_queue.values():
            if state.started:
                offsets.setdefault((state.topic, state.group), {})[state.queue_id] = state.committed
        return offsets

    def progress(
        self, group: str, queues_of: Callable[[str], Iterable[int]] = lambda topic: ()
    ) -> list[GroupProgress]:
        """Return how far a group is on every queue of the topics that it reads.

        Args:
            queues_of: the queues of a topic. Where the group has read nothing yet, it begins at the queue's
                first message.
        """
        found = {
            (state.topic, state.queue_id): self.progress_of(state)
            for state in self.table.states(group=group)
            if state.started
        }
        for topic in {topic for topic, _ in found}:
            for queue_id in queues_of(topic):
                if (topic, queue_id) not in found:
                    found[topic, queue_id] = self.untouched(topic, queue_id)
        return [found[key] for key in sorted(found)]

    def untouched(self, topic: str, queue_id: int) -> GroupProgress:
        low, high = self.store.queue_range(topic, queue_id)
        return GroupProgress(
            topic=topic,
            queue_id=queue_id,
            committed_offset=low,
            next_offset=low,
            max_offset=high,
            in_flight=0,
            lag=high - low,
        )

    def groups(self) -> set[str]:
        """Return the groups that have a position anywhere."""
        return {group for group, _, (_, _, committed) in self.table.positions() if committed >= 0}

    def delete_group(self, group: str) -> None:
        """Forget a group's positions and leases.

        The lease streams carry this to the other brokers. A slave that sees the group vanish from its
        metadata must not call this too: it would wipe what the group did since it was created again.
        """
        self.forget(self.table.states(group=group))
        self.planner.forget(group, None)

    def delete_topic(self, topic: str) -> None:
        """Forget all groups' positions and leases on a topic; slaves as with `delete_group`."""
        self.forget(self.table.states(topic=topic))
        self.planner.forget(None, topic)

    def groups_changed(self) -> None:
        """Take note of groups whose configuration has changed."""
        for _, topic in self.planner.refresh():
            self.wake(topic)

    def renew_policies(self) -> None:
        """Forget what policies know, and serve the polls that wait: other ones may get something now."""
        self.planner.subscriptions.clear()
        self.on_merged()

    def clamp_to_log(self) -> int:
        """Forget the state of offsets that the log does not hold; return on how many queues.

        Call it when a master becomes writable, before the first append: a log that lost its tail gives
        those offsets to new messages, which must not count as delivered. A slave's log merely lags.
        """
        cut = 0
        self.lease_store.end_of = self.queue_end
        for group, topic, (queue_id, _, committed) in list(self.table.positions()):
            end = self.queue_end(topic, queue_id)
            known = self.table.by_queue.get((group, topic, queue_id))
            if (committed if known is None else known.next) <= end:
                continue
            state = self.table.state(group, topic, queue_id)
            logger.warning("%s on %s/%d knew offsets up to %d, the log ends at %d: the rest is forgotten",
                        group, topic, queue_id, state.next, end)  # fmt: skip
            self.lease_store.commit_entries(b"".join(state.entries(state.epoch + 1, end)))
            cut += 1
        return cut

    def rest_idle(self) -> None:
        """Keep compactly what nobody uses: some of it in each call, to be called about once a second."""
        now = self.now()
        if not self.to_rest and now >= self.look_at:
            self.look_at = now + IDLE_MS
            self.table.forget_idle_clients()
            for state in self.table.by_queue.values():
                self.to_rest.setdefault((state.group, state.topic), []).append(state)
        since = now - IDLE_MS
        for group, topic in list(islice(self.to_rest, RESTED_AT_ONCE)):
            states = self.to_rest.pop((group, topic))
            if (
                self.planner.is_idle(group, topic, since)
                and not self.polls.has_key(topic, group)
                and all(state.at_rest for state in states)
            ):
                self.planner.drop(group, topic)
                self.table.rest(states)

    # Inside: changes

    def take(self, request: ReceiveRequest, now: int) -> tuple[list[Delivered], bool]:
        delivered, more = self.take_from(request, now)
        if self.retry_topics:
            for name, queues in self.retry_topics.get((request.group, request.topic), ()):
                room = request.batch - len(delivered)
                if room <= 0:
                    break
                one = replace(request, topic=name, queue_ids=range(queues), batch=room)
                again, more_again = self.take_from(one, now)
                delivered += [as_of_topic(one, request.topic) for one in again]
                more = more or more_again
        return delivered, more and not delivered

    def take_from(self, request: ReceiveRequest, now: int) -> tuple[list[Delivered], bool]:
        plan = self.planner.plan(request, now)
        if plan.changes:
            try:
                self.lease_store.commit(plan.changes, plan.orders)
            except StoreFull:
                self.planner.rollback(plan)
                raise
            if request.invisible_ms is None and plan.delivered:
                self.arm_timer()
        for one in plan.hand_ons:
            self.begin_hand_on(one)
        # What was handed on may have been all that kept others back.
        return plan.delivered, plan.more or (bool(plan.hand_ons) and not plan.delivered)

    def begin_hand_on(self, one: PendingHandOn) -> None:
        if self.hand_on is None:
            return  # held back: its lease ends, and the next broker that can append hands it on

        def done(error: WhimbrelError | None) -> None:
            if error is None:
                self.finish_hand_on(one)
                return
            self.warn_not_handed_on(one, error)

        self.hand_on(one.message, one.target, one.lease.taken_at, done)

    def warn_not_handed_on(self, one: PendingHandOn, error: WhimbrelError) -> None:
        """Say so in the log; with a full disk there are many, each time that their leases end."""
        now, state = self.now(), one.state
        self.not_handed_on += 1
        if self.warned_at <= now < self.warned_at + HAND_ON_LEASE_MS:
            return
        logger.warning("%d messages were not handed on and are tried again, the last one %s/%d offset %d"
                    " of %s, to %s: %s", self.not_handed_on, state.topic, state.queue_id, one.offset,
                    state.group, one.target.topic, error)  # fmt: skip
        self.warned_at, self.not_handed_on = now, 0

    def finish_hand_on(self, one: PendingHandOn, *, whoever_holds_it: bool = False) -> None:
        """Mark a message done whose copy is durable, unless it was delivered or reset meanwhile."""
        state = one.state
        lease = state.leases.get(one.offset)
        if self.closed or state.epoch != one.epoch:
            return
        if not whoever_holds_it and (lease is None or lease.serial != one.lease.serial):
            return
        # Polls may wait because the group holds too much, or for what stands behind this.
        self.wake(state.topic)
        # When a crash or a full disk loses this, the copy is found when its turn comes again.
        self.lease_store.commit_best_effort([(state, one.offset, one.offset + 1, None)])

    def forget(self, states: Sequence[QueueLeases]) -> None:
        entries = b"".join(state.encoder.epoch(state.epoch + 1) for state in states if state.started)
        if entries:
            self.lease_store.commit_entries(entries)

    # Inside: checks and reads

    def topic_of(self, handle: ReceiptHandle, group: str, topic: str) -> str:
        """Return the topic that a handle stands for: the named one, or one that is read beside it."""
        if handle.broker_name != self.broker_name or handle.group != group:
            raise InvalidReceiptHandle("the receipt handle belongs to another broker or group")
        if handle.topic != topic and handle.topic not in (
            name for name, _ in self.retry_topics.get((group, topic), ())
        ):
            raise InvalidReceiptHandle("the receipt handle belongs to another topic")
        return handle.topic

    def check_handle(
        self, handle: ReceiptHandle, group: str, topic: str, now: int
    ) -> tuple[QueueLeases, Standing]:
        topic = self.topic_of(handle, group, topic)
        state = self.table.find(group, topic, handle.queue_id)
        if state is not None:
            standing = state.standing(handle, now)
            if standing is not Standing.UNKNOWN:
                return state, standing
        elif not self.exists(group, topic, handle.queue_id):
            raise InvalidReceiptHandle("the receipt handle names a group or a queue that there is not")
        # A delivery that only another broker, or a journal's lost tail, knows: the record must at least be
        # there.
        low, high = self.store.queue_range(topic, handle.queue_id)
        if handle.offset < high:
            if handle.offset >= low:
                unit = self.store.queue_units(topic, handle.queue_id, handle.offset, 1)
                if not unit or unit[0][:2] != (handle.physical_offset, handle.size):
                    raise InvalidReceiptHandle("the receipt handle does not fit the message at its offset")
        elif not self.follows:
            raise InvalidReceiptHandle("the receipt handle names a message that the log does not hold")
        return state or self.table.state(group, topic, handle.queue_id), Standing.UNKNOWN

    def queue_end(self, topic: str, queue_id: int) -> int:
        return self.store.queue_range(topic, queue_id)[1]

    def check_offset(self, topic: str, queue_id: int, offset: int) -> None:
        low, high = self.store.queue_range(topic, queue_id)
        if not 0 <= offset <= high:
            raise IllegalOffset(
                f"offset {offset} lies outside {topic}/{queue_id}, which holds {low} to {high}"
            )

    def progress_of(self, state: QueueLeases) -> GroupProgress:
        end = self.store.queue_range(state.topic, state.queue_id)[1]
        return GroupProgress(
            topic=state.topic,
            queue_id=state.queue_id,
            committed_offset=state.committed,
            next_offset=state.next,
            max_offset=end,
            in_flight=len(state.leases),
            lag=state.unfinished(end),
        )

    # Inside: parked polls and time

    def park(self, poll: ReceivePoll | PullPoll) -> None:
        self.polls.park(poll)

        def leave() -> None:
            self.polls.remove(poll)

        poll.deferred.on_cancel = leave

    def on_merged(self) -> None:
        for topic in self.polls.topics():
            self.wake(topic)
        self.arm_timer()

    def wake_if_full(self, state: QueueLeases) -> None:
        """Serve polls that may wait because the group holds as many messages as it may; one is to be done."""
        if len(state.leases) >= state.full_at:
            self.wake(state.topic)

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
            for key in self.polls.keys(topic):
                if isinstance(key, str):
                    self.serve_receives(topic, key, now)
                else:
                    for poll in self.polls.waiting(topic, key):
                        if isinstance(poll, PullPoll):
                            self.serve_pull(poll)
        self.arm_timer()

    def serve_receives(self, topic: str, group: str, now: int) -> None:
        fruitless: set[tuple[type, str, str]] = set()  # filters, and attempts, that found nothing
        for poll in self.polls.waiting(topic, group):
            if not isinstance(poll, ReceivePoll):
                continue
            wanted = poll.request.filter
            kind = (type(wanted), wanted.expression, poll.request.attempt_id)
            if kind in fruitless:
                continue
            try:
                delivered, more = self.take(poll.request, now)
            except WhimbrelError as error:
                self.polls.remove(poll)
                poll.deferred.fail(error)
                continue
            if delivered:
                self.polls.remove(poll)
                if not answer(poll, delivered):
                    self.release_undelivered([one.handle for one in delivered])
                continue
            fruitless.add(kind)
            if more:
                self.wake(topic)
        if self.polls.has_key(topic, group):
            self.schedule_wakeup(group, topic, now)

    def serve_pull(self, poll: PullPoll) -> None:
        try:
            pulled, more = read_queue(self.store, poll.request, poll.position, follows=self.follows)
        except WhimbrelError as error:
            self.polls.remove(poll)
            poll.deferred.fail(error)
            return
        poll.position = pulled.next_offset
        if pulled.messages or more:
            self.polls.remove(poll)
            answer(poll, pulled)

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
        at = min(self.table.next_renewal(), self.wakeups[0][0] if self.wakeups else inf)
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
        self.lease_store.commit_best_effort(self.table.renewals_due(now, self.client_alive, self.wait_ms))
        while self.wakeups and self.wakeups[0][0] <= now:
            at, topic, group = heapq.heappop(self.wakeups)
            if self.wakeup_at.get((topic, group)) == at:
                del self.wakeup_at[topic, group]
                self.serve_receives(topic, group, now)
        for poll in self.polls.expired(now):
            answer_empty(poll)
        self.arm_timer()


def as_of_topic(delivered: Delivered, topic: str) -> Delivered:
    """Return a redelivery that RocketMQ appended to a retry topic as a message of the topic proper."""
    message = replace(delivered.message, topic=topic)
    return replace(delivered, message=message, attempt=delivered.attempt + message.reconsume_times)


def answer(poll: ReceivePoll | PullPoll, result: Any) -> bool:
    """Answer a parked poll; return False when its caller has gone or was answered before."""
    try:
        reply = poll.reply(result)
    except ValueError as error:  # text that protobuf does not take, in a record of other writers
        poll.deferred.fail(CorruptRecord(f"a record can't be delivered: {error}"))
        return True
    return poll.deferred.complete(reply)


def answer_empty(poll: ReceivePoll | PullPoll) -> None:
    answer(poll, [] if isinstance(poll, ReceivePoll) else Pulled([], poll.position))
