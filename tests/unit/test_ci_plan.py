"""The plans of `make test`, `.ci/run` and `make nightly`: what is in them, and in which order."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.plan import (
    IDLE,
    IN_MEMORY,
    MARKED_LANE,
    MARKED_TRANSPORT,
    NOTHING_SKIPPED,
    PLANS,
    PYTEST,
    QUICK,
    SLOW,
    WITHOUT_LANE,
    Part,
)
from support.provenance import REPOSITORY

TESTS = REPOSITORY / "tests"


@pytest.fixture(params=list(PLANS))
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    monkeypatch.setenv("REQUIRE_LANE", "1")
    return PLANS[str(request.param)]()


def folders_with_tests() -> Iterator[str]:
    for folder in sorted(path for path in TESTS.iterdir() if path.is_dir()):
        if any(folder.rglob("test_*.py")):
            yield f"tests/{folder.name}"


def test_a_name_is_one_part_and_one_file(parts: list[Part]) -> None:
    names = [part.name for part in parts]
    assert len(set(names)) == len(names)
    assert not [name for name in names if Path(name).name != name or " " in name]


def test_no_part_waits_for_itself_or_for_one_behind_it_in_its_track(parts: list[Part]) -> None:
    ended: set[str] = set()
    left = {
        track: [part for part in parts if part.track == track] for track in {part.track for part in parts}
    }
    while any(left.values()):
        ready = [queue for queue in left.values() if queue and set(queue[0].after) <= ended]
        assert ready, f"these wait for ever: {[queue[0].name for queue in left.values() if queue]}"
        ended.update(queue.pop(0).name for queue in ready)


@pytest.mark.parametrize("folder", list(folders_with_tests()))
def test_every_test_is_run_once_by_default(folder: str) -> None:
    usual = [
        part for part in PLANS["test"]() if part.tests and "WHIMBREL_CLIENT_TRANSPORT" not in part.environment
    ]
    assert len([part for part in usual if folder in part.command]) == 1


@pytest.mark.parametrize("folder", list(folders_with_tests()))
@pytest.mark.parametrize(("marks", "environment"), [(QUICK, WITHOUT_LANE), (SLOW, NOTHING_SKIPPED)])
def test_every_night_each_test_is_run_without_the_lane_and_those_that_are_slow_with_it(
    folder: str, marks: tuple[str, ...], environment: dict[str, str]
) -> None:
    found = [
        part
        for part in PLANS["nightly"]()
        if part.tests
        and folder in part.command
        and part.command[len(PYTEST) :][: len(marks)] == marks
        and environment.items() <= part.environment.items()
        and part.environment.items() >= NOTHING_SKIPPED.items()
    ]
    assert len(found) == (0 if folder in IN_MEMORY and marks == SLOW else 1)


def test_tests_in_memory_are_not_slow() -> None:
    word = re.compile(r"mark\.slow\b")
    for folder in IN_MEMORY:
        for path in (REPOSITORY / folder).rglob("test_*.py"):
            assert not word.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("name", [part.name for part in PLANS["test"]()])
def test_ci_runs_what_the_test_command_runs(name: str) -> None:
    usual, continuous = ({part.name: part for part in PLANS[plan]()} for plan in ("test", "ci"))
    assert continuous[name].command == usual[name].command


def test_what_is_idle_has_no_time_limits(parts: list[Part]) -> None:
    for part in parts:
        assert part.idle == (part.track == IDLE)
        assert not (part.idle and part.tests), "a test that gets no time fails by its limit"


def test_without_cargo_nothing_of_the_lane_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUIRE_LANE", raising=False)
    without = {part.name for part in PLANS["ci"]()}
    monkeypatch.setenv("REQUIRE_LANE", "1")
    assert {part.name for part in PLANS["ci"]()} - without == {"no-lane", "lane-rules"}


@pytest.mark.parametrize(
    ("mark", "folders"), [("transport", MARKED_TRANSPORT), ("lane", MARKED_LANE)], ids=["transport", "lane"]
)
def test_all_that_runs_once_more_is_in_the_folders_that_are_looked_at(
    mark: str, folders: tuple[str, ...]
) -> None:
    """The marks of `transport` stand in the files, those of `lane` in a list in tests/conftest.py."""
    if mark == "lane":
        listed = re.search(r"^LANE_TESTS = \((.*?)^\)", (TESTS / "conftest.py").read_text(), re.S | re.M)
        marked = [REPOSITORY / name for name in re.findall(r'"(.*?)"', listed[1] if listed else "")]
    else:
        word = re.compile(rf"mark\.{mark}\b")
        marked = [path for path in TESTS.rglob("test_*.py") if word.search(path.read_text(encoding="utf-8"))]
    assert len(marked) > 5
    for path in marked:
        assert any(path.is_relative_to(REPOSITORY / folder) for folder in folders), path
