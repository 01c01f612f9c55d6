"""Positions of consumer groups: a client that commits them, and what must hold of them.

back      a position of a member never goes back: not in a process, not over a kill -9. It may where power
          was lost: by what was committed less than FLUSH_S before, in which the broker ran (so much is not
          on the disk yet); where the log lost its tail with the power, to the end of the queue, in a new
          epoch; and with its topic, when that is deleted
answered  a commit that the master has answered OK counts from then on, with the same exception
beyond    a position on a master that takes writes is not beyond its queue's end
ahead     a slave's position is not ahead of its master's, unless it served while the master was away:
          then the master has it within AHEAD_S of being back; in the end it never is
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakKeyDictionary

from sim.network import SimNetwork
from sim.nodes import BrokerNode, LoopNode
from sim.process import SimProcess
from whimbrel.broker.consume.positions import Positions
from whimbrel.broker.roles.master import MasterRole
from whimbrel.broker.roles.role import Role
from whimbrel.client import PullConsumer
from whimbrel.client.options import ConsumerOptions
from whimbrel.client.retry import RetryPolicy
from whimbrel.errors import IllegalOffset, WhimbrelError
from whimbrel.model.route import Queue

if TYPE_CHECKING:
    from sim.cluster import Cluster, Member

__all__ = ["LEDGER", "LedgerClient", "PositionChecks"]

LEDGER = "ledger"
FLUSH_S = 1.5  # the journal is synced every 0.5 s
AHEAD_S = 25.0  # longer than any cut
SNAPSHOTS_MAX = 64
BEYOND = 1000  # more messages than come to a queue while a call is under way

Key = tuple[str, str, int]  # group, topic, queue id
Standing = tuple[int, int]  # epoch, committed offset


class LedgerClient(LoopNode):
    """Reads queues by offset and commits how far it has come; some commits come late, or ask for too much.

    Attributes:
        master: the host of the master; "" where any member may have been asked, and the leader answers.
        next: by queue id, the next offset to read.
        answered: by queue id, when the master answered which commits OK: times and offsets.
    """

    def __init__(
        self, process: SimProcess, network: SimNetwork, *, endpoint: str, topic: str, master: str
    ) -> None:
        super().__init__(process, network)
        self.endpoint, self.topic, self.master = endpoint, topic, master
        self.rng = random.Random(process.rng.getrandbits(64))
        self.next: dict[int, int] = {}
        self.answered: dict[int, list[tuple[float, int]]] = {}
        self.launch(self.main)

    async def main(self) -> None:
        """Read and commit."""
        options = ConsumerOptions(retry=RetryPolicy(attempts_max=1), request_timeout_s=3.0, route_ttl_s=5.0)
        async with PullConsumer(self.endpoint, LEDGER, options=options) as puller:
            while True:
                try:
                    for queue in await puller.queues(self.topic):
                        await self.read(puller, queue)
                except WhimbrelError:
                    pass
                await asyncio.sleep(self.rng.uniform(0.3, 1.5))

    async def read(self, puller: PullConsumer, queue: Queue) -> None:
        """Read what a queue has, and commit."""
        at = self.next.get(queue.queue_id, 0)
        try:
            result = await puller.pull(queue, at)
        except IllegalOffset:
            at = max(at, await puller.offset(queue, "earliest"))
        else:
            at = max([at, *(message.queue_offset + 1 for message in result.messages)])
        self.next[queue.queue_id] = at
        draw = self.rng.random()
        if draw < 0.1:  # a call that comes late
            await self.commit(puller, queue, max(at - self.rng.randint(1, 5), 0))
        elif draw < 0.2:
            try:
                await self.commit(puller, queue, at + BEYOND)
            except IllegalOffset:
                return
        else:
            await self.commit(puller, queue, at)

    async def commit(self, puller: PullConsumer, queue: Queue, offset: int) -> None:
        """Commit, and note that it was answered."""
        await puller.commit(queue, offset)
        if self.master in ("", queue.endpoints[0].host):  # else a slave acts for it
            now = self.process.scheduler.now
            self.answered.setdefault(queue.queue_id, []).append((now, offset))


forgotten: WeakKeyDictionary[Positions, dict[Key, int]] = WeakKeyDictionary()
forget_beyond_log = Positions.forget_beyond_log


def noting(positions: Positions) -> int:
    """Forget what the log does not hold, and note where the queues ended."""
    forgotten[positions] = {
        (state.group, state.topic, state.queue_id): end for state, end in positions.beyond_log()
    }
    return forget_beyond_log(positions)


Positions.forget_beyond_log = noting  # type: ignore[assignment, method-assign]


@dataclass
class Watched:
    """What is known of a member's positions.

    Attributes:
        bound: what it must have at least.
        snapshots: how long the broker had run, when it was, and what it had then.
        ran_s: how long a broker has run here that was not paused.
        ran: whether it ran at the last look.
        at: of the last look.
        losses: of its disk.
    """

    bound: dict[Key, Standing] = field(default_factory=dict)
    snapshots: deque[tuple[float, float, dict[Key, Standing]]] = field(
        default_factory=lambda: deque(maxlen=SNAPSHOTS_MAX)
    )
    ran_s: float = 0.0
    ran: bool = False
    at: float = 0.0
    losses: int = 0


class PositionChecks:
    """Looks at the positions of all members.

    Attributes:
        deleted: topics that are deleted, with their positions.
        watched: by name of a member and number of its disk.
        ahead_since: by slave and position, when it was first seen ahead.
        looks: how often a master that took writes was compared.
    """

    def __init__(self, cluster: "Cluster", deleted: set[str], fail: Callable[[str, str], NoReturn]) -> None:
        self.cluster, self.deleted, self.fail = cluster, deleted, fail
        self.watched: dict[tuple[str, int], Watched] = {}
        self.ahead_since: dict[tuple[str, Key], float] = {}
        self.looks = 0

    def look(self) -> None:
        """Check all members."""
        found = {member.name: self.see(member) for member in self.cluster.members.values()}
        master, *slaves = self.cluster.members.values()
        ours, role = found[master.name], role_of(master)
        if ours is None or not isinstance(role, MasterRole) or role.appender.refusal:
            self.ahead_since.clear()
            return
        self.looks += 1
        self.check_ends(role, ours)
        self.check_answered(ours)
        for slave in slaves:
            theirs = found[slave.name]
            if theirs is not None:
                self.check_ahead(slave, theirs, ours)

    def see(self, member: "Member") -> dict[Key, Standing] | None:
        """Return a member's positions, after comparing them with what they were; None while it has none."""
        now = self.cluster.scheduler.now
        watched = self.watched.setdefault((member.name, member.lives), Watched(at=now))
        if watched.losses != member.disk.losses:
            watched.losses = member.disk.losses
            self.power_lost(member, watched)
        role = role_of(member)
        runs = role is not None and member.broker is not None and not member.broker.process.paused
        if runs and watched.ran:
            watched.ran_s += now - watched.at
        watched.ran, watched.at = runs, now
        if role is None:
            return None
        for key, end in forgotten.pop(role.consumption.positions, {}).items():
            if key in watched.bound:
                epoch, committed = watched.bound[key]
                watched.bound[key] = epoch, min(committed, end)
        positions = {
            (group, topic, queue_id): (epoch, committed)
            for group, topic, (queue_id, epoch, committed) in role.consumption.table.positions()
        }
        self.check_back(member, watched, positions)
        watched.bound = positions
        if runs:
            watched.snapshots.append((watched.ran_s, now, positions))
        return positions

    def power_lost(self, member: "Member", watched: Watched) -> None:
        """Take what was on the disk for what must be there."""
        durable = [one for one in watched.snapshots if watched.ran_s - one[0] >= FLUSH_S]
        _, at, watched.bound = durable[-1] if durable else (0.0, 0.0, {})
        watched.snapshots.clear()
        watched.ran = False
        ledger = self.cluster.ledger
        if ledger is not None and not member.number:
            for queue_id, answered in ledger.answered.items():
                ledger.answered[queue_id] = [one for one in answered if one[0] < at]

    def check_back(self, member: "Member", watched: Watched, positions: dict[Key, Standing]) -> None:
        """No position goes back."""
        for key, (epoch, committed) in watched.bound.items():
            if committed < 0 or key[1] in self.deleted:
                continue
            now_epoch, now_committed = positions.get(key, (0, -1))
            if now_epoch > epoch and self.cluster.history.losses:
                self.forget(key, now_committed)
                continue
            if (now_epoch, now_committed) < (epoch, committed) or now_committed < committed:
                self.fail(
                    "back",
                    f"{member.name}: {name(key)} was at {committed} in epoch {epoch}, "
                    f"and is at {now_committed} in epoch {now_epoch}",
                )

    def forget(self, key: Key, end: int) -> None:
        """Commits beyond the end of a queue that has lost its tail do not count."""
        ledger = self.cluster.ledger
        if ledger is not None and key[0] == LEDGER:
            ledger.answered[key[2]] = [one for one in ledger.answered.get(key[2], ()) if one[1] <= end]

    def check_ends(self, role: MasterRole, positions: dict[Key, Standing]) -> None:
        """No position lies beyond its queue's end."""
        for key, (_, committed) in positions.items():
            end = role.store.queue_range(key[1], key[2])[1]
            if committed > end:
                self.fail("beyond", f"{name(key)} is at {committed}, the queue ends at {end}")

    def check_answered(self, positions: dict[Key, Standing]) -> None:
        """What was answered OK counts."""
        ledger = self.cluster.ledger
        if ledger is None:
            return
        for queue_id, answered in ledger.answered.items():
            offset = max((offset for _, offset in answered), default=-1)
            key = LEDGER, ledger.topic, queue_id
            if positions.get(key, (0, -1))[1] < offset:
                self.fail("answered", f"{name(key)}: {offset} was committed, it is at {positions.get(key)}")

    def check_ahead(self, slave: "Member", theirs: dict[Key, Standing], ours: dict[Key, Standing]) -> None:
        """A slave does not stay ahead of its master."""
        now = self.cluster.scheduler.now
        for key, standing in theirs.items():
            if standing <= ours.get(key, (0, -1)):
                self.ahead_since.pop((slave.name, key), None)
                continue
            since = self.ahead_since.setdefault((slave.name, key), now)
            if now - since > AHEAD_S:
                self.fail(
                    "ahead", f"{slave.name}: {name(key)} is at {standing}, its master at {ours.get(key)}"
                )

    def finish(self) -> None:
        """In the end slaves are not ahead."""
        self.look()
        for slave, key in self.ahead_since:
            self.fail("ahead", f"in the end {slave} is ahead of its master on {name(key)}")


def role_of(member: "Member") -> Role | None:
    """Return the role of a member's broker while it serves."""
    node: BrokerNode | None = member.broker
    if node is None or node.process.dead or node.broker is None or not member.up:
        return None
    role = node.broker.role
    return role if role is not None and role.serving else None


def name(key: Key) -> str:
    """Return a position's name for people."""
    return f"{key[0]} on {key[1]}/{key[2]}"
