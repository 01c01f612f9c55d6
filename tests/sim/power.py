"""Plans of power losses: synchronous flush, and all brokers lose power at once, again and again.

`power_plan` draws a plan like any other, with synchronous flush, and puts two or three such losses among its
faults: at any time, and upon a send that has begun and has no answer (`power_sending`).
What was acknowledged must be there afterwards, whatever else goes wrong.
"""

import itertools
import random
from dataclasses import replace

from sim.plan import BEGIN_S, QUIET_S, Fault, Plan

__all__ = ["LOSSES", "power_plan"]

LOSSES = ("power_sending", "power_all")
STEP = 1_000_000  # to the seed that is drawn instead of one with asynchronous flush


def power_plan(seed: int) -> Plan:
    """Draw a plan."""
    plan = next(
        plan for number in itertools.count() if (plan := Plan.draw(seed + number * STEP)).flush == "sync"
    )
    rng = random.Random(f"power {seed}")
    kinds = [*LOSSES, *rng.choices(LOSSES, k=rng.randint(0, 1))]
    added = [Fault(rng.uniform(BEGIN_S, QUIET_S - 5.0), kind, for_s=rng.uniform(0.5, 5.0)) for kind in kinds]
    faults = sorted([*plan.faults, *added], key=lambda fault: fault.at)
    return replace(plan, seed=seed, faults=tuple(faults))
