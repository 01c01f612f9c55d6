"""Queues of a topic that was deleted and made again."""

import shutil
from pathlib import Path

import pytest

from storekit import OPTIONS, make_draft, open_log, open_master
from whimbrel.errors import StoreError
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets
from whimbrel.store.slave_store import SlaveStore


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
