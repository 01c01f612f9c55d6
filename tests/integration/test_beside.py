"""`bench/beside.py` runs: the smallest case of what is ours, without RocketMQ."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.systems.beside import PROGRAM, measured_beside

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_smallest_case_of_ours(tmp_path: Path) -> None:
    words = ["--only", "python", "--modes", "slave", "--points", "c1,batch"]
    rows, tables = measured_beside(tmp_path, *words, "--stages", "calls,lag,catchup", "--log-gb", "0.01")
    calls = [(row["point"], row["lost"], row["errors"]) for row in rows if row["stage"] == "send"]
    assert calls == [("c1", [], 0), ("batch", [], 0)]
    assert [row["stage"] for row in rows] == ["facts", "send", "send", "lag", "lag", "lag", "catchup"]
    assert "| slave | batch | **" in tables
    command = [sys.executable, str(PROGRAM), "--render", str(tmp_path / "rows.jsonl")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == tables
