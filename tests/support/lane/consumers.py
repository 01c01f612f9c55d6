"""Consumers and producers of two brokers, by Python and by the lane; and records that somebody else wrote."""

import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lz4.frame

from support.http2.frames import frame
from support.lane.brokers import SERVICE, STYLES, Client, Side, answers, same
from support.lane.pair import Two, request
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.frames import DATA, SETTING, SETTINGS, WINDOW_UPDATE
from whimbrel.rpc.http2.grpc_format import unprefixed
from whimbrel.store.codec import (
    COMPRESSED,
    RecordDraft,
    pack_host,
    property_of,
    tag_bytes_code,
)

__all__ = ["CLASSES", "FILTERS", "TEXTS", "History", "append_odd", "odd_draft", "some_filter"]

PATHS = {
    name: f"/{SERVICE}/{name}"
    for name in ("SendMessage", "ReceiveMessage", "PullMessage", "AckMessage", "ChangeInvisibleDuration")
}
MANY = b"".join(b"p%d\x01%d\x02" % (number, number) for number in range(20))
# Property texts of other writers, and of messages that are more than plain ones.
TEXTS = (
    b"", b"TAGS\x01a\x02", b"KEYS\x01k  l m\x02UNIQ_KEY\x01id",
    b"a\x011\x02b\x01\x02c\x02\x01d\x02e\x01f\x01g", b"a\x011\x02a\x012\x02",
    b"a\x01\xff\x02", b"\xff\x011\x02",
    b"__BORNHOST\x01here\x02TRACE_CONTEXT\x01t\x02", b"__SHARDINGKEY\x01x\x02",
    b"TIMER_DELIVER_MS\x01123456\x02",
    b"DELAY\x013\x02", b"TRAN_MSG\x01true\x02", b"_SYS_MSG_PRIORITY_\x013\x02", b"DLQ_ORIGIN_TOPIC\x01t\x02",
    b"REDIRECT\x01x\x02INNER_NUM\x012\x02u\x01v\x02",
    MANY, MANY + b"p3\x012\x02", MANY + b"DELAY\x013\x02",
    b"__CRC32#\x011234567890\x02", b"__CRC32#\x01", b"CLUSTER\x01c\x02u\x01\xe6\x97\xa5\x02",
)  # fmt: skip
HOSTS = (
    pack_host("127.0.0.1", 8091),
    pack_host("10.1.2.3", 0),
    pack_host("::1", 65_535),
    pack_host("2001:db8::5:0", 1),
)
ZLIB, LZ4 = COMPRESSED | 0x300, COMPRESSED | 0x100
FILTERS = (
    (v2.TAG, "a"), (v2.TAG, "a || order-17"), (v2.SQL, "a = '1'"), (v2.SQL, "TAGS = 'a'"), (v2.TAG, "|"),
    (v2.SQL, "="),
)  # fmt: skip


def odd_draft(
    rng: random.Random,
    topic: str,
    texts: Sequence[bytes] = TEXTS,
    sizes: Sequence[int] = (0, 1, 100, 3000),
) -> RecordDraft:
    """Return a record as somebody else may have written it."""
    born, store = rng.choice(HOSTS), rng.choice(HOSTS)
    properties = rng.choice(texts)
    body = rng.randbytes(rng.choice(sizes))
    born_timestamp = rng.choice([-1, 0, 1, 999, 1_700_000_000_001, 1 << 49, 1 << 60])
    flag = rng.choice([0, 7])
    packed = rng.choice([0, 0, (COMPRESSED, ZLIB, LZ4)[len(properties) % 3]])
    return RecordDraft(
        topic=topic,
        queue_id=0,
        body=lz4.frame.compress(body) if packed == LZ4 and len(body) != 1 else body,
        properties=properties,
        tags_code=tag_bytes_code(property_of(properties, b"TAGS")),
        born_timestamp=born_timestamp,
        born_host=born,
        store_host=store,
        flag=flag,
        sys_flag=packed | (0x10 if len(born) == 20 else 0) | (0x20 if len(store) == 20 else 0),
        reconsume_times=rng.choice([0, 0, 1, 5, -1, (1 << 30) - 1, 1 << 30, (1 << 31) - 1]),
    )


class History:
    """Consumers of a broker, on both sides."""

    def __init__(
        self, root: Path, stub: socket.socket, rng: random.Random, *, style: str = "", **how: bool
    ) -> None:
        """`how`: see `Side`."""
        self.two, self.rng = Two(root, stub, **how), rng
        self.client = Client(rng, style or rng.choice(STYLES))
        self.handles: list[tuple[str, str, str, str]] = []  # group, topic, message id, handle
        self.asked: dict[int, tuple[str, str]] = {}  # group and topic, by stream
        self.was_full = False  # the journal

    def connect_anew(self) -> None:
        """Go on with another connection, of a client library that may be another one."""
        self.two.connect_anew()
        self.client = Client(self.rng, self.rng.choice(STYLES))
        self.asked.clear()

    def begin(self, *settings: tuple[int, int]) -> None:
        """Begin the connection; Python makes the first log file, and meets the client."""
        self.two.feed(self.client.begin(*settings) + self.client.call(request(self.rng, topic="orders")))
        self.two.settle()

    def window(self) -> None:
        """Let answers of any size through."""
        grown = frame(SETTINGS, 0, 0, SETTING.pack(4, 1 << 28)) + frame(
            WINDOW_UPDATE, 0, 0, (1 << 28).to_bytes(4, "big")
        )
        self.two.feed(grown)

    def call(self, name: str, message: Any, **how: Any) -> bytes:
        """Return the bytes of a call."""
        # Polls end by the polling time, not by the deadline: that is of a clock which does not stand still.
        how.setdefault("timeout", "100S")
        return self.client.call(message.SerializeToString(deterministic=True), path=PATHS[name], **how)

    def receive(self, group: str, topic: str, batch: int = 32, **fields: Any) -> bytes:
        wanted = messaging.ReceiveMessageRequest(batch_size=batch, **fields)
        wanted.group.name, wanted.message_queue.topic.name = group, topic
        if not wanted.auto_renew and not wanted.HasField("invisible_duration"):
            wanted.invisible_duration.seconds = 30
        if not wanted.HasField("long_polling_timeout"):
            wanted.long_polling_timeout.seconds = 0
        self.asked[self.client.id] = group, topic
        return self.call("ReceiveMessage", wanted)

    def pull(self, group: str, topic: str, offset: int, batch: int = 32, **fields: Any) -> bytes:
        wanted = messaging.PullMessageRequest(batch_size=batch, offset=offset, **fields)
        wanted.group.name = group
        wanted.message_queue.topic.name = topic
        wanted.message_queue.topic.resource_namespace = self.rng.choice(["", "", "space"])
        return self.call("PullMessage", wanted)

    def ack(self, group: str, topic: str, entries: list[tuple[str, str]], **how: Any) -> bytes:
        done = messaging.AckMessageRequest()
        done.group.name, done.topic.name = group, topic
        for message_id, handle in entries:
            done.entries.add(message_id=message_id, receipt_handle=handle)
        return self.call("AckMessage", done, **how)

    def learn(self) -> None:
        """Take note of the handles that Python has given out."""
        sink = self.two.connections[0][1]
        written = sink.sent
        for stream_id, found in answers(written, frozenset()).items():
            if stream_id not in self.asked or not found or not found[-1][1] & 1:
                continue
            group, topic = self.asked.pop(stream_id)
            for kind, _, payload in found:
                for one in unprefixed(payload) if kind == DATA else ():
                    response = messaging.ReceiveMessageResponse.FromString(one)
                    if response.HasField("message"):
                        system = response.message.system_properties
                        self.handles.append((group, topic, system.message_id, system.receipt_handle))

    def check(self) -> None:
        """Compare both sides."""
        self.two.settle()
        self.two.check(self.client.reset)
        same(self.two.python.leases(), self.two.compiled.leases(), "leases")
        if not self.was_full:
            found = self.two.compiled.leases()
            same(found["journal"], found["leases"], "journal and leases")


def some_filter(
    rng: random.Random, filters: Sequence[tuple[Any, str]] = FILTERS, share: float = 0.3
) -> dict[str, Any]:
    """Return a filter as a field of a request, or none."""
    if rng.random() > share:
        return {}
    sort, text = rng.choice(filters)
    return {"filter_expression": v2.FilterExpression(type=sort, expression=text)}


CLASSES: dict[str, dict[str, Any]] = {
    "one byte": {"size": 1},
    "1 KiB": {"size": 1024},
    "20 KB": {"size": 20_000},
    "no text": {"size": 100, "tag": "", "keys": [], "born_host": ""},
    "any text": {},
}


def append_odd(side: Side, draft: RecordDraft, *, damaged: bool) -> None:
    """Append a record, and damage its body."""
    (place,) = side.store.append([draft])
    side.appender.note_appended()
    if damaged:
        log = side.store.writer
        assert log.segment is not None
        log.segment.mapped[place.physical_offset - log.base + 90] ^= 1
