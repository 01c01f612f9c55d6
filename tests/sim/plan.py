"""What is drawn from a seed: the layout of a cluster, its modes, and what goes wrong in it when.

    layout     one or two nameservers; one group of a master and one or two slaves, or two with one slave each
    modes      synchronous or asynchronous flush, synchronous or asynchronous replication
    faults     three to seven, from BEGIN_S on, the last some seconds before QUIET_S; in half of the plans the
               loss of a master as well, or its return with less; in some a loss of power with much that is
               not on the disk yet

`Plan.draw` draws all of it from the seed alone, so that a shrunk plan (fewer faults) has the same layout and
modes. Only such faults are drawn as the modes must stand without a person.
"""

import random
from dataclasses import dataclass, replace
from typing import Literal

from sim.kinds import draw_kinds
from sim.upkeep import Upkeep

__all__ = ["BEGIN_S", "END_S", "FAULTS", "QUIET_S", "TAKEOVERS", "Fault", "Mode", "Plan", "Replication"]

BEGIN_S = 4.0  # before it no faults
QUIET_S = 45.0
END_S = 75.0

Mode = Literal["sync", "async"]
Replication = Literal["sync", "async", "majority"]
FAULTS = (
    "kill",
    "kill",
    "pause",
    "cut",
    "reset",
    "power",
    "power_all",
    "clock",
    "sync_error",
    "full",
    "replace",
    "slow",
    "burst",
)
TORN_SHARE = 0.4
BURST = (8, 24)  # messages
TAKEOVER_SHARE = 0.5
TAKEOVERS = ("promote", "rejoin", "shorter")  # of which a plan has one at most


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong; `fault_KIND` of `Cluster` says what.

    Attributes:
        at: when, in virtual seconds.
        kind: one of FAULTS, or of TAKEOVERS; where the group elects, of `ELECTION_FAULTS` and `OPERATIONS`.
        target: name of a process or host; empty for all.
        other: of a second host, where there is one.
        for_s: how long it lasts.
        amount: what it is measured by: the share of connections that are lost, the seconds of a clock's jump,
            the number of syncs that fail, or of messages of a burst; of a cut, 1 for one way and 0 for both;
            the seconds until a lost master's machine is back.
        upon: what it waits for from its time on, see `elected.py`; "": nothing.
    """

    at: float
    kind: str
    target: str = ""
    other: str = ""
    for_s: float = 0.0
    amount: float = 0.0
    upon: str = ""

    def __str__(self) -> str:
        parts = [f"{self.at:7.3f} {self.kind} {self.target or 'all'}"]
        if self.other:
            parts.append(f"<- {self.other}" if self.amount else f"<-> {self.other}")
        if self.for_s:
            parts.append(f"for {self.for_s:.2f} s")
        if self.amount:
            parts.append(f"amount {self.amount:.3f}")
        if self.upon:
            parts.append(f"upon {self.upon}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is.

    Attributes:
        groups: of brokers; they share the topic.
        slaves: of each group.
        own_entry: whether a file's sync makes its own name durable (`disk.py`).
        kinds: of messages besides plain ones (`kinds.py`).
        line_share: how often workers are interrupted between two lines (`machine.py`); none is drawn yet.
        elected: the group elects its master (`elections.py`).
        spares: members besides those that vote at first.
        copies_min: the setting of that name.
        operated: an operator gives commands (`operators.py`).
        loses: among them that a loss is accepted: there are fewer clients.
        classic: a client does what those of RocketMQ 4 do (`classic.py`).
        resets: a client resets a consumer group.
        modes: flush modes that are not `flush`: (host, `broker` or `replicator`, mode).
    """

    seed: int
    nameservers: int
    groups: int
    slaves: int
    flush: Mode
    replication: Replication
    faults: tuple[Fault, ...]
    own_entry: bool
    line_share: float
    upkeep: Upkeep
    kinds: frozenset[str] = frozenset()
    elected: bool = False
    spares: int = 0
    copies_min: int = 0
    operated: bool = False
    loses: bool = False
    resets: bool = False
    classic: bool = False
    modes: tuple[tuple[str, str, Mode], ...] = ()

    @classmethod
    def draw(cls, seed: int) -> "Plan":
        """Draw a plan."""
        rng = random.Random(seed)
        nameservers = rng.choice((1, 1, 2))
        groups, slaves = rng.choice(((1, 1), (1, 1), (1, 2), (1, 2), (2, 1), (2, 1)))
        flush: Mode = rng.choice(("sync", "async"))
        replication: Mode = rng.choice(("sync", "sync", "async"))
        own_entry = rng.random() < 0.5
        plan = cls(seed, nameservers, groups, slaves, flush, replication, (), own_entry, 0.0, Upkeep())
        faults = [plan.draw_fault(rng) for _ in range(rng.randint(3, 7))]
        takeover = plan.draw_takeover(rng) if rng.random() < TAKEOVER_SHARE else []
        if groups == 1 and not takeover:
            plan = replace(plan, upkeep=Upkeep.draw(seed))
        faults += takeover
        faults += plan.draw_torn(rng) if rng.random() < TORN_SHARE else []
        faults += plan.draw_late(rng)
        loses = replication == "async" and bool(takeover)
        return replace(
            plan,
            faults=tuple(bearable(sorted(faults, key=lambda fault: fault.at), plan.masters)),
            kinds=frozenset() if loses else draw_kinds(seed, plan.upkeep),
        )

    @property
    def keeps_master(self) -> bool:
        """Whether there is one group, and its master is never lost."""
        lost = self.elected or any(fault.kind in TAKEOVERS for fault in self.faults)
        return self.groups == 1 and not lost

    def hosts_of(self, group: int) -> list[str]:
        """Names of a group's hosts, the master's first."""
        return [f"b{10 * group + number}" for number in range(1 + self.slaves + self.spares)]

    @property
    def brokers(self) -> list[str]:
        """Names of all brokers' hosts."""
        return [name for group in range(self.groups) for name in self.hosts_of(group)]

    @property
    def masters(self) -> list[str]:
        """Names of the hosts that have the masters at first."""
        return [self.hosts_of(group)[0] for group in range(self.groups)]

    def draw_takeover(self, rng: random.Random) -> list[Fault]:
        """Draw the loss of a master, or its return with less; sometimes its slaves lag before."""
        lags = self.replication == "async"  # what is acknowledged may be with the master alone
        kind = rng.choice(TAKEOVERS if self.flush == "async" else TAKEOVERS[:2])
        if lags and rng.random() < 0.5:
            kind = "rejoin"
        master, *slaves = self.hosts_of(rng.randrange(self.groups))
        at = rng.uniform(BEGIN_S + 4.0, QUIET_S - 15.0)
        back_s = rng.uniform(1.0, 6.0)
        if kind == "rejoin":  # early, and back late: the new master writes before
            at, back_s = min(at, QUIET_S - 21.0), back_s + 6.0
        drawn = [Fault(at, kind, master, for_s=rng.uniform(0.5, 4.0), amount=back_s)]
        if kind == "shorter":
            drawn += self.burst_before(rng, drawn[0])
        elif rng.random() < (0.9 if lags else 0.5):
            lag = rng.uniform(0.5, 4.0)
            drawn += [Fault(at - lag, "cut", slave, master, for_s=lag + 3.0) for slave in slaves]
        return drawn

    def draw_torn(self, rng: random.Random) -> list[Fault]:
        """Draw a loss of power with much that is not on the disk yet, and then kills of who goes on there."""
        brokers = self.brokers
        if self.flush == "async":
            brokers = [name for name in brokers if name not in self.masters]
        target = rng.choice(brokers)
        loss = Fault(rng.uniform(BEGIN_S + 4.0, QUIET_S - 20.0), "power", target, for_s=rng.uniform(0.3, 2.0))
        kills = [
            Fault(loss.at + loss.for_s + rng.uniform(2.0, 14.0), "kill", f"{target}.{part}", for_s=0.05)
            for part in ("broker", "broker", "replicator")
        ]
        return [*self.burst_before(rng, loss), loss, *kills]

    def burst_before(self, rng: random.Random, loss: Fault) -> list[Fault]:
        """Have a disk be slow, and many messages come, just before its host loses power."""
        slow = Fault(loss.at - rng.uniform(0.1, 1.0), "slow", loss.target, for_s=rng.uniform(1.0, 3.0))
        return [slow, Fault(slow.at, "burst", amount=float(rng.randint(*BURST)))]

    def draw_late(self, rng: random.Random) -> list[Fault]:
        """Draw what happens when messages have expired."""
        at, slave = rng.uniform(38.0, QUIET_S - 1.0), rng.choice(self.brokers[1:])
        master = self.brokers[0]
        match self.upkeep.late:
            case "replace":
                return [Fault(at, "replace", slave, for_s=1.0)]
            case "clock":  # a log file is closed in between
                return [
                    Fault(at - 7.0, "clock", master, amount=400_000.0),
                    Fault(at, "kill", f"{master}.broker", for_s=0.5),
                ]
            case "kill":
                return [Fault(at, "kill", f"{master}.broker", for_s=0.5)]
            case "cut":  # for longer than log files stay
                return [Fault(at - 18.0, "cut", slave, master, for_s=QUIET_S)]
        return []

    def draw_fault(self, rng: random.Random) -> Fault:
        """Draw one fault that the modes must stand."""
        at = rng.uniform(BEGIN_S, QUIET_S - 5.0)
        brokers, masters = self.brokers, self.masters
        slaves = [name for name in brokers if name not in masters]
        processes = [f"{name}.{part}" for name in brokers for part in ("broker", "replicator")]
        processes += [f"n{number}.nameserver" for number in range(self.nameservers)]
        hosts = [*brokers, *(f"n{number}" for number in range(self.nameservers)), "c0", "c1"]
        kind = rng.choice(FAULTS)
        match kind:
            case "kill":
                return Fault(at, kind, rng.choice(processes), for_s=rng.choice((0.05, 0.5, 3.0, 8.0)))
            case "pause":
                return Fault(at, kind, rng.choice(processes), for_s=rng.uniform(0.2, 8.0))
            case "cut":
                one, other = rng.sample(hosts, 2)
                return Fault(
                    at, kind, one, other, for_s=rng.uniform(0.3, 20.0), amount=float(rng.random() < 0.5)
                )
            case "reset":
                return Fault(at, kind, amount=rng.choice((0.2, 0.5, 1.0)))
            case "power":
                # Without synchronous flush a master that lost its tail waits for a person.
                names = brokers if self.flush == "sync" else slaves
                return Fault(at, kind, rng.choice(names), for_s=rng.uniform(0.5, 8.0))
            case "power_all" if self.flush == "sync":
                return Fault(at, kind, for_s=rng.uniform(0.5, 5.0))
            case "clock":
                return Fault(
                    at, kind, rng.choice(brokers), amount=rng.choice((-3600.0, -5.0, 5.0, 3600.0, 400_000.0))
                )
            case "sync_error":
                target, amount = rng.choice(brokers), float(rng.randint(1, 4))
                # A master that can't write its log again comes back shorter than its slaves, and waits for
                # a person.
                return Fault(at, kind, target, amount=1.0 if target in masters else amount)
            case "full":
                return Fault(at, kind, rng.choice(brokers), for_s=rng.uniform(1.0, 8.0))
            case "slow":
                return Fault(at, kind, rng.choice(brokers), for_s=rng.uniform(0.5, 5.0))
            case "burst":
                return Fault(at, kind, amount=float(rng.randint(*BURST)))
            case "replace":
                return Fault(at, kind, rng.choice(slaves), for_s=rng.uniform(0.5, 3.0))
        return Fault(at, "kill", rng.choice(processes), for_s=0.5)


def bearable(faults: list[Fault], masters: list[str]) -> list[Fault]:
    """Leave a master that has to write its log again a disk that takes it: one failed sync, and room.

    Else it may come back shorter than its slaves, and wait for a person. Lost connections take the place of
    what is too much.
    """
    too_much = []
    for master in masters:
        refused = [fault for fault in faults if fault.kind == "sync_error" and fault.target == master]
        too_much += refused[1:]
        if refused:
            too_much += [fault for fault in faults if fault.kind == "full" and fault.target == master]
    return [Fault(fault.at, "reset", amount=0.5) if fault in too_much else fault for fault in faults]
