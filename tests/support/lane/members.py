"""Replicators of a group that commits by majority, by Python and by the lane, beside each other.

A side is a leader's replicator with peers that the test plays, or a member's with a leader that the test
plays, on a clock of the test's and over real sockets; `play` (`replica_shell.py`) has the lane run on that
clock. Whoever drives two sides does the same to both, lets both settle, and compares what can be seen.

Times are multiples of 1/512 s, which seconds as a float and whole nanoseconds both have exactly.
"""

import contextlib
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.replication.member_pair import begin_epoch
from support.replication.replica_shell import play
from support.store.master_log import MasterLog
from whimbrel.errors import PeerError
from whimbrel.ha.epochs import Epochs
from whimbrel.ha.switching import DIALECT, MEMBER_REPORT, PREFACE, REQUEST, Answer, SwitchingMaster
from whimbrel.lane import Lane
from whimbrel.machine import Machine, Worker
from whimbrel.replicator.feeder import Feeder
from whimbrel.replicator.follower import Follower
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.promises import Promises, Repair
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.options import StoreOptions
from whimbrel.store.seat_file import SeatFile

__all__ = ["FILE", "TICK_S", "LeaderSide", "MemberSide", "some_piece"]

FILE = 65536
TICK_S = 1 / 512
SETTLE_TURNS = 6
HELLO_BYTES = PREFACE.size + REQUEST.size
SEATS = ((1, "1" * 32), (2, "2" * 32), (3, "3" * 32))


class Flushes:
    """A flush thread that runs when the test says so."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.wanted = work, False

    def wake(self) -> None:
        self.wanted = True

    def wait(self) -> None:
        self.run()

    def stop(self) -> None:
        self.wanted = False

    def run(self) -> None:
        """Do what is wanted."""
        if self.wanted:
            self.wanted = False
            self.work()


class Clockwork(Machine):
    """A machine whose time and flushes are the test's."""

    def __init__(self, now: Callable[[], float], lane: Lane) -> None:
        super().__init__(lane=lane)
        self.monotonic = now
        self.monotonic_ns = lambda: int(now() * 1e9)
        self.random_bytes = lambda size: b"\x22" * size
        self.wall_ms = lambda: int(now() * 1e3)  # type: ignore[method-assign]
        self.flushes: Flushes | None = None

    def worker(self, name: str, work: Callable[[], None], interval_s: float | None = None) -> Worker:
        """The flush thread is the test's, others are threads."""
        if name != "log-flush":
            return super().worker(name, work, interval_s)
        self.flushes = Flushes(work)
        return self.flushes


class Side:
    """What both kinds have in common."""

    loop: Loop
    worker: Feeder | Follower

    def __init__(self, lane: Lane | None) -> None:
        self.stack = contextlib.ExitStack()
        self.now = 1000.0
        self.machine = Clockwork(lambda: self.now, lane or Lane("off"))

    def turns(self) -> None:
        """Run until nothing is left to do at this time."""
        for _ in range(SETTLE_TURNS):
            by_lane = self.worker.run_lane(self.now)
            self.worker.step(self.now)
            if not by_lane:
                self.loop.turn(0.0, self.worker.idle)
            self.take()

    def take(self) -> None:
        """Take what has come for the test."""

    def close(self) -> None:
        """End it all."""
        self.stack.close()


def received(peer: socket.socket | None, data: bytearray) -> bool:
    """Add what a peer is sent; return whether it is still connected."""
    if peer is None:
        return False
    try:
        while piece := peer.recv(1 << 20):
            data += piece
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


class LeaderSide(Side):
    """The replicator of a leader, with members and observers that the test plays.

    Attributes:
        got: what each peer was sent; `gone`: those whose connection was closed.
    """

    def __init__(
        self, root: Path, lane: Lane | None, *, elected: bool, frame_max: int, file_size: int = FILE
    ) -> None:
        super().__init__(lane)
        self.master = self.stack.enter_context(MasterLog(root, file_size=file_size))
        self.loop = self.stack.enter_context(contextlib.closing(Loop(root, self.machine)))
        self.page, self.shell = self.loop.page, play(self.loop, lambda: self.now)
        self.page.ha_dialect, self.page.replica_role = DIALECT, 1
        self.epoch = 0
        options = ReplicatorOptions(
            role="elected" if elected else "master",
            id=1 if elected else 0,
            store=str(root),
            port=0,
            frame_bytes_max=frame_max,
        )
        self.worker = self.feeder = Feeder(self.loop, options, clock=lambda: self.now)
        self.stack.callback(self.feeder.close, "the test is over")
        self.peers: list[socket.socket] = []
        self.got: list[bytearray] = []
        self.gone: set[int] = set()
        self.beating = True

    def lead(self) -> None:
        """Begin the next epoch, in a log that was recovered anew where there was one."""
        if self.epoch:
            self.master.reopen()
            self.turns()
        self.epoch += 1
        self.page.set_seats(SEATS)
        begin_epoch(self.master.root, self.page, self.epoch, self.master.end)
        self.page.set_voters((1, 2, 3))

    def connect(self) -> int:
        """Connect a peer; return its number."""
        peer = socket.create_connection(("127.0.0.1", self.feeder.port), timeout=10)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setblocking(False)
        self.stack.callback(peer.close)
        self.peers.append(peer)
        self.got.append(bytearray())
        self.settle()
        return len(self.peers) - 1

    def send(self, peer: int, data: bytes) -> None:
        """Have a peer send something, if it is still connected."""
        if peer not in self.gone:
            with contextlib.suppress(ConnectionError):
                self.peers[peer].sendall(data)

    def take(self) -> None:
        """Take what the peers are sent."""
        for number, peer in enumerate(self.peers):
            if number not in self.gone and not received(peer, self.got[number]):
                self.gone.add(number)

    def settle(self) -> None:
        """Let it do what is due at this time."""
        if self.beating:
            self.page.broker_beat_ns = self.machine.monotonic_ns()
        self.turns()

    def seen(self) -> dict[str, Any]:
        """Return all that can be seen."""
        page, cores = self.page, [one.core for one in self.feeder.connections.values()]
        return {
            "sent to peers": [bytes(one) for one in self.got],
            "gone": set(self.gone),
            "acknowledged": list(page.acks),
            "sent": (list(page.sent), list(page.sent_bytes), self.feeder.sent_bytes),
            "members": sorted(page.member_acks()),
            "quorum lost": page.quorum_lost,
            "trouble": [word for word in page.trouble.split() if ":" not in word],
            "cores": [
                (core.next_offset, core.acknowledged, core.partial, core.sent_at, core.received_at)
                for core in cores
            ],
            "told": [core.commit_told for core in cores if isinstance(core, SwitchingMaster)],
        }


class MemberSide(Side):
    """The replicator of a member, with a leader that the test plays.

    Attributes:
        core: the leader's end of the connection; `said`: what it has been sent over each connection.
    """

    def __init__(self, root: Path, lane: Lane | None, *, elected: bool, flush: str, frame_max: int) -> None:
        super().__init__(lane)
        self.root = root
        self.listener = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.listener.setblocking(False)
        options = ReplicatorOptions(
            role="elected" if elected else "slave",
            id=2 if elected else 0,
            store=str(root),
            flush=flush,  # type: ignore[arg-type]
            commitlog_file_size=FILE,
        )
        self.loop = self.stack.enter_context(contextlib.closing(Loop(root, self.machine)))
        self.page, self.shell = self.loop.page, play(self.loop, lambda: self.now)
        self.page.broker_id, self.page.ha_dialect, self.page.replica_role = 2, DIALECT, 2
        self.page.group = "9" * 32
        self.page.master_ha = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.promises = Promises(root, self.page, self.machine, member=2, flush=flush) if elected else None
        store = StoreOptions(
            commitlog_file_size=FILE,
            flush=flush,  # type: ignore[arg-type]
            flush_interval_ms=3_600_000,
        )
        self.log = LogWriter.open(root, store, machine=self.machine)
        self.stack.callback(self.log.close, clean=False)
        self.worker = self.follower = Follower(
            self.loop, options, self.log, promises=self.promises, clock=lambda: self.now
        )
        self.stack.callback(lambda: self.follower.close("the test is over"))
        self.peer: socket.socket | None = None
        self.core: SwitchingMaster | None = None
        self.said: list[bytearray] = []
        self.owed, self.inbox = bytearray(), bytearray()
        self.frame_max = frame_max
        self.frames = self.connections = 0
        self.ended = ""  # why the role would start anew

    def flush(self) -> None:
        """Let the flush thread run, if anybody has asked it to."""
        assert self.machine.flushes is not None
        self.machine.flushes.run()

    def take(self) -> None:
        """Accept a connection, and take what the leader is sent."""
        with contextlib.suppress(BlockingIOError):
            peer, _ = self.listener.accept()
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.stack.callback(peer.close)
            self.peer, self.connections = peer, self.connections + 1
            self.core = SwitchingMaster(
                file_size=FILE, frame_bytes_max=self.frame_max, first_offset="log", now=self.now
            )
            self.owed.clear()
            self.inbox.clear()
            self.said.append(bytearray())
        if self.peer is not None:
            before = len(self.said[-1])
            connected = received(self.peer, self.said[-1])
            self.inbox += self.said[-1][before:]
            if not connected:
                self.hang_up()

    def hang_up(self) -> None:
        """Close the leader's end."""
        if self.peer is not None:
            self.peer.close()
        self.peer = self.core = None

    def turns(self) -> None:
        """Run until nothing is left to do at this time; the leader answers what it understands."""
        if self.ended:
            return
        try:
            super().turns()
        except Repair as repair:
            self.ended = str(repair)

    def lead(self, log: bytes, epochs: Epochs, commit: int) -> None:
        """Have the leader take what it was sent, and make the answer and the frames that are due."""
        core, data = self.core, bytes(self.inbox)
        self.inbox.clear()
        if core is None:
            return
        try:
            if data:
                core.receive(data, begin=0, end=len(log), now=self.now)
            if core.asked:
                core.answer(epochs, end=len(log), now=self.now)
        except PeerError:
            self.hang_up()
            return
        core.lead(commit=commit, beating=True)
        while frame := core.next_frame(begin=0, end=len(log), now=self.now):
            self.owed += frame.header
            if frame.size:
                self.owed += log[frame.offset : frame.offset + frame.size]
                self.frames += not isinstance(frame, Answer)

    def flow(self, count: int) -> None:
        """Let so many of the bytes arrive that the leader has sent."""
        if self.peer is not None and self.owed:
            with contextlib.suppress(ConnectionError, BlockingIOError):
                done = self.peer.send(self.owed[:count])
                del self.owed[:done]

    def seen(self) -> dict[str, Any]:
        """Return all that can be seen."""
        page, log, core = self.page, self.log, self.follower.core
        seat = SeatFile(self.root, self.machine.files).load()
        return {
            "log": (
                log.end,
                log.flushed,
                page.written,
                page.flushed,
                log.read(0, log.end) if log.end % FILE else b"",
            ),
            "said": [told(one) for one in self.said],
            "heard": (page.heard_commit, page.heard_epoch, page.heard_ns),
            "epochs": (EpochFile(self.root, self.machine.files).load(), page.last_epoch),
            "promise": (page.sealed, page.sealed_end, page.sealed_last, page.votes),
            "seat": None if seat is None else (seat.promised, seat.promised_to, seat.floor, seat.votes),
            "connected": (page.connected, self.connections, self.ended),
            "trouble": [word for word in page.trouble.split() if "127.0.0.1" not in word],
            "core": None if core is None else (core.end, core.reported, core.reported_at, core.received_at),
        }


def told(said: bytearray) -> tuple[bytes, bytes, bytes]:
    """Return what a member has said: who it is, the newest report of those that are whole, and the rest.

    Where a read holds a frame that the lane leaves to Python, the end before it has a report of its own.
    """
    hello, reports = bytes(said[:HELLO_BYTES]), said[HELLO_BYTES:]
    whole = len(reports) // MEMBER_REPORT.size * MEMBER_REPORT.size
    ends = [offset for _, offset in MEMBER_REPORT.iter_unpack(reports[:whole])]
    assert ends[1:] == sorted(ends[1:])  # the first one says where it wants to be fed from
    return hello, bytes(reports[whole - MEMBER_REPORT.size : whole]), bytes(reports[whole:])


def some_piece(rng: random.Random, most: int) -> int:
    """Return how many bytes arrive together."""
    return min(rng.choice([1, 3, 11, 12, 35, 36, 37, 500, 5000, 1 << 20]), max(most, 1))
