"""The broker's topics: `config/topics.json`, the topics that a fresh broker owns, and creation by a send.

A topic is created by a send only on a broker with `auto_create_topics`: that broker owns `TBW102` with the
inherit bit, and a new topic gets its permission without that bit and at most `AUTO_QUEUES` of its queues.
Topics that the log holds and the table does not: `adoption.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from whimbrel.broker.tables.versioned import VersionedTable
from whimbrel.machine import FILES, Files
from whimbrel.model.limits import AUTO_QUEUES
from whimbrel.model.names import (
    HALF_OP_TOPIC,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    UNDECIDED_TOPIC,
    is_system_topic,
)
from whimbrel.model.topic import INHERIT, READ, WRITE, MessageType, TopicConfig

__all__ = ["QUEUES_DEFAULT", "TopicTable"]

QUEUES_DEFAULT = 8  # RocketMQ's default for topics made by an administrator


class TopicTable(VersionedTable[TopicConfig]):
    """Topics by name.

    Attributes:
        drained: how many have lost their write bit by a drain.
        retry_names: names of groups' retry topics, in the table's order.
    """

    def __init__(
        self,
        config: Path,
        *,
        cluster: str,
        broker_name: str,
        auto_create: bool,
        trace_topic: bool = False,
        clock: Callable[[], int],
        files: Files = FILES,
        on_predecessor: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the table below the config directory and add what a fresh broker owns.

        Args:
            config, clock, files, on_predecessor: see `VersionedTable`.
            cluster, broker_name: name topics of the broker's own.
            auto_create: sends create topics. trace_topic: there is one for 4.x clients' message traces.
        """
        super().__init__(
            config / "topics.json",
            "topicConfigTable",
            TopicConfig,
            clock=clock,
            files=files,
            on_predecessor=on_predecessor,
        )
        self.drained = 0
        self.retry_names: dict[str, None] = {}
        self.auto_create = auto_create
        self.own = frozenset({cluster, broker_name, f"{cluster}_REPLY_TOPIC"})
        self.load(built_in(cluster, broker_name, auto_create=auto_create, trace_topic=trace_topic))
        template = self.rows.get(TEMPLATE_TOPIC)
        if template is not None:
            # A template left over from a run with the other setting would advertise what sends then refuse.
            self.set_auto_create(enabled=auto_create)

    def row_changed(self, old: TopicConfig | None, new: TopicConfig | None) -> None:
        """Keep the counts and the names of certain topics, so that nobody looks through all of them."""
        self.drained += (new is not None and new.drained) - (old is not None and old.drained)
        if new is None:
            assert old is not None, "a row is there before or after"
            self.retry_names.pop(old.name, None)
        elif new.name.startswith(RETRY_PREFIX):
            self.retry_names[new.name] = None

    def is_system(self, name: str) -> bool:
        """Return whether the topic is the broker's own: clients neither change it nor send to it."""
        return is_system_topic(name) or name in self.own

    def set_auto_create(self, *, enabled: bool) -> None:
        """Have sends make topics from now on, or not; the setting counts again after a start."""
        self.auto_create = enabled
        template = self.rows.get(TEMPLATE_TOPIC)
        if template is not None:
            wanted = template.permission & ~INHERIT | (INHERIT if enabled else 0)
            self.put(replace(template, permission=wanted))
        elif enabled:
            self.put(template_topic())

    def would_create(
        self,
        name: str,
        kind: MessageType = MessageType.NORMAL,
        *,
        template_name: str = TEMPLATE_TOPIC,
        queues_max: int = AUTO_QUEUES,
    ) -> TopicConfig | None:
        """Return the topic that a send would create; None when this broker creates none by itself.

        It takes messages of the kind of the first one.

        Args:
            name, kind: of the topic.
            template_name: the topic that it is made like, if that lends its configuration.
            queues_max: it gets no more.
        """
        template = self.rows.get(template_name)
        if not self.auto_create or template is None or not template.permission & INHERIT or template.drained:
            return None
        queues = max(min(queues_max, template.write_queues), 1)
        return TopicConfig(
            name=name,
            read_queues=queues,
            write_queues=queues,
            permission=template.permission & ~INHERIT,
            filter_type=template.filter_type,
        ).with_type(kind)

    def create_by_send(
        self,
        name: str,
        kind: MessageType = MessageType.NORMAL,
        *,
        template_name: str = TEMPLATE_TOPIC,
        queues_max: int = AUTO_QUEUES,
    ) -> TopicConfig | None:
        """Create the topic as `would_create` says; None when this broker creates none by itself."""
        made = self.would_create(name, kind, template_name=template_name, queues_max=queues_max)
        if made is not None:
            self.check_room()
            self.put(made)
        return made


def template_topic() -> TopicConfig:
    """Return what topics are made of that sends create."""
    return TopicConfig(name=TEMPLATE_TOPIC, read_queues=8, write_queues=8, permission=READ | WRITE | INHERIT)


def built_in(
    cluster: str, broker_name: str, *, auto_create: bool, trace_topic: bool = False
) -> list[TopicConfig]:
    """Return the topics of a fresh broker (RocketMQ: TopicConfigManager)."""

    def topic(name: str, queues: int, permission: int) -> TopicConfig:
        return TopicConfig(name=name, read_queues=queues, write_queues=queues, permission=permission)

    topics = [
        topic("SELF_TEST_TOPIC", 1, READ | WRITE),
        topic("BenchmarkTest", 1024, READ | WRITE),
        topic(cluster, 16, READ | WRITE | INHERIT),
        topic(broker_name, 1, READ | WRITE | INHERIT),
        topic("OFFSET_MOVED_EVENT", 1, READ | WRITE),
        topic(SCHEDULE_TOPIC, 18, READ | WRITE),
        topic(TIMER_TOPIC, 1, READ | WRITE),
        topic(HALF_TOPIC, 1, READ | WRITE),
        topic(HALF_OP_TOPIC, 1, READ | WRITE),
        topic(UNDECIDED_TOPIC, 1, READ | WRITE),
        topic(f"{cluster}_REPLY_TOPIC", 1, READ | WRITE),
    ]
    if trace_topic:
        topics.append(topic(TRACE_TOPIC, 1, READ | WRITE))
    if auto_create:
        topics.append(template_topic())
    return topics
