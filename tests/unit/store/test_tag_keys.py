"""Tags as keys of the index, as RocketMQ writes them from 5.4 on: found, kept, written where that is set."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.store.stores import HOST, NOW, OPTIONS, make_draft, open_master
from whimbrel.store.codec import (
    TRANSACTION_ROLLBACK,
    RecordDraft,
    format_properties,
    index_key_hash,
    keys_of,
    tag_key,
)
from whimbrel.store.index import Index
from whimbrel.store.master_store import MasterStore
from whimbrel.store.offline_recovery import recover
from whimbrel.store.verify import verify
from whimbrel.store.view import store_options

TAGGED = replace(OPTIONS, index_tags=True)
PROPERTIES = [
    [("UNIQ_KEY", "u"), ("KEYS", "a b"), ("TAGS", "red")],
    [("TAGS", "red")],
    [("KEYS", "a")],
    [("UNIQ_KEY", "v"), ("TAGS", "grün")],
    [("UNIQ_KEY", "w"), ("TAGS", "")],
]


def draft(properties: list[tuple[str, str]], sys_flag: int = 0) -> RecordDraft:
    return RecordDraft.from_properties(
        topic="topic",
        queue_id=0,
        body=b"x",
        properties=format_properties(properties),
        born_timestamp=NOW,
        born_host=HOST,
        store_host=HOST,
        sys_flag=sys_flag,
    )


def filled(root: Path) -> MasterStore:
    """Open a store with each of them, one by one and together, and one that was rolled back."""
    store = open_master(root, TAGGED)
    for one in PROPERTIES:
        store.append([draft(one)])
    store.append([draft(one) for one in PROPERTIES])
    store.append([draft([("TAGS", "red")], TRANSACTION_ROLLBACK)])
    store.indexer.step(store.written)
    return store


def entries(index: Index) -> list[int]:
    return [key_hash for key_hash, _ in reversed(list(index.files[0].newest()))]


HASHES = [
    index_key_hash("topic", key)
    for one in PROPERTIES * 2
    for key in keys_of(format_properties(one), tags=True)
]


def test_tags_are_written_behind_the_keys_of_their_record(tmp_path: Path) -> None:
    assert keys_of(format_properties(PROPERTIES[0]), tags=True) == ("u", "a", "b", "T#red")
    store = filled(tmp_path / "s")
    assert entries(store.index) == HASHES
    found = store.find_by_key("topic", tag_key("red"))
    assert len(found) == 4 and found == sorted(found, reverse=True)
    assert len(store.find_by_key("topic", tag_key("grün"))) == 2
    store.close()
    assert verify(tmp_path / "s") == []


def test_an_index_taken_from_the_log_has_them_too(tmp_path: Path) -> None:
    filled(tmp_path / "s").close()
    shutil.rmtree(tmp_path / "s" / "index")
    store = open_master(tmp_path / "s", TAGGED)
    assert len(store.find_by_key("topic", tag_key("red"))) == 4
    assert entries(store.index) == HASHES
    store.close()


def test_without_the_setting_none_is_written_and_those_that_are_there_stay(tmp_path: Path) -> None:
    filled(tmp_path / "s").close()
    store = open_master(tmp_path / "s", OPTIONS)
    store.append([make_draft(1)])
    assert len(store.find_by_key("topic", tag_key("red"))) == 4
    assert store.find_by_key("topic", tag_key("tag")) == []
    store.close()
    assert verify(tmp_path / "s") == []


@pytest.mark.parametrize("tags", [False, True])
def test_recovery_by_hand_keeps_what_the_index_has(tmp_path: Path, tags: bool) -> None:
    root = tmp_path / "s"
    store = open_master(root, TAGGED if tags else OPTIONS)
    for number in range(400):  # several files
        store.append([make_draft(number)])
    while store.indexer.step(store.written):
        pass
    count = len(store.find_by_key("topic", tag_key("tag"), limit=1000))
    assert count == (400 if tags else 0) and len(store.index.files) > 1
    store.close()
    assert store_options(root).index_tags is tags
    for name in sorted(path.name for path in (root / "index").iterdir())[1:]:
        (root / "index" / name).unlink()
    recover(root, dry_run=False)
    store = open_master(root, OPTIONS)
    assert len(store.find_by_key("topic", tag_key("tag"), limit=1000)) == count
    store.close()
    assert verify(root) == []


def test_a_store_without_entries_has_no_tags(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s", TAGGED)
    assert not store_options(tmp_path / "s").index_tags
    store.append([draft([("KEYS", "a")])])
    store.close()
    assert not store_options(tmp_path / "s").index_tags
