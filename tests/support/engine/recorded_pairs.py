"""Outcomes of combinations of rules, as they are recorded in a file beside a test.

The environment variable `RECORD` has a test write its file: `new` without what was there before, any other
text with it, so that an outcome which differs from run to run has several texts.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from support.engine.rules import Rule

__all__ = ["broken_cases", "check_recorded"]


def broken_cases(kind: type[Any], combinations: Iterable[tuple[Rule, ...]]) -> Iterator[tuple[str, Any]]:
    """Return a case for each combination of rules, which breaks them, and their names."""
    for number, broken in enumerate(combinations):
        case = kind(number)
        for rule in broken:
            rule.apply(case)
        yield " + ".join(rule.name for rule in broken), case


def packed(found: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return outcomes as they are kept: each text once, and which names have it."""
    names: dict[str, list[str]] = {}
    for name, texts in found.items():
        for text in sorted(texts):
            names.setdefault(text, []).append(name)
    return names


def check_recorded(kept: Path, found: dict[str, str]) -> None:
    """Compare outcomes, by the names of what was broken, with a file, or record them there."""
    before: dict[str, set[str]] = {}
    if kept.exists() and os.environ.get("RECORD") != "new":
        for text, names in json.loads(kept.read_text()).items():
            for each in names:
                before.setdefault(each, set()).add(text)
    if os.environ.get("RECORD"):
        for each, text in found.items():
            before.setdefault(each, set()).add(text)
        kept.write_text(json.dumps(packed(before), indent=0, ensure_ascii=False) + "\n")
    differing = [each for each in {**before, **found} if found.get(each) not in before.get(each, ())]
    assert not differing, "\n".join(
        f"{each}\n  was {before.get(each)}\n  is  {found.get(each)}" for each in differing[:10]
    )
