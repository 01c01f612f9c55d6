"""The lease journal over a page cache that forgets: what was synced stays, whichever sync is refused."""

import errno
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from whimbrel.broker.consume.lease_journal import BEATS_APART_MAX, LeaseJournal
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.errors import StoreFull

PAGE = 4096
FILE_BYTES = 1 << 14


class PageCache:
    """What is between a directory and its disk; a power failure leaves what was synced, and any other pages.

    As Linux does it: a refused sync marks the pages clean, and the next one succeeds without writing them.
    Pages that nobody asked for may be written at any time.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.dirty: dict[int, set[int]] = {}  # offsets of pages that were written since the last sync
        self.platter: dict[int, bytearray] = {}
        self.names: dict[Path, int] = {}  # those that were synced with their directory
        self.kept: dict[int, int] = {}
        self.refusals = 0  # how many of the next syncs are refused
        self.dice = random.Random(7)
        monkeypatch.setattr(os, "fdatasync", self.sync)
        monkeypatch.setattr(os, "fsync", self.sync)
        self.pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.write)

    def write(self, fd: int, data: bytes, position: int) -> int:
        dirty = self.dirty.setdefault(os.fstat(fd).st_ino, set())
        dirty |= set(range(position // PAGE * PAGE, position + len(data), PAGE))
        return self.pwrite(fd, data, position)

    def sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}")
        if self.root in path.readlink().parents:
            if path.is_dir():
                names = [name for name in path.readlink().iterdir() if name.is_file()]
                self.names.update((name, name.stat().st_ino) for name in names)
                return
            inode = os.fstat(fd).st_ino
            if inode not in self.kept:
                self.kept[inode] = os.dup(fd)  # so that no other file gets its number
            self.write_back(inode, path.read_bytes())

    def write_back(self, inode: int, content: bytes) -> None:
        dirty = self.dirty.pop(inode, set())
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EIO, "Input/output error")
        platter = self.platter.setdefault(inode, bytearray())
        platter.extend(bytes(max(0, len(content) - len(platter))))
        for at in dirty:
            platter[at : at + PAGE] = content[at : at + PAGE]

    def after_power_loss(self, to: Path) -> Path:
        shutil.rmtree(to, ignore_errors=True)
        for name, inode in self.names.items():
            there = to / name.relative_to(self.root)
            there.parent.mkdir(parents=True, exist_ok=True)
            platter = bytearray(self.platter.get(inode, b""))
            if name.stat().st_ino == inode:
                content = name.read_bytes()
                platter.extend(bytes(max(0, len(content) - len(platter))))
                for at in self.dirty.get(inode, ()):
                    if self.dice.random() < 0.5:
                        platter[at : at + PAGE] = content[at : at + PAGE]
            there.write_bytes(platter)
        return to


class Flusher:
    """Stands in for the thread: the tests call `flush` themselves."""

    def wake(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Broker:
    """Acknowledges for some groups, all of them up to `acked`; a power failure may not take back `sure`."""

    GROUPS = 40

    def __init__(self, root: Path) -> None:
        self.root = root
        self.acked = self.sure = 0
        self.start()

    def start(self) -> None:
        self.journal = LeaseJournal(self.root, file_bytes=FILE_BYTES)
        self.journal.flusher = Flusher()
        self.store = LeaseStore(self.journal, broker_id=0, now_ms=lambda: 1_700_000_000_000)
        self.store.open()
        self.states = [self.store.table.state(f"group-{number}", "topic", 0) for number in range(self.GROUPS)]
        self.acked = min(state.committed for state in self.states)

    def ack(self) -> None:
        for state in self.states:
            self.store.commit([(state, self.acked, self.acked + 1, None)])
        self.acked += 1

    def flush(self) -> None:
        self.journal.flush()
        if self.journal.settled and not self.journal.failed:
            self.sure = self.acked

    def kill(self) -> None:
        for fd in [*self.journal.files, *self.journal.retired]:
            os.close(fd)

    def until_generation(self, generation: int) -> None:
        while self.journal.generation < generation:
            self.flush()
            self.ack()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageCache]:
    cache = PageCache(tmp_path / "store", monkeypatch)
    yield cache
    for fd in cache.kept.values():
        os.close(fd)


@pytest.fixture
def broker(cache: PageCache) -> Iterator[Broker]:
    broker = Broker(cache.root)
    yield broker
    broker.kill()


def found_after_power_loss(cache: PageCache) -> int:
    store = LeaseStore(
        LeaseJournal(cache.after_power_loss(cache.root.parent / "after"), file_bytes=FILE_BYTES),
        broker_id=0,
        now_ms=lambda: 1_700_000_000_000,
    )
    for chunk in store.journal.load():
        store.table.join(chunk, store.checks.judge)
    return min(store.table.state(f"group-{number}", "topic", 0).committed for number in range(Broker.GROUPS))


def test_what_was_synced_is_there_after_a_power_loss(cache: PageCache, broker: Broker) -> None:
    broker.until_generation(4)
    broker.flush()
    broker.ack()
    assert broker.sure == broker.acked - 1
    assert found_after_power_loss(cache) >= broker.sure


def test_refused_sync_of_a_snapshot_does_not_cost_the_file_before(cache: PageCache, broker: Broker) -> None:
    broker.until_generation(3)
    cache.refusals = 1
    broker.journal.rest = None
    broker.flush()  # of the third snapshot
    assert broker.journal.failed and not broker.journal.settled
    for _ in range(3 * FILE_BYTES // 1000):  # far more than a file holds
        broker.ack()
        broker.flush()
        assert found_after_power_loss(cache) >= broker.sure
    broker.journal.beat()
    broker.flush()
    assert broker.sure == broker.acked == found_after_power_loss(cache)


def test_refused_sync_of_changes_has_the_state_written_into_the_other_file(
    cache: PageCache, broker: Broker
) -> None:
    broker.until_generation(3)
    broker.flush()
    broker.ack()
    cache.refusals = 1
    broker.flush()
    before = broker.sure
    active = broker.journal.active
    broker.ack()
    broker.flush()  # the next sync of that file succeeds, and says nothing
    assert broker.sure == before
    assert found_after_power_loss(cache) >= before
    broker.journal.beat()
    assert broker.journal.active != active
    assert found_after_power_loss(cache) >= before
    broker.flush()
    assert broker.sure == broker.acked == found_after_power_loss(cache)


def test_process_that_starts_does_not_believe_what_it_reads(cache: PageCache, broker: Broker) -> None:
    """All that the last process wrote reads well out of memory, and none of it may be on the disk."""
    broker.until_generation(3)
    broker.flush()
    cache.refusals = 1
    broker.ack()
    broker.flush()
    sure, acked = broker.sure, broker.acked
    broker.kill()
    broker.start()
    assert broker.acked == acked
    assert found_after_power_loss(cache) >= sure
    broker.flush()
    assert found_after_power_loss(cache) == acked


def test_refused_syncs_at_the_start_leave_both_files(cache: PageCache, broker: Broker) -> None:
    broker.until_generation(3)
    broker.flush()
    sure = broker.sure
    broker.kill()
    cache.refusals = 2  # of the newest file, and of the new one
    broker.start()
    assert broker.journal.failed
    assert found_after_power_loss(cache) >= sure
    with pytest.raises(StoreFull, match="the disk refuses to sync"):
        broker.ack()
    broker.journal.beat()
    broker.ack()
    broker.flush()
    assert found_after_power_loss(cache) == broker.acked == broker.sure


def test_disk_that_refuses_all_is_tried_ever_less_often_and_told_once(
    cache: PageCache, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.until_generation(3)
    broker.flush()
    sure = broker.sure
    broker.ack()
    cache.refusals = 1_000_000
    for _ in range(600):
        broker.flush()
        before = cache.refusals
        broker.journal.beat()
        if cache.refusals < before:
            assert found_after_power_loss(cache) >= sure
    assert 600 // BEATS_APART_MAX < 1_000_000 - cache.refusals < 20
    assert len([one for one in caplog.records if "can't be flushed" in one.message]) == 1
    cache.refusals = 0
    for _ in range(BEATS_APART_MAX + 1):
        broker.journal.beat()
    broker.flush()
    assert found_after_power_loss(cache) == broker.acked


def test_new_file_that_has_no_room_is_tried_again(
    cache: PageCache, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.until_generation(3)
    cache.refusals = 2  # the rest of the file before, and the new one's snapshot
    broker.flush()
    with monkeypatch.context() as full:

        def refuse(fd: int, offset: int, size: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(os, "posix_fallocate", refuse)
        broker.journal.beat()
        broker.ack()
        assert broker.journal.generation == 3
    for _ in range(3):
        broker.journal.beat()
    broker.flush()
    assert broker.sure == broker.acked == found_after_power_loss(cache)
    names = {path.name for path in (cache.root / "whimbrel" / "leases").iterdir()}
    assert names == {"a.journal", "b.journal", "boot"}


@pytest.mark.parametrize("seed", range(4))
def test_positions_never_go_behind_the_last_sync(seed: int, cache: PageCache, broker: Broker) -> None:
    dice = random.Random(seed)
    refused = turned = 0
    for _ in range(250):
        dealt = dice.random()
        if dealt < 0.55:
            with suppress(StoreFull):  # the disk refused every sync of a start
                broker.ack()
        elif dealt < 0.8:
            broker.flush()
        elif dealt < 0.9:
            broker.journal.beat()
        elif dealt < 0.97:
            cache.refusals = dice.randrange(1, 3)
            refused += 1
        else:
            broker.kill()
            broker.start()
            turned += 1
        assert found_after_power_loss(cache) >= broker.sure
    cache.refusals = 0
    for _ in range(BEATS_APART_MAX + 1):
        broker.journal.beat()
        broker.flush()
    assert broker.sure == broker.acked == found_after_power_loss(cache)
    assert refused > 5 and turned > 2
