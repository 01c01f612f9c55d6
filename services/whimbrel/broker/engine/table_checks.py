"""The named checks of changes of tables; which of them a protocol has, and in which order, its front says."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from whimbrel.broker.engine.tables import Change, GroupChange, TableChanges, TopicChange
from whimbrel.errors import BadRequest, IllegalTopic, TopicNotFound
from whimbrel.model.answers import parse_answer
from whimbrel.model.limits import QUEUES_MAX
from whimbrel.model.names import BUILT_IN_GROUPS, check_group, check_topic

__all__ = [
    "fields_asked", "group_if_there", "group_named", "group_of_clients", "group_there", "ignored_at_slave",
    "nothing_hidden", "refused_at_slave", "topic_if_there", "topic_named", "topic_there",
]  # fmt: skip


def refused_at_slave(tables: TableChanges, change: Change[Any]) -> None:
    """A slave takes no changes: its tables are its master's."""
    tables.check_master()


def ignored_at_slave(tables: TableChanges, change: Change[Any]) -> None:
    """A slave changes nothing, and says that all is well.

    RocketMQ's tools make topics on each broker of a group, and delete them on each; a real slave does it, and
    forgets it with the next copy of its master's table.
    """
    change.ignored = not tables.master


def fields_asked(tables: TableChanges, change: Change[Any]) -> None:
    """What is asked can be read, and is within its bounds."""
    for name, value in change.asked:
        change.values[name] = CHECKED[name](value) if name in CHECKED else value


def topic_named(tables: TableChanges, change: TopicChange) -> None:
    """Clients may make or change a topic of this name."""
    check_topic(change.name)
    if tables.topics.is_system(change.name):
        raise IllegalTopic(f"{change.name} is a system topic")


def topic_if_there(tables: TableChanges, change: TopicChange) -> None:
    """The topic is changed where there is one."""
    change.found = tables.topics.get(change.name)


def topic_there(tables: TableChanges, change: TopicChange) -> None:
    """There is the topic."""
    topic_if_there(tables, change)
    if change.found is None:
        raise TopicNotFound(f"no topic {change.name}")


def nothing_hidden(tables: TableChanges, change: TopicChange) -> None:
    """No messages come to lie in queues that nobody reads, unless that is wanted."""
    if not change.hides:
        assert change.found is not None
        tables.unread.check(change.found, tables.changed_topic(change))


def group_named(tables: TableChanges, change: GroupChange) -> None:
    """A group may have this name."""
    check_group(change.name)


def group_if_there(tables: TableChanges, change: GroupChange) -> None:
    """The group is changed where there is one."""
    change.found = tables.groups.get(change.name)


def group_there(tables: TableChanges, change: GroupChange) -> None:
    """A group may have this name, and there is one."""
    change.found = tables.group(change.name)


def group_of_clients(tables: TableChanges, change: GroupChange) -> None:
    """The group is not the broker's own."""
    if change.name in BUILT_IN_GROUPS:
        raise BadRequest(f"{change.name} is the broker's own")


# Fields


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


def checked_attempts(count: int) -> int:
    """Return a number of deliveries that a group may have.

    Raises:
        BadRequest: it may not.
    """
    if count < 1:
        raise BadRequest(f"{count} attempts: a message is delivered once at least")
    return count


def checked_percent(percent: int) -> int:
    """Return a share of receives.

    Raises:
        BadRequest: it is none.
    """
    if not 0 <= percent <= 100:
        raise BadRequest(f"{percent} of a hundred receives: give 0 to 100")
    return percent


CHECKED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "read_queues": checked_queues,
    "write_queues": checked_queues,
    "permission": checked_permission,
    "answer": parse_answer,
    "max_attempts": checked_attempts,
    "priority_percent": checked_percent,
}
