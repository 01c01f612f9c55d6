"""What tests of the remoting protocol share: a peer, requests, and handlers over a real store in memory."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.broker.transactions import FakeLoop, FakePositions
from support.engine.reads import CommitsKept, make_reads
from support.store.stores import OPTIONS, open_master
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.engine.detours import DelayDetour
from whimbrel.broker.engine.ends import Ends
from whimbrel.broker.engine.send import Sends
from whimbrel.broker.engine.send_back import SendBacks
from whimbrel.broker.engine.splitting import ReadSplitting
from whimbrel.broker.engine.waiting import Waiting
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.remoting.pulls import Pulls
from whimbrel.broker.remoting.records import Records
from whimbrel.broker.remoting.replies import Replies
from whimbrel.broker.remoting.send_back import SendBackRequests
from whimbrel.broker.remoting.sends import SendRequests
from whimbrel.broker.remoting.transactions import EndTransactions
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.transactions.records import make_half
from whimbrel.broker.transactions.transactions import Transactions
from whimbrel.deferred import Deferred
from whimbrel.errors import NotWritable, Throttled, WhimbrelError
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Reply, reply_to_error
from whimbrel.rpc.server.producers import Producers
from whimbrel.store.codec import StoredMessage, decode_record, pack_host

__all__ = [
    "HOSTILE_FRAMES",
    "FakePeer",
    "Handlers",
    "StoreAppender",
    "batch_body",
    "frame",
    "messages_in",
    "reply",
    "send_fields",
]

NOW = 1_800_000_000_000


class FakePeer:
    """A connection that keeps what is sent to it."""

    def __init__(self, peer: str = "10.0.0.9:5000", local: str = "10.0.0.1:8081") -> None:
        self.peer, self.local = peer, local
        self.overloaded = self.closed = False
        self.pushed: list[tuple[int, dict[str, str], bytes]] = []
        self.asked: list[tuple[int, dict[str, str], bytes, Deferred[Command]]] = []

    def push(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bool:
        self.pushed.append((code, dict(fields), body))
        return not self.closed

    def ask(self, code: int, fields: Mapping[str, str], body: bytes, seconds: float) -> Deferred[Command]:
        if self.closed:
            raise Throttled("closed")
        deferred: Deferred[Command] = Deferred()
        self.asked.append((code, dict(fields), body, deferred))
        return deferred

    def close(self) -> None:
        self.closed = True


class StoreAppender:
    """Appends to a store; what waits for durability is answered when a test says so."""

    def __init__(self, store: Any) -> None:
        self.store, self.waits, self.refusal = store, False, ""
        self.waiting: list[Any] = []

    def check_writable(self) -> None:
        if self.refusal:
            raise NotWritable(self.refusal)

    def append(self, drafts: Any) -> Any:
        self.check_writable()
        found = self.store.append(drafts)
        self.store.end_tick()
        return found

    def when_durable(self, end: int, answer: Any) -> None:
        self.waiting.append(answer)

    def when_held(self, end: int, copies: int, answer: Any) -> None:
        self.waiting.append(answer)

    def complete_waiting(self) -> None:
        pass


class HalfDetour:
    """Makes halves; see `engine/send.py Detour`."""

    kind = MessageType.TRANSACTION

    def redirect(self, drafts: Any, special: Any, client: str) -> Any:
        for draft in drafts:
            make_half(draft)
        return drafts

    def appended(self, drafts: Any, places: Any) -> None:
        pass

    def handle(self, draft: Any) -> str:
        raise AssertionError("only gRPC's responses have entries")


class TakenTimers:
    """Keeps the records that wait for their times."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def take(self, properties: bytes, place: Any) -> None:
        self.taken.append(place)


class Handlers:
    """Sends and pulls over a store.

    Attributes:
        soon: what was put off to the loop's next iteration.
        now_ms: of the clock that pulls go by which wait.
    """

    def __init__(self, root: Path, *, auto_create: bool = True, master: bool = True) -> None:
        self.now_ms = 0
        self.store = open_master(root / "store", OPTIONS, now=NOW)
        self.topics = TopicTable(
            root, cluster="Cluster", broker_name="broker-a", auto_create=auto_create, clock=lambda: NOW
        )
        self.groups = GroupTable(root, auto_create=auto_create, clock=lambda: NOW)
        self.clients = RemotingClients(compile_filter)
        creation = GroupCreation(self.topics, self.groups, master=master, clock=lambda: self.now_ms / 1000)
        self.appender = StoreAppender(self.store)
        self.engine = Sends(
            self.topics,
            creation,
            self.appender,
            cluster="Cluster",
            store_host=pack_host("127.0.0.1", 10911),
            clock=lambda: NOW,
        )
        self.peer = FakePeer()
        self.sends = SendRequests(self.engine)
        self.soon: list[Any] = []
        self.positions = CommitsKept()
        self.waiting = Waiting(
            clock=lambda: self.now_ms, soon=self.soon.append, later=lambda seconds, callback: None
        )
        self.reads = make_reads(
            self.store,
            creation,
            members=self.clients,
            positions=self.positions,
            splitting=ReadSplitting(enabled=False, written=lambda: self.store.written),
            follows=not master,
            waiting=self.waiting,
        )
        self.pulls = Pulls(self.reads, lambda *, found: None)
        self.store.on_arrival = lambda topic, queue_id, offset, code: self.waiting.arrived(topic, queue_id)
        self.internal = InternalAppender(
            self.topics,
            self.appender,
            store_host=lambda: self.engine.policy.store_host,
        )
        self.loop = FakeLoop()
        self.transactions = Transactions(
            self.store,
            self.internal,
            self.topics,
            FakePositions(),
            self.loop,
            wall_ms=lambda: NOW,
            safe_end=lambda: 0,
            timeout_ms=1000,
            checks_max=3,
            age_max_ms=3_600_000,
        )
        self.asked_by_grpc: list[Any] = []

        def otherwise(one: Any, half: Any) -> None:
            self.asked_by_grpc.append(one)

        ends = Ends(self.transactions, self.store, Producers())
        self.ends = EndTransactions(ends, self.clients, otherwise)
        self.engine.detours[MessageType.TRANSACTION] = HalfDetour()
        self.engine.detours[MessageType.DELAY] = DelayDetour(
            "broker-a",
            TakenTimers(),  # type: ignore[arg-type]
            lambda: NOW,
        )
        self.transactions.start()
        self.loop.turn()
        self.handles: dict[int, Handle] = {}
        for part in (
            self.sends,
            self.pulls,
            self.ends,
            Records(self.store),
            SendBackRequests(SendBacks(creation, self.store, self.internal, levels=18)),
            Replies(self.sends, self.clients, clock=lambda: NOW, store_host=lambda: "10.0.0.1:10911"),
        ):
            self.handles |= part.handles()

    def close(self) -> None:
        self.store.close()

    def topic(self, name: str, queues: int = 4, permission: int = 6) -> None:
        """Make a topic."""
        self.topics.put(
            TopicConfig(name=name, read_queues=queues, write_queues=queues, permission=permission)
        )

    def outcome(
        self, code: int, fields: Mapping[str, Any], body: bytes = b"", *, version: int = 399, peer: Any = None
    ) -> Outcome:
        """Handle a request as a connection does."""
        texts = {name: str(value) for name, value in fields.items()}
        try:
            return self.handles[code](peer or self.peer, Command(code, 7, texts, body, version=version))
        except WhimbrelError as error:
            return reply_to_error(error)

    def call(self, code: int, fields: Mapping[str, Any], body: bytes = b"", **options: Any) -> Reply:
        """Handle a request that is answered at once."""
        found = self.outcome(code, fields, body, **options)
        assert isinstance(found, Reply)
        return found

    def send(self, topic: str = "T", body: bytes = b"hello", **fields: Any) -> Reply:
        """Send a message by V2."""
        return self.call(310, send_fields(topic, **fields), body)

    def pull(self, offset: int = 0, **fields: Any) -> Outcome:
        """Pull from a queue, with a subscription of the request's own."""
        peer = fields.pop("peer", None)
        return self.outcome(
            11,
            {
                "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
                "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*",
                "subVersion": 0, "expressionType": "TAG",
            } | fields,
            peer=peer,
        )  # fmt: skip

    def run_soon(self) -> None:
        """Run the loop's next iteration."""
        soon, self.soon[:] = list(self.soon), []
        for callback in soon:
            callback()

    def stored(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """Return the messages of a queue."""
        low, high = self.store.queue_range(topic, queue_id)
        return [
            decode_record(self.store.read(place, size))
            for place, size, _ in self.store.queue_units(topic, queue_id, low, high - low)
        ]


def reply(outcome: Any) -> Reply:
    """Return what a request is answered with, at once or by now."""
    if isinstance(outcome, Deferred):
        assert outcome.done
        error = outcome.error
        outcome = reply_to_error(error) if isinstance(error, WhimbrelError) else outcome.result
    assert isinstance(outcome, Reply)
    return outcome


def send_fields(topic: str, **changes: Any) -> dict[str, Any]:
    """Return the fields of a send by V2."""
    fields = {
        "a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": NOW, "h": 0,
        "i": "TAGS\x01A\x02UNIQ_KEY\x01ID1\x02WAIT\x01true", "j": 0, "k": "false", "m": "false",
    }  # fmt: skip
    return fields | changes


def batch_body(*messages: tuple[bytes, str]) -> bytes:
    """Return the body of a batch: bodies and property texts."""
    found = b""
    for body, text in messages:
        properties = text.encode()
        rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties))
        found += struct.pack(">i", 4 + len(rest) + len(properties)) + rest + properties
    return found


def messages_in(body: Any) -> list[StoredMessage]:
    """Return the records of a pull's body."""
    data, at, found = b"".join(body), 0, []
    while at < len(data):
        found.append(decode_record(data, at))
        at += found[-1].size
    return found


def frame(code: int, opaque: int, fields: Mapping[str, Any], body: bytes = b"", flag: int = 0) -> bytes:
    """Return a request as Java writes it."""
    texts = {name: str(value) for name, value in fields.items()}
    header = json.dumps(
        {"code": code, "extFields": texts, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 399}
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def with_header(header: bytes, kind: int = 0, length: int | None = None) -> bytes:
    """Return a frame with a header, whatever that is."""
    word = kind << 24 | (len(header) if length is None else length)
    return struct.pack(">II", 4 + len(header), word) + header


# Bytes that are no frames, each of which ends its connection (the gateway's section 5.1).
HOSTILE_FRAMES = {
    "unknown kind of header": with_header(b"{}", kind=2),
    "junk": with_header(b"\xff\x00junk"),
    "empty object": with_header(b"{}"),
    "no opaque": with_header(b'{"code":1,"flag":0}'),
    "opaque null": with_header(b'{"code":1,"flag":0,"opaque":null}'),
    "opaque over 32 bits": with_header(b'{"code":1,"flag":0,"opaque":4294967296}'),
    "code as text": with_header(b'{"code":"1","flag":0,"opaque":1}'),
    "fields as a list": with_header(b'{"code":1,"flag":0,"opaque":1,"extFields":[1]}'),
    "a type": with_header(b'{"@type":"java.net.Inet4Address","val":"example.org"}'),
    "bytes behind the header": with_header(b'{"code":1,"flag":0,"opaque":1}xx'),
    "nested arrays": with_header(b'{"code":1,"opaque":1,"x":' + b"[" * 2000 + b"]" * 2000 + b"}"),
    "nested arrays, unclosed": with_header(b"[" * 200_000),
    "65 fields": with_header(
        json.dumps({"code": 1, "opaque": 1, "extFields": {f"f{n}": "" for n in range(65)}}).encode()
    ),
    "single quotes": with_header(b"{'code':1,'flag':0,'opaque':1}"),
    "header longer than its frame": with_header(b"{}", length=500),
    "header of 300 KiB": with_header(b" " * (300 << 10)),
    "length 3": struct.pack(">I", 3) + b"xxx",
    "length 0": struct.pack(">I", 0),
    "length beyond 16 MiB": struct.pack(">I", 16_777_213) + b"\x00" * 100,
    "a binary header that is too short": with_header(b"\x00" * 20, kind=1),
    "a binary header whose texts are too long": with_header(b"\x00" * 13 + b"\xff" * 8, kind=1),
}
