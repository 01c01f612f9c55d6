"""The queues of halves and of ops, as they stand in the store: reading, nothing is decided here.

RMQ_SYS_TRANS_HALF_TOPIC      halves: messages of transactions, until they are decided
RMQ_SYS_TRANS_OP_HALF_TOPIC   ops: offsets of halves that are decided
"""

import logging
from collections.abc import Iterator
from typing import Protocol

from whimbrel.broker.transactions.records import HEAD_BYTES, OP_QUEUE, commits, prepared_offset_of
from whimbrel.broker.transactions.table import OpenTransaction
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC
from whimbrel.store.codec import RECORD_BYTES_MAX, StoredMessage, decode_record

__all__ = ["UNITS_READ", "HalfStore", "TransactionQueues"]

logger = logging.getLogger(__name__)

UNITS_READ = 64  # queue entries that are read at once
SAME_ID_MAX = 8  # records of one id that are looked at
SIZE_BYTES = 4  # of a record's first field


class HalfStore(Protocol):
    """What is read of the store."""

    @property
    def written(self) -> int:
        """End of the log."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First offset of a queue, and its end."""

    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Entries of a queue."""

    def first_from(self, topic: str, queue_id: int, place: int) -> int:
        """Offset of a queue's first entry whose record is not below a place in the log."""

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Offset that a queue's next message gets."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Offset of a queue's first message that was stored at or after a time."""

    def read(self, physical_offset: int, size: int) -> bytes:
        """A record's bytes."""

    def read_range(self, physical_offset: int, size: int) -> bytes:
        """Bytes of the log."""

    def find_written(self, topic: str, key: str, *, limit: int = 64, begin: int = 0) -> list[int]:
        """Places of a topic's records with a key, the newest first."""


class TransactionQueues:
    """Reads halves and ops."""

    def __init__(self, store: HalfStore) -> None:
        """Take the store."""
        self.store = store

    def half_range(self) -> tuple[int, int]:
        """Return the first offset of the halves, and their end."""
        return self.store.queue_range(HALF_TOPIC, 0)

    def half_end(self) -> int:
        """Return the offset that the next half gets."""
        return self.half_range()[1]

    def committed(self, topic: str, transaction_id: str) -> bool:
        """Return whether the log has the committed record of a transaction, as far as the index goes back."""
        store = self.store
        for place in store.find_written(topic, transaction_id, limit=SAME_ID_MAX):
            try:
                size = int.from_bytes(store.read_range(place, SIZE_BYTES), "big")
                if 0 < size <= RECORD_BYTES_MAX and commits(
                    decode_record(store.read(place, size), check_crc=False), transaction_id
                ):
                    return True
            except (CorruptRecord, IllegalOffset):
                continue
        return False

    def op_range(self) -> tuple[int, int]:
        """Return the first offset of the ops, and their end."""
        return self.store.queue_range(HALF_OP_TOPIC, OP_QUEUE)

    def op_end(self) -> int:
        """Return the offset behind the last op that is seen."""
        return self.op_range()[1]

    def next_op(self) -> int:
        """Return the offset that the next op gets."""
        return self.store.next_offset(HALF_OP_TOPIC, OP_QUEUE)

    def halves(self, offset: int, end: int) -> Iterator[StoredMessage]:
        """Yield the halves of a range."""
        return self.read(HALF_TOPIC, 0, offset, end)

    def ops(self, offset: int) -> Iterator[StoredMessage]:
        """Yield the ops from an offset on."""
        return self.read(HALF_OP_TOPIC, OP_QUEUE, offset, self.op_end())

    def read(self, topic: str, queue_id: int, offset: int, end: int) -> Iterator[StoredMessage]:
        """Yield the records of a queue; those that can't be read are passed over."""
        while offset < end:
            units = self.store.queue_units(topic, queue_id, offset, min(UNITS_READ, end - offset))
            if not units:
                return
            offset += len(units)
            for place, size, _ in units:
                try:
                    yield decode_record(self.store.read(place, size))
                except (CorruptRecord, IllegalOffset) as error:
                    logger.error("a record of %s is passed over: %s", topic, error)

    def half(self, one: OpenTransaction) -> StoredMessage:
        """Return a transaction's half.

        Raises:
            CorruptRecord: it can't be read.
        """
        try:
            return decode_record(self.store.read(one.physical_offset, one.size))
        except IllegalOffset as error:
            raise CorruptRecord(f"the half of transaction {one.transaction_id} is gone: {error}") from error

    def prepared_offset(self, place: int, size: int) -> int:
        """Return the place of the half that a record names; -1 for none, or when it can't be read."""
        try:
            return prepared_offset_of(self.store.read_range(place, min(size, HEAD_BYTES)))
        except IllegalOffset:
            return -1
