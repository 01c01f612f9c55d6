"""Sends by the remoting protocol go the same way by Python and by the lane: generated ones, also damaged."""

import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.lane.pair import SEED, play_all, run
from support.lane.remoting import (
    ODD,
    STYLES,
    Request,
    TwoRemote,
    brokers_for,
    framed,
    give_same_ids,
    hostile,
    odd,
    plain,
    written,
)
from support.lane.traffic import cuts
from support.remoting.handlers import HOSTILE_FRAMES
from whimbrel.broker.consume.filters import FILTER_CHARS_MAX
from whimbrel.broker.lane.requests import LIMITS
from whimbrel.broker.remoting.pull_header import ReadPull, read_pull
from whimbrel.errors import WhimbrelError
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.errors import RemotingError
from whimbrel.rpc.remoting.frames import decode_frame

REQUESTS = 1_500  # of each part, at least, in a round
RECORDED = Path(__file__).parents[1] / "unit/rpc/remoting/recorded.jsonl"
MANIFOLD = ("queue", "number", "missing", "member", "batch", "byte", "json")  # of which there are many
ANSWERED: dict[str, dict[str, Any]] = {
    "at once": {},
    "parked": {"waits": True},
    "by majority": {"waits": True, "majority": True},
}
CLASSES: dict[str, dict[str, Any]] = {
    "1 KiB": {"batch": False, "size": 1024},
    "20 KB": {"batch": False, "size": 20_000},
    "no body": {"batch": False, "size": 0},
    "batches": {"batch": True},
}


@pytest.fixture(autouse=True)
def same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    give_same_ids(monkeypatch)


@pytest.mark.parametrize(
    ("when", "style"),
    [(when, style) for when in ANSWERED for style in STYLES if when == "at once" or style == "java"],
)
@pytest.mark.parametrize("kind", CLASSES)
def test_the_lane_does_nearly_all_of_what_is_plain(
    tmp_path: Path, stub: socket.socket, kind: str, style: str, when: str
) -> None:
    def body() -> None:
        rng, two = random.Random(SEED), TwoRemote(tmp_path, stub, **ANSWERED[when])
        two.feed(plain(rng, 0, style))  # Python makes the first log file
        for number in range(1, 41):
            two.feed(plain(rng, number, style, **CLASSES[kind]))
        two.settle()
        two.check()
        assert two.calls >= 0.99 * 40, f"{two.calls} of 40 requests by the lane"
        two.close()

    run(body)


@pytest.mark.parametrize("kind", ODD)
def test_what_is_odd_is_answered_the_same(tmp_path: Path, stub: socket.socket, kind: str) -> None:
    def body() -> None:
        rng, two = random.Random(SEED), brokers_for(kind, tmp_path, stub)
        two.feed(plain(rng, 0))
        for number in range(1, 61 if kind in MANIFOLD else 13):
            two.feed(odd(rng, 2 * number, kind))
            two.feed(plain(rng, 2 * number + 1))
            two.settle()
            two.check()
            if two.connections[0][1].closing:
                two.connect_anew()
        two.close()

    run(body)


@pytest.mark.parametrize("part", range(2))
def test_generated_connections_are_answered_the_same(tmp_path: Path, stub: socket.socket, part: int) -> None:
    play_all(tmp_path, part, REQUESTS, lambda work, rng: generated(work, stub, rng))


def generated(work: Path, stub: socket.socket, rng: random.Random) -> int:
    """Play some generated connections; return how many requests they have made."""
    waits = rng.random() < 0.4
    two = TwoRemote(work, stub, waits=waits, majority=waits and rng.random() < 0.5, traced=rng.random() < 0.2)
    count = 0
    for _ in range(6):
        odd_share = rng.choice([0.0, 0.05, 0.3])
        for _ in range(rng.randrange(1, 25)):
            some = []
            for _ in range(rng.choice([1, 1, 3, 12])):
                count += 1
                kinds = [kind for kind in ODD if kind != "long body" or rng.random() < 0.1]
                is_odd = rng.random() < odd_share
                some.append(odd(rng, count, rng.choice(kinds)) if is_odd else plain(rng, count))
            for one in cuts(rng, b"".join(some)):
                two.feed(one)
            if waits and rng.random() < 0.3:
                two.settle()
        if rng.random() < 0.3:
            two.feed(plain(rng, count) + hostile(rng) + plain(rng, count + 1))
        two.settle()
        two.check()
        two.connect_anew()
    two.close()
    return count


def test_a_connection_cut_at_every_byte_is_answered_the_same(tmp_path: Path, stub: socket.socket) -> None:
    rng = random.Random(SEED)
    data = plain(rng, 1, batch=False, size=9) + odd(rng, 2, "code") + plain(rng, 3, batch=True)

    def body() -> None:
        two = TwoRemote(tmp_path, stub)
        two.feed(data)
        for at in range(1, len(data)):
            two.connect_anew()
            two.feed(data[:at])
            two.feed(data[at:])
            if at % 128 == 0:
                two.check()
        two.check()
        two.close()

    run(body)


def test_what_real_clients_sent_is_stored_the_same(tmp_path: Path, stub: socket.socket) -> None:
    def body() -> None:
        two = TwoRemote(tmp_path, stub)
        two.feed(plain(random.Random(SEED), 0))
        sent = 0
        for number, line in enumerate(RECORDED.read_text().splitlines(), 1):
            recorded = json.loads(line)
            if recorded["d"] == ">" and recorded["code"] in (10, 310, 320):
                where = {"topic": "one"} if recorded["code"] == 10 else {"b": "one", "e": "0"}
                two.feed(recorded_frame(recorded, recorded["ext"] | where, number))
                sent += 1
        two.check()
        assert sent >= 10
        two.close()

    run(body)


def test_headers_say_the_same(tmp_path: Path, stub: socket.socket) -> None:
    rng = random.Random(SEED)
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    found = [recorded_frame(each, each.get("ext") or {}, number) for number, each in enumerate(lines)]
    found += [odd(rng, number, kind) for number, kind in enumerate(ODD * 20) if kind != "long body"]
    found += [frame for frame in HOSTILE_FRAMES.values() if len(frame) >= 8 and frame[:4] > bytes(4)]
    found += [numbered(text) for text in HEADER_NUMBERS]

    def body() -> None:
        two = TwoRemote(tmp_path, stub)
        lane = two.compiled.send_lane
        assert lane is not None
        plain_ones = 0
        for frame in found:
            assert decoded(lane.command, frame) == decoded(decode_frame, frame)
            plain_ones += two.lane.native is not None and two.lane.native.decoded(frame, LIMITS) is not None
        assert plain_ones >= 0.99 * len(lines) and two.lane.failures == 0
        two.close()

    run(body)


# What a header may have, and may not have, where a number is asked for.
HEADER_NUMBERS = (
    "0", "-0", "7", "-7", "00", "007", "-01", "-00", "+7", "-", "", "1.0", "1e2", "0x7", " 7", "7 ", "'7'",
    "null", "true", "2147483647", "2147483648", "-2147483648", "-2147483649", "9" * 18, "9" * 40, "\u0663",
)  # fmt: skip


def numbered(text: str) -> bytes:
    """Return a frame whose header has this text as its number."""
    return framed(f'{{"code":11,"flag":0,"language":"JAVA","opaque":{text},"version":5}}'.encode(), b"")


def decoded(decode: Callable[[bytes], Command], frame: bytes) -> Command | str:
    """Return a frame's command, or what is wrong with it."""
    try:
        found = decode(frame)
    except RemotingError as error:
        return f"{type(error)} {error}"
    if isinstance(found, ReadPull):
        return Command(found.code, found.opaque, found.fields, b"", found.flag, found.language, found.version)
    return found


NUMBERS = (
    "0", "5", "-1", "+7", "", "x", "1.0", " 1", "2147483647", "2147483648", "9" * 18, "9" * 20, "٣", 7, 1.5,
    None,
)  # fmt: skip
PULL: dict[str, Any] = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "7", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "3", "suspendTimeoutMillis": "15000", "subscription": "a || b",
    "subVersion": "1795335853", "expressionType": "TAG", "maxMsgBytes": "262144",
}  # fmt: skip


def test_pulls_ask_for_the_same(tmp_path: Path, stub: socket.socket) -> None:
    rng = random.Random(SEED)

    def body() -> None:
        two = TwoRemote(tmp_path, stub)
        lane = two.compiled.send_lane
        assert lane is not None
        for _ in range(2000):
            fields, code = dict(PULL), rng.choice([11, 11, 361])
            for _ in range(rng.choice([0, 1, 2])):
                name = rng.choice(sorted(fields))
                if rng.random() < 0.2:
                    del fields[name]
                elif name in ("consumerGroup", "topic", "subscription", "expressionType"):
                    fields[name] = rng.choice(
                        ["", "SQL92", "n > 2", "\u0416", "x" * (FILTER_CHARS_MAX + 1), 7]
                    )
                else:
                    fields[name] = rng.choice(NUMBERS)
            header = {"code": code, "extFields": fields, "flag": 0, "opaque": 1, "version": 5}
            style = rng.choice(STYLES)
            frame = framed(written(header, style), rng.choice([b"", b"", b"body"]))
            request = lane.command(frame)
            assert asked(request) == asked(decode_frame(frame)), fields
            if style == "java" and fields == PULL and not request.body:
                assert isinstance(request, ReadPull)
        assert two.lane.failures == 0
        two.close()

    run(body)


def asked(request: Command) -> Any:
    """Return what a pull asks for, or what is wrong with it."""
    try:
        header = read_pull(request)
        offset = header.commit_offset
        return (*header[:11], request.int64("commitOffset", 0) if offset is None else offset, request.fields)
    except WhimbrelError as error:
        return str(error)


def recorded_frame(recorded: dict[str, Any], fields: dict[str, Any], opaque: int) -> bytes:
    """Return a recorded command with these fields as a frame."""
    header = {
        "code": recorded["code"], "extFields": fields, "flag": recorded["flag"], "language": recorded["lang"],
        "opaque": opaque, "version": recorded["ver"],
    }  # fmt: skip
    return framed(written(header, "java"), recorded.get("body", "").encode("latin-1", "replace"))


def usual(number: int, **fields: Any) -> bytes:
    """Return a send as most of a producer's."""
    request = Request(random.Random(SEED), batch=False, topic="one", size=10)
    request.flag = 0
    request.fields |= {"e": "0", "g": "1700000000000", "j": "0", "l": "16", "m": "false"} | fields
    return request.bytes(random.Random(SEED), "java", number)


ODD_FIELDS: list[dict[str, Any]] = [
    {"g": "\u00b2"}, {"g": "\u0661\u0662"}, {"g": ""}, {"g": "1" * 14}, {"g": "9" * 400}, {"g": "-1"},
    {"g": 5}, {"l": "x"}, {"l": ""}, {"j": "x"}, {"c": ""}, {"d": "x"}, {"e": "1"}, {"f": "16"}, {"h": "x"},
    {"m": "True"}, {"m": "true"}, {"b": "One"}, {"i": ""}, {"i": "a"}, {"i": "\x01\x02"},
    {"i": "\x02\x02a\x01b\x02a\x01c"},
]  # fmt: skip


@pytest.mark.parametrize("fields", ODD_FIELDS, ids=str)
def test_a_field_makes_the_difference_it_makes_alone(
    tmp_path: Path, stub: socket.socket, fields: dict[str, Any]
) -> None:
    def body() -> None:
        two = TwoRemote(tmp_path, stub)
        for number in range(0, 9, 3):
            two.feed(usual(number) + usual(number + 1, **fields) + usual(number + 2))
        two.check()
        two.close()

    run(body)
