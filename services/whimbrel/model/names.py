"""Names of topics, groups, tags, keys and properties: what is legal, and why something is not.

Pure rules; every `check_*` function returns nothing, or raises the `RequestError` that becomes the response.

    topic       1..127 characters of  % | a-z A-Z 0-9 _ -   and not a system topic
    group       1..255 characters of the same alphabet, without the prefix CID_RMQ_SYS_
    broker      1..127 characters of that alphabet and the dot (RocketMQ takes the host name if none is set);
                a cluster likewise. RocketMQ has a topic of either name on each broker
    tag         no `|`, no control characters, not blank
    key         no space (the store joins keys with spaces), no control characters, not blank
    property    key not reserved, not empty; key and value without control characters

RocketMQ separates stored properties with U+0001 and U+0002, so a control character that slipped through would
change the meaning of everything behind it: the alphabet check is what keeps the property text unambiguous.
"""

import re
from functools import lru_cache

from whimbrel.errors import (
    IllegalGroup,
    IllegalInvisibleTime,
    IllegalKey,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalPropertyKey,
    IllegalTag,
    IllegalTopic,
)
from whimbrel.model.limits import (
    GROUP_CHARS_MAX,
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    MESSAGE_GROUP_BYTES_MAX,
    TOPIC_CHARS_MAX,
)

__all__ = [
    "BROKER_NAME",
    "BUILT_IN_GROUPS",
    "CONTROL",
    "DEAD_LETTER_PREFIX",
    "GROUP_TOPIC_PREFIXES",
    "HALF_OP_TOPIC",
    "HALF_TOPIC",
    "POP_PREFIX",
    "RESERVED_PROPERTY_KEYS",
    "RETRY_PREFIX",
    "SCHEDULE_TOPIC",
    "SETTLED_PREFIX",
    "SYSTEM_TOPICS",
    "TEMPLATE_TOPIC",
    "TIMER_TOPIC",
    "TRACE_TOPIC",
    "TRANSACTION_GROUP",
    "UNDECIDED_TOPIC",
    "check_broker_name",
    "check_group",
    "check_invisible_ms",
    "check_key",
    "check_message_group",
    "check_message_id",
    "check_property",
    "check_tag",
    "check_topic",
    "is_system_topic",
    "is_text",
    "no_text",
]


TEMPLATE_TOPIC = "TBW102"  # automatically created topics inherit its configuration
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # delayed messages, until they are due
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # messages of transactions, until they are committed
HALF_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"  # which of those are committed or rolled back
UNDECIDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # transactions that were given up without a decision
TIMER_TOPIC = "rmq_sys_wheel_timer"  # messages with a time of delivery, until it has come
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # what RocketMQ 4's clients tell of their messages (message traces)
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"  # its offsets say how far transactions are decided

SYSTEM_TOPICS = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        TRACE_TOPIC,
        HALF_OP_TOPIC,
        UNDECIDED_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
# RocketMQ's tools and proxies consume under these names (RocketMQ: SubscriptionGroupManager).
BUILT_IN_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

POP_PREFIX = "rmq_sys_REVIVE_LOG_"  # what RocketMQ 5 notes of what consumers hold and finish

# RocketMQ keeps a group's redeliveries and its dead letters in topics named after the group.
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
# Ours: the group whose progress on a group's dead letters says which were put back or dropped.
SETTLED_PREFIX = "whimbrel-dlq-"
GROUP_TOPIC_PREFIXES = (RETRY_PREFIX, DEAD_LETTER_PREFIX)

RESERVED_PROPERTY_KEYS = frozenset(
    "KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID"
    " ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY"
    " EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME"
    " TRAN_PREPARED_QUEUE_OFFSET DUP_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME"
    " PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC"
    " TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY"
    " TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#"
    " _SYS_MSG_PRIORITY_ __LITE_TOPIC"
    # Ours: what the log knows of replays and of dead letters, see broker/produce/replay.py, dead_letters.py
    " REPLAYED_FROM HANDED_ON_FROM DEAD_AFTER_ATTEMPTS PROPERTIES_LEFT_OUT".split()
)

# Halves of surrogate pairs are with them: no text in UTF-8 holds one.
CONTROL = re.compile("[\u0000-\u001f\u007f-\u009f\ud800-\udfff]")
NAMES_KEPT = 4096  # of topics and of groups that were found to be ones; others are looked at each time
NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
BROKER_NAME = re.compile(r"[%|a-zA-Z0-9_.-]+")


def is_text(text: str) -> bool:
    """Return whether UTF-8 can hold it; what Python makes of other bytes in arguments and paths it can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def no_text(text: str) -> str:
    """Return in one sentence why something is not `is_text`."""
    return f"{text!r} is not UTF-8: names, keys, tags and properties are text, only a body may be any bytes"


def is_system_topic(name: str) -> bool:
    """Return whether RocketMQ reserves the name; cluster and broker names are not known here."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


@lru_cache(maxsize=NAMES_KEPT)
def check_topic(name: str, *, system_allowed: bool = False) -> None:
    """Raise IllegalTopic unless the name may be a topic's."""
    if not name.strip():
        raise IllegalTopic("the topic name is blank")
    if len(name) > TOPIC_CHARS_MAX:
        raise IllegalTopic(
            f"the topic name has {len(name)} characters; at most {TOPIC_CHARS_MAX} are allowed"
        )
    if NAME.fullmatch(name) is None:
        raise IllegalTopic(f"topic name {name!r} has characters other than % | a-z A-Z 0-9 _ -")
    if not system_allowed and is_system_topic(name):
        raise IllegalTopic(f"{name} is a system topic")


def check_broker_name(setting: str, name: str) -> None:
    """Check the value of a setting that names a broker or a cluster.

    Raises:
        ValueError: it may not be the name of one; the text begins with the setting.
    """
    if not name:
        raise ValueError(f"{setting} must not be empty")
    if len(name) > TOPIC_CHARS_MAX:
        raise ValueError(f"{setting}: {len(name)} characters are too many; {TOPIC_CHARS_MAX} are allowed")
    if BROKER_NAME.fullmatch(name) is None:
        raise ValueError(f"{setting}: {name!r} has characters other than % | a-z A-Z 0-9 _ - and the dot")


@lru_cache(maxsize=NAMES_KEPT)
def check_group(name: str) -> None:
    """Raise IllegalGroup unless the name may be a consumer group's."""
    if not name.strip():
        raise IllegalGroup("the consumer group name is blank")
    if len(name) > GROUP_CHARS_MAX:
        raise IllegalGroup(
            f"the group name has {len(name)} characters; at most {GROUP_CHARS_MAX} are allowed"
        )
    if NAME.fullmatch(name) is None:
        raise IllegalGroup(f"group name {name!r} has characters other than % | a-z A-Z 0-9 _ -")
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise IllegalGroup(f"{name} is a system group")


def check_invisible_ms(invisible_ms: int, *, changed: bool = False) -> None:
    """Raise IllegalInvisibleTime unless messages may be received for this time, or theirs changed to it."""
    lowest = 0 if changed else INVISIBLE_MS_MIN
    if not lowest <= invisible_ms <= INVISIBLE_MS_MAX:
        allowed = "0" if changed else "10 s"
        raise IllegalInvisibleTime(
            f"the invisible duration must be from {allowed} to 12 h, not {invisible_ms / 1000:g} s"
        )


def check_tag(tag: str) -> None:
    """Raise IllegalTag unless the tag may be stored; an empty one means none."""
    if not tag:
        return
    if not tag.strip():
        raise IllegalTag("the tag is blank")
    if "|" in tag:
        raise IllegalTag(f"tag {tag!r} holds `|`, which separates tags in filters")
    if CONTROL.search(tag):
        raise IllegalTag(f"tag {tag!r} holds control characters")


def check_key(key: str) -> None:
    """Raise IllegalKey unless the message key may be stored; an empty one means none."""
    if not key:
        return
    if not key.strip():
        raise IllegalKey("a message key is blank")
    if " " in key:
        raise IllegalKey(f"message key {key!r} holds a space, which separates keys in the store")
    if CONTROL.search(key):
        raise IllegalKey(f"message key {key!r} holds control characters")


def check_property(key: str, value: str) -> None:
    """Raise IllegalPropertyKey unless the user property may be stored."""
    if not key:
        raise IllegalPropertyKey("a user property's key is empty")
    if key in RESERVED_PROPERTY_KEYS:
        raise IllegalPropertyKey(f"user property {key} is reserved")
    if CONTROL.search(key) or CONTROL.search(value):
        raise IllegalPropertyKey(f"user property {key!r} holds control characters")


def check_message_id(message_id: str) -> None:
    """Raise IllegalMessageId unless the id can be stored: any text that is not blank."""
    if not message_id.strip():
        raise IllegalMessageId("the message id is blank")
    if CONTROL.search(message_id):
        raise IllegalMessageId(f"message id {message_id!r} holds control characters")


def check_message_group(group: str) -> None:
    """Raise IllegalMessageGroup unless the text may name a group of ordered messages.

    An empty one means none.
    """
    if not group:
        return
    if not group.strip():
        raise IllegalMessageGroup("the message group is blank")
    if len(group.encode()) > MESSAGE_GROUP_BYTES_MAX:
        raise IllegalMessageGroup(f"the message group has more than {MESSAGE_GROUP_BYTES_MAX} bytes")
    if CONTROL.search(group):
        raise IllegalMessageGroup(f"message group {group!r} holds control characters")
