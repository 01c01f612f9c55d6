"""ReceiveMessage: messages under a lease, now or when there are some.

What is checked, and in which order, says `V2_TAKES`, as RocketMQ's proxy does. A stream answer
is complete when it is written:

    receive   status, one message each, delivery_timestamp      nothing: status 40401, delivery_timestamp
    error     status, delivery_timestamp

The delivery timestamp closes every receive: without it the Python SDK's push consumer throws its batch away.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from whimbrel.broker.api.message_codec import timestamp
from whimbrel.broker.api.message_frames import message_frames, milliseconds, poll_ms
from whimbrel.broker.consume.plan import Delivered
from whimbrel.broker.engine import consuming, take_checks
from whimbrel.broker.engine.take import Take, TakeRules, Takes
from whimbrel.broker.engine.waiting import POLLS
from whimbrel.model.limits import RECEIVE_BATCH_MAX
from whimbrel.model.wire import CLIENT_ID_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import namespace_of, status_of
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
    """Handles receives on the loop's thread."""

    def __init__(
        self,
        takes: Takes,
        *,
        clock: Callable[[], int],
        lane_messages: LaneMessages | None = None,
    ) -> None:
        """Take what decides them, the clock in epoch milliseconds, and the lane, where that is active."""
        self.takes, self.clock, self.lane_messages = takes, clock, lane_messages

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
