"""What an answer from several brokers lacks: who could not be asked, and who is away. Pure.

**An answer is complete, or says what it lacks.** Who lists what brokers hold asks the masters that a
nameserver knows; one that it does not know is missing without a trace, unless it says who is away:

    a group with a master           asked; if it does not answer, it could not be asked
    a group of slaves alone         away: its master, since when the nameserver remembers
    a group of which nobody is here away, if the nameserver remembers it
    a nameserver that is not settled  somebody may be away whom it does not know yet
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from whimbrel.model.cluster import AbsentBroker, Cluster

__all__ = ["YOUNG", "Unasked", "away", "left_out", "lost_at", "sentence", "since_text"]

YOUNG = (
    "the nameserver has just started and may not know all brokers yet: what those hold is left out; ask again"
)


@dataclass(frozen=True, slots=True)
class Unasked:
    """A broker group that is left out of an answer.

    Attributes:
        broker_name: of the group; "" where it is not known who may be missing.
        why: it could not be asked, for people.
        away: nobody answers for it because its master is not registered.
    """

    broker_name: str
    why: str
    away: bool = False


def since_text(since: float | None) -> str:
    """Return ` since ...`, in UTC, or nothing where it is not known."""
    return "" if since is None else f" since {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M:%S} UTC"


def away(cluster: Cluster) -> tuple[AbsentBroker, ...]:
    """Return who is away, without those whose place somebody has."""
    there = {(one.broker_name, one.member_id or one.broker_id) for one in cluster.brokers}
    return tuple(
        one for one in cluster.absent if (one.broker_name, one.member_id or one.broker_id) not in there
    )


def left_out(cluster: Cluster) -> list[Unasked]:
    """Return the groups that a list of the masters' answers leaves out, by name."""
    led = {one.broker_name for one in cluster.masters()}
    here, gone = cluster.brokers, cluster.absent
    names = ({one.broker_name for one in here} | {one.broker_name for one in gone}) - led
    found = [
        Unasked(name, f"its master is not registered{since_text(lost_at(name, cluster.absent))}", away=True)
        for name in sorted(names)
    ]
    return found if cluster.settled else [*found, Unasked("", YOUNG)]


def lost_at(name: str, absent: Iterable[AbsentBroker]) -> float | None:
    """Return when a group lost its master; where members elect one, when the last of them went."""
    known = [one for one in absent if one.broker_name == name and one.since is not None]
    masters = [one for one in known if one.broker_id == 0] or known
    return max((one.since for one in masters if one.since is not None), default=None)


def sentence(one: Unasked) -> str:
    """Return what is left out of an answer, and what to do, in one sentence."""
    if not one.broker_name:
        return one.why
    text = f"{one.broker_name} could not be asked, and what it holds is left out: {one.why}"
    if one.away:
        return (
            f"{text}; start its broker and replicator, or, if it never comes back, let go of it with"
            f" `whimbrel broker forget {one.broker_name}`"
        )
    return f"{text}; `whimbrel health` says what is wrong"
