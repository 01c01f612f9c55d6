"""`make release`: what is published, built from the commit into dist/, looked at and tried.

    whimbrel-V-cp311-abi3-manylinux_2_17_x86_64.whl    with the compiled lane, for any CPython from 3.11 on
    whimbrel-V-py3-none-any.whl                        without it, for everything else
    whimbrel-V.tar.gz                                  the source distribution
    whimbrel-V.cdx.json                                CycloneDX: what is installed beside it
    whimbrel-V-lane.cdx.json                           CycloneDX: the crates within the lane
    SHA256SUMS                                         of all these

Python's part of the bill of materials is made by uv, that of the crates by cargo-cyclonedx; both say what the
lock files say. auditwheel looks whether the lane's wheel needs no newer C library than its name says.

    python deploy/release.py [--allow-uncommitted]

Each distribution is then installed into an empty environment of every Python from 3.11 on that uv finds: pip
chooses between the wheels by itself, without an index, and for other platforms it is asked what it would
choose. The source distribution is built with cargo and without. In the end pip-audit and cargo-audit look for
known faults in what we depend on; where they, or their databases, can't be had, a line says so.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from whimbrel import __version__

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TOOLS = ROOT / "build" / "release-tools"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whimbrel" / "release-tools"
CARGO_CYCLONEDX = "0.5.9"
PYTHONS = ("3.11", "3.12", "3.13")
LANE_PLATFORM = "manylinux_2_17_x86_64"
LANE_WHEEL = f"whimbrel-{__version__}-cp311-abi3-{LANE_PLATFORM}.whl"
ANY_WHEEL = f"whimbrel-{__version__}-py3-none-any.whl"
SDIST = f"whimbrel-{__version__}.tar.gz"
BOM, LANE_BOM = f"whimbrel-{__version__}.cdx.json", f"whimbrel-{__version__}-lane.cdx.json"
# What pip has to choose elsewhere: the lane is tried on x86-64 with glibc only.
CHOICES = {
    "manylinux_2_17_x86_64": LANE_WHEEL,
    "manylinux_2_17_aarch64": ANY_WHEEL,
    "musllinux_1_2_x86_64": ANY_WHEEL,
    "macosx_11_0_arm64": ANY_WHEEL,
}
AUDIT_S = 120


def step(what: str) -> None:
    """Say what is done next."""
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def fail(text: str) -> None:
    """End with a sentence.

    Raises:
        SystemExit: always.
    """
    sys.exit(f"release: {text}")


def variables(more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return this process's environment without what leads to the checkout, and with more."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WHIMBREL_") and name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }
    return kept | dict(more)


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] = {}) -> str:
    """Run a command to its end; return what it wrote to standard output."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=variables(env), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        fail(f"`{' '.join(map(str, command[:3]))} ...` failed, see above")
    return done.stdout.strip()


def uv() -> str:
    """Return uv: its cache has what pip would fetch each time."""
    return shutil.which("uv") or str(Path(sys.executable).with_name("uv"))


def install_tools() -> None:
    """Make the environment of the lock file's group `release`, and cargo-cyclonedx."""
    sync = ("sync", "-q", "--frozen", "--only-group", "release", "--no-install-project")
    run(uv(), *sync, env={"UV_PROJECT_ENVIRONMENT": str(TOOLS)})
    if shutil.which("cargo-cyclonedx", path=search_path()) is None:
        step(f"cargo-cyclonedx {CARGO_CYCLONEDX} is compiled, once: minutes")
        run(
            "cargo", "install", "-q", "--locked", "--root", CACHE, f"cargo-cyclonedx@{CARGO_CYCLONEDX}",
            env={"CARGO_TARGET_DIR": str(CACHE / "target")},
        )  # fmt: skip
        shutil.rmtree(CACHE / "target")


def search_path() -> str:
    """Return PATH with the tools first."""
    return os.pathsep.join((str(TOOLS / "bin"), str(CACHE / "bin"), os.environ["PATH"]))


def build() -> None:
    """Build both wheels and the source distribution."""
    shutil.rmtree(DIST, ignore_errors=True)
    find_zig = "import ziglang; print(ziglang.__path__[0] + '/zig')"
    zig = run(TOOLS / "bin" / "python", "-c", find_zig)
    for what, lane in (("--wheel", "0"), ("--wheel", "manylinux_2_17"), ("--sdist", "0")):
        asked = {
            "WHIMBREL_LANE_BUILD": lane,
            "PATH": search_path(),
            "CARGO_ZIGBUILD_ZIG_PATH": zig,
            # In what the compiler says of places, the tree and the home stand for where they were.
            "RUSTFLAGS": f"--remap-path-prefix={ROOT}=whimbrel --remap-path-prefix={Path.home()}=home",
        }
        run(uv(), "build", "-q", what, "--out-dir", DIST, ".", env=asked)
    (DIST / ".gitignore").unlink(missing_ok=True)
    found = sorted(path.name for path in DIST.iterdir())
    if found != sorted((LANE_WHEEL, ANY_WHEEL, SDIST)):
        fail(f"not what was to be built: {found}")
    shown = run(TOOLS / "bin" / "auditwheel", "show", DIST / LANE_WHEEL, env={"PATH": search_path()})
    if f'"{LANE_PLATFORM}"' not in shown:
        fail(f"the lane's wheel needs a newer C library than its name says:\n{shown}")


def write_boms() -> None:
    """Write the bills of materials."""
    words = ("export", "-q", "--frozen", "--no-dev", "--all-extras", "--format", "cyclonedx1.5")
    bom = json.loads(run(uv(), *words))
    bom["metadata"]["component"]["version"] = __version__
    write_json(DIST / BOM, bom)
    with tempfile.TemporaryDirectory() as name:
        native = Path(name) / "native"
        shutil.copytree(ROOT / "native", native, ignore=shutil.ignore_patterns("target", "fuzz"))
        run(
            "cargo", "cyclonedx", "-q", "-f", "json", "--spec-version", "1.5", "--override-filename", "lane",
            "--manifest-path", native / "binding" / "Cargo.toml",
            env={"PATH": search_path()},
        )  # fmt: skip
        bom = json.loads((native / "binding" / "lane.json").read_text("utf-8"))
    bom = json.loads(json.dumps(bom).replace(name, "whimbrel"))  # where the copy was
    write_json(DIST / LANE_BOM, bom)
    for file in (BOM, LANE_BOM):
        found = json.loads((DIST / file).read_text("utf-8"))
        if found["bomFormat"] != "CycloneDX" or not found["components"]:
            fail(f"{file} is no bill of materials")
        print(f"  {file}: {len(found['components'])} components")


def write_json(path: Path, content: Any) -> None:
    """Write a file of JSON for people as well."""
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def write_sums() -> None:
    """Write the checksums, as `sha256sum --check` reads them."""
    files = sorted(path for path in DIST.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(lines), "utf-8")


def interpreters() -> dict[str, str]:
    """Return the Pythons that uv finds here, by their versions."""
    found = {}
    for version in PYTHONS:
        asked = subprocess.run(
            [uv(), "python", "find", "--no-project", "--no-python-downloads", version],
            cwd=tempfile.gettempdir(), env=variables(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if asked.returncode == 0:
            found[version] = asked.stdout.strip()
    return found


class Environment:
    """An empty environment with a pip, and what the lock file says that we depend on."""

    def __init__(self, root: Path, python: str, pins: Path) -> None:
        self.root = root / "env"
        self.bin = self.root / "bin"
        run(python, "-m", "venv", self.root, cwd=root)
        run(uv(), "pip", "install", "-q", "--python", self.bin / "python", "-r", pins, cwd=root)

    def install(self, *words: str | Path, lane: str, env: Mapping[str, str] = {}) -> str:
        """Install whimbrel in place of what was there, and return what it says of itself.

        Raises:
            SystemExit: it doesn't say of the lane what is expected.
        """
        pip = (self.bin / "pip", "install", "-q", "--disable-pip-version-check", "--no-deps")
        run(*pip, "--force-reinstall", *words, cwd=self.root, env=env)
        said = run(self.bin / "whimbrel", "--version", cwd=self.root)
        if not said.startswith(f"whimbrel {__version__}, {lane}"):
            fail(f"{words[-1]} says {said!r}, and of the lane it should say {lane!r}")
        return said


def try_all() -> None:
    """Install everything in empty environments."""
    pythons = interpreters()
    for version in PYTHONS:
        if version not in pythons:
            print(f"  Python {version} is not here: nothing was tried with it")
    wheels = ("--no-index", "--find-links", DIST, f"whimbrel=={__version__}")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        pins = root / "pins.txt"
        run(uv(), "export", "-q", "--frozen", "--no-dev", "--no-emit-project", "-o", pins)
        for version, python in pythons.items():
            folder = root / version
            folder.mkdir()
            empty = Environment(folder, python, pins)
            print(f"  {version}, wheels: {empty.install(*wheels, lane='lane on')}")
            said = empty.install(DIST / ANY_WHEEL, lane="lane off, because this wheel was built without it")
            print(f"  {version}, {ANY_WHEEL}: {said}")
            if version == PYTHONS[0]:
                for what, path, lane in (
                    ("with cargo", os.environ["PATH"], "lane on"),
                    ("without cargo", path_without_cargo(), "lane off, because there was no cargo"),
                ):
                    said = empty.install("--no-binary", ":all:", DIST / SDIST, lane=lane, env={"PATH": path})
                    print(f"  {version}, {SDIST} {what}: {said}")
        for platform, expected in CHOICES.items():
            folder = root / platform
            words = ("download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:")
            run(empty.bin / "pip", *words, "--platform", platform, "-d", folder, *wheels)
            (chosen,) = (path.name for path in folder.iterdir())
            if chosen != expected:
                fail(f"for {platform} pip chooses {chosen}, and should {expected}")
            print(f"  {platform}: {chosen}")


def path_without_cargo() -> str:
    """Return a PATH on which there is no cargo, nor what could fetch one."""
    kept = [
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not any((Path(folder) / name).exists() for name in ("cargo", "rustup", "rustc"))
    ]
    return os.pathsep.join(kept)


def audit(what: str, command: Iterable[str | Path], unreachable: Iterable[str]) -> None:
    """Let a tool look for known faults; say so where it can't.

    Args:
        unreachable: what the tool says where its database can't be reached.

    Raises:
        SystemExit: it found some.
    """
    try:
        done = subprocess.run(
            list(map(str, command)), cwd=ROOT, env=variables({"PATH": search_path()}),
            capture_output=True, text=True, timeout=AUDIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"  {what}: its database did not answer within {AUDIT_S} s; nothing was audited")
        return
    text = done.stdout + done.stderr
    if done.returncode == 0:
        print(f"  {what}: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")
    elif any(sign in text for sign in unreachable):
        print(f"  {what}: its database can't be reached from here; nothing was audited")
    else:
        fail(f"{what} found something:\n{text}")


def audit_all() -> None:
    """Look for known faults in what we depend on."""
    with tempfile.TemporaryDirectory() as name:
        pins = Path(name) / "pins.txt"
        run(uv(), "export", "-q", "--frozen", "--no-dev", "--all-extras", "--no-emit-project", "-o", pins)
        command = (
            TOOLS / "bin" / "pip-audit",
            "--requirement",
            pins,
            "--disable-pip",
            "--progress-spinner",
            "off",
        )
        audit("pip-audit", command, ("ConnectionError", "ServiceError", "Max retries", "HTTPError", "404"))
    if shutil.which("cargo-audit", path=search_path()) is None:
        print("  cargo-audit is not installed (`cargo install --locked cargo-audit`): no crate was audited")
        return
    lock = ROOT / "native" / "Cargo.lock"
    audit(
        "cargo-audit", ("cargo-audit", "audit", "-q", "--file", lock), ("couldn't fetch advisory database",)
    )


def main() -> None:
    """Build, look, try, audit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--allow-uncommitted", action="store_true", help="for tries: also what is not committed"
    )
    parser.add_argument(
        "--all-pythons", action="store_true", help=f"fail where one of {', '.join(PYTHONS)} is not here"
    )
    args = parser.parse_args()
    if args.all_pythons and (missing := [version for version in PYTHONS if version not in interpreters()]):
        fail(f"Python {' and '.join(missing)} not found: put it on the PATH, or `uv python install` it")
    if run("git", "status", "--porcelain") and not args.allow_uncommitted:
        fail("there is something that is not committed: a release is made from a commit")
    if shutil.which("cargo") is None:
        fail("there is no cargo on the PATH, and a release has the compiled lane: https://rustup.rs")
    begun = time.monotonic()
    step(f"whimbrel {__version__} of commit {run('git', 'rev-parse', '--short', 'HEAD')}: tools")
    install_tools()
    step("wheels and source distribution")
    build()
    step("bills of materials and checksums")
    write_boms()
    write_sums()
    step("each in an empty environment")
    try_all()
    step("known faults in what we depend on")
    audit_all()
    print((DIST / "SHA256SUMS").read_text("utf-8"), end="")
    step(f"done after {time.monotonic() - begun:.0f} s: dist/")


if __name__ == "__main__":
    main()
