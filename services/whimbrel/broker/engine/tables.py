"""What administrators change of topics and groups, whichever protocol they speak: checks, and deletion."""

from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import BadRequest, GroupNotFound, IllegalTopic, NotWritable, TopicNotFound
from whimbrel.model.limits import QUEUES_MAX
from whimbrel.model.names import BUILT_IN_GROUPS, TEMPLATE_TOPIC, check_group, check_topic
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.store.store import MessageStore

__all__ = ["TableChanges", "checked_permission", "checked_queues"]


class TableChanges:
    """Checks and makes changes. On the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        consumption: GroupConsumption,
        store: MessageStore,
        *,
        master: bool,
    ) -> None:
        """Take the tables, and what stands on them; `master`: changes are taken."""
        self.topics, self.groups = topics, groups
        self.consumption, self.store, self.master = consumption, store, master

    def check_master(self) -> None:
        """Raise NotWritable at a slave."""
        if not self.master:
            raise NotWritable("this is a slave: its tables are its master's; send the change there")

    def check_topic_name(self, name: str) -> None:
        """Raise IllegalTopic unless clients may make or change a topic of this name."""
        check_topic(name)
        if self.topics.is_system(name):
            raise IllegalTopic(f"{name} is a system topic")

    def changeable_topic(self, name: str) -> TopicConfig:
        """Return a topic that clients may change.

        Raises:
            IllegalTopic: they may not.
            TopicNotFound: there is none.
        """
        self.check_topic_name(name)
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"no topic {name}")
        return topic

    def put_new_topic(self, topic: TopicConfig) -> TopicConfig:
        """Add a topic, and return it as it is then: a drained broker's takes no messages.

        Raises:
            AlreadyExists: it is there.
            Forbidden: the table is full.
        """
        made = topic.with_drained(drained=True) if self.topics.drained else topic
        self.topics.add(made)
        return made

    def delete_topic(self, topic: TopicConfig) -> None:
        """Remove a topic, its queues, and the groups' offsets on it; its messages stay in the log."""
        self.store.delete_topic(topic.name)
        self.consumption.delete_topic(topic.name)
        self.topics.remove(topic.name)  # last: a topic that still has queues is adopted again at a start

    def drain(self, *, drained: bool) -> None:
        """Take the write bit from topics of clients, and from what topics are made of, or give it back."""
        for topic in list(self.topics.rows.values()):
            if topic.name == TEMPLATE_TOPIC or not self.topics.is_system(topic.name):
                changed = topic.with_drained(drained=drained)
                if changed is not topic:
                    self.topics.put(changed)

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

    def delete_group(self, name: str) -> None:
        """Remove a group, its offsets and its leases.

        Raises:
            BadRequest: it is the broker's own.
        """
        if name in BUILT_IN_GROUPS:
            raise BadRequest(f"{name} is the broker's own")
        self.groups.remove(name)
        self.consumption.delete_group(name)


def checked_queues(count: int) -> int:
    """Return a number of queues that a topic may have.

    Raises:
        BadRequest: it may not.
    """
    if not 1 <= count <= QUEUES_MAX:
        raise BadRequest(f"{count} queues: a topic has 1 to {QUEUES_MAX} on each broker")
    return count


def checked_permission(bits: int) -> int:
    """Return permission bits that a topic may have.

    Raises:
        BadRequest: it may not.
    """
    if not 0 <= bits <= 7:
        raise BadRequest(f"permission {bits}: it is a sum of 4 (read), 2 (write) and 1 (inherit)")
    return bits
