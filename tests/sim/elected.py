"""A group that elects its master, in a simulated cluster: who leads, and where its faults strike.

Members have ids from 1 on, and stand on hosts b0, b1, ...; the first nameserver keeps the group's record, on
a disk that outlives it. Nobody does anything for them: the person of `takeover.py` is not there.

**Faults by name of a role.** A target may be `leader`, `candidate` or `follower` instead of a host. Who that
is, is decided when the fault happens: who leads, or led last; who stands for election, else the leader; one
of the others. A fault upon an election waits until a member stands.

**What the modes promise to stand.** Under asynchronous flush a member that loses power may have lost what it
acknowledged, and has no vote until a leader has filled the gap (rule R9); so may one whose disk refuses a
sync. One whose disk is replaced has none before somebody gives it one (R9a), which nobody does here. Two of
three without a vote stop elections for good. So under asynchronous flush power, a sync or a disk is lost only
while all others are there and vote; under synchronous flush a disk is.
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
from whimbrel.broker.elections.elector import Elector
from whimbrel.broker.elections.machine import Election, State
from whimbrel.broker.produce.commit import MajorityCommit
from whimbrel.broker.roles import master
from whimbrel.replicator.promises import Promises

if TYPE_CHECKING:
    from sim.cluster import Cluster, Member
    from whimbrel.broker.roles.master import MasterRole
    from whimbrel.model.group_record import GroupRecord
    from whimbrel.store.master_store import MasterStore

__all__ = ["GROUPS_FILE", "PARTS", "Elections", "Watcher", "watched"]

GROUPS_FILE = Path("/groups/groups.json")
STANDING = (State.ASKING, State.SWAPPING, State.SEALING, State.OPENING)
UPON_S = (0.0, 0.3)  # after a member has begun to stand
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
        waiting: faults upon an election that have not happened.
        watchers: who is told as well.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.epochs: dict[int, Led] = {}
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
            if (elector := self.elector(member)) is not None and (term := elector.term) is not None
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

    def resolve(self, fault: Fault) -> Fault:
        """Return a fault with names of hosts instead of roles."""
        find = {"leader": self.leader, "candidate": self.candidate, "follower": self.follower}

        def host_of(target: str) -> str:
            role, dot, part = target.partition(".")
            return f"{find[role]().name}{dot}{part}" if role in find else target

        found = replace(fault, target=host_of(fault.target), other=host_of(fault.other))
        return replace(found, other="c0") if found.other == found.target else found

    # What may happen

    def bears(self, fault: Fault) -> bool:
        """Return whether the modes promise to stand a fault now; it has names of hosts."""
        kind = "power" if fault.kind == "stop" and fault.other else fault.kind
        loses = ("replace",) if self.cluster.plan.flush == "sync" else ("replace", "power", "sync_error")
        member = self.cluster.members.get(fault.target.partition(".")[0])
        if member is None or kind not in loses:
            return True
        return all(other is member or self.votes(other) for other in self.group)

    def votes(self, member: "Member") -> bool:
        """Return whether a member is there and votes."""
        page = member.page if member.up else None
        if member.lives or (self.cluster.plan.flush == "async" and member.disk.has_refused):
            return False
        return page is not None and bool(page.epoch) and (bool(page.votes) or page.replica_role == 1)

    def upon(self, fault: Fault) -> None:
        """Let a fault happen at the next election."""
        self.waiting.append(fault)

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
        cluster = self.cluster
        if state not in STANDING or cluster.scheduler.now > QUIET_S:
            return
        waiting, self.waiting = self.waiting, []
        for fault in waiting:
            delay = cluster.scheduler.rng.uniform(*UPON_S)
            cluster.scheduler.later(delay, partial(cluster.happen, replace(fault, upon="")))

    def leads(self, member: "Member", epoch: int, end: int) -> None:
        """Note an epoch."""
        now = self.cluster.scheduler.now
        self.epochs.setdefault(epoch, Led(member.name, now, end))
        self.cluster.note(f"{member.name} leads epoch {epoch}, which begins at {end}")

    def committed(self, member: "Member", offset: int) -> None:
        """Nothing."""

    def cuts(self, member: "Member", point: int, end: int) -> None:
        """Note it."""
        self.cluster.note(f"{member.name} cuts [{point}, {end})")

    def has_cut(self, member: "Member", point: int, end: int) -> None:
        """Nothing."""

    def serves(self, member: "Member", role: "MasterRole") -> None:
        """Nothing."""


@contextmanager
def watched(told: Callable[..., None]) -> Iterator[None]:
    """Have the production code tell what it does: see `Watcher`."""
    go, advance, intend, over = Election.go, MajorityCommit.advance, Promises.intend_cut, Elector.over
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

    def watched_over(self: "Elector", task: "asyncio.Task[None]") -> None:
        over(self, task)
        if not task.cancelled() and (error := task.exception()) is not None:
            running[-1].report_failure(error)

    def watched_serving(self: "MasterRole") -> None:
        begin_serving(self)
        told("serves", self)

    with (
        patch.object(master.MasterRole, "begin_serving", watched_serving),
        patch.object(Elector, "over", watched_over),
        patch.object(Election, "go", watched_go),
        patch.object(MajorityCommit, "advance", watched_advance),
        patch.object(Promises, "intend_cut", watched_intend),
        patch.object(master, "begin_epoch", watched_begin),
        patch.object(Promises, "finish_cut", watched_finish),
    ):
        yield
