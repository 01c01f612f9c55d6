"""What a broker group is to the exhaustive model: values that never change, and are equal if all in them is.

Members are numbered from 0. A seat is the uuid of a member's disk, here a number: a disk that replaces
another one has a seat of its own. Times, messages and addresses are missing: what may happen is a step
(`steps.py`).
"""

from typing import Final, NamedTuple

from models.logs import Epochs

__all__ = [
    "NOBODY",
    "Candidacy",
    "Flush",
    "Group",
    "Leader",
    "Left",
    "Member",
    "Pages",
    "Record",
    "Report",
    "Voters",
]

NOBODY: Final = -1

Voters = tuple[tuple[int, int], ...]  # (member, seat), ascending


class Flush(NamedTuple):
    """How a member flushes, and what follows for its disk; modes are `sync` and `async`.

    Attributes:
        broker: how a leader counts itself. replicator: what a follower reports.
        weakest: the weaker of both since the whole log was known to be on disk, as the seat says.
        synced: so many entries a power cut leaves.
    """

    broker: str
    replicator: str
    weakest: str
    synced: int = 0


class Member(NamedTuple):
    """One member, with its disk.

    Attributes:
        gone: for good, as an operator has said; what it may come back with is another disk.
        promised, promised_to: the newest epoch it has promised itself to, and to which candidate.
        follows: the epoch of the leader whose stream it takes; 0 if it has none.
        votes: whether its seals count; not after it may have lost acknowledged entries.
        link: the number of its newest connection; stays 0 where a case has no explicit reports.
        begin: so many entries were removed by retention.
        kept: where it knows that its leader's log begins; 0: it has not been told.
        flush: only where a case is about that; else a power cut may take any of the last entries.
    """

    seat: int
    log: tuple[int, ...] = ()
    epochs: Epochs = ()
    promised: int = 0
    promised_to: int = NOBODY
    follows: int = 0
    votes: bool = True
    link: int = 0
    gone: bool = False
    begin: int = 0
    kept: int = 0
    flush: Flush | None = None


class Record(NamedTuple):
    """The group's record in the coordinator's store; `loss`: an operator has accepted one in this epoch,
    and the voters have not adopted one since; 0: none was.
    """

    epoch: int
    leader: int
    voters: Voters
    prior: Voters
    loss: int = 0


class Candidacy(NamedTuple):
    """A member that has swapped the record and gathers seals: (member, seat, last epoch, end), ascending."""

    epoch: int
    member: int
    voters: Voters
    prior: Voters
    seals: tuple[tuple[int, int, int, int], ...]
    loss: int = 0


class Pages(NamedTuple):
    """What a leader's two processes know of its followers; one value a member.

    Attributes:
        links: the connection on which each was answered a handshake.
        cells: the end that the replicator read last from each; -1: none since the cell was cleared.
        view_links, view_cells: both, as the broker looked at them last.
        told_links: the connections that it had seen when it published the commit offset.
    """

    links: tuple[int, ...]
    cells: tuple[int, ...]
    view_links: tuple[int, ...]
    view_cells: tuple[int, ...]
    told_links: tuple[int, ...]


class Leader(NamedTuple):
    """A member that leads; it is taken out as it hears of a higher epoch, or stops."""

    epoch: int
    member: int
    voters: Voters
    start: int
    commit: int = 0
    pages: Pages | None = None


class Report(NamedTuple):
    """A report that waits in a connection, unread by the leader's replicator."""

    member: int
    epoch: int
    link: int
    end: int


class Left(NamedTuple):
    """How many faults of each kind may still happen.

    Attributes:
        backups: stores that are copied; each may then be put back, once.
        tools: commands that open a store at rest for writing.
        settings: other flush modes from a restart on.
        retentions: entries that are removed for want of room.
    """

    restarts: int = 0
    power_cuts: int = 0
    disks: int = 0
    restores: int = 0
    changes: int = 0
    losses: int = 0
    backups: int = 0
    tools: int = 0
    settings: int = 0
    retentions: int = 0


class Group(NamedTuple):
    """All there is.

    Attributes:
        led: who has led which epoch: (epoch, member).
        entries: how many entries were appended; the next one's number is one more.
        truth: the committed entries, and in which epoch each was committed first.
        observer: the log of a classic slave.
        backups: copies of stores that can be put back: (member, as it was).
        again: entries in which a leader has stored again what waits.
    """

    members: tuple[Member, ...]
    record: Record
    left: Left
    candidacies: tuple[Candidacy, ...] = ()
    leaders: tuple[Leader, ...] = ()
    led: tuple[tuple[int, int], ...] = ()
    entries: int = 0
    truth: tuple[tuple[int, int], ...] = ()
    observer: tuple[int, ...] = ()
    reports: tuple[Report, ...] = ()
    backups: tuple[tuple[int, Member], ...] = ()
    again: tuple[int, ...] = ()
