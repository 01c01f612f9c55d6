"""Who had a place and is away: what the answers of this nameserver lack. Pure; times are monotonic seconds.

A list of the brokers that live says nothing of those that should. So a nameserver remembers

- *brokers* that had a place and lost it without a word, or took their leave as a master whose topics still
  take messages: one that was drained first has left for good. Whoever comes back is no longer away, under
  whichever id: by its place, or by its address or process;
- *groups* of which nobody is left, with the topics that they had: who reads all of a topic is to know what it
  lacks. Until a member registers again;
- names that an operator has *let go of*, so that nobody waits for them, until they register again.

It is memory alone: a nameserver that starts again has forgotten, and knows only who registers. What lasts are
the record of a group that elects its leader and a master's connections; `whimbrel health` reads these, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from whimbrel.nameserver.registry import BrokerIdentity

__all__ = [
    "ABSENCES_MAX",
    "ABSENCE_S_MAX",
    "FORGOTTEN_MAX",
    "GROUPS_MAX",
    "TOPICS_MAX",
    "Absence",
    "Absences",
    "AbsentGroup",
]

ABSENCES_MAX: Final = 1024  # places; as many as are kept. The longest away are forgotten first
# A week: longer than a weekend, after which somebody has looked, and more than twice RocketMQ's retention:
# what they held would be gone by then.
ABSENCE_S_MAX: Final = 7 * 86_400.0
GROUPS_MAX = 256  # as many as a large cluster has; beyond, the one that went first is not remembered
TOPICS_MAX = 16_384  # of all of them, 2 MiB in an answer; beyond, a group may have had any topic
FORGOTTEN_MAX = 256  # names that were let go of; beyond, the first one is not known any more


@dataclass(frozen=True, slots=True)
class Absence:
    """A broker that is away, and since when."""

    broker: "BrokerIdentity"
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentGroup:
    """A group whose last member is gone.

    Attributes:
        renewed_at: when that member had renewed its lease.
        topics: what it had; None where those were too many to remember.
    """

    cluster: str
    name: str
    renewed_at: float
    topics: frozenset[str] | None


class Absences:
    """Who is away.

    Args:
        same: tells whether two registrations are of one broker.

    Attributes:
        places: brokers, by name and their id there (a member's in a group that elects its leader); the
            longest away first.
        groups: groups of which nobody is left, by name, in the order in which they went.
        forgotten: names that were let go of and have not registered since, likewise.
    """

    def __init__(self, same: "Callable[[BrokerIdentity, BrokerIdentity], bool]") -> None:
        self.same = same
        self.places: dict[tuple[str, int], Absence] = {}
        self.groups: dict[str, AbsentGroup] = {}
        self.forgotten: dict[str, None] = {}

    def miss(self, broker: "BrokerIdentity", now: float) -> None:
        """Note that a broker is away from now on."""
        self.places.pop(place_of(broker), None)
        while len(self.places) >= ABSENCES_MAX:
            del self.places[next(iter(self.places))]
        self.places[place_of(broker)] = Absence(broker, now)

    def miss_group(self, cluster: str, name: str, topics: frozenset[str], renewed_at: float) -> None:
        """Note that nobody of a group is left; one without topics holds nothing that could be missed."""
        if not topics:
            return
        if len(self.groups) >= GROUPS_MAX:
            del self.groups[next(iter(self.groups))]
        known = sum(len(group.topics or ()) for group in self.groups.values())
        self.groups[name] = AbsentGroup(
            cluster=cluster,
            name=name,
            renewed_at=renewed_at,
            topics=topics if known + len(topics) <= TOPICS_MAX else None,
        )

    def back(self, broker: "BrokerIdentity") -> None:
        """Note that a broker has a place."""
        self.groups.pop(broker.name, None)
        self.forgotten.pop(broker.name, None)
        self.places.pop(place_of(broker), None)
        for place, known in list(self.places.items()):
            if place[0] == broker.name and self.same(known.broker, broker):
                del self.places[place]

    def forget(self, name: str, only: int | None = None) -> int:
        """Let go of the brokers of a name that never come back, or of one id; return how many were away."""
        gone = [place for place in self.places if place[0] == name and only in (None, place[1])]
        for place in gone:
            del self.places[place]
        return len(gone)

    def forget_group(self, name: str) -> bool:
        """Let go of a group that never comes back; return whether it was away, or let go of before.

        A name that is not known is noted all the same: this nameserver may have started since it went.
        """
        known = name in self.forgotten or self.groups.pop(name, None) is not None
        self.forgotten[name] = None
        if len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]
        return known

    def end_old(self, now: float) -> None:
        """Let go of who has been away for too long."""
        for place in [place for place, one in self.places.items() if now - one.since >= ABSENCE_S_MAX]:
            del self.places[place]
        for name in [name for name, one in self.groups.items() if now - one.renewed_at >= ABSENCE_S_MAX]:
            del self.groups[name]


def place_of(broker: "BrokerIdentity") -> tuple[str, int]:
    return broker.name, broker.member_id or broker.id
