"""What calls about dead letters are answered, and what they change, with each two rules broken at once.

`letter_pairs.json` and `letter_pairs_slave.json` were recorded from the path that decided these calls before
there was an engine for them. Answers, their order and side effects are to stay as they were:

    RECORD=1 pytest tests/unit/broker/engine/test_letter_pairs.py  records them anew; look at the difference
"""

from collections.abc import Callable
from pathlib import Path

from support.engine.admin_cases import master_outcomes, slave_outcomes
from support.engine.letter_rules import LetterCase, letter_combinations
from support.engine.recorded_pairs import broken_cases, check_recorded, played_parts
from support.engine.turned import run_on_turned_loop

HERE = Path(__file__).parent
CASES_AT_ONCE = 190  # of one broker
SHARE = 12  # CI plays one part of so many


def test_each_two_rules_broken_at_once(tmp_path: Path, measured: Callable[[str], None]) -> None:
    cases = list(broken_cases(LetterCase, letter_combinations()))
    found = run_on_turned_loop(master_outcomes(tmp_path, played_parts(cases, CASES_AT_ONCE, SHARE)))
    check_recorded(HERE / "letter_pairs.json", found, all_played=len(found) == len(cases))
    measured(f"{len(found)} of {len(cases)} cases as they were")


def test_a_slave(tmp_path: Path, measured: Callable[[str], None]) -> None:
    cases = list(broken_cases(LetterCase, letter_combinations(slave=True)))
    found = run_on_turned_loop(slave_outcomes(tmp_path, played_parts(cases, CASES_AT_ONCE, SHARE)))
    check_recorded(HERE / "letter_pairs_slave.json", found, all_played=len(found) == len(cases))
    measured(f"{len(found)} of {len(cases)} cases as they were")
