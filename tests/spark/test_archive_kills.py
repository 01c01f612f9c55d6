"""The driver of an archive is killed -9 at random moments: every message stands once, in any reader.

WHIMBREL_SOAK_KILLS=20     kills; 3 without
WHIMBREL_FAULT_SEED=...    repeats a run
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from processes import Cluster, environment, until
from spark.test_batch import fill

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]

KILLS = int(os.environ.get("WHIMBREL_SOAK_KILLS", "3"))
ROWS_PER_BATCH = 250
BATCHES_PER_KILL = 6
DELAY_S_MAX = 1.5  # two or three batches


def test_a_driver_that_is_killed_at_random_moments_archives_every_message_once(
    cluster: Cluster, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    seed = int(os.environ.get("WHIMBREL_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
    chance = random.Random(seed)
    total = ROWS_PER_BATCH * BATCHES_PER_KILL * (KILLS + 1)
    topic = f"archived-{KILLS}"
    fill(cluster, topic, total, queues=8)
    root = tmp_path / "archive"
    driver = Path(__file__).with_name("archive_driver.py")
    command = [sys.executable, str(driver), cluster.endpoint, topic, str(root), str(ROWS_PER_BATCH)]
    silent: Any = {"env": environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    kills = amid = 0
    for _ in range(KILLS):
        child = subprocess.Popen(command, start_new_session=True, **silent)
        wait_for_a_batch(child, root)
        time.sleep(chance.random() * DELAY_S_MAX)  # the moment of the kill: any is right
        kills += child.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        amid += bool(list(root.glob("_manifests/*/*.begun")))
        found = numbers(root)
        assert len(found) == len(set(found)), f"seed {seed}: something stands twice after a kill"
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = numbers(root)
    measured(
        f"seed {seed}: {kills} kills of the driver, {amid} of them within a batch; {total} written,"
        f" {len(found)} rows, {len(set(found))} distinct"
    )
    assert found == list(range(total))


def numbers(root: Path) -> list[int]:
    """Return the numbers in the bodies, as a reader sees them that knows nothing of us or Spark."""
    if not list(root.glob("topic=*")):
        return []
    table = ds.dataset(root, format="parquet", partitioning="hive")
    if "body" not in table.schema.names:
        return []
    return sorted(int(body.as_py()) for body in table.to_table(columns=["body"])["body"])


def wait_for_a_batch(driver: "subprocess.Popen[bytes]", root: Path) -> None:
    """Wait until a driver has ended a batch, or itself."""

    def count() -> int:
        return len(list(root.glob("_manifests/*/[0-9]*.json")))

    before = count()
    until(lambda: driver.poll() is not None or count() > before, timeout=120, what="a batch")
