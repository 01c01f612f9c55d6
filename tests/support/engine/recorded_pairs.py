"""Outcomes of combinations of rules, as they are recorded in a file beside a test.

What takes long is played in parts, each on a broker of its own: the first one, which has no rule and each
rule alone, and one of `SHARE` of the others, another one with each commit (`FUZZ_SEED`). `ALL_PAIRS=1`, or
`make pairs`, plays all.

The environment variable `RECORD` has a test write its file: `new` without what was there before, any other
text with it, so that an outcome which differs from run to run has several texts.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from support.engine.rules import Rule

__all__ = ["broken_cases", "check_recorded", "played_parts"]

T = TypeVar("T")

RECORDS = os.environ.get("RECORD", "")
ALL = bool(RECORDS or os.environ.get("ALL_PAIRS"))
SHARE = 5
SEED = int(os.environ.get("FUZZ_SEED") or 0)


def broken_cases(kind: type[Any], combinations: Iterable[tuple[Rule, ...]]) -> Iterator[tuple[str, Any]]:
    """Return a case for each combination of rules, which breaks them, and their names."""
    for number, broken in enumerate(combinations):
        case = kind(number)
        for rule in broken:
            rule.apply(case)
        yield " + ".join(rule.name for rule in broken), case


def played_parts(cases: list[T], size: int, share: int = SHARE) -> list[list[T]]:
    """Return cases in parts of a size, those that are played: the first one, and one of `share` others."""
    share = 1 if ALL else share
    parts = [cases[at : at + size] for at in range(0, len(cases), size)]
    return [part for number, part in enumerate(parts) if not number or number % share == SEED % share]


def packed(found: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return outcomes as they are kept: each text once, and which names have it."""
    names: dict[str, list[str]] = {}
    for name, texts in found.items():
        for text in sorted(texts):
            names.setdefault(text, []).append(name)
    return names


def check_recorded(kept: Path, found: dict[str, str], *, all_played: bool = True) -> None:
    """Compare outcomes, by the names of what was broken, with a file, or record them there.

    Args:
        kept: the file. found: the outcomes.
        all_played: they are those of all combinations.
    """
    before: dict[str, set[str]] = {}
    if kept.exists() and RECORDS != "new":
        for text, names in json.loads(kept.read_text()).items():
            for each in names:
                before.setdefault(each, set()).add(text)
    if RECORDS:
        for each, text in found.items():
            before.setdefault(each, set()).add(text)
        kept.write_text(json.dumps(packed(before), indent=0, ensure_ascii=False) + "\n")
    played = {**before, **found} if all_played else found
    differing = [each for each in played if found.get(each) not in before.get(each, ())]
    assert not differing, "\n".join(
        f"{each}\n  was {before.get(each)}\n  is  {found.get(each)}" for each in differing[:10]
    )
