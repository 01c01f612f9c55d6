"""Checking a store for damage."""

from pathlib import Path

import pytest

from support.store.stores import OPTIONS, make_draft, open_master
from whimbrel.store.codec import (
    index_key_hash,
)
from whimbrel.store.index import IndexFile
from whimbrel.store.verify import verify


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
