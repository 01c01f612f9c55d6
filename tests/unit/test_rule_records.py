"""Which rules a run breaks: those that have changed since they were found, and a share of the others."""

from collections.abc import Callable
from pathlib import Path

import pytest

import lane_rules
import models.run
import sim.run
from sim.election_rules import ELECTION_RULES, UNSEEN
from sim.rules import RULES
from support.provenance import REPOSITORY
from support.rule_records import FOLDER, chosen, definition, digest, record, recorded, sources

NOW = {f"rule {number}": f"{number}" for number in range(12)}


@pytest.mark.parametrize("share", [1, 3, 5, 12])
def test_each_rule_has_its_turn_within_as_many_commits_as_there_are_shares(share: int) -> None:
    turns = [chosen(NOW, NOW, share=share, commit=f"{number:x}") for number in range(share)]
    assert sorted(rule for rules in turns for rule in rules) == sorted(NOW)


@pytest.mark.parametrize("commit", ["0", "1", "2"])
def test_rules_that_have_changed_or_are_new_are_broken_with_every_commit(commit: str) -> None:
    passed = {**NOW, "rule 3": "another"}
    del passed["rule 4"]
    rules = chosen(NOW, passed, share=3, commit=commit)
    assert {"rule 3", "rule 4"} <= set(rules)
    assert rules == [rule for rule in NOW if rule in rules], "in their order"
    assert len(rules) < len(NOW)


def test_without_a_record_all_are_broken() -> None:
    assert chosen(NOW, {}, share=12, commit="5") == list(NOW)


def test_a_record_keeps_what_passed_before_and_forgets_what_is_no_rule_any_more(tmp_path: Path) -> None:
    record("set", {"a": "1", "b": "1"}, ["a", "b", "c"], tmp_path)
    record("set", {"a": "2"}, ["a", "c"], tmp_path)
    assert recorded("set", tmp_path) == {"a": "2"}
    assert recorded("other", tmp_path) == {}


def test_a_digest_is_of_the_text_and_of_what_is_in_the_files() -> None:
    here, other = Path(__file__), Path(sim.run.__file__)
    assert digest("a", [here, other]) == digest("a", [other, here])
    assert len({digest("a", [here]), digest("b", [here]), digest("a", [other]), digest("a", [])}) == 4


def test_what_switches_a_rule_off_is_its_entry_with_all_that_it_names() -> None:
    rules = REPOSITORY / "tests/sim/rules.py"
    text = definition(rules, "RULES", "the log's mark vouches for what is on disk")
    assert "'advance_mark'" in text
    assert "writer.save_mark(writer.end)" in text
    assert "def nothing" not in text


@pytest.mark.parametrize("rules", [RULES, ELECTION_RULES], ids=["sim", "elections"])
def test_the_digest_of_each_rule_of_the_simulation_covers_code_of_the_product(
    rules: dict[str, object],
) -> None:
    found = sim.run.digests(rules)  # type: ignore[arg-type]
    assert found.keys() == rules.keys() - UNSEEN
    for rule in found:
        files = sources(rules[rule])  # type: ignore[arg-type]
        assert files, rule
        assert all(path.is_relative_to(REPOSITORY) for path in files), rule


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("lane", lane_rules.digests),
        ("sim", lambda: sim.run.digests(RULES)),
        ("elections", lambda: sim.run.digests(ELECTION_RULES)),
        ("models", models.run.digests),
    ],
)
def test_the_records_name_rules_that_are_there(name: str, known: Callable[[], dict[str, str]]) -> None:
    assert (FOLDER / f"{name}.json").exists(), "write it by `make nightly`"
    assert recorded(name).keys() <= known().keys()
