"""What a leader has the coordinator change in the group's record: voters, prior ones, itself. Pure.

    nothing under way --an operator names voters, or one was away for `OUT_S`--> a change is to be taken
    to be taken       --the coordinator takes it--> the log is given back, and both sets seal the new epoch
                      --it takes another record--> nothing under way
    prior voters      --enough of the new ones have adopted the epoch--> forgotten (R10e, R14c)
    any               --the replicator is gone for `REPLICA_GONE_S`, or we are no voter--> it resigns
                      --the record names another leader or epoch--> deposed

**Voters change** by a new epoch of the leader's, whose record keeps the prior ones (R10). It gathers seals of
both, and has the prior ones forgotten once enough of the new ones have adopted its epoch (`Facts.adopted`): a
commit offset that it brought along says nothing of them. Until then nothing else changes.

Where `copies_min` says so, it takes a voter out that has been away for `OUT_S`, one at a time, by such a
change: as long as `copies_min` copies still commit, and enough of the present voters are there to seal it. So
the survivor of two goes on alone: it has all that both had committed. The other one follows when it is back,
and an operator makes it a voter again.
"""

from dataclasses import replace
from typing import Final

from whimbrel.broker.elections.actions import Action, Facts, Swap
from whimbrel.broker.elections.group_view import GroupView
from whimbrel.model.group_record import NOBODY, GroupRecord, Voters, majority

__all__ = ["Leadership"]

OUT_S: Final = 15.0  # a voter that is away for so long may be taken out
REPLICA_GONE_S: Final = 1.0  # a leader resigns whose replicator is away for longer than a restart takes


class Leadership:
    """What one member wants changed while it leads.

    Attributes:
        copies_min: voters that are away are taken out while so many copies still commit; 0: never.
        change: the record of an epoch of ours which the coordinator is to take; it has other voters.
        replica_at: when the replicator beside was there last.
        present_at: when members were connected last.
    """

    def __init__(self, view: GroupView, copies_min: int) -> None:
        self.view, self.copies_min = view, copies_min
        self.change: GroupRecord | None = None
        self.began_at = self.replica_at = self.asked_at = float("-inf")
        self.present_at: dict[int, float] = {}

    def begin(self, now: float, asked_at: float) -> None:
        """It leads from now on.

        Args:
            asked_at: when it asked for a seal last; it asks the coordinator for nothing just after that.
        """
        self.began_at = self.replica_at = now
        self.asked_at, self.present_at = asked_at, {}

    def tick(self, facts: Facts, *, isolated: bool) -> list[Action]:
        """Return what is wanted now.

        Args:
            isolated: it has ended the streams.
        """
        return self.look_at_replica(facts) or self.forget_prior(facts) or self.take_out(facts, isolated)

    def look_at_replica(self, facts: Facts) -> list[Action]:
        """Resign where the replicator beside is gone: nothing can be committed without it.

        It leads on until the coordinator has taken that: without the coordinator nobody else could.
        """
        if facts.seat:
            self.replica_at = facts.now
        record, gone_s = self.view.record, facts.now - self.replica_at
        if gone_s < REPLICA_GONE_S or facts.now - self.asked_at < REPLICA_GONE_S or record is None:
            return []
        self.asked_at = facts.now
        return [Swap(record.resigned(NOBODY), self.view.revision)]

    def forget_prior(self, facts: Facts) -> list[Action]:
        """Have the prior voters forgotten once enough of the new ones have adopted the epoch (R10e).

        The same for what an operator has accepted.
        """
        view, record = self.view, self.view.record
        if record is None or not facts.seat or facts.now - self.asked_at < REPLICA_GONE_S:
            return []
        votes = (view.member, facts.seat) in record.voters
        pending = bool(record.prior or record.loss)
        if pending and facts.adopted + votes >= record.acks:
            record = replace(record, prior=(), prior_acks=0, loss=0)
        elif not pending and not votes:  # it was a prior voter, and the best log (R10f)
            record = record.resigned(NOBODY)
        else:
            return []
        self.asked_at = facts.now
        return [Swap(record, view.revision)]

    def take_out(self, facts: Facts, isolated: bool) -> list[Action]:
        """Have a voter vote no longer that has been away for long, where that is wanted."""
        record, now = self.view.record, facts.now
        if record is not None and isolated:  # nobody is said to be away
            self.present_at |= dict.fromkeys(record.members, now)
        self.present_at |= dict.fromkeys(facts.present, now)
        if not self.copies_min or record is None or self.change is not None or record.paused:
            return []
        if record.prior or record.loss or not facts.seat or now - self.asked_at < REPLICA_GONE_S:
            return []
        there = facts.present | {self.view.member}
        away = [
            (now - self.present_at.get(member, self.began_at), member)
            for member, _ in record.voters
            if member not in there
        ]
        away_s, member = max(away, default=(0.0, NOBODY))
        rest = tuple(voter for voter in record.voters if voter[0] != member)
        if away_s < OUT_S or majority(len(rest)) < self.copies_min:
            return []
        if len(there.intersection(dict(record.voters))) < record.seals:
            return []  # nobody would lead
        self.asked_at = now
        out = tuple(sorted({*record.out, member}))
        why = f"member {member} was away for {away_s:.0f} s"
        return self.name_voters(replace(record, out=out), rest, why, facts)

    def change_voters(self, record: GroupRecord, voters: Voters, facts: Facts) -> tuple[str, list[Action]]:
        """Have other members vote.

        Args:
            record: of the group, as it is.

        Returns:
            Why that is not to be, "" where it is or nothing changes; and what is to be done.
        """
        if record.prior or record.loss:
            return "the last change of the voters is not done yet", []
        if (self.view.member, facts.seat) not in voters:
            return f"member {self.view.member} leads: have another one lead first", []
        if voters == record.voters:
            return "", [Swap(replace(record, out=()), self.view.revision)] * bool(record.out)
        return "", self.name_voters(replace(record, out=()), voters, "the voters change", facts)

    def name_voters(self, record: GroupRecord, voters: Voters, why: str, facts: Facts) -> list[Action]:
        """Have the coordinator take a record with other voters, in a new epoch of ours."""
        changed = replace(
            record, voters=voters, acks=majority(len(voters)), prior=record.voters, prior_acks=record.acks
        )
        epoch = max(record.epoch, self.view.known_epoch) + 1
        return self.wants(changed.led_by(self.view.member, epoch, at_ms=facts.wall_ms, why=why))

    def wants(self, change: GroupRecord) -> list[Action]:
        """Have the coordinator take a record of a new epoch of ours."""
        self.change = change
        return [Swap(change, self.view.revision)]

    def deposed(self, epoch: int) -> str:
        """Return why we lead that epoch no longer, by the record; "" while it names us in it."""
        record = self.view.record
        if record is None or (record.epoch, record.leader) == (epoch, self.view.member):
            return ""
        if record == self.change:
            return "the voters change"
        self.change = None
        if record.leader == NOBODY:
            return "it has resigned"
        return f"the coordinator names member {record.leader} in epoch {record.epoch}"

    def settled(self, record: GroupRecord | None) -> None:
        """The coordinator has answered with that record: no other change is to be taken any more."""
        if record != self.change:
            self.change = None

    def end(self) -> GroupRecord | None:
        """Nothing is to be taken any more; return what was."""
        change, self.change = self.change, None
        return change
