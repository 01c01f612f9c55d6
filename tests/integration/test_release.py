"""What would be published: a wheel and a source distribution, built here, looked at, installed and run.

`make release-check` runs this with the interpreter of .venv; WHIMBREL_RELEASE_PYTHON names another one, in
whose empty environment the wheel is installed and `whimbrel dev` runs. The wheel is this machine's, with the
compiled lane where it can be built. Those for other machines are made and tried by `make release`.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

import whimbrel
from release import variables
from support.waiting import until
from whimbrel.lane import Lane

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

REPO = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
PACKAGED_PYTHON = os.environ.get("WHIMBREL_RELEASE_PYTHON", sys.executable)
BUILD_BACKEND = "hatchling>=1.27"
SDIST_BYTES_MAX = 4_000_000


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] = {}) -> str:
    """Run a command to its end; return what it wrote to standard output."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=variables(env),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both distributions from the checkout, and a wheel from the source distribution."""
    root = tmp_path_factory.mktemp("release")
    run(sys.executable, "-m", "venv", root / "build", cwd=root)
    pip = root / "build" / "bin" / "pip"
    run(pip, "install", "-q", "--disable-pip-version-check", BUILD_BACKEND, cwd=root)
    run(root / "build" / "bin" / "hatchling", "build", "-d", root / "dist", cwd=REPO)
    (sdist,) = (root / "dist").glob("whimbrel-*.tar.gz")
    without = {"WHIMBREL_LANE_BUILD": "0"}  # with it, all crates would be compiled again: `make release` does
    run(pip, "wheel", "-q", "--no-deps", "-w", root / "from-sdist", sdist, cwd=root, env=without)
    return root


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_metadata_is_complete(built: Path) -> None:
    found = metadata(only(built / "dist", "*.whl"))
    assert found["Name"] == "whimbrel" and found["Version"] == whimbrel.__version__
    assert found["Summary"] == PROJECT["description"]
    assert found["License-Expression"] == "Apache-2.0"
    assert sorted(found.get_all("License-File", [])) == ["LICENSE", "NOTICE"]
    assert found["Requires-Python"] == PROJECT["requires-python"]
    assert found["Author"] and found["Keywords"] and "Typing :: Typed" in found.get_all("Classifier", [])
    assert set(found.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert found["Description-Content-Type"] == "text/markdown"
    assert str(found.get_payload()).startswith("# whimbrel")


def test_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    with ZipFile(only(built / "dist", "*.whl")) as archive:
        names = archive.namelist()
    tops = {name.split("/", 1)[0] for name in names}
    info = f"whimbrel-{whimbrel.__version__}.dist-info"
    lane = "whimbrel_lane.abi3.so" if Lane().active else "whimbrel_lane.py"
    assert tops == {"whimbrel", "pyspark_whimbrel", lane, info}
    assert {"whimbrel/py.typed", f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    sources = {str(path.relative_to(REPO / "services")) for path in (REPO / "services").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} - {lane} == sources


def test_the_wheel_is_named_for_where_it_can_be_installed(built: Path) -> None:
    wheel = only(built / "dist", "*.whl").name
    assert wheel.endswith("-cp311-abi3-linux_x86_64.whl" if Lane().active else "-py3-none-any.whl")
    assert only(built / "from-sdist", "*.whl").name.endswith("-py3-none-any.whl")


def test_source_distribution_builds_the_same_wheel(built: Path) -> None:
    sdist = only(built / "dist", "*.tar.gz")
    assert sdist.stat().st_size < SDIST_BYTES_MAX
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO"} <= names
    assert any(name.startswith("protos/") for name in names)
    assert {"native/build_lane.py", "native/Cargo.lock", "native/core/src/lib.rs"} <= names
    assert not [name for name in names if name.startswith("native/target")]
    assert not [name for name in names if name.startswith("tests/") or "__pycache__" in name]
    with (
        ZipFile(only(built / "dist", "*.whl")) as direct,
        ZipFile(only(built / "from-sdist", "*.whl")) as rebuilt,
    ):
        files = [
            {name for name in each.namelist() if not name.startswith("whimbrel_lane.")}
            for each in (direct, rebuilt)
        ]
        assert files[0] == files[1]
        for name in files[0]:
            assert direct.read(name) == rebuilt.read(name) or name.endswith(("/WHEEL", "/RECORD")), name


def test_wheel_runs_whimbrel_dev(built: Path, tmp_path: Path) -> None:
    run(PACKAGED_PYTHON, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    bin_folder = tmp_path / "env" / "bin"
    wheel = only(built / "dist", "*.whl")
    run(bin_folder / "pip", "install", "-q", "--disable-pip-version-check", wheel, cwd=tmp_path)
    where = run(bin_folder / "python", "-c", "import whimbrel; print(whimbrel.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))
    said = run(bin_folder / "whimbrel", "--version", cwd=tmp_path).strip()
    assert said == f"whimbrel {whimbrel.__version__}, {Lane().described()}"

    plugin = run(
        bin_folder / "python",
        "-c",
        "from importlib.metadata import entry_points; import whimbrel.testing;"
        "print(*(each.value for each in entry_points(group='pytest11')))",
        cwd=tmp_path,
    )
    assert plugin.split() == ["whimbrel.testing.plugin"]  # pytest itself is not there

    command = [str(bin_folder / "whimbrel"), "dev", "--dir", str(tmp_path / "cluster"), "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=variables()) as running:
        described = tmp_path / "cluster" / "cluster.json"
        try:
            until(lambda: described.exists() or running.poll() is not None, timeout=60, what="the cluster")
            assert running.poll() is None
            cluster = json.loads(described.read_text())
            assert len(cluster["processes"]) == 5
            at = ("--endpoint", cluster["endpoint"])
            run(bin_folder / "whimbrel", "send", "orders", "hello", *at, cwd=tmp_path)
            asked = ("receive", "orders", "--group", "g", "--count", "1", "-o", "json", *at)
            got = run(bin_folder / "whimbrel", *asked, cwd=tmp_path)
            assert [message["body"] for message in json.loads(got)] == ["hello"]
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0
