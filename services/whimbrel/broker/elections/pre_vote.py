"""Whether a member stands for election: it hears no leader, and enough others hear none either. Pure.

    heard  --silent for `silent_s`, gone by all nameservers, or resigned--> it asks all others (`Suspect`)
    asking --one of them leads, or we hear one again--> heard
           --enough are silent, and none of them is better--> it stands

It has heard no leader for `silent_s`, which differs by member so that two seldom stand at once, while those
whom it asks agree after `LEAST_SILENT_S`; or its stream has ended and no nameserver knows of a leader any
more, which is so within milliseconds of a kill; or the record says that the leader has resigned. In the last
two cases it gives a member that it has just promised itself to `OPENING_S` to open its log; so it does with
one that the record has just named, which may need nobody's promise but its own: of two voters each can lead
without having asked the other, and they would take the lead from each other for ever.

Enough of the others must be silent as well, so that a member which alone is cut off disturbs nobody; only
those count whose seals would. One with a better log is left to stand itself, for `BETTER_S`.

A member whose record or promise is not to be had, whose store is no voter's, or which may have lost what it
acknowledged (R9), never stands. What it answers to `Seal` then does not count, but it promises all the same.
"""

from collections.abc import Collection
from typing import Final

from whimbrel.broker.elections.actions import ASK_APART_S, Action, AskSuspicions, Facts
from whimbrel.broker.elections.group_view import GroupView, enough
from whimbrel.model.elections import Suspicion
from whimbrel.model.group_record import NOBODY, GroupRecord

__all__ = ["PreVote", "silent_s"]

SILENT_S: Final = 2.5  # without a frame of a leader, which sends one every half second
SPREAD: Final = 0.2  # of it, more or less, by member
# Who is asked agrees after the shortest of these times: only who asks has waited for its own. Else the
# slowest of those that an election needs would decide when it begins.
LEAST_SILENT_S: Final = SILENT_S * (1 - SPREAD)
LED_S: Final = 2.0  # a member that hears no leader asks again so long after the leader said that it leads
BETTER_S: Final = 1.5  # a member with a better log is given so long to stand
PREFER_S: Final = 2.0  # as is the one that a candidate which resigned let go first
OPENING_S: Final = 2.0  # a member that we have promised ourselves to opens its log in so long


def silent_s(member: int) -> float:
    """Return how long a member hears no leader before it stands, in seconds."""
    return SILENT_S * (1 - SPREAD + 2 * SPREAD * (member * 5 % 11) / 10)


class PreVote:
    """What one member hears of a leader, and what the others have answered that it has asked.

    Attributes:
        quiet_since: what was heard before counts as heard then.
        sealed_at: when we promised ourselves to another member.
        suspicions: what members have answered, in this round.
    """

    def __init__(self, view: GroupView) -> None:
        self.view = view
        self.quiet_since = self.sealed_at = self.asked_at = float("-inf")
        self.suspicions: dict[int, Suspicion] = {}

    def hear(self, at: float) -> None:
        """Count silence from then on."""
        self.quiet_since = at

    def led(self, now: float) -> None:
        """A member has said that it leads: silence is long enough in `LED_S`."""
        self.quiet_since = now - silent_s(self.view.member) + LED_S

    def sealed(self, now: float) -> None:
        """We promise ourselves to another member, and give it time to open its log."""
        self.sealed_at = now

    def silent(self, facts: Facts, *, asked: bool) -> str:
        """Return why a member that does not lead hears no leader; "" while there is, or may be, one.

        Args:
            asked: by another member, which has waited for as long as it waits itself.
        """
        view, record, now = self.view, self.view.record, facts.now
        if record is None:
            return "there is no record of the group"
        # Since then nobody else is heard: who was heard has opened its log.
        promised_lately = now - self.sealed_at < OPENING_S and facts.heard_at <= self.sealed_at
        named_lately = now - view.named_at < OPENING_S and facts.heard_at <= view.named_at
        if record.leader == NOBODY and (record.epoch >= facts.promised or not promised_lately):
            return "the leader has resigned"
        if not facts.connected and facts.leaderless and not promised_lately and not named_lately:
            return f"member {record.leader} is gone"
        quiet = now - max(facts.heard_at, self.quiet_since)
        # A leader that is new, and was not heard yet, may take longer on a busy machine.
        heard = facts.heard_at >= view.preferred_at and facts.heard_at > self.sealed_at
        enough_s = LEAST_SILENT_S if asked and heard else silent_s(view.member)
        return f"member {record.leader} is silent for {quiet:.1f} s" if quiet >= enough_s else ""

    def barred(self, record: GroupRecord, facts: Facts, *, emptying: bool) -> str:
        """Return why a member may not lead at all; "" where it may.

        Args:
            emptying: its store is being emptied.
        """
        member = self.view.member
        bars = (
            (
                facts.group not in ("", record.group),
                f"this store belongs to group {facts.group}, the coordinator's record is of {record.group}",
            ),
            (
                not record.electable(member, facts.seat),
                f"the store of member {member} is not the one that votes: it only follows",
            ),
            (emptying, "its store is being emptied"),
            (
                not facts.votes,
                "this member may have lost what it acknowledged: it votes again once it has all that is"
                " committed",
            ),
            (record.paused, "elections are paused"),
        )
        return next((why for bar, why in bars if bar), "")

    def yields(self, record: GroupRecord, now: float) -> bool:
        """Whether another member is let stand first."""
        return record.prefer not in (NOBODY, self.view.member) and now - self.view.preferred_at < PREFER_S

    def begin(self) -> None:
        """Nobody was asked yet."""
        self.suspicions, self.asked_at = {}, float("-inf")

    def ask(self, members: Collection[int], now: float) -> list[Action]:
        """Ask members what they hear, from time to time."""
        if now - self.asked_at < ASK_APART_S:
            return []
        self.asked_at = now
        return [AskSuspicions(tuple(sorted(members)))]

    def note(self, answer: Suspicion) -> bool:
        """Take an answer; return whether it is the leader's, which says that it leads."""
        record = self.view.record
        self.suspicions[answer.member] = answer
        return (
            record is not None
            and answer.member == record.leader
            and not answer.silent
            and answer.epoch >= record.epoch
        )

    def succeeds(self, record: GroupRecord, facts: Facts, since: float) -> bool:
        """Return whether enough hear no leader of those whose seals count, and nobody is to be waited for.

        One whose seal does not count would have it stand in vain, and again and again: each time the record
        changes, and an operator who is to accept a loss meets another one than the one that was shown.

        Args:
            since: when it began to ask.
        """
        member, answers = self.view.member, self.suspicions.items()
        quiet = {(other, answer.seat) for other, answer in answers if answer.silent and answer.votes}
        # A leader whose stream is there, and that hears none either, lets others lead: it does not stand.
        yielding = record.leader if facts.connected else NOBODY
        better = any(
            answer.votes
            and other != yielding
            and record.electable(other, answer.seat)
            and (answer.last_epoch, answer.log_end) > facts.position
            for other, answer in answers
        )
        waits = better and facts.now - since < BETTER_S and record.prefer != member
        return not waits and enough(record, quiet | {(member, facts.seat)})
