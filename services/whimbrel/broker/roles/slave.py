"""A broker that follows: its replicator writes the log, and it serves reads of what has arrived.

Queues and index are built from the log (`cluster/log_dispatcher.py`); tables come from the master by a
metadata watch, lease state by a stream of entries both ways (`cluster/metadata_sync.py`, `lease_sync.py`).
Where `forward` is on, clients' calls that change anything go to the master (`api/leader_calls.py`).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from whimbrel.broker.background import start_task
from whimbrel.broker.cluster.agreement import (
    LOG_FILE_SIZE,
    Settings,
    differences,
    parse_settings,
    settings_text,
)
from whimbrel.broker.cluster.follower_state import FollowerState
from whimbrel.broker.cluster.introduction import Introduction
from whimbrel.broker.cluster.kept_log import KeptLog
from whimbrel.broker.cluster.log_dispatcher import LogDispatcher, MasterAddress
from whimbrel.broker.cluster.member_reports import MemberReport
from whimbrel.broker.cluster.metadata import Metadata, MetadataSource
from whimbrel.broker.cluster.metadata_sync import LeaseSync, MetadataSync
from whimbrel.broker.cluster.replica_service import (
    SlaveHello,
    introduce_replica,
    refusing_service,
    sync_leases,
    tables_of,
    watch_metadata,
)
from whimbrel.broker.counted import Counted
from whimbrel.broker.metrics import slave_metrics
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.produce.appender import ReadOnlyAppender
from whimbrel.broker.produce.confirmed_offset import CommittedSlave, ConfirmedFile, SlaveConfirmed
from whimbrel.broker.roles.context import BrokerContext
from whimbrel.broker.roles.role import Role, Unconfirmed
from whimbrel.broker.tables.adoption import adopt_topics
from whimbrel.broker.tables.metadata_version import MetadataVersion
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.errors import NotReady, NotRecovered, OffsetNotFound
from whimbrel.metrics import Family
from whimbrel.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP
from whimbrel.model.registration import BrokerRole, Member, SharedTopics
from whimbrel.model.replication import ReplicationView
from whimbrel.probes import NOT_CONNECTED, Condition
from whimbrel.rpc.server.handlers import Service
from whimbrel.store.slave_store import SlaveStore
from whimbrel.wakeup import WAKE_POLL_S

__all__ = ["SlaveRole"]


def nothing(_: MetadataVersion) -> None:
    """Do nothing: no leader is elected."""


logger = logging.getLogger(__name__)

LOOKS_MAX, LOOK_APART_S = 500, 0.02  # whether what a lease stream waits for is there
JOURNAL_FILES = 2  # of leases, written in turn


async def within_looks(ready: Callable[[], bool], why_not: str) -> None:
    """Wait for something that comes soon.

    Raises:
        NotReady: it has not come within `LOOKS_MAX` looks.
    """
    for _ in range(LOOKS_MAX):
        if ready():
            return
        await asyncio.sleep(LOOK_APART_S)
    raise NotReady(why_not)


class SlaveRole(Role):
    """Serves reads, follows its master, never writes the log."""

    NAME: ClassVar[BrokerRole] = "slave"
    store: SlaveStore
    confirmed: SlaveConfirmed
    appender: ReadOnlyAppender

    def __init__(self, context: BrokerContext, options: BrokerOptions) -> None:
        """Prepare; nothing is opened."""
        super().__init__(context, options)
        self.group: dict[str, frozenset[int]] = {}  # the ids of our group, by nameserver
        self.masterless: set[str] = set()  # nameservers that know the group and no master in it
        self.orders = False  # what `may_order` said last
        self.reached = (
            "",
            False,
        )  # the master's address, and whether the last nameserver heard of is settled
        self.exchanged = False  # the master's lease state has come in
        self.state: FollowerState | None = None  # where members are elected
        self.master_settings: Settings = {}  # as the master has told them
        # What is known of leases is about what the log holds; to be seen to before any of it is handed over.
        self.leases_fit = False
        self.adopted = 0  # queues that the store had made when topics were adopted last

    # Opening

    async def open_store(self) -> SlaveStore:
        """Open the store as soon as the replicator has recovered the log."""
        self.choose_dialect()
        reported = False
        while True:
            try:
                return SlaveStore.open(
                    self.root,
                    self.options.store_options,
                    committed=self.known_commit(),
                    machine=self.machine,
                )
            except NotRecovered as error:
                if not reported:
                    logger.info("waiting for the replicator: %s", error)
                    reported = True
            await asyncio.sleep(WAKE_POLL_S)

    def open_confirmed(self, file: ConfirmedFile) -> SlaveConfirmed:
        """Take up how far the log is confirmed."""
        if self.options.by_majority:
            store = self.store
            confirmed: SlaveConfirmed = CommittedSlave(
                self.page, file, written=lambda: store.visible_end, kept=store.intact_end
            )
        else:
            confirmed = SlaveConfirmed(self.page, file, written=self.log_end, kept=self.store.intact_end)

        def cut(log_end: int) -> None:
            confirmed.cut(log_end)
            self.timers.cut(log_end)
            self.leases_fit = False

        self.store.on_truncated = cut
        return confirmed

    def order_masters(self) -> None:
        """Note that there is a master, where roles are configured."""
        if not self.options.elects:
            self.context.takeovers.follow()

    # Serving

    def make_services(self) -> list[Service]:
        """Make the services, with what knows the master."""
        elector = self.context.elector
        self.master_address = (
            MasterAddress(self.page) if elector is None else MasterAddress(self.page, elector.plausible)
        )
        return super().make_services()

    def known_leader(self) -> str:
        """Return where the master serves; "" while nobody knows."""
        return self.master_grpc()

    def make_appender(self) -> ReadOnlyAppender:
        """Return what refuses all sends."""
        return ReadOnlyAppender(
            f"this is a slave of {self.options.name} and takes no writes: send to the master"
        )

    def replica_service(self) -> Service:
        """Return calls that send other slaves to the master."""
        return refusing_service("this broker is a slave: ask the master")

    def end_writing(self, reason: str, unconfirmed: Unconfirmed | None) -> None:
        """Nothing: no send waits at a slave, and no other broker has a stream to it."""

    # Working by itself

    def begin(self) -> None:
        """Follow the log, the metadata and the leases of the master."""
        context, counted = self.context, self.context.counted
        self.page.leader_file_size = 0  # another master may have other files
        self.kept_log = KeptLog(self.page, lambda: self.store.flushed)
        if context.elector is not None:
            context.elector.answers.waiting_below = self.waiting_below
            self.begun.callback(context.elector.answers.waits_nowhere)
        log = self.store if self.traces is None else self.traces.of_dispatch(self.store)
        self.dispatcher = LogDispatcher(log, self.page, self.loop)
        if counted is not None:
            self.dispatcher.on_step = lambda: counted.trail.note(self.page.written, self.machine.monotonic())
        self.dispatcher.start()
        self.begun.callback(self.dispatcher.stop)
        sharing = TopicSharing(context.topics, self.options.name, self.root, self.machine.files)
        state = self.state = None if context.elector is None else self.follow_state(sharing)
        self.metadata_sync = MetadataSync(
            context.topics,
            context.groups,
            context.delays,
            address=self.master_grpc,
            watch=self.watch_master,
            import_offsets=self.import_master_offsets,
            take_deleted_offsets=self.store.merge_deleted_offsets
            if state is None
            else self.store.take_deleted_offsets,
            take_given_offsets=self.store.take_given_offsets,
            confirmed=self.confirmed.learn,
            timers=self.timers.offer,
            log_begin=self.kept_log.learn,
            sharing=sharing,
            check=nothing if state is None else state.check,
            applied=nothing if state is None else state.applied,
        )
        self.lease_sync = LeaseSync(address=self.master_grpc, exchange=self.exchange_leases)
        self.introduction = Introduction(self.page, address=self.master_grpc, introduce=self.introduce)
        for work in (self.metadata_sync.run(), self.lease_sync.run(), self.introduction.run()):
            self.begun.push_async_callback(start_task(work))
        super().begin()

    def bell_rung(self) -> None:
        """Dispatch what has arrived."""
        self.introduction.look()
        self.dispatcher.log_grew()

    def sweep(self) -> None:
        """Let go of clients; take over what waited for the log; adopt topics while there is no master."""
        super().sweep()
        self.store.merge_given_offsets()
        self.kept_log.look()
        made = self.store.queues.made
        if made != self.adopted and not self.metadata_sync.synced:
            self.adopted = made
            adopt_topics(self.context.topics, self.store)

    def beat(self) -> None:
        """Show that the broker lives, and see whether the replicator has another connection."""
        super().beat()
        self.introduction.look()

    def master_grpc(self) -> str:
        """Return where the master serves; empty while nobody knows."""
        return self.master_address.grpc

    def hello(self) -> SlaveHello:
        """Return what this slave reports of itself when it connects."""
        return SlaveHello(
            name=self.options.name,
            broker_id=self.options.id,
            log_end=self.store.written,
            epoch=self.promised() if self.state is not None else 0,
        )

    def promised(self) -> int:
        """Return the epoch that this member has promised on disk, 0 while that changes."""
        return self.page.sealed[0]

    def follow_state(self, sharing: TopicSharing) -> FollowerState:
        """Report what is stored of an elected leader's state, as soon as it is."""
        context, leases = self.context, self.consumption.lease_store
        source = MetadataSource(
            context.topics,
            context.groups,
            context.delays,
            context.offset_file,
            dict,
            self.store.queues.deleted_offsets,
            sharing=sharing,
        )
        state = FollowerState(
            leases,
            context.metadata_version,
            promised=self.promised,
            seat=lambda: self.page.seat,
            tables=lambda: tables_of(source.whole()),
        )
        leases.journal.sync_promptly(lambda: context.call_from_thread(state.synced))
        return state

    def watch_master(self, address: str) -> AsyncIterator[Metadata]:
        """Watch the master's metadata."""
        return watch_metadata(address, self.hello())

    async def introduce(self, address: str, replica_address: str) -> None:
        """Tell the master's broker where our replicator is connected, and how we are; learn its settings."""
        report = MemberReport(trouble=self.page.trouble, settings=self.settings())
        told = await introduce_replica(address, self.hello(), replica_address, report)
        self.master_settings = parse_settings(told)
        size = self.master_settings.get(LOG_FILE_SIZE, 0)
        self.page.leader_file_size = size if isinstance(size, int) and 0 <= size < 1 << 62 else 0

    def settings(self) -> str:
        """Return what this slave tells of its settings, as JSON."""
        return settings_text(self.options, self.page.file_size)

    def unequal_settings(self) -> Sequence[str]:
        """Return which settings differ, of our replicator and of the master."""
        of_master = differences(parse_settings(self.settings()), self.master_settings, "the master")
        return [*super().unequal_settings(), *([of_master] if of_master else [])]

    async def exchange_leases(self, address: str) -> None:
        """Run one stream of lease entries to the master."""
        if not self.leases_fit and not self.votes():
            await self.fit_leases()
        await sync_leases(
            address,
            self.hello(),
            self.consumption.lease_store,
            exchanged=self.lease_state_exchanged,
            takeovers=self.context.takeovers,
            state=self.state,
        )

    def votes(self) -> bool:
        """Tell whether this member votes, once its replicator has said so.

        It has lost nothing that was committed then, and knows of the leases of nothing else.
        """
        return self.options.elects and bool(self.promised() and self.page.votes)

    async def fit_leases(self) -> None:
        """Forget what is known of offsets that the log does not hold: a master gives them to other messages.

        Where a majority commits, this log may hold more than is known to be committed: queues show that part
        as soon as the master says so, or it is cut.

        Raises:
            NotReady: the queues are not made as far as the log goes, or the disk is too slow; try again.
            StoreFull: the disk has no room.
        """
        positions, store = self.consumption.positions, self.store
        end = store.written
        await within_looks(
            lambda: store.dispatched >= min(end, store.written), "the queues are still being made"
        )
        if found := positions.beyond_log():
            if self.options.elects:
                self.context.metadata_version.lose_leases(f"its log lacks messages of {len(found)} queues")
            positions.forget_beyond_log()
            for _ in range(JOURNAL_FILES):
                await within_looks(self.consumption.lease_store.journal.rewrite, "the disk is slow or full")
        self.leases_fit = True

    def waiting_below(self, begin: int) -> int:
        """Return how many messages wait whose records stand below an offset: delayed ones, and halves of
        transactions that are not known to be decided."""
        store, delays, half = self.store, self.context.delays, 0
        with contextlib.suppress(OffsetNotFound):
            half = self.consumption.positions.get_offset(TRANSACTION_GROUP, HALF_TOPIC, 0)
        levels = (
            store.count_below(SCHEDULE_TOPIC, queue_id, delays.position(queue_id + 1), begin)
            for queue_id in range(len(store.delays_ms))
        )
        return store.count_below(HALF_TOPIC, 0, half, begin) + sum(levels) + self.timers.waiting_below(begin)

    def import_master_offsets(self, offsets: dict[tuple[str, str], dict[int, int]]) -> None:
        """Take over positions from the master's table, until its lease state has come in."""
        if not self.exchanged:
            self.offsets.adopt(offsets)

    def lease_state_exchanged(self, done: bool) -> None:  # a callback's only argument
        """Learn that the master's lease state has come in, or that the stream is over."""
        self.exchanged = done
        if done:
            self.metadata_sync.hurry()

    def members_changed(self, nameserver: str, members: tuple[Member, ...], settled: bool) -> None:
        """Take a nameserver's answer."""
        self.master_address.update(members)
        if self.context.leader_calls is not None:
            self.context.leader_calls.follow(self.master_grpc())
        if (self.master_grpc(), settled) != self.reached:
            self.reached = (self.master_grpc(), settled)
            self.lease_sync.hurry()
            self.metadata_sync.hurry()
            self.introduction.hurry()
        ids = frozenset(member.broker_id for member in members)
        if ids != self.group.get(nameserver, frozenset()):
            # A master that comes back asks at once how far its slaves are: not as of the last renewal.
            self.facts_changed()
        self.group[nameserver] = ids

        self.note_master(nameserver, registered=0 in ids or not settled)

    def nameserver_lost(self, nameserver: str) -> None:
        """Forget what a nameserver said that is gone."""
        self.group.pop(nameserver, None)
        self.note_master(nameserver, registered=True)

    def note_master(self, nameserver: str, *, registered: bool) -> None:
        """Take note of a nameserver that knows no master, or no longer.

        Policies are made anew then: the log may go another way under the next master.
        """
        if registered:
            self.masterless.discard(nameserver)
        else:
            self.masterless.add(nameserver)
        if self.may_order() != self.orders:
            self.orders = not self.orders
            if (
                self.orders
            ):  # receives come here now, from clients that may not have got the master's last answer
                self.consumption.table.taken_over()
            logger.info(
                "ordered groups are served %s", "here: there is no master" if self.orders else "by the master"
            )
            self.consumption.renew_policies()

    def may_order(self) -> bool:
        """Tell whether ordered groups are served here: nobody else does while no master is registered.

        All nameservers that were heard of must say so, at least one, and each must know its group.
        """
        return bool(self.group) and self.masterless.issuperset(self.group)

    def displaced(self, nameserver: str, address: str) -> None:
        """Nothing: the id of a slave gives it no right that another one could take."""

    def topics_shared(self, nameserver: str, shared: SharedTopics) -> None:
        """Nothing: a slave takes no sends."""

    # Views

    def readiness(self) -> list[Condition]:
        """A slave is ready while its replicator is connected to the master's."""
        page = self.page
        if not page.replica_alive(self.machine.monotonic_ns()):
            return [Condition("connected", False, "the replicator beside this broker does not run")]
        met = bool(page.connected)
        return [Condition("connected", met, "" if met else page.trouble or NOT_CONNECTED)]

    def replication(self) -> ReplicationView:
        """Return the state of replication, with the master's address and whether it is connected."""
        view, page = super().replication(), self.page
        return replace(
            view,
            ha_address=page.master_ha,
            connected=bool(page.connected) and view.replicator_alive,
        )

    def role_metrics(self, counted: Counted) -> list[Family]:
        """Return the metrics of a slave."""
        return slave_metrics(self.store, self.context.leader_calls, counted)
