"""Whether a leader reaches anybody: its broker may be cut off alone, while its replicator is not. Pure.

    in touch --for `ISOLATED_S` nobody has answered, and `CONTACTS` rounds were asked in it--> isolated
    isolated --one answer of anybody, a refusal too--> in touch

Followers hear a leader's replicator, which may be on another host or in another container than the broker:
while the broker alone is cut off they would hear a leader that no client reaches. So a leader asks all other
members every `CONTACT_APART_S`, and the coordinator too once none of them has answered. Isolated, it tells no
follower that it leads: its replicator ends the streams, and the others elect. It leads on until they have. A
coordinator that is away costs no leader whose members answer, members that are away none whose coordinator
does; where all are away nobody could be elected, and little be committed. What is safe does not depend on it:
without streams it only commits nothing.
"""

from typing import Final

from whimbrel.broker.elections.actions import Action, AskSuspicions, ReadRecord, StopStream

__all__ = ["ISOLATED", "Contact"]

ISOLATED: Final = (
    "neither the coordinator nor another member answers: it lets the others elect a leader, and leads on"
    " until they have"
)

# Between two rounds of questions of a leader that only has to know whether it reaches anybody.
CONTACT_APART_S: Final = 0.4
ISOLATED_S: Final = 1.2  # without an answer of anybody; more than the second by which a busy machine is late
CONTACTS: Final = 3  # rounds without an answer, too: a broker that has slept itself has not asked


class Contact:
    """Who answers a leader.

    Attributes:
        isolated: nobody does.
        reached_at: when somebody answered last.
        unanswered: rounds of questions since.
    """

    def __init__(self) -> None:
        self.isolated = False
        self.reached_at = self.asked_at = float("-inf")
        self.unanswered = 0

    def begin(self, now: float) -> None:
        """It leads from now on, and has just been heard."""
        self.reached_at, self.unanswered, self.isolated = now, 0, False

    def look(self, others: tuple[int, ...], now: float) -> list[Action]:
        """Ask whether any of the others answers, from time to time; `StopStream` comes once isolated."""
        if not others:
            return []
        actions: list[Action] = []
        if not self.isolated and self.unanswered >= CONTACTS and now - self.reached_at >= ISOLATED_S:
            self.isolated = True
            actions.append(StopStream())
        if now - self.asked_at >= CONTACT_APART_S:
            actions.append(AskSuspicions(others))
            if self.unanswered:
                actions.append(ReadRecord())
            self.asked_at, self.unanswered = now, self.unanswered + 1
        return actions

    def reached(self, now: float) -> bool:
        """A member or the coordinator has answered; return whether it was isolated."""
        was, self.isolated = self.isolated, False
        self.reached_at, self.unanswered = now, 0
        return was
