"""A seat tells that it was copied on the file systems that stores lie on, and not for another mount of it.

The machine's own file system is that of `tests/unit/store/test_seat_file.py`; what others answer, and other
kernels, stands there as recorded answers. Needs the right to mount; without it these tests are skipped.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whimbrel.store.copying import copy_store
from whimbrel.store.seat_file import Seat, SeatFile

IMAGE_BYTES = 64 << 20
VOTER = Seat(uuid="0123456789abcdef0123456789abcdef", group="00112233445566778899aabbccddeeff", member=1)

Mount = Callable[[Path], None]


def run(*command: str | Path) -> str:
    """Run a command that needs the right to mount, or skip."""
    try:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"{command[0]} can't be run: {error}")
    if done.returncode:
        pytest.skip(f"`{' '.join(map(str, command))}` is refused: {done.stderr.strip()}")
    return done.stdout.strip()


def unmount(path: Path) -> None:
    subprocess.run(["umount", str(path)], capture_output=True, check=False)


@contextlib.contextmanager
def tmpfs(root: Path) -> Iterator[Mount]:
    """What is on it is gone with the mount: it is seen from another place instead."""

    def again(path: Path) -> None:
        other = root / "other"
        other.mkdir()
        run("mount", "--bind", path, other)
        unmount(path)
        run("mount", "--bind", other, path)

    run("mount", "-t", "tmpfs", "-o", f"size={IMAGE_BYTES}", "tmpfs", root / "there")
    try:
        yield again
    finally:
        unmount(root / "there")
        unmount(root / "other")


@contextlib.contextmanager
def overlayfs(root: Path) -> Iterator[Mount]:
    """What a container has without a volume."""
    lower, upper, work = (root / name for name in ("lower", "upper", "work"))
    for path in (lower, upper, work):
        path.mkdir()

    def mount(path: Path) -> None:
        run("mount", "-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay",
            path)  # fmt: skip

    def again(path: Path) -> None:
        unmount(path)
        mount(path)

    mount(root / "there")
    try:
        yield again
    finally:
        unmount(root / "there")


@contextlib.contextmanager
def ext4(root: Path) -> Iterator[Mount]:
    """A disk of its own, which has another device number after another start."""
    image, devices = root / "image", list[str]()
    image.touch()
    os.truncate(image, IMAGE_BYTES)
    run("mkfs.ext4", "-q", image)

    def mount(path: Path) -> None:
        devices.append(run("losetup", "--find", "--show", image))
        run("mount", devices[-1], path)

    def again(path: Path) -> None:
        before = path.stat().st_dev
        unmount(path)
        spare = root / "spare"
        spare.touch()
        os.truncate(spare, IMAGE_BYTES)
        subprocess.run(["losetup", "-d", devices[-1]], check=True)
        devices.append(run("losetup", "--find", "--show", spare))  # takes the number that was ours
        mount(path)
        assert path.stat().st_dev != before

    try:
        mount(root / "there")
        yield again
    finally:
        unmount(root / "there")
        for device in devices:
            subprocess.run(["losetup", "-d", device], capture_output=True, check=False)


@pytest.mark.parametrize("kind", [tmpfs, overlayfs, ext4])
def test_a_copy_is_found_each_time_and_another_mount_is_none(
    kind: Callable[[Path], contextlib.AbstractContextManager[Mount]], tmp_path: Path
) -> None:
    """Restored twice in one place, too, with the inodes and blocks of what was there."""
    there = tmp_path / "there"
    there.mkdir()
    with kind(tmp_path) as again:
        store, backup = there / "store", there / "backup"
        (store / "commitlog").mkdir(parents=True)
        (store / "whimbrel").mkdir()
        SeatFile(store).save(VOTER)
        again(there)
        file = SeatFile(store)
        assert (file.load(), file.was_copied) == (VOTER, False)
        shutil.copytree(store, backup)
        seen = {VOTER.uuid}
        for _ in range(2):
            shutil.rmtree(store)
            copy_store(backup, store)
            file = SeatFile(store)
            seat = file.load()
            assert seat is not None
            assert seat.uuid not in seen
            assert (file.was_copied, seat.votes) == (False, False)
            seen.add(seat.uuid)
        for _ in range(2):
            shutil.rmtree(store)
            subprocess.run(["cp", "-a", backup, store], check=True)
            file = SeatFile(store)
            file.load()
            assert file.was_copied
