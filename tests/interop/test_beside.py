"""`bench/beside.py` measures a real RocketMQ: the smallest case."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from realbroker import need_kit, resolved

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "beside.py"
RUN_S_MAX = 170


@pytest.mark.timeout(180)
def test_the_smallest_case_of_rocketmq(tmp_path: Path) -> None:
    need_kit()
    resolved("4.9.3")
    if missing := [name for name in ("g++", "make") if shutil.which(name) is None]:
        pytest.skip(f"the load generators are built with {' and '.join(missing)}, which is not on the PATH")
    words = [
        "--only",
        "4.9.3",
        "--modes",
        "none",
        "--stages",
        "calls",
        "--points",
        "c1,pull1",
        "--secs",
        "0.1",
    ]
    words += ["--rounds", "1", "--warm", "1", "--work", str(tmp_path / "work")]
    kept = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words, "--json", str(kept)],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()][1:]
    assert [(row["point"], row["lost"], row["errors"]) for row in rows] == [("c1", [], 0), ("pull1", [], 0)]
