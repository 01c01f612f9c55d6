"""What calls about topics and groups are answered, and what they change, with each two rules broken at once.

The files `topic_pairs_*.json` and `group_pairs_*.json` were recorded from the paths that decided these calls
before there was an engine for them. Answers, their order and side effects are to stay as they were:

    RECORD=1 pytest tests/unit/broker/engine/test_table_pairs.py   records them anew; look at the difference
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.engine.admin_cases import master_outcomes, slave_outcomes
from support.engine.recorded_pairs import broken_cases, check_recorded, played_parts
from support.engine.table_rules import GROUP_CALLS, TOPIC_CALLS, TableCase, table_combinations
from support.engine.turned import run_on_turned_loop

HERE = Path(__file__).parent
CASES_AT_ONCE = 180  # of one broker
SLAVE_CASES_AT_ONCE = 300  # of one slave
SHARE = 12  # CI plays one part of so many
KINDS = [
    (f"{kind}_{protocol}", calls)
    for kind, table in (("topic_pairs", TOPIC_CALLS), ("group_pairs", GROUP_CALLS))
    for protocol, calls in table.items()
]


@pytest.mark.parametrize(("name", "calls"), KINDS, ids=[name for name, _ in KINDS])
def test_each_two_rules_broken_at_once(
    tmp_path: Path, name: str, calls: tuple[str, ...], measured: Callable[[str], None]
) -> None:
    cases = list(broken_cases(TableCase, table_combinations(calls)))
    found = run_on_turned_loop(master_outcomes(tmp_path, played_parts(cases, CASES_AT_ONCE, SHARE)))
    check_recorded(HERE / f"{name}.json", found, all_played=len(found) == len(cases))
    measured(f"{len(found)} of {len(cases)} cases as they were")


def test_a_slave(tmp_path: Path, measured: Callable[[str], None]) -> None:
    calls = tuple(call for _, some in KINDS for call in some)
    cases = list(broken_cases(TableCase, table_combinations(calls, slave=True)))
    found = run_on_turned_loop(slave_outcomes(tmp_path, played_parts(cases, SLAVE_CASES_AT_ONCE, SHARE)))
    check_recorded(HERE / "table_pairs_slave.json", found, all_played=len(found) == len(cases))
    measured(f"{len(found)} of {len(cases)} cases as they were")
