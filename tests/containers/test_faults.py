"""The table of faults, each under load with synchronous replication (fault_run.py says what is checked).

CI runs one case of each fault; `make faults` runs all, and writes the page of results.

    WHIMBREL_FAULT_SEED    repeat a run
    WHIMBREL_FAULT_PAGE    write the results to this file
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from containers.fault_run import Result, run
from containers.faults import CASES, RECOVERY_S, Case
from containers.page import page
from containers.rig import Rig
from support import provenance

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

HOLD_S_MAX = 12.0  # longer than a broker's lease of 8 s
HOLD_QUICK_S_MAX = 4.0


@pytest.fixture(scope="module")
def seed() -> int:
    return provenance.seed()


@pytest.fixture(scope="module")
def results(seed: int) -> Iterator[list[Result]]:
    """Collect the results, and write the page when that is asked for and all cases have passed."""
    commit = provenance.commit()
    print(f"seed {seed}, commit {commit}")
    collected: list[Result] = []
    yield collected
    path = os.environ.get("WHIMBREL_FAULT_PAGE")
    if path and len(collected) == len(CASES):
        Path(path).write_text(page(collected, seed=seed, commit=commit), encoding="utf-8")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.quick else pytest.mark.slow) for case in CASES],
)
def test_nothing_acknowledged_is_lost_and_all_recover_by_themselves(
    case: Case,
    rigs: Callable[..., Rig],
    iptables: str,
    seed: int,
    results: list[Result],
    measured: Callable[[str], None],
    tmp_path: Path,
) -> None:
    rig = rigs(small=case.fault == "full disk", REPLICATION="sync")
    hold = HOLD_S_MAX if os.environ.get("WHIMBREL_FAULT_PAGE") else HOLD_QUICK_S_MAX
    result = run(rig, case, iptables=iptables, folder=tmp_path, seed=seed, hold_s_max=hold)
    results.append(result)
    measured(
        f"seed {seed}: held for {result.held_s:g} s, {result.acknowledged} acknowledged,"
        f" {result.failed} given up, {result.delivered} delivered, {result.read} read,"
        f" findings {dict(result.findings)}, serves {result.served_s:.1f} s after, next message"
        f" {result.recovered_s:.1f} s after, steady {result.steady_s:.1f} s after (bound {RECOVERY_S:g} s)"
    )
    assert not result.findings


def test_stores_are_whole_after_all_faults(rigs: Callable[..., Rig], image: str) -> None:
    rig = rigs(REPLICATION="sync")
    assert set(rig.stop().values()) == {0}
    for role in ("master", "slave"):
        rig.verify(role, image)
