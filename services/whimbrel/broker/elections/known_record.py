"""What a group's record may be where the coordinator takes whatever is put: etcd, Kubernetes. Pure.

A nameserver checks a record when it is swapped (`check_change`). These do not; so it is checked here before a
swap, against the record of that very revision, which the coordinator's comparison makes sure of. And what
stands is taken only if it may follow what was known:

    what stands                                                 then
    a record of a later revision, which may follow              taken
    no record, too long, of another group, of a lower epoch     refused with a sentence; nobody is elected
    nothing, though a record was known when it was asked for    the same
    one of an earlier revision than was known then,             the same: the coordinator was restored from a
    or another one of the same revision                         backup

What was known is forgotten when the process ends. What is safe never depends on it: members promise no epoch
that is not above those which they have promised, on their disks.
"""

from typing import Final

from whimbrel.errors import BadRequest, NotReady
from whimbrel.model.coordinators import RESTORED
from whimbrel.model.group_record import GroupRecord, check_change

__all__ = ["KnownRecord"]

PUT_BACK: Final = "put the group's newest record back there, as docs/failover.md says"


class KnownRecord:
    """A group's record as it was told last.

    Attributes:
        record: None before there was one.
        revision: of it; 0 before.
    """

    def __init__(self, group: str, where: str) -> None:
        """Take the group's name, and where its record is kept, as in "what stands under WHERE"."""
        self.group, self.where = group, where
        self.record: GroupRecord | None = None
        self.revision = 0

    def check_swap(self, record: GroupRecord) -> None:
        """Refuse a record that may not take the place of the one that is known.

        Raises:
            BadRequest: it may not.
        """
        if self.record is not None:
            check_change(self.group, self.record, record)

    def take(self, value: bytes | None, revision: int, before: int) -> tuple[GroupRecord | None, int]:
        """Return the record that stands, and its revision; None and 0 where there is none yet.

        Args:
            value: as it is kept; None where nothing is.
            before: the revision that was known when it was asked for.

        Raises:
            NotReady: it can't be the group's record.
        """
        if value is None:
            if before:
                raise NotReady(f"there is no {self.where} any more: somebody has removed it; {PUT_BACK}")
            return None, 0
        if revision < before:
            raise NotReady(
                f"{self.where} has the group's record of revision {revision}, and one of {before} was seen:"
                f" {RESTORED}"
            )
        try:
            record = GroupRecord.decode(value)
            if revision > self.revision:
                self.check_swap(record)
        except BadRequest as error:
            raise NotReady(
                f"what stands under {self.where} can't be the group's record, so somebody else has written it"
                f" ({error}): {PUT_BACK}"
            ) from None
        if revision == self.revision and record != self.record:
            raise NotReady(f"{self.where} has two records of revision {revision}: {RESTORED}")
        if revision > self.revision:
            self.record, self.revision = record, revision
        return record, revision
