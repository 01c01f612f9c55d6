"""Checking a store for damage."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from support.store.stores import NOW, OPTIONS, make_draft, open_master
from whimbrel.store.codec import (
    index_key_hash,
)
from whimbrel.store.index import IndexFile
from whimbrel.store.master_store import MasterStore
from whimbrel.store.offline_recovery import recover
from whimbrel.store.verify import verify

HOUR_MS = 3_600_000


def test_verifying_searches_for_no_key_that_is_where_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search takes as long as its key has records: one for each record would never end in a large store."""
    store = open_master(tmp_path / "s")
    for number in range(500):
        store.append([make_draft(number % 2)])
    store.close()
    monkeypatch.delattr(IndexFile, "find")
    assert verify(tmp_path / "s") == []


def test_a_key_that_its_slot_does_not_lead_to_is_missing(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    for number in range(20):
        store.append([make_draft(number)])
    store.close()
    (path,) = (tmp_path / "s" / "index").iterdir()
    data = bytearray(path.read_bytes())
    slot = index_key_hash("topic", "key-7") % OPTIONS.index_slots
    data[40 + 4 * slot : 44 + 4 * slot] = bytes(4)
    path.write_bytes(data)
    (damage,) = verify(tmp_path / "s")
    assert "a key of a record is missing" in damage.what


def test_another_number_of_slots_is_reported_as_such(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    for number in range(180):
        store.append([make_draft(number)])
    while store.indexer.step(store.written):
        pass
    store.close()
    assert verify(tmp_path / "s", index_slots=OPTIONS.index_slots) == []
    (damage, *_) = verify(tmp_path / "s", index_slots=OPTIONS.index_slots + 500)
    assert damage.path.parent.name == "index"
    assert "--index-slots" in damage.what


def deleted_and_made_again(root: Path) -> MasterStore:
    """Return a store whose topic was deleted with its messages, and has new ones; another one is gone."""
    store = open_master(root)
    for number in range(5):
        store.append([make_draft(number)])
        store.append([make_draft(number, topic="gone")])
    store.delete_topic("topic")
    store.delete_topic("gone")
    for number in range(3):
        store.append([make_draft(number)])
    return store


def test_messages_of_a_deleted_topic_are_no_damage(tmp_path: Path) -> None:
    deleted_and_made_again(tmp_path / "s").close()
    assert verify(tmp_path / "s") == []


def test_a_deleted_topic_is_no_damage_after_recovery_and_a_kill(tmp_path: Path) -> None:
    deleted_and_made_again(tmp_path / "s").close(clean=False)
    assert verify(tmp_path / "s") == []
    recover(tmp_path / "s", dry_run=False, index_slots=OPTIONS.index_slots)
    assert verify(tmp_path / "s", index_slots=OPTIONS.index_slots) == []
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    (tmp_path / "s" / "whimbrel" / "queue-mark").unlink()
    recover(tmp_path / "s", dry_run=False, index_slots=OPTIONS.index_slots)
    assert verify(tmp_path / "s", index_slots=OPTIONS.index_slots) == []


def test_a_deleted_topic_is_no_damage_after_retention(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, delete_when=tuple(range(24)), reserved_hours=1)
    store = open_master(tmp_path / "s", options)
    for number in range(60):
        store.append([make_draft(number, size=4000)])
    store.delete_topic("topic")
    store.append([make_draft(0)])
    store.writer.flush()
    old = (NOW - 2 * HOUR_MS) / 1000
    os.utime(min((tmp_path / "s" / "commitlog").iterdir()), (old, old))
    assert store.run_retention(NOW) > 0
    store.close()
    assert verify(tmp_path / "s") == []


def test_an_entry_that_was_lost_behind_a_deletion_is_a_damage(tmp_path: Path) -> None:
    deleted_and_made_again(tmp_path / "s").close()
    shutil.rmtree(tmp_path / "s" / "consumequeue" / "topic")
    (damage,) = verify(tmp_path / "s")
    assert (damage.path.parent.name, damage.what) == (
        "topic", "missing although the log has records of this queue (and 2 more)",
    )  # fmt: skip


@pytest.mark.parametrize(("topics", "damaged"), [({"topic": {}}, True), ({"other": {}}, False), (None, True)])
def test_what_rocketmq_has_deleted_is_no_damage(tmp_path: Path, topics: object, damaged: bool) -> None:
    """It writes down nowhere that a topic was deleted, and takes it from the table."""
    store = open_master(tmp_path / "s")
    store.append([make_draft(1)])
    store.close()
    shutil.rmtree(tmp_path / "s" / "consumequeue" / "topic")
    if topics is not None:
        (tmp_path / "s" / "config").mkdir(exist_ok=True)
        table = json.dumps({"topicConfigTable": topics})
        (tmp_path / "s" / "config" / "topics.json").write_text(table)
    assert bool(verify(tmp_path / "s")) is damaged
