"""Requests about offsets of groups and of queues.

    14  QUERY_CONSUMER_OFFSET           where a group stands: 0 with the offset, or 22
    15  UPDATE_CONSUMER_OFFSET          it stands there now; mostly oneway
    29  SEARCH_OFFSET_BY_TIMESTAMP      the first message stored at or after a time, else the end (as 5.x)
    30  GET_MAX_OFFSET                  the end
    31  GET_MIN_OFFSET                  the first message that is kept
    32  GET_EARLIEST_MSG_STORETIME      when that was stored, in epoch milliseconds; -1 for none

A commit for a topic or a queue that is not there has no effect, and is no error; one for a group that is not
there is 26. What else commits do is told in `consume/client_positions.py`; where a group stands that has no
position, in `engine/position_checks.py`.

RocketMQ: ConsumerManageProcessor, AdminBrokerProcessor.
"""

from functools import partial
from typing import Final

from whimbrel.broker.engine import position_checks
from whimbrel.broker.engine.positions import Position, PositionCalls, PositionRules
from whimbrel.broker.remoting.pulls import REMOTING_READS
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply

__all__ = ["REMOTING_POSITIONS", "RemotingPositions"]

REMOTING_POSITIONS: Final = PositionRules(
    commits=(position_checks.group_commits, position_checks.queue_there),
    gets=(),
    queries=(),
    moves=position_checks.member_moves,
    unknown=position_checks.at_0_where_young,
    reads=REMOTING_READS,
)


class RemotingPositions:
    """Handles these requests. On the loop's thread."""

    def __init__(self, calls: PositionCalls) -> None:
        """Take what decides."""
        self.calls = calls

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
        return offset_reply(self.calls.get(partial(position_of, request)))

    def update(self, peer: Peer, request: Command) -> Outcome:
        """Take where a group stands on a queue."""
        done = self.calls.commit(partial(committed_by, request))
        return Reply() if done is None else done.mapped(lambda _: Reply())

    def search(self, peer: Peer, request: Command) -> Reply:
        """Return the first offset of a queue at or after a time."""
        return offset_reply(self.calls.at(queue_of(request), lambda: request.int64("timestamp")))

    def max_offset(self, peer: Peer, request: Command) -> Reply:
        """Return the end of a queue."""
        return offset_reply(self.calls.end(queue_of(request)))

    def min_offset(self, peer: Peer, request: Command) -> Reply:
        """Return the first offset of a queue."""
        return offset_reply(self.calls.first(queue_of(request)))

    def earliest_time(self, peer: Peer, request: Command) -> Reply:
        """Return when the first message of a queue was stored."""
        return Reply(fields={"timestamp": str(self.calls.first_time(queue_of(request)) or -1)})


def queue_of(request: Command, group: str = "", offset: int = 0) -> Position:
    """Return which position of a queue a request means."""
    topic, queue_id = request.text("topic"), request.int32("queueId")
    return Position(REMOTING_POSITIONS, topic, queue_id, group, offset)


def position_of(request: Command) -> Position:
    """Return which group's position it means."""
    return queue_of(request, request.text("consumerGroup"))


def committed_by(request: Command) -> Position:
    """Return what it commits."""
    return queue_of(request, request.text("consumerGroup"), request.int64("commitOffset"))


def offset_reply(offset: int) -> Reply:
    return Reply(fields={"offset": str(offset)})
