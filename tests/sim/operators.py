"""An operator of a group that elects its master: the commands of `whimbrel replication`, at drawn times.

The commands go through the client library, as the command line's do, from a host of their own; each is given
again and again until it is done, or for `PATIENCE_S`. Several may be under way at once, and faults come upon
them. What the command line shows of members is read from their pages.

    voters           the target says who votes from then on: `all` members, the `first` ones, ids, or `grow`,
                     `shrink`, `swap`: one more, one less, another one instead of a follower. Where the leader
                     is none of them, another one leads first
    switchover       to the target; without one to whoever is furthest
    reinit           of the target: its store is emptied in its running processes
    pause_elections  for a while
    accept_loss      whoever can lead without those that do not answer, does; then all are named voters again

By itself the operator does what docs/failover.md asks for: it names a member again whose disk was replaced,
empties the store of one that says that it can't follow, and in the end allows elections and names those that
voted at first.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from sim.network import SimNetwork
from sim.nodes import LoopNode
from sim.plan import QUIET_S, Fault
from sim.process import SimProcess
from whimbrel.client import Admin
from whimbrel.client.options import ClientOptions
from whimbrel.client.retry import RetryPolicy
from whimbrel.errors import NotReady, WhimbrelError

if TYPE_CHECKING:
    from sim.cluster import Cluster, Member
    from sim.elected import Elections

__all__ = ["OPERATIONS", "OperatorClient", "Operators"]

OPERATIONS: Final = ("voters", "switchover", "reinit", "pause_elections", "accept_loss")
PATIENCE_S = 20.0
TIDY_S = (0.0, 3.0)  # after all is healed
LAST_S = QUIET_S + 12.0  # no command is given later
CALL_S = 4.0
AGAIN_S = (0.2, 1.0)
RETURN_S = (0.5, 6.0)  # from a host's return with another disk to its being named
TEND_S = 1.0
STRANDED = "nothing is cut"  # what a replicator says that can't follow: its log has what was given up


class OperatorClient(LoopNode):
    """Gives commands.

    Attributes:
        naming: sets of ids that are being named voters.
        emptying: ids of members whose stores are being emptied.
        done: how many commands of each kind were answered.
    """

    def __init__(
        self,
        process: SimProcess,
        network: SimNetwork,
        *,
        endpoint: str,
        group: str,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(process, network)
        self.endpoint, self.group, self.note = endpoint, group, note
        self.rng = random.Random(process.rng.getrandbits(64))
        self.asked: asyncio.Queue[Callable[[Admin], Awaitable[object]]] = asyncio.Queue()
        self.naming: list[frozenset[int]] = []
        self.emptying: list[int] = []
        self.done: dict[str, int] = {}
        self.launch(self.main)

    async def main(self) -> None:
        """Give commands, each beside the others."""
        options = ClientOptions(retry=RetryPolicy(attempts_max=1), request_timeout_s=CALL_S, route_ttl_s=1.0)
        async with Admin(self.endpoint, options=options) as admin, asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self.carry_out(await self.asked.get(), admin))

    async def carry_out(self, command: Callable[[Admin], Awaitable[object]], admin: Admin) -> None:
        """Run a command to its end."""
        await command(admin)

    def ask(self, command: Callable[[Admin], Awaitable[object]]) -> None:
        """Have a command given."""
        with self.process.running():
            self.loop.call_soon(self.asked.put_nowait, command)

    async def until_done(
        self, what: str, call: Callable[[], Awaitable[bool]], until: float | None = None
    ) -> bool:
        """Call until it is done, or time is over; return which."""
        scheduler = self.process.scheduler
        end = min(scheduler.now + PATIENCE_S, LAST_S) if until is None else until
        said = ""
        while scheduler.now < end:
            try:
                if await call():
                    self.done[what] = self.done.get(what, 0) + 1
                    return True
            except WhimbrelError as error:
                said = str(error)
            await asyncio.sleep(self.rng.uniform(*AGAIN_S))
        self.note(f"the operator gives {what} up: {said}")
        return False

    # Commands

    async def name_voters(self, admin: Admin, ids: frozenset[int]) -> None:
        """Have these members vote."""

        async def call() -> bool:
            try:
                await admin.set_voters(self.group, ids)
            except NotReady as error:
                if "have another one lead first" in str(error):
                    await admin.switchover(self.group, self.rng.choice(sorted(ids)))
                raise
            return True

        self.naming.append(ids)
        try:
            await self.until_done("voters", call)
        finally:
            self.naming.remove(ids)

    async def switch_over(self, admin: Admin, member: int) -> None:
        """Have another member lead."""

        async def call() -> bool:
            await admin.switchover(self.group, member)
            return True

        await self.until_done("switchover", call)

    async def reinit(self, admin: Admin, member: int) -> None:
        """Have a member's store emptied."""

        async def call() -> bool:
            await admin.reinit(self.group, member)
            return True

        self.emptying.append(member)
        try:
            await self.until_done("reinit", call)
        finally:
            self.emptying.remove(member)

    async def pause_elections(self, admin: Admin, for_s: float) -> None:
        """Have nobody stand for a while."""
        if await self.set_paused(admin, paused=True):
            await asyncio.sleep(for_s)
            await self.set_paused(admin, paused=False)

    async def set_paused(self, admin: Admin, *, paused: bool) -> bool:
        """Pause or resume elections."""

        async def call() -> bool:
            await admin.pause_elections(self.group, paused=paused)
            return True

        return await self.until_done("pause" if paused else "resume", call)

    async def accept_loss(self, admin: Admin, until: float) -> None:
        """Have somebody lead without those that do not answer, whatever is lost by that."""

        async def call() -> bool:
            for broker in await admin.members(self.group):
                plan = await admin.failover(self.group, broker.member_id)
                if not plan.refusal:
                    await admin.failover(
                        self.group, broker.member_id, accept_loss=True, revision=plan.revision
                    )
                    return True
            return False

        await self.until_done("accept_loss", call, until)


class Operators:
    """What operators see, and have done.

    Attributes:
        client: who gives the commands.
        stranded: how many members were found that could not follow what goes on without their log.
    """

    def __init__(self, cluster: "Cluster", elections: "Elections", endpoint: str) -> None:
        self.cluster, self.elections = cluster, elections
        cluster.addresses["operator"] = address = "10.0.2.9"
        self.client = OperatorClient(
            cluster.process("operator", address),
            cluster.network,
            endpoint=endpoint,
            group=elections.group[0].group,
            note=cluster.note,
        )
        cluster.nodes.append(self.client)
        self.first = frozenset(range(1, 2 + cluster.plan.slaves))
        self.said: dict[str, int] = {}  # by member, looks at which it said that it can't follow
        self.stranded = 0
        if cluster.plan.loses:
            cluster.scheduler.later(TEND_S, self.tend)

    @property
    def voters(self) -> frozenset[int]:
        """Ids of those that vote, as the record has them."""
        record = self.elections.record
        return self.first if record is None else frozenset(member for member, _ in record.voters)

    def give(self, fault: Fault) -> None:
        """Give a command; its target has names of hosts."""
        client, number = self.client, self.number(fault.target)
        match fault.kind:
            case "voters":
                ids = self.chosen(fault.target)
                self.cluster.note(f"members {sorted(ids)} are to vote")
                client.ask(lambda admin: client.name_voters(admin, ids))
            case "switchover":
                client.ask(lambda admin: client.switch_over(admin, number))
            case "reinit":
                client.ask(lambda admin: client.reinit(admin, number))
            case "pause_elections":
                client.ask(lambda admin: client.pause_elections(admin, fault.for_s))
            case "accept_loss":
                until = self.cluster.scheduler.now + fault.for_s
                client.ask(lambda admin: self.recover(admin, until))

    def number(self, name: str) -> int:
        """Return a host's member id; 0: it is none."""
        member = self.cluster.members.get(name)
        return 0 if member is None else member.number

    def chosen(self, which: str) -> frozenset[int]:
        """Return who is to vote."""
        rng, now = self.cluster.scheduler.rng, self.voters
        every = frozenset(member.number for member in self.elections.group)
        others = sorted(every - now)
        followers = sorted(now - {self.elections.leader().number})
        if which == "all":
            return every
        if which == "first":
            return self.first
        if which[0].isdigit():
            return frozenset(map(int, which.split(",")))
        if which == "shrink" and len(now) > 2:
            return now - {rng.choice(followers)}
        if which == "swap" and others and followers:
            return now - {rng.choice(followers)} | {rng.choice(others)}
        return now | {rng.choice(others)} if others else now

    def name_again(self, *, after_s: float) -> None:
        """Name those that vote again, once a host is back with another disk."""
        ids, client = self.voters, self.client

        def name() -> None:
            if self.cluster.scheduler.now < LAST_S:
                client.ask(lambda admin: client.name_voters(admin, ids))

        delay = after_s + self.cluster.scheduler.rng.uniform(*RETURN_S)
        self.cluster.scheduler.later(delay, name)

    async def recover(self, admin: Admin, until: float) -> None:
        """Accept a loss, and have all vote again that did at first."""
        await self.client.accept_loss(admin, until)
        while self.cluster.scheduler.now < QUIET_S and self.voters != self.first:
            await self.client.name_voters(admin, self.first)

    def tidy(self) -> None:
        """Put the group in order: all faults are over."""
        client, rng = self.client, self.cluster.scheduler.rng

        async def resume_and_name(admin: Admin) -> None:
            await client.set_paused(admin, paused=False)
            await client.name_voters(admin, self.first)

        self.cluster.scheduler.later(rng.uniform(*TIDY_S), lambda: client.ask(resume_and_name))

    def tend(self) -> None:
        """Empty the stores of members that can't follow, since what they have was given up."""
        for member in self.elections.group:
            page = member.page if member.up else None
            said = page is not None and STRANDED in page.trouble
            self.said[member.name] = self.said.get(member.name, 0) + 1 if said else 0
            if self.said[member.name] == 2:
                self.empty(member)
        self.cluster.scheduler.later(TEND_S, self.tend)

    def empty(self, member: "Member") -> None:
        """Have a member's store emptied."""
        self.stranded += 1
        self.said[member.name] = -10
        self.cluster.note(f"{member.name} can't follow, and is to be emptied")
        self.client.ask(lambda admin: self.client.reinit(admin, member.number))
