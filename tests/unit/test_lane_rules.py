"""The rules of `make lane-rules` are about the sources that are there."""

from pathlib import Path

import pytest

from lane_rules import REPO, RULES, Rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_what_a_rule_breaks_stands_once_in_its_file(rule: Rule) -> None:
    assert Path(REPO / "native/core/src" / rule.file).read_text().count(rule.old) == 1
