"""A client that makes, changes and deletes topics and groups, and knows what may be there of them."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

from sim.network import SimNetwork
from sim.nodes import LoopNode
from sim.process import SimProcess
from support.history.histories import outcome_of
from whimbrel.client import Admin
from whimbrel.client.options import ClientOptions
from whimbrel.client.retry import RetryPolicy
from whimbrel.errors import AlreadyExists, WhimbrelError

__all__ = ["TablesClient"]

CLIENT_S = 4.0  # of a call: longer than an answer waits for a majority
PAUSE_S = (0.2, 2.0)
QUEUES = (1, 6)
ATTEMPTS = (2, 9)


class TablesClient(LoopNode):
    """Makes topics and groups, changes and deletes them, one after the other.

    One of which a call had no answer is left as it is: a call that is under way may still be done.

    Attributes:
        topics, groups: by name, what may be there: numbers of queues, of attempts; None: nothing.
    """

    def __init__(self, process: SimProcess, network: SimNetwork, *, endpoint: str, until: float) -> None:
        super().__init__(process, network)
        self.endpoint, self.until = endpoint, until
        self.rng = random.Random(process.rng.getrandbits(64))
        self.topics: dict[str, set[int | None]] = {}
        self.groups: dict[str, set[int | None]] = {}
        self.answered = 0
        self.launch(self.main)

    async def main(self) -> None:
        """Make, change, delete."""
        options = ClientOptions(
            retry=RetryPolicy(attempts_max=1), request_timeout_s=CLIENT_S, route_ttl_s=2.0
        )
        number = 0
        async with Admin(self.endpoint, options=options) as admin:
            while self.process.scheduler.now < self.until:
                number += 1
                if self.rng.random() < 0.5:
                    await self.live(self.topics, f"made-{number}", QUEUES, TopicCalls(admin))
                else:
                    await self.live(self.groups, f"readers-{number}", ATTEMPTS, GroupCalls(admin))

    async def live(
        self, names: dict[str, set[int | None]], name: str, numbers: tuple[int, int], calls: "Calls"
    ) -> None:
        """Lead one through its life, until a call has no answer."""
        may = names[name] = {None}
        wanted: int | None = self.rng.randint(*numbers)
        call = calls.create(name, wanted or 1)
        while await self.done(may, wanted, call):
            draw = self.rng.random()
            if wanted is None or draw < 0.4:
                return
            if draw < 0.6:
                wanted, call = None, calls.delete(name)
            else:
                wanted = self.rng.randint(*numbers)
                call = calls.update(name, wanted)

    async def done(self, may: set[int | None], wanted: int | None, call: Awaitable[Any]) -> bool:
        """Wait for a call; return whether it was answered."""
        before = set(may)
        may.add(wanted)
        try:
            await call
        except AlreadyExists:
            may.discard(None)
            return False
        except WhimbrelError as error:
            if outcome_of(error) == "none":
                may.intersection_update(before)
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))
            return False
        may.intersection_update({wanted})
        self.answered += 1
        await asyncio.sleep(self.rng.uniform(*PAUSE_S))
        return True


class Calls:
    """What is asked of an administrator's client."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin

    def create(self, name: str, number: int) -> Awaitable[Any]:
        raise NotImplementedError

    def update(self, name: str, number: int) -> Awaitable[Any]:
        raise NotImplementedError

    def delete(self, name: str) -> Awaitable[Any]:
        raise NotImplementedError


class TopicCalls(Calls):
    """The number is that of its queues."""

    def create(self, name: str, number: int) -> Awaitable[Any]:
        return self.admin.create_topic(name, queues=number)

    def update(self, name: str, number: int) -> Awaitable[Any]:
        return self.admin.update_topic(name, read_queues=number, write_queues=number, hide_messages=True)

    def delete(self, name: str) -> Awaitable[Any]:
        return self.admin.delete_topic(name)


class GroupCalls(Calls):
    """The number is that of the attempts."""

    def create(self, name: str, number: int) -> Awaitable[Any]:
        return self.admin.create_group(name, max_attempts=number)

    def update(self, name: str, number: int) -> Awaitable[Any]:
        return self.admin.update_group(name, max_attempts=number)

    def delete(self, name: str) -> Awaitable[Any]:
        return self.admin.delete_group(name)
