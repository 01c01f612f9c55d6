"""Replicators of a group that commits by majority do the same with the compiled lane as without."""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from support.lane.logs import lane_or_skip
from support.lane.members import FILE, TICK_S, LeaderSide, MemberSide, some_piece
from support.lane.pair import ROUNDS, SEED
from unit.replicator.test_follower import records
from whimbrel.ha.frames import REPORT
from whimbrel.ha.switching import HEADER, MEMBER_REPORT, REQUEST, Preface

HISTORIES = 6  # of each kind, in a round
STEPS = 120


def seeds() -> range:
    return range(SEED * 1000, SEED * 1000 + HISTORIES * ROUNDS)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


def compare(sides: Sequence[LeaderSide | MemberSide], what: str) -> None:
    """Fail where two sides can be told apart."""
    python, lane = (side.seen() for side in sides)
    for name, value in python.items():
        assert lane[name] == value, f"{name}, after {what}"


# The leader's end


class Leading:
    """A history of a leader, done to both."""

    def __init__(
        self, root: Path, rng: random.Random, *, elected: bool, odd: bool, file_size: int = FILE
    ) -> None:
        self.rng, self.odd = rng, odd
        frame_max = rng.choice([1000, 4096, 1 << 20])
        self.sides = [
            LeaderSide(root / name, lane, elected=elected, frame_max=frame_max, file_size=file_size)
            for name, lane in (("python", None), ("lane", lane_or_skip()))
        ]
        self.members: list[int] = []  # numbers of peers
        self.observers: list[int] = []
        self.outgoing: dict[int, bytearray] = {}
        self.reported: dict[int, int] = {}
        self.done = ""

    def both(self, what: str, work: Callable[[LeaderSide], object]) -> None:
        """Do something to both, and compare."""
        self.done = what
        for side in self.sides:
            work(side)
            side.settle()
        compare(self.sides, what)

    def lead(self) -> None:
        """Begin another epoch: all connections end."""
        self.both("another epoch", lambda side: side.lead())
        for side in self.sides:
            side.settle()
        self.members, self.observers = [], []

    def member(self, number: int, *, counts: bool = True) -> None:
        """Connect a member that holds all, and whose reports count."""
        peer, _ = [side.connect() for side in self.sides]
        seat = bytes.fromhex(str(number) * 32)
        hello = Preface(seat=seat).encode() + REQUEST.pack(1, 0, not counts, number)
        self.both("a handshake", lambda side: side.send(peer, hello))
        end = self.sides[0].master.end
        self.both("two reports", lambda side: side.send(peer, MEMBER_REPORT.pack(2, end) * 2))
        self.members.append(peer)

    def observer(self) -> None:
        """Connect an observer that holds what is committed, once there is more than that."""
        peer, _ = [side.connect() for side in self.sides]
        commit = self.sides[0].page.commit
        self.both("an observer", lambda side: side.send(peer, REPORT.pack(commit)))
        self.observers.append(peer)

    def sent(self, peer: int) -> tuple[int, int] | None:
        """Return what a peer has acknowledged, and up to where it was sent the log."""
        side = self.sides[0]
        name = "{}:{}".format(*side.peers[peer].getsockname()) if peer not in side.gone else ""
        for one in side.feeder.connections.values():
            if one.peer == name:
                return one.core.acknowledged, one.core.next_offset
        return None

    def report(self, peer: int, *, member: bool) -> None:
        """Have a peer report something of what it was sent; perhaps what it can't."""
        known = self.sent(peer)
        if known is None:
            return
        low, high = known
        low = max(low, self.reported.get(peer, 0))
        offset = self.rng.choice([high, high, self.rng.randint(low, max(low, high))])
        state = 2
        if self.odd and self.rng.random() < 0.05:
            offset = self.rng.choice([high + 1, low - 1, -1, 1 << 62])
        elif self.odd and self.rng.random() < 0.03:
            state = self.rng.choice([1, 3, -2])
        self.reported[peer] = max(offset, low)
        data = MEMBER_REPORT.pack(state, offset) if member else REPORT.pack(max(offset, 0))
        self.outgoing.setdefault(peer, bytearray()).extend(data)

    def flow(self) -> None:
        """Let some of what peers have sent arrive."""
        for peer, data in self.outgoing.items():
            piece = bytes(data[: some_piece(self.rng, len(data))])
            del data[: len(piece)]
            if piece:
                self.both("bytes of a peer", lambda side, peer=peer, piece=piece: side.send(peer, piece))  # type: ignore[misc]

    def commit(self) -> None:
        """Move the commit offset, as the broker does that has seen all connections, or not."""
        page = self.sides[0].page
        to = self.rng.randint(page.commit, self.sides[0].master.end)
        saw = self.rng.random() < 0.8

        def move(side: LeaderSide) -> None:
            side.page.commit = to
            if saw:
                side.page.commit_saw = side.page.newest_connection()

        self.both("a commit", move)

    def tick(self, seconds: float) -> None:
        """Let time pass."""

        def wait(side: LeaderSide) -> None:
            side.now += seconds

        self.both(f"{seconds} s", wait)

    def append(self) -> None:
        """Let the log grow."""
        count, size = self.rng.randint(1, 8), self.rng.choice([10, 500, 6000])
        self.both("growth", lambda side: side.master.append(count, body_bytes=size))

    def beat(self) -> None:
        """Stop or start the broker's beat."""

        def turn(side: LeaderSide) -> None:
            side.beating = not side.beating

        self.both("the beat", turn)

    def promised(self) -> None:
        """Take the lead from the broker."""

        def lose(side: LeaderSide) -> None:
            side.page.leader_log = 0

        self.both("no leader", lose)

    def step(self) -> None:
        """Do something."""
        rng = self.rng
        peers = [*((peer, True) for peer in self.members), *((peer, False) for peer in self.observers)]
        what = rng.randrange(100)
        if what < 25:
            self.append()
        elif what < 50 and peers:
            for peer, member in peers:
                self.report(peer, member=member)
            self.flow()
        elif what < 65:
            self.commit()
        elif what < 80:
            self.tick(rng.choice([TICK_S, TICK_S, 1 / 64]))
        elif what < 85:
            self.tick(rng.choice([0.25, 0.5, 0.75, 1.0]))
        elif what < 90:
            self.flow()
        elif self.odd and what < 92:
            self.beat()
        elif self.odd and what == 92:
            self.lead()
        elif self.odd and what == 93:
            self.promised()
        elif self.odd and what < 97:
            self.member(rng.choice([2, 3]), counts=rng.random() < 0.8)
        elif self.odd and what < 99:
            self.observer()

    def close(self) -> None:
        for side in self.sides:
            side.close()


@pytest.mark.parametrize("elected", [False, True], ids=["fixed", "elected"])
@pytest.mark.parametrize("number", seeds())
def test_any_history_of_a_leader(
    tmp_path: Path, stack: contextlib.ExitStack, number: int, elected: bool
) -> None:
    history = Leading(tmp_path, random.Random(f"leader {number}"), elected=elected, odd=True)
    stack.callback(history.close)
    history.lead()
    for member in (2, 3):
        history.member(member)
    for _ in range(STEPS):
        history.step()
    assert history.sides[1].shell.frames > 0


@pytest.mark.parametrize("observed", [False, True], ids=["members", "an observer"])
def test_nearly_all_plain_frames_of_a_leader_are_the_lanes(
    tmp_path: Path, stack: contextlib.ExitStack, observed: bool
) -> None:
    history = Leading(tmp_path, random.Random(SEED), elected=True, odd=False, file_size=1 << 22)
    stack.callback(history.close)
    history.lead()
    for member in (2, 3):
        history.member(member)
    history.append()
    history.commit()
    if observed:
        history.observer()
        history.append()
        history.commit()
        history.report(history.observers[0], member=False)
        history.flow()
    python, lane = history.sides
    begun, before = sum(map(len, lane.got)), lane.shell.sent_bytes
    for _ in range(4 * STEPS):
        history.step()
    made = lane.shell.sent_bytes - before
    assert made >= 0.97 * (sum(map(len, lane.got)) - begun)
    assert python.shell.frames == 0


def test_a_report_may_be_split_at_every_byte(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    history = Leading(tmp_path, random.Random(SEED), elected=True, odd=False)
    stack.callback(history.close)
    history.lead()
    history.member(2)
    history.member(3)
    for _ in range(3):
        history.append()
        for peer in history.members:
            known = history.sent(peer)
            assert known is not None
            for byte in MEMBER_REPORT.pack(2, known[1]):
                history.both("a byte", lambda side, peer=peer, byte=byte: side.send(peer, bytes([byte])))  # type: ignore[misc]
            assert history.sent(peer) == (known[1], known[1])


# The member's end


class Following:
    """A history of a member, done to both."""

    def __init__(self, root: Path, rng: random.Random, *, elected: bool, flush: str, odd: bool) -> None:
        self.rng, self.odd, self.elected = rng, odd, elected
        frame_max = rng.choice([500, 3000, 20_000])
        self.sides = [
            MemberSide(root / name, lane, elected=elected, flush=flush, frame_max=frame_max)
            for name, lane in (("python", None), ("lane", lane_or_skip()))
        ]
        self.log = records(150_000, seed=rng.randrange(1000))
        self.end = rng.randrange(2000, 6000)
        self.epochs: tuple[tuple[int, int], ...] = ((1, 0), (2, rng.randrange(500, self.end)))
        self.commit = -1
        self.name()

    def name(self) -> None:
        """Have the broker beside name the leader of the last epoch."""
        if self.elected:
            for side in self.sides:
                side.page.elected = self.epochs[-1][0], 1

    def both(self, what: str, work: Callable[[MemberSide], object]) -> None:
        """Do something to both, compare, and let the leader say what is due."""
        for side in self.sides:
            work(side)
            side.turns()
        compare(self.sides, what)
        for side in self.sides:
            side.lead(self.log[: self.end], self.epochs, self.commit)

    def flow(self) -> None:
        """Let some of the leader's bytes arrive."""
        count = some_piece(self.rng, len(self.sides[0].owed))
        self.both(f"{count} bytes", lambda side: side.flow(count))

    def tick(self, seconds: float) -> None:
        """Let time pass."""

        def wait(side: MemberSide) -> None:
            side.now += seconds

        self.both(f"{seconds} s", wait)

    def all_flows(self) -> None:
        """Let all of it arrive."""
        for _ in range(50):
            self.both("all bytes", lambda side: side.flow(1 << 20))
            self.both("a flush", lambda side: side.flush())
            if (
                not self.sides[0].owed
                and self.sides[0].core is not None
                and self.sides[0].log.end == self.end
            ):
                return
            self.tick(TICK_S if self.sides[0].core is not None else 0.25)

    def odd_frame(self) -> None:
        """Have the leader send a frame that is not right, with nothing else in the same read."""
        self.both("all bytes", lambda side: side.flow(1 << 20))
        if self.sides[0].owed or self.sides[0].core is None:
            return
        end = self.sides[0].core.next_offset
        epoch, start = self.epochs[-1]
        state, size, offset, commit = 2, 10, end, self.commit
        wrong = self.rng.randrange(7)
        if wrong == 0:
            state = self.rng.choice([1, 3])
        elif wrong == 1:
            size = self.rng.choice([-1, 70_000])
        elif wrong == 2:
            offset += self.rng.choice([1, -1])
        elif wrong == 3:
            epoch += self.rng.choice([1, -1])
        elif wrong == 4:
            start += 1
        elif wrong == 5:
            commit = -2
        head = HEADER.pack(state, size, offset, epoch, start, commit)

        def send(side: MemberSide) -> None:
            side.owed += head + b"x" * 10
            side.flow(1 << 20)
            side.owed.clear()

        self.both("an odd frame", send)

    def promise(self) -> None:
        """Have the broker beside ask for a promise."""
        epoch = self.epochs[-1][0] + self.rng.choice([0, 1, 1])
        asked = epoch, self.rng.choice([1, 3])

        def ask(side: MemberSide) -> None:
            side.page.promise = asked

        self.both("a promise", ask)

    def relead(self) -> None:
        """Another leader, whose epoch begins where the log ends; perhaps the log grew meanwhile."""
        self.end = min(self.end + self.rng.choice([0, 700]), len(self.log))
        last = max(self.epochs[-1][0], self.sides[0].page.sealed[0])
        kept = [entry for entry in self.epochs if entry[1] < self.end]
        self.epochs = (*kept, (last + 1, self.end))
        self.name()
        self.both("another leader", lambda side: side.hang_up())

    def step(self) -> None:
        """Do something."""
        rng, what = self.rng, self.rng.randrange(100)
        if what < 25:
            self.end = min(self.end + rng.choice([100, 5000]), len(self.log))
            self.both("growth", lambda side: None)
        elif what < 55:
            self.flow()
        elif what < 65:
            self.commit = rng.randint(max(self.commit, 0), self.end)
            self.tick(TICK_S)
        elif what < 75:
            self.both("a flush", lambda side: side.flush())
        elif what < 85:
            self.tick(rng.choice([TICK_S, 1 / 64]))
        elif what < 90:
            self.tick(rng.choice([0.25, 0.5, 1.0]))
        elif what < 94:
            self.all_flows()
        elif self.odd and what < 96:
            self.odd_frame()
        elif self.odd and what < 98:
            self.relead()
        elif self.odd and self.elected:
            self.promise()

    def close(self) -> None:
        for side in self.sides:
            side.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("elected", [False, True], ids=["fixed", "elected"])
@pytest.mark.parametrize("number", seeds())
def test_any_history_of_a_member(
    tmp_path: Path, stack: contextlib.ExitStack, number: int, elected: bool, flush: str
) -> None:
    rng = random.Random(f"member {number}")
    history = Following(tmp_path, rng, elected=elected, flush=flush, odd=True)
    stack.callback(history.close)
    history.all_flows()
    for _ in range(STEPS):
        history.step()
    assert history.sides[1].shell.bodies > 0


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_nearly_all_plain_frames_to_a_member_are_the_lanes(
    tmp_path: Path, stack: contextlib.ExitStack, flush: str
) -> None:
    history = Following(tmp_path, random.Random(SEED), elected=True, flush=flush, odd=False)
    stack.callback(history.close)
    history.all_flows()
    python, lane = history.sides
    begun, before = lane.frames, lane.shell.bodies
    for _ in range(3 * STEPS):
        history.step()
    history.all_flows()
    assert lane.shell.bodies - before >= 0.95 * (lane.frames - begun)
    assert lane.frames - begun > 50
    assert python.shell.bodies == 0


def test_frames_may_be_split_at_every_byte(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    history = Following(tmp_path, random.Random(SEED), elected=False, flush="async", odd=False)
    stack.callback(history.close)
    history.all_flows()
    for grown, commits in ((50, 40), (0, 5), (700, 705)):
        history.end += grown
        history.commit = max(history.commit, 0) + commits
        history.tick(TICK_S)
        assert history.sides[0].owed
        while history.sides[0].owed:
            history.both("a byte", lambda side: side.flow(1))
    assert history.sides[1].page.heard_commit == history.commit
    assert history.sides[1].shell.bodies > 1
