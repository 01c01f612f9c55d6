"""Which rules were found with which sources: the records of programs that break rules one by one.

Four sets of rules test the tests (`lane`, `sim`, `elections`, `models`): a rule of the code is broken or
switched off, and something must notice. All of them take a quarter of an hour, so a run with `--share n`
takes the rules that have changed, and of the others one of n, others with each commit.

A rule has changed when its digest is another one than the recorded: it covers what breaks the rule, the files
of the code that is broken, and whatever else the set names. The records are tracked files, a set each
(`.ci/passed-rules/SET.json`, rule to digest), so that a fresh clone knows as much; `--record` writes them, of
the rules that were found. A rule without a record has changed.
"""

import ast
import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support.provenance import REPOSITORY

__all__ = ["chosen", "definition", "digest", "record", "recorded", "sources"]

FOLDER = REPOSITORY / ".ci" / "passed-rules"
DIGITS = 16


def digest(text: str, files: Iterable[Path]) -> str:
    """Return what stands for a text and the contents of files, with their paths."""
    state = hashlib.sha256(text.encode())
    for path in sorted(set(files)):
        state.update(f"\0{path.relative_to(REPOSITORY)}\0".encode())
        state.update(path.read_bytes())
    return state.hexdigest()[:DIGITS]


def chosen(digests: Mapping[str, str], passed: Mapping[str, str], *, share: int, commit: str) -> list[str]:
    """Return the rules to break: those that have changed since they passed, and one of `share` of the others.

    Args:
        digests: of all rules, as they are now.
        passed: of those that were found, as they were then.
        commit: decides which of the others, in hexadecimal digits.
    """
    same = [rule for rule in digests if passed.get(rule) == digests[rule]]
    picked = set(same[int(commit, 16) % share :: share])
    return [rule for rule in digests if rule in picked or passed.get(rule) != digests[rule]]


def recorded(name: str, folder: Path = FOLDER) -> dict[str, str]:
    """Return the record of a set."""
    path = folder / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def record(name: str, found: Mapping[str, str], known: Iterable[str], folder: Path = FOLDER) -> None:
    """Add rules that were found to the record of a set, and take out those that are no longer known."""
    kept = recorded(name, folder) | dict(found)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({rule: kept[rule] for rule in known if rule in kept}, indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def sources(patches: Iterable[tuple[Any, str, Any]]) -> set[Path]:
    """Return the files of the modules and classes that patches change."""
    return {Path(inspect.getfile(what)) for what, _, _ in patches}


def definition(path: Path, table: str, key: str) -> str:
    """Return what an entry of a module's table says, with all of the module that it names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    assigned = next(
        each.value
        for each in tree.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id == table
    )
    assert isinstance(assigned, ast.Dict), f"{table} is a dict that is written out"
    entries = zip(assigned.keys, assigned.values, strict=True)
    found: dict[str, ast.AST] = {
        key: next(value for name, value in entries if isinstance(name, ast.Constant) and name.value == key)
    }
    left = [found[key]]
    while left:
        for each in ast.walk(left.pop()):
            if isinstance(each, ast.Name) and each.id in defined and each.id not in found:
                found[each.id] = defined[each.id]
                left.append(found[each.id])
    return "\n".join(ast.unparse(found[name]) for name in [key, *sorted(found.keys() - {key})])
