"""The calls of consumers: receive, and the offset calls.

Checks run in RocketMQ's order, then the parts of `group_consumption.py` do the work, and their values become
messages here. A stream answer is complete when it is written:

    receive   status, one message each, delivery_timestamp      nothing: status 40401, delivery_timestamp
    error     status, delivery_timestamp

The delivery timestamp closes every receive: without it the Python SDK's push consumer throws its batch away.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import randrange
from typing import Any, Literal

from whimbrel.broker.api.message_codec import timestamp
from whimbrel.broker.api.message_frames import message_frames, milliseconds, poll_ms
from whimbrel.broker.api.pulls import V2_READS
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.lease_codec import ATTEMPT_ID_BYTES_MAX
from whimbrel.broker.consume.long_polls import POLLS_MAX
from whimbrel.broker.consume.plan import Delivered, ReceiveRequest
from whimbrel.broker.engine.read_checks import group_of, queue_of
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    Forbidden,
    Throttled,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.limits import AUTO_QUEUES, RECEIVE_BATCH_MAX
from whimbrel.model.names import check_group, check_invisible_ms, check_topic
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.model.wire import CLIENT_ID_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK, namespace_of, status_of
from whimbrel.store.lane_messages import LaneMessages
from whimbrel.store.scan import Filter

__all__ = ["ReceiveService"]

NOTHING = v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message")


@dataclass(frozen=True, slots=True)
class HeldReceive:
    """A receive that waits for this broker to be ready, until a time of the monotonic clock at most."""

    call: Call
    request: messaging.ReceiveMessageRequest
    deferred: Deferred[list[Any]]
    until: float


class ReceiveService:
    """Handles the calls of consumers on the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        creation: GroupCreation,
        consumption: GroupConsumption,
        *,
        clock: Callable[[], int],
        priority_order_asc: bool = True,
        lane_messages: LaneMessages | None = None,
    ) -> None:
        """Take what is needed."""
        self.lane_messages = lane_messages
        self.priority_order_asc = priority_order_asc
        self.topics, self.creation = topics, creation
        self.receiving, self.positions = consumption.receiving, consumption.positions
        self.clock = clock
        self.held_calls: list[HeldReceive] | None = None
        # Called with topic, group, number and bytes of what goes to consumers.
        self.on_delivered: Callable[[str, str, int, int], None] | None = None

    @property
    def held(self) -> int:
        """How many receives wait for this broker to be ready."""
        return len(self.held_calls or ())

    def hold(self) -> None:
        """Keep receives waiting until the other brokers' acknowledgements are known here."""
        self.held_calls = []

    def release(self) -> None:
        """Serve the receives that waited, and all later ones; harmless when none are held."""
        held, self.held_calls = self.held_calls or [], None
        for one in held:
            if one.deferred.done or one.deferred.cancelled:
                continue
            try:
                answer = self.begin_receive(one.call, one.request, one.deferred)
            except WhimbrelError as error:
                one.deferred.fail(error)
                continue
            if not isinstance(answer, Deferred):  # else it is the call's own, and a poll is parked
                one.deferred.complete(answer)

    def expire_held(self, now: float, margin_s: float) -> None:
        """Answer with nothing the held receives whose polling time ends within `margin_s` from `now`."""
        for one in self.held_calls or ():
            if one.until - margin_s <= now and not one.deferred.done:
                one.deferred.complete(self.frames([], ""))

    def topic(self, name: str) -> TopicConfig:
        """Return a readable topic; one that a send may still create is read as if it existed."""
        topic = self.topics.get(name)
        if topic is None:
            if not self.topics.auto_create:
                raise TopicNotFound(f"no topic {name}; create it, or switch auto_create_topics on")
            return TopicConfig(name=name, read_queues=AUTO_QUEUES, write_queues=AUTO_QUEUES)
        return topic

    def receive(self, call: Call, request: messaging.ReceiveMessageRequest) -> Any:
        """Receive messages under a lease, or wait for some."""
        if self.held_calls is not None:
            if len(self.held_calls) >= POLLS_MAX:
                raise Throttled(f"{POLLS_MAX} receives wait for this broker to be ready")
            deferred: Deferred[list[Any]] = Deferred()
            polling = request.long_polling_timeout if request.HasField("long_polling_timeout") else None
            until = time.monotonic() + poll_ms(call, polling) / 1000
            self.held_calls.append(HeldReceive(call, request, deferred, until))
            return deferred
        return self.begin_receive(call, request)

    def begin_receive(
        self,
        call: Call,
        request: messaging.ReceiveMessageRequest,
        deferred: Deferred[list[Any]] | None = None,
    ) -> list[Any] | Deferred[list[Any]]:
        """Check and receive; a poll that is parked completes `deferred`, where one is given."""
        name, group_name = request.message_queue.topic.name, request.group.name
        check_topic(name)
        check_group(group_name)
        invisible_ms: int | None = None
        if not request.auto_renew:
            invisible_ms = milliseconds(request.invisible_duration)
            check_invisible_ms(invisible_ms)
        wanted = filter_of(request.filter_expression)
        topic = self.topic(name)
        group = group_of(self.creation, group_name, V2_READS)
        if not topic.readable:
            raise Forbidden(f"topic {name} has no readable queue here")
        queue_ids = range(topic.read_queues)
        by_priority = topic.message_type is MessageType.PRIORITY and not group.fifo and drawn(group)
        selection = ReceiveRequest(
            group=group_name,
            topic=name,
            queue_ids=queue_ids[::-1] if by_priority and self.priority_order_asc else queue_ids,
            filter=wanted,
            batch=max(1, min(request.batch_size, RECEIVE_BATCH_MAX)),
            invisible_ms=invisible_ms,
            client_id=call.metadata[CLIENT_ID_HEADER],
            attempt_id=checked_attempt(request.attempt_id) if group.fifo else "",
            by_priority=by_priority,
        )
        polling = request.long_polling_timeout if request.HasField("long_polling_timeout") else None
        namespace = namespace_of(call, request.message_queue.topic)

        def reply(messages: list[Delivered]) -> list[Any]:
            if messages and self.on_delivered is not None:
                size = sum(one.message.size for one in messages)
                self.on_delivered(name, group_name, len(messages), size)
            return self.frames(messages, namespace)

        return self.receiving.receive(
            selection, poll_ms=poll_ms(call, polling), reply=reply, deferred=deferred
        )

    def frames(self, messages: list[Delivered], namespace: str) -> list[Any]:
        """Return the answer to a receive."""
        response = messaging.ReceiveMessageResponse
        last = response(delivery_timestamp=timestamp(self.clock()))
        if not messages:
            return [response(status=NOTHING), last]
        found = [(one.message, one.handle, one.attempt) for one in messages]
        return message_frames(response, found, namespace, self.lane_messages, last.SerializeToString())

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


def checked_attempt(attempt_id: str) -> str:
    """Return an attempt id.

    Raises:
        BadRequest: it is too long.
    """
    size = len(attempt_id.encode())
    if size > ATTEMPT_ID_BYTES_MAX:
        raise BadRequest(f"the attempt id has {size} bytes; at most {ATTEMPT_ID_BYTES_MAX} are allowed")
    return attempt_id


def drawn(group: GroupConfig) -> bool:
    """Return whether a receive of the group goes by priority (RocketMQ: PopMessageProcessor)."""
    share = group.priority_percent
    return share >= 100 or randrange(100) < share


def filter_of(expression: v2.FilterExpression) -> Filter:
    text = expression.expression
    return compile_filter("sql", text) if expression.type == v2.SQL else compile_filter("tag", text)
