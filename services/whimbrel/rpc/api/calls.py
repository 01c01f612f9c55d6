"""Outbound calls in model terms: the client API, and how any call is made.

A call is a value, `Outbound`: the path, the request's bytes, and a function that turns the response into
model values or raises the error it carries. The functions of this module only make such values, so they serve
both kinds of channel:

    await perform(channel, send_messages(...), metadata, timeout_s)        grpc.aio
    perform_blocking(channel, send_messages(...), metadata, timeout_s)     grpc

The client API (`apache.rocketmq.v2`) carries errors as a `Status` in the body of an OK call, our own services
as a gRPC status with `ErrorInfo`; `perform` raises the same typed errors for both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

import grpc
import grpc.aio

from whimbrel.errors import BadRequest, OffsetNotFound, WhimbrelError
from whimbrel.model.message import Filter, Message, PullResult, ReceivedMessage, Resolution, SendReceipt
from whimbrel.model.names import no_text
from whimbrel.model.route import Endpoint, Queue, Route
from whimbrel.model.wire import MESSAGING_SERVICE, QUEUE_HEADER, REASON_TRAILER, SUGGESTION_TRAILER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as service
from whimbrel.rpc.api import convert
from whimbrel.rpc.api.status import error_of

__all__ = [
    "MESSAGING",
    "Metadata",
    "Outbound",
    "Trailers",
    "ack_messages",
    "change_invisible",
    "end_transaction",
    "forward_to_dead_letters",
    "get_offset",
    "heartbeat",
    "notify_termination",
    "of_text",
    "perform",
    "perform_blocking",
    "pull_messages",
    "query_assignment",
    "query_offset",
    "query_route",
    "recall_message",
    "receive_messages",
    "send_messages",
    "update_offset",
]

T = TypeVar("T")
P = ParamSpec("P")
Metadata = Sequence[tuple[str, str]]
Trailers = Mapping[str, str]

MESSAGING = f"/{MESSAGING_SERVICE}/"
RESOLUTIONS = {
    Resolution.COMMIT: v2.COMMIT,
    Resolution.ROLLBACK: v2.ROLLBACK,
    Resolution.UNKNOWN: v2.TRANSACTION_RESOLUTION_UNSPECIFIED,
}
BROKER_ID_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class Outbound(Generic[T]):
    """One call to be made.

    Attributes:
        path: `/package.Service/Method`.
        payload: the encoded request.
        decode: turns the encoded responses (one, unless `stream`) and the trailing metadata into the result;
            raises the error that the response carries.
        stream: whether the response is a stream.
        metadata: headers of this call alone.
    """

    path: str
    payload: bytes
    decode: Callable[[Sequence[bytes], Trailers], T]
    stream: bool = False
    metadata: Metadata = ()


def of_text(make: Callable[P, Outbound[T]]) -> Callable[P, Outbound[T]]:
    """Have a function that makes a call raise BadRequest for a text that UTF-8 can't hold.

    protobuf holds UTF-8 only; an argument of a command line, and a name of a file, may be other bytes.
    """

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Outbound[T]:
        try:
            return make(*args, **kwargs)
        except UnicodeEncodeError as error:
            raise BadRequest(no_text(error.object)) from None

    return made


def texts(trailing: Any) -> Trailers:
    return {key: value for key, value in trailing or () if isinstance(value, str)}


def decoded(call: Outbound[T], responses: Sequence[bytes], trailers: Trailers) -> T:
    """Return the result; an error in the body gets the class that the trailing metadata name, if any."""
    try:
        return call.decode(responses, trailers)
    except WhimbrelError as error:
        named = WhimbrelError.known.get(trailers.get(REASON_TRAILER, ""))
        if named is None or isinstance(error, named):
            raise
        raise named(str(error)) from error


async def perform(
    channel: grpc.aio.Channel, call: Outbound[T], metadata: Metadata, timeout_s: float | None
) -> T:
    """Make the call and return its result.

    Raises:
        WhimbrelError: the server's or the transport's error, typed.
    """
    headers = (*metadata, *call.metadata)
    try:
        if call.stream:
            open_stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(call.path)
            streaming = open_stream(call.payload, timeout=timeout_s, metadata=headers)
            responses = [response async for response in streaming]
            trailing = await streaming.trailing_metadata()
        else:
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(call.path)
            single = ask(call.payload, timeout=timeout_s, metadata=headers)
            responses = [await single]
            trailing = await single.trailing_metadata()
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error
    return decoded(call, responses, texts(trailing))


def perform_blocking(
    channel: grpc.Channel, call: Outbound[T], metadata: Metadata, timeout_s: float | None
) -> T:
    """Make the call on a blocking channel and return its result; errors as in `perform`."""
    headers = (*metadata, *call.metadata)
    try:
        if call.stream:
            open_stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(call.path)
            streaming = open_stream(call.payload, timeout=timeout_s, metadata=headers)
            responses = list(streaming)
            trailing = streaming.trailing_metadata()
        else:
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(call.path)
            response, single = ask.with_call(call.payload, timeout=timeout_s, metadata=headers)
            responses, trailing = [response], single.trailing_metadata()
    except grpc.RpcError as error:
        raise error_of(error) from error
    return decoded(call, responses, texts(trailing))


def check(status: v2.Status) -> None:
    error = convert.error_of_status(status)
    if error is not None:
        raise error


def resource(name: str, namespace: str) -> v2.Resource:
    return v2.Resource(resource_namespace=namespace, name=name)


# The client API: routes and sessions.


@of_text
def query_route(topic: str, access: Sequence[Endpoint], namespace: str = "") -> Outbound[Route]:
    """Ask where a topic's queues are."""

    def decode(responses: Sequence[bytes], _: Trailers) -> Route:
        response = service.QueryRouteResponse.FromString(responses[0])
        check(response.status)
        queues = (convert.queue_from(queue, topic) for queue in response.message_queues)
        return Route(topic, tuple(queue for queue in queues if queue is not None))

    request = service.QueryRouteRequest(
        topic=resource(topic, namespace), endpoints=convert.endpoints_message(access)
    )
    return Outbound(MESSAGING + "QueryRoute", request.SerializeToString(), decode)


@of_text
def query_assignment(
    topic: str, group: str, access: Sequence[Endpoint], namespace: str = ""
) -> Outbound[tuple[Queue, ...]]:
    """Ask which queues a consumer of the group should poll; id -1 stands for all queues of a broker."""

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[Queue, ...]:
        response = service.QueryAssignmentResponse.FromString(responses[0])
        check(response.status)
        queues = (convert.queue_from(item.message_queue, topic) for item in response.assignments)
        return tuple(queue for queue in queues if queue is not None)

    request = service.QueryAssignmentRequest(
        topic=resource(topic, namespace),
        group=resource(group, namespace),
        endpoints=convert.endpoints_message(access),
    )
    return Outbound(MESSAGING + "QueryAssignment", request.SerializeToString(), decode)


@of_text
def heartbeat(client_type: str, group: str, namespace: str = "") -> Outbound[None]:
    """Report to a server that the client is alive."""

    def decode(responses: Sequence[bytes], _: Trailers) -> None:
        check(service.HeartbeatResponse.FromString(responses[0]).status)

    request = service.HeartbeatRequest(client_type=convert.CLIENT_TYPES[client_type])
    if group:
        request.group.CopyFrom(resource(group, namespace))
    return Outbound(MESSAGING + "Heartbeat", request.SerializeToString(), decode)


@of_text
def notify_termination(group: str, namespace: str = "") -> Outbound[None]:
    """Report to a server that the client closes."""

    def decode(responses: Sequence[bytes], _: Trailers) -> None:
        check(service.NotifyClientTerminationResponse.FromString(responses[0]).status)

    request = service.NotifyClientTerminationRequest()
    if group:
        request.group.CopyFrom(resource(group, namespace))
    return Outbound(MESSAGING + "NotifyClientTermination", request.SerializeToString(), decode)


# The client API: messages.


@of_text
def send_messages(
    messages: Sequence[Message],
    *,
    broker_name: str,
    queue_id: int | None,
    now: float,
    host_name: str,
    namespace: str = "",
    transaction: bool = False,
    recovery_s: float | None = None,
) -> Outbound[list[SendReceipt]]:
    """Send messages of one topic in one request; `queue_id` None leaves the queue to the broker.

    `transaction` and `recovery_s` are about a message of a transaction, see `convert.message_to_send`.

    The result has one receipt a message, in order. When an entry is not OK, the first such entry's error is
    raised: brokers append a request as a whole, so that entries differ only in how safely they are stored.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> list[SendReceipt]:
        response = service.SendMessageResponse.FromString(responses[0])
        check(response.status)
        for entry in response.entries:
            check(entry.status)
        if len(response.entries) != len(messages):
            raise WhimbrelError(f"sent {len(messages)} messages and got {len(response.entries)} results")
        return [
            SendReceipt(
                topic=message.topic,
                message_id=entry.message_id or message.message_id,
                broker_name=broker_name,
                queue_id=queue_id,
                queue_offset=entry.offset,
                transaction_id=entry.transaction_id,
                recall_handle=entry.recall_handle,
            )
            for message, entry in zip(messages, response.entries, strict=True)
        ]

    request = service.SendMessageRequest(
        messages=[
            convert.message_to_send(
                message,
                now=now,
                host_name=host_name,
                queue_id=queue_id,
                namespace=namespace,
                transaction=transaction,
                recovery_s=recovery_s,
            )
            for message in messages
        ]
    )
    metadata = () if queue_id is None else ((QUEUE_HEADER, str(queue_id)),)
    return Outbound(MESSAGING + "SendMessage", request.SerializeToString(), decode, metadata=metadata)


@of_text
def end_transaction(
    topic: str,
    message_id: str,
    transaction_id: str,
    resolution: Resolution,
    *,
    asked: bool = False,
    namespace: str = "",
) -> Outbound[None]:
    """Commit or roll back; `asked` says that a broker has asked for it."""

    def decode(responses: Sequence[bytes], _: Trailers) -> None:
        check(service.EndTransactionResponse.FromString(responses[0]).status)

    request = service.EndTransactionRequest(
        topic=resource(topic, namespace),
        message_id=message_id,
        transaction_id=transaction_id,
        resolution=RESOLUTIONS[resolution],
        source=v2.SOURCE_SERVER_CHECK if asked else v2.SOURCE_CLIENT,
    )
    return Outbound(MESSAGING + "EndTransaction", request.SerializeToString(), decode)


@of_text
def recall_message(topic: str, recall_handle: str, namespace: str = "") -> Outbound[str]:
    """Have a message that waits for its time never delivered; the result is its message id."""

    def decode(responses: Sequence[bytes], _: Trailers) -> str:
        response = service.RecallMessageResponse.FromString(responses[0])
        check(response.status)
        return response.message_id

    request = service.RecallMessageRequest(topic=resource(topic, namespace), recall_handle=recall_handle)
    return Outbound(MESSAGING + "RecallMessage", request.SerializeToString(), decode)


@of_text
def receive_messages(
    queue: Queue,
    group: str,
    *,
    expression: Filter,
    count: int,
    invisible_s: float | None,
    wait_s: float,
    attempt_id: str = "",
    namespace: str = "",
) -> Outbound[list[ReceivedMessage]]:
    """Receive up to `count` messages; `invisible_s` None asks the server to keep renewing the leases."""

    def decode(responses: Sequence[bytes], _: Trailers) -> list[ReceivedMessage]:
        messages = []
        for item in map(service.ReceiveMessageResponse.FromString, responses):
            match item.WhichOneof("content"):
                case "status" if item.status.code != v2.MESSAGE_NOT_FOUND:
                    check(item.status)
                case "message":
                    messages.append(convert.received_message(item.message, queue))
        return messages

    request = service.ReceiveMessageRequest(
        group=resource(group, namespace),
        message_queue=convert.queue_message(queue, namespace),
        filter_expression=convert.filter_message(expression),
        batch_size=count,
        auto_renew=invisible_s is None,
        long_polling_timeout=convert.duration(wait_s),
    )
    if invisible_s is not None:
        request.invisible_duration.CopyFrom(convert.duration(invisible_s))
    if attempt_id:
        request.attempt_id = attempt_id
    return Outbound(MESSAGING + "ReceiveMessage", request.SerializeToString(), decode, stream=True)


@of_text
def ack_messages(
    messages: Sequence[ReceivedMessage], group: str, namespace: str = ""
) -> Outbound[list[WhimbrelError | None]]:
    """Acknowledge messages of one topic; the result holds None or the error for each, in order."""

    def decode(responses: Sequence[bytes], _: Trailers) -> list[WhimbrelError | None]:
        response = service.AckMessageResponse.FromString(responses[0])
        if len(response.entries) != len(messages):
            check(response.status)
            return [None] * len(messages)
        return [convert.error_of_status(entry.status) for entry in response.entries]

    request = service.AckMessageRequest(
        group=resource(group, namespace),
        topic=resource(messages[0].topic, namespace),
        entries=[
            service.AckMessageEntry(message_id=message.message_id, receipt_handle=message.receipt_handle)
            for message in messages
        ],
    )
    return Outbound(MESSAGING + "AckMessage", request.SerializeToString(), decode)


@of_text
def change_invisible(
    message: ReceivedMessage, group: str, invisible_s: float, namespace: str = ""
) -> Outbound[str]:
    """Set when a message is delivered again; the result is its new receipt handle."""

    def decode(responses: Sequence[bytes], _: Trailers) -> str:
        response = service.ChangeInvisibleDurationResponse.FromString(responses[0])
        check(response.status)
        return response.receipt_handle

    request = service.ChangeInvisibleDurationRequest(
        group=resource(group, namespace),
        topic=resource(message.topic, namespace),
        receipt_handle=message.receipt_handle,
        invisible_duration=convert.duration(invisible_s),
        message_id=message.message_id,
    )
    return Outbound(MESSAGING + "ChangeInvisibleDuration", request.SerializeToString(), decode)


@of_text
def forward_to_dead_letters(
    message: ReceivedMessage, group: str, attempts: int, attempts_max: int, namespace: str = ""
) -> Outbound[None]:
    """Move a message to the group's dead letters; the group does not get it again.

    Args:
        message: as it was delivered last.
        group: the consumer group.
        attempts: how often it was tried.
        attempts_max: the group's bound, as the client knows it.
        namespace: of group and topic.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> None:
        check(service.ForwardMessageToDeadLetterQueueResponse.FromString(responses[0]).status)

    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=resource(group, namespace),
        topic=resource(message.topic, namespace),
        receipt_handle=message.receipt_handle,
        message_id=message.message_id,
        delivery_attempt=attempts,
        max_delivery_attempts=attempts_max,
    )
    return Outbound(MESSAGING + "ForwardMessageToDeadLetterQueue", request.SerializeToString(), decode)


@of_text
def pull_messages(
    queue: Queue,
    group: str,
    *,
    offset: int,
    count: int,
    expression: Filter,
    wait_s: float,
    namespace: str = "",
) -> Outbound[PullResult]:
    """Read a queue from an offset on, without leases."""

    def decode(responses: Sequence[bytes], trailers: Trailers) -> PullResult:
        messages: list[ReceivedMessage] = []
        next_offset = offset
        for item in map(service.PullMessageResponse.FromString, responses):
            match item.WhichOneof("content"):
                case "status" if item.status.code != v2.MESSAGE_NOT_FOUND:
                    check(item.status)
                case "message":
                    messages.append(convert.received_message(item.message, queue))
                case "next_offset":
                    next_offset = item.next_offset
        suggestion = trailers.get(SUGGESTION_TRAILER, "")
        known = suggestion.isascii() and suggestion.isdigit() and len(suggestion) <= BROKER_ID_DIGITS_MAX
        suggested = int(suggestion) if known else queue.broker_id
        return PullResult(messages=tuple(messages), next_offset=next_offset, suggested_broker_id=suggested)

    request = service.PullMessageRequest(
        group=resource(group, namespace),
        message_queue=convert.queue_message(queue, namespace),
        offset=offset,
        batch_size=count,
        filter_expression=convert.filter_message(expression),
        long_polling_timeout=convert.duration(wait_s),
    )
    return Outbound(MESSAGING + "PullMessage", request.SerializeToString(), decode, stream=True)


@of_text
def update_offset(queue: Queue, group: str, offset: int, namespace: str = "") -> Outbound[None]:
    """Commit a group's offset on a queue."""

    def decode(responses: Sequence[bytes], _: Trailers) -> None:
        check(service.UpdateOffsetResponse.FromString(responses[0]).status)

    request = service.UpdateOffsetRequest(
        group=resource(group, namespace),
        message_queue=convert.queue_message(queue, namespace),
        offset=offset,
    )
    return Outbound(MESSAGING + "UpdateOffset", request.SerializeToString(), decode)


@of_text
def get_offset(queue: Queue, group: str, namespace: str = "") -> Outbound[int | None]:
    """Ask for a group's committed offset on a queue; None when it has none."""

    def decode(responses: Sequence[bytes], _: Trailers) -> int | None:
        response = service.GetOffsetResponse.FromString(responses[0])
        error = convert.error_of_status(response.status)
        if isinstance(error, OffsetNotFound):
            return None
        if error is not None:
            raise error
        return response.offset

    request = service.GetOffsetRequest(
        group=resource(group, namespace), message_queue=convert.queue_message(queue, namespace)
    )
    return Outbound(MESSAGING + "GetOffset", request.SerializeToString(), decode)


@of_text
def query_offset(queue: Queue, at: str | float, namespace: str = "") -> Outbound[int]:
    """Ask for a queue's offset: `earliest`, `latest` (one past the last), or the first at or after a time."""

    def decode(responses: Sequence[bytes], _: Trailers) -> int:
        response = service.QueryOffsetResponse.FromString(responses[0])
        check(response.status)
        return response.offset

    request = service.QueryOffsetRequest(message_queue=convert.queue_message(queue, namespace))
    if at == "earliest":
        request.query_offset_policy = service.BEGINNING
    elif at == "latest":
        request.query_offset_policy = service.END
    else:
        request.query_offset_policy = service.TIMESTAMP
        request.timestamp.CopyFrom(convert.timestamp(float(at)))
    return Outbound(MESSAGING + "QueryOffset", request.SerializeToString(), decode)
