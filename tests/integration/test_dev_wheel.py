"""The built wheel, installed with pip into an empty environment outside the checkout, runs a cluster."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from processes import until

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_runs_whimbrel_dev(tmp_path: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WHIMBREL_") and name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }

    def run(*command: str | Path) -> None:
        subprocess.run(list(map(str, command)), check=True, cwd=tmp_path, env=environment)

    run(sys.executable, "-m", "venv", tmp_path / "build")
    run(
        tmp_path / "build" / "bin" / "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "dist", REPO
    )  # fmt: skip
    (wheel,) = (tmp_path / "dist").glob("whimbrel-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "env")
    run(tmp_path / "env" / "bin" / "pip", "install", "-q", wheel)
    where = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", "import whimbrel; print(whimbrel.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(tmp_path))

    command = [str(tmp_path / "env/bin/whimbrel"), "dev", "--dir", str(tmp_path / "cluster"), "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as running:
        described = tmp_path / "cluster" / "cluster.json"
        try:
            until(lambda: described.exists() or running.poll() is not None, timeout=60, what="the cluster")
            assert running.poll() is None
            assert len(json.loads(described.read_text())["processes"]) == 5
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0
