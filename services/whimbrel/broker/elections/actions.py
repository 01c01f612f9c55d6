"""What the machine of an election (`machine.py`) is told, and what it wants done: plain values."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from whimbrel.model.group_record import GroupRecord

__all__ = [
    "ASK_APART_S",
    "STANDING",
    "Action",
    "AskSeals",
    "AskSuspicions",
    "Close",
    "Facts",
    "Open",
    "Promise",
    "ReadRecord",
    "StartStream",
    "State",
    "StopStream",
    "Swap",
]


class State(Enum):
    """What a member is about; `machine.py` draws how they follow."""

    GATHERING = "gathering"
    FOLLOWING = "following"
    ASKING = "asking"
    SWAPPING = "swapping"
    SEALING = "sealing"
    OPENING = "opening"
    LEADING = "leading"
    CLOSING = "closing"


ASK_APART_S: Final = 0.1  # between two questions to the same member
STANDING: Final = (State.ASKING, State.SWAPPING, State.SEALING, State.OPENING)  # on the way to lead


@dataclass(frozen=True, slots=True)
class Facts:
    """What a member knows of itself at the moment. Times are seconds of a clock that never goes back.

    Attributes:
        wall_ms: epoch milliseconds, for the history.
        heard_at: when the last frame of a leader came; -inf: none has.
        connected: a stream from a leader is there.
        leaderless: nameservers are heard, and none of them knows of a leader.
        promised, promised_to: the newest promise that is on disk, and to which member.
        last_epoch, end: of the log.
        votes: it may vote: it has not lost what it acknowledged.
        seat: uuid of its store; "" while its replicator has not told.
        group: uuid of the group that its store belongs to; "" before there is one.
        adopted: how many voters besides itself have acknowledged its epoch; of a leader.
        present: ids of the members that are connected; of a leader.
        alone: too few voters have reported lately for anything to be committed; of a leader.
    """

    now: float
    wall_ms: int
    heard_at: float
    connected: bool
    leaderless: bool
    promised: int
    promised_to: int
    last_epoch: int
    end: int
    votes: bool
    seat: str
    group: str = ""
    adopted: int = 0
    present: frozenset[int] = frozenset()
    alone: bool = False

    @property
    def position(self) -> tuple[int, int]:
        """How far its log goes."""
        return self.last_epoch, self.end


@dataclass(frozen=True, slots=True)
class AskSuspicions:
    """Ask these members what they hear; `suspected` takes each answer."""

    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskSeals:
    """Ask these members for a seal of an epoch; `sealed` takes each answer."""

    members: tuple[int, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class Swap:
    """Have the coordinator put a record in the place of a revision; `swapped` takes the outcome."""

    record: GroupRecord
    revision: int


@dataclass(frozen=True, slots=True)
class Promise:
    """Put a promise on disk; `promised` takes the outcome."""

    epoch: int
    candidate: int


@dataclass(frozen=True, slots=True)
class Open:
    """Take the log over and lead; `opened` or `closed` takes the outcome."""

    record: GroupRecord


@dataclass(frozen=True, slots=True)
class Close:
    """Give the log back; `closed` follows."""

    why: str


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Ask the coordinator for the record; `reached` and `learned` take the answer."""


@dataclass(frozen=True, slots=True)
class StopStream:
    """Have the replicator beside feed nobody, though we lead."""


@dataclass(frozen=True, slots=True)
class StartStream:
    """Have it feed the others again."""


Action = AskSuspicions | AskSeals | Swap | Promise | Open | Close | ReadRecord | StopStream | StartStream
