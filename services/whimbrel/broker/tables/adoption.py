"""Adopts topics from their queues: what the log holds messages of is served, whatever the table knows.

A message reaches a slave by its replicator, the topic by its broker: a slave whose broker was down when the
topic was made holds acknowledged messages of a topic that its table does not know. The table may also be an
older one, read in place of a damaged file. So topics are adopted at every start, at every change of role (a
slave that becomes the master among them), and on a slave while it has no master to copy the table from.

    topic unknown                 made, with as many queues as the highest queue id asks for; of the type that
                                  its newest messages show: of several MIXED, without any sign NORMAL
    queue beyond the topic's last the topic gets that many queues if the queue's newest message was stored
                                  after the table's last change: else its queues were taken away on purpose
    queue of a deleted topic      nothing: the store tells its queues from those of a topic made since

The table of a master that lives replaces all of this. Queues are never removed for want of a topic: only a
deletion removes them, as far as it went (`store/queue_floors.py`).
"""

import logging
from dataclasses import replace
from typing import Protocol

from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import IllegalTopic, StoreFull
from whimbrel.model.limits import QUEUES_MAX
from whimbrel.model.names import GROUP_TOPIC_PREFIXES, check_topic
from whimbrel.model.properties import (
    DELAY,
    PRIORITY,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
)
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.store.codec import TRANSACTION_COMMIT, TRANSACTION_MASK, StoredMessage

__all__ = ["QueuesOnDisk", "adopt_topics"]

QUEUES_ASKED_MAX = 16  # of a topic, whose newest messages tell its type: a look each

DELAYS = frozenset({TIMER_DELIVER_MS, DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC})

logger = logging.getLogger(__name__)


class QueuesOnDisk(Protocol):
    """What is used of the store."""

    def topics_on_disk(self) -> dict[str, set[int]]:
        """Return the ids of the queues with entries, by topic."""

    def newest_message(self, topic: str, queue_id: int) -> StoredMessage | None:
        """Return the last message of a queue."""


def adopt_topics(topics: TopicTable, store: QueuesOnDisk) -> None:
    """Bring the table up to what the queues hold; a full disk puts that off to the next time."""
    adopted: list[TopicConfig] = []
    for name, queue_ids in sorted(store.topics_on_disk().items()):
        known = topics.get(name)
        count = min(max(queue_ids) + 1, QUEUES_MAX)
        if known is None:
            made = topic_of(name, queue_ids, count, store)
        elif count > known.read_queues and grown(topics, name, count - 1, store):
            made = replace(known, read_queues=count, write_queues=max(count, known.write_queues))
        else:
            continue
        if made is not None:
            logger.warning(
                "%s does not know all of topic %s: it has %d queues on disk", topics.path, name, count
            )
            adopted.append(made)
    try:
        topics.put_all(adopted)
    except StoreFull as error:
        logger.warning("%s", error)


def topic_of(name: str, queue_ids: set[int], count: int, store: QueuesOnDisk) -> TopicConfig | None:
    """Return the configuration of an unknown topic; None where no topic has such a name."""
    try:
        check_topic(name, system_allowed=True)
    except IllegalTopic as error:
        logger.warning("queues of %r are left alone: %s", name, error)
        return None
    made = TopicConfig(name=name, read_queues=count, write_queues=count)
    if name.startswith(GROUP_TOPIC_PREFIXES):
        return made  # its messages are copies of those of other topics
    newest = (store.newest_message(name, queue_id) for queue_id in sorted(queue_ids)[:QUEUES_ASKED_MAX])
    kinds = {type_of(message) for message in newest if message is not None}
    if not kinds - {MessageType.NORMAL}:
        return made
    return made.with_type(kinds.pop() if len(kinds) == 1 else MessageType.MIXED)


def grown(topics: TopicTable, name: str, queue_id: int, store: QueuesOnDisk) -> bool:
    """Return whether a queue got a message after the table's last change."""
    newest = store.newest_message(name, queue_id)
    return newest is not None and newest.store_timestamp > topics.version.timestamp


def type_of(message: StoredMessage) -> MessageType:
    """Return the type of topic that takes such a message."""
    if message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT or TRAN_MSG in message.properties:
        return MessageType.TRANSACTION
    if SHARDING_KEY in message.properties:
        return MessageType.FIFO
    if DELAYS & message.properties.keys():
        return MessageType.DELAY
    if PRIORITY in message.properties:
        return MessageType.PRIORITY
    return MessageType.NORMAL
