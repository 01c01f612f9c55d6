"""SendMessage: the checks in RocketMQ's order, the message as a record, the answer.

A message becomes a record as in RocketMQ 5.3.3's own gRPC path: user properties, then `UNIQ_KEY` (the
client's message id), `CLUSTER`, `TAGS`, `KEYS` (joined by spaces), `__BORNHOST`, `BORN_TIMESTAMP` and
`TRACE_CONTEXT` where set. Its `PGROUP`, `RECONSUME_TIME`, `MSG_REGION` and `TRACE_ON` are left out: nothing
reads them on a plain message, and they would cost 70 bytes a record. A body labelled GZIP sets the compressed
bit. A property with an empty value is not returned to consumers, as in RocketMQ, whose text form can't hold
it.

With tracing on, a message without a context may be given one (`record_traces.py`): the one difference from
RocketMQ's bytes.

One request goes to one queue, by turns; the header `whimbrel-queue-id` of our own client names one. On this
path every microsecond counts: one pass over the message, no intermediate objects. Of 1 KiB, alone in a loop
on a slow virtual core: checks and draft 4.2 us, record and log 3, queue entry and notices 2.5, index 2.8 (by
groups, at the end of a tick), answer 1.7; between all the rest of a server each takes half as much again.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import md5, sha1
from random import random
from time import time_ns
from typing import TYPE_CHECKING, Any
from zlib import crc32

from whimbrel.broker.api.response_bytes import COMPRESSED, send_answer
from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    Forbidden,
    IllegalDeliveryTime,
    IllegalTopic,
    MessageCorrupted,
    MessageEmpty,
    MessageTooLarge,
    MessageTypeConflict,
    NotSupported,
    PropertiesTooLarge,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.limits import BODY_BYTES_MAX, PROPERTIES_COUNT_MAX, PROPERTY_BYTES_MAX
from whimbrel.model.names import (
    CONTROL,
    RESERVED_PROPERTY_KEYS,
    check_key,
    check_message_group,
    check_message_id,
    check_property,
    check_tag,
    check_topic,
)
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.model.trace import FALLBACK_PROPERTY
from whimbrel.model.wire import QUEUE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import status_of
from whimbrel.store.codec import PROPERTIES_BYTES_MAX, RecordDraft, pack_host, tags_code

if TYPE_CHECKING:
    from whimbrel.broker.record_traces import RecordTraces

__all__ = ["SendService"]

DELIVERY_AHEAD_MAX_MS = 24 * 3600 * 1000
RECOVERY_MAX_S = 3600
TARGETS_MAX = 4096  # topics of which it is kept what sends need to know

cached_tags_code = lru_cache(maxsize=4096)(tags_code)


class Target:
    """What sends to a topic need to know.

    Attributes:
        plain: it takes messages without a type of their own. queues: that may be written.
    """

    __slots__ = ("plain", "queues", "topic")

    def __init__(self, topic: TopicConfig) -> None:
        self.topic = topic
        self.plain = topic.message_type in (MessageType.NORMAL, MessageType.MIXED)
        self.queues = topic.write_queues if topic.writable else 0


class SendService:
    """Handles SendMessage on the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        appender: RecordAppender,
        *,
        cluster: str,
        store_host: bytes,
        clock: Callable[[], int],
    ) -> None:
        """Take what is needed; `store_host` is this broker's address as records hold it."""
        self.topics = topics
        self.appender = appender
        self.cluster = f"CLUSTER\x01{cluster}\x02"
        self.store_host = store_host
        self.clock = clock
        self.turn = 0
        self.traces: RecordTraces | None = None  # None: tracing is off
        self.sampled = 0.0  # share of messages without a context that are traced
        self.context_seen = False  # in this request
        self.special = False  # a message of this request is more than a plain one
        self.targets: dict[str, Target] = {}

    def trace(self, traces: "RecordTraces", ratio: float) -> None:
        """Trace sampled messages from now on, and this share of those that came without a context."""
        self.traces, self.sampled = traces, ratio

    def send(self, call: Call, request: Any) -> Any:
        """Check, append, and answer at once or when it is durable."""
        messages = request.messages
        if not messages:
            raise MessageCorrupted("the request holds no message")
        name = messages[0].topic.name
        topic = self.topics.get(name)
        target = self.targets.get(name)
        if target is None or target.topic is not topic:
            target = self.look_at(name, topic)
        traces = self.traces
        if traces is not None:
            self.context_seen, began_ns = False, time_ns()
        self.special = False
        born_host = born_host_of(call.peer)
        now_ms = self.clock()
        drafts = [self.draft(message, name, born_host, now_ms) for message in messages]
        if target is None or not target.plain or self.special:
            target = self.accept({type_of(message.system_properties) for message in messages}, name, topic)
        queue_id = self.queue(call, target)
        for draft in drafts:
            draft.queue_id = queue_id
        if self.special:
            for message in messages:
                if message.system_properties.HasField("body_digest"):
                    check_digest(message)
        appended = self.appender.append(drafts)
        created = None
        if traces is not None and self.context_seen:
            created = traces.appended(drafts, appended, began_ns)
        if not self.appender.waits:
            if created and traces is not None:
                traces.answered(created)
            return send_answer(drafts, appended)
        deferred: Deferred[Any] = Deferred()

        def answer(error: WhimbrelError | None) -> None:
            if created and traces is not None:
                traces.answered(created, error)
            if error is None:
                deferred.complete(send_answer(drafts, appended))
            else:
                deferred.complete(response_of(drafts, appended, status_of(error)))

        self.appender.when_durable(appended[-1].end, answer)
        return deferred

    def look_at(self, name: str, topic: TopicConfig | None) -> "Target | None":
        """Find out, once for each version of a topic, what sends to it need to know; None: it is not there.

        Raises:
            IllegalTopic: no client may send to it.
        """
        if topic is None or self.topics.is_system(name):
            check_topic(name)
            if self.topics.is_system(name):
                raise IllegalTopic(f"{name} is a system topic")
        if topic is None:
            return None
        if len(self.targets) >= TARGETS_MAX:
            self.targets.clear()
        target = self.targets[name] = Target(topic)
        return target

    def accept(self, kinds: set[MessageType], name: str, topic: TopicConfig | None) -> "Target":
        """Return the topic when it takes messages of these kinds, creating it where a send may."""
        if topic is None:
            self.appender.check_writable()  # a broker that takes no writes creates no topics either
            topic = self.topics.create_by_send(name)
            if topic is None:
                raise TopicNotFound(f"no topic {name}; create it, or switch auto_create_topics on")
        takes = topic.message_type
        for kind in kinds:
            if kind is not takes and not (takes is MessageType.MIXED and kind not in NEVER_MIXED):
                raise MessageTypeConflict(f"topic {name} takes {takes} messages, and this one is {kind}")
        for kind in kinds:
            if kind is not MessageType.NORMAL:
                raise NotSupported(f"{kind} messages are not supported yet")
        return Target(topic)

    def queue(self, call: Call, target: "Target") -> int:
        queues = target.queues
        if not queues:
            raise Forbidden(f"topic {target.topic.name} has no writable queue here")
        wanted = call.metadata.get(QUEUE_HEADER)
        if wanted is not None:
            if not wanted.isdecimal() or int(wanted) >= queues:
                raise BadRequest(f"queue {wanted} is not one of the {queues} of {target.topic.name}")
            return int(wanted)
        self.turn += 1
        return self.turn % queues

    def draft(self, message: Any, topic: str, born_host: bytes, now_ms: int) -> RecordDraft:
        """Check one message and return it as a record without a queue.

        Anything unusual sends the message through `check_in_order`, which raises the error that comes first.
        """
        body = message.body
        system = message.system_properties
        message_id = system.message_id
        fine = 0 < len(body) <= BODY_BYTES_MAX and message.topic.name == topic
        text = ""
        user = message.user_properties
        if user:
            for key in user:
                value = user[key]
                fine = (
                    fine and key not in RESERVED_PROPERTY_KEYS and key.isprintable() and value.isprintable()
                )
                text += f"{key}\x01{value}\x02"
            fine = fine and "" not in user and len(user) <= PROPERTIES_COUNT_MAX
        born = system.born_timestamp
        born_ms = born.seconds * 1000 + born.nanos // 1_000_000 if born.seconds else now_ms
        text += f"UNIQ_KEY\x01{message_id}\x02{self.cluster}BORN_TIMESTAMP\x01{born_ms}\x02"
        tag = system.tag
        code = 0
        if tag:
            fine = fine and "|" not in tag and tag.isprintable()
            text += f"TAGS\x01{tag}\x02"
            code = cached_tags_code(tag)
        keys: tuple[str, ...] = (message_id,)
        named = system.keys
        if named:
            given = [key for key in named if key]
            if given:
                joined = " ".join(given)
                fine = fine and joined.count(" ") == len(given) - 1 and joined.isprintable()
                text += f"KEYS\x01{joined}\x02"
                keys = (message_id, *given)
        host, trace = system.born_host, system.trace_context
        if host:
            fine = fine and host.isprintable()
            text += f"__BORNHOST\x01{host}\x02"
        if trace:
            fine = fine and trace.isprintable()
            text += f"TRACE_CONTEXT\x01{trace}\x02"
            self.context_seen = True
        elif self.traces is not None:
            if user and FALLBACK_PROPERTY in user:
                self.context_seen = True
            elif random() < self.sampled:
                text = self.traced(text, self.traces)
        has = system.HasField
        if has("body_digest"):
            self.special = True
        if (
            has("delivery_timestamp") or has("message_group") or has("orphaned_transaction_recovery_duration")
            or has("lite_topic") or has("priority") or system.message_type == v2.TRANSACTION
        ):  # fmt: skip
            self.special, fine = True, False
        if (
            not fine
            or not message_id.isprintable()
            or message_id.isspace()
            or not message_id
            or tag.isspace()
            or len(text) > CHARS_CHECKED
        ):
            check_in_order(message, topic, now_ms)
        sys_flag = COMPRESSED if system.body_encoding == v2.GZIP else 0
        # In the order of its fields: by name it takes half a microsecond more.
        return RecordDraft(
            topic, 0, body, text.encode(), born_ms, born_host, self.store_host, 0, sys_flag, 0, 0, code, keys
        )

    def traced(self, text: str, traces: "RecordTraces") -> str:
        """Return a property text with a context of ours, if it fits."""
        longer = f"{text}TRACE_CONTEXT\x01{traces.create()}\x02"
        if len(longer.encode()) > PROPERTIES_BYTES_MAX:
            return text
        self.context_seen = True
        return longer


NEVER_MIXED = (MessageType.LITE, MessageType.PRIORITY)
# a character has at most 4 bytes, so a shorter text is within the limit
CHARS_CHECKED = PROPERTY_BYTES_MAX // 4


def type_of(system: Any) -> MessageType:
    """Return what the message's properties make it, in RocketMQ's order."""
    if system.message_type == v2.TRANSACTION:
        return MessageType.TRANSACTION
    if system.HasField("lite_topic"):
        return MessageType.LITE
    if system.HasField("priority"):
        return MessageType.PRIORITY
    if system.HasField("delivery_timestamp"):
        return MessageType.DELAY
    return MessageType.FIFO if system.message_group else MessageType.NORMAL


def check_in_order(message: Any, topic: str, now_ms: int) -> None:
    """Raise the error of the first rule that the message breaks, in RocketMQ's order.

    None: it was only unusual.
    """
    if message.topic.name != topic:
        raise MessageCorrupted("the request holds messages of several topics")
    body = message.body
    if not body:
        raise MessageEmpty("the body is empty")
    if len(body) > BODY_BYTES_MAX:
        raise MessageTooLarge(f"the body has {len(body)} bytes; at most {BODY_BYTES_MAX} are allowed")
    user, system = message.user_properties, message.system_properties
    if len(user) > PROPERTIES_COUNT_MAX:
        raise PropertiesTooLarge(f"{len(user)} user properties; at most {PROPERTIES_COUNT_MAX} are allowed")
    weight = len(system.tag.encode())
    for key, value in user.items():
        check_property(key, value)
        weight += len(key.encode()) + len(value.encode())
    check_tag(system.tag)
    for key in system.keys:
        check_key(key)
        weight += len(key.encode())
    if weight > PROPERTY_BYTES_MAX:
        raise PropertiesTooLarge(
            f"properties, tag and keys have {weight} bytes; at most {PROPERTY_BYTES_MAX} are allowed"
        )
    check_message_id(system.message_id)
    recovery = system.orphaned_transaction_recovery_duration
    if recovery.seconds + recovery.nanos / 1e9 > RECOVERY_MAX_S:
        raise BadRequest(f"the transaction recovery duration is over {RECOVERY_MAX_S} s")
    due = system.delivery_timestamp
    if due.seconds * 1000 + due.nanos // 1_000_000 > now_ms + DELIVERY_AHEAD_MAX_MS:
        raise IllegalDeliveryTime("the delivery time is more than 24 hours ahead")
    check_message_group(system.message_group)
    if CONTROL.search(system.born_host) or CONTROL.search(system.trace_context):
        raise BadRequest("born host or trace context hold control characters")


def check_digest(message: Any) -> None:
    digest = message.system_properties.body_digest
    found = digest.checksum.upper()
    if digest.type == v2.CRC32:
        # SDKs disagree about leading zeros.
        good = found.lstrip("0") == f"{crc32(message.body):X}".lstrip("0")
    elif digest.type == v2.MD5:
        good = found == md5(message.body, usedforsecurity=False).hexdigest().upper()
    elif digest.type == v2.SHA1:
        good = found == sha1(message.body, usedforsecurity=False).hexdigest().upper()
    else:
        good = True
    if not good:
        raise MessageCorrupted("the body does not match its digest")


@lru_cache(maxsize=4096)
def born_host_of(peer: str) -> bytes:
    """Return the peer's address as records hold it; what is no address (a UNIX socket) becomes 0.0.0.0:0."""
    host, _, port = peer.rpartition(":")
    try:
        return pack_host(host.strip("[]"), int(port))
    except (ValueError, OSError):
        return bytes(8)


def response_of(drafts: Sequence[RecordDraft], appended: Sequence[Any], status: Any) -> Any:
    response = messaging.SendMessageResponse(status=status)
    add = response.entries.add
    for draft, place in zip(drafts, appended, strict=True):
        add(status=status, message_id=draft.keys[0], offset=place.queue_offset)
    return response
