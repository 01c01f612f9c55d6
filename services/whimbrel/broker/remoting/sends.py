"""Sends by the remoting protocol (310, 10, 320): what is checked, and which record a message becomes.

    request ──► topic, made where a send may make it ──► retries of a group that are used up: %DLQ%group
            ──► queue ──► properties ──► delay level, time of delivery or transaction, if any ──► append ──►
            reply

A message is stored with the properties that were sent, but for WAIT, which says whether the reply waits for
disk and slaves, and with CLUSTER, as in RocketMQ 4.9.3. Those without UNIQ_KEY, the message's id, get one as
in 5.x: consumers of `apache.rocketmq.v2` know messages by it. The type of a topic does not matter here, which
4.x clients do not know; nor does its write permission, unless the broker is drained (RocketMQ: routes tell it
to producers). Limits are those of sends by gRPC.

    DELAY=n             SCHEDULE_TOPIC_XXXX, queue n - 1; a greater n than there are levels is the last level
    TIMER_DELAY_SEC     rmq_sys_wheel_timer, where the time is ahead; else TIMER_DELAY_MS, else
                        TIMER_DELIVER_MS (5.x)
    TRAN_MSG=true       the half topic
    j >= l              of a send to %RETRY%group: %DLQ%group, at once

A level or a time that is no number, or too far ahead, is refused; one that is over means at once.

**A batch** (the header says so, not the code) holds messages one behind the other, big-endian: size i32,
magic i32, CRC i32, flag i32, body length i32, body, properties length i16, properties. All go to one queue,
with consecutive offsets, or none is stored. A message keeps its properties, and gets those of the header that
it has not, WAIT among them; but for UNIQ_KEY, the batch's own id, which clients of 5.x send. What is delayed,
or of a transaction, can't be in a batch, wherever that is said.

**The broker's own marks are never a client's**: REPLAYED_FROM, HANDED_ON_FROM, DEAD_AFTER_ATTEMPTS and
PROPERTIES_LEFT_OUT, which RocketMQ does not know, are not stored of a send. Those that RocketMQ knows are
stored, and not believed
(`model/dead_letter.py`).

Codes 10 and 12 mean that the messages are stored; what is refused is not.

RocketMQ: SendMessageProcessor, AbstractSendMessageProcessor, MessageDecoder.decodeMessages.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from time import time_ns
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from whimbrel.broker.api.send import Detour
from whimbrel.broker.produce.admission import Admission, MessageExtras, born_host_of
from whimbrel.broker.produce.level_draft import levelled, wanted_level
from whimbrel.broker.remoting.group_creation import GroupCreation
from whimbrel.broker.remoting.send_header import SendHeader, properties_of, properties_text, read_header
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    Forbidden,
    GroupNotFound,
    IllegalDeliveryTime,
    MessageCorrupted,
    MessageTooLarge,
    NotWritable,
    PropertiesTooLarge,
    QueueNotFound,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.limits import BODY_BYTES_MAX
from whimbrel.model.names import (
    DEAD_LETTER_PREFIX,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    UNDECIDED_TOPIC,
    check_topic,
)
from whimbrel.model.properties import (
    CLUSTER,
    DEAD_AFTER_ATTEMPTS,
    DELAY,
    HANDED_ON_FROM,
    KEYS,
    PROPERTIES_LEFT_OUT,
    REPLAYED_FROM,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
)
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.model.trace import CONTEXT_PROPERTY, FALLBACK_PROPERTY
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply, reply_to_error
from whimbrel.store.codec import (
    PROPERTIES_BYTES_MAX,
    TRANSACTION_MASK,
    RecordDraft,
    offset_message_id,
    tags_code,
)

if TYPE_CHECKING:
    from whimbrel.broker.record_traces import Creation, RecordTraces

__all__ = ["NOT_PLAIN", "REGION", "VERSION_WITH_MAXIMUM", "WAIT", "Sends", "failed", "refusal"]

WAIT = "WAIT"
RECONSUME_TIME, MAX_RECONSUME_TIMES = "RECONSUME_TIME", "MAX_RECONSUME_TIMES"
REGION: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}  # RocketMQ's defaults
# What would be taken for the broker's own records, as in all topics of the prefix. RocketMQ 5 refuses these
# as well, 4.9.3 only the first.
NOT_SENT_TO: Final = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, HALF_OP_TOPIC, UNDECIDED_TOPIC))
MULTI_TAG = 2  # of the system flag
VERSION_WITH_MAXIMUM = 121  # V3_4_9, whose maximum of redeliveries counts (RocketMQ: the same)
BATCH_HEAD = struct.Struct(">iiiii")
BATCH_MESSAGES_MAX = 65_536  # in 4 MiB there is room for more empty ones
DELAYS: Final = ((TIMER_DELAY_SEC, 1000), (TIMER_DELAY_MS, 1))  # with their units in ms; the first one counts
NUMBER_DIGITS_MAX = 19  # of a Java long
RAW_TRACED: Final = (CONTEXT_PROPERTY.encode(), FALLBACK_PROPERTY.encode())
TRACED: Final = frozenset((CONTEXT_PROPERTY, FALLBACK_PROPERTY))
NOT_AT_ONCE: Final = frozenset((TRAN_MSG, DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS))
OWN_MARKS: Final = frozenset((REPLAYED_FROM, HANDED_ON_FROM, DEAD_AFTER_ATTEMPTS, PROPERTIES_LEFT_OUT))
NOT_PLAIN: Final = NOT_AT_ONCE | OWN_MARKS  # a send with one of these takes the long way


class Sends:
    """Handles sends on the loop's thread.

    Attributes:
        detours: by kind of message (`api/send.py`).
        levels: how many delay levels there are.
    """

    def __init__(
        self,
        admission: Admission,
        topics: TopicTable,
        creation: GroupCreation,
        *,
        cluster: str,
        detours: dict[MessageType, Detour],
        levels: int,
        delay_max_ms: int,
    ) -> None:
        """Take what appends, and the tables."""
        self.admission, self.topics, self.creation = admission, topics, creation
        self.cluster, self.detours, self.levels, self.delay_max_ms = cluster, detours, levels, delay_max_ms
        self.traces: RecordTraces | None = None

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return dict.fromkeys(
            (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), self.send
        )

    def send(self, peer: Peer, request: Command) -> Outcome:
        """Check, append, and reply at once or when it is durable; errors carry RocketMQ's fields, too."""
        try:
            return self.store(peer, request, read_header(request))
        except WhimbrelError as error:
            return failed(error)

    def store(self, peer: Peer, request: Command, header: SendHeader) -> Outcome:
        """Store what a send brings."""
        admission, properties = self.admission, header.properties
        traces = self.traces
        began_ns = 0 if traces is None else time_ns()
        if header.topic.startswith(RETRY_PREFIX):
            properties.pop(RECONSUME_TIME, None)
            properties.pop(MAX_RECONSUME_TIMES, None)
            if self.used_up(header, request.version):
                header.topic = self.dead_letters(header.topic)
                header.queue_id = 0
                properties.pop(DELAY, None)
        topic = self.topic(header)
        queue_id = self.queue(topic, header.queue_id)
        waits = properties.get(WAIT, "true").lower() == "true" and admission.appender.waits
        if not OWN_MARKS.isdisjoint(properties):
            header.properties = properties = without_marks(properties)
        properties[CLUSTER] = self.cluster
        if header.batch:
            if header.topic.startswith(RETRY_PREFIX):
                raise MessageCorrupted("a batch can't go to a group's retry topic: send its messages alone")
            drafts = self.batch(peer, request.body, header, queue_id)
            detour = None
        else:
            properties.pop(WAIT, None)
            draft = self.draft(
                peer, header.topic, queue_id, request.body, properties, header.born_ms, header.sys_flag,
                header.flag, header.reconsume_times,
            )  # fmt: skip
            drafts, detour = self.detoured(draft, properties)
        appended = admission.appender.append(drafts)
        if detour is not None:
            detour.appended(drafts, appended)
        created: list[Creation] = []
        if traces is not None and any(map(has_context, drafts)):
            created = traces.appended(drafts, appended, began_ns)
        reply = Reply(fields=self.fields(queue_id, appended))
        if not waits:
            if created and traces is not None:
                traces.answered(created)
            return reply
        deferred: Deferred[Reply] = Deferred()

        def answer(error: WhimbrelError | None) -> None:
            if created and traces is not None:
                traces.answered(created, error)
            if error is not None:
                reply.code, reply.remark = error.remoting, str(error)
            deferred.complete(reply)

        copies = topic.answer_copies
        if copies is None or detour is not None:
            admission.appender.when_durable(appended[-1].end, answer)
        else:
            admission.appender.when_held(appended[-1].end, copies, answer)
        return deferred

    def fields(self, queue_id: int, appended: Sequence[Any]) -> dict[str, str]:
        """Return the fields of the reply: where the messages are."""
        host = self.admission.store_host
        return {
            "msgId": ",".join([offset_message_id(host, place.physical_offset) for place in appended]),
            "queueId": str(queue_id),
            "queueOffset": str(appended[0].queue_offset),
            **REGION,
        }

    # Where it goes

    def topic(self, header: SendHeader) -> TopicConfig:
        """Return the topic, which is made where there is none and a send may make it."""
        name = header.topic
        found = self.topics.rows.get(name)
        error = refusal(name, found)
        if error is not None:
            raise error
        if found is not None:
            return found
        check_topic(name, system_allowed=True)
        self.admission.appender.check_writable()  # a broker that takes no writes makes no topics either
        if name.startswith(RETRY_PREFIX):
            return self.group_topic(name, self.group(name).retry_queues)
        self.creation.take_turn(f"topic {name}")
        made = self.topics.create_by_send(
            name, template_name=header.default_topic, queues_max=header.default_queues
        )
        if made is None:
            raise TopicNotFound(f"topic {name} does not exist; create it, or switch auto_create_topics on")
        return made

    def group(self, retry_topic: str) -> GroupConfig:
        """Return the group that a retry topic belongs to."""
        name = retry_topic.removeprefix(RETRY_PREFIX)
        config = self.creation.groups.rows.get(name)
        if config is None:
            raise GroupNotFound(f"no consumer group {name}")
        return config

    def group_topic(self, name: str, queues: int) -> TopicConfig:
        """Return a topic of a group's own, which is made where there is none."""
        found = self.topics.rows.get(name)
        if found is None:
            self.admission.appender.check_writable()
            self.topics.check_room()
            found = TopicConfig(name=name, read_queues=max(queues, 1), write_queues=max(queues, 1))
            self.topics.put(found)
        return found

    def used_up(self, header: SendHeader, version: int) -> bool:
        """Return whether a message has come back as often as its group lets it."""
        most = self.group(header.topic).retry_max
        if header.max_reconsume_times >= 0 and version >= VERSION_WITH_MAXIMUM:
            most = header.max_reconsume_times
        return header.reconsume_times >= most

    def dead_letters(self, retry_topic: str) -> str:
        """Return the name of a group's dead-letter topic, which there is then."""
        return self.group_topic(DEAD_LETTER_PREFIX + retry_topic.removeprefix(RETRY_PREFIX), 1).name

    def queue(self, topic: TopicConfig, wanted: int) -> int:
        """Return the queue: the one that is wanted, or the next of the topic for a negative one.

        Raises:
            QueueNotFound: the topic has not that many.
        """
        queues = max(topic.write_queues, topic.read_queues)
        if 0 <= wanted < queues:
            return wanted
        if wanted >= queues or not topic.write_queues:
            raise QueueNotFound(f"queue {wanted} is not one of the {queues} of {topic.name}")
        target = self.admission.target_of(topic.name, topic)
        target.turn += 1
        return target.turn % topic.write_queues

    # What is stored

    def draft(
        self,
        peer: Peer,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
        born_ms: int,
        sys_flag: int,
        flag: int,
        reconsume_times: int,
    ) -> RecordDraft:
        """Return a message as a record. Called by position: it runs for every message.

        Raises:
            MessageTooLarge, PropertiesTooLarge: it is.
        """
        if len(body) > BODY_BYTES_MAX:
            raise MessageTooLarge(f"the body has {len(body)} bytes; at most {BODY_BYTES_MAX} are allowed")
        unique = properties.get(UNIQ_KEY)
        if unique is None:
            unique = properties[UNIQ_KEY] = uuid4().hex.upper()
        text = properties_text(properties)
        if self.traces is not None and TRACED.isdisjoint(properties):
            if context := self.admission.sampled_context():
                longer = text + f"{CONTEXT_PROPERTY}\x01{context}\x02".encode()
                text = longer if len(longer) <= PROPERTIES_BYTES_MAX else text
        if len(text) > PROPERTIES_BYTES_MAX:
            raise PropertiesTooLarge(
                f"the properties have {len(text)} bytes; at most {PROPERTIES_BYTES_MAX} are allowed"
            )
        words = properties.get(KEYS)
        return RecordDraft(
            topic,
            queue_id,
            body,
            text,
            born_ms,
            born_host_of(peer.peer),
            self.admission.store_host,
            flag,
            sys_flag & ~TRANSACTION_MASK,
            reconsume_times,
            0,
            tags_code(properties.get(TAGS)),
            (unique,) if words is None else (unique, *filter(None, words.split(" "))),
        )

    def detoured(
        self, draft: RecordDraft, properties: dict[str, str]
    ) -> tuple[list[RecordDraft], Detour | None]:
        """Return what is stored of a message, and what takes it until it may be delivered."""
        if NOT_AT_ONCE.isdisjoint(properties):
            return [draft], None
        level, due_ms = self.wanted_time(properties)
        if is_half(properties):
            return self.redirected(draft, MessageExtras(kind=MessageType.TRANSACTION))
        if level:
            return [levelled(draft, self.levels, level)], None
        if due_ms:
            return self.redirected(draft, MessageExtras(kind=MessageType.DELAY, delivery_ms=due_ms))
        return [draft], None

    def wanted_time(self, properties: dict[str, str]) -> tuple[int, int]:
        """Return a message's delay level, or when it is to be delivered, in epoch ms; (0, 0): at once.

        Raises:
            IllegalDeliveryTime: that is no number, or too far ahead.
        """
        if DELAY in properties:
            return wanted_level(properties[DELAY]), 0
        now = self.admission.clock()
        due_ms = 0
        for name, unit in DELAYS:
            if name in properties:
                due_ms = now + number_of(name, properties[name]) * unit
                break
        else:
            if TIMER_DELIVER_MS in properties:
                due_ms = number_of(TIMER_DELIVER_MS, properties[TIMER_DELIVER_MS])
        if due_ms > now + self.delay_max_ms:
            raise IllegalDeliveryTime(
                f"the delivery time is more than {self.delay_max_ms / 3_600_000:g} hours ahead"
            )
        return 0, due_ms if due_ms > now else 0

    def redirected(
        self, draft: RecordDraft, extras: MessageExtras
    ) -> tuple[list[RecordDraft], Detour | None]:
        """Return what a detour stores instead of a message."""
        self.admission.appender.check_writable()  # a broker that takes no writes has none
        detour = self.detours[extras.kind]
        instead = detour.redirect([draft], [extras])
        return ([draft], None) if instead is None else (instead, detour)

    def batch(self, peer: Peer, body: bytes, header: SendHeader, queue_id: int) -> list[RecordDraft]:
        """Return the records of a batch.

        Raises:
            MessageCorrupted: the body is no batch, or a message of it can't be in one.
            IllegalDeliveryTime: its time or level is none.
        """
        drafts: list[RecordDraft] = []
        common, at, end = header.properties, 0, len(body)
        self.check_at_once(common)
        common.pop(UNIQ_KEY, None)
        try:
            while at < end:
                size, _, _, flag, length = BATCH_HEAD.unpack_from(body, at)
                start = at + BATCH_HEAD.size
                stop = start + length
                text_length = int.from_bytes(body[stop : stop + 2], "big")
                if length < 0 or stop + 2 + text_length != at + size or at + size > end:
                    raise MessageCorrupted(f"the batch has no whole message at byte {at}")
                if len(drafts) >= BATCH_MESSAGES_MAX:
                    raise BadRequest(f"a batch may have {BATCH_MESSAGES_MAX} messages")
                own = properties_of(body[stop + 2 : at + size].decode("utf-8", "replace"))
                if not NOT_PLAIN.isdisjoint(own):
                    own = without_marks(own)
                    self.check_at_once(own)
                for name, value in common.items():
                    own.setdefault(name, value)
                own[CLUSTER] = self.cluster
                draft = self.draft(
                    peer, header.topic, queue_id, body[start:stop], own, header.born_ms, header.sys_flag,
                    flag, header.reconsume_times,
                )  # fmt: skip
                drafts.append(draft)
                at += size
        except struct.error as error:
            raise MessageCorrupted(f"the batch has no whole message at byte {at}") from error
        if not drafts:
            raise MessageCorrupted("the batch holds no message")
        return drafts

    def check_at_once(self, properties: dict[str, str]) -> None:
        """Raise MessageCorrupted where a message of a batch, or all, would not be delivered at once."""
        if not NOT_AT_ONCE.isdisjoint(properties) and (
            is_half(properties) or self.wanted_time(properties) != (0, 0)
        ):
            raise MessageCorrupted(
                "messages of a batch can't be delayed, or belong to a transaction: send them alone"
            )


def failed(error: WhimbrelError) -> Reply:
    """Return the reply to a send that fails."""
    return replace(reply_to_error(error), fields=REGION)


def refusal(name: str, topic: TopicConfig | None) -> WhimbrelError | None:
    """Return why nobody may send to a topic now, which there may be or not; None where sends are taken."""
    if name in NOT_SENT_TO or name.startswith(SYSTEM_TOPIC_PREFIX):
        return Forbidden(f"{name} is the broker's own: nobody sends to it")
    if topic is not None and topic.drained:
        return NotWritable(f"topic {name} takes no messages here: this broker is drained")
    return None


def has_context(draft: RecordDraft) -> bool:
    """Return whether a message has a trace context."""
    return any(name in draft.properties for name in RAW_TRACED)


def is_half(properties: dict[str, str]) -> bool:
    """Return whether a message waits for the end of its transaction."""
    return properties.get(TRAN_MSG) == "true"


def without_marks(properties: dict[str, str]) -> dict[str, str]:
    """Return properties without those that are the broker's own marks."""
    return {name: value for name, value in properties.items() if name not in OWN_MARKS}


def number_of(name: str, text: str) -> int:
    """Return a property's number.

    Raises:
        IllegalDeliveryTime: it is none.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= NUMBER_DIGITS_MAX):
        raise IllegalDeliveryTime(f"{name}={text[:32]!r} is no number")
    return int(text)
