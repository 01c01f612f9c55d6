"""PullMessage: reads of one queue from an offset on, without leases.

    status OK, one message each, next_offset          nothing: status OK, next_offset
    status                                            an error

The broker to ask next is a trailer. What is checked, and in which order, says `V2_READS`, as RocketMQ's proxy
does.
"""

from typing import Any, Final

from whimbrel.broker.api.message_frames import message_frames, poll_ms
from whimbrel.broker.api.response_bytes import next_offset
from whimbrel.broker.engine import consuming, read_checks
from whimbrel.broker.engine.read import Read, ReadRules, Reads, Run
from whimbrel.broker.engine.read_forms import decoded_messages
from whimbrel.broker.engine.waiting import POLLS
from whimbrel.errors import BadRequest
from whimbrel.model.limits import ATTEMPT_MAX, RECEIVE_BATCH_MAX
from whimbrel.model.wire import SUGGESTION_TRAILER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import namespace_of
from whimbrel.store.codec import StoredMessage
from whimbrel.store.lane_messages import LaneMessages, PackedMessages
from whimbrel.store.scan import ANSWER_BYTES_MAX, SCAN_MAX

__all__ = ["V2_READS", "PullService"]

V2_READS: Final = ReadRules(
    checks=(
        consuming.topic_named,
        read_checks.queue_there,
        consuming.group_named,
        consuming.filter_given,
        consuming.group_reads,
    ),
    again=(),
    outside=read_checks.refused_outside,
    form=decoded_messages,
    kind=POLLS,
    entries_max=SCAN_MAX,
    bytes_max=ANSWER_BYTES_MAX,
    no_topic="no topic {name}",
    not_readable="topic {name} has no readable queue here",
    no_queue=BadRequest,
    limited=False,
)


class PullService:
    """Handles pulls on the loop's thread."""

    def __init__(self, reads: Reads, lane_messages: LaneMessages) -> None:
        """Take what decides them, and what makes responses by the lane, where that is active."""
        self.reads, self.lane_messages = reads, lane_messages

    def pull(self, call: Call, request: messaging.PullMessageRequest) -> Any:
        """Read one queue from an offset on, or wait for a message there."""
        queue, wanted = request.message_queue, request.filter_expression
        namespace = namespace_of(call, queue.topic)
        read = Read(
            V2_READS,
            request.group.name,
            queue.topic.name,
            wanted.expression,
            wanted.type == v2.SQL,
            queue.id,
            request.offset,
            max(1, min(request.batch_size, RECEIVE_BATCH_MAX)),
            V2_READS.bytes_max,
            wait_ms=poll_ms(call, request.long_polling_timeout),
            namespace=namespace,
        )

        def render(read: Read, run: Run) -> list[Any]:
            call.trailers.append((SUGGESTION_TRAILER, str(run.broker_id)))
            found = [
                part if isinstance(part, PackedMessages) else (part, "", attempt_of(part))
                for part in run.parts
            ]
            last = next_offset(run.next_offset)
            return message_frames(messaging.PullMessageResponse, found, namespace, self.lane_messages, last)

        return self.reads.read(read, render)


def attempt_of(message: StoredMessage) -> int:
    """Return the number of the delivery that its record tells, where no lease does (RocketMQ: the same)."""
    return min(max(message.reconsume_times, 0), ATTEMPT_MAX - 1) + 1
