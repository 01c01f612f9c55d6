"""What was not run in full for too long fails `.ci/run`."""

import subprocess
from pathlib import Path

import pytest

from ci import full_runs
from ci.full_runs import COMMITS_MAX, FullRun, judged, load, save
from ci.plan import PLANS

RUN = FullRun("abc", "2026-11-28", 12.5)


def test_what_was_run_within_the_limit_is_recent() -> None:
    old, said = judged({"rules": RUN}, {"rules": COMMITS_MAX}, shallow=False)
    assert not old
    assert "within the last 30 commits" in said


@pytest.mark.parametrize(
    ("run", "age", "day"),
    [(RUN, COMMITS_MAX + 1, "2026-11-28"), (None, None, "never"), (RUN, None, "2026-11-28")],
    ids=["older", "never", "of a commit that is none of HEAD's"],
)
def test_what_is_older_or_unknown_fails_and_says_what_to_do(
    run: FullRun | None, age: int | None, day: str
) -> None:
    old, said = judged({"rules": run, "seeds": RUN}, {"rules": age, "seeds": 1}, shallow=False)
    assert old == ["rules"]
    assert f"rules: {day}" in said
    assert 'make nightly PARTS="rules"' in said


def test_a_clone_without_the_history_says_that_it_cannot_judge() -> None:
    old, said = judged({"rules": RUN}, {"rules": None}, shallow=True)
    assert not old
    assert "can't be judged" in said


def test_the_record_is_read_back(tmp_path: Path) -> None:
    save({"rules": RUN}, tmp_path / "runs.json")
    assert load(tmp_path / "runs.json") == {"rules": RUN}
    assert load(tmp_path / "none.json") == {}


def test_a_merged_branch_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *names, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "first")
    first = git("rev-parse", "HEAD")
    git("switch", "-q", "-c", "side")
    for number in range(3):
        git("commit", "-q", "--allow-empty", "-m", f"side {number}")
    side = git("rev-parse", "HEAD")
    git("switch", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merged", "side")
    monkeypatch.setattr(full_runs, "REPOSITORY", tmp_path)
    assert full_runs.age(first) == 1
    assert full_runs.age(side) == 1
    assert full_runs.age(git("rev-parse", "HEAD")) == 0
    assert full_runs.age("0" * 40) is None
    assert not full_runs.shallow()


def test_the_record_names_parts_of_the_nightly_plan() -> None:
    assert load().keys() <= {part.name for part in PLANS["nightly"]()}
