"""The file of values that RocketMQ's tools keep at name servers."""

import errno
import logging
from pathlib import Path

import pytest

from sim.disk import Fault
from support.store.crash_points import CrashScene, crash_everywhere
from whimbrel.errors import StoreError
from whimbrel.nameserver.kv_file import KvStore
from whimbrel.nameserver.kv_table import FILE_BYTES_MAX, KvTable

DIRECTORY = Path("/keeper")
PATH = DIRECTORY / "kvConfig.json"


class Scene(CrashScene):
    """A nameserver's file on a machine of its own.

    Attributes:
        saved: the value that was saved last, and `tried` the one that is being saved.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, DIRECTORY)
        self.saved = self.tried = 0

    def open(self) -> None:
        self.store = KvStore.open(str(PATH), self.revive().files)

    @property
    def value(self) -> int:
        return int(self.store.table.get("n", "k") or 0)

    def save(self) -> None:
        self.tried = self.value + 1
        self.store.change(self.store.table.put("n", "k", str(self.tried)))
        self.saved = self.tried

    def check(self) -> None:
        """Open it again: what was saved is there, or what was being saved."""
        self.open()
        assert self.value in (self.saved, self.tried)
        self.save()


def save_twice(scene: Scene) -> None:
    scene.open()
    scene.save()
    scene.save()


def test_what_was_answered_is_there_after_any_crash() -> None:
    assert crash_everywhere(Scene, lambda scene: None, save_twice, Scene.check, seeds=2) > 10


def test_values_are_there_after_a_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    store = KvStore.open(str(path))
    assert not path.exists(), "a file is made with the first change"
    store.change(KvTable().put("n", "a", "1"))
    store.close()
    again = KvStore.open(str(path))
    assert again.table.get("n", "a") == "1"
    again.close()


def test_two_nameservers_do_not_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "kv")
    store = KvStore.open(path)
    with pytest.raises(
        StoreError, match=r"kv_config: another nameserver keeps this file .*: each needs a file of its own"
    ):
        KvStore.open(path)
    store.close()
    KvStore.open(path).close()


def test_a_refusal_of_the_disk_leaves_the_table_as_it_was() -> None:
    scene = Scene(1)
    scene.open()
    scene.save()
    scene.host.disk.faults.append(Fault(("rename",), error=errno.EIO))
    with pytest.raises(StoreError, match=r"kv_config: /keeper/kvConfig.json can't be written"):
        scene.save()
    assert scene.value == 1
    scene.save()
    scene.store.close()
    scene.check()


def test_a_damaged_file_stops_the_start_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    path.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"kv_config: .* can't be used .*mend it, or move it away"):
        KvStore.open(str(path))
    assert path.read_bytes() == b"{"
    path.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(StoreError, match="more than"):
        KvStore.open(str(path))


def test_without_a_file_values_are_in_memory_and_a_warning_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = KvStore.open("")
    with caplog.at_level(logging.WARNING):
        store.change(KvTable().put("n", "a", "1"))
        store.change(store.table.put("n", "a", "2"))
    assert store.table.get("n", "a") == "2"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "kv_config" in caplog.text
    store.close()
