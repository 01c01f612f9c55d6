"""Responses to the frequent calls, encoded by hand: the bytes that protobuf would write.

    send       status | entry (status, id, offset) for each message
    ack        status | entry (id, handle, status) for each handle
    receive    status, then for each message: message (topic, user properties, system properties, body)
    pull       the same, and then the next offset

Most bytes of such a response are the same each time, or exist already: making message objects and serialising
them takes two to three times as long. Fields are written in the order of their numbers, and zeros are left
out unless the field has presence, so that the bytes equal those of the library; tests compare them.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import md5
from typing import Any

from whimbrel.model.delivered import HIDDEN, RARE
from whimbrel.model.limits import TIME_MS_MAX
from whimbrel.model.properties import BORN_HOST, KEYS, TAGS, UNIQ_KEY
from whimbrel.model.trace import CONTEXT_PROPERTY
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Encoded
from whimbrel.rpc.server.responses import OK, common_status, status_of
from whimbrel.store.codec import COMPRESSED, StoredMessage
from whimbrel.store.compression import is_foreign

__all__ = [
    "OK_FIELD",
    "OK_FIELD_3",
    "ack_answer",
    "message_frame",
    "next_offset",
    "send_answer",
    "varint",
]

SMALL = tuple(bytes((value,)) for value in range(128))
OK_FIELD = messaging.SendMessageResponse(status=OK).SerializeToString()  # field 1; the same in all responses
OK_FIELD_3 = b"\x1a" + OK_FIELD[1:]


def varint(value: int) -> bytes:
    """Return a number that is not negative as protobuf writes it."""
    if value < 128:
        return SMALL[value]
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7))
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def send_answer(drafts: Sequence[Any], appended: Sequence[Any]) -> Encoded:
    """Return the response to a successful send; the id of a message is the first key of its draft."""
    answer = OK_FIELD
    for draft, place in zip(drafts, appended, strict=True):
        message_id = draft.keys[0].encode()
        entry = OK_FIELD + b"\x12" + varint(len(message_id)) + message_id
        if place.queue_offset:
            entry += b"\x20" + varint(place.queue_offset)
        answer += b"\x12" + varint(len(entry)) + entry
    return Encoded(answer, OK)


def ack_answer(
    entries: Sequence[tuple[str, str]], errors: Sequence[Exception | None]
) -> Encoded | messaging.AckMessageResponse:
    """Return the response to acknowledgements; by hand where all succeeded.

    Args:
        entries: message id and receipt handle of each.
        errors: what is wrong with each; None: nothing.
    """
    if any(errors):
        statuses = [OK if error is None else status_of(error) for error in errors]
        response = messaging.AckMessageResponse(status=common_status(statuses))
        for (message_id, handle), status in zip(entries, statuses, strict=True):
            response.entries.add(message_id=message_id, receipt_handle=handle, status=status)
        return response
    answer = OK_FIELD
    for message_id, handle in entries:
        entry = OK_FIELD_3
        if handle:
            text = handle.encode()
            entry = b"\x12" + (SMALL[len(text)] if len(text) < 128 else varint(len(text))) + text + entry
        if message_id:
            text = message_id.encode()
            entry = b"\x0a" + (SMALL[len(text)] if len(text) < 128 else varint(len(text))) + text + entry
        answer += b"\x12" + varint(len(entry)) + entry
    return Encoded(answer, OK)


def next_offset(offset: int) -> bytes:
    """Return the last response to a pull."""
    return b"\x18" + varint(offset)


@lru_cache(maxsize=1024)
def topic_part(namespace: str, topic: str) -> bytes:
    """Return the encoded topic field of a message."""
    part: bytes = v2.Message(topic=v2.Resource(resource_namespace=namespace, name=topic)).SerializeToString()
    return part


@lru_cache(maxsize=4096)
def time_part(at_ms: int) -> bytes:
    """Return an encoded time with its length prefix; many messages share theirs."""
    at_ms = min(at_ms, TIME_MS_MAX)  # as `message_codec.timestamp`
    seconds, nanos = at_ms // 1000, at_ms % 1000 * 1_000_000
    part = b"\x08" + varint(seconds) if seconds else b""
    if nanos:
        part += b"\x10" + varint(nanos)
    return SMALL[len(part)] + part


@lru_cache(maxsize=4096)
def text_part(text: str) -> bytes:
    """Return an encoded text with its length prefix: hosts and tags, of which there are few."""
    data = text.encode()
    return varint(len(data)) + data


DIGEST = b"\x22\x24\x08\x02\x12\x20"  # head of the field: 36 bytes, type MD5, 32 digits
# Body encoding, message type, tag of the field born_timestamp.
PLAIN, ZIPPED = b"\x28\x01\x30\x01\x3a", b"\x28\x02\x30\x01\x3a"


def message_frame(
    stored: StoredMessage, *, namespace: str = "", receipt_handle: str = "", attempt: int = 1
) -> bytes | None:
    """Return the response that carries a plain message; None for one that is not plain.

    The fields and arguments are those of `message_codec.delivered`. The compiled lane's are the same
    (`deliver.rs` in `native/core`).
    """
    properties = stored.properties
    if not RARE.isdisjoint(properties):
        return None
    if min(stored.born_timestamp, stored.store_timestamp, stored.queue_id, stored.queue_offset) < 0:
        return None
    if stored.sys_flag & COMPRESSED and is_foreign(stored.sys_flag):
        return None
    body = stored.body
    system = b""
    users = b""
    message_id = trace = host = ""
    for key, value in properties.items():
        if key == UNIQ_KEY:
            message_id = value
        elif key == TAGS:
            system = b"\x0a" + text_part(value) + system
        elif key == KEYS:
            for word in value.split(" "):
                if word:
                    data = word.encode()
                    system += b"\x12" + varint(len(data)) + data
        elif key == BORN_HOST:
            host = value
        elif key == CONTEXT_PROPERTY:
            trace = value
        elif key not in HIDDEN:
            name, data = key.encode(), value.encode()
            pair = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(data)) + data
            users += b"\x12" + varint(len(pair)) + pair
    data = (message_id or stored.offset_message_id).encode()
    host = host or stored.born_host.rpartition(":")[0]
    parts = [
        system, b"\x1a", SMALL[len(data)] if len(data) < 128 else varint(len(data)), data,
        DIGEST, md5(body, usedforsecurity=False).hexdigest().upper().encode(),
        ZIPPED if stored.sys_flag & COMPRESSED and body else PLAIN, time_part(stored.born_timestamp),
        b"\x42" + text_part(host) if host else b"",
        b"\x4a", time_part(stored.store_timestamp), b"\x52", text_part(stored.store_host),
    ]  # fmt: skip
    if receipt_handle:
        data = receipt_handle.encode()
        parts += (b"\x62", SMALL[len(data)] if len(data) < 128 else varint(len(data)), data)
    if stored.queue_id:
        parts += (b"\x68", varint(stored.queue_id))
    at = stored.queue_offset
    parts += (
        b"\x70",
        SMALL[at] if at < 128 else varint(at),
        b"\x80\x01",
        SMALL[attempt & 127] if attempt < 128 else varint(attempt),
    )
    if trace:
        data = trace.encode()
        parts += (b"\x92\x01", varint(len(data)), data)
    system = b"".join(parts)
    topic = topic_part(namespace, stored.topic)
    length, system_length = len(body), varint(len(system))
    body_head = b""
    if length:
        body_head = b"\x22" + (SMALL[length] if length < 128 else varint(length))
    size = len(topic) + len(users) + 1 + len(system_length) + len(system) + len(body_head) + length
    return b"".join((b"\x12", varint(size), topic, users, b"\x1a", system_length, system, body_head, body))
