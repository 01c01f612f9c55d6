"""Try wheels as a user would: installed into empty environments, without the compiled lane and with it.

python deploy/try_wheels.py dist
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def clean_environment() -> dict[str, str]:
    """Return this process's environment without what leads to the checkout."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WHIMBREL_") and name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }


def said(command: list[str | Path], cwd: Path) -> str:
    """Run a command; return what it wrote."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def uv() -> str:
    """Return uv: its cache has what pip would fetch each time, which `make release-check` has it do."""
    return shutil.which("uv") or str(Path(sys.executable).with_name("uv"))


def try_out(wheels: list[Path], expected: str) -> None:
    """Install wheels into a new environment and see whether the command says what is expected.

    Raises:
        SystemExit: it says something else.
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        said([uv(), "venv", "-q", "--python", sys.executable, "env"], root)
        said([uv(), "pip", "install", "-q", "--python", "env/bin/python", *wheels], root)
        version = said([root / "env/bin/whimbrel", "--version"], root)
    print(version)
    if not version.endswith(expected):
        sys.exit(f"the version should end with {expected!r}")


def main() -> None:
    """Try what lies in the directory."""
    folder = Path(sys.argv[1]).resolve()
    (plain,) = folder.glob("whimbrel-*.whl")
    try_out([plain], "lane off (not installed)")
    for lane in folder.glob("whimbrel_fast-*.whl"):
        try_out([plain, lane], f"lane {lane.name.split('-')[1]}")


if __name__ == "__main__":
    main()
