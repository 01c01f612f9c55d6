"""Sends go the same way by Python and by the lane: generated requests and connections, damaged ones too."""

import random
import socket
from pathlib import Path
from typing import Any

import pytest

from support.http2.frames import frame
from support.lane.brokers import STYLES, Client
from support.lane.pair import SEED, Two, play_all, request, run
from support.lane.traffic import cuts, interleaved, some_bytes
from support.store.stores import NOW
from whimbrel.broker.api.response_bytes import varint
from whimbrel.pb import Timestamp
from whimbrel.rpc.http2.frames import PING, SETTING, SETTINGS, WINDOW_UPDATE
from whimbrel.rpc.http2.stream import Limits

CALLS = 8_000  # of each part, at least, in a round
CONNECTIONS = 8  # to one pair of brokers


CLASSES: dict[str, dict[str, Any]] = {
    "one byte": {"size": 1},
    "1 KiB": {"size": 1024},
    "20 KB": {"size": 20_000},
    "200 KB": {"size": 200_000},
    "batch of 32": {"count": 32},
    "no text": {"size": 100, "tag": "", "keys": [], "born_host": ""},
}

# When sends are answered, and seen.
ANSWERED: dict[str, dict[str, bool]] = {
    "at once": {},
    "parked": {"waits": True},
    "by majority": {"waits": True, "majority": True},
}


@pytest.mark.parametrize(
    ("when", "style"),
    [(when, style) for when in ANSWERED for style in STYLES if when != "by majority" or style == "ours"],
)
@pytest.mark.parametrize("kind", CLASSES)
def test_the_lane_does_nearly_all_of_what_is_plain(
    tmp_path: Path, stub: socket.socket, kind: str, style: str, when: str
) -> None:
    def body() -> None:
        rng, two = random.Random(SEED), Two(tmp_path, stub, **ANSWERED[when])
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
    two = Two(work, stub, waits=waits, majority=waits and rng.random() < 0.5, limits=limits)
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
