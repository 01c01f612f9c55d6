"""Plans of groups that commit by majority: a master with two slaves, all three voters, and the usual faults.

`majority_plan` draws a plan like any other that has such a group with synchronous replication, and has it
commit by majority instead. What is promised is more than synchronous replication does: nobody has seen what
is gone after a takeover.

A master's disk refuses no sync: where the cache has let go of what it covered, the master waits for a person.
"""

import itertools
from dataclasses import replace

from sim.plan import Fault, Plan

__all__ = ["majority_plan"]

STEP = 1_000_000  # to the seed that is drawn instead of one with another layout


def majority_plan(seed: int) -> Plan:
    """Draw a plan."""
    plans = (Plan.draw(seed + number * STEP) for number in itertools.count())
    plan = next(plan for plan in plans if (plan.groups, plan.slaves, plan.replication) == (1, 2, "sync"))
    faults = [
        Fault(fault.at, "reset", amount=0.5)
        if fault.kind == "sync_error" and fault.target in plan.masters
        else fault
        for fault in plan.faults
    ]
    return replace(plan, seed=seed, replication="majority", faults=tuple(faults))
