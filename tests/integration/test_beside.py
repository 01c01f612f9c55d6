"""`bench/beside.py` runs: the smallest case of what is ours, without RocketMQ."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "beside.py"
RUN_S_MAX = 150  # the load generator is built the first time

pytestmark = pytest.mark.process


@pytest.mark.timeout(180)
def test_the_smallest_case_of_ours(tmp_path: Path) -> None:
    if missing := [name for name in ("g++", "make") if shutil.which(name) is None]:
        pytest.skip(f"the load generator is built with {' and '.join(missing)}, which is not on the PATH")
    words = ["--only", "python", "--modes", "slave", "--points", "c1,batch", "--secs", "0.1", "--rounds", "1"]
    words += ["--stages", "calls,lag,catchup", "--log-gb", "0.01"]
    kept = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words, "--work", str(tmp_path / "work"), "--json", str(kept)],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    calls = [(row["point"], row["lost"], row["errors"]) for row in rows if row["stage"] == "send"]
    assert calls == [("c1", [], 0), ("batch", [], 0)]
    assert [row["stage"] for row in rows] == ["facts", "send", "send", "lag", "lag", "lag", "catchup"]
    assert "| slave | batch | **" in done.stdout
    again = subprocess.run(
        [sys.executable, str(PROGRAM), "--render", str(kept)], capture_output=True, text=True, check=True
    )
    assert again.stdout == done.stdout
