"""When what `.ci/run` does by shares, or leaves out, was last done in full: `.ci/full-runs.json`.

`make nightly` runs each part in full and notes commit and date of those that passed; the file is committed
like any other. `.ci/run` fails where a part's last full run is older than `COMMITS_MAX` commits, counted
along the first parents of HEAD, so that a merged branch counts once. Whoever meets the limit runs `make
nightly` (or the parts that are too old: `make nightly PARTS="..."`) and commits the file.

A clone without the history can't judge that, and says so.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from support.provenance import REPOSITORY

__all__ = ["COMMITS_MAX", "FullRun", "check", "judged", "load", "save"]

COMMITS_MAX = 30
PATH = REPOSITORY / ".ci" / "full-runs.json"


@dataclass(frozen=True)
class FullRun:
    """The last full run of a part: its commit, its day, and how long it took.

    Attributes:
        passed, skipped: how many tests pytest ran in it; none where it is no run of pytest.
    """

    commit: str
    date: str
    seconds: float
    passed: int = 0
    skipped: int = 0


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """Ask git; what it can't answer has another code than 0."""
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def shallow() -> bool:
    """Return whether this clone ends before the history does."""
    return git("rev-parse", "--is-shallow-repository").stdout.strip() == "true"


def age(commit: str) -> int | None:
    """Return how many first parents of HEAD are no part of a commit's history; None: it is none of HEAD's."""
    if git("merge-base", "--is-ancestor", commit, "HEAD").returncode:
        return None
    return int(git("rev-list", "--first-parent", "--count", f"{commit}..HEAD").stdout)


def load(path: Path = PATH) -> dict[str, FullRun]:
    """Return the last full run of each part."""
    if not path.exists():
        return {}
    return {name: FullRun(**run) for name, run in json.loads(path.read_text(encoding="utf-8")).items()}


def save(runs: Mapping[str, FullRun], path: Path = PATH) -> None:
    """Write them."""
    text = json.dumps({name: asdict(runs[name]) for name in sorted(runs)}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def judged(
    runs: Mapping[str, FullRun | None], ages: Mapping[str, int | None], *, shallow: bool
) -> tuple[list[str], str]:
    """Return the parts that were not run in full for too long, and what there is to say of all.

    Args:
        runs: the last one of each part, if there was one.
        ages: of their commits, in commits; None: not among those that HEAD has.
    """
    old = [name for name, run in runs.items() if run is None or (ages[name] or 0) > COMMITS_MAX]
    lost = [name for name, run in runs.items() if run is not None and ages[name] is None]
    if lost and shallow:
        return (
            old,
            "this clone has not the whole history: how old the last full runs are can't be judged in it",
        )
    old += lost
    if not old:
        return [], f"each part was run in full within the last {COMMITS_MAX} commits"
    lines = [f"    {name}: {run.date if (run := runs[name]) else 'never'}" for name in old]
    return old, "\n".join(
        [
            f"not run in full within the last {COMMITS_MAX} commits:",
            *lines,
            f'run `make nightly PARTS="{" ".join(old)}"`, and commit .ci/full-runs.json',
        ]
    )


def check(parts: Iterable[str]) -> tuple[list[str], str]:
    """Judge this clone: see `judged`."""
    known = load()
    runs = {name: known.get(name) for name in parts}
    ages = {name: age(run.commit) if run else None for name, run in runs.items()}
    return judged(runs, ages, shallow=shallow())
