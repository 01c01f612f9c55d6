"""The broker's topics: `config/topics.json`, the topics that a fresh broker owns, and creation by a send.

A topic is created by a send only on a broker with `auto_create_topics`: that broker owns `TBW102` with the
inherit bit, and a new topic gets its permission without that bit and at most `AUTO_QUEUES` of its queues.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from whimbrel.broker.tables.versioned import VersionedTable
from whimbrel.errors import StoreFull
from whimbrel.model.limits import AUTO_QUEUES
from whimbrel.model.names import TEMPLATE_TOPIC, is_system_topic
from whimbrel.model.topic import MessageType, Permission, TopicConfig

__all__ = ["QUEUES_DEFAULT", "QUEUES_MAX", "TopicTable"]

QUEUES_DEFAULT = 8  # RocketMQ's default for topics made by an administrator
QUEUES_MAX = 4096  # each queue costs a file and lease state for every group; RocketMQ sets no bound

logger = logging.getLogger(__name__)


class TopicTable(VersionedTable[TopicConfig]):
    """Topics by name."""

    def __init__(
        self, config: Path, *, cluster: str, broker_name: str, auto_create: bool, clock: Callable[[], int]
    ) -> None:
        """Read the table below the config directory and add what a fresh broker owns."""
        super().__init__(config / "topics.json", "topicConfigTable", TopicConfig, clock=clock)
        self.auto_create = auto_create
        self.own = frozenset({cluster, broker_name, f"{cluster}_REPLY_TOPIC"})
        self.load(built_in(cluster, broker_name, auto_create=auto_create))
        template = self.rows.get(TEMPLATE_TOPIC)
        if template is not None:
            # A template left over from a run with the other setting would advertise what sends then refuse.
            wanted = template.permission & ~1 | (Permission.INHERIT if auto_create else 0)
            self.put(replace(template, permission=wanted))

    def adopt(self, queues: Mapping[str, Collection[int]]) -> None:
        """Make the topics that a lost or older file does not know, from their queues on disk.

        Their messages are readable again; what else was set for them is not known any more.
        """
        if self.whole:
            return
        for name, numbers in sorted(queues.items()):
            if name in self.rows:
                continue
            count = max(numbers) + 1
            logger.warning("%s does not know topic %s, which has %d queues on disk", self.path, name, count)
            try:
                self.put(TopicConfig(name=name, read_queues=count, write_queues=count))
            except StoreFull as error:  # the next start adopts it
                logger.warning("%s", error)

    def is_system(self, name: str) -> bool:
        """Tell whether the topic is the broker's own.

        Neither made, changed, deleted nor sent to by clients.
        """
        return is_system_topic(name) or name in self.own

    def would_create(self, name: str) -> TopicConfig | None:
        """Return the topic that a send would create.

        None when this broker does not create topics by itself.
        """
        template = self.rows.get(TEMPLATE_TOPIC)
        if not self.auto_create or template is None or not template.permission & Permission.INHERIT:
            return None
        queues = min(AUTO_QUEUES, template.write_queues)
        return TopicConfig(
            name=name,
            read_queues=queues,
            write_queues=queues,
            permission=template.permission & ~Permission.INHERIT,
            filter_type=template.filter_type,
        ).with_type(MessageType.NORMAL)

    def create_by_send(self, name: str) -> TopicConfig | None:
        """Create the topic from the template; None when this broker does not create topics by itself."""
        made = self.would_create(name)
        if made is not None:
            self.put(made)
        return made


def built_in(cluster: str, broker_name: str, *, auto_create: bool) -> list[TopicConfig]:
    """Return the topics that RocketMQ's broker makes when it starts (TopicConfigManager's constructor)."""

    def topic(name: str, queues: int, permission: int) -> TopicConfig:
        return TopicConfig(name=name, read_queues=queues, write_queues=queues, permission=permission)

    topics = [
        topic("SELF_TEST_TOPIC", 1, 6),
        topic("BenchmarkTest", 1024, 6),
        topic(cluster, 16, 7),
        topic(broker_name, 1, 7),
        topic("OFFSET_MOVED_EVENT", 1, 6),
        topic("SCHEDULE_TOPIC_XXXX", 18, 6),
        topic(f"{cluster}_REPLY_TOPIC", 1, 6),
    ]
    if auto_create:
        topics.append(topic(TEMPLATE_TOPIC, 8, 7))
    return topics
