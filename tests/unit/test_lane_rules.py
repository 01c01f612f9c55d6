"""The rules of `make lane-rules`: they are about the sources that are there, and count by what tests say."""

import contextlib
import multiprocessing
from pathlib import Path

import pytest

import lane_rules
from lane_rules import RULES, SOURCES, Broken, Copy, Rule, collected, failed, missed_of


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tests in a new process: one that is forked has what other tests left, and may hang on it."""
    monkeypatch.setattr(lane_rules, "FORKS", multiprocessing.get_context("spawn"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_what_a_rule_breaks_stands_once_in_its_file(rule: Rule) -> None:
    assert (SOURCES / rule.file).read_text().count(rule.old) == 1


def test_no_two_rules_have_the_same_name() -> None:
    names = [rule.name for rule in RULES]
    assert sorted(set(names)) == sorted(names)


LANE = """
import importlib


def lane() -> object:
    return importlib.import_module("whimbrel_lane")


"""


def folder(path: Path, tests: str) -> tuple[Path, str]:
    """Make a module that stands for a lane, and a file of tests."""
    module = path / "module"
    module.mkdir()
    (module / "whimbrel_lane.so").write_bytes(b"")
    file = path / "test_it.py"
    file.write_text(LANE + tests)
    return module, str(file)


@pytest.mark.usefixtures("own_process")
def test_tests_that_do_not_load_the_module_count_for_nothing(tmp_path: Path) -> None:
    module, file = folder(tmp_path, "def test_it():\n    assert False\n")
    with pytest.raises(Broken, match="the tests ran with"):
        failed(module, [file])


def test_tests_that_can_not_be_collected_count_for_nothing(tmp_path: Path) -> None:
    _, file = folder(tmp_path, "import a_module_that_is_not_there\n")
    with pytest.raises(Broken, match="can't be collected"), collected([(file,)]):
        pass


@pytest.mark.usefixtures("own_process")
def test_a_test_that_kills_its_process_has_failed(tmp_path: Path) -> None:
    module, file = folder(tmp_path, "import os\n\n\ndef test_it():\n    os.kill(os.getpid(), 9)\n")
    assert [name.rpartition("::")[2] for name in failed(module, [file])] == ["test_it"]


def failing(module: Path, words: tuple[str, ...]) -> list[str]:
    """Let a test fail with each module."""
    return ["tests/one.py::test_it"]


def test_a_rule_whose_test_fails_with_the_unchanged_lane_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_rules, "failed", failing)
    monkeypatch.setattr(Copy, "fill", lambda copy: copy.native.mkdir(parents=True))
    monkeypatch.setattr(Copy, "build", lambda copy, name: copy.root / name)
    monkeypatch.setattr(Copy, "finds", lambda copy, rule: ["tests/one.py::test_it"])
    monkeypatch.setattr(lane_rules, "collected", lambda suites: contextlib.nullcontext())
    with pytest.raises(Broken, match="fails with the unchanged lane"):
        missed_of(RULES[:1], tmp_path)
