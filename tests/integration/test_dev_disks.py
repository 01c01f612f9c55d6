"""`whimbrel dev`, and the commands and processes that write, on a disk that is full or takes no writes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.processes import COMMAND, environment
from support.cluster.processes import dev as start_dev
from support.cluster.small_disk import SmallDisk
from support.waiting import until
from whimbrel.cli.dev_directory import running_pid
from whimbrel.cli.supervisor import USABLE_TIMEOUT_S

pytestmark = pytest.mark.process

DISK_BYTES = 400 << 20
FULL = "--disk-full-ratio", "0"  # any disk is


def whimbrel(*words: str, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        env=environment() | (variables or {}),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", DISK_BYTES) as mounted:
        yield mounted


def test_a_detached_cluster_on_a_full_disk_has_not_started(tmp_path: Path) -> None:
    done = whimbrel("dev", "start", "--dir", str(tmp_path), "--port", "0", *FULL)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "takes no messages, and was stopped again: broker-a: the disk" in done.stderr
    assert "free some space" in done.stderr
    assert done.stderr.count("\n") == 1
    assert running_pid(tmp_path) is None
    assert not (tmp_path / "cluster.json").exists()


def test_one_in_the_foreground_says_that_it_is_not_ready_and_why(tmp_path: Path) -> None:
    log = tmp_path / "out"
    child = start_dev(tmp_path / "dev", log, *FULL)
    try:
        until(
            lambda: "NOT ready" in log.read_text(), timeout=USABLE_TIMEOUT_S * 2, what="why it is not ready"
        )
        assert "it takes no messages: broker-a: the disk" in log.read_text()
        assert "cluster ready" not in log.read_text()
        assert json.loads((tmp_path / "dev" / "cluster.json").read_text())["endpoint"]
    finally:
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0


def test_a_cluster_for_which_the_disk_has_no_byte_says_so(disk: SmallDisk) -> None:
    disk.fill()
    where = disk.path / "dev"
    done = whimbrel("dev", "start", "--dir", str(where), "--port", "0")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "said nothing" not in done.stderr


def test_nothing_that_writes_ends_in_a_traceback_on_a_disk_that_takes_no_writes(disk: SmallDisk) -> None:
    dev, new = str(disk.path / "dev"), str(disk.path / "new")
    assert whimbrel("dev", "start", "--dir", dev, "--port", "0").returncode == 0
    assert whimbrel("dev", "stop", "--dir", dev).returncode == 0
    disk.make_read_only()
    store, to = f"{dev}/master", f"{new}/store"
    for words in (
        ("dev", "start", "--dir", dev, "--port", "0"),
        ("dev", "start", "--dir", new, "--port", "0"),
        ("dev", "--dir", dev, "--port", "0"),
        ("dev", "--dir", new, "--port", "0"),
        ("dev", "purge", "--yes", "--dir", dev),
        ("store", "recover", store),
        ("store", "export", store),
        ("store", "export", store, "--to", to),
        ("restore", store, to),
        ("profile", "set", "prod", "--endpoint", "a:1"),
        ("nameserver", "--port", "0", "--keeps-groups", f"{new}.json"),
        ("nameserver", "--port", "0", "--kv-config", f"{new}.json"),
        ("nameserver", "--port", "0", "--ready-file", f"{new}.json"),
        ("broker", "--port", "0", "--store", store),
        ("broker", "--port", "0", "--store", to),
        ("replicator", "--port", "0", "--store", store),
        ("replicator", "--port", "0", "--store", to),
    ):
        done = whimbrel(*words, variables={"XDG_CONFIG_HOME": str(disk.path)})
        last = done.stderr.splitlines()[-1]
        assert done.returncode == 1, (words, done.stderr)
        assert "Read-only file system" in last and str(disk.path) in last, (words, done.stderr)
        assert "Traceback" not in done.stderr, words
        assert "said nothing" not in done.stderr, words


def test_what_only_reads_works_on_a_disk_that_takes_no_writes(disk: SmallDisk) -> None:
    dev = str(disk.path / "dev")
    assert whimbrel("dev", "start", "--dir", dev, "--port", "0").returncode == 0
    assert whimbrel("dev", "stop", "--dir", dev).returncode == 0
    disk.make_read_only()
    for words, code in (
        (("dev", "status", "--dir", dev), 1),
        (("store", "dump", f"{dev}/master"), 0),
        (("store", "verify", f"{dev}/master"), 0),
    ):
        done = whimbrel(*words)
        assert (done.returncode, done.stderr) == (code, ""), words


def test_a_cluster_whose_disk_fills_up_goes_on(disk: SmallDisk) -> None:
    dev = disk.path / "dev"
    assert whimbrel("dev", "start", "--dir", str(dev), "--port", "0").returncode == 0
    pid = running_pid(dev)
    try:
        nameserver = json.loads((dev / "cluster.json").read_text())["processes"][0]["pid"]
        before = set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        disk.fill()
        os.kill(nameserver, signal.SIGKILL)
        children = Path(f"/proc/{pid}/task/{pid}/children")
        until(lambda: len(set(children.read_text().split()) - before) == 1, what="the next nameserver")
        assert running_pid(dev) == pid
        disk.empty()
        until(
            lambda: json.loads((dev / "cluster.json").read_text())["processes"][0]["pid"] != nameserver,
            timeout=30,
            what="cluster.json with the new nameserver",
        )
        assert whimbrel("dev", "status", "--dir", str(dev)).returncode == 0
    finally:
        disk.empty()
        assert whimbrel("dev", "stop", "--dir", str(dev)).returncode == 0
