"""A change of a table: what administrators make, change and delete of topics and groups, and of the broker.

    front ──► Change ──► checks of its rules, one after the other ──► the row as it is to be ──► table, files
                              '──► ignored: this is a slave, and nothing is changed

RocketMQ's two protocols check in another order, and mean another thing by some changes: by gRPC who makes
what is there already, or changes what is not, is told so; RocketMQ 4 does either, silently, and a slave says
that all is well. What differs is a value, `ChangeRules`, which a front passes in: its named checks in their
order (`table_checks.py` has them all), and one member.

What a request asks for is read field by field by the check `fields_asked`, so that a field that can't be read
is an error in its place among those that are out of their bounds. What is to be read against the row as it is
comes last (`Change.over`).

**The answer** waits, where the leader is elected, for a majority that knows of topics and groups; that to a
deletion then for one that has the leases, since positions go with what is deleted. What is there already, or
gone already, is told once that is known as well: who hears that a topic exists goes on as if it had made it.
Before the leader serves nothing is changed: the newest tables may still be at another member.

**A drained broker's topics** take no messages, new ones as well. Who changes one as a whole says what it is
without the drain, which it keeps; who changes its permission alone gives it the write bit back before.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.unread_queues import UnreadQueues
from whimbrel.broker.engine.send import KNOWN_ALREADY, Majority
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import GroupNotFound, NotReady, NotWritable
from whimbrel.model.names import BUILT_IN_GROUPS, TEMPLATE_TOPIC, check_group
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.store.store import MessageStore

__all__ = ["Asked", "Change", "ChangeRules", "Drained", "GroupChange", "TableChanges", "TopicChange"]

Row = TypeVar("Row", TopicConfig, GroupConfig)
R = TypeVar("R")

Asked: TypeAlias = Iterable[tuple[str, Any]]  # fields and their values, read once

# Fields that are no attributes of a row, and what sets them.
SETTERS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "message_type": TopicConfig.with_type,
    "answer": TopicConfig.with_answer,
    "max_attempts": lambda group, count: replace(group, retry_max=count - 1),
    "ordered_by": GroupConfig.with_ordered_by,
    "retry_policy": GroupConfig.with_retry_policy,
    "priority_percent": GroupConfig.with_priority_percent,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRules(Generic[Row]):
    """How changes of a protocol, of one kind, are decided.

    Attributes:
        checks: in their order.
        undrained: a topic that has lost its write bit by a drain is changed as it was before, and loses it
            again. (RocketMQ's updateTopic says all of a topic.)
    """

    checks: "tuple[Callable[[TableChanges, Change[Row]], None], ...]"
    undrained: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Change(Generic[Row]):
    """A change of a row on its way: what the front says, and what the checks have found.

    Attributes:
        rules: of its protocol, and its kind.
        name: of the topic or group.
        asked: what the row is to be: attributes of it, and those of `SETTERS`.
        over: returns a row with what is to be read against it; raises what is wrong with that.
        hides: it may hide messages that nobody has read.
        values: what is asked, once it is read.
        found: the row that is changed or deleted; None where there is none, or it makes one.
        ignored: nothing is changed here, and nothing is wrong.
        made: the row as it is after the change; not set by deletions, and where the change is ignored.
    """

    rules: ChangeRules[Row]
    name: str
    asked: Asked = ()
    over: Callable[[Row], Row] = lambda row: row
    hides: bool = False
    values: dict[str, Any] = field(default_factory=dict)
    found: Row | None = None
    ignored: bool = False
    made: Row = field(init=False)

    def check(self, tables: "TableChanges") -> bool:
        """Run the checks; return whether there is something to change."""
        for check in self.rules.checks:
            check(tables, self)
            if self.ignored:
                return False
        return True

    def applied(self, row: Row) -> Row:
        """Return a row with the fields that are asked."""
        for name, value in self.values.items():
            setter = SETTERS.get(name)
            row = replace(row, **{name: value}) if setter is None else setter(row, value)
        return row


TopicChange: TypeAlias = Change[TopicConfig]
GroupChange: TypeAlias = Change[GroupConfig]


class Drained(NamedTuple):
    """What is left at a broker that is drained.

    Attributes:
        topics: that take no messages because of the drain.
        undelivered: messages that groups have not finished, summed over all groups.
        in_flight: of these, messages that consumers hold.
        delayed: messages that wait for their time.
        open_transactions: that are undecided.
        unread: topics that no group has begun to read, and how many messages they hold.
    """

    topics: int
    undelivered: int
    in_flight: int
    delayed: int
    open_transactions: int
    unread: Mapping[str, int]


class TableChanges:
    """Decides changes, on the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        consumption: GroupConsumption,
        store: MessageStore,
        *,
        master: bool,
        waiting: Callable[[], tuple[int, int]] = lambda: (0, 0),
        sharing: TopicSharing | None = None,
        majority: Majority | None = None,
        leases: Majority | None = None,
        not_serving: Callable[[], str] = str,
    ) -> None:
        """Take the tables, and what stands on them.

        Args:
            topics, groups: the tables.
            consumption: offsets and leases of groups.
            store: the log and its queues.
            master: changes are taken.
            waiting: returns how many delayed messages wait, and how many transactions are open.
            sharing: what other brokers have of our topics; a master's.
            majority: that is to know of topics and groups before a change is answered; None where roles are
                configured.
            leases: that is to have leases before a deletion is answered; None likewise.
            not_serving: returns why the tables are not known here yet, "" once they are.
        """
        self.topics, self.groups = topics, groups
        self.consumption, self.store, self.master = consumption, store, master
        self.waiting, self.sharing = waiting, sharing
        self.majority, self.leases, self.not_serving = majority, leases, not_serving
        self.unread = UnreadQueues(topics, consumption.positions, store)

    def check_master(self) -> None:
        """Raise NotWritable at a slave."""
        if not self.master:
            raise NotWritable("this is a slave: its tables are its master's; send the change there")

    def known(self, decide: Callable[[], R | Deferred[R]], *majorities: Majority | None) -> R | Deferred[R]:
        """Return what is decided, once majorities know of it, one after the other.

        Raises:
            NotReady: see `not_serving`; nothing is decided.
        """
        if why := self.not_serving():
            raise NotReady(why)
        for majority in majorities:
            if majority is not None:
                decide = partial(held, majority, decide)
        return decide()

    # Topics

    def put_topic(self, change: TopicChange) -> TopicChange | Deferred[TopicChange]:
        """Make a topic, or change it; return what has become of the change.

        Raises:
            AlreadyExists, Forbidden: it is there, or the table is full.
            StoreFull: it can't be written down; nothing was changed.
            NotReady: see `not_serving`.
            WhimbrelError: of a check.
        """

        def put() -> TopicChange:
            if change.check(self):
                change.made = self.changed_topic(change)
                (self.topics.add if change.found is None else self.topics.put)(change.made)
            return change

        return self.known(put, self.majority)

    def changed_topic(self, change: TopicChange) -> TopicConfig:
        """Return a topic as it is to be: it takes no messages where the broker, or itself, is drained."""
        found = change.found
        if found is None:
            made = change.over(change.applied(TopicConfig(name=change.name)))
            return made.with_drained(drained=self.topics.drained > 0)
        topic = found.with_drained(drained=False) if change.rules.undrained else found
        return change.over(change.applied(topic).with_drained(drained=found.drained))

    def delete_topic(self, change: TopicChange) -> TopicChange | Deferred[TopicChange]:
        """Remove a topic, its queues, and the groups' offsets on it; its messages stay in the log.

        Raises:
            StoreFull: it can't be written down.
            NotReady: see `not_serving`.
            WhimbrelError: of a check.
        """

        def delete() -> TopicChange:
            if change.check(self) and change.found is not None:
                self.store.delete_topic(change.name)
                self.consumption.delete_topic(change.name)
                self.topics.remove(change.name)  # last: one that still has queues is adopted again at a start
            return change

        return self.known(delete, self.majority, self.leases)

    # Groups

    def group(self, name: str) -> GroupConfig:
        """Return a group.

        Raises:
            IllegalGroup: no group may have that name.
            GroupNotFound: there is none.
        """
        check_group(name)
        group = self.groups.get(name)
        if group is None:
            raise GroupNotFound(f"no consumer group {name}")
        return group

    def put_group(self, change: GroupChange) -> GroupChange | Deferred[GroupChange]:
        """Make a group, or change it; returns and raises as `put_topic`."""

        def put() -> GroupChange:
            if change.check(self):
                change.made = change.over(change.applied(change.found or GroupConfig(name=change.name)))
                (self.groups.add if change.found is None else self.groups.put)(change.made)
            return change

        return self.known(put, self.majority)

    def delete_group(self, change: GroupChange) -> GroupChange | Deferred[GroupChange]:
        """Remove a group, its offsets and its leases; returns and raises as `delete_topic`."""

        def delete() -> GroupChange:
            if change.check(self):
                self.groups.remove(change.name)
                self.consumption.delete_group(change.name)
            return change

        return self.known(delete, self.majority, self.leases)

    # The broker

    def drain(self, *, drained: bool | None) -> Drained | Deferred[Drained]:
        """Have topics of clients take no messages, or take them again; None: as it is. Return what is left.

        Raises:
            NotReady: see `not_serving`.
            NotWritable: this is a slave.
            StoreFull: it can't be written down.
        """

        def drain() -> Drained:
            self.check_master()
            if drained is not None:
                self.set_drained(drained=drained)
            return self.left()

        return self.known(drain, self.majority)

    def left(self) -> Drained:
        """Return what is left here of messages that are to be read or to come."""
        rows = [
            row
            for name in self.groups.rows
            if name not in BUILT_IN_GROUPS
            for row in self.consumption.positions.progress(name, self.queues_of)
        ]
        undelivered, in_flight = sum(row.lag for row in rows), sum(row.in_flight for row in rows)
        unread = self.unread_topics({row.topic for row in rows})
        return Drained(self.topics.drained, undelivered, in_flight, *self.waiting(), unread)

    def set_drained(self, *, drained: bool) -> None:
        """Take the write bit from topics of clients, and from what topics are made of, or give it back."""
        for topic in list(self.topics.rows.values()):
            if topic.name == TEMPLATE_TOPIC or not self.topics.is_system(topic.name):
                changed = topic.with_drained(drained=drained)
                if changed is not topic:
                    self.topics.put(changed)

    def set_all(self, settings: Iterable[Callable[[], object]]) -> None:
        """Change settings, until this broker starts again or has another role; the answer waits for nobody.

        Args:
            settings: what changes each one. All are read before the first one is changed.

        Raises:
            NotWritable: this is a slave.
            WhimbrelError: one can't be read, and nothing was changed.
            StoreFull: one can't be written down, and those behind it were not changed.
        """
        self.check_master()
        for setting in list(settings):
            setting()

    def queues_of(self, topic: str) -> list[int]:
        """Return the ids of the queues of a topic that may be read; none where there is no such topic."""
        config = self.topics.get(topic)
        return [] if config is None else self.store.queue_ids(topic, config.read_queues)

    def unread_topics(self, read: Set[str]) -> dict[str, int]:
        """Return the topics of clients that hold messages and that no group reads, and how many these are."""
        found = {}
        for name, topic in sorted(self.topics.rows.items()):
            if name in read or self.topics.is_system(name):
                continue
            queues = self.store.queue_ids(name, max(topic.read_queues, topic.write_queues))
            ranges = [self.store.queue_range(name, queue_id) for queue_id in queues]
            if messages := sum(high - low for low, high in ranges):
                found[name] = messages
        return found

    def forget_broker(self, name: str) -> list[str] | Deferred[list[str] | None] | None:
        """Let go of a broker that never comes back; returns and raises as `TopicSharing.forget`.

        Raises:
            NotReady: see `not_serving`.
            NotWritable: this is a slave.
        """

        def forget() -> list[str] | None:
            self.check_master()
            assert self.sharing is not None, "a master has it"
            return self.sharing.forget(name)

        return self.known(forget, self.majority)


def held(majority: Majority, decide: Callable[[], R | Deferred[R]]) -> R | Deferred[R]:
    """Return what is decided, or what is known already, once a majority has all changes so far."""
    try:
        found = decide()
    except KNOWN_ALREADY as error:
        return cast(Deferred[R], majority.hold(error))
    return majority.hold_later(found) if isinstance(found, Deferred) else cast(R, majority.hold(found))
