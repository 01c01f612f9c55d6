"""What a leader's clients are told of changes beside the log, once a majority has them. Pure.

    change ──► own disk ────────────┐
           └─► members' disks ──────┴─► `reached`: up to which number so many voters hold all changes
    answer ──► waits for the number of the last change that it may depend on ──► leaves

There are two of these at an elected leader: one for leases (acknowledgements, positions, ordered takes), one
for metadata (topics, groups, where deleted queues ended). Changes have numbers, from 1 on, which is the whole
state as the leader began with it.

**What counts.** A report of a voter, by its store's uuid, over the newest stream of that member, which it has
opened in the leader's epoch: it had promised that epoch before (`LeaderState.hello`). So whoever seals a
later epoch, and then hands its state over, has in it all that it ever reported (Q1). A report of a stream
that was opened before that promise can't count, since the leader of the later epoch has a stream of its own
and a member has one at a time (Q2).

**Every answer waits for all changes so far**, also where the call itself changes nothing: a message that is
acknowledged again is done already, perhaps here only (Q3).

**Nothing waits for ever.** After `timeout_s` an answer is an error that says that the effect is unknown, and
when the leader stops it is, too. No more than `WAITING_MAX` wait.

*Claim.* What was answered is in the state of every later leader. The answer in epoch e was stored by `copies`
voters; a later leader waits for the states of so many members that these sets meet (`leader_state.py`), and
whoever is in both handed its state over after it had stored the change, since it takes no part in e after it
has promised a later epoch. States only grow together (`consume/leases.py`), and of metadata the newest
version wins, which is no older.
"""

import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from whimbrel.broker.produce.commit import commit_offset
from whimbrel.deferred import Deferred
from whimbrel.errors import NotStored, Throttled, WhimbrelError

__all__ = ["WAITING_MAX", "StateQuorum"]

WAITING_MAX: Final = 100_000  # answers; each client has few calls under way


class ParkedAcks(Protocol):
    """Answers that the compiled lane keeps (`lane/parked_answers.py`), by the numbers that they wait for."""

    def __len__(self) -> int: ...
    def settle(self, reached: int) -> None:
        """Answer those that wait for no more."""

    def hand_over(self, before: float) -> None:
        """Have those wait here (`StateQuorum.wait`) that were parked before a time."""


class StateQuorum:
    """Counts copies of one kind of state, and holds answers back.

    Attributes:
        reached: the number up to which enough voters have all changes; 0 before they have anything.
        answered: how many answers have waited and left.
        expired: how many have waited in vain.
        parked: what the lane keeps; None where it keeps nothing.
    """

    def __init__(
        self,
        what: str,
        *,
        others: Collection[int],
        copies: int,
        newest: Callable[[], int],
        own: Callable[[], int],
        clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        """Begin with nothing.

        Args:
            what: is changed, for people.
            others: ids of the voters besides this member.
            copies: how many voters must hold a change. This member counts as one, with what is on its disk;
                one that does not vote counts not (`own` is 0 then).
            newest: returns the number of the last change.
            own: returns up to which number all is on our disk; -1 while that is not known.
            clock: seconds of a clock that never goes back.
            timeout_s: how long an answer waits.
        """
        self.what, self.others, self.copies = what, frozenset(others), copies
        self.newest, self.own, self.clock, self.timeout_s = newest, own, clock, timeout_s
        self.ends: dict[int, int] = {}
        self.waiting: deque[tuple[int, float, Deferred[Any], Any]] = deque()
        self.reached = self.answered = self.expired = 0
        self.on_reached: Callable[[], None] | None = None
        self.parked: ParkedAcks | None = None
        self.closed: WhimbrelError | None = None

    def stored(self, member: int, number: int) -> None:
        """Take a voter's report: it has all changes up to that number on its disk."""
        if member in self.others and self.ends.get(member, 0) < number <= self.newest():
            self.ends[member] = number
            self.advance()

    def left(self, member: int) -> None:
        """Forget a member's reports: its stream is over, and its store may be another one next time."""
        self.ends.pop(member, None)

    def holders(self, number: int) -> list[int]:
        """Return the voters besides this member that have all up to a number."""
        return [member for member, end in self.ends.items() if end >= number]

    def advance(self) -> None:
        """See how far enough voters are, and let the answers go that wait for no more."""
        own = self.own()
        if own < 0:
            return
        reached = commit_offset([own, *self.ends.values()], self.copies)
        if reached <= self.reached:
            return
        self.reached = reached
        waiting = self.waiting
        while waiting and waiting[0][0] <= reached:
            _, _, deferred, answer = waiting.popleft()
            self.answered += 1
            if isinstance(answer, WhimbrelError):
                deferred.fail(answer)
            else:
                deferred.complete(answer)
        if self.parked is not None:
            self.parked.settle(reached)
        if self.on_reached is not None:
            self.on_reached()

    @property
    def waiting_count(self) -> int:
        """How many answers wait, here and in the lane."""
        return len(self.waiting) + (0 if self.parked is None else len(self.parked))

    @property
    def room(self) -> int:
        """How many more may wait; 0 once this is closed."""
        return 0 if self.closed is not None else max(WAITING_MAX - self.waiting_count, 0)

    @property
    def behind(self) -> bool:
        """Whether there are changes that too few voters have."""
        return self.newest() > self.reached

    def hold(self, answer: Any) -> Any:
        """Return an answer, or a deferred for when enough voters have all changes so far.

        Args:
            answer: what is to be answered: a message, or an error that says what is there already.

        Raises:
            WhimbrelError: that error, where nothing is to be waited for; or too many wait, or the leader
                stops: whether the call has an effect is not known.
        """
        number = self.newest()
        if self.closed is not None:
            raise self.closed
        if number <= self.reached:
            if isinstance(answer, WhimbrelError):
                raise answer
            return answer
        if not self.room:
            raise Throttled(f"{WAITING_MAX} answers wait for a majority to store {self.what} already")
        deferred: Deferred[Any] = Deferred()
        self.waiting.append((number, self.clock() + self.timeout_s, deferred, answer))
        return deferred

    def wait(self, number: int, since: float, answer: Any) -> Deferred[Any]:
        """Return a deferred for an answer that the lane had parked; older and newer ones may wait here.

        Args:
            number: of the last change that it waits for.
            since: when it was parked.
            answer: a message.
        """
        deferred: Deferred[Any] = Deferred()
        deadline = since + self.timeout_s
        if number <= self.reached:
            deferred.complete(answer)
        elif self.closed is not None:
            deferred.fail(self.closed)
        elif deadline <= self.clock():
            self.expired += 1
            deferred.fail(self.late())
        else:
            newer = []
            while self.waiting and self.waiting[-1][:2] > (number, deadline):
                newer.append(self.waiting.pop())
            self.waiting.append((number, deadline, deferred, answer))
            self.waiting.extend(reversed(newer))
        return deferred

    def hold_later(self, made: Deferred[Any]) -> Deferred[Any]:
        """Return a deferred for an answer that is still to be made, and waits then."""
        held: Deferred[Any] = Deferred()

        def first_over() -> None:
            if made.error is not None:
                held.fail(made.error)
                return
            try:
                found = self.hold(made.result)
            except WhimbrelError as error:
                held.fail(error)
                return
            if isinstance(found, Deferred):
                held.follow(found)
            else:
                held.complete(found)

        held.on_cancel = made.cancel
        made.waker = first_over
        if made.done:
            first_over()
        return held

    def expire(self) -> None:
        """Answer those whose time is over; to be called about twice a second."""
        now, waiting = self.clock(), self.waiting
        while waiting and waiting[0][1] <= now:
            _, _, deferred, _ = waiting.popleft()
            self.expired += 1
            deferred.fail(self.late())
        if self.parked is not None:
            self.parked.hand_over(now - self.timeout_s)

    def late(self) -> NotStored:
        """Return the error of a call that has waited too long."""
        return self.unknown(f"within {self.timeout_s:g} s")

    def unknown(self, when: str) -> NotStored:
        """Return the error of a call of which nobody knows whether its effect stays."""
        return NotStored(
            f"fewer members than a majority have stored {self.what} {when}: if another member leads next, it"
            " may not know of this. Try again"
        )

    def close(self, why: str) -> None:
        """Answer all that wait, and all that come, with an error: this member leads no longer."""
        self.closed = self.unknown(f"before this member stopped leading ({why})")
        while self.waiting:
            self.waiting.popleft()[2].fail(self.closed)
        if self.parked is not None:
            self.parked.hand_over(math.inf)
