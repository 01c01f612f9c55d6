"""What the rules of calls about positions are made of; which of them a protocol has, its front says.

RocketMQ: its proxy's ConsumerProcessor; its broker's ConsumerManageProcessor and AdminBrokerProcessor.

A group without a position on a *young* queue stands at 0: nothing of the queue was removed, and its first
message is not further back in the log than what fits in memory, or there is none. Elsewhere a client of
RocketMQ 4 begins where its own setting says. So RocketMQ decides it, and clients rely on that: a consumer
that starts with its topic gets the first message.
"""

from whimbrel.broker.engine.consuming import found_group, group_of
from whimbrel.broker.engine.positions import Position, PositionCalls, all_queues
from whimbrel.broker.engine.read_checks import queue_of
from whimbrel.errors import GroupNotFound, OffsetNotFound
from whimbrel.model.names import check_group, check_topic

__all__ = [
    "at_0_where_young", "group_commits", "group_named", "group_reads", "member_moves", "moves_forward",
    "queue_named", "queue_there", "serving", "stands_nowhere",
]  # fmt: skip


def serving(calls: PositionCalls, position: Position) -> None:
    """What is asked of a queue alone is answered once positions are known here, too."""
    calls.check_serving()


def queue_named(calls: PositionCalls, position: Position) -> None:
    """The topic has a name that topics may have, is there, can be read, and has the queue."""
    check_topic(position.topic)
    position.topic = queue_of(calls.topics, position.topic, position.queue_id, position.rules.reads).name


def queue_there(calls: PositionCalls, position: Position) -> None:
    """What is committed for a topic or a queue that is not there has no effect."""
    topic = calls.topics.get(position.topic)
    position.ignored = topic is None or position.queue_id not in range(all_queues(topic))


def group_named(calls: PositionCalls, position: Position) -> None:
    """Groups have names that groups may have."""
    check_group(position.group)


def group_reads(calls: PositionCalls, position: Position) -> None:
    """The group is there, or is made, and may read."""
    group_of(calls.creation, position.group, position.rules.reads)


def group_commits(calls: PositionCalls, position: Position) -> None:
    """The group is there, or is made; a slave's table is its master's, and it keeps nothing of others."""
    if found_group(calls.creation, position.group, position.rules.reads) is not None:
        return
    if calls.creation.master:
        raise GroupNotFound(f"no consumer group {position.group}: create it first")
    position.ignored = True


def moves_forward(calls: PositionCalls, position: Position) -> None:
    """A position within the queue counts, unless the group is further on."""
    positions = calls.positions.positions
    positions.update_offset(position.group, position.topic, position.queue_id, position.offset)


def member_moves(calls: PositionCalls, position: Position) -> None:
    """What a client says that owns the group's positions, or resets them where nobody does."""
    owned = not calls.creation.master or calls.members.owns_positions(position.group)
    calls.positions.commit(position.group, position.topic, position.queue_id, position.offset, owned=owned)


def stands_nowhere(calls: PositionCalls, position: Position) -> int:
    """A group without a position stands nowhere."""
    raise OffsetNotFound(f"group {position.group} has no offset on {position.topic}/{position.queue_id}")


def at_0_where_young(calls: PositionCalls, position: Position) -> int:
    """A group without a position stands at 0 on a young queue, elsewhere nowhere; see above."""
    topic, queue_id, store = position.topic, position.queue_id, calls.store
    if store.queue_range(topic, queue_id)[0] == 0:
        first = store.queue_units(topic, queue_id, 0, 1)
        if not first or calls.splitting.written() - first[0][0] <= calls.splitting.memory:
            return 0
    raise OffsetNotFound(f"group {position.group} has no offset on {topic}/{queue_id}: it may be new")
