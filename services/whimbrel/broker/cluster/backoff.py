"""Trying again until a peer is there, for as long as the broker runs: services start in any order.

    step ──got through──► pause of RETRY_S_MIN, then anew
      ▲ └──did not──► pause, doubling from RETRY_S_MIN up to RETRY_S_MAX ─┐
      └───────────────────────────────────────────────────────────────────┘

How long to wait is tenacity's; a step returns whether it got through. A `Pause` ends sooner when there is a
reason to try at once, an `Attempt` when the peer has moved.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from operator import not_

from tenacity import AsyncRetrying, retry_if_result, wait_exponential

__all__ = ["RETRY_S_MAX", "RETRY_S_MIN", "Attempt", "Pause", "keep_trying"]

RETRY_S_MIN = 0.1
# A nameserver that comes back answers "not ready" until brokers had one renewal period, 2 s; and a master
# that comes back waits for the reports of its slaves.
RETRY_S_MAX = 1.0

Step = Callable[[], Awaitable[bool]]


class Pause:
    """Waits before the next attempt, or until `end` is called; also when that was before the wait."""

    def __init__(self) -> None:
        self.news = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        """Wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.news.wait()

    def end(self) -> None:
        """Try again at once."""
        self.news.set()

    def begin(self) -> None:
        """Forget reasons from before: an attempt begins, which knows them."""
        self.news.clear()


async def keep_trying(step: Step, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Run a step again and again until cancelled.

    Args:
        step: returns, once it is over, whether it had got through. What it raises ends the trying.
        pause: waits so many seconds, or less when there is a reason.
    """
    attempts = AsyncRetrying(
        retry=retry_if_result(not_),
        wait=wait_exponential(multiplier=RETRY_S_MIN, max=RETRY_S_MAX),
        sleep=pause,
    )
    while True:
        await attempts(step)
        await pause(RETRY_S_MIN)


class Attempt:
    """A call to a peer that may move: the call ends when the peer is said to be elsewhere.

    A peer that hangs ends no call of its own.
    """

    def __init__(self) -> None:
        self.address = ""
        self.task: asyncio.Future[None] | None = None

    async def run(self, address: str, work: Awaitable[None]) -> None:
        """Call the peer at `address`; return when that is over, or was ended; errors are the call's."""
        self.address, self.task = address, asyncio.ensure_future(work)
        try:
            await asyncio.wait([self.task])
        finally:
            task, self.task = self.task, None
            if not task.done():  # we are cancelled
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # or nobody would, where we are cancelled as it fails
        if not task.cancelled():
            task.result()

    def end_unless(self, address: str) -> None:
        """End the call that is under way, if it is to another address."""
        if self.task is not None and address and address != self.address:
            self.task.cancel()
