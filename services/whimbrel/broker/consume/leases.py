"""What all consumer groups hold, have finished and have not read yet: states that merge.

One `QueueLeases` (`queue_leases.py`) stands for one (group, topic, queue).

**Merging.** The state is a join-semilattice, and `LeaseTable.join` of entries is its only operation:
repeated and reordered entries do no harm, and two brokers that exchange all entries hold the same state.

    epoch   the greater wins, and everything of a smaller one is forgotten (reset, cut log, deleted group);
            `LeaseStore.next_epoch` says how they are counted where leaders change
    done    union
    leases  for each offset the greatest (serial, revision, visible time, ...); none where the offset is done
    orders  union; those of serials that hold nothing any more are dropped in time

A *serial* is new for every delivery and for every change of the invisible time, and grows everywhere: epoch
milliseconds in the upper 44 bits, then a counter of 14 bits, then 6 bits for the broker that made it, so
that no two deliveries share one even when a journal was lost. It is what a receipt handle is checked
against. A *revision* orders the changes that leave the handle valid (renewals, releases).

An *order* says under which attempt id the leases of a serial were taken (ordered groups only): a client that
did not get the answer asks again with the same id, and gets the same messages again. One that is lost, or
comes where nothing is known of its queue's epoch, costs such a client the wait for the visible time.

**Renewals.** What was handed out just before a broker died may never have reached its client, which lives on
and would have it renewed for hours. So who takes its leases over (`taken_over`) does not renew those of the
last `UNSURE_MS` before the newest one: they come again when their time is over. What was handed out earlier
has come, or its connection has broken before. That is done by a broker that starts, by a master again as it
begins to lead, when others have told what they know, and by a slave whose master is gone.

States that nobody uses are kept as bare positions (`resting.py`), and are made again when asked for.

The bytes of entries are in `lease_codec.py`. Times are epoch milliseconds and handed in. Writing entries
down before an answer leaves is the task of `lease_store.py`.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TypeAlias

from whimbrel.broker.consume.lease_codec import EntryEncoder, Lease, LeaseEntry, decode_entries
from whimbrel.broker.consume.queue_leases import (
    HAND_ON_LEASE_MS,
    RENEW_MS,
    Change,
    OrderChange,
    QueueLeases,
    WaitAfter,
    serial_ms,
)
from whimbrel.broker.consume.resting import Position, RestingPositions

__all__ = ["RELEASE_MS", "TAKEN_AHEAD_MS", "UNSURE_MS", "Judge", "LeaseTable"]

# When the messages of a client that has gone become visible; RocketMQ: the same.
RELEASE_MS = 1_000
# Of the last deliveries of a broker that has died: the answer to a receive may have been lost on its way. A
# client that gets none within its deadline, 20 s and a few, has broken the connection.
UNSURE_MS = 30_000
# Clocks may differ by so much; messages are held for as much longer then, at most.
TAKEN_AHEAD_MS = 5_000
# Leases that `taken_ahead` compares in one call, those of one state more at most: 6 ms for each 10,000.
COMPARED_AT_ONCE = 10_000

# Takes an entry and how many offsets of its queue are held; returns it, or None when it does not count.
Judge: TypeAlias = Callable[[LeaseEntry, int], LeaseEntry | None]


def by_clock(lease: Lease, now: int) -> Lease | None:
    """Return a lease that waits from now on, for one by a clock that is ahead; None where it is not.

    That clock was another broker's, or ours, and the visible time is that clock's:

        taken by it                                  waits for as long as it was to
        taken before, and renewed by it              waits until the next renewal
        taken before, and to be handed on by it      waits as such a message does
    """
    latest, serial_at = now + TAKEN_AHEAD_MS, serial_ms(lease.serial)
    taken_at = lease.taken_at
    if taken_at > latest:
        wait_ms = max(lease.visible_at - taken_at, 0)
        wait_ms = min(wait_ms, RENEW_MS) if lease.auto_renew else wait_ms
        taken_at = now
    elif lease.auto_renew and lease.visible_at > latest + RENEW_MS:
        wait_ms = RENEW_MS
    # One that is to be handed on keeps the time of its last delivery; its serial is of the time at which it
    # was held. Others that were taken by our clock may have a serial that is ahead as well.
    elif serial_at > latest and lease.visible_at == serial_at + HAND_ON_LEASE_MS and not lease.revision:
        wait_ms = HAND_ON_LEASE_MS
    else:
        return None
    return lease._replace(revision=lease.revision + 1, visible_at=now + wait_ms, taken_at=taken_at)


class LeaseTable:
    """All states of one broker."""

    def __init__(self, *, origin: int) -> None:
        """Start empty; `origin`, the broker id modulo 64, keeps serials apart from those of other brokers."""
        self.origin = origin & 0x3F
        self.serial = 0
        self.by_queue: dict[tuple[str, str, int], QueueLeases] = {}  # those at work
        self.resting = RestingPositions()
        self.clients: dict[str, set[QueueLeases]] = {}  # where a client may hold renewed leases
        self.renewals: list[
            tuple[float, int, QueueLeases]
        ] = []  # valid where the state's `renew_at` is the time
        self.renewal_count = 0  # orders renewals of equal time
        # Whose leases `taken_ahead` is to compare with the clock: those that came from elsewhere, or all.
        self.uncompared: dict[QueueLeases, None] = {}
        self.unsure = range(0)  # serials of deliveries that may not have arrived: they are not renewed

    def state(self, group: str, topic: str, queue_id: int) -> QueueLeases:
        """Return the state, new when there is none."""
        state = self.find(group, topic, queue_id)
        if state is None:
            state = self.by_queue[group, topic, queue_id] = QueueLeases(group, topic, queue_id)
        return state

    def find(self, group: str, topic: str, queue_id: int) -> QueueLeases | None:
        """Return the state, if there is one."""
        key = (group, topic, queue_id)
        state = self.by_queue.get(key)
        if state is None and (group, topic) in self.resting.by_pair:
            self.wake(group, topic)
            state = self.by_queue.get(key)
        return state

    def states(self, *, group: str | None = None, topic: str | None = None) -> list[QueueLeases]:
        """Return all states, or those of a group or of a topic; they no longer rest."""
        for pair in list(self.resting.by_pair):
            if pair[0] == (group or pair[0]) and pair[1] == (topic or pair[1]):
                self.wake(*pair)
        return [
            state
            for state in self.by_queue.values()
            if (group is None or state.group == group) and (topic is None or state.topic == topic)
        ]

    def positions(self) -> Iterator[tuple[str, str, Position]]:
        """Yield group, topic and position of all states, whether they rest or not.

        They may change meanwhile. On another thread, a position may be left out that just stops resting.
        """
        states, resting = list(self.by_queue.values()), self.resting.all()
        for state in states:
            committed = state.committed if state.started else -1
            yield state.group, state.topic, (state.queue_id, state.epoch, committed)
        yield from resting

    def position(self, group: str, topic: str, queue_id: int) -> Position | None:
        """Return one position, whether its state rests or not; None when there is no state."""
        state = self.by_queue.get((group, topic, queue_id))
        if state is None:
            return self.resting.position(group, topic, queue_id)
        return queue_id, state.epoch, state.committed if state.started else -1

    def rest(self, states: Sequence[QueueLeases]) -> None:
        """Let states of one group and topic rest, all of them `at_rest`; nobody may use the objects after."""
        group, topic = states[0].group, states[0].topic
        for state in states:
            del self.by_queue[group, topic, state.queue_id]
        self.resting.put(
            group, topic, [(one.queue_id, one.epoch, one.committed if one.started else -1) for one in states]
        )

    def wake(self, group: str, topic: str) -> None:
        for queue_id, epoch, committed in self.resting.take(group, topic):
            state = self.by_queue[group, topic, queue_id] = QueueLeases(group, topic, queue_id)
            state.reset(epoch)
            if committed >= 0:
                state.finish(0, committed)

    def next_serial(self, now: int) -> int:
        """Return a serial greater than all seen."""
        serial = now << 20 | self.origin
        if serial <= self.serial:
            serial = ((self.serial >> 6) + 1) << 6 | self.origin
        self.serial = serial
        return serial

    @staticmethod
    def encode(changes: list[Change], orders: Sequence[OrderChange] = ()) -> bytes:
        """Return the changes as entries."""
        entries = []
        for state, start, end, lease in changes:
            encoder, epoch = state.encoder, state.epoch
            entries.append(
                encoder.done(epoch, start, end) if lease is None else encoder.lease(epoch, start, end, lease)
            )
        if orders:
            entries += [state.encoder.order(state.epoch, order) for state, order in orders]
        return b"".join(entries)

    def apply(self, changes: list[Change], orders: Sequence[OrderChange] = ()) -> None:
        """Make the changes."""
        for state, start, end, lease in changes:
            if lease is None:
                state.finish(start, end)
            elif state.hold(start, end, lease) and lease.auto_renew:
                self.track_client(state, lease)
        for state, order in orders:
            state.note_order(order)

    def join(
        self,
        data: bytes,
        judge: Judge | None = None,
        *,
        end_of: Callable[[str, int], int] | None = None,
        no_greater_epoch: bool = False,
        refused: list[LeaseEntry] | None = None,
    ) -> bytes:
        """Merge entries; return those that changed something.

        Args:
            data: the entries.
            judge: decides which of them count, where they come from another process or from the disk.
            end_of: returns the end of a queue by topic and queue id; an entry beyond it is not merged, but
                added to `refused`. None where the log may lag behind the entries.
            no_greater_epoch: likewise, an entry of a greater epoch than is known here.
            refused: what was refused for one of both.

        Raises:
            CorruptRecord: they don't decode; nothing has changed.
        """
        changed = []
        for decoded in list(decode_entries(data)):
            if self.is_known_at_rest(decoded):
                continue
            new = self.position(decoded.group, decoded.topic, decoded.queue_id) is None
            found = None if new else self.find(decoded.group, decoded.topic, decoded.queue_id)
            if found is not None and decoded.epoch < found.epoch:
                continue
            held = len(found.leases) if found is not None else 0
            entry = decoded if judge is None else judge(decoded, held)
            if entry is None:
                continue
            ahead = no_greater_epoch and entry.epoch > (found.epoch if found is not None else 0)
            if ahead or (end_of is not None and entry.end > end_of(entry.topic, entry.queue_id)):
                if refused is not None:
                    refused.append(entry)
                continue
            if entry.order is not None:
                # Where nothing is known of the epoch nothing is held in it.
                if found is not None and entry.epoch == found.epoch and found.note_order(entry.order):
                    changed.append(entry.raw)
                continue
            if new and entry.lease is None and not entry.start:
                if self.resting.add(entry.group, entry.topic, (entry.queue_id, entry.epoch, entry.end)):
                    changed.append(entry.raw)
                continue
            state = found or self.state(entry.group, entry.topic, entry.queue_id)
            grown = entry.epoch > state.epoch
            if grown:
                state.reset(entry.epoch)
            if entry.lease is not None:
                self.serial = max(self.serial, entry.lease.serial)
                if state.hold(entry.start, entry.end, entry.lease):
                    self.track_client(state, entry.lease)
                    self.uncompared[state] = None
                    grown = True
            elif entry.end >= 0:
                grown = state.finish(entry.start, entry.end) or grown
            if grown:
                changed.append(entry.raw)
        return b"".join(changed)

    def is_known_at_rest(self, entry: LeaseEntry) -> bool:
        """Tell whether an entry says nothing new of a state that rests, and may go on to."""
        if entry.lease is not None:
            return False
        known = self.resting.position(entry.group, entry.topic, entry.queue_id)
        if known is None or entry.epoch > known[1]:
            return False
        return entry.epoch < known[1] or (entry.start >= 0 and entry.end <= known[2])

    def snapshot(self) -> Iterator[bytes]:
        """Yield the full state, one entry after the other; it may change meanwhile."""
        states, resting = list(self.by_queue.values()), self.resting.all()
        for state in states:
            yield from state.entries()
        for group, topic, (queue_id, epoch, committed) in resting:
            encoder = EntryEncoder(group, topic, queue_id)
            yield encoder.done(epoch, 0, committed) if committed >= 0 else encoder.epoch(epoch)

    def orders(self) -> Iterator[bytes]:
        """Yield the orders of what is held, as entries."""
        for state in self.by_queue.values():
            for order in state.held_orders():
                yield state.encoder.order(state.epoch, order)

    def released(self, client_id: str, group: str | None, now: int) -> list[Change]:
        """Return the changes that make what a client holds visible soon (of one group, or of all).

        Only of leases that the server renews; the others keep the time that the client requested.
        """
        changes: list[Change] = []
        for state in self.clients.get(client_id, set()):
            if group is not None and state.group != group:
                continue
            for start, stop, lease in state.lease_runs():
                if lease.client_id == client_id and lease.auto_renew:
                    visible_at = min(lease.visible_at, now + RELEASE_MS)
                    gone = lease._replace(
                        revision=lease.revision + 1, visible_at=visible_at, auto_renew=False
                    )
                    changes.append((state, start, stop, gone))
        return changes

    def compare_all(self) -> None:
        """Have `taken_ahead` look at all states again: the clock may have been set back."""
        self.uncompared |= dict.fromkeys(state for state in self.by_queue.values() if state.leases)

    def taken_ahead(self, now: int) -> list[Change]:
        """Return the changes that let what was taken ahead of the clock wait for its own time from now on.

        Some of what is `uncompared` is looked at in each call. Serials stay ahead once one was.
        """
        if serial_ms(self.serial) <= now + TAKEN_AHEAD_MS:
            self.uncompared.clear()
        changes: list[Change] = []
        compared = 0
        for state in list(self.uncompared):
            if compared >= COMPARED_AT_ONCE:
                break
            del self.uncompared[state]
            compared += len(state.leases)
            for start, stop, lease in state.lease_runs():
                if (ours := by_clock(lease, now)) is not None:
                    changes.append((state, start, stop, ours))
        return changes

    def taken_over(self) -> None:
        """Take the leases that are here for those of a broker that has died, perhaps of this one before.

        Called again, it adds those that have come since: what was unsure before still is.
        """
        newest = self.serial
        oldest = max(serial_ms(newest) - UNSURE_MS, 0) << 20
        self.unsure = range(min(self.unsure.start, oldest) if self.unsure else oldest, newest + 1)

    def renewals_due(self, now: int, alive: Callable[[str, str], bool], wait_ms: WaitAfter) -> list[Change]:
        """Return the renewals to make now; to be called again at `next_renewal`."""
        changes: list[Change] = []
        while self.renewals and self.renewals[0][0] <= now:
            at, _, state = heapq.heappop(self.renewals)
            if state.renew_at == at:
                changes += state.renewals_due(now, alive, wait_ms, self.unsure)
                state.renew_at = inf
                self.schedule_renewals(state)
        return changes

    def next_renewal(self) -> float:
        """Return when `renewals_due` should be called."""
        return self.renewals[0][0] if self.renewals else inf

    def forget_idle_clients(self) -> None:
        """Drop what is kept for clients that hold nothing any more."""
        self.clients.clear()
        for state in self.by_queue.values():
            for lease in set(state.leases.values()):
                self.track_client(state, lease)

    def track_client(self, state: QueueLeases, lease: Lease) -> None:
        if lease.auto_renew:
            holders = self.clients.get(lease.client_id)
            if holders is None:
                holders = self.clients[lease.client_id] = set()
            holders.add(state)
            self.schedule_renewals(state)

    def schedule_renewals(self, state: QueueLeases) -> None:
        at = state.next_renewal()
        if at < state.renew_at:
            state.renew_at = at
            self.renewal_count += 1
            heapq.heappush(self.renewals, (at, self.renewal_count, state))
