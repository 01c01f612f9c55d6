"""What a broker group is to the model of what stands beside the log: leases, topics and groups.

Members, seats and epochs are as in `group.py`, and values as well: they never change. The log is missing:
whoever has enough seals may lead here. **Leases** (acknowledgements, positions, ordered takes) are a set of
changes, one bit each, and two of them merge to their union. **Tables** (topics, groups, where deleted queues
ended) are the changes that led to them, from the first one on, each number once in all of a search: two
members have the same tables if these are equal, and one has what the other has if it begins with it.
"""

from typing import NamedTuple

from models.group import Voters

__all__ = ["StateGroup", "StateLeader", "StateLeft", "StateMember", "StateReport", "Stream"]


class Stream(NamedTuple):
    """A member's stream to the leader of an epoch, and the number up to which it has got its leases."""

    epoch: int
    got: int = 0


class StateMember(NamedTuple):
    """One member.

    Attributes:
        promised: the newest epoch that it has promised.
        leases, kept: in memory, and what of them is on the disk.
        version: of its tables: epoch and counter.
        floors: of which deletions it knows where the queues ended, one bit each.
        streams: the one that it has; more where a rule is off.
    """

    seat: int
    promised: int = 0
    leases: int = 0
    kept: int = 0
    version: tuple[int, int] = (0, 0)
    tables: tuple[int, ...] = ()
    floors: int = 0
    streams: tuple[Stream, ...] = ()


class StateLeader(NamedTuple):
    """A member that leads; it is taken out as it promises a higher epoch, or stops.

    Attributes:
        merged: who has handed its state over, with its seat.
        numbers: its leases by number, from 1 on; empty before it has begun.
        counter: of its changes of tables; the first one are those with which it begins.
        begun_with: how many changes these are.
        ends, table_ends: what each member has reported.
        reached, table_reached: what so many have as commit.
    """

    epoch: int
    member: int
    voters: Voters
    prior: Voters
    merged: Voters
    ends: tuple[int, ...]
    table_ends: tuple[int, ...]
    begun: bool = False
    numbers: tuple[int, ...] = ()
    counter: int = 0
    begun_with: int = 0
    reached: int = 0
    table_reached: int = 0


class StateReport(NamedTuple):
    """A report that waits in a connection."""

    member: int
    leader: int
    epoch: int
    number: int
    counter: int


class StateLeft(NamedTuple):
    """How many faults and changes of voters may still happen."""

    power_cuts: int = 0
    disks: int = 0
    changes: int = 0


class StateGroup(NamedTuple):
    """All there is.

    Attributes:
        epoch, voters, prior: the record in the coordinator's store.
        lease_changes, table_changes: how many were made.
        answered: by change of leases, in which epoch it was answered first; 0: it was not.
        told: by epoch, the tables of which its leader has told clients something; None: nothing.
    """

    members: tuple[StateMember, ...]
    left: StateLeft
    voters: Voters
    answered: tuple[int, ...]
    told: tuple[tuple[int, ...] | None, ...]
    prior: Voters = ()
    epoch: int = 0
    leaders: tuple[StateLeader, ...] = ()
    lease_changes: int = 0
    table_changes: int = 0
    reports: tuple[StateReport, ...] = ()
