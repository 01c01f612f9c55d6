"""A client that resets a consumer group, which does nothing else, and knows where it may stand.

Each queue has a task of its own. A reset that was answered OK is where the group stands, until the next one;
one whose outcome is not known may count, or not, until the next that is answered: what a leader has answered
OK is not undone by what another one had answered "try again" before.
"""

import asyncio
import random

from sim.network import SimNetwork
from sim.nodes import LoopNode
from sim.process import SimProcess
from support.history.histories import outcome_of
from whimbrel.client import Admin
from whimbrel.client.options import ClientOptions
from whimbrel.client.retry import RetryPolicy
from whimbrel.errors import AlreadyExists, WhimbrelError

__all__ = ["AUDITORS", "ResetClient"]

AUDITORS = "auditors"
CLIENT_S = 0.4  # of a call: it is tried again and again at a leader that reaches no majority
PAUSE_S, AGAIN_S = (2.0, 7.0), (0.02, 0.1)  # after an answer, and without one
BEGIN_S = 3.0  # there are messages then
OFFSETS = 6  # which each queue has soon


class ResetClient(LoopNode):
    """Resets the group to drawn offsets.

    Attributes:
        may: by queue id, where the group may stand; -1: nowhere yet.
        answered: how many resets were answered OK.
    """

    def __init__(
        self, process: SimProcess, network: SimNetwork, *, endpoint: str, topic: str, until: float
    ) -> None:
        super().__init__(process, network)
        self.endpoint, self.topic, self.until = endpoint, topic, until
        self.rng = random.Random(process.rng.getrandbits(64))
        self.may: dict[int, set[int]] = {queue_id: {-1} for queue_id in range(2)}
        self.answered = 0
        self.launch(self.main)

    async def main(self) -> None:
        """Reset each queue again and again."""
        options = ClientOptions(
            retry=RetryPolicy(attempts_max=1), request_timeout_s=CLIENT_S, route_ttl_s=2.0
        )
        await asyncio.sleep(BEGIN_S)
        async with Admin(self.endpoint, options=options) as admin:
            await self.create_group(admin)
            await asyncio.gather(*(self.live(admin, queue_id) for queue_id in self.may))

    async def create_group(self, admin: Admin) -> None:
        """Make the group, at any rate."""
        while True:
            try:
                await admin.create_group(AUDITORS)
            except AlreadyExists:
                return
            except WhimbrelError:
                await asyncio.sleep(self.rng.uniform(*AGAIN_S))
            else:
                return

    async def live(self, admin: Admin, queue_id: int) -> None:
        """Reset a queue again and again."""
        may = self.may[queue_id]
        while self.process.scheduler.now < self.until:
            before, wanted = set(may), self.rng.randrange(OFFSETS)
            may.add(wanted)
            try:
                await admin.reset_offsets(AUDITORS, self.topic, to=wanted, queue_id=queue_id)
            except WhimbrelError as error:
                if outcome_of(error) == "none":
                    may.intersection_update(before)
                await asyncio.sleep(self.rng.uniform(*AGAIN_S))
            else:
                may.intersection_update({wanted})
                self.answered += 1
                await asyncio.sleep(self.rng.uniform(*PAUSE_S))
