"""Recovery ends a log at the same place by Python and by the compiled lane: generated and damaged logs."""

import os
import random
from dataclasses import replace
from typing import Any

import pytest

from support.lane.logs import lane_or_skip
from support.store.stores import NOW, make_draft
from whimbrel.lane import Lane
from whimbrel.store import recovery
from whimbrel.store.codec import (
    BLANK_MAGIC,
    HOLE_SIZE,
    SIZE_AND_MAGIC,
    encode_record,
    encode_sealed,
    pack_host,
)
from whimbrel.store.lane_passes import LanePasses
from whimbrel.store.recovery import recover_log, verify_file

ROUNDS = int(os.environ.get("WHIMBREL_LANE_ROUNDS", "1"))  # of `make fuzz-fast`
SEED = int(os.environ.get("WHIMBREL_LANE_SEED", "1"))
FILE_SIZE = 1 << 16
PLAIN = ("plain", "large", "empty", "IPv6", "prepared", "no properties")
# The lane leaves them to Python, which has nothing against them.
ODD = ("sealed", "unicode", "zeros")
WRONG = ("hole", "control", "no text", "seal", "place", "CRC", "lengths", "size", "magic", "negative")


def make_record(rng: random.Random, kind: str, place: int) -> bytes:
    """Return a record of a kind for a place."""
    draft = make_draft(rng.randrange(10**6), size=rng.choice([8, 100, 1000]))
    if kind == "large":
        draft = replace(draft, body=rng.randbytes(rng.randrange(2000, 9000)))
    elif kind == "empty":
        draft = replace(draft, body=b"")
    elif kind == "IPv6":
        draft = replace(draft, born_host=pack_host("::1", 5))
    elif kind == "prepared":
        draft = replace(draft, sys_flag=4)
    elif kind == "no properties":
        draft = replace(draft, properties=b"")
    elif kind == "unicode":
        draft = replace(draft, topic="日本")
    elif kind == "zeros":
        draft = replace(draft, properties=b"a\x01\x00b\x02")
    elif kind == "hole":
        draft = replace(draft, properties=b"a\x01" + bytes(rng.choice([HOLE_SIZE - 1, HOLE_SIZE])) + b"b\x02")
    elif kind == "control":
        draft = replace(draft, topic="a\x07b")
    record = bytearray((encode_sealed if kind in ("sealed", "seal") else encode_record)(draft, place, 7, NOW))
    if kind == "seal":
        record[-3] = ord("0") + (record[-3] - ord("0") + 1) % 10
    elif kind == "no text":
        at = record.rindex(b"topic")
        record[at] = 0xFF
    elif kind == "place":
        record[28:36] = (place + rng.choice([-1, 1, 1 << 40])).to_bytes(8, "big", signed=True)
    elif kind == "CRC":
        record[8] ^= 1
    elif kind == "lengths":
        record[-len(draft.properties) - 1] ^= 1
    elif kind == "size":
        record[:4] = (len(record) + rng.choice([-5, 5])).to_bytes(4, "big")
    elif kind == "magic":
        record[4] ^= 1
    elif kind == "negative":
        record[0] |= 0x80
    return bytes(record)


def make_log(rng: random.Random, kinds: tuple[str, ...], count: int) -> tuple[bytes, list[int]]:
    """Return a log of some files, and where its records begin."""
    data, begins = bytearray(), []
    for _ in range(count):
        record = make_record(rng, rng.choice(kinds), len(data))
        left = FILE_SIZE - len(data) % FILE_SIZE
        if len(record) + 8 > left:
            data += SIZE_AND_MAGIC.pack(left, BLANK_MAGIC) + bytes(left - 8)
            record = make_record(rng, rng.choice(PLAIN[:1]), len(data))
        begins.append(len(data))
        data += record
    return bytes(data), begins


class Watched(LanePasses):
    """Passes of the lane that count what it keeps."""

    kept_bytes = 0

    def kept(self, data: bytes, base: int) -> tuple[int, int] | None:
        """See `LanePasses`."""
        found = super().kept(data, base)
        assert found is not None
        self.kept_bytes += found[0]
        return found


def compare(data: bytes, begins: list[int], lane: Lane) -> int:
    """Compare both ways, from each record on; return how many bytes the lane has kept of the whole log."""

    def read(offset: int, size: int) -> bytes:
        return data[offset : min(offset + size, offset - offset % FILE_SIZE + FILE_SIZE)]

    passes = Watched(lane)
    starts = list(range(0, max(len(data), 1), FILE_SIZE))
    how: dict[str, Any] = {"clean": True, "mark": None, "checkpoint": None}
    python = recover_log(read, starts, FILE_SIZE, **how)
    assert recover_log(read, starts, FILE_SIZE, **how, passes=passes) == python
    kept = passes.kept_bytes
    for begin in begins:
        file_end = begin - begin % FILE_SIZE + FILE_SIZE
        verdict = verify_file(read, begin, file_end)
        assert verify_file(read, begin, file_end, passes=passes) == verdict, begin
    assert lane.failures == 0, lane.why
    return kept


@pytest.fixture(params=[1 << 20, 3000], ids=["at once", "in pieces"])
def read_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Read so much of a file at a time."""
    monkeypatch.setattr(recovery, "READ_BYTES", request.param)
    return int(request.param)


@pytest.mark.usefixtures("read_bytes")
def test_generated_logs_end_at_the_same_place() -> None:
    lane = lane_or_skip()
    for number in range(ROUNDS * 60):
        seed = SEED * 1_000_003 + number
        rng = random.Random(seed)
        kinds = PLAIN * rng.choice([2, 20]) + ODD * rng.choice([0, 1, 3]) + WRONG * rng.choice([0, 1])
        data, begins = make_log(rng, kinds, rng.choice([1, 10, 60]))
        changed = bytearray(data + bytes(rng.choice([0, 5, 3000])))
        for _ in range(rng.choice([0, 0, 1, 4])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        cut = rng.choice([len(changed), len(changed), rng.randrange(len(changed))])
        try:
            compare(bytes(changed[:cut]), begins, lane)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("kind", WRONG + ODD)
def test_each_kind_of_record_is_judged_the_same(kind: str) -> None:
    lane = lane_or_skip()
    for number in range(20):
        rng = random.Random(SEED + number)
        head, begins = make_log(rng, PLAIN, 5)
        data = head + make_record(rng, kind, len(head))
        begins.append(len(head))
        data += make_record(rng, "plain", len(data))
        compare(data, begins, lane)


def test_a_log_cut_at_every_byte_ends_at_the_same_place() -> None:
    lane, rng = lane_or_skip(), random.Random(SEED)
    data, begins = make_log(rng, ("plain", "IPv6", "sealed"), 5)
    for cut in range(len(data)):
        compare(data[:cut], begins[:1], lane)


def test_the_lane_keeps_nearly_all_of_what_is_plain() -> None:
    lane, rng = lane_or_skip(), random.Random(SEED)
    data, begins = make_log(rng, PLAIN, 50)
    data = data[:FILE_SIZE]
    data = data[: max(begin for begin in begins if begin < len(data))]
    assert compare(data, begins[:1], lane) >= 0.99 * len(data)
