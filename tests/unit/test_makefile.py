"""What `make` says before it does something that takes long."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")
def test_a_fresh_clone_says_what_is_being_made_before_it_is(tmp_path: Path) -> None:
    for name in ("Makefile", "long.mk", "pyproject.toml", "uv.lock", "services/whimbrel/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    done = subprocess.run(
        ["make", "--dry-run", "run", f"PYTHON={sys.executable}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    steps = ["making .venv from uv.lock", "-m venv .venv", "sync -q", "examples/tour.py"]
    places = [done.stdout.index(step) for step in steps]
    assert places == sorted(places)
