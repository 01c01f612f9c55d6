"""Runs `bench/beside.py` for tests, and says what the load generators are built with."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = ["PROGRAM", "measured_beside", "need_compiler"]

PROGRAM = Path(__file__).resolve().parents[3] / "bench" / "beside.py"
RUN_S_MAX = 170  # the load generators are built the first time


def need_compiler() -> None:
    """Skip a test of a load generator where it can't be built."""
    if missing := [name for name in ("g++", "make") if shutil.which(name) is None]:
        pytest.skip(f"the load generators are built with {' and '.join(missing)}, not found on the PATH")


def measured_beside(folder: Path, *words: str) -> tuple[list[dict[str, Any]], str]:
    """Run one round of 0.1 s a point; return the measurements, and the tables."""
    need_compiler()
    kept = folder / "rows.jsonl"
    more = ["--rounds", "1", "--secs", "0.1", "--work", str(folder / "work"), "--json", str(kept)]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words, *more],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()], done.stdout
