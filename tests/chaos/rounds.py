"""One round: a new group, its load, some failovers one after the other, and the checks at its end."""

import concurrent.futures
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.checks import UNDELIVERED, Redeliveries, check
from chaos.faults import Kind, Scene
from chaos.group import Group
from chaos.load import Load, Pace
from support.cluster.elections import Member
from support.history.histories import Finding
from support.waiting import elapse

__all__ = ["Failover", "Result", "play"]

STEADY = 20  # acknowledged plain sends of each kind before a fault, and again after it
STEADY_S = 40.0
NEWCOMER_S = 60.0
SETTLE_S = 60.0  # for consumers: what a lost answer made invisible comes again after 10 s
APART_S = 0.0, 1.0  # from one failover to the next, beyond the steady sends


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """What was measured, in seconds.

    Attributes:
        once: the longest pause of plain sends that are tried once, `TRY_S` each.
        default: that of the producer with the library's own defaults.
        newcomer: until a client that came at that moment had a send acknowledged.
        switched: until the route named another member first; None: it never did.
        elected: whether another member led in the end.
    """

    kind: str
    began: float
    once: float
    default: float
    newcomer: float
    switched: float | None
    elected: bool


@dataclass(slots=True)
class Result:
    """What came of a round."""

    seed: int
    failovers: list[Failover] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    again: Redeliveries = field(default_factory=Redeliveries)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


def bag(kinds: Sequence[Kind], dice: random.Random, count: int) -> Iterator[Kind]:
    """Yield kinds in an order that is drawn, each as often as the others."""
    drawn: list[Kind] = []
    for _ in range(count):
        if not drawn:
            drawn = list(kinds)
            dice.shuffle(drawn)
        yield drawn.pop()


def play(
    root: Path,
    seed: int,
    kinds: Sequence[Kind],
    count: int,
    *,
    behind: bool = False,
    pace: Pace | None = None,
    say: Callable[[str], None] = print,
) -> Result:
    """Play a round.

    Args:
        behind: whether members are reached through forwarders.
        say: told of each failover.
    """
    result = Result(seed)
    dice = random.Random(seed)
    with Group(root, behind=behind) as group:
        group.await_in_step()
        with Load(group.endpoint, seed, pace=pace) as load:
            try:
                for kind in bag(kinds, dice, count):
                    failover = fail_over(group, load, kind, dice)
                    result.failovers.append(failover)
                    say(told(failover))
                load.stop_sending()
                group.await_in_step()
                lacking = load.settle(SETTLE_S)
                result.findings += [
                    Finding("undelivered", f"{who}: {bodies[:5]} of {UNDELIVERED[who]}")
                    for who, bodies in lacking.items()
                ]
                found, result.again = check(group, load, [each.began for each in result.failovers])
                result.findings += found
            except AssertionError as error:  # a wait that was in vain, or a process that ended wrongly
                result.findings.append(Finding("stuck", str(error)))
            result.errors = load.errors
            result.counts = counted(load)
        result.findings += [
            Finding("traceback", str(process.log))
            for process in [
                group.nameserver,
                *(each for one in group.members.values() for each in one.processes),
            ]
            if "Traceback" in process.log.read_text(errors="replace")
        ]
    return result


def counted(load: Load) -> Counter[str]:
    """Return how much there was of everything."""
    history = load.history
    counts = Counter({"acknowledged": len(history.acknowledged), "deliveries": len(history.deliveries)})
    counts["reads"] = len(history.reads)
    places: dict[bytes, set[object]] = {}
    for _, place, message in history.reads:
        places.setdefault(message, set()).add(place)
    counts["twice"] = sum(len(where) > 1 for where in places.values())
    for topic, notes in load.notes.items():
        counts[topic] = sum(note.outcome == "ok" for note in notes.values())
    return counts


def told(failover: Failover) -> str:
    """Return it as a line."""
    switched = "-" if failover.switched is None else f"{failover.switched:.2f}"
    return (
        f"{failover.kind:28} pause {failover.once:5.2f}, with defaults {failover.default:5.2f}, new client"
        f" {failover.newcomer:5.2f}, route {switched:>5}{'' if failover.elected else ', same leader'}"
    )


def fail_over(group: Group, load: Load, kind: Kind, dice: random.Random) -> Failover:
    """Have a fault happen, wait until all is well again, and return what was measured."""
    leader = group.await_in_step()
    load.wait_for(STEADY, f"steady sends before {kind.name}", STEADY_S)
    elapse(dice.uniform(*APART_S))
    others = [member for member in group.members.values() if member is not leader]
    scene = Scene(group, dice, leader, dice.choice(others))
    kind.begin(scene)
    newcomer = load.newcomer(scene.began)
    elapse(max(0.0, scene.began + dice.uniform(*kind.away_s) - time.monotonic()))
    group.mend()
    after = group.await_in_step()
    load.wait_for(STEADY, f"steady sends after {kind.name}", STEADY_S)
    try:
        came = newcomer.result(NEWCOMER_S)
    except concurrent.futures.TimeoutError:
        raise AssertionError(f"a new client sends after {kind.name}: not within {NEWCOMER_S} s") from None
    return Failover(
        kind=kind.name,
        began=scene.began,
        once=load.longest_pause("once", scene.began),
        default=load.longest_pause("default", scene.began),
        newcomer=came,
        switched=switched(group, load, leader, scene.began),
        elected=after is not leader,
    )


def switched(group: Group, load: Load, leader: Member, began: float) -> float | None:
    """Return when the route named another member first."""
    before = group.told(leader)
    return next((at - began for at, first in list(load.route) if at > began and first != before), None)
