"""A failed sync of the log is final, until its bytes were written again into another file."""

import dataclasses
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachedisk import CachedMachine
from storekit import FILE, OPTIONS, make_draft
from whimbrel.broker.produce.appender import Appender, Durability
from whimbrel.errors import FlushTimeout, NotWritable, StoreError, StoreFull
from whimbrel.machine import Files
from whimbrel.store import failed_sync
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.failed_sync import REWRITE_ATTEMPTS_MAX, REWRITE_RETRY_S, read_marker
from whimbrel.store.log_reader import LogReader
from whimbrel.store.master_store import MasterStore
from whimbrel.store.recovery_marks import LogMark
from whimbrel.store.retention import DiskUse
from whimbrel.store.segment import Segment, segment_name
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.slave_store import SlaveStore

SYNC = dataclasses.replace(OPTIONS, flush="sync", flush_interval_ms=3_600_000)  # tests flush themselves
MARKER = Path("whimbrel") / "sync-failed"
LOG = "/commitlog/"


@pytest.fixture
def machine() -> CachedMachine:
    return CachedMachine()


def open_store(machine: CachedMachine, root: Path) -> MasterStore:
    root.mkdir(exist_ok=True)
    return MasterStore.open(root, SYNC, clock=lambda: 1_800_000_000_000, machine=machine)


@pytest.fixture
def store(machine: CachedMachine, tmp_path: Path) -> Iterator[MasterStore]:
    """Yield a store with one message on disk."""
    found = open_store(machine, tmp_path / "s")
    found.append([make_draft(0, size=12_000)])
    found.writer.flush()
    yield found
    if found.writer.segments.directory.exists() and not getattr(found, "closed", False):
        found.close(clean=False)


def close(store: MasterStore) -> None:
    store.close(clean=False)
    store.closed = True  # type: ignore[attr-defined]


def fail(store: MasterStore, machine: CachedMachine, *, again: int = 0) -> None:
    """Let the next sync of the log fail, and so many attempts to write it again."""
    machine.files.failing = {LOG: 1, "/whimbrel/segment-": again}
    store.writer.flush()
    assert store.writer.failed


def mend(store: MasterStore) -> None:
    """Do what the loop and the flush thread do."""
    store.mend()
    store.writer.flush()
    store.mend()


class Loop:
    """A loop whose timers never come."""

    def time(self) -> float:
        return 0.0

    def call_soon(self, callback: Any) -> None: ...

    def call_later(self, delay: float, callback: Any) -> None: ...


def make_appender(store: MasterStore) -> Appender:
    appender = Appender(store, store.page, Durability(sync_flush=True), Loop(), ring=lambda: None)
    appender.refusal = ""
    return appender


def test_what_a_failed_sync_covered_is_never_answered_as_stored_on_disk(
    machine: CachedMachine, store: MasterStore
) -> None:
    appender = make_appender(store)
    answers: list[Any] = []
    placed = appender.append([make_draft(1, size=12_000)])
    appender.when_durable(placed[0].end, answers.append)
    appender.end_tick()
    before = store.flushed
    fail(store, machine)
    store.writer.flush()  # the kernel would say yes now
    appender.complete_waiting()
    assert answers == []
    assert store.flushed == store.page.flushed == before
    appender.log_failed()
    assert [type(answer) for answer in answers] == [FlushTimeout]
    assert "refused a sync" in str(answers[0])
    with pytest.raises(NotWritable, match="written again"):
        appender.append([make_draft(2)])
    assert not store.writable and "refused a sync" in store.full_reason


def test_the_log_goes_on_in_new_files_with_all_of_it_on_disk(
    machine: CachedMachine, store: MasterStore, tmp_path: Path
) -> None:
    root = store.root
    for number in range(1, 8):
        store.append([make_draft(number, size=12_000)])  # over a file's end
    assert store.writer.sealed
    names = [segment_name(0), segment_name(FILE)]
    before = [(root / "commitlog" / name).stat().st_ino for name in names]
    fail(store, machine)
    mend(store)
    assert store.writable and not store.failed
    assert store.flushed == store.page.flushed == store.written
    assert [(root / "commitlog" / name).stat().st_ino for name in names] != before
    for number in range(8, 12):
        store.append([make_draft(number, size=12_000)])
    store.writer.flush()
    machine.boots += 1
    after = machine.files.power_loss(root, tmp_path / "after")
    close(store)
    again = open_store(machine, after)
    assert again.queue_range("topic", 0) == (0, 12)
    again.close()


def test_new_files_are_synced_before_they_take_the_name_and_the_directory_before_the_mark(
    machine: CachedMachine, store: MasterStore
) -> None:
    store.append([make_draft(1)])
    fail(store, machine)
    store.mend()
    machine.files.calls.clear()
    before = store.flushed
    store.writer.flush()
    name = segment_name(0)
    calls = machine.files.calls
    steps = [calls.index(step) for step in (("sync", f"segment-{0:020d}"), ("rename", name))]
    steps.append(calls.index(("sync", "commitlog")))
    steps.append(calls.index(("remove", "sync-failed")))
    assert steps == sorted(steps)
    assert store.flushed == before  # until the writer's thread has seen it
    store.mend()
    assert store.flushed == store.written


def test_attempts_are_repeated_by_interval_and_bounded(machine: CachedMachine, store: MasterStore) -> None:
    store.append([make_draft(1)])
    fail(store, machine, again=2)
    mend(store)
    assert "trying again every" in store.failed
    mend(store)  # not due yet
    assert machine.files.failing["/whimbrel/segment-"] == 1
    for _ in range(2):
        machine.now += REWRITE_RETRY_S
        mend(store)
    assert not store.failed
    store.append([make_draft(2)])
    fail(store, machine, again=1000)
    for _ in range(REWRITE_ATTEMPTS_MAX + 5):
        machine.now += REWRITE_RETRY_S
        mend(store)
    assert machine.files.failing["/whimbrel/segment-"] == 1000 - REWRITE_ATTEMPTS_MAX
    assert store.writer.lost and "start this process again" in store.failed


def test_retention_leaves_files_alone_that_are_being_written_again(
    machine: CachedMachine, store: MasterStore
) -> None:
    for number in range(1, 8):
        store.append([make_draft(number, size=12_000)])
    store.writer.flusher.wake = lambda: None  # type: ignore[method-assign]
    fail(store, machine)
    store.mend()
    store.writer.disk = DiskUse(0.87)
    store.writer.measure_disk = lambda: None  # type: ignore[method-assign]
    assert store.writer.run_retention(0) == 0
    store.writer.flush()
    store.mend()
    assert not store.failed and store.flushed == store.written
    for number in range(8, 14):
        store.append([make_draft(number, size=12_000)])
    assert store.writer.run_retention(0) == 2  # also one that is not flushed
    fail(store, machine)
    mend(store)
    assert not store.failed and store.flushed == store.written


def test_bytes_that_left_the_cache_are_not_taken_for_written(
    machine: CachedMachine, store: MasterStore
) -> None:
    placed = store.append([make_draft(1, size=12_000)])[0]
    fail(store, machine)
    with (store.root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(placed.physical_offset + 4000)
        file.write(bytes(4096))
    before = store.flushed
    mend(store)
    assert store.failed and "not whole" in store.failed
    assert store.writer.lost  # no later attempt can succeed
    assert store.flushed == before


@pytest.mark.parametrize("slave", [False, True])
def test_a_last_record_that_left_the_cache_with_its_texts_end_is_not_taken_for_written(
    machine: CachedMachine, store: MasterStore, tmp_path: Path, *, slave: bool
) -> None:
    """Its page is read again from the disk, which has zeros there; no CRC covers properties."""
    placed = store.append([make_draft(1, size=12_000)])[0]
    log = store.writer
    if slave:
        log = LogWriter.open(make_directory(tmp_path / "slave"), SYNC, machine=machine)
        log.append_raw(0, store.read_log(0, placed.end))
    machine.files.failing = {LOG: 1}
    log.flush()
    with (log.root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(placed.end - 5)
        file.write(bytes(5))
    for step in (log.mend, log.flush, log.mend):
        step()
    assert log.lost and f"the record at {placed.physical_offset} is not whole" in log.failed
    if slave:  # the next process ends the log before it
        log.close(clean=False)
        log = LogWriter.open(tmp_path / "slave", SYNC, machine=machine)
        assert log.end == log.flushed == placed.physical_offset
        log.close()


@pytest.mark.parametrize("lost", ["", "page", "file"])
def test_a_restart_in_the_same_boot_trusts_no_page_of_that_file(
    machine: CachedMachine, store: MasterStore, tmp_path: Path, lost: str
) -> None:
    store.append([make_draft(1, size=12_000)])
    fail(store, machine)
    root = store.root
    if lost == "page":
        store.page.doubtful = 0
    elif lost == "file":
        (root / MARKER).unlink()
    close(store)
    store = open_store(machine, root)
    assert machine.files.is_on_disk(root / "commitlog" / segment_name(0), store.flushed)
    assert read_marker(root, store.page, machine) is None and not (root / MARKER).exists()
    third = store.append([make_draft(2, size=12_000)])[0]
    store.writer.flush()
    assert store.flushed >= third.end
    machine.boots += 1
    after = machine.files.power_loss(root, tmp_path / "after")
    close(store)
    again = open_store(machine, after)
    assert again.queue_range("topic", 0) == (0, 3)
    again.close()


def test_the_marker_stays_while_a_restart_can_not_write_the_bytes_again(
    machine: CachedMachine, store: MasterStore
) -> None:
    store.append([make_draft(1)])
    fail(store, machine, again=1)
    root = store.root
    close(store)
    with pytest.raises(StoreError, match="start again"):
        open_store(machine, root)
    assert (root / MARKER).exists()
    store = open_store(machine, root)
    assert machine.files.is_on_disk(root / "commitlog" / segment_name(0), store.flushed)
    store.close()


def test_a_sync_that_fails_at_the_start_is_final_too(machine: CachedMachine, store: MasterStore) -> None:
    store.append([make_draft(1, size=12_000)])
    root = store.root
    close(store)  # as a kill: the second message is in the cache alone
    machine.files.failing = {LOG: 1}
    store = open_store(machine, root)
    assert machine.files.is_on_disk(root / "commitlog" / segment_name(0), store.flushed)
    assert store.queue_range("topic", 0) == (0, 2)
    store.close()


def test_nothing_counts_as_flushed_before_recovery_has_synced_it(
    machine: CachedMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([make_draft(1, size=12_000)])
    root, end = store.root, store.written
    close(store)
    truncate_tail = LogWriter.truncate_tail

    def with_a_flush(log: LogWriter, *arguments: Any) -> None:
        log.flush()  # by its interval
        truncate_tail(log, *arguments)
        log.flush()
        assert log.flushed < log.end == end
        mark = LogMark.load(root)
        assert mark is None or mark.offset < end

    monkeypatch.setattr(LogWriter, "truncate_tail", with_a_flush)
    open_store(machine, root).close()


def test_the_loop_does_not_wait_for_the_copying(
    machine: CachedMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([make_draft(1)])
    fail(store, machine)
    store.mend()
    fsync = machine.files.fsync
    looked: list[str] = []

    def slow(fd: int) -> None:
        if not looked:
            store.mend()  # as the loop does at each beat; the flush thread holds its lock here
            looked.append(store.failed)
        fsync(fd)

    monkeypatch.setattr(machine.files, "fsync", slow)
    store.writer.flush()
    assert looked and looked[0]
    store.mend()
    assert not store.failed


def test_a_marker_of_another_boot_asks_for_nothing(machine: CachedMachine, store: MasterStore) -> None:
    store.append([make_draft(1)])
    fail(store, machine)
    root = store.root
    close(store)
    machine.boots += 1
    before = (root / "commitlog" / segment_name(0)).stat().st_ino
    store = open_store(machine, root)
    assert (root / "commitlog" / segment_name(0)).stat().st_ino == before
    assert not (root / MARKER).exists() and not store.page.doubtful
    store.close()


def test_marks_do_not_move_while_the_log_is_in_doubt(machine: CachedMachine, store: MasterStore) -> None:
    store.append([make_draft(1)])
    before = store.writer.mark.offset
    machine.now += 100
    fail(store, machine)
    store.writer.flush()
    assert store.writer.mark.offset == before <= store.flushed


def test_a_reader_goes_over_to_the_file_that_was_written_again(
    machine: CachedMachine, store: MasterStore
) -> None:
    reader = LogReader.open(store.root, machine=machine)
    store.end_tick()
    assert reader.read(0, 100) == store.read_log(0, 100)
    store.append([make_draft(1)])
    fail(store, machine)
    mend(store)
    placed = store.append([make_draft(2)])[0]
    store.end_tick()
    assert reader.end == placed.end
    assert reader.read(placed.physical_offset, placed.size) == store.read(placed.physical_offset, placed.size)
    reader.close()
    reader.page.close()


def test_a_slaves_log_is_written_again_without_a_record_that_is_not_all_there(
    machine: CachedMachine, store: MasterStore, tmp_path: Path
) -> None:
    placed = store.append([make_draft(1, size=12_000)])[0]
    (tmp_path / "slave").mkdir()
    log = LogWriter.open(tmp_path / "slave", SYNC, machine=machine)
    part = placed.physical_offset + 6000
    log.append_raw(0, store.read_log(0, part))
    machine.files.failing = {LOG: 1}
    log.flush()
    assert log.flushed == 0
    with pytest.raises(NotWritable):
        log.append_raw(part, b"x")
    for step in (log.mend, log.flush, log.mend):
        step()
    whole = placed.physical_offset  # nothing tells whether the cache still has what it had of that record
    assert log.end == log.flushed == whole == log.page.flushed
    log.publish()
    assert log.page.written == whole
    log.append_raw(whole, store.read_log(whole, placed.end - whole))
    log.flush()
    assert log.flushed == placed.end
    assert machine.files.is_on_disk(tmp_path / "slave" / "commitlog" / segment_name(0), placed.end)
    log.close()


def test_a_roll_beside_a_flush_leaves_no_file_out(
    machine: CachedMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer rolls between any two looks of the flusher at its files."""
    log = store.writer

    looks: set[str] = set()

    class Rolling(LogWriter):
        """Rolls just before the flusher looks at one of the `looks`."""

        def __getattribute__(self, name: str) -> Any:
            if name in looks and threading.current_thread() is flusher:
                looks.clear()
                writer = threading.Thread(target=lambda: store.append([make_draft(3, size=16_000)]))
                writer.start()
                writer.join()
            return super().__getattribute__(name)

    for look in ("sealed", "segment"):
        looks.add(look)
        while log.limit - log.end > 15_000:
            store.append([make_draft(1, size=8000)])
        start = log.base
        flusher = threading.Thread(target=log.flush)
        monkeypatch.setattr(log, "__class__", Rolling)
        flusher.start()
        flusher.join()
        monkeypatch.setattr(log, "__class__", LogWriter)
        assert log.base == start + FILE
        path = store.root / "commitlog" / segment_name(start)
        assert machine.files.is_on_disk(path, min(log.flushed - start, FILE))


def test_an_empty_file_behind_the_log_is_removed(machine: CachedMachine, store: MasterStore) -> None:
    root = store.root
    close(store)
    for size in (0, 100):
        (root / "commitlog" / segment_name(FILE)).write_bytes(bytes(size))
        store = open_store(machine, root)
        assert not (root / "commitlog" / segment_name(FILE)).exists()
        store.close()
    store = open_store(machine, root)
    for number in range(12):
        store.append([make_draft(number, size=12_000)])
    assert store.written > FILE
    store.close()
    path = root / "commitlog" / segment_name(store.written // FILE * FILE + FILE)
    path.write_bytes(b"not of the log")
    with pytest.raises(StoreError, match=f"{path} has 14 bytes"):
        open_store(machine, root)


def test_a_file_in_the_next_ones_place_is_said_and_waited_for(
    machine: CachedMachine, store: MasterStore
) -> None:
    path = store.root / "commitlog" / segment_name(FILE)
    path.write_bytes(b"not of the log")
    with pytest.raises(Exception, match="there already"):
        for number in range(12):
            store.append([make_draft(number, size=12_000)])
    assert not store.writable and "there already" in store.full_reason
    path.unlink()
    machine.now += 1
    store.append([make_draft(1, size=12_000)])
    assert store.writable


def test_a_next_file_that_can_not_be_made_is_tried_again(
    machine: CachedMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "create", refuse)
        with pytest.raises(Exception, match="Input/output error"):
            for number in range(12):
                store.append([make_draft(number, size=12_000)])
        assert not store.writable and "Input/output error" in store.full_reason
    machine.now += 1
    store.append([make_draft(1, size=12_000)])
    assert store.writable


def test_an_interrupted_cut_leaves_no_gap(
    machine: CachedMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        store.append([make_draft(number, size=12_000)])
    root = store.root
    store.writer.mark.offset = store.writer.mark.check = 0
    close(store)
    (root / "whimbrel" / "log-mark").unlink()
    with (root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(30_000)
        file.write(b"\xff" * 250)
    remove = machine.files.remove
    removed: list[Path] = []

    def killed(path: Path) -> None:
        if path.parent.name == "commitlog":
            removed.append(path)
            if len(removed) == 3:
                raise KeyboardInterrupt
        remove(path)

    monkeypatch.setattr(machine.files, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        open_store(machine, root)
    monkeypatch.undo()
    assert len(list((root / "commitlog").iterdir())) > 1
    open_store(machine, root).close()


def mark(store: MasterStore, machine: CachedMachine) -> None:
    """Have the queues' mark written as far as it can be."""
    machine.now += 100
    store.mark_writer.wait()
    store.advance_mark()
    store.mark_writer.wait()


@pytest.mark.parametrize("why", ["sync", "open"])
def test_a_mark_that_could_not_be_written_leaves_its_syncs_to_the_next(
    machine: CachedMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    options = dataclasses.replace(
        SYNC, consumequeue_file_size=20 * 1024, commitlog_file_size=4 << 20, index_enabled=False
    )
    root = tmp_path / "s"
    root.mkdir()
    store = MasterStore.open(root, options, clock=lambda: 1, machine=machine)
    for number in range(300):
        store.append([make_draft(number)])
    store.writer.flush()
    mark(store, machine)
    for number in range(300, 1100):
        store.append([make_draft(number)])  # in the queue's second file, too
    store.writer.flush()
    if why == "sync":
        machine.files.failing = {"/consumequeue/": 1}
        mark(store, machine)
    else:
        with monkeypatch.context() as patched:
            patched.setattr(machine.files, "open", out_of_descriptors)
            mark(store, machine)
    for number in range(1100, 1150):
        store.append([make_draft(number)])
    store.writer.flush()
    mark(store, machine)
    mark(store, machine)
    machine.boots += 1
    after = machine.files.power_loss(root, tmp_path / "after")
    store.close(clean=False)
    store = MasterStore.open(after, options, clock=lambda: 1, machine=machine)
    assert store.queue_range("topic", 0) == (0, 1150)
    assert all(size for _, size, _ in store.queue_units("topic", 0, 0, 1150))
    store.close()


def out_of_descriptors(*_: object) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_an_index_file_whose_sync_failed_is_built_again(machine: CachedMachine, tmp_path: Path) -> None:
    store = open_store(machine, tmp_path / "s")
    for number in range(50):
        store.append([make_draft(number)])
    store.end_tick()
    store.index_rest()
    store.writer.flush()
    machine.files.failing = {"/index/": 1}
    mark(store, machine)
    assert store.mark_writer.doubtful
    mark(store, machine)
    assert not store.mark_writer.doubtful
    store.index_rest()
    store.append([make_draft(50)])
    store.index_rest()
    store.writer.flush()
    mark(store, machine)
    assert all(store.find_by_key("topic", f"key-{number}") for number in range(51))
    assert all(machine.files.is_on_disk(file.path, file.size) for file in store.index.files)
    store.close()


def test_index_files_behind_one_whose_sync_failed_are_built_again_with_it(
    machine: CachedMachine, tmp_path: Path
) -> None:
    store = open_store(machine, tmp_path / "s")
    for number in range(300):
        store.append([make_draft(number)])
        store.end_tick()
    store.index_rest()
    store.writer.flush()
    assert len(store.index.files) == 2
    machine.files.failing = {"/index/": 1}
    mark(store, machine)
    assert not list((store.root / "index").iterdir()), "no later start may trust them"
    mark(store, machine)
    assert not store.mark_writer.doubtful
    assert all(store.find_by_key("topic", f"key-{number}") for number in range(300))
    store.close()


@pytest.mark.parametrize("where", ["/consumequeue/", "/index/"])
def test_a_kill_after_a_failed_sync_of_what_is_derived_leaves_nothing_to_trust(
    machine: CachedMachine, tmp_path: Path, where: str
) -> None:
    root = tmp_path / "s"
    store = open_store(machine, root)
    for number in range(300):
        store.append([make_draft(number)])
        store.end_tick()
    store.index_rest()
    store.writer.flush()
    assert len(store.index.files) == 2  # after another boot, only full files are trusted
    machine.files.failing = {where: 1}
    mark(store, machine)
    close(store)
    store = open_store(machine, root)  # in the same boot; its own marks vouch for all of it
    assert all(store.find_by_key("topic", f"key-{number}") for number in range(300))
    mark(store, machine)
    machine.boots += 1
    after = machine.files.power_loss(root, tmp_path / "after")
    close(store)
    store = open_store(machine, after)
    assert all(size for _, size, _ in store.queue_units("topic", 0, 0, 300))
    assert all(store.find_by_key("topic", f"key-{number}") for number in range(300))
    store.close()


def test_a_queue_without_a_descriptor_refuses_before_the_record_is_stored(
    machine: CachedMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.written
    with monkeypatch.context() as patched:
        patched.setattr(machine.files, "open", out_of_descriptors)
        with pytest.raises(StoreFull, match="too many files are open"):
            store.append([make_draft(1, queue_id=7)])
    assert store.written == before
    store.append([make_draft(1, queue_id=7)])


def test_the_flush_thread_outlives_a_mark_that_can_not_be_looked_up(
    machine: CachedMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter.open(make_directory(tmp_path / "slave"), SYNC, machine=machine)
    log.append_raw(0, b"x" * 100)
    machine.now += 100
    log.page.dispatched = 50
    monkeypatch.setattr(log.flush_segments, "read", out_of_descriptors)
    log.flush()
    assert log.flushed == 100
    monkeypatch.undo()
    log.close(clean=False)


def make_directory(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_slaves_broker_reads_no_file_that_was_removed(machine: CachedMachine, tmp_path: Path) -> None:
    master = open_store(machine, tmp_path / "m")
    for number in range(700):
        master.append([make_draft(number)])
    root = tmp_path / "s"
    root.mkdir()

    def copy(log: LogWriter) -> None:
        while log.end < master.written:
            size = min(master.written - log.end, FILE - log.end % FILE)
            log.append_raw(log.end, master.read_log(log.end, size))
        log.publish()

    log = LogWriter.open(root, OPTIONS, machine=machine)
    copy(log)
    slave = SlaveStore.open(root, OPTIONS, machine=machine)
    slave.read(*slave.queue_units("topic", 0, 699, 1)[0][:2])
    log.close(clean=False)
    (root / "whimbrel" / "log-mark").write_bytes(b"")
    with (root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(40_000)
        file.write(b"\xff" * 250)
    log = LogWriter.open(root, OPTIONS, machine=machine)
    assert log.end < 40_000
    for number in range(700):
        master.append([make_draft(number)])
    copy(log)
    for _ in range(200):
        if not slave.dispatch_ready(1 << 20):
            break
    assert slave.dispatched == slave.written == master.written
    assert slave.queue_range("topic", 0) == master.queue_range("topic", 0)
    slave.close()
    log.close()
    master.close()


def test_the_page_says_what_is_in_doubt_at_its_end(machine: CachedMachine, store: MasterStore) -> None:
    """An older process that shares the page has its cells where they were."""
    store.append([make_draft(1)])
    fail(store, machine)
    page = SharedPage.open(store.root, machine)
    assert page.doubtful == store.flushed + 1
    assert page.cells[4088 // 8] == page.doubtful and page.cells[4080 // 8] == page.replaced
    page.close()


def test_a_start_verifies_what_it_has_written_again(
    machine: CachedMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache may let go of a page after recovery has read it, and before it is copied."""
    placed = store.append([make_draft(1, size=12_000)])[0]
    fail(store, machine)
    root = store.root
    close(store)
    real = failed_sync.copy

    def copy(files: Files, source: int, target: int, length: int) -> None:
        real(files, source, target, length)
        files.write_all(target, bytes(4096), placed.physical_offset + 4000)

    with monkeypatch.context() as evicting:
        evicting.setattr(failed_sync, "copy", copy)
        with pytest.raises(StoreError, match="not whole any more"):
            open_store(machine, root)
    again = open_store(machine, root)
    assert again.queue_range("topic", 0) == (0, 2)
    again.close()
