"""Queues of a topic that was deleted and made again."""

import shutil
from pathlib import Path

import pytest

from support.store.stores import NOW, OPTIONS, make_draft, open_log, open_master
from whimbrel.errors import NotRecovered, StoreError, StoreFull
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets
from whimbrel.store.master_store import MasterStore
from whimbrel.store.recovery_marks import QueueMark
from whimbrel.store.slave_store import SlaveStore
from whimbrel.store.store import MessageStore
from whimbrel.store.walk import Chunk


def test_topic_made_again_goes_on_where_it_ended(tmp_path: Path) -> None:
    store = open_master(tmp_path)
    for number in range(150):
        store.append([make_draft(number)])
    store.delete_topic("topic")
    assert store.queue_range("topic", 0) == (0, 0) and store.topics_on_disk() == {}
    again = [store.append([make_draft(number)])[0] for number in range(3)]
    assert [one.queue_offset for one in again] == [150, 151, 152]
    assert store.queue_range("topic", 0) == (150, 153)
    store.close(clean=False)
    store = open_master(tmp_path)
    assert store.queue_range("topic", 0) == (150, 153)
    store.close()


def test_queues_built_anew_hold_only_what_came_after_the_deletion(tmp_path: Path) -> None:
    store = open_master(tmp_path)
    for number in range(5):
        store.append([make_draft(number)])
        store.append([make_draft(number, topic="gone")])
    store.delete_topic("topic")
    store.delete_topic("gone")
    places = [store.append([make_draft(number)])[0].physical_offset for number in range(8)]
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "whimbrel" / "queue-mark").unlink()
    store = open_master(tmp_path)
    assert store.queue_range("topic", 0) == (5, 13)
    assert [unit[0] for unit in store.queue_units("topic", 0, 5, 32)] == places
    assert store.topics_on_disk() == {"topic": {0}}
    store.close()


def test_slave_that_missed_the_deletion_hides_or_removes_what_is_old(tmp_path: Path) -> None:
    store = open_master(tmp_path)
    for number in range(5):
        store.append([make_draft(number)])
        store.append([make_draft(number, topic="gone")])
    store.close()
    log = open_log(tmp_path)
    slave = SlaveStore.open(tmp_path, OPTIONS)
    slave.merge_deleted_offsets('{"gone":{"0":5},"topic":{"0":3}}')
    assert slave.queue_range("topic", 0) == (3, 5)
    assert slave.topics_on_disk() == {"topic": {0}}
    slave.merge_deleted_offsets('{"topic":{"0":2}}')
    assert slave.queue_range("topic", 0) == (3, 5)
    slave.close()
    log.close()
    assert DeletedQueueOffsets(tmp_path).by_topic == {"gone": {0: 5}, "topic": {0: 3}}


def test_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "whimbrel").mkdir()
    (tmp_path / "whimbrel" / "queue-floors.json").write_text('{"topic":')
    with pytest.raises(StoreError, match=r"queue-floors\.json is damaged .* remove it"):
        DeletedQueueOffsets(tmp_path)


def test_a_deleted_topic_stays_deleted_after_a_kill(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    store.append([make_draft(topic="gone")])
    store.append([make_draft(topic="kept")])
    assert store.topics_on_disk() == {"gone": {0}, "kept": {0}}
    store.delete_topic("gone")
    store.close(clean=False)
    store = open_master(tmp_path / "s")
    assert store.topics_on_disk() == {"kept": {0}}
    store.close()


def seen(store: MessageStore, topic: str) -> list[int]:
    """Return the places of a topic's messages."""
    return [unit[0] for unit in store.queue_units(topic, 0, store.queue_range(topic, 0)[0], 32)]


def test_a_slave_shows_again_what_a_deletion_had_that_is_taken_back(tmp_path: Path) -> None:
    """Q7: the tables of the next leader have the topic, so its messages are there."""
    store = open_master(tmp_path)
    kept, taken_back = [], []
    for number in range(5):
        kept += [one.physical_offset for one in store.append([make_draft(number)])]
        taken_back += [one.physical_offset for one in store.append([make_draft(number, topic="back")])]
    store.close()
    log = open_log(tmp_path)
    slave = SlaveStore.open(tmp_path, OPTIONS)
    slave.take_deleted_offsets('{"back":{"0":5},"topic":{"0":3}}')
    assert slave.topics_on_disk() == {"topic": {0}} and slave.queue_range("topic", 0) == (3, 5)
    slave.take_deleted_offsets('{"topic":{"0":3}}')
    assert seen(slave, "back") == taken_back
    assert seen(slave, "topic") == kept[3:]
    slave.take_deleted_offsets('{"topic":{"0":2}}')
    assert seen(slave, "topic") == kept[2:]
    slave.close(clean=False)
    slave = SlaveStore.open(tmp_path, OPTIONS)
    assert seen(slave, "back") == taken_back
    assert seen(slave, "topic") == kept[2:]
    slave.close()
    log.close()


def test_numbers_that_a_deletion_had_come_to_and_a_later_leader_gave_are_shown(tmp_path: Path) -> None:
    """Q7: the deletion was at 7, of which 5 are in the next leader's log, which gives 5 and 6 again."""
    store = open_master(tmp_path)
    places = [store.append([make_draft(number)])[0].physical_offset for number in range(9)]
    store.close()
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "whimbrel" / "queue-mark").unlink()
    DeletedQueueOffsets(tmp_path).merge({"topic": {0: 7}})
    log = open_log(tmp_path)
    slave = SlaveStore.open(tmp_path, OPTIONS)
    assert seen(slave, "topic") == places[7:]
    slave.take_deleted_offsets("{}")
    assert seen(slave, "topic") == places
    slave.close()
    log.close()


def test_a_leader_that_takes_a_deletion_back_has_what_is_not_committed_yet(tmp_path: Path) -> None:
    store = open_master(tmp_path)
    appended = [store.append([make_draft(number)])[0] for number in range(7)]
    committed, end = appended[5].physical_offset, store.written
    store.delete_topic("topic")
    store.close()
    store = MasterStore.open(tmp_path, OPTIONS, clock=lambda: NOW, committed=committed)
    store.take_deleted_offsets("{}")
    places = [one.physical_offset for one in appended]
    assert store.next_offset("topic", 0) == 7
    store.commit(end)
    assert seen(store, "topic") == places
    assert store.queues.by_key["topic", 0].uncommitted == 0
    store.close()


def test_entries_for_which_there_is_no_room_are_made_as_the_same_offsets_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_master(tmp_path)
    places = [store.append([make_draft(number)])[0].physical_offset for number in range(5)]
    store.delete_topic("topic")
    store.close()
    log = open_log(tmp_path)
    slave = SlaveStore.open(tmp_path, OPTIONS)
    dispatch = slave.dispatcher.dispatch

    def refuse(chunk: Chunk) -> None:
        raise StoreFull("no room", 0)

    monkeypatch.setattr(slave.dispatcher, "dispatch", refuse)
    with pytest.raises(StoreFull):
        slave.take_deleted_offsets("{}")
    slave.try_save_mark()
    assert QueueMark.load(tmp_path) is None  # so a start makes all entries
    monkeypatch.setattr(slave.dispatcher, "dispatch", dispatch)
    slave.take_deleted_offsets("{}")
    assert seen(slave, "topic") == places
    assert QueueMark.load(tmp_path) is not None
    slave.close()
    log.close()


def test_entries_are_not_made_from_a_log_that_is_being_cut(tmp_path: Path) -> None:
    store = open_master(tmp_path)
    places = [store.append([make_draft(number)])[0].physical_offset for number in range(5)]
    store.delete_topic("topic")
    store.close()
    log = open_log(tmp_path)
    slave = SlaveStore.open(tmp_path, OPTIONS)
    epoch, slave.page.epoch = slave.page.epoch, 0
    with pytest.raises(NotRecovered):
        slave.take_deleted_offsets("{}")
    slave.page.epoch = epoch
    slave.take_deleted_offsets("{}")
    assert seen(slave, "topic") == places
    slave.close()
    log.close()
