"""Prompt syncs of the lease journal: what `synced` counts is on the disk, and who waits is told."""

import os
import threading
from pathlib import Path

import pytest

from support.waiting import until
from whimbrel.broker.consume.lease_codec import EntryEncoder
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.errors import StoreFull

DONE = EntryEncoder("g", "t", 0)


class Syncs:
    """Syncs that wait, or are refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.refused = False
        self.count = 0
        monkeypatch.setattr(os, "fdatasync", self.sync)

    def sync(self, fd: int) -> None:
        assert self.gate.wait(10)
        self.count += 1
        if self.refused:
            raise OSError(5, "refused")


def opened(root: Path) -> tuple[LeaseStore, LeaseJournal, threading.Event]:
    journal, told = LeaseJournal(root, file_bytes=1 << 16, flush_interval_s=60.0), threading.Event()
    store = LeaseStore(journal, broker_id=1, now_ms=lambda: 1_700_000_000_000)
    store.open()
    journal.sync_promptly(told.set)
    return store, journal, told


def test_the_state_as_it_was_opened_has_a_number_and_is_synced(tmp_path: Path) -> None:
    """A new leader's followers have nothing before they have that."""
    store, journal, told = opened(tmp_path)
    assert store.number == 1
    until(lambda: store.durable == 1)
    assert told.is_set()
    journal.close()


def test_a_change_counts_once_it_is_synced_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    store, journal, told = opened(tmp_path)
    until(lambda: store.durable == 1)
    syncs.gate.clear()
    told.clear()
    store.commit_entries(DONE.done(0, 0, 3))
    assert (store.number, store.durable) == (2, 1)
    syncs.gate.set()
    until(lambda: store.durable == 2)
    assert told.wait(10)
    journal.close()


def test_all_that_comes_during_a_sync_is_synced_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    store, journal, _ = opened(tmp_path)
    until(lambda: store.durable == 1)
    syncs.gate.clear()
    before = syncs.count
    for offset in range(1, 101):
        store.commit_entries(DONE.done(0, 0, offset))
    syncs.gate.set()
    until(lambda: store.durable == 101)
    assert syncs.count - before <= 3
    journal.close()


def test_a_sync_that_is_refused_counts_for_nothing_until_all_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    store, journal, _ = opened(tmp_path)
    until(lambda: store.durable == 1)
    syncs.refused = True
    store.commit_entries(DONE.done(0, 0, 3))
    until(lambda: journal.failed)
    assert store.durable == 1
    syncs.refused = False
    store.beat()
    until(lambda: store.durable == store.number)
    journal.close()


def test_what_a_full_disk_did_not_take_holds_all_back_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, journal, _ = opened(tmp_path)
    until(lambda: store.durable == 1)
    append = journal.append

    def refuse(_: bytes) -> None:
        raise StoreFull("no room")

    monkeypatch.setattr(journal, "append", refuse)
    store.merge(DONE.done(0, 0, 3))  # in memory only
    monkeypatch.setattr(journal, "append", append)
    store.commit_entries(EntryEncoder("g", "t", 1).done(0, 0, 1))
    journal.flush()
    assert store.durable == -1
    store.beat()
    until(lambda: store.durable == store.number)
    journal.close()
    again = LeaseStore(LeaseJournal(tmp_path, file_bytes=1 << 16), broker_id=1, now_ms=lambda: 0)
    again.open()
    assert again.table.state("g", "t", 0).committed == 3
    again.close()
