"""Plain sends of a read are stored together as if each was alone: generated ones, also between others.

Both brokers are without the lane; see `remoting.py`. One handles each request alone.
"""

import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from support.lane.pair import SEED, play_all, run
from support.lane.remoting import (
    ODD,
    STYLES,
    Request,
    TwoRemote,
    brokers_for,
    give_same_ids,
    hostile,
    odd,
    plain,
)
from support.lane.traffic import cuts
from whimbrel.broker.remoting import plain_sends
from whimbrel.errors import StoreFull
from whimbrel.rpc.server import remoting
from whimbrel.store.master_store import MasterStore

REQUESTS = 5_000  # of each part, at least, in a round


class Counted:
    """Counts the messages that one broker has stored together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.messages = 0
        original = MasterStore.append_each

        def append_each(store: MasterStore, drafts: Any) -> Any:
            found = original(store, drafts)
            self.messages += len(found)
            self.most = max(self.most, len(found))
            return found

        monkeypatch.setattr(MasterStore, "append_each", append_each)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture(autouse=True)
def same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    give_same_ids(monkeypatch)


def two_brokers(root: Path, stub: socket.socket, **how: Any) -> TwoRemote:
    return TwoRemote(root, stub, by_lane=False, **how)


@pytest.mark.parametrize("style", STYLES)
def test_all_of_a_read_are_stored_together(
    tmp_path: Path, stub: socket.socket, counted: Counted, style: str
) -> None:
    def body() -> None:
        rng, two = random.Random(SEED), two_brokers(tmp_path, stub)
        two.feed(plain(rng, 0, style))  # makes the first log file
        some: list[bytes] = []
        before = counted.messages
        while len(some) < 40:
            one = plain(rng, len(some) + 1, style, batch=False, topic="one", size=100)
            if b'"e":"-1"' not in one.replace(b" ", b"") and b'"flag":0' in one.replace(b" ", b""):
                some.append(one)
        two.feed(b"".join(some))
        two.check()
        assert (counted.messages - before, counted.most) == (40, 40)
        two.close()

    run(body)


@pytest.mark.parametrize("kind", ODD)
def test_what_is_odd_is_handled_in_its_turn(tmp_path: Path, stub: socket.socket, kind: str) -> None:
    def body() -> None:
        rng, two = random.Random(SEED), brokers_for(kind, tmp_path, stub, by_lane=False)
        two.feed(plain(rng, 0))
        for number in range(1, 20 if kind == "long body" else 200, 3):
            two.feed(plain(rng, number) + odd(rng, number + 1, kind) + plain(rng, number + 2))
            two.settle()
            two.check()
            if two.connections[0][1].closing:
                two.connect_anew()
        two.close()

    run(body)


@pytest.mark.parametrize("part", range(2))
def test_generated_connections_are_answered_the_same(
    tmp_path: Path, stub: socket.socket, counted: Counted, part: int
) -> None:
    play_all(tmp_path, part, REQUESTS, lambda work, rng: generated(work, stub, rng))
    assert counted.messages > REQUESTS // 10 and counted.most > 4


def generated(work: Path, stub: socket.socket, rng: random.Random) -> int:
    """Play some generated connections; return how many requests they have made."""
    waits = rng.random() < 0.1
    two = two_brokers(work, stub, waits=waits, traced=rng.random() < 0.1)
    count = 0
    for _ in range(6):
        odd_share = rng.choice([0.0, 0.02, 0.2])
        for _ in range(rng.randrange(1, 25)):
            some = []
            for _ in range(rng.choice([1, 3, 12, 30])):
                count += 1
                kinds = [kind for kind in ODD if kind != "long body" or rng.random() < 0.1]
                is_odd = rng.random() < odd_share
                some.append(odd(rng, count, rng.choice(kinds)) if is_odd else plain(rng, count, batch=False))
            for one in cuts(rng, b"".join(some)):
                two.feed(one)
        if rng.random() < 0.3:
            two.feed(plain(rng, count) + hostile(rng) + plain(rng, count + 1))
        two.settle()
        two.check()
        two.connect_anew()
    two.close()
    return count


def unusable(*_: Any) -> Any:
    return []


def full(*_: Any) -> Any:
    raise StoreFull("no room")


@pytest.mark.parametrize("append", [unusable, full])
def test_each_is_sent_alone_where_they_can_not_be_stored_together(
    tmp_path: Path, stub: socket.socket, append: Callable[..., Any]
) -> None:
    def body() -> None:
        rng, two = random.Random(SEED), two_brokers(tmp_path, stub)
        with patch.object(MasterStore, "append_each", append):
            two.feed(b"".join(plain(rng, number) for number in range(20)))
        two.check()
        two.close()

    run(body)


def test_no_more_are_kept_than_may_be(
    tmp_path: Path, stub: socket.socket, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remoting, "TOGETHER_MAX", 7)

    def body() -> None:
        rng, two = random.Random(SEED), two_brokers(tmp_path, stub)
        two.feed(plain(rng, 0))
        two.feed(b"".join(plain(rng, number, batch=False, topic="one") for number in range(1, 200)))
        two.check()
        assert counted.most == 7
        two.close()

    run(body)


def usual(number: int, **fields: Any) -> bytes:
    """Return a send as most of a producer's."""
    request = Request(random.Random(SEED), batch=False, topic="one", size=10)
    request.flag = 0
    request.fields |= {"e": "0", "g": "1700000000000", "j": "0", "l": "16", "m": "false"} | fields
    return request.bytes(random.Random(SEED), "java", number)


def test_what_is_kept_of_forms_is_bounded(
    tmp_path: Path, stub: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_sends, "FORMS_MAX", 3)

    def body() -> None:
        rng, two = random.Random(SEED), two_brokers(tmp_path, stub)
        together = two.compiled.plain
        assert together is not None
        two.feed(usual(0))
        assert len(together.forms) == 1
        for number, long in enumerate(["a" * 200, "b" * 200]):
            two.feed(usual(number, c=long))
        assert len(together.forms) == 1
        for number in range(3, 30):
            two.feed(plain(rng, number))
            assert len(together.forms) <= 3
        two.check()
        two.close()

    run(body)


def test_forms_are_forgotten_when_their_topic_changes(
    tmp_path: Path, stub: socket.socket, counted: Counted
) -> None:
    def body() -> None:
        two = two_brokers(tmp_path, stub)
        for number in range(5):
            two.feed(usual(number))
        before = counted.messages
        for side in two.sides:
            side.topics.put(side.topics.rows["one"].with_drained(True))
        for number in range(5, 10):
            two.feed(usual(number))
        two.check()
        assert counted.messages == before > 0
        two.close()

    run(body)


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
        two = two_brokers(tmp_path, stub)
        for number in range(0, 9, 3):
            two.feed(usual(number) + usual(number + 1, **fields) + usual(number + 2))
        two.check()
        two.close()

    run(body)
