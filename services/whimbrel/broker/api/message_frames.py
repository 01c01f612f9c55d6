"""What receives and pulls have in common: responses with messages, filters and polling times of requests."""

import time
from collections.abc import Sequence
from typing import Any, Final

from whimbrel.broker.api.message_codec import Inflation, delivered
from whimbrel.broker.api.response_bytes import OK_FIELD, message_frame
from whimbrel.broker.consume.long_polls import poll_time_ms
from whimbrel.rpc.http2.grpc_format import PREFIX, prefixed
from whimbrel.rpc.server.handlers import Call, EncodedMany
from whimbrel.rpc.server.responses import OK
from whimbrel.store.codec import StoredMessage
from whimbrel.store.lane_messages import LaneMessage, LaneMessages, PackedMessages

__all__ = ["message_frames", "milliseconds", "poll_ms"]

OK_FRAMED: Final = prefixed(OK_FIELD)


def message_frames(
    response: type[Any],
    found: Sequence[PackedMessages | tuple[StoredMessage, str, int]],
    namespace: str,
    lane_messages: LaneMessages | None,
    last: bytes,
) -> list[Any]:
    """Return the responses to a call that has got something: OK, the messages in their order, and the last
    response.

    Messages that the lane has read are made by it, and plain ones by hand; a message of another kind needs
    protobuf's classes.

    Args:
        response: the class of the call's response.
        found: what the lane has made already, or a message, its handle ("" for none) and its attempt.
        namespace: of the topic, as it was asked for.
        lane_messages: makes the lane's, where there is one.
        last: the last response.
    """
    frames: list[Any] = []
    framed = [OK_FRAMED]  # each behind gRPC's prefix, since the last one of another kind
    inflation: Inflation | None = None
    index, count = 0, len(found)
    while index < count:
        one = found[index]
        index += 1
        if isinstance(one, PackedMessages):
            framed.append(one.framed)
            continue
        message, handle, attempt = one
        if isinstance(message, LaneMessage) and lane_messages is not None:
            some = records_from(found, index - 1)
            made = lane_messages.responses(some, namespace) if some else None
            if made is not None:
                framed.append(made)
                index += len(some) - 1
                continue
        frame = message_frame(message, namespace=namespace, receipt_handle=handle, attempt=attempt)
        if frame is not None:
            framed.append(PREFIX.pack(0, len(frame)) + frame)
            continue
        inflation = inflation or Inflation()
        content = delivered(
            message, namespace=namespace, receipt_handle=handle, attempt=attempt, inflation=inflation
        )
        frames += (EncodedMany(b"".join(framed), OK), response(message=content))
        framed = []
    framed.append(PREFIX.pack(0, len(last)) + last)
    frames.append(EncodedMany(b"".join(framed), OK))
    return frames


def records_from(found: Sequence[Any], index: int) -> list[tuple[Any, str, int]]:
    """Return what the lane has of the messages from one on, up to one that it has not read."""
    some = []
    for message, handle, attempt in found[index:]:
        record = message.record if isinstance(message, LaneMessage) else None
        if record is None:
            break
        some.append((record, handle, attempt))
    return some


def milliseconds(duration: Any) -> int:
    """Return a duration of a request in milliseconds."""
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def poll_ms(call: Call, polling: Any) -> int:
    """Return how long a call may wait, that asks for a polling time or for None."""
    requested = None if polling is None else polling.seconds * 1000 + polling.nanos // 1_000_000
    remaining = None if call.deadline is None else int((call.deadline - time.monotonic()) * 1000)
    return poll_time_ms(requested, remaining)
