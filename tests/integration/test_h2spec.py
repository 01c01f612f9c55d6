"""The native transport under h2spec, which knows the rules of HTTP/2 better than we do: plain, and under TLS.

Needs Go: the program is built once, into ~/.cache/whimbrel. Without Go the test is skipped; with
REQUIRE_H2SPEC=1 that is a failure.
"""

import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.cluster.processes import Process

MODULE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
CASES_MIN = 140
BUILD_S_MAX, RUN_S_MAX = 240, 120


@pytest.fixture(scope="module")
def h2spec() -> Path:
    """Give the program."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whimbrel" / "h2spec"
    if (folder / "h2spec").exists():
        return folder / "h2spec"
    go = shutil.which("go")
    if go is None:
        problem = "h2spec is built with Go, which is not on the PATH"
        if os.environ.get("REQUIRE_H2SPEC"):
            pytest.fail(problem)
        pytest.skip(problem)
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, "install", MODULE],
        env={**os.environ, "GOBIN": str(folder)},
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
        check=False,
    )
    if done.returncode and not os.environ.get("REQUIRE_H2SPEC"):
        pytest.skip(f"h2spec can't be built: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder / "h2spec"


@pytest.mark.timeout(BUILD_S_MAX + RUN_S_MAX + 30)
@pytest.mark.parametrize("flags", [(), ("-t", "-k")], ids=["plain", "tls"])
def test_every_case_passes_and_none_is_skipped(h2spec: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    report = tmp_path / "junit.xml"
    with Process(tmp_path, "nameserver", "ns", transport="native") as server:
        host, _, port = server.grpc.rpartition(":")
        done = subprocess.run(
            [h2spec, "--strict", "-h", host, "-p", port, "-o", "5", "-j", report, *flags],
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    counts = [
        [int(suite.get(name) or 0) for name in ("tests", "failures", "errors", "skipped")] for suite in suites
    ]
    tests, failures, errors, skipped = (sum(column) for column in zip(*counts, strict=True))
    assert (failures, errors, skipped) == (0, 0, 0), done.stdout[-4000:]
    assert tests >= CASES_MIN
