"""Receipt handles: the text that identifies a delivery, for its acknowledgement.

    W1:<broker name>:<group>:<topic>:<queue>:<epoch>:<offset>:<physical offset>:<size>:<serial>:<attempt>

Names are percent-encoded, so that no name can hold a colon; numbers are hexadecimal. The broker *name* is
the one that a master and its slaves share, hence a slave accepts what its master issued. `W1` is the
layout's version; handles of another version are refused.

A handle names the record (topic, queue, offset; physical offset and size tell a record from one that took
its place after the log was cut), the group, and the delivery: `serial` is new for every delivery and for
every change of the invisible time, `epoch` grows with every reset of the group's position. `queue_leases.py`
decides whether a handle still counts. Nothing in a handle is secret, and a forged one can do no more than
the consumer could do anyway.
"""

from itertools import repeat
from typing import NamedTuple
from urllib.parse import quote, unquote

from whimbrel.broker.consume.lease_codec import OFFSET_MAX, QUEUE_ID_MAX
from whimbrel.errors import InvalidReceiptHandle
from whimbrel.model.limits import ATTEMPT_MAX

__all__ = ["RECEIPT_CHARS_MAX", "ReceiptHandle", "handle_begin", "receipt_prefix"]

# With the longest names allowed a handle has fewer than 900 characters. The bound makes junk cheap to refuse.
RECEIPT_CHARS_MAX = 2048

VERSION = "W1"


class ReceiptHandle(NamedTuple):
    """One delivery of one message to one group."""

    broker_name: str
    group: str
    topic: str
    queue_id: int
    epoch: int
    offset: int
    physical_offset: int
    size: int
    serial: int
    attempt: int

    def encode(self) -> str:
        """Return the text that the client gets."""
        prefix = receipt_prefix(self.broker_name, self.group, self.topic, self.queue_id)
        return (
            f"{prefix}{self.epoch:x}:{self.offset:x}:{self.physical_offset:x}:{self.size:x}:"
            f"{self.serial:x}:{self.attempt:x}"
        )

    @classmethod
    def decode(cls, text: str) -> "ReceiptHandle":
        """Read a handle; raises InvalidReceiptHandle for text that names no delivery."""
        if len(text) > RECEIPT_CHARS_MAX or not text.isascii():
            raise InvalidReceiptHandle("the receipt handle is not one of this server's")
        try:
            version, broker, group, topic, *numbers = text.split(":")
            values = list(map(int, numbers, repeat(16)))
            if "%" in text:
                broker, group, topic = unquote(broker), unquote(group), unquote(topic)
            handle = cls(broker, group, topic, *values)
        except (ValueError, TypeError):
            raise InvalidReceiptHandle("the receipt handle is not one of this server's") from None
        beyond = (
            max(values) >= 1 << 63
            or handle.offset >= OFFSET_MAX
            or handle.queue_id > QUEUE_ID_MAX
            or handle.attempt > ATTEMPT_MAX
        )
        if version != VERSION or min(values) < 0 or beyond or handle.attempt < 1:
            raise InvalidReceiptHandle("the receipt handle is not one of this server's")
        return handle


def receipt_prefix(broker_name: str, group: str, topic: str, queue_id: int) -> str:
    """Return the part that all handles of one group's queue share, with the colon before the epoch."""
    return f"{handle_begin(broker_name)}{quote(group, safe='')}:{quote(topic, safe='')}:{queue_id:x}:"


def handle_begin(broker_name: str) -> str:
    """Return how all handles of a broker begin, with the colon before the group."""
    return f"{VERSION}:{quote(broker_name, safe='')}:"
