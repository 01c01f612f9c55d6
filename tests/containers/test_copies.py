"""A seat tells that it was copied where containers keep their stores: in a volume, and in the container.

`tests/integration/test_copies_on_file_systems.py` has the file systems of machines.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from containers.rig import PROJECT_LABEL

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

PROJECT = "whimbrel-test-copies"
MAKE = """
import os, sys
from pathlib import Path
from whimbrel.store.seat_file import Seat, SeatFile
root = Path(sys.argv[1]) / "store"
for part in ("commitlog", "whimbrel"):
    (root / part).mkdir(parents=True)
SeatFile(root).save(Seat(uuid="01" * 16, group="ab" * 16, member=1))
"""
# Put back twice: by `whimbrel restore` it is another seat, by `cp` it is found to be a copy.
LOOK = """
import shutil, subprocess, sys
from pathlib import Path
from whimbrel.store.seat_file import SeatFile
root = Path(sys.argv[1])
store, backup = root / "store", root / "backup"
def seat():
    file = SeatFile(store)
    return file.load().uuid[:4], file.was_copied
print(*seat())
shutil.copytree(store, backup)
for _ in range(2):
    shutil.rmtree(store)
    subprocess.run(["whimbrel", "restore", backup, store], check=True, capture_output=True)
    uuid, was_copied = seat()
    print(uuid == "0101", was_copied)
for _ in range(2):
    shutil.rmtree(store)
    subprocess.run(["cp", "-a", backup, store], check=True)
    print(*seat())
"""
EXPECTED = ["0101 False", *["False False"] * 2, *["0101 True"] * 2]


@pytest.fixture
def volume(client: Any) -> Iterator[str]:
    made = client.volumes.create(labels={PROJECT_LABEL: PROJECT})
    yield made.name
    made.remove(force=True)


@contextlib.contextmanager
def container(client: Any, image: str, *command: str, **options: Any) -> Iterator[Any]:
    """Run a container, removed at the end."""
    made = client.containers.run(
        image, [*command], detach=True, labels={PROJECT_LABEL: PROJECT}, user="root", **options
    )
    try:
        yield made
    finally:
        made.remove(force=True, v=True)


def run(client: Any, image: str, program: str, place: str, **options: Any) -> list[str]:
    """Run a program in a container of its own; return the lines that it printed."""
    with container(client, image, "python", "-c", program, place, **options) as made:
        code, said = made.wait(timeout=60)["StatusCode"], str(made.logs().decode())
        assert code == 0, said
        return said.splitlines()


def test_in_a_volume_each_copy_is_found_and_another_container_is_none(
    client: Any, image: str, volume: str
) -> None:
    volumes = {volume: {"bind": "/stores", "mode": "rw"}}
    run(client, image, MAKE, "/stores", volumes=volumes)
    assert run(client, image, LOOK, "/stores", volumes=volumes) == EXPECTED


def test_in_a_container_each_copy_is_found_and_a_restart_is_none(client: Any, image: str) -> None:
    with container(client, image, "sleep", "infinity") as made:
        assert made.exec_run(["python", "-c", MAKE, "/tmp"]).exit_code == 0
        made.restart(timeout=0)
        done = made.exec_run(["python", "-c", LOOK, "/tmp"])
        assert done.output.decode().splitlines() == EXPECTED
