"""What a member that follows an elected leader says of what it has stored.

    message of the leader, with a number ──► journal ──► its disk ──► report: all up to that number
    tables of the leader, with a version ──► their files ──► the version's file ──► report

**What was lost** (`tables/metadata_version.py`) is there again once this member has stored all that a
leader had which has begun: its tables, and its leases up to a message that says so.

One stream at a time, and it bears the epoch that this member has promised on disk when the stream begins
(`Q1` in `state_quorum.py`). A report is about what stands on the disk, also under asynchronous flush: it is
some bytes each, synced together (`lease_journal.py`), and a member that had lost what it reported would need
a rule of its own before it may hand its state over.
"""

import contextlib
from collections import deque
from collections.abc import Callable

from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.tables.metadata_version import MetadataVersion, MetadataVersionFile
from whimbrel.errors import NotReady, StoreFull

__all__ = ["FollowerState"]


class FollowerState:
    """One role's; on the loop's thread.

    Attributes:
        promised: returns the epoch that is promised on disk, 0 while that is not known.
        seat: returns the uuid of this store.
        news: wakes whoever sends reports.
    """

    def __init__(
        self,
        lease_store: LeaseStore,
        file: MetadataVersionFile,
        *,
        promised: Callable[[], int],
        seat: Callable[[], str],
        tables: Callable[[], bytes],
    ) -> None:
        """Take what is reported about.

        Args:
            tables: returns all tables, as a serialized WatchMetadataResponse.
        """
        self.lease_store, self.file = lease_store, file
        self.promised, self.seat, self.tables = promised, seat, tables
        self.news: Callable[[], None] | None = None
        self.epoch = 0  # of the stream that is open
        self.pending: deque[tuple[int, int]] = deque()  # number here, number of the leader
        self.told = MetadataVersion()
        self.whole_at = 0  # the number here at which all is stored that a leader has begun with; 0: not known

    def begin(self, news: Callable[[], None]) -> int:
        """Begin a stream; return its epoch.

        Args:
            news: called when there may be something to report.
        """
        self.news, self.epoch = news, self.promised()
        self.pending.clear()
        self.told, self.whole_at = MetadataVersion(), 0
        return self.epoch

    def end(self) -> None:
        """The stream is over: nothing is reported any more."""
        self.news, self.epoch = None, 0
        self.pending.clear()

    def took(self, number: int, *, begun: bool = False) -> None:
        """Take note of a message that is in the journal, with its number; 0 has none.

        `begun`: who sent it has begun to lead.
        """
        if number:
            if begun and not self.whole_at:
                self.whole_at = self.lease_store.number
            self.pending.append((self.lease_store.number, number))
            self.synced()

    def synced(self) -> None:
        """Something is on the disk."""
        if self.file.lost and 0 < self.whole_at <= self.lease_store.durable:
            with contextlib.suppress(StoreFull):  # with the next one
                self.file.regain_leases()
        if self.news is not None:
            self.news()

    def report(self) -> tuple[int, int]:
        """Return the numbers of leases and of metadata to report now; 0 where nothing is new.

        Raises:
            NotReady: another epoch is promised: the stream is to be ended.
        """
        if self.epoch and self.promised() != self.epoch:
            raise NotReady("another epoch is promised")
        stored, durable = 0, self.lease_store.durable
        while self.pending and self.pending[0][0] <= durable:
            stored = self.pending.popleft()[1]
        version = self.file.version
        if version == self.told or version.epoch != self.epoch:
            return stored, 0
        self.told = version
        return stored, version.counter

    def check(self, version: MetadataVersion) -> None:
        """Refuse metadata of a leader that this member does not follow any more.

        Raises:
            NotReady: see above.
        """
        if version.epoch != self.promised():
            raise NotReady(f"metadata of epoch {version.epoch} came, promised is {self.promised()}")

    def applied(self, version: MetadataVersion) -> None:
        """Take note of metadata whose tables are on the disk.

        Raises:
            StoreFull: the version can't be written down.
        """
        self.file.save(version)
        self.synced()
