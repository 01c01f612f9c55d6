"""A group that commits by majority, without brokers: a master's replicator and a member's, in one thread.

    with Pair(tmp_path) as pair:
        pair.lead(1)
        pair.turns(lambda: pair.slave_log.end == pair.master.end)

The test plays the brokers: it writes the master's log, begins its epochs, and moves the commit offset.
"""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from support.replication.replica_shell import play
from support.store.master_log import MasterLog
from whimbrel.ha.epochs import Epochs, adopted
from whimbrel.ha.switching import DIALECT
from whimbrel.lane import Lane
from whimbrel.machine import Machine
from whimbrel.model.group_record import MEMBER_MAX
from whimbrel.replicator.feeder import Feeder
from whimbrel.replicator.follower import Follower
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.options import StoreOptions
from whimbrel.store.shared_page import SharedPage

__all__ = ["FILE", "MEMBER", "Pair", "begin_epoch"]

FILE = 65536
MEMBER = 2
TURNS_MAX = 3000


def begin_epoch(root: Path, page: SharedPage, epoch: int, end: int) -> Epochs:
    """Begin an epoch at a log's end, as the broker of its leader does; return the list."""
    file = EpochFile(root)
    epochs = adopted(file.load(), ((epoch, end),), end)
    file.save(epochs)
    page.leader_epoch, page.leader_start = epoch, end
    page.set_voters(range(MEMBER_MAX + 1))
    page.leader_log = page.epoch  # last: from now on members are let in
    return epochs


class Pair:
    """Both replicators.

    Attributes:
        now: what both take for the time; it grows with each turn.
    """

    def __init__(
        self, root: Path, *, file_size: int = FILE, flush: str = "async", lane: Lane | None = None
    ) -> None:
        self.stack = contextlib.ExitStack()
        self.root, self.file_size, self.flush = root, file_size, flush
        self.lane = lane or Lane("off")  # on the test's clock, see `replica_shell.py`
        self.now, self.step_s = 1000.0, 0.001
        self.beating = True
        self.follower: Follower | None = None

    def __enter__(self) -> Self:
        self.master = self.stack.enter_context(MasterLog(self.root / "master", file_size=self.file_size))
        self.page = self.master.page
        self.page.ha_dialect = DIALECT
        self.loop = self.open_loop(self.root / "master")
        options = ReplicatorOptions(role="master", store=str(self.root / "master"), port=0)
        self.feeder = Feeder(self.loop, options, clock=lambda: self.now)
        self.stack.callback(self.feeder.close, "the test is over")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_slave()
        self.stack.close()

    def open_loop(self, root: Path) -> Loop:
        loop = self.stack.enter_context(contextlib.closing(Loop(root, Machine(lane=self.lane))))
        self.shell = play(loop, lambda: self.now)
        return loop

    def lead(self, epoch: int) -> None:
        """Begin an epoch where the master's log ends."""
        begin_epoch(self.master.root, self.page, epoch, self.master.end)

    def start_slave(self, *, dialect: int = DIALECT, master_ha: str = "") -> None:
        """Start the slave's replicator on its store, beside a broker that wants a dialect.

        Args:
            master_ha: of another master than the pair's.
        """
        root = self.root / "slave"
        options = ReplicatorOptions(
            role="slave",
            store=str(root),
            master_ha=master_ha or f"127.0.0.1:{self.feeder.port}",
            compare_bytes=64 * 1024,
            flush=self.flush,  # type: ignore[arg-type]
        )
        self.slave_loop = Loop(root, Machine(lane=self.lane))
        self.slave_shell = play(self.slave_loop, lambda: self.now)
        self.slave_page = self.slave_loop.page
        self.slave_page.broker_id, self.slave_page.ha_dialect = MEMBER, dialect
        store = StoreOptions(commitlog_file_size=self.file_size, flush=options.flush)
        self.slave_log = LogWriter.open(root, store)
        self.follower = Follower(self.slave_loop, options, self.slave_log, clock=lambda: self.now)

    def stop_slave(self) -> None:
        """Stop the slave's replicator; its store stays."""
        if self.follower is not None:
            self.follower.close("the test stops it")
            self.follower = None
            self.slave_log.close(clean=True)
            self.slave_loop.close()

    def connected(self) -> bool:
        """Whether the slave is connected to a master."""
        return self.follower is not None and self.follower.core is not None

    def turn(self) -> None:
        """Let both do what is due."""
        if self.beating:
            self.page.broker_beat_ns = self.loop.machine.monotonic_ns()
        by_lane = self.feeder.run_lane(self.now)
        self.feeder.step(self.now)
        if not by_lane:
            self.loop.turn(0.0, self.feeder.idle)
        follower = self.follower
        if follower is not None:
            by_lane = follower.run_lane(self.now)
            follower.step(self.now)
            if not by_lane:
                self.slave_loop.turn(0.0, follower.idle)
        self.now += self.step_s

    def turns(self, done: Callable[[], bool]) -> None:
        """Run both until something is so."""
        for _ in range(TURNS_MAX):
            self.turn()
            if done():
                return
        raise AssertionError("it never happened")

    def idle_for(self, seconds: float) -> None:
        """Let so much of the replicators' time pass."""
        until = self.now + seconds
        self.turns(lambda: self.now > until)

    def connect(self) -> socket.socket:
        """Connect a peer that the test plays."""
        peer = socket.create_connection(("127.0.0.1", self.feeder.port), timeout=10)
        peer.setblocking(False)
        self.stack.callback(peer.close)
        return peer

    def read(self, peer: socket.socket, count: int) -> bytes:
        """Read so many bytes of a peer's; fewer when the connection ends before."""
        data = bytearray()
        ended = False

        def enough() -> bool:
            nonlocal ended
            with contextlib.suppress(BlockingIOError):
                try:
                    piece = peer.recv(count - len(data))
                except ConnectionError:
                    piece = b""
                data.extend(piece)
                ended = not piece
            return ended or len(data) == count

        self.turns(enough)
        return bytes(data)
