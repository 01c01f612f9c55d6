"""What a pull is answered, and what it changes, with each rule broken and with each two of them at once.

The files `pull_pairs_*.json` were recorded from the two paths that decided pulls before there was an engine
for them. Answers, their order and side effects are to stay as they were; a pull that waits goes on in a fixed
way (`COMES`), and is asked for its answer after each step:

    RECORD=1 pytest tests/unit/broker/engine/test_pull_pairs.py     records them anew; look at the difference
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.engine.pull_rules import (
    REMOTING_PULL_RULES,
    V2_PULL_RULES,
    RemotingPullCase,
    V2PullCase,
    pull_combinations,
    pull_outcome,
    slave_combinations,
)
from support.engine.pull_sides import Side, SlaveSide, master_side
from support.engine.recorded_pairs import broken_cases, check_recorded, played_parts
from support.engine.rules import Rule
from support.engine.turned import run_on_turned_loop

HERE = Path(__file__).parent
CASES_AT_ONCE = 400  # of one broker: its tables are written whole


async def outcomes(side: Side, cases: list[tuple[str, Any]]) -> dict[str, str]:
    """Return the outcomes of some cases, after their topics and groups were made."""
    side.topics.put_all([case.topic for _, case in cases if case.topic is not None])
    side.groups.put_all([case.config for _, case in cases if case.config is not None])
    return {name: await pull_outcome(side, case) for name, case in cases}


BOTH = pytest.mark.parametrize(
    ("name", "kind", "rules"),
    [("v2", V2PullCase, V2_PULL_RULES), ("remoting", RemotingPullCase, REMOTING_PULL_RULES)],
    ids=["v2", "remoting"],
)


@BOTH
def test_each_two_rules_broken_at_once(
    tmp_path: Path, name: str, kind: type[Any], rules: list[Rule], measured: Callable[[str], None]
) -> None:
    cases = list(broken_cases(kind, pull_combinations(rules)))

    async def play() -> dict[str, str]:
        found: dict[str, str] = {}
        for number, part in enumerate(played_parts(cases, CASES_AT_ONCE)):
            async with master_side(tmp_path / str(number)) as side:
                found |= await outcomes(side, part)
        return found

    found = run_on_turned_loop(play())
    check_recorded(HERE / f"pull_pairs_{name}.json", found, all_played=len(found) == len(cases))
    measured(f"{len(found)} of {len(cases)} cases as they were")


@BOTH
def test_a_slave_with_an_offset_and_another_rule_broken(
    tmp_path: Path, name: str, kind: type[Any], rules: list[Rule]
) -> None:
    async def play() -> dict[str, str]:
        with closing(SlaveSide(tmp_path)) as side:
            return await outcomes(side, list(broken_cases(kind, slave_combinations(rules))))

    check_recorded(HERE / f"pull_pairs_{name}_slave.json", run_on_turned_loop(play()))


def test_pulls_that_wait_when_the_role_ends(tmp_path: Path) -> None:
    async def play() -> list[str]:
        cases = [V2PullCase(0), RemotingPullCase(1)]
        async with master_side(tmp_path) as side:
            side.topics.put_all([case.topic for case in cases])
            side.groups.put_all([case.config for case in cases])
            started = [case.begin(side) for case in cases]
            assert all(each.waits for each in started)
        return [each.state for each in started]

    assert run_on_turned_loop(play()) == [
        "20000 OK next 0 (whimbrel-suggest-broker-id 0)",
        "2 the broker is stopping",
    ]
