"""What a member knows of its group: the record as the coordinator has told it last, and epochs. Pure.

    nothing told (-1) ──there is no record──► none (0) ──a record──► known ──one of a later revision──► known

A record that is gone from the coordinator stays known: nobody is elected by what was put in its place. Two
kinds of epochs are kept apart: the record's, which has stood where all candidates compare and set, and the
highest that anybody has named. What others say raises ours by no more than `EPOCH_STEP_MAX` beyond the
record's.
"""

from collections.abc import Collection
from typing import Final

from whimbrel.model.group_record import NOBODY, GroupRecord

__all__ = ["EPOCH_STEP_MAX", "GroupView", "enough"]

# What others say of epochs raises ours by no more at a time. Each epoch stands in the record before anybody
# promises it, so only the record of a coordinator that was set back is further behind.
EPOCH_STEP_MAX: Final = 1000


class GroupView:
    """What one member knows of its group.

    Attributes:
        member: its id.
        record, revision: as the coordinator has told last; None and -1 before it has.
        known_epoch: the highest that was heard of.
        preferred_at: when the record began to prefer another member.
        named_at: when it began to name another leader, since we know it.
    """

    def __init__(self, member: int) -> None:
        self.member = member
        self.record: GroupRecord | None = None
        self.revision, self.known_epoch = -1, 0
        self.preferred_at = self.named_at = float("-inf")

    @property
    def others(self) -> tuple[int, ...]:
        """Ids of the voters and prior ones besides this member."""
        return () if self.record is None else tuple(sorted(self.record.members - {self.member}))

    def told(self, record: GroupRecord | None, revision: int, now: float) -> bool:
        """Take what the coordinator has told; return whether it is a record that was not known."""
        before = self.record
        if record is None:
            self.revision = max(self.revision, 0)
        if record is None or (before is not None and revision <= self.revision):
            return False
        self.record, self.revision = record, revision
        self.known_epoch = max(self.known_epoch, record.epoch)
        if before is None or (before.epoch, before.prefer) != (record.epoch, record.prefer):
            self.preferred_at = now
        if before is not None and before.epoch < record.epoch and record.leader not in (NOBODY, self.member):
            self.named_at = now
        return True

    def note_epoch(self, epoch: int) -> None:
        """Note an epoch that somebody else has named."""
        known = 0 if self.record is None else self.record.epoch
        self.known_epoch = max(self.known_epoch, min(epoch, known + EPOCH_STEP_MAX))

    def plausible(self, epoch: int, last_epoch: int) -> bool:
        """Whether an epoch may be true that the coordinator has not confirmed.

        A promise stays on the disk, and there are only so many epochs: a stranger must not use them up.

        Args:
            last_epoch: the last one in our log, which counts while there is no record.
        """
        known = last_epoch if self.record is None else self.record.epoch
        return epoch <= known + EPOCH_STEP_MAX


def enough(record: GroupRecord, stores: Collection[tuple[int, str]]) -> bool:
    """Return whether an election can succeed by these members, with their seats: enough are voters, and
    enough prior ones (R9a, R10)."""
    voters = sum(voter in stores for voter in record.voters)
    prior = sum(voter in stores for voter in record.prior)
    return voters >= record.seals and prior >= record.prior_seals
