"""A slave's broker tells its master's from where its replicator is connected, and why that stalls, whenever
one of both has changed.

    told --another connection, master, trouble--> untold --answered--> told
                                                    '---refused: again after RETRY_S, twice as long each time

Nothing in the replication protocol says who a slave is; by this its connection gets a name, and the master
learns why a slave takes nothing (`member_reports.py`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from whimbrel.errors import WhimbrelError

__all__ = ["REPEAT_S", "RETRY_S", "Introduction"]

logger = logging.getLogger(__name__)

RETRY_S = 0.5
REPEAT_S = 30.0  # in case the master's broker has forgotten, and the longest pause between two attempts


class Marks(Protocol):
    """What is used of the page of marks."""

    local_ha: str
    local_ha_version: int
    trouble_version: int


class Introduction:
    """Keeps the master informed; `address` returns where its broker serves, empty while that is unknown."""

    def __init__(
        self, page: Marks, *, address: Callable[[], str], introduce: Callable[[str, str], Awaitable[None]]
    ) -> None:
        """Take the page; `introduce` tells a master's broker an address of our replicator's."""
        self.page, self.address, self.introduce = page, address, introduce
        self.news = asyncio.Event()
        self.versions = page.local_ha_version, page.trouble_version

    def look(self) -> None:
        """See whether the replicator has another connection, or another trouble; costs two reads of cells."""
        versions = self.page.local_ha_version, self.page.trouble_version
        if versions != self.versions:
            self.versions = versions
            self.hurry()

    def hurry(self) -> None:
        """Tell the master at once."""
        self.news.set()

    async def run(self) -> None:
        """Work until cancelled."""
        failed_s = RETRY_S
        while True:
            self.news.clear()
            pause_s = REPEAT_S
            try:
                await self.tell()
                failed_s = RETRY_S
            except WhimbrelError as error:
                logger.debug("the master was not told of our replicator: %s", error)
                pause_s, failed_s = failed_s, min(failed_s * 2, REPEAT_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.news.wait()

    async def tell(self) -> None:
        """Tell the master, if both addresses are known."""
        address, ours = self.address(), self.page.local_ha
        if address and ours:
            await self.introduce(address, ours)
