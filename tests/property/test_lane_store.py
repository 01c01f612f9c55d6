"""What a store derives from its log is the same by Python and by the compiled lane: generated logs."""

import os
import random
import shutil
from pathlib import Path

import pytest

from support.lane.logs import FILE_SIZE, ODD, PLAIN, compare, lane_or_skip, make_log

ROUNDS = int(os.environ.get("WHIMBREL_LANE_ROUNDS", "1"))  # of `make fuzz-fast`
SEED = int(os.environ.get("WHIMBREL_LANE_SEED", "1"))
RECORDS = 120


def steps(rng: random.Random, size: int) -> list[int]:
    """Return where a growing log ends, step by step."""
    return [*sorted(rng.randrange(size) for _ in range(rng.randrange(6))), size]


@pytest.mark.parametrize("kind", PLAIN)
def test_the_lane_does_nearly_all_of_what_is_plain(tmp_path: Path, kind: str) -> None:
    lane, rng = lane_or_skip(), random.Random(SEED)
    log = make_log(rng, 400, (kind,), file_size=1 << 22)
    _, compiled = compare(tmp_path, log, lane, [len(log.data)])
    whole = sum(size for _, size in log.classes.values())
    for what, done in zip(("dispatched", "indexed"), compiled.by_lane, strict=True):
        assert done >= 0.99 * whole, f"{done} of {whole} bytes {what} by the lane"


@pytest.mark.parametrize("part", range(4))
def test_logs_of_all_kinds_of_records_give_the_same(tmp_path: Path, part: int) -> None:
    lane = lane_or_skip()
    for number in range(ROUNDS * 40):
        seed = SEED * 1_000_003 + part * 100_003 + number
        rng = random.Random(seed)
        log = make_log(
            rng,
            RECORDS,
            (*PLAIN * rng.choice([1, 8]), *ODD),
            damage=rng.choice([0, 0, 1, 5]),
        )
        room_max = rng.choice([1 << 30, 1 << 30, 25])
        mapped_max = rng.choice([1 << 30, 2])
        work = tmp_path / str(number)
        work.mkdir()
        try:
            compare(work, log, lane, steps(rng, len(log.data)), room_max=room_max, mapped_max=mapped_max)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        shutil.rmtree(work)


def test_a_log_cut_at_every_byte_gives_the_same(tmp_path: Path) -> None:
    lane, rng = lane_or_skip(), random.Random(SEED)
    log = make_log(rng, 6, PLAIN[:1] + PLAIN[2:])
    assert len(log.data) < FILE_SIZE
    compare(tmp_path, log, lane, list(range(1, len(log.data) + 1)))
