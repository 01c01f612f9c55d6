"""One stream of lease entries between a master and a slave, seen from one end; the transport is the caller's.

    connected     both sides send their full state, in chunks, and mark the last one
    live          every change is sent as it is made
    overflowed    the peer took too little for too long: close the stream; the next begins anew

What changes while the full state is being sent waits until that is through, so that the peer never gets
a later offset of a queue before the earlier ones: a peer that serves consumers meanwhile would take them
for unread. Entries merge in any order and any number of times (`leases.py`), so a stream that breaks leaves
nothing to repair.

A message that leaves nothing waiting has a number (`LeaseStore.number`): who has all messages up to it, has
all changes up to that one. Where members are elected a leader sends it, and its peer tells up to which number
all is on its disk (`state_quorum.py`); elsewhere nobody looks at it.

Entries of the kind "order" go only to a peer that has said that it reads them: an earlier version ends the
stream at a kind that it does not know. A slave says so in its first message. The master answers in its first
one, and the slave, whose state may be on its way by then, sends its orders after that.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator

from whimbrel.broker.consume.lease_codec import is_order, without_orders
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.errors import CorruptRecord, RemoteProtocolError

__all__ = ["CHUNK_BYTES", "OUTBOX_BYTES_MAX", "LeaseExchange"]

# Entries in one message: small enough that joining one (about 2000 entries) holds the peer's loop for a few
# milliseconds.
CHUNK_BYTES = 128 << 10
# What may wait for a slow peer; about five seconds of 10,000 changes a second. More is cheaper to send as a
# full state.
OUTBOX_BYTES_MAX = 8 << 20

logger = logging.getLogger(__name__)


class LeaseExchange:
    """One end of one stream.

    Call `push` after creation, whenever `ready` was called, and when the transport has room again. Call
    `close` when the stream is over.

    Attributes:
        number: of the message that is being sent; 0 where more is waiting, or nothing is numbered.
    """

    def __init__(
        self,
        lease_store: LeaseStore,
        *,
        ready: Callable[[], None],
        chunk_bytes: int = CHUNK_BYTES,
        peer_reads_orders: bool = False,
        numbers: bool = False,
    ) -> None:
        """Begin a stream.

        Args:
            lease_store: what is exchanged. ready: called when there is something new to push. chunk_bytes: in
            one message. peer_reads_orders: whether the peer has said so; see `peer_reads`.
        """
        self.lease_store = lease_store
        self.ready = ready
        self.chunk_bytes = chunk_bytes
        self.peer_reads_orders = peer_reads_orders
        self.state: Iterator[bytes] | None = lease_store.snapshot()
        self.refused: tuple[bytes, bool] | None = None
        self.waiting: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.signalled = False  # `ready` was called since the last push
        self.overflowed = False
        self.peer_complete = False
        self.numbers = numbers
        self.number = self.told = 0
        lease_store.add_listener(self)

    @property
    def pending(self) -> bool:
        """Whether there is something to push."""
        return (
            self.state is not None
            or self.refused is not None
            or bool(self.waiting)
            or (self.numbers and self.told != self.lease_store.number)
        )

    def push(self, send: Callable[[bytes, bool], bool]) -> None:
        """Hand messages to the transport until it refuses one; that one comes again with the next push.

        Args:
            send: takes a message's entries and whether it ends the full state; returns False when there is
            no room.
        """
        self.signalled = False
        while self.pending and not self.overflowed:
            message = self.refused or self.next_message()
            self.refused = None
            if not send(*message):
                self.refused = message
                return

    def received(self, entries: bytes, complete: bool = False) -> None:
        """Take a message from the peer; `complete` ends its full state.

        Raises:
            RemoteProtocolError: the entries don't decode; the stream is to be closed.
        """
        try:
            self.lease_store.merge(entries, self)
        except CorruptRecord as error:
            raise RemoteProtocolError(f"the peer sent lease entries that don't decode: {error}") from error
        self.peer_complete = self.peer_complete or complete

    def offer(self, entries: bytes) -> None:
        """Hear of a change from the lease_store."""
        if not self.peer_reads_orders:
            entries = without_orders(entries)
        if self.overflowed or not entries:
            return
        self.waiting.append(entries)
        self.waiting_bytes += len(entries)
        if self.waiting_bytes > OUTBOX_BYTES_MAX:
            logger.warning("a lease stream's peer is %d bytes behind: it begins anew", self.waiting_bytes)
            self.overflowed = True
            self.waiting.clear()
        if not self.signalled:
            self.signalled = True
            self.ready()

    def peer_reads(self) -> None:
        """Learn that the peer reads orders: send those that there are, and all to come."""
        if not self.peer_reads_orders:
            self.peer_reads_orders = True
            self.offer(b"".join(self.lease_store.table.orders()))

    def close(self) -> None:
        """Take no more changes."""
        self.lease_store.remove_listener(self)
        self.state, self.refused = None, None
        self.waiting.clear()

    def next_message(self) -> tuple[bytes, bool]:
        pieces, size = [], 0
        self.number = 0
        if self.state is not None:
            for entry in self.state:
                if is_order(entry) and not self.peer_reads_orders:
                    continue
                pieces.append(entry)
                size += len(entry)
                if size >= self.chunk_bytes:
                    return b"".join(pieces), False
            self.state = None
            self.note_number()
            return b"".join(pieces), True
        while self.waiting and size < self.chunk_bytes:
            entry = self.waiting.popleft()
            pieces.append(entry)
            size += len(entry)
        self.waiting_bytes -= size
        self.note_number()
        return b"".join(pieces), False

    def note_number(self) -> None:
        """Give the message that is made a number, where nothing waits behind it."""
        if self.numbers and not self.waiting:
            self.number = self.told = self.lease_store.number
