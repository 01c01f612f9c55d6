"""What RocketMQ 4's clients do that others do not: send by delay levels, commit positions that they own.

The client has no protocol: it calls what stands behind it at the master, in the master's process.

    levels     messages wait in levels 1 to 3 (1, 5, 10 s). In the end each of them that was answered, and is
               in its level's queue at whoever is the master then, was delivered
    late       a group has a member, which each HEARTBEAT_S tells the master that it lives, and commits. Some
               commits come late, with a position further back: they move nothing, whoever is the master
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sim.network import SimNetwork
from sim.nodes import BrokerNode, LoopNode
from sim.plan import QUIET_S, Fault, Plan
from sim.positions import role_of
from sim.process import SimProcess
from sim.upkeep import Upkeep
from support.store.stores import make_draft
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.produce.level_draft import levelled
from whimbrel.broker.roles.master import MasterRole
from whimbrel.errors import WhimbrelError
from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.store.codec import decode_record

if TYPE_CHECKING:
    from sim.cluster import Cluster

__all__ = ["ClassicClient", "levels_plan"]

LEVELS_TOPIC, GROUP = "levels", "classic"
LEVELS = 3
PAUSE_S = (0.05, 0.4)
BEGIN_S, LAST_S = 2.0, QUIET_S  # of sends
HEARTBEAT_S = 30.0  # RocketMQ's
LATE = 0.2  # share of commits


@dataclass(slots=True)
class Levelled:
    """A message that waits in a level; `answered` is when it was answered OK."""

    sent: float
    answered: float = 0.0


class ClassicClient(LoopNode):
    """Sends and commits.

    Attributes:
        sends: by message id.
        trouble: what was wrong with a commit.
    """

    def __init__(self, process: SimProcess, network: SimNetwork, cluster: "Cluster", topic: str) -> None:
        super().__init__(process, network)
        self.cluster, self.topic = cluster, topic
        self.rng = random.Random(process.rng.getrandbits(64))
        self.sends: dict[str, Levelled] = {}
        self.heard: list[MasterRole] = []  # that know the member
        self.heartbeat_at = 0.0
        self.commits = 0
        self.launch(self.main)

    async def main(self) -> None:
        """Send and commit until the faults are over."""
        scheduler = self.process.scheduler
        await asyncio.sleep(BEGIN_S)
        while scheduler.now < LAST_S:
            found = self.master()
            if found is not None:
                node, role = found
                node.loop.call_soon(self.send, role)
                node.loop.call_soon(self.commit, role)
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))

    def master(self) -> tuple[BrokerNode, MasterRole] | None:
        """Return the master that takes writes."""
        for member in self.cluster.members.values():
            role = role_of(member)
            if isinstance(role, MasterRole) and not role.not_serving() and member.broker is not None:
                return member.broker, role
        return None

    def send(self, role: MasterRole) -> None:
        """Send a message by a level; in the master's process."""
        key = f"level-{len(self.sends)}"
        one = self.sends[key] = Levelled(self.process.scheduler.now)
        draft = make_draft(len(self.sends), topic=LEVELS_TOPIC, delay=str(self.rng.randint(1, LEVELS)))
        draft.properties += f"\x02UNIQ_KEY\x01{key}\x02".encode()
        draft.keys = (key,)
        internal = InternalAppender(role.context.topics, role.appender, store_host=lambda: bytes(8))

        def done(error: WhimbrelError | None) -> None:
            if error is None:
                one.answered = self.process.scheduler.now

        internal.append(levelled(draft, LEVELS), done)

    def commit(self, role: MasterRole) -> None:
        """Commit a position; in the master's process."""
        now = self.process.scheduler.now
        if now >= self.heartbeat_at:
            self.heartbeat_at = now + HEARTBEAT_S
            self.heard.append(role)
        place = GROUP, self.topic, 0
        before = role.client_positions.get(*place)
        _, high = role.store.queue_range(*place[1:])
        late = self.rng.random() < LATE
        offset = max((before or 0) - self.rng.randint(1, 5), 0) if late else high
        try:
            role.client_positions.commit(*place, offset, owned=any(one is role for one in self.heard))
        except WhimbrelError:
            return
        self.commits += 1
        after = role.client_positions.get(*place)
        if before is not None and after is not None and after < before:
            raise AssertionError(f"a late commit of {offset} has moved {GROUP} from {before} to {after}")

    def finish(self, fail: Callable[[str, str], object]) -> None:
        """Check that what waited in levels is there."""
        found = self.master()
        if found is None:
            return
        store, there = found[1].store, set()
        for queue_id in range(8):
            low, high = store.queue_range(LEVELS_TOPIC, queue_id)
            for place, size, _ in store.queue_units(LEVELS_TOPIC, queue_id, low, high - low):
                there.add(decode_record(store.read(place, size)).properties.get("UNIQ_KEY", ""))
        kept = set()
        for queue_id in range(LEVELS):
            low, high = store.queue_range(SCHEDULE_TOPIC, queue_id)
            for place, size, _ in store.queue_units(SCHEDULE_TOPIC, queue_id, low, high - low):
                kept.add(decode_record(store.read(place, size)).properties.get("UNIQ_KEY", ""))
        lost = sorted(kept & {key for key, one in self.sends.items() if one.answered} - there)
        if lost:
            fail("levels", f"{len(lost)} messages wait in levels and were never delivered: {lost[0]}")


def levels_plan(seed: int) -> Plan:
    """Draw that a slave hears how far the levels are, has not that log, and becomes the master (Q10)."""
    rng = random.Random(f"levels {seed}")
    plan = Plan.draw(seed)
    at = rng.uniform(8.5, 10.0)  # positions are written at 10.7, and told 10 s later at the latest
    faults = (
        Fault(at, "pause", "b1.replicator", for_s=16.0),
        Fault(rng.uniform(21.5, 23.0), "promote", "b0", for_s=rng.uniform(0.5, 3.0), amount=5.0),
    )
    return replace(
        plan,
        groups=1,
        slaves=1,
        flush="async",
        replication="async",
        kinds=frozenset(),
        upkeep=Upkeep(),
        classic=True,
        faults=faults,
    )
