"""Which messages that come without a trace context are given one: a share of all, chosen at random.

Drawn once a sampled message instead of once a message; the distribution is the same, a geometric one. The
compiled lane counts `unsampled` down as well.
"""

from collections.abc import Callable
from math import log, log1p
from random import random

__all__ = ["NEVER_SAMPLED", "Sampler"]

NEVER_SAMPLED = 1 << 62


class Sampler:
    """Gives messages a context.

    Attributes:
        unsampled: so many messages without a context are not sampled before the next one that is.
    """

    def __init__(self, create: Callable[[], str], ratio: float) -> None:
        """Take what begins a trace and returns its context, and the share of messages that get one."""
        self.create, self.ratio = create, ratio
        self.unsampled = draw_unsampled(ratio)

    def context(self) -> str:
        """Return a context for a message that came without one, if it is sampled; else ""."""
        if self.unsampled:
            self.unsampled -= 1
            return ""
        self.unsampled = draw_unsampled(self.ratio)
        return self.create()


def draw_unsampled(ratio: float) -> int:
    """Return how many messages are not sampled before the next one that is, when this share of them is."""
    if ratio >= 1:
        return 0
    if ratio <= 0:
        return NEVER_SAMPLED
    return min(int(log(1.0 - random()) / log1p(-ratio)), NEVER_SAMPLED)
