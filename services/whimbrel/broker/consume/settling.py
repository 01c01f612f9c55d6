"""What becomes of messages that were delivered: done, visible at another time, or given back.

held --ack--> done
  |--change_invisible--> held under a new serial, which voids the handle before
  |--release_client----> visible within about a second: its client has gone
  |--correct_times-----> held until another time: it was taken by a clock that is ahead of ours
  '--renew-------------> held on: its client lives, and asked for no time of its own
"""

import logging
from collections.abc import Callable, Sequence
from math import inf

from whimbrel.broker.consume.handles import Handles
from whimbrel.broker.consume.lease_codec import Lease
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.queue_leases import Change, Standing, WaitAfter
from whimbrel.broker.consume.rare_warning import RareWarning
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.broker.consume.waiters import Waiters
from whimbrel.errors import InvalidReceiptHandle

__all__ = ["Settling"]

WARN_APART_MS = 60_000

logger = logging.getLogger(__name__)


class Settling:
    """Changes the leases of what was delivered; every change is written down before it counts."""

    def __init__(
        self,
        lease_store: LeaseStore,
        handles: Handles,
        waiting: Waiters,
        *,
        expect: Callable[[str, str], None],
        now_ms: Callable[[], int],
        schedule: Callable[[int, Callable[[], None]], object],
        client_alive: Callable[[str, str], bool],
        wait_ms: WaitAfter,
    ) -> None:
        """Take the lease state with its journal, and the polls that changes may bring something.

        Args:
            lease_store, handles: see the modules. waiting: who waits for messages. expect: see
            `GroupConsumption.expect`. now_ms: the clock. client_alive: returns by group
            and client id whether the client was active lately. wait_ms: how long a message waits whose
            lease was renewed for as long as it may be.
        """
        self.lease_store, self.table = lease_store, lease_store.table
        self.handles, self.waiting, self.expect = handles, waiting, expect
        self.now, self.client_alive, self.wait_ms = now_ms, client_alive, wait_ms
        self.warning = RareWarning(WARN_APART_MS)
        self.schedule = schedule
        self.renewal_at: float = inf
        self.renewal_number = 0

    def ack_batch(self, group: str, topic: str, handles: Sequence[str]) -> list[InvalidReceiptHandle | None]:
        """Mark messages done; return None, or what is wrong, for each handle.

        Acknowledging a finished message again is no error.

        Raises:
            StoreFull: it can't be written down; nothing was acknowledged.
        """
        now = self.now()
        results: list[InvalidReceiptHandle | None] = []
        changes: list[Change] = []
        check = self.handles.check
        for text in handles:
            try:
                handle = ReceiptHandle.decode(text)
                state, standing = check(handle, group, topic, now)
            except InvalidReceiptHandle as error:
                results.append(error)
                continue
            results.append(None)
            if standing is not Standing.FINISHED:
                changes.append((state, handle.offset, handle.offset + 1, None))
        if changes:
            self.finish(changes)
        return results

    def finish(self, changes: list[Change]) -> None:
        """Mark messages done.

        Raises:
            StoreFull: it can't be written down; nothing was done.
        """
        for state, *_ in changes:
            # Polls may wait because the group holds as many messages as it may.
            if len(state.leases) >= state.full_at:
                self.waiting.wake(state.topic)
        self.lease_store.commit(changes)

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
        state, standing = self.handles.check(handle, group, topic, now)
        if standing is Standing.FINISHED:
            raise InvalidReceiptHandle("the message is acknowledged already")
        serial = self.table.next_serial(now)
        attempt = handle.attempt - suspend
        lease = Lease(serial, 0, now + invisible_ms, now, attempt, False, "")
        self.lease_store.commit([(state, handle.offset, handle.offset + 1, lease)])
        if not invisible_ms:
            self.waiting.wake(topic)
        else:
            self.expect(group, topic)
        return handle._replace(serial=serial).encode()

    def release_client(self, client_id: str, group: str | None = None) -> None:
        """Make what a client that has gone holds visible within about a second; of one group, or of all."""
        now = self.now()
        changes = self.table.released(client_id, group, now)
        self.lease_store.commit_best_effort(changes)
        for state in {change[0] for change in changes}:
            self.expect(state.group, state.topic)

    def correct_times(self) -> None:
        """Have what was taken by a clock that is ahead of ours come again by ours; a master's task.

        Some in each call; to be called about once a second.
        """
        now = self.now()
        changes = self.table.taken_ahead(now)
        if not changes:
            return
        if count := self.warning.due(sum(stop - start for _, start, stop, _ in changes), now):
            logger.warning(
                "%d messages were delivered by a clock that is ahead of this one: they come again as long"
                " after now as they were to come after their delivery",
                count,
            )
        self.lease_store.commit_best_effort(changes)
        self.waiting.wake_all()
        self.arm_renewals()

    def arm_renewals(self) -> None:
        """Have leases renewed when that is due."""
        at = self.table.next_renewal()
        if at < self.renewal_at:
            self.renewal_at = at
            self.renewal_number = number = self.renewal_number + 1
            self.schedule(int(at), lambda: self.renew(number))

    def renew(self, number: int) -> None:
        """Renew the leases of clients that live, unless another timer was armed, for an earlier time."""
        if number == self.renewal_number:
            self.renewal_at = inf
            now = self.now()
            self.lease_store.commit_best_effort(self.table.renewals_due(now, self.client_alive, self.wait_ms))
            self.arm_renewals()

    def close(self) -> None:
        """Have nothing renewed any more."""
        self.renewal_number += 1
