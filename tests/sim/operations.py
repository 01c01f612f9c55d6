"""Plans of groups that elect their masters, with an operator (`operators.py`); and of all such groups.

elections    what `make sim-elections` runs: a third of the seeds is plain, the others are as below
plain        as in `elections.py`, without an operator
voters       one to four commands, faults while voters change, disks that are replaced and named again; in
             half of them one or two members more than vote at first
two          a group of two, of which one may go on alone (`copies_min`); each is away for long once
loss         two of three members, or the votes of all, are lost at once, what only they had as well, and
             an operator accepts that; faults while the loss stands, and after
hands        stores are copied and put back, cut and opened by tools, tables damaged, settings changed, disks
             crowded; clients of RocketMQ 4, and resets of groups
a rule       a plan in which that it is off is looked for (`PLANS`): the faults that it takes, in the order
             that it takes them, at drawn times
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from sim.classic import levels_plan
from sim.elections import (
    MEMBERS,
    draw_fault,
    draw_row,
    draw_tail,
    draw_upon,
    plain_plan,
    strike,
)
from sim.plan import BEGIN_S, BURST, QUIET_S, Fault, Mode, Plan
from sim.upkeep import Upkeep

__all__ = ["PLANS", "elections_plan"]

VOTERS_SHARE, TWO_SHARE, LOSS_SHARE, HANDS_SHARE = 0.3, 0.1, 0.1, 0.15  # of all seeds
GENTLE = ("kill", "pause", "cut", "reset", "isolate", "crash", "hang", "stop", "slow", "burst", "clock")
COMMANDS = (
    "all",
    "first",
    "grow",
    "grow",
    "shrink",
    "shrink",
    "swap",
    "swap",
    "switchover",
    "switchover",
    "reinit",
    "reinit",
    "pause_elections",
)
UPON = ("crash", "crash", "kill", "isolate", "power", "hang", "stop", "replace")
SPARES = (0, 0, 0, 0, 0, 1, 1, 1, 1, 2)
STAYS = (*MEMBERS, "b1", "b2", "b1", "b2")  # the first leader is b0 most times
AWAY_S = (16.0, 20.0)  # longer than a voter may be away that is not taken out


def elections_plan(seed: int) -> Plan:
    """Draw a plan."""
    drawn = random.Random(f"operations {seed}").random()
    shares = (
        (VOTERS_SHARE, voters_plan),
        (TWO_SHARE, two_plan),
        (LOSS_SHARE, loss_plan),
        (HANDS_SHARE, hands_plan),
    )
    for share, draw in shares:
        if drawn < share:
            return draw(seed)
        drawn -= share
    return plain_plan(seed)


def in_order(plan: Plan, faults: list[Fault]) -> Plan:
    """Return a plan with these faults."""
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def voters_plan(seed: int) -> Plan:
    """Draw a plan in which voters change."""
    rng = random.Random(f"voters {seed}")
    plan = plain_plan(seed)
    spares = rng.choice(SPARES)
    members = [*MEMBERS, "b3", "b4"][: 3 + spares]
    names = [f"n{number}" for number in range(plan.nameservers)]
    faults = [draw_fault(rng, plan.flush, names, members) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.3:
        faults += draw_row(rng, plan.flush)
    if rng.random() < 0.3:
        faults += draw_tail(rng)
    commands = [draw_command(rng, members) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.5:
        commands.append(Fault(rng.uniform(BEGIN_S, QUIET_S - 12.0), "replace", target(rng), for_s=1.0))
    for command in commands:
        if rng.random() < 0.7:
            faults += draw_beside(rng, command, plan.flush)
    clocks = any(fault.kind == "clock" for fault in faults)
    plan = replace(plan, spares=spares, operated=True, kinds=plan.kinds - ({"later"} if clocks else set()))
    return in_order(plan, [*faults, *commands])


def target(rng: random.Random) -> str:
    """Draw a role."""
    return rng.choice(("leader", "follower", "follower"))


def draw_command(rng: random.Random, members: list[str]) -> Fault:
    """Draw a command."""
    at, kind = rng.uniform(BEGIN_S, QUIET_S - 8.0), rng.choice(COMMANDS)
    if kind == "pause_elections":
        return Fault(at, kind, for_s=rng.uniform(0.5, 6.0))
    if kind in ("switchover", "reinit"):
        return Fault(at, kind, rng.choice(("follower", "follower", *members)))
    return Fault(at, "voters", kind)


def draw_beside(rng: random.Random, command: Fault, flush: Mode) -> list[Fault]:
    """Draw what goes wrong while a command is carried out."""
    kind, at = rng.choice(UPON), command.at - 0.01
    struck = rng.choice(("leader", "leader", "candidate", "follower"))
    if command.kind == "voters" or (command.kind == "replace" and rng.random() < 0.5):
        found = [replace(strike(rng, at, kind, struck, flush), upon="voters")]
    else:
        found = [strike(rng, command.at + rng.uniform(-1.0, 2.5), kind, struck, flush)]
    if rng.random() < 0.4:  # a member is cut off meanwhile
        found.append(
            Fault(max(command.at - rng.uniform(0.1, 3.0), BEGIN_S), "isolate", "follower", for_s=8.0)
        )
    if rng.random() < 0.3:
        found.append(Fault(command.at, "burst", amount=float(rng.randint(*BURST))))
    return found


def two_plan(seed: int) -> Plan:
    """Draw a plan of a group of two."""
    rng = random.Random(f"two {seed}")
    plan = replace(plain_plan(seed), flush="sync", slaves=1, copies_min=rng.choice((0, 1, 1, 1)))
    members, names = list(MEMBERS[:2]), [f"n{number}" for number in range(plan.nameservers)]
    faults = [draw_fault(rng, "sync", names, members) for _ in range(rng.randint(2, 4))]
    faults += draw_upon(rng, "sync", names) if rng.random() < 0.3 else []
    away = Fault(
        rng.uniform(BEGIN_S, 12.0),
        rng.choice(("crash", "crash", "power", "replace")),
        target(rng),
        for_s=rng.uniform(*AWAY_S),
    )
    named = Fault(away.at + away.for_s + rng.uniform(0.5, 3.0), "voters", "first")
    faults += [away, named, *draw_beside(rng, named, "sync")]
    clocks = any(fault.kind == "clock" for fault in faults)
    plan = replace(plan, operated=True, kinds=plan.kinds - ({"later"} if clocks else set()))
    return in_order(plan, [fault for fault in faults if "b2" not in (fault.target, fault.other)])


def loss_plan(seed: int) -> Plan:
    """Draw a plan in which an operator accepts a loss."""
    rng = random.Random(f"loss {seed}")
    flush: Mode = rng.choice(("sync", "async"))
    plan = replace(
        plain_plan(seed), flush=flush, upkeep=Upkeep(), kinds=frozenset(), operated=True, loses=True
    )
    at = rng.uniform(8.0, 14.0)
    faults = draw_gone(rng, at, flush)
    faults.append(Fault(at + rng.uniform(0.2, 4.0), "accept_loss", for_s=25.0))
    if rng.random() < 0.6:  # while the loss stands
        kind = rng.choice(("crash", "kill", "hang", "stop", "power"))
        faults.append(replace(strike(rng, at, kind, rng.choice(("leader", "follower")), flush), upon="loss"))
    if flush == "async" and rng.random() < 0.4:  # all of them lose power: it has to be said again
        again = [replace(fault, upon="loss", amount=0.0) for fault in draw_all_gone(rng, at)]
        faults += [*again, Fault(at + 12.0, "accept_loss", for_s=20.0)]
    for _ in range(rng.randint(0, 3)):
        late = draw_fault(rng, flush, ["n0"])
        faults.append(replace(late, at=rng.uniform(at + 14.0, QUIET_S - 5.0)))
    return in_order(plan, faults)


def draw_all_gone(rng: random.Random, at: float) -> list[Fault]:
    """Draw that all lose power at once."""
    return [Fault(at, "gone", name, for_s=rng.uniform(0.5, 4.0)) for name in MEMBERS]


def draw_gone(rng: random.Random, at: float, flush: Mode) -> list[Fault]:
    """Draw that so many are lost that nobody may lead; perhaps with what only they had."""
    if flush == "async" and rng.random() < 0.4:
        burst = Fault(at - rng.uniform(0.1, 0.5), "burst", amount=float(rng.randint(*BURST)))
        return [burst, *draw_all_gone(rng, at)]
    stays = rng.choice(STAYS)
    disks = float(rng.random() < 0.5)
    found = [
        Fault(at, "gone", name, for_s=rng.uniform(8.0, 16.0), amount=disks)
        for name in MEMBERS
        if name != stays
    ]
    if rng.random() < 0.7:
        lag = rng.uniform(0.5, 2.0)  # less than it takes to stand
        found.append(Fault(at - lag, "isolate", stays, for_s=lag + 1.0))
        found.append(Fault(at - lag + 0.2, "burst", amount=float(rng.randint(*BURST))))
    return found


# Plans for one rule. The first leader is b0, by its id.


def promised_plan(seed: int) -> Plan:
    """Draw that a leader which hung goes on just as another one has its seals, and nobody tells the third.

    For R3a: the third member, which has promised itself to the new leader, has the stream of the old one.
    """
    rng = random.Random(f"promised {seed}")
    plan = replace(plain_plan(seed), kinds=frozenset())
    at = rng.uniform(5.0, 12.0)
    names = [f"n{number}" for number in range(plan.nameservers)]
    faults = [Fault(at, "cut", "b0", name, for_s=12.0) for name in names]
    faults += [
        Fault(at + 0.1, "hang", "b0", for_s=20.0),
        Fault(at + rng.uniform(1.5, 2.4), "burst", amount=float(rng.randint(*BURST))),
    ]
    faults += [Fault(at + 0.2, "cut", "third", name, for_s=6.0, upon="seals") for name in names]
    return in_order(plan, [*faults, Fault(at + 0.2, "resume", "b0", upon="seals")])


def figure_plan(seed: int) -> Plan:
    """Draw what figure 8 of the raft paper shows.

    For R7: b0 leads again, and another member, whose disk has room for a part of them, acknowledges records
    of its first epoch to it. Then b0 is lost, and the leader of the epoch in between, which was cut off, goes
    on.
    """
    rng = random.Random(f"figure {seed}")
    plan = replace(plain_plan(seed), kinds=frozenset(), flush="sync")
    at = rng.uniform(4.0, 8.0)
    faults = [
        Fault(at, "isolate", "b0", "members", for_s=60.0),
        *(Fault(at + 0.01, "burst", amount=24.0) for _ in range(rng.randint(1, 3))),
        Fault(at + 0.5, "mend", "b0", "b1", upon="epoch"),
        Fault(at + 0.5, "mend", "b0", "b2", upon="epoch"),
        Fault(at + 0.5, "isolate", "leader", "members", for_s=60.0, upon="epoch"),
        Fault(at + 0.5, "full", "third", for_s=15.0, amount=32_000, upon="epoch"),
        Fault(at + 0.6, "gone", "b0", for_s=25.0, upon="commit"),
        Fault(at + 0.6, "mend", "b1", "b2", upon="commit"),
    ]
    return in_order(plan, faults)


def vote_plan(seed: int, rule: str) -> Plan:
    """Draw that a member loses its vote with its power, and the leader is lost before or as it gets it back.

    For R9 and R9b: the third one was cut off, and has not what that member lost.
    """
    rng = random.Random(f"{'vote' if rule == 'R9b' else rule} {seed}")
    plan = replace(plain_plan(seed), kinds=frozenset(), flush="async")
    at, bursts = rng.uniform(5.0, 12.0), rng.randint(3, 6)
    power_at = at + rng.uniform(0.3, 0.9)
    then, upon = (at + 0.3, "vote") if rule == "R9b" else (power_at + 0.01, "")
    faults = [
        Fault(at, "isolate", "b2", for_s=30.0),
        Fault(at + 0.1, "slow", "b1", for_s=1.0),
        *(Fault(at + 0.2, "burst", amount=24.0) for _ in range(bursts)),
        Fault(power_at, "power", "b1", for_s=rng.uniform(0.5, 1.5)),
        Fault(then, "crash", "b0", for_s=12.0, upon=upon),
        *(
            Fault(then, "mend", "b2", name, upon=upon)
            for name in ("b1", *(f"n{number}" for number in range(plan.nameservers)))
        ),
    ]
    return in_order(plan, faults)


def change_plan(seed: int, rule: str) -> Plan:
    """Draw that voters change while those that are named lag, and who has what is committed is away.

    For R10 to R10f: members 1, 4 and 5 are to vote instead of 1, 2 and 3. The disks of some are full, so that
    they have not what the others commit; what happens once the record says so is the rule's own.
    """
    rng = random.Random(f"{rule} {seed}")
    plan = replace(plain_plan(seed), kinds=frozenset(), flush="sync", spares=2, operated=True)
    at = rng.uniform(5.0, 10.0)
    full_s = rng.uniform(4.0, 6.0)
    lags, away = {
        "R10": (("b3", "b4"), (("crash", "b0"), ("crash", "b1"), ("crash", "b2"))),
        "R10b": (("b2", "b3", "b4"), (("crash", "b0"), ("gone", "b1"))),
        "R10c": (("b3", "b4"), (("crash", "b0"),)),
        "R10d": (("b1", "b3", "b4"), ()),
        "R10e": (("b3", "b4"), (("crash", "b0"), ("crash", "b1"), ("crash", "b2"))),
        "R10f": (("b3", "b4"), (("crash", "b0"),)),
    }[rule]
    faults = [Fault(at, "full", name, for_s=full_s) for name in lags]
    faults += [Fault(at + 0.1, "burst", amount=24.0) for _ in range(3)]
    faults.append(Fault(at + 1.5, "voters", "1,4,5"))
    for kind, name in away:
        disk = float(kind == "gone")
        if rule == "R10e":  # a moment later
            faults.append(Fault(at + rng.uniform(2.5, 4.0), kind, name, for_s=12.0))
        else:
            faults.append(Fault(at + 1.4, kind, name, for_s=12.0, amount=disk, upon="voters"))
    if rule == "R10c":  # once another one stands
        faults += [Fault(at + 1.6, "crash", name, for_s=12.0, upon="election") for name in ("b1", "b2")]
    if rule == "R10d":
        faults.append(Fault(at + 2.5, "voters", "1,2,4"))
        faults += [Fault(at + rng.uniform(3.2, 4.2), "crash", name, for_s=12.0) for name in ("b0", "b2")]
    return in_order(plan, faults)


def accepted_plan(seed: int, rule: str) -> Plan:
    """Draw that two of three go on after a loss, and the better log is away before the other follows.

    For R14 to R14d: b0 loses its disk. b1 has not what b0 and b2 have committed, and has lost power besides,
    so that it does not vote.
    """
    rng = random.Random(f"{rule} {seed}")
    plan = replace(
        plain_plan(seed), flush="async", upkeep=Upkeep(), kinds=frozenset(), operated=True, loses=True
    )
    at = rng.uniform(6.0, 9.0)
    faults = [
        Fault(at, "full", "b1", for_s=12.0),
        *(Fault(at + 0.1, "burst", amount=24.0) for _ in range(3)),
        Fault(at + 1.5, "gone", "b0", for_s=20.0, amount=1.0),
        Fault(at + 1.5, "gone", "b1", for_s=0.5),
        Fault(at + 3.0, "accept_loss", for_s=12.0),
    ]
    match rule:
        case "R14":
            faults.append(Fault(at + 2.0, "crash", "b2", for_s=15.0, upon="epoch"))
        case "R14b":
            faults.append(Fault(at + 2.0, "crash", "b2", for_s=0.05, upon="epoch"))
            faults.append(Fault(at + 2.1, "crash", "b2", for_s=15.0, upon="epoch"))
        case "R14c":
            faults.append(Fault(at + 2.0, "crash", "b2", for_s=15.0, upon="loss"))
        case "R14d":
            plan = replace(plan, nameservers=2)  # the second one goes on
            faults = [fault for fault in faults if fault.kind != "full"]
            faults.append(Fault(at + 2.0, "kill", "n0.nameserver", for_s=10.0, upon="epoch"))
            lost = at + 9.0 + rng.uniform(0.2, 0.6)
            faults += [Fault(at + 8.8 + number / 5, "burst", amount=24.0) for number in range(3)]
            for name in ("b1", "b2"):
                faults.append(Fault(at + 8.9, "slow", name, for_s=1.0))
                faults.append(Fault(lost, "gone", name, for_s=1.0))
            faults.append(Fault(at + 22.0, "accept_loss", for_s=15.0))
    return in_order(plan, faults)


def memory_plan(seed: int, rule: str) -> Plan:
    """Draw that a member has forgotten what it acknowledged, and votes with one that was cut off meanwhile.

    For R15 to R18b: b0 leads, b1 acknowledges what b2 does not get. Then b1, or b0 itself, is changed by what
    the rule is about, and the third one is lost.
    """
    rng = random.Random(f"{rule} {seed}")
    flush: Mode = "sync" if rule in ("R15", "R16") else "async"
    plan = replace(plain_plan(seed), kinds=frozenset(), flush=flush)
    if rule == "R18b":
        parts: list[tuple[str, str, Mode]] = [
            (name, part, "sync") for name in MEMBERS for part in ("broker", "replicator")
        ]
        plan = replace(plan, modes=tuple(one for one in parts if one[:2] != ("b0", "broker")))
    at = rng.uniform(6.0, 12.0)
    then = at + rng.uniform(0.8, 1.6)
    changed, lost = ("b0", "b1") if rule == "R18b" else ("b1", "b0")
    faults = [
        Fault(at, "backup", "b1"),
        Fault(at, "isolate", "b2", for_s=30.0),
        *(Fault(at + 0.1, "burst", amount=24.0) for _ in range(rng.randint(2, 4))),
        Fault(then + 0.01, "crash", lost, for_s=12.0),
        *(
            Fault(then + 0.01, "mend", "b2", name)
            for name in (changed, *(f"n{number}" for number in range(plan.nameservers)))
        ),
    ]
    away_s = rng.uniform(0.3, 1.0)
    slow = Fault(at + 0.05, "slow", changed, for_s=2.0)
    match rule:
        case "R15":
            faults.append(Fault(then, "restore", changed, for_s=away_s))
        case "R16":
            faults.append(Fault(then, "set_aside", changed, for_s=away_s, amount=rng.uniform(3000, 9000)))
        case "R17":
            faults += [slow, Fault(then, "recover", changed, for_s=away_s)]
        case "R18":
            faults += [slow, Fault(then, "flush", changed), Fault(then, "power", changed, for_s=away_s)]
        case "R18b":
            faults += [slow, Fault(then, "power", changed, for_s=away_s)]
    return in_order(plan, faults)


def hands_plan(seed: int) -> Plan:
    """Draw what people, their tools and other programs do to stores and settings, among faults that take no
    member's vote: where two have lost theirs, nobody is elected without an operator."""
    rng = random.Random(f"hands {seed}")
    plan = plain_plan(seed)
    faults = [
        fault for fault in plan.faults if fault.kind in GENTLE and "power" not in (fault.kind, fault.other)
    ]
    at, name, away_s = rng.uniform(BEGIN_S + 6.0, QUIET_S - 14.0), rng.choice(MEMBERS), rng.uniform(0.3, 4.0)
    kinds = ["restore", "restore", "set_aside", "damage"]
    kinds += ["recover", "flush"] if plan.flush == "async" else []
    match rng.choice(kinds):
        case "restore":
            faults += [
                Fault(rng.uniform(BEGIN_S, at - 0.5), "backup", name),
                Fault(at, "restore", name, for_s=away_s),
            ]
        case "set_aside":
            faults.append(Fault(at, "set_aside", name, for_s=away_s, amount=rng.uniform(2000, 20_000)))
        case "damage":
            faults.append(Fault(at, "damage", name, for_s=away_s))
        case "recover":
            faults.append(Fault(at, "recover", name, for_s=away_s))
        case "flush":
            faults += [Fault(at, "flush", name), Fault(at + 0.01, "power", name, for_s=away_s)]
    if rng.random() < 0.5:
        faults += [Fault(rng.uniform(BEGIN_S, at), "crowded", each) for each in rng.sample(MEMBERS, 2)]
    classic, resets = rng.random() < 0.5, rng.random() < 0.5
    return in_order(replace(plan, operated=True, classic=classic, resets=resets), faults)


def crowded_plan(seed: int) -> Plan:
    """Draw that the disks of two members are crowded, and that one of them is the next to lead (R21)."""
    rng = random.Random(f"crowded {seed}")
    plan = replace(plain_plan(seed), kinds=frozenset({"later"}))
    at = rng.uniform(5.0, 8.0)
    faults = [
        *(Fault(at, "crowded", name) for name in ("b1", "b2")),
        *(Fault(at + number, "burst", amount=24.0) for number in range(1, 8)),
        Fault(at + rng.uniform(22.0, 25.0), "crash", "b0", for_s=12.0),
    ]
    return in_order(plan, faults)


def reset_plan(seed: int) -> Plan:
    """Draw that a leader is cut off from its members, and not from the client that resets a group (Q8)."""
    rng = random.Random(f"resets {seed}")
    faults = [
        Fault(at, "isolate", "leader", "members", for_s=rng.uniform(4.0, 6.0))
        for at in (rng.uniform(6.0, 9.0), rng.uniform(22.0, 26.0))
    ]
    return in_order(replace(plain_plan(seed), kinds=frozenset(), resets=True), faults)


def damaged_plan(seed: int) -> Plan:
    """Draw that a member's tables are damaged, and that it is the next to lead (Q7)."""
    rng = random.Random(f"damaged {seed}")
    at = rng.uniform(8.0, 30.0)
    faults = [
        Fault(at, "damage", "b1", for_s=rng.uniform(0.1, 0.8)),
        Fault(at, "crash", "b0", for_s=rng.uniform(8.0, 14.0)),
    ]
    return in_order(replace(plain_plan(seed), kinds=frozenset()), faults)


def classic_plan(seed: int) -> Plan:
    """Draw that a leader is lost whose clients are RocketMQ 4's (Q9)."""
    rng = random.Random(f"classic {seed}")
    faults = [Fault(rng.uniform(8.0, 20.0), "crash", "leader", for_s=rng.uniform(6.0, 12.0))]
    return in_order(replace(plain_plan(seed), kinds=frozenset(), classic=True), faults)


PLANS: Final[dict[str, Callable[[int], Plan]]] = {
    "elections": elections_plan,
    "plain": plain_plan,
    "voters": voters_plan,
    "two": two_plan,
    "loss": loss_plan,
    "hands": hands_plan,
    "R3a": promised_plan,
    "R7": figure_plan,
    **{rule: partial(vote_plan, rule=rule) for rule in ("R9", "R9b")},
    **{rule: partial(change_plan, rule=rule) for rule in ("R10", "R10b", "R10c", "R10d", "R10e", "R10f")},
    **{rule: partial(accepted_plan, rule=rule) for rule in ("R14", "R14b", "R14c", "R14d")},
    **{rule: partial(memory_plan, rule=rule) for rule in ("R15", "R16", "R17", "R18", "R18b")},
    "R21": crowded_plan,
    "Q7": damaged_plan,
    "Q8": reset_plan,
    "Q9": classic_plan,
    "Q10": levels_plan,
}
