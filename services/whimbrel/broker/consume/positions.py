"""Positions of groups: where each is on each queue, and how they are moved other than by acknowledging.

A new group begins at the earliest message kept. A group's position moves back only by `reset_offset` and
`clamp_to_log`, and where another broker told of positions that no log holds; each starts a new epoch of the
state and voids the receipt handles of the old one. Within an epoch positions only grow, and never beyond the
end of the queue: a position further on would count messages as done that are still to come.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from whimbrel.broker.consume.lease_codec import Lease
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.popped import Held
from whimbrel.broker.consume.queue_leases import INFLIGHT_MAX, Change, QueueLeases
from whimbrel.errors import IllegalOffset, OffsetNotFound
from whimbrel.model.cluster import GroupProgress
from whimbrel.store.scan import RecordSource

__all__ = ["Positions"]

logger = logging.getLogger(__name__)


class Positions:
    """Reads and moves positions; every move is written down before it counts."""

    def __init__(
        self,
        store: RecordSource,
        lease_store: LeaseStore,
        *,
        follows: bool,
        now_ms: Callable[[], int],
        wake: Callable[[str], None],
    ) -> None:
        """Take the lease state with its journal, and the log that bounds positions.

        Args:
            store: where the messages are. lease_store: see the module. follows: the log is another broker's.
            now_ms: the clock. wake: serves the polls of a topic soon.
        """
        self.store, self.follows = store, follows
        self.lease_store, self.table = lease_store, lease_store.table
        self.now, self.wake = now_ms, wake
        # Called with group, topic, queue id and the position of each reset.
        self.on_reset: Callable[[str, str, int, int], None] = lambda *place: None

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

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Put a group's position anywhere in the queue and forget its leases; return the old position.

        Raises:
            IllegalOffset: the offset lies outside the queue.
            StoreFull: it can't be written down.
        """
        self.check_offset(topic, queue_id, offset)
        state = self.table.state(group, topic, queue_id)
        before = state.committed if state.started else None
        self.lease_store.commit_entries(
            state.encoder.done(self.lease_store.next_epoch(state.epoch), 0, offset)
        )
        logger.info("%s on %s/%d was reset from %s to %d", group, topic, queue_id, before, offset)
        self.on_reset(group, topic, queue_id, offset)
        self.wake(topic)
        return before

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

    def unfinished(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many messages of a queue a group has not finished; all where it has read none."""
        low, high = self.store.queue_range(topic, queue_id)
        state = self.table.find(group, topic, queue_id)
        return high - low if state is None or not state.started else state.unfinished(high)

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

    def groups(self) -> set[str]:
        """Return the groups that have a position anywhere."""
        return {group for group, _, (_, _, committed) in self.table.positions() if committed >= 0}

    def clamp_to_log(self) -> int:
        """Forget the state of offsets that the log does not hold; return on how many queues.

        Call it when a master becomes writable, before the first append: a log that lost its tail gives
        those offsets to new messages, which must not count as delivered. A slave's log merely lags.
        """
        self.lease_store.end_of = self.queue_end
        found = self.beyond_log()
        for state, end in found:
            tell_forgotten(state, end)
            epoch = self.lease_store.next_epoch(state.epoch)
            self.lease_store.commit_entries(b"".join(state.entries(epoch, end)))
        return len(found)

    def forget_beyond_log(self) -> int:
        """Forget the same at a slave, for itself alone; return on how many queues.

        A log that got shorter is filled by a master, who may give those offsets to other messages: what is
        known of them must not be handed to it. It hands over what it knows itself. The journal's files still
        have what is forgotten: both are to be written anew.
        """
        found = self.beyond_log()
        for state, end in found:
            tell_forgotten(state, end)
            entries = b"".join(state.entries(state.epoch, end))
            state.reset(state.epoch)
            self.table.join(entries)
        return len(found)

    def beyond_log(self) -> list[tuple[QueueLeases, int]]:
        """Return the states that know offsets which the log does not hold, and where that ends."""
        found = []
        for group, topic, (queue_id, _, committed) in list(self.table.positions()):
            end = self.queue_end(topic, queue_id)
            known = self.table.by_queue.get((group, topic, queue_id))
            if (committed if known is None else known.next) <= end:
                continue
            found.append((self.table.state(group, topic, queue_id), end))
        return found

    def check_offset(self, topic: str, queue_id: int, offset: int) -> None:
        low, high = self.store.queue_range(topic, queue_id)
        if not 0 <= offset <= high:
            raise IllegalOffset(
                f"offset {offset} lies outside {topic}/{queue_id}, which holds {low} to {high}"
            )

    def queue_end(self, topic: str, queue_id: int) -> int:
        return self.store.queue_range(topic, queue_id)[1]


def tell_forgotten(state: QueueLeases, end: int) -> None:
    """Say that what a state knows beyond its log is forgotten."""
    logger.warning(
        "%s on %s/%d knew offsets up to %d, the log ends at %d: the rest is forgotten",
        state.group, state.topic, state.queue_id, state.next, end,
    )  # fmt: skip
