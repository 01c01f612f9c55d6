"""What acknowledgements, changes of the invisible time and forwards are answered, and what they change.

That is with each rule broken and with two of them at once. The files `settle_pairs_*.json` were recorded from
the path that decided these calls before there was an engine for them. Answers, their order and side effects
are to stay as they were:

    RECORD=1 pytest tests/unit/broker/engine/test_settle_pairs.py   records them anew; look at the difference
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.engine.recorded_pairs import broken_cases, check_recorded, played_parts
from support.engine.settle_rules import (
    AckCase,
    ChangeCase,
    ForwardCase,
    SettleCase,
    settle_combinations,
    settle_outcome,
)
from support.engine.turned import TurnedMaster, run_on_turned_loop, turned_master

HERE = Path(__file__).parent
CASES_AT_ONCE = 125  # of one broker: its tables are written whole
SHARE = 12  # CI plays one part of so many


async def outcomes(side: TurnedMaster, cases: list[tuple[str, SettleCase]]) -> dict[str, str]:
    """Return the outcomes of some cases, after their topics and groups were made."""
    side.topics.put_all([case.topic for _, case in cases if case.topic is not None])
    side.groups.put_all([case.config for _, case in cases if case.config is not None])
    return {name: await settle_outcome(side, case) for name, case in cases}


@pytest.mark.parametrize(
    ("name", "kind"), [("ack", AckCase), ("change", ChangeCase), ("forward", ForwardCase)]
)
def test_each_two_rules_broken_at_once(
    tmp_path: Path, name: str, kind: type[SettleCase], measured: Callable[[str], None]
) -> None:
    cases = list(broken_cases(kind, settle_combinations(kind)))

    async def play() -> dict[str, str]:
        found: dict[str, str] = {}
        for number, part in enumerate(played_parts(cases, CASES_AT_ONCE, SHARE)):
            async with turned_master(tmp_path / str(number)) as side:
                found |= await outcomes(side, part)
        return found

    found = run_on_turned_loop(play())
    check_recorded(HERE / f"settle_pairs_{name}.json", found, all_played=len(found) == len(cases))
    measured(f"{len(found)} of {len(cases)} cases as they were")
