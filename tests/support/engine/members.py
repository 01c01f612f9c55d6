"""Replicators, in threads beside brokers in this process, and a slave that follows a master so.

    with beside(root, "master", clock) as own           the replicator of a store
    await follow(slave, other, master, own)             starts a slave's broker
    await synced(master, slave)                         until it has all that its master has
    await promote(slave, other)                         it becomes the master

Everything between them is real: the shared page, the bell, sockets, the stores. Only the clocks are a test's,
and what a nameserver would tell is told by the test.
"""

import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from support.engine.in_process import InProcess
from support.engine.lines import SMALL, Lines
from support.engine.turned import TurnedClock
from support.waiting import until_async
from whimbrel.broker.broker import Broker
from whimbrel.broker.options import BrokerOptions
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.replicator import Replicator
from whimbrel.replicator.roles import MasterRole, SlaveRole
from whimbrel.store.locking import is_locked

__all__ = ["Beside", "beside", "follow", "promote", "synced"]

JOIN_S = 10.0


class Beside:
    """A replicator that runs."""

    def __init__(self, root: Path, role: Literal["master", "slave"], clock: TurnedClock) -> None:
        self.root, self.loop = root, Loop(root, clock)
        self.options = ReplicatorOptions(
            store=str(root), port=0, role=role, commitlog_file_size=SMALL["commitlog_file_size"]
        )
        self.replicator = Replicator(self.loop, self.options, clock=clock.monotonic)
        self.replicator.start(self.made(role))
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

    def made(self, role: str) -> MasterRole | SlaveRole:
        """Return a role."""
        return (MasterRole if role == "master" else SlaveRole)(self.loop, self.options)

    def follow(self, master: "Beside") -> None:
        """Dial a master's replicator."""
        self.loop.page.master_ha = f"127.0.0.1:{master.loop.page.ha_port}"

    def close(self) -> None:
        """End it."""
        self.go_on()
        self.loop.stop()
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


async def follow(slave: Lines, own: Beside, master: Lines, other: Beside) -> None:
    """Start the broker of a slave that follows a master, as a nameserver would tell them to."""
    await until_async(lambda: other.loop.page.ha_port, what="the master's replicator")
    own.follow(other)
    settings: dict[str, Any] = {
        "store": str(slave.root), "name": "broker-a", "host": "127.0.0.1", "port": 0, "nameservers": (),
        "flush": "async", "role": "slave", "id": 1,
    }  # fmt: skip
    broker = Broker(BrokerOptions(**(settings | SMALL | slave.options)), machine=slave.clock)
    slave.running = AsyncExitStack()
    slave.running.push_async_callback(broker.stop)
    await broker.start()
    slave.broker = InProcess(broker)
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
    own.replicator.switch(own.made("master"))
    await until_async(lambda: not is_locked(own.root), what="the log that the replicator gives up")
    await slave.broker.broker.switch("master", 0)
    await until_async(lambda: not slave.role.appender.refusal, what="a master that takes writes")
