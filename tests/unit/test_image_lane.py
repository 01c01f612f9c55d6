"""Which lane an image gets, or the reason why it gets none: never that of another commit."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.lane.logs import lane_or_skip

REPO = Path(__file__).parents[2]
LOADED = ("__init__.py", "errors.py", "lane.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return what the Dockerfile has copied: the package, and the lane's sources beside it."""
    for name in LOADED:
        target = tmp_path / "tree/services/whimbrel" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / "services/whimbrel" / name, target)
    for folder in ("core", "binding"):
        shutil.copytree(REPO / "native" / folder / "src", tmp_path / "tree/native" / folder / "src")
    for name in ("laid", "site"):
        (tmp_path / name).mkdir()
    return tmp_path


def put(tree: Path) -> str:
    """Have the lane put into the image; return what was said."""
    command = [sys.executable, "-S", str(REPO / "deploy/image_lane.py"), "laid", "tree/services", "site"]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def why(tree: Path) -> str:
    """Return the reason in the image."""
    assert [path.name for path in (tree / "site").iterdir()] == ["whimbrel_lane.py"]
    return str(runpy.run_path(str(tree / "site/whimbrel_lane.py"))["WHY"])


def lay_out(tree: Path) -> None:
    """Lay the lane of this environment out."""
    native = lane_or_skip().native
    assert native is not None and native.__file__ is not None
    shutil.copy(native.__file__, tree / "laid")


def test_the_lane_of_these_sources_is_taken(tree: Path) -> None:
    lay_out(tree)
    assert put(tree) == "lane on"
    assert [path.name for path in (tree / "site").iterdir()] == ["whimbrel_lane.abi3.so"]


def test_the_lane_of_other_sources_is_left_out(tree: Path) -> None:
    lay_out(tree)
    with (tree / "tree/native/core/src/lib.rs").open("a") as source:
        source.write("// of the next commit\n")
    assert put(tree).startswith("lane off, because it was built from other sources")
    assert why(tree).startswith("the image was built without it: it was built from other sources")


def test_one_that_can_not_be_loaded_is_left_out(tree: Path) -> None:
    (tree / "laid/whimbrel_lane.abi3.so").write_bytes(b"\x7fELF and no more")
    put(tree)
    assert why(tree).startswith("the image was built without it: it can't be loaded")


def test_the_reason_of_the_environment_is_that_of_the_image(tree: Path) -> None:
    (tree / "laid/whimbrel_lane.py").write_text("WHY = 'there was no cargo'\n")
    assert put(tree).startswith("lane off, because there was no cargo")
    assert why(tree) == "there was no cargo"


def test_where_nobody_laid_one_out_the_image_says_how_to(tree: Path) -> None:
    assert put(tree).startswith("lane off")
    assert why(tree) == "the image was built without it (`make up` builds it in)"
