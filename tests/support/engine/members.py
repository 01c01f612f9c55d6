"""Brokers of one group in this process, each with its front, and with its replicator in a thread beside it.

    with beside(root, "master", clock) as own           the replicator of a store
    await follow(slave, other, master, own)             starts a slave's broker
    await synced(master, slave)                         until it has all that its master has
    await promote(slave, other)                         it becomes the master

    async with elected(root, clock) as group            three members that elect their leader
    await group.leader()                                until one leads; its front
    await group.end(lines)                              of a member, at once

Everything between them is real: the shared page, the bell, sockets, the stores, the nameserver that keeps the
group's record. Only the clocks are a test's; and where roles are configured, what a nameserver would say.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

from support.engine.in_process import InProcess
from support.engine.lines import SMALL, Lines
from support.engine.turned import TurnedClock
from support.waiting import until_async
from whimbrel.broker.broker import Broker
from whimbrel.broker.options import BrokerOptions
from whimbrel.lane import Lane
from whimbrel.machine import FILES
from whimbrel.nameserver.options import NameserverOptions
from whimbrel.nameserver.program import groups_of
from whimbrel.nameserver.registry import Registry
from whimbrel.nameserver.registry_service import RegistryService
from whimbrel.nameserver.resolver import Resolver
from whimbrel.nameserver.routes_service import RoutesService
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.program import begin
from whimbrel.replicator.replicator import Replicator
from whimbrel.replicator.roles import MasterRole, SlaveRole
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.serving import serve
from whimbrel.store.locking import is_locked

__all__ = ["Beside", "Group", "beside", "elected", "follow", "promote", "synced"]

JOIN_S = 10.0
ELECTION_S = 30.0
MEMBERS = (1, 2, 3)


class Beside:
    """A replicator that runs."""

    def __init__(
        self, root: Path, role: Literal["master", "slave", "elected"], clock: TurnedClock, number: int = 0
    ) -> None:
        (root / "whimbrel").mkdir(parents=True, exist_ok=True)
        self.root, self.loop = root, Loop(root, clock)
        self.options = ReplicatorOptions(
            store=str(root), port=0, role=role, id=number, commitlog_file_size=SMALL["commitlog_file_size"]
        )
        self.replicator = Replicator(self.loop, self.options, clock=clock.monotonic)
        begin(self.replicator, self.loop, self.options, clock=clock.monotonic)
        self.turns, self.going = threading.Lock(), threading.Event()
        self.going.set()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Work, but while it hangs."""
        while not self.loop.stopping:
            self.going.wait()
            with self.turns:
                if self.going.is_set():
                    self.replicator.turn()

    def hang(self) -> None:
        """Have it do nothing, as a process that is stopped; its connections stay."""
        self.going.clear()
        self.loop.wake()
        with self.turns:
            pass  # the last turn is over

    def go_on(self) -> None:
        """Have it work again."""
        self.going.set()

    def switch(self, role: Literal["master", "slave"]) -> None:
        """Have it take another role."""
        self.replicator.switch((MasterRole if role == "master" else SlaveRole)(self.loop, self.options))

    def close(self) -> None:
        """End it; harmless a second time."""
        if self.loop.stopping:
            return
        self.loop.stop()
        self.going.set()
        self.loop.wake()
        self.thread.join(JOIN_S)
        with self.replicator:
            pass
        self.loop.close()


@contextmanager
def beside(root: Path, role: Literal["master", "slave"], clock: TurnedClock) -> Iterator[Beside]:
    """Run a replicator."""
    running = Beside(root, role, clock)
    try:
        yield running
    finally:
        running.close()


async def start(lines: Lines, **settings: Any) -> None:
    """Start a broker, with settings that `in_process` has not; nothing is waited for."""
    options: dict[str, Any] = {
        "store": str(lines.root), "name": "broker-a", "host": "127.0.0.1", "port": 0, "nameservers": (),
        "flush": "async", **SMALL, **settings, **lines.options,
    }  # fmt: skip
    broker = Broker(BrokerOptions(**options), machine=lines.clock)
    lines.running = AsyncExitStack()
    lines.running.push_async_callback(broker.stop)
    await broker.start()
    lines.broker = InProcess(broker)


# Where roles are configured


async def follow(slave: Lines, own: Beside, master: Lines, other: Beside) -> None:
    """Start the broker of a slave that follows a master, as a nameserver would tell them to."""
    await until_async(lambda: other.loop.page.ha_port, what="the master's replicator")
    own.loop.page.master_ha = f"127.0.0.1:{other.loop.page.ha_port}"
    await start(slave, role="slave", id=1)
    slave.role.master_address.grpc = master.broker.server.address


async def synced(master: Lines, slave: Lines) -> None:
    """Wait until a slave has its master's log, tables and leases."""

    def same() -> bool:
        one, other = master.role, slave.role
        return (
            one.store.written == other.store.dispatched
            and other.context.topics.rows.keys() == one.context.topics.rows.keys()
            and other.context.groups.rows.keys() >= one.context.groups.rows.keys()
            and leases_of(one) == leases_of(other)
        )

    await until_async(same, what="a slave that has all")


def leases_of(role: Any) -> list[bytes]:
    """Return the lease state of a role."""
    return sorted(role.consumption.lease_store.snapshot())


async def promote(slave: Lines, own: Beside) -> None:
    """Make a slave the master."""
    own.switch("master")
    await until_async(lambda: not is_locked(own.root), what="the log that the replicator gives up")
    await slave.broker.broker.switch("master", 0)
    await until_async(lambda: not slave.role.appender.refusal, what="a master that takes writes")


# Where the group elects its leader


class Group:
    """Members by their ids, with their replicators."""

    def __init__(self, members: dict[int, tuple[Lines, Beside]]) -> None:
        self.members = members

    @property
    def fronts(self) -> list[Lines]:
        """The fronts of those that run."""
        return [lines for lines, _ in self.members.values() if lines.running is not None]

    async def leader(self) -> Lines:
        """Wait until one leads, and takes writes; return its front."""

        def leads(lines: Lines) -> bool:
            role = lines.role
            return role is not None and role.NAME == "master" and not role.appender.refusal

        def found() -> Lines | None:
            return next(filter(leads, self.fronts), None)

        one: Lines = await until_async(found, within_s=ELECTION_S, what="a leader")
        return one

    async def followers(self) -> list[Lines]:
        """Wait until all others follow; return their fronts."""
        leader = await self.leader()
        others = [lines for lines in self.fronts if lines is not leader]

        def follow() -> bool:
            return all(lines.role is not None and lines.role.NAME == "slave" for lines in others)

        await until_async(follow, what="followers")
        return others

    def own(self, lines: Lines) -> Beside:
        """Return the replicator of a member."""
        return next(own for one, own in self.members.values() if one is lines)

    async def end(self, lines: Lines) -> None:
        """End a member, its broker and its replicator."""
        self.own(lines).close()
        await lines.stop()


@asynccontextmanager
async def nameserver(root: Path) -> AsyncIterator[str]:
    """Serve a nameserver that keeps the records of groups; return its address."""
    resolver, now = Resolver(), time.monotonic

    def own() -> frozenset[str]:
        return frozenset(("127.0.0.1",))

    options = NameserverOptions(keeps_groups=str(root / "groups.json"))
    registry = Registry(lease_s=8, renew_s=1, started=now(), expected_brokers=len(MEMBERS))
    routes = RoutesService(registry, own=own, resolver=resolver, now=now, route_members=options.route_members)
    brokers = RegistryService(
        registry, own=own, resolver=resolver, now=now, wall=time.time, sessions=routes.sessions
    )
    groups = groups_of(options, FILES)
    services = [routes.service, brokers.service, groups.service]
    server = await serve(services, host="127.0.0.1", port=0, tls=TlsSettings(certificate="", key=""))
    try:
        yield server.address
    finally:
        await server.stop()
        groups.close()


@asynccontextmanager
async def elected(root: Path, clock: TurnedClock) -> AsyncIterator[Group]:
    """Start a group that elects its leader, and end what is left of it."""
    clock.lane = Lane("off")
    async with nameserver(root) as address, AsyncExitStack() as stack:
        members: dict[int, tuple[Lines, Beside]] = {}
        for number in MEMBERS:
            lines = Lines(root / f"store-{number}", clock)
            own = Beside(lines.root, "elected", clock, number)
            stack.callback(own.close)
            await stack.enter_async_context(lines.connected())
            members[number] = lines, own
        settings: dict[str, Any] = {
            "role": "elected", "nameservers": (address,), "coordinator": "nameserver",
            "replication": "majority", "voters": tuple(map(str, MEMBERS)), "slave_timeout_ms": 3_000,
        }  # fmt: skip
        await asyncio.gather(*(start(lines, id=number, **settings) for number, (lines, _) in members.items()))
        yield Group(members)
