"""UpdateOffset, GetOffset and QueryOffset: where a group stands on a queue, and where that begins and ends.

    request ──► a call of the engine (`engine/positions.py`) ──► response

What is checked, and in which order, says `V2_POSITIONS`, as RocketMQ's proxy does.
"""

from functools import partial
from typing import Any, Final

from whimbrel.broker.api.pulls import V2_READS
from whimbrel.broker.engine import position_checks
from whimbrel.broker.engine.positions import Position, PositionCalls, PositionRules
from whimbrel.errors import BadRequest
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK

__all__ = ["V2_POSITIONS", "PositionService"]

V2_POSITIONS: Final = PositionRules(
    commits=(position_checks.queue_named, position_checks.group_named, position_checks.group_reads),
    gets=(position_checks.queue_named, position_checks.group_named),
    queries=(position_checks.serving, position_checks.queue_named),
    moves=position_checks.moves_forward,
    unknown=position_checks.stands_nowhere,
    reads=V2_READS,
)


class PositionService:
    """Handles the calls on the loop's thread."""

    def __init__(self, calls: PositionCalls) -> None:
        """Take what decides."""
        self.calls = calls

    def update_offset(self, call: Call, request: messaging.UpdateOffsetRequest) -> Any:
        """Commit a group's position on one queue."""
        group, offset = request.group.name, request.offset
        done = self.calls.commit(partial(position_of, request.message_queue, group, offset))
        response = messaging.UpdateOffsetResponse(status=OK)
        return response if done is None else done.mapped(lambda _: response)

    def get_offset(self, call: Call, request: messaging.GetOffsetRequest) -> Any:
        """Return a group's position on one queue."""
        offset = self.calls.get(partial(position_of, request.message_queue, request.group.name))
        return messaging.GetOffsetResponse(status=OK, offset=offset)

    def query_offset(self, call: Call, request: messaging.QueryOffsetRequest) -> Any:
        """Return the begin or the end of a queue, or its offset at a time."""
        position = position_of(request.message_queue)
        if request.query_offset_policy == messaging.END:
            offset = self.calls.end(position)
        elif request.query_offset_policy == messaging.TIMESTAMP:
            offset = self.calls.at(position, partial(milliseconds_of, request))
        else:
            offset = self.calls.first(position)
        return messaging.QueryOffsetResponse(status=OK, offset=offset)


def position_of(queue: v2.MessageQueue, group: str = "", offset: int = 0) -> Position:
    """Return which position of a queue a request means."""
    return Position(V2_POSITIONS, queue.topic.name, queue.id, group, offset)


def milliseconds_of(request: messaging.QueryOffsetRequest) -> int:
    """Return the time that a request asks for, in epoch milliseconds.

    Raises:
        BadRequest: it says none.
    """
    if not request.HasField("timestamp"):
        raise BadRequest("the policy TIMESTAMP needs a timestamp")
    return request.timestamp.seconds * 1000 + request.timestamp.nanos // 1_000_000
