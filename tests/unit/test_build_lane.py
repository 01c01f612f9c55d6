"""What the wheel holds: the compiled lane, or the reason why it was not built.

The build's backend runs in a process of its own, as pip would run it; `cargo` is a script here.
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

REPO = Path(__file__).parents[2]
WANTED = "Rust 1.87 or later builds it"
CARGO = """#!/bin/sh
[ "$1" = --version ] && {{ echo "{version}"; exit {code}; }}
echo "   Compiling whimbrel-lane" >&2
echo "error: linking with cc failed" >&2
echo "and so on" >&2
exit 101
"""


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_lane", REPO / "native" / "build_lane.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Built:
    """What a build gave: its exit code, what it said, the name of its wheel, and the reason in it."""

    code: int
    said: str
    wheel: str = ""
    why: str = ""


def build(tmp_path: Path, *, cargo: str | None = None, asked: str | None = None) -> Built:
    """Build a wheel on a PATH with nothing but such a cargo."""
    folder = tmp_path / "bin"
    folder.mkdir()
    if cargo is not None:
        (folder / "cargo").write_text(cargo)
        (folder / "cargo").chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if name != "WHIMBREL_LANE_BUILD"}
    variables |= {"PATH": f"{folder}:/usr/bin:/bin"}
    if asked is not None:
        variables["WHIMBREL_LANE_BUILD"] = asked
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    done = subprocess.run(command, cwd=REPO, env=variables, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode:
        return Built(done.returncode, said)
    (wheel,) = (tmp_path / "dist").iterdir()
    with ZipFile(wheel) as archive:
        namespace: dict[str, str] = {}
        exec(archive.read("whimbrel_lane.py"), namespace)
    return Built(0, said, wheel.name, namespace["WHY"])


@pytest.mark.parametrize(
    ("cargo", "why"),
    [
        (None, f"there was no cargo when this was installed ({WANTED})"),
        (
            CARGO.format(version="cargo 1.60.0 (d1fd9fe 2022-03-01)", code=0),
            f"cargo was too old when this was installed: 'cargo 1.60.0 (d1fd9fe 2022-03-01)', and {WANTED}",
        ),
        (
            CARGO.format(version="error: rustup could not choose a version of cargo", code=1),
            "`cargo --version` failed when this was installed: ",
        ),
        (
            CARGO.format(version="cargo 1.95.0 (f2d3ce0bd 2026-03-21)", code=0),
            "`cargo build` failed when this was installed: error: linking with cc failed",
        ),
    ],
    ids=["none", "old", "no toolchain", "fails"],
)
def test_where_it_can_not_be_built_there_is_a_wheel_that_says_why(
    tmp_path: Path, cargo: str | None, why: str
) -> None:
    built = build(tmp_path, cargo=cargo)
    assert built.code == 0 and built.wheel.endswith("-py3-none-any.whl")
    assert why in built.why
    assert f"a wheel without the compiled lane, because {built.why}" in " ".join(built.said.split())


def test_nobody_needs_to_want_it(tmp_path: Path) -> None:
    built = build(tmp_path, asked="0")
    assert built.wheel.endswith("-py3-none-any.whl")
    assert built.why == "this wheel was built without it (WHIMBREL_LANE_BUILD=0)"
    assert "because" not in built.said, "what was wanted is no warning"


@pytest.mark.parametrize("asked", ["1", "manylinux_2_17"])
def test_whoever_insists_gets_it_or_an_error(tmp_path: Path, asked: str) -> None:
    built = build(tmp_path, asked=asked)
    assert built.code != 0
    assert (
        f"WHIMBREL_LANE_BUILD={asked}, and the compiled lane can't be built: there was no cargo" in built.said
    )


def test_another_word_is_refused(tmp_path: Path) -> None:
    built = build(tmp_path, asked="yes")
    assert built.code != 0 and "WHIMBREL_LANE_BUILD is 'yes': say 0, 1 or manylinux_2_17" in built.said


@pytest.mark.parametrize(
    ("system", "machine", "implementation", "free_threaded", "why"),
    [
        ("Linux", "aarch64", "CPython", False, "it is not offered for aarch64 with Linux"),
        ("Darwin", "x86_64", "CPython", False, "it is not offered for x86_64 with Darwin"),
        ("Linux", "x86_64", "PyPy", False, "it is not offered for PyPy"),
        ("Linux", "x86_64", "CPython", True, "it is not offered for a free-threaded Python"),
    ],
)
def test_it_is_offered_where_it_was_tried(
    hook: ModuleType, system: str, machine: str, implementation: str, free_threaded: bool, why: str
) -> None:
    with pytest.raises(hook.NotOffered, match=f"^{why}$"):
        hook.offered(system, machine, implementation, free_threaded)
    hook.offered("Linux", "x86_64", "CPython", False)


def test_versions_of_cargo_are_read(hook: ModuleType) -> None:
    assert hook.version_in("cargo 1.95.0 (f2d3ce0bd 2026-03-21)") == (1, 95)
    assert hook.version_in("cargo 1.100.0-nightly") == (1, 100)
    assert hook.version_in("error: no such command") is None


def test_the_reason_is_the_first_error_and_short(hook: ModuleType) -> None:
    assert (
        hook.reason_in("warning: x\nerror[E0308]: mismatched\nerror: aborting") == "error[E0308]: mismatched"
    )
    assert hook.reason_in("\n one\n two \n") == "two"
    assert hook.reason_in("") == "it said nothing"
    assert len(hook.reason_in("error: " + "x" * 1000)) == hook.WHY_CHARS_MAX
