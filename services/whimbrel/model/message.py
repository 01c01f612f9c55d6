"""Messages to send, receipts, and received messages, as the client library shows them.

Times are seconds since the epoch as floats; a time that was not set is None. Bodies are bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from whimbrel.model.names import is_text, no_text
from whimbrel.model.route import Queue

__all__ = [
    "DeadLetterOrigin",
    "Filter",
    "Message",
    "MessageType",
    "PullResult",
    "ReceivedMessage",
    "Resolution",
    "SendReceipt",
    "SqlFilter",
]

TEXT_CHARS_MAX = 40  # of a body that an error repeats


class MessageType(StrEnum):
    """The kind of a message, and of the messages that a topic takes. MIXED is a type of topics only."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    MIXED = "mixed"
    LITE = "lite"
    PRIORITY = "priority"


class Resolution(StrEnum):
    """What became of a transaction; UNKNOWN leaves it open, and the broker asks again."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A filter by properties, as in `SqlFilter("price > 100 AND region = 'eu'")`.

    The grammar is RocketMQ's: identifiers are properties, among them TAGS and KEYS; = <> > >= < <=, BETWEEN,
    IN, IS NULL, CONTAINS, STARTSWITH, ENDSWITH, AND, OR, NOT. Brokers refuse what they can't read.
    """

    expression: str


Filter: TypeAlias = str | SqlFilter  # which messages of a topic: `*` for all, tags joined by `||`, or SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to be sent.

    It has at most one of a message group, a delivery time and a priority, and the topic has to take messages
    of that type.

    A field of the wrong type is a TypeError here, with the field's name and what to pass; nothing is encoded
    or converted silently, since consumers would not know how. A text that UTF-8 can't hold is a ValueError.

    Attributes:
        topic: its topic.
        body: 1 byte to 4 MiB; text has to be encoded, as in `"hello".encode()`.
        tag: for filters of consumers; None for none.
        keys: for look-ups; no spaces in a key, since the store joins them with spaces.
        properties: free text pairs; up to 128 pairs and 16 KiB together with tag and keys.
        message_group: messages of one group keep their order, on a FIFO topic.
        deliver_at: not to be delivered before this time (seconds since the epoch), on a DELAY topic.
        delay_s: the same, as seconds from the call that sends it.
        priority: from 0 on; those with a greater one are delivered first, on a PRIORITY topic.
        message_id: left empty, the producer makes one; a resend of the same message keeps it.
        trace_context: W3C text of the span in which it was created; None leaves it to the producer.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str | None = None
    deliver_at: float | None = None
    delay_s: float | None = None
    priority: int | None = None
    message_id: str = ""
    trace_context: str | None = None

    def __post_init__(self) -> None:
        """Check the types that protobuf would refuse later, far from the caller's line."""
        if not isinstance(self.body, bytes):
            raise TypeError(f"body is a {named(self.body)}, not bytes: pass {as_bytes(self.body)}")
        if not isinstance(self.topic, str):
            raise TypeError(f"topic is a {named(self.topic)}, not a str: pass the topic's name")
        if self.tag is not None and not isinstance(self.tag, str):
            raise TypeError(
                f"tag is a {named(self.tag)}, not a str: pass tag={str(self.tag)!r}, or leave it out"
            )
        for text in (self.topic, self.tag, self.message_group):
            if text is not None and not is_text(text):
                raise ValueError(no_text(text))
        if self.keys:
            check_keys(self.keys)
        if self.properties:
            check_properties(self.properties)
        if self.deliver_at is not None or self.delay_s is not None or self.priority is not None:
            check_kind(self)

    @property
    def type(self) -> MessageType:
        """The type that follows from its fields."""
        if self.deliver_at is not None or self.delay_s is not None:
            return MessageType.DELAY
        if self.priority is not None:
            return MessageType.PRIORITY
        return MessageType.NORMAL if self.message_group is None else MessageType.FIFO


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReceipt:
    """The broker's confirmation of one stored message.

    The protocol's answer to a send has no queue in it, so that the queue is known because the producer has
    chosen it: it goes over a topic's queues in turn, as RocketMQ's own SDKs do, and tells the broker.
    `queue_id` is None where the broker chose: for messages of a message group, and where it had fewer queues
    than the route said. (A server other than whimbrel takes no choice, and `queue_id` means nothing there.)

    `recall_handle` is what `Producer.recall` takes, for a message that waits for its time; else it is empty.
    """

    topic: str
    message_id: str
    broker_name: str
    queue_id: int | None
    queue_offset: int
    transaction_id: str = ""
    recall_handle: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetterOrigin:
    """Where a dead letter comes from."""

    topic: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message as a consumer gets it.

    `receipt_handle` is empty on pulled messages: they carry no lease and need no acknowledgement. `queue` is
    the queue that was asked, whose id may be -1 (any queue of that broker); `queue_id` is where it lies.
    `dead_letter` is set on messages of a dead-letter topic, `transaction_id` on those that a broker asks a
    producer about. `corrupted` tells why the body is not what its producer meant, and is as it is stored: its
    compression can't be undone; empty for all others.
    """

    topic: str
    body: bytes
    message_id: str
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    type: MessageType
    queue: Queue
    queue_id: int
    queue_offset: int
    born_at: float | None
    born_host: str
    stored_at: float | None
    store_host: str
    message_group: str | None = None
    deliver_at: float | None = None
    priority: int | None = None
    dead_letter: DeadLetterOrigin | None = None
    transaction_id: str = ""
    receipt_handle: str = ""
    delivery_attempt: int = 0
    trace_context: str | None = None
    corrupted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """The result of one pull.

    Attributes:
        messages: in queue order; may be fewer than asked for, or none.
        next_offset: where to go on; it moves past messages that the filter left out.
        suggested_broker_id: which broker of the group should be asked next; 0 is the master.
    """

    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    suggested_broker_id: int = 0


def named(value: object) -> str:
    return type(value).__name__


def as_bytes(body: object) -> str:
    """Return what to pass instead of a body that is no bytes; a long text is not repeated."""
    if isinstance(body, str):
        return f"body={body!r}.encode()" if len(body) <= TEXT_CHARS_MAX else "body=text.encode()"
    if isinstance(body, bytearray | memoryview):
        return "body=bytes(body)"
    return "the bytes of it, as in body=json.dumps(value).encode()"


def check_keys(keys: object) -> None:
    """Raise TypeError unless these are a sequence of texts; one text alone would count as its letters."""
    if isinstance(keys, str):
        raise TypeError(f"keys is a str, not a tuple of them: pass keys=({keys!r},)")
    if not isinstance(keys, Sequence):
        raise TypeError(f"keys is a {named(keys)}, not a tuple: pass keys=('a', 'b')")
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"keys holds {key!r}, which is a {named(key)}, not a str: pass {str(key)!r}")
        if not is_text(key):
            raise ValueError(no_text(key))


def check_properties(properties: object) -> None:
    """Raise TypeError unless this maps texts to texts."""
    if not isinstance(properties, Mapping):
        raise TypeError(
            f"properties is a {named(properties)}, not a dict: pass properties={{'name': 'value'}}"
        )
    for key, value in properties.items():
        if not isinstance(key, str):
            raise TypeError(f"properties has the key {key!r}, which is a {named(key)}: pass {str(key)!r}")
        if not isinstance(value, str):
            raise TypeError(
                f"properties[{key!r}] is a {named(value)}, not a str: pass {{{key!r}: {str(value)!r}}}"
            )
        if not is_text(key) or not is_text(value):
            raise ValueError(no_text(value if is_text(key) else key))


def check_kind(message: Message) -> None:
    """Raise TypeError or ValueError unless the fields that make a message special fit together."""
    if message.priority is not None:
        if not isinstance(message.priority, int):
            raise TypeError(f"priority is a {named(message.priority)}, not an int")
        if message.priority < 0:
            raise ValueError(f"priority is {message.priority}: the least one is 0")
    for name in ("deliver_at", "delay_s"):
        value = getattr(message, name)
        if value is not None and not isinstance(value, int | float):
            raise TypeError(f"{name} is a {named(value)}, not a number of seconds")
    given = [
        name
        for name in ("message_group", "deliver_at", "delay_s", "priority")
        if getattr(message, name) is not None
    ]
    if len(given) > 1:
        raise ValueError(f"a message has only one of {' and '.join(given)}")
