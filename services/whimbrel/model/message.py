"""Messages to send, receipts, and received messages, as the client library shows them.

Times are seconds since the epoch as floats; a time that was not set is None. Bodies are bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from whimbrel.model.route import Queue

__all__ = ["Message", "MessageType", "PullResult", "ReceivedMessage", "SendReceipt"]


class MessageType(StrEnum):
    """The kind of a message, and of the messages that a topic takes. MIXED is a type of topics only."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    MIXED = "mixed"
    LITE = "lite"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to be sent.

    Attributes:
        topic: its topic.
        body: 1 byte to 4 MiB.
        tag: for filters of consumers; None for none.
        keys: for look-ups; no spaces in a key, since the store joins them with spaces.
        properties: free text pairs; up to 128 pairs and 16 KiB together with tag and keys.
        message_group: messages of one group keep their order, on a FIFO topic.
        deliver_at: not to be delivered before this time, on a DELAY topic.
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
    message_id: str = ""
    trace_context: str | None = None

    @property
    def type(self) -> MessageType:
        """The type that follows from its fields."""
        if self.deliver_at is not None:
            return MessageType.DELAY
        return MessageType.NORMAL if self.message_group is None else MessageType.FIFO


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReceipt:
    """The broker's confirmation of one stored message.

    `queue_id` is None when the choice was left to the broker, which does not report it.
    """

    topic: str
    message_id: str
    broker_name: str
    queue_id: int | None
    queue_offset: int
    transaction_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message as a consumer gets it.

    `receipt_handle` is empty on pulled messages: they carry no lease and need no acknowledgement. `queue` is
    the queue that was asked, whose id may be -1 (any queue of that broker); `queue_id` is where it lies.
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
    receipt_handle: str = ""
    delivery_attempt: int = 0
    trace_context: str | None = None


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
