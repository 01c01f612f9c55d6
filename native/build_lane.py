"""Builds the compiled lane into the wheel, where it can be built: hatchling's build hook (pyproject.toml).

The variable WHIMBREL_LANE_BUILD says what is wanted:

    unset           the lane is built on x86-64 Linux where `cargo` runs and is as new as `rust-version`.
                    Elsewhere, or where the build fails, the wheel is one without it, and the reason in it
    0               a wheel without it
    1               the lane, or no wheel: what stands in the way is an error
    manylinux_2_17  as 1, linked by cargo-zigbuild so that any glibc from 2.17 on loads it; for releases

What is in the wheel, and what an editable install puts beside its `.pth` file:

    with the lane   whimbrel_lane.abi3.so                     tag cp311-abi3-linux_x86_64
    without         whimbrel_lane.py, whose WHY says why      tag py3-none-any

Of the network it wants what `cargo build --locked` does: crates of Cargo.lock that are not in cargo's cache.
No toolchain is fetched: where `cargo` is rustup's, it is told not to.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "WHIMBREL_LANE_BUILD"
MODULE = "whimbrel_lane"
CRATE = "whimbrel-lane"
NATIVE = Path("native")
PYTHON_TAG, ABI_TAG = "cp311", "abi3"
RELEASED_FOR = "manylinux_2_17"
ZIG_TARGET = "x86_64-unknown-linux-gnu.2.17"
ASK_S, BUILD_S = 60, 1800
WHY_CHARS_MAX = 300

WITHOUT = '''\
"""Stands here because this installation has no compiled lane (docs/lane.md)."""

WHY = {why!r}
'''


class NotBuilt(Exception):
    """The lane is not built; the text says why, as it follows "because"."""


class NotOffered(NotBuilt):
    """It is none for this system, or nobody wants it: no fault."""


def offered(system: str, machine: str, implementation: str, free_threaded: bool) -> None:
    """Say whether there is a lane for a system.

    Raises:
        NotOffered: there is none.
    """
    if (system, machine) != ("Linux", "x86_64"):
        raise NotOffered(f"it is not offered for {machine} with {system}")
    if implementation != "CPython" or free_threaded:
        what = "a free-threaded Python" if free_threaded else implementation
        raise NotOffered(f"it is not offered for {what}")


def version_in(text: str) -> tuple[int, ...] | None:
    """Return the version in what `cargo --version` says, as "cargo 1.95.0 (f2d3ce0bd 2026-03-21)"."""
    found = re.match(r"cargo (\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else None


def reason_in(text: str) -> str:
    """Return what a failed command gave as its reason: the first line that says `error`, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"]
    chosen = next((line for line in lines if line.lower().startswith("error")), lines[-1])
    return chosen[:WHY_CHARS_MAX]


def run(command: list[str], directory: Path, seconds: int) -> str:
    """Run a command; return what it wrote to standard output.

    Raises:
        NotBuilt: it failed, or took longer than it may.
    """
    variables = os.environ | {"RUSTUP_AUTO_INSTALL": "0", "PYO3_NO_PYTHON": "1"}
    words = f"{Path(command[0]).name} {command[1]}"
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=variables,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"`{words}` failed when this was installed: {error}") from error
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise NotBuilt(f"`{words}` failed when this was installed: {reason_in(done.stderr)}")
    return done.stdout


def cargo_of(native: Path) -> str:
    """Return the path of a cargo that is new enough.

    Raises:
        NotBuilt: there is none.
    """
    wanted = tomllib.loads((native / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["rust-version"]
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NotBuilt(f"there was no cargo when this was installed (Rust {wanted} or later builds it)")
    said = run([cargo, "--version"], native, ASK_S).strip()
    found = version_in(said)
    if found is None or found < tuple(map(int, wanted.split("."))):
        raise NotBuilt(
            f"cargo was too old when this was installed: {said[:40]!r}, and Rust {wanted} or later builds it"
        )
    return cargo


def built(native: Path, *, for_release: bool) -> Path:
    """Build the lane; return the path of its library.

    Raises:
        NotBuilt: that failed.
    """
    command = [cargo_of(native), "build"]
    target = []
    if for_release:
        zigbuild = shutil.which("cargo-zigbuild")
        if zigbuild is None:
            raise NotBuilt("there is no cargo-zigbuild on the PATH, which `make release` installs")
        command, target = [zigbuild, "zigbuild"], ["--target", ZIG_TARGET]
    words = [
        "--release",
        "--locked",
        "--package",
        CRATE,
        "--message-format",
        "json-render-diagnostics",
        *target,
    ]
    for line in run([*command, *words], native, BUILD_S).splitlines():
        message: dict[str, Any] = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == MODULE:
            return Path(message["filenames"][0])
    raise NotBuilt("cargo did not say where it put the lane")


class LaneBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the lane, or the reason why there is none, into each wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling: `build_data` is what goes into the wheel beside the packages."""
        asked = os.environ.get(VARIABLE, "")
        try:
            library = self.library(asked)
        except NotBuilt as why:
            if asked not in ("", "0"):
                self.app.abort(f"{VARIABLE}={asked}, and the compiled lane can't be built: {why}")
            if not isinstance(why, NotOffered):
                self.app.display_warning(f"a wheel without the compiled lane, because {why}")
            self.scratch = tempfile.TemporaryDirectory()
            source, name = Path(self.scratch.name, f"{MODULE}.py"), f"{MODULE}.py"
            source.write_text(WITHOUT.format(why=str(why)), "utf-8")
        else:
            source, name = library, f"{MODULE}.abi3.so"
            platform_tag = f"{RELEASED_FOR if asked == RELEASED_FOR else 'linux'}_x86_64"
            build_data["tag"] = f"{PYTHON_TAG}-{ABI_TAG}-{platform_tag}"
            build_data["pure_python"] = False
        build_data["force_include"][str(source)] = name
        build_data["force_include_editable"][str(source)] = name

    def library(self, asked: str) -> Path:
        """Return the lane's library, built.

        Raises:
            NotBuilt: why there is none.
        """
        if asked == "0":
            raise NotOffered(f"this wheel was built without it ({VARIABLE}=0)")
        if asked not in ("", "1", RELEASED_FOR):
            self.app.abort(f"{VARIABLE} is {asked!r}: say 0, 1 or {RELEASED_FOR}, or leave it out")
        free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
        offered(platform.system(), platform.machine(), platform.python_implementation(), free_threaded)
        return built(Path(self.root) / NATIVE, for_release=asked == RELEASED_FOR)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was written for the wheel."""
        if hasattr(self, "scratch"):
            self.scratch.cleanup()
