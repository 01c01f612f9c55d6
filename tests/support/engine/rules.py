"""Rules that a request can break, whatever it asks for: each alone, and each two of them at once."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Rule", "combinations", "plain"]


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


def combinations(rules: list[Rule]) -> Iterator[tuple[Rule, ...]]:
    """Return no rule, each rule, and each pair that can be broken at once."""
    yield ()
    for rule in rules:
        yield (rule,)
    for one, other in itertools.combinations(rules, 2):
        if one.what != other.what:
            yield one, other


IDS = re.compile("[0-9A-F]{32}")


def plain(text: str) -> str:
    """Return a text without what is another one each time."""
    return IDS.sub("ID", text)
