"""The commit offset of a master whose group commits by majority.

    own end ──────────┐
    members' ends ────┴─► `commit_offset`: what so many copies hold ─► the store writes entries up to there
                                                                        page.commit ─► slaves, with the log

**A copy counts** where its member is a voter and has it in this leader's epoch: over a connection of this
epoch, from where the epoch begins on (`SharedPage.member_acks`; rule R7 of `tests/models/rules.py`).
Without the last condition records of an earlier epoch could count as committed that another leader still
cuts. The master's own copy is one: with synchronous flush what is on its disk, else what it has written.

The offset only grows. It is the end of a group of records (`store/uncommitted.py`).

**Before a leader's epoch is committed as far as its start**, the log may hold records of former leaders of
which nobody knows whether they were answered. The broker takes no writes until then (`epoch_committed`), so
whatever its own records depend on is decided: transactions, what was delivered of delayed messages.

Pure but for the marks that it moves; on the loop's thread.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

__all__ = ["UNCOMMITTED_BYTES_MAX", "MajorityCommit", "commit_offset"]

# Of the log that may wait to be committed; beyond, sends are refused. As much as may wait to be acknowledged.
UNCOMMITTED_BYTES_MAX = 64 << 20


def commit_offset(ends: Iterable[int], copies: int) -> int:
    """Return the offset up to which so many copies hold the log, -1 where there are fewer.

    Args:
        ends: of all copies that count, the master's among them.
        copies: how many there must be, at least 1.
    """
    found = sorted(ends, reverse=True)
    return found[copies - 1] if copies <= len(found) else -1


class CommitLog(Protocol):
    """What is used of the message store."""

    @property
    def written(self) -> int:
        """End of the log."""

    @property
    def flushed(self) -> int:
        """End of what is on disk."""

    @property
    def visible_end(self) -> int:
        """The commit offset."""

    def commit(self, offset: int) -> bool:
        """Commit up to there; return whether the commit offset has moved."""


class CommitPage(Protocol):
    """What is used of the page of marks."""

    commit: int
    commit_saw: int
    quorum_lost: int
    written: int
    leader_start: int

    def member_acks(self) -> Sequence[tuple[int, int]]:
        """What members have acknowledged in the leader's epoch."""

    def member_ends(self) -> Sequence[tuple[int, int]]:
        """How far the connected members say that they are."""

    def replica_alive(self, now_ns: int) -> bool:
        """Whether the replicator beats."""

    def newest_connection(self) -> int:
        """When the newest connection got its slot."""


class MajorityCommit:
    """Moves the commit offset of a master's log.

    Attributes:
        copies: so many members must hold a record, the master among them.
        stalls: tells whether a member, whose log is acknowledged up to an offset, takes nothing now of what
            is written; in any thread.
    """

    def __init__(
        self,
        store: CommitLog,
        page: CommitPage,
        *,
        member: int,
        voters: Collection[int],
        sync_flush: bool,
        fallbehind_max: int,
    ) -> None:
        """Take the store and the page.

        Args:
            store, page: see the module's text.
            member: the master's own id.
            voters: ids of the members whose copies count, the master's among them.
            sync_flush: the master's own copy counts once it is on the disk.
            fallbehind_max: bytes; a member that lacks as many is not near.
        """
        self.store, self.page = store, page
        self.others = frozenset(voters) - {member}
        self.votes = (
            member in voters
        )  # else it leads until the voters that replace its own have adopted its epoch
        self.copies = len(voters) // 2 + 1
        self.sync_flush, self.fallbehind_max = sync_flush, fallbehind_max
        self.stalls: Callable[[int, int, int], bool] = lambda member, end, written: False

    def advance(self) -> bool:
        """Commit what so many hold now; return whether slaves are to hear of it: the commit offset has moved,
        or there is another connection."""
        store, page = self.store, self.page
        saw = page.newest_connection()  # before what was acknowledged
        own = store.flushed if self.sync_flush else page.written
        ends = self.other_ends()
        if self.votes:
            ends.append(own)
        moved = store.commit(commit_offset(ends, self.copies))
        if moved:
            page.commit = store.visible_end
        if saw != page.commit_saw:
            page.commit_saw = saw
            return True  # members that were not told the commit offset are told now
        return moved

    def other_ends(self) -> list[int]:
        """Return how far the other voters hold the log in this epoch."""
        return [ack for member, ack in self.page.member_acks() if member in self.others]

    def held(self, copies: int) -> int:
        """Return up to where so many voters besides this member hold the log, -1 where there are fewer."""
        return commit_offset(self.other_ends(), copies)

    @property
    def unseen(self) -> bool:
        """Whether there is a connection that `advance` has not seen."""
        return self.page.newest_connection() != self.page.commit_saw

    @property
    def uncommitted_bytes(self) -> int:
        """How much of the log waits."""
        return self.store.written - self.store.visible_end

    @property
    def epoch_committed(self) -> bool:
        """Whether all is committed that the log held when this leader's epoch began."""
        return self.store.visible_end >= self.page.leader_start

    def near(self, now_ns: int) -> int:
        """Return how many voters are there, near enough to the log's end, and get on, the master among them;
        may run in any thread."""
        page, written = self.page, self.store.written
        if not page.replica_alive(now_ns) or page.quorum_lost:
            # A killed replicator leaves its last acknowledgements in the page; a cut leaves connections open.
            return int(self.votes)
        ends = {member: end for member, end in page.member_ends() if member in self.others}
        return self.votes + sum(
            written - end < self.fallbehind_max and not self.stalls(member, end, written)
            for member, end in ends.items()
        )
