"""A settle: a consumer says what is to become of a message that it was given.

    acknowledge   held ──► done
    change        held ──► held under a new serial, until another time; the handle before is void
    forward       held ──► held for the copy ──► done, as soon as the dead letter is durable

A message is named by the receipt handle of one of its deliveries (`consume/handles.py`). Every change is
written down before it counts (`consume/lease_store.py`). The lane settles what it has found to be current by
the same steps as `acknowledge` (`settle_packed`). RocketMQ 4 has no such calls: there is one protocol, and no
value of its rules.

**A forward** gives a message up. Consumers in order ask for it, and repeat it every second until the answer
is OK, whatever the error. So OK is whatever leaves them nothing to do:

    done already, or the group's position was reset since    OK, nothing is stored
    the record is gone, or there is no such group or queue   OK, nothing is stored
    the delivery is over, and the message is not done        OK, it goes to the dead letters and is done
    no master, or it takes no writes                         50002: the SDK repeats it until there is one
    what is no receipt handle, or another one's              40013

**The answer** waits, where the leader is elected, for a majority that has the leases: whatever it says of a
message, a later leader says as well. So does an answer that changes nothing: what is done already may be done
here only. One that can't wait, or waits in vain, is an error, which says that nobody knows whether the settle
stays. Before the leader serves nothing is settled, since a handle may be of a delivery that is still to be
taken over.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from whimbrel.broker.consume.dead_letters import dead_letter
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.lease_codec import Lease
from whimbrel.broker.consume.plan import PendingHandOn
from whimbrel.broker.consume.queue_leases import HAND_ON_LEASE_MS, Change, QueueLeases, Standing, serial_ms
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.broker.engine.send import Majority
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    InvalidReceiptHandle,
    NotReady,
    NotWritable,
    StoreFull,
    WhimbrelError,
)
from whimbrel.model.limits import ACK_ENTRIES_MAX
from whimbrel.model.names import check_group, check_invisible_ms, check_topic
from whimbrel.model.topic import GroupConfig

__all__ = ["Acknowledged", "Changed", "Settles"]

Acknowledged: TypeAlias = list[InvalidReceiptHandle | None]  # what is wrong with each handle; None: nothing


class Changed(NamedTuple):
    """The answer to a change of the invisible time.

    Attributes:
        handle: the message's from now on; the one that was given, where nothing was changed.
        error: why nothing was changed; None where it was.
    """

    handle: str
    error: WhimbrelError | None = None


class Settles:
    """Decides settles, on the loop's thread."""

    def __init__(
        self,
        consumption: GroupConsumption,
        group_of: Callable[[str], GroupConfig | None],
        *,
        majority: Majority | None = None,
        not_serving: Callable[[], str] = str,
    ) -> None:
        """Take what is needed.

        Args:
            consumption: the leases, and what changes of them may bring something to.
            group_of: returns a group's configuration; None where there is none.
            majority: that is to have leases before who settles is answered; None where roles are configured.
            not_serving: returns why leases are not known here yet, "" once they are.
        """
        self.lease_store, self.table, self.now = consumption.lease_store, consumption.table, consumption.now
        self.handles, self.hand_ons = consumption.handles, consumption.hand_ons
        self.waiting, self.expect = consumption.waiting, consumption.expect
        self.group_of, self.majority, self.not_serving = group_of, majority, not_serving

    def acknowledge(
        self, group: str, topic: str, handles: Sequence[str]
    ) -> Acknowledged | Deferred[Acknowledged]:
        """Mark messages done; return what is wrong with each handle, None where nothing is.

        Acknowledging a finished message again is no error.

        Raises:
            BadRequest: there are no handles, or more than `ACK_ENTRIES_MAX`.
            IllegalTopic, IllegalGroup: there can't be such a name.
            NotReady: see `not_serving`; or the broker stops.
            StoreFull: it can't be written down; nothing was acknowledged.
        """
        if why := self.not_serving():
            raise NotReady(why)
        check_topic(topic)
        check_group(group)
        if not handles:
            raise BadRequest("the request acknowledges nothing")
        if len(handles) > ACK_ENTRIES_MAX:
            raise BadRequest(
                f"{len(handles)} acknowledgements in a request; at most {ACK_ENTRIES_MAX} are allowed"
            )
        now, check = self.now(), self.handles.check
        results: Acknowledged = []
        changes: list[Change] = []
        for text in handles:
            try:
                handle = ReceiptHandle.decode(text)
                state, standing = check(handle, group, topic, now)
            except InvalidReceiptHandle as error:
                results.append(error)
            else:
                results.append(None)
                if standing is not Standing.FINISHED:
                    changes.append((state, handle.offset, handle.offset + 1, None))
        if changes:
            self.finish(changes)
        return results if self.majority is None else self.majority.hold(results)

    def settle_packed(self, changes: list[Change]) -> bool:
        """Mark done what the lane has found to be current; return whether that is written down.

        It is not where the disk is full, or the broker stops: `acknowledge` says which, for the same handles.
        """
        try:
            self.finish(changes)
        except (NotReady, StoreFull):
            return False
        return True

    def finish(self, changes: list[Change]) -> None:
        """Mark messages done.

        Raises:
            NotReady, StoreFull: it can't be written down; nothing was done.
        """
        for state, *_ in changes:
            # Polls may wait because the group holds as many messages as it may.
            if len(state.leases) >= state.full_at:
                self.waiting.wake(state.topic)
        self.lease_store.commit(changes)

    def change(
        self, group: str, topic: str, handle: str, invisible_ms: int, *, suspend: bool
    ) -> Changed | Deferred[Changed]:
        """Set when a message becomes visible again.

        What is wrong with the request is in the answer, which has a handle whatever comes: clients overwrite
        theirs with it.

        Args:
            handle: the current receipt handle; it no longer counts afterwards.
            invisible_ms: from now on, 0 for at once.
            suspend: the delivery does not count as an attempt.

        Raises:
            NotReady: see `not_serving`.
        """
        if why := self.not_serving():
            raise NotReady(why)
        try:
            changed = Changed(self.hold_until(group, topic, handle, invisible_ms, suspend=suspend))
        except WhimbrelError as error:
            changed = Changed(handle, error)
        return changed if self.majority is None else self.majority.hold(changed)

    def hold_until(self, group: str, topic: str, text: str, invisible_ms: int, *, suspend: bool) -> str:
        """Do the same; return the new receipt handle.

        Raises:
            IllegalTopic, IllegalGroup, IllegalInvisibleTime: see the checks.
            InvalidReceiptHandle: the handle does not count, or its message is done.
            NotReady, StoreFull: it can't be written down.
        """
        check_topic(topic)
        check_group(group)
        check_invisible_ms(invisible_ms, changed=True)
        now = self.now()
        handle = ReceiptHandle.decode(text)
        state, standing = self.handles.check(handle, group, topic, now)
        if standing is Standing.FINISHED:
            raise InvalidReceiptHandle("the message is acknowledged already")
        serial = self.table.next_serial(now)
        lease = Lease(serial, 0, now + invisible_ms, now, handle.attempt - suspend, False, "")
        self.lease_store.commit([(state, handle.offset, handle.offset + 1, lease)])
        if not invisible_ms:
            self.waiting.wake(topic)
        else:
            self.expect(group, topic)
        return handle._replace(serial=serial).encode()

    def forward(self, group: str, topic: str, handle: str) -> Deferred[None]:
        """Hand a message on to the dead letters of its group; answer once it is done.

        Args:
            handle: any receipt handle of the message.

        Raises:
            CorruptRecord: the record does not decode.
            IllegalTopic, IllegalGroup: there can't be such a name.
            InvalidReceiptHandle: the handle is none, or of another broker, group or topic.
            NotReady: see `not_serving`; or the broker stops.
            NotWritable: nothing is appended here.
            StoreFull: it can't be written down.
        """
        if why := self.not_serving():
            raise NotReady(why)
        check_topic(topic)
        check_group(group)
        deferred: Deferred[None] = Deferred()
        one = self.given_up(group, topic, ReceiptHandle.decode(handle))
        if one is None:
            deferred.complete(None)
        else:
            self.lease_store.commit([(one.state, one.offset, one.offset + 1, one.lease)])
            self.hand_ons.begin(one, lambda error: deferred.settle(None, error))
        return deferred if self.majority is None else self.majority.hold_later(deferred)

    def given_up(self, group: str, topic: str, handle: ReceiptHandle) -> PendingHandOn | None:
        """Return the dead letter to make of a message, with the lease meanwhile; None: there is none to make.

        A delivery that is over makes no difference: a consumer has given the message up, whoever holds it
        now. Raises the errors of `forward`.
        """
        topic = self.handles.topic_of(handle, group, topic)
        if self.hand_ons.append is None:
            raise NotWritable("this broker takes no writes: forward to the master")
        state = self.table.find(group, topic, handle.queue_id)
        if state is None:
            over = not self.handles.exists(group, topic, handle.queue_id)
        else:
            over = handle.epoch != state.epoch or state.is_done(handle.offset)
        message = None if over else self.handles.message_of(handle)
        if message is None:
            return None
        state = state or self.table.state(group, topic, handle.queue_id)
        held = self.held_for_copy(state, handle)
        config = self.group_of(group) or GroupConfig(name=group)
        letter = dead_letter(config, message, held.attempt, attempts=max(held.attempt, 1))
        return PendingHandOn(state, state.epoch, handle.offset, held, message, letter)

    def held_for_copy(self, state: QueueLeases, handle: ReceiptHandle) -> Lease:
        """Return the lease of a message whose copy is awaited."""
        now = self.now()
        until = now + HAND_ON_LEASE_MS
        lease = state.leases.get(handle.offset)
        if lease is None:  # a delivery that only another broker, or a journal's lost tail, knows
            taken_at = min(serial_ms(handle.serial), now)
            return Lease(self.table.next_serial(now), 0, until, taken_at, handle.attempt, False, "")
        return lease._replace(
            revision=lease.revision + 1, visible_at=max(until, lease.visible_at), auto_renew=False
        )
