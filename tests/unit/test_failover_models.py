"""The models of automatic failover (tests/models) find what they should, the same each time."""

import pytest

from models.exhaustive import CASES, explore
from models.group import Left
from models.histories import KINDS, draw, run
from models.logs import consistent_point, difference, majority, seals
from models.rules import RULES
from models.state_steps import StateCase
from models.steps import Case, Steps


def test_seals_meet_commits() -> None:
    for voters in range(1, 8):
        copies = majority(voters)
        assert copies + seals(voters, copies) == voters + 1


def test_logs_part_at_the_lesser_end_of_their_newest_common_epoch() -> None:
    assert consistent_point(((1, 0), (2, 4)), 9, ((1, 0), (3, 6)), 8) == 4
    assert consistent_point(((1, 0), (2, 4)), 9, ((1, 0), (2, 4)), 7) == 7
    assert consistent_point(((1, 0),), 3, ((2, 0),), 3) == 0
    assert difference(((1, 0),), [1, 2], ((1, 0),), [1, 3]) == 1
    assert difference(((1, 0),), [1, 2], ((1, 0),), [1]) is None


def test_a_small_case_has_no_bad_group() -> None:
    outcome = explore(Case("small", entries_max=1, left=Left(restarts=1)))
    assert outcome.finding is None
    assert outcome.whole
    assert outcome.groups > 3_000


def test_without_seals_a_leader_lacks_what_is_committed() -> None:
    outcome = explore(Case("small"), frozenset({"R2"}))
    assert outcome.finding
    assert outcome.finding.kind == "I2"
    assert "0 commits up to 1 in epoch 1" in outcome.steps
    assert "1 leads epoch 2" in outcome.steps


def test_a_promise_without_its_candidate_makes_two_leaders_of_one_epoch() -> None:
    outcome = explore(CASES["a restored store"], frozenset({"R3b"}))
    assert outcome.finding
    assert outcome.finding.kind == "I1"


def test_a_small_case_beside_the_log_has_no_bad_group() -> None:
    outcome = explore(StateCase("small", epochs_max=2, lease_changes=1, table_changes=1))
    assert outcome.finding is None
    assert outcome.whole
    assert outcome.groups > 2_000


def test_an_answer_that_waits_for_nobody_is_forgotten() -> None:
    outcome = explore(CASES["leases"], frozenset({"Q0"}))
    assert outcome.finding
    assert outcome.finding.kind == "I11"
    assert "0 makes change 0 of leases, its number 2 in epoch 1" in outcome.steps
    assert outcome.steps[-1] == "1 begins epoch 2"


def test_what_only_grows_hides_what_a_deletion_that_is_taken_back_would_have_deleted() -> None:
    outcome = explore(CASES["deletions of topics"], frozenset({"Q7"}))
    assert outcome.finding
    assert outcome.finding.kind == "I3"


# 2 has an entry that nobody else has; 1 leads with what 0 and 1 have, and 2 cuts its own.
CUT_BY_A_LEADER = (
    "2 swaps epoch 1",
    "1 seals epoch 1 for 2 at (0, 0)",
    "2 leads epoch 1",
    "2 appends 1",
    "0 swaps epoch 2",
    "1 seals epoch 2 for 0 at (0, 0)",
    "0 leads epoch 2",
    "1 follows 0 in epoch 2 from 0",
    "0 appends 2",
    "1 takes entry 2 of 0",
    "1 swaps epoch 3",
    "2 seals epoch 3 for 1 at (1, 1)",
    "1 leads epoch 3",
    "2 follows 1 in epoch 3 from 0",
)


@pytest.mark.parametrize(
    "off", [frozenset[str](), frozenset({"R19"})], ids=["as it is", "a cut takes the vote"]
)
def test_who_has_cut_what_its_leader_said_elects_with_one_that_was_away(off: frozenset[str]) -> None:
    """A dead, B elected, C cut, B dead, A back: A and C elect."""
    steps = Steps(Case("cut", epochs_max=4, entries_max=2), off)
    group = steps.case.first()
    for line in CUT_BY_A_LEADER:
        group = next(after for name, after, _ in steps.after(group) if name == line)
    members = list(group.members)
    members[1] = members[1]._replace(gone=True)
    seen, waiting = {group}, [group._replace(members=tuple(members), leaders=())]
    while waiting:
        for _, after, finding in steps.after(waiting.pop()):
            assert finding is None
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    elected = any(leader.epoch == 4 for group in seen for leader in group.leaders)
    assert elected == (not off)


# 0 has stored again what waits, removed where it stood, and lost what it had stored: 1 leads without it.
LACKS_WHAT_WAITS = (
    "0 swaps epoch 1",
    "1 seals epoch 1 for 0 at (0, 0)",
    "0 leads epoch 1",
    "0 appends 1",
    "1 follows 0 in epoch 1 from 0",
    "1 takes entry 1 of 0",
    "0 commits up to 1 in epoch 1",
    "1 swaps epoch 2",
    "2 seals epoch 2 for 1 at (0, 0)",
    "1 leads epoch 2",
    "0 stores again, as 2, what waits",
    "0 removes its entry 1",
    "0 follows 1 in epoch 2 from 1",
    "0 swaps epoch 3",
    "1 seals epoch 3 for 0 at (2, 1)",
)


@pytest.mark.parametrize(
    ("off", "last"),
    [(set(), "0 gives epoch 3 up for what waits"), ({"R22"}, "0 leads epoch 3")],
    ids=["as it is", "nobody gives way"],
)
def test_who_lacks_what_waits_gives_way_to_an_equal_log(off: set[str], last: str) -> None:
    steps = Steps(CASES["what waits"], frozenset({"R21b", *off}))  # type: ignore[arg-type]
    group = steps.case.first()
    for line in LACKS_WHAT_WAITS:
        group = next(after for name, after, _ in steps.after(group) if name == line)
    ends = [
        name for name, _, _ in steps.after(group) if name.startswith(("0 gives epoch 3", "0 leads epoch 3"))
    ]
    assert ends == [last]


def test_one_seed_is_one_history() -> None:
    first, again, other = run(draw(7)), run(draw(7)), run(draw(7 + len(KINDS)))
    assert first.finding is None
    assert (first.events, first.counts, first.log) == (again.events, again.counts, again.log)
    assert first.log != other.log


def test_a_history_finds_that_a_rule_is_off() -> None:
    history = run(draw(2, "sync"), frozenset({"R4"}))
    assert history.finding
    assert history.finding.kind == "I2"


def test_each_rule_is_found_by_something_or_says_why_not() -> None:
    for rule in RULES.values():
        assert rule.cases or rule.histories or rule.note, rule.id
        assert all(case in CASES for case in rule.cases), rule.id
        assert not rule.histories or (rule.histories in KINDS and rule.seeds), rule.id
        assert all(other in RULES for other in rule.along), rule.id
