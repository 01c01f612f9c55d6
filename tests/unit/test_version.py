"""One place says which version this is, and the pages that speak of versions agree with it.

A release is a commit whose version has no suffix: the part of CHANGELOG.md under its number is what is new in
it. The next commit says the next version with `.dev0`, opens `[Unreleased]` again, and names the release's
commit in docs/upgrade.md, from where tests of upgrades take it.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import whimbrel
from support.cluster.earlier import releases

REPO = Path(__file__).parents[2]
HEADINGS = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", (REPO / "CHANGELOG.md").read_text(), re.MULTILINE)
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(\.dev0)?")


def numbers(version: str) -> tuple[int, ...]:
    found = VERSION.fullmatch(version)
    assert found is not None, version
    return tuple(map(int, found.groups()[:3]))


def released() -> list[str]:
    """Return what CHANGELOG.md says was released, the newest first."""
    return [name for name, _ in HEADINGS if name != "Unreleased"]


def test_the_changelog_begins_with_this_version() -> None:
    newest, day = HEADINGS[0]
    if whimbrel.__version__.endswith(".dev0"):
        assert newest == "Unreleased" and numbers(whimbrel.__version__) > numbers(released()[0])
    else:
        assert newest == whimbrel.__version__ and re.fullmatch(r"\d{4}-\d\d-\d\d", day)
    assert released() == sorted(released(), key=numbers, reverse=True)


def test_nothing_else_says_a_version_of_its_own() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "services/whimbrel/__init__.py"
    crates = tomllib.loads((REPO / "native" / "Cargo.toml").read_text())["workspace"]["package"]
    assert crates["version"] == "0.0.0", "the lane comes within the wheel, whose version counts"


def test_the_page_of_upgrades_names_the_commit_of_each_release() -> None:
    assert sorted(releases()) == sorted(set(released()) - {whimbrel.__version__})


@pytest.mark.parametrize(("version", "commit"), releases().items())
def test_the_commit_of_a_release_says_its_version(version: str, commit: str) -> None:
    asked = ["git", "-C", str(REPO), "show", f"{commit}:services/whimbrel/__init__.py"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"commit {commit} is not in this clone")
    assert f'__version__ = "{version}"\n' in done.stdout
