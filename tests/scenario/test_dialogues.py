"""Each dialogue of `tests/scenario` goes as its file says; `make scenarios` rewrites the files."""

from pathlib import Path

import pytest

from support.replication.dialogues import play

SCENARIOS = sorted(Path(__file__).resolve().parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_dialogue(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    found = play(expected)
    if request.config.getoption("rewrite"):
        path.write_text(found)
    else:
        assert found.splitlines() == expected.splitlines()


def test_the_folder_has_scenarios_and_each_says_what_it_shows() -> None:
    assert len(SCENARIOS) >= 10
    assert all(path.read_text().startswith("# ") for path in SCENARIOS)
