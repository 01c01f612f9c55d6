"""What becomes of leases without a consumer's call: given back, held on, or held until another time.

held --release_client--> visible within about a second: its client has gone
  |----correct_times---> held until another time: it was taken by a clock that is ahead of ours
  '----renew-----------> held on: its client lives, and asked for no time of its own

What consumers ask for themselves is the engine's (`engine/settle.py`).
"""

import logging
from collections.abc import Callable

from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.queue_leases import WaitAfter
from whimbrel.broker.consume.rare_warning import RareWarning
from whimbrel.broker.consume.wakeups import Wakeups

__all__ = ["LeaseUpkeep"]

WARN_APART_MS = 60_000

logger = logging.getLogger(__name__)


class LeaseUpkeep:
    """Keeps the leases of what was delivered; every change is written down where that is possible."""

    def __init__(
        self,
        lease_store: LeaseStore,
        wakeups: Wakeups,
        *,
        now_ms: Callable[[], int],
        client_alive: Callable[[str, str], bool],
        wait_ms: WaitAfter,
    ) -> None:
        """Take the lease state with its journal, and the polls that changes may bring something.

        Args:
            lease_store, wakeups: see the modules. now_ms: the clock. client_alive: returns by group and
            client id whether the client was active lately. wait_ms: how long a message waits whose lease was
            renewed for as long as it may be.
        """
        self.lease_store, self.table, self.wakeups = lease_store, lease_store.table, wakeups
        self.now, self.client_alive, self.wait_ms = now_ms, client_alive, wait_ms
        self.warning = RareWarning(WARN_APART_MS)

    def release_client(self, client_id: str, group: str | None = None) -> None:
        """Make what a client that has gone holds visible within about a second; of one group, or of all."""
        now = self.now()
        changes = self.table.released(client_id, group, now)
        self.lease_store.commit_best_effort(changes)
        for state in {change[0] for change in changes}:
            if self.wakeups.polls.has_key(state.topic, state.group):
                self.wakeups.schedule_wakeup(state.group, state.topic, now)
        self.wakeups.arm_timer()

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
        self.wakeups.wake_all()

    def renew(self, now: int) -> None:
        """Renew the leases of clients that live, where that is due."""
        self.lease_store.commit_best_effort(self.table.renewals_due(now, self.client_alive, self.wait_ms))
