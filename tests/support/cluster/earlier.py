"""Processes of an earlier version beside those of this one."""

import subprocess
import tarfile
from pathlib import Path

import pytest

from support.cluster.processes import Process

__all__ = ["CURRENT", "exchange", "services_of"]

REPOSITORY = Path(__file__).parents[3]
CURRENT = REPOSITORY / "services"


def services_of(commit: str, to: Path) -> Path:
    """Return the package's directory as of a commit."""
    archive = to / "services.tar"
    made = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", "-o", str(archive), commit, "services"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"commit {commit} is not in this clone: {made.stderr.strip()}")
    with tarfile.open(archive) as found:
        found.extractall(to, filter="data")
    return to / "services"


def exchange(process: Process, services: Path) -> None:
    """Stop it, and start it with another version."""
    assert process.stop() == 0
    process.services = services
    process.start()
