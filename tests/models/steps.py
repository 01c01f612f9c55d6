"""What may happen next in a broker group: each step, with the rule that it follows and the checks behind it.

`Steps.after` gives all steps from a group. A step is as small as safety asks for. A seal, its answer and
the opening of a leadership are steps of their own. A handshake with the cut is one, since nothing else
touches the follower's log meanwhile. Reports count at once, because a late one only says less, except
where a member loses entries: cases with `reports` have connections, cells, and a broker that looks first
and publishes later.

Restarts lose what is not on disk, that is, roles and streams; and a member that stays away is one whose
steps are not taken. So nothing here is about time, and no order of events is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from models.group import (
    NOBODY,
    Candidacy,
    Flush,
    Group,
    Leader,
    Left,
    Member,
    Pages,
    Record,
    Report,
    Voters,
)
from models.logs import Epochs, Finding, adopt, consistent_point, difference, last_epoch, majority, seals

__all__ = ["Case", "Step", "Steps"]

Step = tuple[str, Group, Finding | None]


@dataclass(frozen=True)
class Case:
    """The bounds of a search.

    Attributes:
        members, voters: how many there are, and how many of them, the first ones, vote in the beginning.
        copies: how many commit a record; 0: most of the voters.
        epochs_max, entries_max: no swap and no append beyond these.
        left: the faults.
        voter_sets: the members that a change of voters may name.
        begin: steps that were taken before the search begins, by their lines.
        observer: whether there is a classic slave.
        reports: whether reports are messages, read by one process and counted by another.
        flush: the modes of each member's broker and replicator, where the case is about them.
        waits: entry 1 is a message that is not due yet: whoever leads has to have it, or it stored again.
    """

    name: str
    members: int = 3
    voters: int = 3
    copies: int = 0
    epochs_max: int = 2
    entries_max: int = 1
    left: Left = Left()  # noqa: RUF009 - a value that never changes
    voter_sets: tuple[tuple[int, ...], ...] = ()
    observer: bool = False
    reports: bool = False
    begin: tuple[str, ...] = ()
    flush: tuple[tuple[str, str], ...] = ()
    waits: bool = False

    def first(self) -> Group:
        """Return the group in which nothing has happened."""
        members = tuple(Member(seat) for seat in range(self.members))
        if self.flush:
            members = tuple(
                member._replace(flush=Flush(*modes, weaker(*modes)))
                for member, modes in zip(members, self.flush, strict=True)
            )
        voters = tuple((member, member) for member in range(self.voters))
        return Group(members, Record(0, NOBODY, voters, ()), self.left)

    def commits(self, voters: Voters) -> int:
        """Return how many copies among these voters commit a record."""
        return min(self.copies or majority(len(voters)), len(voters))


@dataclass(frozen=True)
class Steps:
    """The steps of a case, with some rules switched off."""

    case: Case
    off: frozenset[str] = frozenset()

    def after(self, group: Group) -> Iterator[Step]:
        """Yield what may happen next: a line for people, the group then, and what is wrong with it."""
        yield from self.swaps(group)
        yield from self.seals(group)
        yield from self.openings(group)
        for leader in group.leaders:
            yield from self.appends(group, leader)
            yield from self.handshakes(group, leader)
            yield from self.copies(group, leader)
            if self.case.reports:
                yield from self.reports(group, leader)
                yield from self.publications(group, leader)
            else:
                yield from self.commits(group, leader)
            yield from self.votes(group, leader)
            yield from self.changes(group, leader)
            if self.case.waits:
                yield from self.hearings(group, leader)
            if self.case.observer:
                yield from self.observations(group, leader)
        yield from self.faults(group)

    # Elections

    def swaps(self, group: Group) -> Iterator[Step]:
        """A voter swaps the record for one with a new epoch that it leads, and promises itself to it."""
        record = group.record
        for candidate, member in enumerate(group.members):
            epoch = max(record.epoch, member.promised) + 1
            electable = record.voters if "R10f" in self.off else (*record.voters, *record.prior)
            if (
                epoch > self.case.epochs_max
                or not (member.votes or (record.loss and "R14d" in self.off))
                or member.gone
                or not self.named(electable, candidate, member)
            ):
                continue
            prior = () if "R10c" in self.off else record.prior
            new = Record(epoch, candidate, record.voters, prior, 0 if "R14b" in self.off else record.loss)
            yield f"{candidate} swaps epoch {epoch}", self.candidacy(group, new), None

    def candidacy(self, group: Group, record: Record) -> Group:
        """Return the group with a record that a candidate has swapped, and its own seal."""
        group = promise(group, record.leader, record.epoch, record.leader, keep_stream=False)
        member = group.members[record.leader]
        seal = (record.leader, member.seat, last_epoch(member.epochs), len(member.log))
        new = Candidacy(record.epoch, record.leader, record.voters, record.prior, (seal,), record.loss)
        return group._replace(record=record, candidacies=(*group.candidacies, new))

    def seals(self, group: Group) -> Iterator[Step]:
        """A member promises itself to a candidate, and says how far its log goes."""
        for index, candidacy in enumerate(group.candidacies):
            sealed = {seal[0] for seal in candidacy.seals}
            for at, member in enumerate(group.members):
                if (
                    at in sealed
                    or member.gone
                    or not self.may_promise(member, candidacy.epoch, candidacy.member)
                ):
                    continue
                after = promise(group, at, candidacy.epoch, candidacy.member, keep_stream="R3a" in self.off)
                waived = candidacy.loss == candidacy.epoch or ("R14d" in self.off and candidacy.loss)
                if waived and not member.votes:
                    after = with_member(after, at, after.members[at]._replace(votes=True))
                elif not member.votes:
                    if after is not group:
                        yield f"{at} promises epoch {candidacy.epoch}, without a vote", after, None
                    continue
                seal = (at, member.seat, last_epoch(member.epochs), len(member.log))
                new = candidacy._replace(seals=tuple(sorted((*candidacy.seals, seal))))
                candidacies = tuple(
                    new if (one.epoch, one.member) == (candidacy.epoch, candidacy.member) else one
                    for one in after.candidacies
                )
                name = (
                    f"{at} seals epoch {candidacy.epoch} for {group.candidacies[index].member} at {seal[2:]}"
                )
                yield name, after._replace(candidacies=candidacies), None

    def may_promise(self, member: Member, epoch: int, candidate: int) -> bool:
        """Return whether a member may promise itself to this candidate, or has already."""
        if member.promised == epoch:
            return "R3b" in self.off or (member.promised_to == candidate and not member.follows)
        return member.promised < epoch

    def named(self, voters: Voters, at: int, member: Member) -> bool:
        """Return whether a member, on the disk that it has now, is one of these voters."""
        return (at, member.seat) in voters

    def sealed_by(self, voters: Voters, candidacy: Candidacy, *, by_id: bool = False) -> bool:
        """Return whether enough of these voters have sealed."""
        needed = seals(len(voters), self.case.commits(voters)) - ("R2'" in self.off)
        if by_id:
            ids = {member for member, _ in voters}
            return sum(seal[0] in ids for seal in candidacy.seals) >= needed
        return sum(seal[:2] in voters for seal in candidacy.seals) >= needed

    def openings(self, group: Group) -> Iterator[Step]:
        """A candidate with enough seals leads, if no seal is better than its own; else it gives up."""
        for candidacy in group.candidacies:
            enough = self.sealed_by(candidacy.voters, candidacy)
            if (
                candidacy.loss and "R14" not in self.off
            ):  # all of them, since no commit is known to meet fewer
                enough = {seal[:2] for seal in candidacy.seals}.issuperset(candidacy.voters)
            if candidacy.prior and "R10" not in self.off:
                enough = enough and self.sealed_by(candidacy.prior, candidacy, by_id="R10b" in self.off)
            if not enough and "R2" not in self.off:
                continue
            member = group.members[candidacy.member]
            rest = group._replace(candidacies=tuple(one for one in group.candidacies if one is not candidacy))
            best = max(seal[2:] for seal in candidacy.seals)
            if best > (last_epoch(member.epochs), len(member.log)) and "R4" not in self.off:
                yield f"{candidacy.member} gives epoch {candidacy.epoch} up: {best} is better", rest, None
            elif self.case.waits and "R22" not in self.off and self.keeper(group, candidacy, best):
                yield f"{candidacy.member} gives epoch {candidacy.epoch} up for what waits", rest, None
            else:
                yield self.lead(rest, candidacy.epoch, candidacy.member, candidacy.voters)

    def keeper(self, group: Group, candidacy: Candidacy, best: tuple[int, int]) -> bool:
        """Return whether a log that goes on as far has what waits, and the candidate's has it no more."""
        return not holds_waiting(group, candidacy.member) and any(
            holds_waiting(group, seal[0]) for seal in candidacy.seals if seal[2:] == best
        )

    def lead(self, group: Group, epoch: int, at: int, voters: Voters) -> Step:
        """Have a member lead an epoch that begins at its log's end."""
        member = group.members[at]
        start = len(member.log)
        blank = (-1,) * len(group.members)
        none = (0,) * len(group.members)
        pages = Pages(none, blank, none, blank, none) if self.case.reports else None
        commit = member.begin if "R20b" in self.off else 0
        leader = Leader(epoch, at, voters, start, commit, pages)
        after = with_member(group, at, member._replace(epochs=(*member.epochs, (epoch, start))))
        after = after._replace(leaders=(*group.leaders, leader), led=tuple(sorted({*group.led, (epoch, at)})))
        fresh = tuple((entry, epoch) for entry in member.log[len(group.truth) : commit])
        after = after._replace(truth=(*group.truth, *fresh))
        finding = leader_finding(group, epoch, at) or commit_finding(after, leader, commit)
        if self.case.waits and finding is None:
            finding = waiting_finding(group, epoch, at)
        return f"{at} leads epoch {epoch}", after, finding

    # The stream

    def appends(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A leader appends an entry."""
        if group.entries >= self.case.entries_max:
            return
        member = group.members[leader.member]
        entry = group.entries + 1
        new = synced(member._replace(log=(*member.log, entry)), leads=True)
        after = with_member(group, leader.member, new)._replace(entries=entry)
        yield f"{leader.member} appends {entry}", after, matching_finding(after, leader.member)
        if self.case.waits and not group.again and holds_waiting(group, leader.member):
            after = after._replace(again=(entry,))
            yield f"{leader.member} stores again, as {entry}, what waits", after, None

    def handshakes(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A member opens a stream: it promises, cuts where the lists part, adopts what it has reached."""
        source = group.members[leader.member]
        answers: list[tuple[Epochs, int]] = [(source.epochs, len(source.log))]
        if "R8" in self.off and len(source.log) > leader.start:
            answers.append((source.epochs, leader.start))
        for at, member in enumerate(group.members):
            if at == leader.member or member.follows == leader.epoch or member.gone:
                continue
            if member.promised > leader.epoch or not self.may_promise(member, leader.epoch, leader.member):
                continue
            if self.case.left.retentions and self.begins_behind(member, source):
                continue
            for epochs, end in answers:
                yield self.handshake(group, leader, at, epochs, end)

    def begins_behind(self, member: Member, source: Member) -> bool:
        """Return whether one of two logs begins behind where they part: then no stream is possible."""
        point = consistent_point(member.epochs, len(member.log), source.epochs, len(source.log))
        return point < max(member.begin, source.begin)

    def handshake(self, group: Group, leader: Leader, at: int, epochs: Epochs, end: int) -> Step:
        """Have a member take the answer to a handshake."""
        member = group.members[at]
        after = promise(group, at, leader.epoch, leader.member, keep_stream=False)
        point = consistent_point(member.epochs, len(member.log), epochs, end)
        name = f"{at} follows {leader.member} in epoch {leader.epoch} from {point}"
        if point < len(member.log) and last_epoch(member.epochs) == leader.epoch and "R8b" not in self.off:
            return name, after, Finding("R8", f"{at} stops: its leader has less of epoch {leader.epoch}")
        votes = member.votes and not ("R19" in self.off and point < len(member.log))
        if "R13" in self.off:
            point, kept = min(len(member.log), end), member.epochs
        else:
            kept = tuple(entry for entry in member.epochs if entry[1] <= point and entry in epochs)
        new = after.members[at]._replace(
            log=member.log[:point],
            epochs=adopt(kept, epochs, point),
            votes=votes,
            follows=leader.epoch,
            link=member.link + self.case.reports,
            kept=min(member.kept, group.members[leader.member].begin),
        )
        after = with_member(after, at, new)
        if leader.pages:
            after = self.accept(after, leader, leader.pages, at, new.link)
        return name, after, cut_finding(group, at, point) or follower_finding(after, leader, at)

    def accept(self, group: Group, leader: Leader, pages: Pages, at: int, link: int) -> Group:
        """Have a leader's replicator take a new connection of a member."""
        pages = pages._replace(links=put(pages.links, at, link))
        if "R11" not in self.off:
            pages = pages._replace(cells=put(pages.cells, at, -1))
            group = group._replace(reports=tuple(one for one in group.reports if one.member != at))
        return with_leader(group, leader, leader._replace(pages=pages))

    def copies(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A follower takes the next entry."""
        source = group.members[leader.member]
        for at, member in enumerate(group.members):
            end = len(member.log)
            if at == leader.member or member.follows != leader.epoch or end >= len(source.log):
                continue
            log = (*member.log, source.log[end])
            new = member._replace(log=log, epochs=adopt(member.epochs, source.epochs, len(log)))
            after = with_member(group, at, synced(new, leads=False))
            yield f"{at} takes entry {log[-1]} of {leader.member}", after, follower_finding(after, leader, at)

    def votes(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A member that may have lost entries votes again, as it has what its leader has committed."""
        for at, member in enumerate(group.members):
            if member.votes or member.follows != leader.epoch or last_epoch(member.epochs) != leader.epoch:
                continue
            if len(member.log) < leader.commit and "R9b" not in self.off:
                continue
            if leader.pages and leader.pages.told_links[at] != member.link and "R11b" not in self.off:
                continue
            yield f"{at} votes again", with_member(group, at, member._replace(votes=True)), None

    # Commit

    def counts(self, leader: Leader, at: int, member: Member) -> bool:
        """Return whether a follower's end counts for its leader's commit."""
        if not self.named(leader.voters, at, member):
            return False
        if member.follows != leader.epoch:
            return "R7'" in self.off
        adopted = last_epoch(member.epochs) == leader.epoch and len(member.log) >= leader.start
        return adopted or "R7" in self.off

    def commits(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A leader commits what enough voters hold."""
        source = group.members[leader.member]
        ends = [
            len(member.log)
            for at, member in enumerate(group.members)
            if at != leader.member and self.counts(leader, at, member)
        ]
        if "R12'" in self.off and self.case.observer:
            ends.append(len(group.observer))
        yield from self.commit(group, leader, leader, ends, source)

    def commit(
        self, group: Group, leader: Leader, published: Leader, ends: list[int], source: Member
    ) -> Iterator[Step]:
        """Move the commit offset to where enough of these ends are, the leader's own included."""
        if self.named(leader.voters, leader.member, source):
            ends = [*ends, len(source.log)]
        ends.sort(reverse=True)
        copies = self.case.commits(leader.voters)
        commit = min(ends[copies - 1], len(source.log)) if len(ends) >= copies else 0
        commit = max(commit, leader.commit)
        after = with_leader(group, leader, published._replace(commit=commit))
        if after == group:
            return
        fresh = tuple((entry, leader.epoch) for entry in source.log[len(group.truth) : commit])
        after = after._replace(truth=(*group.truth, *fresh))
        name = f"{leader.member} commits up to {commit} in epoch {leader.epoch}"
        yield name, after, commit_finding(after, leader, commit)

    def reports(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A follower reports, the leader's replicator reads a report, its broker looks at the cells."""
        assert leader.pages
        pages = leader.pages
        for at, member in enumerate(group.members):
            if at == leader.member or not self.counts(leader, at, member):
                continue
            report = Report(at, leader.epoch, member.link, len(member.log))
            earlier = [one for one in group.reports if one[:3] == report[:3]]
            if report in earlier or (pages.links[at] == member.link and pages.cells[at] >= report.end):
                continue
            others = {*group.reports} - {*earlier}
            after = group._replace(reports=tuple(sorted((*others, report))))
            yield f"{at} reports {report.end} on connection {report.link}", after, None
        for report in group.reports:
            if report.epoch == leader.epoch:
                after = group._replace(reports=tuple(one for one in group.reports if one != report))
                new = pages._replace(cells=put(pages.cells, report.member, report.end))
                after = with_leader(after, leader, leader._replace(pages=new))
                name = f"{leader.member} reads {report.end} of {report.member}, connection {report.link}"
                yield name, after, None
        new = pages._replace(view_links=pages.links, view_cells=pages.cells)
        if new != pages:
            after = with_leader(group, leader, leader._replace(pages=new))
            yield f"the broker of {leader.member} looks at the cells", after, None

    def publications(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A leader's broker publishes what follows from its last look at the cells."""
        assert leader.pages
        ends = [end for end in leader.pages.view_cells if end >= 0]
        told = leader._replace(pages=leader.pages._replace(told_links=leader.pages.view_links))
        yield from self.commit(group, leader, told, ends, group.members[leader.member])

    # Voters and observers

    def changes(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A leader names other voters in a new epoch, or forgets the prior ones as the new ones hold all."""
        record = group.record
        if (record.epoch, record.leader) != (leader.epoch, leader.member):
            return
        if record.loss and (self.adopters(group, leader) or "R14c" in self.off):
            yield "the loss is over", group._replace(record=record._replace(loss=0)), None
        if record.prior and (leader.commit >= leader.start or "R10e" in self.off):
            yield "the prior voters are cleared", group._replace(record=record._replace(prior=())), None
        if not group.left.changes or record.epoch >= self.case.epochs_max:
            return
        if (record.prior and "R10d" not in self.off) or record.loss:
            return
        left = group.left._replace(changes=group.left.changes - 1)
        for ids in self.case.voter_sets:
            voters = tuple((at, group.members[at].seat) for at in ids)
            if leader.member in ids and voters != record.voters:
                new = Record(record.epoch + 1, leader.member, voters, record.voters)
                after = self.candidacy(group._replace(left=left), new)
                yield f"{leader.member} swaps epoch {new.epoch} with voters {voters}", after, None

    def adopters(self, group: Group, leader: Leader) -> bool:
        """Return whether enough voters have adopted a leader's epoch, and hold all up to its start."""
        count = sum(
            self.named(leader.voters, at, member) and (at == leader.member or self.counts(leader, at, member))
            for at, member in enumerate(group.members)
        )
        return count >= self.case.commits(leader.voters)

    def losses(self, group: Group) -> Iterator[Step]:
        """An operator says that some members are gone for good, and that the best of the others is to lead.

        It is said where no election can succeed without them. They are gone: what they led ends, and what was
        committed counts as far as the best of the others has it.
        """
        record, left = group.record, group.left
        epoch = max(record.epoch, *(member.promised for member in group.members)) + 1
        if not left.losses or epoch > self.case.epochs_max:
            return
        ids = range(len(group.members))
        some = (frozenset(each) for count in ids[1:] for each in combinations(ids, count))
        for stay in some:
            there = [at for at in stay if self.named(record.voters, at, group.members[at])]
            voting = sum(group.members[at].votes for at in there)
            if not there or voting >= seals(len(record.voters), self.case.commits(record.voters)):
                continue
            best = max(
                there, key=lambda at: (last_epoch(group.members[at].epochs), len(group.members[at].log))
            )
            after = group._replace(left=left._replace(losses=left.losses - 1))
            for at in set(ids) - stay:
                after = self.restart(after, at, after.members[at]._replace(gone=True))
            for leader in after.leaders:  # nobody of those that stay has a majority
                after = self.restart(after, leader.member, after.members[leader.member])
            log = group.members[best].log
            kept = 0
            while kept < min(len(log), len(group.truth)) and log[kept] == group.truth[kept][0]:
                kept += 1
            after = after._replace(truth=group.truth[:kept])
            after = with_member(after, best, after.members[best]._replace(votes=True))
            voters = tuple((at, group.members[at].seat) for at in sorted(there))
            new = Record(epoch, best, voters, (), epoch)
            yield f"{sorted(stay)} stay, {best} swaps epoch {epoch}", self.candidacy(after, new), None

    def observations(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A classic slave takes the next entry: whoever reads there sees it at once."""
        source = group.members[leader.member]
        end = len(group.observer)
        if end >= (len(source.log) if "R12" in self.off else leader.commit):
            return
        if group.observer == source.log[:end]:
            after = group._replace(observer=source.log[: end + 1])
            yield (
                f"the observer takes entry {source.log[end]} of {leader.member}",
                after,
                shown_finding(after),
            )

    # Faults

    def faults(self, group: Group) -> Iterator[Step]:
        """Restarts, power cuts, replaced disks, a store that is restored from a backup, an accepted loss."""
        left = group.left
        yield from self.losses(group)
        for at, member in enumerate(group.members):
            if left.restarts:
                fewer = group._replace(left=left._replace(restarts=left.restarts - 1))
                yield f"{at} restarts", self.restart(fewer, at, self.forgetful(group, at, member)), None
            if left.power_cuts:
                fewer = group._replace(left=left._replace(power_cuts=left.power_cuts - 1))
                if member.flush:
                    yield from self.power_cuts(fewer, at, member, member.flush)
                    continue
                for end in range(len(member.log)):
                    yield f"power cut at {at}, up to {end} kept", self.power_cut(fewer, at, end), None
            if left.disks and (member.log or member.promised):
                fewer = group._replace(left=left._replace(disks=left.disks - 1))
                yield f"the disk of {at} is replaced", self.replace_disk(fewer, at), None
        yield from self.backups(group)
        yield from self.tool_cuts(group)
        yield from self.retentions(group)
        if left.restores and group.record.epoch:
            record = group.record._replace(epoch=group.record.epoch - 1, leader=NOBODY)
            after = group._replace(record=record, left=left._replace(restores=left.restores - 1))
            yield f"the store is restored at epoch {record.epoch}", after, None

    def backups(self, group: Group) -> Iterator[Step]:
        """A store is copied while its member runs, or a copy is put in its place."""
        left = group.left
        for at, member in enumerate(group.members):
            if left.backups and member.promised:
                fewer = left._replace(backups=left.backups - 1)
                after = group._replace(left=fewer, backups=(*group.backups, (at, member)))
                yield f"the store of {at} is copied", after, None
        for index, (at, copy) in enumerate(group.backups):
            rest = (*group.backups[:index], *group.backups[index + 1 :])
            there = group.members[at]
            seat = copy.seat if self.off & {"R15", "R15b"} else there.seat + len(group.members)
            votes = copy.votes and "R15" in self.off
            new = copy._replace(link=there.link, gone=there.gone, seat=seat, votes=votes)
            after = self.restart(group._replace(backups=rest), at, new)
            yield f"the copy of its store is put back at {at}, with {len(copy.log)} entries", after, None

    def tool_cuts(self, group: Group) -> Iterator[Step]:
        """A tool cuts the log of a member that does not run."""
        left = group.left
        if not left.tools:
            return
        fewer = group._replace(left=left._replace(tools=left.tools - 1))
        for at, member in enumerate(group.members):
            for end in range(len(member.log)):
                epochs = tuple(entry for entry in member.epochs if entry[1] <= end)
                votes = member.votes and "R16" in self.off
                new = member._replace(log=member.log[:end], epochs=epochs, votes=votes)
                yield f"a tool cuts the log of {at} at {end}", self.restart(fewer, at, new), None

    def power_cuts(self, group: Group, at: int, member: Member, flush: Flush) -> Iterator[Step]:
        """A member loses power, and what was not on its disk; it starts as it is set then.

        Before it starts, a tool may open its log and close it in order.
        """
        left = group.left
        for end in range(flush.synced, len(member.log) + 1):
            epochs = tuple(entry for entry in member.epochs if entry[1] <= end)
            lost = member._replace(log=member.log[:end], epochs=epochs)
            for tool in range(1 + bool(left.tools)):
                for change in range(1 + bool(left.settings)):
                    fewer = left._replace(tools=left.tools - tool, settings=left.settings - change)
                    modes = ("sync", "sync") if change else (flush.broker, flush.replicator)
                    new = self.started(lost, flush, modes, opened=bool(tool))
                    name = f"power cut at {at}, up to {end} kept" + ", a tool opens it" * tool
                    name += ", it starts with flush sync" * change
                    yield name, self.restart(group._replace(left=fewer), at, new), None

    def started(self, member: Member, flush: Flush, modes: tuple[str, str], *, opened: bool) -> Member:
        """Return a member that starts after a power cut, with the vote that is left to it."""
        weakest = modes[1] if "R18b" in self.off else weaker(*modes)
        judged = weakest if "R18" in self.off else flush.weakest
        doubted = judged == "async" or (opened and "R17" not in self.off)
        if opened and "R17" in self.off:  # the log was closed in order: nothing seems to be missing
            doubted = False
        on_disk = len(member.log) if modes[0] == "sync" else flush.synced
        votes = member.votes and not doubted
        return member._replace(flush=Flush(*modes, weakest, min(on_disk, len(member.log))), votes=votes)

    def retentions(self, group: Group) -> Iterator[Step]:
        """A member removes its oldest entry for want of room."""
        left = group.left
        if not left.retentions:
            return
        fewer = group._replace(left=left._replace(retentions=left.retentions - 1))
        for at, member in enumerate(group.members):
            known = [one.commit for one in group.leaders if at == one.member or member.follows == one.epoch]
            limit = len(member.log) if "R20" in self.off else min(max(known, default=0), len(member.log))
            if (
                self.case.waits
                and "R21" not in self.off
                and not any(one.member == at for one in group.leaders)
            ):
                limit = min(limit, member.kept)
            if member.begin < limit and not self.waits_yet(group, at):
                after = with_member(fewer, at, member._replace(begin=member.begin + 1))
                yield f"{at} removes its entry {member.log[member.begin]}", after, None

    def waits_yet(self, group: Group, at: int) -> bool:
        """Return whether a leader's first entry waits, and is not stored again as safely as it is itself."""
        member = group.members[at]
        leads = [one for one in group.leaders if one.member == at]
        if not self.case.waits or not leads or member.log[member.begin] not in (1, *group.again):
            return False
        safe = len(member.log) if "R21b" in self.off else leads[-1].commit
        return not set(group.again).intersection(member.log[member.begin + 1 : safe])

    def hearings(self, group: Group, leader: Leader) -> Iterator[Step]:
        """A member that has all of its leader's log hears where that begins."""
        source = group.members[leader.member]
        for at, member in enumerate(group.members):
            whole = member.follows == leader.epoch and len(member.log) >= len(source.log)
            if whole and at != leader.member and member.kept != source.begin:
                after = with_member(group, at, member._replace(kept=source.begin))
                yield f"{at} hears that the log of {leader.member} begins at {source.begin}", after, None

    def forgetful(self, group: Group, at: int, member: Member) -> Member:
        """Return a member as its disk has it, where a rule that has it written is off."""
        if member.epochs:
            rule = "R5" if (member.epochs[-1][0], at) in group.led else "R6"
            if rule in self.off:
                member = member._replace(epochs=member.epochs[:-1])
        if "R3" in self.off:
            member = member._replace(promised=last_epoch(member.epochs), promised_to=NOBODY)
        return member

    def restart(self, group: Group, at: int, member: Member) -> Group:
        """Return the group with a member that has nothing but its disk."""
        led = [leader for leader in group.leaders if leader.member == at]
        group = with_member(group, at, member._replace(follows=0, kept=0))._replace(
            leaders=tuple(one for one in group.leaders if one.member != at),
            candidacies=tuple(one for one in group.candidacies if one.member != at),
        )
        if "R1" in self.off and group.record.leader == at:
            if led:
                return group._replace(leaders=(*group.leaders, led[-1]._replace(commit=0)))
            if (member.promised, member.promised_to) == (group.record.epoch, at):
                return self.lead(group, group.record.epoch, at, group.record.voters)[1]
        return group

    def power_cut(self, group: Group, at: int, end: int) -> Group:
        """Return the group with a member that has lost what was not flushed."""
        member = group.members[at]
        epochs = tuple(entry for entry in member.epochs if entry[1] <= end)
        new = member._replace(log=member.log[:end], epochs=epochs, votes="R9" in self.off)
        return self.restart(group, at, new)

    def replace_disk(self, group: Group, at: int) -> Group:
        """Return the group with a member that has an empty disk."""
        seat, votes = group.members[at].seat + len(group.members), True
        if self.off & {"R9a", "R9a'"}:
            seat, votes = group.members[at].seat, "R9a" in self.off
        return self.restart(group, at, Member(seat, votes=votes, link=group.members[at].link))


def weaker(*modes: str) -> str:
    """Return the weakest of these flush modes."""
    return "async" if "async" in modes else "sync"


def synced(member: Member, *, leads: bool) -> Member:
    """Return a member that has taken an entry, with it on the disk where its mode says so."""
    flush = member.flush
    if flush is None or (flush.broker if leads else flush.replicator) != "sync":
        return member
    return member._replace(flush=flush._replace(synced=len(member.log)))


def put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    """Return a tuple with another value at an index."""
    return (*values[:at], value, *values[at + 1 :])


def with_member(group: Group, at: int, member: Member) -> Group:
    """Return the group with another value of a member."""
    return group._replace(members=(*group.members[:at], member, *group.members[at + 1 :]))


def with_leader(group: Group, before: Leader, after: Leader) -> Group:
    """Return the group with another value of a leader."""
    return group._replace(leaders=tuple(after if one is before else one for one in group.leaders))


def promise(group: Group, at: int, epoch: int, candidate: int, *, keep_stream: bool) -> Group:
    """Return the group with a member's promise; what it led or stood for in lower epochs ends."""
    member = group.members[at]
    if (member.promised, member.promised_to) == (epoch, candidate) and not member.follows:
        return group
    follows = member.follows if keep_stream else 0
    group = with_member(group, at, member._replace(promised=epoch, promised_to=candidate, follows=follows))
    return group._replace(
        leaders=tuple(one for one in group.leaders if one.member != at or one.epoch >= epoch),
        candidacies=tuple(one for one in group.candidacies if one.member != at or one.epoch >= epoch),
    )


# Invariants


def leader_finding(group: Group, epoch: int, at: int) -> Finding | None:
    """Check a new leader: it is the only one of its epoch, and has what lower epochs committed."""
    others = [member for led, member in group.led if led == epoch and member != at]
    if others:
        return Finding("I1", f"{at} and {others[0]} lead epoch {epoch}")
    return lacking(group, epoch, at)


def holds_waiting(group: Group, at: int) -> bool:
    """Return whether a member's log has what waits, or has it stored again."""
    member = group.members[at]
    return not {1, *group.again}.isdisjoint(member.log[member.begin :])


def waiting_finding(group: Group, epoch: int, at: int) -> Finding | None:
    """Check that a leader has what waits, once lower epochs have committed it."""
    committed = any(entry == 1 and committed_in < epoch for entry, committed_in in group.truth)
    if not committed or holds_waiting(group, at):
        return None
    return Finding(
        "I13", f"leader {at} of epoch {epoch} has no more what waits, from {group.members[at].begin}"
    )


def lacking(group: Group, epoch: int, at: int) -> Finding | None:
    """Check that a leader's log has all that lower epochs have committed."""
    log = group.members[at].log
    for position, (entry, committed_in) in enumerate(group.truth):
        if committed_in < epoch and (position >= len(log) or log[position] != entry):
            return Finding(
                "I2", f"leader {at} of epoch {epoch} lacks entry {entry} at {position}: it has {log}"
            )
    return None


def cut_finding(group: Group, at: int, point: int) -> Finding | None:
    """Check a cut: no voter cuts what is committed."""
    member = group.members[at]
    for position in range(point, min(len(member.log), len(group.truth))):
        if member.votes and member.log[position] == group.truth[position][0]:
            return Finding("I5", f"{at} cuts the committed entry {member.log[position]} at {position}")
    return None


def matching_finding(group: Group, at: int) -> Finding | None:
    """Check that logs with an equal epoch and start are equal up to the lesser end."""
    member = group.members[at]
    for other, theirs in enumerate(group.members):
        if other != at:
            position = difference(member.epochs, member.log, theirs.epochs, theirs.log)
            if position is not None:
                text = (
                    f"{at} and {other} differ at {position} in an epoch of both: {member.log}, {theirs.log}"
                )
                return Finding("I7", text)
    return None


def follower_finding(group: Group, leader: Leader, at: int) -> Finding | None:
    """Check what a follower holds, and what it shows by the commit offset that it is told."""
    log = group.members[at].log
    for position in range(min(len(log), leader.commit, len(group.truth))):
        if log[position] != group.truth[position][0]:
            entry = group.truth[position][0]
            return Finding("I3", f"{at} shows entry {log[position]} at {position}, {entry} was visible")
    return matching_finding(group, at)


def shown_finding(group: Group) -> Finding | None:
    """Check that an observer shows nothing but what is visible there."""
    for position, (shown, (entry, _)) in enumerate(zip(group.observer, group.truth, strict=False)):
        if shown != entry:
            return Finding("I3", f"the observer shows entry {shown} at {position}, committed is {entry}")
    return None


def commit_finding(group: Group, leader: Leader, commit: int) -> Finding | None:
    """Check a commit: what was visible is unchanged, and leaders of higher epochs have it, too."""
    log = group.members[leader.member].log
    for position in range(min(commit, len(group.truth))):
        if log[position] != group.truth[position][0]:
            entry = group.truth[position][0]
            return Finding("I3", f"entry {entry} was visible at {position}, now {log[position]} is")
    for later in group.leaders:
        if later.epoch > leader.epoch and (finding := lacking(group, later.epoch, later.member)):
            return finding
    return shown_finding(group)
