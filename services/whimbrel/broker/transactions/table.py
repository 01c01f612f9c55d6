"""The transactions of a broker whose messages wait for a decision, and the latest decisions: a pure table.

A transaction begins with its *half*, a record of RocketMQ's topic RMQ_SYS_TRANS_HALF_TOPIC that names the
topic and queue to which the message goes, and ends with an *op*, a record of RMQ_SYS_TRANS_OP_HALF_TOPIC that
names the half's queue offset. It is known by the topic and the id of its message.

    half read --add--> open --close(COMMIT)-----> decided    committed record, then op
                        |----close(ROLLBACK)----> decided    op
                        |----close(DISCARD)-----> decided    copy for people, then op
                        '----add of the same id-> gone       op: of several halves of one id the newest counts

What is decided is remembered for `REMEMBERED_S`, the latest `REMEMBERED_MAX` of them, so that a producer
which repeats its call is answered rightly. Of a commit the log tells as well, by its index, whoever made it
(`queues.py committed`); nothing there tells a rollback from an id that never was. An open transaction takes
about 0.5 KiB, whatever its message weighs.

**Progress.** RocketMQ's group CID_RMQ_SYS_TRANS has one position in each of the two topics: at the oldest
half that is undecided, and at the oldest op that names such a half or a later one. Whoever starts from there
and takes the halves without an op has all that is undecided. `OpTrail` knows the second position.
"""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "OPEN_MAX",
    "REMEMBERED_MAX",
    "REMEMBERED_S",
    "TRAIL_MAX",
    "OpTrail",
    "OpenTransaction",
    "Resolution",
    "TransactionTable",
]

OPEN_MAX = 100_000  # open transactions; further ones are refused. 50 MiB
REMEMBERED_S = 600.0
REMEMBERED_MAX = 100_000
TRAIL_MAX = 1024  # spans of the op topic that are told apart


class Resolution(StrEnum):
    """How a transaction ends."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    DISCARD = "discard"  # nobody has decided it


@dataclass(slots=True, kw_only=True, eq=False)
class OpenTransaction:
    """One transaction that is undecided.

    Attributes:
        topic, queue_id: where its message goes to.
        transaction_id: the message's id.
        half_offset: the half's place in its queue.
        physical_offset, size: the half's place in the log.
        stored_ms: when the half was stored, in epoch milliseconds.
        recovery_ms: how long after that its producers are not asked; None for the broker's setting.
        copied: its half is another one once more, as RocketMQ's check and our retention store them.
        checks: how often they were asked, by this process.
    """

    topic: str
    queue_id: int
    transaction_id: str
    half_offset: int
    physical_offset: int
    size: int
    stored_ms: int
    recovery_ms: int | None = None
    copied: bool = False
    checks: int = 0

    def due(self, now_ms: int, timeout_ms: int) -> bool:
        """Tell whether its producers may be asked."""
        return now_ms - self.stored_ms >= (timeout_ms if self.recovery_ms is None else self.recovery_ms)


class TransactionTable:
    """Open transactions in the order of their halves, and the latest decisions."""

    def __init__(self) -> None:
        """Begin empty."""
        self.open: dict[int, OpenTransaction] = {}  # by half offset, the lowest first
        self.by_id: dict[tuple[str, str], OpenTransaction] = {}
        self.decided: OrderedDict[tuple[str, str], tuple[Resolution, float]] = OrderedDict()
        self.count_by_topic: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.open)

    def add(self, one: OpenTransaction) -> OpenTransaction | None:
        """Take a half that is behind all others; return the open transaction that it replaces, if any."""
        key = one.topic, one.transaction_id
        before = self.by_id.get(key)
        if before is not None:
            self.remove(before)
        self.decided.pop(key, None)  # whoever uses an id again begins another transaction
        self.open[one.half_offset] = one
        self.by_id[key] = one
        self.count_by_topic[one.topic] += 1
        return before

    def find(self, topic: str, transaction_id: str) -> OpenTransaction | None:
        """Return an open transaction."""
        return self.by_id.get((topic, transaction_id))

    def close(self, one: OpenTransaction, resolution: Resolution, now: float) -> None:
        """Note a decision, at a time of the monotonic clock in seconds."""
        self.remove(one)
        decided = self.decided
        decided[one.topic, one.transaction_id] = resolution, now
        while len(decided) > REMEMBERED_MAX or next(iter(decided.values()))[1] < now - REMEMBERED_S:
            decided.popitem(last=False)

    def resolution(self, topic: str, transaction_id: str, now: float) -> Resolution | None:
        """Return how a transaction was decided lately."""
        known = self.decided.get((topic, transaction_id))
        return None if known is None or known[1] < now - REMEMBERED_S else known[0]

    def remove(self, one: OpenTransaction) -> None:
        """Take out a transaction that is open."""
        del self.open[one.half_offset]
        del self.by_id[one.topic, one.transaction_id]
        self.count_by_topic[one.topic] -= 1
        if not self.count_by_topic[one.topic]:
            del self.count_by_topic[one.topic]

    def oldest(self) -> OpenTransaction | None:
        """Return the open transaction with the lowest half offset."""
        return next(iter(self.open.values()), None)


class OpTrail:
    """Which part of the op topic is still needed: spans of ops with the greatest half offset that each names.

    Neighbours are joined when there are too many spans; the position may then be lower than it could be,
    which costs reading.
    """

    def __init__(self) -> None:
        """Begin without ops."""
        self.spans: deque[tuple[int, int]] = deque()  # (first op's offset, greatest half offset)

    def add(self, op_offset: int, half_offset: int) -> None:
        """Take the next op, and the greatest half offset that it names."""
        self.spans.append((op_offset, half_offset))
        if len(self.spans) > TRAIL_MAX:
            pairs = list(self.spans)
            self.spans = deque(
                (first[0], max(first[1], second[1]))
                for first, second in zip(pairs[::2], [*pairs[1::2], pairs[-1]], strict=False)
            )

    def position(self, half_offset: int, end: int) -> int:
        """Return the oldest op that is needed to know what is undecided from a half on; else `end`."""
        spans = self.spans
        while spans and spans[0][1] < half_offset:
            spans.popleft()
        return spans[0][0] if spans else end
