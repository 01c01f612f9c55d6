"""What is relied on after a power loss is on disk by its name, too: its directory was synced."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.store.stores import make_draft, open_log, open_master
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.machine import FILES
from whimbrel.store import jsonconfig, recovery_marks
from whimbrel.store.queue_floors import GivenQueueOffsets

Call = tuple[str, Path]


class Calls:
    """Records, in their order, what makes names and what puts them on disk.

    `make` a directory or a file, under the name it has in the end; `sync` a file or a directory; `remove`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Call] = []
        self.patch = monkeypatch
        for name in ("mkdir", "replace", "rename", "link", "open", "fsync", "fdatasync", "unlink"):
            self.patch.setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *others: Any, **named: Any) -> Any:
            if name in ("fsync", "fdatasync"):
                path = Path(f"/proc/self/fd/{first}").readlink()
                result = real(first, *others, **named)
                if name == "fsync" or not stat.S_ISDIR(os.fstat(first).st_mode):
                    self.made.append(("sync", path))
                return result
            target = Path(os.fspath(others[0] if name in ("replace", "rename", "link") else first))
            makes = name == "open" and others and others[0] & os.O_CREAT and not target.exists()
            result = real(first, *others, **named)
            if makes or name in ("mkdir", "replace", "rename", "link"):
                self.made.append(("make", target))
            if name == "unlink":
                self.made.append(("remove", target))
            elif name in ("replace", "rename"):
                self.made.append(("remove", Path(os.fspath(first))))
            return result

        return call

    def not_on_disk(self, root: Path, until: int | None = None) -> list[str]:
        """Return the names below `root` that a power loss might take away."""
        made = self.made[:until]
        lost = []
        for at, (what, path) in enumerate(made):
            if what == "make" and root in path.parents:
                if ("remove", path) not in made[at:] and ("sync", path.parent) not in made[at:]:
                    lost.append(str(path.relative_to(root)))
        return sorted(set(lost))

    def last(self, what: str, path: Path) -> int:
        """Return where the last such call stands."""
        return max(at for at, call in enumerate(self.made) if call == (what, path))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_a_config_file_is_on_disk_before_it_takes_the_place_of_the_last_one(
    tmp_path: Path, calls: Calls
) -> None:
    path = tmp_path / "store" / "config" / "topics.json"
    synced = []
    fsync = os.fsync

    def content_at_sync(fd: int) -> None:
        file = Path(f"/proc/self/fd/{fd}").readlink()
        if file.is_file():
            synced.append((file.name, file.read_text(), path.exists() and path.read_text()))
        fsync(fd)

    calls.patch.setattr(os, "fsync", content_at_sync)
    jsonconfig.save(path, "one")
    jsonconfig.save(path, "two")
    assert synced == [("topics.json.tmp", "one", False), ("topics.json.tmp", "two", "one")]
    assert calls.not_on_disk(tmp_path) == []
    assert calls.last("make", path) < calls.last("sync", path.parent)


def test_a_log_that_is_open_has_all_its_names_on_disk(tmp_path: Path, calls: Calls) -> None:
    """Directories of a new store, the marks, and `abort`, without which a crash passes for a clean stop."""
    root = tmp_path / "stores" / "one"
    root.parent.mkdir()
    log = open_log(root)
    assert {"commitlog", "whimbrel", "abort", "checkpoint"} <= {path.name for path in root.iterdir()}
    assert calls.not_on_disk(root) == []
    log.close()


def test_a_mark_vouches_only_for_queues_and_index_files_that_are_on_disk(
    tmp_path: Path, calls: Calls
) -> None:
    root = tmp_path / "store"
    store = open_master(root)
    for number in range(250):
        store.append([make_draft(number, topic=f"topic-{number % 2}", queue_id=number % 3)])
    store.index_rest()
    assert store.index.files
    store.save_mark()
    assert calls.not_on_disk(root, until=calls.last("sync", root / "whimbrel" / "queue-mark")) == []
    store.close()


def test_offsets_of_queues_are_on_disk_before_their_files_go(tmp_path: Path, calls: Calls) -> None:
    root = tmp_path / "store"
    store = open_master(root)
    for number in range(5):
        store.append([make_draft(number)])
    store.save_mark()
    directory = root / "consumequeue" / "topic" / "0"
    store.delete_topic("topic")
    floors, queue_file = root / "whimbrel" / "queue-floors.json", directory / f"{0:020d}"
    assert calls.last("make", floors) < calls.last("sync", floors.parent)
    written = [at for at, call in enumerate(calls.made) if call == ("sync", floors.parent)]
    assert any(calls.last("make", floors) < at < calls.last("remove", queue_file) for at in written)
    store.close()
    GivenQueueOffsets(root).merge({"topic": {0: 9}})
    assert calls.not_on_disk(root) == []


def test_a_queue_that_goes_on_elsewhere_has_no_old_file_left_beside_the_new_one(
    tmp_path: Path, calls: Calls
) -> None:
    store = open_master(tmp_path / "store")
    store.append([make_draft()])
    queue = store.queues.by_key["topic", 0]
    queue.min = queue.max  # its message has expired
    queue.go_on_at(1234)
    directory = queue.directory
    assert calls.last("remove", directory / f"{0:020d}") < calls.last("sync", directory)
    assert store.append([make_draft()])[0].queue_offset == 1234
    store.close()


def test_the_lease_journals_files_are_on_disk_with_its_first_flush(tmp_path: Path, calls: Calls) -> None:
    journal = LeaseJournal(tmp_path / "store", file_bytes=1 << 16)
    journal.load()
    journal.start(tuple)
    journal.flush()
    assert calls.not_on_disk(tmp_path) == []
    journal.close()


def test_only_a_new_mark_costs_a_sync_of_its_directory(tmp_path: Path, calls: Calls) -> None:
    path = tmp_path / "mark"
    for _ in range(3):
        recovery_marks.save(FILES, path, b"mark")
    assert [call for call in calls.made if call[1] == tmp_path] == [("sync", tmp_path)]
    assert calls.last("make", path) < calls.last("sync", tmp_path)
