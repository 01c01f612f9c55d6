"""Turns a stored record into the message that a consumer gets.

The inverse of `produce/admission.py`, for records that RocketMQ wrote as well: a missing id becomes
RocketMQ's offset id, the type is read from the properties, and reserved properties are not passed on.

Digest and encoding describe the body as it is sent: as it is stored, compressed or not. SDKs know one kind of
compression, GZIP, and what 4.x and 5.x clients have compressed by LZ4 or Zstandard is inflated here, up to a
bound for each answer. What can't be, is labelled GZIP all the same: no SDK reads it as such, so it counts as
corrupted there, and comes again, in another answer.
"""

import logging
from hashlib import md5
from typing import Any

from whimbrel.errors import CorruptRecord
from whimbrel.model.delivered import HIDDEN
from whimbrel.model.limits import BODY_BYTES_MAX, TIME_MS_MAX
from whimbrel.model.properties import (
    BORN_HOST,
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    KEYS,
    PRIORITY,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
)
from whimbrel.model.trace import CONTEXT_PROPERTY
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.codec import COMPRESSED, StoredMessage
from whimbrel.store.compression import inflate, is_foreign

__all__ = ["Inflation", "delivered", "timestamp"]

TIME_MS_MIN = -62_135_596_800_000  # the begin of the year 1
DIGITS_MAX = 20  # of a time in a property
PRIORITY_MAX = (1 << 31) - 1
ANSWER_BYTES_MAX = 8 * BODY_BYTES_MAX  # inflated for one answer: some 30 ms

logger = logging.getLogger(__name__)


def timestamp(at_ms: int) -> Any:
    """Return the protobuf time of milliseconds since the epoch; its first or last one for what lies beyond.

    Records of other writers, and of earlier versions, may hold any time.
    """
    at_ms = min(max(at_ms, TIME_MS_MIN), TIME_MS_MAX)
    return Timestamp(seconds=at_ms // 1000, nanos=at_ms % 1000 * 1_000_000)


class Inflation:
    """What of the bodies of an answer is inflated here.

    Attributes:
        left: bytes of bodies that may still be.
    """

    __slots__ = ("left",)

    def __init__(self, left: int = ANSWER_BYTES_MAX) -> None:
        self.left = left

    def body_of(self, stored: StoredMessage) -> tuple[bytes, v2.Encoding]:
        """Return a body that SDKs can read, if it can be made, and its encoding."""
        if not stored.sys_flag & COMPRESSED or not stored.body:
            return stored.body, v2.IDENTITY
        if is_foreign(stored.sys_flag) and self.left > 0:
            try:
                body = inflate(stored.body, stored.sys_flag, min(self.left, BODY_BYTES_MAX))
            except CorruptRecord as error:
                self.left -= BODY_BYTES_MAX  # so much may have been inflated
                logger.debug("message at %d of the log: %s", stored.physical_offset, error)
            else:
                self.left -= len(body)
                return body, v2.IDENTITY
        return stored.body, v2.GZIP


def delivered(
    stored: StoredMessage,
    *,
    namespace: str = "",
    receipt_handle: str = "",
    attempt: int = 1,
    inflation: Inflation | None = None,
) -> v2.Message:
    """Return the message for a consumer.

    Args:
        stored: its record.
        namespace: of the topic.
        receipt_handle: of its lease; without one it was pulled.
        attempt: which delivery this is.
        inflation: that of the answer, where this is one of several messages.
    """
    properties = stored.properties
    body, encoding = (inflation or Inflation()).body_of(stored)
    get = properties.get
    system = v2.SystemProperties(
        message_id=get(UNIQ_KEY) or stored.offset_message_id,
        body_digest=v2.Digest(type=v2.MD5, checksum=md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=encoding,
        message_type=v2.NORMAL,
        born_timestamp=timestamp(stored.born_timestamp),
        born_host=get(BORN_HOST) or stored.born_host.rpartition(":")[0],
        store_timestamp=timestamp(stored.store_timestamp),
        store_host=stored.store_host,
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        delivery_attempt=attempt,
    )
    tag = get(TAGS)
    if tag:
        system.tag = tag
    keys = get(KEYS)
    if keys:
        system.keys.extend([key for key in keys.split(" ") if key])
    if receipt_handle:
        system.receipt_handle = receipt_handle
    fill_rare(system, properties)
    return v2.Message(
        topic=v2.Resource(resource_namespace=namespace, name=stored.topic),
        user_properties={key: value for key, value in properties.items() if key not in HIDDEN},
        system_properties=system,
        body=body,
    )


def fill_rare(system: v2.SystemProperties, properties: dict[str, str]) -> None:
    """Set the fields that most messages lack."""
    get = properties.get
    trace = get(CONTEXT_PROPERTY)
    if trace:
        system.trace_context = trace
    priority = get(PRIORITY)
    if priority is not None:
        system.message_type = v2.PRIORITY
        if priority.isdecimal() and int(priority[:DIGITS_MAX]) <= PRIORITY_MAX:
            system.priority = int(priority)
    group = get(SHARDING_KEY)
    if group:
        system.message_group = group
        system.message_type = v2.FIFO
    due = get(TIMER_DELIVER_MS, "")
    if due.isdecimal() and len(due) < DIGITS_MAX:
        system.delivery_timestamp.CopyFrom(timestamp(int(due)))
        system.message_type = v2.DELAY
    elif DELAY in properties or TIMER_DELAY_MS in properties or TIMER_DELAY_SEC in properties:
        system.message_type = v2.DELAY
    if get(TRAN_MSG) == "true":
        system.message_type = v2.TRANSACTION
    origin = get(DLQ_ORIGIN_TOPIC)
    if origin:
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = get(DLQ_ORIGIN_MESSAGE_ID, "")
