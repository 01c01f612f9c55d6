"""Delivery policies: which offsets of a queue may go out, in which order, as which attempt.

The planner asks the policy of a subscription (a group on a topic) for runs of offsets, scans them, and turns
what it finds into deliveries. A policy decides by the lease state. It reads no message, except to decide that
one is handed on to another topic instead of being delivered.

    begin ----> passes     each pass is asked for runs, one queue after the other, until it has none left or
      |                    the answer is full
      |----> hand_on       for each message found, where the policy has such a rule
      |----> unused        for runs that the answer had no room for
      '----> end           the plan is complete; the policy may add changes of its own
    rollback               the plan could not be written down: nothing of it happened

`UnorderedPolicy` is here; ordered groups have those of `ordered_policy.py` and `grouped_policy.py`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from whimbrel.broker.consume.plan import DeliveryPlan, HandOn, ReceiveRequest
from whimbrel.broker.consume.queue_leases import INFLIGHT_MAX, QueueLeases
from whimbrel.store.codec import StoredMessage
from whimbrel.store.scan import Scan

__all__ = ["DeliveryPolicy", "HandOnRule", "QueueCursor", "Run", "SelectRuns", "UnorderedPolicy"]

Run: TypeAlias = tuple[int, int, int]  # first offset, end offset, number of the attempt


class QueueCursor:
    """One queue of a subscription, and how far the current pass has come in it.

    Attributes:
        state: what the group holds and has finished. prefix: how receipt handles of the queue begin. low,
        high: the offsets that may go into this plan, end exclusive. position: the pass has been through what
        lies below. taken: messages that this pass took from the queue.
    """

    __slots__ = ("high", "low", "position", "prefix", "state", "taken")

    def __init__(self, state: QueueLeases, prefix: str) -> None:
        self.state, self.prefix = state, prefix
        self.low = self.high = self.position = self.taken = 0


# Returns the next runs of a queue, none when this pass is through with it. The scan tells for how many
# messages the answer has room, and how many entries should be walked for them (more, with a filter).
SelectRuns: TypeAlias = Callable[[QueueCursor, Scan], Sequence[Run]]
# Returns where a message goes instead of being delivered as this attempt; None when it is delivered.
HandOnRule: TypeAlias = Callable[[StoredMessage, int], HandOn | None]


class DeliveryPolicy(Protocol):
    """The decisions of one subscription. One plan is made at a time."""

    @property
    def hand_on(self) -> HandOnRule | None:
        """Return where a message goes instead of being delivered as this attempt; None when it is delivered.

        The attribute itself is None for a policy that hands nothing on.
        """

    @property
    def delivers_up_to(self) -> int:
        """The attempts up to which `hand_on` need not be asked, since all are delivered."""

    @property
    def stops_at_undone(self) -> bool:
        """Whether nothing behind an entry goes out that stays undone and is not delivered: a corrupt record,
        or one that is being handed on.
        """

    @property
    def full_at(self) -> int:
        """How many held messages of a queue make polls wait for one of them to be done."""

    def begin(self, request: ReceiveRequest, now: int) -> Sequence[SelectRuns]:
        """Start a plan; return its passes over the queues."""

    def unused(self, queue: QueueCursor, runs: Sequence[Run]) -> None:
        """Take back runs that were not walked."""

    def end(self, plan: DeliveryPlan) -> None:
        """Note a plan that is complete."""

    def rollback(self) -> None:
        """Undo what the last plan did to the lease state: its changes could not be written down."""

    def next_visible(self, state: QueueLeases, end: int) -> int | None:
        """Return when what is held below `end` is a reason to serve polls: 0 for now, None for never."""


class UnorderedPolicy:
    """Delivers whatever is visible.

    What was delivered before and is visible again comes first, unless the last answer held nothing else:
    then unread messages come first, since a few that always fail would keep all others back. They always do
    where priorities count, as in RocketMQ.
    """

    stops_at_undone = False
    full_at = INFLIGHT_MAX

    def __init__(self, hand_on: HandOnRule | None = None, *, delivers_up_to: int = 0) -> None:
        """Take the rule for what is handed on."""
        self.hand_on, self.delivers_up_to = hand_on, delivers_up_to
        self.now = 0
        self.unread_first = False
        self.popped: list[tuple[QueueLeases, list[int]]] = []

    def begin(self, request: ReceiveRequest, now: int) -> Sequence[SelectRuns]:
        """Start a plan; return its passes over the queues."""
        self.now = now
        self.popped.clear()
        if self.unread_first or request.by_priority:
            return self.unread, self.redeliveries
        return self.redeliveries, self.unread

    def redeliveries(self, queue: QueueCursor, scan: Scan) -> Sequence[Run]:
        """Select what was delivered before and is visible again."""
        state = queue.state
        while offsets := state.pop_ready(self.now, scan.room, queue.high):
            self.popped.append((state, offsets))
            runs: list[Run] = []
            for offset in offsets:
                if offset < queue.low:
                    continue  # done by the change that moves the group on
                attempt = state.leases[offset].attempt + 1
                if runs and runs[-1][1] == offset and runs[-1][2] == attempt:
                    runs[-1] = (runs[-1][0], offset + 1, attempt)
                else:
                    runs.append((offset, offset + 1, attempt))
            if runs:
                return runs
        return ()

    def unread(self, queue: QueueCursor, scan: Scan) -> Sequence[Run]:
        """Select what was never delivered."""
        state, room = queue.state, scan.room
        allowed = self.full_at - len(state.leases) - queue.taken
        if allowed < room:
            if allowed <= 0:
                return ()
            limit = min(allowed, scan.fetch_count())
        else:
            limit = scan.fetch_count()
        start, stop = state.next_unread(queue.position, limit, queue.high)
        return ((start, stop, 1),) if start < stop else ()

    def unused(self, queue: QueueCursor, runs: Sequence[Run]) -> None:
        """Take back runs that were not walked."""
        leases = queue.state.leases
        for start, stop, _ in runs:
            queue.state.return_ready([offset for offset in range(start, stop) if offset in leases])

    def end(self, plan: DeliveryPlan) -> None:
        """Note a plan that is complete."""
        attempts = plan.leases  # of what is delivered, by attempt
        self.unread_first = bool(attempts) and min(attempts) > 1

    def rollback(self) -> None:
        """Undo what the last plan did to the lease state."""
        for state, offsets in self.popped:
            state.return_ready(offsets)
        self.popped.clear()

    def next_visible(self, state: QueueLeases, end: int) -> int | None:
        """Return when a held message becomes visible: 0 for now, None when nothing is held."""
        return state.next_visible(end)
