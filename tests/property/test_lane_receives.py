"""Receives, pulls and acknowledgements go the same way by Python and by the lane: generated histories."""

import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lanebroker import GROUPS, SERVICE, STYLES, Client, Side, answers, frame, same
from lanepair import SEED, Two, play_all, request, run
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.pb import Duration
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.frames import DATA, RST_STREAM, SETTING, SETTINGS, WINDOW_UPDATE
from whimbrel.rpc.http2.grpc_format import unprefixed
from whimbrel.rpc.server import lane_calls
from whimbrel.store.codec import (
    COMPRESSED,
    FILLER_SIZE,
    UNIT,
    UNIT_SIZE,
    RecordDraft,
    pack_host,
    property_of,
    tag_bytes_code,
)
from whimbrel.store.lane_messages import PackedMessages

PATHS = {
    name: f"/{SERVICE}/{name}"
    for name in ("SendMessage", "ReceiveMessage", "PullMessage", "AckMessage", "ChangeInvisibleDuration")
}
TOPICS = ("orders", "one", "fifo")
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
CALLS = 4_500  # of each part, at least, in a round
PULLS = 200  # of each part, at least, in a round
# Texts of messages that are pulled; the tags Aa and BB have the same code.
TAGGED = tuple(b"TAGS\x01%s\x02a\x011\x02" % tag for tag in (b"a", b"Aa", b"BB", b"b"))
CONNECTIONS = 8  # to one pair of brokers
FILTERS = (
    (v2.TAG, "a"), (v2.TAG, "a || order-17"), (v2.SQL, "a = '1'"), (v2.SQL, "TAGS = 'a'"), (v2.TAG, "|"),
    (v2.SQL, "="),
)  # fmt: skip
ODD_HANDLES = (
    "",
    "x",
    "W1",
    "cut",
    "upper",
    "prefix",
    "group",
    "topic",
    "queue",
    "epoch",
    "offset",
    "serial",
    "attempt",
    "percent",
    "zero",
)


def odd_draft(
    rng: random.Random,
    topic: str,
    texts: Sequence[bytes] = TEXTS,
    sizes: Sequence[int] = (0, 1, 100, 3000),
) -> RecordDraft:
    """Return a record as somebody else may have written it."""
    born, store = rng.choice(HOSTS), rng.choice(HOSTS)
    properties = rng.choice(texts)
    return RecordDraft(
        topic=topic,
        queue_id=0,
        body=rng.randbytes(rng.choice(sizes)),
        properties=properties,
        tags_code=tag_bytes_code(property_of(properties, b"TAGS")),
        born_timestamp=rng.choice([-1, 0, 1, 999, 1_700_000_000_001, 1 << 49, 1 << 60]),
        born_host=born,
        store_host=store,
        flag=rng.choice([0, 7]),
        sys_flag=rng.choice([0, 0, COMPRESSED])
        | (0x10 if len(born) == 20 else 0)
        | (0x20 if len(store) == 20 else 0),
        reconsume_times=rng.choice([0, 0, 1, 5, -1, (1 << 30) - 1, 1 << 30, (1 << 31) - 1]),
    )


class History:
    """Consumers of a broker, on both sides."""

    def __init__(
        self, root: Path, stub: socket.socket, rng: random.Random, *, style: str = "", waits: bool = False
    ) -> None:
        self.two, self.rng = Two(root, stub, waits=waits), rng
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
        written = b"".join(sink.written)
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


def odd_handle(rng: random.Random, text: str, kind: str) -> str:
    """Return a handle with something wrong, or only unusual, about it."""
    handle = ReceiptHandle.decode(text)
    changed: dict[str, Any] = {
        "group": {"group": "other"}, "topic": {"topic": "one"},
        "queue": {"queue_id": rng.choice([1, 9, 65_536])}, "epoch": {"epoch": handle.epoch + 1},
        "offset": {"offset": rng.choice([handle.offset + 1, 1 << 20, 1 << 56])},
        "serial": {"serial": handle.serial + rng.choice([-1, 1])},
        "attempt": {"attempt": rng.choice([0, 2, 1 << 31])},
    }  # fmt: skip
    if kind in changed:
        return handle._replace(**changed[kind]).encode()
    if kind == "cut":
        return text[: rng.randrange(len(text))]
    if kind == "upper":
        return text[:9] + text[9:].upper()
    if kind == "prefix":
        return text.replace("W1:b", rng.choice(["W2:b", "W1:c", "W1:b:b"]))
    if kind == "percent":
        return text.replace(":g:", ":%67:")
    if kind == "zero":
        return text.replace(":", ":0", 5)
    return kind


def some_call(history: History) -> bytes:
    """Return the bytes of a call that a consumer or a producer may make, or of several."""
    rng = history.rng
    group, topic = rng.choice(GROUPS).name, rng.choice(TOPICS[:2] if rng.random() < 0.8 else TOPICS)
    kind = rng.choice(
        ["send", "send", "receive", "receive", "ack", "ack", "acks", "odd ack", "pull", "change", "reset"]
    )
    if kind == "send":
        return history.client.call(
            request(rng, rng.choice([1, 1, 4, 20]), topic=topic if topic != "fifo" else "orders")
        )
    if kind == "receive":
        fields = some_filter(rng)
        if rng.random() < 0.3:
            fields["long_polling_timeout"] = Duration(seconds=10)
        if rng.random() < 0.2:
            fields["auto_renew"] = True
        return history.receive(group, topic, rng.choice([1, 2, 8, 32]), **fields)
    if kind == "pull":
        polling = Duration(seconds=rng.choice([0, 0, 10]))
        queue = v2.MessageQueue(id=rng.choice([0, 0, 1]))
        fields = {"long_polling_timeout": polling, "message_queue": queue} | some_filter(rng)
        return history.pull(group, topic, rng.choice([0, 0, 1, 3, 1000]), rng.choice([1, 8, 32]), **fields)
    if not history.handles:
        return b""
    at = rng.randrange(len(history.handles))
    group, topic, message_id, handle = history.handles[at]
    if kind == "reset":
        earlier = max(history.client.id - 2, 1)
        history.client.reset.add(earlier)
        return frame(RST_STREAM, 0, earlier, (8).to_bytes(4, "big"))
    if kind == "change":
        changed = messaging.ChangeInvisibleDurationRequest(receipt_handle=handle)
        changed.group.name, changed.topic.name = group, topic
        changed.invisible_duration.seconds = rng.choice([0, 10, 60])
        return history.call("ChangeInvisibleDuration", changed)
    if kind == "odd ack":
        entries = [(message_id, odd_handle(rng, handle, rng.choice(ODD_HANDLES)))]
        if rng.random() < 0.5:
            entries.insert(rng.randrange(2), (message_id, handle))
        if rng.random() < 0.2:
            group = rng.choice(["other", "", "g"])
        if rng.random() < 0.05:
            entries = []
        return history.ack(group, rng.choice([topic, topic, "one", "none", ""]), entries)
    alike = [one for one in history.handles if one[:2] == (group, topic)]
    some = rng.sample(alike, min(len(alike), rng.choice([1, 1, 2, 10, 32])))
    if rng.random() < 0.8:
        history.handles = [one for one in history.handles if one not in some]
    if kind == "acks":
        return b"".join(history.ack(group, topic, [one[2:]], pieces=rng.choice([1, 1, 2])) for one in some)
    return history.ack(group, topic, [one[2:] for one in some])


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


@pytest.mark.parametrize("alone", [True, False], ids=["one by one", "together"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", CLASSES)
def test_the_lane_does_nearly_all_of_what_is_plain(
    tmp_path: Path, stub: socket.socket, kind: str, style: str, alone: bool
) -> None:
    def body() -> None:
        rng = random.Random(SEED)
        history = History(tmp_path, stub, rng, style=style)
        two, client, count = history.two, history.client, 100
        history.begin()
        history.window()
        for _ in range(count - 1):
            two.feed(client.call(request(rng, topic="orders", **CLASSES[kind])))
        two.settle()
        for _ in range(20):
            two.feed(history.receive("g", "orders"))
            history.learn()
            entries = [handle[2:] for handle in history.handles]
            history.handles.clear()
            for some in [[one] for one in entries] if alone else [entries] if entries else []:
                two.feed(history.ack("g", "orders", some))
        history.check()
        lane = two.lane
        share = f"{lane.delivered} messages and {lane.acknowledged} acknowledgements of {count} by the lane"
        assert min(lane.delivered, lane.acknowledged) >= 0.99 * count, share
        two.close()

    run(body)


@pytest.mark.parametrize("tags", ["", "a", "b || a"])
@pytest.mark.parametrize("kind", CLASSES)
def test_nearly_all_plain_pulls_are_one_call(
    tmp_path: Path, stub: socket.socket, monkeypatch: pytest.MonkeyPatch, kind: str, tags: str
) -> None:
    def body() -> None:
        rng = random.Random(SEED)
        history = History(tmp_path, stub, rng)
        two, client, count = history.two, history.client, 400
        history.begin()
        history.window()
        fixed = CLASSES[kind] | ({"tag": "a"} if tags else {})
        for _ in range(count):
            two.feed(client.call(request(rng, topic="orders", **fixed)))
        two.settle()
        messages = two.compiled.store.lane_messages
        by_one_call, pull = [], messages.pull

        def counted(*arguments: Any) -> PackedMessages | None:
            packed = pull(*arguments)
            by_one_call.append(0 if packed is None else packed.messages)
            return packed

        monkeypatch.setattr(messages, "pull", counted)
        fields: dict[str, Any] = (
            {"filter_expression": v2.FilterExpression(type=v2.TAG, expression=tags)} if tags else {}
        )
        calls = 0
        for queue_id in range(4):
            low, high = two.compiled.store.queue_range("orders", queue_id)
            for offset in range(low, high, 32):
                queue = v2.MessageQueue(id=queue_id)
                two.feed(history.pull("g", "orders", offset, message_queue=queue, **fields))
                calls += 1
        history.check()
        delivered = sum(told[2] for told in two.compiled.delivered)
        assert delivered >= count
        assert sum(by_one_call) >= 0.99 * delivered, f"{sum(by_one_call)} of {delivered} messages"
        assert len(by_one_call) <= calls * 1.3, f"{len(by_one_call)} passes for {calls} calls"
        two.close()

    run(body)


def test_a_panic_in_a_pull_leaves_all_of_it_to_python(
    tmp_path: Path, stub: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> None:
        history = History(tmp_path, stub, random.Random(SEED))
        two, lane = history.two, history.two.lane
        history.begin()
        history.window()
        draft = odd_draft(history.rng, "one", TAGGED)
        for side in two.sides:
            append_odd(side, draft, damaged=False)
        native: Any = lane.native
        messages = two.compiled.store.lane_messages

        class Panicking:
            def pull(self, *arguments: Any) -> None:
                native.panic("a test")

        monkeypatch.setattr(messages, "native", Panicking())
        two.feed(history.pull("g", "one", 0))
        two.feed(history.pull("g", "one", 0))
        python, compiled = (answers(b"".join(sink.written), frozenset()) for _, sink in two.connections)
        same(python, compiled, "answers")
        assert (lane.failures, lane.active) == (1, False)
        assert [told[2] for told in two.compiled.delivered] == [1, 1]
        two.close()

    run(body)


def pulled(work: Path, stub: socket.socket, rng: random.Random) -> int:
    """Pull from a generated log; return how many calls it were."""
    history = History(work, stub, rng)
    two = history.two
    history.begin()
    history.window()
    sizes, most = rng.choice(
        [
            ((1,), 2500),
            ((0, 1, 55, 56, 64, 100), 300),
            ((1024,), 300),
            ((1, 3000, 70_000), 100),
            ((600_000,), 12),
        ]
    )
    count = rng.randrange(1, most)
    odd_share, damaged_share, gap_share, entry_share = (rng.choice([0.0, 0.0, 0.02, 0.2]) for _ in range(4))
    recoded_share = rng.choice([0.0, 0.0, 0.3])
    tagged = TAGGED[:: rng.choice([1, 1, -1])][: rng.choice([1, 2, 4])]
    for _ in range(count):
        odd = rng.random() < odd_share
        draft = odd_draft(rng, "one", TEXTS if odd else tagged, sizes)
        gap = odd_draft(rng, "many", sizes=(10, 5000)) if rng.random() < gap_share else None
        damaged = rng.random() < damaged_share / 4
        for side in two.sides:
            append_odd(side, draft, damaged=damaged)
            if gap is not None:
                append_odd(side, gap, damaged=False)
    low, high = two.python.store.queue_range("one", 0)
    for offset in range(low, high):
        if rng.random() < entry_share / 4:
            ((place, size, code),) = two.python.store.queue_units("one", 0, offset, 1)
            entry = rng.choice([
                (0, FILLER_SIZE, 0), (0, 0, 0), (place + 1, size, code), (place, size + 1, code),
                (place, size - 1, code), (1 << 40, size, code), (-1, size, code), (place, -1, code),
                (place, size, code + 1), (place, size, code + (1 << 32)), (place, 1 << 30, code),
            ])  # fmt: skip
        elif rng.random() < recoded_share:
            ((place, size, _),) = two.python.store.queue_units("one", 0, offset, 1)
            entry = (place, size, tag_bytes_code(rng.choice([b"a", b"Aa", b"b", b"none"])))
        else:
            continue
        for side in two.sides:
            overwrite_entry(side, offset, entry)
    filters = (
        *FILTERS, (v2.TAG, "a"), (v2.TAG, "Aa"), (v2.TAG, "BB || b"), (v2.TAG, "none"),
        (v2.TAG, "||".join(map(str, range(40))) + "||a"),
    )  # fmt: skip
    calls = rng.randrange(20, 60)
    for _ in range(calls):
        offset = rng.choice([low, rng.randrange(low, high + 2)])
        fields = some_filter(rng, filters, share=0.6) | {"message_queue": v2.MessageQueue(id=0)}
        two.feed(history.pull("g", "one", offset, rng.choice([1, 2, 8, 32, 32, 100]), **fields))
    history.check()
    two.close()
    return calls


def overwrite_entry(side: Side, offset: int, entry: tuple[int, int, int]) -> None:
    """Damage an entry of queue 0 of the topic `one`."""
    queue = side.store.queues.by_key["one", 0]
    per_file = queue.file_size // UNIT_SIZE
    first = offset - offset % per_file
    fd = os.open(queue.path_of(first * UNIT_SIZE), os.O_WRONLY)
    try:
        os.pwrite(fd, UNIT.pack(*entry), (offset - first) * UNIT_SIZE)
    finally:
        os.close(fd)


@pytest.mark.parametrize("state", ["full", "closed"])
def test_a_journal_that_takes_nothing_is_an_error_of_the_call(
    tmp_path: Path, stub: socket.socket, state: str
) -> None:
    def body() -> None:
        rng = random.Random(SEED)
        history = History(tmp_path, stub, rng)
        two = history.two
        history.begin()
        history.window()
        two.feed(history.receive("g", "orders"))
        history.learn()
        two.feed(history.client.call(request(rng)))  # the lane learns whose calls it may take
        ((group, topic, message_id, handle),) = history.handles
        for refuses in (True, False):
            for side in two.sides:
                setattr(side.journal, state, refuses)
            two.feed(history.ack(group, topic, [(message_id, handle)]))
            assert not two.connections[1][1].closing, "the connection goes on"
            assert two.lane.acknowledged == (0 if refuses else 1)
        history.check()
        two.close()

    run(body)


@pytest.mark.parametrize("window", ["of the stream", "of the connection"])
def test_an_answer_that_does_not_fit_into_the_window_waits(
    tmp_path: Path, stub: socket.socket, window: str
) -> None:
    def body() -> None:
        rng = random.Random(SEED)
        history = History(tmp_path, stub, rng)
        two, client = history.two, history.client
        history.begin()
        for _ in range(199):
            two.feed(client.call(request(rng, topic="orders", size=1, properties={}, trace_context="")))
        two.settle()
        for _ in range(7):
            two.feed(history.receive("g", "orders"))
        history.learn()
        entries = [handle[2:] for handle in history.handles]
        assert len(entries) > 150, "the receives' own answers fill the window"
        if window == "of the stream":
            history.window()
            two.feed(frame(SETTINGS, 0, 0, SETTING.pack(4, 300)))
            entries = entries[:32]
        two.feed(history.ack("g", "orders", entries))
        history.check()  # a part has left
        history.window()
        history.check()
        two.close()

    run(body)


@pytest.mark.parametrize("kind", ODD_HANDLES)
def test_odd_handles_are_pythons(tmp_path: Path, stub: socket.socket, kind: str) -> None:
    def body() -> None:
        rng = random.Random(SEED)
        history = History(tmp_path, stub, rng)
        two, client = history.two, history.client
        history.begin()
        history.window()
        for topic in ("orders", "one"):
            two.feed(b"".join(client.call(request(rng, topic=topic)) for _ in range(40)))
            two.settle()
            two.feed(history.receive("g", topic))
        two.settle()
        history.learn()
        for group, topic, message_id, handle in history.handles[::2]:
            two.feed(history.ack(group, topic, [(message_id, odd_handle(rng, handle, kind))]))
        history.check()
        two.close()

    run(body)


@pytest.mark.parametrize("part", range(4))
def test_generated_histories_of_consumers_go_the_same_way(
    tmp_path: Path, stub: socket.socket, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part == 3:
        monkeypatch.setattr(lane_calls, "IDLE_READS_MAX", 1)
        monkeypatch.setattr(lane_calls, "IDLE_READS_EACH", 2)
    play_all(tmp_path, part, CALLS, lambda work, rng: generated(work, stub, rng))


def generated(work: Path, stub: socket.socket, rng: random.Random) -> int:
    """Play a generated history over some connections; return how many calls it has made."""
    history = History(work, stub, rng, waits=rng.random() < 0.3)
    calls = play(history)
    for _ in range(CONNECTIONS - 1):
        history.connect_anew()
        calls += play(history)
    history.two.close()
    return calls


def play(history: History) -> int:
    """Play a connection."""
    rng, two = history.rng, history.two
    history.begin(*rng.choice([[], [], [(4, 20)], [(4, 300)], [(5, 16_384), (4, 1 << 20)], [(5, 1 << 20)]]))
    if rng.random() < 0.7:
        history.window()
    odd_share = rng.choice([0.0, 0.1, 0.4])
    for _ in range(rng.randrange(5, 40)):
        if rng.random() < odd_share:
            draft = odd_draft(rng, rng.choice(TOPICS))
            damaged = rng.random() < 0.1
            for side in two.sides:
                append_odd(side, draft, damaged=damaged)
        if rng.random() < 0.1:
            ms = rng.choice([10, 1000, 31_000, 100_000])
            for side in two.sides:
                side.advance(ms)
        if rng.random() < 0.05:
            history.was_full = True
            for side in two.sides:
                side.journal.full = not side.journal.full
        two.feed(b"".join(some_call(history) for _ in range(rng.choice([1, 1, 2, 5]))))
        if rng.random() < 0.5:
            two.settle()
            history.learn()
    for side in two.sides:
        side.journal.full = False
    history.window()
    history.check()
    return history.client.id // 2


def append_odd(side: Side, draft: RecordDraft, *, damaged: bool) -> None:
    """Append a record, and damage its body."""
    (place,) = side.store.append([draft])
    side.appender.note_appended()
    if damaged:
        log = side.store.writer
        assert log.segment is not None
        log.segment.mapped[place.physical_offset - log.base + 90] ^= 1


@pytest.mark.parametrize("part", range(4))
def test_pulls_from_any_log_have_the_same_answers(tmp_path: Path, stub: socket.socket, part: int) -> None:
    play_all(tmp_path, part, PULLS, lambda work, rng: pulled(work, stub, rng))
