"""What calls about positions are answered, and what they change, with each rule broken and each two at once.

The files `position_pairs_*.json` were recorded from the paths that decided these calls before there was an
engine for them. Answers, their order and side effects are to stay as they were:

    RECORD=1 pytest tests/unit/broker/engine/test_position_pairs.py    records them anew; look at what differs
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.engine.admin_cases import master_outcomes, slave_outcomes
from support.engine.position_rules import (
    ADMIN_CALLS,
    REMOTING_CALLS,
    V2_CALLS,
    PositionCase,
    position_combinations,
)
from support.engine.recorded_pairs import broken_cases, check_recorded, played_parts
from support.engine.turned import run_on_turned_loop

HERE = Path(__file__).parent
CASES_AT_ONCE = 260  # of one broker: its tables are written whole
SLAVE_CASES_AT_ONCE = 300  # of one slave
SHARE = 12  # CI plays one part of so many
KINDS = [("v2", V2_CALLS), ("remoting", REMOTING_CALLS), ("resets", ADMIN_CALLS)]


@pytest.mark.parametrize(("name", "calls"), KINDS, ids=[name for name, _ in KINDS])
def test_each_two_rules_broken_at_once(
    tmp_path: Path, name: str, calls: tuple[str, ...], measured: Callable[[str], None]
) -> None:
    cases = list(broken_cases(PositionCase, position_combinations(calls)))
    parts = played_parts(cases, CASES_AT_ONCE, SHARE)
    found = run_on_turned_loop(master_outcomes(tmp_path, parts))
    check_recorded(HERE / f"position_pairs_{name}.json", found, all_played=len(found) == len(cases))
    measured(f"{len(found)} of {len(cases)} cases as they were")


def test_a_slave_with_an_offset_or_a_position_and_another_rule_broken(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    calls = tuple(call for _, some in KINDS for call in some)
    cases = list(broken_cases(PositionCase, position_combinations(calls, slave=True)))
    parts = played_parts(cases, SLAVE_CASES_AT_ONCE, SHARE)
    found = run_on_turned_loop(slave_outcomes(tmp_path, parts))
    check_recorded(HERE / "position_pairs_slave.json", found, all_played=len(found) == len(cases))
    measured(f"{len(found)} of {len(cases)} cases as they were")
