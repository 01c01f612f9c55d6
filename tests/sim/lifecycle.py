"""A topic that an administrator deletes and makes again while it is written and read.

What a send that was answered OK must come to, by when it was sent:

    answered before a deletion was asked for     gone from the queues of all members, for ever
    begun after the last deletion was done       there, and delivered
    else                                         either

A deletion of which a call had no answer may still be under way: it counts as done `STRAY_S` later.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

from sim.network import SimNetwork
from sim.nodes import LoopNode
from sim.process import SimProcess
from support.history.histories import History, Place, outcome_of
from whimbrel.client import Admin
from whimbrel.client.options import ClientOptions
from whimbrel.client.retry import RetryPolicy
from whimbrel.errors import AlreadyExists, TopicNotFound, WhimbrelError

__all__ = ["AdminClient", "Deletion"]

STRAY_S = 15.0  # a paused broker may take a call so much later
DELIVERED_LATE_S = 15.0  # what was read before a deletion may be on its way for so long
QUEUES = 4


@dataclass
class Deletion:
    """A deletion; `ended` is infinite while it is not done."""

    began: float
    ended: float = float("inf")


class AdminClient(LoopNode):
    """Makes a topic, and deletes and makes it again.

    Attributes:
        pause_s: shortest and longest time from making the topic to deleting it.
        deletions: what it has asked for.
    """

    def __init__(
        self,
        process: SimProcess,
        network: SimNetwork,
        *,
        endpoint: str,
        topic: str,
        times: int,
        pause_s: tuple[float, float],
    ) -> None:
        super().__init__(process, network)
        self.endpoint, self.topic, self.times, self.pause_s = endpoint, topic, times, pause_s
        self.rng = random.Random(process.rng.getrandbits(64))
        self.deletions: list[Deletion] = []
        self.launch(self.main)

    async def main(self) -> None:
        """Make, delete, make again."""
        scheduler = self.process.scheduler
        options = ClientOptions(retry=RetryPolicy(attempts_max=1), route_ttl_s=5.0)
        async with Admin(self.endpoint, options=options) as admin:

            async def create() -> None:
                await admin.create_topic(self.topic, queues=QUEUES)

            async def delete() -> None:
                await admin.delete_topic(self.topic)

            await self.until_done(create, AlreadyExists)
            for _ in range(self.times):
                await asyncio.sleep(self.rng.uniform(*self.pause_s))
                deletion = Deletion(scheduler.now)
                self.deletions.append(deletion)
                stray = await self.until_done(delete, TopicNotFound)
                await asyncio.sleep(STRAY_S if stray else 0.0)
                deletion.ended = scheduler.now
                await asyncio.sleep(self.rng.choice((0.0, 3.0)))
                await self.until_done(create, AlreadyExists)

    async def until_done(self, call: Callable[[], Awaitable[None]], done: type[WhimbrelError]) -> bool:
        """Call until that is done, or was done before; return whether a try may be done later once more."""
        stray = False
        while True:
            try:
                await call()
            except done:
                return stray
            except WhimbrelError as error:
                stray |= outcome_of(error) != "none"
            else:
                return stray
            await asyncio.sleep(self.rng.uniform(0.2, 1.0))

    # What must hold

    def must_be_gone(self, history: History) -> set[bytes]:
        """Return the messages that were acknowledged before a deletion which is done."""
        began = max((one.began for one in self.deletions if one.ended < float("inf")), default=0.0)
        return {sent.id for sent in history.acknowledged if sent.ended < began}

    def may_be_gone(self, history: History) -> set[bytes]:
        """Return the messages that need not be there."""
        ended = max((one.ended for one in self.deletions), default=0.0)
        return {sent.id for sent in history.sends.values() if sent.began <= ended}

    def check(
        self,
        history: History,
        member: str,
        complete: list[tuple[Place, bytes]],
        fail: Callable[[str, str], NoReturn],
    ) -> None:
        """What was deleted is gone from a member's queues, and was delivered to nobody since."""
        gone = self.must_be_gone(history)
        back = [(place, message) for place, message in complete if message in gone]
        if back:
            fail("deleted", f"{member} has {back[0]} of the deleted topic ({len(back)} in all)")
        for delivery in history.deliveries:
            sent = history.sends.get(delivery.id)
            if sent is None or sent.outcome != "ok":
                continue
            for one in self.deletions:
                if sent.ended < one.began and delivery.at > one.ended + DELIVERED_LATE_S:
                    fail(
                        "deleted",
                        f"{delivery.id!r} was delivered at {delivery.at:.3f}, deleted at {one.ended:.3f}",
                    )
