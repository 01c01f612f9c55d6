"""Turns a stored record into the message that a consumer gets.

The inverse of `produce/admission.py`, for records that RocketMQ wrote as well: a missing id becomes
RocketMQ's offset id, the type is read from the properties, and reserved properties are not passed on. Digest
and encoding describe the body as it is stored and sent, compressed or not.
"""

from hashlib import md5
from typing import Any

from whimbrel.model.delivered import HIDDEN
from whimbrel.model.limits import TIME_MS_MAX
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

__all__ = ["delivered", "timestamp"]

TIME_MS_MIN = -62_135_596_800_000  # the begin of the year 1
DIGITS_MAX = 20  # of a time in a property
PRIORITY_MAX = (1 << 31) - 1


def timestamp(at_ms: int) -> Any:
    """Return the protobuf time of milliseconds since the epoch; its first or last one for what lies beyond.

    Records of other writers, and of earlier versions, may hold any time.
    """
    at_ms = min(max(at_ms, TIME_MS_MIN), TIME_MS_MAX)
    return Timestamp(seconds=at_ms // 1000, nanos=at_ms % 1000 * 1_000_000)


def delivered(
    stored: StoredMessage, *, namespace: str = "", receipt_handle: str = "", attempt: int = 1
) -> v2.Message:
    """Return the message for a consumer; without a receipt handle it was pulled and carries no lease."""
    properties = stored.properties
    body = stored.body
    get = properties.get
    system = v2.SystemProperties(
        message_id=get(UNIQ_KEY) or stored.offset_message_id,
        body_digest=v2.Digest(type=v2.MD5, checksum=md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=v2.GZIP if stored.sys_flag & COMPRESSED else v2.IDENTITY,
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
