"""A failed sync of the log is final, until its bytes were written again into another file."""

from pathlib import Path
from typing import Any

import pytest

from support.store.failed_syncs import (
    LOG,
    SYNC,
    RefusingMachine,
    after_power_loss,
    append_large,
    fail,
    first_file,
    kill,
    make_directory,
    mend,
    open_store,
    overwrite,
)
from support.store.stores import FILE, make_draft
from whimbrel.broker.produce.appender import Appender, Durability
from whimbrel.errors import FlushTimeout, NotWritable, StoreError
from whimbrel.machine import Files
from whimbrel.store import failed_sync
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.failed_sync import REWRITE_ATTEMPTS_MAX, REWRITE_RETRY_S, read_marker
from whimbrel.store.log_reader import LogReader
from whimbrel.store.master_store import MasterStore
from whimbrel.store.recovery_marks import LogMark
from whimbrel.store.retention import DiskUse
from whimbrel.store.segment import segment_name
from whimbrel.store.shared_page import SharedPage

MARKER = Path("whimbrel") / "sync-failed"


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
    machine: RefusingMachine, store: MasterStore
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
    machine: RefusingMachine, store: MasterStore, tmp_path: Path
) -> None:
    root = store.root
    append_large(store, range(1, 8))  # over a file's end
    assert store.writer.sealed
    names = [segment_name(0), segment_name(FILE)]
    before = [(root / "commitlog" / name).stat().st_ino for name in names]
    fail(store, machine)
    mend(store)
    assert store.writable and not store.failed
    assert store.flushed == store.page.flushed == store.written
    assert [(root / "commitlog" / name).stat().st_ino for name in names] != before
    append_large(store, range(8, 12))
    store.writer.flush()
    again = after_power_loss(machine, store, tmp_path / "after")
    assert again.queue_range("topic", 0) == (0, 12)
    again.close()


def test_new_files_are_synced_before_they_take_the_name_and_the_directory_before_the_mark(
    machine: RefusingMachine, store: MasterStore
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


def test_attempts_are_repeated_by_interval_and_bounded(machine: RefusingMachine, store: MasterStore) -> None:
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
    machine: RefusingMachine, store: MasterStore
) -> None:
    append_large(store, range(1, 8))
    store.writer.flusher.wake = lambda: None  # type: ignore[method-assign]
    fail(store, machine)
    store.mend()
    store.writer.disk = DiskUse(0.87)
    store.writer.measure_disk = lambda: None  # type: ignore[method-assign]
    assert store.writer.run_retention(0) == 0
    store.writer.flush()
    store.mend()
    assert not store.failed and store.flushed == store.written
    append_large(store, range(8, 14))
    assert store.writer.run_retention(0) == 2  # also one that is not flushed
    fail(store, machine)
    mend(store)
    assert not store.failed and store.flushed == store.written


def test_bytes_that_left_the_cache_are_not_taken_for_written(
    machine: RefusingMachine, store: MasterStore
) -> None:
    placed = store.append([make_draft(1, size=12_000)])[0]
    fail(store, machine)
    overwrite(store.root, placed.physical_offset + 4000, bytes(4096))
    before = store.flushed
    mend(store)
    assert store.failed and "not whole" in store.failed
    assert store.writer.lost  # no later attempt can succeed
    assert store.flushed == before


@pytest.mark.parametrize("slave", [False, True])
def test_a_last_record_that_left_the_cache_with_its_texts_end_is_not_taken_for_written(
    machine: RefusingMachine, store: MasterStore, tmp_path: Path, *, slave: bool
) -> None:
    """Its page is read again from the disk, which has zeros there; no CRC covers properties."""
    placed = store.append([make_draft(1, size=12_000)])[0]
    log = store.writer
    if slave:
        log = LogWriter.open(make_directory(tmp_path / "slave"), SYNC, machine=machine)
        log.append_raw(0, store.read_log(0, placed.end))
    machine.files.failing = {LOG: 1}
    log.flush()
    overwrite(log.root, placed.end - 5, bytes(5))
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
    machine: RefusingMachine, store: MasterStore, tmp_path: Path, lost: str
) -> None:
    store.append([make_draft(1, size=12_000)])
    fail(store, machine)
    root = store.root
    if lost == "page":
        store.page.doubtful = 0
    elif lost == "file":
        (root / MARKER).unlink()
    kill(machine, store)
    store = open_store(machine, root)
    assert machine.files.is_on_disk(first_file(root), store.flushed)
    assert read_marker(root, store.page, machine) is None and not (root / MARKER).exists()
    third = store.append([make_draft(2, size=12_000)])[0]
    store.writer.flush()
    assert store.flushed >= third.end
    again = after_power_loss(machine, store, tmp_path / "after")
    assert again.queue_range("topic", 0) == (0, 3)
    again.close()


def test_the_marker_stays_while_a_restart_can_not_write_the_bytes_again(
    machine: RefusingMachine, store: MasterStore
) -> None:
    store.append([make_draft(1)])
    fail(store, machine, again=1)
    root = store.root
    kill(machine, store)
    with pytest.raises(StoreError, match="start again"):
        open_store(machine, root)
    assert (root / MARKER).exists()
    store = open_store(machine, root)
    assert machine.files.is_on_disk(first_file(root), store.flushed)
    store.close()


def test_a_sync_that_fails_at_the_start_is_final_too(machine: RefusingMachine, store: MasterStore) -> None:
    store.append([make_draft(1, size=12_000)])
    root = store.root
    kill(machine, store)  # the second message is in the cache alone
    machine.files.failing = {LOG: 1}
    store = open_store(machine, root)
    assert machine.files.is_on_disk(first_file(root), store.flushed)
    assert store.queue_range("topic", 0) == (0, 2)
    store.close()


def test_nothing_counts_as_flushed_before_recovery_has_synced_it(
    machine: RefusingMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([make_draft(1, size=12_000)])
    root, end = store.root, store.written
    kill(machine, store)
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
    machine: RefusingMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
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


def test_a_marker_of_another_boot_asks_for_nothing(machine: RefusingMachine, store: MasterStore) -> None:
    store.append([make_draft(1)])
    fail(store, machine)
    root = store.root
    kill(machine, store)
    machine.boots += 1
    before = first_file(root).stat().st_ino
    store = open_store(machine, root)
    assert first_file(root).stat().st_ino == before
    assert not (root / MARKER).exists() and not store.page.doubtful
    store.close()


def test_marks_do_not_move_while_the_log_is_in_doubt(machine: RefusingMachine, store: MasterStore) -> None:
    store.append([make_draft(1)])
    before = store.writer.mark.offset
    machine.now += 100
    fail(store, machine)
    store.writer.flush()
    assert store.writer.mark.offset == before <= store.flushed


def test_a_reader_goes_over_to_the_file_that_was_written_again(
    machine: RefusingMachine, store: MasterStore
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
    machine: RefusingMachine, store: MasterStore, tmp_path: Path
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


def test_the_page_says_what_is_in_doubt_at_its_end(machine: RefusingMachine, store: MasterStore) -> None:
    """An older process that shares the page has its cells where they were."""
    store.append([make_draft(1)])
    fail(store, machine)
    page = SharedPage.open(store.root, machine)
    assert page.doubtful == store.flushed + 1
    assert page.cells[4088 // 8] == page.doubtful and page.cells[4080 // 8] == page.replaced
    page.close()


def test_a_start_verifies_what_it_has_written_again(
    machine: RefusingMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache may let go of a page after recovery has read it, and before it is copied."""
    placed = store.append([make_draft(1, size=12_000)])[0]
    fail(store, machine)
    root = store.root
    kill(machine, store)
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
