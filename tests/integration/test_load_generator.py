"""The load generator of `bench/raw.py` compiles, and what it counts is what the broker has."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import Cluster
from support.systems.beside import need_compiler

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "load"
STYLES = ("own", "python", "java", "go", "nodejs")
COUNT = 96  # messages of a run
RUN_S_MAX = 30


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it, without optimising: that takes most of the time."""
    need_compiler()
    folder = tmp_path_factory.mktemp("load")
    command = [
        "make",
        "-s",
        "-C",
        str(FOLDER),
        f"BUILD={folder}",
        "CXX=g++",
        "CXXFLAGS=-O0 -std=c++17 -Wall -Wextra -Werror",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "v2calls"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Iterator[str]:
    """Give a broker's address."""
    with Cluster(tmp_path_factory.mktemp("cluster"), slaves=0) as cluster:
        cluster.wait_usable()
        yield cluster.master.grpc


def run(program: Path, address: str, *arguments: object, code: int = 0) -> dict[str, Any]:
    """Run it; return what it printed."""
    command = [str(program), "--addr", address, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found.get("errors"), found
    return found


def fill(program: Path, address: str, topic: str) -> None:
    """Send messages in batches."""
    sent = run(program, address, "--topic", topic, "--c", 3, "--batch", 8, "--count", COUNT, "--size", 100)
    assert (sent["n"], sent["calls"]) == (COUNT, COUNT // 8)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_header_blocks_sends(program: Path, address: str, style: str) -> None:
    """More calls than the table of header fields has room for."""
    words = ["--topic", f"sends-{style}", "--headers", style, "--c", 4, "--conns", 2, "--count", 200]
    words += ["--keys", 2, "--properties", 3, "--tag", "t", "--size", 333, "--body-random"]
    sent = run(program, address, *words)
    assert sent["n"] == sent["calls"] == 200
    pulled = run(
        program, address, "--mode", "pull", "--topic", f"sends-{style}", "--count", 200, "--size", 333
    )
    assert pulled["n"] == 200


@pytest.mark.parametrize(
    "words",
    [
        ["--kind", "fifo"],
        ["--kind", "transaction"],
        ["--kind", "priority"],
        ["--digest", "crc32"],
        ["--traced", 0.5],
        ["--kind", "transaction", "--digest", "crc32", "--traced", 1, "--headers", "go", "--keys", 1],
    ],
    ids=lambda words: "".join(map(str, words)).replace("--", "-"),
)
def test_messages_of_every_kind_are_stored(program: Path, address: str, words: list[object]) -> None:
    """Of a transaction only what was committed can be pulled."""
    topic = "of" + "".join(map(str, words)).replace("--", "-").replace(".", "-")
    sent = run(program, address, "--topic", topic, *words, "--c", 5, "--conns", 2, "--count", COUNT)
    assert sent["n"] == sent["calls"] == COUNT
    pulled = run(program, address, "--mode", "pull", "--topic", topic, "--count", COUNT, "--size", 1024)
    assert pulled["n"] == COUNT


def test_delayed_messages_wait(program: Path, address: str) -> None:
    sent = run(program, address, "--topic", "waits", "--kind", "delay", "--c", 5, "--count", COUNT)
    assert sent["n"] == COUNT
    assert (
        run(program, address, "--mode", "pull", "--topic", "waits", code=1)["failed"]
        == "the queues are empty"
    )


def test_messages_of_a_kind_come_alone(program: Path, address: str) -> None:
    words = ["--topic", "alone", "--kind", "fifo", "--batch", 2]
    assert "batches" in run(program, address, *words, code=1)["failed"]


@pytest.mark.parametrize("ack", ["one", "batch"])
@pytest.mark.parametrize("style", ["own", "java"])
def test_consumers_receive_and_acknowledge_everything_once(
    program: Path, address: str, style: str, ack: str
) -> None:
    topic = f"receives-{style}-{ack}"
    fill(program, address, topic)
    words = ["--mode", "receive", "--topic", topic, "--headers", style, "--conns", 3, "--ack", ack]
    received = run(program, address, *words, "--batch", 10, "--count", COUNT)
    assert received["n"] == COUNT
    assert received["redelivered"] == 0
    assert received["acks"] == (COUNT if ack == "one" else received["calls"])


def test_consumers_end_where_nothing_comes(program: Path, address: str) -> None:
    fill(program, address, "ends")
    words = ["--mode", "receive", "--topic", "ends", "--conns", 2]
    run(program, address, *words, "--count", COUNT)
    nothing = run(program, address, *words, "--secs", 0.1, "--warm", 0)
    assert (nothing["n"], nothing["calls"]) == (0, 0)


@pytest.mark.parametrize("conns", [1, 4])
def test_pulls_find_all_messages_of_all_queues(program: Path, address: str, conns: int) -> None:
    topic = f"pulls-{conns}"
    fill(program, address, topic)
    words = ["--mode", "pull", "--topic", topic, "--conns", conns, "--size", 100]
    assert run(program, address, *words, "--count", COUNT, "--batch", 7)["n"] == COUNT
    assert run(program, address, *words, "--secs", 0.1, "--warm", 0)["n"] > 0


def test_what_is_missing_is_an_error(program: Path, address: str) -> None:
    fill(program, address, "missing")
    for mode, why in (("receive", "not received"), ("pull", "not pulled")):
        words = ["--mode", mode, "--topic", "missing", "--count", COUNT + 1, "--secs", 0.3]
        command = [str(program), "--addr", address, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
        assert json.loads(done.stdout)["errors"] == {why: 1}


def test_calls_under_tls(program: Path, address: str) -> None:
    words = ["--topic", "tls", "--tls"]
    command = [str(program), "--addr", address, *words, "--count", "64", "--c", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    sent = json.loads(done.stdout)
    if "built without TLS" in sent.get("failed", ""):
        pytest.skip(sent["failed"])
    assert sent["n"] == 64
    assert run(program, address, *words, "--mode", "receive", "--count", 64, "--conns", 2)["n"] == 64
    assert run(program, address, *words, "--mode", "pull", "--count", 64)["n"] == 64


def test_only_the_loopback_is_called(program: Path) -> None:
    assert "loopback" in run(program, "192.0.2.1:8081", "--topic", "t", code=1)["failed"]
