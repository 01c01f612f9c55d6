"""ReplicaService: what slaves take from their master, and the slaves' end of it.

A master answers once it is settled (`cluster/leadership.py`). One that came back with a shorter log sends
nothing: its tables and lease states would undo what its slaves hold. It takes their lease entries all the
same, so that it does not deliver again what they have seen acknowledged.

**Lease entries name queue offsets, and two logs give one offset to two messages.** Once a master has written
in its term it takes entries only from slaves whose logs its replicator has found to be a part of its own: an
old master that comes back with its disk knows offsets as acknowledged that are other messages' now, and those
would never be delivered. Before the first write no offset is given anew, and positions beyond the log are
forgotten.

**Where members are elected** both streams bear the epoch that the slave has promised, a leader's answers of
changes wait for what slaves report to have stored, and it leads only once enough of them have handed their
state over: `leader_state.py`, `follower_state.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from whimbrel.broker.cluster.follower_state import FollowerState
from whimbrel.broker.cluster.leader_state import TABLES_PIECE_BYTES, LeaderState, MemberStream
from whimbrel.broker.cluster.lease_sync import LeaseExchange
from whimbrel.broker.cluster.member_reports import MemberReport
from whimbrel.broker.cluster.metadata import ROUND_S, EncodedChange, Known, Metadata, MetadataSource
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.tables.metadata_version import MetadataVersion
from whimbrel.broker.tables.takeovers import Takeovers
from whimbrel.errors import (
    BadRequest,
    ConnectionClosed,
    NotReady,
    RemoteProtocolError,
    Throttled,
    WhimbrelError,
)
from whimbrel.model.registration import Member
from whimbrel.model.topic import DataVersion
from whimbrel.model.wire import REPLICA_SERVICE
from whimbrel.pb.whimbrel.replica.v1 import replica_service_pb2 as replica
from whimbrel.rpc.api.status import error_of
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import BidiMethod, Call, Outbox, Service, UnaryMethod
from whimbrel.rpc.server.refusing import refusing_stream

__all__ = [
    "LeaseStreams",
    "MetadataWatches",
    "SlaveHello",
    "introduce_replica",
    "refusing_service",
    "replica_service",
    "sync_leases",
    "tables_from",
    "tables_of",
    "watch_metadata",
]

MESSAGES_AT_ONCE = 8  # lease messages handed to the transport before it is waited for; about 1 MiB
PUSH_APART_S = (
    0.001  # between messages to a slave about changes, of which there may be many thousand a second
)
INTRODUCE_S = 5.0  # for one call
SILENCE_MAX_S = 3 * ROUND_S  # a master that sends nothing for longer is taken for gone


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveHello:
    """What a slave reports of itself when it connects; `log_end` is taken at that moment.

    `epoch` is the one that it has promised, 0 where members are not elected.
    """

    name: str
    broker_id: int
    log_end: int
    epoch: int = 0


# With a broker id, its replicator's address, the caller's, and what it says of itself; returns our settings.
Introduced = Callable[[int, str, str, MemberReport], str]


def replica_service(watches: "MetadataWatches", streams: "LeaseStreams", introduced: Introduced) -> Service:
    """Return a master's service for the transport."""

    def introduce(call: Call, request: replica.IntroduceRequest) -> replica.IntroduceResponse:
        if request.broker_name != watches.name:
            raise BadRequest(f"this is {watches.name}, not {request.broker_name}")
        report = MemberReport(trouble=request.trouble, settings=request.settings_json)
        settings = introduced(request.broker_id, request.replica_address, call.peer, report)
        return replica.IntroduceResponse(settings_json=settings)

    introducing = UnaryMethod("Introduce", replica.IntroduceRequest, introduce)
    return Service(REPLICA_SERVICE, (watches.method(), streams.method(), introducing))


def refusing_service(reason: str) -> Service:
    """Return the service of a broker that is no master."""
    refuse = refusing_stream(reason)

    def refuse_call(call: Call, request: Any) -> Any:
        raise NotReady(reason)

    return Service(
        REPLICA_SERVICE,
        (
            BidiMethod("WatchMetadata", replica.WatchMetadataRequest, refuse, single_request=True),
            BidiMethod("SyncLeases", replica.SyncLeasesRequest, refuse),
            UnaryMethod("Introduce", replica.IntroduceRequest, refuse_call),
        ),
    )


class MetadataWatches:
    """The slaves that watch this broker's metadata."""

    def __init__(
        self,
        name: str,
        source: MetadataSource,
        *,
        authoritative: Callable[[int], bool],
        state: LeaderState | None = None,
    ) -> None:
        """Serve the metadata of the broker group `name`.

        `authoritative` is asked with the slave's log end; `state` is an elected leader's.
        """
        self.name = name
        self.source, self.state = source, state
        self.authoritative = authoritative
        self.open: dict[Watch, None] = {}  # in the order of their begin
        source.on_change(self.tables_changed, self.others_changed)

    def method(self) -> BidiMethod:
        """Return the WatchMetadata method."""
        return BidiMethod("WatchMetadata", replica.WatchMetadataRequest, self.opened, single_request=True)

    def opened(self, call: Call, outbox: Outbox) -> "Watch":
        return Watch(self, outbox)

    def start(self, watch: "Watch", request: replica.WatchMetadataRequest) -> None:
        """Begin to send to a slave."""
        if request.broker_name != self.name:
            raise BadRequest(f"this is {self.name}, not {request.broker_name}")
        if not self.authoritative(request.log_end):
            raise NotReady(
                "this broker does not lead: it is not a settled master, or behind one of its slaves"
            )
        if self.state is not None:
            self.state.check_epoch(request.epoch, request.broker_id)
        self.open[watch] = None
        watch.known = Known(takes_changes=request.takes_changes)
        watch.send(self.source.everything(watch.known))

    def stop(self, watch: "Watch") -> None:
        """Forget a slave."""
        self.open.pop(watch, None)

    def close(self, error: WhimbrelError) -> None:
        """End all watches."""
        for watch in tuple(self.open):
            self.stop(watch)
            watch.outbox.close(error)

    def tables_changed(self) -> None:
        if self.state is not None:
            self.state.changed()
        for watch in tuple(self.open):
            watch.send(self.source.tables(watch.known))

    def others_changed(self) -> None:
        if self.state is not None:
            self.state.changed()
        if self.open:
            others = self.source.others()
            for watch in tuple(self.open):
                watch.send(others)

    def confirmed(self) -> None:
        """Send all slaves how far the log is confirmed, when that has moved."""
        if self.open:
            confirmed = self.source.confirmed()
            for watch in tuple(self.open):
                watch.send_confirmed(confirmed)

    def round(self) -> None:
        """Send all slaves everything that changed; to be called every `ROUND_S`, which shows that we live."""
        if self.open:
            rest = self.source.round()
            for watch in tuple(self.open):
                watch.send(self.source.everything(watch.known, rest))


class Watch:
    """One slave's stream.

    Attributes:
        sent: the texts that the slave was sent last.
        known: what it was sent of the tables.
    """

    def __init__(self, watches: MetadataWatches, outbox: Outbox) -> None:
        self.watches = watches
        self.outbox = outbox
        self.sent = Metadata()
        self.known = Known()

    def received(self, message: Any) -> None:
        """Take the request."""
        self.watches.start(self, message)

    def half_closed(self) -> None:
        """Nothing: the request is the only message."""

    def closed(self) -> None:
        """Forget the slave."""
        self.watches.stop(self)

    def send_confirmed(self, confirmed: Metadata) -> None:
        """Send how far the log is confirmed, unless that was sent."""
        if confirmed.confirmed != self.sent.confirmed:
            self.send(confirmed)

    def send(self, now: Metadata) -> None:
        """Send what differs from what was sent."""
        news = now.since(self.sent)
        response = replica.WatchMetadataResponse(
            topics_json=text_of(news.topics),
            groups_json=text_of(news.groups),
            topics_change=change_message(news.topics),
            groups_change=change_message(news.groups),
            offsets_json=news.offsets,
            delay_offsets_json=news.delay_offsets,
            queue_floors_json=news.deleted_offsets,
            confirmed_offset=news.confirmed,
            queue_offsets_at=news.given_offsets[0] if news.given_offsets is not None else None,
            queue_offsets_json=news.given_offsets[1] if news.given_offsets is not None else None,
            timer_read_ms=news.timers[0] if news.timers is not None else None,
            timer_log_end=news.timers[1] if news.timers is not None else None,
            shared_topics_json=news.shared_topics,
            log_begin=news.log_begin[0] if news.log_begin is not None else None,
            log_begin_at=news.log_begin[1] if news.log_begin is not None else None,
        )
        self.sent = news.over(self.sent)
        state = self.watches.state
        if state is not None:
            response.version.epoch, response.version.counter = state.term.epoch, state.counter
        topics, groups = self.watches.source.versions
        if news.topics is not None:
            self.known = replace(self.known, topics=topics)
        if news.groups is not None:
            self.known = replace(self.known, groups=groups)
        if not self.outbox.send(response):
            # It would miss a change; from a new stream it gets everything.
            self.watches.stop(self)
            self.outbox.close(Throttled("the slave does not read"))


def text_of(news: str | EncodedChange | None) -> str | None:
    """Return a whole table's text; None where it is something else."""
    return news if isinstance(news, str) else None


def change_message(news: str | EncodedChange | None) -> replica.TableChange | None:
    """Return a change for the wire; None where it is something else."""
    if not isinstance(news, EncodedChange):
        return None
    return replica.TableChange(
        before=version_message(news.before),
        after=version_message(news.after),
        rows_json=news.rows,
        removed=news.removed,
    )


def version_message(version: DataVersion) -> replica.TableVersion:
    return replica.TableVersion(timestamp_ms=version.timestamp, counter=version.counter, state=version.state)


def version_of(message: replica.TableVersion) -> DataVersion:
    return DataVersion(timestamp=message.timestamp_ms, counter=message.counter, state=message.state)


def table_news(response: Any, table: str) -> str | EncodedChange | None:
    """Return what a response has of a table: its text, or what has changed in it; None: nothing."""
    if response.HasField(f"{table}_json"):
        return str(getattr(response, f"{table}_json"))
    if not response.HasField(f"{table}_change"):
        return None
    change: replica.TableChange = getattr(response, f"{table}_change")
    return EncodedChange(
        before=version_of(change.before),
        after=version_of(change.after),
        rows=change.rows_json,
        removed=tuple(change.removed),
    )


class LeaseStreams:
    """The slaves that exchange lease entries with this broker.

    `merged` counts the streams on which the slave's full state has come in.
    """

    def __init__(
        self,
        name: str,
        lease_store: LeaseStore,
        *,
        settled: Callable[[], bool],
        authoritative: Callable[[], bool],
        shares_log: Callable[[Member], bool],
        on_merged: Callable[[], None],
        on_report: Callable[[object, Member | None], None],
        takeovers: Takeovers,
        state: LeaderState | None = None,
    ) -> None:
        """Serve the lease state of the broker group `name`.

        Args:
            name: see above.
            lease_store: the lease state.
            settled: whether entries are taken from slaves.
            authoritative: whether entries are sent to slaves.
            shares_log: whether what a slave says about offsets is about the messages that have them here.
            on_merged: called when a slave's full state has come in.
            on_report: called with a connection and what its slave reports of itself; None when it is over.
            takeovers: which of two masters came later.
            state: an elected leader's.
        """
        self.state, self.takeovers = state, takeovers
        self.name = name
        self.lease_store = lease_store
        self.settled, self.authoritative, self.shares_log = settled, authoritative, shares_log
        self.on_merged, self.on_report = on_merged, on_report
        self.open: dict[LeaseStream, None] = {}  # in the order of their begin

    @property
    def merged(self) -> int:
        """How many slaves have sent their full state."""
        return sum(stream.exchange is not None and stream.exchange.peer_complete for stream in self.open)

    def method(self) -> BidiMethod:
        """Return the SyncLeases method."""
        return BidiMethod("SyncLeases", replica.SyncLeasesRequest, self.opened)

    def opened(self, call: Call, outbox: Outbox) -> "LeaseStream":
        return LeaseStream(self, outbox, call.peer)

    def close(self, error: WhimbrelError) -> None:
        """End all streams."""
        for stream in tuple(self.open):
            stream.outbox.close(error)

    def learn_takeovers(self, count: int) -> None:
        """Take a slave's count; an elected leader's is that of its group already."""
        if self.state is None and self.takeovers.learn(count):
            for stream in tuple(self.open):
                stream.greet()

    def tell_begun(self) -> None:
        """Tell members that this leader has begun, which has all that was answered."""
        for stream in tuple(self.open):
            stream.push()
            stream.tell_begun()

    def push(self) -> None:
        """Send what waits for room; to be called periodically, since a transport does not report room."""
        for stream in tuple(self.open):
            stream.push()


class LeaseStream:
    """A slave's stream, the master's end."""

    def __init__(self, streams: LeaseStreams, outbox: Outbox, peer: str) -> None:
        self.peer = peer
        self.exchange: LeaseExchange | None = None
        self.slave: Member | None = None
        self.member: MemberStream | None = None
        self.takeovers = 0  # that the slave knows of
        self.streams = streams
        self.outbox = outbox
        self.loop = asyncio.get_running_loop()
        self.pushed_at = 0.0
        self.timer: asyncio.TimerHandle | None = None

    def received(self, message: Any) -> None:
        """Take entries; the first message names the slave."""
        streams = self.streams
        if self.exchange is None:
            if message.broker_name != streams.name:
                raise BadRequest(f"this is {streams.name}, not {message.broker_name}")
            if not streams.settled():
                raise NotReady("this broker is not a settled master")
            if streams.state is not None:
                version = MetadataVersion(message.metadata.epoch, message.metadata.counter)
                self.member = streams.state.hello(
                    message.broker_id, message.seat, message.epoch, version, lost=message.lost
                )
            self.exchange = LeaseExchange(
                streams.lease_store,
                ready=self.news,
                peer_reads_orders=message.reads_orders,
                numbers=self.member is not None,
            )
            self.takeovers = message.takeovers
            streams.open[self] = None
            self.slave = Member(
                broker_id=message.broker_id,
                address=self.peer,
                ha_address="",
                log_begin=0,
                log_end=message.log_end,
            )
            streams.on_report(self, self.slave)
            self.greet()
            self.push()
        assert self.slave is not None
        if message.entries and not streams.shares_log(self.slave):
            raise NotReady("it is not known yet that the slave's log is a part of this master's")
        if message.entries:
            streams.learn_takeovers(self.takeovers)
        complete = self.exchange.peer_complete
        self.exchange.received(message.entries, message.snapshot_done)
        if self.member is not None and streams.state is not None:
            if message.tables or message.tables_done:
                streams.state.take_piece(self.member, message.tables, done=message.tables_done)
            streams.state.heard(
                self.member,
                leases_done=self.exchange.peer_complete,
                stored=message.stored,
                metadata_stored=message.metadata_stored,
            )
            if message.entries and self.exchange.pending:
                self.news()  # the number that this has now
        if self.exchange.peer_complete and not complete:
            streams.on_merged()

    def greet(self) -> None:
        """Tell the count of takeovers; a member also which epoch is led here, and what metadata there are."""
        state = self.streams.state
        greeting = replica.SyncLeasesResponse(reads_orders=True, takeovers=self.streams.takeovers.count)
        if state is not None:
            version = state.file.version
            greeting.epoch = state.term.epoch
            greeting.metadata.epoch, greeting.metadata.counter = version.epoch, version.counter
        self.outbox.send(greeting)

    def half_closed(self) -> None:
        """The slave is done."""
        self.outbox.close()

    def closed(self) -> None:
        """Forget the stream."""
        self.streams.open.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.exchange is not None:
            self.exchange.close()
            self.exchange = None
            self.streams.on_report(self, None)
        if self.member is not None and self.streams.state is not None:
            self.streams.state.gone(self.member)
            self.member = None

    def news(self) -> None:
        """Hand on a change: at once, or with others when the last time was just now.

        Each message to the slave costs this loop more than the change itself.
        """
        if self.timer is None:
            now = self.loop.time()
            if now - self.pushed_at >= PUSH_APART_S:
                self.pushed_at = now
                self.push()
            else:
                self.timer = self.loop.call_later(PUSH_APART_S, self.push_late)

    def push_late(self) -> None:
        self.timer = None
        self.pushed_at = self.loop.time()
        self.push()

    def push(self) -> None:
        """Hand on what there is, as far as the outbox takes it."""
        exchange = self.exchange
        if exchange is None or not self.streams.authoritative():
            return
        exchange.push(self.send)
        if exchange.overflowed:
            self.outbox.close(Throttled("the slave does not keep up with the lease entries"))

    def send(self, entries: bytes, complete: bool) -> bool:
        assert self.exchange is not None
        return self.outbox.send(
            replica.SyncLeasesResponse(
                entries=entries,
                snapshot_done=complete,
                reads_orders=True,
                number=self.exchange.number,
                begun=self.leads,
            )
        )

    @property
    def leads(self) -> bool:
        """Whether this is an elected leader that has begun to lead."""
        return self.streams.state is not None and self.streams.state.begun

    def tell_begun(self) -> None:
        """Tell that this leader has begun, where no message with entries does."""
        exchange = self.exchange
        if exchange is not None and self.member is not None and not exchange.pending:
            self.outbox.send(
                replica.SyncLeasesResponse(reads_orders=True, number=exchange.told, begun=self.leads)
            )


async def introduce_replica(
    address: str, hello: SlaveHello, replica_address: str, report: MemberReport
) -> str:
    """Tell the master at `address` from where our replicator is connected, and how we are; the slave's end.

    Returns:
        The master's settings, as JSON; "" from one of an earlier version.

    Raises:
        WhimbrelError: it refuses, or can't be reached.
    """
    async with open_aio_channel(address) as channel:
        call = channel.unary_unary(
            f"/{REPLICA_SERVICE}/Introduce",
            request_serializer=replica.IntroduceRequest.SerializeToString,
            response_deserializer=replica.IntroduceResponse.FromString,
        )
        request = replica.IntroduceRequest(
            broker_name=hello.name,
            broker_id=hello.broker_id,
            replica_address=replica_address,
            trouble=report.trouble,
            settings_json=report.settings,
        )
        try:
            response = await call(request, timeout=INTRODUCE_S)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        return str(response.settings_json)


async def sync_leases(
    address: str,
    hello: SlaveHello,
    lease_store: LeaseStore,
    *,
    exchanged: Callable[[bool], None],
    takeovers: Takeovers,
    state: FollowerState | None = None,
) -> None:
    """Exchange lease entries with the master at `address` until it is gone; the slave's end.

    `exchanged` is called with True when the master's full state has come in, with False when the stream is
    over. `takeovers`: the count of this store. `state` reports what is stored, where members are elected.

    Raises:
        WhimbrelError: it refuses, or can't be reached.
    """
    async with open_aio_channel(address) as channel:
        open_stream = channel.stream_stream(
            f"/{REPLICA_SERVICE}/SyncLeases",
            request_serializer=replica.SyncLeasesRequest.SerializeToString,
            response_deserializer=replica.SyncLeasesResponse.FromString,
        )
        stream = open_stream()
        news = asyncio.Event()
        exchange = LeaseExchange(lease_store, ready=news.set)
        handing: list[replica.SyncLeasesRequest] = []  # our tables
        first = replica.SyncLeasesRequest(
            broker_name=hello.name,
            broker_id=hello.broker_id,
            log_end=hello.log_end,
            reads_orders=True,
            takeovers=takeovers.count,
        )
        if state is not None:
            first.epoch, first.seat = state.begin(news.set), state.seat()
            version = state.file.version
            first.metadata.epoch, first.metadata.counter = version.epoch, version.counter
            first.lost = bool(state.file.lost)
        reading = asyncio.ensure_future(read_leases(stream, exchange, exchanged, takeovers, state, handing))
        try:
            await stream.write(first)
            news.set()
            reading.add_done_callback(lambda _: news.set())
            while not reading.done():
                await news.wait()
                news.clear()
                while handing:
                    await stream.write(handing.pop(0))
                await write_leases(stream, exchange, news)
                if state is not None and any(report := state.report()):
                    await stream.write(replica.SyncLeasesRequest(stored=report[0], metadata_stored=report[1]))
            reading.result()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        except asyncio.InvalidStateError:
            raise ConnectionClosed("the master closed the lease stream") from None
        finally:
            exchanged(False)
            exchange.close()
            if state is not None:
                state.end()
            reading.cancel()
            stream.cancel()


async def read_leases(
    stream: Any,
    exchange: LeaseExchange,
    exchanged: Callable[[bool], None],
    takeovers: Takeovers,
    state: FollowerState | None,
    handing: list[replica.SyncLeasesRequest],
) -> None:
    while True:
        response = await stream.read()
        if response is grpc.aio.EOF:
            # Raises the status that ended the stream, if it was an error.
            await stream.wait_for_connection()
            return
        if response.reads_orders:
            exchange.peer_reads()
        takeovers.learn(response.takeovers)
        before = exchange.peer_complete
        exchange.received(response.entries, response.snapshot_done)
        if state is not None:
            if response.HasField("metadata"):
                theirs = MetadataVersion(response.metadata.epoch, response.metadata.counter)
                handing += pieces_of(state.tables()) if state.file.version > theirs else ()
            state.took(response.number, begun=response.begun)
            state.synced()
        if exchange.peer_complete and not before:
            exchanged(True)


def pieces_of(tables: bytes) -> list[replica.SyncLeasesRequest]:
    """Return the messages that hand tables over."""
    size = TABLES_PIECE_BYTES
    return [
        replica.SyncLeasesRequest(
            tables=tables[begin : begin + size], tables_done=begin + size >= len(tables)
        )
        for begin in range(0, len(tables), size)
    ]


async def write_leases(stream: Any, exchange: LeaseExchange, news: asyncio.Event) -> None:
    batch: list[replica.SyncLeasesRequest] = []

    def take(entries: bytes, complete: bool) -> bool:
        if len(batch) >= MESSAGES_AT_ONCE:
            return False
        batch.append(replica.SyncLeasesRequest(entries=entries, snapshot_done=complete))
        return True

    exchange.push(take)
    if exchange.overflowed:
        raise RemoteProtocolError("the master does not keep up with the lease entries")
    if exchange.pending:
        news.set()
    for message in batch:
        await stream.write(message)


async def watch_metadata(address: str, hello: SlaveHello) -> AsyncIterator[Metadata]:
    """Yield what the master at `address` sends, until it is gone.

    Raises:
        WhimbrelError: it refuses, or can't be reached.
    """
    async with open_aio_channel(address) as channel:
        open_stream = channel.unary_stream(
            f"/{REPLICA_SERVICE}/WatchMetadata",
            request_serializer=replica.WatchMetadataRequest.SerializeToString,
            response_deserializer=replica.WatchMetadataResponse.FromString,
        )
        stream = open_stream(
            replica.WatchMetadataRequest(
                broker_name=hello.name,
                broker_id=hello.broker_id,
                log_end=hello.log_end,
                takes_changes=True,
                epoch=hello.epoch,
            )
        )
        try:
            while True:
                # Not `wait_for`: in Python 3.11 it swallows a cancellation when the stream breaks just then.
                async with asyncio.timeout(SILENCE_MAX_S):
                    response: Any = await stream.read()
                if response is grpc.aio.EOF:
                    return
                yield metadata_of(response)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        except TimeoutError:
            raise ConnectionClosed(f"the master has sent nothing for {SILENCE_MAX_S:g} s") from None
        finally:
            stream.cancel()


def metadata_of(response: Any) -> Metadata:
    """Return what a WatchMetadataResponse carries."""
    return Metadata(
        topics=table_news(response, "topics"),
        groups=table_news(response, "groups"),
        offsets=response.offsets_json if response.HasField("offsets_json") else None,
        delay_offsets=response.delay_offsets_json if response.HasField("delay_offsets_json") else None,
        deleted_offsets=response.queue_floors_json if response.HasField("queue_floors_json") else None,
        confirmed=response.confirmed_offset if response.HasField("confirmed_offset") else None,
        given_offsets=(response.queue_offsets_at, response.queue_offsets_json)
        if response.HasField("queue_offsets_json")
        else None,
        timers=(response.timer_read_ms, response.timer_log_end)
        if response.HasField("timer_read_ms")
        else None,
        shared_topics=response.shared_topics_json if response.HasField("shared_topics_json") else None,
        version=MetadataVersion(response.version.epoch, response.version.counter)
        if response.HasField("version")
        else None,
        log_begin=(response.log_begin, response.log_begin_at) if response.HasField("log_begin") else None,
    )


def tables_of(metadata: Metadata) -> bytes:
    """Return whole tables, serialized."""
    found = replica.WatchMetadataResponse(
        topics_json=text_of(metadata.topics),
        groups_json=text_of(metadata.groups),
        queue_floors_json=metadata.deleted_offsets,
        shared_topics_json=metadata.shared_topics,
        delay_offsets_json=metadata.delay_offsets,
    )
    return found.SerializeToString()


def tables_from(data: bytes) -> Metadata:
    """Return such tables.

    Raises:
        BadRequest: it is something else.
    """
    try:
        return metadata_of(replica.WatchMetadataResponse.FromString(data))
    except DecodeError as error:
        raise BadRequest(f"no tables: {error}") from error
