"""What may happen next beside the log: elections as one step, then streams, merging, changes and answers.

    elected ──members hand over──► enough are merged ──► begun ──its tables are a majority's──► serves

An election is one step, since a promise without a leader only keeps a member from what it could do; its seals
are those of so many members as it takes and no more, and others promise as they follow. A stream, its promise
and the state that is handed over are one step: a member's state can't change between them. Reports count at
once, since a late one only says less, but where a leader may have led before: cases with `reports`.

What is answered is answered as early as the rules let it. A client asks again for whatever was done already,
at each moment, and is answered by the same rules (Q3): so what a leader has answered is all that it had then,
and of tables also that nothing else was in them.

Invariants, of leaders that have begun: what lower epochs have answered of leases is in theirs, and their
tables go on from what lower epochs have told (I11): no change is missing, and none that was not there has
come back in between. No queue of a topic is hidden by a deletion that is not in the tables (I3).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from models.group import Voters
from models.logs import Finding, majority, seals
from models.state_group import StateGroup, StateLeader, StateLeft, StateMember, StateReport, Stream

__all__ = ["StateCase", "StateStep", "StateSteps"]

StateStep = tuple[str, StateGroup, Finding | None]
T = TypeVar("T")


@dataclass(frozen=True)
class StateCase:
    """The bounds of a search.

    Attributes:
        members, voters: how many there are, and how many of them, the first ones, vote in the beginning.
        epochs_max, lease_changes, table_changes: no elections and no changes beyond these.
        left: the faults.
        voter_sets: the members that a change of voters may name.
        deletions: changes of tables are deletions of topics, each of another one.
        reports: whether reports are messages that may come late.
        begin: steps that were taken before the search begins, by their lines.
    """

    name: str
    members: int = 3
    voters: int = 3
    epochs_max: int = 3
    lease_changes: int = 0
    table_changes: int = 0
    left: StateLeft = StateLeft()  # noqa: RUF009 - a value that never changes
    voter_sets: tuple[tuple[int, ...], ...] = ()
    deletions: bool = False
    reports: bool = False
    begin: tuple[str, ...] = ()

    def first(self) -> StateGroup:
        """Return the group in which nothing has happened."""
        members = tuple(StateMember(seat) for seat in range(self.members))
        voters = tuple((member, member) for member in range(self.voters))
        return StateGroup(members, self.left, voters, (0,) * self.lease_changes, (None,) * self.epochs_max)


@dataclass(frozen=True)
class StateSteps:
    """The steps of a case, with some rules switched off."""

    case: StateCase
    off: frozenset[str] = frozenset()

    def after(self, group: StateGroup) -> Iterator[StateStep]:
        """Yield what may happen next: a line for people, the group then, and what is wrong with it."""
        yield from self.elections(group)
        for leader in group.leaders:
            yield from self.followings(group, leader)
            yield from self.beginnings(group, leader)
            if (
                leader.begun and leader.epoch < self.case.epochs_max
            ):  # what the last one does, nobody takes over
                yield from self.changes(group, leader)
                yield from self.copies(group, leader)
                yield from self.clearings(group, leader)
        yield from self.readings(group)
        yield from self.faults(group)

    # Elections

    def elections(self, group: StateGroup) -> Iterator[StateStep]:
        """A member is elected by as few seals as it takes, under the same voters or under others."""
        if group.epoch >= self.case.epochs_max:
            return
        for at in range(len(group.members)):
            if named(group, (*group.voters, *group.prior), at):
                yield from self.elected(group, at, group.voters, group.prior, "")
        if not group.left.changes or group.prior:
            return
        fewer = group._replace(left=group.left._replace(changes=group.left.changes - 1))
        for leader in group.leaders:
            if leader.epoch != group.epoch or not self.serves(leader):
                continue
            for ids in self.case.voter_sets:
                voters = tuple((at, group.members[at].seat) for at in ids)
                if leader.member in ids and voters != group.voters:
                    yield from self.elected(fewer, leader.member, voters, group.voters, f" with {voters}")

    def elected(
        self, group: StateGroup, at: int, voters: Voters, prior: Voters, how: str
    ) -> Iterator[StateStep]:
        """Have a member elected, by each set of members that is enough and as small as can be."""
        others = [other for other in range(len(group.members)) if other != at]
        enough: list[frozenset[int]] = []
        for count in range(len(others) + 1):
            for some in combinations(others, count):
                sealing = frozenset((at, *some))
                if any(fewer < sealing for fewer in enough):
                    continue
                if self.sealed(group, voters, sealing) and self.sealed(group, prior, sealing):
                    enough.append(sealing)
        epoch, nothing = group.epoch + 1, (0,) * len(group.members)
        for sealing in enough:
            after = group._replace(epoch=epoch, voters=voters, prior=prior)
            for other in sealing:
                after = self.promise(after, other, epoch)
            seat = group.members[at].seat
            leader = StateLeader(epoch, at, voters, prior, ((at, seat),), nothing, nothing)
            after = after._replace(leaders=(*after.leaders, leader))
            yield f"{at} is elected in epoch {epoch} by {sorted(sealing)}{how}", after, None

    def sealed(self, group: StateGroup, voters: Voters, sealing: frozenset[int]) -> bool:
        """Return whether these members are enough of some voters; of none they are."""
        if not voters:
            return True
        needed = seals(len(voters), majority(len(voters)))
        return sum(named(group, voters, at) for at in sealing) >= needed

    def promise(self, group: StateGroup, at: int, epoch: int) -> StateGroup:
        """Return the group with a member's promise: what it led in lower epochs ends, and its streams."""
        member = group.members[at]
        streams = member.streams if "Q1a" in self.off else ()
        group = with_member(group, at, member._replace(promised=epoch, streams=streams))
        return self.only(group, tuple(one for one in group.leaders if one.member != at or one.epoch >= epoch))

    def only(self, group: StateGroup, leaders: tuple[StateLeader, ...]) -> StateGroup:
        """Return the group with these leaders; reports that nobody may read any more are left out."""
        if group.reports and "Q2" not in self.off:
            epochs = {leader.epoch for leader in leaders}
            reports = tuple(report for report in group.reports if report.epoch in epochs)
            group = group._replace(reports=reports)
        return group._replace(leaders=leaders)

    # Taking over

    def followings(self, group: StateGroup, leader: StateLeader) -> Iterator[StateStep]:
        """A member promises a leader's epoch, opens its stream, and hands its state over."""
        for at, member in enumerate(group.members):
            if at == leader.member or any(stream.epoch == leader.epoch for stream in member.streams):
                continue
            if any(one.member == at and one.epoch > leader.epoch for one in group.leaders):
                continue
            if member.promised > leader.epoch and "Q1" not in self.off:
                continue
            yield self.followed(group, leader, at, promises=True)
            leads = any(one.member == at for one in group.leaders)
            if "Q1" in self.off and member.promised < leader.epoch and not leads:
                yield self.followed(group, leader, at, promises=False)

    def followed(self, group: StateGroup, leader: StateLeader, at: int, *, promises: bool) -> StateStep:
        """Have a member follow a leader."""
        name = f"{at} follows {leader.member} in epoch {leader.epoch}"
        after = group
        if promises and group.members[at].promised < leader.epoch:
            after = self.promise(group, at, leader.epoch)
        elif not promises:
            name += ", without its promise"
        member = after.members[at]
        streams = member.streams if "Q2a" in self.off else ()
        after = with_member(after, at, member._replace(streams=(*streams, Stream(leader.epoch))))
        ends, table_ends = put(leader.ends, at, 0), put(leader.table_ends, at, 0)
        new = leader._replace(ends=ends, table_ends=table_ends)
        if named(after, (*leader.voters, *leader.prior), at):
            after, new = self.merge(after, new, at)
        after = with_leader(after, leader, new)
        return name, *self.reported(after, new, at)

    def merge(self, group: StateGroup, leader: StateLeader, at: int) -> tuple[StateGroup, StateLeader]:
        """Have a leader take over what a member hands it: leases at any time, tables before it begins."""
        member, own = group.members[at], group.members[leader.member]
        leases = own.leases | member.leases
        numbers = (*leader.numbers, leases) if leader.begun and leases != own.leases else leader.numbers
        own = self.stored(own._replace(leases=leases))
        if not leader.begun and member.version > own.version and "Q5a" not in self.off:
            floors = member.floors | own.floors if "Q7" in self.off else member.floors
            own = own._replace(version=member.version, tables=member.tables, floors=floors)
        merged = () if leader.begun else tuple(sorted({*leader.merged, (at, member.seat)}))
        return with_member(group, leader.member, own), leader._replace(merged=merged, numbers=numbers)

    def stored(self, member: StateMember) -> StateMember:
        """Return a member with its leases on its disk at once, where nothing can lose them."""
        return member if self.case.left.power_cuts else member._replace(kept=member.leases)

    def beginnings(self, group: StateGroup, leader: StateLeader) -> Iterator[StateStep]:
        """A leader begins, as enough have handed their state over: its tables are its first change."""
        if leader.begun:
            return
        if "Q4" not in self.off and not (
            self.handed_over(leader, leader.voters) and self.handed_over(leader, leader.prior)
        ):
            return
        member = group.members[leader.member]
        new = leader._replace(begun=True, merged=(), numbers=(member.leases,), begun_with=len(member.tables))
        after = group
        if "Q5" not in self.off:
            after = with_member(group, leader.member, member._replace(version=(leader.epoch, 1)))
            new = new._replace(counter=1)
        after = with_leader(after, leader, new)
        yield f"{leader.member} begins epoch {leader.epoch}", *self.reached(after, new)

    def handed_over(self, leader: StateLeader, voters: Voters) -> bool:
        """Return whether enough of some voters have handed their state over; of none they have."""
        if not voters:
            return True
        return len({*leader.merged} & {*voters}) >= seals(len(voters), majority(len(voters)))

    # Changes

    def serves(self, leader: StateLeader) -> bool:
        """Return whether a leader takes changes, and answers."""
        return leader.begun and (leader.table_reached > 0 or not self.off.isdisjoint({"Q5", "Q5b"}))

    def changes(self, group: StateGroup, leader: StateLeader) -> Iterator[StateStep]:
        """A client changes leases or tables."""
        if not self.serves(leader):
            return
        at, member = leader.member, group.members[leader.member]
        if group.lease_changes < self.case.lease_changes:
            change = group.lease_changes
            leases = member.leases | 1 << change
            after = group._replace(lease_changes=change + 1)
            after = with_member(after, at, self.stored(member._replace(leases=leases)))
            new = leader._replace(numbers=(*leader.numbers, leases))
            after = with_leader(after, leader, new)
            name = f"{at} makes change {change} of leases, its number {len(new.numbers)} in epoch {new.epoch}"
            yield name, *self.reached(after, new)
        if group.table_changes < self.case.table_changes:
            change, version = group.table_changes, (leader.epoch, leader.counter + 1)
            floors = member.floors | 1 << change if self.case.deletions else 0
            tables = (*member.tables, change)
            after = group._replace(table_changes=change + 1)
            after = with_member(after, at, member._replace(version=version, tables=tables, floors=floors))
            new = leader._replace(counter=version[1])
            after = with_leader(after, leader, new)
            yield f"{at} makes change {change} of tables, version {version}", *self.reached(after, new)

    def copies(self, group: StateGroup, leader: StateLeader) -> Iterator[StateStep]:
        """A member takes leases, or tables, and writes them down; the leader writes its leases down."""
        source = group.members[leader.member]
        if source.kept != source.leases:
            after = with_member(group, leader.member, source._replace(kept=source.leases))
            yield f"{leader.member} writes its leases down", *self.reached(after, leader)
        for at, member in enumerate(group.members):
            if at == leader.member:
                continue
            stream = next((one for one in member.streams if one.epoch == leader.epoch), None)
            if stream and self.case.lease_changes:
                yield from self.lease_copies(group, leader, at, stream)
            if not ((stream and member.promised == leader.epoch) or ("Q1b" in self.off and member.promised)):
                continue
            version = (leader.epoch, leader.counter)
            if member.version == version or not leader.counter:
                continue
            floors = member.floors | source.floors if "Q7" in self.off else source.floors
            new = member._replace(version=version, tables=source.tables, floors=floors)
            after = with_member(group, at, new)
            yield f"{at} takes tables {version} of {leader.member}", *self.reported(after, leader, at)

    def lease_copies(
        self, group: StateGroup, leader: StateLeader, at: int, stream: Stream
    ) -> Iterator[StateStep]:
        """A member takes leases with the next number, or writes down what it has taken."""
        member = group.members[at]
        if stream.got < len(leader.numbers):
            number = stream.got + 1
            streams = tuple(one._replace(got=number) if one is stream else one for one in member.streams)
            leases = member.leases | leader.numbers[number - 1]
            new = self.stored(member._replace(leases=leases, streams=streams))
            after = with_member(group, at, new)
            name = f"{at} takes leases {number} of {leader.member} in epoch {leader.epoch}"
            yield name, *self.reported(after, leader, at)
        if member.kept != member.leases:
            after = with_member(group, at, member._replace(kept=member.leases))
            yield f"{at} writes its leases down", *self.reported(after, leader, at)

    # Answers

    def on_disk(self, leader: StateLeader, member: StateMember, got: int) -> int:
        """Return up to which of a leader's numbers a member that has got so many has all on its disk."""
        leases = member.leases if "Q6" in self.off else member.kept
        while got and leader.numbers[got - 1] & ~leases:
            got -= 1
        return got

    def report(self, group: StateGroup, leader: StateLeader, at: int) -> tuple[int, int]:
        """Return what a member has to report to a leader: a number of leases, and one of tables."""
        member = group.members[at]
        stream = next((one for one in member.streams if one.epoch == leader.epoch), None)
        if not stream or not named(group, leader.voters, at):
            return 0, 0
        counter = member.version[1] if member.version[0] == leader.epoch else 0
        return self.on_disk(leader, member, stream.got), counter

    def reported(self, group: StateGroup, leader: StateLeader, at: int) -> tuple[StateGroup, Finding | None]:
        """Have a member's report come to a leader, at once or later."""
        number, counter = self.report(group, leader, at)
        if self.case.reports:
            report = StateReport(at, leader.member, leader.epoch, number, counter)
            if number or counter:  # earlier ones of the stream say less
                others = [one for one in group.reports if (one.member, one.epoch) != (at, leader.epoch)]
                group = group._replace(reports=tuple(sorted((*others, report))))
            return group, None
        return self.counted(group, leader, at, number, counter)

    def counted(
        self, group: StateGroup, leader: StateLeader, at: int, number: int, counter: int
    ) -> tuple[StateGroup, Finding | None]:
        """Have a leader take a report."""
        number = min(number, len(leader.numbers))
        new = leader._replace(
            ends=put(leader.ends, at, max(number, leader.ends[at])),
            table_ends=put(leader.table_ends, at, max(min(counter, leader.counter), leader.table_ends[at])),
        )
        return self.reached(with_leader(group, leader, new), new)

    def readings(self, group: StateGroup) -> Iterator[StateStep]:
        """A leader reads a report that has come late; one of an older stream only where a rule is off."""
        for report in group.reports:
            rest = group._replace(reports=tuple(one for one in group.reports if one != report))
            for leader in group.leaders:
                if leader.member != report.leader or not leader.begun:
                    continue
                if leader.epoch != report.epoch and "Q2" not in self.off:
                    continue
                name = (
                    f"{leader.member} reads in epoch {leader.epoch} what {report.member} reported in epoch"
                    f" {report.epoch}: {report.number} and {report.counter}"
                )
                yield name, *self.counted(rest, leader, report.member, report.number, report.counter)

    def reached(self, group: StateGroup, leader: StateLeader) -> tuple[StateGroup, Finding | None]:
        """See how far enough voters are; what is answered by that is answered, and must hold."""
        if not leader.begun:
            return group, None
        at = leader.member
        own, counter = 0, 0
        if named(group, leader.voters, at):
            own = self.on_disk(leader, group.members[at], len(leader.numbers))
            counter = leader.counter
        commits = majority(len(leader.voters))
        others = [other for other, _ in leader.voters if other != at]
        ends = sorted((own, *(leader.ends[other] for other in others)), reverse=True)
        table_ends = sorted((counter, *(leader.table_ends[other] for other in others)), reverse=True)
        new = leader._replace(
            reached=max(ends[commits - 1], leader.reached),
            table_reached=max(table_ends[commits - 1], leader.table_reached),
        )
        group = with_leader(group, leader, new)
        if self.serves(new):
            group = self.answers(group, new)
        return group, finding(group, new)

    def answers(self, group: StateGroup, leader: StateLeader) -> StateGroup:
        """Have all answered that the rules let a leader answer now."""
        tables = group.members[leader.member].tables
        if self.off.isdisjoint({"Q0", "Q3"}):
            leases = leader.numbers[leader.reached - 1] if leader.reached else 0
            known = leader.table_reached or not leader.counter
            tables = tables[: leader.begun_with + max(leader.table_reached - 1, 0)]
        else:
            leases, known = leader.numbers[-1], True
        answered = tuple(
            epoch or (leader.epoch if leases >> change & 1 else 0)
            for change, epoch in enumerate(group.answered)
        )
        told = put(group.told, leader.epoch - 1, tables) if known and self.case.table_changes else group.told
        return group._replace(answered=answered, told=told)

    # Voters and faults

    def clearings(self, group: StateGroup, leader: StateLeader) -> Iterator[StateStep]:
        """The prior voters are forgotten, as so many new ones as commit hold what the leader began with."""
        if not group.prior or leader.epoch != group.epoch:
            return
        holders = sum(
            leader.ends[at] > 0 and leader.table_ends[at] > 0
            for at, _ in leader.voters
            if at != leader.member
        )
        own = self.on_disk(leader, group.members[leader.member], 1) > 0 or "Q8a" in self.off
        holders += own and named(group, leader.voters, leader.member)
        if holders >= majority(len(leader.voters)) or "Q8" in self.off:
            yield "the prior voters are cleared", group._replace(prior=()), None

    def faults(self, group: StateGroup) -> Iterator[StateStep]:
        """Power cuts, which take what is not on the disk, and replaced disks."""
        left = group.left
        for at, member in enumerate(group.members):
            if left.power_cuts and member.leases != member.kept:
                after = group._replace(left=left._replace(power_cuts=left.power_cuts - 1))
                new = member._replace(leases=member.kept, streams=())
                yield f"power cut at {at}", self.restarted(after, at, new), None
            if left.disks and member.promised:
                after = group._replace(left=left._replace(disks=left.disks - 1))
                seat = member.seat if "R9a" in self.off else member.seat + len(group.members)
                yield f"the disk of {at} is replaced", self.restarted(after, at, StateMember(seat)), None

    def restarted(self, group: StateGroup, at: int, member: StateMember) -> StateGroup:
        """Return the group with a member that has nothing but its disk."""
        group = with_member(group, at, member)
        return self.only(group, tuple(one for one in group.leaders if one.member != at))


def put(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    """Return a tuple with another value at an index."""
    return (*values[:at], value, *values[at + 1 :])


def named(group: StateGroup, voters: Voters, at: int) -> bool:
    """Return whether a member, on the disk that it has now, is one of these voters."""
    return (at, group.members[at].seat) in voters


def with_member(group: StateGroup, at: int, member: StateMember) -> StateGroup:
    """Return the group with another value of a member."""
    return group._replace(members=put(group.members, at, member))


def with_leader(group: StateGroup, before: StateLeader, after: StateLeader) -> StateGroup:
    """Return the group with another value of the leader of an epoch."""
    leaders = tuple(after if one.epoch == before.epoch else one for one in group.leaders)
    return group._replace(leaders=leaders)


# Invariants


def finding(group: StateGroup, leader: StateLeader) -> Finding | None:
    """Check this leader, and those of higher epochs that have begun: what this one answered they have."""
    for one in group.leaders:
        if one.epoch >= leader.epoch and one.begun and (found := leader_finding(group, one)):
            return found
    return None


def leader_finding(group: StateGroup, leader: StateLeader) -> Finding | None:
    """Check that a leader that has begun has what lower epochs have answered, and hides nothing else."""
    member = group.members[leader.member]
    who = f"leader {leader.member} of epoch {leader.epoch}"
    for change, epoch in enumerate(group.answered):
        if 0 < epoch < leader.epoch and not member.leases >> change & 1:
            return Finding("I11", f"{who} lacks change {change} of leases, answered in epoch {epoch}")
    for below, told in enumerate(group.told[: leader.epoch - 1]):
        if told is not None and member.tables[: len(told)] != told:
            text = f"{who} has the tables {member.tables}, epoch {below + 1} has told of {told}"
            return Finding("I11", text)
    hiding = [change for change in range(member.floors.bit_length()) if member.floors >> change & 1]
    if extra := {*hiding} - {*member.tables}:
        return Finding("I3", f"{who} hides what the topic had that deletion {min(extra)} would have deleted")
    return None
