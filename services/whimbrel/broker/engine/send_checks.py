"""The checks of sends, each once. Which of them a protocol has, and in which order, say its `SendRules`.

What a message becomes (`messages`): a record with the property text of the message, each pair as `name 0x01
value 0x02`, in the message's order; then TRACE_CONTEXT where the message was sampled here, then what makes it
more than a plain one, where a front gave that as `MessageExtras` (`message.py special_text`). Its index keys
are its id, and its keys.

A message is of one kind: a message group, a delivery time, a transaction, a priority or a lite topic; only
messages of transactions may have a message group as well, as in RocketMQ, whose other mixtures lose messages.

Clients of RocketMQ 4 write what their messages are into properties (`kind_by_properties`):

    DELAY=n             SCHEDULE_TOPIC_XXXX, queue n - 1; a greater n than there are levels is the last level
    TIMER_DELAY_SEC     rmq_sys_wheel_timer, where the time is ahead; else TIMER_DELAY_MS, else
                        TIMER_DELIVER_MS (5.x)
    TRAN_MSG=true       the half topic

A level or a time that is no number, or too far ahead, is refused; one that is over means at once. RocketMQ:
SendMessageProcessor, AbstractSendMessageProcessor, HookUtils.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from whimbrel.broker.engine.message import (
    NOT_AT_ONCE,
    PLAIN,
    MessageExtras,
    NewMessage,
    check_digest,
    compose,
    special_text,
)
from whimbrel.broker.engine.policy import SendPolicy
from whimbrel.broker.engine.send import Check, Elsewhere, Send, Sends
from whimbrel.broker.engine.targets import brokers_own
from whimbrel.broker.produce.level_draft import levelled, wanted_level
from whimbrel.broker.produce.placement import owner_of_group, queue_of_group
from whimbrel.errors import (
    BadRequest,
    Forbidden,
    GroupNotFound,
    IllegalDeliveryTime,
    IllegalTopic,
    MessageCorrupted,
    MessageEmpty,
    MessageTooLarge,
    MessageTypeConflict,
    NotSupported,
    NotWritable,
    PropertiesTooLarge,
    QueueNotFound,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.limits import MESSAGE_GROUP_BYTES_MAX
from whimbrel.model.names import (
    CONTROL,
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    check_key,
    check_message_group,
    check_message_id,
    check_property,
    check_tag,
    check_topic,
)
from whimbrel.model.properties import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
)
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.model.trace import CONTEXT_PROPERTY, FALLBACK_PROPERTY
from whimbrel.store.codec import TRANSACTION_MASK, RecordDraft, tags_code

__all__ = [
    "ADDRESSED",
    "BATCH_ALONE",
    "DETOUR",
    "DIGEST",
    "HERE",
    "KINDS",
    "KIND_BY_PROPERTIES",
    "MESSAGES",
    "OPEN_TOPIC",
    "QUEUE",
    "follow_rules",
]

RECOVERY_MAX_S = 3600
NUMBER_DIGITS_MAX = 19  # of a Java long
NEVER_MIXED = (MessageType.LITE, MessageType.PRIORITY)  # types that a MIXED topic does not take
# What makes a plain message one of these.
MAKES: Final = {
    MessageType.FIFO: "give it a message group",
    MessageType.DELAY: "give it a time of delivery",
    MessageType.TRANSACTION: "send it in a transaction",
    MessageType.PRIORITY: "give it a priority",
}
DETOURED: Final = frozenset({MessageType.DELAY, MessageType.TRANSACTION})  # can't be stored without a detour
RETRIED: Final = ("RECONSUME_TIME", "MAX_RECONSUME_TIMES")  # tell the broker of tries; not stored
DELAYS: Final = ((TIMER_DELAY_SEC, 1000), (TIMER_DELAY_MS, 1))  # with their units in ms; the first one counts

cached_tags_code = lru_cache(maxsize=4096)(tags_code)


# The topic


def addressed(sends: Sends, send: Send) -> None:
    """A send holds messages, not too many, for a topic that clients may name."""
    most = sends.policy.messages_max
    if not 0 < send.count <= most:
        if not send.count:
            raise MessageCorrupted("the request holds no message")
        raise BadRequest(f"{send.count} messages in a request; at most {most} are allowed")
    name = send.topic
    topic = sends.topics.rows.get(name)
    target = sends.targets.kept.get(name)
    if target is None or target.topic is not topic or target.system:
        if topic is None or sends.topics.is_system(name):
            check_topic(name)
            if sends.topics.is_system(name):
                raise IllegalTopic(f"{name} is a system topic")
        target = None if topic is None else sends.targets.of(topic)
    send.target = target


def open_topic(sends: Sends, send: Send) -> None:
    """A send goes to a topic that is there or that it makes, and that takes messages now.

    One that comes to a group's retry topic for the last time goes to its dead letters.
    """
    target = sends.targets.kept.get(send.topic)
    if target is not None and target.open and target.topic is sends.topics.rows.get(send.topic):
        send.target = target
        return
    tries_left(sends, send)
    topic = sends.topics.rows.get(send.topic)
    error = refusal(send.topic, topic)
    if error is not None:
        raise error
    topic_there(sends, send)


def tries_left(sends: Sends, send: Send) -> None:
    """A message goes to a group's retry topic as often as the group lets it; then it is a dead letter."""
    if not send.topic.startswith(RETRY_PREFIX):
        return
    for name in RETRIED:
        send.properties.pop(name, None)
    group = group_of_retries(sends, send.topic)
    most = group.retry_max if send.retries_max is None else send.retries_max
    if send.reconsume_times >= most:
        letters = DEAD_LETTER_PREFIX + send.topic.removeprefix(RETRY_PREFIX)
        sends.creation.group_topic(letters, 1, sends.appender.check_writable)
        send.topic, send.queue = letters, 0
        send.properties.pop(DELAY, None)


def refusal(name: str, topic: TopicConfig | None) -> WhimbrelError | None:
    """Return why nobody may send to a topic now, which there may be or not; None where sends are taken."""
    if brokers_own(name):
        return Forbidden(f"{name} is the broker's own: nobody sends to it")
    if topic is not None and topic.drained:
        return drained(topic)
    return None


def drained(topic: TopicConfig) -> NotWritable:
    """Return the error of a send to a topic of a drained broker."""
    return NotWritable(f"topic {topic.name} takes no messages here: this broker is drained")


def topic_there(sends: Sends, send: Send, kind: MessageType = MessageType.NORMAL) -> None:
    """There is the topic, or sends make it, for messages of a kind."""
    name, rules = send.topic, send.rules
    topic = sends.topics.rows.get(name)
    if topic is None:
        check_topic(name, system_allowed=True)
        sends.appender.check_writable()  # a broker that takes no writes makes no topics either
        if rules.group_topics and name.startswith(RETRY_PREFIX):
            queues = group_of_retries(sends, name).retry_queues
            topic = sends.creation.group_topic(name, queues, sends.appender.check_writable)
        else:
            topic = topic_by_send(sends, send, kind)
    send.target = sends.targets.of(topic)


def topic_by_send(sends: Sends, send: Send, kind: MessageType) -> TopicConfig:
    """Return the topic that a send makes."""
    if send.rules.limited:
        sends.creation.take_turn(f"topic {send.topic}")
    made = sends.topics.create_by_send(
        send.topic, kind, template_name=send.template, queues_max=send.template_queues
    )
    if made is None:
        raise TopicNotFound(send.rules.no_topic.format(name=send.topic))
    return made


def group_of_retries(sends: Sends, retry_topic: str) -> GroupConfig:
    """Return the group that a retry topic belongs to."""
    name = retry_topic.removeprefix(RETRY_PREFIX)
    config = sends.creation.groups.rows.get(name)
    if config is None:
        raise GroupNotFound(f"no consumer group {name}")
    return config


# The messages


def messages(sends: Sends, send: Send) -> None:
    """Each message keeps the rules for messages; it becomes a record."""
    policy, rules, sampler = sends.policy, send.rules, sends.sampler
    topic, queue_id, times, each = send.topic, send.queue_id, send.reconsume_times, rules.each
    store_host, born_host = policy.store_host, send.born_host
    drafts: list[RecordDraft] = []
    special: list[tuple[MessageExtras, bytes]] = []
    send.drafts, send.special = drafts, special
    for message in send.messages:
        text, extras = message.text, message.extras
        if text is None:
            text = compose(message, policy.cluster)
        words, tag = message.words, message.tag
        if message.context:
            send.context_seen = True
        elif sampler is not None:
            text = sampled(sends, send, message, text)
        if extras is not None:
            special.append((extras, message.body))
            if extras.kind is not MessageType.NORMAL:
                text += special_text(topic, extras)
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raw = text.encode("utf-8", "replace")  # half a surrogate pair is a question mark in Java as well
        if message.own is not None:
            check_at_once(sends, message.own)
        if rules.record_limits and not (
            len(message.body) <= policy.body_bytes_max and len(raw) <= policy.text_bytes_max
        ):
            raise no_record(policy, message, len(raw))
        for check in each:
            check(sends, send, message, raw)
        # In the order of its fields, which is faster than by name.
        drafts.append(
            RecordDraft(
                topic, queue_id, message.body, raw, message.born_ms, born_host, store_host, message.flag,
                message.sys_flag & ~TRANSACTION_MASK, times, 0, cached_tags_code(tag) if tag else 0,
                (message.message_id, *filter(None, words.split(" "))) if words else (message.message_id,),
            )
        )  # fmt: skip
    target = send.target
    if special or target is None or not target.plain:
        send.plain = False


def sampled(sends: Sends, send: Send, message: NewMessage, text: str) -> str:
    """Return the property text of a message without a context; one that is sampled gets one, if it fits."""
    assert sends.sampler is not None
    if FALLBACK_PROPERTY in message.users:
        send.context_seen = True
        return text
    context = sends.sampler.context()
    longer = f"{text}{CONTEXT_PROPERTY}\x01{context}\x02" if context else text
    if not context or len(longer.encode("utf-8", "replace")) > sends.policy.text_bytes_max:
        return text
    send.context_seen = True
    return longer


def no_record(policy: SendPolicy, message: NewMessage, size: int) -> WhimbrelError:
    """Return why no record can hold a message whose property text has so many bytes."""
    if len(message.body) > policy.body_bytes_max:
        return too_large(message, policy.body_bytes_max)
    return PropertiesTooLarge(
        f"the properties have {size} bytes; at most {policy.text_bytes_max} are allowed"
    )


def too_large(message: NewMessage, most: int) -> MessageTooLarge:
    """Return the error of a message whose body is too large."""
    return MessageTooLarge(f"the body has {len(message.body)} bytes; at most {most} are allowed")


def follow_rules(sends: Sends, send: Send, message: NewMessage, raw: bytes) -> None:
    """A message keeps RocketMQ's rules for names and sizes.

    One pass that most messages go through; what is unusual is looked at again in RocketMQ's order, which
    raises the error that comes first, or nothing.
    """
    policy, users, extras = sends.policy, message.users, message.extras
    message_id, tag, words = message.message_id, message.tag, message.words
    if not (
        message.topic == send.topic
        and 0 < len(message.body) <= policy.body_bytes_max
        and len(raw) <= policy.weight_max
        and message_id
        and message_id.isprintable()
        and not message_id.isspace()
        and (
            not users
            or (
                len(users) <= policy.users_max
                and "" not in users
                and policy.reserved.isdisjoint(users)
                and "".join(users).isprintable()
                and "".join(users.values()).isprintable()
            )
        )
        and (not tag or (tag.isprintable() and "|" not in tag and not tag.isspace()))
        and (
            not message.keys
            or (words.isprintable() and words.count(" ") == len(list(filter(None, message.keys))) - 1)
        )
        and message.host.isprintable()
        and message.context.isprintable()
        and 0 <= message.born_ms <= policy.time_ms_max
        and (
            extras is None
            or (
                not extras.delivery_ms
                and extras.recovery_s <= RECOVERY_MAX_S
                and (extras.priority is None or extras.priority >= 0)
                and usual_group(extras.message_group)
            )
        )
    ):
        check_in_order(sends, send, message)


def usual_group(group: str) -> bool:
    """Return whether it is no message group, or one that keeps the rules, as most have no other letters."""
    return (
        group.isascii()
        and group.isprintable()
        and len(group) <= MESSAGE_GROUP_BYTES_MAX
        and not group.isspace()
    )


def check_in_order(sends: Sends, send: Send, message: NewMessage) -> None:
    """Raise the error of the first rule that the message breaks, in RocketMQ's order.

    No error: it was only unusual.
    """
    if message.topic != send.topic:
        raise MessageCorrupted("the request holds messages of several topics")
    policy = sends.policy
    users, extras, tag = message.users, message.extras or PLAIN, message.tag
    if not message.body:
        raise MessageEmpty("the body is empty")
    if len(message.body) > policy.body_bytes_max:
        raise too_large(message, policy.body_bytes_max)
    if len(users) > policy.users_max:
        raise PropertiesTooLarge(f"{len(users)} user properties; at most {policy.users_max} are allowed")
    weight = len(tag.encode())
    for key, value in users.items():
        check_property(key, value)
        weight += len(key.encode()) + len(value.encode())
    check_tag(tag)
    for key in message.keys:
        check_key(key)
        weight += len(key.encode())
    if weight > policy.weight_max:
        raise PropertiesTooLarge(
            f"properties, tag and keys have {weight} bytes; at most {policy.weight_max} are allowed"
        )
    check_message_id(message.message_id)
    if extras.recovery_s > RECOVERY_MAX_S:
        raise BadRequest(f"the transaction recovery duration is over {RECOVERY_MAX_S} s")
    if extras.delivery_ms:
        check_delivery(sends, extras.delivery_ms, sends.clock())
    check_message_group(extras.message_group)
    if extras.priority is not None and extras.priority < 0:
        raise BadRequest(f"the priority {extras.priority} is below 0")
    if CONTROL.search(message.host) or CONTROL.search(message.context):
        raise BadRequest("born host or trace context hold control characters")
    if not 0 <= message.born_ms <= policy.time_ms_max:
        raise BadRequest(
            f"the born time, {message.born_ms // 1000} s, is not between the years 1970 and 9999"
        )


def check_delivery(sends: Sends, delivery_ms: int, now_ms: int) -> None:
    """Raise IllegalDeliveryTime where a time of delivery is too far ahead."""
    if delivery_ms > now_ms + sends.delay_max_ms:
        raise IllegalDeliveryTime(
            f"the delivery time is more than {sends.delay_max_ms / 3_600_000:g} hours ahead"
        )


def batch_alone(sends: Sends, send: Send) -> None:
    """A batch goes to no retry topic, and nothing that all its messages share delays them."""
    if not send.batch:
        return
    if send.topic.startswith(RETRY_PREFIX):
        raise MessageCorrupted("a batch can't go to a group's retry topic: send its messages alone")
    check_at_once(sends, send.properties)


def check_at_once(sends: Sends, properties: Mapping[str, str]) -> None:
    """Raise MessageCorrupted where a message of a batch, or all, would not be delivered at once."""
    if not NOT_AT_ONCE.isdisjoint(properties) and (
        is_half(properties) or wanted_time(sends, properties) != (0, 0)
    ):
        raise MessageCorrupted(
            "messages of a batch can't be delayed, or belong to a transaction: send them alone"
        )


# The kind of the messages


def kinds(sends: Sends, send: Send) -> None:
    """Each message is of one kind, all of the same, and the topic takes it; the topic is there, or made."""
    special, found = send.special, set[MessageType]()
    if len(special) < len(send.drafts):
        found.add(MessageType.NORMAL)
    for extras, _ in special:
        if extras.mixed:
            raise MessageTypeConflict(
                "a message has only one of these: a message group, a delivery time, a transaction,"
                " a priority, a lite topic"
            )
        found.add(extras.kind)
    if MessageType.LITE in found:
        raise MessageTypeConflict("lite topics are not supported: send to a topic of another type")
    if send.target is None:
        topic_there(sends, send, min(found))
    assert send.target is not None
    takes = send.target.topic.message_type
    for kind in sorted(found) if len(found) > 1 else found:
        if kind is not takes and not (takes is MessageType.MIXED and kind not in NEVER_MIXED):
            raise wrong_kind(send.topic, takes, kind)
    if len(found) > 1:
        raise BadRequest(f"one request holds {' and '.join(sorted(found))} messages; send them one by one")
    if len(special) > 1 and MessageType.TRANSACTION in found:
        raise BadRequest("a request holds one message of a transaction only; send them one by one")


def wrong_kind(name: str, takes: MessageType, kind: MessageType) -> MessageTypeConflict:
    """Return the error of a message whose topic takes others."""
    way = MAKES.get(takes) if kind is MessageType.NORMAL else None
    return MessageTypeConflict(
        f"topic {name} takes {takes} messages, and this one is {kind}: "
        + (way or f"send it to a topic of type {kind}")
    )


def kind_by_properties(sends: Sends, send: Send) -> None:
    """A client's properties make its message a delayed one, or a half."""
    properties = send.properties
    if send.batch:
        return
    level, due_ms = wanted_time(sends, properties)
    if is_half(properties):
        extras = MessageExtras(kind=MessageType.TRANSACTION)
    elif level or due_ms:
        extras = MessageExtras(kind=MessageType.DELAY, level=level, delivery_ms=due_ms)
    else:
        return
    send.special, send.plain = [(extras, b"")], False


def wanted_time(sends: Sends, properties: Mapping[str, str]) -> tuple[int, int]:
    """Return a message's delay level, or when it is to be delivered, in epoch ms; (0, 0): at once.

    Raises:
        IllegalDeliveryTime: that is no number, or too far ahead.
    """
    if DELAY in properties:
        return wanted_level(properties[DELAY]), 0
    now = sends.clock()
    due_ms = 0
    for name, unit in DELAYS:
        if name in properties:
            due_ms = now + number_of(name, properties[name]) * unit
            break
    else:
        if TIMER_DELIVER_MS in properties:
            due_ms = number_of(TIMER_DELIVER_MS, properties[TIMER_DELIVER_MS])
    check_delivery(sends, due_ms, now)
    return 0, due_ms if due_ms > now else 0


def number_of(name: str, text: str) -> int:
    """Return a property's number.

    Raises:
        IllegalDeliveryTime: it is none.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= NUMBER_DIGITS_MAX):
        raise IllegalDeliveryTime(f"{name}={text[:32]!r} is no number")
    return int(text)


def is_half(properties: Mapping[str, str]) -> bool:
    """Return whether a message waits for the end of its transaction."""
    return properties.get(TRAN_MSG) == "true"


# The queue


def here(sends: Sends, send: Send) -> None:
    """The queue of a message group is on the broker that owns it, among all that have the topic.

    SDKs choose a broker by hashes of their own, which differ between languages (and in C# between processes).
    Messages of transactions stay here, whatever their group: who sent the half ends it at the same broker.
    """
    sharing = sends.sharing
    if sharing is None:
        send.handed_on = None
        return
    if not send.special or send.special[0][0].kind is not MessageType.FIFO:
        return
    if send.handed_on is not None:
        for draft in send.drafts:
            draft.born_host = send.handed_on
        return
    assert send.target is not None
    others = sharing.others.get(send.topic)
    if not others:
        return
    queues = {**others, sharing.name: send.target.queues}
    if not any(queues.values()):
        return
    owner, queue_id = owner_of_group(message_group_of(send.extras), queues)
    if owner == sharing.name:
        send.queue_id = queue_id
    else:
        send.elsewhere = Elsewhere(owner, queue_id)


def queue(sends: Sends, send: Send) -> None:
    """The queue is there: the one that is wanted, that of the messages' group or priority, or the next one.

    A message with a priority goes to the queue of that number, or to the last one; one of a message group to
    the group's (RocketMQ: the same, whatever the client wishes).
    """
    queue_id = send.queue_id
    if queue_id < 0:
        target, queue_id = send.target, send.queue
        assert target is not None
        topic = target.topic
        if send.rules.permission:
            queues = target.queues
            if not queues:
                raise drained(topic) if topic.drained else no_queue(topic)
        else:
            queues = max(topic.write_queues, topic.read_queues)
        if send.special:
            queue_id = queue_of_kind(send, queues)
        if queue_id >= queues or (queue_id < 0 and not topic.write_queues):
            named = send.queue_text or queue_id
            raise QueueNotFound(f"queue {named} is not one of the {queues} of {topic.name}")
        if queue_id < 0:
            target.turn += 1
            queue_id = target.turn % topic.write_queues
        send.queue_id = queue_id
    for draft in send.drafts:
        draft.queue_id = queue_id


def queue_of_kind(send: Send, queues: int) -> int:
    """Return the queue that the kind of the messages asks for, else the one that is wanted."""
    first = send.special[0][0]
    if first.priority is not None:
        return min(first.priority, queues - 1)
    if first.message_group and (send.handed_on is None or first.kind is not MessageType.FIFO):
        return queue_of_group(message_group_of(send.extras), queues)
    return send.queue


def no_queue(topic: TopicConfig) -> Forbidden:
    """Return the error of a send to a topic that may not be written."""
    return Forbidden(f"topic {topic.name} has no writable queue here")


def message_group_of(special: Sequence[MessageExtras]) -> str:
    """Return the message group of a request.

    Raises:
        BadRequest: there are several. They may belong to different queues, while a request is stored in one
            (RocketMQ's gateway takes the next queue, and the order of all these groups is lost).
    """
    group = special[0].message_group
    for extras in special[1:]:
        if extras.message_group != group:
            raise BadRequest(
                f"one request holds messages of the groups {group} and {extras.message_group};"
                " send each group by itself"
            )
    return group


# What is stored


def digest(sends: Sends, send: Send) -> None:
    """The body is the one of which the client sent a digest."""
    for extras, body in send.special:
        if extras.digest_kind is not None:
            check_digest(extras.digest_kind, extras.checksum, body)


def detour(sends: Sends, send: Send) -> None:
    """What can't be delivered yet waits where messages of its kind do."""
    if not send.special:
        return
    first = send.special[0][0]
    if first.level:
        send.drafts = [levelled(draft, sends.levels, first.level) for draft in send.drafts]
        return
    found = sends.detours.get(first.kind)
    if first.kind in DETOURED and (found is None or send.rules.writable_first):
        sends.appender.check_writable()  # a slave has none, and says that it is one
    if found is None:
        if first.kind in DETOURED:
            raise NotSupported(f"{first.kind} messages are not taken here")
        return
    instead = found.redirect(send.drafts, send.extras, send.client)
    if instead is not None:
        send.drafts, send.detour = instead, found


ADDRESSED: Final = Check("addressed", addressed)
OPEN_TOPIC: Final = Check("open topic", open_topic)
MESSAGES: Final = Check("messages", messages)
BATCH_ALONE: Final = Check("batch alone", batch_alone, special=True)
KINDS: Final = Check("kinds", kinds, special=True)
KIND_BY_PROPERTIES: Final = Check("kind by properties", kind_by_properties, special=True)
HERE: Final = Check("here", here, special=True)
QUEUE: Final = Check("queue", queue)
DIGEST: Final = Check("digest", digest, special=True)
DETOUR: Final = Check("detour", detour, special=True)
