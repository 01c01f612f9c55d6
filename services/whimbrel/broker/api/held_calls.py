"""Calls that wait for a leader: which go on, which are held and for how long, and which are given up.

    arrived --(a leader is known)------------> under way --answered, or may have had an effect--> over
       |                                        ^     |
       '--(none)--> held --(leader, pause over)-'     '--refused, and nothing was done--> held, with a pause
                      '--HOLD_S, or no room--> over

Pure: times are seconds of the monotonic clock, and arguments; `leader_calls.py` does what is decided here.

**Where.** The leader is another member (`Target`), this one (HERE), or nobody that is known (NOBODY). While
this member changes its role nothing is served (CHANGING). A call needs the leader, or only a role.

**What is tried again** is a call that is known to have had no effect: it could not be handed over, or was
refused by who is not the leader, not ready, or has too few members near (`AGAIN`). The last two kinds are
held only while the leader is new (SETTLE_S): later they are the leader's answer.

**Bounds.** A call is held for HOLD_S, its pauses and short attempts included; one whose attempt lasted longer
than that is held anew. At a tick at most TRIED_MAX are tried again, in the order of arrival; an answer ends
the pauses of all, and another leader gets them at once.
"""

import enum
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from whimbrel.errors import (
    NoReplica,
    NotMaster,
    NotReady,
    NotRecovered,
    NotWritable,
    Throttled,
    WhimbrelError,
)
from whimbrel.rpc.server.forwarder import Target

__all__ = [
    "AGAIN",
    "HOLD_BYTES_MAX",
    "HOLD_S",
    "PAUSE_FIRST_S",
    "PAUSE_MAX_S",
    "SETTLE_S",
    "TICK_S",
    "TRIED_MAX",
    "HeldCall",
    "HeldCalls",
    "Leads",
    "Place",
]

HOLD_S = 2.0  # an election takes less, once it has begun; SDKs give a send 3 s
HOLD_BYTES_MAX = 64 << 20  # of the requests that are held
SETTLE_S = 5.0  # after which a leader that is not ready has another reason than being new
PAUSE_FIRST_S = 0.025  # before a call is tried again; each further pause is twice as long
PAUSE_MAX_S = 0.2
TICK_S = 0.025  # between two looks at the calls that are held
TRIED_MAX = 64  # tried again at each tick, so that a leader which comes back is not overrun

AGAIN = (NotWritable, NotReady, NotRecovered, NoReplica)  # NotMaster is a kind of NotWritable
NOT_LEADING = (NotMaster, NotReady, NotRecovered)  # whoever says so does not serve, whatever the call


class Leads(enum.Enum):
    """Who leads, where it is not another member that is known."""

    HERE = "this member"
    NOBODY = "nobody that is known"
    CHANGING = "this member has no role"


Place: TypeAlias = Target | Leads


@dataclass(eq=False, slots=True, kw_only=True)
class HeldCall:
    """A call on its way to the leader.

    Attributes:
        size: bytes of its request.
        needs_leader: only the leader serves it; else any role does.
        number: of its arrival.
        begun_at: when it was under way last.
        until: it is held no longer than that; None before it was held.
        pause_s: before it is tried again.
        again_at: when that is; None: when there is another leader.
        refusal: why it was tried in vain.
    """

    size: int
    needs_leader: bool = True
    number: int = 0
    begun_at: float = 0.0
    until: float | None = None
    pause_s: float = PAUSE_FIRST_S
    again_at: float | None = None
    refusal: WhimbrelError | None = None


C = TypeVar("C", bound=HeldCall)


class HeldCalls(Generic[C]):
    """The calls that are held, and where calls go.

    Attributes:
        place: who leads. since: when that was learned, or the leader was last seen not to lead yet.
        bytes: of the requests that are held.
    """

    def __init__(self, *, calls_max: int, bytes_max: int = HOLD_BYTES_MAX) -> None:
        """Begin without a role."""
        self.calls_max, self.bytes_max = calls_max, bytes_max
        self.place: Place = Leads.CHANGING
        self.since = 0.0
        self.held: dict[C, None] = {}
        self.bytes = 0
        self.arrivals = 0

    def __len__(self) -> int:
        return len(self.held)

    def arrived(self, one: C, now: float) -> bool:
        """Take a call; return whether it goes on, else it is held.

        Raises:
            Throttled: there is no room to hold it.
        """
        self.arrivals += 1
        one.number, one.begun_at = self.arrivals, now
        if not self.waits(one):
            return True
        if not self.has_room(one):
            raise Throttled(f"{len(self.held)} calls with {self.bytes} bytes wait for a leader already")
        self.keep(one, now)
        return False

    def waits(self, one: C) -> bool:
        """Return whether a call has nowhere to go."""
        return self.place is Leads.CHANGING or (self.place is Leads.NOBODY and one.needs_leader)

    def has_room(self, one: C) -> bool:
        """Return whether one more call may be held."""
        return len(self.held) < self.calls_max and self.bytes + one.size <= self.bytes_max

    def keep(self, one: C, now: float, again_at: float | None = None) -> None:
        """Hold a call."""
        if one.until is None:
            one.until = now + HOLD_S
        one.again_at = again_at
        self.held[one] = None
        self.bytes += one.size

    def refused(self, one: C, place: Place, error: WhimbrelError, now: float) -> bool:
        """Take back a call that had no effect; return whether it is held, else the refusal is its answer.

        Args:
            place: where it was tried.
            error: the refusal.
        """
        one.refusal = error
        moved = place != self.place
        if not isinstance(error, AGAIN):
            return False
        if isinstance(error, NOT_LEADING):
            self.since = self.since if moved else now
        elif not moved and now - self.since > SETTLE_S:
            return False
        if now - one.begun_at > HOLD_S:
            one.until = None
        if (one.until is not None and one.until <= now) or not self.has_room(one):
            return False
        if self.waits(one):
            self.keep(one, now)
        elif moved:
            self.keep(one, now, again_at=now)
        else:
            self.keep(one, now, again_at=now + one.pause_s)
            one.pause_s = min(one.pause_s * 2, PAUSE_MAX_S)
        return True

    def answered(self, place: Place, now: float) -> None:
        """Take note of an answer: calls that pause are tried at the next ticks."""
        if place == self.place:
            for one in self.held:
                if one.again_at is not None:
                    one.again_at = now

    def moved(self, place: Place, now: float) -> list[C]:
        """Take note of who leads now; return the calls that go on, in the order of their arrival."""
        self.place, self.since = place, now
        going = [one for one in self.held if not self.waits(one)]
        for one in self.held:
            one.again_at, one.pause_s = None, PAUSE_FIRST_S
        return self.released(going, now)

    def due(self, now: float) -> list[C]:
        """Return the calls that are tried again now."""
        ready = [one for one in self.held if one.again_at is not None and one.again_at <= now]
        ready.sort(key=lambda one: one.number)
        return self.released(ready[:TRIED_MAX], now)

    def over(self, now: float) -> list[C]:
        """Return the calls whose time is over: nobody holds them any more."""
        return self.released([one for one in self.held if one.until is not None and one.until <= now], now)

    def drain(self, now: float) -> list[C]:
        """Return all calls, and hold none."""
        return self.released(list(self.held), now)

    def drop(self, one: C) -> None:
        """Forget a call whose client has left, if it is held."""
        if one in self.held:
            del self.held[one]
            self.bytes -= one.size

    def released(self, calls: list[C], now: float) -> list[C]:
        """Take calls off those that are held; they are under way from now on."""
        calls.sort(key=lambda one: one.number)
        for one in calls:
            self.drop(one)
            one.begun_at = now
        return calls
