"""Golden data, kit and load generators are as listed (`sha256sum -c SHA256SUMS` says the same)."""

import hashlib
import os
from pathlib import Path

import pytest

from support.store.goldens import GOLDEN, KIT, STORES, TORN, chunks, expected, golden, rows, sizes

HERE = Path(__file__).resolve().parents[1]


NATIVE = HERE.parent / "bench" / "native"


def listed(folder: Path = HERE) -> dict[str, str]:
    """Return path to checksum, as a folder's SHA256SUMS has them."""
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {path: digest for digest, path in (line.split("  ", 1) for line in lines)}


def test_every_golden_file_is_unchanged() -> None:
    for path, digest in listed().items():
        assert hashlib.sha256((HERE / path).read_bytes()).hexdigest() == digest, path


def test_the_load_generators_of_the_benchmark_are_unchanged() -> None:
    for path, digest in listed(NATIVE).items():
        assert hashlib.sha256((NATIVE / path).read_bytes()).hexdigest() == digest, path


def test_no_golden_file_is_unlisted() -> None:
    present = {
        path.relative_to(HERE).as_posix()
        for folder in (GOLDEN, KIT)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert present == set(listed())


def test_the_scripts_of_the_kit_can_be_run() -> None:
    for name in ("admin", "resolve", "start-broker", "start-namesrv", "start-proxy", "stop"):
        assert os.access(KIT / "bin" / name, os.X_OK), name
    assert os.access(KIT / "golden" / "run-java", os.X_OK)


@pytest.mark.parametrize("name", STORES + TORN)
def test_every_store_unpacks_to_the_sizes_it_was_written_with(name: str) -> None:
    store = golden(name)
    assert sizes(name)["commitlog_file_size"] == 65536
    assert {path.stat().st_size for path in (store / "commitlog").iterdir()} == {65536}
    assert rows(name, "record")


def test_sparse_files_stay_sparse() -> None:
    files = [path for path in golden("v533-basic").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) > 100 * 1024 * 1024
    assert sum(path.stat().st_blocks * 512 for path in files) < 8 * 1024 * 1024


def test_copies_are_independent() -> None:
    first, second = golden("v493-ipv6"), golden("v493-ipv6")
    (first / "checkpoint").unlink()
    assert (second / "checkpoint").is_file()


def test_recordings_hold_both_directions_in_the_order_of_time() -> None:
    recording = chunks("ha493-fresh.1")
    assert {direction for _, direction, _ in recording} == {0, 1}
    assert [time for time, _, _ in recording] == sorted(time for time, _, _ in recording)
    assert expected("ha493-async-master")[0]["version"] == "4.9.3"
