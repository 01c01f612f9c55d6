"""The calls of consumers: receive, acknowledge, change the invisible time, pull, and the offset calls.

Checks run in RocketMQ's order, then the parts of `group_consumption.py` do the work, and their values become
messages here. A stream answer is complete when it is written:

    receive   status, one message each, delivery_timestamp      nothing: status 40401, delivery_timestamp
    pull      status, one message each, next_offset             nothing: status OK, next_offset
    error     status, delivery_timestamp

The delivery timestamp closes every receive: without it the Python SDK's push consumer throws its batch away.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from random import randrange
from typing import Any, Literal

from whimbrel.broker.api.message_codec import Inflation, delivered, timestamp
from whimbrel.broker.api.response_bytes import OK_RESPONSE, ack_answer, message_frame, next_offset
from whimbrel.broker.consume.filters import Filter, compile_filter
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.lease_codec import ATTEMPT_ID_BYTES_MAX
from whimbrel.broker.consume.long_polls import POLLS_MAX, poll_time_ms
from whimbrel.broker.consume.plan import Delivered, ReceiveRequest
from whimbrel.broker.consume.pull import Pulled, PullRequest
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    Forbidden,
    GroupNotFound,
    Throttled,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.limits import ACK_ENTRIES_MAX, ATTEMPT_MAX, AUTO_QUEUES, RECEIVE_BATCH_MAX
from whimbrel.model.names import check_group, check_invisible_ms, check_topic
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.model.wire import CLIENT_ID_HEADER, SUGGESTION_TRAILER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call, Encoded, EncodedMany
from whimbrel.rpc.server.responses import OK, common_status, namespace_of, status_of
from whimbrel.store.codec import StoredMessage
from whimbrel.store.lane_messages import LaneMessage, LaneMessages

__all__ = ["ReadSplitting", "ReceiveService"]

MEMORY_RATIO = 0.4  # RocketMQ's accessMessageInMemoryMaxRatio: what counts as "in memory"
NOTHING = v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message")


class ReadSplitting:
    """Which broker id a puller should ask next (`PullMessageProcessor` of RocketMQ 4.9.3)."""

    def __init__(self, *, enabled: bool, written: Callable[[], int]) -> None:
        """Take the switch `slave_read_enable` and the end of the log."""
        self.enabled = enabled
        self.written = written
        self.memory = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_RATIO)

    def suggest(self, group: GroupConfig, last_physical_offset: int | None) -> int:
        """Return the id; `last_physical_offset` is where the last examined message lies, None for nothing."""
        if not self.enabled:
            return 0
        if last_physical_offset is not None and self.written() - last_physical_offset > self.memory:
            return group.slow_broker_id
        return group.broker_id


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
        groups: GroupTable,
        consumption: GroupConsumption,
        splitting: ReadSplitting,
        *,
        master: bool,
        clock: Callable[[], int],
        priority_order_asc: bool = True,
        lane_messages: LaneMessages | None = None,
    ) -> None:
        """Take what is needed; a slave makes no groups, its table is its master's."""
        self.lane_messages = lane_messages
        self.priority_order_asc = priority_order_asc
        self.topics, self.groups = topics, groups
        self.receiving, self.settling = consumption.receiving, consumption.settling
        self.pulling, self.positions = consumption.pulling, consumption.positions
        self.splitting = splitting
        self.master = master
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

    def group(self, name: str) -> GroupConfig:
        group = self.groups.find(name, create=self.master)
        if group is None:
            if not self.groups.auto_create:
                raise GroupNotFound(f"no consumer group {name}; create it, or switch auto_create_groups on")
            group = GroupConfig(name=name)
        if not group.consume_enabled:
            raise Forbidden(f"reading is switched off for group {name}")
        return group

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
        group = self.group(group_name)
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
        frames: list[Any] = [OK_RESPONSE if messages else response(status=NOTHING)]
        found = [(one.message, one.handle, one.attempt) for one in messages]
        frames += self.with_messages(response, found, namespace)
        frames.append(response(delivery_timestamp=timestamp(self.clock())))
        return frames

    def with_messages(
        self, response: type[Any], found: list[tuple[StoredMessage, str, int]], namespace: str
    ) -> list[Any]:
        """Return responses with messages, handles and attempts; the lane makes those that it has read."""
        frames: list[Any] = []
        inflation = Inflation()
        for of_lane, group in groupby(found, key=lambda one: record_of(one[0]) is not None):
            some = list(group)
            if of_lane and self.lane_messages is not None:
                wanted = [(record_of(message), handle, attempt) for message, handle, attempt in some]
                framed = self.lane_messages.responses(wanted, namespace)
                if framed is not None:
                    frames.append(EncodedMany(framed))
                    continue
            frames += [
                with_message(response, message, namespace, inflation, handle, attempt)
                for message, handle, attempt in some
            ]
        return frames

    def receive_failed(self, call: Call, error: Exception) -> list[Any]:
        """Return the answer to a refused receive."""
        return [
            messaging.ReceiveMessageResponse(status=status_of(error)),
            messaging.ReceiveMessageResponse(delivery_timestamp=timestamp(self.clock())),
        ]

    def acknowledge(self, call: Call, request: messaging.AckMessageRequest) -> Any:
        """Finish messages; one entry each, in order."""
        check_topic(request.topic.name)
        check_group(request.group.name)
        if not request.entries:
            raise BadRequest("the request acknowledges nothing")
        if len(request.entries) > ACK_ENTRIES_MAX:
            raise BadRequest(
                f"{len(request.entries)} acknowledgements in a request; at most {ACK_ENTRIES_MAX} are allowed"
            )
        entries = [(entry.message_id, entry.receipt_handle) for entry in request.entries]
        handles = [handle for _, handle in entries]
        errors = self.settling.ack_batch(request.group.name, request.topic.name, handles)
        if not any(errors):
            return ack_answer(entries)
        statuses = [OK if error is None else status_of(error) for error in errors]
        response = messaging.AckMessageResponse(status=common_status(statuses))
        for (message_id, handle), status in zip(entries, statuses, strict=True):
            response.entries.add(message_id=message_id, receipt_handle=handle, status=status)
        return response

    def change_invisible(self, call: Call, request: messaging.ChangeInvisibleDurationRequest) -> Any:
        """Set when a message becomes visible again.

        The answer always carries a handle: clients overwrite theirs with it.
        """
        handle = request.receipt_handle
        try:
            check_topic(request.topic.name)
            check_group(request.group.name)
            invisible_ms = milliseconds(request.invisible_duration)
            check_invisible_ms(invisible_ms, changed=True)
            handle = self.settling.change_invisible(
                request.group.name, request.topic.name, handle, invisible_ms, suspend=request.suspend
            )
        except WhimbrelError as error:
            return messaging.ChangeInvisibleDurationResponse(status=status_of(error), receipt_handle=handle)
        return messaging.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)

    def pull(self, call: Call, request: messaging.PullMessageRequest) -> Any:
        """Read one queue from an offset on, without leases."""
        topic, queue_id = self.queue(request.message_queue)
        check_group(request.group.name)
        wanted = filter_of(request.filter_expression)
        group = self.group(request.group.name)
        namespace = namespace_of(call, request.message_queue.topic)
        selection = PullRequest(
            topic=topic.name,
            queue_id=queue_id,
            offset=request.offset,
            batch=max(1, min(request.batch_size, RECEIVE_BATCH_MAX)),
            filter=wanted,
            namespace=None if self.lane_messages is None else namespace,
        )

        def reply(pulled: Pulled) -> list[Any]:
            packed, found = pulled.packed, pulled.messages
            if pulled.found and self.on_delivered is not None:
                count = sum(part.messages for part in packed) + len(found)
                size = sum(part.size for part in packed) + sum(one.size for one in found)
                self.on_delivered(topic.name, group.name, count, size)
            last = found[-1].physical_offset if found else packed[-1].last_place if packed else None
            call.trailers.append((SUGGESTION_TRAILER, str(self.splitting.suggest(group, last))))
            frames: list[Any] = [OK_RESPONSE]
            frames += [EncodedMany(part.framed) for part in packed]
            if found:
                attempts = [(message, "", attempt_of(message)) for message in found]
                frames += self.with_messages(messaging.PullMessageResponse, attempts, namespace)
            frames.append(next_offset(pulled.next_offset))
            return frames

        return self.pulling.pull(selection, poll_ms=poll_ms(call, request.long_polling_timeout), reply=reply)

    def queue(self, queue: v2.MessageQueue) -> tuple[TopicConfig, int]:
        """Return the topic and id of a queue that must be named exactly."""
        check_topic(queue.topic.name)
        topic = self.topics.get(queue.topic.name)
        if topic is None:
            raise TopicNotFound(f"no topic {queue.topic.name}")
        if not topic.readable:
            raise Forbidden(f"topic {topic.name} has no readable queue here")
        if not 0 <= queue.id < topic.read_queues:
            raise BadRequest(f"queue {queue.id} is not one of the {topic.read_queues} of {topic.name}")
        return topic, queue.id

    def update_offset(self, call: Call, request: messaging.UpdateOffsetRequest) -> Any:
        """Commit a group's position on one queue."""
        topic, queue_id = self.queue(request.message_queue)
        check_group(request.group.name)
        self.group(request.group.name)
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


def record_of(message: StoredMessage) -> Any:
    """Return what the lane has of a message that it has read and nobody has changed; else None."""
    return message.record if isinstance(message, LaneMessage) else None


def with_message(
    response: type[Any],
    message: StoredMessage,
    namespace: str,
    inflation: Inflation,
    handle: str = "",
    attempt: int = 1,
) -> Any:
    """Return a response with a message; as bytes, unless the message is more than a plain one."""
    frame = message_frame(message, namespace=namespace, receipt_handle=handle, attempt=attempt)
    if frame is not None:
        return Encoded(frame, OK)
    return response(
        message=delivered(
            message, namespace=namespace, receipt_handle=handle, attempt=attempt, inflation=inflation
        )
    )


def checked_attempt(attempt_id: str) -> str:
    """Return an attempt id.

    Raises:
        BadRequest: it is too long.
    """
    size = len(attempt_id.encode())
    if size > ATTEMPT_ID_BYTES_MAX:
        raise BadRequest(f"the attempt id has {size} bytes; at most {ATTEMPT_ID_BYTES_MAX} are allowed")
    return attempt_id


def attempt_of(message: StoredMessage) -> int:
    """Return the number of the delivery that its record tells, where no lease does (RocketMQ: the same)."""
    return min(max(message.reconsume_times, 0), ATTEMPT_MAX - 1) + 1


def drawn(group: GroupConfig) -> bool:
    """Return whether a receive of the group goes by priority (RocketMQ: PopMessageProcessor)."""
    share = group.priority_percent
    return share >= 100 or randrange(100) < share


def milliseconds(duration: Any) -> int:
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def poll_ms(call: Call, polling: Any) -> int:
    remaining = None if call.deadline is None else int((call.deadline - time.monotonic()) * 1000)
    return poll_time_ms(None if polling is None else milliseconds(polling), remaining)


def filter_of(expression: v2.FilterExpression) -> Filter:
    text = expression.expression
    return compile_filter("sql", text) if expression.type == v2.SQL else compile_filter("tag", text)
