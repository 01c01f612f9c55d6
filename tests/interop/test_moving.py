"""A cluster of RocketMQ 4.9.3 moves to ours and back while a 4.x producer and consumer are at work.

The clients are never restarted: they know the address of a name server, which stays. Nothing that was
acknowledged is lost, whoever acknowledged it; messages may come twice, as they may whenever a RocketMQ broker
is restarted. The steps are those of docs/remoting.md.
"""

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import pytest

from support.cluster.processes import Process
from support.systems.real_broker import Remoting, Server, broker, name_server, need_kit, resolved
from support.waiting import until
from whimbrel.store.inspect import dump_records

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

LOAD = Path(__file__).resolve().parent / "java" / "Moving.java"
TOPIC, QUEUES = "moving", 4
EACH = 150  # messages that are acknowledged before each step, and after the last
FILES: dict[str, object] = {"commitlog_file_size": 64 << 20, "index_slots": 1000, "index_entries": 4000}
THEIRS: dict[str, object] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "flushConsumerOffsetInterval": 1000,
}


class Clients:
    """The producer and the consumer.

    Attributes:
        acked, got: numbers, in order. again: how many came once more.
    """

    def __init__(self, names: str, scratch: Path) -> None:
        command = ["java", "-Xmx256m", f"-Duser.home={scratch}", "-cp", resolved("4.9.3").strip()]
        self.errors = (scratch / "clients.err").open("wb")
        self.child = subprocess.Popen(
            [*command, str(LOAD), names, TOPIC],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.acked: list[int] = []
        self.got: set[int] = set()
        self.again, self.ended = 0, False
        self.longest, self.last = 0.0, time.monotonic()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            word, _, number = line.strip().partition(" ")
            if word == "acked":
                now = time.monotonic()
                self.longest, self.last = max(self.longest, now - self.last), now
                self.acked.append(int(number))
            elif word == "got":
                self.got.add(int(number))
            elif word == "again":
                self.again += 1
            elif word == "ended":
                self.ended = True

    def go_on(self, what: str) -> None:
        """Wait for so many more acknowledged messages."""
        target = len(self.acked) + EACH
        until(lambda: len(self.acked) >= target, timeout=60, what=what)

    def finish(self) -> None:
        """End the sends, and wait for what was acknowledged."""
        assert self.child.stdin is not None
        self.child.stdin.write("e")
        self.child.stdin.flush()
        until(lambda: self.ended, timeout=20, what="the last send")

        def all_came() -> bool:
            return not set(self.acked) - self.got

        until(all_came, timeout=60, what=lambda: f"{sorted(set(self.acked) - self.got)[:10]} of the consumer")

    def report(self) -> None:
        """Print what it came to."""
        print(f"{len(self.acked)} acknowledged, {self.again} came again, longest pause {self.longest:.1f} s")

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        self.reader.join()
        self.errors.close()


@contextmanager
def clients(names: str, scratch: Path) -> Iterator[Clients]:
    running = Clients(names, scratch)
    try:
        yield running
    finally:
        running.close()


class Ours:
    """Our nameserver, broker and replicator in place of RocketMQ's, at their addresses."""

    def __init__(self, root: Path, names: int, port: int, store: Path) -> None:
        self.nameserver = Process(root, "nameserver", "nameserver", port=names)
        known = f"127.0.0.1:{names}"
        self.broker = Process(root, "broker", "broker", store=store, port=port, nameservers=known, **FILES)
        self.broker.settings["name"] = "broker-i"
        self.replicator = Process(root, "replicator", "replicator", role="master", store=store)

    def start(self) -> None:
        self.nameserver.start()
        for process in (self.broker, self.replicator):
            process.launch()
        for process in (self.broker, self.replicator):
            process.wait_ready()

    def stop(self) -> None:
        for process in (self.broker, self.replicator, self.nameserver):
            assert process.stop() == 0


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Server]:
    need_kit()
    with name_server("4.9.3", tmp_path / "names") as running:
        yield running


def real_broker(tmp_path: Path, names: Server) -> Server:
    return broker("4.9.3", tmp_path / "real", "ASYNC_MASTER", names.address, **THEIRS)


def test_a_store_moves_to_ours_and_back_under_load(tmp_path: Path, names: Server) -> None:
    real = real_broker(tmp_path, names)
    with real:
        with Remoting(real.address) as tools:
            tools.create_topic(TOPIC, QUEUES)
        ours = Ours(tmp_path / "ours", names.port, real.port, real.store)
        with clients(names.address, tmp_path) as load:
            load.go_on("messages at RocketMQ")
            real.stop()
            names.stop()
            ours.start()
            load.go_on("messages at ours")
            ours.stop()
            names.start()
            real.start()
            load.go_on("messages at RocketMQ again")
            load.finish()
            load.report()


@pytest.mark.slow
def test_a_slave_of_ours_takes_a_master_of_rocketmq_over_under_load(tmp_path: Path, names: Server) -> None:
    real = real_broker(tmp_path, names)
    with real:
        with Remoting(real.address) as tools:
            tools.create_topic(TOPIC, QUEUES)
        store = tmp_path / "copy"
        follower = Process(
            tmp_path,
            "replicator",
            "follower",
            role="slave",
            store=store,
            master_ha=real.ha,
            commitlog_file_size=64 << 20,
        )
        with clients(names.address, tmp_path) as load, follower.start():
            load.go_on("messages at RocketMQ")
            # Sends end first, so that the slave has all that was acknowledged.
            names.stop()
            real.stop()
            end = log_end(real.store)
            until(lambda: log_end(store) >= end, timeout=30, what="the whole log at the slave")
            assert follower.stop() == 0
            copytree(real.store / "config", store / "config", dirs_exist_ok=True)
            ours = Ours(tmp_path / "ours", names.port, real.port, store)
            ours.start()
            load.go_on("messages at ours")
            load.finish()
            load.report()
            ours.stop()


def log_end(store: Path) -> int:
    """Return where the records of a store end."""
    rows = [row for row in dump_records(store) if row["type"] == "record"]
    return rows[-1]["phyOffset"] + rows[-1]["size"] if rows else 0
