"""Files of the log that come and go: rolls beside flushes, cuts, and what stands in the next one's place."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from support.store.failed_syncs import (
    RefusingMachine,
    append_large,
    append_small,
    kill,
    open_store,
    overwrite,
)
from support.store.stores import FILE, OPTIONS, make_draft
from whimbrel.errors import StoreError
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.master_store import MasterStore
from whimbrel.store.segment import Segment, segment_name
from whimbrel.store.slave_store import SlaveStore


def test_a_roll_beside_a_flush_leaves_no_file_out(
    machine: RefusingMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
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


def test_an_empty_file_behind_the_log_is_removed(machine: RefusingMachine, store: MasterStore) -> None:
    root = store.root
    kill(machine, store)
    for size in (0, 100):
        (root / "commitlog" / segment_name(FILE)).write_bytes(bytes(size))
        store = open_store(machine, root)
        assert not (root / "commitlog" / segment_name(FILE)).exists()
        store.close()
    store = open_store(machine, root)
    append_large(store, range(12))
    assert store.written > FILE
    store.close()
    path = root / "commitlog" / segment_name(store.written // FILE * FILE + FILE)
    path.write_bytes(b"not of the log")
    with pytest.raises(StoreError, match=f"{path} has 14 bytes"):
        open_store(machine, root)


def test_a_file_in_the_next_ones_place_is_said_and_waited_for(
    machine: RefusingMachine, store: MasterStore
) -> None:
    path = store.root / "commitlog" / segment_name(FILE)
    path.write_bytes(b"not of the log")
    with pytest.raises(Exception, match="there already"):
        append_large(store, range(12))
    assert not store.writable and "there already" in store.full_reason
    path.unlink()
    machine.now += 1
    store.append([make_draft(1, size=12_000)])
    assert store.writable


def test_a_next_file_that_can_not_be_made_is_tried_again(
    machine: RefusingMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "create", refuse)
        with pytest.raises(Exception, match="Input/output error"):
            append_large(store, range(12))
        assert not store.writable and "Input/output error" in store.full_reason
    machine.now += 1
    store.append([make_draft(1, size=12_000)])
    assert store.writable


def test_an_interrupted_cut_leaves_no_gap(
    machine: RefusingMachine, store: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_large(store, range(30))
    root = store.root
    store.writer.mark.offset = store.writer.mark.check = 0
    kill(machine, store)
    (root / "whimbrel" / "log-mark").unlink()
    overwrite(root, 30_000, b"\xff" * 250)
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


def test_a_slaves_broker_reads_no_file_that_was_removed(machine: RefusingMachine, tmp_path: Path) -> None:
    master = open_store(machine, tmp_path / "m")
    append_small(master, range(700))
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
    overwrite(root, 40_000, b"\xff" * 250)
    log = LogWriter.open(root, OPTIONS, machine=machine)
    assert log.end < 40_000
    append_small(master, range(700))
    copy(log)
    for _ in range(200):
        if not slave.dispatch_ready(1 << 20):
            break
    assert slave.dispatched == slave.written == master.written
    assert slave.queue_range("topic", 0) == master.queue_range("topic", 0)
    slave.close()
    log.close()
    master.close()
