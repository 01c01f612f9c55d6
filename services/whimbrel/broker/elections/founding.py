"""The first record of a group: once all that are to vote have told their stores, the best log makes it. Pure.

    all stores are known, none belongs to a group, ours is the best log    the record that names us
    anything else                                                          a sentence: what is missing

It takes all of them: whoever is absent may have the log that goes on furthest. Of equal logs the one with the
lowest id makes it, so that one alone does. The record is elected as any other is: by seals.
"""

from collections.abc import Collection, Mapping

from whimbrel.broker.elections.actions import Facts
from whimbrel.model.elections import Suspicion
from whimbrel.model.group_record import GroupRecord, Voters, ids_text, majority

__all__ = ["first_record"]


def first_record(
    member: int, configured: Collection[int], answers: Mapping[int, Suspicion], facts: Facts
) -> tuple[str, GroupRecord | None]:
    """Return the first record of a group, with which a member leads, or why that does not make it.

    Args:
        member: that would make it.
        configured: ids of those that are to vote, its own among them.
        answers: of those that have answered it, and may be others.
        facts: what it knows of itself.
    """
    known = {other: answer for other, answer in answers.items() if other in configured}
    missing = {*configured} - {member} - known.keys()
    foreign = [answer for answer in known.values() if answer.group]
    if not facts.seat:
        return "the group is made once the replicator of this member is there", None
    if foreign:
        return f"member {foreign[0].member} belongs to group {foreign[0].group} already", None
    if missing or not all(answer.seat for answer in known.values()):
        return f"the group is made once all its members are there; missing: {ids_text(missing)}", None
    best = max(
        ((answer.last_epoch, answer.log_end, -other) for other, answer in known.items()), default=(-1, -1, 0)
    )
    if (*facts.position, -member) <= best:
        return f"member {-best[2]} is to make the group: its log goes on furthest", None
    seats = {other: answer.seat for other, answer in known.items()} | {member: facts.seat}
    voters: Voters = tuple(sorted(seats.items()))
    epoch = max(facts.promised, facts.last_epoch, *(answer.last_epoch for answer in known.values()), 0) + 1
    record = GroupRecord(
        group=group_of(voters), epoch=epoch, leader=member, voters=voters, acks=majority(len(voters))
    )
    return "", record.led_by(member, epoch, at_ms=facts.wall_ms, why="the group was made")


def group_of(voters: Voters) -> str:
    """Return the uuid of a group that is made of these stores, which have uuids of their own."""
    mixed = 0
    for member, seat in voters:
        mixed = (mixed * 1_000_003 + member * 0x9E3779B97F4A7C15 + int(seat, 16)) % (1 << 128)
    return f"{mixed:032x}"
