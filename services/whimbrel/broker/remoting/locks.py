"""Requests about queues that ordered consumers lock: 41 LOCK_BATCH_MQ, 42 UNLOCK_BATCH_MQ.

    {"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"broker-a","queueId":3,"topic":"T"}]}
    41 ──► {"lockOKMQSet":[...]}     all of those asked for that the client holds now

`tables/queue_locks.py` has the rules. Only queues that are there are locked, for groups that are there: in
RocketMQ a stranger can lock what he likes, without end.
"""

from collections.abc import Callable, Mapping
from typing import Any

from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.queue_locks import QueueLocks
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import BadRequest, GroupNotFound
from whimbrel.model.limits import CLIENT_ID_CHARS_MAX, GROUP_CHARS_MAX
from whimbrel.model.names import RETRY_PREFIX
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import INT_MAX, Command
from whimbrel.rpc.remoting.fastjson import MessageQueue, dump_body, load_body
from whimbrel.rpc.remoting.handlers import Handle, Peer, Reply

__all__ = ["QUEUES_MAX", "RemotingLocks"]

QUEUES_MAX = 4096  # in a request: a topic has no more on one broker
BODY_BYTES_MAX = 2 << 20  # of which so many with the longest names
NAME_CHARS_MAX = len(RETRY_PREFIX) + GROUP_CHARS_MAX


class RemotingLocks:
    """Handles these requests. On the loop's thread."""

    def __init__(
        self, locks: QueueLocks, topics: TopicTable, groups: GroupTable, *, clock: Callable[[], float]
    ) -> None:
        """Take the locks, and what there is to lock for whom; `clock` is a monotonic one, in seconds."""
        self.locks, self.topics, self.groups, self.clock = locks, topics, groups, clock

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, peer: Peer, request: Command) -> Reply:
        """Lock queues for a client."""
        group, client_id, queues = self.read(request)
        if queues and group not in self.groups.rows:
            raise GroupNotFound(f"no consumer group {group}: create it first")
        there = {(one.topic, one.queue_id): one for one in queues if self.is_there(one)}
        held = self.locks.lock(group, client_id, list(there), self.clock())
        return Reply(body=[dump_body({"lockOKMQSet": [there[place] for place in held]})])

    def is_there(self, queue: MessageQueue) -> bool:
        """Tell whether there is such a queue."""
        topic = self.topics.get(queue.topic)
        return topic is not None and queue.queue_id < max(topic.read_queues, topic.write_queues)

    def unlock(self, peer: Peer, request: Command) -> Reply:
        """Release queues of a client."""
        group, client_id, queues = self.read(request)
        self.locks.unlock(group, client_id, [(one.topic, one.queue_id) for one in queues])
        return Reply()

    def sweep(self) -> None:
        """Forget locks whose time is over."""
        self.locks.expire(self.clock())

    def read(self, request: Command) -> tuple[str, str, list[MessageQueue]]:
        """Return group, client and queues of a request; `{}` names none.

        Raises:
            BadRequest: it can't be read, or names too many.
        """
        if len(request.body) > BODY_BYTES_MAX:
            raise BadRequest(f"the body of request {request.code} has {len(request.body)} bytes")
        found = load_body(request.body, f"the body of request {request.code}")
        rows = found.get("mqSet") or []
        if not isinstance(rows, list) or len(rows) > QUEUES_MAX:
            raise BadRequest(f"mqSet of request {request.code} is no list of up to {QUEUES_MAX} queues")
        if not rows:
            return "", "", []
        group = name_of(found, "consumerGroup", GROUP_CHARS_MAX)
        client_id = name_of(found, "clientId", CLIENT_ID_CHARS_MAX)
        return group, client_id, [queue_of(row) for row in rows]


def queue_of(row: Any) -> MessageQueue:
    """Return a queue."""
    if not isinstance(row, dict):
        raise BadRequest("a queue of mqSet is no object")
    queue_id = row.get("queueId")
    if type(queue_id) is not int or not 0 <= queue_id <= INT_MAX:
        raise BadRequest("queueId of a queue is no number of 32 bits from 0 on")
    names = name_of(row, "brokerName", NAME_CHARS_MAX), name_of(row, "topic", NAME_CHARS_MAX)
    return MessageQueue(names[0], queue_id, names[1])


def name_of(row: Mapping[str, Any], field: str, chars_max: int) -> str:
    """Return a field that has to be a text, and not a long one."""
    value = row.get(field)
    if not isinstance(value, str) or not value or len(value) > chars_max:
        raise BadRequest(f"{field} is no text of up to {chars_max} characters")
    return value
