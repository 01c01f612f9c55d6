"""The consuming half of a broker, in the model's terms: what it is made of, and what concerns all of it.

    what becomes of leases by themselves       `lease_upkeep.py`      LeaseUpkeep
    what a receipt handle stands for           `handles.py`           Handles
    hand on to the dead letters                `hand_ons.py`          HandOns
    positions: read, commit, reset, adopt      `positions.py`         Positions
    what a receive gets                        `delivery_planner.py`  DeliveryPlanner

Callers use the parts; none of them keeps a second copy of what another one owns. The lease state has one
owner, `lease_store.py`: it changes once the change is written down. What becomes of messages says whoever was
given them (`engine/settle.py`). Receives wait elsewhere (`engine/waiting.py`); changes that may bring them
something wake them.

Everything runs on one thread. Times are epoch milliseconds from the clock handed in; `schedule(at_ms, fn)`
calls `fn` once on the same thread at that time, or soon (never within the call) when it has passed.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from whimbrel.broker.consume.delivery_planner import UNORDERED, DeliveryPlanner, PolicyFactory
from whimbrel.broker.consume.hand_ons import HandOnAppend, HandOns
from whimbrel.broker.consume.handles import Handles
from whimbrel.broker.consume.lease_store import Journal, LeaseStore
from whimbrel.broker.consume.lease_upkeep import LeaseUpkeep
from whimbrel.broker.consume.positions import Positions
from whimbrel.broker.consume.queue_leases import QueueLeases, WaitAfter
from whimbrel.broker.consume.retry_topics import Pair, RetryTopics
from whimbrel.broker.consume.waiters import Waiters
from whimbrel.model.retry import DEFAULT_POLICY
from whimbrel.store.scan import RecordSource

__all__ = ["GroupConsumption"]

# After this time without a receive a group's state on a topic rests, if nothing is held.
IDLE_MS = 60_000
# Pairs of group and topic that `sweep` looks at in one call: a few milliseconds.
RESTED_AT_ONCE = 100
# When what is held should be visible already, and a receive got none of it, it is looked at again.
LOOK_AGAIN_MS = 100


def always(group: str, topic: str, queue_id: int) -> bool:
    return True


def default_wait_ms(group: str, attempt: int) -> int:
    return DEFAULT_POLICY.wait_ms(attempt)


class GroupConsumption:
    """Serves consumers from one store and one lease state, through its parts."""

    def __init__(
        self,
        store: RecordSource,
        journal: Journal,
        waiting: Waiters,
        *,
        broker_name: str,
        broker_id: int,
        now_ms: Callable[[], int],
        schedule: Callable[[int, Callable[[], None]], object],
        client_alive: Callable[[str, str], bool],
        follows: bool = False,
        exists: Callable[[str, str, int], bool] = always,
        hand_on: HandOnAppend | None = None,
        policy_of: PolicyFactory = UNORDERED,
        wait_ms: WaitAfter = default_wait_ms,
    ) -> None:
        """Prepare; call `open` next.

        Args:
            store: where the messages are. journal: where changes are written down.
            waiting: receives that wait.
            broker_name: shared by a master and its slaves. broker_id: keeps delivery serials apart from those
            of the other brokers of that name.
            now_ms: the clock. schedule: calls a function once at a time, on this thread.
            client_alive: returns by group and client id whether the client was active lately.
            follows: the log is another broker's (a slave): it may lag behind the lease state.
            exists: returns whether there is such a group, and a topic with such a queue; an acknowledgement
            without lease state here counts only then.
            hand_on: appends messages that a policy hands on to other topics; None where nothing can be
            appended (a slave): such messages are held back. May be changed later (`hand_ons.append`).
            policy_of: makes the delivery policies of groups on topics.
            wait_ms: how long a message waits whose lease was renewed for as long as it may be.
        """
        self.store, self.waiting, self.now, self.follows = store, waiting, now_ms, follows
        self.lease_store = LeaseStore(journal, broker_id=broker_id, now_ms=now_ms)
        self.table = self.lease_store.table
        self.planner = DeliveryPlanner(self.table, store, broker_name, policy_of=policy_of)
        self.retry_topics: dict[Pair, tuple[tuple[str, int], ...]] = {}  # the parts read it
        self.handles = Handles(
            store, self.table, self.retry_topics, broker_name=broker_name, follows=follows, exists=exists
        )
        wake = waiting.wake
        self.hand_ons = HandOns(self.lease_store, append=hand_on, now_ms=now_ms, wake=wake)
        self.upkeep = LeaseUpkeep(
            self.lease_store,
            waiting,
            expect=self.expect,
            now_ms=now_ms,
            schedule=schedule,
            client_alive=client_alive,
            wait_ms=wait_ms,
        )
        self.positions = Positions(store, self.lease_store, follows=follows, now_ms=now_ms, wake=wake)
        self.lease_store.on_merged = self.merged
        self.to_rest: dict[tuple[str, str], list[QueueLeases]] = {}  # what `sweep` has not looked at yet
        self.look_at = 0  # when it looks at all states again

    def open(self) -> None:
        """Load the lease state and begin to write it down."""
        self.lease_store.open()
        self.table.taken_over()
        while self.to_rest or self.table.uncompared or not self.look_at:
            self.sweep()
        self.upkeep.arm_renewals()

    def close(self) -> None:
        """Have nothing renewed and handed on any more, and close the journal."""
        self.upkeep.close()
        self.hand_ons.closed = True
        self.lease_store.close()

    def merged(self) -> None:
        """Take note of changes by other brokers."""
        self.waiting.wake_all()
        self.upkeep.arm_renewals()

    def expect(self, group: str, topic: str) -> None:
        """Have a group's receives that wait looked at when its next held message becomes visible."""
        if not self.waiting.has(topic, group):
            return
        names = (topic, *(name for name, _ in self.retry_topics.get((group, topic), ())))
        times = [at for name in names if (at := self.planner.next_visible(group, name)) is not None]
        if times:
            in_ms = min(times) - self.now()
            self.waiting.visit((topic, group), in_ms if in_ms > 0 else LOOK_AGAIN_MS)

    def read_beside(self, retry_topics: RetryTopics) -> None:
        """Have receives read these topics from now on, beside those that they name."""
        self.retry_topics.clear()
        self.retry_topics.update(retry_topics)

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

    def forget(self, states: Sequence[QueueLeases]) -> None:
        next_epoch = self.lease_store.next_epoch
        entries = b"".join(state.encoder.epoch(next_epoch(state.epoch)) for state in states if state.started)
        if entries:
            self.lease_store.commit_entries(entries)

    def groups_changed(self) -> None:
        """Take note of groups whose configuration has changed."""
        for _, topic in self.planner.refresh():
            self.waiting.wake(topic)

    def renew_policies(self) -> None:
        """Forget what policies know, and serve the polls that wait: other ones may get something now."""
        self.planner.subscriptions.clear()
        self.waiting.wake_all()

    def sweep(self) -> None:
        """Keep compactly what nobody uses, and correct times of clocks that are ahead: some in each call.

        To be called about once a second.
        """
        now = self.now()
        # Also when the clock was set back since.
        if not self.to_rest and not self.look_at - IDLE_MS <= now < self.look_at:
            self.look_at = now + IDLE_MS
            self.table.forget_idle_clients()
            self.table.compare_all()
            for state in self.table.by_queue.values():
                self.to_rest.setdefault((state.group, state.topic), []).append(state)
        if self.follows:
            self.table.uncompared.clear()  # its master's clock counts
        else:
            self.upkeep.correct_times()
        since = now - IDLE_MS
        for group, topic in list(islice(self.to_rest, RESTED_AT_ONCE)):
            states = self.to_rest.pop((group, topic))
            if (
                self.planner.is_idle(group, topic, since)
                and not self.waiting.has(topic, group)
                and all(state.at_rest for state in states)
            ):
                self.planner.drop(group, topic)
                self.table.rest(states)
