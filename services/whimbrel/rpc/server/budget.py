"""What the process, one connection and one stream may hold in memory, and what they hold. Pure: no I/O.

    received ──reserve──► incomplete requests ──release──► handler
    responses ──responded──► unflushed ──flushed──► transport             } what the peer leaves unread
    messages of streams ──enqueued──► outboxes ──dequeued──► unflushed    }

Memory is bounded by the connection, since a peer opens as many streams as it likes, and by the process, since
there are many peers:

    connections ──count──► the budget of the process ──(spent)──► the connection that holds most is ended

So peers that hold little are not concerned by those that hold much, and who opens more connections gains
nothing by it.
"""

from collections import deque
from typing import Generic, TypeVar

from whimbrel.errors import Throttled
from whimbrel.rpc.server.limits import (
    HELD_BYTES_MAX,
    OUTBOX_BYTES_MAX,
    OUTBOX_MESSAGES_MAX,
    PROCESS_BYTES_MAX,
    UNREAD_BYTES_MAX,
)

__all__ = ["ConnectionBudget", "OutboxQueue", "ProcessBudget", "held_too_much", "unread_too_much"]

H = TypeVar("H")


class ProcessBudget(Generic[H]):
    """The bytes that all connections of a process hold, as they were counted last.

    Attributes:
        limit: of all together.
        total: what they hold.
        holders: those that hold something.
        cut_off: how many were to be ended since the start.
    """

    def __init__(self, limit: int = PROCESS_BYTES_MAX) -> None:
        self.limit, self.total, self.cut_off = limit, 0, 0
        self.holders: dict[H, int] = {}

    def count(self, holder: H, size: int) -> H | None:
        """Count what a connection holds now; return the one that is to be ended, if one is."""
        self.total += size - self.holders.pop(holder, 0)
        if size:
            self.holders[holder] = size
        if self.total <= self.limit:
            return None
        return max(self.holders, key=self.holders.__getitem__)

    def ended(self, holder: H) -> None:
        """Note that a connection was ended for what it held."""
        self.cut_off += 1
        self.count(holder, 0)


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
