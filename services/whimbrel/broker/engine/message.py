"""A message on its way into the log, as fronts hand it over, and what few messages have.

A message has the property text of its record, each pair as `name 0x01 value 0x02`, by RocketMQ's names, and
beside it the properties that rules look at. Where clients write the broker's properties themselves, as those
of RocketMQ 4 do, `compose` makes it of them: what is the broker's own among them is left out, and it adds
CLUSTER, and an id (UNIQ_KEY) where there is none, as RocketMQ 5 does: consumers of `apache.rocketmq.v2` know
messages by it. A front whose protocol names properties otherwise writes the text itself.

What makes a message more than a plain one comes as `MessageExtras`, or stands in the properties that clients
write (`send_checks.py kind_by_properties`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from hashlib import md5, sha1
from typing import Final
from uuid import uuid4
from zlib import crc32

from whimbrel.errors import MessageCorrupted
from whimbrel.model.properties import (
    CHECK_IMMUNITY_S,
    CLUSTER,
    DEAD_AFTER_ATTEMPTS,
    DELAY,
    HANDED_ON_FROM,
    KEYS,
    PRIORITY,
    PRODUCER_GROUP,
    PROPERTIES_LEFT_OUT,
    REPLAYED_FROM,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
)
from whimbrel.model.topic import MessageType
from whimbrel.model.trace import CONTEXT_PROPERTY
from whimbrel.store.codec import pack_host

__all__ = [
    "NOT_AT_ONCE",
    "NOT_PLAIN",
    "OWN_MARKS",
    "PLAIN",
    "DigestKind",
    "MessageExtras",
    "NewMessage",
    "born_host_of",
    "check_digest",
    "compose",
    "special_text",
]

UNKNOWN_HOST = bytes(8)  # 0.0.0.0:0
# The broker's own, never a client's. Those that RocketMQ knows are stored of a send, and not believed
# (`model/dead_letter.py`).
OWN_MARKS: Final = frozenset((REPLAYED_FROM, HANDED_ON_FROM, DEAD_AFTER_ATTEMPTS, PROPERTIES_LEFT_OUT))
# By these properties clients of RocketMQ 4 have a message delivered later.
NOT_AT_ONCE: Final = frozenset((TRAN_MSG, DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS))
NOT_PLAIN: Final = NOT_AT_ONCE | OWN_MARKS  # of properties that a client chose


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
        mixed: it has marks of several kinds; a message is of one.
        delivery_ms: when it is to be delivered, in epoch milliseconds; 0 for at once.
        level: the delay level for which it waits, from 1 on; 0 for none.
        message_group: its group of ordered messages; empty for none.
        priority: 0 and up; None for none.
        recovery_s: after how long its transaction is to be recovered.
        digest_kind: of `checksum`; None when there is nothing to compare with.
        checksum: the body's digest, in hexadecimal digits.
    """

    kind: MessageType = MessageType.NORMAL
    mixed: bool = False
    delivery_ms: int = 0
    level: int = 0
    message_group: str = ""
    priority: int | None = None
    recovery_s: float = 0.0
    digest_kind: DigestKind | None = None
    checksum: str = ""


PLAIN: Final = MessageExtras()


@dataclass(eq=False)
class NewMessage:
    """A message that is to be stored.

    Attributes:
        topic: where it says that it goes to.
        body: as it is stored, compressed or not.
        born_ms: epoch milliseconds.
        users: properties whose names the client chose; all of them, where it writes the broker's itself.
        sys_flag: RocketMQ's; the bits of a transaction are left out.
        text: of its properties; None: `compose` is to make it.
        message_id: its UNIQ_KEY.
        tag: its TAGS; empty for none.
        words: its KEYS, separated by spaces; empty for none.
        extras: None for a plain message.
        keys: its keys, one by one, where the protocol has them so.
        host: what the client calls its host; empty for none.
        context: its trace context; empty for none.
        flag: RocketMQ's.
        own: what the message says itself, where a batch says the rest; None: all.
    """

    topic: str
    body: bytes
    born_ms: int
    users: dict[str, str]
    sys_flag: int = 0
    text: str | None = None
    message_id: str = ""
    tag: str = ""
    words: str = ""
    extras: MessageExtras | None = None
    keys: Sequence[str] = ()
    host: str = ""
    context: str = ""
    flag: int = field(default=0, init=False)
    own: Mapping[str, str] | None = field(default=None, init=False)


def compose(message: NewMessage, cluster: str) -> str:
    """Make the text of a message of its properties, all of which its client wrote; return it.

    Args:
        message: gets the text, and what stands beside it.
        cluster: the broker's.
    """
    properties = message.users
    if not OWN_MARKS.isdisjoint(properties):
        properties = {name: value for name, value in properties.items() if name not in OWN_MARKS}
    properties[CLUSTER] = cluster
    get = properties.get
    unique = get(UNIQ_KEY)
    if unique is None:
        unique = properties[UNIQ_KEY] = uuid4().hex.upper()
    text = ""
    for name, value in properties.items():
        text += f"{name}\x01{value}\x02"
    message.text, message.message_id, message.context = text, unique, get(CONTEXT_PROPERTY, "")
    message.tag, message.words = get(TAGS, ""), get(KEYS, "")
    return text


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
