"""What clients send to a broker, plain and odd: requests, frames, calls that are mixed, cut into reads."""

import random
from typing import Any

from support.http2.frames import frame
from support.lane.brokers import CLIENT, Client
from support.lane.pair import message, request
from support.store.stores import NOW
from whimbrel.broker.api.response_bytes import varint
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.frames import PING, RST_STREAM, SETTING, SETTINGS, WINDOW_UPDATE

__all__ = ["ODD", "cuts", "interleaved", "odd_request", "some_bytes"]

ODD = (
    "empty", "topic", "no topic", "several", "control", "tag", "key", "id", "reserved", "many", "heavy",
    "group", "delay", "digest", "priority", "type", "time", "unknown", "merged", "twice", "bytes",
    "queue", "client", "path", "timeout",
)  # fmt: skip


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
