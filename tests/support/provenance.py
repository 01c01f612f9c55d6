"""Where a result comes from: the seed that repeats it, and the commit it was had with."""

import os
import random
import subprocess
from pathlib import Path

__all__ = ["REPOSITORY", "commit", "head", "seed"]

REPOSITORY = Path(__file__).resolve().parents[2]


def seed() -> int:
    """Return the seed that WHIMBREL_FAULT_SEED sets, else a random one."""
    return int(os.environ.get("WHIMBREL_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))


def commit() -> str:
    """Return the commit, with `-dirty` behind it where files were changed since; `unknown` without git."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"


def head() -> str:
    """Return the commit that is checked out, in 40 hexadecimal digits: it decides what differs with each."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
