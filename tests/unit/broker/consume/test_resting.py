"""State that nobody uses rests as bare positions, and nobody notices."""

import random
import tracemalloc
from pathlib import Path

import pytest

from support.broker.consumption import Rig, attempts, offsets
from whimbrel.broker.cluster.lease_sync import LeaseExchange
from whimbrel.broker.consume import resting
from whimbrel.broker.consume.group_consumption import IDLE_MS
from whimbrel.broker.consume.lease_codec import EntryEncoder
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.broker.consume.resting import RestingPositions
from whimbrel.errors import InvalidReceiptHandle, OffsetNotFound

QUEUES = range(4)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for _ in range(3):
        for queue_id in QUEUES:
            rig.store.put("t", queue_id)
    return rig


def consume_all(rig: Rig, group: str = "g") -> None:
    while taken := rig.take(group=group, queue_ids=QUEUES):
        assert rig.ack(*taken, group=group) == [None] * len(taken)


def idle(rig: Rig) -> None:
    """Let so much time pass that all rests that may."""
    rig.clock.advance(2 * IDLE_MS)
    rig.consumption.sweep()
    while rig.consumption.to_rest:
        rig.consumption.sweep()


def at_work(rig: Rig) -> int:
    return len(rig.consumption.table.by_queue)


def test_idle_group_rests_and_goes_on_where_it_was(rig: Rig) -> None:
    consume_all(rig)
    before = rig.consumption.positions.committed_offsets(), sorted(rig.consumption.lease_store.snapshot())
    idle(rig)
    assert at_work(rig) == 0 and not rig.consumption.planner.subscriptions
    assert (
        rig.consumption.positions.committed_offsets(),
        sorted(rig.consumption.lease_store.snapshot()),
    ) == before
    assert rig.consumption.positions.groups() == {"g"}
    assert rig.consumption.positions.get_offset("g", "t", 2) == 3
    with pytest.raises(OffsetNotFound):
        rig.consumption.positions.get_offset("g", "t", 9)
    assert [one.committed_offset for one in rig.consumption.positions.progress("g")] == [3] * 4
    idle(rig)
    rig.store.put("t", 1)
    assert offsets(rig.take(queue_ids=QUEUES)) == [3]


def test_acknowledging_again_after_a_rest_is_no_error(rig: Rig) -> None:
    taken = rig.take(queue_ids=QUEUES)
    assert rig.ack(*taken) == [None] * 12
    idle(rig)
    assert rig.ack(*taken) == [None] * 12
    rig.consumption.positions.reset_offset("g", "t", 0, 0)
    idle(rig)
    [first, *_] = [one for one in taken if one.message.queue_id == 0]
    assert isinstance(rig.ack(first)[0], InvalidReceiptHandle)


def test_what_is_held_open_or_waited_for_does_not_rest(rig: Rig) -> None:
    [first, second, *_] = rig.take(invisible_ms=10 * IDLE_MS)
    idle(rig)
    assert at_work(rig) == 1  # held
    rig.ack(second)
    rig.takes.take_back([first.handle])
    idle(rig)
    assert at_work(rig) == 1  # open
    rig = Rig()
    poll = rig.park(poll_ms=10 * IDLE_MS)
    rig.store.put("other", 0)
    idle(rig)
    assert at_work(rig) == 1
    rig.store.put("t", 0)
    rig.clock.advance(1)
    assert poll.done


def test_group_that_receives_does_not_rest(rig: Rig) -> None:
    consume_all(rig)
    for _ in range(5):
        rig.clock.advance(IDLE_MS - 1)
        rig.take(queue_ids=QUEUES)
        rig.consumption.sweep()
    assert at_work(rig) == 4


def test_entries_that_say_nothing_new_wake_nobody(rig: Rig) -> None:
    consume_all(rig)
    entries = b"".join(rig.consumption.lease_store.snapshot())
    idle(rig)
    assert not rig.consumption.lease_store.merge(entries)
    assert at_work(rig) == 0
    state = Rig(store=rig.store).consumption.table.state("g", "t", 1)
    assert rig.consumption.lease_store.merge(state.encoder.done(0, 4, 5))
    assert rig.consumption.table.state("g", "t", 1).done_above() == [(4, 5)]
    assert at_work(rig) == 4


def test_stream_that_began_before_a_rest_ended_has_all(rig: Rig) -> None:
    """Its full state is sent piece by piece, and the state changes meanwhile."""
    consume_all(rig)
    consume_all(rig, "h")
    idle(rig)
    sent: list[bytes] = []
    stream = LeaseExchange(rig.consumption.lease_store, ready=lambda: None, chunk_bytes=10)
    stream.push(lambda entries, complete: not sent and not sent.append(entries))  # type: ignore[func-returns-value]
    rig.store.put("t", 0)
    consume_all(rig)
    stream.push(lambda entries, complete: sent.append(entries) is None)  # type: ignore[func-returns-value]
    other = Rig(store=rig.store)
    for entries in sent:
        other.consumption.lease_store.merge(entries)
    assert other.consumption.positions.committed_offsets() == rig.consumption.positions.committed_offsets()
    assert other.take(queue_ids=QUEUES) == []


def test_deleted_group_leaves_a_tombstone_that_old_entries_do_not_wake(rig: Rig) -> None:
    consume_all(rig)
    before = b"".join(rig.consumption.lease_store.snapshot())
    rig.consumption.delete_group("g")
    idle(rig)
    assert at_work(rig) == 0 and rig.consumption.positions.committed_offsets() == {}
    assert not rig.consumption.lease_store.merge(before)
    assert not rig.consumption.positions.import_offset("g", "t", 0, 2)
    assert len(rig.take(queue_ids=QUEUES)) == 12


def test_group_that_only_looked_leaves_nothing(rig: Rig) -> None:
    for number in range(100):
        rig.take(topic=f"none-{number}", queue_ids=QUEUES)
    assert at_work(rig) == 400
    idle(rig)
    assert at_work(rig) == len(rig.consumption.table.resting) == 0


def test_tombstones_are_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "TOMBSTONES_MAX", 10)
    rests = RestingPositions()
    rests.put("kept", "t", [(0, 0, 7)])
    for number in range(25):
        rests.put(f"g{number}", "t", [(0, 1, -1), (1, 1, -1)])
    assert len(rests) == 11 == len(rests.tombstones) + 1
    assert rests.position("kept", "t", 0) == (0, 0, 7)
    assert rests.position("g14", "t", 0) is None
    assert rests.position("g15", "t", 1) == (1, 1, -1)
    rests.put("g15", "t", [(2, 0, 5)])
    assert ("g15", "t") not in rests.tombstones
    assert rests.take("g15", "t") == [(0, 1, -1), (1, 1, -1), (2, 0, 5)]


@pytest.mark.parametrize("seed", range(3))
def test_positions_are_found_in_whichever_order_they_came(seed: int) -> None:
    dice = random.Random(seed)
    queues = dice.sample(range(65_536), 60)
    rests, expected = RestingPositions(), {}
    for queue_id in queues:
        position = (queue_id, dice.randrange(2), dice.randrange(-1, 3))
        if rests.add("g", "t", position):
            expected[queue_id] = position
        assert ("g", "t") in rests.tombstones or any(one[2] >= 0 for one in expected.values()) or not expected
    assert rests.positions("g", "t") == sorted(expected.values())
    for queue_id in (*queues, 0, 65_535, 70_000):
        assert rests.position("g", "t", queue_id) == expected.get(queue_id)


def test_strange_positions_take_little_memory() -> None:
    """Epochs of groups that nobody knows, as a stranger may send them."""
    rig = Rig()
    entries = b"".join(EntryEncoder(f"g{number}", "t", 0).epoch(1) for number in range(20_000))
    rig.consumption.lease_store.merge(entries)
    assert at_work(rig) == 0 and len(rig.consumption.table.resting) == resting.TOMBSTONES_MAX


def test_positions_beyond_the_log_are_cut_while_they_rest(rig: Rig) -> None:
    consume_all(rig)
    idle(rig)
    rig.store.queues["t", 1] = rig.store.queues["t", 1][:1]
    assert rig.consumption.positions.clamp_to_log() == 1
    assert rig.consumption.positions.get_offset("g", "t", 1) == 1
    assert rig.consumption.positions.get_offset("g", "t", 0) == 3


def test_what_the_journal_holds_of_idle_groups_rests_from_the_start(rig: Rig, tmp_path: Path) -> None:
    rig.journal = LeaseJournal(tmp_path, file_bytes=1 << 16)  # type: ignore[assignment]
    rig.start()
    consume_all(rig)
    rig.consumption.close()
    rig.journal = LeaseJournal(tmp_path, file_bytes=1 << 16)  # type: ignore[assignment]
    rig.start()
    assert at_work(rig) == 0
    assert rig.take(queue_ids=QUEUES) == []
    rig.consumption.close()


@pytest.mark.parametrize("seed", range(5))
def test_resting_changes_nothing_that_anybody_sees(seed: int) -> None:
    dice = random.Random(seed)
    one, other = Rig(), Rig()
    held: list[list[tuple[str, str]]] = [[], []]  # group and handle; the same deliveries on both sides
    rested = messages = 0
    for _ in range(600):
        dealt, group, queue_id = dice.random(), dice.choice("gh"), dice.choice(QUEUES)
        chosen, wait = dice.random(), dice.choice([0, 1, 40_000, 3 * IDLE_MS])
        messages += dealt < 0.1
        seen: list[object] = []
        for side, rig in enumerate((one, other)):
            mine = held[side]
            if dealt < 0.1 and messages < 30:  # a receive takes all that can be seen
                rig.store.put("t", queue_id)
            elif dealt < 0.3:
                taken = rig.take(group=group, queue_ids=QUEUES)
                taken.sort(key=lambda one: (one.message.queue_id, one.message.queue_offset))
                mine += [(group, delivered.handle) for delivered in taken]
                seen.append((offsets(taken), attempts(taken)))
            elif dealt < 0.75 and mine:
                owner, handle = mine.pop(int(chosen * len(mine)))
                [error] = rig.ack_handles(handle, group=owner)
                seen.append(str(error))
            elif dealt < 0.9:
                rig.clock.advance(wait)
            elif dealt < 0.91:
                rig.consumption.positions.reset_offset(
                    group, "t", queue_id, rig.store.queue_range("t", queue_id)[1]
                )
            elif dealt < 0.915:
                rig.consumption.delete_group(group)
            seen.append(rig.consumption.positions.committed_offsets())
        assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
        before = at_work(other)
        other.consumption.sweep()
        rested += before - at_work(other)
    assert rested > 20


def test_memory_of_an_idle_group_is_small() -> None:
    rig = Rig()
    for queue_id in range(8):
        rig.store.put("t", queue_id)
    groups = 500
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(groups):
        taken = rig.take(group=f"run-{number}", queue_ids=range(8))
        rig.ack(*taken, group=f"run-{number}")
        rig.journal.chunks.clear()
        if number % 20 == 0:
            idle(rig)
    idle(rig)
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert size / groups < 1_000  # at work it takes 13,000
