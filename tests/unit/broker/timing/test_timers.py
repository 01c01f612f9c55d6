"""Delayed messages on a clock that is turned: a store, the timer, and an appender that tests break."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.store.stores import NOW, OPTIONS, StoppedClock, make_draft
from support.waiting import until, until_async
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.offset_files import DelayOffsets
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing import levels as levels_module
from whimbrel.broker.timing import records
from whimbrel.broker.timing.levels import Levels
from whimbrel.broker.timing.timers import Timers
from whimbrel.errors import NoReplica, ReplicaTimeout, StoreFull, WhimbrelError
from whimbrel.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from whimbrel.model.topic import TopicConfig
from whimbrel.store.codec import StoredMessage, decode_record, format_properties
from whimbrel.store.master_store import MasterStore
from whimbrel.store.recovery_marks import QueueMark
from whimbrel.store.timer_layout import UNIT_SIZE, Check

DAY = 86_400_000
HOUR = 3_600_000
TOPIC = "later"


class BreakableAppender:
    """Appends to the store; `refused` refuses, and confirmations wait while `waits` is set."""

    def __init__(self, store: MasterStore) -> None:
        self.store = store
        self.refused: WhimbrelError | None = None
        self.refusal = ""
        self.waits = False
        self.left = -1  # appends until the broker dies; below 0 for never
        self.waiting: list[Callable[[WhimbrelError | None], None]] = []

    def check_writable(self) -> None:
        if self.refused is not None:
            raise self.refused

    def append(self, drafts: Any) -> Any:
        self.check_writable()
        if not self.left:
            raise NoReplica("killed here")
        self.left -= 1
        return self.store.append(drafts)

    def when_durable(self, end: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        self.waiting.append(answer)

    def when_held(self, end: int, copies: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        raise AssertionError("what the broker stores by itself is always as durable as was asked")

    def complete_waiting(self) -> None:
        """Nothing: tests answer."""

    def answer(self, error: WhimbrelError | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer(error)


class Rig:
    """A store with its timer, which can be closed as after a kill and opened again."""

    def __init__(self, root: Path, *, committed: int | None = None, **options: Any) -> None:
        self.root, self.options, self.committed = root, options, committed
        self.machine = StoppedClock(NOW)
        self.open()

    def open(self) -> None:
        root = self.root
        root.mkdir(exist_ok=True)
        options = replace(OPTIONS, **self.options)
        self.store = MasterStore.open(
            root, options, clock=self.machine.wall_ms, committed=self.committed, machine=self.machine
        )
        self.topics = TopicTable(
            root / "config", cluster="c", broker_name="b", auto_create=False, clock=self.machine.wall_ms
        )
        if self.topics.get(TOPIC) is None:
            self.topics.put(TopicConfig(name=TOPIC, read_queues=2, write_queues=2))
        self.appender = BreakableAppender(self.store)
        self.timers = Timers(self.store, topics=self.topics)
        internal = InternalAppender(self.topics, self.appender, store_host=lambda: bytes(8))
        self.timers.lead(internal, may_deliver=lambda: True)

    def close(self) -> None:
        self.timers.close()
        self.store.close()

    def restart(self, *, killed: bool, meanwhile: Callable[[], object] = bool) -> None:
        if killed:  # what the timer has not put on disk is not written at the end either
            self.timers.files.close()
            if self.timers.disk.worker is not None:
                self.timers.disk.worker.stop()
        else:
            self.timers.close()
        self.store.close(clean=not killed)
        meanwhile()
        self.open()

    def send(
        self,
        message_id: str,
        delay_ms: int,
        *,
        topic: str = TOPIC,
        queue_id: int = 0,
        user: tuple[str, str] | None = None,
    ) -> None:
        draft = make_draft(topic=topic, queue_id=queue_id)
        due = self.machine.now_ms + delay_ms
        pairs = [*([user] if user else []), ("UNIQ_KEY", message_id), ("TIMER_DELIVER_MS", str(due))]
        draft.properties = format_properties(pairs).removesuffix(b"\x02") + b"\x02"
        draft.keys = (message_id,)
        self.store.append([records.waiting(draft, due)])

    def send_and_take(self, message_id: str, delay_ms: int) -> None:
        """Send as the detour of a broker does."""
        due = self.machine.now_ms + delay_ms
        draft = make_draft(topic=TOPIC, queue_id=0)
        pairs = [("UNIQ_KEY", message_id), ("TIMER_DELIVER_MS", str(due))]
        draft.properties = format_properties(pairs).removesuffix(b"\x02") + b"\x02"
        draft.keys = (message_id,)
        draft = records.waiting(draft, due)
        (place,) = self.store.append([draft])
        self.timers.take(draft.properties, place)

    def recall(self, message_id: str, time_ms: int) -> None:
        now = self.machine.now_ms
        draft = records.recall(
            TOPIC, message_id, time_ms, now_ms=now, born_host=bytes(8), store_host=bytes(8)
        )
        self.store.append([draft])

    def work(self, ms: int = 0) -> None:
        """Turn the clock in steps of at most a second, and let the timer work at each."""
        end = self.machine.now_ms + ms
        while True:
            for _ in range(1000):
                if not self.timers.step():
                    break
            if self.machine.now_ms >= end:
                return
            self.machine.now_ms = min(end, self.machine.now_ms + 1000)

    def put_on_disk(self) -> None:
        """Have a flush done now."""
        self.timers.disk.flushed_at = -1e9
        self.timers.disk.keep(self.timers.read_ms, self.timers.queue_offset, self.timers.counts)
        if self.timers.disk.worker is not None:
            self.timers.disk.worker.wait()
        self.timers.disk.finish_flush()

    def delivered(self, topic: str = TOPIC) -> list[StoredMessage]:
        found = []
        for queue_id in range(2):
            low, high = self.store.queue_range(topic, queue_id)
            found += [
                decode_record(self.store.read(place, size))
                for place, size, _ in self.store.queue_units(topic, queue_id, low, high - low)
            ]
        return sorted(found, key=lambda message: message.physical_offset)

    def ids(self, topic: str = TOPIC) -> list[str]:
        return [message.properties["UNIQ_KEY"] for message in self.delivered(topic)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "store")
    yield rig
    rig.close()


@pytest.fixture
def uncommitted_rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "store", committed=0)
    yield rig
    rig.close()


def test_nothing_is_made_on_disk_before_the_first_delayed_message(rig: Rig) -> None:
    rig.work(5000)
    rig.put_on_disk()
    assert not (rig.root / "timerwheel").exists() and not (rig.root / "timerlog").exists()
    rig.send("a", 3000)
    rig.work()
    rig.put_on_disk()
    assert (rig.root / "timerwheel").exists() and (rig.root / "config" / "timercheck").exists()


def test_a_message_comes_in_the_second_after_it_is_due_with_what_it_waited_with(rig: Rig) -> None:
    """Checklist 21, 22 and 23."""
    rig.send("a", 3150, queue_id=1)
    rig.work(3000)
    assert rig.ids() == []
    rig.work(1000)
    (got,) = rig.delivered()
    waited = rig.delivered(TIMER_TOPIC)[0]
    text = got.properties
    assert got.queue_id == 1 and text["TIMER_OUT_MS"] == str(NOW + 3000)
    assert (text["REAL_TOPIC"], text["REAL_QID"]) == (TOPIC, "1")
    assert (text["TIMER_ENQUEUE_MS"], text["TIMER_DEQUEUE_MS"]) == (str(NOW), str(NOW + 4000))
    assert (got.body, got.born_timestamp, got.born_host) == (
        waited.body, waited.born_timestamp, waited.born_host
    )  # fmt: skip
    assert got.store_host == waited.store_host
    assert got.prepared_offset == waited.physical_offset


def test_a_thousand_of_one_second_come_in_the_order_of_sending(rig: Rig) -> None:
    """Checklist 27."""
    sent = [f"{number:04d}" for number in range(1000)]
    for number, message_id in enumerate(sent):
        rig.send(message_id, 3001 + (number * 7) % 900, queue_id=number % 2)
    rig.work(5000)
    assert rig.ids() == sent


def test_after_a_restart_each_comes_once(rig: Rig) -> None:
    """Checklist 28 and 29: before and after the time, and when the broker was down then."""
    rig.send("a", 3000)
    rig.send("b", 60_000)
    rig.send("c", 9000)
    rig.work(1000)
    rig.restart(killed=False)
    rig.work(4000)
    assert rig.ids() == ["a"]
    rig.restart(killed=False)
    rig.machine.now_ms += 20_000
    rig.work(1000)
    assert rig.ids() == ["a", "c"]
    rig.restart(killed=True)
    rig.work(60_000)
    assert rig.ids() == ["a", "c", "b"]


@pytest.mark.parametrize("flushes", [0, 1, 2])
@pytest.mark.parametrize("after", range(0, 40, 3))
def test_a_kill_in_the_second_that_is_due_delivers_each_once(rig: Rig, after: int, flushes: int) -> None:
    """Checklist 28: however many were delivered, and whatever was on disk of that."""
    sent = [f"{number:02d}" for number in range(36)]
    for message_id in sent:
        rig.send(message_id, 2500)
    if flushes:
        rig.work()
        rig.put_on_disk()
    rig.machine.now_ms += 4000
    rig.appender.left = after
    rig.work()
    if flushes > 1:
        rig.put_on_disk()
    rig.restart(killed=True)
    rig.work(5000)
    assert rig.ids() == sent


def test_a_refused_append_is_tried_again_in_order(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checklist 30: a full disk or a missing replica delays, and drops nothing."""
    for number in range(20):
        rig.send(f"{number:02d}", 2500)
    rig.appender.refused = NoReplica("none")
    rig.work(10_000)
    assert rig.ids() == []
    rig.appender.refused = None
    rig.timers.slots.retry_at = 0.0
    rig.work(1000)
    assert rig.ids() == [f"{number:02d}" for number in range(20)]


def test_a_slot_is_done_when_replicas_have_it_and_nothing_comes_twice(rig: Rig) -> None:
    rig.appender.waits = True
    for number in range(5):
        rig.send(f"{number}", 2500)
    rig.send("next", 4500)
    rig.work(4000)
    assert rig.ids() == [f"{number}" for number in range(5)]
    assert rig.timers.read_ms == NOW + 2000  # its slot stays until the answers have come
    rig.appender.answer(ReplicaTimeout("late"))
    for _ in range(3):
        rig.timers.slots.retry_at = 0.0
        rig.work(1000)
    assert rig.ids() == [f"{number}" for number in range(5)]
    rig.appender.answer()
    rig.work(3000)
    assert rig.ids() == [*(f"{number}" for number in range(5)), "next"]


def test_a_clock_that_jumps_delivers_each_once(rig: Rig) -> None:
    """Forward: they come early by the true time. Back: what came is not repeated, the rest is on time."""
    rig.send("a", 10_000)
    rig.send("b", 5 * HOUR)
    rig.work(1000)
    rig.machine.now_ms += HOUR
    rig.work(1000)
    assert rig.ids() == ["a"]
    rig.machine.now_ms -= HOUR
    rig.send("c", 5000)
    rig.work(4000)
    assert rig.ids() == ["a"]
    rig.work(4000)
    assert rig.ids() == ["a", "c"]
    rig.work(20_000)
    assert rig.ids() == ["a", "c"]


def test_timer_files_that_are_lost_are_made_again_from_the_topic(rig: Rig) -> None:
    """11.1, row 4: RocketMQ delivers what was delivered a second time; here it comes once."""
    rig.send("a", 3000)
    rig.send("b", 60_000)
    rig.work(10_000)
    rig.timers.close()
    rig.store.close()
    (rig.root / "timerwheel").unlink()
    rig.open()
    rig.work(10_000)
    assert rig.ids() == ["a"]
    rig.work(60_000)
    assert rig.ids() == ["a", "b"]


@pytest.mark.parametrize(("unit_count", "queue_offset"), [(0, 3), (1, 3), (3, 1), (3, 0)])
def test_a_check_whose_numbers_are_of_different_moments_loses_and_repeats_nothing(
    rig: Rig, unit_count: int, queue_offset: int
) -> None:
    """Checklist 32: a killed RocketMQ leaves a new queue offset beside an old end of its timer log."""
    for name in ("first", "second", "third"):
        rig.send(name, 5000)
    rig.work()
    rig.put_on_disk()
    path = rig.root / "config" / "timercheck"
    check = Check.unpack(path.read_bytes())
    assert check is not None and (check.flushed, check.queue_offset) == (3 * UNIT_SIZE, 3)
    skewed = check._replace(flushed=unit_count * UNIT_SIZE, queue_offset=queue_offset)
    rig.restart(killed=True, meanwhile=lambda: path.write_bytes(skewed.pack()))
    rig.work(8000)
    assert rig.ids() == ["first", "second", "third"]


def test_a_message_of_ten_days_is_rolled_and_comes_once(rig: Rig) -> None:
    """Checklist 34."""
    rig.send("a", 10 * DAY)
    for _ in range(22):
        rig.work()
        rig.put_on_disk()
        rig.machine.now_ms += DAY // 2
        rig.restart(killed=True)
    rig.work(2000)
    assert rig.ids() == ["a"]
    (got,) = rig.delivered()
    assert int(got.properties["TIMER_ROLL_TIMES"]) >= 4
    assert got.store_timestamp >= NOW + 10 * DAY


@pytest.mark.parametrize("wait_ms", [HOUR, 3 * HOUR, DAY, 3 * DAY])
def test_where_a_message_waits_is_no_question_of_how_long_the_log_is_kept(
    tmp_path: Path, wait_ms: int
) -> None:
    """A slave that had another setting passed over where its master delivered nothing."""
    slots = set()
    for hours in (1, 2, 72, 200):
        rig = Rig(tmp_path / f"kept-{hours}", reserved_hours=hours)
        rig.send("a", wait_ms)
        rig.work()
        slots.add(rig.timers.files.unit(0).slot_ms)
        rig.timers.close()
        rig.store.close()
    assert len(slots) == 1


def test_a_message_that_was_rolled_is_not_rolled_again_by_who_comes_to_it_later(rig: Rig) -> None:
    """Checklist 33, 34: a slave, or files that are made anew, have it in the slot in which it was rolled."""
    rig.send("a", 5 * DAY)
    rig.work()
    slot_ms = rig.timers.files.unit(0).slot_ms
    rig.machine.now_ms = slot_ms + 5000
    rig.work()
    assert rig.store.queue_range(TIMER_TOPIC, 0) == (0, 2)
    rig.restart(killed=True, meanwhile=(rig.root / "timerwheel").unlink)
    rig.timers.slots.internal = None
    rig.work()
    assert rig.timers.files.unit(0).slot_ms == slot_ms
    rig.restart(killed=False)
    for _ in range(10):
        rig.machine.now_ms += DAY // 2
        rig.work()
    assert rig.ids() == ["a"]


def test_a_recall_before_the_time_holds_also_after_a_kill_and_when_rolled(rig: Rig) -> None:
    """Checklist 37."""
    for message_id, delay in (("a", 5000), ("b", 5000), ("c", 5 * DAY), ("d", 5 * DAY)):
        rig.send(message_id, delay)
    rig.work(1000)
    rig.recall("a", NOW + 4001)
    rig.recall("a", NOW + 4001)
    rig.recall("c", NOW + 5 * DAY - 1000 + 1)
    rig.recall("nobody", NOW + 4001)
    rig.work()
    rig.restart(killed=True)
    rig.work(10_000)
    assert rig.ids() == ["b"]
    for _ in range(11):
        rig.machine.now_ms += DAY // 2
        rig.work()
    assert rig.ids() == ["b", "d"]


def test_a_property_that_looks_like_a_recalls_is_none(rig: Rig) -> None:
    """A user's property may end with that name."""
    rig.send("a", 3000, user=("MY_TIMER_DEL_UNIQKEY", f"{TOPIC}+a"))
    rig.work(5000)
    assert rig.ids() == ["a"]


def test_messages_that_wait_are_counted_by_topic(rig: Rig) -> None:
    """Checklist 35."""
    rig.send("a", 3000)
    rig.send("b", 3000, topic="other")
    rig.send("c", 60_000)
    rig.work()
    assert rig.timers.counts == {TOPIC: 2, "other": 1}
    rig.work(10_000)
    assert rig.timers.counts == {TOPIC: 1}
    assert rig.ids("other") == ["b"]  # its topic was made
    assert rig.timers.enqueued == {TOPIC: 2, "other": 1}
    assert rig.timers.slots.delivered == {TOPIC: 1, "other": 1}


def test_a_recalled_message_no_longer_counts(rig: Rig) -> None:
    """Checklist 35 and 37: repeated recalls and those of unknown ids change nothing, before and after."""
    # The first is at offset 0 of the log, so that its copies seem to name no cause, as RocketMQ's do.
    for message_id, delay in (("far", 5 * DAY), ("a", 5000), ("b", 5000), ("c", 60_000)):
        rig.send(message_id, delay)
    rig.recall("late", NOW + 59_001)  # before its message is there
    rig.send("late", 60_000)
    rig.work()
    assert rig.timers.counts == {TOPIC: 5}
    for _ in range(3):
        rig.recall("a", NOW + 4001)
        rig.recall("nobody", NOW + 4001)
        rig.recall("c", NOW + 4001)  # of another second: it recalls nothing
        rig.recall("far", NOW + 5 * DAY - 1000 + 1)
        rig.work()
        assert rig.timers.counts == {TOPIC: 3}
    rig.restart(killed=False)
    assert rig.timers.counts == {TOPIC: 3}
    rig.work(10_000)
    assert rig.ids() == ["b"] and rig.timers.counts == {TOPIC: 2}
    rig.work(60_000)
    assert rig.ids() == ["b", "c"] and rig.timers.counts == {}
    rig.send("d", 20 * DAY)
    for _ in range(12):
        rig.machine.now_ms += DAY // 2
        rig.work()
        assert rig.timers.counts  # never less, in between
        rig.work()
        assert rig.timers.counts == {TOPIC: 1}  # what is rolled counts once
    assert rig.ids() == ["b", "c"]


def test_a_scrape_shows_how_far_ahead_messages_are_and_has_the_timer_look_again(rig: Rig) -> None:
    snapshot = rig.timers.snapshot

    def next_shown() -> list[int]:
        snapshot.ask()
        for _ in range(2 * 22):  # one walk may have begun; 4096 slots at a step
            rig.timers.step()
        return snapshot.shown

    assert snapshot.ask() == [0] * 8  # there are no files
    for message_id, delay in (("a", 4500), ("b", 5500), ("c", 60_500), ("d", 23 * HOUR), ("far", 25 * HOUR)):
        rig.send(message_id, delay)
    rig.work()
    assert next_shown() == [1, 1, 1, 0, 0, 0, 0, 1]
    rig.put_on_disk()
    rig.send("e", 59_500)
    rig.send("f", 23 * HOUR)
    rig.recall("c", NOW + 60_500)
    rig.work()
    assert next_shown() == [1, 2, 0, 0, 0, 0, 0, 2]
    rig.machine.now_ms += 2000
    assert next_shown() == [2, 1, 0, 0, 0, 0, 0, 2]
    assert not snapshot.asked and snapshot.found is None


def test_a_slot_that_is_read_again_counts_once(rig: Rig) -> None:
    rig.send("other", HOUR)
    rig.send("other too", HOUR)
    rig.send("a", 2500)
    rig.send("b", 2500)
    rig.appender.waits = True
    rig.work(4000)
    assert rig.ids() == ["a", "b"]
    rig.appender.answer(ReplicaTimeout("late"))
    for _ in range(3):
        rig.timers.slots.retry_at = 0.0
        rig.work(1000)
    rig.appender.answer()
    rig.work(1000)
    assert rig.timers.counts == {TOPIC: 2}


def test_a_slave_counts_what_its_master_has_not_delivered(rig: Rig) -> None:
    """Checklist 35: by the master's R, recalls included, and after a restart."""
    rig.timers.slots.internal = None
    for message_id in ("a", "b", "c"):
        rig.send(message_id, 5000)
    rig.send("d", 5000, topic="other")
    rig.send("e", 9000)
    rig.send("f", 60_000)
    rig.recall("a", NOW + 4001)
    rig.recall("a", NOW + 4001)
    rig.work(1000)
    assert rig.timers.counts == {TOPIC: 4, "other": 1}
    rig.timers.offer(NOW + 7000, rig.store.written)
    rig.work()
    assert rig.timers.counts == {TOPIC: 2} and rig.timers.read_ms == NOW + 7000
    rig.restart(killed=False)
    assert rig.timers.counts == {TOPIC: 2}
    rig.timers.slots.internal = None
    rig.timers.offer(NOW + 20_000, rig.store.written)
    rig.work()
    assert rig.timers.counts == {TOPIC: 1} and rig.ids() == []


def test_a_message_gets_its_unit_with_its_append_unless_others_wait_for_theirs(rig: Rig) -> None:
    rig.send_and_take("one", 3000)
    assert (rig.timers.enqueued, rig.timers.queue_offset) == ({TOPIC: 1}, 1)
    rig.send("two", 3000)
    rig.send_and_take("three", 3000)
    assert (rig.timers.enqueued, rig.timers.queue_offset) == ({TOPIC: 1}, 1)
    rig.work()
    assert (rig.timers.enqueued, rig.timers.queue_offset) == ({TOPIC: 3}, 3)
    rig.send_and_take("four", 3000)
    rig.work(5000)
    assert rig.ids() == ["one", "two", "three", "four"]
    rig.restart(killed=True)
    rig.work(5000)
    assert rig.ids() == ["one", "two", "three", "four"]


def test_a_message_that_waits_is_stored_again_before_its_log_file_goes(tmp_path: Path) -> None:
    """10.4: retention takes a file only when what waits in it is elsewhere, and then it comes once."""
    rig = Rig(tmp_path / "store", reserved_hours=0, disk_used_ratio_max=0.0)
    rig.timers.window_ms = 2 * DAY
    rig.store.writer.before_removal = rig.timers.before_removal
    for number in range(3):
        rig.send(f"{number}", HOUR)
    rig.work()
    for number in range(2000):
        rig.store.append([make_draft(number)])
    files = len(rig.store.writer.segments.starts)
    assert files > 4
    rig.store.run_retention(rig.machine.now_ms)
    assert len(rig.store.writer.segments.starts) == files
    for _ in range(3 * files):
        rig.work()
        rig.store.writer.request_flush(rig.store.written)
        until(lambda: rig.store.flushed == rig.store.written)
        rig.store.run_retention(rig.machine.now_ms)
    assert len(rig.store.writer.segments.starts) < files
    assert rig.store.min_offset > 0
    rig.machine.now_ms += HOUR
    rig.work(2000)
    assert rig.ids() == ["0", "1", "2"]
    rig.timers.close()
    rig.store.close()


def test_what_waits_below_an_offset_is_counted(rig: Rig) -> None:
    places = []
    for number in range(5):
        rig.send(f"{number}", number * HOUR + 1000)
        places.append(rig.store.written)
        if number == 2:
            rig.work()  # the others have no unit yet
    assert [rig.timers.waiting_below(place) for place in (0, *places)] == [0, 1, 2, 3, 4, 5]
    rig.work(5000)
    assert rig.ids() == ["0"]
    assert [rig.timers.waiting_below(place) for place in (0, *places)] == [0, 0, 1, 2, 3, 4]


async def test_the_loop_works_and_ends(rig: Rig) -> None:
    rig.send("a", 0)
    rig.machine.now_ms += 5000

    async def delivered() -> bool:
        return rig.ids() == ["a"]

    task = asyncio.create_task(rig.timers.run())
    await until_async(delivered, what="a message")
    task.cancel()
    await asyncio.wait([task])


def test_metrics_tell_how_long_messages_wait_for_a_unit_and_how_far_ahead_they_are(rig: Rig) -> None:
    rig.send("a", 2 * HOUR)
    rig.send("b", 30_000)
    rig.store.end_tick()
    assert (rig.timers.enqueue_lag(), rig.timers.enqueue_ms()) == (2, 0)
    rig.timers.behind_since_ms = rig.machine.now_ms  # a step has found them
    rig.machine.now_ms += 700
    assert rig.timers.enqueue_ms() == 700
    rig.work(0)
    rig.timers.step()  # finds that none is left
    assert (rig.timers.enqueue_lag(), rig.timers.enqueue_ms(), rig.timers.behind_since_ms) == (0, 0, 0)
    ((labels, delays),) = list(rig.timers.delays.items())
    assert labels == (TOPIC,)
    assert delays.counts == [1, 0, 0, 1, 0, 0, 0]
    rig.work(31_000)  # neither a delivery nor a start of the same slot counts again
    assert delays.count == 2


# RocketMQ 4's levels


def levels_of(rig: Rig) -> Levels:
    (rig.root / "config").mkdir(exist_ok=True)
    internal = InternalAppender(rig.topics, rig.appender, store_host=lambda: bytes(8))
    return Levels(
        rig.store, DelayOffsets(rig.root / "config"), rig.timers, internal, may_deliver=lambda: True
    )


def put_level(rig: Rig, message_id: str, level: int, *, topic: str = TOPIC) -> None:
    draft = make_draft(topic=SCHEDULE_TOPIC, queue_id=level - 1)
    pairs = [("UNIQ_KEY", message_id), ("DELAY", str(level)), ("REAL_TOPIC", topic), ("REAL_QID", "1")]
    draft.properties = format_properties(pairs).removesuffix(b"\x02") + b"\x02"
    draft.keys = (message_id,)
    rig.store.append([draft])
    rig.store.end_tick()


def run(levels: Levels) -> None:
    for level in levels.levels.values():
        level.retry_at = 0.0
    while levels.step():
        pass


def test_levels_are_delivered_in_order_when_their_delay_is_over(rig: Rig) -> None:
    levels = levels_of(rig)
    for number in range(2 * levels_module.BATCH_MAX + 3):
        put_level(rig, f"one-{number}", 1)
    put_level(rig, "two", 2)
    put_level(rig, "half", 1, topic=HALF_TOPIC)
    run(levels)
    assert rig.ids() == []
    rig.machine.now_ms += 1000
    run(levels)
    assert rig.ids() == [f"one-{number}" for number in range(2 * levels_module.BATCH_MAX + 3)]
    rig.machine.now_ms += 4000
    run(levels)
    assert rig.ids()[-1] == "two"
    (message,) = rig.delivered()[-1:]
    assert (message.queue_id, message.properties["DELAY"], message.properties["REAL_QID"]) == (1, "2", "1")


def test_a_level_goes_on_where_it_was_after_refusals_and_kills(rig: Rig) -> None:
    levels = levels_of(rig)
    for number in range(6):
        put_level(rig, f"m{number}", 1)
    rig.machine.now_ms += 1000
    rig.appender.left = 2  # then it takes no more
    run(levels)
    assert rig.ids() == ["m0", "m1"]
    rig.appender.left = -1
    run(levels)
    assert rig.ids() == [f"m{number}" for number in range(6)]
    assert levels.levels[0].position == 6
    rig.restart(killed=True)  # the positions were not written
    run(levels_of(rig))
    assert rig.ids() == [f"m{number}" for number in range(6)]
    rig.store.end_tick()
    levels = levels_of(rig)
    run(levels)
    levels.close()
    assert DelayOffsets(rig.root / "config").position(1) == 6


def put_ahead(rig: Rig, count: int, *, delivered: int) -> Levels:
    """Have a level deliver some of its messages, and return one whose file says that all were."""
    levels = levels_of(rig)
    for number in range(count):
        put_level(rig, f"m{number}", 1)
    rig.machine.now_ms += 1000
    rig.appender.left = delivered
    run(levels)
    assert len(rig.ids()) == delivered
    rig.appender.left = -1
    levels.offsets.save({1: count}, rig.machine.now_ms)
    return levels_of(rig)


@pytest.mark.parametrize(
    ("count", "delivered"), [(1, 0), (6, 0), (6, 2), (6, 6), (3 * levels_module.BATCH_MAX, 5)]
)
def test_a_position_that_is_ahead_of_what_was_delivered_goes_back(
    rig: Rig, count: int, delivered: int
) -> None:
    """F6: the log has lost what was delivered, or a slave's has not got it yet; the file is further."""
    levels = put_ahead(rig, count, delivered=delivered)
    run(levels)
    assert rig.ids() == [f"m{number}" for number in range(count)], "each once, in order"
    assert levels.levels[0].position == count


def test_a_level_looks_back_no_further_than_what_may_be_under_way(rig: Rig) -> None:
    count = 4 * levels_module.BATCH_MAX
    levels = put_ahead(rig, count, delivered=count)
    run(levels)
    assert levels.levels[0].back == count - levels_module.BATCH_MAX


def test_what_was_delivered_to_a_topic_that_was_deleted_is_not_delivered_again(rig: Rig) -> None:
    levels = put_ahead(rig, 3, delivered=3)
    rig.store.delete_topic(TOPIC)
    run(levels)
    assert rig.ids() == []


def test_positions_of_levels_are_written_in_a_thread_of_their_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = levels_of(rig)
    threads: list[str] = []
    refusals: list[Exception] = [StoreFull("no room")]
    save = levels.offsets.save

    def noted(positions: Mapping[int, int], now_ms: int) -> None:
        threads.append(threading.current_thread().name)
        if refusals:
            raise refusals.pop()
        save(positions, now_ms)

    monkeypatch.setattr(levels.offsets, "save", noted)
    levels.save()
    assert levels.worker is None  # no level was used: no thread, and no file
    put_level(rig, "one", 1)
    rig.machine.now_ms += 1000
    run(levels)
    for _ in range(3):  # the first is refused, and the third has nothing new
        levels.save()
        assert levels.worker is not None
        levels.worker.wait()
    assert threads == ["delay-offsets"] * 2
    assert DelayOffsets(rig.root / "config").position(1) == 1
    put_level(rig, "two", 1)
    rig.machine.now_ms += 1000
    run(levels)
    levels.close()
    assert levels.worker is None
    assert DelayOffsets(rig.root / "config").position(1) == 2


def test_a_level_moves_on_when_its_messages_are_durable(rig: Rig) -> None:
    levels = levels_of(rig)
    put_level(rig, "one", 1)
    rig.machine.now_ms += 1000
    rig.appender.waits = True
    run(levels)
    assert levels.levels[0].position == 0
    rig.appender.answer(ReplicaTimeout("too late"))
    run(levels)  # notes the failure, and waits for a moment
    run(levels)  # it is in the log: waited for, and not stored again
    assert rig.ids() == ["one"] and levels.levels[0].position == 0
    rig.appender.answer()
    assert levels.levels[0].position == 1


def test_a_level_goes_on_after_a_disk_that_could_not_be_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = levels_of(rig)
    put_level(rig, "one", 1)
    rig.machine.now_ms += 1000
    with monkeypatch.context() as broken:

        def unreadable(*_: object) -> bytes:
            raise OSError("read error")

        broken.setattr(rig.store, "read", unreadable)
        with pytest.raises(OSError, match="read error"):
            levels.step()
    run(levels)  # notes the failure, and waits for a moment
    run(levels)
    assert rig.ids() == ["one"] and levels.levels[0].position == 1


def test_a_clock_set_back_holds_no_level_up(rig: Rig) -> None:
    levels = levels_of(rig)
    put_level(rig, "one", 1)
    rig.machine.now_ms -= HOUR
    run(levels)
    assert rig.ids() == ["one"]


def test_what_is_not_committed_gets_one_unit_and_that_when_it_is(
    uncommitted_rig: Rig,
) -> None:
    rig = uncommitted_rig
    rig.send_and_take("one", 5000)
    rig.send("two", 5000)
    rig.work(1000)
    assert rig.timers.files.end == 0
    rig.store.commit(rig.store.written)
    rig.work()
    assert rig.timers.files.end == 2 * UNIT_SIZE
    rig.work(7000)
    rig.store.commit(rig.store.written)
    assert rig.store.queue_range(TOPIC, 0)[1] == 2


def test_units_of_what_is_not_known_to_be_committed_any_more_are_made_again_once(
    uncommitted_rig: Rig,
) -> None:
    rig = uncommitted_rig
    rig.send("one", 3600_000)
    before = rig.store.written
    rig.send("two", 3600_000)
    rig.store.commit(rig.store.written)
    rig.work()
    rig.put_on_disk()
    assert rig.timers.files.end == 2 * UNIT_SIZE

    def forget() -> None:
        QueueMark.withdraw(rig.root, rig.store.files)
        rig.committed = before

    rig.restart(killed=False, meanwhile=forget)
    assert rig.store.visible_end == before
    rig.work()
    assert rig.timers.files.end == UNIT_SIZE
    rig.store.commit(rig.store.written)
    rig.work()
    assert rig.timers.files.end == 2 * UNIT_SIZE


def test_a_recall_that_is_not_committed_yet_is_waited_for(uncommitted_rig: Rig) -> None:
    rig = uncommitted_rig
    due = NOW + 3000
    rig.send_and_take("one", 3000)
    rig.send_and_take("two", 3000)
    rig.store.commit(rig.store.written)
    rig.work(2900)
    assert rig.timers.is_open(due)
    rig.recall("one", due)
    assert rig.timers.is_open(due)
    rig.work(3000)
    assert rig.delivered() == [] and rig.store.queue_range(TOPIC, 0) == (0, 0)
    assert not rig.timers.is_open(due)  # what comes now comes too late
    rig.store.commit(rig.store.written)
    rig.work(2000)
    rig.store.commit(rig.store.written)
    assert rig.ids() == ["two"]
