"""Searches by key: all that has it, though others have its hash; nothing of a topic that was deleted."""

from pathlib import Path

import pytest

from support.store.stores import HOST, NOW, OPTIONS, open_master
from whimbrel.store import store as store_module
from whimbrel.store.codec import RecordDraft, format_properties, index_key_hash
from whimbrel.store.master_store import MasterStore

SAME_HASH = ("AaAaAa", "AaAaBB", "AaBBAa", "BBAaAa", "BBBBBB")


def put(store: MasterStore, key: str, topic: str = "topic") -> int:
    draft = RecordDraft.from_properties(
        topic=topic,
        queue_id=0,
        body=b"x",
        properties=format_properties([("KEYS", key)]),
        born_timestamp=NOW,
        born_host=HOST,
        store_host=HOST,
    )
    return store.append([draft])[0].physical_offset


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    return open_master(tmp_path / "s", OPTIONS)


def test_all_are_found_behind_any_number_of_others_with_their_hash(
    store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len({index_key_hash("topic", key) for key in SAME_HASH}) == 1
    early = [put(store, SAME_HASH[0]) for _ in range(3)]
    for number in range(1000):
        put(store, SAME_HASH[1 + number % 4])
    late = put(store, SAME_HASH[0])
    wanted = [late, *reversed(early)]
    assert store.find_by_key("topic", SAME_HASH[0]) == wanted
    assert store.find_by_key("topic", SAME_HASH[0], limit=2) == wanted[:2]
    monkeypatch.setattr(store_module, "KEY_READS_MAX", 100)  # so many records are read at most
    assert store.find_by_key("topic", SAME_HASH[0]) == [late]
    monkeypatch.setattr(store_module, "KEY_READS_MAX", 2000)
    monkeypatch.setattr(store_module, "KEY_BYTES_MAX", 10_000)  # and so many bytes of others
    assert store.find_by_key("topic", SAME_HASH[0]) == [late]
    store.close()


def test_messages_of_a_deleted_topic_are_not_found_in_the_one_of_its_name(store: MasterStore) -> None:
    """But by those who must not write again what the log has."""
    before = put(store, "k")
    store.delete_topic("topic")
    assert store.find_by_key("topic", "k") == []
    again = put(store, "k")
    assert store.find_by_key("topic", "k") == [again]
    assert store.find_written("topic", "k") == [again, before]
    store.close()
