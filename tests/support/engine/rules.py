"""Rules that a request can break, whatever it asks for: each alone, and each two of them at once."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Rule", "combinations", "each_once", "plain"]


@dataclass(frozen=True)
class Rule:
    """A rule that a request breaks, or something unusual that it does.

    Attributes:
        name: in a few words.
        what: of the case it sets; of two rules that set the same, only one can be broken.
        apply: changes the case.
    """

    name: str
    what: str
    apply: Callable[[Any], object]


def combinations(
    rules: list[Rule], beside: Mapping[str, frozenset[str]] | None = None
) -> Iterator[tuple[Rule, ...]]:
    """Return no rule, each rule, and each pair that can be broken at once.

    Args:
        rules: the rules.
        beside: beside which others rules are broken, where not beside all; by what they set.
    """
    beside = beside or {}
    yield ()
    for rule in rules:
        yield (rule,)
    for one, other in itertools.combinations(rules, 2):
        fits = other.what in beside.get(one.what, (other.what,)) and one.what in beside.get(
            other.what, (one.what,)
        )
        if one.what != other.what and fits:
            yield one, other


def each_once(broken: Iterable[tuple[Rule, ...]]) -> Iterator[tuple[Rule, ...]]:
    """Return combinations, each once."""
    told: set[frozenset[str]] = set()
    for rules in broken:
        names = frozenset(rule.name for rule in rules)
        if names not in told:
            told.add(names)
            yield rules


IDS = re.compile("[0-9A-F]{32}")


def plain(text: str) -> str:
    """Return a text without what is another one each time."""
    return IDS.sub("ID", text)
