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

from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.plan import HandOn, PendingHandOn
from whimbrel.broker.consume.queue_leases import HAND_ON_LEASE_MS
from whimbrel.broker.consume.rare_warning import RareWarning
from whimbrel.errors import (
    IllegalTopic,
    MessageTooLarge,
    PropertiesTooLarge,
    WhimbrelError,
)
from whimbrel.store.codec import StoredMessage

__all__ = ["Done", "HandOnAppend", "HandOns"]

Done: TypeAlias = Callable[[WhimbrelError | None], None]
# Appends a copy of a message elsewhere, unless there is one that was stored since a time (ms), and calls back
# with None once it is durable, or with what went wrong; perhaps before it returns. Never raises.
HandOnAppend: TypeAlias = Callable[[StoredMessage, HandOn, int, Done], None]

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
        *,
        append: HandOnAppend | None,
        now_ms: Callable[[], int],
        wake: Callable[[str], None],
    ) -> None:
        """Take the lease state with its journal, and `wake`, which serves the polls of a topic soon."""
        self.lease_store, self.append = lease_store, append
        self.now, self.wake = now_ms, wake
        self.closed = False
        self.warning = RareWarning(HAND_ON_LEASE_MS)

    def begin(self, one: PendingHandOn, told: Done | None = None) -> None:
        """Append the copy of a message whose lease is written down; once it is durable the message is done.

        Args:
            one: the message.
            told: of a message that a consumer has given up, which is done whoever holds it by then: called
                with None once it is, or with why it is not; perhaps before this returns. None: nobody waits
                for it, and its turn comes again.
        """
        if self.append is None:
            return  # held back: its lease ends, and the next broker that can append hands it on

        def appended(error: WhimbrelError | None) -> None:
            if error is None or self.sets_aside(one, error):
                self.finish(one, whoever_holds_it=told is not None)
                error = None
            if told is not None:
                told(error)
            elif error is not None:
                self.warn(one, error)

        self.append(one.message, one.target, one.lease.taken_at, appended)

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
