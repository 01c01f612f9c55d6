"""Which of a broker's addresses a client calls. Pure: failures in, an address out.

A route names all members of a group that elects its leader, the leader first, and each of them hands calls on
to it. So where one does not answer, the next one is as good: an address that has failed is left out for
`AVOID_S`, and a process that hangs costs a client one deadline, not each call's. Where all have failed, the
one is tried that failed first. To answer with an error is not to fail.
"""

from collections.abc import Sequence
from typing import Final

from whimbrel.model.route import Endpoint

__all__ = ["AVOID_S", "Addresses"]

AVOID_S: Final = 10.0  # longer than an election takes; by then the route has the new leader first
FAILED_MAX: Final = 1024  # addresses that are remembered; far beyond what a client calls


class Addresses:
    """What has failed lately; times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self.failed_at: dict[Endpoint, float] = {}

    def failed(self, endpoint: Endpoint, now: float) -> None:
        """An address did not answer."""
        self.failed_at.pop(endpoint, None)
        if len(self.failed_at) >= FAILED_MAX:
            del self.failed_at[next(iter(self.failed_at))]
        self.failed_at[endpoint] = now

    def answered(self, endpoint: Endpoint) -> None:
        """An address has answered."""
        if self.failed_at:
            self.failed_at.pop(endpoint, None)

    def choose(self, endpoints: Sequence[Endpoint], now: float) -> Endpoint:
        """Return which of them to call: the first that has not failed lately."""
        failed = self.failed_at
        for endpoint in endpoints:
            if endpoint not in failed or now - failed[endpoint] >= AVOID_S:
                return endpoint
        return min(endpoints, key=failed.__getitem__)
