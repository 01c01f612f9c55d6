"""What receives and pulls have in common: responses with messages, filters and polling times of requests."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from whimbrel.broker.api.message_codec import Inflation, delivered
from whimbrel.broker.api.response_bytes import OK_FIELD, message_frame
from whimbrel.model.limits import POLL_MS_MAX
from whimbrel.rpc.http2.grpc_format import PREFIX, prefixed
from whimbrel.rpc.server.handlers import Call, EncodedMany
from whimbrel.rpc.server.responses import OK
from whimbrel.store.codec import StoredMessage
from whimbrel.store.lane_messages import LaneMessage, LaneMessages, PackedMessages

__all__ = ["message_frames", "milliseconds", "poll_ms"]

OK_FRAMED: Final = prefixed(OK_FIELD)
# Time between the answer and the caller's deadline, so that the answer arrives first.
ANSWER_MARGIN_MS: Final = 500
# Go's and C++'s requests name no polling time: their deadline is polling time plus request timeout (3 s),
# and the reference takes half of the request timeout off what remains.
UNNAMED_MARGIN_MS: Final = 1_500


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


def poll_ms(call: Call, polling: Any, clock: Callable[[], float] = time.monotonic) -> int:
    """Return how long a call may wait, in milliseconds; 0 answers at once.

    There is no lower bound other than 0: the reference's 5 s would overrun the deadline of short polls.

    Args:
        call: it is answered before its deadline.
        polling: the polling time that it asks for; None when it names none.
        clock: of deadlines, in seconds.
    """
    left = None if call.deadline is None else int((call.deadline - clock()) * 1000)
    if polling is not None:
        asked = milliseconds(polling)
    else:
        asked = POLL_MS_MAX if left is None else left - UNNAMED_MARGIN_MS
    if left is not None:
        asked = min(asked, left - ANSWER_MARGIN_MS)
    return max(min(asked, POLL_MS_MAX), 0)
