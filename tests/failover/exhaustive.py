"""Level 1: every order of events in small cases, breadth first, with the invariants checked at each step.

A case bounds epochs, entries and faults (`steps.Case`). `explore` looks at all groups that can be reached
in it, and stops at the first finding, which is one with the fewest steps. Cases are split by the kinds of
faults, since their product is too large: what one kind needs of epochs and entries it has.
"""

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from failover.group import Group, Left
from failover.logs import Finding
from failover.steps import Case, Step, Steps

__all__ = ["CASES", "Outcome", "explore"]

# Member 0 leads epoch 1 with the seal of 1, and 1 has taken its first entry.
COPIED: Final = (
    "0 swaps epoch 1",
    "1 seals epoch 1 for 0 at (0, 0)",
    "0 leads epoch 1",
    "0 appends 1",
    "1 follows 0 in epoch 1 from 0",
    "1 takes entry 1 of 0",
)
# Raft's figure 8 so far: only member 0 has two entries of epoch 1, only member 2 has one of epoch 2.
DIVERGED: Final = (
    "0 swaps epoch 1",
    "1 seals epoch 1 for 0 at (0, 0)",
    "0 leads epoch 1",
    "0 appends 1",
    "0 appends 2",
    "2 swaps epoch 2",
    "1 seals epoch 2 for 2 at (0, 0)",
    "2 leads epoch 2",
    "2 appends 3",
)
# An entry that the voters 0 and 1 have committed; then 0 leads with 2 instead of 1.
CHANGED: Final = (
    "0 swaps epoch 1",
    "0 leads epoch 1",
    "0 appends 1",
    "1 follows 0 in epoch 1 from 0",
    "1 takes entry 1 of 0",
    "0 commits up to 1 in epoch 1",
    "0 swaps epoch 2 with voters ((0, 0), (2, 2))",
    "0 leads epoch 2",
)

CASES: Final[dict[str, Case]] = {
    case.name: case
    for case in (
        Case("elections", epochs_max=3, entries_max=2),
        Case("two members", members=2, voters=2, epochs_max=3, entries_max=2),
        Case("four members", members=4, voters=4),
        Case("three copies of three", copies=3, entries_max=2),
        Case("figure 8", epochs_max=4, entries_max=3, begin=DIVERGED),
        Case("restarts", entries_max=2, left=Left(restarts=1)),
        Case("power cuts", entries_max=2, left=Left(power_cuts=1)),
        Case("dead connections", reports=True, left=Left(power_cuts=1), begin=COPIED),
        Case("replaced disks", left=Left(disks=1)),
        Case(
            "a replaced disk comes back",
            epochs_max=3,
            left=Left(disks=1, changes=1),
            voter_sets=((0, 1, 2),),
            begin=COPIED,
        ),
        Case("a restored store", left=Left(restores=1)),
        Case(
            "an accepted loss",
            epochs_max=4,
            left=Left(power_cuts=1, losses=1),
            begin=(*COPIED, "0 commits up to 1 in epoch 1"),
        ),
        Case("an observer", entries_max=2, observer=True),
        Case(
            "voters change",
            voters=2,
            epochs_max=3,
            left=Left(changes=1),
            voter_sets=((0, 1), (0, 2), (1, 2), (0, 1, 2)),
        ),
        Case(
            "voters change twice",
            members=4,
            voters=2,
            epochs_max=4,
            left=Left(changes=2),
            voter_sets=((0, 2), (0, 3)),
            begin=CHANGED,
        ),
    )
}


@dataclass
class Outcome:
    """What a search came to.

    Attributes:
        groups: how many different ones were seen.
        finding, steps: what is wrong in the last one, and how it came to that; None and empty if nothing is.
        whole: whether all that can be reached was looked at.
    """

    case: Case
    groups: int
    finding: Finding | None
    steps: list[str]
    whole: bool
    seconds: float


def explore(case: Case, off: frozenset[str] = frozenset(), groups_max: int = 3_000_000) -> Outcome:
    """Look at all groups that a case can come to, with these rules off, up to the first finding."""
    enabled = gc.isenabled()
    gc.disable()  # hundreds of thousands of tuples stay, and no cycles: looking through them doubles the time
    try:
        return search(case, Steps(case, off).after, groups_max)
    finally:
        if enabled:
            gc.enable()


def search(case: Case, after: Callable[[Group], Iterable[Step]], groups_max: int) -> Outcome:
    """Look breadth first at what comes after what."""
    began = time.process_time()
    first = case.first()
    came: dict[Group, tuple[Group, str] | None] = {first: None}
    for line in case.begin:
        reached = next(group for name, group, _ in after(first) if name == line)
        came[reached] = first, line
        first = reached
    waiting = deque([first])
    while waiting and len(came) <= groups_max:
        group = waiting.popleft()
        for name, reached, finding in after(group):
            if finding:
                steps = [*path(came, group), name]
                return Outcome(case, len(came), finding, steps, False, time.process_time() - began)
            if reached not in came:
                came[reached] = group, sys.intern(name)
                waiting.append(reached)
    return Outcome(case, len(came), None, [], not waiting, time.process_time() - began)


def path(came: dict[Group, tuple[Group, str] | None], group: Group) -> list[str]:
    """Return the steps that lead to a group."""
    steps: list[str] = []
    while step := came[group]:
        group, name = step
        steps.append(name)
    return steps[::-1]
