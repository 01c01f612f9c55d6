"""Reads in the model's terms: what they find, how they wait, and what they are answered when they do."""

from pathlib import Path
from typing import Any

import pytest

from support.broker.consumption import Rig as Consumption
from support.engine.reads import make_reads
from whimbrel.broker.api.pulls import V2_READS
from whimbrel.broker.consume.long_polls import Room
from whimbrel.broker.engine.read import Read, Run, unchanged
from whimbrel.broker.engine.waiting import DEADLINES_FEW, HELD_PULLS, PULLS, Waiting, Waits
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import CorruptRecord, IllegalOffset, Throttled
from whimbrel.model.topic import GroupConfig, TopicConfig


class Rig(Consumption):
    """Reads of topic t by group g, beside receives, over one store and one clock."""

    def __init__(self, root: Path, *, follows: bool = False, **options: Any) -> None:
        super().__init__(follows=follows, **options)
        clock = self.clock
        topics = TopicTable(root, cluster="C", broker_name="a", auto_create=False, clock=lambda: 1)
        groups = GroupTable(root, auto_create=False, clock=lambda: 1)
        topics.put(TopicConfig(name="t", read_queues=2))
        groups.put(GroupConfig(name="g"))
        self.reads = make_reads(
            self.store,
            GroupCreation(topics, groups, master=not follows, clock=lambda: 0.0),
            follows=follows,
            clock=lambda: clock.now,
            soon=lambda callback: clock.schedule(clock.now, callback),
            later=lambda seconds, callback: clock.schedule(clock.now + round(seconds * 1000), callback),
            polls=self.consumption.room,
        )
        waiting = self.reads.waiting
        self.store.arrivals.append(lambda topic, queue_id, offset, code: waiting.arrived(topic, queue_id))

    def pull(self, offset: int, poll_ms: int = 0, expression: str = "*", render: Any = unchanged) -> Any:
        read = Read(V2_READS, "g", "t", 0, offset, 10, V2_READS.bytes_max, expression, False, wait_ms=poll_ms)
        return self.reads.read(read, render)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def found(run: Any) -> tuple[list[int], int]:
    """Return the offsets of a run's messages, and where to go on."""
    assert isinstance(run, Run)
    return [message.queue_offset for message in run.parts], run.next_offset


def test_pull_reads_without_taking(rig: Rig) -> None:
    for _ in range(3):
        rig.store.put("t", 0)
    for _ in range(2):
        assert found(rig.pull(1)) == ([1, 2], 3)


def test_pull_goes_past_what_does_not_match(rig: Rig) -> None:
    for tag in ("a", "b", "b"):
        rig.store.put("t", 0, tag=tag)
    assert found(rig.pull(1, expression="a")) == ([], 3)


@pytest.mark.parametrize("offset", [-1, 1, 4])
def test_pull_outside_the_queue_is_refused(rig: Rig, offset: int) -> None:
    for _ in range(3):
        rig.store.put("t", 0)
    rig.store.minima["t", 0] = 2
    with pytest.raises(IllegalOffset):
        rig.pull(offset)


def test_pull_ahead_of_a_lagging_slave_waits(tmp_path: Path) -> None:
    rig = Rig(tmp_path, follows=True)
    rig.store.put("t", 0)
    poll = rig.pull(2, poll_ms=5_000)
    assert isinstance(poll, Deferred)
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert not poll.done
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert found(poll.result) == ([2], 3)


def test_parked_pull_ends_with_the_offset_to_go_on_from(rig: Rig) -> None:
    poll = rig.pull(0, poll_ms=5_000, expression="a")
    rig.store.put("t", 0, tag="b")
    rig.clock.advance(4_999)
    assert not poll.done
    rig.clock.advance(1)
    assert found(poll.result) == ([], 1)


def test_all_pulls_of_a_queue_get_a_new_message(rig: Rig) -> None:
    polls = [rig.pull(0, poll_ms=5_000) for _ in range(3)]
    rig.store.put("t", 1)
    rig.clock.advance(0)
    assert not any(poll.done for poll in polls)
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert all(poll.done for poll in polls) and not rig.consumption.parked


def test_reply_makes_the_answer_at_once_and_later(rig: Rig) -> None:
    poll = rig.pull(0, 20_000, render=lambda read, run: run.next_offset)
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert poll.result == 1
    assert rig.pull(0, render=lambda read, run: run.next_offset) == 1


def test_answer_that_cannot_be_encoded_is_a_corrupt_record(rig: Rig) -> None:
    def refuse(read: Read, run: Run) -> None:
        raise ValueError("surrogates")

    poll = rig.pull(0, 20_000, render=refuse)
    rig.store.put("t", 0)
    rig.clock.advance(0)
    assert isinstance(poll.error, CorruptRecord) and not rig.consumption.parked


def test_the_end_of_the_role_answers_pulls_with_nothing(rig: Rig) -> None:
    poll = rig.pull(0, 20_000, expression="a")
    rig.store.put("t", 0, tag="b")
    rig.clock.advance(0)
    rig.reads.close("the broker changes its role")
    assert found(poll.result) == ([], 1) and not rig.consumption.parked


def test_reads_and_receives_share_their_room(tmp_path: Path) -> None:
    rig = Rig(tmp_path, polls_max=2)
    receive = rig.park()
    pull = rig.pull(0, 20_000)
    with pytest.raises(Throttled, match="polling full: 2 polls are parked"):
        rig.pull(0, 20_000)
    with pytest.raises(Throttled, match="polling full: 2 polls are parked"):
        rig.park()
    pull.cancel()
    rig.park()
    receive.cancel()
    rig.pull(0, 20_000)
    assert rig.consumption.parked == 2


# Who waits


class Asker:
    """Something that waits."""

    def __init__(self, kind: Any, queue_id: int = 0, reader: object = None) -> None:
        self.kind, self.topic, self.queue_id, self.reader = kind, "t", queue_id, reader


class Place:
    """A `Waiting` whose clock tests move."""

    def __init__(self, polls: int = 10) -> None:
        self.now = 0
        self.soon: list[Any] = []
        self.later: list[tuple[float, Any]] = []
        self.looked: list[tuple[Waits, bool]] = []
        self.waiting = Waiting(
            self.look,
            clock=lambda: self.now,
            soon=self.soon.append,
            later=lambda seconds, callback: self.later.append((seconds, callback)),
            polls=Room(polls),
        )

    def look(self, waits: Waits, last: bool) -> None:
        self.looked.append((waits, last))
        if last:
            self.waiting.remove(waits)

    def park(self, asker: Asker, wait_ms: int) -> Waits:
        return self.waiting.park(asker, unchanged, wait_ms)


def test_a_deadline_has_the_grain_of_its_kind() -> None:
    place = Place()
    place.now = 1
    exact, coarse = place.park(Asker(PULLS), 1_500), place.park(Asker(HELD_PULLS), 1_500)
    assert [seconds for seconds, _ in place.later] == [1.5]
    place.now = 1_501
    place.later.pop()[1]()
    assert place.looked == [(exact, True)]
    [(seconds, callback)] = place.later
    assert seconds == 0.499
    place.now = 2_000
    callback()
    assert place.looked == [(exact, True), (coarse, True)] and not place.waiting.by_queue


def test_one_timer_counts_the_earliest() -> None:
    place = Place()
    place.park(Asker(PULLS), 2_000)
    place.park(Asker(PULLS), 1_000)
    place.park(Asker(PULLS), 3_000)
    assert [seconds for seconds, _ in place.later] == [2.0, 1.0]
    place.now = 2_000
    place.later[0][1]()  # another one was armed since
    assert not place.looked
    place.later[1][1]()
    assert len(place.looked) == 2


def test_arrivals_of_an_iteration_are_one_look_for_each_queue() -> None:
    place = Place()
    first, other = place.park(Asker(PULLS), 1_000), place.park(Asker(PULLS, 1), 1_000)
    for queue_id in (0, 0, 7):
        place.waiting.arrived("t", queue_id)
    assert len(place.soon) == 1
    place.soon.pop()()
    assert place.looked == [(first, False)]
    place.waiting.arrived("t", 1)
    other.cancel()
    place.soon.pop()()
    assert place.looked == [(first, False)]


def test_deadlines_of_what_was_answered_long_ago_are_not_kept() -> None:
    place = Place()
    for number in range(1_000):
        place.park(Asker(PULLS), 20_000 + number).cancel()
    assert len(place.waiting.deadlines) <= DEADLINES_FEW + 1 and not place.waiting.by_deadline


def test_the_bound_of_one_reader_is_its_own() -> None:
    place, reader = Place(), object()
    held = [place.park(Asker(HELD_PULLS, reader=reader), 1_000) for _ in range(HELD_PULLS.each)]
    with pytest.raises(Throttled, match="2000 pulls are held here, 2000 of this connection"):
        place.park(Asker(HELD_PULLS, reader=reader), 1_000)
    place.park(Asker(HELD_PULLS, reader=object()), 1_000)
    for waits in held:
        waits.cancel()
    assert len(place.waiting.by_reader) == 1 and place.waiting.rooms[HELD_PULLS].taken == 1
