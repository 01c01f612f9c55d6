"""Messages that go to another topic instead of to a consumer: those used up or given up, to the dead letters.

    held (lease of `HAND_ON_LEASE_MS`) --append--> copy durable --> done
         ^                                 |
         '-------- its time is over <------'  not appended: the next receive hands it on again
                                           |
                                           '-> set aside: it can never be appended, so it is done

The lease is written down before the copy is appended, and the message is done only once the copy is durable.
A crash in between finds the copy when the message's turn comes again (`produce/dead_letters.py`). What no
record can hold (NEVER), as of a store whose limits were others, would come again for ever, and block its
queue where that is in order: it is set aside with an ERROR, and stays in its topic.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

from whimbrel.broker.consume.handles import Handles
from whimbrel.broker.consume.lease_codec import Lease
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.plan import HandOn, PendingHandOn
from whimbrel.broker.consume.queue_leases import HAND_ON_LEASE_MS, serial_ms
from whimbrel.broker.consume.rare_warning import RareWarning
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.errors import (
    IllegalTopic,
    MessageTooLarge,
    NotWritable,
    PropertiesTooLarge,
    WhimbrelError,
)
from whimbrel.store.codec import StoredMessage

__all__ = ["Done", "GivenUp", "HandOnAppend", "HandOns"]

Done: TypeAlias = Callable[[WhimbrelError | None], None]
# Appends a copy of a message elsewhere, unless there is one that was stored since a time (ms), and calls back
# with None once it is durable, or with what went wrong; perhaps before it returns. Never raises.
HandOnAppend: TypeAlias = Callable[[StoredMessage, HandOn, int, Done], None]
# Makes a dead letter of a message that was delivered so often.
GivenUp: TypeAlias = Callable[[StoredMessage, int], HandOn]

NEVER = (MessageTooLarge, PropertiesTooLarge, IllegalTopic)

logger = logging.getLogger(__name__)


class HandOns:
    """Hands messages on, and marks them done.

    Attributes:
        append: appends the copies; None where nothing can be appended (a slave): such messages are held
            back. May be changed.
    """

    def __init__(
        self,
        lease_store: LeaseStore,
        handles: Handles,
        *,
        append: HandOnAppend | None,
        now_ms: Callable[[], int],
        wake: Callable[[str], None],
    ) -> None:
        """Take the lease state with its journal, and `wake`, which serves the polls of a topic soon."""
        self.lease_store, self.table, self.handles = lease_store, lease_store.table, handles
        self.append = append
        self.now, self.wake = now_ms, wake
        self.closed = False
        self.warning = RareWarning(HAND_ON_LEASE_MS)

    def begin(self, one: PendingHandOn) -> None:
        """Append the copy of a message whose lease is written down."""
        if self.append is None:
            return  # held back: its lease ends, and the next broker that can append hands it on

        def done(error: WhimbrelError | None) -> None:
            if error is None or self.sets_aside(one, error):
                self.finish(one)
                return
            self.warn(one, error)

        self.append(one.message, one.target, one.lease.taken_at, done)

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
        topic = self.handles.topic_of(handle, group, topic)
        if self.append is None:
            raise NotWritable("this broker takes no writes: forward to the master")
        offset = handle.offset
        state = self.table.find(group, topic, handle.queue_id)
        known = state is not None or self.handles.exists(group, topic, handle.queue_id)
        if not known or (state is not None and (handle.epoch != state.epoch or state.is_done(offset))):
            done(None)
            return
        message = self.handles.message_of(handle)
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
            if error is not None and self.sets_aside(one, error):
                error = None
            if error is None:
                self.finish(one, whoever_holds_it=True)
            done(error)

        self.append(message, one.target, held.taken_at, confirmed)

    def finish(self, one: PendingHandOn, *, whoever_holds_it: bool = False) -> None:
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

    def sets_aside(self, one: PendingHandOn, error: WhimbrelError) -> bool:
        """Return whether no copy can ever be made, and say so."""
        if not isinstance(error, NEVER):
            return False
        state = one.state
        logger.error("%s/%d offset %d is no dead letter of %s, and no longer delivered to it, since no record"
                    " can hold its copy: it stays in its topic, at %d of the log: %s", state.topic,
                    state.queue_id, one.offset, state.group, one.message.physical_offset, error)  # fmt: skip
        return True

    def warn(self, one: PendingHandOn, error: WhimbrelError) -> None:
        """Say so in the log; with a full disk there are many, each time that their leases end."""
        state = one.state
        if count := self.warning.due(1, self.now()):
            logger.warning("%d messages were not handed on and are tried again, the last one %s/%d offset %d"
                        " of %s, to %s: %s", count, state.topic, state.queue_id, one.offset,
                        state.group, one.target.topic, error)  # fmt: skip
