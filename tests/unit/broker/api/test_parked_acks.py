"""Acknowledgements that the lane keeps until a majority has them, beside Python that holds their answers."""

import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from support.http2.frames import frame
from support.lane.consumers import History
from support.lane.pair import request, run
from whimbrel.broker.cluster import state_quorum
from whimbrel.rpc.http2.frames import RST_STREAM, SETTING, SETTINGS

CALLS = 6


class Rig(History):
    """Both brokers, whose acknowledgements wait, with deliveries to acknowledge."""

    def __init__(self, root: Path, stub: socket.socket) -> None:
        super().__init__(root, stub, random.Random(1), acks_wait=True)
        self.begin()
        self.window()
        for _ in range(CALLS - 1):
            self.two.feed(self.client.call(request(self.rng, topic="orders")))
        self.two.settle()
        self.two.feed(self.receive("g", "orders"))
        self.learn()
        assert len(self.handles) == CALLS
        self.two.feed(self.client.call(request(self.rng)))  # the lane learns whose calls it may take
        self.two.settle()

    def acknowledge(self, count: int = 1, **how: str) -> None:
        """Acknowledge so many messages, by a call each."""
        for _ in range(count):
            self.two.feed(self.ack("g", "orders", [self.handles.pop()[2:]], **how))

    @property
    def parked(self) -> int:
        """How many calls wait in the lane."""
        (connection, _) = self.two.connections[1]
        assert connection.lane is not None
        return connection.lane.parked

    @property
    def waiting(self) -> tuple[int, int]:
        """How many acknowledgements wait at each."""
        python, compiled = (side.quorum.waiting_count for side in self.two.sides)
        return python, compiled


def played(root: Path, stub: socket.socket, play: Callable[[Rig], None]) -> None:
    """Play, and compare both in the end."""

    def body() -> None:
        rig = Rig(root, stub)
        play(rig)
        rig.check()
        rig.two.close()

    run(body)


def test_they_are_answered_once_a_majority_has_them(tmp_path: Path, stub: socket.socket) -> None:
    def play(rig: Rig) -> None:
        rig.acknowledge(3)
        assert (rig.parked, rig.waiting, rig.two.lane.acknowledged) == (3, (3, 3), 3)
        rig.two.check()  # nothing is answered yet
        rig.two.settle()
        assert (rig.parked, rig.waiting) == (0, (0, 0))
        python, compiled = (connection.conn.send_window for connection, _ in rig.two.connections)
        assert python == compiled

    played(tmp_path, stub, play)


def test_a_part_of_them_is_answered_when_a_member_reports_it(tmp_path: Path, stub: socket.socket) -> None:
    def play(rig: Rig) -> None:
        rig.acknowledge(2)
        reached = [side.quorum.newest() for side in rig.two.sides]
        rig.acknowledge(2)
        for side, number in zip(rig.two.sides, reached, strict=True):
            side.quorum.stored(2, number)
            side.server.flush()
        assert (rig.parked, rig.waiting) == (2, (2, 2))
        rig.two.check()

    played(tmp_path, stub, play)


@pytest.mark.parametrize("news", ["a reset", "other windows"])
def test_other_news_of_their_connection_have_python_wait(
    news: str, tmp_path: Path, stub: socket.socket
) -> None:
    def play(rig: Rig) -> None:
        rig.acknowledge(3)
        if news == "a reset":
            rig.client.reset.add(rig.client.id - 4)
            rig.two.feed(frame(RST_STREAM, 0, rig.client.id - 4, (8).to_bytes(4, "big")))
        else:
            rig.two.feed(frame(SETTINGS, 0, 0, SETTING.pack(4, 1 << 20)))
        assert (rig.parked, rig.waiting) == (0, (3, 3))
        rig.acknowledge(2)
        assert (rig.parked, rig.waiting) == (2, (5, 5))

    played(tmp_path, stub, play)


def test_who_waits_too_long_is_told_so(tmp_path: Path, stub: socket.socket) -> None:
    def play(rig: Rig) -> None:
        rig.acknowledge(3)
        for side in rig.two.sides:
            now = side.appender.loop.time()
            side.quorum.clock = lambda now=now: now + 10.0  # type: ignore[misc]
            side.quorum.expire()
            side.server.flush()
            assert (side.quorum.expired, side.quorum.waiting_count) == (3, 0)
        assert rig.parked == 0
        rig.two.check()

    played(tmp_path, stub, play)


def test_a_leader_that_stops_says_that_nobody_knows(tmp_path: Path, stub: socket.socket) -> None:
    def play(rig: Rig) -> None:
        rig.acknowledge(2)
        for side in rig.two.sides:
            side.quorum.close("another member leads")
            side.server.flush()
        assert (rig.parked, rig.waiting) == (0, (0, 0))
        rig.acknowledge(2)  # Python's: it knows what to say
        assert rig.two.lane.acknowledged == 2

    played(tmp_path, stub, play)


def test_no_more_wait_than_may(tmp_path: Path, stub: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_quorum, "WAITING_MAX", 3)

    def play(rig: Rig) -> None:
        entries = [rig.handles.pop()[2:] for _ in range(4)]
        rig.two.feed(b"".join(rig.ack("g", "orders", [one]) for one in entries))
        # The last one is told to come again.
        assert (rig.parked, rig.waiting, rig.two.lane.acknowledged) == (3, (3, 3), 3)

    played(tmp_path, stub, play)


def test_who_does_not_serve_yet_leaves_them_to_python(tmp_path: Path, stub: socket.socket) -> None:
    def play(rig: Rig) -> None:
        rig.two.compiled.not_serving = "it is about to lead"
        rig.acknowledge(1)
        assert (rig.parked, rig.two.lane.acknowledged) == (0, 0)

    played(tmp_path, stub, play)
