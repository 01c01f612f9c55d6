"""What the handle of a test's cluster does by itself; `tests/integration/test_testing.py` runs clusters."""

import subprocess
import sys
from pathlib import Path

import pytest

from whimbrel.testing import Cluster, ClusterError
from whimbrel.testing import cluster as module


def test_synchronous_replication_needs_a_slave() -> None:
    with pytest.raises(ValueError, match="needs a slave"):
        Cluster(replication="sync")


def test_a_cluster_that_does_not_run_says_so() -> None:
    with pytest.raises(ClusterError, match="does not run"):
        Cluster().kill("master")


def test_an_excerpt_has_the_last_lines_since_the_mark_and_a_bound(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "quiet.log").write_text("before\n")
    (logs / "master.log").write_text("before\n")
    cluster = Cluster(directory=tmp_path)
    cluster.mark_logs()
    with (logs / "master.log").open("a") as log:
        log.writelines(f"line {number} {'x' * 1000}\n" for number in range(100))
    (logs / "new.log").write_text("new\n")
    excerpts = cluster.excerpts()
    assert set(excerpts) == {"master", "new"}
    lines = excerpts["master"].splitlines()
    assert len(lines) == module.EXCERPT_LINES_MAX
    assert max(map(len, lines)) == module.LINE_CHARS_MAX
    assert lines[-1].startswith("line 99 ")


@pytest.mark.parametrize("name", ["whimbrel.testing", "whimbrel.testing.plugin"])
def test_loading_it_loads_no_client(name: str) -> None:
    heavy = {"asyncio", "grpc", "google.protobuf", "typer", "rich", "whimbrel.client", "whimbrel.rpc"}
    code = f"import sys; old = set(sys.modules); import {name}; print(*(set(sys.modules) - old))"
    code = code if "plugin" not in name else f"import pytest; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(done.stdout.split())


def test_the_library_never_loads_pytest() -> None:
    code = "import sys, whimbrel.testing, whimbrel.client; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
