"""`bench/beside.py` measures a real RocketMQ: the smallest case."""

from pathlib import Path

import pytest

from support.systems.beside import measured_beside
from support.systems.real_broker import need_kit, resolved


@pytest.mark.timeout(180)
def test_the_smallest_case_of_rocketmq(tmp_path: Path) -> None:
    need_kit()
    resolved("4.9.3")
    words = ["--only", "4.9.3", "--modes", "none", "--stages", "calls", "--points", "c1,pull1", "--warm", "1"]
    (_, *rows), _ = measured_beside(tmp_path, *words)
    assert [(row["point"], row["lost"], row["errors"]) for row in rows] == [("c1", [], 0), ("pull1", [], 0)]
