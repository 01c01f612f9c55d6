"""Reads in the model's terms: what they find, how they wait, and what they are answered when they do."""

from pathlib import Path
from typing import Any

import pytest

from support.broker.consumption import Rig as Consumption
from support.engine.reads import make_reads
from whimbrel.broker.api.pulls import V2_READS
from whimbrel.broker.engine.read import Read, Run, unchanged
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
        topics = TopicTable(root, cluster="C", broker_name="a", auto_create=False, clock=lambda: 1)
        groups = GroupTable(root, auto_create=False, clock=lambda: 1)
        topics.put(TopicConfig(name="t", read_queues=2))
        groups.put(GroupConfig(name="g"))
        self.reads = make_reads(
            self.store,
            GroupCreation(topics, groups, master=not follows, clock=lambda: 0.0),
            follows=follows,
            waiting=self.waiting,
        )

    def pull(self, offset: int, poll_ms: int = 0, expression: str = "*", render: Any = unchanged) -> Any:
        read = Read(V2_READS, "g", "t", expression, False, 0, offset, 10, V2_READS.bytes_max, wait_ms=poll_ms)
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
    assert all(poll.done for poll in polls) and not rig.parked


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
    assert isinstance(poll.error, CorruptRecord) and not rig.parked


def test_the_end_of_the_role_answers_pulls_with_nothing(rig: Rig) -> None:
    poll = rig.pull(0, 20_000, expression="a")
    rig.store.put("t", 0, tag="b")
    rig.clock.advance(0)
    rig.waiting.close("the broker changes its role")
    assert found(poll.result) == ([], 1) and not rig.parked


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
    assert rig.parked == 2
