"""The record of a group that elects its leader: what a coordinator keeps of it, and nobody else decides.

It is changed by compare-and-set only: at elections, and by operators. As JSON, in one line:

    {"v": 1, "group": "<32 hex digits>", "epoch": 7, "leader": 2, "prefer": 0,
     "voters": {"1": "<seat, 32 hex digits>", "2": "...", "3": "..."}, "acks": 2,
     "prior": null | {"voters": {...}, "acks": 2}, "paused": false, "loss": 0, "out": [3],
     "history": [{"epoch": 7, "leader": 2, "at_ms": 1795253239000, "why": "member 1 is silent"}, ...]}

**Quorums.** `acks` copies commit a record, the leader's among them. An election needs `seals` of the voters:
so many that they meet each group of `acks` of them (rule R2 of `tests/models/rules.py`). While there are
`prior` voters an election needs seals of both (R10). After an operator has accepted `loss`, it needs the
seals of all voters, until enough of them have adopted an epoch (`broker/elections/accepted_loss.py`).

A seat is the uuid of a member's store: a voter whose store was replaced is none (R9a).
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from whimbrel.errors import BadRequest

__all__ = [
    "HISTORY_MAX",
    "MEMBER_MAX",
    "NOBODY",
    "RECORD_BYTES_MAX",
    "VOTERS_MAX",
    "GroupRecord",
    "Turn",
    "Voters",
    "check_change",
    "ids_text",
    "majority",
]

MEMBER_MAX: Final = 63  # member ids make the six bits that tell the serial numbers of leases apart
VOTERS_MAX: Final = 7
HISTORY_MAX: Final = 20
WHY_CHARS_MAX: Final = 200
RECORD_BYTES_MAX: Final = 16 * 1024
EPOCH_MAX: Final = (1 << 31) - 1  # an i32 in the replication stream
TIME_MAX: Final = (1 << 63) - 1
NOBODY: Final = 0  # no member has this id
VERSION: Final = 1
UUID: Final = re.compile("[0-9a-f]{32}")

Voters = tuple[tuple[int, str], ...]  # (member id, its seat), by id


@dataclass(frozen=True, slots=True)
class Turn:
    """An entry of the history: a leader took over.

    Attributes:
        at_ms: by the clock of the new leader, epoch milliseconds.
        why: for people.
    """

    epoch: int
    leader: int
    at_ms: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group's record.

    Attributes:
        group: uuid of the group.
        epoch: of the last candidate or leader.
        leader: who that is; NOBODY after it has resigned.
        prefer: whom the others let stand first after that; NOBODY: no one.
        voters: whose copies and seals count.
        acks: how many of them commit a record.
        prior, prior_acks: of before a change that is not yet done; empty and 0 without one.
        paused: an operator wants no elections.
        out: ids of voters that the leader has taken out, because they were away (`--copies-min`).
        loss: an operator has accepted a loss in this epoch, and the voters have adopted none since; 0: none.
        history: the newest turn first.
    """

    group: str
    epoch: int
    leader: int
    voters: Voters
    acks: int
    prefer: int = NOBODY
    prior: Voters = ()
    prior_acks: int = 0
    paused: bool = False
    loss: int = 0
    out: tuple[int, ...] = ()
    history: tuple[Turn, ...] = ()

    @property
    def seals(self) -> int:
        """How many voters must have sealed an election."""
        return len(self.voters) if self.loss else len(self.voters) - self.acks + 1

    @property
    def prior_seals(self) -> int:
        """How many of the prior voters, besides."""
        return len(self.prior) - self.prior_acks + 1 if self.prior else 0

    @property
    def members(self) -> frozenset[int]:
        """Ids of the voters and the prior ones."""
        return frozenset(member for member, _ in (*self.voters, *self.prior))

    @property
    def waives(self) -> bool:
        """Whether seals of this epoch count also of voters that may have lost what they acknowledged."""
        return self.loss == self.epoch

    def electable(self, member: int, seat: str) -> bool:
        """Return whether a member with that store may lead; a prior voter may as well (R10f)."""
        return (member, seat) in (*self.voters, *self.prior)

    def led_by(self, member: int, epoch: int, *, at_ms: int, why: str) -> "GroupRecord":
        """Return the record with which a candidate takes over; prior voters stay (R10c)."""
        plain = "".join(each if each.isascii() and each.isprintable() else "?" for each in why)
        turn = Turn(epoch, member, at_ms, plain[:WHY_CHARS_MAX])
        history = (turn, *self.history)[:HISTORY_MAX]
        return replace(self, epoch=epoch, leader=member, prefer=NOBODY, history=history)

    def resigned(self, prefer: int) -> "GroupRecord":
        """Return the record with which a candidate or leader lets another one go first."""
        return replace(self, leader=NOBODY, prefer=prefer)

    def encode(self) -> bytes:
        """Return the record as JSON."""
        prior = {"voters": named(self.prior), "acks": self.prior_acks} if self.prior else None
        fields = {
            "v": VERSION,
            "group": self.group,
            "epoch": self.epoch,
            "leader": self.leader,
            "prefer": self.prefer,
            "voters": named(self.voters),
            "acks": self.acks,
            "prior": prior,
            "paused": self.paused,
            "loss": self.loss,
            "out": list(self.out),
            "history": [
                {"epoch": turn.epoch, "leader": turn.leader, "at_ms": turn.at_ms, "why": turn.why}
                for turn in self.history
            ],
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "GroupRecord":
        """Take a record.

        Raises:
            BadRequest: it is none, of another version, or impossible.
        """
        if len(data) > RECORD_BYTES_MAX:
            raise BadRequest(f"a group's record of {len(data)} bytes: at most {RECORD_BYTES_MAX}")
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"a group's record is no JSON: {error}") from None
        if not isinstance(fields, dict) or fields.get("v") != VERSION:
            raise BadRequest(f"a group's record is not of version {VERSION}")
        prior = fields.get("prior") or {}
        if not isinstance(prior, dict) or not isinstance(fields.get("history", []), list):
            raise BadRequest("a group's record: prior or history is not what it should be")
        record = cls(
            group=text(fields, "group"),
            epoch=number(fields, "epoch", 1, EPOCH_MAX),
            leader=number(fields, "leader", NOBODY, MEMBER_MAX),
            prefer=number(fields, "prefer", NOBODY, MEMBER_MAX),
            voters=voters_of(fields.get("voters")),
            acks=number(fields, "acks", 1, VOTERS_MAX),
            prior=voters_of(prior.get("voters")) if prior else (),
            prior_acks=number(prior, "acks", 1, VOTERS_MAX) if prior else 0,
            paused=bool(fields.get("paused", False)),
            out=ids_of(fields.get("out", [])),
            loss=number(fields, "loss", 0, EPOCH_MAX) if "loss" in fields else 0,
            history=tuple(turn_of(turn) for turn in fields.get("history", []))[:HISTORY_MAX],
        )
        record.check()
        return record

    def check(self) -> None:
        """Refuse what no group can be.

        Raises:
            BadRequest: see the message.
        """
        if not UUID.fullmatch(self.group):
            raise BadRequest(f"a group's uuid has 32 hex digits, not {self.group[:40]!r}")
        for voters, acks in ((self.voters, self.acks), (self.prior, self.prior_acks)):
            if voters and not len(voters) // 2 < acks <= len(voters):
                raise BadRequest(
                    f"{acks} copies of {len(voters)} voters: more than half, and no more than all"
                )


def check_change(name: str, old: GroupRecord, new: GroupRecord) -> None:
    """Refuse a record that may not follow that one, whoever keeps it.

    The uuid never changes: members that were made for one group would follow another's leader. The epoch is
    never lowered: whoever has sealed a higher one would never follow.

    Args:
        name: of the group, for the message.

    Raises:
        BadRequest: it may not.
    """
    if new.group != old.group:
        raise BadRequest(f"group {name} has the uuid {old.group}, which never changes, and not {new.group}")
    if new.epoch < old.epoch:
        raise BadRequest(
            f"group {name} is in epoch {old.epoch}: a record of epoch {new.epoch} would lower it"
        )


def majority(voters: int) -> int:
    """Return how many copies are more than half."""
    return voters // 2 + 1


def ids_text(members: Collection[int]) -> str:
    """Return ids of members for people."""
    return ", ".join(map(str, sorted(members))) or "none"


def named(voters: Voters) -> dict[str, str]:
    """Return voters as they stand in JSON."""
    return {str(member): seat for member, seat in voters}


def voters_of(found: Any) -> Voters:
    """Return voters from JSON.

    Raises:
        BadRequest: they are none.
    """
    if not isinstance(found, dict) or not 0 < len(found) <= VOTERS_MAX:
        raise BadRequest(f"a group has one to {VOTERS_MAX} voters, each with its seat")
    voters = []
    for member, seat in found.items():
        if not (re.fullmatch("[0-9]{1,2}", member) and 0 < int(member) <= MEMBER_MAX):
            raise BadRequest(f"{member[:20]!r} is no id of a member: they are 1 to {MEMBER_MAX}")
        if not isinstance(seat, str) or not UUID.fullmatch(seat):
            raise BadRequest(f"the seat of member {member} is no uuid of 32 hex digits")
        voters.append((int(member), seat))
    if len(dict(voters)) < len(voters):
        raise BadRequest("a voter is named twice")
    return tuple(sorted(voters))


def ids_of(found: Any) -> tuple[int, ...]:
    """Return ids of members from JSON.

    Raises:
        BadRequest: they are none.
    """
    if not isinstance(found, list) or len(found) > MEMBER_MAX:
        raise BadRequest("a group's record: out is to be a list of members")
    if not all(isinstance(each, int) and 0 < each <= MEMBER_MAX for each in found):
        raise BadRequest(f"a group's record: members have ids from 1 to {MEMBER_MAX}")
    return tuple(sorted(set(found)))


def turn_of(found: Any) -> Turn:
    """Return an entry of the history from JSON.

    Raises:
        BadRequest: it is none.
    """
    if not isinstance(found, dict):
        raise BadRequest("an entry of a group's history is no object")
    return Turn(
        number(found, "epoch", 1, EPOCH_MAX),
        number(found, "leader", NOBODY, MEMBER_MAX),
        number(found, "at_ms", 0, TIME_MAX),
        text(found, "why")[:WHY_CHARS_MAX],
    )


def number(fields: dict[str, Any], name: str, least: int, most: int) -> int:
    """Return a number of a record.

    Raises:
        BadRequest: it is none, or out of bounds.
    """
    found = fields.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise BadRequest(f"a group's record: {name} is to be a number from {least} to {most}")
    return found


def text(fields: dict[str, Any], name: str) -> str:
    """Return a text of a record.

    Raises:
        BadRequest: it is none.
    """
    found = fields.get(name)
    if not isinstance(found, str):
        raise BadRequest(f"a group's record: {name} is to be a text")
    return found
