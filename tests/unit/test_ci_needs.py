"""What a machine lacks is said before a run, with the tests that it costs and what to do."""

from pathlib import Path

import pytest

from ci import needs
from ci.needs import Need, lacking, modules, programs


def test_a_program_is_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs("one", "two")() == "no one and no two on the PATH"
    for name in ("one", "two"):
        (tmp_path / name).touch(0o755)
    assert programs("one", "two")() == ""


def test_a_module_is_looked_for_without_being_imported() -> None:
    assert modules("json", "no_such_module")() == "no module no_such_module"
    assert modules("json")() == ""


def test_only_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Need(lambda: "", "none", "nothing")
    absent = Need(lambda: "no such thing", "tests/things", "install it")
    monkeypatch.setattr(needs, "NEEDS", (there, absent))
    assert list(lacking()) == ["no such thing (install it); skipped: tests/things"]
