"""Lease entries: how changes of lease state look in the journal and on the way to the other brokers.

Little-endian, several back to back:

    offset  size
    0       1     kind: 1 done, 2 lease, 3 epoch, 4 order
    1       1     length of the group's name, g
    2       1     length of the topic's name, t
    3       4     queue id, int32
    7       4     epoch, uint32
    11      g+t   names, UTF-8
    done:   16    first offset, end offset, int64 each
    lease:  47+c  first offset int64, count uint32, serial uint64, revision uint32,
                  visible_at int64, taken_at int64 (epoch ms), attempt uint32,
                  flags uint8 (1: renewed by the server), client id's length uint16 c; client id
    epoch:  0     starts an epoch of which nothing else is known
    order:  9+a   serial uint64, attempt id's length uint8 a; attempt id, UTF-8. The leases of that serial
                  were taken by a receive of an ordered group that named this attempt

Orders came later than the other kinds. A broker of a version before refuses them, as it does every unknown
kind, so they go only to those that say that they read them (`without_orders`).

An entry is complete in itself, names included, so that entries can be repeated, reordered and separated
anywhere between two. What they mean, and how they merge, is in `leases.py`; which values they may have when
they come from elsewhere, in `lease_checks.py`. Decoding only finds out where an entry ends.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from whimbrel.errors import CorruptRecord

__all__ = [
    "ATTEMPT_ID_BYTES_MAX",
    "CLIENT_BYTES_MAX",
    "LEASE_COUNT_MAX",
    "OFFSET_MAX",
    "QUEUE_ID_MAX",
    "EntryEncoder",
    "Lease",
    "LeaseEntry",
    "Order",
    "decode_entries",
    "is_order",
    "without_orders",
]

QUEUE_ID_MAX = (1 << 16) - 1
OFFSET_MAX = 1 << 56  # of a queue; a log of 2^63 bytes has no room for so many records
# Offsets in one lease entry. A receive writes at most its batch (32) in one; longer runs under one lease, as
# those of damaged records, are written in pieces. The bound limits what an entry of 70 bytes can allocate.
LEASE_COUNT_MAX = 256
CLIENT_BYTES_MAX = 1024
ATTEMPT_ID_BYTES_MAX = 255

HEAD = struct.Struct("<BBBiI")
DONE = struct.Struct("<qq")
LEASE = struct.Struct("<qIQIqqIBH")
ORDER = struct.Struct("<QB")
KIND_DONE, KIND_LEASE, KIND_EPOCH, KIND_ORDER = 1, 2, 3, 4
FLAG_AUTO_RENEW = 1


class Lease(NamedTuple):
    """One delivery as the group's state sees it; the greatest wins a merge, field by field in this order.

    Attributes:
        serial: new for every delivery and every change by the client; what a receipt handle is checked
        against. revision: grows with changes that leave the handle valid. visible_at: when the message may
        be delivered again. taken_at: when it was delivered. attempt: deliveries so far that count.
        auto_renew: the server renews it while the client lives. client_id: who holds it; kept only when the
        server renews it.
    """

    serial: int
    revision: int
    visible_at: int
    taken_at: int
    attempt: int
    auto_renew: bool
    client_id: str


class Order(NamedTuple):
    """The attempt id of the receive that made the leases of a serial."""

    serial: int
    attempt_id: str


class LeaseEntry(NamedTuple):
    """One entry, decoded.

    `lease` is None for a done range, `end` is -1 for a new epoch, and for an order, which alone has `order`.
    """

    group: str
    topic: str
    queue_id: int
    epoch: int
    start: int
    end: int
    lease: Lease | None
    raw: bytes
    order: Order | None = None


class EntryEncoder:
    """Encodes the entries of one (group, topic, queue)."""

    __slots__ = ("names", "queue_id", "sizes")

    def __init__(self, group: str, topic: str, queue_id: int) -> None:
        encoded = (group.encode(), topic.encode())
        self.names = b"".join(encoded)
        self.sizes = (len(encoded[0]), len(encoded[1]))
        self.queue_id = queue_id

    def done(self, epoch: int, start: int, end: int) -> bytes:
        """Return the entry: [start, end) is done."""
        head = HEAD.pack(KIND_DONE, *self.sizes, self.queue_id, epoch)
        return head + self.names + DONE.pack(start, end)

    def lease(self, epoch: int, start: int, end: int, lease: Lease) -> bytes:
        """Return the entry: [start, end) is held."""
        serial, revision, visible_at, taken_at, attempt, auto_renew, client_id = lease
        client = client_id.encode(errors="replace")[:CLIENT_BYTES_MAX]
        flags = FLAG_AUTO_RENEW if auto_renew else 0
        body = LEASE.pack(
            start, end - start, serial, revision, visible_at, taken_at, attempt, flags, len(client)
        )
        head = HEAD.pack(KIND_LEASE, *self.sizes, self.queue_id, epoch)
        return b"".join((head, self.names, body, client))

    def epoch(self, epoch: int) -> bytes:
        """Return the entry that starts an epoch."""
        return HEAD.pack(KIND_EPOCH, *self.sizes, self.queue_id, epoch) + self.names

    def order(self, epoch: int, order: Order) -> bytes:
        """Return the entry: the leases of a serial belong to this attempt."""
        attempt_id = order.attempt_id.encode()
        head = HEAD.pack(KIND_ORDER, *self.sizes, self.queue_id, epoch)
        return b"".join((head, self.names, ORDER.pack(order.serial, len(attempt_id)), attempt_id))


def decode_entries(data: bytes) -> Iterator[LeaseEntry]:
    """Read entries; raises CorruptRecord at the first that can't be one."""
    view, position, size = memoryview(data), 0, len(data)
    try:
        while position < size:
            begin = position
            kind, group_size, topic_size, queue_id, epoch = HEAD.unpack_from(view, position)
            position += HEAD.size
            names = bytes(view[position : position + group_size + topic_size])
            if len(names) != group_size + topic_size:
                raise CorruptRecord("a lease entry's names run over its end")
            position += len(names)
            start, end, lease, order = 0, -1, None, None
            if kind == KIND_DONE:
                start, end = DONE.unpack_from(view, position)
                position += DONE.size
            elif kind == KIND_LEASE:
                start, end, lease, position = decode_lease(view, position)
            elif kind == KIND_ORDER:
                order, position = decode_order(view, position)
            elif kind != KIND_EPOCH:
                raise CorruptRecord(f"a lease entry is of the unknown kind {kind}")
            group, topic = names[:group_size].decode(), names[group_size:].decode()
            raw = bytes(view[begin:position])
            yield LeaseEntry(group, topic, queue_id, epoch, start, end, lease, raw, order)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptRecord(f"a lease entry does not decode: {error}") from error


def decode_lease(view: memoryview, position: int) -> tuple[int, int, Lease, int]:
    start, count, serial, revision, visible_at, taken_at, attempt, flags, client_size = LEASE.unpack_from(
        view, position
    )
    position += LEASE.size
    client = bytes(view[position : position + client_size])
    if len(client) != client_size:
        raise CorruptRecord("a lease entry's client runs over its end")
    auto_renew = bool(flags & FLAG_AUTO_RENEW)
    lease = Lease(
        serial, revision, visible_at, taken_at, attempt, auto_renew, client.decode(errors="replace")
    )
    return start, start + count, lease, position + client_size


def decode_order(view: memoryview, position: int) -> tuple[Order, int]:
    serial, size = ORDER.unpack_from(view, position)
    position += ORDER.size
    attempt_id = bytes(view[position : position + size])
    if len(attempt_id) != size:
        raise CorruptRecord("a lease entry's attempt id runs over its end")
    return Order(serial, attempt_id.decode()), position + size


def is_order(entry: bytes) -> bool:
    """Tell whether one entry, encoded, is an order."""
    return entry[0] == KIND_ORDER


def without_orders(entries: bytes) -> bytes:
    """Return encoded entries for a reader that knows no orders."""
    return b"".join([entry.raw for entry in decode_entries(entries) if entry.order is None])
