"""Calls about positions: where groups stand, where they are to stand, and where queues begin and end.

    commit      a group stands there now
    get         where it stands
    first, end, at, first_time      what a queue has, whoever reads it

How positions move is told in `consume/positions.py` and, where members own them, in
`consume/client_positions.py`. RocketMQ's two protocols ask alike and are answered differently: of what is not
there, of an offset outside of the queue, of a group that has no position. What differs is a value,
`PositionRules`, which a front passes in; `position_checks.py` has its parts.

**Before an elected leader serves** it does not know where groups stand: commits and gets are refused, before
anything is read of the request. **The answer** to a commit waits for a majority that has the leases, also
where nothing moved: the position may be known here only. So does an error that says that a topic or a group
is gone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from whimbrel.broker.consume.client_positions import ClientPositions
from whimbrel.broker.engine.read import ConsumerGroups, ReadRules
from whimbrel.broker.engine.send import KNOWN_ALREADY, Majority
from whimbrel.broker.engine.splitting import ReadSplitting
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.deferred import Deferred
from whimbrel.errors import NotReady, WhimbrelError
from whimbrel.model.topic import TopicConfig
from whimbrel.store.store import MessageStore

__all__ = ["Position", "PositionCalls", "PositionRules", "all_queues", "held"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRules:
    """How these calls of a protocol are decided.

    Attributes:
        commits, gets, queries: checks of each, in their order; one may end a commit (`Position.ignored`).
        moves: takes a commit.
        unknown: returns where a group stands that has no position.
        reads: of the same protocol: which queues can be read, and how groups are made.
    """

    commits: tuple[Callable[["PositionCalls", "Position"], None], ...]
    gets: tuple[Callable[["PositionCalls", "Position"], None], ...]
    queries: tuple[Callable[["PositionCalls", "Position"], None], ...]
    moves: Callable[["PositionCalls", "Position"], None]
    unknown: Callable[["PositionCalls", "Position"], int]
    reads: ReadRules


@dataclass(slots=True, eq=False)
class Position:
    """A place in a queue, as the front says it, and, from `ignored` on, what the checks have found.

    Attributes:
        rules: of its protocol.
        topic, queue_id: which queue.
        group: whose position; empty where the queue alone is asked about.
        offset: that is committed.
        ignored: the commit has no effect, and is no error.
    """

    rules: PositionRules
    topic: str
    queue_id: int
    group: str = ""
    offset: int = 0
    ignored: bool = field(default=False, init=False)


class PositionCalls:
    """Decides these calls, on the loop's thread."""

    def __init__(
        self,
        creation: GroupCreation,
        members: ConsumerGroups,
        positions: ClientPositions,
        store: MessageStore,
        splitting: ReadSplitting,
        *,
        majority: Majority | None = None,
        not_serving: Callable[[], str] = str,
    ) -> None:
        """Take what is needed.

        Args:
            creation: has the tables, and makes groups.
            members: tell whether they own a group's positions.
            positions: those of groups. store: the messages.
            splitting: tells how much of the log's end counts as in memory.
            majority: that is to have leases before who commits is answered; None where roles are configured.
            not_serving: returns why positions are not known here yet, "" once they are.
        """
        self.creation, self.topics, self.members = creation, creation.topics, members
        self.positions, self.store, self.splitting = positions, store, splitting
        self.majority, self.not_serving = majority, not_serving

    def commit(self, asked: Callable[[], Position]) -> Deferred[None] | None:
        """Take where a group stands; `asked` reads the request. None: done, with or without effect.

        Raises:
            NotReady: see `not_serving`.
            WhimbrelError: a rule is broken, the first one in the order of the rules.
            StoreFull: it can't be written down.
        """
        return held(self.not_serving, self.majority, lambda: self.move(asked()))

    def move(self, position: Position) -> None:
        """Do the same, whatever a majority has."""
        for check in position.rules.commits:
            check(self, position)
            if position.ignored:
                return
        position.rules.moves(self, position)

    def get(self, asked: Callable[[], Position]) -> int:
        """Return where a group stands; `asked` reads the request.

        Raises:
            NotReady: see `not_serving`.
            OffsetNotFound: it has no position.
            WhimbrelError: a rule is broken.
        """
        self.check_serving()
        position = asked()
        for check in position.rules.gets:
            check(self, position)
        known = self.positions.get(position.group, position.topic, position.queue_id)
        return position.rules.unknown(self, position) if known is None else known

    def first(self, position: Position) -> int:
        """Return the first offset of a queue; errors of its rules, as those below."""
        return self.range(position)[0]

    def end(self, position: Position) -> int:
        """Return the end of a queue."""
        return self.range(position)[1]

    def at(self, position: Position, at_ms: Callable[[], int]) -> int:
        """Return the first offset of a queue stored at or after a time, which the request says; else its end.

        Raises:
            CorruptRecord: a record does not decode.
        """
        self.range(position)
        return self.store.offset_by_time(position.topic, position.queue_id, at_ms())

    def first_time(self, position: Position) -> int:
        """Return when the first message of a queue was stored, in epoch milliseconds; 0 for none."""
        units = self.store.queue_units(position.topic, position.queue_id, self.first(position), 1)
        return self.store.store_time_of(units[0][0]) if units else 0

    def range(self, position: Position) -> tuple[int, int]:
        """Return the first offset of a queue, and its end."""
        for check in position.rules.queries:
            check(self, position)
        return self.store.queue_range(position.topic, position.queue_id)

    def check_serving(self) -> None:
        """Raise NotReady before positions are known here."""
        if why := self.not_serving():
            raise NotReady(why)


def all_queues(topic: TopicConfig) -> int:
    """Return how many queues a topic has, whether they are read or written."""
    return max(topic.read_queues, topic.write_queues)


def held(
    not_serving: Callable[[], str], majority: Majority | None, decide: Callable[[], R]
) -> R | Deferred[R]:
    """Return what is decided, once a majority has it; so what is there already, or gone already.

    Raises:
        NotReady: `not_serving` returns why; nothing is decided.
        WhimbrelError: as `decide`, and as `StateQuorum.hold`.
    """
    if why := not_serving():
        raise NotReady(why)
    if majority is None:
        return decide()
    try:
        answer: R | WhimbrelError = decide()
    except KNOWN_ALREADY as error:
        answer = error
    found: R | Deferred[R] = majority.hold(answer)
    return found
