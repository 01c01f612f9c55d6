"""Brokers without and with the compiled lane on the remoting protocol, and what clients send to them.

`TwoRemote` gives both the same bytes. Plain sends are written in the styles of clients that were recorded;
an odd one breaks a rule of what is plain, or of what may be sent.
"""

import json
import random
import socket
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from support.http2.in_memory import Sink
from support.lane.brokers import Side, same
from support.lane.logs import lane_or_skip
from support.lane.pair import OPTIONS, SideBySide, last_arrivals
from support.remoting.handlers import HOSTILE_FRAMES
from support.store.stores import NOW
from whimbrel.broker.engine import message, sampling
from whimbrel.broker.lane.requests import RemotingSendLane
from whimbrel.broker.record_traces import RecordTraces
from whimbrel.broker.remoting.sends import SendRequests
from whimbrel.lane import Lane
from whimbrel.model.topic import TopicConfig
from whimbrel.rpc.remoting.frames import HEAD
from whimbrel.rpc.server.handlers import RemotingService
from whimbrel.rpc.server.remoting import RemotingConnection
from whimbrel.store.options import StoreOptions

__all__ = [
    "ODD",
    "STYLES",
    "RemoteSide",
    "Request",
    "TwoRemote",
    "brokers_for",
    "framed",
    "frames",
    "give_same_ids",
    "hostile",
    "odd",
    "plain",
    "written",
]

STYLES = ("java", "java 5", "go", "spaced")
TEXTS = (
    "a",
    "order-17",
    "äöü 日本語",
    "\U0001f600",
    "x" * 60,
    " ",
    "a b",
    'say "no"',
    "back\\slash/",
    "tab\there",
)
NAMES = ("p", "q", "color", "ä", "a b", "n")
SIZES = (0, 1, 40, 1000, 20_000)
BATCH_ID = "0123456789ABCDEF" * 2  # clients of 5.x name a batch as well
TOPICS = ("orders", "one", "many", "mixed", "fifo", "uneven", "reads")
ODD = (
    "wait", "delay", "transaction", "timer", "no id", "twice", "cluster", "nul", "surrogate", "long text",
    "many pairs", "long body", "topic", "retry", "queue", "number", "missing", "unknown field", "batch flag",
    "flag", "code", "member", "kind", "batch", "mixed batch", "byte", "context", "json",
)  # fmt: skip


class UntoldTraces:
    """Traces that nobody hears of."""

    def create(self) -> str:
        """Return the same context each time."""
        return "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def appended(self, drafts: Any, places: Any, began_ns: int) -> list[Any]:
        """Make no spans."""
        return []


@dataclass
class RemoteSide(Side):
    """One of the two brokers; its `server` speaks the remoting protocol, too.

    Attributes:
        traced: tracing is on, and one of some messages is sampled.
    """

    traced: bool = False

    def open(self) -> "RemoteSide":
        """Open everything; call it on a running loop."""
        super().open()
        self.topics.put_all(
            [
                TopicConfig(name="uneven", read_queues=6, write_queues=3),
                TopicConfig(name="reads", read_queues=2, write_queues=0),
                TopicConfig(name="drained", read_queues=2, write_queues=2).with_drained(True),
                TopicConfig(name="early", read_queues=2, write_queues=2).with_answer(0),
                TopicConfig(name="%RETRY%g", read_queues=1, write_queues=1),
            ]
        )
        self.remote = SendRequests(self.engine)
        if self.traced:
            self.engine.trace(cast(RecordTraces, UntoldTraces()), 0.2)
        for topic in self.topics.rows.values():
            self.engine.targets.of(topic).turn = 0
        self.send_lane = None if self.by_lane is None else RemotingSendLane(self.by_lane)
        self.server.remoting = RemotingService(self.remote.handles(), lane=self.send_lane)
        self.server.on_request_end = self.counted.calls.observe_many
        return self

    def connect_remote(self, stub: socket.socket) -> tuple[RemotingConnection, Sink]:
        """Return a new connection."""
        connection, sink = RemotingConnection(self.server, self.server.loop.time()), Sink(stub)
        connection.connection_made(sink)
        return connection, sink


def frames(data: bytes) -> dict[int, list[bytes]]:
    """Return the answers in what was sent, by the numbers of their requests."""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(data):
        length, size = HEAD.unpack_from(data, at)
        header = json.loads(data[at + 8 : at + 8 + size])
        found.setdefault(header["opaque"], []).append(data[at : at + 4 + length])
        at += 4 + length
    return found


class TwoRemote(SideBySide[RemoteSide, RemotingConnection]):
    """Both sides, and remoting.

    The first handles each request alone. The second has the lane, and what brokers have; without the lane
    where `by_lane` says so.
    """

    def __init__(
        self,
        root: Path,
        stub: socket.socket,
        *,
        options: StoreOptions = OPTIONS,
        by_lane: bool = True,
        **how: Any,
    ) -> None:
        self.used_lane = lane_or_skip() if by_lane else None
        super().__init__(
            RemoteSide(root / "python", None, options, **how).open(),
            RemoteSide(root / "lane", self.used_lane, options, **how).open(),
            lambda side: side.connect_remote(stub),
        )

    @property
    def lane(self) -> Lane:
        """The lane of the second."""
        assert self.used_lane is not None
        return self.used_lane

    @property
    def calls(self) -> int:
        """How many requests the lane has done."""
        assert self.compiled.send_lane is not None
        return self.compiled.send_lane.calls

    def check(self) -> None:
        """Compare all that both have done."""
        assert self.used_lane is None or self.used_lane.failures == 0, self.used_lane.why
        python, compiled = (sink.sent for _, sink in self.connections)
        same(frames(python), frames(compiled), "answers")
        (one, first), (other, second) = self.connections
        assert first.closing == second.closing
        assert one.reader.partial == other.reader.partial
        assert not one.reader.partial or one.reader.wanted == other.reader.wanted
        assert one.open_calls == other.open_calls
        same(self.python.contents(), self.compiled.contents(), "store")
        same(last_arrivals(self.python), last_arrivals(self.compiled), "arrivals")


def give_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have messages that come without an id get the same one on both sides, and sample the same ones."""
    monkeypatch.setattr(message, "uuid4", lambda: uuid.UUID(int=7))
    monkeypatch.setattr(sampling, "draw_unsampled", lambda ratio: 5)


def brokers_for(kind: str, root: Path, stub: socket.socket, *, by_lane: bool = True) -> TwoRemote:
    """Return both sides as an odd request of some kind needs them."""
    options = replace(OPTIONS, commitlog_file_size=1 << 24) if kind == "long body" else OPTIONS
    waits, traced = kind == "wait", kind == "context"
    return TwoRemote(root, stub, options=options, by_lane=by_lane, waits=waits, traced=traced)


def properties(rng: random.Random, *, unique: bool = True) -> list[tuple[str, str]]:
    """Return properties of a plain message."""
    pairs = [(name, rng.choice(TEXTS)) for name in rng.sample(NAMES, rng.randrange(4))]
    if rng.random() < 0.6:
        pairs.append(("TAGS", rng.choice(TEXTS)))
    if rng.random() < 0.6:
        pairs.append(("KEYS", " ".join(rng.choice(TEXTS) for _ in range(rng.randrange(1, 4)))))
    if rng.random() < 0.5:
        pairs.append(("WAIT", "true"))
    if rng.random() < 0.1:
        pairs.append((rng.choice(["empty", ""]), ""))
    if unique:
        pairs.append(("UNIQ_KEY", f"{rng.getrandbits(128):032X}"))
    rng.shuffle(pairs)
    return pairs


def text_of(rng: random.Random, pairs: list[tuple[str, str]]) -> str:
    """Return properties as text."""
    return "\x02".join(f"{name}\x01{value}" for name, value in pairs) + rng.choice(["", "\x02"])


class Request:
    """A send before it is written."""

    def __init__(
        self, rng: random.Random, *, batch: bool | None = None, topic: str = "", size: int = -1
    ) -> None:
        batch = rng.random() < 0.25 if batch is None else batch
        self.code, self.flag, self.kind = 320 if batch else 310, rng.choice([0, 0, 0, 2]), 0
        self.pairs = properties(rng, unique=not batch)
        if batch and self.flag:
            self.pairs.insert(0, ("UNIQ_KEY", BATCH_ID))
        self.messages = [
            (rng.randbytes(rng.choice(SIZES[:4])), properties(rng))
            for _ in range(rng.randrange(1, 5) if batch else 0)
        ]
        self.body = rng.randbytes(rng.choice(SIZES) if size < 0 else size)
        self.fields: dict[str, Any] = {
            "a": "producers", "b": topic or rng.choice(TOPICS[:-1]), "c": "TBW102", "d": "4", "e": "0",
            "f": rng.choice(["0", "0", "1", "7", "48"]), "g": str(NOW - rng.randrange(1000)),
            "h": rng.choice(["0", "17"]), "i": None, "j": rng.choice(["0", "3", "007"]), "k": "false",
            "m": "true" if batch else "false",
        }  # fmt: skip
        if rng.random() < 0.2:
            self.fields["e"] = "-1"
        if rng.random() < 0.3:
            self.fields["l"] = "16"
        if rng.random() < 0.3:
            self.fields["n"] = "broker-a"
        if not batch and rng.random() < 0.2:
            del self.fields["m"]
        if rng.random() < 0.1:
            del self.fields["j"]
        self.members: dict[str, Any] = {}

    def bytes(self, rng: random.Random, style: str, opaque: int) -> bytes:
        """Return it as a frame."""
        fields, body = dict(self.fields), self.body
        if fields.get("i", "") is None:
            fields["i"] = text_of(rng, self.pairs)
        if self.messages:
            body = batch_body(*[(each, text_of(rng, pairs)) for each, pairs in self.messages])
        header: dict[str, Any] = {
            "code": self.code, "extFields": fields, "flag": self.flag, "language": "JAVA", "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON", "version": 399,
        }  # fmt: skip
        if style == "java 5":
            header["version"] = 479
        elif style == "go":
            del header["serializeTypeCurrentRPC"]
            header |= {"language": "GO", "version": 317}
            names = list(fields)
            rng.shuffle(names)
            header["extFields"] = {name: fields[name] for name in names}
        header |= self.members
        return framed(written(header, style), body, self.kind)


def batch_body(*messages: tuple[bytes, str]) -> bytes:
    """Return the body of a batch: bodies and property texts, of up to 64 KiB."""
    found = b""
    for body, text in messages:
        properties = text.encode()
        rest = (
            struct.pack(">iiii", 0, 0, 5, len(body)) + body + struct.pack(">H", len(properties)) + properties
        )
        found += struct.pack(">i", 4 + len(rest)) + rest
    return found


def written(header: Mapping[str, Any], style: str) -> bytes:
    """Return a header as JSON, in the style of a client."""
    if style == "spaced":
        return json.dumps(header).encode() + b"\n"
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    if style == "go":
        text = text.replace("&", "\\u0026").replace("<", "\\u003c")
    return text.encode("utf-8", "surrogatepass")


def framed(header: bytes, body: bytes, kind: int = 0) -> bytes:
    """Return a frame."""
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def plain(rng: random.Random, opaque: int, style: str = "", **how: Any) -> bytes:
    """Return a plain send."""
    return Request(rng, **how).bytes(rng, style or rng.choice(STYLES), opaque)


def odd(rng: random.Random, opaque: int, kind: str) -> bytes:
    """Return a request that is not plain; see `ODD`."""
    request = Request(rng, batch=None if kind not in ("batch", "mixed batch") else True)
    fields, style = request.fields, rng.choice(STYLES)
    pairs = rng.choice([request.pairs, *(pairs for _, pairs in request.messages)])
    at = rng.randrange(len(pairs) + 1)
    if kind == "wait":
        request.pairs[:] = [pair for pair in request.pairs if pair[0] != "WAIT"]
        request.pairs.insert(0, ("WAIT", rng.choice(["false", "TRUE", "no"])))
    elif kind == "delay":
        pairs.insert(at, ("DELAY", rng.choice(["1", "99", "x"])))
    elif kind == "transaction":
        pairs.insert(at, ("TRAN_MSG", rng.choice(["false", "no"])))
    elif kind == "timer":
        name = rng.choice(["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"])
        pairs.insert(at, (name, rng.choice(["0", "x", str(1 << 60)])))
    elif kind == "no id":
        pairs[:] = [pair for pair in pairs if pair[0] != "UNIQ_KEY"]
    elif kind == "twice":
        pairs.insert(at, ("p", "one"))
        pairs.append(("p", "two"))
    elif kind == "cluster":
        pairs.insert(at, ("CLUSTER", "mine"))
    elif kind == "nul":
        pairs.insert(at, ("z", "a\x00b"))
    elif kind == "surrogate":
        pairs.insert(at, ("z", "half \ud83d pair")) if pairs is request.pairs else pairs.append(("z", "z"))
        style = "spaced"
    elif kind == "long text":
        pairs.insert(at, ("long", "x" * rng.choice([32_600, 32_767, 40_000])))
    elif kind == "many pairs":
        pairs.extend((f"number-{number}", "x") for number in range(rng.choice([40, 64, 70])))
    elif kind == "long body":
        request.messages, request.code, fields["m"] = [], 310, "false"
        request.body = bytes((4 << 20) + rng.choice([0, 1]))
    elif kind == "topic":
        fields["b"] = rng.choice(["none", "drained", "early", "SCHEDULE_TOPIC_XXXX", "", "x" * 300, "\u0416"])
    elif kind == "retry":
        fields["b"], fields["j"] = "%RETRY%g", rng.choice(["0", "16"])
    elif kind == "queue":
        fields["b"] = rng.choice(TOPICS)
        fields["e"] = rng.choice(["-1", "-7", "-0", "1", "3", "6", "299", "300", "2147483647", "-2147483649"])
    elif kind == "number":
        fields[rng.choice("defghjl")] = rng.choice(
            [
                "",
                " 1",
                "+1",
                "1.0",
                "x",
                "-5",
                "2147483648",
                "9" * 30,
                "٣",
                7,
                1.5,
                True,
                "00000000012",
                "9" * 15,
            ]
        )
        if rng.random() < 0.2:
            fields["g"] = rng.choice(["-5", "+5"])
    elif kind == "missing":
        fields.pop(rng.choice("abcdefgh"))
    elif kind == "unknown field":
        fields[rng.choice(["AccessKey", "z", "", "aa"])] = rng.choice(["x", None, [1]])
    elif kind == "batch flag":
        fields["m"] = rng.choice(["TRUE", "1", "", "true"])
    elif kind == "flag":
        request.flag = rng.choice([1, 3, 4, -2])
    elif kind == "code":
        request.code = rng.choice([10, 11, 34, 99, -1])
    elif kind == "member":
        request.members = rng.choice(
            [
                {"remark": None}, {"remark": "hello"}, {"other": 1}, {"version": "1"}, {"language": "X"},
                {"language": 9}, {"extFields": None}, {"opaque": -opaque - 1}, {"version": 1.0},
            ]
        )  # fmt: skip
    elif kind == "kind":
        request.kind = 1
    elif kind == "context":
        pairs.insert(
            at,
            (rng.choice(["TRACE_CONTEXT", "traceparent", "z"]), rng.choice(["00-1-2-01", "TRACE_CONTEXT"])),
        )
    data = request.bytes(rng, style, opaque)
    if kind == "batch":
        data = damaged_batch(rng, data)
    elif kind == "json":
        data = odd_header(rng, data)
    elif kind == "mixed batch":
        request.messages[0][1].extend(request.pairs)
        data = request.bytes(rng, style, opaque)
    elif kind == "byte":
        place = rng.randrange(8, len(data))
        data = data[:place] + bytes((rng.randrange(256),)) + data[place + 1 :]
    return data


def damaged_batch(rng: random.Random, data: bytes) -> bytes:
    """Return a batch with a body that is none."""
    _, size = HEAD.unpack_from(data)
    header, body = data[8 : 8 + size], bytearray(data[8 + size :])
    kind = rng.randrange(5)
    if kind == 0:
        del body[rng.randrange(len(body)) :]
    elif kind == 4:
        body.clear()
    elif kind == 1:
        body[rng.randrange(20)] ^= 1 << rng.randrange(8)
    elif kind == 2:
        body += rng.randbytes(rng.randrange(1, 40))
    else:
        body[-1] = 0xFF  # no UTF-8
    return framed(header, bytes(body))


def odd_header(rng: random.Random, data: bytes) -> bytes:
    """Return a send whose header is no usual JSON."""
    _, size = HEAD.unpack_from(data)
    header, body = data[8 : 8 + size], data[8 + size :]
    end = header.rindex(b"}")
    before, behind = rng.choice(
        [
            (b"{", b'{"flag":2,'),
            (b'"extFields":{', b'"extFields":{"b":"one",'),
            (b'"extFields":{', b'"extFields":{"\\u0062":"one",'),
            (b'"extFields":{', b'"extFields":{"k":"\x01",'),
            (b'"extFields":{', b'"extFields":{"k":"\\ud83d\\ude00\\\\\\"",'),
            (b'"extFields":{', b'"extFields":{"k":"\\u12g4",'),
            (b'"extFields":{', b'"extFields":{"k":{},'),
            (b'"version":', b'"version":0'),
            (b"{", b" {"),
            (b"{", b"{,"),
            (b'"flag"', b'"\\u0066lag"'),
            (header[end:], b"} x"),
            (header[end:], b"}" + b" " * (256 << 10)),
            (header[end:], b",}"),
            (header, header[:-1]),
        ]
    )
    return framed(header.replace(before, behind, 1), body)


def hostile(rng: random.Random) -> bytes:
    """Return bytes that end a connection."""
    return HOSTILE_FRAMES[rng.choice(sorted(HOSTILE_FRAMES))]
