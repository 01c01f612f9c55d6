"""The interface between connections and a broker's compiled lane, which takes what is plain before handlers.

    connection ──► its part of the lane (`LanePart`) ──► `CallLane`, `RemotingLane`: one pass over its reads
                       ▲                                                     │
                       └── answered, or given back to Python ◄── parked answers

A lane comes with what is served: with methods (`UnaryMethod.lane`), or with a `RemotingService`. The parts of
connections are `lane_calls.py` and `remoting_lane.py`; the lanes are below `broker/lane`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from whimbrel.deferred import Deferred
from whimbrel.rpc.http2.hpack import HeaderDecoder
from whimbrel.rpc.http2.lane_decoder import LaneHeaderDecoder
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Reply

__all__ = [
    "AnsweredCall",
    "Approved",
    "CallLane",
    "CallsPart",
    "LaneAnswers",
    "LaneFault",
    "LanePart",
    "LanePass",
    "RemotingAnswers",
    "RemotingLane",
    "TakenFrames",
    "TakenRead",
]

# Stream, message, what it waits for (the end of its records in the log, or a number), what the peer has added
# to its window, timeout in seconds.
AnsweredCall: TypeAlias = tuple[int, bytes, int, int, float | None]

# What a guard looks at, and for each of `CallLane.paths` the values with which it has let in a call.
Approved: TypeAlias = tuple[list[bytes], list[list[bytes | None] | None]]

# What a pass has done with the bytes of a read:
#     taken          so many bytes
#     partial        what is left is the begin of a call; else it is Python's, up to `stop`
#     stop           how many bytes of what is left are needed to go on; or where Python's part ends in the
#                    bytes. It ends where it begins if what is left is for another pass.
#     older          Python's part may be about streams that were opened before
#     last_id, send_window    of the connection, from now on
#     received       bytes of data
#     stranger       another client that calls, as bytes
#     answers        None, None, those that wait until `LaneCalls.answered`; or frames to be sent, the numbers
#                    of their streams, calls whose answers Python has to send; or three times None
TakenRead: TypeAlias = tuple[
    int, bool, int, bool, int, int, int, bytes | None,
    tuple[None, None, "LaneAnswers | None"] | tuple[bytes, list[int], list[AnsweredCall]],
]  # fmt: skip


class LaneFault(RuntimeError):
    """The lane has panicked in a pass: nothing was taken.

    Attributes:
        read: the number of the read that it was at; its connection can't go on.
    """

    def __init__(self, read: int, why: str) -> None:
        super().__init__(f"the compiled lane is off, because {why}")
        self.read = read


class LaneAnswers(Protocol):
    """Answers to calls of one connection that wait (`whimbrel_lane.Answers`)."""

    frames: bytes
    ids: list[int]
    data_bytes: int  # as windows count them
    largest: int
    shortest_timeout: float | None

    def __len__(self) -> int: ...
    def calls(self) -> Sequence[AnsweredCall]:
        """Return each call with the message of its answer."""


class LanePart(Protocol):
    """The lane's part of a connection, whose answers may be parked (`LaneCalls`, `LaneRequests`).

    Attributes:
        peer: the other side's address.
    """

    peer: str

    def answered(self, path: str, answers: Any, parked_at: float) -> bool:
        """Send answers; return whether they are to be counted as answered in time by the method."""

    def given_back(self, path: str, answers: Any, parked_at: float) -> None:
        """Have Python wait for answers."""


class CallsPart(LanePart, Protocol):
    """The part of a connection that speaks HTTP/2, as a pass asks it (`LaneCalls`).

    Attributes:
        decoder: of its header fields.
        client: whose calls are taken, where Python knows it. client_bytes: as headers have it.
        approved: by the guard; None where there is none.
    """

    decoder: LaneHeaderDecoder
    client: str
    client_bytes: bytes
    approved: Approved | None

    def state(self) -> tuple[int, int, int, int, int, int, int, int, int, bool]:
        """Return what a pass must know of the connection (`State` in `calls.rs`)."""


class LanePass(NamedTuple):
    """What a pass has done.

    Attributes:
        path: of the calls that it has taken.
        reads: what has become of each read.
    """

    path: str
    reads: list[TakenRead]


class CallLane(Protocol):
    """What takes plain calls; `broker/lane/calls.py` is the one there is.

    Attributes:
        active: it takes calls.
        paths: of the methods of which it does.
    """

    paths: tuple[str, ...]

    @property
    def active(self) -> bool: ...

    def header_decoder(self, before: HeaderDecoder) -> LaneHeaderDecoder:
        """Return a decoder for a connection that goes on where the one before is."""

    def take(self, reads: Sequence[tuple[CallsPart, bytes]]) -> LanePass | None:
        """Do the plain calls at the begin of each read; None, and nothing done, where there can be none now.

        Args:
            reads: of different connections.

        Raises:
            LaneFault: the lane has panicked.
        """

    def park(self, calls: CallsPart, path: str, answers: LaneAnswers) -> None:
        """Keep answers to calls of a method until what they have done is safe."""

    def take_back(self, calls: CallsPart) -> list[tuple[str, float, LaneAnswers]]:
        """Return the parked answers of a connection, with their path and the loop's time when they were
        parked."""

    def wait(self, path: str, message: bytes, end: int, parked_at: float) -> Deferred[Any]:
        """Have Python wait for the answer to a call that was parked here."""


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

    def take(self, reads: Sequence[tuple[LanePart, bytes]]) -> list[TakenFrames] | None:
        """Do the plain sends at the begin of each read; None: nothing was done, all is Python's.

        Raises:
            LaneFault: it has panicked, and nothing was done.
        """

    def park(self, requests: LanePart, answers: RemotingAnswers) -> None:
        """Keep answers until their records are durable."""

    def take_back(self, requests: LanePart) -> list[tuple[str, float, RemotingAnswers]]:
        """Return the parked answers of a connection, each time with when they were parked."""

    def wait(self, answer: bytes, end: int, parked_at: float) -> Deferred[Reply]:
        """Have Python wait for an answer that was parked; `end`: of its records in the log."""

    def count(self, codes: Sequence[tuple[int, int]], seconds: float) -> None:
        """Count requests whose parked answers have left."""
