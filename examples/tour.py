"""`make run`: a cluster from its start to the loss of its master, with messages of the official SDK.

    python examples/tour.py [--keep DIR]

Runs `whimbrel dev`, and the two `sdk_*.py` programs beside this file, each in a process of its own. Exit code
0 means that every step succeeded; the first step that fails ends the tour with the reason.
"""

import argparse
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WHIMBREL = Path(sys.executable).parent / "whimbrel"
TOPIC = "tour"
GROUP = "tourists"
SENT = 20
RECEIVED = 12  # before the master dies; the others are received from the slave
START_S = 45.0
SLAVE_S = 30.0
Row = dict[str, Any]


class Failed(Exception):
    """A step has failed."""


def print_line(text: str) -> None:
    """Print a line of the tour at once."""
    print(text, flush=True)


def step(title: str) -> None:
    """Announce a step."""
    print_line(f"\n== {title}")


def check(condition: object, sentence: str) -> None:
    """Print that a check succeeded, or end the tour."""
    if not condition:
        raise Failed(sentence)
    print_line(f"   ok: {sentence}")


def until(condition: Callable[[], Any], seconds: float, sentence: str) -> Any:
    """Wait until a condition is true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"{sentence}: not within {seconds:.0f} s")
        time.sleep(0.05)
    return value


def environment(directory: Path) -> dict[str, str]:
    """Return the children's environment; the SDK writes its log below HOME."""
    return os.environ | {"HOME": str(directory), "PYTHONUNBUFFERED": "1"}


def sdk(directory: Path, program: str, *arguments: object) -> list[Row]:
    """Run one of the SDK programs and return what it printed."""
    command = [sys.executable, str(HERE / program), *map(str, arguments)]
    done = subprocess.run(
        command, env=environment(directory), capture_output=True, text=True, timeout=90, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0:
        raise Failed(
            f"{program} ended with code {done.returncode} after {len(rows)} messages: {done.stderr[-1500:]}"
        )
    return rows


def dump(directory: Path, store: Path) -> list[Row]:
    """Return the records of a store, read by `whimbrel store dump`."""
    done = subprocess.run(
        [WHIMBREL, "store", "dump", store],
        env=environment(directory),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"whimbrel store dump {store.name}: {done.stderr or done.stdout}")
    return [row for row in map(json.loads, done.stdout.splitlines()) if row["type"] == "record"]


def log_bytes(store: Path, end: int) -> bytes:
    """Return the first `end` bytes of a store's commitlog."""
    files = sorted((store / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[:end]


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Path]:
    """Run `whimbrel dev` while the block runs; yield the path of its cluster.json."""
    command = [str(WHIMBREL), "dev", "--dir", str(directory), "--port", "0"]
    with subprocess.Popen(command, env=environment(directory)) as running:
        try:
            described = directory / "cluster.json"
            until(lambda: described.exists() or running.poll() is not None, START_S, "the cluster is ready")
            check(running.poll() is None, "nameserver, master, slave and two replicators run")
            yield described
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(30)
    check(running.returncode == 0, "Ctrl-C ended it cleanly (exit code 0)")


def process(described: Path, name: str) -> Row:
    """Return a process's entry in cluster.json."""
    entries: list[Row] = json.loads(described.read_text())["processes"]
    return next(entry for entry in entries if entry["name"] == name)


def tour(directory: Path) -> None:
    """Go through all steps."""
    step("Start a cluster: whimbrel dev")
    with cluster(directory) as described:
        endpoint = json.loads(described.read_text())["endpoint"]
        sent, received = send_and_receive(directory, endpoint)
        compare(directory, sent)
        lose_master(directory, described, endpoint, sent, received)
        master_returns(directory, described, endpoint)


def send_and_receive(directory: Path, endpoint: str) -> tuple[list[Row], list[Row]]:
    """Send all messages, receive some of them."""
    step(f"Send {SENT} messages with the official SDK, from a process of its own")
    sent = sdk(directory, "sdk_producer.py", endpoint, TOPIC, SENT)
    check(len({row["message_id"] for row in sent}) == SENT, f"the master acknowledged all {SENT}")

    step(f"Receive and acknowledge {RECEIVED} of them with the official SimpleConsumer")
    received = sdk(directory, "sdk_consumer.py", endpoint, GROUP, TOPIC, RECEIVED, 30)
    check({row["body"] for row in received} <= {row["body"] for row in sent}, "it got what was sent")
    check(
        len({row["message_id"] for row in received}) == RECEIVED, f"{RECEIVED} different messages, each once"
    )
    return sent, received


def compare(directory: Path, sent: list[Row]) -> None:
    """Compare the two commitlogs, and show one record of the slave's."""
    step("Compare the commitlogs of master and slave")
    master, slave = directory / "master", directory / "slave-1"
    last = dump(directory, master)[-1]
    end = last["phyOffset"] + last["size"]
    until(
        lambda: log_bytes(master, end) == log_bytes(slave, end),
        SLAVE_S,
        "the slave holds the same bytes as the master",
    )
    check(len(log_bytes(slave, end)) == end, f"all {end} bytes are equal")
    wanted = sent[0]["message_id"]
    copy = next((row for row in dump(directory, slave) if row["uniqKey"] == wanted), None)
    check(copy is not None, f"the slave's disk holds message {wanted}:")
    assert copy is not None
    for name in ("topic", "queueId", "queueOffset", "phyOffset", "size", "storeHost", "properties", "body"):
        value = base64.b64decode(copy["body"]).decode() if name == "body" else copy[name]
        print_line(f"       {name:<12} {value}")


def lose_master(
    directory: Path, described: Path, endpoint: str, sent: list[Row], received: list[Row]
) -> None:
    """Kill the master and receive the rest from the slave."""
    step("Kill the master (kill -9) and keep it down")
    hold = directory / "run" / "master.hold"
    hold.touch()
    pid = process(described, "master")["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), 10, f"process {pid} is gone")
    print_line(f"   ok: process {pid} is gone")

    step("Receive the rest with a fresh official consumer: only the slave can answer")
    rest = sdk(directory, "sdk_consumer.py", endpoint, GROUP, TOPIC, SENT - RECEIVED, SLAVE_S)
    before, after = ({row["message_id"] for row in rows} for rows in (received, rest))
    check(not before & after, "the slave repeated nothing that was acknowledged on the master")
    check(before | after == {row["message_id"] for row in sent}, f"it served the other {SENT - RECEIVED}")


def master_returns(directory: Path, described: Path, endpoint: str) -> None:
    """Let the master restart, and use it again."""
    step("Let the master come back")
    before = process(described, "master")["pid"]
    (directory / "run" / "master.hold").unlink()
    until(lambda: process(described, "master")["pid"] != before, START_S, "the master is back")
    more = until(lambda: try_send(directory, endpoint), SLAVE_S, "it takes messages again")
    again = sdk(directory, "sdk_consumer.py", endpoint, GROUP, TOPIC, len(more), 30)
    check(
        {row["body"] for row in again} == {row["body"] for row in more},
        "it takes new messages, and delivers them alone: what the slave acknowledged stays acknowledged",
    )


def try_send(directory: Path, endpoint: str) -> list[Row]:
    """Send a few messages; return none while the master does not accept them."""
    try:
        return sdk(directory, "sdk_producer.py", endpoint, TOPIC, 3, "again")
    except Failed:
        return []


def main() -> int:
    """Run the tour in a scratch directory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="use this directory and leave everything there")
    keep: Path | None = parser.parse_args().keep
    directory = (keep or Path(tempfile.mkdtemp(prefix="whimbrel-tour-"))).absolute()
    started = time.monotonic()
    try:
        tour(directory)
    except Failed as failure:
        print_line(f"\nFAILED: {failure}\n(logs: {directory / 'logs'})")
        return 1
    if keep is None:
        shutil.rmtree(directory, ignore_errors=True)
    print_line(
        f"""
== What this showed, in {time.monotonic() - started:.0f} s
   RocketMQ's official Python SDK, unmodified, sent {SENT} messages to the master and got {RECEIVED} back.
   Every byte of the master's commitlog stood on the slave's disk, in RocketMQ's format.
   After the master was killed, the consumer got the other {SENT - RECEIVED} from the slave, none twice.
   When the master came back, it knew what the slave had acknowledged."""
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
