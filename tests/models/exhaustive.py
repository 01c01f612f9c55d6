"""Level 1: every order of events in small cases, breadth first, with the invariants checked at each step.

A case bounds epochs, entries and faults (`steps.Case`). `explore` looks at all groups that can be reached
in it, and stops at the first finding, which is one with the fewest steps. Cases are split by the kinds of
faults, since their product is too large: what one kind needs of epochs and entries it has. What stands beside
the log has cases of its own, in a model of its own (`state_steps.py`): an election there needs no log.
"""

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from models.group import Left
from models.logs import Finding
from models.state_group import StateLeft
from models.state_steps import StateCase, StateSteps
from models.steps import Case, Steps

__all__ = ["CASES", "Outcome", "explore"]

G = TypeVar("G")  # a group of either model

# Member 0 leads epoch 1 with the seal of 1, and 1 has taken its first entry.
COPIED: Final = (
    "0 swaps epoch 1",
    "1 seals epoch 1 for 0 at (0, 0)",
    "0 leads epoch 1",
    "0 appends 1",
    "1 follows 0 in epoch 1 from 0",
    "1 takes entry 1 of 0",
)
SYNC, ASYNC = ("sync", "sync"), ("async", "async")  # flush modes of a member's broker and replicator
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

# Beside the log: member 0 has begun epoch 1 with what 1 has handed over, and by a majority serves.
BEGUN: Final = ("0 is elected in epoch 1 by [0, 1]", "1 follows 0 in epoch 1", "0 begins epoch 1")
SERVES: Final = (*BEGUN, "1 takes leases 1 of 0 in epoch 1", "1 takes tables (1, 1) of 0")
# 0 has changed its leases, which its journal and that of 1 may not have on the disk yet.
CHANGING: Final = (
    *SERVES,
    "0 makes change 0 of leases, its number 2 in epoch 1",
    "1 takes leases 2 of 0 in epoch 1",
)
# 0 and 1 have the change on their disks, and it is answered. 2 has taken it over from 1, has not written it
# down, and leads with 3 instead of 0 and 1.
TAKEN_OVER: Final = (
    *CHANGING,
    "0 writes its leases down",
    "1 writes its leases down",
    "2 is elected in epoch 2 by [1, 2]",
    "1 follows 2 in epoch 2",
    "2 begins epoch 2",
    "1 takes leases 1 of 2 in epoch 2",
    "1 takes tables (2, 1) of 2",
    "2 is elected in epoch 3 by [1, 2] with ((2, 2), (3, 3))",
)

CASES: Final[dict[str, Case | StateCase]] = {
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
        Case("a copied store", epochs_max=3, left=Left(backups=1), begin=COPIED[:4]),
        Case(
            "a copied store becomes a voter",
            epochs_max=3,
            left=Left(backups=1, changes=1),
            voter_sets=((0, 1, 2),),
            begin=(*COPIED[:4], "the store of 1 is copied", *COPIED[4:], "0 commits up to 1 in epoch 1"),
        ),
        Case("a tool cuts", left=Left(tools=1), begin=COPIED),
        Case("a tool after a power cut", left=Left(power_cuts=1, tools=1), flush=(ASYNC,) * 3),
        Case("another flush mode", left=Left(power_cuts=1, settings=1), flush=(ASYNC,) * 3),
        Case("unequal flush modes", left=Left(power_cuts=1), flush=(("async", "sync"), SYNC, SYNC)),
        Case("retention", epochs_max=3, entries_max=2, left=Left(retentions=1), begin=COPIED[:4]),
        Case(
            "what waits",
            epochs_max=3,
            entries_max=2,
            left=Left(retentions=2),
            begin=(*COPIED, "0 commits up to 1 in epoch 1"),
            waits=True,
        ),
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
        StateCase("leases", lease_changes=1, begin=BEGUN),
        StateCase("tables", table_changes=2, begin=BEGUN),
        StateCase("leases and power cuts", lease_changes=1, left=StateLeft(power_cuts=1), begin=CHANGING),
        StateCase("leases and a replaced disk", lease_changes=1, left=StateLeft(disks=1), begin=CHANGING),
        StateCase(
            "leases and late reports",
            lease_changes=1,
            reports=True,
            begin=(
                *SERVES,
                "0 reads in epoch 1 what 1 reported in epoch 1: 1 and 1",
                "0 makes change 0 of leases, its number 2 in epoch 1",
            ),
        ),
        StateCase("deletions of topics", table_changes=1, deletions=True, begin=BEGUN),
        StateCase(
            "leases as voters change",
            voters=2,
            lease_changes=1,
            left=StateLeft(changes=1),
            voter_sets=((0, 2), (1, 2)),
            begin=(
                "0 is elected in epoch 1 by [0]",
                "0 begins epoch 1",
                "1 follows 0 in epoch 1",
                *SERVES[-2:],
            ),
        ),
        StateCase(
            "a power cut as voters change",
            members=4,
            epochs_max=4,
            lease_changes=1,
            left=StateLeft(changes=1, power_cuts=1),
            voter_sets=((2, 3),),
            begin=TAKEN_OVER,
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

    case: Case | StateCase
    groups: int
    finding: Finding | None
    steps: list[str]
    whole: bool
    seconds: float


def explore(
    case: Case | StateCase, off: frozenset[str] = frozenset(), groups_max: int = 3_000_000
) -> Outcome:
    """Look at all groups that a case can come to, with these rules off, up to the first finding."""
    enabled = gc.isenabled()
    gc.disable()  # hundreds of thousands of tuples stay, and no cycles: looking through them doubles the time
    try:
        if isinstance(case, StateCase):
            return search(case, case.first(), StateSteps(case, off).after, groups_max)
        return search(case, case.first(), Steps(case, off).after, groups_max)
    finally:
        if enabled:
            gc.enable()


def search(
    case: Case | StateCase,
    first: G,
    after: Callable[[G], Iterable[tuple[str, G, Finding | None]]],
    groups_max: int,
) -> Outcome:
    """Look breadth first at what comes after what."""
    began = time.process_time()
    came: dict[G, tuple[G, str] | None] = {first: None}
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


def path(came: dict[G, tuple[G, str] | None], group: G) -> list[str]:
    """Return the steps that lead to a group."""
    steps: list[str] = []
    while step := came[group]:
        group, name = step
        steps.append(name)
    return steps[::-1]
