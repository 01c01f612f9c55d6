"""Who had a place and is away: what the answers of this nameserver lack. Pure; times are monotonic seconds.

A list of the brokers that live says nothing of those that should. So a nameserver remembers who had a place
and lost it without a word, or took its leave as a master whose topics still take messages: one that was
drained first has left for good. Whoever comes back is no longer away, under whichever id: by its place, or
by its address or process.

It is memory alone: a nameserver that starts again has forgotten, and knows only who registers. What lasts are
the record of a group that elects its leader and a master's connections; `whimbrel health` reads these, too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from whimbrel.nameserver.registry import BrokerIdentity

__all__ = ["ABSENCES_MAX", "ABSENCE_S_MAX", "Absence", "Absences"]

ABSENCES_MAX: Final = 1024  # places; as many as are kept. The longest away are forgotten first
ABSENCE_S_MAX: Final = 7 * 86_400.0  # a week: longer than a weekend, after which somebody has looked


@dataclass(frozen=True, slots=True)
class Absence:
    """A broker that is away, and since when."""

    broker: "BrokerIdentity"
    since: float


class Absences:
    """Who is away, by broker name and its id there: a member's in a group that elects its leader.

    Args:
        same: tells whether two registrations are of one broker.
    """

    def __init__(self, same: "Callable[[BrokerIdentity, BrokerIdentity], bool]") -> None:
        self.same = same
        self.places: dict[tuple[str, int], Absence] = {}  # the longest away first

    def miss(self, broker: "BrokerIdentity", now: float) -> None:
        """Note that a broker is away from now on."""
        self.places.pop(place_of(broker), None)
        while len(self.places) >= ABSENCES_MAX:
            del self.places[next(iter(self.places))]
        self.places[place_of(broker)] = Absence(broker, now)

    def back(self, broker: "BrokerIdentity") -> None:
        """Note that a broker has a place."""
        self.places.pop(place_of(broker), None)
        for place, known in list(self.places.items()):
            if place[0] == broker.name and self.same(known.broker, broker):
                del self.places[place]

    def forget(self, name: str, only: int | None = None) -> int:
        """Let go of a broker name that never comes back, or of one id; return how many were away."""
        gone = [place for place in self.places if place[0] == name and only in (None, place[1])]
        for place in gone:
            del self.places[place]
        return len(gone)

    def now_away(self, now: float) -> Iterator[Absence]:
        """Yield who is away, by name and id; lets go of who has been for too long."""
        self.places = {
            place: known for place, known in self.places.items() if now - known.since < ABSENCE_S_MAX
        }
        for _, known in sorted(self.places.items()):
            yield known


def place_of(broker: "BrokerIdentity") -> tuple[str, int]:
    return broker.name, broker.member_id or broker.id
