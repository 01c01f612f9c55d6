"""The named checks of reads, each once; which of them a protocol has, and in which order, its front says.

RocketMQ: its proxy's ConsumerProcessor and its broker's PullMessageProcessor.

**The filter** of a pull of RocketMQ 4 is the one that it names, or the group's subscription, which heartbeats
brought. Where the pull knows a newer subscription it gets all messages if it is one of tags: clients compare
tags themselves, since a broker compares their hashes. Java's clients give a subscription a newer version
whenever their queues change, and the heartbeat that says so may come half a minute later; RocketMQ answers 25
until then (the client tries again), and here that is left to SQL.
"""

from whimbrel.broker.consume.filters import ALL, compile_filter
from whimbrel.broker.engine.read import Read, ReadRules, Reads, Run, Status
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import (
    Forbidden,
    GroupNotFound,
    IllegalOffset,
    NotSubscribed,
    SubscriptionOutdated,
    SubscriptionUnreadable,
    TopicNotFound,
)
from whimbrel.model.names import check_group, check_topic
from whimbrel.model.topic import READ, GroupConfig, TopicConfig
from whimbrel.store.scan import Filter

__all__ = [
    "filter_named", "follows_reset", "group_named", "group_of", "group_reads", "queue_of", "queue_there",
    "refused_outside", "shared_out", "told_outside", "topic_named",
]  # fmt: skip


def topic_named(reads: Reads, read: Read) -> None:
    """Clients read topics whose names may be topics' and that are no system topics."""
    check_topic(read.topic)


def group_named(reads: Reads, read: Read) -> None:
    """Groups have names that groups may have."""
    check_group(read.group)


def queue_there(reads: Reads, read: Read) -> None:
    """The topic is there, can be read, and has the queue."""
    read.topic = queue_of(reads.topics, read.topic, read.queue_id, read.rules).name


def group_reads(reads: Reads, read: Read) -> None:
    """The group is there, or is made, and may read."""
    read.config = config = group_of(reads.creation, read.group, read.rules)
    read.group = config.name  # the table's text: the request's may go


def filter_named(reads: Reads, read: Read) -> None:
    """The filter can be read; without one of its own a read has that of its group's subscription."""
    if read.text is None:
        read.wanted = subscribed(reads, read)
    else:
        read.wanted = compile_filter("sql" if read.sql else "tag", read.text)


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


def group_of(creation: GroupCreation, name: str, rules: ReadRules) -> GroupConfig:
    """Return a group's configuration, which is made where there is none and a broker may make groups.

    Raises:
        IllegalGroup, Throttled, Forbidden, GroupNotFound, StoreFull: see `GroupCreation.group`.
    """
    groups = creation.groups
    group = groups.rows.get(name)
    if group is None:
        group = creation.group(name) if rules.limited else groups.find(name, create=creation.master)
        if group is None:
            if not groups.auto_create:
                raise GroupNotFound(f"no consumer group {name}; create it, or switch auto_create_groups on")
            group = GroupConfig(name=name)  # a slave's table is its master's
    if not group.consume_enabled:
        raise Forbidden(f"reading is switched off for group {name}")
    return group


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
