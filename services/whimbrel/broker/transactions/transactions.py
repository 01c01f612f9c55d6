"""The transactions of a master: follows the half queue, carries decisions out, asks about those without one.

    half queue --follow--> table <--end-- EndTransaction of an application, or of one that was asked
                             |
                             |-- commit     committed record, then op
                             |-- rollback   op
                             |-- round      question to a producer, or after too many: copy, then op
                             '-- publish    positions of CID_RMQ_SYS_TRANS

**Effects come before their ops in one log**, and a log only ever loses its end: an op is never there without
what it stands for. Ops are written at the end of the tick, one record for all decisions of the tick. So every
op record covers all commits before it in the log, and only commits behind the last one may lack theirs.

**Start.** All that is undecided is found in the log (`recovery.py`); until then transactions are refused.

**Positions** are moved only to what every slave in sync has, and the disk: the position of a half must not
reach a member before the records that made it superfluous.

A master that has just become one reads all of it from its own queues: nothing else is carried over. How often
producers were asked begins anew then.

A half whose log file is about to be removed is stored again, with a new place, and its old one gets an op
(`move_on`): RocketMQ does so at each check. Its file stays until the next round of retention, in which the
new half is on disk. Where the disk takes nothing, files go all the same: without room nothing would ever end.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.produce.level_draft import levelled
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.transactions.queues import HalfStore, TransactionQueues
from whimbrel.broker.transactions.records import (
    OP_QUEUE,
    committed_draft,
    discarded_draft,
    moved_draft,
    op_draft,
    open_transaction,
)
from whimbrel.broker.transactions.recovery import Recovery
from whimbrel.broker.transactions.table import (
    OPEN_MAX,
    OpenTransaction,
    OpTrail,
    Resolution,
    TransactionTable,
)
from whimbrel.errors import (
    CorruptRecord,
    InvalidTransactionId,
    NotReady,
    StoreFull,
    Throttled,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.metrics import Histogram, Series
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP, UNDECIDED_TOPIC
from whimbrel.store.codec import RecordDraft, StoredMessage

__all__ = ["Ask", "Transactions"]

logger = logging.getLogger(__name__)

BEHIND_MAX = 64  # halves that may stand in the queue before they are taken into the table
OPS_PENDING_MAX = 4096  # decisions without an op; more are there only while the store refuses ops
FINISH_S = (5.0, 60.0, 600.0, 3600.0, 43_200.0, 86_400.0)  # RocketMQ's
# Halves that are stored again in one round of retention, 10 s apart; others keep their files meanwhile.
MOVED_MAX = 1000
MOVED_BYTES_MAX = 16 * 1024 * 1024
# No transaction is given up for its age before so many rounds of this broker, however old a clock that is far
# ahead makes it: its producers come back after a restart, and are asked then.
AGED_CHECKS_MIN = 3
OPS_AGAIN_S = 1.0  # after that an op that was refused is tried again
# One piece of a round of checks: transactions that are looked at, or asked about, and bytes of their halves.
PIECE_SEEN_MAX = 2000
PIECE_ASKED_MAX = 16
PIECE_BYTES_MAX = 256 * 1024

Answer = Callable[[WhimbrelError | None], None]
# Asks a producer about a half; returns whether one took the question, None when there is none.
Ask = Callable[[OpenTransaction, StoredMessage], bool | None]


class Positions(Protocol):
    """Where groups stand; see `GroupConsumption`."""

    def get_offset(self, group: str, topic: str, queue_id: int) -> int:
        """A group's offset; raises OffsetNotFound when it has none."""

    def update_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move it forward."""


class Later(Protocol):
    """What is used of the event loop."""

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Run it in the next tick."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        """Run it after a while."""

    def time(self) -> float:
        """Seconds of the monotonic clock."""


class Transactions:
    """The owner of a master's transactions. On the loop's thread.

    Attributes:
        table: the open ones.
        ready: the queues are read; decisions are taken.
        ask: asks producers; set before `start`.
        committed, rolled_back: how many, by topic.
        latency: seconds from half to decision, by topic.
    """

    def __init__(
        self,
        store: HalfStore,
        internal: InternalAppender,
        topics: TopicTable,
        positions: Positions,
        loop: Later,
        *,
        wall_ms: Callable[[], int],
        safe_end: Callable[[], int],
        timeout_ms: int,
        checks_max: int,
        age_max_ms: int,
        levels: int = 18,
    ) -> None:
        """Take what is needed; `start` reads the queues.

        Args:
            wall_ms: epoch milliseconds.
            safe_end: up to here the log is on disk here, and with all slaves in sync.
            timeout_ms: after which producers are asked about a transaction.
            checks_max: how often they are asked.
            age_max_ms: after which a transaction is given up, once it was asked about a few times.
            levels: how many delay levels there are; 4.x clients may delay a message of a transaction.
        """
        self.store, self.internal, self.topics = store, internal, topics
        self.queues = TransactionQueues(store)
        self.positions, self.loop = positions, loop
        self.wall_ms, self.safe_end = wall_ms, safe_end
        self.timeout_ms, self.checks_max, self.age_max_ms = timeout_ms, checks_max, age_max_ms
        self.levels = levels
        self.table, self.trail = TransactionTable(), OpTrail()
        self.started = self.ready = self.closed = False
        self.ask: Ask = lambda one, half: None
        self.next_half = 0
        self.already_named: set[int] = set()  # while loading: halves that have an op
        self.pending_ops: list[int] = []
        self.ops_scheduled = self.round_running = False
        self.unpublished: tuple[int, int, int] | None = None  # half and op position, end of the log then
        self.committed: dict[str, int] = {}
        self.rolled_back: dict[str, int] = {}
        self.latency: Series[Histogram] = Series(lambda: Histogram(FINISH_S))

    # Start

    def start(self) -> None:
        """Read the queues, now and in the next ticks; then decisions are taken. Again: do nothing."""
        if not self.started:
            self.started = True
            self.run_pieces(self.load())

    def run_pieces(self, work: Iterator[None]) -> None:
        """Run one piece of some work, and the others in the next ticks."""
        if self.closed or next(work, work) is work:
            return
        self.loop.call_soon(lambda: self.run_pieces(work))

    def load(self) -> Iterator[None]:
        """Find all that is undecided, then take decisions."""
        yield from Recovery(self).run(self.already_named)
        self.ready = True
        self.schedule_ops()
        if self.table:
            logger.info("%d transactions are undecided", len(self.table))

    # Halves

    def follow(self, most: int | None = None) -> bool:
        """Take the halves stored since into the table; return whether there are more than `most`."""
        end = self.queues.half_end()
        stop = end if most is None else min(end, self.next_half + most)
        if self.next_half >= stop:
            return False
        for half in self.queues.halves(self.next_half, stop):
            if half.queue_offset in self.already_named:
                continue
            try:
                one = open_transaction(half)
            except CorruptRecord as error:
                logger.error("a transaction is left out: %s", error)
                continue
            before = self.table.add(one)
            if before is not None:
                self.pending_ops.append(before.half_offset)
                self.schedule_ops()
        self.next_half = stop
        return stop < end

    def check_room(self) -> None:
        """Refuse a half while transactions are not ready, or too many are open.

        Raises:
            NotReady, Throttled: as said.
        """
        if not self.ready:
            raise NotReady("this broker is still reading its transactions; send again in a moment")
        behind = self.queues.half_end() - self.next_half
        if behind >= BEHIND_MAX:
            self.follow()
            behind = 0
        if len(self.table) + behind >= OPEN_MAX:
            raise Throttled(
                f"{OPEN_MAX} transactions are open at this broker; commit or roll back some, then send again"
            )

    # Decisions

    def end(
        self, topic: str, transaction_id: str, message_id: str, resolution: Resolution | None, answer: Answer
    ) -> None:
        """Carry out a decision; `answer` gets None when it is durable, else why it is not.

        Args:
            topic: the message's.
            transaction_id: as the response to the half named it.
            message_id: of the message; empty where the caller does not say it.
            resolution: None where the caller has none yet.
            answer: may be called before this returns.

        Raises:
            NotReady: the queues are not read yet.
            InvalidTransactionId: there is no such transaction, or it was decided otherwise.
            TopicNotFound: the topic was deleted.
            CorruptRecord: the half can't be read.
            Throttled: too many decisions have no op yet.
        """
        if not self.ready:
            raise NotReady("this broker is still reading its transactions; end it again in a moment")
        if message_id and message_id != transaction_id:
            raise InvalidTransactionId(f"transaction {transaction_id} is not that of message {message_id}")
        self.follow()
        one = self.table.find(topic, transaction_id)
        if one is None:
            decided = self.table.resolution(topic, transaction_id, self.loop.time())
            if decided is None and self.queues.committed(topic, transaction_id):
                decided = Resolution.COMMIT  # another master has decided it, or this one long ago
            if decided is None:
                raise InvalidTransactionId(
                    f"no transaction {transaction_id} of topic {topic} is open here; it may have been decided"
                )
            if resolution is not None and decided is not resolution:
                raise InvalidTransactionId(f"transaction {transaction_id} has ended already: {decided}")
            self.internal.confirm(self.store.written, answer)
        elif resolution is None:
            answer(None)
        elif resolution is Resolution.COMMIT:
            self.commit(one, answer)
        else:
            self.roll_back(one, answer)

    def commit(self, one: OpenTransaction, answer: Answer) -> None:
        """Store the record that consumers get."""
        config = self.topics.get(one.topic)
        if config is None:
            raise TopicNotFound(f"topic {one.topic} of the transaction was deleted")
        draft = committed_draft(self.queues.half(one), one.topic, one.queue_id % config.onward_queues)
        draft = levelled(draft, self.levels)  # a delay begins with the commit, as in RocketMQ
        self.take_effect(one, Resolution.COMMIT, draft, answer)

    def take_effect(
        self, one: OpenTransaction, resolution: Resolution, draft: RecordDraft, answer: Answer
    ) -> bool:
        """Store the record that a decision leads to; return whether it is stored. Its op follows."""
        if len(self.pending_ops) >= OPS_PENDING_MAX:
            raise Throttled(f"{OPS_PENDING_MAX} decided transactions are not written down yet")
        if not self.internal.append(draft, answer):
            return False
        self.decided(one, resolution)
        self.pending_ops.append(one.half_offset)
        self.schedule_ops()
        return True

    def roll_back(self, one: OpenTransaction, answer: Answer) -> None:
        """Store the op, which is all that there is of it."""
        if self.append_op([*self.pending_ops, one.half_offset], answer):
            self.decided(one, Resolution.ROLLBACK)

    def decided(self, one: OpenTransaction, resolution: Resolution) -> None:
        """Note a decision that has taken effect."""
        self.table.close(one, resolution, self.loop.time())
        if resolution is not Resolution.DISCARD and self.ready:
            counts = self.committed if resolution is Resolution.COMMIT else self.rolled_back
            counts[one.topic] = counts.get(one.topic, 0) + 1
            self.latency.at((one.topic,)).observe(max(self.wall_ms() - one.stored_ms, 0) / 1000)

    # Ops

    def schedule_ops(self) -> None:
        """Have the ops written at the end of the tick."""
        if self.pending_ops and self.ready and not self.ops_scheduled:
            self.ops_scheduled = True
            self.loop.call_soon(self.write_ops)

    def write_ops(self) -> None:
        """Write down what was decided; what is refused is tried again."""
        self.ops_scheduled = False
        if not self.pending_ops or self.closed:
            return

        def stored(error: WhimbrelError | None) -> None:
            pass  # nobody waits: what the op says is seen in the log as well

        if not self.append_op(self.pending_ops, stored):
            self.ops_scheduled = True
            self.loop.call_later(OPS_AGAIN_S, self.write_ops)

    def append_op(self, halves: list[int], answer: Answer) -> bool:
        """Append one op for these halves, all pending ones among them; return whether it is stored."""
        op_offset = self.queues.next_op()
        draft = op_draft(halves, now_ms=self.wall_ms(), host=self.internal.store_host())
        if not self.internal.append(draft, answer):
            return False
        self.trail.add(op_offset, max(halves))
        self.pending_ops = []
        return True

    # Checks

    def round(self) -> None:
        """Ask about what is undecided for long enough, a bounded part of it in each tick."""
        if self.ready and not self.round_running:
            self.round_running = True
            self.follow()
            self.run_pieces(self.check_all(list(self.table.open), self.wall_ms()))

    def check_all(self, half_offsets: list[int], now_ms: int) -> Iterator[None]:
        """Do a round; it ends with the transactions that were open at its begin."""
        seen = asked = size = 0
        try:
            for half_offset in half_offsets:
                one = self.table.open.get(half_offset)
                seen += 1
                if one is not None and one.due(now_ms, self.timeout_ms):
                    self.check(one, now_ms)
                    asked += 1
                    size += one.size
                if asked >= PIECE_ASKED_MAX or size >= PIECE_BYTES_MAX or seen >= PIECE_SEEN_MAX:
                    seen = asked = size = 0
                    yield
        finally:
            self.round_running = False

    def check(self, one: OpenTransaction, now_ms: int) -> None:
        """Ask about a transaction, or give it up."""
        try:
            half = self.queues.half(one)
            too_old = one.checks >= AGED_CHECKS_MIN and now_ms - one.stored_ms > self.age_max_ms
            if one.checks >= self.checks_max or too_old:
                self.discard(one, half)
                return
        except CorruptRecord as error:
            logger.error("transaction %s of %s is lost: %s", one.transaction_id, one.topic, error)
            self.table.remove(one)
            self.pending_ops.append(one.half_offset)
            self.schedule_ops()
            return
        except WhimbrelError as error:
            logger.error("transaction %s of %s: %s", one.transaction_id, one.topic, error)
            return
        asked = self.ask(one, half)
        if asked is False:  # they have more questions than they read: in the next round
            return
        one.checks += 1
        if not asked:
            logger.info(
                "transaction %s of %s: no producer of the topic could be asked, time %d of %d",
                one.transaction_id, one.topic, one.checks, self.checks_max,
            )  # fmt: skip

    def discard(self, one: OpenTransaction, half: StoredMessage) -> None:
        """Keep a half that nobody decides where people find it, and end its transaction."""

        def stored(error: WhimbrelError | None) -> None:
            if error is not None:
                logger.warning("transaction %s is not given up yet: %s", one.transaction_id, error)

        if self.take_effect(one, Resolution.DISCARD, discarded_draft(half), stored):
            logger.warning(
                "transaction %s of %s is given up after %d checks; its message is in %s at %s",
                one.transaction_id, one.topic, one.checks, UNDECIDED_TOPIC, half.offset_message_id,
            )  # fmt: skip

    # Retention

    def move_on(self, begin: int) -> int:
        """Store the halves again that lie below an offset; return below which offset log files may go now."""
        if not self.ready:
            return 0
        self.follow()
        below = [one for one in self.table.open.values() if one.physical_offset < begin]
        if not below:
            return begin
        size = 0
        for one in below[:MOVED_MAX]:
            size += one.size
            if size > MOVED_BYTES_MAX and one is not below[0]:
                break
            refusal = self.move(one)
            if isinstance(refusal, StoreFull):
                logger.error("%d undecided transactions go with their log files: %s", len(below), refusal)
                return begin
            if refusal is not None:
                logger.warning("log files with undecided transactions stay: %s", refusal)
                break
        return min(one.physical_offset for one in below)

    def move(self, one: OpenTransaction) -> WhimbrelError | None:
        """Store a half again; return why it can't be."""
        refusals: list[WhimbrelError | None] = []
        try:
            draft = moved_draft(self.queues.half(one))
        except CorruptRecord:
            return None  # the next check sees it
        if not self.internal.append(draft, refusals.append):
            return refusals[0]
        self.follow()
        moved = self.table.find(one.topic, one.transaction_id)
        assert moved is not None
        moved.checks, moved.recovery_ms = one.checks, 0 if one.checks else one.recovery_ms
        return None

    # Positions

    def publish(self) -> None:
        """Move the positions to where they were found before, once that is safe; call it now and then."""
        if not self.ready:
            return
        if self.unpublished is not None and self.safe_end() >= self.unpublished[2]:
            half, op, _ = self.unpublished
            self.unpublished = None
            try:  # the half's first: more ops than needed are read in between, and never fewer
                self.positions.update_offset(TRANSACTION_GROUP, HALF_TOPIC, 0, half)
                self.positions.update_offset(TRANSACTION_GROUP, HALF_OP_TOPIC, OP_QUEUE, op)
            except StoreFull as error:
                logger.warning("the positions of transactions stay where they are: %s", error)
        if self.unpublished is None and not self.pending_ops:
            self.follow()
            oldest = self.table.oldest()
            half = self.next_half if oldest is None else oldest.half_offset
            self.unpublished = half, self.trail.position(half, self.queues.op_end()), self.store.written

    def close(self) -> None:
        """Write the last ops; nothing is done afterwards."""
        self.write_ops()
        self.closed = True
