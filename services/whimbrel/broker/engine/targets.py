"""What sends to a topic need to know, kept for the topics that are in use."""

from random import randrange
from typing import Final

from whimbrel.broker.tables.topics import TopicTable
from whimbrel.model.names import (
    HALF_OP_TOPIC,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    UNDECIDED_TOPIC,
)
from whimbrel.model.topic import MessageType, TopicConfig

__all__ = ["TARGETS_MAX", "SendTarget", "SendTargets", "brokers_own"]

TARGETS_MAX = 4096  # topics whose `SendTarget` is kept
# What would be taken for the broker's own records, as in all topics of the prefix. RocketMQ 5 refuses these
# as well, 4.9.3 only the first.
NOT_SENT_TO: Final = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, HALF_OP_TOPIC, UNDECIDED_TOPIC))


def brokers_own(name: str) -> bool:
    """Return whether nobody but the broker itself sends to a topic of the name."""
    return name in NOT_SENT_TO or name.startswith(SYSTEM_TOPIC_PREFIX)


class SendTarget:
    """What sends to a topic need to know.

    Attributes:
        topic: its configuration; another object means that it has changed.
        system: its name is reserved for the broker.
        open: by every protocol that knows system topics a send goes to it without a further look.
        plain: it takes messages without a type of their own, and has them answered when they are durable.
        answer_copies: see `TopicConfig.answer_copies`.
        queues: that may be written.
        turn: counts the requests that left the queue to this broker; it starts anywhere, so that topics whose
            targets are often dropped and made anew use all of their queues, too.
    """

    __slots__ = ("answer_copies", "open", "plain", "queues", "system", "topic", "turn")

    def __init__(self, topic: TopicConfig, *, system: bool = False) -> None:
        self.topic, self.system = topic, system
        self.open = not (topic.drained or brokers_own(topic.name) or topic.name.startswith(RETRY_PREFIX))
        self.answer_copies = topic.answer_copies
        self.plain = (
            topic.message_type in (MessageType.NORMAL, MessageType.MIXED) and self.answer_copies is None
        )
        self.queues = topic.write_queues if topic.writable else 0
        self.turn = randrange(self.queues or 1)


class SendTargets:
    """The targets that are kept, by topic; at most `TARGETS_MAX`.

    Attributes:
        kept: may be of topics that have changed since.
        found: by the lane, in its present pass; whoever begins one clears it.
    """

    def __init__(self, topics: TopicTable) -> None:
        """Begin without any."""
        self.topics = topics
        self.kept: dict[str, SendTarget] = {}
        self.found: dict[str, SendTarget] = {}

    def of(self, topic: TopicConfig) -> SendTarget:
        """Return the kept target of a topic, or a new one if the topic has changed or was not in use."""
        target = self.kept.get(topic.name)
        if target is None or target.topic is not topic:
            if len(self.kept) >= TARGETS_MAX:
                self.kept.clear()
            target = SendTarget(topic, system=self.topics.is_system(topic.name))
            self.kept[topic.name] = target
        return target

    def plain(self, name: str) -> SendTarget | None:
        """Find a topic that takes plain messages of all clients now; None: a send has more to decide."""
        topic = self.topics.rows.get(name)
        target = None if topic is None else self.of(topic)
        if target is None or target.system or not (target.plain and target.queues):
            return None
        self.found[name] = target
        return target

    def opened(self, name: str) -> SendTarget | None:
        """Do the same for clients that know system topics, and nothing of types and permissions."""
        topic = self.topics.rows.get(name)
        target = None if topic is None else self.of(topic)
        if target is None or not target.open or target.answer_copies is not None:
            return None
        self.found[name] = target
        return target
