"""What a receive is answered, and what it changes, with each rule broken and with each two of them at once.

`take_pairs.json` was recorded from the path that decided receives before there was an engine for them.
Answers, their order and side effects are to stay as they were; a receive that waits goes on in a fixed way
(`COMES` of `take_rules.py`), and is asked for its answer after each step:

    RECORD=1 pytest tests/unit/broker/engine/test_take_pairs.py     records them anew; look at the difference
"""

from collections.abc import Callable
from pathlib import Path

from support.engine.recorded_pairs import broken_cases, check_recorded, played_parts
from support.engine.take_rules import TakeCase, begin_take, take_combinations, take_outcome
from support.engine.turned import TurnedMaster, run_on_turned_loop, turned_master

HERE = Path(__file__).parent
CASES_AT_ONCE = 300  # of one broker: its tables are written whole
SHARE = 8  # CI plays one part of so many


async def outcomes(side: TurnedMaster, cases: list[tuple[str, TakeCase]]) -> dict[str, str]:
    """Return the outcomes of some cases, after their topics and groups were made."""
    side.topics.put_all([case.topic for _, case in cases if case.topic is not None])
    side.groups.put_all([case.config for _, case in cases if case.config is not None])
    await side.pass_time(6)  # so that no receive is let go because the role has just begun
    return {name: await take_outcome(side, case) for name, case in cases}


def test_each_two_rules_broken_at_once(tmp_path: Path, measured: Callable[[str], None]) -> None:
    cases = list(broken_cases(TakeCase, take_combinations()))

    async def play() -> dict[str, str]:
        found: dict[str, str] = {}
        for number, part in enumerate(played_parts(cases, CASES_AT_ONCE, SHARE)):
            async with turned_master(tmp_path / str(number)) as side:
                found |= await outcomes(side, part)
        return found

    found = run_on_turned_loop(play())
    check_recorded(HERE / "take_pairs.json", found, all_played=len(found) == len(cases))
    measured(f"{len(found)} of {len(cases)} cases as they were")


def test_receives_that_wait_when_the_role_ends(tmp_path: Path) -> None:
    async def play() -> list[str]:
        async with turned_master(tmp_path) as side:
            parked, held = TakeCase(0), TakeCase(1)
            for case in (parked, held):
                case.began_ms = side.clock.now_ms
                side.topics.put(case.topic)
                side.groups.put(case.config)
            started = [begin_take(side, parked)]
            side.takes.serves = False
            started.append(begin_take(side, held))
            assert all(each.waits for each in started)
        return [each.state for each in started]

    assert run_on_turned_loop(play()) == ["40401 no new message +0", "40401 no new message +0"]
