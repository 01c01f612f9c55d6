"""How often a slave of a group with configured roles has become its master: `STORE/whimbrel/takeovers.json`.

    {"count":1,"follows":false}

Nobody hands epochs out where roles are configured, so this count says which of two masters came later. It
orders what each of them did alone (`consume/lease_store.py`): a reset by a former master that comes back
does not undo one by the master that took over from it.

    starts as a slave                 it follows
    starts as a master, and followed  count + 1: it takes over; it follows no more
    starts as a master otherwise      the count stays: it is the master that it was
    a slave learns a greater count    that is its own
    a master does                     that + 1: another master was there meanwhile

Lease streams carry the counts (`cluster/replica_service.py`): a master's in its first message and when it has
changed, a slave's in its first message, which counts with its first entries. A slave that becomes the master
without having followed the last one counts no higher than that: it lacks its messages as well. Where members
are elected the count is added to a leader's epoch, so that a group that goes over to elections goes on above
what it had; it changes no more, but that followers learn their leader's.

What the disk has no room for is written down when the next stream begins. A slave whose first note was lost
so, and which is made the master by its next start, does not know that it has taken over.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from whimbrel.errors import RemoteProtocolError, StoreError, StoreFull
from whimbrel.machine import FILES, Files
from whimbrel.store import jsonconfig

__all__ = ["TAKEOVERS_MAX", "Takeovers"]

# Epochs of lease states go up to twice what this leads to: a count that is none leaves room for resets.
TAKEOVERS_MAX: Final = (1 << 19) - 1

logger = logging.getLogger(__name__)


class Takeovers:
    """The count of one store, in memory and on disk.

    Attributes:
        count: takeovers that this broker knows of.
        follows: it was a slave when it started last.
        leads: it is a master by configuration.
    """

    def __init__(self, store_root: Path, files: Files = FILES) -> None:
        """Read the file, if there is one.

        Raises:
            StoreError: it is damaged, and so is its predecessor.
        """
        self.path, self.files = store_root / "whimbrel" / "takeovers.json", files
        found, newest = jsonconfig.open_own(self.path, self.take, files)
        self.count, self.follows = self.written = found or (0, False)
        if found is not None and not newest:
            self.follows = True  # the count may have been greater by one
        self.leads = False

    def take(self, content: Any) -> tuple[int, bool]:
        """Return what a parsed file says."""
        try:
            count, follows = content["count"], content["follows"]
            if type(count) is not int or not 0 <= count <= TAKEOVERS_MAX:
                raise ValueError(f"count {count!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{self.path} holds no count of takeovers: {error!r}") from error
        return count, bool(follows)

    def follow(self) -> None:
        """Start as a slave."""
        self.follows = True
        self.save()

    def lead(self, known: Callable[[], int]) -> None:
        """Start as a master.

        Args:
            known: returns how many takeovers the lease states here show; asked at a takeover alone.
        """
        self.leads = True
        if self.follows:
            self.follows = False
            self.raise_to(max(self.count, known()) + 1)
            logger.info("this master has taken over from another one: takeover %d of the group", self.count)
        self.save()

    def learn(self, count: int) -> bool:
        """Take another broker's count; return whether ours has changed.

        Raises:
            RemoteProtocolError: there is no such count.
        """
        if not 0 <= count <= TAKEOVERS_MAX:
            raise RemoteProtocolError(f"the peer says {count} takeovers; there are 0 to {TAKEOVERS_MAX}")
        before = self.count
        if count > before:
            self.raise_to(count + self.leads)
        self.save()
        return self.count != before

    def raise_to(self, count: int) -> None:
        self.count = min(count, TAKEOVERS_MAX)

    def save(self) -> None:
        """Write down what has changed, as far as the disk has room."""
        state = (self.count, self.follows)
        if state == self.written:
            return
        text = jsonconfig.dumps({"count": self.count, "follows": self.follows}, pretty=False)
        try:
            jsonconfig.save(self.path, text, self.files)
        except StoreFull as error:
            logger.warning("takeovers are not written down: %s", error)
        else:
            self.written = state
