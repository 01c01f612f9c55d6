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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from whimbrel.deferred import Deferred
from whimbrel.rpc.remoting.command import INT_MAX, ONEWAY, Command
from whimbrel.rpc.server.lane_calls import IDLE_READS_EACH, IDLE_READS_MAX, LaneAnswers

if TYPE_CHECKING:
    from whimbrel.rpc.remoting.handlers import Reply
    from whimbrel.rpc.server.remoting import RemotingConnection

__all__ = ["LaneRequests", "RemotingAnswers", "RemotingLane", "TakenFrames"]


class RemotingAnswers(LaneAnswers, Protocol):
    """Answers to requests of one connection that wait (`whimbrel_lane.Answers`).

    Attributes:
        codes: of the requests, and how many have each.
    """

    codes: list[tuple[int, int]]


# What a pass has done with the bytes of a read:
#     taken     so many bytes
#     partial   what is left is the begin of a frame; else it is Python's, up to `stop`
#     stop      how many bytes of what is left are needed to go on; or where Python's part ends in the bytes.
#               It ends where it begins if what is left is for another pass.
#     codes     of the requests, and how many have each
#     answers   frames to be sent; those that wait until `LaneRequests.answered`; or None without any
TakenFrames: TypeAlias = tuple[int, bool, int, list[tuple[int, int]], "bytes | RemotingAnswers | None"]


class RemotingLane(Protocol):
    """What a broker has for its connections (`broker/lane/requests.py`)."""

    @property
    def active(self) -> bool:
        """Whether the lane takes requests."""

    def command(self, frame: bytes) -> Command:
        """Return the command of a whole frame, as `decode_frame` does."""

    def take(self, reads: "Sequence[tuple[LaneRequests, bytes]]") -> list[TakenFrames] | None:
        """Do the plain sends at the begin of each read; None: nothing was done, all is Python's.

        Raises:
            LaneFault: it has panicked, and nothing was done.
        """

    def park(self, requests: "LaneRequests", answers: RemotingAnswers) -> None:
        """Keep answers until their records are durable."""

    def take_back(self, requests: "LaneRequests") -> list[tuple[str, float, RemotingAnswers]]:
        """Return the parked answers of a connection, each time with when they were parked."""

    def wait(self, answer: bytes, end: int, parked_at: float) -> "Deferred[Reply]":
        """Have Python wait for an answer that was parked; `end`: of its records in the log."""

    def count(self, codes: Sequence[tuple[int, int]], seconds: float) -> None:
        """Count requests whose parked answers have left."""


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
