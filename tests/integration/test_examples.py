"""The projects of `examples/` that are tests themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster.processes import environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.process
def test_the_shop_s_own_tests_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", EXAMPLES / "orders"],
        env=environment(),
        cwd=EXAMPLES / "orders",
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
