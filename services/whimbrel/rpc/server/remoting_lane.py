"""The compiled lane on a connection of the remoting protocol: plain sends go from bytes to bytes.

    bytes of a read ──► the lane ──► plain sends: done, answered or parked                } until
                          └──► what is not plain, untouched ──► FrameReader ──► handlers  } all is taken

What `lane_calls.py` is for HTTP/2, this is for frames (`remote.rs` in `native/core`), and less: frames depend
on nothing before them, and answers on no windows. What the lane leaves of a read begins with a frame. The
begin of a frame that is not whole stays in the connection's `FrameReader`, and counts as before.

**Parked answers** are entries in the lane, until the log is durable, or until Python has to wait for them:
their time is over, or the role ends. Those of requests that nobody answers are empty.

**Others' connections.** A consumer's have no sends: where the last reads had none, the lane is asked about
few of those that follow, as for calls.
"""

import time
from typing import TYPE_CHECKING

from whimbrel.rpc.remoting.command import INT_MAX, ONEWAY, Command
from whimbrel.rpc.server.lane_calls import IDLE_READS_EACH, IDLE_READS_MAX
from whimbrel.rpc.server.lanes import RemotingAnswers, RemotingLane, TakenFrames

if TYPE_CHECKING:
    from whimbrel.rpc.server.remoting import RemotingConnection

__all__ = ["LaneRequests"]


class LaneRequests:
    """The lane's part of one connection.

    Attributes:
        parked: requests whose answers wait in the lane.
        idle: reads since the last one that had a request for the lane.
    """

    def __init__(self, connection: "RemotingConnection", lane: RemotingLane) -> None:
        """Begin with a connection."""
        self.connection, self.lane, self.peer = connection, lane, connection.peer
        self.parked = self.idle = 0

    def likely(self) -> bool:
        """Count a read; tell whether it may have a request for the lane, as far as those before it say."""
        self.idle += 1
        return self.idle <= IDLE_READS_MAX or self.idle % IDLE_READS_EACH == 0

    def receive(self, data: bytes, *, asks: bool) -> None:
        """Take bytes of the peer, which begin with a frame, in as many passes as they need; `asks`: or all by
        Python."""
        connection = self.connection
        while data:
            done = self.lane.take(((self, data),)) if asks and self.lane.active else None
            if done is None:
                connection.take_frames(data)
                return
            rest = self.go_on(data, done[0])
            assert len(rest) < len(data), "the lane has taken nothing, and left nothing to Python"
            data = rest

    def go_on(self, data: bytes, done: TakenFrames) -> bytes:
        """Go on behind a pass: apply it, let Python do its part; return what is left for another pass."""
        taken, partial, stop, codes, answers = done
        connection = self.connection
        if answers is not None:
            self.idle, connection.spoken = 0, True
            connection.calls += sum(count for _, count in codes)
            if isinstance(answers, bytes):
                self.send(answers)
            else:
                self.parked += len(answers)
                self.lane.park(self, answers)
        if partial:
            connection.reader.keep(memoryview(data)[taken:], stop)
            return b""
        if stop > taken and not connection.take_frames(
            data[taken:stop] if taken or stop < len(data) else data
        ):
            return b""
        return data[stop:]

    def send(self, frames: bytes) -> None:
        """Put answers into the next write."""
        if frames:
            self.connection.out.append(frames)
            self.connection.budget.responded(len(frames))

    def answered(self, path: str, answers: RemotingAnswers, parked_at: float) -> bool:
        """Send answers that have waited long enough; they are counted here, by their codes."""
        connection = self.connection
        self.parked -= len(answers)
        self.send(answers.frames)
        connection.schedule_flush()
        self.lane.count(answers.codes, connection.server.loop.time() - parked_at)
        return False

    def given_back(self, path: str, answers: RemotingAnswers, parked_at: float) -> None:
        """Go on in Python with requests that the lane had parked."""
        connection = self.connection
        self.parked -= len(answers)
        began = time.perf_counter() - (connection.server.loop.time() - parked_at)
        for number, answer, end, code, _ in answers.calls():
            opaque = number if number <= INT_MAX else number - (1 << 32)
            request = Command(code, opaque, flag=0 if answer else ONEWAY)
            connection.wait(request, self.lane.wait(answer, end, parked_at), began)

    def leave(self) -> None:
        """Give everything to Python, which goes on alone."""
        if self.parked:
            for path, parked_at, answers in self.lane.take_back(self):
                self.given_back(path, answers, parked_at)

    def abandon(self) -> None:
        """Drop all parked answers: the connection is gone."""
        if self.parked:
            self.lane.take_back(self)
            self.parked = 0
