"""What a member of a group that elects its leader answers to another one: suspicions and promises.

Values that passed the door: numbers are in bounds, and uuids look like some. What they are worth is for who
asked to decide: which seats are voters', and whether a promise is to whom it should be.
"""

from dataclasses import dataclass
from typing import Final

from whimbrel.errors import BadRequest
from whimbrel.model.group_record import EPOCH_MAX, MEMBER_MAX, NOBODY, UUID
from whimbrel.model.limits import LOG_END_MAX

__all__ = [
    "ANSWER_WHY_CHARS_MAX",
    "FailoverPlan",
    "MemberPosition",
    "SealAnswer",
    "Suspicion",
    "check_epoch",
    "check_member_id",
    "check_size",
    "check_uuid",
]

ANSWER_WHY_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What a member knows of its group; it promises nothing.

    Attributes:
        silent: it hears no leader.
        epoch: the newest one that it knows: promised, followed or led; 0: none.
        last_epoch: in its log's list; 0 without one.
        log_end: of its log, bytes.
        votes: it may vote: it cannot have lost what it acknowledged.
        seat: uuid of its store; empty while its replicator has not told.
        group: uuid of the group that it belongs to; empty without one.
        member: its id; NOBODY while it has none.

    Raises:
        BadRequest: a field is out of bounds.
    """

    silent: bool
    epoch: int
    last_epoch: int
    log_end: int
    votes: bool
    seat: str
    group: str
    member: int

    def __post_init__(self) -> None:
        """Refuse what no member can say."""
        check_epoch("epoch", self.epoch)
        check_epoch("last_epoch", self.last_epoch)
        check_size("log_end", self.log_end)
        check_uuid("seat", self.seat)
        check_uuid("group", self.group)
        check_member_id("member", self.member)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealAnswer:
    """A promise to take nothing from epochs below `promised`, or why there is none.

    Attributes:
        sealed: the promise is made, and on the member's disk.
        promised: the newest epoch that it has promised itself to; 0: none.
        promised_to: to which member; NOBODY: to none.
        last_epoch: in its log's list, as it was sealed; 0 without one.
        log_end: of its log, bytes, as it was sealed.
        seat: uuid of its store; empty while its replicator has not told. Only that of a voter counts.
        why: there is no promise, or it does not count; for people. At most ANSWER_WHY_CHARS_MAX characters.
        member: its id; NOBODY while it has none.
        votes: the promise counts: it may vote.
        waiting_below: delayed messages and undecided transactions that its log has below the begin of the
            candidate's, which would be lost if that one led.

    Raises:
        BadRequest: a field is out of bounds.
    """

    sealed: bool
    promised: int
    promised_to: int
    last_epoch: int
    log_end: int
    seat: str
    why: str
    member: int
    votes: bool
    waiting_below: int = 0

    def __post_init__(self) -> None:
        """Refuse what no member can say."""
        check_epoch("promised", self.promised)
        check_member_id("promised_to", self.promised_to)
        check_epoch("last_epoch", self.last_epoch)
        check_size("log_end", self.log_end)
        check_uuid("seat", self.seat)
        check_member_id("member", self.member)
        check_size("waiting_below", self.waiting_below)
        if len(self.why) > ANSWER_WHY_CHARS_MAX:
            raise BadRequest(f"why: {len(self.why)} characters, at most {ANSWER_WHY_CHARS_MAX} are allowed")


@dataclass(frozen=True, slots=True)
class MemberPosition:
    """How far a member's log goes: the last epoch in its list, its end; and whether it may vote."""

    member: int
    last_epoch: int
    log_end: int
    votes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """What a failover that may lose comes to.

    Attributes:
        epoch: for which the member stands now; 0 where only was asked what would be.
        revision: of the group's record.
        answered: the members that answer, the one that is to lead first.
        missing: ids of the voters that do not.
        voters: ids of those that vote afterwards; empty where it can't be.
        committed: so much of the log is, as far as the member that is to lead was told.
        refusal: why it can't be; "" where it can.
    """

    epoch: int
    revision: int
    answered: tuple[MemberPosition, ...]
    missing: tuple[int, ...]
    voters: tuple[int, ...]
    committed: int
    refusal: str


def check_epoch(field: str, epoch: int) -> None:
    """Raise BadRequest unless an epoch may be that; 0 stands for none."""
    if not 0 <= epoch <= EPOCH_MAX:
        raise BadRequest(f"{field} {epoch}: an epoch is from 0 to {EPOCH_MAX}")


def check_member_id(field: str, member: int) -> None:
    """Raise BadRequest unless a member's id may be that; NOBODY stands for none."""
    if not NOBODY <= member <= MEMBER_MAX:
        raise BadRequest(f"{field} {member}: a member's id is from {NOBODY} to {MEMBER_MAX}")


def check_size(field: str, size: int) -> None:
    """Raise BadRequest unless it may be an offset of a log, or how much is in one."""
    if not 0 <= size <= LOG_END_MAX:
        raise BadRequest(f"{field} {size}: it is from 0 to {LOG_END_MAX}")


def check_uuid(field: str, uuid: str) -> None:
    """Raise BadRequest unless a text is a uuid of 32 hex digits; an empty one stands for none."""
    if uuid and not UUID.fullmatch(uuid):
        raise BadRequest(f"{field} {uuid[:40]!r}: a uuid has 32 hex digits, 0 to 9 and a to f")
