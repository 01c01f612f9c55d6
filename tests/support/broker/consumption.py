"""A group consumption on a clock, a store and a journal in memory, for tests."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.plan import Delivered, ReceiveRequest
from whimbrel.broker.engine.settle import Changed, Settles
from whimbrel.broker.engine.take import Take, TakeRules, Takes
from whimbrel.broker.engine.waiting import POLLS, Waiting
from whimbrel.deferred import Deferred
from whimbrel.errors import InvalidReceiptHandle, NotReady, StoreFull
from whimbrel.lane import Lane
from whimbrel.store.codec import RecordDraft, StoredMessage, encode_record, format_properties, tags_code
from whimbrel.store.lane_passes import LanePasses

__all__ = [
    "FakeClock",
    "FakeJournal",
    "FakeStore",
    "Rig",
    "attempts",
    "delivered",
    "offsets",
    "take_of",
    "takes_over",
]

HOST = bytes((127, 0, 0, 1, 0, 0, 0x27, 0x10))
UNCHECKED = TakeRules(checks=(), kind=POLLS, messages_max=32, no_topic="", not_readable="", limited=False)


def take_of(request: ReceiveRequest, wait_ms: int = 0) -> Take:
    """Return a take of what was selected: nothing is left to be checked."""
    take = Take(
        UNCHECKED, request.group, request.topic, None, False, request.batch, request.invisible_ms,
        request.client_id, request.attempt_id, wait_ms, selection=request,
    )  # fmt: skip
    take.wanted = request.filter
    return take


def takes_over(consumption: GroupConsumption, waiting: Waiting, now_ms: Callable[[], int]) -> Takes:
    """Return what decides takes that need no tables."""
    nothing: Any = None
    return Takes(nothing, nothing, consumption, waiting, now_ms=now_ms)


class FakeClock:
    """Time that moves when told, and runs what was scheduled on the way."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self.due: list[tuple[int, int, Callable[[], None]]] = []
        self.turn = 0

    def schedule(self, at_ms: int, fn: Callable[[], None]) -> None:
        self.turn += 1
        heapq.heappush(self.due, (max(at_ms, self.now), self.turn, fn))

    def waiting(self) -> Waiting:
        """Return what waits on this clock."""
        return Waiting(
            clock=lambda: self.now,
            soon=lambda fn: self.schedule(self.now, fn),
            later=lambda seconds, fn: self.schedule(self.now + round(seconds * 1000), fn),
        )

    def advance(self, ms: int = 0) -> None:
        end = self.now + ms
        while self.due and self.due[0][0] <= end:
            at, _, fn = heapq.heappop(self.due)
            self.now = max(self.now, at)
            fn()
        self.now = end


class FakeStore:
    """Queues of records in one log."""

    file_size = 1 << 30
    passes = LanePasses(Lane("off"))

    def __init__(self) -> None:
        self.log = bytearray()
        self.queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.minima: dict[tuple[str, int], int] = {}
        self.arrivals: list[Callable[[str, int, int, int], None]] = []

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes = b"x",
        tag: str | None = None,
        group: str | None = None,
        **others: str,
    ) -> int:
        units = self.queues.setdefault((topic, queue_id), [])
        named = (("TAGS", tag), ("__SHARDINGKEY", group), *others.items())
        properties = format_properties([(name, value) for name, value in named if value])
        draft = RecordDraft(topic, queue_id, body, properties, 1, HOST, HOST)
        at = len(self.log)
        record = encode_record(draft, physical_offset=at, queue_offset=len(units), store_timestamp=2)
        units.append((at, len(record), tags_code(tag)))
        self.log += record
        for arrived in self.arrivals:
            arrived(topic, queue_id, len(units) - 1, units[-1][2])
        return len(units) - 1

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self.minima.get((topic, queue_id), 0), len(self.queues.get((topic, queue_id), ()))

    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        return self.queues.get((topic, queue_id), [])[offset : offset + count]

    def read(self, physical_offset: int, size: int) -> bytes:
        return bytes(self.log[physical_offset : physical_offset + size])

    def read_plain(self, units: Sequence[tuple[int, int, int]]) -> list[StoredMessage | None]:
        return []

    def pull_plain(self, *arguments: Any) -> None:
        """There is no lane."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        return 0


class FakeJournal:
    """A journal in memory, which a disk can fill up."""

    sync_failures = 0
    appended = synced = 1
    lost = ""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.full = self.closed = False

    def load(self) -> list[bytes]:
        return list(self.chunks)

    def start(self, snapshot: Callable[[], Iterable[bytes]]) -> None:
        pass

    def append(self, entries: bytes) -> None:
        if self.closed:
            raise NotReady("closed")
        if self.full:
            raise StoreFull("full")
        self.chunks.append(entries)
        self.appended += 1

    def sync_promptly(self, on_synced: Callable[[], None]) -> None:
        pass

    def rewrite(self) -> bool:
        return False

    def beat(self) -> None:
        pass

    def close(self) -> None:
        pass


class Rig:
    """A group consumption and what it stands on."""

    def __init__(
        self,
        *,
        clock: FakeClock | None = None,
        store: FakeStore | None = None,
        polls_max: int = POLLS.most,
        **options: Any,
    ) -> None:
        self.clock = clock or FakeClock()
        self.store = store or FakeStore()
        self.journal = FakeJournal()
        self.alive = {"c"}
        self.polls_max = polls_max
        self.options: dict[str, Any] = {"broker_name": "b", "broker_id": 0} | options
        self.start()

    def start(self) -> None:
        now_ms = lambda: self.clock.now  # noqa: E731
        self.waiting = self.clock.waiting()
        self.waiting.rooms[POLLS].most = self.polls_max
        self.consumption = GroupConsumption(
            self.store,
            self.journal,
            self.waiting,
            now_ms=now_ms,
            schedule=self.clock.schedule,
            client_alive=lambda group, client_id: client_id in self.alive,
            **self.options,
        )
        self.consumption.open()
        self.settles = Settles(self.consumption, lambda group: None)
        self.takes = takes_over(self.consumption, self.waiting, now_ms)
        self.store.arrivals = [self.arrived]

    def arrived(self, topic: str, queue_id: int, offset: int, tags_code: int) -> None:
        """Tell those who wait."""
        self.waiting.arrived(topic, queue_id)

    @property
    def parked(self) -> int:
        """How many polls wait."""
        return self.waiting.parked

    def request(self, **changes: Any) -> ReceiveRequest:
        fields: dict[str, Any] = {
            "group": "g", "topic": "t", "queue_ids": range(1), "filter": compile_filter("tag", "*"),
            "batch": 32, "invisible_ms": 30_000, "client_id": "c",
        } | changes  # fmt: skip
        return ReceiveRequest(**fields)

    def receive(self, reply: Callable[[Take, Sequence[Delivered]], Any], poll_ms: int, **changes: Any) -> Any:
        return self.takes.take(take_of(self.request(**changes), poll_ms), reply)

    def take(self, **changes: Any) -> list[Delivered]:
        answer = self.receive(delivered, 0, **changes)
        assert isinstance(answer, list)
        return answer

    def park(self, poll_ms: int = 20_000, **changes: Any) -> Deferred[list[Delivered]]:
        answer = self.receive(delivered, poll_ms, **changes)
        assert isinstance(answer, Deferred)
        return answer

    def ack(
        self, *delivered: Delivered, group: str = "g", topic: str = "t"
    ) -> list[InvalidReceiptHandle | None]:
        return self.ack_handles(*(one.handle for one in delivered), group=group, topic=topic)

    def ack_handles(
        self, *handles: str, group: str = "g", topic: str = "t"
    ) -> list[InvalidReceiptHandle | None]:
        answer = self.settles.acknowledge(group, topic, handles)
        assert isinstance(answer, list)
        return answer

    def change(
        self, handle: str, invisible_ms: int, *, suspend: bool = False, group: str = "g", topic: str = "t"
    ) -> str:
        """Return the new handle, or raise what is wrong."""
        answer = self.settles.change(group, topic, handle, invisible_ms, suspend=suspend)
        assert isinstance(answer, Changed)
        if answer.error is not None:
            assert answer.handle == handle
            raise answer.error
        return answer.handle


def delivered(take: Take, messages: Sequence[Delivered]) -> list[Delivered]:
    """Render nothing."""
    return list(messages)


def offsets(delivered: list[Delivered] | None) -> list[int]:
    assert delivered is not None
    return [one.message.queue_offset for one in delivered]


def attempts(delivered: list[Delivered] | None) -> list[int]:
    assert delivered is not None
    return [one.attempt for one in delivered]
