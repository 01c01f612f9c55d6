"""RocketMQ 4.9.3's own integration tests pass against our servers: the quick ones of them.

They share a cluster, and are one case. `make official` runs all, and writes docs/official.md.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from official.classes import QUICK
from official.clusters import started
from official.run import told
from official.running import prepare, run
from support.systems.sdk_programs import Missing

JOBS = 2  # JVMs; they mostly wait

pytestmark = [pytest.mark.interop, pytest.mark.process]


@pytest.mark.timeout(600)
def test_rocketmqs_own_quick_tests_pass(tmp_path: Path, measured: Callable[[str], None]) -> None:
    try:
        prepare()
    except Missing as error:
        pytest.skip(f"RocketMQ's tests can't be run here: {error}")
    with started("ours", tmp_path) as cluster:
        outcomes = list(run(QUICK, cluster.name_server, tmp_path / "run", jobs=JOBS))
    measured(f"{len(outcomes)} classes, {sum(outcome.tests for outcome in outcomes)} tests of RocketMQ's")
    assert sorted(outcome.name for outcome in outcomes) == sorted(QUICK)
    assert "\n".join(told(outcome) for outcome in outcomes if not outcome.passed) == ""
