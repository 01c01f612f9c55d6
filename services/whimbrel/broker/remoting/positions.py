"""Requests about offsets of groups and of queues.

    14  QUERY_CONSUMER_OFFSET           where a group stands: 0 with the offset, or 22
    15  UPDATE_CONSUMER_OFFSET          it stands there now; mostly oneway
    29  SEARCH_OFFSET_BY_TIMESTAMP      the first message stored at or after a time, else the end (as 5.x)
    30  GET_MAX_OFFSET                  the end
    31  GET_MIN_OFFSET                  the first message that is kept
    32  GET_EARLIEST_MSG_STORETIME      when that was stored, in epoch milliseconds; -1 for none

A group without a position on a *young* queue stands at 0: nothing of the queue was removed, and its first
message is not further back in the log than what fits in memory, or there is none. Elsewhere it is 22, and the
client begins where its own setting says. So RocketMQ decides it, and clients rely on that: a consumer that
starts with its topic gets the first message.

A commit for a topic or a queue that is not there has no effect, and is no error; one for a group that is not
there is 26. What else commits do is told in `consume/client_positions.py`.

RocketMQ: ConsumerManageProcessor, AdminBrokerProcessor.
"""

from collections.abc import Callable

from whimbrel.broker.consume.client_positions import ClientPositions
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import GroupNotFound
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Peer, Reply
from whimbrel.store.store import MessageStore

__all__ = ["RemotingPositions"]


class RemotingPositions:
    """Handles these requests. On the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        creation: GroupCreation,
        clients: RemotingClients,
        positions: ClientPositions,
        store: MessageStore,
        *,
        master: bool,
        memory_bytes: int,
        written: Callable[[], int],
    ) -> None:
        """Take what is read.

        Args:
            topics: the table. creation: has groups, and makes them.
            clients: tell whether members own a group's positions.
            positions: those of groups.
            store: where the messages are.
            master: positions may be moved back here.
            memory_bytes: how much of the log's end counts as in memory.
            written: returns the end of the log.
        """
        self.topics, self.creation, self.clients = topics, creation, clients
        self.positions, self.store, self.master = positions, store, master
        self.memory_bytes, self.written = memory_bytes, written

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    def query(self, peer: Peer, request: Command) -> Reply:
        """Return where a group stands on a queue."""
        group = request.text("consumerGroup")
        topic, queue_id = queue_of(request)
        offset = self.positions.get(group, topic, queue_id)
        if offset is None and self.is_young(topic, queue_id):
            offset = 0
        if offset is None:
            return Reply(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"group {group} has no offset on {topic}/{queue_id}: it may be new",
            )
        return offset_reply(offset)

    def is_young(self, topic: str, queue_id: int) -> bool:
        """Tell whether a queue has all of its messages, and they are in memory."""
        if self.store.queue_range(topic, queue_id)[0] > 0:
            return False
        first = self.store.queue_units(topic, queue_id, 0, 1)
        return not first or self.written() - first[0][0] <= self.memory_bytes

    def update(self, peer: Peer, request: Command) -> Reply:
        """Take where a group stands on a queue."""
        group, offset = request.text("consumerGroup"), request.int64("commitOffset")
        topic, queue_id = queue_of(request)
        if self.creation.group(group) is None:
            if self.master:
                raise GroupNotFound(f"no consumer group {group}: create it first")
            return Reply()  # a slave's table is its master's; what nobody there knows is not kept here
        config = self.topics.get(topic)
        if config is not None and 0 <= queue_id < max(config.read_queues, config.write_queues):
            owned = not self.master or self.clients.owns_positions(group)
            self.positions.commit(group, topic, queue_id, offset, owned=owned)
        return Reply()

    def search(self, peer: Peer, request: Command) -> Reply:
        """Return the first offset of a queue at or after a time."""
        return offset_reply(self.store.offset_by_time(*queue_of(request), request.int64("timestamp")))

    def max_offset(self, peer: Peer, request: Command) -> Reply:
        """Return the end of a queue."""
        return offset_reply(self.store.queue_range(*queue_of(request))[1])

    def min_offset(self, peer: Peer, request: Command) -> Reply:
        """Return the first offset of a queue."""
        return offset_reply(self.store.queue_range(*queue_of(request))[0])

    def earliest_time(self, peer: Peer, request: Command) -> Reply:
        """Return when the first message of a queue was stored."""
        topic, queue_id = queue_of(request)
        first = self.store.queue_units(topic, queue_id, self.store.queue_range(topic, queue_id)[0], 1)
        found = self.store.store_time_of(first[0][0]) if first else 0
        return Reply(fields={"timestamp": str(found or -1)})


def queue_of(request: Command) -> tuple[str, int]:
    """Return topic and queue id of a request."""
    return request.text("topic"), request.int32("queueId")


def offset_reply(offset: int) -> Reply:
    return Reply(fields={"offset": str(offset)})
