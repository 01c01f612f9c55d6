"""The epoch that a leader begins: what the election was about, and no other one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.store.stores import make_draft, open_master
from whimbrel.broker.roles.epochs import TORN_BYTES_MAX, begin_epoch
from whimbrel.errors import StoreError
from whimbrel.model.group_record import GroupRecord
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.master_store import MasterStore

VOTERS = tuple((member, f"{member:032x}") for member in (1, 2, 3))
TERM = GroupRecord(group="f" * 32, epoch=5, leader=2, voters=VOTERS, acks=2)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MasterStore]:
    store = open_master(tmp_path)
    store.append([make_draft()])
    store.end_tick()
    yield store
    store.close()


def test_an_elected_leader_begins_the_epoch_of_its_election(store: MasterStore) -> None:
    EpochFile(store.root).save(((3, 0),))
    assert begin_epoch(store, (), TERM) == 5
    page = store.page
    assert EpochFile(store.root).load() == ((3, 0), (5, store.written))
    assert (page.leader_epoch, page.leader_start, page.leader_log) == (5, store.written, page.epoch)
    assert [page.is_voter(member) for member in range(5)] == [False, True, True, True, False]
    assert page.seat_of(3) == VOTERS[2][1] and page.seat_of(4) == "" and page.group == TERM.group


def test_a_log_that_has_followed_a_later_epoch_begins_no_earlier_one(store: MasterStore) -> None:
    for last in (5, 6):
        EpochFile(store.root).save(((last, 0),))
        with pytest.raises(StoreError, match=f"in epoch {last}: it was sealed"):
            begin_epoch(store, (), TERM)
        assert EpochFile(store.root).load() == ((last, 0),)


def test_a_log_that_has_lost_what_was_sealed_leads_nothing(store: MasterStore) -> None:
    store.page.sealed_end = store.written + TORN_BYTES_MAX + 1
    with pytest.raises(StoreError, match="sealed up to"):
        begin_epoch(store, (), TERM)
    store.page.sealed_end -= 1  # no more than a record that was not whole
    assert begin_epoch(store, (), TERM) == 5


def test_without_elections_it_is_the_next_one(store: MasterStore) -> None:
    store.page.sealed_end = store.written + TORN_BYTES_MAX + 1
    assert begin_epoch(store, (0, 1, 2)) == 1
    assert [store.page.is_voter(member) for member in range(4)] == [True, True, True, False]
    assert store.page.seat_of(1) == ""
