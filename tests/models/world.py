"""The surroundings of members in a random history: time, network, store, faults, clients, and what must hold.

There is one heap of events and one source of random numbers, so that a seed is one history. The store is
a record with a revision; whether it is reached depends on the network, in each direction by itself.
Faults end at `CALM_S`: then all members start, nothing is lost any more, and if a leader can be found at
all, there has to be one within `RECOVERY_S_MAX` that answers what clients send from then on (I12).
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from models.group import NOBODY, Voters
from models.logs import Finding, difference, majority, seals
from models.member import FOLLOWING, LEADING, Member, Record

__all__ = ["CALM_S", "Plan", "World"]

CALM_S: Final = 20.0
RECOVERY_S_MAX: Final = 20.0
STORE: Final = -1  # its place in the network
EVENTS_MAX: Final = 60_000  # a history that takes more goes round in circles


@dataclass(frozen=True)
class Plan:
    """What a seed draws before its history begins.

    Attributes:
        kind: the name of what it was drawn from (`histories.KINDS`).
        members, voters: how many there are, and how many of them, the first ones, vote in the beginning.
        flush: `sync` if what is reported is on disk, `async` if a power cut can take it.
        loss: the part of messages that get lost while there are faults.
        fault_s: the longest time between two faults.
        changes, disks, restores, observer: whether voters change, disks are replaced, the store is restored
            from a backup, and a classic slave follows.
    """

    seed: int
    kind: str
    members: int
    voters: int
    flush: str
    loss: float
    fault_s: float
    changes: bool = False
    disks: bool = False
    restores: bool = False
    observer: bool = False


class World:
    """One history."""

    def __init__(self, plan: Plan, off: frozenset[str] = frozenset()) -> None:
        self.plan = plan
        self.off = off
        self.source = random.Random(plan.seed)
        self.random = self.source.random
        self.now = 0.0
        self.calm = False
        self.heap: list[tuple[float, int, Member | None, int, Callable[..., None], tuple[Any, ...]]] = []
        self.events = 0
        self.links = 0
        self.blocked: set[tuple[int, int]] = set()
        voters = tuple((member, member) for member in range(plan.voters))
        self.record = Record(0, NOBODY, NOBODY, voters, ())
        self.revision = 1
        self.backups: list[Record] = []
        self.entries = 0
        self.truth: list[tuple[int, int]] = []  # the committed entries, each with the epoch that committed it
        self.led: dict[int, int] = {}
        self.observer: list[int] = []
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self.goal = 0  # an entry appended after this many, and answered, shows that all is well
        self.well = False
        self.members: list[Member] = []
        for at in range(plan.members):
            self.members.append(Member(self, at))
        self.after(1.0, self.clients)
        self.after(2.0, self.fault)
        self.after(CALM_S, self.settle)
        if plan.observer:
            self.after(1.0, self.observe)

    def run(self) -> None:
        """Run to the end, or to the first finding, which is raised."""
        while self.heap and not self.well:
            self.now, _, member, life, action, arguments = heapq.heappop(self.heap)
            if member is None or (member.life == life and member.up):
                action(*arguments)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Finding("I12", f"{EVENTS_MAX} events, and no end")
        self.check_end()

    # Time, network, store

    def after(
        self, delay: float, action: Callable[..., None], member: Member | None = None, *arguments: Any
    ) -> None:
        """Have something done later; not if the member to which it belongs has stopped meanwhile."""
        self.links += 1
        life = member.life if member else 0
        heapq.heappush(self.heap, (self.now + delay, self.links, member, life, action, arguments))

    def link(self) -> int:
        """Return a number that no connection has had."""
        self.links += 1
        return self.links

    def delay(self) -> float:
        """Draw how long a message takes: little as a rule, now and then so long that others overtake it."""
        longest = 1.5 if not self.calm and self.random() < 0.05 else 0.05
        return float(0.001 + self.random() ** 4 * longest)

    def send(self, source: int, target: int, action: Callable[..., None], *arguments: Any) -> None:
        """Send a message: `action` is a method of the target, and gets the source first."""
        self.counts["messages"] += 1
        if (source, target) in self.blocked or (not self.calm and self.random() < self.plan.loss):
            return
        life = self.members[target].life
        for _ in range(1 + (not self.calm and self.random() < 0.02)):
            self.after(self.delay(), self.deliver, None, source, target, life, action, arguments)

    def deliver(
        self, source: int, target: int, life: int, action: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        """Hand a message over, unless its connection has ended with the process at which it should come."""
        member = self.members[target]
        if member.up and member.life == life and (source, target) not in self.blocked:
            action(member, source, *arguments)

    def reach(self, member: Member, ask: Callable[[], Callable[[], None] | None]) -> None:
        """Call the store; the answer, too, has to get through."""

        def arrive() -> None:
            answer = ask()
            if answer and (STORE, member.at) not in self.blocked:
                if self.calm or self.random() >= self.plan.loss:
                    self.after(0.01 * self.random(), answer, member)

        if (member.at, STORE) not in self.blocked:
            self.after(0.02 * self.random(), arrive)

    def read(self, member: Member, done: Callable[[Record, int], None]) -> None:
        """Read the record."""

        def ask() -> Callable[[], None]:
            record, revision = self.record, self.revision
            return lambda: done(record, revision)

        self.reach(member, ask)

    def swap(
        self, member: Member, revision: int, record: Record, done: Callable[[Record, int], None]
    ) -> None:
        """Write a record, if the one that is there has this revision; only then `done` is called."""

        def ask() -> Callable[[], None] | None:
            if self.revision != revision:
                return None
            self.backups.append(self.record)
            self.record, self.revision = record, revision + 1
            return lambda: done(record, revision + 1)

        self.reach(member, ask)

    # Clients and observers

    def clients(self) -> None:
        """Send entries to whoever thinks that it leads."""
        self.after(0.02 + 0.1 * self.random(), self.clients)
        for member in self.members:
            if member.up and member.role == LEADING:
                for _ in range(1 + (self.random() < 0.5)):
                    self.entries += 1
                    self.counts["sends"] += 1
                    member.append(self.entries)

    def observe(self) -> None:
        """Have a classic slave take entries of any member whose log it has so far, below commit."""
        self.after(0.1 * self.random(), self.observe)
        member = self.source.choice(self.members)
        end = len(self.observer)
        limit = max(member.told, member.commit if member.role == LEADING else 0)
        limit = len(member.log) if "R12" in self.off else min(limit, len(member.log))
        if member.up and end < limit and member.log[:end] == self.observer:
            self.observer += member.log[end : min(limit, end + 3)]
            self.check_observer(end)

    # Faults

    def note(self, line: str) -> None:
        """Write a line for people."""
        self.log.append(f"{self.now:6.2f} s  {line}")

    def fault(self) -> None:
        """Let something go wrong, or mend what did."""
        if self.calm:
            return
        self.after(self.random() * self.plan.fault_s, self.fault)
        draw = self.random()
        if draw < 0.35:
            self.stop_member()
        elif draw < 0.65:
            self.cut_network()
        elif draw < 0.72 and self.plan.restores and self.backups:
            self.record = self.source.choice(self.backups[-4:])
            self.revision += 1
            self.counts["restored stores"] += 1
            self.note(f"the store is restored at epoch {self.record.epoch}")
        else:
            self.blocked = set()

    def stop_member(self) -> None:
        """Kill a process, cut a machine's power, or lose its disk; it comes back a little later."""
        member = self.source.choice(self.members)
        if not member.up:
            return
        what = "killed"
        if self.plan.disks and self.random() < 0.3 and self.seats_are_named():
            what = "replaced disks"
            member.stop()
            member.replace_disk(self.link())
        elif self.random() < 0.5:
            what = "power cuts"
            kept = (
                member.synced if self.random() < 0.7 else self.source.randint(member.synced, len(member.log))
            )
            member.lose_power(len(member.log) if self.plan.flush == "sync" else kept)
        else:
            member.stop()
        self.counts[what] += 1
        self.note(f"{what}: {member.at}, then {len(member.log)} entries, votes {member.votes}")
        self.after(0.5 + 3 * self.random(), self.start_member, None, member)

    def seats_are_named(self) -> bool:
        """Return whether all voters are on the disks that the record names, and no others are named."""
        voters = self.record.voters
        return not self.record.prior and all(self.members[at].seat == seat for at, seat in voters)

    def start_member(self, member: Member) -> None:
        """Start a member that is down."""
        if not member.up:
            self.note(f"{member.at} starts")
            member.boot()

    def cut_network(self) -> None:
        """Part members, and perhaps the store, from the others, in one direction or both, for a while."""
        places = [STORE, *range(self.plan.members)]
        part = set(self.source.sample(places, self.source.randint(1, len(places) - 1)))
        one_way = self.random() < 0.3
        self.blocked = {
            (one, other)
            for one in places
            for other in places
            if (one in part) != (other in part) and (not one_way or one in part)
        }
        self.counts["cuts, one way" if one_way else "cuts"] += 1
        self.note(f"{sorted(part)} cut off{', one way' * one_way}")
        self.after(self.random() * 6, self.mend)

    def mend(self) -> None:
        """Let all messages through again."""
        self.blocked = set()

    def draw_voters(self, leader: int) -> list[int]:
        """Draw the voters of a change; their leader is one."""
        count = min(self.plan.members, self.source.choice([1, 2, 3, 3]))
        ids = set(self.source.sample(range(self.plan.members), count))
        return sorted({*list(ids)[1:], leader} if leader not in ids else ids)

    def settle(self) -> None:
        """End all faults, and expect that the group comes back, if its rules let it."""
        self.calm = True
        self.blocked = set()
        for member in self.members:
            self.start_member(member)
        self.goal = self.entries
        self.note("all faults end")
        if not self.can_recover():
            self.counts["blocked for good"] += 1
            self.after(RECOVERY_S_MAX, self.give_up)
            return
        self.counts["recoveries expected"] += 1
        self.after(RECOVERY_S_MAX, self.fail)

    def can_recover(self) -> bool:
        """Return whether there are enough voters to elect, and enough to commit."""
        if not self.can_seal(self.record.voters):
            return False
        present = sum(self.members[at].seat == seat for at, seat in self.record.voters)
        enough = present >= majority(len(self.record.voters))
        return enough and (not self.record.prior or self.can_seal(self.record.prior))

    def can_seal(self, voters: Voters) -> bool:
        """Return whether enough of these voters vote on the disks that are named."""
        count = sum(self.members[at].votes and self.members[at].seat == seat for at, seat in voters)
        return count >= seals(len(voters), majority(len(voters)))

    def give_up(self) -> None:
        """End a history that rightly has no leader any more."""
        self.well = True

    def fail(self) -> None:
        """End a history that should have had one."""
        states = ", ".join(
            f"{member.at} {member.role} {member.epoch}, promised {member.promised}, log {member.position}"
            for member in self.members
        )
        raise Finding(
            "I12", f"no send is answered {RECOVERY_S_MAX:.0f} s after the faults: {states}; {self.record}"
        )

    # What must hold

    def check_leader(self, leader: Member) -> None:
        """I1 and I2: it leads its epoch alone, and has what lower epochs committed."""
        self.counts["leaders"] += 1
        self.note(f"{leader.at} leads epoch {leader.epoch} from {leader.start}")
        other = self.led.setdefault(leader.epoch, leader.at)
        if other != leader.at:
            raise Finding("I1", f"{leader.at} and {other} lead epoch {leader.epoch}")
        self.check_complete(leader, 0)

    def check_complete(self, leader: Member, first: int) -> None:
        """I2: a leader has what lower epochs committed, from a position on."""
        for position in range(first, len(self.truth)):
            entry, epoch = self.truth[position]
            if epoch < leader.epoch and (position >= len(leader.log) or leader.log[position] != entry):
                text = f"leader {leader.at} of epoch {leader.epoch} lacks entry {entry} at {position}"
                raise Finding("I2", f"{text}, committed in epoch {epoch}")

    def commit(self, leader: Member, commit: int) -> None:
        """I2, I3: what is committed stays, and is in the logs of leaders of higher epochs, too."""
        first = len(self.truth)
        self.truth += [(entry, leader.epoch) for entry in leader.log[first:commit]]
        self.show(leader, commit)
        for later in self.members:
            if later.up and later.role == LEADING and later.epoch > leader.epoch:
                self.check_complete(later, first)
        if self.plan.observer:
            self.check_observer(first)

    def show(self, member: Member, commit: int) -> None:
        """I3, I6: what a member shows up to its commit offset is what was committed there."""
        for position in range(min(member.told, commit), commit):
            shown = member.log[position]
            if position >= len(self.truth) or self.truth[position][0] != shown:
                truth = self.truth[position : position + 1]
                raise Finding("I3", f"{member.at} shows entry {shown} at {position}, committed is {truth}")
        member.told = max(member.told, commit)

    def check_observer(self, first: int) -> None:
        """I3: what a classic slave has, it shows."""
        for position in range(first, min(len(self.observer), len(self.truth))):
            if self.observer[position] != self.truth[position][0]:
                text = f"the observer shows entry {self.observer[position]} at {position}"
                raise Finding("I3", f"{text}, committed is {self.truth[position][0]}")

    def check_cut(self, member: Member, point: int) -> None:
        """I5, I6: no voter cuts what is committed, and no commit offset goes back by a cut."""
        self.counts["cut logs"] += 1
        self.note(f"{member.at} cuts its log from {len(member.log)} to {point}")
        for position in range(point, min(len(member.log), len(self.truth))):
            if member.votes and member.log[position] == self.truth[position][0]:
                raise Finding(
                    "I5", f"{member.at} cuts the committed entry {member.log[position]} at {position}"
                )
        if point < member.told:
            raise Finding("I6", f"{member.at} had shown {member.told} entries and keeps {point}")

    def check_equal(self, one: Member, other: Member) -> None:
        """I7: logs with an equal epoch and start are equal up to the lesser end."""
        position = difference(one.epochs, one.log, other.epochs, other.log)
        if position is not None:
            raise Finding("I7", f"{one.at} and {other.at} differ at {position} in an epoch of both")

    def answered(self, leader: Member, position: int, entry: int) -> None:
        """I4: what is answered is committed, where its receipt says."""
        self.counts["answered"] += 1
        if self.truth[position - 1][0] != entry:
            raise Finding("I4", f"{leader.at} answers entry {entry}, but {self.truth[position - 1]} is there")
        if self.calm and entry > self.goal:
            self.well = True

    def check_end(self) -> None:
        """I7 for all pairs, and I2 for the leaders that are left."""
        for one in self.members:
            if one.up and one.role == LEADING:
                self.check_complete(one, 0)
            for other in self.members[: one.at]:
                self.check_equal(one, other)
        self.counts["without a leader at the end"] += all(one.role != LEADING for one in self.members)
        self.counts["still following nobody"] += sum(
            one.role == FOLLOWING and one.stream is None for one in self.members
        )
