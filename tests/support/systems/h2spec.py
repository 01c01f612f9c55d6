"""The program h2spec, built once with Go into ~/.cache/whimbrel."""

import os
import subprocess
from pathlib import Path

from support.systems.sdk_programs import Missing, tool

__all__ = ["BUILD_S_MAX", "prepare"]

MODULE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
BUILD_S_MAX = 240


def prepare() -> Path:
    """Build it where it is not yet, and return its path.

    Raises:
        Missing: there is no Go, or its sources are not to be had here.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whimbrel" / "h2spec"
    if not (folder / "h2spec").exists():
        command = [tool("go"), "install", MODULE]
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            command,
            env={**os.environ, "GOBIN": str(folder)},
            capture_output=True,
            text=True,
            timeout=BUILD_S_MAX,
            check=False,
        )
        if done.returncode:
            raise Missing(f"h2spec can't be built: {done.stderr.strip().splitlines()[-1]}")
    return folder / "h2spec"
