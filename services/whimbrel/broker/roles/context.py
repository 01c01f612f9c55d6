"""What a broker keeps for as long as its process runs, whatever its role is.

Server, port, clients and their sessions, tables, counters. A role gets the context when it is made, opens a
store, and serves its services through it. The tables are read once, after the first role has opened the
store: a store that another process uses must not be written to.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whimbrel.broker.addresses import store_host
from whimbrel.broker.api.assignments import Assignments
from whimbrel.broker.api.leader_calls import LeaderCalls
from whimbrel.broker.api.session import SessionService
from whimbrel.broker.cluster.registration import Registration
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.counted import Counted
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.remoting.traffic import Traffic
from whimbrel.broker.tables.adoption import adopt_topics
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.metadata_version import MetadataVersionFile
from whimbrel.broker.tables.offset_files import DelayOffsets, OffsetFile
from whimbrel.broker.tables.queue_locks import QueueLocks
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.broker.tables.takeovers import Takeovers
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.machine import Machine
from whimbrel.probes import Probes
from whimbrel.rpc.api.calls import Metadata, Outbound
from whimbrel.rpc.api.secret_files import read_accounts
from whimbrel.rpc.server.handlers import RemotingService, Service
from whimbrel.rpc.server.limits import RunningServer
from whimbrel.rpc.server.read_end import ReadEnd
from whimbrel.store.store import MessageStore
from whimbrel.wakeup import Doorbell

if TYPE_CHECKING:
    from whimbrel.broker.elections.elector import Elector
    from whimbrel.exposition import Exposition

__all__ = ["BrokerContext"]


class BrokerContext:
    """The parts of a broker that outlive a change of its role. All on the loop's thread.

    Attributes:
        options: as the process was started; a role has its own with its role and id.
        instance: names this process to nameservers.
        bell: rings the replicator, and is rung by it.
        machine: where files, clocks and workers come from.
        elector: takes part in elections; None where roles are configured.
        registration: the current role's, through which nameservers are asked; None without.
        server: set once the first role serves.
        read_end: of the server's reads.
        probes: tell whether the process lives and is ready, for the current role.
        counted: what metrics add up; None where they are off.
        exposition: serves the metrics of the current role, and of later ones at the same address.
        remoting_accounts: whose signatures are checked.
        remoting_clients: who consumes and produces over the remoting protocol.
        traffic: how many messages come and go.
        started_ms: when this process began, in epoch milliseconds.
        queue_locks: which of its ordered consumers holds which queue.
        members: where the other members of the group serve, `host:port` by id, as was heard last.
        leader_calls: hands calls on to the leader, and holds them between two roles; None: nothing does.
    """

    def __init__(
        self,
        options: BrokerOptions,
        *,
        bell: Doorbell,
        machine: Machine,
        serve: Callable[[Sequence[Service], RemotingService], Awaitable[None]],
        release_client: Callable[[str, str | None], None],
    ) -> None:
        """Take the settings.

        Args:
            options: see the class.
            bell, machine: see the class.
            serve: serves these services from now on, and starts the server the first time.
            release_client: gives back what a client that has gone holds, of one group or of all.
        """
        self.options = options
        self.instance = uuid.uuid4().hex
        self.root = Path(options.store)
        self.loop = asyncio.get_running_loop()
        self.read_end = ReadEnd(self.loop)
        self.bell, self.machine = bell, machine
        self.remoting_accounts = read_accounts(options.remoting_accounts, "remoting_accounts")
        self.serve = serve
        self.release_client = release_client
        self.clients = Clients()
        self.remoting_clients = RemotingClients(compile_filter)
        self.queue_locks = QueueLocks()
        self.traffic = Traffic(options.cluster)
        self.started_ms = machine.wall_ms()
        self.assignments = Assignments(self.ask_nameserver)
        self.elector: Elector | None = None
        self.registration: Registration | None = None
        self.server: RunningServer | None = None
        self.probes = Probes("broker")
        self.counted = Counted() if options.metrics_port >= 0 else None
        self.exposition: Exposition | None = None
        self.members: dict[int, str] = {}
        self.leader_calls: LeaderCalls | None = None
        if options.forwards:
            self.leader_calls = LeaderCalls(self.clients, clock=machine.monotonic, loop=self.loop)
        self.tables_open = False

    def open_tables(self, store: MessageStore) -> None:
        """Read topics, groups and offset files, the first time only; adopt topics that the store holds.

        Raises:
            StoreError: a file is damaged, and so is its predecessor.
        """
        if not self.tables_open:
            self.read_tables()
        adopt_topics(self.topics, store)

    def read_tables(self) -> None:
        """Read topics, groups and offset files."""
        options, config = self.options, self.root / "config"
        self.metadata_version = MetadataVersionFile(self.root, self.machine.files)
        self.takeovers = Takeovers(self.root, self.machine.files)
        self.topics = TopicTable(
            config,
            cluster=options.cluster,
            broker_name=options.name,
            auto_create=options.auto_create_topics,
            trace_topic=options.trace_topic_enable,
            clock=self.now_ms,
            files=self.machine.files,
            on_predecessor=self.metadata_version.forget,
        )
        self.groups = GroupTable(
            config,
            auto_create=options.auto_create_groups,
            clock=self.now_ms,
            files=self.machine.files,
            on_predecessor=self.metadata_version.forget,
        )
        self.offset_file = OffsetFile(config, self.machine.files)
        self.delays = DelayOffsets(config, self.machine.files)
        self.sessions = SessionService(
            self.clients, self.groups, release_client=self.release_client, clock=self.machine.monotonic
        )
        self.tables_open = True

    def now_ms(self) -> int:
        """Return the wall clock in epoch milliseconds."""
        return self.machine.wall_ms()

    @property
    def port(self) -> int:
        """The port that clients reach: the bound one once there is a server."""
        return self.options.port if self.server is None else self.server.port

    @property
    def store_host(self) -> bytes:
        """This broker's address as records hold it."""
        return store_host(self.options, self.port)

    def known_ports(self) -> frozenset[int]:
        """Return the ports under which clients know this broker."""
        return frozenset((self.port, self.options.advertise_port))

    async def ask_nameserver(self, question: Outbound[Any], metadata: Metadata) -> Any:
        """Put a client's question to a nameserver that holds our registration; None when none answers."""
        return None if self.registration is None else await self.registration.ask(question, metadata)

    def known_by(self) -> list[str]:
        """Return the addresses of the nameservers that hold our registration."""
        accepted = {} if self.registration is None else self.registration.accepted
        return [nameserver for nameserver, held in accepted.items() if held]

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        """Have a function called on the loop's thread; may be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(callback)
