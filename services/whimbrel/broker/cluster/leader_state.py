"""What an elected leader takes over before it leads, and what members store after. Pure but for files.

    a member's stream ──hello──► refused, unless it has promised this leader's epoch
                      ──leases, all──┐
                      ──tables, where they are newer than ours──┴─► merged
    enough are merged ──► `begin`: our tables become version (epoch, 1), which members take as a whole
                      ──reports──► `StateQuorum` of leases, of metadata

**Enough** are so many voters, this member among them, and of prior ones while voters change, that any set
which stored an answered change has one of them: `GroupRecord.seals`, as of an election. Fewer never lead,
however long the wait is: whatever only the others have would be undone (Q4).

**Of metadata the newest version wins as a whole**, by (epoch, counter). The new leader writes it anew under
its own epoch, and takes no writes and no changes before a majority has that. Else a change that was never
answered, which one member has and this leader had not, would come back with that member as the next leader,
over changes that were answered meanwhile (Q5). Members take a leader's tables as they are, also where that
takes back a change of the leader before.

A member of an earlier version says no epoch, and is not counted: `trouble` says so. Nor is one, this one
among them, that may have lost what it had stored (`MetadataVersionFile.lost`), unless an operator has
accepted a loss: what it has is merged all the same.

All rules, with what happens where one is missing, are in `tests/models/rules.py`; models find each.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Final

from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.broker.tables.metadata_version import MetadataVersion, MetadataVersionFile
from whimbrel.errors import BadRequest, NotReady, StoreFull
from whimbrel.model.group_record import GroupRecord, ids_text

__all__ = ["TABLES_BYTES_MAX", "TABLES_PIECE_BYTES", "LeaderState", "MemberStream"]

TABLES_BYTES_MAX: Final = 64 << 20  # of a member's tables: as much as a message to a slave may have
TABLES_PIECE_BYTES: Final = 1 << 20

logger = logging.getLogger(__name__)

TakeTables = Callable[[bytes], None]


class MemberStream:
    """What is known of one stream.

    Attributes:
        member: its id.
        votes: its store is that of a voter, or of a prior one.
        counts: its store is that of a voter: what it stores counts.
        version: of its metadata.
        tables: what has come of them.
        leases_done, tables_done: all has come.
        lost: it may have stored more.
    """

    __slots__ = (
        "counts",
        "leases_done",
        "lost",
        "member",
        "seat",
        "tables",
        "tables_done",
        "version",
        "votes",
    )

    def __init__(
        self,
        member: int,
        seat: str,
        version: MetadataVersion,
        *,
        votes: bool,
        counts: bool,
        lost: bool = False,
    ) -> None:
        self.member, self.seat, self.version = member, seat, version
        self.votes, self.counts, self.lost = votes, counts, lost
        self.tables = bytearray()
        self.leases_done = self.tables_done = False


class LeaderState:
    """One leader's, from the begin of its epoch on.

    Attributes:
        leases, metadata: what members have stored.
        begun: the tables have this leader's version.
        begun_at: the number of the leases then.
    """

    def __init__(
        self,
        term: GroupRecord,
        member: int,
        seat: str,
        *,
        leases: Callable[[], int],
        leases_durable: Callable[[], int],
        file: MetadataVersionFile,
        take_tables: TakeTables,
        clock: Callable[[], float],
        timeout_s: float,
        on_change: Callable[[], None],
    ) -> None:
        """Begin with what this member has.

        Args:
            term: the record under which it leads.
            member, seat: its id, and the uuid of its store.
            leases, leases_durable: return the number of the last change of leases, and the one up to which
                all is on our disk.
            file: the version of our tables.
            take_tables: takes over a member's tables as a whole: a serialized WatchMetadataResponse.
            clock: seconds of a clock that never goes back.
            timeout_s: how long answers wait.
            on_change: called when another member is merged, or metadata has reached a majority.
        """
        self.term, self.member, self.seat = term, member, seat
        self.leases_durable = leases_durable
        self.file, self.take_tables, self.on_change = file, take_tables, on_change
        self.streams: dict[int, MemberStream] = {}  # the newest of each member
        # Those that have told all that they had stored, with their seats.
        self.merged: set[tuple[int, str]] = set() if file.lost and not term.waives else {(member, seat)}
        self.earlier: set[int] = set()  # members of an earlier version
        self.begun = False
        self.begun_at = 0
        self.counter = 0  # of our changes of metadata
        self.saved = 0  # how many of them are on our disk
        votes = (member, seat) in term.voters
        others = [voter for voter, _ in term.voters if voter != member]
        self.leases = StateQuorum(
            "acknowledgements and positions",
            others=others,
            copies=term.acks,
            newest=leases,
            own=leases_durable if votes else lambda: 0,
            clock=clock,
            timeout_s=timeout_s,
        )
        self.metadata = StateQuorum(
            "topics and groups",
            others=others,
            copies=term.acks,
            newest=lambda: self.counter,
            own=lambda: self.saved if votes else 0,
            clock=clock,
            timeout_s=timeout_s,
        )
        self.metadata.on_reached = on_change

    # Streams

    def check_epoch(self, epoch: int, member: int) -> None:
        """Refuse a member that has not promised this leader's epoch, or has promised a later one.

        Raises:
            NotReady: see above.
        """
        if not epoch and member in self.term.members and member not in self.earlier:
            self.earlier.add(member)
            logger.warning("member %d is of an earlier version: what it stores does not count", member)
        if epoch and epoch != self.term.epoch:
            raise NotReady(f"this member leads epoch {self.term.epoch}, that one has promised {epoch}")

    def hello(
        self, member: int, seat: str, epoch: int, version: MetadataVersion, *, lost: bool = False
    ) -> MemberStream:
        """Take a member's first message; return its stream, which takes the place of an older one.

        Args:
            member, seat: its id, and the uuid of its store.
            epoch: that it has promised; 0: it is of an earlier version.
            version: of its metadata.
            lost: it may have stored more than it has now.

        Raises:
            NotReady: see `check_epoch`.
        """
        self.check_epoch(epoch, member)
        known = bool(epoch)
        if known:
            self.earlier.discard(member)
        made = MemberStream(
            member,
            seat,
            version,
            votes=known and self.term.electable(member, seat),
            counts=known and (member, seat) in self.term.voters,
            lost=lost and not self.term.waives,
        )
        self.leases.left(member)
        self.metadata.left(member)
        self.streams[member] = made
        return made

    def gone(self, stream: MemberStream) -> None:
        """Forget a stream that is over; what it has handed over stays."""
        if self.streams.get(stream.member) is stream:
            del self.streams[stream.member]
            self.leases.left(stream.member)
            self.metadata.left(stream.member)

    def heard(
        self, stream: MemberStream, *, leases_done: bool, stored: int = 0, metadata_stored: int = 0
    ) -> None:
        """Take a member's message, whose entries are merged already, and its tables taken.

        Args:
            stream: over which it came.
            leases_done: all that the member knows of leases has come.
            stored: all changes of leases up to this number are on its disk; 0 says nothing.
            metadata_stored: the same of metadata.
        """
        if not stream.votes or self.streams.get(stream.member) is not stream:
            return
        if stream.counts:
            self.leases.stored(stream.member, stored)
            self.metadata.stored(stream.member, metadata_stored)
        stream.leases_done = stream.leases_done or leases_done
        has_all = stream.leases_done and (stream.tables_done or stream.version <= self.file.version)
        one = (stream.member, stream.seat)
        if has_all and not stream.lost and one not in self.merged:
            self.merged.add(one)
            self.on_change()

    def take_piece(self, stream: MemberStream, piece: bytes, *, done: bool) -> None:
        """Take a part of a voter's tables, and all of them with the last one, where they are the newest.

        Raises:
            BadRequest: they are too large.
            WhimbrelError: they are none, or can't be written down.
        """
        if not stream.votes:
            return  # whoever it is: nothing is kept for it
        stream.tables += piece
        if len(stream.tables) > TABLES_BYTES_MAX:
            raise BadRequest(f"the tables of member {stream.member} have more than {TABLES_BYTES_MAX} bytes")
        if not done:
            return
        text, stream.tables = bytes(stream.tables), bytearray()
        if not self.begun and stream.version > self.file.version:
            self.take_tables(text)
            self.file.save(stream.version)
            logger.info("topics and groups are those of member %d, %s", stream.member, stream.version)
        stream.tables_done = True

    # Leading

    def missing(self) -> str:
        """Return who is still to hand its state over before this member may lead; "" where enough have."""
        term = self.term
        have = len(self.merged.intersection(term.voters))
        prior = len(self.merged.intersection(term.prior))
        if have >= term.seals and prior >= term.prior_seals:
            return ""
        members = ids_text({member for member, _ in self.merged})
        return (
            f"too few members have told what was acknowledged there: {members}. {term.seals} of"
            f" {len(term.voters)} voters must: start the others{self.earlier_ones()}"
        )

    def earlier_ones(self) -> str:
        """Return what to do about members of an earlier version; "" without any."""
        if not self.earlier:
            return ""
        members = ids_text(self.earlier)
        return f" (of an earlier version, to be upgraded: {members})"

    def begin(self) -> None:
        """Make the tables those of this leader's epoch: it leads from here on."""
        self.begun, self.begun_at = True, self.leases.newest()
        self.changed()

    def changed(self) -> None:
        """Count a change of metadata, which is in its own file already."""
        if self.begun:
            self.counter += 1
            self.save()

    def save(self) -> None:
        """Write our version down; a full disk is asked again by `beat`."""
        try:
            self.file.save(MetadataVersion(self.term.epoch, self.counter))
        except StoreFull as error:
            logger.warning("%s", error)
            return
        self.saved = self.counter
        self.metadata.advance()

    def beat(self) -> None:
        """Do what time asks for; to be called about twice a second."""
        if self.saved < self.counter:
            self.save()
        if self.file.lost and self.begun and self.saved and self.leases_durable() >= self.begun_at:
            with contextlib.suppress(StoreFull):  # the next time
                self.file.regain()
        self.leases.advance()
        self.leases.expire()
        self.metadata.expire()

    def unstored(self) -> str:
        """Return why no changes are taken yet after `begin`; "" once they are."""
        if self.metadata.reached:
            return ""
        have = len(self.metadata.holders(1)) + bool(self.saved)
        return (
            f"{have} of the {self.term.acks} members that a majority takes have stored the topics and groups"
            f" with which this one leads{self.earlier_ones()}"
        )

    def holders(self) -> frozenset[int]:
        """Return the other voters that have all that this leader began with; none before it has itself.

        The prior voters are forgotten by this (Q8). Who leads counts as one copy then, so all that it has
        taken over has to be on its own disk (Q8a).
        """
        if not self.begun or self.leases_durable() < self.begun_at or not self.saved:
            return frozenset()
        return frozenset(self.leases.holders(self.begun_at)).intersection(self.metadata.holders(1))

    @property
    def trouble(self) -> str:
        """What an operator should know; "" when all is well."""
        return f"what some members store does not count{self.earlier_ones()}" if self.earlier else ""

    def close(self, why: str) -> None:
        """Answer all that wait."""
        self.leases.close(why)
        self.metadata.close(why)
