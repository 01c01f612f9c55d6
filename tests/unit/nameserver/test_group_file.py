"""The file of the groups' records: what was saved is there after any end, and no other nameserver has it."""

import errno
from pathlib import Path

import pytest

from sim.disk import Fault
from support.store.crash_points import CrashScene, crash_everywhere
from whimbrel.errors import StoreError
from whimbrel.model.group_record import GroupRecord
from whimbrel.nameserver.group_file import GroupFile
from whimbrel.nameserver.group_table import TABLE_BYTES_MAX, GroupKey, GroupTable

DIRECTORY = Path("/keeper")
PATH = DIRECTORY / "groups"
KEY = GroupKey("C", "a")
RECORD = GroupRecord(group="f" * 32, epoch=1, leader=1, voters=((1, "1" * 32), (2, "2" * 32)), acks=2)


class Scene(CrashScene):
    """A nameserver's file on a machine of its own.

    Attributes:
        saved: the epoch that was saved last.
        tried: the one that is being saved.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, DIRECTORY)
        self.saved = self.tried = 0

    def open(self) -> None:
        self.file, self.table = GroupFile.open(PATH, self.revive().files)

    @property
    def epoch(self) -> int:
        kept = self.table.find(KEY)
        return 0 if kept is None else kept.record.epoch

    def next(self) -> GroupTable:
        """Return the table with the next epoch."""
        self.tried = self.epoch + 1
        record = RECORD.led_by(1, self.tried, at_ms=1, why="")
        kept = self.table.find(KEY)
        after = self.table.swapped(KEY, record.encode(), 0 if kept is None else kept.revision)
        assert after is not None
        return after

    def save(self) -> None:
        after = self.next()
        self.file.save(after)
        self.table, self.saved = after, self.tried

    def fail(self, call: str, name: str, code: int = errno.EIO) -> Fault:
        fault = Fault((call,), name, error=code, times=1000)
        self.host.disk.faults.append(fault)
        return fault

    def power_loss(self, share: float = 0.0) -> None:
        self.host.power_loss(share=share)

    def check(self) -> None:
        """Open it again: what was saved is there, or what was being saved."""
        self.open()
        assert self.epoch in (self.saved, self.tried)
        told = self.epoch
        self.power_loss()
        self.open()
        assert self.epoch == told, "what a start has read is lost by the next loss of power"
        self.save()


@pytest.fixture
def scene() -> Scene:
    return Scene(1)


def open_and_save(scene: Scene) -> None:
    scene.open()
    for _ in range(3):
        scene.save()


def test_whatever_is_saved_is_there_after_any_end() -> None:
    assert crash_everywhere(Scene, lambda scene: None, open_and_save, Scene.check, seeds=3) > 20


def test_a_start_over_what_a_crash_left_ends_well_wherever_it_ends() -> None:
    def left(scene: Scene) -> None:
        open_and_save(scene)
        scene.next()
        scene.process.files.write_new(PATH.with_name("groups.tmp"), b"half of a tab")
        scene.process.kill()

    def act(scene: Scene) -> None:
        scene.open()
        scene.save()

    assert crash_everywhere(Scene, left, act, Scene.check, seeds=2) > 10


def test_a_file_that_is_not_there_is_made(scene: Scene) -> None:
    scene.open()
    assert not scene.table.records
    scene.power_loss()
    assert scene.revive().files.exists(PATH)


def test_a_full_disk_leaves_the_table_that_was_saved(scene: Scene) -> None:
    scene.open()
    scene.save()
    full = scene.fail("pwrite", "*.tmp", errno.ENOSPC)
    with pytest.raises(StoreError, match=r"keeps_groups: /keeper/groups can't be written: .*No space left"):
        scene.save()
    assert not scene.file.unsure
    scene.file.settle(scene.table)  # writes nothing
    scene.process.kill()
    scene.open()  # starts with a full disk as well
    assert scene.epoch == 1
    scene.host.disk.faults.remove(full)
    scene.save()
    assert scene.epoch == 2


@pytest.mark.parametrize(("call", "name"), [("fsync", "/keeper"), ("rename", "*groups")])
def test_a_file_of_which_it_is_not_known_what_it_holds_is_settled_first(
    scene: Scene, call: str, name: str
) -> None:
    scene.open()
    scene.save()
    fault = scene.fail(call, name)
    with pytest.raises(StoreError):
        scene.save()
    assert scene.file.unsure
    with pytest.raises(StoreError):
        scene.file.settle(scene.table)
    scene.host.disk.faults.remove(fault)
    scene.file.settle(scene.table)
    assert not scene.file.unsure
    for share in (0.0, 1.0):
        scene.power_loss(share)
        scene.open()
        assert scene.epoch == 1


def test_a_sync_that_failed_is_no_save(scene: Scene) -> None:
    scene.open()
    scene.save()
    scene.fail("fsync", "*.tmp")
    with pytest.raises(StoreError):
        scene.save()
    scene.power_loss(1.0)
    scene.host.disk.faults.clear()
    scene.open()
    assert scene.epoch == 1


def test_a_second_nameserver_is_refused_until_the_first_one_ends(scene: Scene) -> None:
    scene.open()
    other = scene.host.process("other")
    with pytest.raises(
        StoreError, match=r"another nameserver keeps this file \(/keeper/groups.lock is locked\)"
    ):
        GroupFile.open(PATH, other.files)
    assert scene.host.processes  # who is refused has changed nothing
    scene.save()
    scene.process.kill()
    _, table = GroupFile.open(PATH, other.files)
    assert table.records[KEY].record.epoch == 1


def test_who_closes_the_file_leaves_it_to_others(tmp_path: Path) -> None:
    path = tmp_path / "groups"
    file, _ = GroupFile.open(path)
    with pytest.raises(StoreError, match="another nameserver"):
        GroupFile.open(path)
    file.close()
    again, _ = GroupFile.open(path)
    again.close()


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\0" * 100, b"x" * 100])
def test_a_damaged_file_refuses_the_start_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "groups"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"groups is damaged .*: put its newest copy there"):
        GroupFile.open(path)
    assert path.read_bytes() == content
    path.unlink()
    file, _ = GroupFile.open(path)  # the lock of the start that was refused is free
    file.close()


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "groups"
    with path.open("wb") as file:
        file.truncate(TABLE_BYTES_MAX + 1)
    with pytest.raises(StoreError, match="more than"):
        GroupFile.open(path)


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"keeps_groups: .*No such file or directory"):
        GroupFile.open(tmp_path / "none" / "groups")
