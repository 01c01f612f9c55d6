"""The named checks of reads, beside those of `consuming.py`; which of them a protocol has, its front says.

RocketMQ: its proxy's ConsumerProcessor and its broker's PullMessageProcessor.

**The filter** of a pull of RocketMQ 4 is the one that it names, or the group's subscription, which heartbeats
brought. Where the pull knows a newer subscription it gets all messages if it is one of tags: clients compare
tags themselves, since a broker compares their hashes. Java's clients give a subscription a newer version
whenever their queues change, and the heartbeat that says so may come half a minute later; RocketMQ answers 25
until then (the client tries again), and here that is left to SQL.
"""

from whimbrel.broker.consume.filters import ALL
from whimbrel.broker.engine.consuming import filter_given
from whimbrel.broker.engine.read import Read, ReadRules, Reads, Run, Status
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import (
    Forbidden,
    IllegalOffset,
    NotSubscribed,
    SubscriptionOutdated,
    SubscriptionUnreadable,
    TopicNotFound,
)
from whimbrel.model.topic import READ, TopicConfig
from whimbrel.store.scan import Filter

__all__ = [
    "filter_known", "follows_reset", "queue_of", "queue_there", "refused_outside", "shared_out",
    "told_outside",
]  # fmt: skip


def queue_there(reads: Reads, read: Read) -> None:
    """The topic is there, can be read, and has the queue."""
    read.topic = queue_of(reads.topics, read.topic, read.queue_id, read.rules).name


def filter_known(reads: Reads, read: Read) -> None:
    """The filter can be read; without one of its own a read has that of its group's subscription."""
    if read.text is None:
        read.wanted = subscribed(reads, read)
    else:
        filter_given(reads, read)


def follows_reset(reads: Reads, read: Read) -> None:
    """A reader whose group was reset is sent to the new position, until it comes there."""
    if not reads.positions.redirected:
        return
    target = reads.positions.redirect(read.group, read.topic, read.queue_id, read.offset)
    if target is not None:
        low, high = reads.store.queue_range(read.topic, read.queue_id)
        read.answered = Run(Status.OFFSET_RESET, target, low, high, moved=True)


def shared_out(reads: Reads, read: Read) -> None:
    """Where members share queues out, receives of the group leave out those that are read."""
    if reads.pulled is not None and reads.members.owns_positions(read.group):
        reads.pulled.note(read.group, read.topic, read.queue_id, reads.waiting.clock())


def queue_of(topics: TopicTable, name: str, queue_id: int, rules: ReadRules) -> TopicConfig:
    """Return the topic of a queue that can be read.

    Raises:
        TopicNotFound, Forbidden, or the rules' error: it can't.
    """
    topic = topics.rows.get(name)
    if topic is None:
        raise TopicNotFound(rules.no_topic.format(name=name))
    if topic.permission & READ and 0 <= queue_id < topic.read_queues:
        return topic
    if not topic.readable:
        raise Forbidden(rules.not_readable.format(name=name))
    raise rules.no_queue(f"queue {queue_id} is not one of the {topic.read_queues} of {name}")


def subscribed(reads: Reads, read: Read) -> Filter:
    """Return what the group's members want of the topic."""
    members = reads.members.group(read.group)
    if members is None:
        raise NotSubscribed(f"no member of group {read.group} is known here yet")
    if members.broadcasting and not read.config.rest.get("consumeBroadcastEnable", True):
        raise Forbidden(f"group {read.group} may not consume by broadcast")
    subscription = members.subscription(read.topic)
    if subscription is None:
        raise NotSubscribed(f"group {read.group} has not subscribed to {read.topic}")
    if subscription.version < read.version:
        if subscription.sql or read.sql:
            raise SubscriptionOutdated(
                f"the newest subscription of group {read.group} to {read.topic} has not come here yet"
            )
        return ALL
    if subscription.filter is None:
        raise SubscriptionUnreadable(f"the subscription of group {read.group} to {read.topic} can't be read")
    return subscription.filter


# Outside of the queue


def refused_outside(reads: Reads, read: Read, low: int, high: int) -> Run:
    """An offset outside of the queue is an error; one beyond the end of a log that follows is early.

    (RocketMQ's proxy answers ILLEGAL_OFFSET.)
    """
    offset = read.offset
    if offset < low or (offset > high and not reads.follows):
        raise IllegalOffset(
            f"offset {offset} lies outside {read.topic}/{read.queue_id}, which holds {low} to {high}"
        )
    return Run(Status.OFFSET_OVERFLOW_ONE, offset, low, high, waits=True)


def told_outside(reads: Reads, read: Read, low: int, high: int) -> Run:
    """A reader outside of the queue is told where to go on; where the log follows it waits for what comes.

    (RocketMQ: DefaultMessageStore.getMessage, PullMessageProcessor.)
    """
    offset, follows = read.offset, reads.follows
    if high == 0:
        if offset == 0:
            return Run(Status.NO_MESSAGE_IN_QUEUE, 0, low, high, waits=True)
        found, target = Status.NO_MESSAGE_IN_QUEUE, 0
    elif offset == high:
        return Run(Status.OFFSET_OVERFLOW_ONE, offset, low, high, waits=True)
    elif offset < low:
        found, target = Status.OFFSET_TOO_SMALL, low
    else:
        found, target = Status.OFFSET_OVERFLOW_BADLY, high
    if follows:
        return Run(found, offset, low, high, waits=found is not Status.NO_MESSAGE_IN_QUEUE)
    return Run(found, target, low, high, moved=True)
