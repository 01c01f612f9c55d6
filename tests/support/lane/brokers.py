"""A broker's sends and receives without sockets, by Python alone or with the compiled lane, and what clients
send to it.

`Side` is a store with topics, an appender, consumers' groups and the native transport over it. The clock of
the store stands still, that of the leases moves when told. `answers`, `Side.contents` and `Side.leases` are
what tests compare: answers stream by stream; log, queues, index; what groups hold, and what the journal says.
"""

import asyncio
import random
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hpack

from support.broker.consumption import FakeClock, FakeJournal
from support.engine.reads import make_reads
from support.http2.frames import frame, split
from support.http2.in_memory import Sink, connected
from support.store.stores import NOW, StoppedClock
from whimbrel.broker.api.pulls import PullService
from whimbrel.broker.api.receive import ReceiveService
from whimbrel.broker.api.send import SendService
from whimbrel.broker.api.settle import SettleService
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.consume.policies import Policies
from whimbrel.broker.counted import MESSAGE_BYTES, Counted
from whimbrel.broker.engine.send import Sends
from whimbrel.broker.engine.settle import Settles
from whimbrel.broker.engine.splitting import ReadSplitting
from whimbrel.broker.engine.take import Takes
from whimbrel.broker.lane.acks import LaneAcks
from whimbrel.broker.lane.calls import BrokerLane
from whimbrel.broker.produce.appender import Appender, Durability
from whimbrel.broker.produce.commit import MajorityCommit
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.lane import Lane
from whimbrel.model.topic import GroupConfig, MessageType, OrderedBy, TopicConfig
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.encoder import HeaderEncoder
from whimbrel.rpc.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    PRIORITIZED,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
)
from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.handlers import Call, ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.limits import Guard
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.responses import check_client_id, failing_with, status_of
from whimbrel.store.codec import pack_host
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

__all__ = ["CLIENT", "STYLES", "Client", "Side", "Watched", "answers", "frame", "plain_message", "same"]

CLIENT = "client@1"
MEMORY_BYTES = 20_000
SERVICE = "apache.rocketmq.v2.MessagingService"
PATH = f"/{SERVICE}/SendMessage"
STYLES = ("ours", "go", "java", "python", "huffman")
GROUPS = (
    GroupConfig(name="g"),
    GroupConfig(name="few", retry_max=1),
    GroupConfig(name="fifo", fifo=True),
    GroupConfig(name="grouped", fifo=True).with_ordered_by(OrderedBy.MESSAGE_GROUP),
    GroupConfig(name="odd|group"),
)
QUEUES = {"orders": 4, "one": 1, "many": 300, "a-topic-of-127-characters-".ljust(127, "x"): 2}


class ToldCommit(MajorityCommit):
    """A commit offset that goes as far as the test says."""

    told = 0

    def advance(self) -> bool:
        """See `MajorityCommit`."""
        return self.store.commit(self.told)

    def near(self, now_ns: int) -> int:
        """See `MajorityCommit`: all members are."""
        return self.copies


class Watched(Appender):
    """An appender that lets the test say when what was appended is on disk."""

    flushed_to = 0

    def durable_offsets(self) -> tuple[float, float]:
        """See `Appender`."""
        if isinstance(self.commit, ToldCommit):
            self.commit.told = self.flushed_to
            return super().durable_offsets()
        return (self.flushed_to, float("inf")) if self.waits else (float("inf"), float("inf"))


@dataclass
class Side:
    """One of the two brokers.

    Attributes:
        waits: answers wait until `settle`.
        majority: and so does all that was sent, to be seen.
        acks_wait: so do acknowledgements: until another member has stored them, by `settle`.
        room: entries that queues may take; beyond, the disk is full.
    """

    root: Path
    lane: Lane | None
    options: StoreOptions
    waits: bool = False
    majority: bool = False
    acks_wait: bool = False
    limits: Limits = field(default_factory=Limits)
    guard: Guard | None = None
    now: int = NOW
    arrived: list[Any] = field(default_factory=list)
    delivered: list[Any] = field(default_factory=list)
    handed_on: list[Any] = field(default_factory=list)
    not_serving: str = ""

    def open(self) -> "Side":
        """Open everything; call it on a running loop."""
        machine = StoppedClock(self.now)
        machine.lane = self.lane or Lane("off")
        self.machine = machine
        self.root.mkdir()
        self.store = MasterStore.open(
            self.root,
            self.options,
            clock=machine.wall_ms,
            committed=0 if self.majority else None,
            machine=machine,
        )
        self.topics = TopicTable(
            self.root / "config", cluster="C", broker_name="b", auto_create=False, clock=machine.wall_ms
        )
        plain = [
            TopicConfig(name=name, read_queues=queues, write_queues=queues) for name, queues in QUEUES.items()
        ]
        others = [
            TopicConfig(name=kind.lower(), read_queues=2, write_queues=2).with_type(kind)
            for kind in (MessageType.FIFO, MessageType.MIXED)
        ]
        self.topics.put_all([*plain, *others])
        commit = ToldCommit(
            self.store, self.store.page, member=0, voters=(0, 1, 2), sync_flush=False, fallbehind_max=1
        )
        self.counted = Counted()
        self.appender = Watched(
            self.store,
            self.store.page,
            Durability(sync_flush=self.waits),
            asyncio.get_running_loop(),
            ring=lambda: None,
            commit=commit if self.majority else None,
            counted=self.counted,
        )
        self.appender.refusal = ""
        self.clients = Clients()
        self.open_consumption()
        self.engine = Sends(
            self.topics,
            GroupCreation(self.topics, self.groups, master=True, clock=lambda: 0.0),
            self.appender,
            cluster="C",
            store_host=pack_host("127.0.0.1", 8091),
            clock=machine.wall_ms,
        )
        self.sends = SendService(self.engine, machine.wall_ms)
        changes = self.consumption.lease_store
        self.quorum = StateQuorum(
            "acknowledgements",
            others=(2,),
            copies=2,
            newest=lambda: changes.number,
            own=lambda: changes.number,
            clock=self.appender.loop.time,
            timeout_s=3.0,
        )
        majority = self.quorum if self.acks_wait else None
        self.settles = Settles(self.consumption, self.groups.get, majority=majority)
        self.by_lane: BrokerLane | None = None
        if self.lane is not None:
            self.by_lane = BrokerLane(
                self.store.passes,
                self.store,
                self.engine,
                self.appender,
                self.clients,
                LaneAcks(self.settles),
                broker_name="b",
                size_bounds=MESSAGE_BYTES,
                on_calls=self.counted.calls.observe_many,
                acks_wait_for=majority,
                not_serving=lambda: self.not_serving,
            )
        for topic in self.topics.rows.values():
            self.engine.targets.of(topic).turn = 0
        self.server = NativeServer(
            [self.service()],
            limits=self.limits,
            guard=self.guard,
            on_call_end=self.counted.calls.observe,
        )
        return self

    def open_consumption(self) -> None:
        """Make groups and what serves them."""
        self.groups = GroupTable(self.root / "config", auto_create=False, clock=self.machine.wall_ms)
        self.groups.put_all(GROUPS)
        self.clock, self.journal = FakeClock(), FakeJournal()
        self.clock.now = self.now
        waiting = self.clock.waiting()
        policies = Policies(self.groups)
        self.consumption = GroupConsumption(
            self.store,
            self.journal,
            waiting,
            broker_name="b",
            broker_id=0,
            now_ms=lambda: self.clock.now,
            schedule=self.clock.schedule,
            client_alive=lambda group, client: client == CLIENT,
            hand_on=self.note_hand_on,
            policy_of=policies,
            wait_ms=policies.wait_ms,
        )
        self.consumption.open()
        self.store.on_arrival = self.note_arrival
        creation = GroupCreation(self.topics, self.groups, master=True, clock=lambda: 0.0)

        def told(*delivered: Any) -> None:
            self.delivered.append(delivered)

        now_ms = lambda: self.clock.now  # noqa: E731
        takes = Takes(self.topics, creation, self.consumption, waiting, now_ms=now_ms, delivered=told)
        self.receives = ReceiveService(takes, clock=now_ms, lane_messages=self.store.lane_messages)
        self.reads = make_reads(self.store, creation, splitting=self.splitting(), waiting=waiting)
        self.pulls = PullService(self.reads, self.store.lane_messages)
        self.reads.delivered = told

    def splitting(self) -> ReadSplitting:
        """Return what sends pullers elsewhere, as if there were little memory."""
        splitting = ReadSplitting(enabled=True, written=lambda: self.store.written)
        splitting.memory = MEMORY_BYTES
        return splitting

    def note_hand_on(self, message: Any, target: Any, since_ms: int, done: Callable[[Any], None]) -> None:
        """Keep a dead letter, as if its copy were durable."""
        self.handed_on.append((message.topic, message.body, message.properties, target, since_ms))
        done(None)

    def note_arrival(self, topic: str, queue_id: int, offset: int, tags: int) -> None:
        """Keep it, and wake those who wait for it."""
        self.arrived.append((topic, queue_id, offset, tags))
        self.reads.waiting.arrived(topic, queue_id)

    def advance(self, ms: int) -> None:
        """Let time pass for leases and polls."""
        self.clock.advance(ms)
        self.server.flush()

    def service(self) -> Service:
        """Return the service: sends, what consumers call, and a call that is not for the lane."""

        def known(handle: Callable[[Call, Any], Any]) -> Callable[[Call, Any], Any]:
            def handle_known(call: Call, request: Any) -> Any:
                self.clients.seen(check_client_id(call), call.metadata, 0.0)
                return handle(call, request)

            return handle_known

        sends = UnaryMethod(
            "SendMessage",
            messaging.SendMessageRequest,
            known(self.sends.send),
            failing_with(messaging.SendMessageResponse),
            lane=self.by_lane,
        )
        heartbeat = UnaryMethod(
            "Heartbeat",
            messaging.HeartbeatRequest,
            known(lambda call, request: messaging.HeartbeatResponse()),
            failing_with(messaging.HeartbeatResponse),
        )

        receives, settles = self.receives, SettleService(self.settles)
        streams = (
            ServerStreamMethod(
                "ReceiveMessage",
                messaging.ReceiveMessageRequest,
                known(receives.receive),
                receives.receive_failed,
            ),
            ServerStreamMethod(
                "PullMessage",
                messaging.PullMessageRequest,
                known(self.pulls.pull),
                lambda call, error: [messaging.PullMessageResponse(status=status_of(error))],
            ),
        )
        unary = [
            UnaryMethod(
                name,
                getattr(messaging, f"{name}Request"),
                known(handle),
                failing_with(getattr(messaging, f"{name}Response")),
            )
            for name, handle in (
                ("AckMessage", settles.acknowledge),
                ("ChangeInvisibleDuration", settles.change_invisible),
            )
        ]
        return Service(SERVICE, (sends, heartbeat, *streams, *unary))

    def connect(self, stub: socket.socket) -> tuple[NativeConnection, Sink]:
        """Return a new connection."""
        return connected(self.server, stub)

    def settle(self) -> None:
        """Let everything be on disk that is in the log, and answer."""
        self.appender.flushed_to = self.store.written
        self.appender.complete_waiting()
        self.store_acks()

    def store_acks(self) -> None:
        """Let another member store all that was acknowledged, and answer."""
        self.quorum.stored(2, self.quorum.newest())
        self.server.flush()

    def close(self) -> None:
        """Close everything."""
        self.appender.close("the test is over")
        self.quorum.close("the test is over")
        if self.by_lane is not None:
            for parked in (self.by_lane.sends_parked, self.by_lane.acks_parked):
                if parked.timer is not None:
                    parked.timer.cancel()
        self.store.close()

    def contents(self) -> dict[str, Any]:
        """Return what is in the store, and what was counted."""
        store = self.store
        store.end_tick()
        while store.indexer.step(store.dispatched):
            pass
        begin, end = store.min_offset, store.written
        log = b"".join(
            store.writer.segments.read(at, min(store.file_size, end - at))
            for at in range(begin, end, store.file_size)
        )
        queues = {
            (queue.topic, queue.queue_id): (queue.min, queue.max, queue.units(queue.min, queue.max))
            for queue in store.queues
            if queue.max
        }
        files = [
            (file.begin_ms, file.end_ms, file.begin_offset, file.end_offset, file.count, bytes(file.mapped))
            for file in store.index.files
        ]
        return {
            "log": log,
            "end": end,
            "queues": queues,
            "index": files,
            "indexed": store.index.position,
            "dispatched": store.dispatched,
            "store time": store.store_time_ms,
            "turns": {name: target.turn for name, target in self.engine.targets.kept.items()},
            "sizes": {key: (each.counts, each.total) for key, each in self.counted.sizes.items()},
            "calls": {
                key: each.count for key, each in self.counted.calls.by_key.items() if key[1] != "CANCELLED"
            },
            "clients": sorted(self.clients.clients),
            "waiting": len(self.appender.waiting) + len(self.appender.parked),
            "acknowledgements waiting": self.quorum.waiting_count,
        }

    def leases(self) -> dict[str, Any]:
        """Return what groups hold, what the journal makes of it, and which polls wait."""
        told = LeaseTable(origin=0)
        for chunk in self.journal.chunks:
            told.join(chunk)
        return {
            "leases": lease_entries(self.consumption.lease_store.table),
            "journal": lease_entries(told),
            "polls": self.reads.waiting.parked,
            "delivered": self.delivered,
            "handed on": self.handed_on,
        }


def lease_entries(table: LeaseTable) -> dict[tuple[str, str, int], list[bytes]]:
    """Return the entries of each state that has any."""
    entries = {(one.group, one.topic, one.queue_id): one.entries() for one in table.states()}
    return {key: some for key, some in entries.items() if some}


def answers(data: bytes, reset: set[int] | frozenset[int]) -> dict[int, list[tuple[int, int, bytes]]]:
    """Return the frames of each stream (0: the connection's).

    What may differ is left out: how data is cut into frames, when windows are given back, what is sent to
    streams that the peer has reset in the read that has ended their request, and whether the peer is told
    that the rest of a request is not needed.
    """
    streams: dict[int, list[tuple[int, int, bytes]]] = {}
    for kind, flags, stream_id, payload in split(data):
        if kind == WINDOW_UPDATE or stream_id in reset or (kind == RST_STREAM and not any(payload)):
            continue
        frames = streams.setdefault(stream_id, [])
        if kind == DATA and frames and frames[-1][0] == DATA:
            payload = frames.pop()[2] + payload
        frames.append((kind, flags, payload))
    return streams


def same(python: Any, lane: Any, what: str) -> None:
    """Fail where two results differ, saying in what."""
    if isinstance(python, dict) and isinstance(lane, dict):
        for key in {**python, **lane}:
            same(python.get(key), lane.get(key), f"{what}, {key}")
        return
    if isinstance(python, bytes) and isinstance(lane, bytes) and python != lane:
        at = next((at for at, (one, other) in enumerate(zip(python, lane, strict=False)) if one != other), -1)
        cut = slice(max(at - 60, 0), at + 100)
        python, lane, what = python[cut], lane[cut], f"{what}, {len(python)} and {len(lane)} bytes, from {at}"
    assert lane == python, f"{what}: Python has {str(python)[:600]}, the lane {str(lane)[:600]}"


class Client:
    """Makes the bytes of one connection, in the style of a client library."""

    def __init__(self, rng: random.Random, style: str, client: str = CLIENT) -> None:
        self.rng, self.style, self.client, self.id = rng, style, client, 1
        self.reset: set[int] = set()
        self.garbled = False  # something was sent that is no frame
        self.dated = True  # each call has a time of its own
        self.ours, self.encoder = HeaderEncoder(), hpack.Encoder()

    def begin(self, *settings: tuple[int, int]) -> bytes:
        """Return what a connection begins with."""
        return PREFACE + frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*one) for one in settings))

    def block(self, path: str = PATH, more: Sequence[tuple[str, str]] = (), timeout: str = "3S") -> bytes:
        """Return the header block of a call."""
        rng = self.rng
        head = [
            (":authority", "127.0.0.1:8081"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", f"grpc-{self.style}/1.0"),
        ]
        rest = [
            ("grpc-timeout", timeout),
            ("x-mq-language", "GO"),
            ("x-mq-request-id", str(uuid.UUID(int=rng.getrandbits(128)))),
            ("x-mq-client-id", self.client),
            *more,
        ]
        if self.dated:
            rest.append(("x-mq-date-time", f"20261124T0000{rng.randrange(60):02}Z"))
        if self.style == "ours":
            return self.ours.request(path, head, rest)
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), *head, *rest]
        if self.style in ("go", "java"):
            return self.encoder.encode(fields, huffman=True)
        listed = [hpack.NeverIndexedHeaderTuple(name, value) for name, value in fields[3:]]
        return self.encoder.encode([*fields[:3], *listed], huffman=self.style == "huffman")

    def call(
        self,
        request: bytes,
        *,
        pieces: int = 1,
        path: str = PATH,
        more: Sequence[tuple[str, str]] = (),
        between: bytes = b"",
        timeout: str = "3S",
    ) -> bytes:
        """Return the frames of a call, its data in so many pieces, with other frames behind its headers."""
        number, self.id = self.id, self.id + 2
        block = self.block(path, more, timeout)
        flags = END_HEADERS
        if self.style == "java":
            flags, block = flags | PRIORITIZED, bytes((0, 0, 0, 0, 15)) + block
        data = b"\0" + len(request).to_bytes(4, "big") + request
        step = max(-(-len(data) // pieces), 1)
        parts = [data[at : at + step] for at in range(0, len(data), step)]
        sent = frame(HEADERS, flags, number, block) + between
        for part in parts[:-1]:
            sent += frame(DATA, 0, number, part)
        return sent + frame(DATA, END_STREAM, number, parts[-1])


def plain_message(
    topic: str = "orders",
    body: bytes = b"hello",
    *,
    properties: dict[str, str] | None = None,
    **system: Any,
) -> Any:
    """Return a message to send."""
    built = v2.Message(body=body, user_properties=properties or {})
    built.topic.name = topic
    built.system_properties.MergeFrom(v2.SystemProperties(**{"message_id": "01" * 17, **system}))
    return built
