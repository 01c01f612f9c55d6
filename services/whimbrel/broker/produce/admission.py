"""What a message needs to be accepted, by whatever protocol it came: the checks, and the record it becomes.

Everything here takes plain values; a front (the client API in `api/send.py`) reads its own requests and calls

    target(name)            what sends to the topic need to know; refuses illegal and system names
    draft(...)              once a message: its checks, and its record without a queue
    admit(name, extras)     only for special messages or topics: message types, and creation by a send
    queue(target, wanted)   the queue of the whole request
    check_digest(...)       only for messages with a digest of their body
    appender.append(drafts)

in this order, so that a request that breaks several rules gets the same error from every front. Within
`draft` the order is: body empty, body too large, number of user properties, each user property, tag, keys,
size of properties with tag and keys, message id, recovery time of a transaction, delivery time, message
group, and at last control characters in the born host or the trace context, and the born time.

The property text of a record, in this order, each as `name 0x01 value 0x02`:

    (user properties)   by their names: protobuf keeps no order of a map's entries
    UNIQ_KEY            the client's message id
    CLUSTER             the broker's cluster
    BORN_TIMESTAMP      ms; the time of the append where the client names none
    TAGS                where there is a tag
    KEYS                where there are keys; joined by spaces
    __BORNHOST          where the client names its host
    TRACE_CONTEXT       where the client sent one, or the message was sampled here
    (special ones)      what makes the message more than a plain one, see `special_text`

RocketMQ 5.3.3's gRPC path stores the same properties. Its PGROUP, RECONSUME_TIME, MSG_REGION and TRACE_ON are
left out: nothing reads them on a plain message, and they would take 70 bytes a record. A property with an
empty value is not returned to consumers, as in RocketMQ, whose text form can't hold it. With tracing on, a
message without a context may be given one (`record_traces.py`): the one difference from RocketMQ's bytes.

A message is of one kind: a message group, a delivery time, a transaction, a priority or a lite topic; only
messages of transactions may have a message group as well, as in RocketMQ, whose other mixtures lose messages.

`draft` runs for every message: one pass over its fields, and no intermediate objects. Anything unusual goes
through `check_in_order`, which raises the error that comes first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import md5, sha1
from math import log, log1p
from random import random, randrange
from zlib import crc32

from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.produce.placement import queue_of_group
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import (
    BadRequest,
    Forbidden,
    IllegalDeliveryTime,
    IllegalTopic,
    MessageCorrupted,
    MessageEmpty,
    MessageTooLarge,
    MessageTypeConflict,
    NotWritable,
    PropertiesTooLarge,
    QueueNotFound,
    TopicNotFound,
)
from whimbrel.model.limits import BODY_BYTES_MAX, PROPERTIES_COUNT_MAX, PROPERTY_BYTES_MAX, TIME_MS_MAX
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
from whimbrel.model.properties import (
    BORN_HOST,
    BORN_TIMESTAMP,
    CHECK_IMMUNITY_S,
    CLUSTER,
    KEYS,
    PRIORITY,
    PRODUCER_GROUP,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
)
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.model.trace import CONTEXT_PROPERTY, FALLBACK_PROPERTY
from whimbrel.store.codec import PROPERTIES_BYTES_MAX, RecordDraft, pack_host, tags_code

__all__ = [
    "Admission",
    "DigestKind",
    "MessageExtras",
    "SendTarget",
    "born_host_of",
    "check_digest",
    "special_text",
]

DELIVERY_AHEAD_MAX_MS = 24 * 3600 * 1000
RECOVERY_MAX_S = 3600
QUEUE_DIGITS_MAX = 10  # of a queue's number
NEVER_SAMPLED = 1 << 62
TARGETS_MAX = 4096  # topics whose `SendTarget` is kept
NEVER_MIXED = (MessageType.LITE, MessageType.PRIORITY)  # types that a MIXED topic does not take
# What makes a plain message one of these.
MAKES = {
    MessageType.FIFO: "give it a message group",
    MessageType.DELAY: "give it a time of delivery",
    MessageType.TRANSACTION: "send it in a transaction",
    MessageType.PRIORITY: "give it a priority",
}
# A character has at most 4 bytes, so a shorter text is within the limit.
CHARS_CHECKED = PROPERTY_BYTES_MAX // 4
UNKNOWN_HOST = bytes(8)  # 0.0.0.0:0

ID_HEAD = f"{UNIQ_KEY}\x01"
TAG_HEAD = f"{TAGS}\x01"
KEYS_HEAD = f"{KEYS}\x01"
HOST_HEAD = f"{BORN_HOST}\x01"
CONTEXT_HEAD = f"{CONTEXT_PROPERTY}\x01"

cached_tags_code = lru_cache(maxsize=4096)(tags_code)


class DigestKind(StrEnum):
    """How a digest of a body was computed."""

    CRC32 = "crc32"
    MD5 = "md5"
    SHA1 = "sha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageExtras:
    """What few messages have; a plain message has none.

    Attributes:
        kind: what the message is.
        mixed: it has marks of several kinds, see `check_one_kind`.
        delivery_ms: when it is to be delivered, in epoch milliseconds; 0 for at once.
        message_group: its group of ordered messages; empty for none.
        priority: 0 and up; None for none.
        recovery_s: after how long its transaction is to be recovered.
        digest_kind: of `checksum`; None when there is nothing to compare with.
        checksum: the body's digest, in hexadecimal digits.
    """

    kind: MessageType = MessageType.NORMAL
    mixed: bool = False
    delivery_ms: int = 0
    message_group: str = ""
    priority: int | None = None
    recovery_s: float = 0.0
    digest_kind: DigestKind | None = None
    checksum: str = ""


PLAIN = MessageExtras()


class SendTarget:
    """What sends to a topic need to know.

    Attributes:
        topic: its configuration; another object means that it has changed.
        plain: it takes messages without a type of their own, and has them answered when they are durable.
        answer_copies: see `TopicConfig.answer_copies`.
        queues: that may be written.
        turn: counts the requests that left the queue to this broker; it starts anywhere, so that topics whose
            targets are often dropped and made anew use all of their queues, too.
    """

    __slots__ = ("answer_copies", "plain", "queues", "topic", "turn")

    def __init__(self, topic: TopicConfig) -> None:
        self.topic = topic
        self.answer_copies = topic.answer_copies
        self.plain = (
            topic.message_type in (MessageType.NORMAL, MessageType.MIXED) and self.answer_copies is None
        )
        self.queues = topic.write_queues if topic.writable else 0
        self.turn = randrange(self.queues or 1)


class Admission:
    """Accepts messages for the log, or refuses them; on the loop's thread.

    Attributes:
        appender: appends what was accepted.
        store_host: this broker's address as records hold it.
        clock: epoch milliseconds.
        delay_max_ms: how far ahead a time of delivery may be.
        context_seen: a message had a trace context, or was given one, since a front reset it.
        unsampled: so many messages without a trace context are not sampled before the next one that is.
    """

    def __init__(
        self,
        topics: TopicTable,
        appender: RecordAppender,
        *,
        cluster: str,
        store_host: bytes,
        clock: Callable[[], int],
        delay_max_ms: int = DELIVERY_AHEAD_MAX_MS,
    ) -> None:
        """Take what is needed; nothing is sampled for traces."""
        self.topics = topics
        self.appender = appender
        self.store_host = store_host
        self.clock = clock
        self.delay_max_ms = delay_max_ms
        self.after_id = f"\x02{CLUSTER}\x01{cluster}\x02{BORN_TIMESTAMP}\x01"
        self.targets: dict[str, SendTarget] = {}
        self.context_seen = False
        self.create_context: Callable[[], str] | None = None  # None: tracing is off
        self.sampled = 0.0
        self.unsampled = 0

    def sample(self, create_context: Callable[[], str], ratio: float) -> None:
        """Give this share of the messages that come without a trace context a new one from now on."""
        self.create_context, self.sampled = create_context, ratio
        self.unsampled = draw_unsampled(ratio)

    def target(self, name: str) -> SendTarget | None:
        """Return what sends to a topic need to know; None when there is no such topic yet.

        Raises:
            IllegalTopic: no client may send to it.
        """
        topic = self.topics.rows.get(name)
        target = self.targets.get(name)
        if target is not None and target.topic is topic:
            return target
        if topic is None or self.topics.is_system(name):
            check_topic(name)
            if self.topics.is_system(name):
                raise IllegalTopic(f"{name} is a system topic")
        return None if topic is None else self.target_of(name, topic)

    def target_of(self, name: str, topic: TopicConfig) -> SendTarget:
        """Return the kept target of a topic, or a new one if the topic has changed or was not in use."""
        target = self.targets.get(name)
        if target is None or target.topic is not topic:
            if len(self.targets) >= TARGETS_MAX:
                self.targets.clear()
            target = self.targets[name] = SendTarget(topic)
        return target

    def draft(
        self,
        topic: str,  # one that `target` found legal
        body: bytes,  # as it is stored, compressed or not
        properties: Mapping[str, str],  # the user's
        message_id: str,
        tag: str,  # empty for none
        keys: Sequence[str],  # empty ones are left out
        born_ms: int,
        born_host: bytes,  # the peer's address, see `born_host_of`
        host_text: str,  # what the client calls its host; empty for nothing
        trace_context: str,  # empty for none
        sys_flag: int,  # how the body is compressed
        extras: MessageExtras | None,  # None for a plain message
    ) -> RecordDraft:
        """Check one message and return it as a record without a queue.

        Called by position: it runs for every message.

        Raises:
            RequestError: a rule is broken; the first one in RocketMQ's order.
        """
        fine = 0 < len(body) <= BODY_BYTES_MAX
        text = ""
        if properties:
            for key in sorted(properties) if len(properties) > 1 else properties:
                value = properties[key]
                fine = (
                    fine and key not in RESERVED_PROPERTY_KEYS and key.isprintable() and value.isprintable()
                )
                text += f"{key}\x01{value}\x02"
            fine = fine and "" not in properties and len(properties) <= PROPERTIES_COUNT_MAX
        text += f"{ID_HEAD}{message_id}{self.after_id}{born_ms}\x02"
        code = 0
        if tag:
            fine = fine and "|" not in tag and tag.isprintable() and not tag.isspace()
            text += f"{TAG_HEAD}{tag}\x02"
            code = cached_tags_code(tag)
        index_keys: tuple[str, ...] = (message_id,)
        if keys:
            given = [key for key in keys if key]
            if given:
                joined = " ".join(given)
                fine = fine and joined.count(" ") == len(given) - 1 and joined.isprintable()
                text += f"{KEYS_HEAD}{joined}\x02"
                index_keys = (message_id, *given)
        if host_text:
            fine = fine and host_text.isprintable()
            text += f"{HOST_HEAD}{host_text}\x02"
        if trace_context:
            fine = fine and trace_context.isprintable()
            text += f"{CONTEXT_HEAD}{trace_context}\x02"
            self.context_seen = True
        elif self.create_context is not None:
            if properties and FALLBACK_PROPERTY in properties:
                self.context_seen = True
            elif context := self.sampled_context():
                text = self.traced(text, context)
        if extras is not None and extras.kind is not MessageType.NORMAL:
            text += special_text(topic, extras)
        if (
            not fine
            or not message_id.isprintable()
            or message_id.isspace()
            or not message_id
            or len(text) > CHARS_CHECKED
            or not 0 <= born_ms <= TIME_MS_MAX
            # Most messages of some SDKs have extras only for a digest.
            or (
                extras is not None
                and (
                    extras.kind is not MessageType.NORMAL
                    or extras.delivery_ms
                    or extras.message_group
                    or extras.recovery_s
                )
            )
        ):
            self.check_in_order(
                body, properties, message_id, tag, keys, born_ms, host_text, trace_context, extras or PLAIN
            )
        # In the order of its fields, which is faster than by name.
        return RecordDraft(
            topic, 0, body, text.encode(), born_ms, born_host, self.store_host, 0, sys_flag, 0, 0, code,
            index_keys,
        )  # fmt: skip

    def sampled_context(self) -> str:
        """Return a trace context for a message that came without one, if it is sampled; else ""."""
        if self.create_context is None:
            return ""
        if self.unsampled:
            self.unsampled -= 1
            return ""
        self.unsampled = draw_unsampled(self.sampled)
        return self.create_context()

    def traced(self, text: str, context: str) -> str:
        """Return a property text with a context of ours, if it fits."""
        longer = f"{text}{CONTEXT_HEAD}{context}\x02"
        if len(longer.encode()) > PROPERTIES_BYTES_MAX:
            return text
        self.context_seen = True
        return longer

    def check_in_order(
        self,
        body: bytes,
        properties: Mapping[str, str],
        message_id: str,
        tag: str,
        keys: Sequence[str],
        born_ms: int,
        host_text: str,
        trace_context: str,
        extras: MessageExtras,
    ) -> None:
        """Raise the error of the first rule that the message breaks, in RocketMQ's order.

        No error: it was only unusual. Arguments as of `draft`.
        """
        if not body:
            raise MessageEmpty("the body is empty")
        if len(body) > BODY_BYTES_MAX:
            raise MessageTooLarge(f"the body has {len(body)} bytes; at most {BODY_BYTES_MAX} are allowed")
        if len(properties) > PROPERTIES_COUNT_MAX:
            raise PropertiesTooLarge(
                f"{len(properties)} user properties; at most {PROPERTIES_COUNT_MAX} are allowed"
            )
        weight = len(tag.encode())
        for key, value in properties.items():
            check_property(key, value)
            weight += len(key.encode()) + len(value.encode())
        check_tag(tag)
        for key in keys:
            check_key(key)
            weight += len(key.encode())
        if weight > PROPERTY_BYTES_MAX:
            raise PropertiesTooLarge(
                f"properties, tag and keys have {weight} bytes; at most {PROPERTY_BYTES_MAX} are allowed"
            )
        check_message_id(message_id)
        if extras.recovery_s > RECOVERY_MAX_S:
            raise BadRequest(f"the transaction recovery duration is over {RECOVERY_MAX_S} s")
        if extras.delivery_ms and extras.delivery_ms > self.clock() + self.delay_max_ms:
            raise IllegalDeliveryTime(
                f"the delivery time is more than {self.delay_max_ms / 3_600_000:g} hours ahead"
            )
        check_message_group(extras.message_group)
        if extras.priority is not None and extras.priority < 0:
            raise BadRequest(f"the priority {extras.priority} is below 0")
        if CONTROL.search(host_text) or CONTROL.search(trace_context):
            raise BadRequest("born host or trace context hold control characters")
        if not 0 <= born_ms <= TIME_MS_MAX:
            raise BadRequest(f"the born time, {born_ms // 1000} s, is not between the years 1970 and 9999")

    def admit(self, name: str, special: Sequence[MessageExtras], *, plain: bool) -> SendTarget:
        """Return the topic if it takes these messages; create it where a send may.

        A topic that is created takes messages of the first one's kind.

        Args:
            name: the topic's.
            special: what the messages have that are not plain ones.
            plain: there are plain messages as well.

        Raises:
            TopicNotFound: there is no such topic, and sends create none here.
            MessageTypeConflict: the topic takes other messages, or a message is of several kinds.
            BadRequest: the messages of the request are of several kinds, or several transactions.
        """
        kinds = {extras.kind for extras in special} | ({MessageType.NORMAL} if plain else set())
        for extras in special:
            check_one_kind(extras)
        if MessageType.LITE in kinds:
            raise MessageTypeConflict("lite topics are not supported: send to a topic of another type")
        first = min(kinds)  # there are several only in requests that are refused below
        topic = self.topics.get(name)
        if topic is None:
            self.appender.check_writable()  # a broker that takes no writes creates no topics either
            topic = self.topics.create_by_send(name, first)
            if topic is None:
                raise TopicNotFound(f"no topic {name}; create it, or switch auto_create_topics on")
        takes = topic.message_type
        for kind in kinds:
            if kind is not takes and not (takes is MessageType.MIXED and kind not in NEVER_MIXED):
                way = MAKES.get(takes) if kind is MessageType.NORMAL else None
                raise MessageTypeConflict(
                    f"topic {name} takes {takes} messages, and this one is {kind}: "
                    + (way or f"send it to a topic of type {kind}")
                )
        if len(kinds) > 1:
            raise BadRequest(
                f"one request holds {' and '.join(sorted(kinds))} messages; send them one by one"
            )
        if first is MessageType.TRANSACTION and (plain or len(special) > 1):
            raise BadRequest("a request holds one message of a transaction only; send them one by one")
        return self.target_of(name, topic)

    def queue(self, target: SendTarget, wanted: str | None, special: Sequence[MessageExtras] = ()) -> int:
        """Return the queue of a request: the one that is wanted, else the next of the topic.

        Args:
            target: where it goes to.
            wanted: a number in decimal digits, as the client wrote it; None for no wish.
            special: what messages have that are not plain ones. A message with a priority goes to the queue
                of that number, or to the last one; one of a message group to the group's (RocketMQ: the
                same, whatever the client wishes).

        Raises:
            BadRequest: the messages are of several groups.
            Forbidden: the topic has no queue that may be written.
            NotWritable: the same, because the broker is drained: other brokers may have some.
            QueueNotFound: it has not the wanted one.
        """
        queues = target.queues
        if not queues:
            if target.topic.drained:
                raise NotWritable(f"topic {target.topic.name} takes no messages here: this broker is drained")
            raise Forbidden(f"topic {target.topic.name} has no writable queue here")
        if special:
            if special[0].priority is not None:
                return min(special[0].priority, queues - 1)
            if special[0].message_group:
                return queue_of_group(group_of(special), queues)
        if wanted is not None:
            if not wanted.isdecimal() or len(wanted) > QUEUE_DIGITS_MAX or int(wanted) >= queues:
                named = wanted[: 2 * QUEUE_DIGITS_MAX]
                raise QueueNotFound(f"queue {named} is not one of the {queues} of {target.topic.name}")
            return int(wanted)
        target.turn += 1
        return target.turn % queues


def draw_unsampled(ratio: float) -> int:
    """Return how many messages are not sampled before the next one that is, when this share of them is.

    Drawn once a sampled message instead of once a message; the distribution is the same, a geometric one.
    """
    if ratio >= 1:
        return 0
    if ratio <= 0:
        return NEVER_SAMPLED
    return min(int(log(1.0 - random()) / log1p(-ratio)), NEVER_SAMPLED)


def group_of(special: Sequence[MessageExtras]) -> str:
    """Return the message group of a request.

    Raises:
        BadRequest: there are several. They may belong to different queues, while a request is stored in one
            (RocketMQ's gateway takes the next queue, and the order of all these groups is lost).
    """
    group = special[0].message_group
    for extras in special:
        if extras.message_group != group:
            raise BadRequest(
                f"one request holds messages of the groups {group} and {extras.message_group};"
                " send each group by itself"
            )
    return group


def check_one_kind(extras: MessageExtras) -> None:
    """Raise MessageTypeConflict when a message is of several kinds."""
    if extras.mixed:
        raise MessageTypeConflict(
            "a message has only one of these: a message group, a delivery time, a transaction, a priority,"
            " a lite topic"
        )


def special_text(topic: str, extras: MessageExtras) -> str:
    """Return the properties that make a message more than a plain one, as RocketMQ's gRPC path writes them.

    PGROUP is the topic's name there: a RocketMQ broker asks producers of that "group" about a transaction.
    """
    text = ""
    if extras.message_group:
        text = f"{SHARDING_KEY}\x01{extras.message_group}\x02"
    if extras.kind is MessageType.DELAY:
        text += f"{TIMER_DELIVER_MS}\x01{extras.delivery_ms}\x02"
    elif extras.kind is MessageType.TRANSACTION:
        text += f"{TRAN_MSG}\x01true\x02{PRODUCER_GROUP}\x01{topic}\x02"
        if extras.recovery_s >= 1:
            text += f"{CHECK_IMMUNITY_S}\x01{int(extras.recovery_s)}\x02"
    elif extras.kind is MessageType.PRIORITY:
        text += f"{PRIORITY}\x01{extras.priority}\x02"
    return text


def check_digest(kind: DigestKind, checksum: str, body: bytes) -> None:
    """Raise MessageCorrupted unless the body has this digest."""
    found = checksum.upper()
    if kind is DigestKind.CRC32:
        # SDKs disagree about leading zeros.
        good = found.lstrip("0") == f"{crc32(body):X}".lstrip("0")
    else:
        computed = (md5 if kind is DigestKind.MD5 else sha1)(body, usedforsecurity=False)
        good = found == computed.hexdigest().upper()
    if not good:
        raise MessageCorrupted("the body does not match its digest")


@lru_cache(maxsize=4096)
def born_host_of(peer: str) -> bytes:
    """Return the peer's address as records hold it; what is no address (a UNIX socket) becomes 0.0.0.0:0."""
    host, _, port = peer.rpartition(":")
    try:
        return pack_host(host.strip("[]"), int(port))
    except (ValueError, OSError):
        return UNKNOWN_HOST
