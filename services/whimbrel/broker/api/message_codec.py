"""A stored record as the message that a consumer gets.

The inverse of `send_service`, for records of RocketMQ's as well: an id that the producer did not give becomes
RocketMQ's offset id, the type is read from the properties, reserved properties stay here. Digest and encoding
describe the body as it is stored and sent, compressed or not.
"""

from hashlib import md5
from typing import Any

from whimbrel.broker.api.response_bytes import HIDDEN
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.codec import COMPRESSED, StoredMessage

__all__ = ["delivered", "timestamp"]


def timestamp(at_ms: int) -> Any:
    """Return the protobuf time of milliseconds since the epoch."""
    return Timestamp(seconds=at_ms // 1000, nanos=at_ms % 1000 * 1_000_000)


def delivered(
    stored: StoredMessage, *, namespace: str = "", receipt_handle: str = "", attempt: int = 1
) -> v2.Message:
    """Return the message for a consumer; without a receipt handle it was pulled and carries no lease."""
    properties = stored.properties
    body = stored.body
    take = properties.get
    system = v2.SystemProperties(
        message_id=take("UNIQ_KEY") or stored.offset_message_id,
        body_digest=v2.Digest(type=v2.MD5, checksum=md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=v2.GZIP if stored.sys_flag & COMPRESSED else v2.IDENTITY,
        message_type=v2.NORMAL,
        born_timestamp=timestamp(stored.born_timestamp),
        born_host=take("__BORNHOST") or stored.born_host.rpartition(":")[0],
        store_timestamp=timestamp(stored.store_timestamp),
        store_host=stored.store_host,
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        delivery_attempt=attempt,
    )
    tag = take("TAGS")
    if tag:
        system.tag = tag
    keys = take("KEYS")
    if keys:
        system.keys.extend([key for key in keys.split(" ") if key])
    if receipt_handle:
        system.receipt_handle = receipt_handle
    rarer(system, properties)
    return v2.Message(
        topic=v2.Resource(resource_namespace=namespace, name=stored.topic),
        user_properties={key: value for key, value in properties.items() if key not in HIDDEN},
        system_properties=system,
        body=body,
    )


def rarer(system: v2.SystemProperties, properties: dict[str, str]) -> None:
    """Fill what most messages lack."""
    take = properties.get
    trace = take("TRACE_CONTEXT")
    if trace:
        system.trace_context = trace
    group = take("__SHARDINGKEY")
    if group:
        system.message_group = group
        system.message_type = v2.FIFO
    due = take("TIMER_DELIVER_MS", "")
    if due.isdecimal():
        system.delivery_timestamp.CopyFrom(timestamp(int(due)))
        system.message_type = v2.DELAY
    elif "DELAY" in properties or "TIMER_DELAY_MS" in properties or "TIMER_DELAY_SEC" in properties:
        system.message_type = v2.DELAY
    if take("TRAN_MSG") == "true":
        system.message_type = v2.TRANSACTION
    origin = take("DLQ_ORIGIN_TOPIC")
    if origin:
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = take("DLQ_ORIGIN_MESSAGE_ID", "")
