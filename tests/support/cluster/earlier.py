"""Processes of an earlier version beside those of this one.

    services_of("3d4ebd2", tmp_path)    the package as of a commit from before the first release: no lane
    released("0.1.0")                   as its wheel has it, with the lane where it can be built

A release is built from its commit, and kept by that below the user's cache: where cargo is, and where it is
not, one each.
"""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from release import uv
from support.cluster.processes import Process

__all__ = ["CURRENT", "exchange", "released", "releases", "services_of"]

REPOSITORY = Path(__file__).parents[3]
CURRENT = REPOSITORY / "services"
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whimbrel" / "earlier"
# The lane of a release does the same where less was done for its speed, and is built in a third of the time.
QUICKLY = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}


def services_of(commit: str, to: Path) -> Path:
    """Return the package's directory as of a commit."""
    extract(commit, to, "services")
    return to / "services"


def extract(commit: str, to: Path, *paths: str) -> None:
    """Write the tree of a commit, or some paths of it, into a directory."""
    archive = to / "commit.tar"
    made = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", "-o", str(archive), commit, *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"commit {commit} is not in this clone: {made.stderr.strip()}")
    with tarfile.open(archive) as found:
        found.extractall(to, filter="data")
    archive.unlink()


def releases() -> dict[str, str]:
    """Return the commits of all releases, by their versions: docs/upgrade.md names them."""
    text = (REPOSITORY / "docs" / "upgrade.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| (\d+\.\d+\.\d+) \| `([0-9a-f]{40})` \|", text, re.MULTILINE))


def released(version: str) -> Path:
    """Return a directory with what the wheel of a release installs, built from its commit here."""
    commit = releases()[version]
    kept = KEPT / (commit if shutil.which("cargo") else f"{commit}-no-cargo")
    if kept.exists():
        return kept
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT) as name:
        root = Path(name)
        (root / "tree").mkdir()
        extract(commit, root / "tree")
        command = [uv(), "build", "-q", "--wheel", "-o", str(root), str(root / "tree")]
        subprocess.run(command, env=os.environ | QUICKLY, check=True)
        (wheel,) = root.glob(f"whimbrel-{version}-*.whl")
        with ZipFile(wheel) as archive:
            archive.extractall(root / "installed")
        (root / "installed").rename(kept)
    return kept


def exchange(process: Process, services: Path) -> None:
    """Stop it, and start it with another version."""
    assert process.stop() == 0
    process.services = services
    process.start()
