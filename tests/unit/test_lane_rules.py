"""The rules of `make lane-rules` are about the sources that are there."""

import pytest

from lane_rules import RULES, SOURCES, Rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_what_a_rule_breaks_stands_once_in_its_file(rule: Rule) -> None:
    assert (SOURCES / rule.file).read_text().count(rule.old) == 1
