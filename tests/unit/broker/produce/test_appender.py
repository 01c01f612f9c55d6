"""When a send is refused, when it is answered, and with what."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from whimbrel.broker.produce import appender
from whimbrel.broker.produce.appender import (
    INDEX_DELAY_MAX_S,
    RING_INTERVAL_MIN_S,
    WAITING_BYTES_MAX,
    WAITING_MAX,
    Appender,
    Durability,
    ReadOnlyAppender,
    RecordAppender,
)
from whimbrel.errors import FlushTimeout, NoReplica, NotWritable, ReplicaTimeout, Throttled, WhimbrelError
from whimbrel.store.codec import RecordDraft


class Place:
    def __init__(self, end: int) -> None:
        self.end = end


class FakeLog:
    def __init__(self) -> None:
        self.written = 0
        self.flushed = 0
        self.published = 0
        self.flush_wanted = 0
        self.index_left = 0
        self.rests = 0
        self.failed = ""
        self.mended_with: list[int] = []  # how many sends were answered when `mend` was called
        self.answered: list[WhimbrelError | None] = []
        self.packed_room, self.now_ms, self.store_time_ms = 1000, 5, 0
        self.visible: list[Any] = []

    def clock(self) -> int:
        return self.now_ms

    def store_time(self, now_ms: int) -> int:
        return self.store_time_ms

    def room_for_packed(self) -> int:
        return self.packed_room

    def append_packed(self, records: bytes, runs: Sequence[Any], keys: Any, count: int, now_ms: int) -> bool:
        if len(records) > self.packed_room:
            return False
        self.written, self.store_time_ms = self.written + len(records), now_ms
        return True

    def make_visible(self, runs: Sequence[Any]) -> None:
        self.visible += runs

    def append(self, drafts: Sequence[Any]) -> list[Place]:
        self.written += 100 * len(drafts)
        return [Place(self.written - 100 * left) for left in reversed(range(len(drafts)))]

    def end_tick(self) -> bool:
        self.published = self.written
        self.index_left = max(self.index_left - 1, 0)
        return self.index_left > 0

    def index_rest(self) -> None:
        self.rests += 1

    def request_flush(self, end: int) -> None:
        self.flush_wanted = end

    def mend(self) -> None:
        self.mended_with.append(len(self.answered))


class FakePage:
    def __init__(self) -> None:
        self.replica_sleeping = 1
        self.broker_sleeping = 0
        self.acks: list[int] = []
        self.alive = True

    def reported_ends(self) -> list[int]:
        return list(self.acks)

    def acknowledged(self, needed: int) -> int:
        found = sorted(self.acks, reverse=True)
        return found[needed - 1] if len(found) >= needed else -1

    def replica_alive(self, now_ns: int) -> bool:
        return self.alive


class FakeLoop:
    def __init__(self) -> None:
        self.now = 50.0
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        self.timers.append((self.now + delay, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, with every timer at its time."""
        end = self.now + seconds
        while True:
            while self.soon:
                self.soon.pop(0)()
            due = sorted((entry for entry in self.timers if entry[0] <= end), key=lambda entry: entry[0])
            if not due:
                break
            self.timers.remove(due[0])
            self.now = max(self.now, due[0][0])
            due[0][1]()
        self.now = end


class Counts:
    """Counts what is appended, as it is told."""

    def __init__(self) -> None:
        self.alone: list[tuple[str, int]] = []
        self.packed: list[tuple[str, Sequence[int], int]] = []

    def appended(self, topic: str, places: Sequence[Any]) -> None:
        self.alone.append((topic, len(places)))

    def appended_many(self, topic: str, counts: Sequence[int], size: int) -> None:
        self.packed.append((topic, counts, size))


class Rig:
    def __init__(self, **durability: Any) -> None:
        self.log, self.page, self.loop = FakeLog(), FakePage(), FakeLoop()
        self.rings = 0
        self.answers: list[WhimbrelError | None] = []
        self.counts = Counts()
        self.appender = Appender(
            self.log, self.page, Durability(**durability), self.loop, ring=self.ring, counted=self.counts
        )
        self.appender.refusal = ""
        self.ticks = 0
        self.appender.on_tick = self.tick_ended

    def tick_ended(self) -> None:
        self.ticks += 1

    def ring(self) -> None:
        self.rings += 1

    def send(self) -> None:
        place = self.appender.append([RecordDraft("t", 0, b"", b"", 0, b"", b"")])[-1]
        if self.appender.waits:
            self.appender.when_durable(place.end, self.answers.append)


def test_a_failed_sync_is_answered_before_the_log_is_mended() -> None:
    rig = Rig(sync_flush=True, acks=1)
    rig.log.answered = rig.answers
    rig.page.acks = [0]
    for _ in range(3):
        rig.send()
    rig.loop.tick()
    rig.log.flushed = 100
    rig.log.failed = "the disk refused a sync"
    rig.appender.log_failed()
    assert [type(answer) for answer in rig.answers] == [FlushTimeout] * 2
    assert rig.log.mended_with == [2]
    rig.log.flushed = 300  # written again: it is too late for those two
    rig.page.acks = [300]
    rig.appender.complete_waiting()
    assert rig.answers[2:] == [None]


def test_a_failed_sync_leaves_sends_that_wait_for_slaves_alone() -> None:
    rig = Rig(acks=1)
    rig.page.acks = [0]
    rig.send()
    rig.log.failed = "the disk refused a sync"
    rig.appender.log_failed()
    assert rig.answers == [] and rig.log.mended_with == [0]


def test_asynchronous_sends_publish_and_ring_once_a_tick() -> None:
    rig = Rig()
    for _ in range(5):
        rig.send()
    assert rig.log.published == 0
    rig.loop.tick()
    assert (rig.log.published, rig.rings, rig.ticks) == (500, 1, 1)


def test_asynchronous_rings_are_some_time_apart_and_the_last_send_is_rung_too() -> None:
    rig = Rig()
    for _ in range(5):
        rig.send()
        rig.loop.tick()
    assert rig.rings == 1
    rig.loop.tick(RING_INTERVAL_MIN_S)
    assert rig.rings == 2
    rig.loop.tick(1.0)
    assert rig.rings == 2
    rig.send()
    rig.loop.tick()
    assert rig.rings == 3


def test_replicator_that_was_awake_after_all_is_not_rung_late() -> None:
    rig = Rig()
    for _ in range(2):
        rig.send()
        rig.loop.tick()
    rig.page.replica_sleeping = 0
    rig.loop.tick(RING_INTERVAL_MIN_S)
    assert rig.rings == 1


def test_every_tick_of_synchronous_sends_is_rung_at_once() -> None:
    rig = Rig(acks=1)
    rig.page.acks = [0]
    for expected in (1, 2, 3):
        rig.send()
        rig.loop.tick()
        assert rig.rings == expected


def test_what_the_ticks_left_of_the_index_is_done_in_time() -> None:
    rig = Rig()
    for _ in range(3):
        rig.send()
        rig.loop.tick()
    assert rig.log.rests == 0
    rig.loop.tick(INDEX_DELAY_MAX_S)
    assert rig.log.rests == 1


def test_awake_replicator_is_not_rung() -> None:
    rig = Rig()
    rig.page.replica_sleeping = 0
    rig.send()
    rig.loop.tick()
    assert rig.rings == 0


def test_refused_send_stores_nothing() -> None:
    rig = Rig()
    rig.appender.refusal = "a slave takes no writes"
    with pytest.raises(NotWritable, match="a slave takes no writes"):
        rig.send()
    assert rig.log.written == 0


def test_one_flush_serves_all_sends_of_a_tick() -> None:
    rig = Rig(sync_flush=True)
    rig.send()
    rig.send()
    rig.loop.tick()
    assert rig.log.flush_wanted == 200 and rig.answers == []
    rig.log.flushed = 100
    rig.appender.complete_waiting()
    assert rig.answers == [None]
    rig.log.flushed = 200
    rig.appender.complete_waiting()
    assert rig.answers == [None, None]


def test_late_flush_is_answered_as_stored() -> None:
    rig = Rig(sync_flush=True)
    rig.send()
    rig.loop.tick(4.9)
    assert rig.answers == []
    rig.loop.tick(0.3)
    assert [type(answer) for answer in rig.answers] == [FlushTimeout]


def test_without_enough_slaves_in_sync_nothing_is_stored() -> None:
    rig = Rig(acks=2, fallbehind_max=150)
    rig.page.acks = [0]
    with pytest.raises(NoReplica):
        rig.send()
    rig.page.acks = [0, 0]
    rig.send()
    rig.send()
    rig.loop.tick()
    rig.page.acks = [200, 0]
    with pytest.raises(NoReplica):  # one of them lacks 200 bytes
        rig.send()
    assert rig.log.written == 200


def test_check_of_the_slaves_that_no_append_follows_is_not_kept() -> None:
    rig = Rig(acks=2)
    rig.page.acks = [0, 0]
    rig.appender.check_writable()
    rig.page.acks = [0]
    with pytest.raises(NoReplica):
        rig.send()
    assert rig.log.written == 0


def test_acknowledgements_of_a_dead_replicator_do_not_count() -> None:
    rig = Rig(acks=1)
    rig.page.acks, rig.page.alive = [0], False
    with pytest.raises(NoReplica):
        rig.send()


def test_send_is_answered_once_enough_slaves_hold_it() -> None:
    rig = Rig(acks=2)
    rig.page.acks = [0, 0]
    rig.send()
    rig.loop.tick()
    assert rig.page.broker_sleeping == 1
    rig.page.acks = [100, 0]
    rig.appender.complete_waiting()
    assert rig.answers == []
    rig.page.acks = [100, 100]
    rig.appender.complete_waiting()
    assert rig.answers == [None] and rig.page.broker_sleeping == 0


def test_lost_ring_costs_no_more_than_a_poll() -> None:
    rig = Rig(acks=1)
    rig.page.acks = [0]
    rig.send()
    rig.loop.tick()
    rig.page.acks = [100]
    rig.loop.tick(0.11)
    assert rig.answers == [None]


def test_late_slave_is_answered_as_stored() -> None:
    rig = Rig(acks=1)
    rig.page.acks = [0]
    rig.send()
    rig.loop.tick(3.2)
    assert [type(answer) for answer in rig.answers] == [ReplicaTimeout]


def test_replication_timeout_wins_over_the_flush_timeout() -> None:
    rig = Rig(sync_flush=True, acks=1, flush_timeout_s=1.0, slave_timeout_s=3.0)
    rig.page.acks = [0]
    rig.send()
    rig.loop.tick(2.5)
    assert rig.answers == []
    rig.loop.tick(1.0)
    assert [type(answer) for answer in rig.answers] == [ReplicaTimeout]


def test_sends_beyond_the_bound_are_throttled() -> None:
    rig = Rig(sync_flush=True)
    for _ in range(WAITING_MAX):
        rig.send()
    written = rig.log.written
    with pytest.raises(Throttled):
        rig.send()
    assert rig.log.written == written


def test_bytes_that_wait_are_bounded_as_well() -> None:
    rig = Rig(acks=1)
    rig.page.acks = [0]
    rig.send()
    rig.log.written += WAITING_BYTES_MAX
    rig.send()
    with pytest.raises(Throttled):
        rig.send()
    rig.page.acks = [rig.log.written]
    rig.appender.complete_waiting()
    rig.send()


def test_closing_answers_what_waits_and_refuses_the_rest() -> None:
    rig = Rig(sync_flush=True)
    rig.send()
    rig.appender.close("the broker stops")
    assert [type(answer) for answer in rig.answers] == [FlushTimeout]
    assert rig.log.published == 100
    with pytest.raises(NotWritable):
        rig.send()


def test_switch_of_roles_answers_what_waits_as_not_replicated() -> None:
    rig = Rig(sync_flush=True)
    rig.send()
    rig.send()
    rig.appender.close("the broker becomes a slave", error=ReplicaTimeout)
    assert [type(answer) for answer in rig.answers] == [ReplicaTimeout, ReplicaTimeout]
    assert "becomes a slave" in str(rig.answers[0])


def test_closed_appender_leaves_the_store_alone() -> None:
    rig = Rig()
    rig.send()
    rig.appender.close("the broker stops")
    assert (rig.log.published, rig.rings) == (100, 1)
    rig.log.written += 100  # by others
    rig.loop.tick(1.0)
    assert (rig.log.published, rig.log.rests, rig.rings) == (100, 0, 1)


def test_read_only_appender_refuses_every_write() -> None:
    appender: RecordAppender = ReadOnlyAppender("a slave takes no writes")
    for write in (
        appender.check_writable,
        lambda: appender.append([object()]),
        lambda: appender.when_durable(0, lambda error: None),
    ):
        with pytest.raises(NotWritable, match="a slave takes no writes"):
            write()
    appender.complete_waiting()
    assert not appender.waits


def test_ticks_go_on_while_the_index_has_more_to_do() -> None:
    rig = Rig()
    rig.log.index_left = 3
    rig.send()
    rig.loop.tick()
    assert rig.log.index_left == 0 and not rig.loop.soon


PLAN: Any = (b"x" * 300, ["run"], b"", [("t", 3, [2, 1], 300), ("u", 1, [1], 100)], 4)


def test_records_of_the_lane_are_appended_as_others_are() -> None:
    rig = Rig()
    rig.send()
    assert rig.appender.room_for_packed() == (100, 1000, 5, 5, None)
    assert rig.appender.append_packed(PLAN, 5)
    assert (rig.log.written, rig.log.visible, rig.counts.packed) == (
        400, ["run"], [("t", [2, 1], 300), ("u", [1], 100)],
    )  # fmt: skip
    assert rig.counts.alone == [("t", 1)]
    rig.loop.tick()
    assert (rig.ticks, rig.log.published) == (1, 400)


def test_records_of_the_lane_that_do_not_fit_leave_nothing() -> None:
    rig = Rig()
    rig.log.packed_room = 299
    assert not rig.appender.append_packed(PLAN, 5)
    rig.loop.tick()
    assert (rig.log.written, rig.log.visible, rig.counts.packed, rig.ticks) == (0, [], [], 0)


def test_the_store_time_of_packed_records_does_not_go_back() -> None:
    rig = Rig()
    rig.log.store_time_ms = 9
    assert rig.appender.room_for_packed() == (0, 1000, 9, 5, None)


def test_the_lane_appends_nothing_while_a_send_would_be_refused_or_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(sync_flush=True)
    assert rig.appender.room_for_packed() == (0, 1000, 5, 5, WAITING_MAX)
    rig.send()
    assert rig.appender.room_for_packed() == (100, 1000, 5, 5, WAITING_MAX - 1)
    with monkeypatch.context() as patch:
        patch.setattr(appender, "WAITING_MAX", 1)
        assert rig.appender.room_for_packed() is None
    with monkeypatch.context() as patch:
        patch.setattr(appender, "READ_BYTES_MAX", WAITING_BYTES_MAX + 1)
        assert rig.appender.room_for_packed() is None
    with monkeypatch.context() as patch:
        patch.setattr(rig.log, "packed_room", 0)
        assert rig.appender.room_for_packed() is None
    rig.appender.refusal = "this is a slave"
    assert rig.appender.room_for_packed() is None
