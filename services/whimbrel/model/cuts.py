"""What was cut off a broker's log, as operators see it and put it back: values that processes exchange."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = [
    "CUT_NAME_CHARS_MAX",
    "CUT_PAGE_BYTES_MAX",
    "CUT_PAGE_RECORDS_MAX",
    "REPLAYED_IDS_MAX",
    "REPLAYED_TOPICS_MAX",
    "CutMark",
    "CutOutcome",
    "CutPage",
    "CutResult",
    "CutStatus",
    "ReplayedPage",
]

CUT_PAGE_RECORDS_MAX: Final = 256
CUT_PAGE_BYTES_MAX: Final = 1 << 20  # of records in a page, unless it is one
CUT_NAME_CHARS_MAX: Final = 100
REPLAYED_TOPICS_MAX: Final = 64  # that a replay is narrowed to
REPLAYED_IDS_MAX: Final = 256


class CutResult(Enum):
    """What became of a record that was to be put back."""

    STORED = "stored"  # or would be
    PRESENT = "present"  # its topic has a message with its id
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMark:
    """How far a cut was replayed.

    Attributes:
        position: the records below were gone through.
        done: all of them were.
        stored, present, refused: how many were put back, were in their topics already, could not be.
        time_ms: when this was written down, epoch milliseconds.
    """

    position: int = 0
    done: bool = False
    stored: int = 0
    present: int = 0
    refused: int = 0
    time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStatus:
    """A cut as a store has it.

    Attributes:
        epoch: of its first byte, 0 before the first epoch; None for what recovery has cut.
        begin, end: it is [begin, end) of the log as it was.
        records: how many whole ones there are; None where nobody has counted them.
        why: a sentence for people.
        time_ms: when it was cut, epoch milliseconds.
        size: bytes of all its files.
        mark: how far it was replayed; None: not at all.
    """

    name: str
    epoch: int | None
    begin: int
    end: int
    records: int | None
    why: str
    time_ms: int
    size: int
    mark: CutMark | None


@dataclass(frozen=True, slots=True)
class CutPage:
    """Records of a cut.

    Attributes:
        records: (offset in the log as it was, bytes of the record), rising.
        next: position of the next page; -1 at the end.
        begin: of the cut.
    """

    records: tuple[tuple[int, bytes], ...]
    next: int
    begin: int


@dataclass(frozen=True, slots=True)
class CutOutcome:
    """What became of a record; `why` says it of one that was refused."""

    offset: int
    topic: str
    message_id: str
    result: CutResult
    why: str = ""


@dataclass(frozen=True, slots=True)
class ReplayedPage:
    """What became of a page of records, and where the next one begins: -1 at the end."""

    outcomes: tuple[CutOutcome, ...]
    next: int
