"""How long a slave waits before it connects again.

    progress (the log grew), or another address    the next wait is RECONNECT_MIN_S
    a connection or an attempt ended               wait; the next wait is twice as long, up to RECONNECT_MAX_S
    ... and trying again soon will not help        wait RECONNECT_MAX_S

RocketMQ's slaves wait 5 s, or not at all.
"""

from typing import Final

__all__ = ["RECONNECT_MAX_S", "RECONNECT_MIN_S", "ReconnectBackoff"]

RECONNECT_MIN_S: Final = 0.1
RECONNECT_MAX_S: Final = 2.0


class ReconnectBackoff:
    """The waits between connections.

    Attributes:
        retry_at: not before this time.
        wait_s: how long the next wait will be.
    """

    __slots__ = ("retry_at", "wait_s")

    def __init__(self) -> None:
        self.retry_at = float("-inf")
        self.wait_s = RECONNECT_MIN_S

    def reset(self) -> None:
        """Begin with the shortest wait again."""
        self.wait_s = RECONNECT_MIN_S

    def failed(self, now: float, *, lasting: bool) -> None:
        """Wait from now on; `lasting`: it will be no better soon."""
        if lasting:
            self.wait_s = RECONNECT_MAX_S
        self.retry_at = now + self.wait_s
        self.wait_s = min(self.wait_s * 2, RECONNECT_MAX_S)
