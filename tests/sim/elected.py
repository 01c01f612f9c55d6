"""A group that elects its master, in a simulated cluster: who leads, and where its faults strike.

Members have ids from 1 on, and stand on hosts b0, b1, ...; the first nameserver keeps the group's record, on
a disk that outlives it. The person of `takeover.py` is not there; in some plans an operator is, who gives
commands to the group (`operators.py`).

**Faults by name of a role.** A target may be a role instead of a host. Who that is, is decided when the fault
happens: `leader`, who leads, or led last; `candidate`, who stands for election, else the leader; `follower`,
one of those that do not lead; `former`, who has begun the last epoch; `third`, neither that one nor the
candidate.

**Faults upon something** wait until it happens: `election`, a member stands; `voters`, the record names other
voters; `loss`, it says that an operator has accepted a loss. They happen a moment later. Or at once, those
that have waited for longest: `seals`, a candidate has enough of them; `epoch`, a leader is about to write its
first byte; `commit`, it has moved its commit offset; `vote`, a member gets its vote back.

**What the modes promise to stand.** Under asynchronous flush a member that loses power may have lost what it
acknowledged, and has no vote until a leader has filled the gap (rule R9); so may one whose disk refuses a
sync. One whose disk is replaced has none before an operator names it again (R9a). Where fewer are left with a
vote than an election takes, there is no leader for good, and what was committed may be gone. So under
asynchronous flush power, a sync or a disk is lost only while so many others have one; under synchronous flush
a disk is. Where voters change, or are about to, so many of the new ones must have one as commit: else the
change never ends, and nothing else can change before.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from unittest.mock import patch

from sim.plan import QUIET_S, Fault
from sim.process import running
from whimbrel.broker.elections.actions import State
from whimbrel.broker.elections.elector import Elector
from whimbrel.broker.elections.machine import Election
from whimbrel.broker.elections.tasks import Tasks
from whimbrel.broker.produce.commit import MajorityCommit
from whimbrel.broker.roles import master
from whimbrel.model.group_record import GroupRecord, Voters, majority
from whimbrel.nameserver.group_file import GroupFile
from whimbrel.nameserver.group_table import GroupTable
from whimbrel.replicator.promises import Promises

if TYPE_CHECKING:
    from sim.cluster import Cluster, Member
    from whimbrel.broker.roles.master import MasterRole
    from whimbrel.store.master_store import MasterStore

__all__ = ["GROUPS_FILE", "PARTS", "Elections", "Watcher", "watched"]

GROUPS_FILE = Path("/groups/groups.json")
STANDING = (State.ASKING, State.SWAPPING, State.SEALING, State.OPENING)
UPON_S = {"election": (0.0, 0.3), "voters": (0.0, 1.5), "loss": (0.0, 2.5)}  # from there to the fault
PARTS = ("broker", "replicator")


class Watcher(Protocol):
    """Who is told what the production code does, while it does it."""

    def stands(self, member: "Member", state: State) -> None:
        """A member's state has changed."""

    def leads(self, member: "Member", epoch: int, end: int) -> None:
        """A member has begun an epoch at the end of its log."""

    def committed(self, member: "Member", offset: int) -> None:
        """A leader has moved its commit offset."""

    def cuts(self, member: "Member", point: int, end: int) -> None:
        """A member is about to cut its log."""

    def has_cut(self, member: "Member", point: int, end: int) -> None:
        """It has."""

    def serves(self, member: "Member", role: "MasterRole") -> None:
        """A leader has begun to serve consumers."""

    def accepted(self, record: GroupRecord) -> None:
        """The record says that an operator has accepted a loss."""

    def empties(self, member: "Member") -> None:
        """A member is about to empty its store, as an operator has asked."""

    def has_emptied(self, member: "Member") -> None:
        """It has."""


@dataclass
class Led:
    """An epoch that was begun: by whom, when, and where its log ended."""

    name: str
    at: float
    end: int


class Elections:
    """What the cluster asks about a group that elects.

    Attributes:
        epochs: by number, those that were begun.
        record: of the group, as the coordinator keeps it; None before there is one.
        changes: how often it named other voters.
        accepted_at: when a loss was accepted last.
        waiting: faults upon something that have not happened.
        watchers: who is told as well.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.epochs: dict[int, Led] = {}
        self.record: GroupRecord | None = None
        self.changes = 0
        self.accepted_at = float("-inf")
        self.seats: dict[tuple[str, int], str] = {}  # by host and how often its disk was replaced
        self.voted: dict[tuple[str, int], bool] = {}  # likewise, while it had power
        self.waiting: list[Fault] = []
        self.watchers: list[Watcher] = []

    # Who is who

    @property
    def group(self) -> list["Member"]:
        """The members."""
        return list(self.cluster.members.values())

    def elector(self, member: "Member") -> "Elector | None":
        """Return a member's elector while its broker lives."""
        node = member.broker
        if not member.up or node is None or node.process.dead or node.broker is None:
            return None
        return node.broker.elector

    def leader(self) -> "Member":
        """Return who leads the highest epoch, else who began one last; the first member before any has."""
        leading = [
            (term.epoch, member)
            for member in self.group
            if (elector := self.elector(member)) is not None and (term := elector.takeover.term) is not None
        ]
        if leading:
            return max(leading, key=lambda one: one[0])[1]
        if self.epochs:
            return self.cluster.members[self.epochs[max(self.epochs)].name]
        return self.group[0]

    def candidate(self) -> "Member":
        """Return who stands for election, the leader when nobody does."""
        for member in self.group:
            elector = self.elector(member)
            if elector is not None and elector.machine.state in STANDING:
                return member
        return self.leader()

    def follower(self) -> "Member":
        """Return one of those that do not lead."""
        leader = self.leader()
        others = [member for member in self.group if member is not leader and member.up]
        return self.cluster.scheduler.rng.choice(others or self.group)

    def former(self) -> "Member":
        """Return who has begun the last epoch."""
        return self.cluster.members[self.epochs[max(self.epochs)].name] if self.epochs else self.group[0]

    def third(self) -> "Member":
        """Return who neither leads, or led, nor stands."""
        busy = self.former(), self.candidate()
        return next((member for member in reversed(self.group) if member not in busy), self.group[0])

    def resolve(self, fault: Fault) -> Fault:
        """Return a fault with names of hosts instead of roles."""
        find = {
            "leader": self.leader,
            "candidate": self.candidate,
            "follower": self.follower,
            "former": self.former,
            "third": self.third,
        }

        def host_of(target: str) -> str:
            role, dot, part = target.partition(".")
            return f"{find[role]().name}{dot}{part}" if role in find else target

        found = replace(fault, target=host_of(fault.target), other=host_of(fault.other))
        return replace(found, other="c0") if found.other == found.target else found

    # What may happen

    def bears(self, fault: Fault) -> bool:
        """Return whether the modes promise to stand a fault now; it has names of hosts."""
        kind = "power" if fault.kind == "stop" and fault.other else fault.kind
        loses = {"replace", "restore", "set_aside"}
        if self.cluster.plan.flush == "async":
            loses |= {"power", "sync_error", "recover"}
        member = self.cluster.members.get(fault.target.partition(".")[0])
        if member is None or kind not in loses:
            return True
        rest = {
            (other.number, self.seat(other))
            for other in self.group
            if other is not member and self.votes(other)
        }
        return all(len(rest.intersection(voters)) >= needed for voters, needed in self.needed())

    def needed(self) -> Iterator[tuple[Voters, int]]:
        """Yield sets of voters, and how many of each must keep what they have."""
        record = self.record
        if record is None:
            voters = tuple((member.number, self.seat(member)) for member in self.group)
            yield voters, len(voters) - 1
            return
        pending = bool(record.prior or record.loss)
        yield record.voters, max(record.acks, record.seals) if pending else record.seals
        yield record.prior, record.prior_seals
        electors = [elector for member in self.group if (elector := self.elector(member)) is not None]
        for elector in electors:
            if (change := elector.machine.leadership.change) is not None:
                yield change.voters, change.acks
        operators = self.cluster.operators
        for ids in operators.client.naming if operators is not None else ():
            named = tuple((member.number, self.seat(member)) for member in self.group if member.number in ids)
            yield named, majority(len(named))

    def votes(self, member: "Member") -> bool:
        """Return whether a member has what it acknowledged, and its promises, as far as can be seen."""
        operators, key = self.cluster.operators, (member.name, member.lives)
        if operators is not None and member.number in operators.client.emptying:
            return False
        if member.up:
            page = member.page
            there = page is not None and bool(page.epoch)
            self.voted[key] = page is not None and there and (bool(page.votes) or page.replica_role == 1)
        elif self.cluster.plan.flush == "async":
            return False
        if self.cluster.plan.flush == "async" and member.disk.has_refused:
            return False
        return self.voted.get(key, False)

    def seat(self, member: "Member") -> str:
        """Return the uuid of a member's store; "" before it has one."""
        key = member.name, member.lives
        page = member.page if key not in self.seats and member.up else None
        if page is not None and page.seat:
            self.seats[key] = page.seat
        return self.seats.get(key, "")

    def upon(self, fault: Fault) -> None:
        """Let a fault wait."""
        self.waiting.append(fault)

    def happened(self, what: str) -> None:
        """Let the faults happen that wait for it."""
        cluster = self.cluster
        found = [fault for fault in self.waiting if fault.upon == what]
        if not found or cluster.scheduler.now > QUIET_S:
            return
        if what not in UPON_S:
            found = [fault for fault in found if fault.at == found[0].at]
        for fault in found:
            self.waiting.remove(fault)
            delay = cluster.scheduler.rng.uniform(*UPON_S[what]) if what in UPON_S else 0.0
            cluster.scheduler.later(delay, partial(cluster.happen, replace(fault, upon="")))

    def recorded(self, table: GroupTable) -> None:
        """Note what the coordinator keeps of the group from now on."""
        kept = next(iter(table.records.values()), None)
        before = self.record
        if kept is None or kept.record == before:
            return
        record = self.record = kept.record
        if before is not None and before.voters != record.voters:
            self.changes += 1
            ids = ", ".join(str(member) for member, _ in record.voters)
            self.cluster.note(f"{ids} vote from epoch {record.epoch} on: {record.history[0].why}")
            self.happened("voters")
        if record.loss and (before is None or before.loss != record.loss):
            self.accepted_at = self.cluster.scheduler.now
            for watcher in self.watchers:
                watcher.accepted(record)
            self.happened("loss")

    def regained(self) -> None:
        """A member votes again."""
        self.happened("vote")

    # What happens

    def told(self, what: str, *about: Any) -> None:
        """Tell the watchers what the process that runs does."""
        member = self.running()
        if member is not None:
            getattr(self, what)(member, *about)
            for watcher in self.watchers:
                getattr(watcher, what)(member, *about)

    def running(self) -> "Member | None":
        """Return the member whose code runs."""
        host = running[-1].host if running else ""
        return next((member for member in self.group if member.address == host), None)

    def stands(self, member: "Member", state: State) -> None:
        """Let the faults happen that wait for it."""
        if state in STANDING:
            self.happened("election")
        if state is State.OPENING:
            self.happened("seals")

    def leads(self, member: "Member", epoch: int, end: int) -> None:
        """Note an epoch."""
        now = self.cluster.scheduler.now
        self.epochs.setdefault(epoch, Led(member.name, now, end))
        self.cluster.note(f"{member.name} leads epoch {epoch}, which begins at {end}")
        self.happened("epoch")

    def committed(self, member: "Member", offset: int) -> None:
        """Let the faults happen that wait for it."""
        self.happened("commit")

    def cuts(self, member: "Member", point: int, end: int) -> None:
        """Note it."""
        self.cluster.note(f"{member.name} cuts [{point}, {end})")

    def has_cut(self, member: "Member", point: int, end: int) -> None:
        """Nothing."""

    def serves(self, member: "Member", role: "MasterRole") -> None:
        """Nothing."""

    def empties(self, member: "Member") -> None:
        """Note it."""
        self.cluster.note(f"{member.name} empties its store")

    def has_emptied(self, member: "Member") -> None:
        """Nothing."""


@contextmanager
def watched(elections: Elections) -> Iterator[None]:
    """Have the production code tell what it does: see `Watcher`."""
    told: Callable[..., None] = elections.told
    save, load, regain = GroupFile.save, GroupFile.load, Promises.regain_vote
    intend_emptying, finish_emptying = Promises.intend_emptying, Promises.finish_emptying
    go, advance, intend, over = Election.go, MajorityCommit.advance, Promises.intend_cut, Tasks.over
    begin, finish, begin_serving = (
        vars(master)["begin_epoch"],
        Promises.finish_cut,
        master.MasterRole.begin_serving,
    )

    def watched_go(self: Election, state: State, now: float) -> None:
        go(self, state, now)
        told("stands", state)

    def watched_advance(self: MajorityCommit) -> bool:
        before = self.store.visible_end
        moved = advance(self)
        if self.store.visible_end != before:
            told("committed", self.store.visible_end)
        return moved

    def watched_begin(store: "MasterStore", voters: Any, term: "GroupRecord | None" = None) -> int:
        epoch: int = begin(store, voters, term)
        told("leads", epoch, store.written)
        return epoch

    def watched_intend(self: Promises, point: int, end: int, **about: Any) -> None:
        told("cuts", point, end)
        intend(self, point, end, **about)

    def watched_finish(self: Promises, root: Path, machine: Any) -> None:
        cut = self.seat.cut
        finish(self, root, machine)
        if cut is not None:
            told("has_cut", *cut)

    def watched_over(self: "Tasks", task: "asyncio.Task[None]") -> None:
        over(self, task)
        if not task.cancelled() and (error := task.exception()) is not None:
            running[-1].report_failure(error)

    def watched_save(self: GroupFile, table: GroupTable) -> None:
        save(self, table)
        elections.recorded(table)

    def watched_load(self: GroupFile) -> GroupTable:
        table = load(self)
        elections.recorded(table)
        return table

    def watched_regain(self: Promises, commit: int) -> None:
        regain(self, commit)
        elections.regained()

    def watched_intend_emptying(self: Promises) -> None:
        told("empties")
        intend_emptying(self)

    def watched_finish_emptying(self: Promises, root: Path, machine: Any) -> None:
        emptying = self.seat.emptying
        finish_emptying(self, root, machine)
        if emptying:
            told("has_emptied")

    def watched_serving(self: "MasterRole") -> None:
        begin_serving(self)
        told("serves", self)

    with (
        patch.object(GroupFile, "save", watched_save),
        patch.object(GroupFile, "load", watched_load),
        patch.object(Promises, "regain_vote", watched_regain),
        patch.object(Promises, "intend_emptying", watched_intend_emptying),
        patch.object(Promises, "finish_emptying", watched_finish_emptying),
        patch.object(master.MasterRole, "begin_serving", watched_serving),
        patch.object(Tasks, "over", watched_over),
        patch.object(Election, "go", watched_go),
        patch.object(MajorityCommit, "advance", watched_advance),
        patch.object(Promises, "intend_cut", watched_intend),
        patch.object(master, "begin_epoch", watched_begin),
        patch.object(Promises, "finish_cut", watched_finish),
    ):
        yield
