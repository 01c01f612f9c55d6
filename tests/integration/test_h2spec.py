"""Our HTTP/2 server under h2spec, which knows the rules of HTTP/2 better than we do: plain, and under TLS.

Needs Go: the program is built once, into ~/.cache/whimbrel. Without Go the test is skipped; with
REQUIRE_H2SPEC=1 that is a failure.
"""

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.cluster.processes import Process
from support.systems.h2spec import BUILD_S_MAX, prepare
from support.systems.sdk_programs import Missing

CASES_MIN = 140
RUN_S_MAX = 120


@pytest.fixture(scope="module")
def h2spec() -> Path:
    """Give the program."""
    try:
        return prepare()
    except Missing as error:
        if os.environ.get("REQUIRE_H2SPEC"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.mark.timeout(BUILD_S_MAX + RUN_S_MAX + 30)
@pytest.mark.parametrize("flags", [(), ("-t", "-k")], ids=["plain", "tls"])
def test_every_case_passes_and_none_is_skipped(h2spec: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    report = tmp_path / "junit.xml"
    with Process(tmp_path, "nameserver", "ns") as server:
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
