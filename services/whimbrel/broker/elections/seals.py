"""The seals of one candidacy: who leads by them. Pure.

    gathering --too few, or our own promise is not on disk yet--> gathering, and asks those that are missing
              --enough, and another log goes on further--> that member is let go first (R4)
              --enough, and one that goes on as far holds what waits--> that member is let go first (R22)
              --enough, and neither is so--> we lead (R2)
              --`SEALING_S` over--> given up

Enough are the voters that the record asks for, and as many prior ones (R10), each with the store that the
record names (R9a). The best log is the one that goes on furthest, by (last epoch, end). So whatever any
`acks` voters acknowledged is in the log of whoever leads, from where that begins.
"""

from typing import Final

from whimbrel.broker.elections.actions import ASK_APART_S, Action, AskSeals
from whimbrel.broker.elections.group_view import enough
from whimbrel.model.elections import SealAnswer
from whimbrel.model.group_record import NOBODY, GroupRecord

__all__ = ["SEALING_S", "Seals"]

SEALING_S: Final = 2.0  # then a candidate gives up
# For what waits nobody gives way to the same member again before: it may not be able to lead.
GIVE_WAY_APART_S: Final = 30.0


class Seals:
    """What voters have sealed for one member, which stands.

    Attributes:
        given: by member, in this candidacy; they stay until the next one begins.
        gave_way_at: to members, for what waits in their logs.
    """

    def __init__(self, member: int) -> None:
        self.member = member
        self.given: dict[int, SealAnswer] = {}
        self.asked_at = float("-inf")
        self.gave_way_at: dict[int, float] = {}

    @property
    def kept_elsewhere(self) -> dict[int, int]:
        """Of a leader: how many messages wait in logs of other members and not in its own, as far as it was
        told."""
        return {seal.member: seal.waiting_below for seal in self.given.values() if seal.waiting_below}

    def begin(self) -> None:
        """Nobody has sealed yet, or was asked to."""
        self.given, self.asked_at = {}, float("-inf")

    def ask(self, candidacy: GroupRecord, now: float) -> list[Action]:
        """Ask those that are missing, from time to time."""
        if now - self.asked_at < ASK_APART_S:
            return []
        self.asked_at = now
        missing = candidacy.members - self.given.keys() - {self.member}
        return [AskSeals(tuple(sorted(missing)), candidacy.epoch)]

    def note(self, seal: SealAnswer) -> None:
        """Take a seal of this candidacy."""
        self.given[seal.member] = seal

    def best(self, candidacy: GroupRecord, now: float) -> tuple[int, str]:
        """Return who is to lead, and why another one is; NOBODY: there are too few seals (R2, R4, R10)."""
        if self.member not in self.given or not self.sealed_by(candidacy):
            return NOBODY, ""
        best = max(
            (
                seal
                for seal in self.given.values()
                if seal.member == self.member
                or ((seal.votes or candidacy.waives) and candidacy.electable(seal.member, seal.seat))
            ),
            key=lambda seal: (seal.last_epoch, seal.log_end, seal.member == self.member),
        )
        if best.member != self.member:
            return best.member, f"the log of member {best.member} goes on further"
        if keeper := self.keeper(candidacy, best, now):
            self.gave_way_at[keeper] = now
            return keeper, f"member {keeper} has messages that wait, and this one has no more"
        return self.member, ""

    def keeper(self, candidacy: GroupRecord, ours: SealAnswer, now: float) -> int:
        """Return the member whose log goes on as far as ours, and holds most of what waits and is gone here
        (R22); NOBODY where none does, or was let go first lately and did not stand.

        Such a member's log begins before ours: no two give way to each other.
        """
        found = [
            (seal.waiting_below, seal.member)
            for seal in self.given.values()
            if seal.waiting_below
            and seal.votes
            and candidacy.electable(seal.member, seal.seat)
            and (seal.last_epoch, seal.log_end) == (ours.last_epoch, ours.log_end)
            and now - self.gave_way_at.get(seal.member, float("-inf")) >= GIVE_WAY_APART_S
        ]
        return max(found, default=(0, NOBODY))[1]

    def sealed_by(self, record: GroupRecord) -> bool:
        """Return whether enough voters, and enough of the prior ones, have sealed with their stores (R9a)."""
        return enough(
            record,
            {(member, seal.seat) for member, seal in self.given.items() if seal.votes or record.waives},
        )
