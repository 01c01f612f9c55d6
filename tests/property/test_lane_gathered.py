"""Reads of several connections in one pass of the lane: as by Python, in the order in which they were taken.

The lane takes what is plain at the begin of each read first, and Python does the rest behind it. So the order
of the log is not that of the reads. `Several` notes in which order bytes were taken; Python gets them so.
"""

import asyncio
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.http2.frames import frame
from support.lane.brokers import CLIENT, STYLES, Client, Side, answers, same
from support.lane.logs import lane_or_skip
from support.lane.pair import OPTIONS, last_arrivals, play_all, request
from support.lane.traffic import cuts, some_bytes
from whimbrel.rpc.http2.frames import SETTING, SETTINGS, WINDOW_UPDATE
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.gathered_reads import GatheredReads
from whimbrel.rpc.server.lane_calls import LaneCalls
from whimbrel.rpc.server.lanes import CallsPart, LanePass
from whimbrel.rpc.server.read_end import ReadEnd

CALLS = 3_000  # of each part, at least, in a round


class Several:
    """Both sides, with several connections each; those of the lane's side are read together.

    Attributes:
        together: calls that were taken by passes over several reads.
    """

    def __init__(
        self, root: Path, stub: socket.socket, count: int, *, waits: bool, majority: bool = False
    ) -> None:
        self.lane = lane_or_skip()
        how: dict[str, Any] = {"waits": waits, "majority": majority}
        self.python = Side(root / "python", None, OPTIONS, **how).open()
        self.compiled = Side(root / "lane", self.lane, OPTIONS, **how).open()
        self.read_end = ReadEnd(asyncio.get_running_loop())
        self.compiled.server.gathered = GatheredReads(self.read_end)
        self.taken: list[tuple[NativeConnection, bytes]] = []
        self.together = 0
        by_lane = self.compiled.by_lane
        assert by_lane is not None
        self.take_by_lane = by_lane.take
        by_lane.take = self.take  # type: ignore[method-assign]
        self.connections = [[side.connect(stub) for side in self.sides] for _ in range(count)]
        for _, (connection, _) in self.connections:
            self.note_python(connection)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.python, self.compiled

    def take(self, reads: Sequence[tuple[CallsPart, bytes]]) -> LanePass | None:
        """Have the lane take reads, and note what it has taken."""
        done = self.take_by_lane(reads)
        if done is not None:
            for (calls, data), one in zip(reads, done.reads, strict=True):
                assert isinstance(calls, LaneCalls)
                if one[0]:
                    self.taken.append((calls.connection, data[: one[0]]))
                if len(reads) > 1:
                    self.together += sum(len(some) for some in one[-1][1:] if some is not None)
        return done

    def note_python(self, connection: NativeConnection) -> None:
        """Note what Python takes of a connection of the lane's side."""
        take = connection.take

        def noted(data: bytes, now: float) -> None:
            self.taken.append((connection, data))
            take(data, now)

        connection.take = noted  # type: ignore[method-assign]

    def feed(self, reads: Sequence[tuple[int, bytes]]) -> None:
        """Let connections have reads in one iteration of the loop."""
        for number, data in reads:
            connection, sink = self.connections[number][1]
            if not sink.closing:
                connection.data_received(data)
        self.read_end.run()
        self.compiled.server.flush()
        taken, self.taken = self.taken, []
        numbers = {compiled[0]: number for number, (_, compiled) in enumerate(self.connections)}
        for connection, data in taken:
            python, sink = self.connections[numbers[connection]][0]
            if not sink.closing:
                python.data_received(data)
        self.python.server.flush()

    def settle(self) -> None:
        for side in self.sides:
            side.settle()

    def check(self, clients: Sequence[Client]) -> None:
        """Compare all that both have done."""
        assert self.lane.failures == 0, self.lane.why
        for (python, compiled), client in zip(self.connections, clients, strict=True):
            assert python[1].closing == compiled[1].closing
            if not (python[1].closing or client.garbled):
                one, other = (answers(sink.sent, client.reset) for _, sink in (python, compiled))
                same(one, other, "answers")
        same(self.python.contents(), self.compiled.contents(), "store")
        same(last_arrivals(self.python), last_arrivals(self.compiled), "arrivals")

    def close(self) -> None:
        for each in self.connections:
            for connection, _ in each:
                connection.connection_lost(None)
        for side in self.sides:
            side.close()


def play(work: Path, stub: socket.socket, rng: random.Random) -> tuple[int, int]:
    """Play some connections at a time; return how many calls they made, and how many were taken together."""
    waits = rng.random() < 0.4
    several = Several(work, stub, rng.randrange(2, 9), waits=waits, majority=waits and rng.random() < 0.5)
    clients = [
        Client(rng, rng.choice(STYLES), rng.choice([CLIENT, f"client-{number}"]))
        for number in range(len(several.connections))
    ]
    for number, client in enumerate(clients):
        settings = rng.choice([[], [], [(4, 20)], [(4, 300)]])
        several.feed([(number, client.begin(*settings) + client.call(request(rng, topic="orders")))])
    several.feed([(0, clients[0].call(request(rng)))])
    odd_share = rng.choice([0.0, 0.05, 0.3])
    waiting: dict[int, list[bytes]] = {number: [] for number in range(len(clients))}
    for _ in range(rng.randrange(10, 40)):
        for number, client in enumerate(clients):
            if rng.random() < 0.7:
                sent = [some_bytes(rng, client, odd_share) for _ in range(rng.choice([1, 1, 2]))]
                waiting[number] += cuts(rng, b"".join(sent)) if rng.random() < 0.05 else sent
        reads = []
        for number in rng.sample(range(len(clients)), len(clients)):
            count = rng.choice([0, 1, 1, 1, 1, 1, 2])  # two: records of TLS, one behind the other
            reads += [(number, data) for data in waiting[number][:count]]
            del waiting[number][:count]
        several.feed(reads)
        if waits and rng.random() < 0.5:
            several.settle()
    for number, rest in waiting.items():
        several.feed([(number, b"".join(rest))] if rest else [])
    several.settle()
    grown = frame(SETTINGS, 0, 0, SETTING.pack(4, 1 << 28))
    grown += frame(WINDOW_UPDATE, 0, 0, (1 << 28).to_bytes(4, "big"))
    several.feed([(number, grown) for number in range(len(clients))])
    several.check(clients)
    calls = sum(client.id // 2 for client in clients)
    several.close()
    return calls, several.together


@pytest.mark.parametrize("part", range(2))
def test_reads_of_several_connections_are_answered_the_same(
    tmp_path: Path, stub: socket.socket, part: int
) -> None:
    found: list[tuple[int, int]] = []

    def play_one(work: Path, rng: random.Random) -> int:
        found.append(play(work, stub, rng))
        return found[-1][0]

    play_all(tmp_path, part, CALLS, play_one)
    calls, together = (sum(some) for some in zip(*found, strict=True))
    assert together > calls / 5, f"{together} of {calls} calls were taken together"


def test_topics_beyond_those_of_a_pass_are_for_the_next_one(
    tmp_path: Path, stub: socket.socket, monkeypatch: Any
) -> None:
    async def body() -> None:
        rng = random.Random(1)
        several = Several(tmp_path, stub, 3, waits=False)
        clients = [Client(rng, "go") for _ in several.connections]
        for number, client in enumerate(clients):
            several.feed([(number, client.begin() + client.call(request(rng, topic="orders")))])
        for number, client in enumerate(clients):  # Python meets each client on its connection
            several.feed([(number, client.call(request(rng, topic="orders")))])
        by_lane = several.compiled.by_lane
        assert by_lane is not None
        before = by_lane.calls
        # 300 queues, and a pass has 256 at most.
        reads = [
            b"".join(
                client.call(request(rng, topic="many", size=1), more=[("whimbrel-queue-id", str(queue))])
                for queue in range(number * 100, number * 100 + 100)
            )
            for number, client in enumerate(clients)
        ]
        monkeypatch.setattr("whimbrel.rpc.server.gathered_reads.READ_BYTES_MAX", 1 << 20)
        several.read_end.schedule()  # as behind another read of this iteration
        several.feed(list(enumerate(reads)))
        assert by_lane.calls == before + 300
        assert several.together == 256
        several.check(clients)
        several.close()

    asyncio.run(body())
