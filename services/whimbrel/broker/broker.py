"""One broker process: a lock, a bell, a server, and a role that can be changed while they run.

    start    lock -> bell -> role (opens the store, serves) -> ready file
    switch   role leaves -> its calls are answered, others refused -> role gives the store back -> next role
    stop     role leaves -> server takes no new calls -> waiting calls answered -> role gives the store back

What a role is stands in `roles/role.py`; what it shares with the next one in `roles/context.py`.

**A switch.** The log has one writer. Going from master to slave, this broker gives the log back, and then
the replicator beside it may recover it; going from slave to master, the replicator gives it back first, and
`switch` fails with StoreError while it has not. Whoever recovers the log raises the epoch on the shared
page, by which the other side learns of it. Server, port, client sessions and tables stay. Sends that wait
are answered with 50402 (the message is stored here, and may not be in the log that counts), receives that
wait end empty, streams of readers and slaves end with NotReady. A switch that fails leaves the broker
without a role: calls are refused with NotReady until another switch succeeds. A stop ends a switch that
is under way; whoever asked for it gets NotReady.

**Where the group elects its leader** (`elections/`), a broker starts as a slave, and an `Elector` switches
it. Clients' calls are held during a switch, and go to the next role (`api/leader_calls.py`).
"""

import asyncio
import fcntl
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.broker.background import start_timer
from whimbrel.broker.elections.elector import Elector
from whimbrel.broker.elections.service import election_admin_service, election_service
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.remoting.service import suspended_remoting
from whimbrel.broker.roles.context import BrokerContext
from whimbrel.broker.roles.master import MasterRole
from whimbrel.broker.roles.role import Role
from whimbrel.broker.roles.slave import SlaveRole
from whimbrel.broker.roles.suspended import suspended
from whimbrel.errors import NotReady, ReplicaTimeout, StoreError, WhimbrelError
from whimbrel.machine import MACHINE, Files, Machine
from whimbrel.model.registration import BrokerRole
from whimbrel.probes import TURN_S, serve_health
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.handlers import RemotingService, Service
from whimbrel.rpc.server.limits import RunningServer
from whimbrel.rpc.server.serving import serve
from whimbrel.store.seat_file import check_no_member
from whimbrel.telemetry import write_ready_file
from whimbrel.wakeup import Bell, Doorbell

if TYPE_CHECKING:
    from whimbrel.http_port import HttpPort

__all__ = ["Broker"]

logger = logging.getLogger(__name__)

ROLES: dict[BrokerRole, type[MasterRole] | type[SlaveRole]] = {"master": MasterRole, "slave": SlaveRole}
SWITCHING = "this broker changes its role: try again"
STOPPING = "the broker is stopping"
HANDING_OVER = "another member is to lead: try again"
DRAIN_S, DRAIN_POLL_S = 1.0, 0.005  # for sends that wait when a leader resigns


class Broker:
    """A broker. `start`, then `switch` any number of times, then `stop`, all on a running loop.

    Attributes:
        role: what it is now; None before the start, and while or after a switch that has not succeeded.
        server: takes calls, from the first role's start to the stop.
    """

    def __init__(
        self,
        options: BrokerOptions,
        *,
        machine: Machine = MACHINE,
        doorbell: Callable[[Path, Bell], Doorbell] = Doorbell,
    ) -> None:
        """Prepare; nothing is opened.

        Args:
            machine, doorbell: where files, clocks, workers and the way to the replicator come from.
        """
        self.options, self.machine, self.doorbell = options, machine, doorbell
        self.root = Path(options.store)
        self.loop = asyncio.get_running_loop()
        self.role: Role | None = None
        self.services: list[Service] = []
        self.remoting: RemotingService | None = None  # of the role that serves, or served last
        self.undo = AsyncExitStack()
        self.context: BrokerContext | None = None
        self.health: HttpPort | None = None
        self.switching = asyncio.Lock()
        self.switch_task: asyncio.Task[None] | None = None
        self.elector: Elector | None = None
        self.stopped = False

    async def start(self) -> None:
        """Run the steps; a failure undoes those that were done.

        Raises:
            StoreError: another broker, or another process, uses the store, or it can't be opened.
            OSError: a port can't be had.
        """
        try:
            self.machine.files.make_directory(self.root / "whimbrel")
            self.undo.callback(lock_store(self.root, self.machine.files))
            bell = self.doorbell(self.root, "broker")
            self.undo.callback(bell.close)
            self.context = BrokerContext(
                self.options,
                bell=bell,
                machine=self.machine,
                serve=self.serve,
                release_client=self.release_client,
            )
            self.health = serve_health(
                self.context.probes, host=self.options.host, port=self.options.health_port
            )
            if self.health is not None:
                self.undo.callback(self.health.close)
            first = self.options
            if not first.elects:
                check_no_member(self.root, self.machine.files)
            if first.elects:
                self.elector = self.context.elector = Elector(
                    first,
                    bell=bell,
                    machine=self.machine,
                    switch=self.switch_elected,
                    drain=self.drain,
                    reopen=self.reopen,
                )
                self.undo.callback(self.elector.release)
                first = replace(first, role="slave")
            await self.begin_role(first)
            if self.elector is not None:
                self.elector.start()
            # Not before: a role that starts may recover a large log, and the loop stands still meanwhile.
            self.undo.push_async_callback(start_timer(TURN_S, self.context.probes.turn))
        except BaseException:
            await self.stop()
            raise
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not look at it again
        self.announce()

    async def stop(self) -> None:
        """End everything, the last begun first; each step is taken, also when one before has failed."""
        if self.elector is not None:
            await self.elector.stop()
        self.stopped = True
        if self.switch_task is not None:
            self.switch_task.cancel()
            await asyncio.wait([self.switch_task])
        role, self.role = self.role, None
        async with AsyncExitStack() as steps:  # from the last line to the first
            steps.push_async_callback(self.undo.aclose)
            if role is not None:
                steps.push_async_callback(role.close)
            steps.push_async_callback(self.stop_serving, role)
            if self.context is not None and self.context.exposition is not None:
                steps.callback(self.context.exposition.close)
            steps.push_async_callback(self.leave_nameservers)
            if role is not None:
                steps.push_async_callback(role.leave)

    async def leave_nameservers(self) -> None:
        """Leave the nameservers, where no role has: one that is elected keeps the sessions for the next."""
        if self.context is not None and self.context.registration is not None:
            registration, self.context.registration = self.context.registration, None
            await registration.stop()

    async def drain(self) -> None:
        """Take no sends any more, and wait until those that wait are committed, for `DRAIN_S` at most.

        Clients' calls are held from then on: the role ends next, or has ended before the wait is over.
        """
        role, context = self.role, self.context
        if not isinstance(role, MasterRole) or context is None:
            return
        if context.leader_calls is not None:
            context.leader_calls.suspend(HANDING_OVER)
        role.refuse_writes(HANDING_OVER)
        deadline = self.loop.time() + DRAIN_S
        while self.role is role and role.appender.unfinished:
            if self.loop.time() > deadline:
                return
            await asyncio.sleep(DRAIN_POLL_S)

    async def stop_serving(self, role: Role | None) -> None:
        """End the server, and answer the calls that wait in between."""
        if self.context is None or self.context.server is None:
            return
        stopping = asyncio.ensure_future(self.context.server.stop())
        await asyncio.sleep(0)  # from here on it takes no new calls
        try:
            if role is not None:
                role.answer_waiting(STOPPING)
            if self.context.leader_calls is not None:
                await self.context.leader_calls.close(STOPPING)
        finally:
            await stopping

    async def switch(self, name: BrokerRole, broker_id: int) -> None:
        """Give this broker another role; see the module's text for what its clients see.

        Args:
            name: the role.
            broker_id: 0 for a master, above 0 for a slave.

        Raises:
            ValueError: role and id do not go together.
            StoreError: the store can't be opened in that role; the broker has none then.
            NotReady: the broker stops.
        """
        options = replace(self.options, role=name, id=broker_id)
        await self.run_change(options)
        logger.info("%s is a %s with id %d now", options.name, name, broker_id)

    async def reopen(self, work: Callable[[], Awaitable[None]]) -> None:
        """End the role, have something done to the closed store, and begin the same role anew.

        The role begins also after an error of `work`, which is raised then; other errors as `switch`.
        """
        await self.run_change(self.options, work)

    async def run_change(
        self, options: BrokerOptions, between: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Change the role in a task that a stop ends; errors as `switch`."""
        async with self.switching:
            if self.stopped:
                raise NotReady(STOPPING)
            task = self.switch_task = asyncio.create_task(self.change_role(options, between))
            try:
                await asyncio.wait([task])
            finally:
                if not task.done():  # whoever asked was cancelled
                    task.cancel()
                    await asyncio.wait([task])
                self.switch_task = None
            if task.cancelled():
                raise NotReady(STOPPING)
            task.result()

    async def switch_elected(self, name: BrokerRole) -> None:
        """Give this broker the role for which its elector has been told to; errors as `switch`."""
        await self.switch(name, self.options.id)

    async def change_role(
        self, options: BrokerOptions, between: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """End the role, if there is one, have something done to the closed store, and begin the next."""
        role, self.role = self.role, None
        if role is not None:
            try:
                await role.leave()
            finally:
                self.suspend()
                await role.stop(SWITCHING, unconfirmed=ReplicaTimeout)
        failure: WhimbrelError | None = None
        if between is not None:
            try:
                await between()
            except WhimbrelError as error:
                failure = error
        await self.begin_role(options)
        if failure is not None:
            raise failure

    async def begin_role(self, options: BrokerOptions) -> None:
        """Start a role; it is this broker's once it serves."""
        assert self.context is not None
        assert options.role != "elected"
        role = ROLES[options.role](self.context, options)
        try:
            await role.start()
        except BaseException:
            if self.context.server is not None:
                self.suspend()
            raise
        self.role, self.options = role, options

    def suspend(self) -> None:
        """Serve what needs no role."""
        assert self.context is not None and self.context.server is not None
        calls = self.context.leader_calls
        remoting = None if self.remoting is None else suspended_remoting(self.remoting, SWITCHING)
        self.context.server.replace(suspended(self.services, SWITCHING, calls), remoting)

    async def serve(self, services: Sequence[Service], remoting: RemotingService) -> None:
        """Serve a role's services; the first time, start the server."""
        context, options = self.context, self.options
        assert context is not None
        self.services, self.remoting = list(services), remoting
        if self.elector is not None:
            elector, operate = self.elector, self.elector.tasks.operate
            self.services += [
                election_service(options.name, elector.answers, elector.operations, operate),
                election_admin_service(elector.operations, operate),
            ]
        if context.server is not None:
            context.server.replace(self.services, remoting)
            return
        context.server = await serve(
            self.services,
            host=options.host,
            port=options.port,
            on_call_end=None if context.counted is None else context.counted.calls.observe,
            tls=TlsSettings(
                certificate=options.tls_certificate,
                key=options.tls_key,
                directory=self.root / "whimbrel",
            ),
            read_end=context.read_end,
            remoting=remoting,
            on_request_end=None if context.counted is None else context.counted.calls.observe_many,
            extra_ports=options.extra_ports,
        )

    @property
    def server(self) -> RunningServer:
        """The server; there is one once `start` is done."""
        assert self.context is not None and self.context.server is not None
        return self.context.server

    def extra_address(self) -> str:
        """Return where the server listens besides, for RocketMQ's clients; "" for nowhere."""
        host = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
        return next((f"{host}:{port}" for port in self.server.extra_ports), "")

    def release_client(self, client_id: str, group: str | None) -> None:
        """Give back what a client that has gone holds, of one group or of all."""
        if self.role is not None:
            self.role.consumption.upkeep.release_client(client_id, group)

    def announce(self) -> None:
        """Log that the broker serves, and tell whoever started it."""
        options, role = self.options, self.role
        assert role is not None and self.context is not None
        logger.info(
            "%s %s (id %d) serves at %s, log %d to %d",
            options.role,
            options.name,
            options.id,
            self.server.address,
            role.store.min_offset,
            role.store.written,
        )
        facts = {
            "grpc": self.server.address,
            "remoting": self.extra_address(),
            "ha": "",
            "metrics": "" if self.context.exposition is None else self.context.exposition.address,
            "health": "" if self.health is None else self.health.address,
            "name": options.name,
            "role": options.role,
            "store": str(self.root.absolute()),
            "lane": self.machine.lane.described(),
        }
        write_ready_file(options.ready_file, facts)


def lock_store(root: Path, files: Files) -> Callable[[], None]:
    """Keep a second broker from the store; return what lets go.

    Raises:
        StoreError: there is one already.
    """
    fd = files.open(root / "whimbrel" / "broker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        files.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes away with the process, however it ends
    except OSError as error:
        files.close(fd)
        raise StoreError(f"another broker runs on {root}") from error
    return lambda: files.close(fd)
