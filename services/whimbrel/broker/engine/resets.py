"""Resets: whoever administers a group says where it stands from now on, further back as well.

    reset   a group goes where a goal says, on one queue of a topic or on all
    clone   a group gets another one's positions

All goals are found before anything moves. What a reset does to leases is told in `consume/positions.py`, and
how members that own the positions follow it in `consume/client_positions.py`. RocketMQ's two protocols differ
in which queues a topic has, in the error of a topic that is not there, and in what becomes of groups that
consume by broadcast; the difference is a value, `ResetRules`. A goal is one of the functions below, which
the front chooses by what the request says.

What waits for a majority, and what is refused before an elected leader serves, is as for commits
(`positions.py`). What members are told by the front, they are told at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, TypeVar

from whimbrel.broker.consume.client_positions import ClientPositions, Place
from whimbrel.broker.engine.positions import all_queues, held
from whimbrel.broker.engine.read import ConsumerGroups
from whimbrel.broker.engine.send import Majority
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, IllegalOffset, WhimbrelError
from whimbrel.model.cluster import GroupProgress
from whimbrel.model.topic import TopicConfig

__all__ = [
    "Clone", "Goal", "Moved", "Reset", "ResetRules", "Resets", "all_queues", "back", "nearest", "offset",
    "queue_begin", "queue_end", "read_queues", "stored_at", "unsaid",
]  # fmt: skip

R = TypeVar("R")
Goal: TypeAlias = Callable[["Resets", Place], int]  # returns where a group is to stand on a queue


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRules:
    """How resets of a protocol are decided.

    Attributes:
        no_topic: the error of a topic that is not there.
        queues: how many of a topic are reset.
        spares_broadcast: members that consume by broadcast have positions of their own, and nothing moves.
    """

    no_topic: type[WhimbrelError]
    queues: Callable[[TopicConfig], int]
    spares_broadcast: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """What a request says of a reset.

    Attributes:
        rules: of its protocol.
        topic, group: their names.
        queue_id: reads which queue; None for all. goal: reads where to. Not called before they count.
    """

    rules: ResetRules
    topic: str
    group: str
    queue_id: Callable[[], int | None]
    goal: Callable[[], Goal]


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a group is to stand on a topic, by queue: it does, unless its members consume by broadcast."""

    topic: str
    group: str
    offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class Clone:
    """The group `target` is to stand where `source` does, on one topic; on all where `topic` is empty."""

    source: str
    target: str
    topic: str


class Resets:
    """Decides resets, on the loop's thread."""

    def __init__(
        self,
        tables: TableChanges,
        members: ConsumerGroups,
        positions: ClientPositions,
        *,
        majority: Majority | None = None,
        not_serving: Callable[[], str] = str,
    ) -> None:
        """Take what is read and changed.

        Args:
            tables: topics and groups. members: of groups. positions: those of groups.
            majority: that is to have leases before who resets is answered; None where roles are configured.
            not_serving: returns why positions are not known here yet, "" once they are.
        """
        self.tables, self.members, self.positions = tables, members, positions
        self.majority, self.not_serving = majority, not_serving

    def reset(self, asked: Callable[[], Reset], render: Callable[[Moved], R]) -> R | Deferred[R]:
        """Reset a group; return what `render` makes of it, once that may be told.

        Args:
            asked: reads the request.
            render: tells members, and makes the answer.

        Raises:
            NotReady: see `not_serving`.
            NotWritable: this is a slave.
            WhimbrelError: a rule is broken, or a goal can't be found; nothing has moved.
            StoreFull: it can't be written down; some queues may be reset.
        """
        return held(self.not_serving, self.majority, lambda: render(self.move(asked)))

    def move(self, asked: Callable[[], Reset]) -> Moved:
        """Do the same, whatever a majority has."""
        self.tables.check_master()
        reset = asked()
        group, topic = self.tables.group(reset.group).name, self.tables.topics.get(reset.topic)
        if topic is None:
            raise reset.rules.no_topic(f"no topic {reset.topic}")
        queue_ids: Sequence[int] = range(reset.rules.queues(topic))
        chosen = reset.queue_id()
        if chosen is not None:
            if chosen not in queue_ids:
                raise BadRequest(f"queue {chosen} is not one of the {len(queue_ids)} of {topic.name}")
            queue_ids = (chosen,)
        goal = reset.goal()
        moved = Moved(topic.name, group, {each: goal(self, (group, topic.name, each)) for each in queue_ids})
        members = self.members.group(group)
        if members is None or not members.broadcasting or not reset.rules.spares_broadcast:
            for queue_id, target in moved.offsets.items():
                self.positions.positions.reset_offset(group, topic.name, queue_id, target)
        return moved

    def progress(self, moved: Moved) -> list[GroupProgress]:
        """Return how far a group is on the queues of a reset."""
        return [
            row
            for row in self.positions.positions.progress(moved.group)
            if row.topic == moved.topic and row.queue_id in moved.offsets
        ]

    def clone(self, asked: Callable[[], Clone]) -> Deferred[None] | None:
        """Give a group the positions of another one; `asked` reads the request. None: done.

        Raises:
            NotReady: see `not_serving`.
            NotWritable: this is a slave.
            IllegalGroup, GroupNotFound: there can't be such a group, or is none.
            StoreFull: it can't be written down; some queues may have been done.
        """
        return held(self.not_serving, self.majority, lambda: self.copy(asked))

    def copy(self, asked: Callable[[], Clone]) -> None:
        """Do the same, whatever a majority has."""
        self.tables.check_master()
        clone = asked()
        target = self.tables.group(clone.target).name
        for (topic, group), offsets in self.positions.positions.committed_offsets().items():
            if group == clone.source and clone.topic in ("", topic) and topic in self.tables.topics.rows:
                for queue_id, known in offsets.items():
                    self.positions.commit(target, topic, queue_id, known, owned=False)


def read_queues(topic: TopicConfig) -> int:
    """Return how many queues consumers read."""
    return topic.read_queues


# Goals


def queue_begin(resets: Resets, place: Place) -> int:
    """To the first message that is kept."""
    return resets.tables.store.queue_range(*place[1:])[0]


def queue_end(resets: Resets, place: Place) -> int:
    """Behind the last message."""
    return resets.tables.store.queue_range(*place[1:])[1]


def stored_at(at_ms: int) -> Goal:
    """To the first message stored at or after a time, in epoch milliseconds; else behind the last one."""
    return lambda resets, place: resets.tables.store.offset_by_time(*place[1:], at_ms)


def offset(wanted: int) -> Goal:
    """To an offset, which must lie within the queue."""

    def goal(resets: Resets, place: Place) -> int:
        _, topic, queue_id = place
        low, high = resets.tables.store.queue_range(topic, queue_id)
        if not low <= wanted <= high:
            raise IllegalOffset(f"offset {wanted} lies outside {topic}/{queue_id}: {low} to {high}")
        return wanted

    return goal


def nearest(wanted: int) -> Goal:
    """To an offset, or to the nearest one of the queue."""

    def goal(resets: Resets, place: Place) -> int:
        low, high = resets.tables.store.queue_range(*place[1:])
        return min(max(wanted, low), high)

    return goal


def back(to: Goal) -> Goal:
    """Nowhere further on: a group that stands before the goal stays."""

    def goal(resets: Resets, place: Place) -> int:
        found, known = to(resets, place), resets.positions.get(*place)
        return found if known is None else min(found, known)

    return goal


def unsaid(resets: Resets, place: Place) -> NoReturn:
    """The request has no goal."""
    raise BadRequest("the request says not where to go: earliest, latest, a time or an offset")
