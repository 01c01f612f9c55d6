"""The consuming half of a broker: receive, acknowledge, pull, positions, in the model's terms.

Joins the lease state (`leases.py`, written down by `lease_store.py`), the choice of messages (`taking.py`,
`pulling.py`) and the parked polls (`holds.py`).

Everything runs on one thread. Times are epoch milliseconds from the clock handed in; `schedule(at_ms, fn)`
calls `fn` once on the same thread at that time, or soon (never within the call) when it has passed.

A new group begins at the earliest message kept. A group's position moves back only by `update_offset`,
`reset_offset` and `clamp_to_log`, all of which start a new epoch of the state and void the receipt handles
of the old one.
"""

import heapq
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from whimbrel.broker.consume.delivery_planner import Delivered, DeliveryPlanner, ReceiveRequest, RecordSource
from whimbrel.broker.consume.lease_codec import Lease
from whimbrel.broker.consume.lease_store import Journal, LeaseStore
from whimbrel.broker.consume.leases import INFLIGHT_MAX, Change, QueueLeases, Standing
from whimbrel.broker.consume.long_polls import POLLS_MAX, LongPolls
from whimbrel.broker.consume.pull import Pulled, PullRequest, read_queue
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    IllegalInvisibleTime,
    IllegalOffset,
    InvalidReceiptHandle,
    OffsetNotFound,
    StoreFull,
    WhimbrelError,
)
from whimbrel.model.cluster import GroupProgress
from whimbrel.model.limits import INVISIBLE_MS_MAX, INVISIBLE_MS_MIN

__all__ = [
    "Delivered",
    "GroupConsumption",
    "PullRequest",
    "Pulled",
    "ReceiveRequest",
]

# RocketMQ's limits of a receive's invisible duration. A change of it may be shorter, down to "at once".
# When a line whose state says "something is visible" yielded nothing, it is looked at again after this time.
LOOK_AGAIN_MS = 100

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Receive:
    wish: ReceiveRequest
    deadline_ms: int
    deferred: Deferred[list[Delivered]] = field(default_factory=Deferred)

    @property
    def topic(self) -> str:
        return self.wish.topic

    @property
    def line(self) -> str:
        return self.wish.group


@dataclass(eq=False, slots=True)
class Pull:
    wish: PullRequest
    deadline_ms: int
    position: int  # what lies between the wish's offset and here does not match
    deferred: Deferred[Pulled] = field(default_factory=Deferred)

    @property
    def topic(self) -> str:
        return self.wish.topic

    @property
    def line(self) -> int:
        return self.wish.queue_id


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
    ) -> None:
        """Prepare; call `open` next.

        Args:
            store: where the messages are. journal: where changes are written down. broker_name: shared by a
            master and its slaves. broker_id: keeps delivery serials apart from those of the other brokers
            of that name. now_ms: the clock. schedule: calls a function once at a time, on this thread.
            client_alive: tells by group and client id whether the client was heard lately. follows: the log
            is another broker's (a slave): it may lag behind the lease state. May be changed later.
            polls_max: parked polls at most.
        """
        self.follows = follows
        self.store = store
        self.broker_name = broker_name
        self.now, self.schedule, self.client_alive = now_ms, schedule, client_alive
        self.lease_store = LeaseStore(journal, broker_id=broker_id)
        self.lease_store.on_merged = self.merged
        self.table = self.lease_store.table
        self.taker = DeliveryPlanner(self.table, store, broker_name)
        self.holds: LongPolls[Receive | Pull] = LongPolls(polls_max=polls_max)
        self.dirty: dict[str, None] = {}  # topics whose polls may find something; a dict as an ordered set
        self.watches: list[tuple[int, str, str]] = []  # (time, topic, group): a held message becomes visible
        self.watched: dict[tuple[str, str], int] = {}  # which of `watches` count
        self.armed_at: float = inf
        self.armed_turn = 0

    def open(self) -> None:
        """Load the lease state and begin to write it down."""
        self.lease_store.open()
        self.arm()

    def close(self) -> None:
        """Answer all parked polls with nothing, and close the journal."""
        for topic in self.holds.topics():
            for key in self.holds.lines(topic):
                for poll in self.holds.line(topic, key):
                    self.holds.leave(poll)
                    answer_empty(poll)
        self.armed_turn += 1
        self.lease_store.close()

    @property
    def parked(self) -> int:
        """How many polls are parked."""
        return len(self.holds)

    # Receiving

    def receive(self, wish: ReceiveRequest, *, poll_ms: int) -> list[Delivered] | Deferred[list[Delivered]]:
        """Take messages, or wait for some; the answer is empty when none came within `poll_ms`.

        Raises:
            IllegalInvisibleTime: the invisible time is out of bounds.
            StoreFull: the leases can't be written down.
            Throttled: too many polls are parked.
        """
        if wish.invisible_ms is not None and not INVISIBLE_MS_MIN <= wish.invisible_ms <= INVISIBLE_MS_MAX:
            raise IllegalInvisibleTime(
                f"the invisible duration must be from 10 s to 12 h, not {wish.invisible_ms / 1000:g} s"
            )
        now = self.now()
        delivered, more = self.take(wish, now)
        if delivered or poll_ms <= 0:
            return delivered
        poll = Receive(wish, now + poll_ms)
        self.park(poll, poll.deferred)
        if more:
            self.wake(wish.topic)
        self.watch(wish.group, wish.topic, now)
        self.arm()
        return poll.deferred

    def give_back(self, handles: Sequence[str]) -> None:
        """Make messages visible again whose answer did not get out; that delivery does not count."""
        now = self.now()
        changes: list[Change] = []
        for text in handles:
            handle = ReceiptHandle.decode(text)
            state = self.table.find(handle.group, handle.topic, handle.queue_id)
            lease = state.leases.get(handle.offset) if state is not None else None
            if state is None or lease is None or lease.serial != handle.serial or handle.epoch != state.epoch:
                continue
            back = lease._replace(
                revision=lease.revision + 1,
                visible_at=now,
                attempt=max(lease.attempt - 1, 0),
                auto_renew=False,
            )
            changes.append((state, handle.offset, handle.offset + 1, back))
            self.wake(handle.topic)
        self.lease_store.commit_anyway(changes)

    def on_arrival(self, topic: str, queue_id: int, offset: int, tags_code: int) -> None:
        """Hear of a new message; what `MessageStore.on_arrival` wants."""
        if topic not in self.dirty and self.holds.waits(topic):
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
                state, standing = self.check(handle, group, topic, now)
            except InvalidReceiptHandle as error:
                results.append(error)
                continue
            results.append(None)
            if standing is not Standing.FINISHED:
                changes.append((state, handle.offset, handle.offset + 1, None))
                if len(state.leases) >= INFLIGHT_MAX:
                    self.wake(topic)
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
            invisible_ms: from now on.
            suspend: the delivery does not count as an attempt.

        Raises:
            IllegalInvisibleTime: below 0 or above 12 hours.
            InvalidReceiptHandle: the handle does not count, or its message is done.
            StoreFull: it can't be written down.
        """
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise IllegalInvisibleTime(
                f"the invisible duration must be from 0 to 12 h, not {invisible_ms / 1000:g} s"
            )
        now = self.now()
        handle = ReceiptHandle.decode(handle_text)
        state, standing = self.check(handle, group, topic, now)
        if standing is Standing.FINISHED:
            raise InvalidReceiptHandle("the message is acknowledged already")
        serial = self.table.next_serial(now)
        attempt = handle.attempt - suspend
        self.lease_store.commit(
            [
                (
                    state,
                    handle.offset,
                    handle.offset + 1,
                    Lease(serial, 0, now + invisible_ms, now, attempt, False, ""),
                )
            ]
        )
        if not invisible_ms:
            self.wake(topic)
        elif self.holds.parked(topic, group):
            self.watch(group, topic, now)
            self.arm()
        return handle._replace(serial=serial).encode()

    def release_client(self, client_id: str, group: str | None = None) -> None:
        """Make what a client that has gone holds visible within about a second; of one group, or of all."""
        now = self.now()
        changes = self.table.released(client_id, group, now)
        self.lease_store.commit_anyway(changes)
        for state in {change[0] for change in changes}:
            if self.holds.parked(state.topic, state.group):
                self.watch(state.group, state.topic, now)
        self.arm()

    # Pulling and positions

    def pull(self, wish: PullRequest, *, poll_ms: int) -> Pulled | Deferred[Pulled]:
        """Read one queue from an offset on, or wait for a message there; no lease, no acknowledgement.

        Raises:
            CorruptRecord: the first record there does not decode.
            IllegalOffset: the offset lies outside the queue.
            Throttled: too many polls are parked.
        """
        pulled, more = read_queue(self.store, wish, wish.offset, follows=self.follows)
        if pulled.messages or more or poll_ms <= 0:
            return pulled
        poll = Pull(wish, self.now() + poll_ms, pulled.next_offset)
        self.park(poll, poll.deferred)
        self.arm()
        return poll.deferred

    def update_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit a position: forward marks everything before it done, backward is a reset."""
        state = self.table.state(group, topic, queue_id)
        if not self.follows or offset < 0:
            self.check_offset(topic, queue_id, offset)
        if state.started and offset < state.committed:
            self.reset_offset(group, topic, queue_id, offset)
        elif not state.started or offset > state.committed:
            self.lease_store.commit([(state, 0, offset, None)])
            self.wake(topic)

    def get_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the group's committed offset; raises OffsetNotFound when it has none."""
        state = self.table.find(group, topic, queue_id)
        if state is None or not state.started:
            raise OffsetNotFound(f"group {group} has no offset on {topic}/{queue_id}")
        return state.committed

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
        self.lease_store.commit_entries(state.names.done(state.epoch + 1, 0, offset))
        logger.info("%s on %s/%d was reset from %s to %d", group, topic, queue_id, before, offset)
        self.wake(topic)
        return before

    def import_offset(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Take over a position from RocketMQ's consumerOffset.json; return False when ours is better.

        Our own exports never lie ahead of our state, so a greater offset is RocketMQ's. Not once a position
        was reset or a group deleted here: the file may be older than that.
        """
        state = self.table.state(group, topic, queue_id)
        if state.epoch or (state.started and offset <= state.committed):
            return False
        # On a full disk the file still has it, and the next start takes it over again.
        self.lease_store.commit_anyway([(state, 0, offset, None)])
        return True

    def committed_offsets(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return every group's committed offsets: by (topic, group), by queue."""
        offsets: dict[tuple[str, str], dict[int, int]] = {}
        for state in self.table.states():
            if state.started:
                offsets.setdefault((state.topic, state.group), {})[state.queue_id] = state.committed
        return offsets

    def progress(
        self, group: str, queues_of: Callable[[str], Iterable[int]] = lambda topic: ()
    ) -> list[GroupProgress]:
        """Return how far a group is on every queue of the topics that it reads.

        Args:
            queues_of: the queues of a topic. Where the group has taken nothing yet, it begins at the queue's
                first message.
        """
        found = {
            (state.topic, state.queue_id): self.progress_of(state)
            for state in self.table.states()
            if state.group == group and state.started
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
        return {state.group for state in self.table.states() if state.started}

    def delete_group(self, group: str) -> None:
        """Forget a group's positions and leases.

        The other brokers hear of it through their streams: a slave that sees the group vanish from its
        metadata must not call this too, since it would wipe what the group has done since it was made anew.
        """
        self.forget([state for state in self.table.states() if state.group == group])
        self.taker.forget(group, None)

    def delete_topic(self, topic: str) -> None:
        """Forget all groups' positions and leases on a topic; slaves as with `delete_group`."""
        self.forget([state for state in self.table.states() if state.topic == topic])
        self.taker.forget(None, topic)

    def clamp_to_log(self) -> int:
        """Cut what the state says about messages that the log does not hold; return on how many queues.

        Call it when a master becomes writable, before the first append: a log that lost its tail gives
        those offsets to new messages, which must not count as delivered. A slave's log merely lags.
        """
        cut = 0
        for state in self.table.states():
            end = self.store.queue_range(state.topic, state.queue_id)[1]
            if state.next > end:
                logger.warning("%s on %s/%d knew offsets up to %d, the log ends at %d: the rest is forgotten",
                            state.group, state.topic, state.queue_id, state.next, end)  # fmt: skip
                self.lease_store.commit_entries(b"".join(state.entries(state.epoch + 1, end)))
                cut += 1
        return cut

    # Inside: changes

    def take(self, wish: ReceiveRequest, now: int) -> tuple[list[Delivered], bool]:
        plan = self.taker.plan(wish, now)
        if plan.changes:
            try:
                self.lease_store.commit(plan.changes)
            except StoreFull:
                plan.undo()
                raise
            if wish.invisible_ms is None and plan.delivered:
                self.arm()
        return plan.delivered, plan.more

    def forget(self, states: Sequence[QueueLeases]) -> None:
        entries = b"".join(state.names.epoch(state.epoch + 1) for state in states if state.started)
        if entries:
            self.lease_store.commit_entries(entries)

    # Inside: checks and reads

    def check(self, handle: ReceiptHandle, group: str, topic: str, now: int) -> tuple[QueueLeases, Standing]:
        if handle.broker_name != self.broker_name or handle.group != group or handle.topic != topic:
            raise InvalidReceiptHandle("the receipt handle belongs to another broker, group or topic")
        state = self.table.find(group, topic, handle.queue_id)
        if state is not None:
            standing = state.standing(handle, now)
            if standing is not Standing.UNKNOWN:
                return state, standing
        # A delivery that only the other side, or a journal's lost tail, knows of: the record must at least
        # be there.
        low, high = self.store.queue_range(topic, handle.queue_id)
        if handle.offset < high:
            if handle.offset >= low:
                unit = self.store.queue_units(topic, handle.queue_id, handle.offset, 1)
                if not unit or unit[0][:2] != (handle.physical_offset, handle.size):
                    raise InvalidReceiptHandle("the receipt handle does not fit the message at its offset")
        elif not self.follows:
            raise InvalidReceiptHandle("the receipt handle names a message that the log does not hold")
        return state or self.table.state(group, topic, handle.queue_id), Standing.UNKNOWN

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

    def park(self, poll: Receive | Pull, deferred: Deferred[list[Delivered]] | Deferred[Pulled]) -> None:
        self.holds.park(poll)

        def leave() -> None:
            self.holds.leave(poll)

        deferred.on_cancel = leave

    def merged(self) -> None:
        for topic in self.holds.topics():
            self.wake(topic)
        self.arm()

    def wake(self, topic: str) -> None:
        """Serve the topic's polls soon."""
        if not self.holds.waits(topic):
            return
        if not self.dirty:
            self.schedule(self.now(), self.serve_dirty)
        self.dirty[topic] = None

    def serve_dirty(self) -> None:
        now = self.now()
        topics, self.dirty = self.dirty, {}
        for topic in topics:
            for key in self.holds.lines(topic):
                if isinstance(key, str):
                    self.serve_receives(topic, key, now)
                else:
                    for poll in self.holds.line(topic, key):
                        if isinstance(poll, Pull):
                            self.serve_pull(poll)
        self.arm()

    def serve_receives(self, topic: str, group: str, now: int) -> None:
        fruitless: set[str] = set()  # filters for which there is nothing
        for poll in self.holds.line(topic, group):
            if not isinstance(poll, Receive) or poll.wish.filter.expression in fruitless:
                continue
            try:
                delivered, more = self.take(poll.wish, now)
            except WhimbrelError as error:
                self.holds.leave(poll)
                poll.deferred.fail(error)
                continue
            if delivered:
                self.holds.leave(poll)
                if not poll.deferred.complete(delivered):
                    self.give_back([one.handle for one in delivered])
                continue
            fruitless.add(poll.wish.filter.expression)
            if more:
                self.wake(topic)
        if self.holds.parked(topic, group):
            self.watch(group, topic, now)

    def serve_pull(self, poll: Pull) -> None:
        try:
            pulled, more = read_queue(self.store, poll.wish, poll.position, follows=self.follows)
        except WhimbrelError as error:
            self.holds.leave(poll)
            poll.deferred.fail(error)
            return
        poll.position = pulled.next_offset
        if pulled.messages or more:
            self.holds.leave(poll)
            poll.deferred.complete(pulled)

    def watch(self, group: str, topic: str, now: int) -> None:
        """See to it that the line is served when its next held message becomes visible."""
        at: int | None = None
        for queue_id, (state, _) in self.taker.line(group, topic).queues.items():
            visible_at = state.next_visible(self.store.queue_range(topic, queue_id)[1])
            if visible_at is not None and (at is None or visible_at < at):
                at = visible_at
        if at is None:
            return
        if at <= now:
            at = now + LOOK_AGAIN_MS
        key = (topic, group)
        if at < self.watched.get(key, inf):
            self.watched[key] = at
            heapq.heappush(self.watches, (at, topic, group))

    def arm(self) -> None:
        """Have `tick` called when something is due."""
        at = min(self.table.next_renewal(), self.watches[0][0] if self.watches else inf)
        deadline = self.holds.next_deadline()
        if deadline is not None and deadline < at:
            at = deadline
        if at < self.armed_at:
            self.armed_at = at
            self.armed_turn = turn = self.armed_turn + 1
            self.schedule(int(at), lambda: self.tick(turn))

    def tick(self, turn: int) -> None:
        if turn != self.armed_turn:
            return  # another one was armed for an earlier time
        self.armed_at = inf
        now = self.now()
        self.lease_store.commit_anyway(self.table.renewals_due(now, self.client_alive))
        while self.watches and self.watches[0][0] <= now:
            at, topic, group = heapq.heappop(self.watches)
            if self.watched.get((topic, group)) == at:
                del self.watched[topic, group]
                self.serve_receives(topic, group, now)
        for poll in self.holds.expired(now):
            answer_empty(poll)
        self.arm()


def answer_empty(poll: Receive | Pull) -> None:
    if isinstance(poll, Receive):
        poll.deferred.complete([])
    else:
        poll.deferred.complete(Pulled([], poll.position))
