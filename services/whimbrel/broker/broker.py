"""One broker process: a list of set-up steps, and its reverse.

    store -> tables -> consumer -> traces -> services -> transport -> registration -> housekeeping -> metrics
    -> ready file

A master that has just started takes no writes and keeps receives waiting until it leads (`leading.py`). Then
what the lease state says about messages that the log lost is cut, and both are let go.
"""

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whimbrel.broker.api.admin import AdminService, ReplicationView, SlaveView
from whimbrel.broker.api.assignments import Assignments
from whimbrel.broker.api.bulk import BulkService
from whimbrel.broker.api.messaging import messaging_service
from whimbrel.broker.api.receive import ReadSplitting, ReceiveService
from whimbrel.broker.api.replay import ReplayService
from whimbrel.broker.api.route import RouteService
from whimbrel.broker.api.send import SendService
from whimbrel.broker.api.session import SessionService
from whimbrel.broker.cluster.leadership import Leadership
from whimbrel.broker.cluster.log_dispatcher import LogDispatcher, MasterAddress
from whimbrel.broker.cluster.metadata import ROUND_S, MetadataSource
from whimbrel.broker.cluster.metadata_sync import LeaseSync, MetadataSync
from whimbrel.broker.cluster.registration import Registration
from whimbrel.broker.cluster.replica_service import (
    SERVICE as REPLICA_SERVICE,
)
from whimbrel.broker.cluster.replica_service import (
    LeaseStreams,
    MetadataWatches,
    SlaveHello,
    sync_leases,
    watch_metadata,
)
from whimbrel.broker.cluster.write_admission import WriteAdmission
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.broker.metrics import Counted, expose
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.produce.appender import Sender
from whimbrel.broker.produce.confirmed_offset import ConfirmedFile, MasterConfirmed, SlaveConfirmed
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.offset_files import EXPORT_INTERVAL_S, DelayOffsets, OffsetFile
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import NotRecovered, StoreError, StoreFull
from whimbrel.model.registration import BrokerFacts, Member, replicator_host
from whimbrel.rpc.api.calls import Metadata, Outbound
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.handlers import Service
from whimbrel.rpc.server.limits import RunningServer
from whimbrel.rpc.server.serving import serve
from whimbrel.store.codec import pack_host
from whimbrel.store.shared_page import SLAVES_MAX
from whimbrel.store.store import MessageStore
from whimbrel.telemetry import write_ready_file
from whimbrel.wakeup import WAKE_POLL_S, Doorbell

if TYPE_CHECKING:
    from whimbrel.broker.record_traces import BrokerTraces

__all__ = ["Broker"]

logger = logging.getLogger(__name__)

BEAT_S = 0.5  # of the page; the replicator takes a broker for dead after 3 s
SWEEP_S = 1.0  # of clients
SAVE_CONFIRMED_S = 5.0
RETENTION_S = 10.0  # RocketMQ's cleanResourceInterval
HOLD_S = 5.0  # receives wait no longer for this: without a nameserver they are served from what is known here
REFUSED_FRESH_NS = 5_000_000_000  # a slave's replicator that is refused comes back every 2 s
CANCEL_AGAIN_S = 0.5  # tasks end at once; one that has missed its cancellation gets another
WILDCARDS = ("", "0.0.0.0", "::")  # compared with, not listened on

Undo = Callable[[], Awaitable[None] | None]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Broker:
    """A broker with all its parts. `start`, then `stop`, both on a running loop."""

    def __init__(self, options: BrokerOptions) -> None:
        """Prepare; nothing is opened."""
        self.options = options
        self.master = options.role == "master"
        self.root = Path(options.store)
        self.loop = asyncio.get_running_loop()
        position = WriteAdmission(
            options.role,
            name=options.name,
            expected_slaves=options.expected_slaves,
            nameservers=len(options.nameservers),
        )
        self.leading = Leadership(
            position,
            name=options.name,
            expected_slaves=options.expected_slaves,
            log_end=lambda: self.store.written,
            merged=lambda: self.lease_streams.merged,
            on_change=self.lead,
        )
        self.group: dict[str, frozenset[int]] = {}  # slave: the ids of its group, by nameserver
        self.exchanged = False  # slave: the master's lease state has come in
        self.undo: list[Undo] = []
        self.registration: Registration | None = None
        self.counted = Counted() if options.metrics_port >= 0 else None
        self.metrics_address = ""

    async def start(self) -> None:
        """Run the steps; a failure undoes those that were done."""
        try:
            await self.open_store()
            self.open_tables()
            self.open_consumer()
            self.open_traces()
            services = self.make_services()
            await self.serve(services)
            self.follow()
            self.register()
            self.keep_house()
            self.expose()
        except BaseException:
            await self.stop()
            raise
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not look at it again
        self.announce()

    async def stop(self) -> None:
        """Undo the steps that were done, last first."""
        while self.undo:
            undone = self.undo.pop()()
            if undone is not None:
                await undone

    # Steps

    async def open_store(self) -> None:
        """Open the store; a slave waits until its replicator has recovered the log."""
        (self.root / "whimbrel").mkdir(parents=True, exist_ok=True)
        self.undo.append(only_broker(self.root))
        self.bell = Doorbell(self.root, "broker")
        self.undo.append(self.bell.close)
        options = self.options.store_options
        if self.master:
            self.store = MessageStore.open_master(self.root, options, clock=now_ms)
        else:
            self.store = await self.open_slave_store()
        self.undo.append(self.store.close)
        self.page = self.store.page
        self.page.broker_pid = os.getpid()
        self.page.broker_name, self.page.broker_id = self.options.name, self.options.id
        self.page.broker_beat_ns = time.monotonic_ns()
        self.page.broker_sleeping = 0
        self.confirmed = self.open_confirmed()
        self.undo.append(self.confirmed.close)

    def open_confirmed(self) -> MasterConfirmed | SlaveConfirmed:
        """Take up how far the log is confirmed."""
        options, store, file = self.options, self.store, ConfirmedFile(self.root)
        if self.master:
            return MasterConfirmed(
                self.page,
                file,
                self.loop,
                written=lambda: store.written,
                kept=store.kept,
                fallbehind_max=options.slave_fallbehind_max_bytes,
                synchronous=options.replication == "sync",
                expected_slaves=options.expected_slaves,
            )
        confirmed = SlaveConfirmed(self.page, file, written=lambda: store.written, kept=store.kept)
        store.on_cut = confirmed.cut
        return confirmed

    async def open_slave_store(self) -> MessageStore:
        told = False
        while True:
            try:
                return MessageStore.open_slave(self.root, self.options.store_options, clock=now_ms)
            except NotRecovered as error:
                if not told:
                    logger.info("waiting for the replicator: %s", error)
                    told = True
            await asyncio.sleep(WAKE_POLL_S)

    def open_tables(self) -> None:
        options = self.options
        config = self.root / "config"
        self.topics = TopicTable(
            config,
            cluster=options.cluster,
            broker_name=options.name,
            auto_create=options.auto_create_topics,
            clock=now_ms,
        )
        self.topics.adopt(self.store.topics_on_disk())
        self.groups = GroupTable(config, auto_create=options.auto_create_groups, clock=now_ms)
        self.offset_file = OffsetFile(config)
        self.delays = DelayOffsets(config)

    def open_consumer(self) -> None:
        self.clients = Clients()
        self.consumer = GroupConsumption(
            self.store,
            LeaseJournal(self.root),
            broker_name=self.options.name,
            broker_id=self.options.id,
            now_ms=now_ms,
            schedule=self.schedule,
            client_alive=lambda group, client: self.clients.alive(client),
            follows=not self.master,
        )
        self.consumer.open()
        self.import_offsets(self.stored_offsets())
        self.undo.append(self.export_offsets)  # not before: it would write over a file that can't be read
        self.store.on_arrival = self.consumer.on_arrival

    def open_traces(self) -> None:
        self.traces: BrokerTraces | None = None
        if self.options.trace_to:
            from whimbrel.broker import record_traces  # OpenTelemetry: 100 ms and 10 MB

            self.traces = record_traces.BrokerTraces(self.options, self.store)
            self.undo.append(self.traces.close)

    def stored_offsets(self) -> dict[tuple[str, str], dict[int, int]]:
        try:
            return self.offset_file.load()
        except StoreError as error:
            if not self.consumer.committed_offsets():
                raise  # a store that RocketMQ has used: nothing else knows how far its groups are
            logger.warning("going on with the offsets of the lease journal: %s", error)
            return {}

    def schedule(self, at_ms: int, callback: Callable[[], None]) -> None:
        delay_ms = at_ms - now_ms()
        if delay_ms <= 0:
            self.loop.call_soon(callback)
        else:
            self.loop.call_later(delay_ms / 1000, callback)

    def import_offsets(self, offsets: dict[tuple[str, str], dict[int, int]]) -> None:
        for (topic, group), queues in offsets.items():
            for queue_id, offset in queues.items():
                if offset >= 0:
                    self.consumer.import_offset(group, topic, queue_id, offset)

    def export_offsets(self) -> None:
        try:
            self.offset_file.save(self.consumer.committed_offsets(), now_ms())
        except (OSError, StoreFull) as error:  # the lease journal has them as well
            logger.warning("the consumer offsets can't be written: %s", error)

    def make_services(self) -> list[Service]:
        options, master = self.options, self.master
        self.sender = Sender(
            self.store,
            self.page,
            options.durability,
            self.loop,
            ring=lambda: self.bell.ring("replicator"),
        )
        self.sender.refusal = self.leading.refusal
        if master and options.flush == "sync":
            self.store.on_flushed = lambda _: self.from_thread(self.sender.settle)
        self.sends = SendService(
            self.topics, self.sender, cluster=options.cluster, store_host=self.store_host(options.port),
            clock=now_ms,
        )  # fmt: skip
        if self.traces is not None and master:
            self.sends.trace(self.traces.of_sends(self.from_thread), options.trace_ratio)
        self.receives = ReceiveService(
            self.topics,
            self.groups,
            self.consumer,
            ReadSplitting(enabled=options.slave_read_enable, written=lambda: self.store.written),
            master=master,
            clock=now_ms,
        )
        if self.counted is not None:
            self.count(self.counted)
        self.sessions = SessionService(self.clients, self.groups, self.consumer, clock=time.monotonic)
        self.metadata = MetadataSource(
            self.topics, self.groups, self.delays, self.offset_file, self.consumer.committed_offsets,
            self.store.queues.floors, self.confirmed.look,
        )  # fmt: skip
        self.watches = MetadataWatches(
            options.name,
            self.metadata,
            authoritative=lambda log_end: self.leading.authoritative and log_end <= self.store.written,
        )
        if isinstance(self.confirmed, MasterConfirmed):
            self.confirmed.on_move = self.watches.confirmed
            self.sender.on_tick = self.confirmed.note
        self.lease_streams = LeaseStreams(
            options.name,
            self.consumer.lease_store,
            settled=lambda: master and self.leading.position.settled,
            authoritative=lambda: self.leading.authoritative,
        )
        if master:
            self.lease_streams.on_merged = lambda: self.leading.look(self.loop.time())
            self.lease_streams.on_report = lambda connection, slave: self.leading.reported(
                connection, slave, now=self.loop.time()
            )
        self.replays = ReplayService(
            self.topics,
            self.sender,
            self.store,
            master=master,
            accepts=options.accept_replays,
            store_host=lambda: self.sends.store_host,
        )
        admin = AdminService(
            self.topics,
            self.groups,
            self.consumer,
            self.clients,
            self.store,
            master=master,
            replication=self.replication,
            wall_ms=lambda at: now_ms() - int((time.monotonic() - at) * 1000),
        )
        messaging = messaging_service(
            routes=RouteService(
                self.topics,
                self.groups,
                Assignments(self.ask_nameserver),
                name=options.name,
                master=master,
                ports=lambda: frozenset((self.server.port, options.advertise_port)),
            ),
            sends=self.sends,
            receives=self.receives,
            sessions=self.sessions,
            clients=self.clients,
            clock=time.monotonic,
        )
        replica = Service(REPLICA_SERVICE, (self.watches.method(), self.lease_streams.method()))
        bulk = BulkService(
            self.topics,
            self.store,
            confirmed=self.confirmed.look,
            name=options.name,
            broker_id=options.id,
            master=master,
        )
        return [messaging, admin.service(self.replays.methods()), replica, bulk.service()]

    def from_thread(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(callback)

    async def serve(self, services: list[Service]) -> None:
        if self.master:
            self.receives.hold()
        self.server: RunningServer = await serve(
            services,
            host=self.options.host,
            port=self.options.port,
            heard=None if self.counted is None else self.counted.calls.take,
            tls=TlsSettings(
                certificate=self.options.tls_certificate,
                key=self.options.tls_key,
                directory=self.root / "whimbrel",
            ),
            transport=self.options.transport,
        )
        self.undo.append(self.stop_serving)
        self.sends.store_host = self.store_host(self.server.port)
        self.loop.add_reader(self.bell.fileno(), self.rung)
        self.undo.append(self.stop_listening)

    def stop_listening(self) -> None:
        self.loop.remove_reader(self.bell.fileno())

    async def stop_serving(self) -> None:
        """Take no new calls, answer those that wait, and end the rest."""
        self.leading.stop()
        stopping = asyncio.ensure_future(self.server.stop())
        await asyncio.sleep(0)
        self.sender.close("the broker is stopping")
        self.receives.release()
        self.consumer.close()
        await stopping

    def rung(self) -> None:
        self.bell.drain()
        if self.master:
            self.look_at_refusals()
            self.sender.settle()
        else:
            self.follower.rung()

    def follow(self) -> None:
        """Slave: follow the log, the metadata and the leases of the master."""
        self.address = MasterAddress(self.page)
        if self.master:
            return
        self.follower = LogDispatcher(
            self.store if self.traces is None else self.traces.of_dispatch(), self.page, self.loop
        )
        if self.counted is not None:
            trail = self.counted.trail
            self.follower.on_step = lambda: trail.note(self.page.written, time.monotonic())
        self.follower.start()
        self.undo.append(self.follower.stop)
        self.metadata_sync = metadata = MetadataSync(
            self.topics,
            self.groups,
            self.delays,
            address=lambda: self.address.grpc,
            watch=lambda address: watch_metadata(address, self.hello()),
            import_offsets=lambda offsets: None if self.exchanged else self.import_offsets(offsets),
            raise_floors=self.store.raise_floors,
            confirmed=self.told_confirmed,
        )
        leases = LeaseSync(
            address=lambda: self.address.grpc,
            exchange=lambda address: sync_leases(
                address, self.hello(), self.consumer.lease_store, exchanged=self.note_exchange
            ),
        )
        for work in (metadata.run(), leases.run()):
            self.undo.append(ending(asyncio.create_task(work)))

    def told_confirmed(self, offset: int) -> None:
        assert isinstance(self.confirmed, SlaveConfirmed)
        self.confirmed.told(offset)

    def hello(self) -> SlaveHello:
        return SlaveHello(name=self.options.name, broker_id=self.options.id, log_end=self.store.written)

    def note_exchange(self, done: bool) -> None:  # a callback's only argument
        self.exchanged = done
        if done:
            self.metadata_sync.hurry()

    def register(self) -> None:
        """Keep the nameservers informed; without any, a master leads by itself."""
        holding = self.loop.call_later(HOLD_S, self.receives.release)
        self.undo.append(holding.cancel)
        if self.master:
            self.leading.begin(self.loop.time())
        if not self.options.nameservers:
            return
        self.registration = Registration(
            self.options.nameservers,
            facts=self.facts,
            on_members=self.heard,
            on_lost=self.lost,
            on_displaced=self.leading.displaced,
        )
        self.topics.on_change.append(self.registration.changed)
        self.registration.start()
        self.undo.append(self.registration.stop)

    def keep_house(self) -> None:
        jobs: tuple[tuple[float, Callable[[], object]], ...] = (
            (BEAT_S, self.beat),
            (SWEEP_S, self.sweep),
            (SAVE_CONFIRMED_S, self.confirmed.save),
            (RETENTION_S, lambda: self.store.run_retention(now_ms())),
            (ROUND_S, self.watches.round),
        )
        for interval_s, job in jobs:
            self.undo.append(ending(asyncio.create_task(every(interval_s, job))))
        self.undo.append(ending(asyncio.create_task(self.export_forever())))

    def expose(self) -> None:
        """Serve metrics, where they are switched on."""
        if self.counted is None:
            return
        exposition = expose(self, self.counted)
        self.undo.append(exposition.close)
        self.metrics_address = exposition.address

    def count(self, counted: Counted) -> None:
        """Have everything that is counted on the way counted."""
        self.sender.on_appended = counted.appended
        self.receives.on_delivered = counted.took
        if self.store.writer is not None:
            self.store.writer.on_flush_timed = counted.flushes.observe

    def announce(self) -> None:
        options = self.options
        logger.info(
            "%s %s (id %d) serves at %s, log %d to %d",
            options.role,
            options.name,
            options.id,
            self.server.address,
            self.store.min_offset,
            self.store.written,
        )
        facts = {
            "grpc": self.server.address,
            "ha": "",
            "metrics": self.metrics_address,
            "name": options.name,
            "role": options.role,
            "store": str(self.root.absolute()),
        }
        write_ready_file(options.ready_file, facts)

    # Registration and leading

    def facts(self) -> BrokerFacts:
        """Return what nameservers are told; called before each renewal."""
        options = self.options
        shown = options.advertise_host or ("" if options.host in WILDCARDS else options.host)
        return BrokerFacts(
            cluster=options.cluster,
            broker_name=options.name,
            broker_id=options.id,
            role=options.role,
            port=options.advertise_port or self.server.port,
            version=self.topics.version,
            topics=self.topics.rows.values(),
            advertised_host=shown,
            advertised_explicitly=bool(options.advertise_host),
            ha_address=self.own_ha_address() if self.master else "",
            host_name=socket.gethostname(),
            log_begin=self.store.min_offset,
            log_end=self.store.written,
            writable=not self.sender.refusal and self.store.writable,
        )

    async def ask_nameserver(self, question: Outbound[Any], metadata: Metadata) -> Any:
        """Put a client's question to a nameserver that holds our registration."""
        return None if self.registration is None else await self.registration.ask(question, metadata)

    def heard(self, nameserver: str, members: tuple[Member, ...], settled: bool) -> None:
        """Take a nameserver's answer."""
        if self.master:
            self.leading.heard(nameserver, members, settled=settled, now=self.loop.time())
            return
        self.address.heard(members)
        ids = frozenset(member.broker_id for member in members)
        if ids != self.group.get(nameserver, frozenset()):
            # A master that comes back asks at once how far its slaves are: not as of the last renewal.
            assert self.registration is not None
            self.registration.changed()
        self.group[nameserver] = ids

    def lost(self, nameserver: str) -> None:
        """Forget what a nameserver said that is gone."""
        self.leading.lost(nameserver)
        self.group.pop(nameserver, None)

    def look_at_refusals(self) -> None:
        """Take what our replicator heard of slaves whose log goes on beyond ours."""
        page = self.page
        fresh = page.refused_count and time.monotonic_ns() - page.refused_at_ns < REFUSED_FRESH_NS
        if fresh and page.refused_offset > self.store.written:
            self.leading.refused(page.refused_peer, page.refused_offset, now=self.loop.time())

    def lead(self) -> None:
        """Do what leading, or no longer being allowed to write, asks for."""
        if self.leading.leads:
            self.receives.release()
            self.lease_streams.push()
        refusal = self.leading.refusal
        if refusal == self.sender.refusal:
            return
        if not refusal:
            self.consumer.clamp_to_log()
            logger.info("%s takes writes from byte %d on", self.options.name, self.store.written)
        self.sender.refusal = refusal
        self.replays.forget()
        if self.registration is not None:
            self.registration.changed()

    # Housekeeping

    def beat(self) -> None:
        self.page.broker_beat_ns = time.monotonic_ns()
        self.confirmed.beat()
        if self.master:
            self.leading.look(self.loop.time())
            self.look_at_refusals()
        self.receives.expire_held(time.monotonic(), BEAT_S)

    def sweep(self) -> None:
        self.sessions.sweep()
        self.lease_streams.push()
        if not self.master or self.registration is None:
            return
        address = self.own_ha_address()
        if address != self.told_ha_address:
            self.told_ha_address = address
            self.registration.changed()

    told_ha_address = ""

    async def export_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPORT_INTERVAL_S)
            offsets = self.consumer.committed_offsets()
            try:
                await asyncio.to_thread(self.offset_file.save, offsets, now_ms())
            except (OSError, StoreFull) as error:
                logger.warning("the consumer offsets can't be written: %s", error)

    # Views

    def store_host(self, port: int) -> bytes:
        """Return our address as records hold it.

        A name or a wildcard becomes what the machine's name means.
        """
        for host in (self.options.advertise_host, self.options.host, socket.gethostname()):
            if host in WILDCARDS:
                continue
            with contextlib.suppress(OSError, ValueError):
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                return pack_host(str(found[0][4][0]), port)
        return pack_host("127.0.0.1", port)

    def replication(self) -> ReplicationView:
        options, page = self.options, self.page
        alive = page.replica_alive(time.monotonic_ns())
        slaves = tuple(
            SlaveView(
                peer=peer,
                acknowledged=page.acks[slot],
                sent=page.sent[slot],
                sent_bytes=page.sent_bytes[slot],
                connected_at_ms=page.connected_at_ms[slot],
            )
            for slot in range(SLAVES_MAX)
            if alive and (peer := page.peer(slot))
        )
        return ReplicationView(
            broker_name=options.name,
            broker_id=options.id,
            role=options.role.upper(),
            log_begin=self.store.min_offset,
            log_end=self.store.written,
            flushed=self.store.flushed,
            confirmed=self.confirmed.look(),
            dispatched=self.store.dispatched,
            replicator_alive=alive,
            ha_address=self.own_ha_address() if self.master else page.master_ha,
            slaves=slaves if self.master else (),
            connected=bool(page.connected) and alive and not self.master,
            writable=not self.sender.refusal and self.store.writable,
            advice=self.advice(alive=alive),
            replication=options.replication.upper(),
            flush=options.flush.upper(),
        )

    def own_ha_address(self) -> str:
        """Return where slaves dial the replicator beside us; empty while none listens."""
        page, options = self.page, self.options
        if not page.ha_port:
            return ""
        ours = options.advertise_host or options.host
        host = replicator_host(page.ha_host, own_name=socket.gethostname(), ours=ours)
        return f"[{host}]:{page.ha_port}" if ":" in host else f"{host}:{page.ha_port}"

    def advice(self, *, alive: bool) -> str:
        if self.master and self.sender.refusal:
            return self.sender.refusal
        if self.master and not self.store.writable:
            return f"the disk takes no more messages: {self.store.full_reason}"
        if not alive:
            return "the replicator beside this broker does not run: start it"
        return self.page.trouble


def only_broker(root: Path) -> Undo:
    """Keep a second broker from the store; return what lets go.

    Raises:
        StoreError: there is one already.
    """
    fd = os.open(root / "whimbrel" / "broker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes away with the process, however it ends
    except OSError as error:
        os.close(fd)
        raise StoreError(f"another broker runs on {root}") from error
    return lambda: os.close(fd)


async def every(interval_s: float, job: Callable[[], object]) -> None:
    """Run a job again and again; its failure is logged and does not end it."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            job()
        except Exception:
            logger.exception("a housekeeping job failed")


def ending(task: asyncio.Task[None]) -> Undo:
    """Return what ends a task."""

    async def end() -> None:
        # More than once: below a task there is code that takes a cancellation for the end of its call.
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=CANCEL_AGAIN_S)

    return end
