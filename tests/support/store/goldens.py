"""Reads what real RocketMQ wrote: the stores and recorded streams below `tests/golden` (its README tells the
formats).

A store is unpacked anew at every call of `golden`, so a test may change its copy; `shared` hands out one copy
for all who only read. Both live in a directory that goes away with the test run. Sparse files stay sparse.

Recorded streams are chunks, as they came out of `read`: i64 time_ns (epoch), u8 direction (0 slave to master,
1 master to slave), u32 length, bytes; length 0 means that this side closed. Big-endian.
"""

import atexit
import functools
import io
import itertools
import json
import lzma
import shutil
import struct
import tarfile
import tempfile
from pathlib import Path
from typing import Any

__all__ = [
    "GOLDEN",
    "KIT",
    "STORES",
    "TORN",
    "Row",
    "chunks",
    "expected",
    "golden",
    "rows",
    "shared",
    "sizes",
]

Row = dict[str, Any]

HERE = Path(__file__).resolve().parents[2]
GOLDEN = HERE / "golden"
KIT = HERE / "kit"

STORES = (
    "v493-basic",
    "v493-crash",
    "v493-ipv6",
    "v533-basic",
    "ha493-async-master",
    "ha493-async-slave",
    "ha493-sync-master",
    "ha493-sync-slave",
    "ha533-async-master",
    "ha533-async-slave",
    "ha533-sync-master",
    "ha533-sync-slave",
)
TORN = tuple(sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("v493-torn-*.tar.xz")))

CHUNK = struct.Struct(">qBI")

copies = itertools.count()


@functools.cache
def scratch() -> Path:
    """Return the directory for unpacked stores, removed when the test run ends."""
    path = Path(tempfile.mkdtemp(prefix="whimbrel-golden-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def located(name: str, suffix: str) -> Path:
    """Return the file of that name, with or without its folder."""
    found = [
        path for path in (GOLDEN / f"{name}{suffix}", GOLDEN / "ha" / f"{name}{suffix}") if path.is_file()
    ]
    if not found:
        raise FileNotFoundError(f"no golden file {name}{suffix} below {GOLDEN}")
    return found[0]


@functools.cache
def archive(name: str) -> bytes:
    """Return the tar of a store."""
    return lzma.decompress(located(name, ".tar.xz").read_bytes())


def golden(name: str, target: Path | None = None) -> Path:
    """Return a new copy of the store, at `target` when given, that the caller may change."""
    if target is None:
        target = scratch() / f"{name.rpartition('/')[2]}-{next(copies)}"
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive(name))) as tar:
        tar.extractall(target, filter="data")
    return target


@functools.cache
def shared(name: str) -> Path:
    """Return a copy of the store for everybody who only reads it."""
    return golden(name)


@functools.cache
def expected(name: str) -> list[Row]:
    """Return what RocketMQ's own store classes read out of the store; see the README for the fields."""
    with lzma.open(located(name, ".expected.jsonl.xz"), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def rows(name: str, kind: str) -> list[Row]:
    """Return the expected rows of one type: `record`, `queue`, `query`, …"""
    return [row for row in expected(name) if row["type"] == kind]


def sizes(name: str) -> dict[str, int]:
    """Return the file sizes the store was written with, named as `StoreOptions` names them."""
    config = rows(name, "meta")[0]["config"]
    return {
        "commitlog_file_size": int(config["mappedFileSizeCommitLog"]),
        "consumequeue_file_size": int(config["mappedFileSizeConsumeQueue"]),
        "index_slots": int(config["maxHashSlotNum"]),
        "index_entries": int(config["maxIndexNum"]),
    }


@functools.cache
def chunks(name: str) -> list[tuple[int, int, bytes]]:
    """Return a recorded connection, `ha493-fresh.1` for one, as (time_ns, direction, bytes)."""
    data = lzma.decompress(located(name, ".chunks.xz").read_bytes())
    found, position = [], 0
    while position < len(data):
        time_ns, direction, length = CHUNK.unpack_from(data, position)
        position += CHUNK.size
        found.append((time_ns, direction, data[position : position + length]))
        position += length
    return found
