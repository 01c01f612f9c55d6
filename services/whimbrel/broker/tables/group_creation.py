"""Groups, the topics of their redeliveries, and other topics, that requests name and nobody has made yet.

RocketMQ makes a group from any heartbeat, pull or send-back that names it, and from a heartbeat its topic
`%RETRY%<group>`, whatever the names are: a stranger can fill both tables. Here names are checked, a broker
makes groups where it may (`auto_create_groups`), so many in a second, and a slave makes none.
"""

from collections.abc import Callable

from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import Throttled
from whimbrel.model.limits import QUEUES_MAX, TOPIC_CHARS_MAX
from whimbrel.model.names import RETRY_PREFIX, check_group
from whimbrel.model.topic import READ, WRITE, GroupConfig, TopicConfig

__all__ = ["BURST", "PER_SECOND", "GroupCreation"]

PER_SECOND = 50.0  # topics and groups that are made; each is a write of a table's file
BURST = 200.0  # a cluster's clients that all come at once, after they have moved here


class GroupCreation:
    """Makes groups and their retry topics. On the loop's thread."""

    def __init__(
        self, topics: TopicTable, groups: GroupTable, *, master: bool, clock: Callable[[], float]
    ) -> None:
        """Take the tables; `clock` is a monotonic one, in seconds."""
        self.topics, self.groups, self.master, self.clock = topics, groups, master, clock
        self.room, self.at = BURST, clock()

    def group(self, name: str) -> GroupConfig | None:
        """Return a group, which is made where that may be; None where there is none.

        Raises:
            IllegalGroup: no group may have that name.
            Throttled: too many are made just now.
            Forbidden: the table is full.
            StoreFull: it can't be written down.
        """
        found = self.groups.get(name)
        if found is not None:
            return found
        check_group(name)
        if not self.master or not self.groups.auto_create:
            return None
        self.take_turn(f"group {name}")
        return self.groups.find(name, create=True)

    def retry_topic(self, group: GroupConfig) -> bool:
        """Make the topic of a group's redeliveries, where it is missing; return whether that was done.

        Errors as `group`.
        """
        name = RETRY_PREFIX + group.name
        queues = min(group.retry_queues, QUEUES_MAX)
        if not self.master or queues < 1 or name in self.topics.rows or len(name) > TOPIC_CHARS_MAX:
            return False
        self.take_turn(f"group {group.name}")
        self.topics.check_room()
        made = TopicConfig(name=name, read_queues=queues, write_queues=queues, permission=READ | WRITE)
        self.topics.put(made.with_drained(drained=self.topics.drained > 0))
        return True

    def group_topic(self, name: str, queues: int, check_writable: Callable[[], None]) -> TopicConfig:
        """Return a topic of a group's own, of redeliveries or dead letters; it is made where there is none.

        Args:
            name: of the topic.
            queues: of one that is made, at least 1.
            check_writable: raises why this broker takes no writes, before anything is made.
        """
        found = self.topics.rows.get(name)
        if found is None:
            check_writable()
            self.topics.check_room()
            found = TopicConfig(name=name, read_queues=max(queues, 1), write_queues=max(queues, 1))
            self.topics.put(found)
        return found

    def take_turn(self, what: str) -> None:
        """Count something that a client makes, `group g` for instance.

        Raises:
            Throttled: too much was made just now.
        """
        now = self.clock()
        self.room = min(BURST, self.room + (now - self.at) * PER_SECOND)
        self.at = now
        if self.room < 1:
            raise Throttled(f"{what} is not made now: {PER_SECOND:g} topics and groups in a second are")
        self.room -= 1
