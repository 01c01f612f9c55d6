"""The record with which a member leads after an operator has accepted a loss. Pure.

An operator may accept loss where no election can succeed any more: too many disks are gone, or too many may
have lost what they acknowledged; or where one can, but a change of the voters can't end any more, since too
few of the new ones are left to commit: one whose disk was lost again, of two. The member that is named asks
all others; the best log of all that answer leads, in a new epoch whose record names as voters those that
answered, without prior ones, and says in which epoch that was (`loss`). The seals of that very epoch count,
and give back the vote, also where a member may have lost something (R9): what that is, is accepted. One that
may have lost something since does not vote, as ever (R14d), and an operator may have to say it again.

As long as the record's `loss` stands, an election needs the seals of all its voters (R14), and takes the best
log among them, so no more is given up than was. The leader has it cleared once enough of them have adopted
its epoch (R14c, `leadership.py`); from then on any `seals` of them meet those.

What this may lose: voters 1, 2, 3; member 1 leads, 2 acknowledges r, both lose power, and 3 is made the
leader with an empty log: r was answered and is gone. And worse: 1 and 2 were only cut off from 3, and go on
to commit in their epoch until one of them hears of the new one: all of that is cut off as they follow. The
rules are safe for what the members that answered hold, if the others are really gone, and that is why a
person has to say so. The others are no voters any more, whatever they have promised, until `voters --set`
names them; as they follow they cut what the new leader lacks, which is kept (`replication cut`).
"""

from collections.abc import Collection
from dataclasses import replace

from whimbrel.broker.elections.actions import Facts
from whimbrel.broker.elections.group_view import enough
from whimbrel.model.elections import Suspicion
from whimbrel.model.group_record import GroupRecord, ids_text, majority

__all__ = ["record_with_loss"]


def record_with_loss(
    record: GroupRecord,
    member: int,
    answers: dict[int, Suspicion],
    chosen: Collection[int],
    facts: Facts,
    known_epoch: int,
) -> tuple[str, GroupRecord | None]:
    """Return the record with which a member would lead without those that do not answer, or why it can't.

    Args:
        record: of the group, as it is.
        member: that was named, and is to lead.
        answers: of all other members that answer.
        chosen: ids of those that are to vote, that member's among them; empty: of all voters that answer.
        facts: what that member knows of itself.
        known_epoch: the highest that it has heard of.
    """
    seats = {other: answer.seat for other, answer in answers.items() if answer.group == record.group}
    seats[member] = facts.seat
    voting = {(other, answer.seat) for other, answer in answers.items() if answer.votes}
    if facts.votes:
        voting.add((member, facts.seat))
    # Too few of the new voters are left to commit: the change never ends, and another one has to wait.
    unfinished = bool(record.prior or record.loss) and (
        len(set(seats.items()).intersection(record.voters)) < record.acks
    )
    if not unfinished and enough(record, voting):
        return "enough voters are there: they elect a leader by themselves, without loss", None
    last_epoch, end, best = max(
        ((answers[other].last_epoch, answers[other].log_end, other) for other in seats.keys() & answers),
        default=(0, 0, member),
    )
    if (last_epoch, end) > facts.position:
        return (
            f"the log of member {best} goes on further, to byte {end} in epoch {last_epoch}; ours ends at"
            f" {facts.end} in epoch {facts.last_epoch}: name that member instead",
            None,
        )
    voters = set(chosen) or (seats.keys() & record.members) | {member}
    if absent := voters - seats.keys():
        return f"member {ids_text(absent)} does not answer, or has no store of this group", None
    if member not in voters:
        return f"member {member} is to lead, so it has to be one of the voters", None
    epoch = max(record.epoch, facts.promised, known_epoch, facts.last_epoch) + 1
    changed = replace(
        record,
        voters=tuple(sorted((voter, seats[voter]) for voter in voters)),
        acks=majority(len(voters)),
        prior=(),
        prior_acks=0,
        loss=epoch,
    )
    why = "an operator accepted what the others may hold to be lost"
    return "", changed.led_by(member, epoch, at_ms=facts.wall_ms, why=why)
