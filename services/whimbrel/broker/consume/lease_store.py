"""Lease state with its journal and its listeners: the steps of every change.

    changes  ->  journal  ->  table  ->  listeners        the answer leaves after that
                 StoreFull: nothing has changed

Listeners are the streams to the other brokers of the group (`lease_sync.py`). Entries that come from there
take the same steps, except that they are judged (`lease_checks.py`) and joined into the table first, which
shows what is new in them. Those of the journal are judged as well: an earlier version may have written what
no broker may write.

**Epochs where leaders change.** A reset, a deletion and a cut log start an epoch of a queue's state, by
which what was before is forgotten. Counted by one, the epoch of a leader that nobody heard any more would be
that of its successor, and both would merge: what was answered "try again" would undo what was answered OK. So
an epoch is a leader's epoch and a counter, EPOCHS_EACH to each leader: those of a later one are greater. And
once a leader leads, it has all that was ever answered; a greater epoch that a member still brings is of a
change that was not, so it is refused: the state as it is here goes on in an epoch that is greater still.
Where roles are configured the count of takeovers (`tables/takeovers.py`) stands for a leader's epoch, and
nothing is refused: what a former master alone has answered counts, unless the new one has answered since.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from whimbrel.broker.consume.lease_checks import EPOCH_MAX, EntryChecks
from whimbrel.broker.consume.lease_codec import LeaseEntry
from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.consume.queue_leases import Change, OrderChange
from whimbrel.errors import CorruptRecord, StoreError, StoreFull

__all__ = ["EPOCHS_EACH", "Journal", "LeaseListener", "LeaseStore"]

# Of one queue's state for each leader's epoch. What a leader counts beyond is only greater by one each time.
EPOCHS_EACH = 1 << 11

logger = logging.getLogger(__name__)


class LeaseListener(Protocol):
    """Receives changes, as entries."""

    def offer(self, entries: bytes) -> None: ...


class Journal(Protocol):
    """What is used of `LeaseJournal`."""

    sync_failures: int
    appended: int
    synced: int
    lost: str

    def load(self) -> list[bytes]: ...
    def start(self, snapshot: Callable[[], Iterator[bytes]]) -> None: ...
    def append(self, entries: bytes) -> None: ...
    def sync_promptly(self, on_synced: Callable[[], None]) -> None: ...
    def rewrite(self) -> bool: ...
    def beat(self) -> None: ...
    def close(self) -> None: ...


class LeaseStore:
    """The lease table of one broker, with its journal and its listeners.

    Attributes:
        on_merged: called when entries of another broker have changed something.
        on_lost: called while the state is loaded, with why entries may be missing that were written down.
        checks: decides which entries of other brokers and of the journal count.
        end_of: returns the end of a queue, by topic and queue id, once this broker leads; None before.
        term: returns which leader this broker is, in the order of leaders; 0 where it is none.
        has_all: whether it has begun to lead, so has all that was answered before.
    """

    def __init__(self, journal: Journal, *, broker_id: int, now_ms: Callable[[], int]) -> None:
        """Prepare; `open` reads the journal.

        Args:
            journal: where changes are written down. broker_id: keeps delivery serials apart from other
            brokers'. now_ms: the clock, against which entries of elsewhere are judged.
        """
        self.table = LeaseTable(origin=broker_id)
        self.checks = EntryChecks(now_ms)
        self.on_merged: Callable[[], None] | None = None
        self.on_lost: Callable[[str], None] = lambda why: None
        self.end_of: Callable[[str, int], int] | None = None
        self.term: Callable[[], int] = lambda: 0
        self.has_all: Callable[[], bool] = lambda: False
        self.journal = journal
        self.listeners: list[LeaseListener] = []
        self.incomplete = False  # a change is in memory only
        self.complete_at = 0  # the number up to which the disk must have all for that to be over

    def open(self) -> None:
        """Load the state and begin to write it down; raises StoreError when that can't be."""
        try:
            for chunk in self.journal.load():
                self.table.join(chunk, self.checks.judge)
        except CorruptRecord as error:
            raise StoreError(
                f"the lease journal (whimbrel/leases in the store) is of another version or damaged: {error};"
                " move it away to go on from the offsets in config/consumerOffset.json, or from what the"
                " other members of the group have"
            ) from error
        if self.journal.lost:
            self.on_lost(
                self.journal.lost
            )  # before the journal is written anew, and nothing shows it any more
        self.journal.start(self.snapshot)

    def close(self) -> None:
        """Flush and close the journal."""
        self.journal.close()

    def beat(self) -> None:
        """Have the journal do what time asks for; to be called about twice a second."""
        self.journal.beat()
        if self.incomplete and not self.complete_at and self.journal.rewrite():
            self.complete_at = self.journal.appended

    @property
    def number(self) -> int:
        """The number of the last change."""
        return self.journal.appended

    @property
    def durable(self) -> int:
        """The number up to which all changes are on the disk; -1 while one of them is in memory only."""
        synced = self.journal.synced
        if self.incomplete:
            if not 0 < self.complete_at <= synced:
                return -1
            self.incomplete, self.complete_at = False, 0
        return synced

    def note_unwritten(self) -> None:
        """Note a change that the journal did not take."""
        self.incomplete, self.complete_at = True, 0

    def commit(self, changes: list[Change], orders: Sequence[OrderChange] = ()) -> None:
        """Make changes; raises StoreFull, and then nothing has changed."""
        entries = self.table.encode(changes, orders)
        self.journal.append(entries)
        self.table.apply(changes, orders)
        for listener in self.listeners.copy():
            listener.offer(entries)

    def commit_best_effort(self, changes: list[Change]) -> None:
        """Make changes, on a full disk in memory only.

        For changes whose loss in a crash costs a delay or a second delivery at most.
        """
        if not changes:
            return
        try:
            self.commit(changes)
        except StoreFull as error:
            logger.warning("lease changes are in memory only: %s", error)
            self.note_unwritten()
            self.table.apply(changes)

    def greatest_term(self) -> int:
        """Return the last leader, in their order, that is known to have begun an epoch of a state."""
        return max((epoch for _, _, (_, epoch, _) in self.table.positions()), default=0) // EPOCHS_EACH

    def next_epoch(self, epoch: int) -> int:
        """Return the epoch of a queue's state that follows one."""
        least = self.term() * EPOCHS_EACH
        return max(epoch, least if least < EPOCH_MAX else 0) + 1

    def commit_entries(self, entries: bytes) -> None:
        """Make changes that are entries already; raises StoreFull, and then nothing has changed."""
        self.journal.append(entries)
        self.table.join(entries)
        for listener in self.listeners.copy():
            listener.offer(entries)

    def add_listener(self, listener: LeaseListener) -> None:
        """Offer every change from now on to `listener`."""
        self.listeners.append(listener)

    def remove_listener(self, listener: LeaseListener) -> None:
        """Offer it no more changes."""
        if listener in self.listeners:
            self.listeners.remove(listener)

    def snapshot(self) -> Iterator[bytes]:
        """Yield the full state as entries."""
        self.table.forget_idle_clients()
        return self.table.snapshot()

    def merge(self, entries: bytes, source: LeaseListener | None = None) -> bool:
        """Join another broker's entries; return whether they changed anything.

        Those that no broker may write are left out. What changed is written down and offered to the listeners
        other than the one it came from. The state in memory may run ahead of the journal when the disk is
        full: the other broker still has it, and sends it again.

        Raises:
            CorruptRecord: they don't decode.
        """
        refused: list[LeaseEntry] = []
        changed = self.table.join(
            entries, self.checks.judge, end_of=self.end_of, no_greater_epoch=self.has_all(), refused=refused
        )
        for entry in refused:
            self.refuse(entry)
        if not changed:
            return False
        try:
            self.journal.append(changed)
        except StoreFull as error:
            logger.warning("merged lease changes are in memory only: %s", error)
            self.note_unwritten()
        for listener in self.listeners.copy():
            if listener is not source:
                listener.offer(changed)
        if self.on_merged is not None:
            self.on_merged()
        return True

    def refuse(self, entry: LeaseEntry) -> None:
        """Have all brokers, the one that sent it among them, forget an entry that was not merged.

        The state as it is here starts an epoch that is greater than the entry's.
        """
        state = self.table.state(entry.group, entry.topic, entry.queue_id)
        if entry.epoch < state.epoch:
            return  # that was done for an entry before
        told = f"offsets up to {entry.end}, beyond this log"
        if entry.epoch > state.epoch:
            told = "a reset or deletion that was not answered"
        logger.warning("%s on %s/%d: another broker told of %s: it is forgotten",
                       entry.group, entry.topic, entry.queue_id, told)  # fmt: skip
        try:
            self.commit_entries(b"".join(state.entries(self.next_epoch(entry.epoch))))
        except StoreFull as error:
            logger.warning("that can't be written down yet: %s", error)
