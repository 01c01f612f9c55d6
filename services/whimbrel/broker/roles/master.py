"""A broker that leads its group: it writes the log, and its tables and lease state count.

A master that has just started takes no writes and keeps receives waiting until it leads
(`cluster/leadership.py`). Then what the lease state says about messages that the log lost is cut, and both
are let go.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from whimbrel.broker import metrics
from whimbrel.broker.addresses import ha_address
from whimbrel.broker.api.messaging import Handle
from whimbrel.broker.api.recall import RecallService
from whimbrel.broker.api.send import SendService
from whimbrel.broker.api.transactions import TransactionService
from whimbrel.broker.background import start_task, start_timer
from whimbrel.broker.cluster.agreement import settings_text
from whimbrel.broker.cluster.known_slaves import KnownSlaves
from whimbrel.broker.cluster.leader_state import LeaderState
from whimbrel.broker.cluster.leadership import LIVE_WAIT_S, REST_WAIT_S, Leadership
from whimbrel.broker.cluster.member_reports import MemberReport, MemberReports
from whimbrel.broker.cluster.metadata import ROUND_S, MetadataSource
from whimbrel.broker.cluster.replica_service import (
    LeaseStreams,
    MetadataWatches,
    replica_service,
    tables_from,
)
from whimbrel.broker.cluster.write_admission import ElectedAdmission, WriteAdmission
from whimbrel.broker.consume.unread_queues import UnreadQueues
from whimbrel.broker.counted import MESSAGE_BYTES, Counted
from whimbrel.broker.engine.detours import DelayDetour, HalfDetour
from whimbrel.broker.engine.ends import Ends
from whimbrel.broker.engine.recalls import Recalls
from whimbrel.broker.engine.send_back import SendBacks
from whimbrel.broker.lane.acks import LaneAcks
from whimbrel.broker.lane.calls import BrokerLane
from whimbrel.broker.lane.requests import RemotingSendLane
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.produce.appender import Appender
from whimbrel.broker.produce.commit import MajorityCommit
from whimbrel.broker.produce.confirmed_offset import ConfirmedFile, MajorityConfirmed, MasterConfirmed
from whimbrel.broker.produce.dead_letters import DeadLetters
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.remoting.replies import Replies
from whimbrel.broker.remoting.send_back import SendBackRequests
from whimbrel.broker.remoting.sends import SendRequests
from whimbrel.broker.remoting.transactions import EndTransactions
from whimbrel.broker.roles.context import BrokerContext
from whimbrel.broker.roles.epochs import begin_epoch
from whimbrel.broker.roles.held_answers import HeldAnswers
from whimbrel.broker.roles.role import Role, Unconfirmed
from whimbrel.broker.roles.upkeep import LogUpkeep
from whimbrel.broker.tables.adoption import adopt_topics
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.timing.levels import Levels
from whimbrel.broker.transactions.transactions import Transactions
from whimbrel.errors import NoReplica, NotReady, NotWritable, StoreError, Throttled
from whimbrel.metrics import Family
from whimbrel.model.group_record import GroupRecord
from whimbrel.model.registration import BrokerRole, Member, SharedTopics
from whimbrel.model.replication import ReplicationView, SlaveView
from whimbrel.model.topic import MessageType
from whimbrel.probes import Condition
from whimbrel.rpc.remoting.handlers import Handle as RemotingHandle
from whimbrel.rpc.server.forwarder import Forwarder
from whimbrel.rpc.server.handlers import RemotingService, Service
from whimbrel.rpc.server.lanes import CallLane, RemotingLane
from whimbrel.store.codec import unpack_host
from whimbrel.store.locking import is_locked
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import Retention
from whimbrel.store.page_cells import SLAVES_MAX

__all__ = ["MasterRole"]

logger = logging.getLogger(__name__)

# Receives wait no longer for leadership: without a nameserver they are served from what is known here.
HOLD_S = 5.0
MS_PER_HOUR = 3_600_000
GIVE_UP_S, GIVE_UP_POLL_S = 5.0, 0.005  # for the replicator to flush and close a log that we are to write
REFUSED_FRESH_NS = 5_000_000_000  # a slave's replicator that is refused comes back every 2 s


class MasterRole(Role):
    """Takes writes, and serves slaves."""

    NAME: ClassVar[BrokerRole] = "master"
    store: MasterStore
    confirmed: MasterConfirmed
    appender: Appender
    sharing: TopicSharing

    def __init__(self, context: BrokerContext, options: BrokerOptions) -> None:
        """Prepare; nothing is opened."""
        super().__init__(context, options)
        self.published_ha_address = ""
        self.state: LeaderState | None = None  # of a leader that was elected
        self.broker_lane: BrokerLane | None = None  # once it serves, with the compiled lane
        self.tables_taken = False  # another member's were newer
        self.led = False  # it has begun to lead, at some time
        self.taking = False  # sends were taken when this broker looked last
        self.refused = False  # they were refused after that, at some time
        self.clamped = 0  # queues of which leases went beyond the log when this leader began to serve

    # Opening

    async def open_store(self) -> MasterStore:
        """Lock and recover the log; this raises its epoch."""
        self.choose_dialect()
        if self.term is not None:
            await self.log_given_up()
        store = MasterStore.open(
            self.root,
            self.options.store_options,
            clock=self.machine.wall_ms,
            committed=self.known_commit(),
            by_member=self.options.elects,
            machine=self.machine,
        )
        if self.options.by_majority:
            try:
                begin_epoch(store, self.options.voter_ids, self.term)
            except BaseException:
                store.close(clean=False)
                raise
        return store

    async def log_given_up(self) -> None:
        """Wait for the replicator beside, which has the log, to give it up.

        Raises:
            StoreError: it has not within `GIVE_UP_S`.
        """
        deadline = self.loop.time() + GIVE_UP_S
        while is_locked(self.root, self.machine.files):
            if self.loop.time() > deadline:
                raise StoreError(f"the replicator beside has not given up the log within {GIVE_UP_S:.0f} s")
            await asyncio.sleep(GIVE_UP_POLL_S)

    @property
    def term(self) -> GroupRecord | None:
        """The record under which this broker was elected; None where roles are configured."""
        elector = self.context.elector
        return None if elector is None else elector.takeover.term

    @property
    def voters(self) -> frozenset[int]:
        """Ids of the members whose copies count."""
        return self.options.voter_ids if self.term is None else frozenset(dict(self.term.voters))

    def open_confirmed(self, file: ConfirmedFile) -> MasterConfirmed:
        """Take up how far the log is confirmed."""
        options = self.options
        kind = MajorityConfirmed if options.by_majority else MasterConfirmed
        return kind(
            self.page,
            file,
            self.loop,
            written=lambda: self.page.written,  # not what this tick has appended and not shown yet
            kept=self.store.visible_end if options.by_majority else self.store.intact_end,
            fallbehind_max=options.slave_fallbehind_max_bytes,
            synchronous=options.replication == "sync",
            expected_slaves=options.expected_slaves,
        )

    # Serving

    def make_appender(self) -> Appender:
        """Return the log's only appender."""
        options = self.options
        commit = None
        if options.by_majority:
            commit = MajorityCommit(
                self.store,
                self.page,
                member=options.id,
                voters=self.voters,
                sync_flush=options.flush == "sync",
                fallbehind_max=options.slave_fallbehind_max_bytes,
            )
        appender = Appender(
            self.store,
            self.page,
            options.durability,
            self.loop,
            ring=self.ring_replicator,
            soon=self.context.read_end.soon,
            commit=commit,
            counted=self.context.counted,
        )
        if self.options.flush == "sync":
            self.store.on_flushed = self.flushed
        self.store.writer.on_failed = self.log_failed
        if self.context.counted is not None:
            self.store.writer.on_flush_timed = self.context.counted.flushes.observe
        appender.on_tick = self.confirmed.log_grew
        return appender

    def make_services(self) -> list[Service]:
        """Make the services; receives wait until this broker leads."""
        options = self.options
        self.state = self.open_state()
        others = len(self.voters) // 2 if self.term is not None else options.expected_slaves
        admission = (WriteAdmission if self.term is None else ElectedAdmission)(
            name=options.name,
            expected_slaves=others,
            nameservers=len(options.nameservers),
            first_end=self.store.written,
        )
        self.known_slaves = KnownSlaves(self.page, self.root, self.machine.files)
        self.leadership = Leadership(
            admission,
            name=options.name,
            expected_slaves=others,
            live_wait_s=LIVE_WAIT_S if self.term is None else REST_WAIT_S,
            log_end=self.log_end,
            merged=self.merged_slaves,
            on_change=self.leadership_changed,
            uncommitted=self.uncommitted_refusal,
            unmerged=str if self.state is None else self.state.missing,
        )
        self.sharing = TopicSharing(self.context.topics, options.name, self.root, self.machine.files)
        if self.state is not None:
            self.metadata_majority, self.leases_majority = self.state.metadata, self.state.leases
        self.forwarder = Forwarder()
        self.opened.push_async_callback(self.forwarder.close)
        services = super().make_services()
        self.open_upkeep()
        self.appender.refusal = self.leadership.refusal
        internal = self.internal = InternalAppender(
            self.context.topics,
            self.appender,
            store_host=lambda: self.sends.policy.store_host,
            sealed=self.store.options.append_property_crc,
        )
        if self.traces is not None:
            by_majority = options.by_majority
            epoch = self.page.leader_epoch if by_majority else 0
            traces = self.traces.of_sends(
                self.store, self.context.call_from_thread, epoch, slaves=self.connected_slaves
            )
            self.appender.on_commit = traces.committed if by_majority else None
            self.sends.trace(traces, options.trace_ratio)
            internal.on_appended = traces.handed_on
        counted = self.context.counted
        letters = DeadLetters(internal, self.store, on_sent=None if counted is None else counted.gave_up)
        self.consumption.hand_ons.append = letters.hand_on
        self.open_timers(internal)
        self.open_transactions(internal)
        held = self.held_answers()
        return services if held is None else held.wrap(services)

    def make_remoting(self) -> RemotingService:
        """Make what is served by the remoting protocol, over the same parts."""
        service = super().make_remoting()
        held = self.held_answers()
        return service if held is None else held.wrap_remoting(service)

    def special_requests(self, sends: SendRequests) -> list[dict[int, RemotingHandle]]:
        """Return the handlers of requests of the remoting protocol that only a master serves."""
        context, store = self.context, self.store
        backs = SendBacks(
            self.creation,
            store,
            self.internal,
            levels=len(store.delays_ms),
            sent_back=context.traffic.sent_back,
            majority=self.metadata_majority,
            not_serving=self.not_serving,
        )
        back = SendBackRequests(backs)
        ends = EndTransactions(self.ends, context.remoting_clients, self.ending.ask)
        replies = Replies(
            sends,
            context.remoting_clients,
            clock=self.machine.wall_ms,
            store_host=lambda: unpack_host(self.sends.policy.store_host),
        )
        return [back.handles(), ends.handles(), replies.handles()]

    def held_answers(self) -> HeldAnswers | None:
        """Return what has answers wait for a majority; None where roles are configured."""
        if self.state is None:
            return None
        return HeldAnswers(self.state, why_not=self.not_serving)

    def open_upkeep(self) -> None:
        """Take what members say of themselves, and watch what retention does."""
        self.settings = settings_text(self.options, self.store.writer.file_size)
        self.members = members = MemberReports(self.settings)
        if self.appender.commit is not None:
            self.appender.commit.stalls = members.stalls
        self.appender.stalled_members = members.why
        store, page = self.store, self.page
        store.writer.retentions = lambda: (
            Retention.of(store.writer.options),
            page.replica_retention,
            *members.retentions(),
        )
        self.upkeep = LogUpkeep(self.options.name, store, self.consumption.table, self.machine)

    def order_masters(self) -> None:
        """Begin epochs of lease states above those of earlier masters."""
        leases, takeovers, term = self.consumption.lease_store, self.context.takeovers, self.term
        if term is None:
            takeovers.lead(leases.greatest_term)
        epoch = 0 if term is None else term.epoch
        leases.term = lambda: epoch + takeovers.count

    def open_state(self) -> LeaderState | None:
        """Return what keeps leases and metadata by a majority; None where roles are configured."""
        term, context, elector = self.term, self.context, self.context.elector
        if term is None or elector is None:
            return None
        leases = self.consumption.lease_store
        state = LeaderState(
            term,
            self.options.id,
            self.page.seat,
            leases=lambda: leases.number,
            leases_durable=lambda: leases.durable,
            file=context.metadata_version,
            take_tables=self.take_tables,
            clock=self.machine.monotonic,
            timeout_s=self.options.durability.slave_timeout_s,
            on_change=self.refresh_leadership,
        )
        leases.has_all = lambda: state.begun
        leases.journal.sync_promptly(lambda: context.call_from_thread(state.leases.advance))
        elector.own.state_holders = state.holders
        self.not_serving = self.about_to_lead
        return state

    def take_tables(self, tables: bytes) -> None:
        """Take over a member's tables as a whole, which are newer than ours."""
        context, metadata = self.context, tables_from(tables)
        self.tables_taken = True
        for table, text in ((context.topics, metadata.topics), (context.groups, metadata.groups)):
            if isinstance(text, str):
                table.replace_all(text)
        if metadata.deleted_offsets is not None:
            self.store.take_deleted_offsets(metadata.deleted_offsets)
        if metadata.shared_topics is not None:
            self.sharing.replace(metadata.shared_topics)
        if metadata.delay_offsets is not None:
            context.delays.replace(metadata.delay_offsets)

    def about_to_lead(self) -> str:
        """Return why an elected leader does not serve consumers and operators yet; "" once it does."""
        leadership = self.leadership
        if leadership.leads and not leadership.holds_for_commit:
            return ""
        return leadership.refusal or "this member is about to lead"

    def call_lane(self) -> CallLane | None:
        """Return what takes plain calls, where the compiled lane is active."""
        if not self.machine.lane.active:
            return None
        counted = self.context.counted
        self.broker_lane = BrokerLane(
            self.store.passes,
            self.store,
            self.sends,
            self.appender,
            self.context.clients,
            LaneAcks(self.settles),
            broker_name=self.options.name,
            size_bounds=MESSAGE_BYTES,
            on_calls=None if counted is None else counted.calls.observe_many,
            acks_wait_for=None if self.state is None else self.state.leases,
            not_serving=self.not_serving,
        )
        return self.broker_lane

    def request_lane(self) -> RemotingLane | None:
        """Return what takes plain requests of the remoting protocol, where the compiled lane is active."""
        lane = self.broker_lane
        return None if lane is None else RemotingSendLane(lane)

    def special_calls(self) -> dict[str, Handle]:
        """Return the handlers of calls about messages that are not plain ones."""
        return {
            "EndTransaction": lambda call, request: self.ending.end(call, request),
            "RecallMessage": lambda call, request: self.recalls.recall(call, request),
        }

    def send_calls(self) -> SendService:
        """Return what handles sends by gRPC; message groups may belong to other brokers."""
        return SendService(self.sends, self.machine.wall_ms, owners=self.sharing, forwarder=self.forwarder)

    def topics_shared(self, nameserver: str, shared: SharedTopics) -> None:
        """Take what a nameserver says of topics that other brokers have, too."""
        self.sharing.told(nameserver, shared)

    def open_timers(self, internal: InternalAppender) -> None:
        """Take delayed messages, and deliver what is due while writes are allowed."""
        options = self.options
        self.sends.detours[MessageType.DELAY] = DelayDetour(options.name, self.timers, self.machine.wall_ms)
        self.timers.lead(internal, may_deliver=lambda: not self.appender.refusal)
        self.levels = Levels(
            self.store,
            self.context.delays,
            self.timers,
            internal,
            may_deliver=lambda: not self.appender.refusal,
        )
        self.opened.callback(self.levels.close)
        recalls = Recalls(
            self.context.topics,
            self.timers,
            internal,
            broker_name=options.name,
            delay_max_ms=options.delay_max_ms,
            clock=self.machine.wall_ms,
        )
        self.recalls = RecallService(recalls, forwarder=self.forwarder, nameservers=self.context.known_by)

    def open_transactions(self, internal: InternalAppender) -> None:
        """Make what knows the transactions; it reads its queues when this broker leads."""
        options = self.options
        self.transactions = Transactions(
            self.store,
            internal,
            self.context.topics,
            self.consumption.positions,
            self.loop,
            wall_ms=self.machine.wall_ms,
            safe_end=lambda: min(self.confirmed.refresh(), self.store.flushed),
            timeout_ms=options.transaction_timeout_ms,
            checks_max=options.transaction_check_max,
            age_max_ms=int(options.reserved_hours * MS_PER_HOUR),
            levels=len(self.store.delays_ms),
        )
        producers = self.context.sessions.producers
        self.ends = Ends(self.transactions, self.store, producers)
        self.ending = TransactionService(
            self.ends, self.context.sessions, self.forwarder, self.context.known_by
        )
        self.sends.detours[MessageType.TRANSACTION] = HalfDetour(self.transactions, producers)
        self.moved_end = 0  # end of the log once retention had something stored again
        self.store.writer.before_removal = self.before_removal

    def waiting(self) -> tuple[int, int]:
        """Return how many delayed messages wait, those of the levels included, and how many transactions."""
        delayed, _ = super().waiting()
        return delayed + self.levels.waiting(), len(self.transactions.table)

    def before_removal(self, begin: int) -> int:
        """Store again what waits below an offset; return below which one log files may go now: none before
        what was stored again is as safe as what it stands for."""
        store, before = self.store, self.store.written
        needed = min(self.transactions.move_on(begin), self.timers.before_removal(begin))
        if store.written > before:
            self.moved_end = store.written
        if min(store.visible_end, store.flushed) < max(self.moved_end, self.timers.moves.moved_end):
            return 0
        return min(needed, store.visible_end)

    def replica_service(self) -> Service:
        """Return what slaves call."""
        context = self.context
        source = MetadataSource(
            context.topics,
            context.groups,
            context.delays,
            context.offset_file,
            self.consumption.positions.committed_offsets,
            self.store.queues.deleted_offsets,
            self.confirmed.refresh,
            self.store.given_offsets,
            self.timers.progress,
            self.sharing,
            lambda: (self.store.min_offset, self.store.written),
        )
        self.opened.callback(source.close)
        self.watches = MetadataWatches(
            self.options.name, source, authoritative=self.may_lead_slave, state=self.state
        )
        self.confirmed.on_move = self.watches.confirmed
        self.lease_streams = LeaseStreams(
            self.options.name,
            self.consumption.lease_store,
            settled=self.is_settled,
            authoritative=self.is_authoritative,
            shares_log=self.shares_log,
            on_merged=self.refresh_leadership,
            on_report=self.slave_reported,
            takeovers=self.context.takeovers,
            state=self.state,
        )
        return replica_service(self.watches, self.lease_streams, self.slave_introduced)

    def end_writing(self, reason: str, unconfirmed: Unconfirmed | None) -> None:
        """Answer sends that wait, and end the streams of slaves."""
        self.transactions.close()
        self.appender.close(reason, error=unconfirmed)
        if self.state is not None:
            self.state.close(reason)
        self.watches.close(NotReady(reason))
        self.lease_streams.close(NotReady(reason))
        self.known_slaves.save_news()

    # Working by itself

    def begin(self) -> None:
        """Start to lead when the group allows it."""
        if self.state is None:
            holding = self.loop.call_later(HOLD_S, self.takes.serve)
            self.begun.callback(holding.cancel)
        self.begun.callback(self.leadership.stop)
        self.leadership.begin(self.loop.time())
        self.begun.push_async_callback(start_timer(ROUND_S, self.watches.round))
        self.begun.push_async_callback(start_task(self.levels.run()))
        checks_s = self.options.transaction_check_interval_ms / 1000
        self.begun.push_async_callback(start_timer(checks_s, self.transactions.round))
        super().begin()

    def bell_rung(self) -> None:
        """Answer what the moved marks allow."""
        self.check_refused_slaves()
        self.known_slaves.slots_changed()
        self.appender.complete_waiting()
        if self.leadership.holds_for_commit:
            self.refresh_leadership()

    def ring_replicator(self) -> None:
        """Wake the replicator: the log has grown."""
        self.context.bell.ring("replicator")

    def flushed(self, _: int) -> None:
        """Complete waiting sends; called from the flush thread."""
        self.context.call_from_thread(self.appender.complete_waiting)

    def log_failed(self) -> None:
        """Get over a failed sync of the log; called from the flush thread."""
        self.context.call_from_thread(self.mend_log)

    def mend_log(self) -> None:
        """Answer who waits for a failed sync, and write again as soon as it can be done."""
        before, elector = self.writable, self.context.elector
        self.appender.log_failed()
        if elector is not None and self.store.writer.lost:
            elector.log_lost()
        if self.writable != before:
            self.page.writable = self.writable
            self.facts_changed()

    def beat(self) -> None:
        """Show that the broker lives, and see what time has changed."""
        self.known_slaves.beat()
        if self.store.failed:
            self.mend_log()
        super().beat()
        self.appender.complete_waiting()
        self.transactions.publish()
        if self.state is not None:
            self.state.beat()
        self.refresh_leadership()
        self.check_refused_slaves()
        self.upkeep.seen(dict(self.page.member_ends()))
        self.tell_refusal()

    def tell_refusal(self) -> None:
        """Log once that sends are refused which were taken before, and why; and once that they are again."""
        before, refusal = self.taking, self.send_refusal()
        self.taking = not refusal
        if before and refusal:
            logger.warning("%s refuses sends: %s", self.options.name, refusal)
        elif self.taking and not before and self.refused:
            logger.info("%s takes sends again", self.options.name)
        self.refused = self.refused or (before and bool(refusal))

    def send_refusal(self) -> str:
        """Return why sends are refused for what this broker, its disk or its group is; "" if they are not."""
        if not self.store.writable:
            return self.store.full_reason
        try:
            self.appender.check_writable()
        except (NotWritable, NoReplica) as error:
            return str(error)
        except Throttled:
            pass  # by how much comes in
        return ""

    def sweep(self) -> None:
        """Let go of clients; push lease entries that found no room; publish a new replicator's address."""
        super().sweep()
        self.lease_streams.push()
        address = self.ha_address
        if self.registration is not None and address != self.published_ha_address:
            self.published_ha_address = address
            self.registration.changed()

    # Leading

    def members_changed(self, nameserver: str, members: tuple[Member, ...], settled: bool) -> None:
        """Take a nameserver's answer."""
        self.known_slaves.seen(members)
        self.leadership.members_changed(nameserver, members, settled=settled, now=self.loop.time())

    def nameserver_lost(self, nameserver: str) -> None:
        """Forget what a nameserver said that is gone."""
        self.leadership.nameserver_lost(nameserver)
        self.sharing.lost(nameserver)

    def displaced(self, nameserver: str, address: str) -> None:
        """Learn which other broker holds our place at a nameserver."""
        self.leadership.displaced(nameserver, address)

    def slave_reported(self, connection: object, slave: Member | None) -> None:
        """Take a slave's own report of its log."""
        if slave is not None:
            self.known_slaves.seen((slave,))
        self.leadership.slave_reported(connection, slave, now=self.loop.time())

    def slave_introduced(self, broker_id: int, replica_address: str, peer: str, report: MemberReport) -> str:
        """Learn from where a slave's replicator is connected, since sends may wait for it to be counted, and
        how it is; return our settings."""
        self.known_slaves.introduced(broker_id, replica_address, peer=peer)
        self.members.take(broker_id, report, dict(self.page.member_ends()).get(broker_id, 0))
        self.appender.complete_waiting()
        return self.settings

    def uncommitted_refusal(self) -> str:
        """Return why no writes are taken before the log that we began with is committed; "" once it is."""
        commit = self.appender.commit
        if commit is None:
            return ""
        if commit.epoch_committed:
            return "" if self.state is None or not self.leadership.leads else self.state.unstored()
        near = commit.near(self.machine.monotonic_ns())
        return (
            f"the log is committed up to byte {self.store.visible_end} of {self.page.leader_start}, its end"
            f" at the start: {near} of the {commit.copies} members that a majority takes are there"
            f"{self.appender.why_stalled()}"
        )

    def refresh_leadership(self) -> None:
        """See what time, or a slave's state that has come in, has changed."""
        self.leadership.refresh(self.loop.time())

    def check_refused_slaves(self) -> None:
        """Take what our replicator reports of slaves whose log goes on beyond ours."""
        page = self.page
        fresh = page.refused_count and self.machine.monotonic_ns() - page.refused_at_ns < REFUSED_FRESH_NS
        ahead = fresh and page.refused_offset > self.store.written
        if ahead and self.known_slaves.knows(page.refused_peer):
            self.leadership.slave_refused(page.refused_peer, page.refused_offset, now=self.loop.time())

    def merged_slaves(self) -> int:
        """Return how many slaves have sent all that they know of leases."""
        return self.lease_streams.merged

    def is_settled(self) -> bool:
        """Tell whether the group is known."""
        return self.leadership.settled

    def is_authoritative(self) -> bool:
        """Tell whether slaves may take tables and lease state from here."""
        return self.leadership.authoritative

    def may_lead_slave(self, slave_log_end: int) -> bool:
        """Tell whether a slave whose log ends there may take metadata from here."""
        return self.leadership.authoritative and slave_log_end <= self.store.written

    def shares_log(self, slave: Member) -> bool:
        """Tell whether a slave's log is known to be a part of ours, or ours has not gone on in this term."""
        untouched = self.store.written == self.leadership.admission.first_end
        return untouched or self.known_slaves.acknowledges(slave)

    def refuse_writes(self, why: str) -> None:
        """Take no sends any more; this broker is about to lead no longer."""
        self.leadership.stop()
        self.appender.refusal = why
        self.page.writable = self.writable

    def leadership_changed(self) -> None:
        """Do what leading, or no longer being allowed to write, asks for."""
        if self.leadership.leads:
            if not self.led:
                self.led = True
                self.consumption.table.taken_over()  # what others have told of, before anything is handed out
            if self.state is not None and not self.state.begun:
                self.state.begin()
                self.lease_streams.tell_begun()
            self.lease_streams.push()
            if self.state is None:
                self.takes.serve()
        refusal = self.leadership.refusal
        if refusal == self.appender.refusal:
            return
        if not refusal:
            self.begin_serving()
            self.transactions.start()
            logger.info("%s takes writes from byte %d on", self.options.name, self.store.written)
            self.taking, self.refused = True, False
        self.appender.refusal = refusal
        self.page.writable = self.writable
        self.replays.forget()
        self.facts_changed()

    def begin_serving(self) -> None:
        """Cut what leases say beyond the log, and serve consumers.

        Of a leader that was elected none does, unless a majority has lost its power under asynchronous flush:
        consumers get what is committed only, and all that was is in this log.
        """
        clamped = self.consumption.positions.clamp_to_log()
        if self.state is None:
            return
        if clamped:
            self.clamped += clamped
            logger.error(
                "leases of %d queues went beyond the log of %s: a majority has lost messages that were seen",
                clamped,
                self.options.name,
            )
        if self.tables_taken:
            self.tables_taken = False
            adopt_topics(self.context.topics, self.store)
        self.takes.serve()

    # Views

    def readiness(self) -> list[Condition]:
        """A master is ready while it takes messages."""
        met = self.writable
        return [Condition("writable", met, "" if met else self.advice(replicator_alive=True))]

    @property
    def writable(self) -> bool:
        """Whether messages are taken now."""
        return not self.appender.refusal and self.store.writable

    @property
    def ha_address(self) -> str:
        """Where slaves dial the replicator beside us; empty while none listens."""
        return ha_address(self.options, self.page)

    def connected_slaves(self) -> int:
        """Return how many slaves are connected."""
        alive = self.page.replica_alive(self.machine.monotonic_ns())
        return len(self.page.count_slaves().slaves) if alive else 0

    def replication(self) -> ReplicationView:
        """Return the state of replication, with the connected slaves."""
        view, page = super().replication(), self.page
        newest = (slave.newest(page.acks) for slave in page.count_slaves().slaves)
        counted = {slot.number for slot in newest if slot is not None}
        slaves = tuple(
            SlaveView(
                peer=peer,
                acknowledged=page.acks[slot],
                sent=page.sent[slot],
                sent_bytes=page.sent_bytes[slot],
                connected_at_ms=page.connected_at_ms[slot],
                broker_id=page.slave_id(slot),
                uncounted=slot not in counted,
            )
            for slot in range(SLAVES_MAX)
            if view.replicator_alive and (peer := page.peer(slot))
        )
        needed = max(self.options.expected_slaves, self.options.durability.acks, len(self.voters) - 1)
        known = self.upkeep.ends
        return replace(view, slaves=slaves, expected_slaves=needed, known_ends=known)

    def advice(self, *, replicator_alive: bool) -> str:
        """Return why no writes are taken, or what else there is to know."""
        if self.appender.refusal:
            return self.appender.refusal
        if not self.store.writable:
            return f"the disk takes no more messages: {self.store.full_reason}"
        elector = self.context.elector
        return (
            super().advice(replicator_alive=replicator_alive)
            or ("" if self.state is None else self.state.trouble)
            or ("" if elector is None else elector.takeover.kept_elsewhere)
            or self.stalled_majority()
            or self.upkeep.advice()
        )

    def stalled_majority(self) -> str:
        """Return why sends are refused although a majority is connected; "" where they are not."""
        commit = self.appender.commit
        if commit is None or commit.near(self.machine.monotonic_ns()) >= commit.copies:
            return ""
        why = self.members.why()
        return f"sends are refused, since no majority would hold them: {why}" if why else ""

    def notes(self) -> tuple[str, ...]:
        """Return what is worth knowing: a disk that fills, and members that are away."""
        away: list[str] = []
        if self.options.by_majority and self.leadership.leads:
            connected = {member for member, _ in self.page.member_ends()}
            name, absent = self.options.name, self.voters - connected - {self.options.id}
            away = self.upkeep.away(
                absent, lambda member: f"whimbrel replication reinit {name} --member {member}"
            )
        ahead = self.upkeep.ahead
        unread = UnreadQueues(self.context.topics, self.consumption.positions, self.store).note()
        return (*super().notes(), *filter(None, (ahead, unread)), *away)

    def unequal_settings(self) -> Sequence[str]:
        """Return which settings differ, of our replicator and of members."""
        return [*super().unequal_settings(), *self.members.unequal()]

    def run_retention(self) -> None:
        """Remove files that may go, and see what is ahead."""
        super().run_retention()
        self.upkeep.look()

    def role_metrics(self, counted: Counted) -> list[Family]:
        """Return the metrics of a master."""
        found = [
            *metrics.master_metrics(self.store, self.appender, self.forwarder, counted),
            *metrics.upkeep_metrics(self.upkeep),
            *metrics.transaction_metrics(self.transactions),
        ]
        if self.state is not None:
            found += metrics.state_metrics(self.state, lambda: self.clamped)
        return found
