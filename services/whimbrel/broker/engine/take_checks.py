"""The named checks of takes beside those of `consuming.py` (RocketMQ: its proxy's ReceiveMessageActivity)."""

from random import randrange

from whimbrel.broker.consume.lease_codec import ATTEMPT_ID_BYTES_MAX
from whimbrel.broker.consume.plan import ReceiveRequest
from whimbrel.broker.engine.take import Take, Takes
from whimbrel.errors import BadRequest, Forbidden, TopicNotFound
from whimbrel.model.limits import AUTO_QUEUES
from whimbrel.model.names import check_invisible_ms
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig

__all__ = ["invisible_time", "queues_selected", "topic_there"]


def invisible_time(takes: Takes, take: Take) -> None:
    """The messages are invisible for a time that a lease may have."""
    if take.invisible_ms is not None:
        check_invisible_ms(take.invisible_ms)


def topic_there(takes: Takes, take: Take) -> None:
    """The topic is there; one that a send may still create is read as if it existed."""
    topic = takes.topics.rows.get(take.topic)
    if topic is None:
        if not takes.topics.auto_create:
            raise TopicNotFound(take.rules.no_topic.format(name=take.topic))
        topic = TopicConfig(name=take.topic, read_queues=AUTO_QUEUES, write_queues=AUTO_QUEUES)
    take.queues = topic


def queues_selected(takes: Takes, take: Take) -> None:
    """All queues are taken from, whatever the request names; of priorities the most urgent one first.

    There is one to read. The attempt id counts for ordered groups only, and is bounded there.
    """
    topic, group = take.queues, take.config
    assert topic is not None
    if not topic.readable:
        raise Forbidden(take.rules.not_readable.format(name=take.topic))
    queue_ids = range(topic.read_queues)
    by_priority = topic.message_type is MessageType.PRIORITY and not group.fifo and drawn(group)
    if not group.fifo:
        take.attempt_id = ""
    elif (size := len(take.attempt_id.encode())) > ATTEMPT_ID_BYTES_MAX:
        raise BadRequest(f"the attempt id has {size} bytes; at most {ATTEMPT_ID_BYTES_MAX} are allowed")
    take.selection = ReceiveRequest(
        group=take.group,
        topic=take.topic,
        queue_ids=queue_ids[::-1] if by_priority and takes.greatest_first else queue_ids,
        filter=take.wanted,
        batch=max(1, min(take.messages, take.rules.messages_max)),
        invisible_ms=take.invisible_ms,
        client_id=take.client_id,
        attempt_id=take.attempt_id,
        by_priority=by_priority,
    )


def drawn(group: GroupConfig) -> bool:
    """Return whether a receive of the group goes by priority (RocketMQ: PopMessageProcessor)."""
    share = group.priority_percent
    return share >= 100 or randrange(100) < share
