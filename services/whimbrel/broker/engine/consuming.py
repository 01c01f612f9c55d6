"""What reads and takes have in common: a group asks for messages of a topic, by a filter."""

from dataclasses import dataclass, field
from typing import Protocol

from whimbrel.broker.consume.filters import ALL, compile_filter
from whimbrel.broker.engine.waiting import Kind
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.errors import Forbidden, GroupNotFound
from whimbrel.model.names import check_group, check_topic
from whimbrel.model.topic import GroupConfig
from whimbrel.store.scan import Filter

__all__ = [
    "Consume", "ConsumeRules", "filter_given", "found_group", "group_named", "group_of", "group_reads",
    "topic_named",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeRules:
    """How a protocol decides both.

    Attributes:
        kind: how it waits.
        no_topic: says that there is no topic `{name}`. not_readable: that it has no queue to read.
        limited: groups that are made count against what strangers may make in a second.
    """

    kind: Kind
    no_topic: str
    not_readable: str
    limited: bool


@dataclass(slots=True, eq=False)
class Consume:
    """What a front says, and, from `config` on, what the checks have found.

    Attributes:
        rules: of its protocol.
        group, topic: their names.
        text: of the filter; None where the group's subscription counts. sql: whether that is SQL.
        config: of the group.
        wanted: which messages.
    """

    rules: ConsumeRules
    group: str
    topic: str
    text: str | None
    sql: bool
    config: GroupConfig = field(default=GroupConfig(name=""), init=False)
    wanted: Filter = field(default=ALL, init=False)


class Verb(Protocol):
    """What decides them."""

    @property
    def creation(self) -> GroupCreation: ...


def topic_named(verb: Verb, consume: Consume) -> None:
    """Clients read topics whose names may be topics' and that are no system topics."""
    check_topic(consume.topic)


def group_named(verb: Verb, consume: Consume) -> None:
    """Groups have names that groups may have."""
    check_group(consume.group)


def filter_given(verb: Verb, consume: Consume) -> None:
    """The filter can be read."""
    consume.wanted = compile_filter("sql" if consume.sql else "tag", consume.text or "")


def group_reads(verb: Verb, consume: Consume) -> None:
    """The group is there, or is made, and may read."""
    consume.config = config = group_of(verb.creation, consume.group, consume.rules)
    consume.group = config.name  # the table's text: the request's may go


def group_of(creation: GroupCreation, name: str, rules: ConsumeRules) -> GroupConfig:
    """Return a group's configuration, which is made where there is none and a broker may make groups.

    Raises:
        IllegalGroup, Throttled, Forbidden, GroupNotFound, StoreFull: see `GroupCreation.group`.
    """
    group = creation.groups.rows.get(name)
    if group is None:
        group = found_group(creation, name, rules)
        if group is None:
            if not creation.groups.auto_create:
                raise GroupNotFound(f"no consumer group {name}; create it, or switch auto_create_groups on")
            group = GroupConfig(name=name)  # a slave's table is its master's
    if not group.consume_enabled:
        raise Forbidden(f"reading is switched off for group {name}")
    return group


def found_group(creation: GroupCreation, name: str, rules: ConsumeRules) -> GroupConfig | None:
    """Return the same, whether or not it may read; None: there is none, and none may be made here.

    Raises:
        IllegalGroup, Throttled, Forbidden, StoreFull: see `GroupCreation.group`.
    """
    return creation.group(name) if rules.limited else creation.groups.find(name, create=creation.master)
