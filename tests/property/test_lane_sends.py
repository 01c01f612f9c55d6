"""Sends go the same way by Python and by the lane: generated requests and connections, damaged ones too."""

import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lanebroker import CLIENT, STYLES, Client, frame
from lanepair import SEED, Two, message, play_all, request, run
from storekit import NOW
from whimbrel.broker.api.response_bytes import varint
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.frames import PING, RST_STREAM, SETTING, SETTINGS, WINDOW_UPDATE
from whimbrel.rpc.http2.stream import Limits

CALLS = 8_000  # of each part, at least, in a round
CONNECTIONS = 8  # to one pair of brokers
ODD = (
    "empty", "topic", "no topic", "several", "control", "tag", "key", "id", "reserved", "many", "heavy",
    "group", "delay", "digest", "priority", "type", "time", "unknown", "merged", "twice", "bytes",
    "queue", "client", "path", "timeout",
)  # fmt: skip


@pytest.fixture
def stub() -> Iterator[socket.socket]:
    """Return a socket for options to be set on."""
    with socket.socket() as found:
        yield found


def odd_request(rng: random.Random, kind: str) -> tuple[bytes, dict[str, Any]]:
    """Return a request that is not plain, and what is unusual about its call."""
    one = message(rng, topic="orders")
    system, messages = one.system_properties, [one]
    call: dict[str, Any] = {}
    if kind == "empty":
        one.body = b""
    elif kind == "topic":
        one.topic.name = rng.choice(["none", "fifo", "bad/name", "", "TBW102", "ä"])
    elif kind == "no topic":
        one.ClearField("topic")
    elif kind == "several":
        messages.append(message(rng, topic="one"))
    elif kind == "control":
        where = rng.choice(["tag", "message_id", "born_host", "trace_context"])
        setattr(system, where, rng.choice(["\x01", "a\x02b", "\x7f", "\x85"]))
    elif kind == "tag":
        system.tag = rng.choice(["a|b", " ", "\u2003"])
    elif kind == "key":
        system.keys.append(rng.choice(["a b", "\u2003", "\x01"]))
    elif kind == "id":
        system.message_id = rng.choice(["", " ", "\u2003"])
    elif kind == "reserved":
        one.user_properties[rng.choice(["KEYS", "UNIQ_KEY", "__CRC32#", ""])] = "x"
    elif kind == "many":
        for number in range(rng.choice([128, 129])):
            one.user_properties[f"number-{number}"] = "x"
    elif kind == "heavy":
        one.user_properties["heavy"] = "x" * rng.choice([16_000, 16_384, 20_000, 40_000])
    elif kind == "group":
        system.message_group = "g"
    elif kind == "delay":
        system.delivery_timestamp.seconds = NOW // 1000 + 60
    elif kind == "digest":
        system.body_digest.type, system.body_digest.checksum = 1, "0"
    elif kind == "priority":
        system.priority = 3
    elif kind == "type":
        system.message_type = rng.choice([0, 1, 2, 3, 4, 5, 9])
    elif kind == "time":
        system.born_timestamp.seconds = rng.choice([-1, 0, 1, 253_402_300_799, 253_402_300_800, 1 << 50])
    elif kind == "unknown":
        return request(rng) + b"\xf2\x06\x01a", {}
    elif kind == "merged":  # a second topic, of which the first one's name stays
        data = one.SerializeToString(deterministic=True) + b"\x0a\x03\x0a\x01n"
        return b"\x0a" + varint(len(data)) + data, {}
    elif kind == "twice":
        return request(rng, topic="orders") + request(rng, topic="orders"), {}
    elif kind == "bytes":
        data = bytearray(request(rng))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data), {}
    elif kind == "queue":
        call["more"] = [("whimbrel-queue-id", rng.choice(["0", "3", "4", "-1", "", "x", "9" * 11, "03"]))]
    elif kind == "client":
        call["client"] = rng.choice(["", "other", CLIENT])
    elif kind == "path":
        call["path"] = rng.choice(["/apache.rocketmq.v2.MessagingService/Heartbeat", "/no/Method", "x"])
    elif kind == "timeout":
        call["timeout"] = rng.choice(["", "3", "999999999S", "1x", "5M"])
    return messaging.SendMessageRequest(messages=messages).SerializeToString(deterministic=True), call


def cuts(rng: random.Random, data: bytes) -> list[bytes]:
    """Cut bytes into reads."""
    at = sorted(rng.randrange(len(data)) for _ in range(rng.choice([0, 1, 3, 10])))
    return [data[begin:end] for begin, end in zip([0, *at], [*at, len(data)], strict=True) if begin < end]


CLASSES: dict[str, dict[str, Any]] = {
    "one byte": {"size": 1},
    "1 KiB": {"size": 1024},
    "20 KB": {"size": 20_000},
    "200 KB": {"size": 200_000},
    "batch of 32": {"count": 32},
    "no text": {"size": 100, "tag": "", "keys": [], "born_host": ""},
}


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "parked"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", CLASSES)
def test_the_lane_does_nearly_all_of_what_is_plain(
    tmp_path: Path, stub: socket.socket, kind: str, style: str, waits: bool
) -> None:
    def body() -> None:
        rng, two = random.Random(SEED), Two(tmp_path, stub, waits=waits)
        client = Client(rng, style)
        two.feed(client.begin())
        for _ in range(2):  # Python makes the first log file, and meets the client
            two.feed(client.call(request(rng)))
        two.settle()
        fixed = dict(CLASSES[kind])
        count = 10 if kind == "200 KB" else 60
        for _ in range(count):
            two.feed(client.call(request(rng, **fixed)))
        two.settle()
        two.check()
        by_lane = two.compiled.by_lane
        assert by_lane is not None
        assert by_lane.calls >= 0.99 * count, f"{by_lane.calls} of {count} calls by the lane"
        two.close()

    run(body)


def test_a_value_may_have_more_bytes_than_it_needs(tmp_path: Path, stub: socket.socket) -> None:
    """As generators write it that patch times into a request which is made already."""
    wide, padded = varint((1 << 28) + 5), b"\x85\x80\x80\x80\x00"
    stamp = Timestamp(seconds=NOW // 1000, nanos=(1 << 28) + 5)

    def body() -> None:
        rng, two = random.Random(SEED), Two(tmp_path, stub)
        client = Client(rng, "go")
        two.feed(client.begin())
        for _ in range(2):
            two.feed(client.call(request(rng)))
        sent = request(rng, born_timestamp=stamp)
        assert sent.count(b"\x10" + wide) == 1
        two.feed(client.call(sent.replace(b"\x10" + wide, b"\x10" + padded)))
        two.settle()
        two.check()
        by_lane = two.compiled.by_lane
        assert by_lane is not None
        assert by_lane.calls == 1
        two.close()

    run(body)


@pytest.mark.parametrize("part", range(4))
def test_generated_connections_are_answered_the_same(tmp_path: Path, stub: socket.socket, part: int) -> None:
    play_all(tmp_path, part, CALLS, lambda work, rng: generated(work, stub, rng))


def generated(work: Path, stub: socket.socket, rng: random.Random) -> int:
    """Play some generated connections; return how many calls they have made."""
    waits = rng.random() < 0.4
    limits = rng.choice([Limits(), Limits(), Limits(streams=6)])
    two = Two(work, stub, waits=waits, limits=limits)
    calls = play(two, rng, waits=waits, few=limits.streams <= 6)
    for _ in range(CONNECTIONS - 1):
        two.connect_anew()
        calls += play(two, rng, waits=waits, few=limits.streams <= 6)
    two.close()
    return calls


def play(two: Two, rng: random.Random, *, waits: bool, few: bool) -> int:
    """Play a connection; `few`: it may have few streams at a time."""
    client = Client(rng, rng.choice(STYLES))
    settings = rng.choice([[], [], [(4, 20)], [(4, 300)], [(5, 16_384), (4, 1 << 20)]])
    data = client.begin(*settings) + client.call(request(rng, topic="orders"))
    for one in cuts(rng, data):
        two.feed(one)
    # Which calls of a read are refused for too many streams depends on what Python handles in between.
    odd_share = rng.choice([0.0, 0.05, 0.3]) if not few else -1.0
    for _ in range(rng.randrange(1, 30)):
        sent = [some_bytes(rng, client, odd_share) for _ in range(rng.choice([1, 1, 3, 12]))]
        if odd_share >= 0 and rng.random() < 0.1:
            sent = [interleaved(rng, sent)]
        for one in cuts(rng, b"".join(sent)):
            two.feed(one)
            if waits and rng.random() < 0.3:
                two.settle()
    two.settle()
    two.feed(
        frame(SETTINGS, 0, 0, SETTING.pack(4, 1 << 28))
        + frame(WINDOW_UPDATE, 0, 0, (1 << 28).to_bytes(4, "big"))
    )
    two.check(client.reset, garbled=client.garbled)
    return client.id // 2


def some_bytes(rng: random.Random, client: Client, odd_share: float) -> bytes:
    """Return the bytes of a call, or of something else."""
    if odd_share >= 0 and rng.random() < 0.1:
        return other_frame(rng, client)
    if rng.random() < odd_share:
        payload, call = odd_request(rng, rng.choice(ODD))
        name = call.pop("client", None)
        before, client.client = client.client, client.client if name is None else name
        try:
            return client.call(payload, **call)
        finally:
            client.client = before
    between = b""
    if rng.random() < 0.2:
        between = frame(
            WINDOW_UPDATE, 0, rng.choice([0, client.id]), (1 + rng.randrange(1000)).to_bytes(4, "big")
        )
    return client.call(
        request(rng, rng.choice([1, 1, 1, 2, 8])),
        pieces=rng.choice([1, 1, 1, 2, 5]),
        between=between,
        more=rng.choice([[], [], [("whimbrel-queue-id", "0")]]),
    )


def other_frame(rng: random.Random, client: Client) -> bytes:
    """Return a frame that is no call."""
    earlier = max(client.id - 2 * rng.randrange(1, 8), 1)
    kind = rng.randrange(7)
    if kind == 0:
        return frame(PING, 0, 0, rng.randbytes(8))
    if kind == 1:
        return frame(SETTINGS, 0, 0, SETTING.pack(4, rng.choice([10, 1000, 65_535, 1 << 20])))
    if kind == 2:
        return frame(
            WINDOW_UPDATE, 0, rng.choice([0, 0, earlier]), rng.choice([1, 500, 70_000]).to_bytes(4, "big")
        )
    if kind == 3:
        client.reset.add(earlier)
        return frame(RST_STREAM, 0, earlier, (8).to_bytes(4, "big"))
    if kind == 4:
        return frame(0x42, 0, 0, b"unknown")
    if kind == 5:
        return frame(2, 0, client.id, b"\0\0\0\0\x0f")
    if rng.random() < 0.1:
        client.garbled = True
        return rng.randbytes(20)
    return frame(SETTINGS, 1, 0, b"")


def interleaved(rng: random.Random, calls: list[bytes]) -> bytes:
    """Mix the frames of calls, the frames of each in their order, and all header blocks in theirs."""
    queues = [frames(call) for call in calls]
    mixed, begun = [], 0
    while any(queues):
        ready = [number for number, queue in enumerate(queues) if queue and number <= begun]
        number = rng.choice(ready)
        mixed.append(queues[number].pop(0))
        begun = max(begun, number + 1)
    return b"".join(mixed)


def frames(data: bytes) -> list[bytes]:
    """Cut bytes into frames."""
    at, found = 0, []
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        found.append(data[at:end])
        at = end
    return found


def test_a_connection_cut_at_every_byte_is_answered_the_same(tmp_path: Path, stub: socket.socket) -> None:
    rng = random.Random(SEED)
    client = Client(rng, "go")
    data = client.begin() + client.call(request(rng, size=30)) + client.call(request(rng, size=30), pieces=2)
    data += frame(PING, 0, 0, b"12345678") + client.call(request(rng, size=30))

    def body() -> None:
        two = Two(tmp_path, stub)
        two.feed(data)
        for at in range(1, len(data)):
            two.connect_anew()
            two.feed(data[:at])
            two.feed(data[at:])
            two.check()
        two.close()

    run(body)
