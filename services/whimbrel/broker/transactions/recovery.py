"""What is undecided, found in the log when a master begins to lead.

Halves and ops are read from the positions on. For a half without an op, a committed record that names it (its
prepared transaction offset) is looked for in the queues of its topic, and in the one of the discarded: from
the last op records on, for RocketMQ's ops from `OPS_LATE_MS` before the last one, since it writes them
seconds late and not in every case; and not before the half itself. One that is found makes only the missing
op. RocketMQ's copies of halves make that search wider, see `find_places`. So each half has one committed
record at most, whenever this process or its machine died, and whichever member of the group goes on. It is
done in pieces, and meanwhile transactions are refused.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from whimbrel.broker.transactions.queues import UNITS_READ
from whimbrel.broker.transactions.records import halves_named, open_transaction
from whimbrel.broker.transactions.table import OpenTransaction, Resolution
from whimbrel.errors import CorruptRecord, OffsetNotFound
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP, UNDECIDED_TOPIC

if TYPE_CHECKING:
    from whimbrel.broker.transactions.transactions import Transactions

__all__ = ["LOAD_PIECE", "Recovery"]

OPS_LATE_MS = 10_000  # RocketMQ: transactionOpBatchInterval, 3 s, and some time for a busy disk
# How long before its newest copy a half may have been committed; some of RocketMQ's rounds.
COPIES_MS = 600_000
LOAD_PIECE = 500  # records read between two turns of the loop


class Recovery:
    """Fills the table of the transactions that it belongs to, before they are ready."""

    def __init__(self, transactions: "Transactions") -> None:
        """Take whose log is read."""
        self.transactions, self.queues = transactions, transactions.queues

    def run(self, already_named: set[int]) -> Iterator[None]:
        """Find all that is undecided, a piece at each step.

        Args:
            already_named: filled with the halves that have an op; empty at the end.
        """
        transactions, queues = self.transactions, self.queues
        first_half = self.first(HALF_TOPIC, *queues.half_range())
        transactions.next_half = first_half
        first_op = self.first(HALF_OP_TOPIC, *queues.op_range())
        scan_from = 0
        recent: deque[tuple[int, int]] = deque()  # store time and place of the last ops
        for count, op in enumerate(queues.ops(first_op)):
            named = halves_named(op.body)
            if named:
                transactions.trail.add(op.queue_offset, max(named))
            already_named.update(half for half in named if half >= first_half)
            recent.append((op.store_timestamp, op.physical_offset))
            while recent[0][0] < op.store_timestamp - OPS_LATE_MS:
                scan_from = recent.popleft()[1]
            if count % LOAD_PIECE == LOAD_PIECE - 1:
                yield
        while transactions.follow(LOAD_PIECE):
            yield
        already_named.clear()
        places: dict[int, OpenTransaction] = {}
        yield from self.find_places(first_half, places)
        yield from self.find_effects(scan_from, places)

    def first(self, topic: str, low: int, high: int) -> int:
        """Return where to begin in a queue."""
        try:
            known = self.transactions.positions.get_offset(TRANSACTION_GROUP, topic, 0)
        except OffsetNotFound:
            return low
        return min(max(known, low), high)

    def find_places(self, first_half: int, places: dict[int, OpenTransaction]) -> Iterator[None]:
        """Find where the halves of the open transactions stand, and those of which they are copies.

        RocketMQ copies a half at each check, also while the op of its commit is in memory: then the committed
        record names an earlier half than the newest one, and all but that one have ops.
        """
        places.update((one.physical_offset, one) for one in self.transactions.table.open.values())
        copied = [one.stored_ms for one in places.values() if one.copied]
        if not copied:
            return
        earlier = self.queues.store.offset_by_time(HALF_TOPIC, 0, min(copied) - COPIES_MS)
        begin = min(first_half, earlier)
        for count, half in enumerate(self.queues.halves(begin, self.transactions.next_half)):
            try:
                seen = open_transaction(half)
            except CorruptRecord:
                continue
            one = self.transactions.table.find(seen.topic, seen.transaction_id)
            if one is not None and one.copied:
                places[half.physical_offset] = one
            if count % LOAD_PIECE == LOAD_PIECE - 1:
                yield

    def find_effects(self, scan_from: int, places: dict[int, OpenTransaction]) -> Iterator[None]:
        """Close the transactions whose committed record, or copy of a discarded half, is in the log.

        Args:
            scan_from: none of a half that is no copy stands below.
            places: where the halves stand.
        """
        if not places:
            return
        copied = [place for place, one in places.items() if one.copied]
        begin = min([max(scan_from, min(places)), *copied])
        transactions, store = self.transactions, self.queues.store
        topics = {one.topic for one in places.values()} | {UNDECIDED_TOPIC}
        for topic in sorted(topics):
            config = transactions.topics.get(topic)
            for queue_id in range(0 if config is None else max(config.read_queues, config.write_queues)):
                at = store.first_from(topic, queue_id, begin)
                while units := store.queue_units(topic, queue_id, at, UNITS_READ):
                    at += len(units)
                    for place, size, _ in units:
                        one = places.get(self.queues.prepared_offset(place, size))
                        if one is not None and one.half_offset in transactions.table.open:
                            discarded = topic == UNDECIDED_TOPIC
                            transactions.decided(one, Resolution.DISCARD if discarded else Resolution.COMMIT)
                            transactions.pending_ops.append(one.half_offset)
                    yield
