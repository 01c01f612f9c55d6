"""The calls of consumers: receive, and the offset calls.

What is checked of a receive, and in which order, says `V2_TAKES`, as RocketMQ's proxy does. A stream answer
is complete when it is written:

    receive   status, one message each, delivery_timestamp      nothing: status 40401, delivery_timestamp
    error     status, delivery_timestamp

The delivery timestamp closes every receive: without it the Python SDK's push consumer throws its batch away.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from whimbrel.broker.api.message_codec import timestamp
from whimbrel.broker.api.message_frames import message_frames, milliseconds, poll_ms
from whimbrel.broker.api.pulls import V2_READS
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.plan import Delivered
from whimbrel.broker.engine import consuming, take_checks
from whimbrel.broker.engine.consuming import group_of
from whimbrel.broker.engine.read_checks import queue_of
from whimbrel.broker.engine.take import Take, TakeRules, Takes
from whimbrel.broker.engine.waiting import POLLS
from whimbrel.errors import BadRequest
from whimbrel.model.limits import RECEIVE_BATCH_MAX
from whimbrel.model.names import check_group, check_topic
from whimbrel.model.topic import TopicConfig
from whimbrel.model.wire import CLIENT_ID_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK, namespace_of, status_of
from whimbrel.store.lane_messages import LaneMessages

__all__ = ["V2_TAKES", "ReceiveService"]

NOTHING = v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message")


V2_TAKES: Final = TakeRules(
    checks=(
        consuming.topic_named,
        consuming.group_named,
        take_checks.invisible_time,
        consuming.filter_given,
        take_checks.topic_there,
        consuming.group_reads,
        take_checks.queues_selected,
    ),
    kind=POLLS,
    messages_max=RECEIVE_BATCH_MAX,
    no_topic="no topic {name}; create it, or switch auto_create_topics on",
    not_readable="topic {name} has no readable queue here",
    limited=False,
)


class ReceiveService:
    """Handles the calls of consumers on the loop's thread."""

    def __init__(
        self,
        takes: Takes,
        consumption: GroupConsumption,
        *,
        clock: Callable[[], int],
        lane_messages: LaneMessages | None = None,
    ) -> None:
        """Take what decides receives, and what the other calls change."""
        self.takes, self.topics, self.creation = takes, takes.topics, takes.creation
        self.positions, self.clock, self.lane_messages = consumption.positions, clock, lane_messages

    def receive(self, call: Call, request: messaging.ReceiveMessageRequest) -> Any:
        """Receive messages under a lease, or wait for some."""
        topic, wanted = request.message_queue.topic, request.filter_expression
        namespace = namespace_of(call, topic)
        polling = request.long_polling_timeout if request.HasField("long_polling_timeout") else None
        take = Take(
            V2_TAKES,
            request.group.name,
            topic.name,
            wanted.expression,
            wanted.type == v2.SQL,
            request.batch_size,
            None if request.auto_renew else milliseconds(request.invisible_duration),
            call.metadata[CLIENT_ID_HEADER],
            request.attempt_id,
            poll_ms(call, polling),
        )

        def render(take: Take, messages: Sequence[Delivered]) -> list[Any]:
            response = messaging.ReceiveMessageResponse
            last = response(delivery_timestamp=timestamp(self.clock()))
            if not messages:
                return [response(status=NOTHING), last]
            return message_frames(response, messages, namespace, self.lane_messages, last.SerializeToString())

        return self.takes.take(take, render)

    def receive_failed(self, call: Call, error: Exception) -> list[Any]:
        """Return the answer to a refused receive."""
        return [
            messaging.ReceiveMessageResponse(status=status_of(error)),
            messaging.ReceiveMessageResponse(delivery_timestamp=timestamp(self.clock())),
        ]

    def queue(self, queue: v2.MessageQueue) -> tuple[TopicConfig, int]:
        """Return the topic and id of a queue that must be named exactly."""
        check_topic(queue.topic.name)
        topic = queue_of(self.topics, queue.topic.name, queue.id, V2_READS)
        return topic, queue.id

    def update_offset(self, call: Call, request: messaging.UpdateOffsetRequest) -> Any:
        """Commit a group's position on one queue."""
        topic, queue_id = self.queue(request.message_queue)
        check_group(request.group.name)
        group_of(self.creation, request.group.name, V2_READS)
        self.positions.update_offset(request.group.name, topic.name, queue_id, request.offset)
        return messaging.UpdateOffsetResponse(status=OK)

    def get_offset(self, call: Call, request: messaging.GetOffsetRequest) -> Any:
        """Return a group's position on one queue."""
        topic, queue_id = self.queue(request.message_queue)
        check_group(request.group.name)
        offset = self.positions.get_offset(request.group.name, topic.name, queue_id)
        return messaging.GetOffsetResponse(status=OK, offset=offset)

    def query_offset(self, call: Call, request: messaging.QueryOffsetRequest) -> Any:
        """Return the begin or the end of a queue, or its offset at a time."""
        topic, queue_id = self.queue(request.message_queue)
        policy: Literal["begin", "end", "time"] = "begin"
        if request.query_offset_policy == messaging.END:
            policy = "end"
        elif request.query_offset_policy == messaging.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise BadRequest("the policy TIMESTAMP needs a timestamp")
            policy = "time"
        at_ms = request.timestamp.seconds * 1000 + request.timestamp.nanos // 1_000_000
        offset = self.positions.query_offset(topic.name, queue_id, policy, at_ms)
        return messaging.QueryOffsetResponse(status=OK, offset=offset)
