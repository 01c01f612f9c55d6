"""Epochs of lease states where leaders change: what was refused never beats what was answered OK."""

from collections.abc import Callable, Iterator

import pytest

from whimbrel.broker.consume.lease_checks import EPOCH_MAX
from whimbrel.broker.consume.lease_store import EPOCHS_EACH, LeaseStore


class Memory:
    """A journal that keeps nothing."""

    sync_failures = appended = synced = 0
    lost = ""

    def load(self) -> list[bytes]:
        return []

    def start(self, snapshot: Callable[[], Iterator[bytes]]) -> None: ...
    def append(self, entries: bytes) -> None: ...
    def sync_promptly(self, on_synced: Callable[[], None]) -> None: ...
    def rewrite(self) -> bool:
        return True

    def beat(self) -> None: ...
    def close(self) -> None: ...


def broker(term: int = 0, *, leads: bool = True) -> LeaseStore:
    """Return the leases of a broker; with a term of an elected leader's."""
    store = LeaseStore(Memory(), broker_id=1, now_ms=lambda: 0)
    store.term, store.has_all = lambda: term, lambda: bool(term) and leads
    return store


def acknowledge(store: LeaseStore, upto: int) -> None:
    store.commit([(store.table.state("g", "t", 0), 0, upto, None)])


def reset(store: LeaseStore, offset: int) -> None:
    state = store.table.state("g", "t", 0)
    store.commit_entries(state.encoder.done(store.next_epoch(state.epoch), 0, offset))


def delete(store: LeaseStore) -> None:
    state = store.table.state("g", "t", 0)
    store.commit_entries(state.encoder.epoch(store.next_epoch(state.epoch)))


def position(store: LeaseStore) -> int:
    known = store.table.position("g", "t", 0)
    return -1 if known is None else known[2]


def hand_over(source: LeaseStore, to: LeaseStore) -> None:
    to.merge(b"".join(source.snapshot()))


def follow(store: LeaseStore, leader: LeaseStore) -> None:
    """Have a former leader follow: it hands over what it has, and takes what the leader has."""
    store.term, store.has_all = int, lambda: False
    hand_over(store, leader)
    hand_over(leader, store)


def test_without_elections_an_epoch_is_one_more() -> None:
    store = broker()
    assert [store.next_epoch(epoch) for epoch in (0, 1, 500)] == [1, 2, 501]


def test_each_leader_counts_above_those_before() -> None:
    earlier, later = broker(5), broker(6)
    assert earlier.next_epoch(0) == 5 * EPOCHS_EACH + 1
    assert later.next_epoch(earlier.next_epoch(7)) == later.next_epoch(0) > earlier.next_epoch(0)
    assert later.next_epoch(later.next_epoch(0)) == later.next_epoch(0) + 1
    assert later.next_epoch(10_000_000) == 10_000_001, "of a group that once had leaders with higher numbers"


def test_leaders_with_very_high_numbers_count_by_one_within_what_others_take() -> None:
    assert broker(EPOCH_MAX).next_epoch(3) == 4


@pytest.mark.parametrize("undone", [reset, lambda store, _: delete(store)], ids=["reset", "deletion"])
def test_what_a_former_leader_did_alone_does_not_undo_what_its_successor_answered(
    undone: Callable[[LeaseStore, int], None],
) -> None:
    """F2."""
    former, leader = broker(5), broker(6)
    for store in (former, leader):
        acknowledge(store, 10)
    undone(former, 100)
    reset(leader, 0)
    follow(former, leader)
    assert (position(leader), position(former)) == (0, 0)


@pytest.mark.parametrize("undone", [reset, lambda store, _: delete(store)], ids=["reset", "deletion"])
def test_nor_does_it_undo_acknowledgements(
    undone: Callable[[LeaseStore, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    former, leader = broker(5), broker(6)
    for store in (former, leader):
        acknowledge(store, 10)
    undone(former, 100)
    acknowledge(leader, 40)
    follow(former, leader)
    assert position(leader) == 40
    assert caplog.text.count("a reset or deletion that was not answered") == 1
    assert position(former) == 40, "so that it stores what is reported as stored"


def test_of_a_group_that_nobody_else_knows_it_is_forgotten() -> None:
    former, leader = broker(5), broker(6)
    reset(former, 100)
    follow(former, leader)
    assert (position(leader), position(former)) == (-1, -1)


def test_before_it_leads_a_leader_takes_over_what_may_have_been_answered() -> None:
    former, leader = broker(5), broker(6, leads=False)
    acknowledge(leader, 10)
    reset(former, 100)
    hand_over(former, leader)
    assert position(leader) == 100


def test_acknowledgements_merge_as_ever() -> None:
    former, leader = broker(5), broker(6)
    acknowledge(former, 20)
    acknowledge(leader, 10)
    hand_over(former, leader)
    assert position(leader) == 20


@pytest.mark.parametrize("undone", [reset, lambda store, _: delete(store)], ids=["reset", "deletion"])
def test_in_a_pair_a_master_that_took_over_counts_above_the_former_one(
    undone: Callable[[LeaseStore, int], None],
) -> None:
    """Where roles are configured nothing is refused: the count of takeovers alone is the order."""
    former, master = broker(), broker()
    master.term = lambda: 1
    for offset in (100, 200, 300):
        undone(former, offset)
    reset(master, 5)
    follow(former, master)
    assert (position(master), position(former)) == (5, 5)


def test_in_a_pair_a_reset_of_the_former_master_counts_where_the_new_one_made_none() -> None:
    former, master = broker(), broker()
    master.term = lambda: 1
    acknowledge(master, 10)
    reset(former, 100)
    follow(former, master)
    assert (position(master), position(former)) == (100, 100)


def test_the_greatest_term_is_known_from_the_states() -> None:
    store = broker()
    assert store.greatest_term() == 0
    reset(store, 5)
    assert store.greatest_term() == 0
    store.term = lambda: 4
    reset(store, 5)
    assert store.greatest_term() == 4


def test_followers_take_a_greater_epoch_from_their_leader() -> None:
    leader, follower = broker(6), broker()
    acknowledge(follower, 50)
    reset(leader, 5)
    hand_over(leader, follower)
    assert position(follower) == 5
