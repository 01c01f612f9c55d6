"""The transactions of a store in a directory, without a broker: loop and clock move when they are told."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from support.store.stores import HOST, NOW, OPTIONS, StoppedClock
from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.transactions.records import make_half
from whimbrel.broker.transactions.table import OpenTransaction, Resolution
from whimbrel.broker.transactions.transactions import Transactions
from whimbrel.errors import OffsetNotFound, WhimbrelError
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC, UNDECIDED_TOPIC
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.store.codec import RecordDraft, StoredMessage, decode_record
from whimbrel.store.master_store import Appended, MasterStore
from whimbrel.store.options import StoreOptions

__all__ = ["Answers", "FakeAppender", "FakeLoop", "FakePositions", "TransactionRig", "half_draft"]

TOPIC = "orders"


class FakeLoop:
    """Turns when it is told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: deque[Callable[[], None]] = deque()
        self.late: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.late.append(callback)

    def turn(self) -> int:
        """Run what is due until nothing is; return how many ticks that took."""
        ticks = 0
        while self.soon:
            ticks += 1
            for _ in range(len(self.soon)):
                self.soon.popleft()()
        return ticks

    def wait(self) -> None:
        """Run what was put off."""
        late, self.late = self.late, []
        for callback in late:
            callback()
        self.turn()


class FakePositions(dict[str, int]):
    """Offsets of the one group, by topic."""

    def get_offset(self, group: str, topic: str, queue_id: int) -> int:
        if topic not in self:
            raise OffsetNotFound(topic)
        return self[topic]

    def update_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self[topic] = max(offset, self.get(topic, 0))


class FakeAppender:
    """Appends to the store; confirms when told to, where `waits`."""

    def __init__(self, store: MasterStore) -> None:
        self.store = store
        self.waits = False
        self.refusals: dict[str, WhimbrelError] = {}  # by topic
        self.waiting: list[Callable[[WhimbrelError | None], None]] = []
        self.appended: list[str] = []  # topics
        self.before: Callable[[], None] = lambda: None

    def append(self, drafts: Sequence[RecordDraft]) -> list[Appended]:
        self.before()
        topic = drafts[0].topic
        if topic in self.refusals:
            raise self.refusals[topic]
        self.appended.append(topic)
        return self.store.append(drafts)

    def check_writable(self) -> None:
        pass

    def complete_waiting(self) -> None:
        pass

    def when_durable(self, end: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        self.waiting.append(answer)

    def confirm(self, error: WhimbrelError | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer(error)


class Answers(list[WhimbrelError | None]):
    """What was answered, in order."""


def half_draft(
    name: str, *, topic: str = TOPIC, queue_id: int = 0, size: int = 20, extra: str = ""
) -> RecordDraft:
    """Return the draft of a half."""
    draft = RecordDraft(
        topic, queue_id, name.encode().ljust(size, b"."),
        f"UNIQ_KEY\x01{name}\x02TRAN_MSG\x01true\x02PGROUP\x01{topic}\x02{extra}".encode(),
        NOW, HOST, HOST, keys=(name,),
    )  # fmt: skip
    make_half(draft)
    return draft


class TransactionRig:
    """Transactions over a store in a directory, which another rig may open again."""

    def __init__(
        self,
        root: Path,
        *,
        now_ms: int = NOW,
        positions: FakePositions | None = None,
        options: StoreOptions = OPTIONS,
        start: bool = True,
        **settings: Any,
    ) -> None:
        root.mkdir(exist_ok=True)
        self.now_ms = now_ms
        self.store = MasterStore.open(root, options, clock=lambda: self.now_ms, machine=StoppedClock(now_ms))
        self.loop, self.appender = FakeLoop(), FakeAppender(self.store)
        self.positions = FakePositions() if positions is None else positions
        self.topics = TopicTable(
            root / "config", cluster="c", broker_name="b", auto_create=False, clock=lambda: self.now_ms
        )
        for name in (TOPIC, "other"):
            if self.topics.get(name) is None:
                config = TopicConfig(name=name, read_queues=2, write_queues=2)
                self.topics.add(config.with_type(MessageType.TRANSACTION))
        self.internal = InternalAppender(
            self.topics, cast(RecordAppender, self.appender), store_host=lambda: HOST
        )
        self.safe = 1 << 60
        values: dict[str, Any] = {"timeout_ms": 6000, "checks_max": 15, "age_max_ms": 72 * 3_600_000}
        self.transactions = Transactions(
            self.store, self.internal, self.topics, self.positions, self.loop,
            wall_ms=lambda: self.now_ms, safe_end=lambda: self.safe,
            **values | settings,
        )  # fmt: skip
        self.asked: list[str] = []
        self.transactions.ask = self.ask
        if start:
            self.transactions.start()
            self.loop.turn()

    def ask(self, one: OpenTransaction, half: StoredMessage) -> bool:
        assert half.physical_offset == one.physical_offset
        self.asked.append(one.transaction_id)
        return True

    def half(self, name: str, **fields: Any) -> int:
        """Store a half as a send does; return its offset."""
        self.transactions.check_room()
        (appended,) = self.store.append([half_draft(name, **fields)])
        return appended.queue_offset

    def end(
        self, name: str, resolution: Resolution | None = Resolution.COMMIT, *, topic: str = TOPIC
    ) -> Answers:
        answers = Answers()
        self.transactions.end(topic, name, name, resolution, answers.append)
        return answers

    def round(self, later_ms: int = 30_000) -> list[str]:
        """Let time pass, and do a round; return who was asked about."""
        self.now_ms += later_ms
        self.asked = []
        self.transactions.round()
        self.loop.turn()
        return self.asked

    def publish(self) -> tuple[int, int]:
        """Have the positions published; return those of halves and ops."""
        for _ in range(2):
            self.transactions.publish()
        return self.positions[HALF_TOPIC], self.positions[HALF_OP_TOPIC]

    def records(self, topic: str = TOPIC, queues: int = 2) -> list[StoredMessage]:
        """Return the records of a topic, in the order of the log."""
        found = []
        for queue_id in range(queues):
            low, high = self.store.queue_range(topic, queue_id)
            for place, size, _ in self.store.queue_units(topic, queue_id, low, high - low):
                found.append(decode_record(self.store.read(place, size)))
        return sorted(found, key=lambda one: one.physical_offset)

    def committed(self, topic: str = TOPIC) -> list[str]:
        """Return the ids of the messages that consumers get."""
        return [one.properties["UNIQ_KEY"] for one in self.records(topic)]

    def ops(self) -> list[bytes]:
        """Return the bodies of the ops."""
        return [one.body for one in self.records(HALF_OP_TOPIC, 1)]

    def discarded(self) -> list[str]:
        """Return the ids of what was given up."""
        return [one.properties["UNIQ_KEY"] for one in self.records(UNDECIDED_TOPIC, 1)]

    def close(self, *, clean: bool = True) -> None:
        if clean:
            self.transactions.close()
        self.store.close(clean=clean)
