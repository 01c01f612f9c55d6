"""What a master and a slave have in common: one store, opened and served, and given back in the end.

    start    open        store -> confirmed offset -> tables -> group consumption -> traces
             serve       services over these; the server is the broker's and stays when the role goes
             begin       what works by itself: following, registration, timers, metrics
    stop     leave       the reverse of begin: nameservers drop this broker, nothing new starts
             answer      sends, receives and streams that wait are answered
             close       the reverse of open: the log, or the right to follow it, is given back

A role is started once and stopped once. `stop` may be called in any state, also while `start` has come half
way.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypedDict

from whimbrel.broker import metrics
from whimbrel.broker.api.admin import AdminService
from whimbrel.broker.api.bulk import BulkService
from whimbrel.broker.api.cut_admin import CutAdmin
from whimbrel.broker.api.dead_letter_admin import DeadLetterAdmin
from whimbrel.broker.api.messaging import Handle, messaging_service
from whimbrel.broker.api.positions import PositionService
from whimbrel.broker.api.pulls import PullService
from whimbrel.broker.api.receive import ReceiveService
from whimbrel.broker.api.replay import ReplayService
from whimbrel.broker.api.resets import ResetService
from whimbrel.broker.api.route import RouteService
from whimbrel.broker.api.send import SendService
from whimbrel.broker.api.settle import SettleService
from whimbrel.broker.background import start_task, start_timer
from whimbrel.broker.cluster.registration import Registration
from whimbrel.broker.consume.client_positions import ClientPositions
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.broker.consume.policies import Policies
from whimbrel.broker.consume.pulled_queues import PulledQueues
from whimbrel.broker.consume.retry_topics import retry_topics
from whimbrel.broker.counted import Counted
from whimbrel.broker.engine.positions import PositionCalls
from whimbrel.broker.engine.read import Reads
from whimbrel.broker.engine.resets import Resets
from whimbrel.broker.engine.send import Majority, Sends
from whimbrel.broker.engine.settle import Settles
from whimbrel.broker.engine.splitting import ReadSplitting
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.engine.take import Takes
from whimbrel.broker.engine.waiting import Waiting
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.produce.appender import Appender, ReadOnlyAppender
from whimbrel.broker.produce.confirmed_offset import ConfirmedFile, MasterConfirmed, SlaveConfirmed
from whimbrel.broker.remoting.long_reads import LongReads
from whimbrel.broker.remoting.pulls import Pulls
from whimbrel.broker.remoting.records import Records
from whimbrel.broker.remoting.sends import SendRequests
from whimbrel.broker.remoting.service import remoting_service
from whimbrel.broker.roles.context import BrokerContext
from whimbrel.broker.roles.epochs import choose_dialect
from whimbrel.broker.roles.facts import facts_of
from whimbrel.broker.roles.offset_exchange import OffsetExchange
from whimbrel.broker.roles.remoting_parts import CHANGING, RemotingParts, make_parts
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.timing.timers import Timers
from whimbrel.errors import FlushTimeout, NotMaster, ReplicaTimeout
from whimbrel.metrics import Family, build_info
from whimbrel.model.registration import BrokerFacts, BrokerRole, Member, SharedTopics
from whimbrel.model.replication import ReplicationView
from whimbrel.probes import Condition
from whimbrel.rpc.remoting.admin_access import guarded
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle as RemotingHandle
from whimbrel.rpc.remoting.handlers import Peer
from whimbrel.rpc.server.call_metrics import server_families
from whimbrel.rpc.server.handlers import Call, RemotingService, Service
from whimbrel.rpc.server.lanes import CallLane, RemotingLane
from whimbrel.store.options import Retention
from whimbrel.store.page_elections import UNBOUND
from whimbrel.store.seat_file import FLUSH_MODES
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.store import MessageStore

if TYPE_CHECKING:
    from whimbrel.broker.record_traces import BrokerTraces

__all__ = ["Role", "Unconfirmed"]

logger = logging.getLogger(__name__)


class RegistrationHooks(TypedDict):
    """What a role tells nameservers, and hears from them; see `Registration`."""

    facts: Callable[[], BrokerFacts]
    on_members: Callable[[str, tuple[Member, ...], bool], None]
    on_lost: Callable[[str], None]
    on_displaced: Callable[[str, str], None]
    on_shared: Callable[[str, SharedTopics], None]


Unconfirmed = type[FlushTimeout] | type[ReplicaTimeout]  # the errors of sends that are stored

BEAT_S = 0.5  # of the shared page; the replicator takes a broker for dead after 3 s
SWEEP_S = 1.0  # of clients
MEMBERS_MAX = 64  # of a group, as a nameserver tells them
SAVE_CONFIRMED_S = 5.0
WARNED_MAX = 100  # sentences about settings that are logged
UNLIKE = 0.0002  # between two settings that differ; the page has them in ten thousandths, or in seconds
RETENTION_S = 10.0  # RocketMQ's cleanResourceInterval


class Role(ABC):
    """A broker's role over one store. All calls come from the loop's thread.

    Attributes:
        options: the process's settings with this role's role and id.
        store, page, confirmed, consumption, appender: open from `start` on.
    """

    NAME: ClassVar[BrokerRole]
    store: MessageStore
    confirmed: MasterConfirmed | SlaveConfirmed
    appender: Appender | ReadOnlyAppender
    metadata_majority: Majority | None = None  # that holds answers until it knows of topics
    leases_majority: Majority | None = None  # and until it knows of leases
    sharing: TopicSharing | None = None  # what other brokers have of our topics; a master's
    remoting_parts: RemotingParts | None = None  # set once it serves
    not_serving: Callable[[], str] = str  # returns why consumers are not served yet, "" once they are

    def __init__(self, context: BrokerContext, options: BrokerOptions) -> None:
        """Prepare; nothing is opened."""
        self.context, self.options = context, options
        self.root, self.loop, self.machine = context.root, context.loop, context.machine
        self.opened = AsyncExitStack()
        self.begun = AsyncExitStack()
        self.serving = False  # there are services, and calls may wait
        self.registration: Registration | None = None
        self.traces: BrokerTraces | None = None
        self.warned: set[str] = set()  # what was said of settings that are not alike

    # The steps

    async def start(self) -> None:
        """Take over the store and serve it.

        Raises:
            StoreError: the store is in use, or its files can't be a store.
            OSError: a port can't be had.
        """
        try:
            await self.open()
            services = self.make_services()
            self.serving = True
            calls = self.context.leader_calls
            remoting = self.make_remoting()
            await self.context.serve(services if calls is None else calls.wrap(services), remoting)
            self.sends.serve_at(self.context.store_host)  # the port is known now
            self.begin()
            if calls is not None:
                calls.role_begun(leads=self.NAME == "master")
        except BaseException:
            await self.stop("the broker could not start")
            raise

    async def stop(self, reason: str, *, unconfirmed: Unconfirmed | None = None) -> None:
        """Give the store back, after answering the calls that wait.

        Args:
            reason: for people, as the end of a sentence.
            unconfirmed: the error of sends that are stored and wait; None chooses by what they wait for.
        """
        try:
            await self.leave()
        finally:
            try:
                self.answer_waiting(reason, unconfirmed=unconfirmed)
            finally:
                await self.close()

    async def leave(self) -> None:
        """Leave the nameservers, and end what works by itself."""
        await self.begun.aclose()

    def answer_waiting(self, reason: str, *, unconfirmed: Unconfirmed | None = None) -> None:
        """Answer the calls that wait, as `stop` says; calls that come afterwards are refused."""
        if self.serving:
            self.serving = False
            self.end_writing(reason, unconfirmed)
            self.takes.serve()
            self.polls.close(reason)
            self.consumption.close()
            self.bulk.close(reason)
            self.cuts.close(reason)

    async def close(self) -> None:
        """Close everything that was opened."""
        await self.opened.aclose()

    def choose_dialect(self) -> None:
        """Tell the replicator beside which dialect the group speaks."""
        choose_dialect(self.root, by_majority=self.options.by_majority, machine=self.machine)

    def known_commit(self) -> int | None:
        """Return up to where the log is known to be committed; None where not a majority decides that."""
        if not self.options.by_majority:
            return None
        page = SharedPage.open(self.root, self.machine)
        found = max(page.confirmed, ConfirmedFile(self.root, self.machine.files).offset)
        page.close()
        return found

    # What the roles do differently

    @abstractmethod
    async def open_store(self) -> MessageStore:
        """Open the store as this role does."""

    @abstractmethod
    def open_confirmed(self, file: ConfirmedFile) -> MasterConfirmed | SlaveConfirmed:
        """Take up how far the log is confirmed."""

    @abstractmethod
    def order_masters(self) -> None:
        """Take note of this role, so that of two masters the later one is known (`Takeovers`)."""

    @abstractmethod
    def make_appender(self) -> Appender | ReadOnlyAppender:
        """Return what sends go through."""

    @abstractmethod
    def replica_service(self) -> Service:
        """Return what other brokers of the group call."""

    @abstractmethod
    def end_writing(self, reason: str, unconfirmed: Unconfirmed | None) -> None:
        """Answer sends that wait, and end the streams of other brokers."""

    @abstractmethod
    def bell_rung(self) -> None:
        """React to the replicator's ring: a mark has moved."""

    @abstractmethod
    def members_changed(self, nameserver: str, members: tuple[Member, ...], settled: bool) -> None:
        """Take a nameserver's answer: the other live brokers of the group."""

    @abstractmethod
    def nameserver_lost(self, nameserver: str) -> None:
        """Forget what a nameserver said that is gone."""

    @abstractmethod
    def displaced(self, nameserver: str, address: str) -> None:
        """Learn which other broker holds our name and id at a nameserver, "" for none."""

    @abstractmethod
    def topics_shared(self, nameserver: str, shared: SharedTopics) -> None:
        """Take what a nameserver says of topics that other brokers have, too."""

    @abstractmethod
    def role_metrics(self, counted: Counted) -> list[Family]:
        """Return the metrics that only this role has."""

    @abstractmethod
    def readiness(self) -> list[Condition]:
        """Return the conditions under which this broker is ready; called from other threads."""

    def waiting(self) -> tuple[int, int]:
        """Return how many delayed messages wait, and how many transactions are open."""
        return sum(self.timers.counts.values()), 0

    @property
    def writable(self) -> bool:
        """Whether messages are taken now."""
        return False

    @property
    def ha_address(self) -> str:
        """Where slaves dial the replicator beside us; empty on a slave."""
        return ""

    # Opening

    async def open(self) -> None:
        """Open the store and what stands on it."""
        options, context = self.options, self.context
        self.store = await self.open_store()
        self.opened.callback(self.store.close)
        page = self.page = self.store.page
        page.broker_pid, page.broker_sleeping = os.getpid(), 0
        page.broker_name, page.broker_id = options.name, options.id
        page.broker_beat_ns, page.writable = self.machine.monotonic_ns(), 0
        self.confirmed = self.open_confirmed(ConfirmedFile(self.root, self.machine.files))
        self.opened.callback(self.confirmed.close)
        context.open_tables(self.store)
        self.open_consumption()
        self.timers = Timers(self.store, topics=context.topics)
        self.opened.callback(self.timers.close)
        if options.trace_to:
            from whimbrel.broker import record_traces  # OpenTelemetry: only where tracing is on

            self.traces = record_traces.BrokerTraces(options)
            self.opened.callback(self.traces.close)

    def open_consumption(self) -> None:
        """Load the lease state, and take over offsets that RocketMQ's file knows better."""
        policies = Policies(self.context.groups, may_order=self.may_order)
        machine, loop = self.machine, self.loop
        self.polls = Waiting(
            clock=lambda: int(machine.monotonic() * 1000), soon=loop.call_soon, later=loop.call_later
        )
        self.store.on_arrival = self.arrived
        self.consumption = GroupConsumption(
            self.store,
            LeaseJournal(self.root, file_bytes=self.options.lease_file_size, machine=machine),
            self.polls,
            broker_name=self.options.name,
            broker_id=self.options.id,
            now_ms=self.machine.wall_ms,
            schedule=self.schedule,
            client_alive=self.context.clients.alive_in,
            exists=self.exists,
            follows=self.NAME == "slave",
            policy_of=policies,
            wait_ms=policies.wait_ms,
        )
        for table in (self.context.groups, self.context.topics):
            table.on_change.append(self.find_retry_topics)
            self.opened.callback(table.on_change.remove, self.find_retry_topics)
        self.context.groups.on_change.append(self.consumption.groups_changed)
        self.opened.callback(self.context.groups.on_change.remove, self.consumption.groups_changed)
        self.find_retry_topics()
        if self.options.elects:
            self.consumption.lease_store.on_lost = self.context.metadata_version.lose_leases
        self.consumption.open()
        self.opened.callback(self.consumption.close)
        self.offsets = OffsetExchange(
            self.root,
            self.store,
            self.context.topics,
            self.consumption.positions,
            self.context.offset_file,
            self.machine,
        )
        self.order_masters()
        self.offsets.adopt_file()
        self.opened.callback(self.offsets.export)  # not before: it would write over a file that can't be read

    def exists(self, group: str, topic: str, queue_id: int) -> bool:
        """Tell whether there is such a group, and a topic with such a queue."""
        config = self.context.topics.get(topic)
        return group in self.context.groups.rows and config is not None and queue_id < config.read_queues

    def may_order(self) -> bool:
        """Tell whether this broker delivers to ordered groups now."""
        return True

    def schedule(self, at_ms: int, callback: Callable[[], None]) -> None:
        """Call back at a time of the wall clock, soon when it has passed."""
        delay_ms = at_ms - self.machine.wall_ms()
        if delay_ms <= 0:
            self.loop.call_soon(callback)
        else:
            self.loop.call_later(delay_ms / 1000, callback)

    def find_retry_topics(self) -> None:
        """Have receives read what RocketMQ left to be redelivered."""
        topics, groups = self.context.topics, self.context.groups
        kept = {name: topics.rows[name].read_queues for name in topics.retry_names}
        self.consumption.read_beside(retry_topics(kept, topics.rows, groups.rows))

    # Serving

    def make_services(self) -> list[Service]:
        """Make the engine, and the services that call it."""
        master = self.NAME == "master"
        self.appender = self.make_appender()
        self.make_engine(master=master)
        self.bulk = BulkService(
            self.context.topics,
            self.store,
            confirmed=self.confirmed.refresh,
            name=self.options.name,
            broker_id=self.options.id,
            master=master,
        )
        return [
            self.messaging(master=master),
            *self.admin_services(self.appender, master=master),
            self.replica_service(),
            self.bulk.service(),
        ]

    def make_engine(self, *, master: bool) -> None:
        """Make what decides about messages, positions and tables."""
        options, context, store = self.options, self.context, self.store
        topics, groups = context.topics, context.groups
        self.creation = GroupCreation(topics, groups, master=master, clock=self.machine.monotonic)
        self.sends = Sends(
            topics,
            self.creation,
            self.appender,
            cluster=options.cluster,
            store_host=context.store_host,
            clock=self.machine.wall_ms,
            levels=len(store.delays_ms),
            delay_max_ms=options.delay_max_ms,
            sharing=self.sharing if options.nameservers else None,
            majority=self.metadata_majority,
        )
        self.settles = Settles(
            self.consumption,
            context.groups.get,
            majority=self.leases_majority,
            not_serving=self.not_serving,
        )
        self.reads = self.make_reads()
        self.position_calls = PositionCalls(
            self.creation,
            context.remoting_clients,
            self.client_positions,
            store,
            self.reads.splitting,
            majority=self.leases_majority,
            not_serving=self.not_serving,
        )
        self.changes = TableChanges(
            topics,
            groups,
            self.consumption,
            store,
            master=master,
            waiting=self.waiting,
            sharing=self.sharing,
            majority=self.metadata_majority,
            leases=self.leases_majority,
            not_serving=self.not_serving,
        )
        self.resets = Resets(
            self.changes,
            context.remoting_clients,
            self.client_positions,
            majority=self.leases_majority,
            not_serving=self.not_serving,
        )
        self.takes = Takes(
            topics,
            self.creation,
            self.consumption,
            self.polls,
            now_ms=self.machine.wall_ms,
            serves=not master,
            members=context.remoting_clients,
            pulled=self.reads.pulled,
            greatest_first=options.priority_order_asc,
            delivered=None if context.counted is None else context.counted.took,
            majority=self.leases_majority,
        )

    def admin_services(self, appender: Appender | ReadOnlyAppender, *, master: bool) -> list[Service]:
        """Make what administrators and tools call."""
        options, context, store = self.options, self.context, self.store
        topics, groups = context.topics, context.groups
        self.replays = ReplayService(
            topics,
            appender,
            store,
            master=master,
            accepts=options.accept_replays,
            store_host=lambda: self.sends.policy.store_host,
        )
        admin = AdminService(
            self.changes,
            context.clients,
            replication=self.replication,
            wall_ms=lambda at: self.machine.wall_ms() - int((self.machine.monotonic() - at) * 1000),
            members=context.remoting_clients,
        )
        letters = DeadLetterAdmin(
            topics,
            groups,
            self.consumption,
            store,
            appender,
            broker_name=options.name,
            master=master,
            store_host=lambda: self.sends.policy.store_host,
        )
        self.cuts = CutAdmin(
            self.root,
            topics,
            store,
            appender,
            name=options.name,
            member=options.id,
            master=master,
            accepts=options.accept_replays,
            machine=self.machine,
            store_host=lambda: self.sends.policy.store_host,
            address_of=lambda member: context.members.get(member, ""),
        )
        methods = (*self.replays.methods(), *ResetService(self.resets).methods())
        return [admin.service(methods), letters.service(), self.cuts.service()]

    def make_reads(self) -> Reads:
        """Make what decides reads, and have those that wait told of new messages and of resets."""
        context, options = self.context, self.options
        self.client_positions = ClientPositions(
            self.consumption.positions,
            monotonic=self.machine.monotonic,
            wake=self.polls.arrived,
        )
        return Reads(
            context.topics,
            self.creation,
            context.remoting_clients,
            self.client_positions,
            self.store,
            ReadSplitting(enabled=options.slave_read_enable, written=self.log_end),
            self.polls,
            follows=self.NAME == "slave",
            pulled=None if options.share_pulled_queues else PulledQueues(),
            delivered=None if context.counted is None else context.counted.took,
        )

    def arrived(self, topic: str, queue_id: int, offset: int, tags_code: int) -> None:
        """Have those who wait for a message look at it."""
        self.polls.arrived(topic, queue_id)

    def make_remoting(self) -> RemotingService:
        """Make what is served by the remoting protocol, over the same parts."""
        context, sends = self.context, SendRequests(self.sends)
        messages = [
            sends.handles(),
            Pulls(self.reads, context.traffic.pulled).handles(),
            Records(self.store).handles(),
        ]
        parts = self.remoting_parts = make_parts(self)
        handles = [*messages, *self.special_requests(sends), *parts.handles]
        access, accounts = self.options.remoting_admin, context.remoting_accounts
        reads = LongReads(clock=self.machine.monotonic, later=self.loop.call_later)
        self.opened.callback(reads.close)
        service = remoting_service(
            [guarded(reads.paced(part), CHANGING, access, accounts) for part in handles], parts.closed
        )
        if accounts:  # signatures are checked by Python, in the guarded handlers
            return service
        return replace(service, lane=self.request_lane())

    def special_requests(self, sends: SendRequests) -> list[dict[int, RemotingHandle]]:
        """Return the handlers of requests of the remoting protocol that only a master serves."""

        def refuse(peer: Peer, request: Command) -> NoReturn:
            raise NotMaster("this broker is a slave: its master does that, try again when there is one")

        codes = (
            RequestCode.CONSUMER_SEND_MSG_BACK,
            RequestCode.END_TRANSACTION,
            RequestCode.SEND_REPLY_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
        )
        return [dict.fromkeys(codes, refuse)]

    def messaging(self, *, master: bool) -> Service:
        """Return the service for clients."""
        context = self.context
        routes = RouteService(
            context.topics,
            context.groups,
            context.assignments,
            name=self.options.name,
            takes_messages=master or context.leader_calls is not None,
            ports=context.known_ports,
        )
        return messaging_service(
            routes=routes,
            sends=self.send_calls(),
            receives=ReceiveService(
                self.takes,
                clock=self.machine.wall_ms,
                lane_messages=self.store.lane_messages,
            ),
            settles=SettleService(self.settles),
            pulls=PullService(self.reads, self.store.lane_messages),
            positions=PositionService(self.position_calls),
            sessions=context.sessions,
            clients=context.clients,
            special=self.special_calls(),
            clock=self.machine.monotonic,
            leader=self.known_leader,
            call_lane=self.call_lane(),
        )

    def send_calls(self) -> SendService:
        """Return what handles sends by gRPC."""
        return SendService(self.sends, self.machine.wall_ms)

    def known_leader(self) -> str:
        """Return where the group's leader serves, `host:port`, if it is another member; else ""."""
        return ""

    def call_lane(self) -> CallLane | None:
        """Return what takes plain calls beside Python; None where nothing does."""
        return None

    def request_lane(self) -> RemotingLane | None:
        """Return what takes plain requests of the remoting protocol; None where nothing does."""
        return None

    def special_calls(self) -> dict[str, Handle]:
        """Return the handlers of calls about messages that are not plain ones, by the names of the calls.

        They change what the log says, so a broker that takes no writes refuses them.
        """

        def refuse(call: Call, request: Any) -> NoReturn:
            raise NotMaster("this broker is a slave: its master does that, try again when there is one")

        return dict.fromkeys(("EndTransaction", "RecallMessage", "ForwardMessageToDeadLetterQueue"), refuse)

    # Working by itself

    def begin(self) -> None:
        """Start what works by itself."""
        self.page.broker_retention = Retention.of(self.options.store_options)
        bell = self.context.bell
        self.loop.add_reader(bell.fileno(), self.bell_readable)
        self.begun.callback(self.loop.remove_reader, bell.fileno())
        self.register()
        for interval_s, job in (
            (BEAT_S, self.beat),
            (SWEEP_S, self.sweep),
            (SWEEP_S, self.warn_of_settings),
            (SAVE_CONFIRMED_S, self.confirmed.save),
            (RETENTION_S, self.run_retention),
        ):
            self.begun.push_async_callback(start_timer(interval_s, job))
        self.begun.push_async_callback(start_task(self.offsets.export_forever()))
        self.begun.push_async_callback(start_task(self.timers.run()))
        self.expose()

    def bell_readable(self) -> None:
        """Take the replicator's rings."""
        self.context.bell.take()
        if self.context.elector is not None:
            self.context.elector.rung()
        self.bell_rung()

    def register(self) -> None:
        """Keep the nameservers informed."""
        context = self.context
        if not self.options.nameservers:
            return
        hooks: RegistrationHooks = {
            "facts": self.facts,
            "on_members": self.take_members,
            "on_lost": self.lose_nameserver,
            "on_displaced": self.displaced,
            "on_shared": self.topics_shared,
        }
        kept = context.registration  # of the role before, where members are elected
        registration = self.registration = kept or Registration(self.options.nameservers, **hooks)
        on_change = context.topics.on_change
        on_change.append(registration.changed)
        self.begun.callback(on_change.remove, registration.changed)
        context.registration = registration
        if kept is None:
            registration.start()
        else:
            kept.hand_over(**hooks)
        self.begun.push_async_callback(self.unregister)

    def facts(self) -> BrokerFacts:
        """Return what nameservers are to know; called before each renewal."""
        return facts_of(
            self.context,
            self.options,
            self.store,
            role=self.NAME,
            writable=self.writable,
            ha_address=self.ha_address,
        )

    def take_members(self, nameserver: str, members: tuple[Member, ...], settled: bool) -> None:
        """Take a nameserver's answer."""
        if len(self.context.members) > MEMBERS_MAX:
            self.context.members.clear()
        self.context.members |= {
            member.member_id or member.broker_id: member.address for member in members[:MEMBERS_MAX]
        }
        self.members_changed(nameserver, members, settled)
        if self.context.elector is not None:
            self.context.elector.members_changed(nameserver, members, settled)

    def lose_nameserver(self, nameserver: str) -> None:
        """Forget what a nameserver said that is gone."""
        self.nameserver_lost(nameserver)
        if self.context.elector is not None:
            self.context.elector.roster.lose(nameserver)

    async def unregister(self) -> None:
        """Leave the nameservers; a member that is elected stays, for its next role."""
        assert self.registration is not None
        elector = self.context.elector
        if elector is None or elector.own.stopped:
            self.context.registration = None
            await self.registration.stop()
            return
        last = replace(self.facts(), writable=False)
        self.registration.hand_over(
            facts=lambda: last, on_members=elector.members_changed, on_lost=elector.roster.lose
        )

    def facts_changed(self) -> None:
        """Tell nameservers at once what is new."""
        if self.registration is not None:
            self.registration.changed()

    def log_end(self) -> int:
        """Return the end of the log."""
        return self.store.written

    def beat(self) -> None:
        """Show that the broker lives, and do what time asks for."""
        self.page.broker_beat_ns, self.page.writable = self.machine.monotonic_ns(), self.writable
        self.confirmed.beat()
        self.consumption.lease_store.beat()

    def sweep(self) -> None:
        """Let go of clients that are gone, and of state that nobody uses."""
        self.context.sessions.sweep()
        self.consumption.sweep()
        if self.remoting_parts is not None:
            self.remoting_parts.sweep()
            self.reads.sweep()

    def run_retention(self) -> None:
        """Remove files that may go."""
        self.store.run_retention(self.machine.wall_ms())

    def expose(self) -> None:
        """Tell whether this broker is ready, and serve metrics, where they are switched on."""
        context = self.context
        context.probes.serve(self.NAME, self.readiness)
        self.begun.callback(context.probes.withdraw)
        if context.counted is None:
            return
        families, labels = self.metrics(context.counted), metrics.labels_of(self.options, self.NAME)
        if context.exposition is None:
            from whimbrel.exposition import serve_metrics

            context.exposition = serve_metrics(
                families,
                host=self.options.host,
                port=self.options.metrics_port,
                service="whimbrel.broker",
                labels=labels,
                probes=context.probes,
            )
        else:
            context.exposition.replace(families, labels)
        self.begun.callback(context.exposition.replace, [], labels)  # nothing reads what is closed

    def metrics(self, counted: Counted) -> list[Family]:
        """Return all metrics of a broker in its role; each part shows its own."""
        context = self.context
        topics, leases = context.topics, self.consumption.lease_store
        assert context.server is not None
        return [
            build_info(),
            *metrics.lane_metrics(self.machine.lane),
            counted.calls.family(),
            *server_families(context.server),
            *metrics.traffic(topics.get, counted),
            *metrics.connections(context.clients),
            *metrics.consumers(leases.table, topics, self.store),
            *metrics.storage(self.root / "commitlog", self.store, leases),
            *metrics.serving(topics, context.groups, self.polls, lambda: self.writable),
            *metrics.replication(self.page),
            *metrics.timing_metrics(self.timers),
            *metrics.held_calls(context.leader_calls),
            *metrics.elections(lambda: context.elector),
            *self.role_metrics(counted),
        ]

    # Views

    def replication(self) -> ReplicationView:
        """Return the state of replication as this broker sees it."""
        options, page, store = self.options, self.page, self.store
        alive = page.replica_alive(self.machine.monotonic_ns())
        return ReplicationView(
            broker_name=options.name,
            broker_id=options.id,
            role=self.NAME.upper(),
            log_begin=store.min_offset,
            log_end=store.written,
            flushed=store.flushed,
            confirmed=self.confirmed.refresh(),
            dispatched=store.dispatched,
            replicator_alive=alive,
            ha_address=self.ha_address,
            slaves=(),
            connected=False,
            writable=self.writable,
            advice=self.advice(replicator_alive=alive),
            replication=options.replication.upper(),
            flush=options.flush.upper(),
            lane=str(self.machine.lane),
            notes=self.notes(),
            drained=self.context.topics.drained > 0,
            election=None if self.context.elector is None else self.context.elector.state(),
        )

    def advice(self, *, replicator_alive: bool) -> str:
        """Return what an operator should know or do; empty when all is well."""
        if not replicator_alive:
            return "the replicator beside this broker does not run: start it"
        return self.page.trouble or self.unequal_flush()

    def notes(self) -> tuple[str, ...]:
        """Return what is worth knowing though nothing is wrong."""
        found = [*self.unequal_settings()]
        if not self.options.elects:  # there another member's win
            found += [
                f"{table.path.name} was damaged as this broker started, and goes on as it was one change"
                " before: compare what is there with what should be"
                for table in (self.context.topics, self.context.groups)
                if table.of_predecessor
            ]
        if self.options.elects and self.page.seat_bound == UNBOUND:
            found.append(
                "the store's file system does not tell a file from its copy: put back copies of it by"
                " `whimbrel restore` only, or they vote"
            )
        return tuple(found)

    def unequal_settings(self) -> Sequence[str]:
        """Return which settings of this group, that are to be alike, are not; each in a sentence."""
        ours, theirs = Retention.of(self.options.store_options), self.page.replica_retention
        unlike = [
            f"{name} {getattr(ours, name):g}, the replicator beside it {given:g}"
            for name in ("reserved_hours", "disk_used_ratio_max", "disk_clean_ratio")
            if (given := getattr(theirs, name)) is not None and abs(given - getattr(ours, name)) > UNLIKE
        ]
        return [f"this broker has {one}: the greater holds, so set them alike, or it at the broker alone"
                for one in unlike]  # fmt: skip

    def warn_of_settings(self) -> None:
        """Log what `unequal_settings` returns, each once."""
        for text in self.unequal_settings():
            if text not in self.warned and len(self.warned) < WARNED_MAX:
                self.warned.add(text)
                logger.warning("%s", text)

    def unequal_flush(self) -> str:
        """Return that broker and replicator of a member that may be elected flush differently; "" if not."""
        theirs = FLUSH_MODES[self.page.replica_flush] if self.options.elects else ""
        if theirs in ("", self.options.flush):
            return ""
        return (
            f"this broker has flush {self.options.flush}, the replicator beside it {theirs}: async holds for"
            " what this member acknowledges, so after a power cut it does not vote; set both alike"
        )
