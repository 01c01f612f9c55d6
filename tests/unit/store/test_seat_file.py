"""The seat on disk: its bytes, torn slots, refused syncs, crashes at every call; and who may vote (R9)."""

import ctypes
import errno
import logging
import os
import random
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.store.cache_disk import CacheDisk
from support.store.crash_points import CrashScene, crash_everywhere
from whimbrel import machine
from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files, Identity
from whimbrel.store.seat_file import (
    SEAT_FILE,
    Seat,
    SeatFile,
    after_cut,
    copied,
    cutting,
    draw_uuid,
    may_vote,
    weaker,
)

UUID = "0123456789abcdef0123456789abcdef"
GROUP = "00112233445566778899aabbccddeeff"
BOOT = "f" * 32
NEW = Seat(uuid=UUID, member=3)
FULL = Seat(
    uuid=UUID,
    group=GROUP,
    member=63,
    promised=(1 << 31) - 1,
    promised_to=2,
    votes=False,
    boot=BOOT,
    floor=(1 << 63) - 1,
    cut=(0x1122, 0x3344556677),
    acknowledged=0x1234,
    acknowledged_epoch=0x5678,
    flush="async",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "whimbrel").mkdir()
    return tmp_path


class Told(Files):
    """A file system that tells of each file what it is told."""

    def __init__(self, identity: Identity | None) -> None:
        self.told = identity

    def identity(self, fd: int) -> Identity | None:
        return self.told


def test_the_layout_is_as_the_module_draws_it(root: Path) -> None:
    file = SeatFile(root, Told(None))
    file.save(NEW)
    SeatFile(root, Told(Identity(0x0102030405060708, 0x1112131415161718, 0xA1A2A3A4))).save(FULL)
    data = (root / "whimbrel" / "seat").read_bytes()
    first = bytes.fromhex(
        "7768696d73656174" "01000000" "01000000" "0000000000000000"
        "0123456789abcdef0123456789abcdef" + "00" * 32 + "03000000" "00000000" "00000000"
    ).ljust(508, b"\0")  # fmt: skip
    second = bytes.fromhex(
        "7768696d73656174" "01000000" "02000000" "0100000000000000"
        "0123456789abcdef0123456789abcdef" "00112233445566778899aabbccddeeff" + "ff" * 16 + "3f000000"
        "ffffff7f" "02000000" "00000000" "ffffffffffffff7f" "2211000000000000" "7766554433000000"
        "02" "03" "0000" "a4a3a2a1" "3412000000000000" "0807060504030201" "1817161514131211"
        "78560000"
    ).ljust(508, b"\0")  # fmt: skip
    assert len(data) == 8192
    assert data[:512] == first + zlib.crc32(first).to_bytes(4, "little")
    assert data[4096:4608] == second + zlib.crc32(second).to_bytes(4, "little")
    assert not data[512:4096].strip(b"\0")
    assert not data[4608:].strip(b"\0")


def test_no_file_is_no_seat_and_the_last_change_counts(root: Path) -> None:
    file = SeatFile(root)
    assert file.load() is None
    assert file.saved is None
    for seat in (NEW, FULL, replace(FULL, cut=(0, 0)), replace(NEW, promised=7, promised_to=1), NEW):
        file.save(seat)
        assert file.saved == seat
        assert SeatFile(root).load() == seat
        assert SeatFile(root).saved is None, "another process has put nothing on disk yet"


def test_another_process_goes_on_with_the_slot_that_is_the_older(root: Path) -> None:
    for promised in range(1, 6):
        SeatFile(root).save(replace(NEW, promised=promised))
        data = (root / SEAT_FILE).read_bytes()
        assert [int.from_bytes(data[at + 16 : at + 24], "little") for at in (0, 4096)] == [
            (promised - 1) // 2 * 2,
            max(promised // 2 * 2 - 1, 0),
        ]


def test_a_change_is_one_write_and_one_sync_and_the_first_one_makes_the_name_durable(root: Path) -> None:
    calls: list[str] = []

    class Noting(Files):
        def pwrite(self, fd: int, data: object, position: int) -> int:
            calls.append(f"write {len(data)} at {position}")  # type: ignore[arg-type]
            return super().pwrite(fd, data, position)  # type: ignore[arg-type]

        def fdatasync(self, fd: int) -> None:
            calls.append("fdatasync")
            super().fdatasync(fd)

        def fsync(self, fd: int) -> None:
            calls.append("fsync")
            super().fsync(fd)

        def rename(self, old: Path, new: Path) -> None:
            calls.append(f"{old.name} to {new.name}")
            super().rename(old, new)

    file = SeatFile(root, Noting())
    file.save(NEW)
    assert calls == ["write 8192 at 0", "fsync", "seat.tmp to seat", "fsync", "fsync"]
    calls.clear()
    file.save(FULL)
    file.save(NEW)
    assert calls == ["write 512 at 4096", "fdatasync", "write 512 at 0", "fdatasync"]


def patch(root: Path, at: int, data: bytes) -> None:
    with (root / SEAT_FILE).open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("torn", [1, 16, 76, 511])
def test_of_a_torn_slot_the_change_before_counts(
    torn: int, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = SeatFile(root)
    seats = [replace(FULL, promised=9 + number, uuid=draw_uuid(random.randbytes)) for number in range(4)]
    for seat in seats:
        file.save(seat)
    before = (root / SEAT_FILE).read_bytes()[:512]
    file.save(replace(FULL, promised=77))
    after = (root / SEAT_FILE).read_bytes()[:512]
    patch(root, 0, after[:torn] + before[torn:])
    caplog.clear()
    found = SeatFile(root).load()
    same = after[:torn] == before[:torn]
    assert found == seats[3], "slot 0 had seat 2 and was to have the fifth"
    assert ("not whole" in caplog.text) != same
    SeatFile(root).save(NEW)
    assert SeatFile(root).load() == NEW, "it goes into the slot that is not whole"


def test_a_seat_that_was_saved_once_has_no_slot_that_is_not_whole(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SeatFile(root).save(NEW)
    with caplog.at_level(logging.WARNING):
        SeatFile(root).load()
    assert not caplog.text


def swap_slots(root: Path) -> None:
    data = (root / SEAT_FILE).read_bytes()
    (root / SEAT_FILE).write_bytes(data[4096:] + data[:4096])


def empty(root: Path) -> None:
    (root / SEAT_FILE).write_bytes(b"")


def of_zeros(root: Path) -> None:
    (root / SEAT_FILE).write_bytes(bytes(8192))


def flip_both(root: Path) -> None:
    for at in (0, 4096):
        data = (root / SEAT_FILE).read_bytes()
        patch(root, at + 70, bytes((data[at + 70] ^ 4,)))


def seal(root: Path, at: int, position: int, data: bytes) -> None:
    """Change a slot and make its CRC fit."""
    slot = bytearray((root / SEAT_FILE).read_bytes()[at : at + 508])
    slot[position : position + len(data)] = data
    patch(root, at, bytes(slot) + zlib.crc32(slot).to_bytes(4, "little"))


def other_tags(root: Path) -> None:
    for at in (0, 4096):
        seal(root, at, 0, b"whimsyn1")


def no_members(root: Path) -> None:
    for at in (0, 4096):
        seal(root, at, 72, bytes(4))


@pytest.mark.parametrize("damage", [swap_slots, empty, of_zeros, flip_both, other_tags, no_members])
def test_a_file_without_a_valid_slot_is_never_taken_for_a_new_seat(
    damage: Callable[[Path], None], root: Path
) -> None:
    file = SeatFile(root)
    file.save(NEW)
    file.save(FULL)
    damage(root)
    before = (root / SEAT_FILE).read_bytes()
    with pytest.raises(StoreError, match=r"seat is damaged, .*; move the whole store away and begin with an"):
        SeatFile(root).load()
    with pytest.raises(StoreError, match="seat is damaged"):
        SeatFile(root).save(NEW)
    assert (root / SEAT_FILE).read_bytes() == before


def test_a_slot_of_a_later_version_is_refused(root: Path) -> None:
    file = SeatFile(root)
    file.save(NEW)
    file.save(FULL)
    seal(root, 4096, 8, b"\x02")
    with pytest.raises(StoreError, match=r"another version .layout 2, this one knows 1.: start that version"):
        SeatFile(root).load()


def test_a_file_that_can_not_be_read_is_refused(root: Path) -> None:
    (root / SEAT_FILE).mkdir()
    with pytest.raises(StoreError, match=r"seat can't be read: .*; see to the disk"):
        SeatFile(root).load()


def test_after_a_failed_sync_this_process_saves_and_reads_nothing_more(root: Path) -> None:
    disk = CacheDisk()
    file = SeatFile(root, disk)
    file.save(NEW)
    disk.failing = {"whimbrel/seat": 1}
    for _ in range(2):  # the disk would take the second one
        with pytest.raises(
            StoreError, match=r"can't be written: .*; what this member has promised is not known"
        ):
            file.save(replace(NEW, promised=5, promised_to=1))
    with pytest.raises(StoreError, match="can't be written"):
        file.load()
    assert file.saved == NEW
    after = SeatFile(root, disk)
    assert after.load() in (NEW, replace(NEW, promised=5, promised_to=1))
    after.save(replace(NEW, promised=6))
    assert SeatFile(root, disk).load() == replace(NEW, promised=6)


def test_a_full_disk_when_the_seat_is_made_leaves_none(root: Path) -> None:
    class Full(Files):
        def pwrite(self, fd: int, data: object, position: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    file = SeatFile(root, Full())
    with pytest.raises(StoreError, match=r"can't be written: .*No space"):
        file.save(NEW)
    with pytest.raises(StoreError, match="No space"):
        file.save(NEW)
    assert SeatFile(root).load() is None


ROOT = Path("/store")
HISTORY = [NEW, *(replace(FULL, promised=number, promised_to=number) for number in range(1, 6)), NEW]


class SeatScene(CrashScene):
    """A member that saves one seat after the other.

    Attributes:
        done: how many saves have returned.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, ROOT)
        self.host.disk.atom = 512
        self.done = 0

    def save_all(self) -> None:
        file = SeatFile(ROOT, self.revive().files)
        for seat in HISTORY:
            file.save(seat)
            self.done += 1

    def check(self) -> None:
        """What a save has returned for is there, or the one that was under way; and it goes on."""
        file = SeatFile(ROOT, self.revive().files)
        found = file.load()
        states = [None, *HISTORY]
        assert found == states[self.done] or found == states[min(self.done + 1, len(HISTORY))], self.done
        file.save(FULL)
        self.host.power_loss(share=0.0)
        assert SeatFile(ROOT, self.revive().files).load() == FULL


def test_a_crash_at_any_call_leaves_the_seat_before_or_the_new_one() -> None:
    calls = crash_everywhere(SeatScene, lambda scene: None, SeatScene.save_all, SeatScene.check, seeds=5)
    assert calls > 4 * len(HISTORY)


def test_a_slot_torn_within_its_sector_loses_no_confirmed_change() -> None:
    def make(seed: int) -> SeatScene:
        scene = SeatScene(seed)
        scene.host.disk.atom = 16
        return scene

    crash_everywhere(make, lambda scene: None, SeatScene.save_all, SeatScene.check, seeds=6)


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_sync_that_fails_at_a_save_loses_nothing_that_was_saved_before(nth: int) -> None:
    scene = SeatScene(nth)
    scene.host.disk.inject("sync", path=f"{ROOT}/whimbrel/seat*", nth=nth)
    with pytest.raises(StoreError):
        scene.save_all()
    assert scene.done == nth - 1
    scene.process.kill()
    scene.host.disk.heal()
    scene.check()


@pytest.mark.parametrize(
    "wrong",
    [
        {"uuid": ""},
        {"uuid": "0" * 32},
        {"uuid": UUID.upper()},
        {"group": "x"},
        {"boot": "12"},
        {"member": 0},
        {"member": 64},
        {"promised": -1},
        {"promised": 1 << 31},
        {"promised_to": 64},
        {"floor": -1},
        {"cut": (5, 4)},
        {"cut": (-1, 4)},
        {"acknowledged": -1},
        {"flush": "later"},
    ],
)
def test_a_seat_that_can_not_be_is_none(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"seat|members|epochs|log|acknowledged"):
        Seat(**{"uuid": UUID, "member": 1, **wrong})  # type: ignore[arg-type]


def test_the_uuid_is_drawn_by_whoever_gives_randomness() -> None:
    assert draw_uuid(random.Random(1).randbytes) == draw_uuid(random.Random(1).randbytes)
    assert draw_uuid(os.urandom) != draw_uuid(os.urandom)
    assert Seat(uuid=draw_uuid(os.urandom), member=1).votes


VOTER = replace(NEW, boot=BOOT, floor=100)
OTHER = "e" * 32


@pytest.mark.parametrize(
    ("seat", "end", "boot", "clean", "flush", "votes"),
    [
        (VOTER, 100, BOOT, True, "async", True),
        (VOTER, 100, BOOT, False, "async", True),  # killed: the page cache is still there
        (VOTER, 100, OTHER, True, "async", True),  # shut down in order
        (VOTER, 100, OTHER, False, "sync", True),  # what was acknowledged was on disk
        (VOTER, 100, OTHER, False, "async", False),
        (VOTER, 99, BOOT, True, "sync", False),  # damaged, not short
        (replace(VOTER, votes=False), 100, BOOT, True, "sync", False),  # only a leader gives the vote back
        (cutting(VOTER, 60, 120), 60, BOOT, True, "sync", True),  # what it cut was never acknowledged
        (cutting(VOTER, 60, 120), 59, BOOT, True, "sync", False),
        (replace(VOTER, acknowledged=101), 100, BOOT, True, "sync", False),  # a log of another day
        (replace(VOTER, acknowledged=100), 100, BOOT, True, "sync", True),
        (replace(VOTER, flush="async"), 100, OTHER, False, "sync", False),  # the setting came after the loss
        (replace(VOTER, flush="sync"), 100, OTHER, False, "async", True),
        (replace(VOTER, flush="async"), 100, OTHER, True, "sync", True),
        (cutting(replace(VOTER, acknowledged=110), 60, 120), 60, BOOT, True, "sync", True),
        (replace(VOTER, acknowledged=90, acknowledged_epoch=3), 100, BOOT, True, "sync", True),
        (
            replace(VOTER, acknowledged=90, acknowledged_epoch=4),
            100,
            BOOT,
            True,
            "sync",
            False,
        ),  # an older list
        (
            cutting(replace(VOTER, acknowledged=90, acknowledged_epoch=4), 60, 120),
            60,
            BOOT,
            True,
            "sync",
            True,
        ),
        (replace(VOTER, boot=""), 100, BOOT, False, "async", False),
        (replace(VOTER, boot=""), 100, BOOT, True, "async", True),
    ],
)
def test_who_may_have_lost_what_it_acknowledged_does_not_vote(
    seat: Seat, end: int, boot: str, clean: bool, flush: str, votes: bool
) -> None:
    assert may_vote(seat, end=end, epoch=3, boot=boot, clean=clean, flush=flush) is votes


def test_after_a_sync_that_failed_it_votes_only_if_what_it_acknowledged_was_on_disk() -> None:
    assert may_vote(VOTER, end=100, epoch=3, boot=BOOT, clean=False, flush="sync", doubtful=True)
    assert not may_vote(VOTER, end=100, epoch=3, boot=BOOT, clean=False, flush="async", doubtful=True)
    assert not may_vote(VOTER, end=100, epoch=3, boot=BOOT, clean=True, flush="async", doubtful=True)


def test_a_cut_lowers_the_floor_once_it_is_done() -> None:
    begun = cutting(VOTER, 60, 120)
    assert (begun.cut, begun.floor) == ((60, 120), 100)
    assert after_cut(begun) == replace(VOTER, floor=60)
    assert after_cut(cutting(replace(VOTER, acknowledged=70), 60, 120)).acknowledged == 60
    assert after_cut(begun).votes, "its leader has ordered it"
    assert after_cut(cutting(VOTER, 110, 120)) == VOTER
    assert after_cut(VOTER) is VOTER


def test_of_flush_modes_the_weaker_one_counts_and_one_that_is_not_known_says_nothing() -> None:
    assert [weaker(*modes) for modes in (("sync", "async"), ("", "sync"), ("async", ""), ("", ""))] == [
        "async",
        "sync",
        "async",
        "",
    ]


def test_a_seat_of_an_earlier_version_has_zeros_for_what_it_does_not_know(root: Path) -> None:
    file = SeatFile(root, Told(None))
    file.save(VOTER)
    assert not (root / SEAT_FILE).read_bytes()[112:508].strip(b"\0")
    later = SeatFile(root)
    assert later.load() == VOTER
    assert (later.bound_to, later.was_copied) == (None, False)
    later.save(replace(VOTER, acknowledged=7))
    assert later.bound_to is not None, "bound with its next change"
    earlier = SeatFile(root, Told(None))
    earlier.load()
    earlier.rebind()
    earlier.save(VOTER)  # as a version of before writes it: zeros
    again = SeatFile(root)
    assert again.load() == VOTER
    assert not again.was_copied


def test_a_copy_is_found_and_a_file_that_has_another_name_is_none(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "whimbrel").mkdir(parents=True)
    SeatFile(first).save(FULL)
    shutil.copytree(first, second)
    first.rename(tmp_path / "renamed")
    moved, copy = SeatFile(tmp_path / "renamed"), SeatFile(second)
    assert (moved.load(), moved.was_copied) == (FULL, False)
    assert (copy.load(), copy.was_copied) == (FULL, True)
    with pytest.raises(AssertionError, match="the seat of a copy is another one"):
        copy.save(replace(FULL, promised=7))
    other = copied(FULL, UUID[::-1])
    assert (other.votes, other.acknowledged, other.acknowledged_epoch, other.floor) == (False, 0, 0, 0)
    assert (other.promised, other.promised_to) == (FULL.promised, FULL.promised_to)
    copy.save(other)
    again = SeatFile(second)
    assert (again.load(), again.was_copied) == (other, False)


def test_a_copy_that_was_put_in_the_place_of_what_it_was_copied_from_is_found(root: Path) -> None:
    """`rm` and `cp` in one place: the file system may give the inode again."""
    for _ in range(20):
        SeatFile(root).load()
        path = root / SEAT_FILE
        if not path.exists():
            SeatFile(root).save(NEW)
        saved = path.read_bytes()
        path.unlink()
        path.write_bytes(saved)
        copy = SeatFile(root)
        copy.load()
        assert copy.was_copied
        copy.save(copied(NEW, draw_uuid(os.urandom)))


def test_a_store_that_was_moved_by_a_copy_keeps_its_seat_when_somebody_says_so(tmp_path: Path) -> None:
    (tmp_path / "here" / "whimbrel").mkdir(parents=True)
    SeatFile(tmp_path / "here").save(VOTER)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    file = SeatFile(tmp_path / "there")
    file.load()
    file.rebind()
    file.save(VOTER)
    again = SeatFile(tmp_path / "there")
    assert (again.load(), again.was_copied) == (VOTER, False)


KNOWN = Identity(5, 1000, 7)


@pytest.mark.parametrize(
    ("there", "is_copy"),
    [
        (KNOWN, False),
        (Identity(6, 1000, 7), True),
        (Identity(5, 1001, 7), True),  # the inode was given again
        (Identity(5, 1000, 8), True),
        (Identity(5, 1000, -1), False),  # another kernel tells less
        (Identity(5, 0, 7), False),
        (None, True),  # this file system tells nothing, so it is another one
    ],
)
def test_what_tells_a_copy(root: Path, there: Identity | None, is_copy: bool) -> None:
    """By recorded answers; neither the machine, nor its boot, nor the device's number matters."""
    SeatFile(root, Told(KNOWN)).save(NEW)
    file = SeatFile(root, Told(there))
    file.load()
    assert file.was_copied is is_copy


def test_a_seat_that_is_bound_to_nothing_was_never_copied(root: Path) -> None:
    SeatFile(root, Told(None)).save(NEW)
    for there in (KNOWN, None):
        file = SeatFile(root, Told(there))
        file.load()
        assert not file.was_copied


def test_a_file_system_whose_inodes_may_change_binds_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.open(root, os.O_RDONLY)
    try:
        found = FILES.identity(fd)
        assert found is not None
        assert found.birth_ns > 0
        kind = machine.STATFS.unpack_from(statfs(fd))[0]
        monkeypatch.setattr(machine, "CHANGING_INODES", {kind})
        assert FILES.identity(fd) is None
    finally:
        os.close(fd)


def statfs(fd: int) -> bytes:
    found = ctypes.create_string_buffer(machine.STATFS_BYTES)
    assert not machine.libc.fstatfs(fd, found)
    return found.raw
