"""What goes on in a cluster besides sends and faults, drawn for each seed: expiry, a topic that is deleted,
positions that are committed.

It has a chance of its own, so that layout, modes and faults of a seed stay what they are.
"""

import random
from dataclasses import dataclass

__all__ = ["SELDOM", "TRANSIENT", "Upkeep"]

SELDOM = "seldom"  # a topic whose messages all expire
TRANSIENT = "transient"  # a topic that is deleted, and made again
RESERVED_S = (8.0, 12.0, 20.0)  # a run fills a log file in some five seconds where messages expire

CLOCK_RESERVED_S = 25.0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is drawn.

    Attributes:
        reserved_s: age at which log files are removed, in virtual seconds; 0: none is.
        seldom_again: whether SELDOM is written once more in the end; it is written in the begin.
        late: what happens when messages have expired (`Plan.draw_late`): "" for nothing.
        deletions: how often TRANSIENT is deleted; 0: there is no such topic.
        commits: whether a client commits positions.
    """

    reserved_s: float = 0.0
    seldom_again: bool = False
    late: str = ""
    deletions: int = 0
    commits: bool = False

    @classmethod
    def draw(cls, seed: int) -> "Upkeep":
        """Draw it."""
        rng = random.Random(f"upkeep {seed}")
        reserved_s = rng.choice(RESERVED_S) if rng.random() < 0.5 else 0.0
        late = rng.choice(("replace", "replace", "clock", "kill", "cut", ""))
        return cls(
            # Files from before a jump of the clock must not be old at the first round after the restart.
            reserved_s=CLOCK_RESERVED_S if reserved_s and late == "clock" else reserved_s,
            seldom_again=rng.random() < 0.3,
            late=late if reserved_s else "",
            deletions=rng.choice((1, 2)) if rng.random() < 0.5 else 0,
            commits=rng.random() < 0.5,
        )

    @property
    def topics(self) -> list[str]:
        """The topics that are there besides the main one."""
        return [SELDOM] * bool(self.reserved_s) + [TRANSIENT] * bool(self.deletions)
