"""Gets the programs of etcd, without installing it: for tests, CI, and an image where no registry is reached.

    python deploy/etcd.py        fetch them where they are missing, and print their folder

In this order: the folder ETCD_BIN; the PATH; the cache, `$XDG_CACHE_HOME/whimbrel/etcd` (else ~/.cache);
Debian's packages etcd-server and etcd-client, unpacked into that cache. No package is installed, so no daemon
starts. Needs `apt-get` and `dpkg`, and package lists that are not too old (`apt-get update`).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["PROGRAMS", "NoEtcd", "programs"]

PROGRAMS = ("etcd", "etcdctl")
PACKAGES = ("etcd-server", "etcd-client")
FETCH_S = 120


class NoEtcd(Exception):
    """They can't be had; the text is for people."""


def programs() -> Path:
    """Return the folder of both programs; fetches them if need be.

    Raises:
        NoEtcd: they are not there, and can't be fetched.
    """
    if named := os.environ.get("ETCD_BIN"):
        if complete(Path(named)):
            return Path(named)
        raise NoEtcd(f"ETCD_BIN={named} has not both of {' and '.join(PROGRAMS)}")
    found = shutil.which(PROGRAMS[0])
    if found is not None and complete(Path(found).parent):
        return Path(found).parent
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whimbrel" / "etcd"
    if not complete(root):
        fetch(root)
    return root


def complete(folder: Path) -> bool:
    """Return whether both programs are in a folder."""
    return all(os.access(folder / program, os.X_OK) for program in PROGRAMS)


def fetch(root: Path) -> None:
    """Unpack Debian's packages; two that do so at once do not disturb each other.

    Raises:
        NoEtcd: that can't be done here.
    """
    missing = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
    if missing:
        raise NoEtcd(f"etcd is not installed, and without {missing[0]} Debian's packages can't be fetched")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="etcd-") as scratch:
        work = Path(scratch)
        run(["apt-get", "-qq", "download", *PACKAGES], work)
        for package in sorted(work.glob("*.deb")):
            run(["dpkg", "-x", str(package), "unpacked"], work)
        made = work / "bin"
        made.mkdir()
        for program in PROGRAMS:
            unpacked = work / "unpacked" / "usr" / "bin" / program
            if not unpacked.exists():
                raise NoEtcd(f"Debian's packages {' and '.join(PACKAGES)} hold no {program}")
            unpacked.rename(made / program)
        try:
            made.rename(root)
        except OSError:  # another one was faster
            if not complete(root):
                raise NoEtcd(f"{root} is there and has not both programs: remove it") from None


def run(command: list[str], folder: Path) -> None:
    """Run a command; its output is shown only where it fails.

    Raises:
        NoEtcd: it failed.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, check=False, text=True, timeout=FETCH_S, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoEtcd(f"`{' '.join(command)}` did not end in {FETCH_S} s") from None
    if done.returncode:
        raise NoEtcd(f"`{' '.join(command)}` failed, `apt-get update` may help: {done.stdout.strip()[-500:]}")


if __name__ == "__main__":
    try:
        print(programs())
    except NoEtcd as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        sys.exit(1)
