"""Level 2: random histories of members that lose messages, power and disks, by seed.

A seed draws a plan and then everything in it. `KINDS` says what plans are drawn from; a seed on its own
takes them in turn, so that as many as there are kinds, one after the other, have each once. `python -m
failover.run` runs them.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from models.logs import Finding
from models.world import Plan, World

__all__ = ["KINDS", "History", "draw", "run"]

KINDS: Final[dict[str, dict[str, Any]]] = {
    "sync": {"members": 3, "flush": "sync"},
    "async": {"members": 3, "flush": "async"},
    "five": {"members": 5, "flush": "sync"},
    "two": {"members": 2, "flush": "sync"},
    "four": {"members": 4, "flush": "async"},
    "voters": {"members": 4, "voters": 3, "flush": "sync", "changes": True},
    "voters async": {"members": 4, "voters": 3, "flush": "async", "changes": True},
    "disks": {"members": 3, "flush": "sync", "disks": True},
    "disks and voters": {"members": 4, "voters": 3, "flush": "async", "changes": True, "disks": True},
    "store": {"members": 3, "flush": "sync", "restores": True},
    "observer": {"members": 3, "flush": "sync", "observer": True},
}


@dataclass
class History:
    """What a seed came to.

    Attributes:
        finding: what ended it; None if it came to its end.
        counts: how often what happened.
        log: faults, leaders and cuts, as lines for people.
    """

    plan: Plan
    finding: Finding | None
    events: int
    seconds: float
    counts: Counter[str]
    log: list[str]


def draw(seed: int, kind: str = "") -> Plan:
    """Draw a plan, of the kind that is the seed's turn if none is named."""
    kind = kind or list(KINDS)[seed % len(KINDS)]
    source = random.Random(seed + 1_000_003)
    values = {"voters": KINDS[kind]["members"], **KINDS[kind]}
    loss, fault_s = source.choice([0.0, 0.02, 0.1, 0.3]), source.choice([2.0, 4.0, 8.0])
    return Plan(seed=seed, kind=kind, loss=loss, fault_s=fault_s, **values)


def run(plan: Plan, off: frozenset[str] = frozenset()) -> History:
    """Run a plan to its end, or to the first finding."""
    began = time.process_time()
    world = World(plan, off)
    finding = None
    try:
        world.run()
    except Finding as found:
        finding = found
    except (IndexError, AssertionError) as error:  # with a rule off, what is impossible may come first
        if not off:
            raise
        finding = Finding("error", f"{type(error).__name__}: {error}")
    return History(plan, finding, world.events, time.process_time() - began, world.counts, world.log)
