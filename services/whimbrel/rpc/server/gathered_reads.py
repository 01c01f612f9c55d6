"""Small reads of several connections, taken by one pass of the compiled lane in the loop's next iteration.

    read of A ──┐                     ┌──► answers of A
    read of B ──┼──► one pass ────────┼──► answers of B
    read of C ──┘    (`lane_calls`)   └──► what is Python's of C

Connections of the remoting protocol do the same, in passes of their own (`remoting_lane`).

A pass costs the interpreter about as much as several calls cost the lane, whatever it has. Where each of many
connections brings a call at a time, one pass for all of them saves most of that. The loop's next iteration
comes before it waits again, behind the reads of all connections that were ready.

The first read since is handled at once, so that a call that is alone does not wait; its answer leaves while
the others are read.

**Order.** A connection has one read here at most: what comes behind it takes it along, and what else happens
to the connection (the peer's end of it, other services) has it taken first. A connection that is lost takes
its read with it; no answer could have left.

**Bounds.** Of a connection `READ_BYTES_MAX`, until the next iteration; larger reads have calls enough of
their own. Of all connections `WAITING_BYTES_MAX`; what comes beyond is handled at once. A pass has at most
`PASS_READS_MAX` reads.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.lane_calls import LaneCalls
from whimbrel.rpc.server.lanes import LaneFault, LanePass, TakenFrames
from whimbrel.rpc.server.read_end import ReadEnd
from whimbrel.rpc.server.remoting import RemotingConnection
from whimbrel.rpc.server.remoting_lane import LaneRequests
from whimbrel.rpc.server.shared import AnyConnection

__all__ = ["PASS_READS_MAX", "READ_BYTES_MAX", "GatheredReads"]

READ_BYTES_MAX = 16 << 10
WAITING_BYTES_MAX = 4 << 20
PASS_READS_MAX = 64


class GatheredReads:
    """The reads that wait; on the loop's thread.

    Attributes:
        waiting: in the order in which they came. waiting_bytes: of all of them.
    """

    def __init__(self, read_end: ReadEnd) -> None:
        """Take what comes back here in the next iteration."""
        self.read_end = read_end
        self.waiting: dict[AnyConnection, bytes] = {}
        self.waiting_bytes = 0
        read_end.before = self.run

    def add(self, connection: AnyConnection, data: bytes, *, partial: bool) -> bool:
        """Take a read; return False where it is to be handled at once, behind what `withdraw` gives.

        `partial`: something is not whole on that connection.
        """
        if not self.read_end.scheduled:
            self.read_end.schedule()
            return False
        if len(data) > READ_BYTES_MAX or connection in self.waiting or partial:
            return False
        if self.waiting_bytes + len(data) > WAITING_BYTES_MAX:
            return False
        self.waiting[connection] = data
        self.waiting_bytes += len(data)
        return True

    def withdraw(self, connection: AnyConnection) -> bytes:
        """Return a connection's read, which does not wait any more; empty without one."""
        data = self.waiting.pop(connection, b"")
        self.waiting_bytes -= len(data)
        return data

    def run(self) -> None:
        """Handle all reads that wait."""
        while self.waiting:
            some = list(islice(self.waiting, PASS_READS_MAX))
            calls: dict[NativeConnection, bytes] = {}
            requests: dict[RemotingConnection, bytes] = {}
            for connection in some:
                of_kind: dict[Any, bytes] = requests if isinstance(connection, RemotingConnection) else calls
                of_kind[connection] = self.withdraw(connection)
            if calls:
                receive_together(calls)
            if requests:
                receive_requests_together(requests)


def receive_together(reads: dict[NativeConnection, bytes]) -> None:
    """Handle the reads of several HTTP/2 connections, what is plain in one pass."""
    taken: list[tuple[LaneCalls, bytes]] = []
    for connection, data in reads.items():
        lane = connection.lane
        if lane is not None and lane.ready():
            connection.conn.elsewhere = lane.parked
            lane.idle += 1
            taken.append((lane, data))
    done: LanePass | None = take_together(reads, taken)
    if done is not None:
        for (lane, data), read in zip(taken, done.reads, strict=True):
            del reads[lane.connection]
            lane.connection.receive(data, done.path, read)
    for connection, data in reads.items():
        connection.receive(data)


def receive_requests_together(reads: dict[RemotingConnection, bytes]) -> None:
    """Handle the reads of several connections of the remoting protocol, what is plain in one pass."""
    taken: list[tuple[LaneRequests, bytes]] = []
    for connection, data in reads.items():
        lane = connection.lane
        if lane is not None and lane.lane.active and not connection.ended:
            lane.idle += 1
            taken.append((lane, data))
    done: Sequence[TakenFrames] | None = take_together(reads, taken)
    if done is not None:
        for (lane, data), read in zip(taken, done, strict=True):
            del reads[lane.connection]
            lane.connection.receive(data, read)
    for connection, data in reads.items():
        connection.receive(data)


def take_together(reads: dict[Any, bytes], taken: Sequence[tuple[Any, bytes]]) -> Any:
    """Have the lane take reads in one pass; return what it has done, None for nothing.

    A connection that can't go on is ended, and is not in `reads` any more.
    """
    faulty: list[Any] = []
    done: Any = None
    if taken:
        try:
            done = taken[0][0].lane.take(taken)
        except LaneFault as fault:
            faulty = [taken[fault.read][0].connection]
            faulty[0].fault(fault)
        except Exception as error:  # noqa: BLE001 - what was done of these reads is not known
            faulty = [lane.connection for lane, _ in taken]
            for connection in faulty:
                connection.fault(error)
    for connection in faulty:
        del reads[connection]
    return done
