"""What one connection and one stream may hold in memory, and what they hold now. Pure: counts, no I/O.

    received ──reserve──► incomplete requests ──release──► handler
    responses ──responded──► unflushed ──flushed──► transport             } what the peer leaves unread
    messages of streams ──enqueued──► outboxes ──dequeued──► unflushed    }

Memory is bounded by the connection, since a peer opens as many streams as it likes.
"""

from collections import deque

from whimbrel.errors import Throttled
from whimbrel.rpc.server.limits import (
    HELD_BYTES_MAX,
    OUTBOX_BYTES_MAX,
    OUTBOX_MESSAGES_MAX,
    UNREAD_BYTES_MAX,
)

__all__ = ["ConnectionBudget", "OutboxQueue", "held_too_much", "unread_too_much"]


class ConnectionBudget:
    """The bytes that one connection holds, and their bounds.

    Attributes:
        held: received for requests that are not whole, over all streams.
        unflushed: of responses that leave with the next write.
        queued: of messages in the outboxes of streams.
    """

    __slots__ = ("held", "queued", "unflushed")

    def __init__(self) -> None:
        self.held = self.unflushed = self.queued = 0

    def reserve(self, size: int, *, before: int = 0) -> bool:
        """Count `size` bytes of an incomplete request instead of `before`; False: they are too many."""
        self.held += size - before
        return self.held <= HELD_BYTES_MAX

    def release(self, size: int) -> None:
        """Count bytes no longer: their request has reached its handler, or was dropped."""
        self.held -= size

    def responded(self, size: int) -> None:
        """Count bytes that leave with the next write."""
        self.unflushed += size

    def flushed(self) -> None:
        """Note that the transport has all responses."""
        self.unflushed = 0

    def enqueued(self, size: int) -> None:
        """Count bytes into the outboxes."""
        self.queued += size

    def dequeued(self, size: int) -> None:
        """Count bytes out of the outboxes."""
        self.queued -= size

    def unread(self, waiting: int = 0) -> int:
        """Return the bytes that the peer has not taken; `waiting` is what streams and transport hold."""
        return self.unflushed + self.queued + waiting

    def exceeded(self, waiting: int = 0) -> bool:
        """Return whether the peer leaves so much unread that it gets no more responses."""
        return self.unflushed + self.queued + waiting > UNREAD_BYTES_MAX


class OutboxQueue:
    """Encoded messages that wait for the peer of one stream, in order.

    Attributes:
        bytes: of all messages.
    """

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.messages)

    def full(self) -> bool:
        """Return whether no further message may wait, however small."""
        return len(self.messages) >= OUTBOX_MESSAGES_MAX

    def put(self, message: bytes) -> bool:
        """Queue a message; False: it does not fit. An empty queue takes one of any size."""
        if self.full() or (self.messages and self.bytes + len(message) > OUTBOX_BYTES_MAX):
            return False
        self.messages.append(message)
        self.bytes += len(message)
        return True

    def get(self) -> bytes:
        """Return the oldest message, and drop it."""
        message = self.messages.popleft()
        self.bytes -= len(message)
        return message

    def clear(self) -> int:
        """Drop all messages; return their bytes."""
        size, self.bytes = self.bytes, 0
        self.messages.clear()
        return size


def held_too_much() -> Throttled:
    """Return the error of a request that `ConnectionBudget.reserve` does not allow."""
    return Throttled(
        f"requests of this connection that are not whole have more than {HELD_BYTES_MAX} bytes: "
        "send fewer at a time"
    )


def unread_too_much() -> Throttled:
    """Return the error of a call whose peer leaves too much unread."""
    return Throttled(f"answers of more than {UNREAD_BYTES_MAX} bytes wait to be read by this client")
