"""What becomes of leases without a consumer's call: given back, held on, or held until another time.

held --release_client--> visible within about a second: its client has gone
  |----correct_times---> held until another time: it was taken by a clock that is ahead of ours
  '----renew-----------> held on: its client lives, and asked for no time of its own

What consumers ask for themselves is the engine's (`engine/settle.py`).
"""

import logging
from collections.abc import Callable
from math import inf

from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.queue_leases import WaitAfter
from whimbrel.broker.consume.rare_warning import RareWarning
from whimbrel.broker.consume.waiters import Waiters

__all__ = ["LeaseUpkeep"]

WARN_APART_MS = 60_000

logger = logging.getLogger(__name__)


class LeaseUpkeep:
    """Keeps the leases of what was delivered; every change is written down where that is possible."""

    def __init__(
        self,
        lease_store: LeaseStore,
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
            lease_store: see the module. waiting: who waits for messages. expect: see
            `GroupConsumption.expect`. now_ms: the clock. schedule: calls a function once at a time.
            client_alive: returns by group and client id whether the client was active lately. wait_ms: how
            long a message waits whose lease was renewed for as long as it may be.
        """
        self.lease_store, self.table = lease_store, lease_store.table
        self.waiting, self.expect, self.schedule = waiting, expect, schedule
        self.now, self.client_alive, self.wait_ms = now_ms, client_alive, wait_ms
        self.warning = RareWarning(WARN_APART_MS)
        self.renewal_at: float = inf
        self.renewal_number = 0

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
