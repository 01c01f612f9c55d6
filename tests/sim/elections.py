"""Plans of groups that elect their masters, of which a majority commits.

    layout     one or two nameservers, of which the first keeps the group's record; one group of three members
    modes      synchronous or asynchronous flush
    faults     three to six, at hosts or at whoever leads when they come; in half of the plans several of the
               leader in a row, in as many one while an election is under way; of nameservers and clients, too
    kinds      of messages: delayed, transactional, ordered, failing
    clients    that commit positions, and change topics and groups, besides

`plain_plan` draws all of it from the seed alone. Only such faults are drawn as the group must stand without
a person: under asynchronous flush not all hosts lose their power, and one disk is replaced at most. Plans
with an operator are in `operations.py`.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from sim.kinds import LATER, draw_kinds
from sim.plan import BEGIN_S, BURST, QUIET_S, Fault, Mode, Plan
from sim.upkeep import Upkeep

__all__ = [
    "ELECTION_FAULTS",
    "MEMBERS",
    "draw_fault",
    "draw_row",
    "draw_tail",
    "draw_upon",
    "plain_plan",
    "strike",
]

MEMBERS = ("b0", "b1", "b2")
ROW_SHARE, UPON_SHARE = (
    0.5,
    0.5,
)  # of plans with several faults of leaders in a row, and of those upon an election
LEADER_SHARE, FOLLOWER_SHARE = 0.5, 0.15  # of faults that strike by role
TAIL_SHARE = 0.2  # of plans in which a loss of power may take what only the leader has besides
ROW = ("crash", "crash", "kill", "hang", "pause", "isolate", "power", "stop")
UPON = ("stop", "stop", "crash", "kill", "hang", "isolate", "power", "reset")
STOPPED_CALLS = (1, 60)  # a process that is stopped ends at one of so many calls of files
ELECTION_FAULTS = (
    "crash",
    "crash",
    "kill",
    "kill",
    "hang",
    "pause",
    "isolate",
    "isolate",
    "cut",
    "cut",
    "reset",
    "power",
    "power_all",
    "stop",
    "stop",
    "replace",
    "clock",
    "sync_error",
    "full",
    "slow",
    "burst",
)


def plain_plan(seed: int) -> Plan:
    """Draw a plan in which nobody does anything for the group."""
    rng = random.Random(f"elections {seed}")
    nameservers = rng.choice((1, 1, 2))
    flush: Mode = rng.choice(("sync", "sync", "async"))
    names = [f"n{number}" for number in range(nameservers)]
    own_entry = rng.random() < 0.5
    faults = [draw_fault(rng, flush, names) for _ in range(rng.randint(3, 6))]
    faults = replaced_once(faults)
    if rng.random() < ROW_SHARE:
        faults += draw_row(rng, flush)
    if rng.random() < UPON_SHARE:
        faults += draw_upon(rng, flush, names)
    if rng.random() < TAIL_SHARE:
        faults += draw_tail(rng)
    # Delayed messages may come twice where leaders' clocks differ: what the last record's time says is too
    # little then.
    clocks = any(fault.kind == "clock" for fault in faults)
    return Plan(
        seed,
        nameservers=nameservers,
        groups=1,
        slaves=2,
        flush=flush,
        replication="majority",
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        own_entry=own_entry,
        line_share=0.0,
        upkeep=Upkeep(commits=True),
        kinds=draw_kinds(seed, Upkeep()) - ({LATER} if clocks else set()),
        elected=True,
    )


def draw_target(rng: random.Random, members: Sequence[str]) -> str:
    """Draw a host, or a role."""
    drawn = rng.random()
    if drawn < LEADER_SHARE:
        return "leader"
    return "follower" if drawn < LEADER_SHARE + FOLLOWER_SHARE else rng.choice(members)


def replaced_once(faults: list[Fault]) -> list[Fault]:
    """Leave one disk at most that is replaced: nobody names a member again that has another one (R9a)."""
    replaced = [fault for fault in faults if fault.kind == "replace"]
    return [replace(fault, kind="power") if fault in replaced[1:] else fault for fault in faults]


def draw_row(rng: random.Random, flush: Mode) -> list[Fault]:
    """Draw some faults of leaders, one soon after the other."""
    at, found = rng.uniform(BEGIN_S, QUIET_S - 16.0), []
    for _ in range(rng.randint(2, 4)):
        found.append(strike(rng, at, rng.choice(ROW), "leader", flush))
        at += rng.choice((rng.uniform(0.05, 0.8), rng.uniform(0.5, 4.0)))
    return found


def draw_upon(rng: random.Random, flush: Mode, nameservers: list[str]) -> list[Fault]:
    """Draw the loss of a leader, and what happens while another one is elected."""
    at, kind = rng.uniform(BEGIN_S, QUIET_S - 12.0), rng.choice(("crash", "isolate", "hang"))
    lost = strike(rng, at, kind, "leader", flush)
    kind = rng.choice(UPON)
    target = rng.choice(("candidate", "candidate", "follower", "leader"))
    if rng.random() < 0.25:
        kind, target = rng.choice(("kill", "stop", "power")), nameservers[0]
    return [lost, replace(strike(rng, lost.at - 0.01, kind, target, flush), upon="election")]


def draw_tail(rng: random.Random) -> list[Fault]:
    """Draw that one member lacks what another one loses with its power, just before the leader is killed."""
    at = rng.uniform(BEGIN_S, QUIET_S - 20.0)
    apart, struck = rng.sample(MEMBERS, 2)
    lost = at + rng.uniform(4.0, 6.0)
    return [
        Fault(at, "isolate", apart, for_s=10.0),
        Fault(lost - 0.3, "burst", amount=float(rng.randint(*BURST))),
        Fault(lost, "power", struck, for_s=rng.uniform(1.0, 2.0)),
        Fault(lost + rng.uniform(0.05, 0.9), "crash", "leader", for_s=8.0),
    ]


def strike(rng: random.Random, at: float, kind: str, target: str, flush: Mode) -> Fault:
    """Draw a fault of a kind at a member, a nameserver or a role."""
    match kind:
        case "stop":
            part = "nameserver" if target.startswith("n") else rng.choice(("broker", "replicator"))
            power = "power" if rng.random() < 0.5 and (flush == "sync" or part == "nameserver") else ""
            for_s, calls = rng.choice((0.05, 0.5, 3.0)), float(rng.randint(*STOPPED_CALLS))
            return Fault(at, kind, f"{target}.{part}", power, for_s=for_s, amount=calls)
        case "kill" | "pause":
            part = "nameserver" if target.startswith("n") else rng.choice(("broker", "replicator"))
            for_s = rng.choice((0.05, 0.5, 3.0, 8.0)) if kind == "kill" else rng.uniform(0.2, 8.0)
            return Fault(at, kind, f"{target}.{part}", for_s=for_s)
        case "crash":
            return Fault(at, kind, target, for_s=rng.choice((0.05, 0.5, 3.0, 8.0)))
        case "hang":
            return Fault(at, kind, target, for_s=rng.uniform(0.2, 8.0))
        case "isolate":
            only = "members" if rng.random() < 0.3 else ""
            return Fault(
                at, kind, target, only, for_s=rng.uniform(0.3, 15.0), amount=float(rng.choice((0, 0, 1, 2)))
            )
        case "power" | "replace":
            return Fault(at, kind, target, for_s=rng.uniform(0.5, 8.0))
    return Fault(at, "reset", amount=rng.choice((0.2, 0.5, 1.0)))


def draw_fault(
    rng: random.Random, flush: Mode, nameservers: list[str], members: Sequence[str] = MEMBERS
) -> Fault:
    """Draw one fault."""
    at, target = rng.uniform(BEGIN_S, QUIET_S - 5.0), draw_target(rng, members)
    kind = rng.choice(ELECTION_FAULTS)
    match kind:
        case "kill" | "pause" | "power" | "stop" if rng.random() < 0.15:
            return strike(rng, at, kind, rng.choice(nameservers), flush)
        case "cut":
            other = rng.choice([name for name in (*members, *nameservers, "c0", "c1") if name != target])
            for_s, one_way = rng.uniform(0.3, 20.0), float(rng.random() < 0.5)
            return Fault(at, kind, target, other, for_s=for_s, amount=one_way)
        case "power_all" if flush == "sync":
            return Fault(at, kind, for_s=rng.uniform(0.5, 5.0))
        case "power_all":
            return strike(rng, at, "power", target, flush)
        case "clock":
            jump = rng.choice((-3600.0, -5.0, 5.0, 3600.0, 400_000.0))
            return Fault(at, kind, target, amount=jump)
        case "sync_error":
            return Fault(at, kind, target, amount=float(rng.randint(1, 3)))
        case "full" | "slow":
            return Fault(at, kind, target, for_s=rng.uniform(0.5, 6.0))
        case "burst":
            return Fault(at, kind, amount=float(rng.randint(*BURST)))
    return strike(rng, at, kind, target, flush)
